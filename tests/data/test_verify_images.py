"""Missing files: found, reported, limited; through the config as well."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.typed import DataHybridVerifyImagesConfig, typed
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.verify_images import verify_images
from linnaeus_jax.run.inputs import build_inputs
from tests.conftest import FIXTURES
from tests.data.helpers import MISSING_FILES, golden_config, unpack_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unpack_folder(FIXTURES, tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def identifiers():
    return read_identifiers(str(FIXTURES / "data_labels.h5"))


def section(**changes: Any) -> DataHybridVerifyImagesConfig:
    config = get_config()
    config.data.hybrid.verify_images.update(changes)
    return typed(config).data.hybrid.verify_images


def test_golden_report(fixtures, folder, identifiers, tmp_path):
    report = tmp_path / "assets" / "missing.json"
    rows = verify_images(identifiers, str(folder), "png", section(max_missing_ratio=0.5, max_missing_count=7), report)
    assert rows.dtype == np.int64
    assert rows.tolist() == MISSING_FILES
    want = json.loads((fixtures / "data_missing_report.json").read_text())
    found = json.loads(report.read_text())
    assert found.pop("images_dir") == str(folder)
    assert len(found.pop("verification_timestamp")) == len("2026-01-01 00:00:00")
    assert found == {key: value for key, value in want.items() if key in found}
    assert set(want) - set(found) == {"images_dir", "verification_timestamp"}


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        ({}, False),  # 0 is literal
        ({"max_missing_count": 7, "max_missing_ratio": -1.0}, True),
        ({"max_missing_count": 6, "max_missing_ratio": -1.0}, False),
        ({"max_missing_count": -1, "max_missing_ratio": 7 / 400}, True),
        ({"max_missing_count": -1, "max_missing_ratio": 0.017}, False),
        ({"max_missing_count": 7, "max_missing_ratio": 0.0}, False),
    ],
)
def test_limits(folder, identifiers, tmp_path, limits, passes):
    report = tmp_path / "missing.json"
    if passes:
        assert len(verify_images(identifiers, str(folder), ".png", section(**limits), report)) == 7
    else:
        with pytest.raises(
            RuntimeError, match=r"7 of 400 images are missing .*max_missing_(count|ratio).*missing\.json"
        ):
            verify_images(identifiers, str(folder), ".png", section(**limits), report)
    assert json.loads(report.read_text())["missing_count"] == 7  # written before it aborts


def test_lists_can_be_left_out(folder, identifiers, tmp_path, caplog):
    report = tmp_path / "missing.json"
    limits: dict[str, Any] = {"max_missing_count": 7, "max_missing_ratio": -1.0}
    verify_images(identifiers, str(folder), ".png", section(log_missing=False, **limits), report)
    assert json.loads(report.read_text())["missing_indices"] == "Logging disabled (7 found)"
    assert "no file for" not in caplog.text
    verify_images(identifiers, str(folder), ".png", section(num_workers=0, chunk_size=1, **limits))
    assert caplog.text.count("no file for") == 7


def test_subfolders_and_nothing_to_check(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    (tmp_path / "a" / "2.jpg").mkdir()  # a folder is no picture
    verify = section(max_missing_count=2, max_missing_ratio=-1.0)
    found = verify_images(["a/1", "a/2", "b/1"], str(tmp_path), "jpg", verify)
    assert found.tolist() == [1, 2]
    assert verify_images([], str(tmp_path), "jpg", verify).tolist() == []


def test_unusable_settings(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.hybrid\.images_dir"):
        verify_images(["a"], str(tmp_path / "nowhere"), ".jpg", section())


def test_a_run_leaves_missing_rows_out(fixtures, folder, tmp_path):
    config = golden_config(fixtures, "S0")
    hybrid = config.data.hybrid
    config.data.h5.images_path, config.data.img_size, config.data.batch_size = "", 32, 16
    hybrid.use_hybrid, hybrid.images_dir, hybrid.file_extension = True, str(folder), "png"
    hybrid.verify_images.enabled = True
    with pytest.raises(RuntimeError, match="7 of 400 images are missing"):
        build_inputs(typed(config), devices=1, output_dir=tmp_path)
    hybrid.verify_images.max_missing_count, hybrid.verify_images.max_missing_ratio = 7, 1.0
    inputs = build_inputs(typed(config), devices=1, output_dir=tmp_path)
    rows = np.concatenate([inputs.dataset.train.rows, inputs.dataset.val.rows])
    assert not np.isin(rows, MISSING_FILES).any()
    assert json.loads((tmp_path / "assets" / "missing_images_report.json").read_text())["missing_count"] == 7
