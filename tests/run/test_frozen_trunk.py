"""Heads that are fitted to the features of the untouched trunk, as one more candidate of a run."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.files import DamagedFileError, RunDirectory
from linnaeus_jax.inference.bundle.bundle import bundle_of_run
from linnaeus_jax.inference.quality.measuring import WITH, read_rows
from linnaeus_jax.learning.regression import RankFit
from linnaeus_jax.run import frozen_trunk
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.trainer import run
from tests.run.test_stored import config_of
from tests.tiny import TASKS


@pytest.mark.parametrize(
    ("fit_rows", "counts", "found"),
    [
        ("auto", [0, 20, 90], False),
        ("auto", [0, 19, 90], True),
        ("train", [0, 1, 90], False),
        ("all", [0, 90, 90], True),
    ],
)
def test_rows_of_validation_are_fitted_to_where_classes_are_small(fit_rows, counts, found):
    """The first class is null, which is no class."""
    counted = {"train": {"species": np.array(counts)}}
    dataset: Any = SimpleNamespace(null_possible=True, tasks=("species",), class_counts=counted)
    assert frozen_trunk.fits_all(fit_rows, dataset) is found


def test_logits_out_of_folds_are_found_by_row_and_damage_is_seen(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create()
    assert frozen_trunk.out_of_fold(directory, np.array([3])) is None
    logits = np.arange(8, dtype=np.float32).reshape(4, 2)
    fit = RankFit((logits, logits[0]), logits, "any", 0.5)
    rows = frozen_trunk._Rows(logits, np.zeros((4, 1), np.int64), np.array([3, 5, 3, 9]))
    frozen_trunk._write_out_of_fold(directory, rows, 2, {"species": fit})
    found = frozen_trunk.out_of_fold(directory, np.array([9, 5, 3]))
    assert found is not None
    np.testing.assert_array_equal(found["species"], [[6, 7], [np.nan, np.nan], [4, 5]])
    directory.out_of_fold.write_bytes(directory.out_of_fold.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"out_of_fold\.npz is damaged"):
        frozen_trunk.out_of_fold(directory, np.array([9]))


@pytest.mark.slow
def test_the_frozen_trunk_is_a_candidate_and_a_kill_after_it_changes_nothing(tmp_path, capsys):
    def config(**changes):
        return config_of(tmp_path / "data", "auto:1", lr_scheduler__base_lr=1e-7, train__epochs=2, **changes)

    whole = run(config(), tmp_path / "whole")
    said = capsys.readouterr().out
    assert re.search(r"frozen trunk with fitted heads \(.*out of folds", said)
    assert "the frozen trunk with fitted heads" in said.split("best by")[1]
    directory = RunDirectory(tmp_path / "whole")
    steps = Checkpoints(directory.checkpoints, read_only=True).steps()
    assert steps[0] == 0
    # the bundle is that of step 0, and its rows are judged by heads that did not see them
    bundle = bundle_of_run(directory.root)
    assert bundle.facts["step"] == 0
    rows = read_rows(bundle)
    kernel = np.asarray(bundle.variables["params"]["head"][TASKS[0]]["fc"]["kernel"])
    assert np.abs(kernel).max() > 0
    with np.load(directory.out_of_fold) as kept:
        of_validation = kept[f"logits/{TASKS[0]}"][kept["validates"]]
    np.testing.assert_array_equal(np.sort(rows.logits[WITH][TASKS[0]], axis=0), np.sort(of_validation, axis=0))
    # a kill between the checkpoint of step 0 and the first one of an epoch
    shutil.copytree(directory.root, tmp_path / "killed")
    killed = RunDirectory(tmp_path / "killed")
    for step in steps[1:]:
        shutil.rmtree(Checkpoints(killed.checkpoints, read_only=True).path(step))
    again = run(config(), killed.root)
    assert {k: v for k, v in again.items() if k.startswith("val/")} == {
        k: v for k, v in whole.items() if k.startswith("val/")
    }
