"""Metrics and subsets of a user's own: what they see, what is refused, and that a run without them traces nothing."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax import metrics
from linnaeus_jax.metrics import custom, table
from linnaeus_jax.metrics.extras import PhaseExtras
from linnaeus_jax.metrics.phase import batch_sums, empty_sums, summarise
from tests.plugins import forget_plugins

TASKS = ("taxa_L10", "taxa_L20")
ROWS = 6


@pytest.fixture
def registry():
    """Holds nothing but what the test registers."""
    forget_plugins()
    return metrics.register


def columns():
    """What a batch brings besides labels."""
    return {
        "row": np.arange(100, 100 + ROWS, dtype=np.int32),
        "group": np.full(ROWS, -1, np.int32),
        "meta": np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3),
        "meta_valid": np.asarray([[True, i % 2 == 0] for i in range(ROWS)]),
        "subsets": np.asarray([[0], [1], [1], [-1], [0], [1]], np.int32),
    }


def sums(extras, given=columns):
    label = jnp.ones((ROWS, 2), jnp.int32)
    logits = {task: jnp.eye(3)[jnp.asarray([1, 1, 0, 1, 0, 1])] for task in TASKS}
    weight = jnp.asarray([1, 1, 1, 1, 1, 0], jnp.float32)
    loss = jnp.ones((ROWS, 2))
    given = given and given()
    return batch_sums(logits, label, weight, loss, loss[:, 0], null_possible=False, extras=extras, columns=given)


def test_the_promised_names_are_there():
    for name in ("MetricsTracker", "Metric", "StepMetricsLogger", "SubsetMetricWrapper", "register", "accuracy"):
        assert getattr(metrics, name).__name__ == name
    metric = metrics.Metric("val/x", init_value=0.0)
    metric.update(1.0, 3)
    assert (metric.value, metric.best_epoch) == (1.0, 3)


def test_a_metric_sees_rows_metadata_and_subsets(registry):
    seen: dict[str, Any] = {}

    def look(inputs):
        seen.update(vars(inputs), probabilities=inputs.probabilities)
        return (inputs.weight * inputs.meta_valid[:, 1]).sum(), inputs.weight.sum()

    registry("known_place", look)
    extras = PhaseExtras(custom=custom.registered("val", {}), kinds=("place",))
    found, seen = jax.device_get(jax.jit(lambda: (sums(extras), seen))())
    values = summarise(found, TASKS, extras)
    assert values["known_place"] == pytest.approx(3 / 5)
    for name in ("row", "group", "meta", "meta_valid"):
        np.testing.assert_array_equal(seen[name], columns()[name])
    np.testing.assert_array_equal(seen["subsets"]["place"], columns()["subsets"][:, 0])
    assert seen["label"].shape == (ROWS, 2)
    np.testing.assert_allclose(seen["probabilities"]["taxa_L20"].sum(axis=1), 1, rtol=1e-6)


def test_subsets_of_ones_own_are_counted():
    extras = PhaseExtras(subsets={"place": ("wood", "lake")}, kinds=("place",))
    found = jax.device_get(jax.jit(lambda: sums(extras))())
    values = summarise(found, TASKS, extras)
    assert values["subset/place/wood/count"] == values["subset/place/lake/count"] == 2  # padding and -1 nowhere
    assert values["subset/place/wood/acc1_taxa_L10"] == 50.0  # rows 0 right, 4 wrong
    assert values["subset/place/lake/acc1_taxa_L20"] == 50.0  # row 1 right, 2 wrong
    empty = {name: (x.shape, x.dtype) for name, x in empty_sums(TASKS, extras).items()}
    assert {name: (x.shape, x.dtype) for name, x in found.items()} == empty


def test_without_them_nothing_is_traced():
    """A batch's other columns add no operation where nothing of the user's own is measured."""
    given = columns()
    with_columns, without = (jax.make_jaxpr(lambda: sums(PhaseExtras(), g))() for g in (lambda: given, None))  # noqa: B023
    assert str(with_columns) == str(without)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs: inputs.nothing, "'bad' fails with AttributeError"),
        (lambda inputs: inputs.weight.sum(), "two scalars"),
        (lambda inputs: (inputs.weight, inputs.weight), r"'bad' fails with TypeError.*two scalars"),
        (lambda logits, label, weight: (weight.sum(), weight.sum()), "takes a MetricInputs"),
    ],
)
def test_a_metric_that_fails_is_named_before_anything_runs(registry, function, message):
    registry("bad", function)
    extras = PhaseExtras(custom=custom.registered("val", {}))
    with pytest.raises(ValueError, match=message):
        extras.check({"taxa_L10": 3}, 5, 2)
    registry("good", lambda inputs: (inputs.meta.sum() + inputs.subsets["place"].sum(), inputs.weight.sum()))
    good = PhaseExtras(custom=custom.registered("val", {})[1:], kinds=("place",))
    good.check({"taxa_L10": 3}, 5, 2)
    types: dict[str, str] = {}

    def look(inputs):
        types.update({name: str(x.dtype) for name, x in vars(inputs).items() if hasattr(x, "dtype")})
        types.update({name: str(x.dtype) for name, x in {**inputs.logits, **inputs.subsets}.items()})
        return inputs.weight.sum(), inputs.weight.sum()

    registry("looking", look)
    PhaseExtras(custom=custom.registered("val", {})[2:], kinds=("place",)).check({"taxa_L10": 3}, 5, 2)
    real = ("weight", "loss_weighted", "loss", "meta", "taxa_L10")
    assert types == dict.fromkeys(real, "float32") | {"meta_valid": "bool"} | dict.fromkeys(
        ("label", "row", "group", "place"), "int32"
    )


def test_directions_come_from_one_table(registry):
    registry("unsureness", lambda inputs: (0, 0), higher_is_better=False, phases=("val",))
    registry("my_loss", lambda inputs: (0, 0))
    assert table.keys("val", TASKS)["unsureness"].higher_is_better is False
    assert "unsureness" not in table.keys("train", TASKS)
    assert table.keys("train", TASKS)["my_loss"].higher_is_better is False  # from its name
    assert metrics.Metric("val_mask_meta/unsureness").higher_is_better is False
    for key, info in table.keys("val", TASKS).items():
        if key != "unsureness":
            assert metrics.Metric(f"val/{key}").higher_is_better is info.higher_is_better is table.guess(key), key


def test_every_metric_of_a_phase_is_in_the_table():
    """What a phase reports can be monitored, and nothing else."""
    ancestors = tuple(np.tile(np.arange(3)[:, None], (1, 2 - t)) for t in range(2))
    extras = PhaseExtras(ancestors=ancestors, confidence=True)
    label = np.asarray([[1, 1], [0, 1], [2, 0], [1, 2]], np.int32)
    logits = {task: np.eye(3, dtype=np.float32)[[1, 1, 0, 1]] for task in TASKS}
    weight, loss = np.ones(4, np.float32), np.ones((4, 2), np.float32)
    measure = jax.jit(functools.partial(batch_sums, null_possible=True, extras=extras))
    found = measure(logits, label, weight, loss, loss[:, 0])
    values = summarise(jax.device_get(found), TASKS, extras, np.asarray([[0.5, -0.4]] * 4, np.float32))
    others = {"loss", "epoch_duration_sec", "avg_samples_per_sec"}  # of the evaluation and of the tracker
    means = {f"macro_acc1_{task}" for task in TASKS}  # of the evaluation, which counts by class
    assert values.keys() | others | means == table.keys("val", TASKS).keys()
    values = summarise(jax.device_get(found), TASKS)
    assert values.keys() | others == table.keys("train", TASKS).keys()
