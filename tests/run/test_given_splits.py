"""A run on a labels file that says its splits, names its taxa and gives the licences of its pictures."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.taxon_names import write_taxon_names
from linnaeus_jax.files import DIGESTS
from linnaeus_jax.run.trainer import UserError, run
from linnaeus_jax.tools import evaluate
from tests.conftest import use_one_device
from tests.step import toy
from tests.tiny import TASKS, tiny_config, write_tiny_data
from tests.undrawn import drawing

SPLIT = np.random.RandomState(0).permutation(np.repeat(np.array([0, 1, 2], np.uint8), (80, 24, 16)))
TOY: dict[str, Any] = {
    "model__type": "toy",
    "debug__jsonl__enabled": False,
    "train__epochs": 1,
    "aug__hflip_prob": 0.0,
}


@pytest.fixture(autouse=True, scope="module")
def toy_model():
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        use_one_device(patch)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Directory of `data` and `run`."""
    directory = tmp_path_factory.mktemp("given")
    labels, _ = write_tiny_data(directory / "data")
    with h5py.File(labels, "a") as file:
        file["split"] = SPLIT
        for task in TASKS:
            ids = np.unique(file[task][:])[1 if task == TASKS[0] else 0 :]
            write_taxon_names(file, task, ids, [f"Name {i}" for i in ids], [f"thing {i}" for i in ids])
        for name, text in (("license", "CC0 1.0"), ("rights_holder", "Observer"), ("source_doi", "10.1/x")):
            file[name] = [f"{text} {row}" for row in range(120)]
    config = tiny_config(directory / "data", **TOY)
    with pytest.MonkeyPatch.context() as patch, drawing():
        patch.setenv("COLUMNS", "200")
        run(config, directory / "run")
    return directory


def rows_of(split: int) -> list[int]:
    return np.flatnonzero(split == SPLIT).tolist()


@pytest.mark.slow
def test_the_run_uses_the_rows_of_the_file(finished: Path) -> None:
    with np.load(finished / "run" / "assets" / "subset_ids.npz") as ids:
        assert ids["rows_train"].tolist() == rows_of(0)
        assert ids["rows_val"].tolist() == rows_of(1)
    log = (finished / "run" / "logs" / "debug_log_rank0.txt").read_text()
    assert "split: by the dataset 'split' of the file: 80 train, 24 val, 16 test rows" in log


def test_names_and_licences_reach_people(finished: Path) -> None:
    root = finished / "run"
    names = json.loads((root / "assets" / "taxon_names.json").read_text())
    assert names["taxa_L10"]["1003"] == {"name": "Name 1003", "common_name": "thing 1003"}
    page = (root / "report.html").read_text()
    assert re.search(r"is Name 10\d\d \(thing 10\d\d\) \[10\d\d\]", page)
    mistakes = json.loads((root / "assets" / "validation_mistakes.json").read_text())["taxa_L10"]["confident"]
    assert mistakes
    for entry in mistakes:
        assert entry["row"] in rows_of(1)
        row = entry["row"]
        assert [entry["license"], entry["rights_holder"]] == [f"CC0 1.0 {row}", f"Observer {row}"]
        assert f"© Observer {row}, CC0 1.0 {row}, doi:10.1/x {row}" in page


def test_evaluating_the_test_rows(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "test.npz"
    assert evaluate.main([str(finished / "run"), "--split=test", f"--predictions={out}", "--phases=val"]) == 0
    printed = capsys.readouterr().out
    assert "updates (best checkpoint), 16 rows" in " ".join(printed.split())
    assert "top-3" not in printed  # over all rows, those without a label as well
    assert "test; over the rows labelled there" in printed
    assert "validation" not in printed
    with np.load(out) as file:
        assert file["row"].tolist() == rows_of(2)
        assert file["name/taxa_L10"][:2].tolist() == ["", "Name 1000"]
        assert file["name/taxa_L10"].shape == file["taxon/taxa_L10"].shape
    assert evaluate.main([str(finished / "run"), "--split=val", f"--predictions={out}", "--phases=val"]) == 0
    with np.load(out) as file:
        assert file["row"].tolist() == rows_of(1)


def copied(finished: Path, tmp_path: Path, split: Any) -> Path:
    """A copy of everything, whose column reads `split`, and whose run names the copied data."""
    shutil.copytree(finished, tmp_path / "copy")
    with h5py.File(tmp_path / "copy" / "data" / "labels.h5", "a") as file:
        del file["split"]
        if split is not None:
            file["split"] = split
    path = tmp_path / "copy" / "run" / "config.json"
    path.write_text(path.read_text().replace(str(finished), str(tmp_path / "copy")))
    (path.parent / DIGESTS).unlink()  # of what the run wrote there
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (np.where(SPLIT == 0, 2, SPLIT), "leaves no usable row in 'train'"),
        (np.roll(SPLIT, 1), "other training rows than those of the run"),
        (None, "other training rows than those of the run"),
        (np.where(SPLIT == 2, 1, SPLIT), r"no test rows: no usable row of it is in split 2"),
    ],
)
def test_a_changed_column_is_refused(finished, tmp_path, capsys, split, message) -> None:
    directory = copied(finished, tmp_path, split)
    assert evaluate.main([str(directory / "run"), "--split=test"]) == 2
    assert re.search(message, capsys.readouterr().err)
    if "no test rows" not in message:
        with pytest.raises(UserError, match=r"other training rows|leaves no usable row"):
            run(tiny_config(directory / "data", **{**TOY, "train__epochs": 2}), directory / "run")


def test_rows_of_validation_may_become_test_rows(finished: Path, tmp_path: Path) -> None:
    directory = copied(finished, tmp_path, np.where(SPLIT == 2, 1, SPLIT))
    run(tiny_config(directory / "data", **TOY), directory / "run")


def test_test_rows_need_a_split_of_the_file(finished, tmp_path, capsys) -> None:
    run(tiny_config(finished / "data", **TOY, data__h5__use_split_column=False), tmp_path / "random")
    assert evaluate.main([str(tmp_path / "random"), "--split=test"]) == 2
    assert "the run did not use the dataset 'split' of its labels file" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path / "random"), "--split=test", "--labels=a", "--images=b"]) == 2
    assert "--split means rows of the run's own labels file" in capsys.readouterr().err


def test_two_files_do_without_their_columns(finished, tmp_path, caplog) -> None:
    from linnaeus_jax.data.dataset import build_dataset

    labels = finished / "data" / "labels.h5"
    config = tiny_config(finished / "data", **TOY)
    h5 = config.data.h5
    h5.labels_path = h5.images_path = ""
    h5.train_labels_path, h5.train_images_path = str(labels), "images.h5"
    with caplog.at_level("INFO", "linnaeus_jax"):
        dataset = build_dataset(typed(config))
    assert len(dataset.train) == 120
    assert "dataset 'split' of" in caplog.text
