"""Heads that are fitted to the features of the untouched trunk, as one more candidate of a run."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.data.image_sources import open_split
from linnaeus_jax.data.splits import Split
from linnaeus_jax.files import DamagedFileError, RunDirectory
from linnaeus_jax.inference.bundle.bundle import bundle_of_run
from linnaeus_jax.inference.forward import BLOCK, Forward, layers_of
from linnaeus_jax.inference.quality import features as features_of
from linnaeus_jax.inference.quality.measuring import WITH, read_rows
from linnaeus_jax.learning.regression import RankFit
from linnaeus_jax.metrics.phases import MAIN
from linnaeus_jax.run import frozen_trunk
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.evaluate import load
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


def split_of(table, *rows):
    n = len(rows)
    subsets = np.zeros((n, 0), bool), np.zeros((n, 0), np.int32)
    return Split("", table, np.array(rows), "", np.arange(n, dtype=np.int32), *subsets, 2, None)


@pytest.mark.parametrize(
    ("files", "rows", "logits"),
    [
        ("one", [9, 3, 5, 4], [[6, 7], [4, 5], [2, 3], [0, 1]]),
        ("two", [9, 3], [[6, 7], [4, 5]]),  # rows of two files have the same numbers
    ],
)
def test_logits_out_of_folds_are_found_by_row_and_damage_is_seen(tmp_path, files, rows, logits):
    """Row 7 of validation could not be read."""
    directory, table = RunDirectory(tmp_path), object()
    directory.create()
    other = table if files == "one" else object()
    dataset: Any = SimpleNamespace(train=split_of(table, 5, 4), val=split_of(other, 9, 7, 3))
    assert frozen_trunk.out_of_fold(directory, dataset) is None
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    fit = RankFit(values, "any", 0.5, [(values, values[0])])
    row, trains = np.array([4, 5, 3, 9]), np.array([True, True, False, False])
    stored = frozen_trunk._Rows(values, np.arange(4), np.zeros((4, 1), np.int64), row, trains)
    frozen_trunk._write_out_of_fold(directory, stored, {"species": fit})
    found = frozen_trunk.out_of_fold(directory, dataset)
    assert found is not None
    assert found[0].rows.tolist() == rows
    np.testing.assert_array_equal(found[1]["species"], logits)
    np.testing.assert_array_equal(found[0].rarity, [0, 2, 0, 1] if files == "one" else [0, 2])
    directory.out_of_fold.write_bytes(directory.out_of_fold.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"out_of_fold\.npz is damaged"):
        frozen_trunk.out_of_fold(directory, dataset)


@pytest.mark.parametrize(("products", "values", "found"), [(1e13, 1 << 28, 4), (1e13, 39, 1), (2, 1 << 28, 1)])
def test_views_are_left_out_where_they_would_take_too_long(products, values, found, monkeypatch):
    monkeypatch.setattr(frozen_trunk, "MOST_PRODUCTS", products)
    monkeypatch.setattr(frozen_trunk, "MOST_VALUES", values)
    assert frozen_trunk._views(4, np.zeros((10, 2), np.float32), {"species": 3}) == found


@pytest.mark.parametrize(
    ("metric", "value", "found"),
    [("val/chain_accuracy", 0.8, 0.84), ("val/acc1_taxa_L10", 80.0, 84.0), ("val/loss", -0.8, -0.8)],
)
def test_blocks_have_to_be_better_by_a_standard_error(metric, value, found):
    """Of 100 rows; a loss says nothing of it."""
    host: Any = SimpleNamespace(ranking={0: {"epoch": 0, "metric": value}}, ranking_metric=metric)
    frozen_trunk._add_standard_error(host, 100)
    assert host.ranking[0]["metric"] == pytest.approx(found)


@pytest.mark.slow
def test_the_frozen_trunk_is_a_candidate_and_a_kill_after_it_changes_nothing(tmp_path, one_device, capsys):
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
        folds = kept[f"logits/{TASKS[0]}"]  # of all rows
    np.testing.assert_array_equal(np.sort(rows.logits[WITH][TASKS[0]], axis=0), np.sort(folds, axis=0))
    assert rows.kind.startswith("training and validation rows")
    # what enters the first block that would have trained, as stored and as the bundle computes it of pictures
    (_, x), (layer, stored) = read_rows(bundle, novelty=True).features.items()
    assert layer == f"{BLOCK}{bundle.model.trunk_blocks - 1}"
    loaded = load(directory.root, "0")
    split = loaded.dataset.val.with_rows_of(loaded.dataset.train)
    assert len(split) == len(stored)
    computed = features_of.outputs(loaded, split, (MAIN,), None).features
    np.testing.assert_allclose(computed[layer], stored, atol=2e-3)
    pixels = np.empty((len(split), *bundle.preprocessing.size, 3), np.uint8)
    open_split(loaded.experiment.inputs.config, split).read(split.rows, pixels)
    forward = Forward(bundle.model, bundle.variables, bundle.preprocessing, (8,), (*layers_of(bundle.model)[:1], layer))
    found = forward(pixels, split.meta, split.meta_valid)
    np.testing.assert_allclose(found[layer], stored, atol=2e-3)
    np.testing.assert_allclose(found[layers_of(bundle.model)[0]], x, atol=1e-2)
    # a kill between the checkpoint of step 0 and the first one of an epoch
    shutil.copytree(directory.root, tmp_path / "killed")
    killed = RunDirectory(tmp_path / "killed")
    for step in steps[1:]:
        shutil.rmtree(Checkpoints(killed.checkpoints, read_only=True).path(step))
    again = run(config(), killed.root)
    assert {k: v for k, v in again.items() if k.startswith("val/")} == {
        k: v for k, v in whole.items() if k.startswith("val/")
    }
