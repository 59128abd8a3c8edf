"""Distance, consistency, calibration and risk-coverage, recomputed in numpy row by row."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.metrics.extras import (
    CALIBRATION_BINS,
    RISK_POINTS,
    SCORES,
    PhaseExtras,
    RiskCoverage,
    area_under_risk_coverage,
    predict,
    ranked,
    risk_coverage,
    signed_confidence,
)
from linnaeus_jax.metrics.metric import rank_of_label
from linnaeus_jax.metrics.phase import batch_sums, summarise
from linnaeus_jax.taxonomy.tree import TaxonomyTree

TASKS, SIZES, ROWS = ("taxa_L10", "taxa_L20", "taxa_L30"), (7, 4, 3), 24
#: species 6 is an orphan; genus 3 has another root than 1 and 2
TREE = TaxonomyTree(
    TASKS,
    dict(zip(TASKS, SIZES, strict=True)),
    {"taxa_L10": np.array([-1, 1, 1, 2, 3, 3, -1]), "taxa_L20": np.array([-1, 1, 1, 2])},
)
EXTRAS = PhaseExtras(ancestors=tuple(TREE.anc[task] for task in TASKS), confidence=True)


@jax.jit
def sums_of(logits, label, weight):
    loss = label.astype("float32")
    return batch_sums(logits, label, weight, loss, loss[:, 0], null_possible=True, extras=EXTRAS)


def scores_of(logits, label, weight):
    """float32 [B, T], as an evaluation makes them."""
    best = np.stack([np.asarray(jax.nn.softmax(logits[task])).max(axis=1) for task in TASKS], axis=1)
    right = np.stack([logits[task].argmax(axis=1) for task in TASKS], axis=1) == label
    return np.asarray(signed_confidence(jnp.asarray(best), jnp.asarray(right), (weight > 0)[:, None] & (label != 0)))


def make_batch(seed: int):
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.3, 2.0, 8.0])
    logits = {task: (scale * rng.normal(size=(ROWS, c))).astype(np.float32) for task, c in zip(TASKS, SIZES)}
    label = np.stack([rng.integers(0, c, ROWS) for c in SIZES], axis=1).astype(np.int32)
    weight = (rng.random(ROWS) < rng.choice([0.5, 1.0])).astype(np.float32)
    return logits, label, weight


def tree_distance(t: int, a: int, b: int) -> int:
    """Twice the levels up to the common ancestor; without one, as if all met above the coarsest rank."""
    pairs = zip(TREE.anc[TASKS[t]][a], TREE.anc[TASKS[t]][b], strict=True)
    return 2 * next((level for level, (x, y) in enumerate(pairs) if x == y >= 0), len(TASKS) - t)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_extras_equal_a_numpy_recomputation(seed):
    logits, label, weight = make_batch(seed)
    scores = scores_of(logits, label, weight)
    values = summarise(jax.device_get(sums_of(logits, label, weight)), TASKS, EXTRAS, scores)
    rows = np.flatnonzero(weight)
    best = np.stack([logits[task].argmax(axis=1) for task in TASKS], axis=1)

    parents = [TREE.parent[task] for task in TASKS]
    fits = [
        all(parents[t][best[i, t]] in (-1, best[i, t + 1]) for t in range(len(TASKS) - 1))  # -1: contradicts nothing
        for i in rows
    ]
    if len(rows):
        assert values["consistency_rate"] == pytest.approx(np.mean(fits), rel=1e-12)
    for t, task in enumerate(TASKS):
        known = rows[label[rows, t] != 0]
        wrong = [i for i in known if best[i, t] != label[i, t]]
        if wrong:
            distance = np.mean([tree_distance(t, best[i, t], label[i, t]) for i in wrong])
            assert values[f"taxonomic_distance_{task}"] == pytest.approx(distance, rel=1e-12)
        else:
            assert f"taxonomic_distance_{task}" not in values
        if not len(known):
            assert f"ece_{task}" not in values
            continue

        z = logits[task][known].astype(np.float64)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        own = p[np.arange(len(known)), label[known, t]]
        confidence, correct = p.max(axis=1), best[known, t] == label[known, t]
        level = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
        gaps = [abs(correct[level == b].sum() - confidence[level == b].sum()) for b in range(CALIBRATION_BINS)]
        assert values[f"ece_{task}"] == pytest.approx(sum(gaps) / len(known), rel=1e-5, abs=1e-6)
        assert values[f"nll_{task}"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
        brier = ((p - np.eye(p.shape[1])[label[known, t]]) ** 2).sum(axis=1).mean()
        assert values[f"brier_{task}"] == pytest.approx(brier, rel=1e-5, abs=1e-6)
        assert values[f"error_rate_{task}"] == pytest.approx(1 - correct.mean(), abs=1e-12)
        assert values[f"error_rate_{task}"] == pytest.approx(1 - values[f"non_null/acc1_{task}"] / 100, abs=1e-12)

        # expected area over random orders of tied rows, from the definition
        sure = np.abs(scores[known, t])
        np.testing.assert_allclose(sure, confidence, rtol=1e-6)
        risk, errors, seen, accepted = 0.0, 0.0, 0, {1: 0, 5: 0, 10: 0}
        for level in sorted(set(sure), reverse=True):
            tied = ~correct[sure == level]
            for j in range(1, len(tied) + 1):
                risk += (errors + tied.mean() * j) / (seen + j)
            errors, seen = errors + tied.sum(), seen + len(tied)
            accepted = {r: seen if errors <= seen * r / 100 else old for r, old in accepted.items()}
        assert values[f"aurc_{task}"] == pytest.approx(risk / seen, rel=1e-9, abs=1e-12)
        for percent, covered in accepted.items():
            assert values[f"coverage_at_risk_{percent}_{task}"] == pytest.approx(covered / seen, rel=1e-12)
    measured = [values[f"ece_{task}"] for task in TASKS if f"ece_{task}" in values]
    assert values.get("ece", 0.0) == pytest.approx(np.mean(measured or [0.0]))


def test_area_of_untied_rows_is_the_mean_selective_risk():
    wrong = np.random.default_rng(0).random(50) < 0.3
    plain = np.mean(np.cumsum(wrong) / np.arange(1, 51))
    assert area_under_risk_coverage(np.ones(50, int), wrong.astype(int)) == pytest.approx(plain, rel=1e-12)
    coverage, risk = risk_coverage(np.ones(50, int), wrong.astype(int))
    assert coverage[-1] == 1.0
    assert risk[-1] == pytest.approx(wrong.mean())


def test_risk_coverage_knows_confidences_apart_that_differ_in_the_last_bit():
    """100 rows between 0.9995 and 0.9999, which one bin would hold together; the least confident ones are wrong."""
    confidence = np.linspace(0.9999, 0.9995, 100, dtype=np.float32)[:, None]

    def values(right):
        score = np.where(np.arange(100)[:, None] < right, confidence, -confidence)
        return RiskCoverage().compute({SCORES: score}, ("a",))

    assert values(99)["aurc_a"] == pytest.approx(0.01 / 100)
    assert values(99)["coverage_at_risk_1_a"] == 1.0  # the one error is 1 % of all
    assert values(98)["coverage_at_risk_1_a"] == pytest.approx(0.98)  # 1 error in 99 rows is more
    assert values(98)["coverage_at_risk_5_a"] == 1.0


def test_order_and_padding_of_the_rows_change_no_score():
    rng = np.random.default_rng(0)
    score = rng.choice([-0.5, 0.5, -0.0, 0.0, 0.25, np.nan], (500, 1)).astype(np.float32)

    def values_of(score):
        return RiskCoverage().compute({SCORES: score}, ("a",))

    values = values_of(score)
    assert len(values) == 4
    assert values == values_of(rng.permutation(score))
    assert values == values_of(np.concatenate([score, np.full((9, 1), np.nan, np.float32)]))
    count, errors = ranked(score[:, 0])
    assert count.tolist() == [(np.abs(score) == level).sum() for level in (0.5, 0.25, 0)]
    assert errors.tolist() == [((np.abs(score) == level) & np.signbit(score)).sum() for level in (0.5, 0.25, 0)]
    assert values_of(np.full((4, 1), np.nan)) == {}


def test_a_long_curve_is_thinned_between_its_ends():
    rng = np.random.default_rng(0)
    score = (rng.random((5000, 1)) * rng.choice([-1, 1], (5000, 1))).astype(np.float32)
    curve = PhaseExtras().curves({}, ("a",), score)["a"]["risk_coverage"]
    whole = np.stack(risk_coverage(*ranked(score[:, 0])), axis=1).tolist()
    assert len(curve) == RISK_POINTS
    assert (curve[0], curve[-1]) == (whole[0], whole[-1])
    assert all(point in whole for point in curve)


def test_the_best_class_is_that_of_argmax():
    logits = np.random.default_rng(0).integers(-3, 3, (60, 7)).astype(np.float32)  # full of ties
    logits[::5, 3] = logits[::7, 5] = np.nan
    logits[1] = -np.inf
    logits[2, 4] = logits[5, 1] = logits[7, 6] = np.inf
    for dtype in (jnp.float32, jnp.bfloat16):
        given = jnp.asarray(logits, dtype)
        best = jnp.argmax(given, axis=1)
        np.testing.assert_array_equal(predict(given), best)
        np.testing.assert_array_equal(rank_of_label(given, best), 0)


def test_null_predictions_are_consistent_only_from_the_fine_end():
    one_hot = [np.eye(c, dtype=np.float32) * 9 for c in SIZES]
    chains = {(4, 3, 2): True, (4, 3, 1): False, (0, 3, 2): True, (0, 0, 0): True, (4, 0, 0): False, (6, 0, 0): True}
    for chain, consistent in chains.items():
        rows = {task: np.tile(table[c], (ROWS, 1)) for task, table, c in zip(TASKS, one_hot, chain)}
        sums = sums_of(rows, np.ones((ROWS, 3), np.int32), np.ones(ROWS, np.float32))
        assert int(sums["consistent"]) == ROWS * consistent, chain


def test_non_finite_logits_count_as_unconfident():
    logits, label, weight = make_batch(1)
    logits["taxa_L10"][0], logits["taxa_L30"][:] = np.nan, 0.0
    label[0], weight[:] = 1, 1.0
    sums = jax.device_get(sums_of(logits, label, weight))
    assert np.flatnonzero(sums["calibration/count"][2]) == 4, "of a third, the upper end of its bin"
    assert sums["calibration/count"][0].sum() == sums["non_null"][0]
    best = np.stack([np.asarray(jax.nn.softmax(logits[task])).max(axis=1) for task in TASKS], axis=1)
    assert np.isnan(best[0, 0])
    score = signed_confidence(jnp.asarray(best), jnp.zeros((ROWS, 3), bool), jnp.asarray(label != 0))
    assert score[0, 0] == 0
    assert np.signbit(score[0, 0])


def test_of_a_run_that_diverges_the_perplexity_is_infinite():
    """exp(710) is beyond float64; that is no warning, and the other measures stay."""
    logits, label, weight = make_batch(1)
    label[:, 0], weight[:] = 1, 1.0
    logits["taxa_L10"][:] = np.where(np.arange(7) == 1, -2000.0, 0.0)
    values = summarise(jax.device_get(sums_of(logits, label, weight)), TASKS, EXTRAS, scores_of(logits, label, weight))
    assert values["perplexity_taxa_L10"] == values["perplexity"] == np.inf
    assert values["nll_taxa_L10"] == pytest.approx(2000 + np.log(6))
    assert np.isfinite(values["perplexity_taxa_L20"])


def test_curves_are_json_and_agree_with_the_numbers():
    logits, label, weight = make_batch(3)
    sums = jax.device_get(sums_of(logits, label, weight))
    scores = scores_of(logits, label, weight)
    values, curves = summarise(sums, TASKS, EXTRAS, scores), EXTRAS.curves(sums, TASKS, scores)
    assert json.loads(json.dumps(curves)) == curves
    for t, task in enumerate(TASKS):
        curve = curves[task]
        count = sum(n for _, _, n in curve["reliability"])
        assert count == sums["non_null"][t] == sum(curve["distance"].values())
        assert sum(n * abs(c - a) for c, a, n in curve["reliability"]) / count == pytest.approx(values[f"ece_{task}"])
        assert curve["risk_coverage"][-1][1] == pytest.approx(values[f"error_rate_{task}"])
        assert curve["distance"]["0"] == pytest.approx(count * values[f"non_null/acc1_{task}"] / 100)
        errors = count - curve["distance"]["0"]
        total = sum(int(edges) * n for edges, n in curve["distance"].items())
        assert total / errors == pytest.approx(values[f"taxonomic_distance_{task}"])


def test_values_of_as_many_rows_as_can_be_counted():
    """Nothing changes if every row comes equally often, until the counts of the device are full."""
    logits, label, weight = make_batch(5)
    sums, scores = jax.device_get(sums_of(logits, label, weight)), scores_of(logits, label, weight)
    often = (2**31 - 1) // max(int(x.max()) for x in jax.tree.leaves(sums) if x.dtype == np.int32)
    assert often > 10**7
    many = jax.tree.map(lambda x: x * x.dtype.type(often), sums)
    values = summarise(sums, TASKS, EXTRAS, scores)
    assert summarise(many, TASKS, EXTRAS, scores) == pytest.approx(values, rel=1e-5)
    assert {"taxonomic_distance_taxa_L10", "consistency_rate", "ece_taxa_L10"} <= set(values)
