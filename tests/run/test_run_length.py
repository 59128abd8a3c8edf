"""Plan, dry run and run count the same updates, also where epochs differ in length."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import trainer
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.inputs import build_inputs, check_preserved, evaluation_batch
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.tools import schedule as dry_run
from tests.run.test_trainer import rows_of
from tests.schedules.helpers import make_schedule
from tests.step import toy
from tests.tiny import tiny_config

#: strict groups whose leftovers are dropped: species fill fewer batches than families
LEVELS = {
    "data__batch_size": 8,
    "data__sampler__grouped_mode": "strict-group",
    "data__sampler__leftovers": "drop",
    "schedule__mixup__group_levels": ("taxa_L10", "taxa_L30"),
    "schedule__mixup__level_switch_epochs": (2,),
    "train__accumulation_steps": 4,
    "train__epochs": 4,
}


def test_plan_dry_run_and_run_agree(tmp_path, capsys):
    config = tiny_config(tmp_path / "data", **LEVELS)
    experiment = preview_experiment(config, RunDirectory(tmp_path / "run"))
    plans, totals = experiment.inputs.plans, experiment.resolved.totals
    per_epoch = [plans.plan(epoch) for epoch in range(4)]
    micro = [int((plan.weight.max(axis=-1) > 0).sum()) for plan in per_epoch]
    assert micro[0] == micro[1] < micro[2] == micro[3]
    assert totals.micro_batches_per_epoch == tuple(micro), "padding is no micro-batch"
    assert totals.steps_per_epoch == tuple(len(plan.index) for plan in per_epoch)
    assert any(count % 4 for count in micro)
    assert f"micro_batches_per_epoch {micro[0]} to {micro[2]}" in schedule_summary(experiment.resolved)

    assert dry_run.run(typed(config)).totals.steps_per_epoch == totals.steps_per_epoch
    printed = capsys.readouterr().out
    assert "coverage: grouped by taxa_L10" in printed
    assert "coverage: grouped by taxa_L30" in printed
    rows = len(experiment.inputs.dataset.train)
    keeps = tiny_config(tmp_path / "data", **LEVELS | {"data__sampler__leftovers": "keep", "data__batch_size": 14})
    inputs = build_inputs(typed(keeps), devices=1, output_dir=tmp_path)
    dry = dry_run.run(typed(keeps), dataset_size=rows)
    assert dry.total_steps == inputs.plans.total
    assert dry.totals.micro_batches_per_epoch == tuple(inputs.plans.micro_batches_per_epoch.tolist())


def test_what_is_never_drawn_is_said(tmp_path):
    config = tiny_config(tmp_path, **LEVELS | {"schedule__mixup__level_switch_epochs": ()})
    inputs = build_inputs(typed(config), devices=1, output_dir=tmp_path)
    report, dataset = inputs.coverage, inputs.dataset
    count = dataset.class_counts["train"]["taxa_L10"]
    label = dataset.train.labels[:, 0]
    drawn = np.zeros(len(count))
    for epoch in range(4):
        index = inputs.plans.plan(epoch).index
        drawn += np.bincount(label[index[index >= 0]], minlength=len(count))
    np.testing.assert_allclose(report.drawn["taxa_L10"]["taxa_L10"], drawn / 4)
    never = np.flatnonzero((count > 0) & (drawn == 0))
    assert 0 in never, "rows without a species are in no group"
    assert f"{len(never)} of {np.count_nonzero(count)} classes of taxa_L10 are never drawn: null" in report.warnings[0]
    config.data.sampler.leftovers = "keep"
    report = build_inputs(typed(config), devices=1, output_dir=tmp_path).coverage
    assert not report.warnings
    assert report.lines[1] == "  taxa_L10: 100.0% of every class"


def test_a_stored_schedule_that_does_not_fit_the_data():
    settings = {"schedule.mixup.group_levels": ("taxa_L20", "taxa_L10"), "schedule.mixup.level_switch_epochs": (1,)}
    stored = make_schedule(settings, steps_per_epoch=(10, 6), epochs=2)
    check_preserved(stored, {"taxa_L20": 10, "taxa_L10": 6})
    with pytest.raises(ValueError, match=r"epoch 1 of the stored schedule has 6 updates .* now make 7"):
        check_preserved(stored, {"taxa_L20": 10, "taxa_L10": 7})


@pytest.mark.slow
def test_levels_of_different_length_and_a_preserved_schedule(tmp_path, one_device, monkeypatch):
    """A whole run over both levels; then fewer epochs in the configuration do not cut a preserved schedule."""
    toy.register(monkeypatch)
    config = tiny_config(tmp_path / "data", model__type="toy", **LEVELS)
    directory = RunDirectory(tmp_path / "run")
    first = preview_experiment(config, directory).resolved.totals
    config.debug.early_exit_after_n_optimizer_steps = first.boundaries[1]
    trainer.run(config, directory.root)
    log = (directory.logs / "debug_log_rank0.txt").read_text()
    assert (directory.assets / "schedule_summary.txt").read_text() in log, "logged and saved"
    assert "coverage: grouped by taxa_L10" in log
    found = json.loads((directory.metadata / "epoch_coverage.json").read_text())
    assert [len(found[level]["taxa_L10"]) for level in ("taxa_L10", "taxa_L30")] == [9, 9]
    assert "schedule: 1 of 9 classes of taxa_L10 are never drawn: null" in log
    assert json.loads(directory.progress_json.read_text())["expected_epochs"] == 4

    config.debug.early_exit_after_n_optimizer_steps = 0
    config.train.epochs, config.train.preserve_checkpoint_schedule = 2, True
    trainer.run(config, directory.root)
    progress = json.loads(directory.progress_json.read_text())
    assert progress["global_step"] == first.total_steps
    assert progress["expected_epochs"] == 4
    assert [row["epoch"] for row in rows_of(directory.root) if row["event"] == "epoch"] == [0, 1, 2, 3]
    assert "the stored 4 epochs count, not train.epochs = 2" in (directory.logs / "debug_log_rank0.txt").read_text()


@pytest.mark.parametrize(
    ("batch_size", "devices", "expected"), [(16, 2, 16), (17, 2, 18), (1, 8, 8), (8, 1, 8), (9, 4, 12)]
)
def test_evaluation_batch_is_the_next_multiple(batch_size, devices, expected):
    assert evaluation_batch(batch_size, devices) == expected
