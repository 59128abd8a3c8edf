"""The command line of verify_dataset: text, JSON and exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import pytest

from linnaeus_jax.demo.generate import write_demo
from linnaeus_jax.tools import verify_dataset
from tests.building.samples import ROWS, write_clean, write_folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_folder(root / "pictures")
    write_clean(root / "labels.h5")
    return root


def with_fault(data: Path, path: Path, level: str) -> Path:
    shutil.copy(data / "labels.h5", path)
    with h5py.File(path, "r+") as file:
        if level == "warning":
            del file["metadata"]
        else:
            file["split"][0] = 9
    return path


def test_a_clean_set(data, capsys):
    assert verify_dataset.main([str(data / "labels.h5"), "--images", str(data / "pictures")]) == 0
    text = capsys.readouterr().out
    for words in ("species", "temporal", "60 folder, 60 of them decoded", "train 48", "errors: 0, warnings: 0"):
        assert words in text


@pytest.mark.slow
def test_the_demo_is_clean(tmp_path):
    write_demo(tmp_path, rows=1500, image_size=32)
    files = [str(tmp_path / "labels.h5"), "--images", str(tmp_path / "images.h5")]
    assert verify_dataset.main([*files, "--strict"]) == 0


def test_exit_status_follows_errors_and_strict(data, tmp_path, capsys):
    warned = str(with_fault(data, tmp_path / "warning.h5", "warning"))
    wrong = str(with_fault(data, tmp_path / "error.h5", "error"))
    assert verify_dataset.main([warned]) == 0
    assert verify_dataset.main([warned, "--strict"]) == 1
    assert verify_dataset.main([wrong]) == 1
    assert "split_value" in capsys.readouterr().out
    assert verify_dataset.main([str(tmp_path / "none.h5")]) == 2
    assert "no such labels file" in capsys.readouterr().err


def test_json_on_stdout_and_in_a_file(data, tmp_path, capsys):
    labels = with_fault(data, tmp_path / "labels.h5", "error")
    assert verify_dataset.main([str(labels), "--json", "--out", str(tmp_path / "report.json")]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "report.json").read_text())
    assert (printed["rows"], printed["errors"]) == (ROWS, 1)


def test_markup_in_names_is_printed_as_it_is(data, tmp_path, capsys):
    shutil.copy(data / "labels.h5", tmp_path / "labels.h5")
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        file["img_identifiers"][0] = "../[red]x\n[/red].png"
    assert verify_dataset.main([str(tmp_path / "labels.h5")]) == 1
    assert r"../[red]x\n[/red].png" in capsys.readouterr().out
