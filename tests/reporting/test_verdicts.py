"""What a run's own numbers say against it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from linnaeus_jax.data.baselines import BASELINES_FILE
from linnaeus_jax.files import write_json
from linnaeus_jax.reporting.alerts import Watch
from linnaeus_jax.reporting.metrics_log import Row
from linnaeus_jax.reporting.report import warnings
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.verdicts import TRAINING_ROWS_FILE, verdicts

TRAIN, VAL = "train/epoch_avg_loss_unweighted", "val/loss_unweighted"
TRAIN_ACCURACY, VAL_ACCURACY = "train/epoch_avg_non_null/acc1_taxa_L10", "val/non_null/acc1_taxa_L10"


def record(root: Path, *epochs: dict[str, Any]) -> RunRecord:
    """A run of these epochs: 36 species, of whose 100 labelled validation rows 30 are of the commonest one."""
    write_json(root / "config.json", {"data": {"task_keys_h5": ["taxa_L10", "taxa_L20"]}})
    write_json(root / "assets" / "class_to_idx.json", {"taxa_L10": {"null": 0, "7": 1, "8": 2}})
    counts = {"train": {"taxa_L10": [500, 60, 70]}, "val": {"taxa_L10": [900, 70, 30]}}
    write_json(root / "metadata" / "class_label_counts.json", counts)
    rows = [Row("epoch", 10 * n + 10, n, 0.0, values) for n, values in enumerate(epochs)]
    return RunRecord(root, tuple(rows))


@pytest.mark.parametrize(
    ("epochs", "texts"),
    [
        ([{TRAIN: 3.2}, {TRAIN: 4.7}], []),
        (
            [{TRAIN: 4.0}, {TRAIN: 3.2}, {TRAIN: 13.3}],
            ["the training loss rose from 3.2 (epoch 1) to 13.3 (epoch 2)"],
        ),
        ([{TRAIN: 3.0, VAL: 2.0}, {TRAIN: 1.0}, {TRAIN: 0.5, VAL: 3.1}], ["the validation loss rose from 2 (epoch 0)"]),
        ([{TRAIN: 13.3}, {TRAIN: 3.2}, {TRAIN: float("nan")}], []),
        ([{TRAIN_ACCURACY: 99.0, VAL_ACCURACY: 43.9}], []),  # other weights, pictures and running statistics
        (
            [{VAL_ACCURACY: 30.0}],
            ["nothing learned at the rank species: 30.0 % in validation, where always naming the commonest"],
        ),
        ([{VAL_ACCURACY: 30.1}], []),
        ([{}], []),
    ],
)
def test_verdicts(tmp_path, epochs, texts):
    run = record(tmp_path, *epochs)
    found = list(verdicts(run))
    assert len(found) == len(texts)
    assert all(one.startswith(text) for one, text in zip(found, texts, strict=True)), found
    assert set(found) <= set(warnings(run))


def test_of_one_class_there_is_nothing_to_learn(tmp_path):
    run = record(tmp_path, {VAL_ACCURACY: 100.0})
    counts = {"train": {"taxa_L10": [0, 60, 0]}, "val": {"taxa_L10": [0, 70, 0]}}
    write_json(tmp_path / "metadata" / "class_label_counts.json", counts)
    assert list(verdicts(run)) == []


@pytest.mark.parametrize(("training", "overfits"), [(64.0, True), (63.8, False), (20.0, False)])
def test_training_rows_are_compared_where_they_were_evaluated(tmp_path, training, overfits):
    """The loss of validation that rises is put down to it then, too."""
    run = record(tmp_path, {VAL_ACCURACY: 43.9, VAL: 1.0}, {VAL_ACCURACY: 43.9, VAL: 4.0})
    percent = {"train": {"taxa_L10": training}, "val": {"taxa_L10": 43.9}}
    write_json(tmp_path / TRAINING_ROWS_FILE, {"step": 20, "rows": 900, "of": 900, "percent": percent})
    said = " ".join(verdicts(run))
    text = "overfitting: species 64.0 % of 900 training rows, evaluated as validation is, and 43.9 % in validation"
    assert (text in said) == overfits
    assert ("the model overfits" in said) == overfits


def test_what_simple_means_do_better_is_said_first(tmp_path):
    """At every rank where they do, and before what the schedule says."""
    run = record(tmp_path, {TRAIN: 1.0}, {TRAIN: 4.0, VAL_ACCURACY: 41.0, "val/acc1_taxa_L20": 60.0})
    percent = {
        "commonest": {"taxa_L10": 30.0, "taxa_L20": 50.0},
        "colours": {"taxa_L10": 43.9, "taxa_L20": 54.7},
        "features": {"taxa_L10": 72.3, "taxa_L20": 86.1},
    }
    write_json(tmp_path / BASELINES_FILE, {"rows": {"train": [3000, 9000]}, "percent": percent})
    write_json(tmp_path / "assets" / "schedule_summary.json", {"warnings": ["too short"]})
    colours, features, rising, *others = warnings(run)
    assert colours == (
        "below a simple baseline (colours of the pictures alone): species 41.0 % in validation against 43.9 %"
    )
    assert features.startswith("below a simple baseline (frozen features, nothing trained): species 41.0 %")
    assert "genus 60.0 % in validation against 86.1 %" in features
    assert "the training loss rose" in rising
    assert others[0] == "schedule: too short"


@pytest.mark.parametrize("configured", ["", "val_loss", "VAL/acc1_taxa_L20"])
def test_what_is_kept_is_compared_with_simple_means(tmp_path, configured):
    """That of the best checkpoint, which may be of step 0, and not the last epoch."""
    names = {"": "val/partial_chain_accuracy", "val_loss": "val/loss"}
    ranked = names.get(configured, "val/acc1_taxa_L20")
    accuracies = (75.0, 41.0, 60.0)
    run = record(tmp_path, *({VAL_ACCURACY: x, ranked: -x if ranked == "val/loss" else x} for x in accuracies))
    write_json(tmp_path / BASELINES_FILE, {"percent": {"features": {"taxa_L10": 72.3}}})
    run = dataclasses.replace(run, rows=(dataclasses.replace(run.rows[0], step=0), *run.rows[1:]))
    run.config.update(schedule={"checkpoint": {"best_metric": configured}})
    assert list(verdicts(run)) == []
    write_json(tmp_path / BASELINES_FILE, {"percent": {"features": {"taxa_L10": 75.04}}})  # the same number to a reader
    assert list(verdicts(run)) == []
    write_json(tmp_path / BASELINES_FILE, {"percent": {"features": {"taxa_L10": 72.3}}})
    later = dataclasses.replace(run, rows=run.rows[1:])
    later.config.update(schedule={"checkpoint": {"best_metric": configured}})
    assert "species 60.0 % in validation against 72.3 %" in " ".join(verdicts(later))


def test_a_run_without_files_is_judged_by_its_losses_alone(tmp_path):
    rows = [Row("epoch", n + 1, n, 0.0, {TRAIN: loss, VAL_ACCURACY: 0.0}) for n, loss in enumerate((1.0, 2.0))]
    (text,) = verdicts(RunRecord(tmp_path, tuple(rows)))
    assert "the training loss rose" in text


def test_a_loss_that_rises_is_told_once_while_the_run_goes_on():
    watch = Watch()
    assert watch.findings(0, {TRAIN: 0.1, VAL: 0.1}) == []  # of heads that were fitted before the first update
    told = [
        watch.findings(10 * n, {TRAIN: loss}) for n, loss in enumerate((3.0, 4.6, 9.0, 2.0, 2.9, 3.1, float("inf")), 1)
    ]
    assert [len(each) for each in told] == [0, 1, 0, 0, 0, 1, 0]
    title, text = told[1][0]
    assert title == "Loss rises"
    assert text.startswith("the mean training loss is 4.6 after 20 updates, and was 3; lower lr_scheduler.base_lr")
    assert watch.findings(80, {"train/loss": 99.0, VAL: 1.0}) == []
