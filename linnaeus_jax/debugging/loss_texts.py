"""What the debug flags of losses, targets and GradNorm say, at their points of a run; see `flag_texts`."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.debugging.flag_reports import FlagReports
from linnaeus_jax.debugging.flag_texts import compiled_lines
from linnaeus_jax.debugging.flags import Text, dump_lines, fact_lines, size_text, table
from linnaeus_jax.step.program import Program

_SAMPLES = 5
#: classes whose distances and smoothing to all others are looked at; of all, that is a matrix of classes x classes
_CLASSES = 200
#: class index -> what people read for it
ClassName = Callable[[int], str]


def taxonomy_lines(
    task: str, distance: np.ndarray, smoothing: np.ndarray, roots: Sequence[str], name: ClassName
) -> list[str]:
    """Roots, distances and smoothing rows of a task (for DEBUG.LOSS.TAXONOMY_SMOOTHING).

    Args:
      distance: float [R, C], edges from the first R classes to all, inf without a common ancestor.
      smoothing: float [R, C], the smoothed targets of these classes.
      roots: names of the root classes (metaclades) of the tree.
      name: what people read for a class.
    """
    finite = distance[np.isfinite(distance) & (distance > 0)]
    kinds, counts = np.unique(finite, return_counts=True)
    total = smoothing.sum(axis=1)
    spread = ", ".join(f"{kind:g}: {count}" for kind, count in zip(kinds, counts, strict=True))
    lines = [
        f"{task}: {len(roots)} roots: {', '.join(roots[:20])}{' …' if len(roots) > 20 else ''}",
        f"{task}: of {len(distance)} of {distance.shape[1]} classes, distances (edges: pairs) {spread or 'none'}; "
        f"unrelated pairs {int(np.isinf(distance).sum())}",
        f"{task}: {len(smoothing)} rows sum to {total.min():.6f} … {total.max():.6f}"
        + ("" if np.allclose(total, 1.0, atol=1e-4) else "  PROBLEM: rows must sum to 1"),
    ]
    for index, row in enumerate(smoothing[:_SAMPLES]):
        best = np.argsort(-row, kind="stable")[:_SAMPLES].tolist()
        lines.append(f"  {name(index)}: " + ", ".join(f"{name(c)}={row[c]:.4g}" for c in best))
    return lines


def sample_loss_lines(
    task: str, labels: np.ndarray, predictions: np.ndarray, losses: np.ndarray, name: ClassName
) -> list[str]:
    """Label, prediction and loss of the first samples (sub FORWARD of DEBUG.LOSS.TAXONOMY_SMOOTHING); arrays [B]."""
    samples = list(zip(labels.tolist(), predictions.tolist(), losses.tolist(), strict=True))[: 2 * _SAMPLES]
    shown = [(name(label), name(predicted), loss) for label, predicted, loss in samples]
    return table(f"{task}: mean loss {losses.mean():.4f}", ("label", "prediction", "loss"), shown)


def null_input_lines(labels: np.ndarray, tasks: Sequence[str]) -> list[str]:
    """Targets as they enter the masking (sub INPUT of DEBUG.LOSS.NULL_MASKING); labels int [N, T]."""
    rows = [
        (task, int(column.min()), int(column.max()), len(np.unique(column)), int((column == 0).sum()))
        for task, column in zip(tasks, labels.T, strict=True)
    ]
    title = f"targets {labels.dtype}{list(labels.shape)}, class index, 0 = null"
    return table(title, ("task", "lowest", "highest", "distinct", "nulls"), rows)


def null_internal_lines(null: np.ndarray, loss_mask: np.ndarray, tasks: Sequence[str]) -> list[str]:
    """Null detection and mask, per task and for the first samples (sub INTERNAL); null, loss_mask bool [N, T]."""
    lines = [
        f"{task}: {int(null[:, t].sum())} null of {len(null)}, {int((null[:, t] & loss_mask[:, t]).sum())} of them kept"
        for t, task in enumerate(tasks)
    ]
    marks = np.where(
        null, np.where(loss_mask, "null kept", "null masked"), np.where(loss_mask, "label", "PROBLEM: label masked")
    )
    return [
        *lines,
        *table("first samples:", ("sample", *tasks), ((i, *row) for i, row in enumerate(marks[:_SAMPLES]))),
    ]


def null_summary_lines(
    total: Sequence[int],
    included: Sequence[int],
    samples: int,
    tasks: Sequence[str],
    *,
    probability: float,
    phase1: bool,
) -> list[str]:
    """Totals per task, probability and suspected issues (sub SUMMARY of DEBUG.LOSS.NULL_MASKING).

    Args:
      total, included: null labels, and those of them in the loss, per task.
      samples: rows that they are counted over.
      probability: scheduled share of null labels to keep.
      phase1: null labels never train.
    """
    rows, issues = [], []
    for task, nulls, kept in zip(tasks, total, included, strict=True):
        rows.append((task, nulls, kept, f"{100 * kept / nulls:.1f}" if nulls else "-"))
        if kept > nulls or (kept and (phase1 or probability == 0)):
            issues.append(f"{task}: {kept} null labels kept although none should be")
        if kept < nulls and probability >= 1 and not phase1:
            issues.append(f"{task}: {nulls - kept} null labels masked although all should be kept")
    title = f"probability {probability:.4f}, phase 1 {'on' if phase1 else 'off'}, {samples} samples"
    return [
        *table(title, ("task", "nulls", "kept", "percent"), rows),
        *(f"suspected issue: {issue}" for issue in issues or ["none"]),
    ]


def null_data_lines(shares: Mapping[str, float]) -> list[str]:
    """Null labels of the data, and what is suspicious about them (sub SUMMARY of DEBUG.LOSS.NULL_MASKING).

    Args:
      shares: task -> share of null labels among the training rows, 0 ... 1.
    """
    issues = [f"{task}: every label is null; the task learns nothing but null" for task, x in shares.items() if x == 1]
    if not any(shares.values()):
        issues.append("no null label at all: is class 0 the null class of these data?")
    percent = {task: f"{100 * share:.2f} %" for task, share in shares.items()}
    return [
        *fact_lines("null labels of the training rows:", percent),
        *(f"suspected issue: {issue}" for issue in issues or ["none"]),
    ]


def class_weight_lines(
    task: str,
    labels: np.ndarray,
    partner_labels: np.ndarray,
    lam: np.ndarray,
    weights: np.ndarray,
    losses: np.ndarray,
    counted: np.ndarray,
    trained: float,
    name: ClassName,
) -> list[str]:
    """Weights of the classes in a micro-batch and the loss before and after (for DEBUG.LOSS.CLASS_WEIGHTING).

    Args:
      labels, partner_labels: int [B], of the rows and of their mixing partners.
      lam: float [B], weight of the row's label.
      weights: float [C].
      losses: float [B], without weights.
      counted: bool [B], the row counts in the task's loss: no padding, and no masked null.
      trained: the task's loss over the whole update, as it is trained.
      name: what people read for a class.
    """
    present, counts = np.unique(labels[counted], return_counts=True)
    rows = [(name(int(c)), int(n), float(weights[c])) for c, n in zip(present, counts, strict=True)]
    factor = lam * weights[labels] + (1 - lam) * weights[partner_labels]
    number = max(int(counted.sum()), 1)
    before, after = losses[counted].sum() / number, (losses * factor)[counted].sum() / number
    title = (
        f"{task}: the update trains {trained:.4f}; first micro-batch, {counted.sum()} of {len(labels)} rows count: "
        f"mean loss {before:.4f}, weighted {after:.4f}"
    )
    return table(title, ("class", "samples", "weight"), rows)


def gradnorm_lines(tasks: Sequence[str], metrics: Mapping[str, Sequence[float]]) -> list[str]:
    """Norms, targets, ratios, weights per task (for DEBUG.LOSS.GRADNORM_METRICS); metrics: name -> one per task."""
    rows = [(task, *(float(values[t]) for values in metrics.values())) for t, task in enumerate(tasks)]
    return table("GradNorm:", ("task", *metrics), rows)


def device_memory(top: int = 5) -> dict[str, Any]:
    """Memory of the first local device and the shapes that take most of it.

    Returns:
      `stats`: numbers of the allocator, or None where the backend has none (CPU); `live_bytes`: of all live arrays;
      `shapes`: the `top` largest [total bytes, count, dtype, shape].
    """
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = collections.defaultdict(list)
    for array in jax.live_arrays():
        groups[str(array.dtype), tuple(array.shape)].append(array.nbytes)
    shapes = sorted(((sum(sizes), len(sizes), *key) for key, sizes in groups.items()), key=lambda row: -row[0])
    return {
        "stats": jax.local_devices()[0].memory_stats(),
        "live_bytes": sum(row[0] for row in shapes),
        "shapes": [list(row) for row in shapes[:top]],
    }


def memory_lines(stage: str, memory: Mapping[str, Any]) -> list[str]:
    """`device_memory` at a stage of a GradNorm measurement (for DEBUG.LOSS.GRADNORM_MEMORY)."""
    stats = memory["stats"]
    lines = [f"{stage}: live arrays {size_text(memory['live_bytes'])}"]
    if stats is None:
        lines.append("the backend reports no allocator statistics (CPU)")
    else:
        keys = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size")
        lines.append(", ".join(f"{key} {size_text(stats[key])}" for key in keys if key in stats))
    shapes = [(size_text(size), count, dtype, tuple(shape)) for size, count, dtype, shape in memory["shapes"]]
    return [*lines, *table("largest:", ("bytes", "arrays", "dtype", "shape"), shapes)]


def _loss_facts(program: Program) -> dict[str, Any]:
    weighted = program.objective.class_weights is not None
    criteria = program.objective.criteria.items()
    return {task: {"criterion": criterion.name, "class weights": weighted} for task, criterion in criteria}


def _taxonomy_lines(program: Program, dataset: Dataset) -> Iterator[list[str]]:
    """Of every smoothed task."""
    top = dataset.tasks[-1]
    roots = [f"{top} {dataset.class_name(top, index)}" for index in dataset.tree.top_classes()]
    for task, criterion in program.objective.criteria.items():
        if criterion.smoothing is not None:
            name = functools.partial(dataset.class_name, task)
            matrices = criterion.smoothing.distance_matrix(_CLASSES), criterion.smoothing.dense_matrix(_CLASSES)
            yield [f"{task}:", *taxonomy_lines(task, *matrices, roots, name)]


# ---- targets and losses of the first micro-batch, and GradNorm


def _real(values: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Without padding."""
    return values[name][values["weight"] > 0]


