"""Lines for the console, made of the rows that are logged."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.metrics.phases import ALIAS, phase_label
from linnaeus_jax.taxonomy.ranks import task_name

#: batches between light progress lines
LIGHT_EVERY = 10


def progress_line(
    streams: frozenset[str],
    values: Mapping[str, float],
    *,
    epoch: int,
    index: int,
    total: int,
    seconds_left: float,
    accumulation_steps: int = 1,
) -> str | None:
    """The console line of 0-based update `index` of `total` in the epoch, if one is due; `values` are a row."""
    head = f"Train Epoch={epoch} [{index}/{total}], "
    loss, eta = f"loss={values['train/loss']:.4f}", f"ETA={clock(seconds_left)}"
    if "console" not in streams:
        return f"{head}{loss}, {eta}" if index % LIGHT_EVERY == 0 else None
    parts = [f"lr={values['train/lr']:.6f}"] if "lr" in streams else []
    parts.append(loss)
    parts.append(f"chain_acc={values.get('train/chain_accuracy', math.nan):.3f}")
    parts.append(f"part_chain_acc={values.get('train/partial_chain_accuracy', math.nan):.3f}")
    if accumulation_steps > 1:
        parts.append(f"accum=DONE/{accumulation_steps}")
    if "gradnorm" in streams:
        parts.append("GradNorm=TRUE")
    return head + ", ".join([*parts, eta])


def clock(seconds: float) -> str:
    """`h:mm:ss`; `?` for what is unknown."""
    return str(datetime.timedelta(seconds=int(seconds))) if math.isfinite(seconds) and seconds >= 0 else "?"


def schedule_line(step: int, values: Mapping[str, float], mixup_group: str) -> str:
    """The console line of the masking and mixing probabilities after `step` updates."""
    parts = [f"{name}={values[name]:.4f}" for name in ("meta_mask_prob", "mixup_prob")] + [f"mixup_group={mixup_group}"]
    if "null_mask_prob" in values:
        parts.append(f"null_mask_prob={values['null_mask_prob']:.4f}")
    return f"Schedule values @ step {step}: {', '.join(parts)}"


def pipeline_lines(row: Mapping[str, float], capacity: Mapping[str, int]) -> list[str]:
    """The console lines of the input pipeline.

    Args:
      row: `pipeline/...` values.
      capacity: length of `batch_index_q`, `preprocess_q` and `processed_batch_q`.
    """
    queues = (("batch_index", "batch_index_q"), ("preproc", "preprocess_q"), ("processed", "processed_batch_q"))
    depths = [
        f"{label}={int(row[f'pipeline/queue_depths/{q}'])}/{capacity[q]}"
        for label, q in queues
        if f"pipeline/queue_depths/{q}" in row  # not with worker processes
    ] or ["none"]
    parts = [f"{row['pipeline/cache/size']:.1f}% usage" if "pipeline/cache/size" in row else "none"]
    for name in ("hits", "misses", "evictions"):
        if f"pipeline/cache/{name}" in row:
            parts.append(f"{name}={int(row[f'pipeline/cache/{name}'])}")
    for label, name in (("prefetch_rate", "prefetch"), ("preproc_rate", "preprocess")):
        if f"pipeline/throughput/{name}" in row:
            parts.append(f"{label}={row[f'pipeline/throughput/{name}']:.2f}/s")
    return [f"[Monitor] QDepth => {', '.join(depths)}", f"[Monitor] Cache => {', '.join(parts)}"]


def epoch_line(epoch: int, row: Mapping[str, Any], finest: str) -> str:
    """The console line of the end of an epoch, of its row.

    Losses are those that can be compared, means over rows and ranks; accuracies of a rank are over the rows that are
    labelled there.
    """
    phases: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        phase, metric = split_result(name)
        phases.setdefault(phase, {})[metric] = value
    parts = [
        f"{phase_label(phase)} mean loss {metrics['loss_unweighted']:.4f}, {_accuracy(metrics, finest)}all ranks "
        f"{100 * metrics['chain_accuracy']:.1f} %"
        for phase, metrics in phases.items()
        if {"loss_unweighted", "chain_accuracy"} <= metrics.keys() and phase != ALIAS
    ]
    return f"epoch {epoch}: {'; '.join(parts)}"


def _accuracy(metrics: Mapping[str, Any], task: str) -> str:
    value, of_classes = (
        metrics.get(f"non_null/acc1_{task}", metrics.get(f"acc1_{task}")),
        metrics.get(f"macro_acc1_{task}"),
    )
    mean = "" if of_classes is None else f" (mean of classes {of_classes:.1f} %)"
    return "" if value is None else f"{task_name(task)} {value:.1f} %{mean}, "
