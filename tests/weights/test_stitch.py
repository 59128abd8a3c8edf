"""A ConvNeXt and a RoPE-ViT as one mFormerV1."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights import coverage as cov
from linnaeus_jax.weights.importing import read_pretrained
from tests.npz import load_npz
from tests.weights.helpers import model_of, section

SOURCE = "stitched_convnext_ropevit"


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "models_stitch.npz")


@pytest.fixture(scope="module")
def files(tmp_path_factory, golden):
    directory = tmp_path_factory.mktemp("stitch")
    return {part: save(directory / f"{part}.safetensors", golden, part) for part in ("convnext", "ropevit")}


def save(path, golden, part, **changed):
    arrays = {name.removeprefix(f"{part}/"): value for name, value in golden.items() if name.startswith(f"{part}/")}
    save_file({name: value for name, value in (arrays | changed).items() if value is not None}, path)
    return path


def model_and_keys(golden, **keys):
    cfg = json.loads(str(golden["cfg"]))
    keys = {
        "convnext_stages__dims": tuple(cfg["dims"]),
        "convnext_stages__depths": tuple(cfg["conv_depths"]),
        "rope_stages__depths": tuple(cfg["rope_depths"]),
        "rope_stages__num_heads": tuple(cfg["heads"]),
        **keys,
    }
    return model_of(section(**keys), components=(("TEMPORAL", 2),)), keys


def taken(golden, convnext, ropevit, *, strict=True, **keys):
    model, keys = model_and_keys(golden, **keys)
    settings = section(
        **keys,
        pretrained_source=SOURCE,
        pretrained_convnext=str(convnext),
        pretrained_ropevit=str(ropevit),
        pretrained_strict=strict,
    )
    return read_pretrained(settings, model, {})


def test_every_array_of_the_fixture(golden, files):
    done = taken(golden, **files)
    expected = {name.removeprefix("expected/"): v for name, v in golden.items() if name.startswith("expected/")}
    assert done.arrays.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(done.arrays[name], value, rtol=0, atol=1e-6, err_msg=name)
    assert [file.path for file in done.files] == [str(path) for path in files.values()]
    initial = {row.group for row in done.coverage.of(cov.INITIAL)}
    assert {"stages.3", "cls_token_2", "head.taxa_L10", "meta_temporal_head_1", "aggregate"} <= initial
    text = done.coverage.table()
    for part in ("ropevit/blocks.2", "stage 2 of the model has 2 blocks", "folded into the layer before it", "1e-6"):
        assert part in text, text


def test_equal_widths_share_the_class_token(golden, files):
    done = taken(golden, **files, convnext_stages__dims=(4, 8, 12, 12), strict=False)
    np.testing.assert_array_equal(done.arrays["cls_token_2"], golden["ropevit/cls_token"])
    assert "downsample_layers.2.conv.weight" in {row.name for row in done.coverage.of(cov.OTHER_SHAPE)}


def test_a_deeper_model_keeps_initial_values(golden, files):
    done = taken(golden, **files, rope_stages__depths=(4, 1))
    assert "the RoPE-ViT has 3 blocks" in done.coverage.table()


AXIAL = {"rope_stages__rope_mixed": False, "rope_stages__num_heads": (3, 2)}


def test_axial_positions_take_no_frequencies(golden, files, tmp_path):
    done = taken(golden, **files, **AXIAL)
    assert "axial" in done.coverage.table()


def test_without_layer_scales_nothing_is_folded(golden, files, tmp_path):
    gammas = {f"blocks.{block}.gamma_{n}": None for block in range(3) for n in (1, 2)}
    path = save(tmp_path / "x.safetensors", golden, "ropevit", **gammas)
    done = taken(golden, files["convnext"], path)
    np.testing.assert_array_equal(done.arrays["stages.2.1.mlp.fc2.weight"], golden["ropevit/blocks.1.mlp.fc2.weight"])


def test_what_does_not_fit(golden, files, tmp_path):
    with pytest.raises(UserError, match=r"pretrained_convnext = .* looks like ViT; a ConvNeXt is needed"):
        taken(golden, files["ropevit"], files["convnext"])
    freqs = np.zeros((2, 3, 8), np.float32)
    path = save(tmp_path / "x.safetensors", golden, "ropevit", freqs=freqs, strange=np.zeros(1, np.float32))
    with pytest.raises(UserError, match=r"(?s)attn.freqs \(from ropevit/freqs; \(2, 8\) in the file.*ropevit/strange"):
        taken(golden, files["convnext"], path)
    path = save(tmp_path / "x.safetensors", golden, "convnext", **{"stages.1.0.gamma": None})
    with pytest.raises(UserError, match=r"missing in the file: stages.1.0.gamma"):
        taken(golden, path, files["ropevit"])


# ---- names of timm


#: names of the authors -> those that timm gives the same arrays (timm 1.0.31, convnext_tiny)
TIMM = (
    (r"downsample_layers\.0\.", "stem."),
    (r"downsample_layers\.(\d)\.", r"stages.\1.downsample."),
    (r"stages\.(\d)\.(\d+)\.dwconv\.", r"stages.\1.blocks.\2.conv_dw."),
    (r"stages\.(\d)\.(\d+)\.pwconv(\d)\.", r"stages.\1.blocks.\2.mlp.fc\3."),
    (r"stages\.(\d)\.(\d+)\.", r"stages.\1.blocks.\2."),
    (r"norm\.", "head.norm."),
    (r"head\.(?!norm)", "head.fc."),
)


def of_timm(name):
    return next((re.sub(old, new, name, count=1) for old, new in TIMM if re.match(old, name)), name)


def timm_files(tmp_path, golden, *, as_convolutions=False):
    arrays = {
        part: {n.removeprefix(f"{part}/"): golden[n] for n in golden if n.startswith(f"{part}/")} for part in FILES
    }
    renamed = {of_timm(name): array for name, array in arrays["convnext"].items()}
    if as_convolutions:  # conv_mlp=True
        renamed = {n: a[..., None, None] if ".mlp.fc" in n and a.ndim == 2 else a for n, a in renamed.items()}
    freqs = arrays["ropevit"].pop("freqs")
    arrays["ropevit"]["rope.freqs"] = freqs.reshape(*freqs.shape[:2], 2, -1)
    save_file(renamed, tmp_path / "convnext.safetensors")
    save_file(arrays["ropevit"], tmp_path / "ropevit.safetensors")
    return {part: tmp_path / f"{part}.safetensors" for part in FILES}


FILES = ("convnext", "ropevit")


@pytest.mark.parametrize("as_convolutions", [False, True])
def test_files_of_timm_are_read_as_those_of_the_authors(golden, files, tmp_path, as_convolutions):
    found = timm_files(tmp_path, golden, as_convolutions=as_convolutions)
    done, wanted = taken(golden, **found), taken(golden, **files)
    assert done.arrays.keys() == wanted.arrays.keys()
    for name, value in wanted.arrays.items():
        np.testing.assert_array_equal(done.arrays[name], value, err_msg=name)
    assert any("convnext/stages.1.downsample.1.weight" in row.note for row in done.coverage.rows)


def test_timm_names_alone_are_recognised(golden, tmp_path):
    found = timm_files(tmp_path, golden)
    with pytest.raises(UserError, match=r"looks like ConvNeXt, but model.type is 'mFormerV1'; for a ConvNeXt with"):
        read_pretrained(section(pretrained=str(found["convnext"])), model_and_keys(golden)[0], {})


@pytest.mark.parametrize("strict", [True, False])
def test_blocks_without_their_frequencies_are_refused(golden, files, tmp_path, strict):
    """Random ones would make them worthless, so no setting goes on with them."""
    path = save(tmp_path / "x.safetensors", golden, "ropevit", freqs=None)
    with pytest.raises(
        UserError, match=r"holds no learned rotary frequencies .* set model.rope_stages.rope_mixed=False"
    ):
        taken(golden, files["convnext"], path, strict=strict)
    taken(golden, files["convnext"], path, strict=strict, **AXIAL)
    for shape in ((2, 3, 8), (2, 3, 2, 5), (3, 3, 12), (2, 12), (2, 0, 12), (0,), (), (2, 3, 2, 2, 3)):
        path = save(tmp_path / "x.safetensors", golden, "ropevit", freqs=np.zeros(shape, np.float32))
        with pytest.raises(UserError, match=r"freqs"):
            taken(golden, files["convnext"], path, strict=strict)