def _null_internal(reports: FlagReports, values: Mapping[str, np.ndarray]) -> list[str]:
    return null_internal_lines(_real(values, "null"), _real(values, "loss_mask"), reports.tasks)


def _null_summary(reports: FlagReports, values: Mapping[str, np.ndarray]) -> list[str]:
    null, phase1 = _real(values, "null"), reports.facts.program.objective.null_masking == "always"
    kept = (null & _real(values, "loss_mask")).sum(0).tolist()
    probability = float(values["null_probability"])
    return null_summary_lines(
        null.sum(0).tolist(), kept, len(null), reports.tasks, probability=probability, phase1=phase1
    )


def _null_shares(reports: FlagReports) -> list[str]:
    percent = reports.facts.dataset.task_nulls_density["train"]
    return null_data_lines({task: value / 100 for task, value in percent.items()})


def _class_weights(reports: FlagReports, values: Mapping[str, np.ndarray]) -> Iterator[list[str]]:
    names = ("label", "partner_label", "lam", "sample_losses", "loss_mask")
    label, partner, lam, losses, counted = (_real(values, name) for name in names)
    known = reports.facts.program.objective.class_weights or {}
    for t, task in enumerate(reports.tasks):
        weights = known.get(task, np.ones(int(max(label[:, t].max(), partner[:, t].max())) + 1, np.float32))
        arrays = (label[:, t], partner[:, t], lam, weights, losses[:, t], counted[:, t])
        name = functools.partial(reports.facts.dataset.class_name, task)
        yield class_weight_lines(task, *arrays, float(values["task_losses"][t]), name)


