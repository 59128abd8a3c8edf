"""What a phase may measure beyond its base sums: subsets, taxonomic distance, consistency, calibration, risk-coverage.

Everything but risk-coverage is a sum over rows, so it is exact under padding and any split of the data. Risk-coverage
ranks the single rows, whose `signed_confidence` is kept. Rows whose label is null have no true class and take no part
in distance, calibration and risk-coverage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.metrics.metric import (
    RISK_LEVELS,
    VAL,
    MetricInfo,
    MetricInputs,
    PhaseMetric,
    Sums,
    both,
    named,
    per_task,
    ratio,
)

#: names of the subsets by metadata state, in the order of the state's code
META_STATES = ("unmasked", "partial", "masked")
CALIBRATION_BINS = 15
#: most points of a risk-coverage curve that is plotted
RISK_POINTS = 1000
#: where the scores of single rows stand beside the sums: float32 [n, T], `signed_confidence` of every row
SCORES = "scores"


@dataclass(frozen=True)
class SubsetMetricWrapper(PhaseMetric):
    """Accuracy in the subsets of one kind: `subset/<kind>/<name>/count`, and `.../acc1_<task>` in percent of subsets
    with rows.

    Attributes:
      kind: what the subsets have in common, e.g. "habitat".
      names: the subsets. `MetricInputs.membership` says of every row which ones it is in: bool [B, S], or the position
        int32 [B], where a value outside 0..S-1 means none.
    """

    kind: str
    names: tuple[str, ...]

    def empty(self, tasks: Sequence[str]) -> Sums:
        return {
            f"subset/{self.kind}/count": jnp.zeros(len(self.names), jnp.int32),
            f"subset/{self.kind}/correct": jnp.zeros((len(self.names), len(tasks)), jnp.int32),
        }

    def update(self, inputs: MetricInputs) -> Sums:
        membership = inputs.membership[self.kind]
        if membership.ndim == 1:
            membership = membership[:, None] == jnp.arange(len(self.names), dtype=membership.dtype)[None, :]
        member = membership.astype(bool) & inputs.rows
        # a product of zeros and ones: exact in every matmul precision
        correct = jnp.einsum("bs,bt->st", member.astype(jnp.float32), inputs.right.astype(jnp.float32))
        return {
            f"subset/{self.kind}/count": member.sum(axis=0, dtype=jnp.int32),
            f"subset/{self.kind}/correct": correct.astype(jnp.int32),
        }

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        count, correct = (sums[f"subset/{self.kind}/{name}"] for name in ("count", "correct"))
        values: dict[str, Any] = {}
        for s, name in enumerate(self.names):
            values[f"subset/{self.kind}/{name}/count"] = int(count[s])
            values[f"subset/{self.kind}/{name}/acc1"] = ratio(correct[s], count[s], 100)
        return named(values, tasks)


@dataclass(frozen=True, eq=False)
class TaxonomyMetrics(PhaseMetric):
    """Whether the predicted classes are one branch of the taxonomy, and how far the wrong ones are from the label.

    Attributes:
      ancestors: per task, finest first, int32 [C_t, T - t]: ancestor d ranks up of each class, itself in column 0, -1
        where there is none.
    """

    infos: ClassVar = {
        "consistency_rate": MetricInfo(
            "consistent ranks",
            "rows whose predicted classes are one branch of the taxonomy / rows",
            "fraction",
            True,
            VAL,
        ),
        "taxonomic_distance": per_task(
            "mean distance of errors", "mean over wrong rows of the path from prediction to label", "edges", False, VAL
        ),
    }
    ancestors: tuple[np.ndarray, ...]

    def empty(self, tasks: Sequence[str]) -> Sums:
        return {
            "consistent": jnp.zeros((), jnp.int32),
            "distance": jnp.zeros((len(tasks), len(tasks) + 1), jnp.int32),
        }

    def update(self, inputs: MetricInputs) -> Sums:
        predicted = [predict(z) for z in inputs.logits.values()]
        agree = []
        for table, p, coarser in zip(self.ancestors, predicted, predicted[1:], strict=False):
            parent = jnp.asarray(table[:, 1])[p]
            agree.append((parent < 0) | (parent == coarser))  # a class without a parent contradicts nothing
        consistent = jnp.stack([inputs.valid, *agree], axis=1).all(axis=1)
        sums = {"consistent": consistent.sum(dtype=jnp.int32)}
        levels = [
            levels_to_common_ancestor(jnp.asarray(table), p, inputs.label[:, t])
            for t, (table, p) in enumerate(zip(self.ancestors, predicted, strict=True))
        ]
        distance = _histogram(jnp.stack(levels, axis=1), inputs.counted, len(self.ancestors) + 1)
        return sums | {"distance": distance}

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        errors = np.asarray(sums["distance"])[:, 1:]
        edges = 2 * (errors @ np.arange(1, 1 + errors.shape[1]))
        values = {
            "consistency_rate": ratio(sums["consistent"], sums["count"]),
            "taxonomic_distance": ratio(edges, errors.sum(axis=1)),
        }
        return named(values, tasks)

    def curves(self, sums: Mapping[str, np.ndarray], t: int) -> dict[str, Any]:
        """`distance`: {edges between label and prediction: rows}."""
        reachable = sums["distance"][t][: len(self.ancestors) - t + 1]
        return {"distance": {str(2 * up): int(rows) for up, rows in enumerate(reachable)}}


class Calibration(PhaseMetric):
    """Whether the probabilities are right: calibration in bins, and proper scores."""

    infos: ClassVar = {
        "error_rate": both("errors", "wrong rows / rows with a label", "fraction"),
        "ece": both("calibration error (ECE)", "Σ_bins rows_b / rows · |accuracy_b - mean confidence_b|, 15 bins", ""),
        "brier": both("Brier score", "mean over rows of Σ_c (p_c - [c is the label])²", ""),
        "nll": both("log loss", "mean over rows of -log p_label", "nats"),
        "perplexity": both("perplexity", "exp of the log loss", ""),
    }

    def empty(self, tasks: Sequence[str]) -> Sums:
        bins = (len(tasks), CALIBRATION_BINS)
        return {
            "calibration/count": jnp.zeros(bins, jnp.int32),
            "calibration/correct": jnp.zeros(bins, jnp.int32),
            "calibration/confidence": jnp.zeros(bins, jnp.float32),
            **dict.fromkeys(("nll", "brier"), jnp.zeros(len(tasks), jnp.float32)),
        }

    def update(self, inputs: MetricInputs) -> Sums:
        counted, right = inputs.counted, inputs.right
        scores = [_scores(z, inputs.label[:, t]) for t, z in enumerate(inputs.logits.values())]
        confidence, nll, brier = (jnp.stack(columns, axis=1) for columns in zip(*scores, strict=True))
        sums: Sums = {name: jnp.where(counted, x, 0.0).sum(axis=0) for name, x in (("nll", nll), ("brier", brier))}
        # the bins are (low, high], as in the source
        level = jnp.clip(jnp.ceil(confidence * CALIBRATION_BINS).astype(jnp.int32) - 1, 0, CALIBRATION_BINS - 1)
        sums["calibration/count"] = _histogram(level, counted, CALIBRATION_BINS)
        sums["calibration/correct"] = _histogram(level, counted & right, CALIBRATION_BINS)
        # float sums by comparison, not by scatter, whose order of addition is not fixed on a GPU
        inside = (level[:, :, None] == jnp.arange(CALIBRATION_BINS)[None, None, :]) & counted[:, :, None]
        sums["calibration/confidence"] = jnp.where(inside, confidence[:, :, None], 0.0).sum(axis=0)
        return sums

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        rows, right = (np.sum(sums[f"calibration/{name}"], axis=1) for name in ("count", "correct"))
        gap = np.asarray(sums["calibration/correct"], np.float64) - sums["calibration/confidence"]
        nll = ratio(sums["nll"], rows)
        with np.errstate(over="ignore"):  # of a run that diverges it is infinite
            perplexity = [None if x is None else float(np.exp(x)) for x in nll]
        values: dict[str, list[float | None]] = {
            "ece": ratio(np.abs(gap).sum(axis=1), rows),
            "nll": nll,
            "brier": ratio(sums["brier"], rows),
            "perplexity": perplexity,
            "error_rate": [None if x is None else 1 - x for x in ratio(right, rows)],
        }
        measured = {name: [x for x in of_tasks if x is not None] for name, of_tasks in values.items()}
        return named(values, tasks) | {name: float(np.mean(found)) for name, found in measured.items() if found}

    def curves(self, sums: Mapping[str, np.ndarray], t: int) -> dict[str, Any]:
        """`reliability`: [mean confidence, accuracy, rows] of every bin that holds rows."""
        count, correct = (np.asarray(sums[f"calibration/{name}"][t]) for name in ("count", "correct"))
        bins = np.flatnonzero(count)
        mean = np.asarray(sums["calibration/confidence"][t])[bins] / count[bins]
        return {"reliability": np.stack([mean, correct[bins] / count[bins], count[bins]], axis=1).tolist()}


class RiskCoverage(PhaseMetric):
    """How far confidence tells right from wrong. Ranks the single rows, whose scores stand beside the sums under
    `SCORES`; without them nothing is computed."""

    infos: ClassVar = {
        "aurc": per_task(
            "area under risk–coverage", "mean over k of the errors among the k most confident rows / k", "", False, VAL
        ),
        **{
            f"coverage_at_risk_{percent}": per_task(
                f"answered at ≤ {percent} % errors",
                f"largest share of rows, most confident first, of which at most {percent} % are wrong",
                "fraction",
                True,
                VAL,
            )
            for percent in RISK_LEVELS
        },
    }

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        values: dict[str, float] = {}
        for t, task in enumerate(tasks if SCORES in sums else ()):
            tied, wrong = ranked(sums[SCORES][:, t])
            if not len(tied):
                continue
            values[f"aurc_{task}"] = area_under_risk_coverage(tied, wrong)
            coverage, risk = risk_coverage(tied, wrong)
            for percent in RISK_LEVELS:
                accepted = coverage[risk <= percent / 100]
                values[f"coverage_at_risk_{percent}_{task}"] = float(accepted.max(initial=0.0))
        return values

    def curves(self, sums: Mapping[str, np.ndarray], t: int) -> dict[str, Any]:
        """`risk_coverage`: [coverage, share of errors among the covered], most confident first, at most `RISK_POINTS`
        evenly spread over the curve."""
        if SCORES not in sums:
            return {}
        points = np.stack(risk_coverage(*ranked(sums[SCORES][:, t])), axis=1)
        shown = np.linspace(0, len(points) - 1, min(len(points), RISK_POINTS)).round().astype(int)
        return {"risk_coverage": points[shown].tolist()}


@dataclass(frozen=True, eq=False)
class PhaseExtras:
    """Static choice of what is measured besides `phase.ALWAYS`; the default is risk-coverage alone.

    Attributes:
      subsets: kind of subset -> names of its subsets, e.g. {"taxa": ("birds",), "metadata": META_STATES}. A batch then
        brings the membership of each kind, see `SubsetMetricWrapper`.
      ancestors: of `TaxonomyMetrics`, which they turn on.
      confidence: turns on `Calibration`.
      custom: metrics of plugins.
      kinds: kinds of subsets of plugins and labels files, in the order of the columns of `subsets` in a batch.
    """

    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ancestors: tuple[np.ndarray, ...] = ()
    confidence: bool = False
    custom: tuple[PhaseMetric, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def subset_metrics(self) -> list[SubsetMetricWrapper]:
        return [SubsetMetricWrapper(kind, tuple(names)) for kind, names in self.subsets.items() if names]

    @property
    def metrics(self) -> tuple[PhaseMetric, ...]:
        """All of them, in the order of their sums."""
        chosen = [TaxonomyMetrics(self.ancestors)] * bool(self.ancestors) + [Calibration()] * self.confidence
        return (*self.subset_metrics, *chosen, RiskCoverage(), *self.custom)

    def curves(
        self, sums: Mapping[str, np.ndarray], tasks: Sequence[str], scores: np.ndarray | None = None
    ) -> dict[str, dict[str, Any]]:
        """Task -> what a plot needs, as JSON values, see `curves` of the metrics; arguments as of `phase.summarise`."""
        sums = sums if scores is None else {**sums, SCORES: scores}
        return {
            task: {name: curve for metric in self.metrics for name, curve in metric.curves(sums, t).items()}
            for t, task in enumerate(tasks)
        }

    def check(self, num_classes: Mapping[str, int], meta_columns: int, components: int) -> None:
        """Tries the metrics of plugins on abstract inputs; ValueError of what they raise or give."""
        rows, ints = 2, jnp.int32

        def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *shape), dtype)

        fields = {
            "logits": {task: array(jnp.float32, count) for task, count in num_classes.items()},
            "label": array(ints, len(num_classes)),
            **{name: array(ints) for name in ("row", "group")},
            **{name: array(jnp.float32) for name in ("weight", "loss_weighted")},
            "loss": array(jnp.float32, len(num_classes)),
            "meta": array(jnp.float32, meta_columns),
            "meta_valid": array(bool, components),
            "subsets": {kind: array(ints) for kind in self.kinds},
        }
        tasks = tuple(num_classes)
        for metric in self.custom:
            jax.eval_shape(lambda fields, metric=metric: metric.update(MetricInputs(**fields)), fields)
            metric.compute({name: np.ones(x.shape, x.dtype) for name, x in metric.empty(tasks).items()}, tasks)


NO_EXTRAS = PhaseExtras()


def predict(logits: jax.Array) -> jax.Array:
    """int32 [B], the best class of [B, C]; ties go to the lower index and NaN counts as largest."""
    # XLA's CPU code for argmax looks at one number at a time; two maxima take half of its time
    best = logits.max(axis=1, keepdims=True)
    index = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    return -jnp.where((logits == best) | jnp.isnan(logits), -index, -logits.shape[1]).max(axis=1)


def levels_to_common_ancestor(ancestors: jax.Array, one: jax.Array, other: jax.Array) -> jax.Array:
    """How many ranks up two classes of one task meet.

    Args:
      ancestors: int32 [C, R], see `PhaseExtras`.
      one, other: int32 [B].

    Returns:
      int32 [B]; 0: the same class. Classes without a common ancestor count as meeting above the coarsest rank, at R.
    """
    a, b = ancestors[one], ancestors[other]
    shared = (a == b) & (a >= 0)
    return jnp.where(shared.any(axis=1), jnp.argmax(shared, axis=1), ancestors.shape[1]).astype(jnp.int32)


def _histogram(bins: jax.Array, counted: jax.Array, size: int) -> jax.Array:
    """int32 [T, size] from int32 [B, T], counting where bool [B, T]."""

    def one(column: jax.Array, mask: jax.Array) -> jax.Array:
        return jnp.zeros(size, jnp.int32).at[column].add(mask.astype(jnp.int32))

    return jax.vmap(one, in_axes=(1, 1))(bins, counted)


def _scores(logits: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Confidence of the prediction, negative log likelihood in nats, Brier score: float32 [B] each."""
    shifted = logits.astype(jnp.float32)
    shifted = shifted - shifted.max(axis=1, keepdims=True)
    exponential = jnp.exp(shifted)
    z = exponential.sum(axis=1)
    log_p_label = jnp.take_along_axis(shifted, label[:, None], axis=1)[:, 0] - jnp.log(z)
    brier = (exponential * exponential).sum(axis=1) / (z * z) - 2 * jnp.exp(log_p_label) + 1
    confidence = 1 / z
    return jnp.where(jnp.isnan(confidence), 0.0, confidence), -log_p_label, brier


