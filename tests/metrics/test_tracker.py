"""Best values, documented names, state, and metrics of the user's own."""

from __future__ import annotations

import functools
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.metrics import custom, names, register
from linnaeus_jax.metrics.extras import META_STATES, PhaseExtras
from linnaeus_jax.metrics.logged import described
from linnaeus_jax.metrics.phase import add, batch_sums, empty_sums, summarise
from linnaeus_jax.metrics.tracker import Metric, MetricsTracker
from tests.plugins import forget_plugins

TASKS = ("taxa_L10", "taxa_L20")
PHASES = ("train", "val", "val_mask_meta", "val_mask_TEMPORAL")
sums_of = jax.jit(functools.partial(batch_sums, null_possible=True))


def some_values(seed: int) -> dict[str, float]:
    """Results of a phase, as of `summarise`."""
    rng = np.random.default_rng(seed)
    logits = {task: rng.normal(size=(12, 4)).astype(np.float32) for task in TASKS}
    label, weight, loss = rng.integers(0, 4, (12, 2), np.int32), np.ones(12, np.float32), np.ones((12, 2), np.float32)
    values = summarise(jax.device_get(sums_of(logits, label, weight, loss, loss[:, 0])), TASKS)
    return {"loss": values["loss_unweighted"], **values}


def test_golden_metric_sequences(fixtures):
    for case in json.loads((fixtures / "observability_metrics.json").read_text())["metric_sequences"]:
        metric = Metric("m", case["init"], case["higher_is_better"])
        for epoch, (value, want) in enumerate(zip(case["values"], case["trace_value_best_bestepoch"], strict=True)):
            metric.update(float(value), epoch)
            assert metric.value == pytest.approx(float(want[0]), nan_ok=True)
            assert (metric.best, metric.best_epoch or 0) == (want[1], want[2])


def test_an_unset_metric_takes_any_first_number_but_nan():
    metric = Metric("val/loss")
    assert (metric.value, metric.best, metric.count) == (None, None, 0)
    metric.update(math.nan, 0, 10)
    assert metric.best is None
    metric.update(2.0, 1, 20)
    metric.update(2.0, 2, 30)
    assert (metric.best, metric.best_epoch, metric.best_step, metric.count) == (2.0, 1, 20, 3)


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("val/loss_taxa_L10", False),
        ("val/acc1_taxa_L10", True),
        ("train/epoch_duration_sec", False),
        ("train/avg_samples_per_sec", True),
        ("val/taxonomic_distance_taxa_L10", False),
        ("val/aurc_taxa_L10", False),
        ("val/coverage_at_risk_5_taxa_L10", True),
        ("val/ece_taxa_L10", False),
        ("val/piece_accuracy", True),
        ("val/null/loss_taxa_L10", False),
        ("train/epoch_avg_loss", False),
    ],
)
def test_direction(name, higher):
    assert Metric(name).higher_is_better is higher


def test_documented_keys_appear_for_phases_that_ran(fixtures):
    listed = json.loads((fixtures / "observability_metrics.json").read_text())["wandb_keys"]
    assert tuple(listed["tasks"]) == TASKS
    tracker = MetricsTracker(null_tasks=TASKS[:1])
    assert tracker.get_wandb_metrics() == {}
    for phase in PHASES:
        tracker.update(phase, some_values(1), epoch=0, step=5, seconds=2.0, samples=12)
    tracker.update_latest(names.learning_rates({"default": 1e-3}))
    tracker.update_latest(names.schedule_values({"meta_mask_prob": 0.5, "mixup_prob": 0.1}, "taxa_L10"))
    tracker.update_latest(names.null_masking(4, 1, 0.25, True))
    tracker.update_latest(names.gradnorm({"avg_norm": 1.0, "weight": [1.0, 2.0]}, TASKS))
    tracker.update_latest(names.actual_valid_pct(("TEMPORAL", "SPATIAL"), [3, 6], 12, "train"))
    tracker.update_latest(names.update_row(some_values(2), {"taxa_L10": 1.0}))
    pipeline = "cache/size cache/hits cache/misses cache/evictions throughput/prefetch throughput/preprocess"
    pipeline += " timing/prefetch_times timing/preprocess_times"
    queues = [f"queue_depths/{name}_q" for name in ("batch_index", "preprocess", "processed_batch")]
    tracker.update_latest({f"pipeline/{name}": 1.0 for name in [*pipeline.split(), *queues]})
    tracker.update_latest({"train/eta_sec": 3.0, "core/global_step": 5})
    row = tracker.get_wandb_metrics()
    wanted = {key.replace("gradnorm/gradnorm/", "gradnorm/") for key in listed["keys_after_updates_only"]}
    wanted |= set(listed["keys_at_start"])
    # the reference calls means over an epoch `train/...` too; here that is one update, not split by null labels
    parts = re.compile(r"(?<=train/)(?=(non_)?null/)|(?<=core/train_)(?=(non_)?null_)")
    assert not {parts.sub("epoch_avg_", key) for key in wanted} - set(row)
    assert row["train/avg_samples_per_sec"] == 6.0
    assert row["core/null_inclusion_pct"] == 25.0
    assert row["meta_masking/actual_valid_pct/SPATIAL/train"] == 50.0
    assert row["core/valMask_TEMPORAL_chain_acc_pct"] == 100 * row["val_mask_TEMPORAL/chain_accuracy"]
    for name in ("null/acc1_taxa_L20", "non_null/loss_taxa_L20"):  # not tracked apart
        assert f"val/{name}" not in row
    assert "core/val_non_null_acc1/taxa_L20" not in row
    assert row["val/non_null/acc1_taxa_L20"] == some_values(1)["non_null/acc1_taxa_L20"]  # of every task
    aliases = {key: row[key] for key in row if key.startswith("val_mask/")}
    assert aliases == {k.replace("val_mask_meta", "val_mask"): row[k] for k in row if k.startswith("val_mask_meta/")}
    assert "val_mask/chain_accuracy_pct" in aliases


