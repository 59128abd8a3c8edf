"""Rows of a run with the features that it stored, and what it knows of them out of folds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.saved import plain
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import Dataset, build_dataset, write_assets
from linnaeus_jax.data.stored_inputs import StoredFile, StoredSpec
from linnaeus_jax.files import RunDirectory, write_json
from linnaeus_jax.inference.quality import features as features_of
from linnaeus_jax.inference.wrong_labels.label_issues import find_label_issues
from linnaeus_jax.inference.wrong_labels.labelled_features import of_run
from linnaeus_jax.run.stored import stored_source
from linnaeus_jax.tools import label_issues as tool
from tests.tiny import TASKS, tiny_config


def write_run(root: Path, *, views: int = 2, places: tuple[int, ...] = (), **overrides: object) -> Dataset:
    """What a run leaves that stored features: of each row its number and the colour of its species, augmented views of
    which are others."""
    config = tiny_config(root / "data", **overrides)
    dataset, directory = build_dataset(typed(config)), RunDirectory(root / "run")
    directory.create()
    directory.stored.mkdir()
    write_json(directory.config_json, plain(config))
    write_assets(dataset, directory.assets, directory.metadata)
    for split in (dataset.train, dataset.val):
        count = views if split is dataset.train else 1
        file = StoredFile(directory.stored / f"{split.name}.bin", StoredSpec("key", len(split), count, (*places, 4)))
        values = np.zeros((len(split), count, *places, 4), np.float16)
        values[:, 0, ..., 0] = np.arange(len(split)).reshape(-1, *(1,) * len(places)) / 100
        for part in range(1, 4):
            bit = (split.labels[:, 0] >> part - 1 & 1).reshape(-1, *(1,) * len(places))
            values[:, 0, ..., part] = 10 * bit + np.arange(np.prod(places, dtype=int)).reshape(places) / 10
        file.append(values)
    return dataset


def out_of_fold(root: Path, dataset: Dataset) -> dict[str, np.ndarray]:
    """Writes logits of all rows, those of validation first; rank -> of the training rows, then of the others."""
    rows = np.concatenate([dataset.val.rows, dataset.train.rows])
    validates = np.arange(len(rows)) < len(dataset.val)
    rng = np.random.default_rng(0)
    logits = {task: rng.normal(size=(len(rows), dataset.num_classes[task])).astype(np.float32) for task in TASKS}
    arrays: dict[str, Any] = {f"logits/{task}": values for task, values in logits.items()}
    np.savez(RunDirectory(root / "run").out_of_fold, row=rows, validates=validates, **arrays)
    return {task: np.roll(values, -len(dataset.val), axis=0) for task, values in logits.items()}


@pytest.mark.parametrize("places", [(), (2, 3)])
def test_rows_have_what_was_stored_of_them_without_augmentation(places, tmp_path):
    dataset = write_run(tmp_path, places=places)
    rows = of_run(tmp_path / "run")
    assert rows.ids == (*dataset.train.identifiers.tolist(), *dataset.val.identifiers.tolist())
    labels = np.concatenate([dataset.train.labels, dataset.val.labels])
    np.testing.assert_array_equal(rows.label, np.where(labels == 0, -1, labels))
    numbers = np.concatenate([np.arange(len(dataset.train)), np.arange(len(dataset.val))])
    np.testing.assert_allclose(rows.features[:, 0], numbers / 100, atol=1e-3)
    bit = 10 * (labels[:, 0] & 1)
    np.testing.assert_allclose(rows.features[:, 1], bit + (0.25 if places else 0), atol=5e-3)
    assert [side.images for side in rows.sides] == [tmp_path / "data" / "images.h5"] * 2
    assert rows.logits is None


def test_logits_out_of_folds_count_as_long_as_labels_are_the_same(tmp_path):
    dataset = write_run(tmp_path)
    logits = out_of_fold(tmp_path, dataset)
    found = of_run(tmp_path / "run").logits
    assert found is not None
    for task in TASKS:
        np.testing.assert_array_equal(found[task], logits[task])
    with h5py.File(tmp_path / "data" / "labels.h5", "r+") as file:  # corrected since
        row = dataset.val.rows[0]
        file[TASKS[0]][row] = 1000 + (file[TASKS[0]][row] - 999) % 8
    assert of_run(tmp_path / "run").logits is None


def test_logits_of_some_rows_alone_are_not_taken(tmp_path):
    dataset = write_run(tmp_path)
    out_of_fold(tmp_path, dataset)
    path = RunDirectory(tmp_path / "run").out_of_fold
    with np.load(path) as arrays:
        some = {name: arrays[name][1:] for name in arrays.files}
    np.savez(path, **some)
    assert of_run(tmp_path / "run").logits is None


def test_a_run_finds_a_wrong_label(tmp_path):
    dataset = write_run(tmp_path, data__partial__levels=False)
    rows = of_run(tmp_path / "run")
    np.testing.assert_array_equal(rows.label[: len(dataset.train)], dataset.train.labels)  # no null class
    with h5py.File(tmp_path / "data" / "labels.h5", "r+") as file:
        row = dataset.train.rows[7]
        species = (int(file[TASKS[0]][row]) - 1000 + 4) % 8
        for task, first, size in zip(TASKS, (1000, 200, 30), (1, 2, 4), strict=True):
            file[task][row] = first + species // size
    changed = of_run(tmp_path / "run")
    assert find_label_issues(changed).order[0] == 7


def test_a_run_without_features_says_how_to_make_them(tmp_path, capsys):
    write_run(tmp_path)
    (tmp_path / "run" / "stored" / "train.bin").unlink()
    (tmp_path / "run" / "stored" / "val.bin").unlink()
    assert tool.main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert f"linnaeus embed {tmp_path / 'run'} DATASET --out vectors.npz" in message
    assert "train.tune = 'full'" in message
    assert tool.main([str(tmp_path / "run"), "--features", "x.npz", "--out", str(tmp_path / "out")]) == 2
    assert "is a run, which has features and pictures" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_shorter_labels_file_is_refused(tmp_path):
    write_run(tmp_path)
    labels = tmp_path / "data" / "labels.h5"
    with h5py.File(labels) as file:
        kept = {name: item[:50] for name, item in file.items() if isinstance(item, h5py.Dataset)}
    with h5py.File(labels, "w") as file:
        for name, values in kept.items():
            file[name] = values
    with pytest.raises(UserError, match=r"has fewer rows than .* was trained on; restore it"):
        of_run(tmp_path / "run")


def test_what_is_stored_is_read_by_rows_of_either_split(tmp_path):
    dataset = write_run(tmp_path)
    stored = SimpleNamespace(shape=(1, 4))
    run: Any = SimpleNamespace(
        inputs=SimpleNamespace(dataset=dataset),
        directory=RunDirectory(tmp_path / "run"),
        program=SimpleNamespace(stored=stored),
    )
    both = dataset.val.with_rows_of(dataset.train).sample(30, seed=0)
    source = stored_source(run, both)
    assert source is not None
    out = np.empty((30, 4), np.float16)
    assert source.read(both.rows, out).all()
    places = {row: place for split in (dataset.train, dataset.val) for place, row in enumerate(split.rows.tolist())}
    np.testing.assert_allclose(out[:, 0], [places[row] / 100 for row in both.rows.tolist()], atol=1e-3)
    stored.shape = (1, 5)
    assert stored_source(run, both) is None, "another trunk has stored it"
    stored.shape = (1, 4)
    (run.directory.stored / "val.bin").unlink()
    assert stored_source(run, both) is None
    assert stored_source(run, dataset.train) is not None


class Rows:
    """Of a split, the labels."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: np.ndarray) -> Rows:
        return Rows(self.labels[chosen])


