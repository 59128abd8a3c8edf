"""The tables of what models cost; how the numbers are counted is tested with the models."""

from __future__ import annotations

import functools
import json

import pytest

from linnaeus_jax.config import get_config
from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.derived import architecture
from linnaeus_jax.config.typed import typed
from linnaeus_jax.registry import MODELS
from linnaeus_jax.tools import model_info
from linnaeus_jax.weights import backbones
from linnaeus_jax.weights.hub_models import HUB_MODELS, costs_of
from linnaeus_jax.weights.locating import name_errors
from tests.tiny import tiny_config

SM = "mFormerV1_sm"
PARTS = {"heads.classification_heads", "heads.meta_heads", "stages.rope_stages", "stages.convnext_stages"}


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        "from pathlib import Path\nfrom tests.tiny import tiny_config\n\n\n"
        f"def get_config():\n    return tiny_config(Path({str(tmp_path)!r}))\n"
    )
    return path


def asked(capsys, *arguments):
    assert model_info.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_classes_come_from_the_labels_file_unless_they_are_given(config_file, tmp_path, capsys):
    tiny_config(tmp_path)
    found = asked(capsys, f"--config={config_file}")
    assert found["classes"] == {"taxa_L10": 9, "taxa_L20": 5, "taxa_L30": 3}  # the null class among them
    assert found["class_counts"] == f"from {tmp_path / 'labels.h5'}"
    assert found["components"] == {"TEMPORAL": 2, "SPATIAL": 3}
    assert set(found["parameters"]) > PARTS
    assert found["parameters"]["heads.classification_heads"] == (16 + 1) * (9 + 5 + 3)
    assert found["total_without_metadata"] == (
        sum(found["parameters"].values()) - found["parameters"]["heads.meta_heads"]
    )
    assert found["dtype"] == "bfloat16"
    assert not found["recomputes"]
    assert 0 < found["kept_bytes_recomputing"] < found["kept_bytes"]
    more = asked(capsys, f"--config={config_file}", "--classes", "10,4,2", "--config.train.compute_dtype=float32")
    assert more["class_counts"] == "given"
    assert more["parameters"]["heads.classification_heads"] == (16 + 1) * 16
    assert more["kept_bytes"] > found["kept_bytes"]


