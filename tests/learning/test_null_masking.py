from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.learning.losses import label_counts, make_criterion, task_loss_sums
from linnaeus_jax.learning.null_masking import inclusion_uniforms, loss_mask, null_mask
from tests.npz import load_npz

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


kept = jax.jit(loss_mask, static_argnames="phase1")
uniforms_of = jax.jit(inclusion_uniforms, static_argnums=(1, 2))


@jax.jit
def losses_and_gradient(logits, label, other, lam, keep, weights, task_weight):
    """((total, mean of each task), gradient of the total), and the labels that count."""
    criteria = {task: make_criterion("CrossEntropyLoss", num_classes=z.shape[1]) for task, z in logits.items()}
    rows = jnp.ones(len(keep))
    counts = label_counts(keep, rows)

    def total(logits):
        sums = task_loss_sums(logits, label, other, lam, rows, keep, criteria, weights)
        means = sums.numerator / jnp.maximum(counts, 1.0)
        return jnp.sum(means * task_weight), means

    return jax.value_and_grad(total, has_aux=True)(logits), counts


@pytest.mark.parametrize(("kind", "weighted"), [("hard", "plain"), ("hard", "cw"), ("soft", "plain")])
@pytest.mark.parametrize("mode", ["all", "sched", "none", "phase1", "val"])
def test_masking_fixture(fixtures, mode, kind, weighted):
    masking, criteria_data = load_npz(fixtures / "learning_masking.npz"), load_npz(fixtures / "learning_criteria.npz")
    label = np.stack([criteria_data[f"hard/{task}"] for task in TASKS], axis=1).astype(np.int32)
    other, lam = None, None
    if kind == "soft":
        other, lam = label[criteria_data["mix_perm"]], np.full(label.shape[0], criteria_data["mix_lam"], np.float32)
    uniforms = np.stack([masking[f"u/{task}"] for task in TASKS], axis=1)
    probability = {"all": 1.0, "sched": float(masking["p_sched"]), "none": 0.0}.get(mode)
    null = jax.jit(null_mask)(label, other, lam)
    keep = np.asarray(kept(null, probability=probability, uniforms=uniforms, phase1=mode == "phase1"))

    case = f"{mode}/{kind}/{weighted}"
    if weighted == "plain":
        for k, task in enumerate(TASKS):
            np.testing.assert_array_equal(keep[:, k], masking[f"{case}/keep/{task}"])
    logits = {task: criteria_data[f"logits/{task}"] for task in TASKS}
    weights = {task: criteria_data[f"class_weight/{task}"] for task in TASKS} if weighted == "cw" else None
    ((value, means), gradient), counts = losses_and_gradient(
        logits, label, other, lam, keep, weights, masking["task_weight"]
    )
    np.testing.assert_array_equal(counts, masking[f"{case}/want_n"])
    close(value, masking[f"{case}/want_total"])
    close(means, masking[f"{case}/want_task_mean"])
    for task in TASKS:
        close(gradient[task], masking[f"{case}/want_grad/{task}"])


def test_null_test_of_mixtures():
    label, other = jax.device_put((np.array([[0], [0], [3], [0], [3]]), np.array([[3], [3], [0], [0], [0]])))
    lam = jax.device_put(np.array([0.51, 0.5, 0.5, 0.1, 0.4], np.float32))
    mixed = np.asarray(jax.jit(null_mask)(label, other, lam))
    np.testing.assert_array_equal(mixed[:, 0], [True, False, False, True, True])
    np.testing.assert_array_equal(np.asarray(null_mask(label))[:, 0], [True, True, False, True, False])
    assert not np.any(null_mask(label, other, lam, null_possible=False))


def test_probability_needs_uniforms():
    with pytest.raises(ValueError, match="inclusion_uniforms"):
        loss_mask(jax.device_put(np.ones((2, 1), bool)), probability=0.5)


def test_inclusion_rates_within_binomial_bounds():
    rows, tasks = 100_000, 2
    uniforms = uniforms_of(jax.random.key(7), (rows,), tasks)
    null = np.broadcast_to(np.arange(rows)[:, None] % 2 == 0, (rows, tasks))
    assert not kept(null, probability=0.0, uniforms=jnp.zeros((rows, tasks)))[::2].any()  # 0 is drawn, too
    for probability in (0.0, 0.03, 0.5, 1.0):
        keep = np.asarray(kept(null, probability=probability, uniforms=uniforms))
        assert keep[1::2].all()
        bound = 4.5 * np.sqrt(probability * (1 - probability) / (rows / 2))
        np.testing.assert_array_less(np.abs(keep[::2].mean(axis=0) - probability), bound + 1e-12)
    both = np.asarray(uniforms) < 0.5
    assert abs((both[:, 0] & both[:, 1]).mean() - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / rows)


def test_draws_depend_only_on_key_task_and_row():
    key = jax.random.key(1)
    flat = np.asarray(uniforms_of(key, (12,), 3))
    np.testing.assert_array_equal(np.asarray(uniforms_of(key, (3, 4), 3)).reshape(12, 3), flat)
    np.testing.assert_array_equal(uniforms_of(key, (12,), 2), flat[:, :2])
    np.testing.assert_array_equal(flat[:, 2], jax.random.uniform(jax.random.fold_in(key, 2), (12,)))