@pytest.mark.parametrize(("of_class", "most", "rows"), [(50, 5000, 60), (4, 5000, 32), (50, 20, 20), (50, 3, 16)])
def test_a_few_training_rows_of_every_class_say_what_it_looks_like(of_class, most, rows, monkeypatch):
    labels = np.repeat(np.arange(8), [30, 10, 5, 4, 4, 3, 2, 2])[:, None].astype(np.int32)
    split = Rows(labels)
    monkeypatch.setattr(features_of, "OF_CLASS", of_class)
    monkeypatch.setattr(features_of, "TRAINED", most)

    def of_rows(loaded, taken, progress):
        read = np.arange(len(taken)) != lost
        return features_of.Outputs({}, {"x": taken.labels[read].astype(np.float32)}, read)

    monkeypatch.setattr(features_of, "of_rows", of_rows)
    loaded: Any = SimpleNamespace(dataset=SimpleNamespace(train=split))
    lost = 1
    features, found = features_of.of_trained(loaded, 1000, 0, None)
    np.testing.assert_array_equal(features["x"], found)
    lost = -1
    assert len(found) == len(features_of.of_trained(loaded, 1000, 0, None)[1]) - 1
    features, found = features_of.of_trained(loaded, 1000, 0, None)
    count = np.bincount(found[:, 0], minlength=8)
    assert count.sum() == min(rows, np.minimum(np.bincount(labels[:, 0]), of_class).sum())
    assert (count >= 2).all()
    assert (count <= of_class).all()


@pytest.mark.parametrize(
    ("blocks", "tune", "found"),
    [
        (16, "head", None),
        (16, "last:5", 11),
        (16, "auto:8", 8),
        (16, "last:9", 12),
        (16, "full", 12),
        (2, "full", 1),
        (1, "last:1", None),
        (0, "full", None),
        (0, "full", 0),
    ],
)
def test_what_is_outside_is_told_before_what_was_trained(blocks, tune, found):
    model: Any = SimpleNamespace(trunk_blocks=blocks, gives_map=found == 0)
    assert features_of.outside_block(model, tune) == found