@pytest.mark.slow
def test_table_without_data(capsys):
    assert model_info.main(["--config=configs/quickstart.py", "--config.data.h5.labels_path=nowhere.h5"]) == 0
    text = capsys.readouterr().out
    assert "classes 684 + 179 + 40 + 4 (assumed, since nowhere.h5 does not exist)" in text
    assert "mFormerV1_tiny: pictures of 48 px, metadata TEMPORAL 2 + SPATIAL 3 + ELEVATION 10" in text
    for words in (*PARTS, "803,070", "640,062", "GMAC", "(as"):
        assert words in text
    assert text.index("without recomputation (as") > text.index("with recomputation")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", "5,4"], "--classes 5,4: give --classes one count above 0 for each of taxa_L10, taxa_L20"),
        (["--config.data.task_keys_h5=a,b"], "task 'a' is not of the form"),
        (["--config.train.seed=-1"], "train.seed = -1 is out of range"),
        (["--config.model.variant=huge"], "model.variant = 'huge' is unknown for mFormerV1"),
    ],
)
def test_wrong_arguments_are_one_message(arguments, message, capsys):
    assert model_info.main(["--config=configs/quickstart.py", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_every_registered_variant_has_a_row(monkeypatch, capsys):
    seen = []

    def size(model):
        seen.append((type(model).__name__, model.img_size[0], len(model.components)))
        return 10**8

    stub = tuple((key, size, changed) for key, _, changed in model_info.EVERY_MODEL)
    monkeypatch.setattr(model_info, "EVERY_MODEL", stub)
    assert model_info.main(["--all", "--config=configs/quickstart.py"]) == 0
    text = capsys.readouterr().out
    names = [
        f"{name}_{variant}" if variant else name
        for name, family in MODELS.entries.items()
        for variant in family.variants or ("",)
    ]
    assert all(name in text for name in names)
    assert len(seen) == 5 * len(names)
    given = [(48, 3), (48, 0), (224, 3), (384, 3), (48, 3)]
    for family in ("MFormerV0", "MFormerV1"):
        assert [(size, parts) for name, size, parts in seen if name == family][:5] == given
    assert "100,000,000" in text
    assert "0.10" in text


def test_variants_have_their_own_sizes():
    config = get_config()
    config.model.convnext_stages.dims = (8, 8, 16, 16)
    config.model.classification.heads = {"taxa_L10": {"type": "Linear", "use_bias": False}}
    for found in model_info.every_variant(typed(complete_open_nodes(config))):
        assert found.model.convnext_stages.dims == ()
        assert not found.model.classification.heads["taxa_L10"].use_bias
        assert found.train.epochs == config.train.epochs
    assert config.model.variant == get_config().model.variant
    assert config.is_locked


@pytest.mark.slow
def test_all_in_numbers(monkeypatch, capsys):
    """Of one variant: the numbers of the others are counted with the models, and each has its row above."""
    every = model_info.every_variant
    monkeypatch.setattr(model_info, "every_variant", lambda config: [c for c in every(config) if architecture(c) == SM])
    found = asked(capsys, "--all")
    rows = {row["model"]: row for row in found["models"]}
    assert list(rows) == [SM]
    assert rows[SM]["total_without_metadata"] == 26_910_958
    assert rows[SM]["multiply_adds_224"] < rows[SM]["multiply_adds_384"] / 2.9


def test_trunks_of_hubs_with_their_licences(capsys):
    tree = asked(capsys, "--pretrained", "--hub")
    rows = {row["name"]: row for row in tree}
    assert len(rows) == len(tree)
    assert all(not name_errors(name, "x") for name in rows)
    assert rows["timm:vit_base_patch16_dinov3.lvd1689m"]["licence"].startswith("DINOv3 License")
    assert {row["type"] for row in tree} == {"ViT", "ConvNeXt"}
    # a file holds the trunk, 4 bytes a number, and perhaps a classifier or a text tower
    assert all(row["megabytes"] >= 3.95 * row["parameters"] for row in tree)
    assert model_info.main(["--pretrained", "--hub"]) == 0
    text = capsys.readouterr().out
    for part in ("hf:imageomics/bioclip-2", "MIT", "CC-BY-NC-4.0", "81.01", "--config.model.pretrained=NAME"):
        assert part in text
    assert model_info.main(["--hub"]) == 2
    assert "--hub goes with --pretrained" in capsys.readouterr().err


#: one of each form
FORMS = ("vit_small_patch14_reg4_dinov2", "vit_base_patch16_dinov3", "eva02_base", "siglip_224", "bioclip-2")


@pytest.mark.parametrize("hub", [hub for hub in HUB_MODELS if any(part in hub.name for part in FORMS)])
def test_costs_of_trunks_of_hubs_are_those_of_our_models(hub):
    parameters, multiply_adds = costs_of(hub)
    assert (round(parameters / 1e6, 1), round(multiply_adds / 1e9, 2)) == (hub.parameters, hub.gmac)


@pytest.mark.slow
def test_published_weights_and_how_they_are_had(capsys, monkeypatch):
    monkeypatch.setattr(model_info, "costs_of", functools.cache(backbones.costs_of))  # for both forms of the table
    tree = asked(capsys, "--pretrained")
    names = [row["name"] for row in tree]
    assert {"efficientnet-lite0", "efficientnet-lite2", "mobilenet_v2_1.0_224_inat_bird_quant.tflite"} < set(names)
    assert all(len(row["sha256"]) == 64 and row["preprocessing"]["size"][0] >= 224 for row in tree)
    lite0 = tree[names.index("efficientnet-lite0")]
    assert (lite0["type"], lite0["variant"]) == ("EfficientNet", "lite0")
    assert (round(lite0["parameters"] / 1e6, 2), round(lite0["multiply_adds"] / 1e9, 2)) == (3.37, 0.38)
    assert model_info.main(["--pretrained"]) == 0
    text = capsys.readouterr().out
    for part in ("package:efficientnet-lite0", "18.8 MB", "Apache-2.0", "pip install", "crop fraction", "224 px"):
        assert part in text
