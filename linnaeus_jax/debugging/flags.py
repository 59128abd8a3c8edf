"""Debug flags: which of them are on, how their lines look, and what each of them shows.

A line goes to the debug file at level DEBUG and starts with `[DEBUG_<FLAG>]` or `[DEBUG_<FLAG>_<SUB>]`. The functions
`*_lines` make the texts from plain host values; pass them to `DebugFlags.debug_line` as a callable, so that they cost
nothing while the flag is off.
"""

from __future__ import annotations

import collections
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from linnaeus_jax.config import get_config
from linnaeus_jax.config.typed import DebugConfig
from linnaeus_jax.reporting.logs import DATA, MAIN
from linnaeus_jax.reporting.metrics_log import strict

_DEFAULTS = get_config().debug
#: switches of the same section that are no flags
_SWITCHES = ("nans", "infs", "crash_bundle")
FLAGS = (
    *(name for name, value in _DEFAULTS.items() if isinstance(value, bool) and name not in _SWITCHES),
    *(f"loss.{name}" for name in _DEFAULTS.loss),
)
#: flags that every process reports on; the others are those of process 0
EVERY_PROCESS = frozenset({"distributed", "dataloader"})
_SAMPLES = 5
#: longest array that is shown value by value
_SHORT = 12

#: class index -> what people read for it
ClassName = Callable[[int], str]
Message = str | Iterable[str] | Callable[[], str | Iterable[str]]


def leaf(flag: str) -> str:
    """The last part of a dotted flag."""
    return flag.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class DebugFlags:
    """The flags of a run, read once.

    Attributes:
      enabled: those of `FLAGS` that are on in this process.
    """

    enabled: frozenset[str]
    _warned: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def from_config(cls, debug: DebugConfig, process: int = 0) -> DebugFlags:
        """Reads the `debug` section of the configuration for one process."""
        values = {name: debug[name] for name in debug} | {f"loss.{name}": debug.loss[name] for name in debug.loss}
        return cls(frozenset(flag for flag in FLAGS if values[flag] and (process == 0 or flag in EVERY_PROCESS)))

    def on(self, flag: str) -> bool:
        """Whether `flag` (e.g. `loss.null_masking`, or `DEBUG.LOSS.NULL_MASKING`) is on.

        What is no flag, a section included, is off, with one warning.
        """
        if flag in self.enabled or flag in FLAGS:
            return flag in self.enabled
        name = flag.lower().removeprefix("debug.")
        if name not in FLAGS and name not in self._warned:
            self._warned.add(name)
            logging.getLogger(MAIN).warning("debug.%s is no debug flag: it counts as off", name)
        return name in self.enabled

    def debug_line(self, flag: str, message: Message, sub: str = "") -> None:
        """Writes a message of a flag that is on, with its prefix on every line.

        Args:
          message: text, lines, or a callable that returns them and is called only if the flag is on.
          sub: extends the prefix, e.g. SUMMARY.
        """
        if not self.on(flag):
            return
        texts = message() if callable(message) else message
        lines = [line for text in ([texts] if isinstance(texts, str) else texts) for line in text.splitlines()]
        name = leaf(flag).upper() + (f"_{sub.upper()}" if sub else "")
        logger = logging.getLogger(DATA if name.startswith("DATALOADER") else MAIN)
        logger.debug("%s", "\n".join(f"[DEBUG_{name}] {line}" for line in lines or [""]))


# ---- for any flag


def fact_lines(title: str, facts: Mapping[str, Any]) -> list[str]:
    """A title and one aligned `name: value` line per fact; arrays as shape, dtype and range."""
    width = max((len(str(name)) for name in facts), default=0)
    return [title, *(f"  {name!s:<{width}} : {_short(value)}" for name, value in facts.items())]


