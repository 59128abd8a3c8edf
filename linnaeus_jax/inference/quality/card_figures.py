"""The pictures of a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.metrics.judged import LEAST_ROWS, Judged, coverage_and_risk, reliability, roll_up
from linnaeus_jax.reporting.figures import COLORS, DASHES, MARKERS, grid, labels, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: points of the curves over confidences
CONFIDENCES = np.linspace(0, 1, 101)
#: least share of the rows of a risk-coverage curve that is drawn: of a few rows it says nothing
LEAST_COVERAGE = 0.02


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG of 120 dots per inch, the same bytes every time."""
    figure.savefig(path, dpi=120, metadata={"Software": None})


def draw_accuracy(path: Path, ranks: Sequence[str], columns: Mapping[str, NDArray[np.float64]]) -> None:
    """Bars of accuracy by rank, coarsest first; `columns` is name -> [T], finest first."""
    figure, (axis,) = grid(1, 1, 3.2)
    width = 0.8 / len(columns)
    for position, (name, values) in enumerate(columns.items()):
        x = np.arange(len(ranks)) + (position - (len(columns) - 1) / 2) * width
        bars = axis.bar(x, 100 * np.nan_to_num(values[::-1]), 0.92 * width, color=COLORS[position], label=name)
        axis.bar_label(bars, [f"{100 * v:.1f}" if np.isfinite(v) else "" for v in values[::-1]], fontsize=8, padding=2)
    axis.set_xticks(np.arange(len(ranks)), list(ranks)[::-1])
    axis.set_ylim(0, 108)
    labels(axis, "Accuracy over the labelled rows", "", "%")
    legend(figure, [axis])
    save(figure, path)


def draw_reliability(path: Path, ranks: Sequence[str], before: Judged, after: Judged) -> None:
    """Accuracy against confidence in bins, one panel per rank."""
    places = [place for place in reversed(range(len(ranks))) if before.known[:, place].any()]
    figure, axes = grid(len(places), 4, 3.0)
    for axis, place in zip(axes, places, strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=1, ls="--", label="perfectly calibrated")
        for position, (name, judged) in enumerate((("before", before), ("after (the path)", after))):
            confidence, right, rows = reliability(judged, place).T
            some = rows >= LEAST_ROWS
            axis.plot(confidence[some], right[some], color=COLORS[position], lw=1.4, label=name)
            size = 6 + 90 * rows / rows.sum()  # area by share of the rows
            axis.scatter(confidence, right, s=size, color=COLORS[position], zorder=3)
        axis.set_xlim(0, 1.03)
        axis.set_ylim(0, 1.03)
        labels(axis, ranks[place], "probability of the answer", "share that is right")
    legend(figure, axes)
    save(figure, path)


def draw_roll_up(path: Path, ranks: Sequence[str], paths: Judged, first: int) -> None:
    """What is answered at which confidence, and errors against coverage of every rank."""
    figure, (left, right) = grid(2, 2, 3.4)
    found = roll_up(paths, CONFIDENCES.tolist(), first)
    shares = np.array([[*each.shares[::-1], each.unanswered] for each in found]).T * 100
    shades = [COLORS[place % len(COLORS)] for place in reversed(range(len(ranks)))]
    stacked = [*zip(reversed(ranks), shares, shades, strict=False)][::-1]  # the finest rank lies at the bottom
    left.stackplot(
        CONFIDENCES,
        [share for _, share, _ in stacked],
        colors=[shade for _, _, shade in stacked],
        alpha=0.55,
        labels=[f"answered at {rank}" for rank, _, _ in stacked],
    )
    left.plot(
        CONFIDENCES, [100 * each.error for each in found], color="black", lw=1.8, label="errors among the answers"
    )
    left.set_xlim(0, 1)
    left.set_ylim(0, 100)
    labels(left, "Answers by --min-confidence", "least probability of an answer", "% of the rows")
    for place, rank in enumerate(ranks):
        if paths.known[:, place].any():
            coverage, risk = coverage_and_risk(paths, place)
            shown = coverage >= LEAST_COVERAGE
            color, dash = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
            right.plot(100 * coverage[shown], 100 * risk[shown], lw=1.6, ls=dash, color=color, label=rank)
            right.plot(100 * coverage[-1:], 100 * risk[-1:], marker=MARKERS[1], ms=4, color=color)
    right.set_xlim(0, 101)
    right.set_ylim(bottom=0)
    labels(right, "Errors, answering the most certain first", "% of the labelled rows answered", "% errors")
    legend(figure, [left, right])
    save(figure, path)
