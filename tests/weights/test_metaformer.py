"""mFormerV0 from a MetaFormer, and bias tables at another resolution."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights import coverage as cov
from linnaeus_jax.weights.bias_tables import grid_of
from linnaeus_jax.weights.importing import read_pretrained
from tests.npz import load_npz
from tests.weights.helpers import CLASSES, SMALL, SMALL_V0, model_of, save_export, save_original, section, trees

TABLE = "stage_3.0.attn.relative_position_bias_table"


@pytest.fixture(scope="module")
def model():
    return model_of(section(**SMALL_V0), size=64)


@pytest.fixture(scope="module")
def original(tmp_path_factory, model):
    return save_original(tmp_path_factory.mktemp("v0") / "x.safetensors", model, *trees(model))


@pytest.fixture(scope="module")
def metafg(tmp_path_factory, original):
    """The same arrays with the names of heads and metadata heads that a MetaFormer has."""
    arrays = {n: a for n, a in load_file(original).items() if not n.startswith(("head.", "meta_"))}
    arrays |= {"head.weight": np.zeros((10, 16), np.float32), "head.bias": np.zeros(10, np.float32)}
    arrays |= {f"meta_{i}_head_{s}.0.bias": np.zeros(8 * s, np.float32) for i in (1, 2) for s in (1, 2)}
    path = tmp_path_factory.mktemp("metafg") / "x.safetensors"
    save_file(arrays, path)
    return path


def taken(path, model, classes=CLASSES, **keys):
    return read_pretrained(section(**{**SMALL_V0, "pretrained": str(path), **keys}), model, classes)


def test_a_metaformer(metafg, model):
    done = taken(metafg, model, pretrained_source="metaformer")
    source = load_file(metafg)
    table = done.arrays[TABLE]
    np.testing.assert_array_equal(table[:-1], source[TABLE][:-1])
    np.testing.assert_array_equal(table[-1], source[TABLE][0])
    np.testing.assert_array_equal(done.arrays["bn1.running_var"], source["bn1.running_var"])
    assert {row.group for row in done.coverage.of(cov.INITIAL)} == {
        "head.taxa_L10",
        "head.taxa_L20",
        *(f"meta_{name}_head_{stage}" for name in ("temporal", "spatial") for stage in (1, 2)),
    }
    assert {"head.weight", "meta_2_head_1.0.bias", "bn1.num_batches_tracked"} <= {
        row.name for row in done.coverage.of(cov.SKIPPED)
    }
    text = done.coverage.table()
    assert "model.compat='metafg'" in text
    assert "[1,1],[2,1,...]" in text


def test_a_metaformer_at_another_resolution_copies_row_0_unresized(metafg, model):
    larger = model_of(section(**SMALL_V0), size=96)
    table = taken(metafg, larger, pretrained_source="metaformer").arrays[TABLE]
    np.testing.assert_array_equal(table[-1], load_file(metafg)[TABLE][0])
    assert len(table) == 11 * 11 + 1


def test_a_metaformer_must_be_called_so(metafg, model, tmp_path):
    with pytest.raises(UserError, match=r"looks like a MetaFormer.*pretrained_source = 'metaformer'"):
        taken(metafg, model)
    path = tmp_path / "x.safetensors"
    save_file({n: a for n, a in load_file(metafg).items() if not n.startswith("norm_1")}, path)
    with pytest.raises(UserError, match=r"missing in the file: norm_1\.bias, norm_1\.weight"):
        taken(path, model, pretrained_source="metaformer")


def test_v0_and_v1_are_told_apart(original):
    v1 = model_of(section(**SMALL))
    with pytest.raises(UserError, match=r"looks like mFormerV0, but model.type is 'mFormerV1'"):
        read_pretrained(section(**SMALL, pretrained=str(original)), v1, CLASSES)


# ---- bias tables


@pytest.mark.parametrize("case", ["4_6", "3_2"])
def test_tables_of_the_fixture(fixtures, case, tmp_path, original):
    golden = load_npz(fixtures / "models_relpos.npz")
    old, new = map(int, case.split("_"))
    table = golden[f"interp_{case}/table"]
    arrays = load_file(original) | {TABLE: table}
    path = tmp_path / "x.safetensors"
    save_file({n: a for n, a in arrays.items() if "stage_4" not in n and "stage_3.1" not in n}, path)
    model = model_of(section(**SMALL_V0), size=16 * new)
    done = taken(path, model, pretrained_strict=False)
    np.testing.assert_allclose(done.arrays[TABLE], golden[f"interp_{case}/last_row_is_extra"], atol=1e-5)
    row = next(row for row in done.coverage.rows if row.name == TABLE)
    assert (row.status, row.note) == (cov.RESIZED, f"bicubic, {old}x{old} to {new}x{new} positions")


def test_an_export_knows_its_picture_size(tmp_path):
    settings = section(**SMALL_V0)
    wide = model_of(settings)
    wide = wide.clone(img_size=(64, 96))
    path = save_export(tmp_path / "x.safetensors", settings, wide, *trees(wide))
    done = taken(path, model_of(settings, size=64))
    assert "bicubic, 4x6 to 4x4 positions" in done.coverage.table()
    plain = save_original(tmp_path / "y.safetensors", wide, *trees(wide))
    with pytest.raises(UserError, match=r"of another shape: stage_3.0.attn.relative_position_bias_table"):
        taken(plain, model_of(settings, size=64))


def test_grids(model):
    assert grid_of(50, model, None) == (4, 4)
    assert grid_of(50, model, (64, 64)) == (4, 4)
    assert grid_of(2, model, (32, 32)) == (1, 1)
    assert grid_of(51, model, None) is None
    assert grid_of(0, model, None) is None
    assert grid_of(7 * 11 + 1, model, (64, 96)) == (4, 6)
    assert grid_of(7 * 11 + 1, model, None) is None
