"""The curves of the pages on results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from benchmarks.real import figures
from benchmarks.real.rows import ROWS
from benchmarks.real.sets import SETS, SPLITS
from benchmarks.real.summary import REAL, Results, from_nothing

#: rows whose curves are drawn; there are ten colours
DRAWN = (
    *("head-lite0", "control-lite0", "last5-lite0", "head-lite2", "control-lite2"),
    *("last6-lite2", "last6-lite2-320", "torch-last6-lite2", "full-lite2"),
)


def draw(found: Results) -> Figure:
    """Risk over coverage at the finest rank, the first seed of the rows of `DRAWN`."""
    from matplotlib.figure import Figure

    from linnaeus_jax.metrics.judged import coverage_and_risk

    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=90)
    splits = [split for split in ("grocery", "plants", "leaf", "fish") if split in found]
    rows = [row for row in DRAWN if any(row in found[split] for split in splits)]
    colours = {row: f"C{place}" for place, row in enumerate(rows)}  # a row has one colour in all of them
    lines = {}
    for place, split in enumerate(splits):
        axes = figure.add_subplot(1, len(splits), place + 1)
        for row, seeds in ((row, found[split][row]) for row in rows if row in found[split]):
            arrays = figures.read(REAL / split / f"{row}-{seeds[0]['seed']}.npz")
            kind = "paths" if "paths/predicted" in arrays else "raw"
            coverage, risk = coverage_and_risk(figures.unpacked(arrays, kind), 0)
            title = ROWS[row].title.replace(" (scikit-learn)", "")
            (lines[title],) = axes.plot(100 * coverage, 100 * risk, colours[row])
        axes.set(title=SETS[split].title, xlabel="answered %", ylabel="errors among them %" if not place else None)
        axes.set_xlim(0, 100)
        axes.set_ylim(0)
        axes.grid(alpha=0.3)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=3, fontsize="x-small")
    return figure


def draw_minutes(found: Results) -> Figure:
    """Accuracy of the validation rows over minutes of training from nothing, the first seed of every row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=90)
    curves = {
        split: {row: seeds[0]["curve"] for row, seeds in rows.items() if from_nothing(row)}
        for split, rows in found.items()
    }
    splits = [split for split, rows in curves.items() if rows]
    names = [row.replace(f"-{ROWS[row].size}", "") for split in splits for row in curves[split]]
    colours = {name: f"C{place}" for place, name in enumerate(dict.fromkeys(names))}  # one of every network
    devices = {split: found[split][next(iter(curves[split]))][0]["machine"]["devices"][0] for split in splits}
    for place, split in enumerate(splits):
        axes = figure.add_subplot(1, len(splits), place + 1)
        for row, points in curves[split].items():
            label, colour = ROWS[row].title.replace(" from nothing", ""), colours[row.replace(f"-{ROWS[row].size}", "")]
            axes.plot([x for x, _ in points], [100 * y for _, y in points], colour, label=label)
        axes.set(
            title=SETS[SPLITS[split][0]].title,
            xlabel="CPU-minutes" if devices[split] == "cpu" else f"minutes on one {devices[split]}",
            ylabel="validation accuracy %" if not place else None,
        )
        axes.set_xlim(0)
        axes.set_ylim(0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return figure
