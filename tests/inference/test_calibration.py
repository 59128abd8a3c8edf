"""Temperatures and how probabilities are judged, on logits whose truth is known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad

from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.paths import TaxonomyPaths, log_softmax
from linnaeus_jax.inference.quality import calibration as cal
from linnaeus_jax.metrics.extras import Calibration as CalibrationMetric
from linnaeus_jax.metrics.judged import TINY, accuracy, coverage_and_risk, ece, nll
from linnaeus_jax.metrics.metric import MetricInputs
from tests.inference.conftest import small_taxonomy
from tests.inference.trees import cases, random_taxonomy

TAXONOMY = small_taxonomy()
TASKS = TAXONOMY.tasks


def overconfident(rows: int, sharpness: float = 3.0, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Logits `sharpness` times those that labels were drawn by, along paths; some labels are null."""
    rng = np.random.default_rng(seed)
    z = {task: rng.normal(0, 1, (rows, TAXONOMY.tree.num_classes[task])).astype(np.float32) for task in TASKS}
    paths = TaxonomyPaths(TAXONOMY.tree)
    scores = paths.scores(z, dict.fromkeys(TASKS, 1.0))
    drawn = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    logits = {task: np.float32(sharpness) * each for task, each in z.items()}
    return logits, paths.classes[drawn]


def test_the_temperature_that_labels_were_drawn_with_is_found():
    logits, labels = overconfident(4000)
    found = cal.fit(logits, labels, TAXONOMY)
    assert found.rows == int((labels > 0).any(axis=1).sum())
    assert found.paths[TASKS[0]] == pytest.approx(3, rel=0.15)
    before, after = (
        nll(cal.judge(logits, labels, Answers(TAXONOMY, Calibration(found.ranks, paths))))
        for paths in (dict.fromkeys(TASKS, 1.0), found.paths)
    )
    assert (after < before).all()
    z = np.random.default_rng(1).normal(0, 1, (4000, 5))
    label = (z + np.random.default_rng(2).gumbel(size=z.shape)).argmax(axis=1)
    of_rank = cal._minimised(cal._rank_objective((3 * z).astype(np.float32), label), np.ones(1), 10.0)
    assert of_rank[0] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(("rows", "apart"), [(100, 0.15), (300, 0.1), (1000, 0.05)])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_few_rows_are_enough_for_the_temperature_of_a_rank(rows, apart, temperature):
    """On 2,000 other rows the calibration error is nearly that of the temperature that is right."""
    rng = np.random.default_rng(rows)
    z = rng.normal(0, 3, (rows + 2000, TAXONOMY.tree.num_classes[TASKS[0]])).astype(np.float32)
    z[:, 0] = -30  # null, which no row is
    labels = np.zeros((len(z), len(TASKS)), np.int32)
    labels[:, 0] = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    logits = {task: np.zeros((len(z), TAXONOMY.tree.num_classes[task]), np.float32) for task in TASKS}
    logits[TASKS[0]] = np.float32(temperature) * z
    few, others = ({task: each[part] for task, each in logits.items()} for part in (np.s_[:rows], np.s_[rows:]))
    fitted = cal.fit(few, labels[:rows], TAXONOMY)
    error, least = (
        ece(
            cal.judge(
                others,
                labels[rows:],
                Answers(TAXONOMY, Calibration({**fitted.ranks, TASKS[0]: t}, fitted.paths)),
                "documented",
            )
        )[0]
        for t in (fitted.ranks[TASKS[0]], temperature)
    )
    assert fitted.ranks[TASKS[0]] == pytest.approx(temperature, rel=0.35 if rows == 100 else 0.2)
    assert error < least + apart / 5


def test_slopes_are_those_of_the_loss():
    logits, labels = overconfident(30)
    for counts in ({}, TAXONOMY.tree.path_counts(labels)):
        of_paths = cal._path_objective(logits, labels, TAXONOMY, counts)
        for log_t in (np.zeros(3), np.array([-1.0, 0.5, 2.0])):
            assert check_grad(lambda x, of=of_paths: of(x)[0], lambda x, of=of_paths: of(x)[1], log_t) < 1e-3
    of_rank = cal._rank_objective(logits[TASKS[0]], labels[:, 0])
    assert check_grad(lambda x: of_rank(x)[0], lambda x: of_rank(x)[1], np.array([0.3])) < 1e-3
    with_prior = cal._minimised(lambda x: (50 * float((x - 1) @ (x - 1)), 100 * (x - 1)), np.array([2.0]), 0.5)
    assert np.log(with_prior[0]) == pytest.approx((100 + 4 * np.log(2)) / 104, abs=1e-4)


@pytest.mark.parametrize("null", [True, False])
def test_every_class_but_null_is_a_label(null):
    taxonomy = random_taxonomy([3, 2], null, np.random.default_rng(0))
    labels = np.array([[-1, -1], [0, 0], [1, 1], [2, 0]])
    expected = [[False, False], [not null, not null], [True, True], [True, not null]]
    assert cal.labelled(labels, taxonomy).tolist() == expected
    rng = np.random.default_rng(1)
    logits = {task: rng.normal(size=(4, len(ids))).astype(np.float32) for task, ids in taxonomy.classes.items()}
    assert cal.fit(logits, labels, taxonomy).rows == 3 - null