def _sample_losses(reports: FlagReports, values: Mapping[str, np.ndarray]) -> list[str]:
    preview, task = values["preview"], reports.tasks[0]
    shown = preview[(values["weight"] > 0)[: len(preview)], 0]
    label, losses = (_real(values, name)[: len(shown), 0] for name in ("label", "sample_losses"))
    return sample_loss_lines(task, label, shown, losses, functools.partial(reports.facts.dataset.class_name, task))


def _weighted(row: Mapping[str, Any]) -> bool:
    """Whether GradNorm has measured in the update of a row of the training log."""
    return any(name.startswith("gradnorm/weight/") for name in row)


def _gradnorm(reports: FlagReports, row: Mapping[str, Any], step: int) -> Iterator[list[str]]:
    if _weighted(row):
        kinds = [name.split("/")[1] for name in row if name.startswith("gradnorm/") and name.count("/") == 2]
        values = {kind: [row[f"gradnorm/{kind}/{task}"] for task in reports.tasks] for kind in dict.fromkeys(kinds)}
        yield [f"step {step}", *gradnorm_lines(reports.tasks, values)]


def _gradnorm_row(_: FlagReports, row: Mapping[str, Any], step: int) -> Iterator[list[str]]:
    if _weighted(row):
        yield dump_lines(f"row of step {step}", dict(row))


