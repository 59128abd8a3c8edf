from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from linnaeus_jax.learning.class_weights import mixture_weight
from linnaeus_jax.learning.losses import label_counts, make_criterion, task_loss_sums
from linnaeus_jax.learning.smoothing import TaxonomySmoothing
from tests.npz import load_npz

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
NAMES = {
    "ce": "CrossEntropyLoss",
    "ls": "LabelSmoothingCrossEntropy",
    "soft": "SoftTargetCrossEntropy",
    "tax": "TaxonomyAwareLabelSmoothing",
}


@pytest.fixture(scope="module")
def data(fixtures):
    return load_npz(fixtures / "learning_criteria.npz")


def smoothing_of(fixtures, data, k: int) -> TaxonomySmoothing:
    """The criteria fixture's smoothing matrices are those of tree A."""
    trees = load_npz(fixtures / "learning_smoothing.npz")
    alpha, beta, _ = data["smoothing_setting"]
    smoothing = TaxonomySmoothing.from_parents([trees[f"A/parent_{i}"] for i in range(3)], k, alpha=alpha, beta=beta)
    np.testing.assert_allclose(smoothing.dense_matrix(), data[f"smooth/{TASKS[k]}"], rtol=1e-5, atol=1e-6)
    return smoothing


@pytest.mark.parametrize(
    "case",
    [
        *("ce", "ce_ign", "ce_w", "ce_w_ign", "ls", "ls_w_ign", "tax", "tax_w_ign", "soft", "soft_w"),
        *("want_ce_on_soft", "want_ls_on_soft", "want_tax_on_soft"),
    ],
)
def test_criteria_fixture(fixtures, data, case):
    parts = case.removeprefix("want_").split("_")

    def loss(logits, k):
        label = jnp.asarray(data[f"hard/{TASKS[k]}"], jnp.int32)
        criterion = make_criterion(
            NAMES[parts[0]],
            num_classes=logits.shape[1],
            label_smoothing=float(data["ls_smoothing"]),
            smoothing=smoothing_of(fixtures, data, k) if parts[0] == "tax" else None,
        )
        target: tuple[jax.Array, jax.Array | None, jax.Array | None] = (label, None, None)
        if "soft" in parts:
            target = (label, label[data["mix_perm"]], jnp.full(label.shape, float(data["mix_lam"])))
        factor = jnp.ones(label.shape)
        if "w" in parts:
            factor = factor * mixture_weight(data[f"class_weight/{TASKS[k]}"], *target)
        if "ign" in parts:
            factor = factor * (label != 0)
        value = criterion(logits, *target) * factor
        return jnp.sum(value * data[f"cot/{TASKS[k]}"]), value

    @jax.jit
    def losses_and_gradients(logits):
        return [jax.value_and_grad(loss, has_aux=True)(x, k) for k, x in enumerate(logits)]

    found = losses_and_gradients([data[f"logits/{task}"] for task in TASKS])
    for task, ((_, value), gradient) in zip(TASKS, found, strict=True):
        close(value, data[f"{case}/value/{task}"])
        close(gradient, data[f"{case}/grad/{task}"])


@pytest.mark.parametrize("name", NAMES.values())
@pytest.mark.parametrize("mixed", [False, True])
def test_gradients_against_float64_finite_differences(name, mixed):
    rng = np.random.default_rng(3)
    parents = [np.array([-1, 0, 0, 1, 1]), np.array([0, 0]), np.array([-1])]
    smoothing = TaxonomySmoothing.from_parents(parents, alpha=0.2, beta=0.7)
    criterion = make_criterion(name, num_classes=5, label_smoothing=0.1, smoothing=smoothing)
    with jax.enable_x64(True):
        logits = rng.normal(size=(4, 5)) * 3
        target = (np.array([0, 1, 2, 4]), np.array([0, 3, 0, 1]), np.array([1.0, 0.5, 0.3, 0.9]))
        cotangent = rng.normal(size=4)

        def loss(x):
            return jnp.sum(cotangent * criterion(x, *map(jnp.asarray, target if mixed else target[:1])))

        loss_and_gradient = jax.jit(jax.value_and_grad(loss))
        value, gradient = loss_and_gradient(logits)
        assert value.dtype == jnp.float64
        numeric = np.zeros(logits.shape)
        for i, j in np.ndindex(*logits.shape):
            step = np.zeros(logits.shape)
            step[i, j] = 1e-5
            numeric[i, j] = (loss_and_gradient(logits + step)[0] - loss_and_gradient(logits - step)[0]) / 2e-5
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