def signed_confidence(probability: jax.Array, right: jax.Array, counted: jax.Array) -> jax.Array:
    """What risk-coverage needs to know of single rows, in one number each.

    Args:
      probability: float32 [B, T], of the best class; NaN counts as 0.
      right: bool [B, T], the prediction is the label.
      counted: bool [B, T], the label is not null and the row no padding.

    Returns:
      float32 [B, T]: the probability, its sign set where the prediction is wrong (-0.0 for 0), 2 where not counted:
        no NaN, which `debug.nans` would stop at.
    """
    confidence = jnp.where(jnp.isnan(probability), 0.0, probability)
    return jnp.where(counted, jnp.where(right, confidence, -confidence), 2.0)


def ranked(score: np.ndarray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and errors at every distinct confidence of one task, most confident first: int64 each.

    Args:
      score: float32 [n], see `signed_confidence`.
    """
    score = score[score < 1.5]
    levels, position, count = np.unique(-np.abs(score), return_inverse=True, return_counts=True)
    return count, np.bincount(position[np.signbit(score)], minlength=len(levels))


def risk_coverage(count: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and share of errors among the covered rows, when level after level is accepted; both [levels]."""
    covered = np.cumsum(count)
    return covered / max(1, count.sum()), np.cumsum(errors) / np.maximum(covered, 1)


def area_under_risk_coverage(count: np.ndarray, errors: np.ndarray) -> float:
    """Mean over k of the share of errors among the k most confident rows (Geifman & El-Yaniv 2017; 2019 for the area).

    Rows of one level are tied, in random order: the j-th of a level of n rows and e errors, after N rows with E errors,
    gives (E + e j / n) / (N + j); the sum over j is (E - e N / n)(H[N + n] - H[N]) + e with harmonic numbers H.
    """
    total = int(count.sum())
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, total + 1))])
    after = np.cumsum(count)
    before, errors_before = after - count, np.cumsum(errors) - errors
    inside = (errors_before - errors * before / count) * (harmonic[after] - harmonic[before]) + errors
    return float(inside.sum() / total)