def _memory_before(_: FlagReports, step: int, step_name: str) -> Iterator[list[str]]:
    if step_name == "gradnorm":
        yield memory_lines(f"before GradNorm update {step}", device_memory())


def _memory_after(reports: FlagReports, row: Mapping[str, Any], step: int) -> Iterator[list[str] | str]:
    """And once per run, what of the device's memory belongs to what."""
    if _weighted(row):
        yield memory_lines(f"after GradNorm update {step - 1}", device_memory())
        path = reports.memory_profiles / f"gradnorm_memory_{step}.prof"
        if not any(reports.memory_profiles.glob("gradnorm_memory_*.prof")):
            path.parent.mkdir(parents=True, exist_ok=True)
            jax.profiler.save_device_memory_profile(str(path))
            yield f"device memory profile for pprof: {path}"


TEXTS = (
    Text("opened", "loss.null_masking", _null_shares, "SUMMARY"),
    Text("opened", "verbose_debug", lambda it: dump_lines("losses", _loss_facts(it.facts.program))),
    Text("opened", "loss.taxonomy_smoothing", lambda it: _taxonomy_lines(it.facts.program, it.facts.dataset)),
    Text("compiled", "loss.gradnorm_memory", lambda _, steps: (
         map(compiled_lines, steps.values()) if "gradnorm" in steps else iter(()))),
    Text("before_update", "loss.gradnorm_memory", _memory_before),
    Text("log_point", "loss.gradnorm_metrics", _gradnorm),
    Text("log_point", "loss.verbose_gradnorm_logging", _gradnorm_row),
    Text("log_point", "loss.gradnorm_memory", _memory_after),
    Text("targets", "loss.null_masking", lambda it, given: null_input_lines(_real(given, "label"), it.tasks), "INPUT"),
    Text("targets", "loss.null_masking", _null_internal, "INTERNAL"),
    Text("targets", "loss.null_masking", _null_summary, "SUMMARY"),
    Text("targets", "loss.class_weighting", _class_weights),
    Text("targets", "loss.taxonomy_smoothing", _sample_losses, "FORWARD"),
)  # fmt: skip