def test_one_name_is_one_quantity():
    """An update and an epoch of training share no name, and `final_...` is the best epoch."""
    values = some_values(1)
    update, tracker = names.update_row(values, {"taxa_L10": 1.0}), MetricsTracker()
    tracker.update("train", values | {"subset/metadata/masked/count": 3}, epoch=0, step=5, seconds=2.0, samples=12)
    tracker.update("val", values, epoch=0, step=5)
    row = tracker.get_wandb_metrics(5)
    assert not update.keys() & row.keys()
    for name in ("loss", "loss_unweighted", "chain_accuracy", "chain_accuracy_pct", "acc1_taxa_L10"):
        assert update[f"train/{name}"] == row[f"train/epoch_avg_{name}"] == row[f"val/{name}"]
    assert update["core/train_loss_unweighted"] == row["core/val_loss_unweighted"]
    assert row["core/train_epoch_avg_loss_unweighted"] == tracker.value("train/epoch_avg_loss_unweighted")
    assert row["train/epoch_duration_sec"] == 2.0
    assert row["train/subset/metadata/masked/count"] == 3
    assert tracker.final_metrics()["final_train_loss"] == values["loss"]


def test_a_phase_that_took_no_time_has_a_duration_and_no_rate():
    tracker = MetricsTracker()
    tracker.update("val", {"loss": 1.0}, epoch=0, step=5, seconds=0.0, samples=12)
    assert tracker.value("val/epoch_duration_sec") == 0.0
    assert "val/avg_samples_per_sec" not in tracker.metrics


@pytest.mark.parametrize("null_tasks", [None, ("taxa_L10",)])
def test_the_documented_names_of_null_and_other_labels_in_training(null_tasks):
    """The eight names per rank are of the epoch, the same number as those with `epoch_avg`."""
    values = some_values(1)
    row = names.phase_row("train", values, null_tasks)
    for group in ("null", "non_null"):
        for kind in ("acc1", "loss"):
            number = values[f"{group}/{kind}_taxa_L10"]
            for name in (
                f"train/{group}/{kind}_taxa_L10",
                f"train/epoch_avg_{group}/{kind}_taxa_L10",
                f"core/train_{group}_{kind}/taxa_L10",
                f"core/train_epoch_avg_{group}_{kind}/taxa_L10",
            ):
                assert row[name] == number
                logged = described(name)
                assert logged is not None
                assert "epoch" in logged.rows
    assert ("train/null/acc1_taxa_L20" in row) == (null_tasks is None)
    assert row["train/non_null/acc1_taxa_L20"] == row["train/epoch_avg_non_null/acc1_taxa_L20"]
    assert ("core/train_non_null_acc1/taxa_L20" in row) == (null_tasks is None)
    assert not any(name.startswith("train/null") for name in names.update_row(values, {}))
    assert "train/null/acc1_taxa_L10" not in names.phase_row("train", values, ()), "of no task"


def test_nothing_stale_is_logged_again():
    tracker = MetricsTracker()
    tracker.update("val", {"loss": 1.0}, epoch=0, step=5)
    tracker.update("train", {"loss": 1.0}, epoch=1, step=10)
    tracker.update_latest({"train/lr": 1.0})
    wanted = {"core/global_step": 10, "train/epoch_avg_loss": 1.0, "core/train_epoch_avg_loss": 1.0}
    assert tracker.get_wandb_metrics(step=10) == wanted
    assert tracker.latest_by_phase(5) == {"val": {"loss": 1.0}}
    assert tracker.value("val/loss") == 1.0
    assert tracker.value("val/ece") is None


def test_final_values_say_when():
    tracker = MetricsTracker()
    for epoch, (loss, accuracy) in enumerate([(2.0, 0.1), (1.0, 0.4), (1.5, 0.3)]):
        values = {"loss": loss, "chain_accuracy": accuracy, "subset/taxa/birds/count": 3}
        tracker.update("val_mask_meta", values, epoch, 10 * epoch + 10)
    assert tracker.final_metrics() == {"final_val_mask_meta_loss": 1.0, "final_val_mask_meta_chain_accuracy": 0.4}
    best = tracker.metrics["val_mask_meta/loss"]
    assert (best.best, best.best_epoch, best.best_step) == (1.0, 1, 20)


