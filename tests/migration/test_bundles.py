"""Bundles in the documented layout of the original: the same logits as its weights, and nothing that does not fit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.model import load
from linnaeus_jax.migration import bundles
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.weights.exporting import torch_state
from linnaeus_jax.weights.files import read_state
from tests.inference.conftest import TAXA, small_taxonomy
from tests.weights.helpers import SMALL, SMALL_V0, heads, model_of, section, trees

TASKS = tuple(TAXA)
COMPONENTS = (("SPATIAL", 3), ("TEMPORAL", 4), ("ELEVATION", 4))
VARIANT = {
    "mFormerV1": {"CONVNEXT_STAGES": {"DIMS": [4, 8, 8, 16], "DEPTHS": [1, 1]}}
    | {"ROPE_STAGES": {"DEPTHS": [2, 1], "NUM_HEADS": [2, 2]}},
    "mFormerV0": {"CONV_STAGES": {"EMBED_DIMS": [4, 4], "OUT_CHANNELS": [4, 8]}}
    | {"ATTENTION_STAGES": {"DIMS": [8, 16], "DEPTHS": [2, 1], "NUM_HEADS": [2, 2]}},
}


def write_original(path, family: str = "mFormerV1", head: str = "Linear", components: Any = COMPONENTS) -> Any:
    """A bundle as the original documents it; returns model, parameters and state that it holds."""
    taxonomy = small_taxonomy()
    settings = section(**{"type": family, **(SMALL if family == "mFormerV1" else SMALL_V0), **heads(taxa_L10=head)})
    settings.rope_stages.rope_mode = "cos_only"
    settings.classification.hierarchy_mode = "reference_unrefined"
    model = model_of(
        settings, classes=dict(taxonomy.classes), components=components, parents=taxonomy.tree.parent, size=32
    )
    params, state = trees(model)
    (path / "model").mkdir(parents=True)
    arrays = torch_state(model, params, state, parents=taxonomy.tree.parent)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path / "model" / "w.safetensors")
    variant = {"MODEL": {"TYPE": family, "VARIANT": "tiny", "PRETRAINED": "/elsewhere/start.pth", **VARIANT[family]}}
    (path / "variant.yaml").write_text(yaml.safe_dump(variant))
    (path / "taxonomy.json").write_text(json.dumps(taxonomy.tree.to_json()))
    ids = {task: {str(i): int(taxon) for i, taxon in enumerate(each)} for task, each in taxonomy.classes.items()}
    (path / "class_index_map.json").write_text(json.dumps(ids))
    about = {
        "model": {
            "architecture_name": family,
            "architecture_variant_config_path": "variant.yaml",
            "weights_path": "model/w.safetensors",
            "model_task_keys_ordered": list(TASKS),
            "num_classes_per_task": {task: len(each) for task, each in ids.items()},
            "null_class_indices": dict.fromkeys(TASKS, 0),
            "expected_aux_vector_length": sum(width for _, width in components),
        },
        "input_preprocessing": {"image_size": [3, 32, 32], "image_interpolation": "bicubic"},
        "metadata_preprocessing": {
            "use_geolocation": True,
            "use_temporal": True,
            "temporal_use_julian_day": True,
            "temporal_use_hour": True,
            "use_elevation": True,
            "elevation_scales": [100.0, 1000.0],
        },
        "taxonomy_data": {
            "source_name": "CoL2024",
            "version": "1",
            "root_identifier": "x",
            "taxonomy_tree_path": "taxonomy.json",
            "class_index_map_path": "class_index_map.json",
        },
        "inference_options": {"artifacts_source_uri": "hf://some/where", "default_top_k": 5},
        "model_description": "birds",
    }
    (path / "inference_config.yaml").write_text(yaml.safe_dump(about))
    return model, {"params": params, **state}


def assert_same_model(one: Any, other: Any) -> None:
    """Two models are the same but for options of heads that decide nothing."""
    assert dataclasses.replace(one, head_specs=other.head_specs, parent=None) == dataclasses.replace(other, parent=None)


def change(path, *keys: str, to: Any) -> None:
    """Sets one key of inference_config.yaml."""
    file = path / "inference_config.yaml"
    about = yaml.safe_load(file.read_text())
    node = about
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = to
    file.write_text(yaml.safe_dump(about))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "bundle"
    return path, *write_original(path)


@pytest.fixture
def copy(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_reading(original):
    path, model, variables = original
    bundle = read_bundle(path)
    assert_same_model(bundle.model, model)
    np.testing.assert_array_equal(
        bundle.variables["params"]["head"]["taxa_L20"]["fc"]["kernel"],
        variables["params"]["head"]["taxa_L20"]["fc"]["kernel"],
    )
    assert [component.name for component in bundle.encoder.components] == ["SPATIAL", "TEMPORAL", "ELEVATION"]
    assert bundle.encoder.components[1].columns == ("jd_sin", "jd_cos", "hour_sin", "hour_cos")
    assert (bundle.preprocessing.interpolation, bundle.preprocessing.size) == ("bicubic", (32, 32))
    assert (bundle.facts["title"], bundle.facts["taxonomy"]) == ("birds", "CoL2024 1")
    at_noon = bundle.encoder.encode([Observation(date="2024-02-29T14:00:00+02:00")]).meta[0]
    np.testing.assert_allclose(at_noon[5:7], [0, -1], atol=1e-6)
    assert bundle.encoder.encode([Observation(date="2024-02-29")]).meta[0, 6] == 1  # hour 0


@pytest.mark.parametrize(
    ("family", "head"),
    [("mFormerV0", "Linear"), ("mFormerV0", "ConditionalClassifier"), ("mFormerV1", "HierarchicalSoftmax")],
)
def test_families_and_heads(tmp_path, family, head):
    model, _ = write_original(tmp_path / "b", family, head)
    bundle = read_bundle(tmp_path / "b")
    assert_same_model(bundle.model, model)
    assert [spec.type for spec in bundle.model.head_specs] == [head, "Linear", "Linear"]


@pytest.mark.slow
def test_logits(original, tmp_path):
    path, model, variables = original
    write_bundle(read_bundle(path), tmp_path / "ours")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    ours = load(tmp_path / "ours", buckets=(4,))
    theirs = load(path, buckets=(4,))
    encoded = theirs.bundle.encoder.encode([Observation(latitude=52, longitude=13, date="2024-05", elevation=30)] * 3)
    normal = (pixels / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    expected = model.apply(variables, normal.astype(np.float32), encoded.meta)
    for found in (theirs, ours):
        logits = found.forward(pixels, encoded.meta, encoded.valid)
        for task in TASKS:
            np.testing.assert_allclose(logits[task], expected[task], rtol=1e-5, atol=1e-5)
        assert found.bundle.encoder.date_is_midnight


def test_the_documented_class_map(copy):
    ids = json.loads((copy / "class_index_map.json").read_text())
    maps = {
        "idx_to_taxon_id": ids,
        "taxon_id_to_idx": {task: {str(taxon): int(i) for i, taxon in each.items()} for task, each in ids.items()},
        "null_taxon_ids": dict.fromkeys(ids, 0),
        "num_classes_per_rank": {task: len(each) for task, each in ids.items()},
    }
    (copy / "class_index_map.json").write_text(json.dumps(maps))
    np.testing.assert_array_equal(read_bundle(copy).taxonomy.classes["taxa_L10"], [0, 11, 12, 13, 14])
    maps["taxon_id_to_idx"]["taxa_L20"]["21"] = 2
    (copy / "class_index_map.json").write_text(json.dumps(maps))
    with pytest.raises(UserError, match="taxon_id_to_idx of taxa_L20 is not the inverse"):
        read_bundle(copy)


def test_places_of_components_in_the_variant(copy):
    variant = yaml.safe_load((copy / "variant.yaml").read_text())
    dims = {"TEMPORAL": 4, "SPATIAL": 3, "ELEVATION": 4}
    variant["DATA"] = {
        "META": {
            "ACTIVE": True,
            "COMPONENTS": {
                name: {"ENABLED": True, "IDX": place, "DIM": width} for place, (name, width) in enumerate(dims.items())
            },
        }
    }
    (copy / "variant.yaml").write_text(yaml.safe_dump(variant))
    bundle = read_bundle(copy)
    assert [component.name for component in bundle.encoder.components] == list(dims)
    assert bundle.model.components == tuple(dims.items())


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("model", "weights_path"), "hf://polli/model/w.pth", "only files inside of the bundle are read"),
        (("model", "weights_path"), "../w.pth", "only files inside of the bundle are read"),
        (("model", "weights_path"), "no.pth", "does not exist"),
        (("model", "architecture_name"), "ResNet", "one of mFormer"),
        (("model", "architecture_name"), "mFormerV0", "its variant's file describes mFormerV1"),
        (("model", "expected_aux_vector_length"), 12, "is 12, but its metadata components make 11"),
        (("model", "num_classes_per_task"), [5, 3, 4], "num_classes_per_task is"),
        (("model", "model_task_keys_ordered"), ["taxa_L10"], "but the taxonomy has"),
        (("model", "null_class_indices"), {"taxa_L10": 1}, "null must be class 0 at every rank"),
        (("metadata_preprocessing", "use_elevation"), False, "has metadata components for"),
        (
            ("metadata_preprocessing", "temporal_use_hour"),
            False,
            "makes 2 numbers of temporal, but w.safetensors takes 4",
        ),
        (("input_preprocessing", "image_size"), [3, 32, 48], "[3, side, side] is needed"),
        (("input_preprocessing", "image_interpolation"), "lanczos", "one of nearest"),
        (("input_preprocessing", "image_std"), [0, 1, 1], "std above 0"),
        (("input_preprocessing", "image_std"), [float("nan"), 1, 1], "std above 0"),
        (("input_preprocessing", "image_mean"), [float("nan"), 0, 0], "image_mean is"),
        (("input_preprocessing", "image_size"), [3, 10**6, 10**6], "[3, side, side] is needed"),
        (("taxonomy_data",), {}, "taxonomy_tree_path"),
        (("model",), "x", "inference_config.yaml cannot be used"),
    ],
)
def test_what_does_not_fit_is_refused(copy, keys, value, words):
    change(copy, *keys, to=value)
    with pytest.raises(UserError) as error:
        read_bundle(copy)
    assert words in str(error.value)
    assert "inference_config.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"ENV": {"PLUGINS": ["evil.py"]}}, "names programs"),
        ({"BASE": "../outside.yaml"}, "outside of"),
        ({"MODEL": {"BASE": "/etc/passwd"}}, "outside of"),
    ],
)
def test_a_variant_brings_no_programs_and_no_files_from_elsewhere(copy, keys, words):
    (copy.parent / "outside.yaml").write_text("MODEL: {TYPE: mFormerV1}")
    with (copy / "variant.yaml").open("a") as file:
        file.write("---\n" + yaml.safe_dump(keys))
    with pytest.raises(UserError, match=words):
        read_bundle(copy)


def test_aliases_do_not_fill_the_memory(copy):
    lines = ["a: &a [x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{below}'] * 8)}]" for below, name in zip("abcdef", "bcdefg")]
    with (copy / "inference_config.yaml").open("a") as file:
        file.write("\n".join(lines))
    with pytest.raises(UserError, match=r"inference_config.yaml:\d+: more than \d+ values"):
        read_bundle(copy)


def test_weights_must_be_whole(copy):
    file = copy / "model" / "w.safetensors"
    arrays = load_file(file)
    del arrays["head.taxa_L30.fc.bias"]
    save_file(arrays, file)
    with pytest.raises(UserError, match=r"head\.taxa_L30\.fc\.bias"):
        read_bundle(copy)


def test_what_the_file_of_the_variant_says_counts(copy):
    file = copy / "variant.yaml"
    variant = yaml.safe_load(file.read_text())
    variant["MODEL"]["CLASSIFICATION"] = {"HIERARCHY_MODE": "refine"}
    file.write_text(yaml.safe_dump(variant))
    about = yaml.safe_load((copy / "inference_config.yaml").read_text())["model"]
    found = bundles._variant(copy, about, read_state(copy / "model" / "w.safetensors"), TASKS).model
    assert (found.classification.hierarchy_mode, found.rope_stages.rope_mode) == ("refine", "cos_only")