def test_large_and_low_precision_logits():
    criterion = jax.jit(make_criterion("LabelSmoothingCrossEntropy", num_classes=3, label_smoothing=0.1))
    logits = np.array([[1, 2, 4]], np.float32)
    label = np.array([1])
    want = criterion(logits, label)
    np.testing.assert_allclose(criterion(logits + np.float32(4096), label), want, rtol=1e-6)
    low = criterion(logits.astype(jnp.bfloat16), label)
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, want, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES.values())
def test_one_class_has_no_loss(name):
    smoothing = TaxonomySmoothing.from_parents([np.array([-1])], alpha=0.1, beta=1.0)
    criterion = make_criterion(name, num_classes=1, label_smoothing=0.1, smoothing=smoothing)

    def loss(x):
        zero = jnp.zeros(2, jnp.int32)
        return jnp.sum(criterion(x, zero, zero, jnp.full(2, 0.4)))

    value, gradient = jax.jit(jax.value_and_grad(loss))(np.ones((2, 1), np.float32))
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "Hinge", "num_classes": 3}, "'Hinge' is unknown"),
        ({"name": "CrossEntropyLoss", "num_classes": 0}, "at least one class"),
        ({"name": "TaxonomyAwareLabelSmoothing", "num_classes": 3}, "taxonomy_smoothing.enabled"),
    ],
)
def test_criterion_errors(arguments, text):
    with pytest.raises(ValueError, match=text):
        make_criterion(arguments.pop("name"), **arguments)


def test_criterion_shape_errors():
    smoothing = TaxonomySmoothing.from_parents([np.array([-1, -1])], alpha=0.1, beta=1.0)
    with pytest.raises(ValueError, match="2 classes, the task 3"):
        make_criterion("TaxonomyAwareLabelSmoothing", num_classes=3, smoothing=smoothing)
    with pytest.raises(ValueError, match=r"\[B, 3\]"):
        make_criterion("CrossEntropyLoss", num_classes=3)(
            *jax.device_put((np.zeros((2, 4), np.float32), np.zeros(2, np.int32)))
        )
    criteria = {"a": make_criterion("CrossEntropyLoss", num_classes=3)}
    arrays = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.int32), np.ones(2, np.float32), np.ones((2, 1), bool)
    logits, label, one, mask = jax.device_put(arrays)
    with pytest.raises(ValueError, match="one column per task"):
        task_loss_sums({"a": logits}, label, None, None, one, mask, criteria)


def problem():
    """Two tasks, 8 rows of which one is padding, mixed targets, class weights."""
    rng = np.random.default_rng(5)
    sizes = {"fine": 5, "coarse": 3}
    smoothing = TaxonomySmoothing.from_parents(
        [np.array([-1, 1, 1, 2, 2]), np.array([-1, 0, 0]), np.array([-1])], alpha=0.1, beta=1.0
    )
    criteria = {
        "fine": make_criterion("TaxonomyAwareLabelSmoothing", num_classes=5, smoothing=smoothing),
        "coarse": make_criterion("LabelSmoothingCrossEntropy", num_classes=3, label_smoothing=0.1),
    }
    arrays = {
        "logits": {task: rng.normal(size=(8, size)).astype(np.float32) for task, size in sizes.items()},
        "label": np.stack([rng.integers(0, size, 8) for size in sizes.values()], 1).astype(np.int32),
        "partner_label": np.stack([rng.integers(0, size, 8) for size in sizes.values()], 1).astype(np.int32),
        "lam": rng.random(8).astype(np.float32),
        "weight": np.array([1.0] * 7 + [0.0], np.float32),
        "loss_mask": rng.random((8, 2)) < 0.7,
    }
    class_weights = {task: rng.random(size).astype(np.float32) for task, size in sizes.items()}
    return arrays, criteria, class_weights