def test_state_round_trip_is_exact_and_bounded():
    tracker, sizes = MetricsTracker(), []
    for epoch in range(120):
        loss = math.nan if epoch == 3 else 1 / (epoch + 3)
        tracker.update("val", {"loss": loss, "chain_accuracy": epoch / 7}, epoch, 10 * epoch)
        sizes.append(len(json.dumps(tracker.state_dict())))
    assert sizes[-1] < 1.2 * sizes[1]  # only longer numbers, not more of them
    tracker.metrics["odd"] = Metric("odd", 5.0, higher_is_better=False)
    tracker.update_latest({"schedule/mixup_group_str": "taxa_L10"})
    text = json.dumps(tracker.state_dict())
    again = MetricsTracker()
    again.load_state_dict(json.loads(text))
    assert json.dumps(again.state_dict()) == text
    assert not again.metrics["odd"].higher_is_better
    for one in (tracker, again):
        one.update("val", {"loss": 0.001}, 500, 5000)
    assert json.dumps(again.state_dict()) == json.dumps(tracker.state_dict())
    assert again.final_metrics() == tracker.final_metrics()


class TrackerWithMore(MetricsTracker):
    """The example of the documentation."""

    def update_custom_metric(self, value: float, epoch: int) -> None:
        if not hasattr(self, "custom_metric"):
            self.custom_metric = Metric("custom_metric", init_value=0.0)
        self.custom_metric.update(value, epoch)


def test_a_metric_added_by_a_method_is_logged_saved_and_final():
    tracker = TrackerWithMore()
    assert not hasattr(tracker, "custom_metric")
    tracker.update_custom_metric(0.7, 0)
    resumed = TrackerWithMore()
    resumed.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    resumed.update_custom_metric(0.2, 1)
    assert resumed.get_wandb_metrics() == {"custom_metric": 0.2}
    assert resumed.get_wandb_metrics(step=3)["custom_metric"] == 0.2
    resumed.never_measured = Metric("never_measured", init_value=0.0)
    assert resumed.final_metrics() == {"final_custom_metric": 0.7}
    assert (resumed.custom_metric.best_epoch, resumed.custom_metric.count) == (0, 2)


@pytest.fixture
def plugin():
    forget_plugins()

    @register("unsureness", higher_is_better=False, phases=("val",))
    def mean_confidence(inputs):
        best = inputs.probabilities["taxa_L10"].max(axis=1)
        return (best * inputs.weight).sum(), inputs.weight.sum()

    return mean_confidence


def test_a_registered_metric_is_measured_in_the_step(plugin):
    [metric] = custom.registered("val", {})
    assert metric.name == "unsureness"
    assert custom.registered("train", {}) == ()
    extras = PhaseExtras(custom=(metric,))
    rng, total = np.random.default_rng(0), empty_sums(TASKS, extras)
    logits = {task: rng.normal(size=(6, 4)).astype(np.float32) for task in TASKS}
    weight = np.array([1, 1, 1, 1, 0, 1], np.float32)

    @jax.jit
    def step(logits, weight):
        label, loss = jnp.ones((3, 2), jnp.int32), jnp.ones((3, 2))
        columns = dict.fromkeys(("row", "group"), label[:, 0]) | dict.fromkeys(("meta", "meta_valid"), label)
        return batch_sums(logits, label, weight, loss, loss[:, 0], null_possible=True, extras=extras, columns=columns)

    for rows in (slice(0, 3), slice(3, 6)):
        total = add(total, step({task: z[rows] for task, z in logits.items()}, weight[rows]))
    p = np.exp(logits["taxa_L10"])
    wanted = (p / p.sum(axis=1, keepdims=True)).max(axis=1)[weight > 0].mean()
    values = summarise(jax.device_get(total), TASKS, extras)
    assert values["unsureness"] == pytest.approx(wanted, rel=1e-6)
    tracker = MetricsTracker()
    tracker.update("val", values, 0, 1)
    tracker.update("val", {"unsureness": 0.9}, 1, 2)
    assert tracker.final_metrics()["final_val_unsureness"] == pytest.approx(wanted, rel=1e-6)  # lower is better


def test_registration_mistakes_are_named(plugin):
    with pytest.raises(ValueError, match="registered twice"):
        register("unsureness", lambda inputs: (0, 0))
    with pytest.raises(ValueError, match="only letters"):
        register("val/x", plugin)
    with pytest.raises(ValueError, match="must name one or more"):
        register("x", plugin, phases=("test",))
    for taken in ("acc1_taxa_L10", "loss", "coverage_at_risk_5_taxa_L33_5"):
        with pytest.raises(ValueError, match="has the name of a built-in one"):
            register(taken, plugin)
    for taken in ("taxa", "metadata"):
        with pytest.raises(ValueError, match="built in"):
            custom.register_subset(taken, lambda split: split.rows)


def test_metadata_states_are_in_the_order_of_their_codes():
    from linnaeus_jax.learning import meta_masking

    codes = (meta_masking.NONE, meta_masking.PARTIAL, meta_masking.FULL)
    assert [META_STATES[code] for code in codes] == ["unmasked", "partial", "masked"]