@pytest.mark.parametrize(
    ("rows", "change"),
    [(1, None), (3, "one class"), (40, "no species"), (40, "certain"), (40, "nothing")],
)
def test_few_rows_are_never_made_worse(rows, change):
    logits, labels = overconfident(rows, seed=5)
    labels[:, -1] = np.maximum(labels[:, -1], 1)
    if change == "one class":
        labels[:] = [1, 1, 1]
    elif change == "no species":
        labels[:, 0] = 0
    elif change == "nothing":
        labels[:] = 0
    elif change == "certain":
        logits = {
            task: 50 * np.eye(z.shape[1], dtype=np.float32)[labels[:, i]] for i, (task, z) in enumerate(logits.items())
        }
    none, found = Calibration.none(TASKS), cal.fit(logits, labels, TAXONOMY)
    assert all(cal.LOWEST <= t <= cal.HIGHEST for t in [*found.ranks.values(), *found.paths.values()])
    if change == "no species":
        assert found.ranks[TASKS[0]] == 1
    if change == "nothing":
        assert found == none
    for consistency in ("path", "documented"):
        total = [
            -np.log(cal.judge(logits, labels, Answers(TAXONOMY, each), consistency).of_label).sum()
            for each in (none, found)
        ]
        assert total[1] <= total[0] + 1e-6


@settings(max_examples=20, deadline=None)
@given(cases(rows=6), st.booleans())
def test_any_taxonomy(case, counted):
    """Orphans, ranks of one class, with and without null, and with and without training rows that are known."""
    taxonomy = case.taxonomy
    classes = TaxonomyPaths(taxonomy.tree).classes
    labels = classes[np.arange(6) % len(classes)]
    counts = taxonomy.tree.path_counts(labels) if counted else {}
    none, found = Calibration.none(taxonomy.tasks, counts), cal.fit(case.logits, labels, taxonomy, counts)
    assert found.path_counts == counts
    before, after = (cal.judge(case.logits, labels, Answers(taxonomy, each)) for each in (none, found))
    assert np.isfinite(after.of_label).all()
    cost = [-np.log(np.maximum(each.of_label, TINY)).sum() for each in (before, after)]
    assert cost[1] <= cost[0] + 1e-6 or before.of_label.min() < 1e-9  # of sums and differences, less is rounding
    assert (after.probability[after.predicted < taxonomy.first] >= 0).all()
    assert not after.right[after.predicted < taxonomy.first].any()


def test_calibration_error_is_that_of_validation():
    logits, labels = overconfident(200)
    judged = cal.judge(logits, labels, Answers(TAXONOMY, Calibration.none(TASKS)), "documented")
    assert judged.label.dtype == judged.predicted.dtype == np.int32  # there may be more than 32,767 classes
    z = {task: jnp.asarray(each) for task, each in logits.items()}
    others: dict[str, Any] = dict.fromkeys(("row", "group", "meta", "meta_valid", "subsets"))
    metric, inputs = CalibrationMetric(), MetricInputs(z, jnp.asarray(labels), jnp.ones(200), **others)
    sums = jax.jit(lambda: metric.update(inputs))()
    expected = metric.compute(jax.device_get(sums), TASKS)
    for t, task in enumerate(TASKS):
        assert ece(judged)[t] == pytest.approx(expected[f"ece_{task}"], abs=1e-5)
        assert nll(judged)[t] == pytest.approx(expected[f"nll_{task}"], rel=1e-5)
        assert 1 - accuracy(judged)[t] == pytest.approx(expected[f"error_rate_{task}"], abs=1e-6)
    coverage, risk = coverage_and_risk(judged, 0)
    assert coverage[-1] == 1
    assert risk[-1] == pytest.approx(expected[f"error_rate_{TASKS[0]}"])


def test_null_below_a_taxon_says_nothing_about_the_taxon():
    """Ranks that disagree: species says Passer, genus Parus, and both find null improbable."""
    z = {task: np.full((1, n), -8.0, np.float32) for task, n in TAXONOMY.tree.num_classes.items()}
    for place, (task, index) in enumerate(zip(TASKS, (3, 1, 1), strict=True)):
        z[task][0, index] = 8.0 - place
    paths = TaxonomyPaths(TAXONOMY.tree)
    found = paths(z, dict.fromkeys(TASKS, 1.0))
    assert found.best.tolist() == [[1, 1, 1]] or found.best.tolist() == [[3, 2, 2]]
    assert found.by_task[TASKS[0]][0, 0] < 0.01
    scores = paths.scores(z, dict.fromkeys(TASKS, 1.0))[0]
    ends_at_genus = int(np.flatnonzero((paths.classes == [0, 2, 2]).all(axis=1))[0])
    log_p = [log_softmax(z[task])[0] for task in TASKS]
    share = 0.99 * np.exp(log_p[0][3]) / np.exp(log_p[0][1:]).sum() + 0.01 / 2
    assert scores[ends_at_genus] == pytest.approx(log_p[0][0] + np.log(share) + log_p[1][2] + log_p[2][2])
