from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.learning.task_weights import STRATEGIES, initial_task_weights, per_task
from tests.npz import load_npz

TASKS = ("a", "b", "c")


@pytest.mark.parametrize("case", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fixture(fixtures, case, strategy):
    archive = load_npz(fixtures / "learning_classweights.npz")
    weights = initial_task_weights(
        init_weights=(),
        init_strategy=strategy,
        density=archive[f"task/{case}/density"],
        num_classes=archive[f"task/{case}/num_classes"],
    )
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, archive[f"task/{case}/{strategy}"], rtol=1e-5, atol=1e-6)


def test_given_weights_are_used_as_they_are():
    weights = initial_task_weights(
        init_weights=(3.0, 0.0, 0.5), init_strategy="inverse_density", density=[1, 1, 1], num_classes=[2, 2, 2]
    )
    np.testing.assert_array_equal(weights, [3.0, 0.0, 0.5])


def test_single_class_tasks_are_counted_as_two():
    weights = initial_task_weights(
        init_weights=(), init_strategy="class_complexity", density=[1, 1], num_classes=[1, 1]
    )
    np.testing.assert_allclose(weights, [1.0, 1.0])


def test_per_task():
    assert per_task("x", TASKS, "key") == ("x",) * 3
    assert per_task(0.5, TASKS, "key") == (0.5,) * 3
    assert per_task([1, 2, 3], TASKS, "key") == (1, 2, 3)
    with pytest.raises(ValueError, match=r"some\.key=\(\) has 0 entries for 3 tasks \(a, b, c\)"):
        per_task((), TASKS, "some.key")