@jax.jit
def counts_of(arrays):
    return label_counts(arrays["loss_mask"], arrays["weight"])


def mean_gradient(arrays, criteria, class_weights, counts):
    """Total loss and its gradient, given the kept counts of the whole update."""

    def total(logits):
        sums = task_loss_sums(**(arrays | {"logits": logits}), criteria=criteria, class_weights=class_weights)
        return jnp.sum(sums.numerator / jnp.maximum(counts, 1.0))

    return jax.value_and_grad(total)(arrays["logits"])


def test_task_sums_by_hand():
    arrays, criteria, class_weights = problem()
    sums = jax.device_get(
        jax.jit(lambda a: task_loss_sums(**a, criteria=criteria, class_weights=class_weights))(arrays)
    )
    for k, task in enumerate(criteria):
        label, other, lam = arrays["label"][:7, k], arrays["partner_label"][:7, k], arrays["lam"][:7]
        logits = arrays["logits"][task][:7].astype(np.float64)
        log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        if task == "fine":
            matrix = criteria[task].smoothing.dense_matrix()
        else:
            matrix = np.where(np.eye(3) == 1, 0.9, 0.05)
        target = lam[:, None] * matrix[label] + (1 - lam)[:, None] * matrix[other]
        loss = -(target * log_probability).sum(axis=1)
        weight = lam * class_weights[task][label] + (1 - lam) * class_weights[task][other]
        kept = arrays["loss_mask"][:7, k]
        np.testing.assert_allclose(sums.numerator[k], (loss * weight)[kept].sum(), rtol=1e-5)
        np.testing.assert_allclose(sums.per_sample[:, k], [*loss, 0.0], rtol=1e-5)
    np.testing.assert_array_equal(counts_of(arrays), arrays["loss_mask"][:7].sum(axis=0))


def test_accumulated_and_sharded_equal_one_batch():
    arrays, criteria, class_weights = problem()
    counts = jax.device_get(counts_of(arrays))
    step = jax.jit(lambda arrays, counts: mean_gradient(arrays, criteria, class_weights, counts))
    value, gradient = step(arrays, counts)
    parts = [jax.tree.map(lambda x, i=i: x[4 * i : 4 * i + 4], arrays) for i in range(2)]
    np.testing.assert_allclose(sum(np.asarray(counts_of(part)) for part in parts), counts)
    pieces = [jax.device_get(step(part, counts)) for part in parts]
    np.testing.assert_allclose(sum(piece[0] for piece in pieces), value, rtol=1e-6)
    for task in criteria:
        joined = np.concatenate([piece[1][task] for piece in pieces])
        np.testing.assert_allclose(joined, gradient[task], rtol=1e-6, atol=1e-8)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data")))
    sharded_value, sharded_gradient = step(sharded, counts_of(sharded))
    np.testing.assert_allclose(sharded_value, value, rtol=1e-6)
    for task in criteria:
        np.testing.assert_allclose(sharded_gradient[task], gradient[task], rtol=1e-6, atol=1e-8)


def test_no_kept_sample_gives_zero_loss_and_gradient():
    arrays, criteria, class_weights = problem()
    arrays = arrays | {"loss_mask": np.zeros((8, 2), bool)}
    counts = jax.device_get(counts_of(arrays))
    value, gradient = jax.jit(lambda arrays: mean_gradient(arrays, criteria, class_weights, counts))(arrays)
    assert value == 0.0
    assert all(np.all(np.asarray(leaf) == 0.0) for leaf in jax.tree.leaves(gradient))