def changed_lines(title: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A title and one line per value that is new or another one than before."""
    changed = {name: value for name, value in now.items() if before.get(name) != value}
    return fact_lines(f"{title}: {len(changed)} of {len(now)} values changed", changed)


def tracked_values(tracked: Mapping[str, Any]) -> dict[str, str]:
    """One text per metric and per other value of a `MetricsTracker.state_dict`."""
    texts = {}
    for name, metric in tracked["metrics"].items():
        best = f" (best {_short(metric['best'])} at epoch {metric['best_epoch']})"
        texts[name] = _short(metric["value"]) + ("" if metric["best_epoch"] is None else best)
    return {**{name: _short(value) for name, value in tracked["latest"].items()}, **texts}


def dump_lines(title: str, state: Mapping[str, Any]) -> list[str]:
    """A title and the whole of `state` as readable JSON."""
    return [title, *json.dumps(strict(state), indent=1, allow_nan=False).splitlines()]


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        span = f" in [{value.min():.4g}, {value.max():.4g}]" if value.size and value.dtype.kind in "iufb" else ""
        return f"{value.dtype}{list(value.shape)}{span}"
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    texts = [list(header), *([_short(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return [title, *("  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in texts)]


# ---- components


def checkpoint_diff_lines(
    saved: Mapping[str, tuple[int, ...]], model: Mapping[str, tuple[int, ...]], source: str
) -> list[str]:
    """How a checkpoint fits: missing and unexpected names, different shapes (for DEBUG.CHECKPOINT).

    Args:
      saved, model: array of the state -> shape.
      source: where the checkpoint lies.
    """
    missing, unexpected = sorted(model.keys() - saved.keys()), sorted(saved.keys() - model.keys())
    differ = [name for name in model if name in saved and tuple(saved[name]) != tuple(model[name])]
    fitting = len(model) - len(missing) - len(differ)
    return [
        f"{source}: {fitting} of {len(model)} arrays fit, {len(missing)} missing, "
        f"{len(unexpected)} unexpected, {len(differ)} of another shape",
        *(f"  missing    {name} {tuple(model[name])}" for name in missing),
        *(f"  unexpected {name} {tuple(saved[name])}" for name in unexpected),
        *(f"  shape      {name} checkpoint {tuple(saved[name])}, model {tuple(model[name])}" for name in differ),
    ]


def augmentation_lines(stages: Sequence[tuple[str, np.ndarray]]) -> list[str]:
    """The order of the augmentations and the effect of each on some images (for DEBUG.AUGMENTATION).

    Args:
      stages: name and result, float [B, H, W, 3] in 0 ... 1, of the input and of every stage after those before it.
    """
    rows, before = [], stages[0][1]
    for name, image in stages:
        change = np.abs(image - before)
        changed = int((change.max(axis=(1, 2, 3)) > 1e-3).sum())
        rows.append((name, f"{changed} of {len(image)}", change.mean(), image.mean(), image.std()))
        before = image
    header = ("stage", "images changed", "mean change", "mean", "standard deviation")
    return table("in this order:" if len(stages) > 1 else "no augmentation is on", header, rows)


def optimizer_lines(rows: Sequence[Any], learning_rates: Mapping[str, float], overlaps: Sequence[str]) -> list[str]:
    """Groups, then every parameter with what happens to it (for DEBUG.OPTIMIZER).

    Args:
      rows: `learning.optimizers.ParameterRow`s.
      learning_rates: group -> current rate.
      overlaps: `Optimizer.overlaps`.
    """
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row.group, row.optimizer].append(row)
    summary = [
        (
            group,
            optimizer,
            len(members),
            sum(math.prod(row.shape) for row in members),
            learning_rates.get(group, 0.0),
            "/".join(f"{value:g}" for value in sorted({row.weight_decay for row in members})),
        )
        for (group, optimizer), members in groups.items()
    ]
    header = ("group", "optimizer", "tensors", "numbers", "learning rate", "weight decay")
    each = ("name", "shape", "group", "optimizer", "weight decay", "rate multiplier")
    cells = [(row.name, row.shape, row.group, row.optimizer, row.weight_decay, row.lr_multiplier) for row in rows]
    return [
        *table(f"{len(rows)} parameters in {len(groups)} groups", header, summary),
        *table("parameters:", each, cells),
        *(f"overlap: {text}" for text in overlaps),
    ]


def distributed_facts() -> dict[str, Any]:
    """What jax knows of processes and devices, for `fact_lines` (for DEBUG.DISTRIBUTED)."""
    return {
        "process": f"{jax.process_index()} of {jax.process_count()}",
        "backend": jax.default_backend(),
        "devices": f"{jax.device_count()} ({jax.local_device_count()} local)",
        "local devices": ", ".join(f"{d.id}:{d.device_kind}" for d in jax.local_devices()),
        "jax": jax.__version__,
    }


def model_lines(architecture: str, rows: Sequence[Any]) -> list[str]:
    """Parameters by component, then one by one (for DEBUG.MODEL_BUILD).

    Args:
      rows: objects with `name`, `shape` and `layer_type`, e.g. `models.names.ParameterInfo`.
    """
    components: dict[str, list[int]] = collections.defaultdict(list)
    for row in rows:
        parts = row.name.split(".")
        components[".".join(parts[:2] if len(parts) > 2 else parts[:1])].append(math.prod(row.shape))
    total = sum(sum(sizes) for sizes in components.values())
    counts = [(name, len(sizes), sum(sizes), f"{100 * sum(sizes) / total:.1f}") for name, sizes in components.items()]
    return [
        *table(f"{architecture}: {total} numbers", ("component", "tensors", "numbers", "percent"), counts),
        *table("parameters:", ("name", "shape", "module"), [(r.name, tuple(r.shape), r.layer_type) for r in rows]),
    ]


# ---- metrics


def validation_lines(phase: str, sums: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
    """The sums over a phase and the metrics made of them (for DEBUG.VALIDATION_METRICS and DEBUG.TRAIN_METRICS).

    Args:
      sums: `metrics.phase` sums as numpy arrays.
      metrics: name -> value.
    """
    return [*sums_lines(f"{phase}: sums", sums), *fact_lines(f"{phase}: metrics", metrics)]


def sums_lines(title: str, sums: Mapping[str, Any]) -> list[str]:
    """One line per sum; only short ones value by value."""
    arrays = {name: np.asarray(value) for name, value in sums.items()}
    return fact_lines(title, {name: x.tolist() if x.size <= _SHORT else x for name, x in arrays.items()})


# ---- losses


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
        f"{task}: distances (edges: pairs) {spread or 'none'}; unrelated pairs {int(np.isinf(distance).sum())}",
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


def size_text(size: float) -> str:
    """Bytes for people."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


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
