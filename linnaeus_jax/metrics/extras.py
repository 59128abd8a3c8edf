"""What a phase may measure beyond its base sums: subsets, taxonomic distance, consistency, calibration, risk-coverage.

Everything but risk-coverage is a sum over rows, so it is exact under padding and any split of the data. Risk-coverage
ranks the single rows, whose `signed_confidence` is kept. Rows whose label is null have no true class and take no part
in distance, calibration and risk-coverage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.metrics.custom import CustomMetric, MetricInputs
from linnaeus_jax.metrics.table import RISK_LEVELS
from linnaeus_jax.mistakes import InputError

Sums = dict[str, jax.Array]

#: names of the subsets by metadata state, in the order of the state's code
META_STATES = ("unmasked", "partial", "masked")
CALIBRATION_BINS = 15
#: most points of a risk-coverage curve that is plotted
RISK_POINTS = 1000


@dataclass(frozen=True)
class SubsetMetricWrapper:
    """Accuracy in the subsets of one kind; its state is a dict of sums, which merge by addition.

    Attributes:
      kind: what the subsets have in common, e.g. "habitat".
      names: the subsets.
    """

    kind: str
    names: tuple[str, ...]

    def zeros(self, tasks: Sequence[str]) -> Sums:
        """The sums of no row."""
        return {
            f"subset/{self.kind}/count": jnp.zeros(len(self.names), jnp.int32),
            f"subset/{self.kind}/correct": jnp.zeros((len(self.names), len(tasks)), jnp.int32),
        }

    def sums(self, membership: jax.Array, right: jax.Array, valid: jax.Array) -> Sums:
        """The sums of one batch.

        Args:
          membership: bool [B, S], or the position int32 [B], where a value outside 0..S-1 means none.
          right: bool [B, T], the prediction is the label.
          valid: bool [B], the row is no padding.
        """
        if membership.ndim == 1:
            membership = membership[:, None] == jnp.arange(len(self.names), dtype=membership.dtype)[None, :]
        member = membership.astype(bool) & valid[:, None]
        # a product of zeros and ones: exact in every matmul precision
        correct = jnp.einsum("bs,bt->st", member.astype(jnp.float32), right.astype(jnp.float32))
        return {
            f"subset/{self.kind}/count": member.sum(axis=0, dtype=jnp.int32),
            f"subset/{self.kind}/correct": correct.astype(jnp.int32),
        }

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        """`subset/<kind>/<name>/count`, and `.../acc1_<task>` in percent of subsets with rows."""
        values: dict[str, float] = {}
        for s, name in enumerate(self.names):
            rows = int(sums[f"subset/{self.kind}/count"][s])
            values[f"subset/{self.kind}/{name}/count"] = rows
            for t, task in enumerate(tasks if rows else ()):
                correct = float(sums[f"subset/{self.kind}/correct"][s][t])
                values[f"subset/{self.kind}/{name}/acc1_{task}"] = 100 * correct / rows
        return values


@dataclass(frozen=True, eq=False)
class PhaseExtras:
    """Static choice of what is measured; the default measures nothing more than the base sums.

    Attributes:
      subsets: kind of subset -> names of its subsets, e.g. {"taxa": ("birds",), "metadata": META_STATES}. A batch then
        brings the membership of each kind, see `SubsetMetricWrapper.sums`.
      ancestors: per task, finest first, int32 [C_t, T - t]: ancestor d ranks up of each class, itself in column 0, -1
        where there is none. Turns on taxonomic distance and consistency.
      confidence: calibration, proper scores and risk-coverage.
      custom: metrics of plugins.
      kinds: kinds of subsets of plugins and labels files, in the order of the columns of `subsets` in a batch.
    """

    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ancestors: tuple[np.ndarray, ...] = ()
    confidence: bool = False
    custom: tuple[CustomMetric, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def subset_metrics(self) -> list[SubsetMetricWrapper]:
        return [SubsetMetricWrapper(kind, tuple(names)) for kind, names in self.subsets.items() if names]

    def zeros(self, tasks: Sequence[str]) -> Sums:
        """The sums of no row."""
        count = len(tasks)
        sums: Sums = {}
        for subset_metric in self.subset_metrics:
            sums |= subset_metric.zeros(tasks)
        if self.ancestors:
            sums["consistent"] = jnp.zeros((), jnp.int32)
            sums["distance"] = jnp.zeros((count, count + 1), jnp.int32)
        if self.confidence:
            sums["calibration/count"] = jnp.zeros((count, CALIBRATION_BINS), jnp.int32)
            sums["calibration/correct"] = jnp.zeros((count, CALIBRATION_BINS), jnp.int32)
            sums["calibration/confidence"] = jnp.zeros((count, CALIBRATION_BINS), jnp.float32)
            sums["nll"] = sums["brier"] = jnp.zeros(count, jnp.float32)
        for metric in self.custom:
            sums[f"custom/{metric.name}"] = jnp.zeros(2, jnp.float32)
        return sums

    def sums(
        self,
        logits: Mapping[str, jax.Array],
        label: jax.Array,
        weight: jax.Array,
        right: jax.Array,
        labelled: jax.Array,
        membership: Mapping[str, jax.Array],
        columns: Mapping[str, jax.Array] | None = None,
    ) -> Sums:
        """The sums of one batch.

        Args:
          logits: task -> float32 [B, C_t], in task order.
          label: int32 [B, T].
          weight: float32 [B], 0 for padding.
          right: bool [B, T], the prediction is the label.
          labelled: bool [B, T], the label is not null.
          membership: kind of subset -> bool [B, S] or int32 [B]; kinds that are not measured are ignored.
          columns: other columns of the batch: `subsets` int32 [B, len(kinds)] where there are `kinds`, and for custom
            metrics `row`, `group`, `meta` and `meta_valid`, see `MetricInputs`.
        """
        valid, sums = weight > 0, Sums()
        plugins = {kind: columns["subsets"][:, i] for i, kind in enumerate(self.kinds)} if columns else {}
        membership = {**membership, **plugins}
        for subset_metric in self.subset_metrics:
            sums |= subset_metric.sums(membership[subset_metric.kind], right, valid)
        counted = valid[:, None] & labelled
        if self.ancestors:
            predicted = [predict(z) for z in logits.values()]
            agree = []
            for table, p, coarser in zip(self.ancestors, predicted, predicted[1:], strict=False):
                parent = jnp.asarray(table[:, 1])[p]
                agree.append((parent < 0) | (parent == coarser))  # a class without a parent contradicts nothing
            consistent = jnp.stack([valid, *agree], axis=1).all(axis=1)
            sums["consistent"] = consistent.sum(dtype=jnp.int32)
            levels = [
                levels_to_common_ancestor(jnp.asarray(table), p, label[:, t])
                for t, (table, p) in enumerate(zip(self.ancestors, predicted, strict=True))
            ]
            sums["distance"] = _histogram(jnp.stack(levels, axis=1), counted, len(self.ancestors) + 1)
        if self.confidence:
            sums |= _confidence_sums(logits, label, right, counted)
        if self.custom:
            given = {name: columns[name] for name in ("row", "group", "meta", "meta_valid")} if columns else {}
            inputs = MetricInputs(logits, label, weight, subsets=plugins, **given)
            for metric in self.custom:
                sums[f"custom/{metric.name}"] = custom_sums(metric, inputs)
        return sums

    def check(self, num_classes: Mapping[str, int], meta_columns: int, components: int) -> None:
        """Tries the metrics of plugins on abstract inputs; ValueError as of `custom_sums`."""
        rows, ints = 2, jnp.int32

        def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *shape), dtype)

        fields = {
            "logits": {task: array(jnp.float32, count) for task, count in num_classes.items()},
            "label": array(ints, len(num_classes)),
            **{name: array(ints) for name in ("row", "group")},
            "weight": array(jnp.float32),
            "meta": array(jnp.float32, meta_columns),
            "meta_valid": array(bool, components),
            "subsets": {kind: array(ints) for kind in self.kinds},
        }
        for metric in self.custom:
            jax.eval_shape(lambda fields, metric=metric: custom_sums(metric, MetricInputs(**fields)), fields)

    def summarise(
        self, sums: Mapping[str, np.ndarray], tasks: Sequence[str], scores: np.ndarray | None = None
    ) -> dict[str, float]:
        """Metric name -> value; a metric without any sample is absent.

        Accuracies of subsets are in percent, distances in edges of the tree, everything else is a fraction or nats.

        Args:
          scores: float32 [n, T], `signed_confidence` of every row, in any order; None: no risk-coverage.
        """
        values: dict[str, float] = {}
        for subset_metric in self.subset_metrics:
            values |= subset_metric.compute(sums, tasks)
        if self.ancestors and sums["count"]:
            values["consistency_rate"] = float(sums["consistent"]) / float(sums["count"])
        for t, task in enumerate(tasks if self.ancestors else ()):
            errors = np.asarray(sums["distance"][t], np.int64)[1:]
            if errors.sum():
                values[f"taxonomic_distance_{task}"] = float(
                    2 * (errors @ np.arange(1, 1 + len(errors))) / errors.sum()
                )
        if self.confidence:
            values |= _summarise_confidence(sums, tasks)
        for t, task in enumerate(tasks if scores is not None else ()):
            tied, wrong = ranked(scores[:, t])  # type: ignore[index]
            if not len(tied):
                continue
            values[f"aurc_{task}"] = area_under_risk_coverage(tied, wrong)
            coverage, risk = risk_coverage(tied, wrong)
            for percent in RISK_LEVELS:
                accepted = coverage[risk <= percent / 100]
                values[f"coverage_at_risk_{percent}_{task}"] = float(accepted.max(initial=0.0))
        for metric in self.custom:
            total, count = (float(x) for x in sums[f"custom/{metric.name}"])
            if count:
                values[metric.name] = total / count
        return values

    def curves(
        self, sums: Mapping[str, np.ndarray], tasks: Sequence[str], scores: np.ndarray | None = None
    ) -> dict[str, dict[str, Any]]:
        """Task -> what a plot needs, as JSON values; arguments as of `summarise`.

        `reliability`: [mean confidence, accuracy, rows] of every bin that holds rows; `risk_coverage`: [coverage, share
        of errors among the covered], most confident first, at most `RISK_POINTS` evenly spread over the curve;
        `distance`: {edges between label and prediction: rows}.
        """
        curves: dict[str, dict[str, Any]] = {task: {} for task in tasks}
        for t, task in enumerate(tasks):
            if self.confidence:
                count, correct = (np.asarray(sums[f"calibration/{name}"][t]) for name in ("count", "correct"))
                bins = np.flatnonzero(count)
                mean = np.asarray(sums["calibration/confidence"][t])[bins] / count[bins]
                curves[task]["reliability"] = np.stack(
                    [mean, correct[bins] / count[bins], count[bins]], axis=1
                ).tolist()
            if scores is not None:
                points = np.stack(risk_coverage(*ranked(scores[:, t])), axis=1)
                shown = np.linspace(0, len(points) - 1, min(len(points), RISK_POINTS)).round().astype(int)
                curves[task]["risk_coverage"] = points[shown].tolist()
            if self.ancestors:
                reachable = sums["distance"][t][: len(tasks) - t + 1]
                curves[task]["distance"] = {str(2 * up): int(rows) for up, rows in enumerate(reachable)}
        return curves


NO_EXTRAS = PhaseExtras()


def custom_sums(metric: CustomMetric, inputs: MetricInputs) -> jax.Array:
    """float32 [2], sum and count that a metric of a plugin gives for one batch.

    Raises:
      ValueError: the function fails, or returns something else.
    """
    try:
        total, count = (jnp.asarray(x, jnp.float32).reshape(()) for x in metric.update_fn(inputs))
    except Exception as error:  # the function is the user's: whatever it raises is reported under its name
        raise InputError(
            f"custom metric {metric.name!r} fails with {type(error).__name__}: {error}; its function takes "
            "a MetricInputs and returns (sum, count), two scalars"
        ) from error
    return jnp.stack([total, count])


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


def _confidence_sums(logits: Mapping[str, jax.Array], label: jax.Array, right: jax.Array, counted: jax.Array) -> Sums:
    scores = [_scores(z, label[:, t]) for t, z in enumerate(logits.values())]
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


def _summarise_confidence(sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for t, task in enumerate(tasks):
        total = float(np.sum(sums["calibration/count"][t]))
        if not total:
            continue
        gap = np.asarray(sums["calibration/correct"][t], np.float64) - sums["calibration/confidence"][t]
        values[f"ece_{task}"] = float(np.abs(gap).sum()) / total
        values[f"nll_{task}"] = float(sums["nll"][t]) / total
        values[f"brier_{task}"] = float(sums["brier"][t]) / total
        values[f"perplexity_{task}"] = float(np.exp(values[f"nll_{task}"]))
        values[f"error_rate_{task}"] = 1 - float(np.sum(sums["calibration/correct"][t])) / total
    for name in ("ece", "nll", "brier", "perplexity", "error_rate"):
        measured = [values[f"{name}_{task}"] for task in tasks if f"{name}_{task}" in values]
        if measured:
            values[name] = float(np.mean(measured))
    return values


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


def ranked(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
