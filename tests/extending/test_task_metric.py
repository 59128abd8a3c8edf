"""Metrics of every rank in one file of the user's own: their numbers, and all places where their names appear."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.metrics import MetricsTracker, PhaseMetric, custom, names, register, table
from linnaeus_jax.metrics.extras import PhaseExtras
from linnaeus_jax.metrics.logged import undescribed
from linnaeus_jax.metrics.phase import add, batch_sums, empty_sums, summarise
from linnaeus_jax.schedules.early_stop import parse_metric_name
from tests.extending.common import config_with
from tests.tiny import TASKS

ROWS, CLASSES = 12, 6


def extras_with(*options: str, phase: str = "val") -> PhaseExtras:
    metrics = config_with("task_metric_example.py", *options).metrics
    return PhaseExtras(custom=custom.registered(phase, metrics))


def values_of(extras: PhaseExtras, logits, label, weight) -> dict[str, float]:
    """In two batches, whose sums are merged."""
    total, loss = empty_sums(TASKS, extras), jnp.ones((ROWS // 2, len(TASKS)))

    @jax.jit
    def sums(logits, label, weight):
        return batch_sums(logits, label, weight, loss, loss[:, 0], null_possible=True, extras=extras)

    for half in (slice(0, ROWS // 2), slice(ROWS // 2, None)):
        total = add(total, sums({task: z[half] for task, z in logits.items()}, label[half], weight[half]))
    return summarise(jax.device_get(total), TASKS, extras)


@pytest.mark.parametrize("most", [100, 2])
def test_every_rank_has_its_own_number(most):
    rng = np.random.default_rng(0)
    logits = {task: rng.normal(size=(ROWS, CLASSES)).astype(np.float32) for task in TASKS}
    label = rng.integers(0, CLASSES, (ROWS, len(TASKS))).astype(np.int32)
    label[:, -1] = 0  # a rank without labels measures nothing
    weight = (np.arange(ROWS) % 5 != 0).astype(np.float32)
    values = values_of(extras_with(f"metrics.median_place.most={most}"), logits, label, weight)
    for t, task in enumerate(TASKS):
        rows = np.flatnonzero((weight > 0) & (label[:, t] != 0))
        places = [1 + int((logits[task][i] > logits[task][i, label[i, t]]).sum()) for i in rows]
        if not places:
            assert not {f"mean_place_{task}", f"median_place_{task}"} & values.keys()
            continue
        assert values[f"mean_place_{task}"] == pytest.approx(np.mean(places))
        assert values[f"median_place_{task}"] == np.quantile(np.minimum(places, most), 0.5, method="inverted_cdf")
    assert not {"mean_place", "median_place"} & values.keys()


def test_its_names_are_in_the_table_the_log_and_what_may_stop_a_run():
    extras = extras_with()
    assert len(extras_with(phase="train").custom) == 2
    new = {f"{name}_{task}" for name in ("mean_place", "median_place") for task in TASKS}
    for phase in ("train", "val"):
        assert table.keys(phase, TASKS).keys() - dict.fromkeys(new) == table.keys(phase, TASKS).keys() - new
        assert new <= table.keys(phase, TASKS).keys()
    key = f"mean_place_{TASKS[1]}"
    monitored = parse_metric_name(f"val/{key}", tasks=TASKS)
    assert (monitored.phase, monitored.metric, monitored.higher_is_better) == ("val", key, False)

    ones = np.ones((ROWS, len(TASKS)), np.int32)
    best = {task: np.eye(CLASSES, dtype=np.float32)[1:2].repeat(ROWS, axis=0) for task in TASKS}
    values = values_of(extras, best, ones, np.ones(ROWS, np.float32))
    tracker = MetricsTracker()
    for phase in ("train", "val"):
        tracker.update(phase, values, 0, 1)
        tracker.update(phase, {key: 2.0}, 1, 2)
    assert tracker.final_metrics()[f"final_val_{key}"] == 1  # the lower, the better
    row = tracker.get_wandb_metrics()
    assert (row[f"val/{key}"], row[f"train/epoch_avg_{key}"]) == (2.0, 2.0)
    assert undescribed([*row, *tracker.final_metrics(), f"train/step_avg_{key}", f"train/{key}"]) == []
    assert names.update_row({"loss": 1.0, key: 1.0}, {})[f"train/{key}"] == 1.0


class Wrong(PhaseMetric):
    """The sums have one shape in `empty` and another one in `update`."""

    def empty(self, tasks):
        return {"x": np.zeros(len(tasks), np.float32)}

    def update(self, inputs):
        return {"x": inputs.weight.sum()}


class OtherName(PhaseMetric):
    def empty(self, tasks):
        return {"x": np.zeros((), np.float32)}

    def update(self, inputs):
        return {"x": inputs.weight.sum()}

    def compute(self, sums, tasks):
        return {"other": sums["x"]}


class Errors(PhaseMetric):
    """NumPy's own types, which the step does not have, and sums of bool."""

    def empty(self, tasks):
        return {"wrong": np.zeros(len(tasks)), "rows": np.zeros((), np.int64)}

    def update(self, inputs):
        return {"wrong": (inputs.counted & ~inputs.right).sum(axis=0), "rows": inputs.valid.sum()}

    def compute(self, sums, tasks):
        return {f"errors_{task}": wrong / sums["rows"] for task, wrong in zip(tasks, sums["wrong"])}


def test_sums_are_of_the_types_of_the_step():
    register("errors", Errors, per_task=True)
    extras = PhaseExtras(custom=custom.registered("val", {}))
    assert {x.dtype.name for x in extras.custom[0].empty(TASKS).values()} == {"float32", "int32"}
    best = {task: np.eye(CLASSES, dtype=np.float32)[1:2].repeat(ROWS, axis=0) for task in TASKS}
    label = np.ones((ROWS, len(TASKS)), np.int32)
    label[:3, 1] = 2
    values = values_of(extras, best, label, np.ones(ROWS, np.float32))
    assert [values[f"errors_{task}"] for task in TASKS] == [0, 3 / ROWS, 0]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda inputs: (1.0, 2.0), r"'bad' fails with TypeError.*two arrays of one number per task"),
        (lambda inputs: (inputs.weight, inputs.weight), "two arrays of one number per task"),
        (Wrong, r"'bad' fails with ValueError: x of other shapes than in `empty`"),
        (OtherName, r"'bad' fails with ValueError: other is none of bad_taxa_L10, "),
        (PhaseMetric.__subclasses__, "'bad' fails with TypeError"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_runs(metric, message):
    register("bad", metric, per_task=True)
    with pytest.raises(ValueError, match=message):
        PhaseExtras(custom=custom.registered("val", {})).check(dict.fromkeys(TASKS, CLASSES), 5, 2)


def test_a_name_that_another_metric_has_at_some_rank_is_refused():
    register("mine", lambda inputs: (0, 0), per_task=True)
    register("some_taxa_L20", lambda inputs: (0, 0))
    for name, per_task, whose in (
        ("mine_taxa_L10", False, "a value of 'mine'"),
        ("some", True, "a value of 'some_taxa_L20'"),
        ("acc1", False, "a built-in one"),
        ("acc1", True, "a built-in one"),
        ("loss", True, "a built-in one"),
    ):
        with pytest.raises(ValueError, match=f"has the name of {whose}"):
            register(name, lambda inputs: (0, 0), per_task=per_task)
