"""What simple models reach on the data of a run, before its first update."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from linnaeus_jax.data.baselines import BASELINES_FILE
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import baselines
from linnaeus_jax.run.baselines import measured, write_baselines
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.interruption import Interruption
from linnaeus_jax.run.stored import store_inputs
from linnaeus_jax.run.watchdog import Watchdog
from tests.run.test_stored import config_of
from tests.tiny import TASKS, tiny_config

NOBODY: Any = None


def built(tmp_path, **overrides):
    return preview_experiment(tiny_config(tmp_path / "data", **overrides), RunDirectory(tmp_path / "run"))


def kept(tmp_path):
    path = tmp_path / "run" / BASELINES_FILE
    return json.loads(path.read_text()) if path.exists() else None


def test_they_are_kept_for_every_rank_and_a_later_start_leaves_them(tmp_path):
    experiment = built(tmp_path)
    write_baselines(experiment, NOBODY, None)
    found = kept(tmp_path)
    assert found["rows"] == {"train": [96, 96], "val": [24, 24]}
    assert found["percent"].keys() == {"commonest", "colours"}
    assert found["percent"]["colours"] == dict.fromkeys(TASKS, 100.0)  # species are told apart by colour
    assert found["percent"]["commonest"].keys() == set(TASKS)
    assert experiment.directory.damage(tmp_path / "run" / BASELINES_FILE) == ""
    again = measured(experiment, None)
    assert again == found
    (tmp_path / "data" / "images.h5").unlink()
    write_baselines(experiment, NOBODY, 7)
    assert kept(tmp_path) == found


@pytest.mark.parametrize(
    "off", [{"metrics__baselines": False}, {"train__skip_validation": True}, {"data__h5__train_val_split_ratio": 1.0}]
)
def test_they_are_left_out_where_nobody_wants_them_or_nothing_is_validated(tmp_path, off):
    write_baselines(built(tmp_path, **off), NOBODY, None)
    assert kept(tmp_path) is None


def test_of_many_rows_a_sample_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "TRAIN_ROWS", 40)
    monkeypatch.setattr(baselines, "VAL_ROWS", 10)
    monkeypatch.setattr(baselines, "CHUNK", 7)
    found = measured(built(tmp_path), None)
    assert found["rows"] == {"train": [40, 96], "val": [10, 24]}
    assert found["percent"]["colours"]["taxa_L30"] == 100.0


def test_rows_without_a_label_do_not_count(tmp_path):
    experiment = built(tmp_path)
    with h5py.File(tmp_path / "data" / "labels.h5", "a") as file:
        file["taxa_L10"][:] = np.where(np.arange(120) % 3, 0, file["taxa_L10"][:])
    blanked = measured(built(tmp_path), None)["percent"]
    assert blanked["colours"]["taxa_L10"] > 90
    assert blanked["commonest"]["taxa_L20"] == measured(experiment, None)["percent"]["commonest"]["taxa_L20"]


def test_what_cannot_be_read_is_told_and_ends_nothing(tmp_path, monkeypatch, capsys):
    experiment = built(tmp_path)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error", "images.h5")

    monkeypatch.setattr(type(experiment.inputs.images["train"]), "read", fails)
    write_baselines(experiment, NOBODY, None)
    assert kept(tmp_path)["percent"].keys() == {"commonest"}
    assert (
        "simple baselines, colours of the pictures alone: left out ([Errno 5] Input/output error"
        in capsys.readouterr().out
    )


class Features:
    """What is stored of pictures: each species has its own place; the plain view is the first of two."""

    views = 2
    dtype = np.dtype(np.float16)
    image_shape = (8,)

    def __init__(self, species):
        self.species = species

    def __len__(self):
        return len(self.species)

    def read(self, rows, out):
        row, view = np.divmod(rows, 2)
        assert (view == 0).all()
        out[...] = np.eye(8)[self.species[row]]
        return row != 5  # that one could not be read


def test_features_that_are_stored_are_used_and_those_of_a_run_that_goes_on_are_not(tmp_path):
    experiment = preview_experiment(config_of(tmp_path / "data", "head"), RunDirectory(tmp_path / "run"))
    with h5py.File(tmp_path / "data" / "labels.h5") as file:
        species = 2 * (file["taxa_L20"][:].astype(int) - 200)
    experiment.inputs.stored.update(dict.fromkeys(("train", "val"), Features(species)))
    state: Any = SimpleNamespace(params=None, model_state=None)
    found = measured(experiment, state)["percent"]["features"]
    assert found["taxa_L20"] == found["taxa_L30"] == 100.0
    assert "features" not in measured(experiment, None)["percent"]


@pytest.mark.slow
def test_what_enters_a_block_goes_through_the_rest_of_the_trunk(tmp_path):
    """So that its features are those which are stored where the heads alone train."""
    percents, found = [], []
    for tune in ("last:1", "head"):
        experiment = preview_experiment(config_of(tmp_path / "data", tune), RunDirectory(tmp_path / tune))
        state, seen = experiment.initial_state(), Interruption()
        experiment.directory.create()
        store_inputs(experiment, state, seen, Watchdog(0, print))
        vectors = baselines.feature_vectors(experiment, state)
        assert vectors is not None
        found.append(vectors(experiment.inputs.dataset.val, experiment.inputs.dataset.val.rows)[0])
        percents.append(measured(experiment, state)["percent"]["features"])
    np.testing.assert_allclose(found[0], found[1], atol=2e-2)
    assert all(0 <= percents[0][task] <= 100 for task in TASKS)
