"""`schedule.png`: learning rates (planned, and applied where recorded), probabilities and events of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import curves
from linnaeus_jax.schedules.triggers import events
from linnaeus_jax.schedules.values import on_host

_POINTS = 2000


def plot_schedule(
    resolved: ResolvedSchedule,
    path: str | os.PathLike[str],
    *,
    applied: Mapping[str, tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]] | None = None,
) -> Path:
    """Draws the schedule, 1200 x 900 pixels.

    Args:
      path: the PNG file.
      applied: group -> (updates, rates) as recorded during training, drawn over the plan; a frozen group is not.
    """
    from matplotlib.figure import Figure  # the import takes a second, which only those who draw should pay

    total, specs = resolved.total_steps, [spec for spec in resolved.learning_rates if not spec.frozen]
    corners = [k for spec in specs for _, first, last in spec.phases() for k in (first, last)]
    corners += [k for spec in specs if len(spec.drops()) < 100 for drop in spec.drops() for k in (drop - 1, drop)]
    steps = np.unique(
        np.concatenate([np.linspace(0, total - 1, _POINTS).astype(np.int64), np.array(corners, np.int64)])
    )
    figure = Figure(figsize=(12, 9), dpi=100, layout="constrained")
    rate_axes, probability_axes, event_axes = figure.subplots(3, 1, sharex=True, height_ratios=(4, 3, 2))

    rates, probabilities = (on_host(named)(steps) for named in (build_scheduler(resolved), curves(resolved)))
    colors = {spec.group: f"C{index % 10}" for index, spec in enumerate(specs)}
    for spec in specs:
        label = f"{spec.group} ({spec.name}, peak {spec.peak:.3g})"
        rate_axes.plot(steps, rates[spec.group], color=colors[spec.group], label=label)
    for group, (when, values) in (applied or {}).items():
        if group in colors:
            label = f"{group}, applied"
            rate_axes.plot(when, values, ".", ms=5, color=colors[group], mec="black", mew=0.3, label=label)
    lowest = min((spec.min_lr for spec in specs if spec.min_lr > 0), default=0.0)
    peaks = [spec.peak for spec in specs if spec.peak > 0]
    if peaks and lowest and max(peaks) / min(peaks) > 5:
        rate_axes.set_yscale("log")
    else:
        rate_axes.yaxis.set_major_formatter("{x:.3g}")  # no offset text, which would cover the epoch axis
    rate_axes.set_ylabel("learning rate")
    if specs:
        rate_axes.legend(loc="best", fontsize=9)
    rate_axes.grid(alpha=0.3)

    for name, values in probabilities.items():
        probability_axes.plot(steps, values, label=name)
    probability_axes.set_ylabel("probability")
    probability_axes.set_ylim(-0.03, 1.03)
    if probability_axes.lines:
        probability_axes.legend(loc="best", fontsize=9)
    probability_axes.grid(alpha=0.3)

    fired = {event.name: event.epochs for event in events(resolved) if event.epochs}
    ends = resolved.totals.boundaries
    for row, epochs in enumerate(fired.values()):
        event_axes.plot([ends[epoch] for epoch in epochs], [row] * len(epochs), "|", ms=14, mew=1.5, clip_on=False)
    event_axes.set_yticks(range(len(fired)), list(fired))
    event_axes.set_ylim(len(fired) - 0.5, -0.5)
    event_axes.set_xlim(0, total)
    event_axes.set_xlabel("optimizer updates")
    event_axes.grid(alpha=0.3, axis="x")

    # epochs can differ in length where the mixing level switches: interpolate between their boundaries
    at, index = np.array((0, *ends), float), np.arange(len(ends) + 1.0)
    epoch_axis = rate_axes.secondary_xaxis(
        "top", functions=(lambda k: np.interp(k, at, index), lambda e: np.interp(e, index, at))
    )
    epoch_axis.set_xticks(_epoch_ticks(len(ends)))
    epoch_axis.set_xlabel("epochs")
    figure.suptitle(
        f"Schedule: {total} updates, {resolved.epochs} epochs, {resolved.totals.effective_batch_size} rows per update"
    )
    figure.savefig(path)
    return Path(path)


def _epoch_ticks(epochs: int) -> list[int]:
    """Whole epochs at even distances; none behind the last, which would be drawn at the end of the run."""
    from matplotlib.ticker import MaxNLocator

    return [int(tick) for tick in MaxNLocator(8, integer=True).tick_values(0, epochs) if tick <= epochs]
