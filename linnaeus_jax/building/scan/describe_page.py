"""The description of a data set as one HTML page and as PNG files."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.describe import (
    FEW,
    RANK_COLUMNS,
    RANK_NOTE,
    UNKNOWN,
    Description,
    observer_rows,
    rank_rows,
    split_columns,
    split_tables,
)
from linnaeus_jax.building.scan.pictures import UnreadableError, read_one
from linnaeus_jax.data.credits import credit_line, read_credits
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.files import write_atomically
from linnaeus_jax.reading.labelled_pictures import open_pictures
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.figures import COLORS, MARKERS, image
from linnaeus_jax.reporting.mistakes import SIDE, thumbnail
from linnaeus_jax.reporting.page import note, page, table
from linnaeus_jax.taxonomy.ranks import task_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- The figures of a data set's description, each for half the width of a page so that a telephone can show it


SIZE = (6.0, 3.7)  # inches
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: points of a curve; more could not be told apart
POINTS = 400
#: degrees between the lines of a map, from which the first is taken that gives at most `GRID_LINES` of them
STEPS, GRID_LINES = (1, 2, 5, 10, 15, 30, 60), 12


def _panel(title: str, x_label: str, y_label: str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # the import takes a second, which only those who draw should pay

    figure = Figure(figsize=size, dpi=160, layout="constrained")
    panel = figure.subplots()
    panel.set_title(title, fontsize=12, loc="left")
    panel.set_xlabel(x_label, fontsize=11)
    panel.set_ylabel(y_label, fontsize=11)
    panel.tick_params(labelsize=10)
    panel.grid(alpha=0.25)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    return figure, panel


def _bars_sideways(panel: Axes, labels: Sequence[str], values: Sequence[float], texts: Sequence[str]) -> None:
    """Horizontal bars, the first on top, with a text behind each."""
    drawn = panel.barh(range(len(values)), values, color=COLORS[0], height=0.7)
    panel.bar_label(drawn, labels=texts, fontsize=10, padding=3)
    panel.set_yticks(range(len(values)), labels)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
    panel.set_xlim(0, 1.42 * max([*values, 1e-9]))


def _counts(panel: Axes, axis: str = "y") -> None:
    getattr(panel, f"{axis}axis").set_major_formatter("{x:,.0f}")


def long_tail(found: Description) -> Figure | None:
    """Rows of every class, most first, per rank."""
    from matplotlib.ticker import LogFormatter

    if not found.finest:
        return None
    figure, panel = _panel("Long tail: rows per class", "class, by number of rows", "rows")
    for index, task in enumerate(found.taxa.tasks):
        sizes = found.sizes(task)
        if not len(sizes):
            continue
        shown = np.unique(np.geomspace(1, len(sizes), POINTS).round().astype(int))
        marker = MARKERS[1 + index % (len(MARKERS) - 1)] if len(sizes) < 40 else ""
        color = COLORS[index % len(COLORS)]
        panel.plot(shown, sizes[shown - 1], color=color, marker=marker, ms=4, lw=1.8, label=task_name(task))
    for few in FEW:
        if found.sizes(found.finest)[-1] < few:
            panel.axhline(few, color="#888888", lw=0.9, ls="--")
            panel.annotate(f"{few} rows", (1.01, few), xycoords=("axes fraction", "data"), va="center", fontsize=9,
                           color="#555555")  # fmt: skip
    panel.set_xscale("log")
    panel.set_yscale("log")
    for axis in (panel.xaxis, panel.yaxis):  # within a decade, numbers between its powers are named, too
        axis.set_minor_formatter(LogFormatter())
    _counts(panel, "x")
    _counts(panel, "y")
    panel.legend(fontsize=10, frameon=False)
    return figure


def depth(found: Description) -> Figure | None:
    """Rows by the finest rank that they are identified to."""
    if not found.rows or not found.taxa.tasks:
        return None
    shown = {(task_name(task) if task else "no label"): rows for task, rows in found.depth.items() if rows or task}
    figure, panel = _panel("How far rows are identified", "rows", "finest rank", (SIZE[0], 1.4 + 0.42 * len(shown)))
    texts = [f"{rows:,} ({rows / found.rows:.1%})" for rows in shown.values()]
    _bars_sideways(panel, list(shown), list(shown.values()), texts)
    _counts(panel, "x")
    return figure


def coverage(found: Description) -> Figure | None:
    """Which metadata are known together."""
    if not found.components or not found.rows:
        return None
    ordered = sorted(found.combinations.items(), key=lambda item: -item[1])
    shown, others = ordered[:11], ordered[11:]
    short = short_names(list(found.components))
    labels = [" + ".join(short[name] for name in names) or "nothing" for names, _ in shown]
    values = [rows for _, rows in shown]
    if others:
        labels.append(f"{len(others)} other combinations")
        values.append(sum(rows for _, rows in others))
    figure, panel = _panel("Metadata that are known together", "rows", "", (SIZE[0], 1.2 + 0.42 * len(values)))
    _bars_sideways(panel, labels, values, [f"{rows:,} ({rows / found.rows:.1%})" for rows in values])
    panel.tick_params(axis="y", labelsize=9)
    _counts(panel, "x")
    return figure


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Data set -> the part of its name before the first "_", where no other one begins alike."""
    first = [name.split("_")[0] for name in names]
    return {name: printable(part if first.count(part) == 1 else name, 30) for name, part in zip(names, first)}


def place_map(found: Description) -> Figure | None:
    """Where the rows are: an equirectangular map without coasts."""
    if not len(found.places):
        return None
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MultipleLocator

    latitude, longitude = found.places.T.astype(np.float64)
    (south, north), (west, east) = _limits(latitude, 90.0), _limits(longitude, 180.0)
    stretch = 1 / max(np.cos(np.deg2rad((south + north) / 2)), 0.2)  # a degree of latitude per degree of longitude
    shape = (north - south) * stretch / (east - west)
    figure, panel = _panel("Rows on the map", "longitude", "latitude", (8.6, float(np.clip(7.2 * shape + 1, 3, 7))))
    cells = panel.hexbin(
        longitude, latitude, gridsize=(110, max(10, int(64 * shape))), extent=(west, east, south, north), mincnt=1,
        cmap="viridis_r", norm=LogNorm(vmin=1), linewidths=0.15, rasterized=True,
    )  # fmt: skip
    bar = figure.colorbar(cells, ax=panel, shrink=0.8, pad=0.01)
    bar.set_label("rows per cell", fontsize=11)
    bar.ax.yaxis.set_major_formatter("{x:,.0f}")
    panel.set_xlim(west, east)
    panel.set_ylim(south, north)
    panel.set_aspect(stretch)
    step = next((step for step in STEPS if (east - west) / step <= GRID_LINES), STEPS[-1])
    panel.xaxis.set_major_locator(MultipleLocator(step))
    panel.yaxis.set_major_locator(MultipleLocator(step if (north - south) / step >= 2 else max(1, step // 2)))
    panel.xaxis.set_major_formatter(_degrees("E", "W"))
    panel.yaxis.set_major_formatter(_degrees("N", "S"))
    panel.grid(alpha=0.5)
    panel.spines[["top", "right"]].set_visible(True)
    return figure


def _limits(degrees: np.ndarray, most: float) -> tuple[float, float]:
    """Whole degrees around all values, with a margin; the whole range where most of it is used."""
    low, high = float(degrees.min()), float(degrees.max())
    if high - low > 1.3 * most:
        return -most, most
    margin = max(1.0, 0.04 * (high - low))
    return max(-most, np.floor(low - margin)), min(most, np.ceil(high + margin))


def _degrees(positive: str, negative: str) -> Callable[[float, float], str]:
    def text(value: float, _: float) -> str:
        return f"{abs(value):g}°{'' if value == 0 else positive if value > 0 else negative}"

    return text


def months(found: Description) -> Figure | None:
    """Rows per month."""
    if not found.months.any():
        return None
    figure, panel = _panel("When: months", "", "rows")
    panel.bar(range(12), found.months, color=COLORS[0], width=0.8)
    panel.set_xticks(range(12), MONTHS)
    panel.grid(visible=False, axis="x")
    _counts(panel)
    return figure


def hours(found: Description) -> Figure | None:
    """Rows per hour of the day."""
    if not found.hours.any():
        return None
    figure, panel = _panel("When: hours", "hour of the day, as recorded", "rows")
    panel.bar(np.arange(24) + 0.5, found.hours, color=COLORS[0], width=0.9)
    panel.set_xlim(0, 24)
    panel.set_xticks(range(0, 25, 3))
    panel.grid(visible=False, axis="x")
    _counts(panel)
    return figure


def elevation(found: Description) -> Figure | None:
    """Rows by elevation."""
    if not len(found.elevation):
        return None
    period = found.elevation_period
    label = f"metres, up to a multiple of {period:g}" if period else "metres above sea level"
    figure, panel = _panel("How high", label, "rows")
    low, high = np.quantile(found.elevation, [0.001, 0.999])
    panel.hist(found.elevation, bins=40, range=(min(low, 0), max(high, 1)), color=COLORS[0])
    panel.grid(visible=False, axis="x")
    _counts(panel, "x")
    _counts(panel)
    return figure


def observers(found: Description) -> Figure | None:
    """Share of the rows that the most active observers gave."""
    if len(found.observers) < 2:
        return None
    figure, panel = _panel("Observers", "observers, most active first [%]", "share of their rows [%]")
    shares = np.concatenate([[0], 100 * np.cumsum(found.observers) / found.observers.sum()])
    shown = np.unique(np.linspace(0, len(found.observers), POINTS).round().astype(int))
    panel.plot(100 * shown / len(found.observers), shares[shown], color=COLORS[0], lw=2, label="these data")
    panel.plot([0, 100], [0, 100], color="#999999", ls="--", lw=1, label="all equally active")
    panel.set_xlim(0, 100)
    panel.set_ylim(0, 101)
    panel.legend(fontsize=10, frameon=False, loc="lower right")
    return figure


def split_overlap(found: Description) -> Figure | None:
    """Classes of the first two sides of the split: in both, or in one of them."""
    if len(found.sides) < 2:
        return None
    train, other = found.sides[:2]
    tasks = [task for task in found.taxa.tasks if len(train.taxa[task]) or len(other.of(task))]
    parts = [
        ("in both", [np.intersect1d(train.taxa[task], other.of(task)) for task in tasks]),
        (f"only in {train.name}", [np.setdiff1d(train.taxa[task], other.of(task)) for task in tasks]),
        (f"only in {other.name}", [np.setdiff1d(other.of(task), train.taxa[task]) for task in tasks]),
    ]
    figure, panel = _panel(
        f"Classes of {train.name} and {other.name}", "share of the classes [%]", "", (SIZE[0], 1.7 + 0.42 * len(tasks))
    )
    totals = np.array([sum(len(sets[i]) for _, sets in parts) for i in range(len(tasks))])
    left = np.zeros(len(tasks))
    for color, (label, sets) in zip(COLORS, parts, strict=False):
        share = 100 * np.array([len(one) for one in sets]) / np.maximum(totals, 1)
        drawn = panel.barh(range(len(tasks)), share, left=left, color=color, height=0.7, label=label)
        texts = [f"{len(one):,}" if part > 8 else "" for one, part in zip(sets, share)]
        panel.bar_label(drawn, labels=texts, label_type="center", fontsize=10, color="white")
        left += share
    panel.set_yticks(range(len(tasks)), [task_name(task) for task in tasks])
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=3, fontsize=10, frameon=False)
    return figure


#: name of the PNG file -> function; None where there is nothing to draw
FIGURES: dict[str, Callable[[Description], Figure | None]] = {
    "long_tail": long_tail,
    "depth": depth,
    "map": place_map,
    "months": months,
    "hours": hours,
    "elevation": elevation,
    "coverage": coverage,
    "split": split_overlap,
    "observers": observers,
}


#: classes at each end of the tail that have example pictures, and pictures of each
CLASSES, PICTURES = 8, 3
MOMENTS = {"months", "hours", "elevation"}
#: lines of a table of texts
LINES = 15
# ----------------------------------------------------------------------------------------------------------------------


#: taller side, in pixels, that pictures are read at
_READ = (2 * SIDE, 2 * SIDE)


@dataclass(frozen=True)
class Example:
    """One picture of a class: `picture` is a JPEG in base64, empty where it cannot be read, then `reason` says why."""

    row: int
    picture: str
    credit: str
    reason: str = ""


@dataclass(frozen=True)
class ClassExamples:
    """Pictures of one class."""

    name: str
    rows: int
    examples: tuple[Example, ...]


def example_pictures(
    found: Description, images: Path, extension: str | None = None
) -> tuple[tuple[ClassExamples, ...], tuple[ClassExamples, ...]]:
    """Pictures of the most and of the least common classes of the finest rank, the same at every call.

    Raises:
      UserError: the pictures cannot be opened.
    """
    task, source = found.finest, open_pictures(images, found.labels, extension)
    if not task:
        return (), ()
    counts, label = found.taxa.counts[task], found.taxa.label[:, found.taxa.tasks.index(task)]
    order = np.argsort(-counts[1:], kind="stable") + 1
    most = order[: min(CLASSES, -(-len(order) // 2))]
    least = order[::-1][: min(CLASSES, len(order) // 2)]
    chosen = {int(index): _some_rows(np.flatnonzero(label == index), int(index)) for index in (*most, *least)}
    rows = np.sort(np.concatenate([*chosen.values(), np.zeros(0, np.int64)])).astype(np.int64)
    rows = rows[rows < len(source)]
    try:
        credits = list(map(credit_line, read_credits(str(found.labels), rows)))
    except ValueError:  # a column that cannot be read is among the faults
        credits = [""] * len(rows)
    shown = {row: _example(source, row, credit) for row, credit in zip(rows.tolist(), credits)}

    def examples(indices: NDArray[np.int64]) -> tuple[ClassExamples, ...]:
        return tuple(
            ClassExamples(
                printable(found.taxa.name(task, index)),
                int(counts[index]),
                tuple(shown[row] for row in chosen[index].tolist() if row in shown),
            )
            for index in indices.tolist()
        )

    return examples(most), examples(least)


def _some_rows(rows: NDArray[np.int64], index: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(index).choice(rows, min(PICTURES, len(rows)), replace=False))


def _example(source: ImageSource, row: int, credit: str) -> Example:
    try:
        return Example(row, thumbnail(read_one(source, row, _READ)[0]), credit)
    except (UnreadableError, ValueError) as error:
        return Example(row, "", credit, printable(str(error)))


# ---- page ------------------------------------------------------------------------------------------------------------


def write_description(
    out: Path,
    found: Description,
    examples: tuple[Sequence[ClassExamples], Sequence[ClassExamples]] | None,
    near_duplicates: str = "",
) -> list[Path]:
    """Writes `dataset.html` and a PNG per figure into the folder `out`; the files, the page first.

    Args:
      near_duplicates: HTML of their section.
    """
    out.mkdir(parents=True, exist_ok=True)
    figures = {name: figure for name, draw in FIGURES.items() if (figure := draw(found)) is not None}
    path = out / "dataset.html"
    write_atomically(
        path, page(f"Data set {printable(found.labels.name)}", sections(found, figures, examples, near_duplicates))
    )
    files = [path]
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png")
        files.append(out / f"{name}.png")
    return files


def sections(
    found: Description,
    figures: Mapping[str, Figure],
    examples: tuple[Sequence[ClassExamples], Sequence[ClassExamples]] | None,
    near_duplicates: str = "",
) -> dict[str, str]:
    """Heading -> HTML."""

    def plots(*names: str, beside: str = "") -> str:
        """Figures, as many side by side as the screen has room for, and before them what stands beside them."""
        drawn = [image(figures[name], name.replace("_", " ")) for name in names if name in figures]
        return f'<div class="plots">{"".join(f"<div>{one}</div>" for one in [beside, *drawn] if one)}</div>'

    return {
        "Rows and classes": _faults(found) + _origin(found) + note(RANK_NOTE) + table(RANK_COLUMNS, rank_rows(found))
        + plots("long_tail", "depth"),
        "Where": f'<div class="map">{image(figures["map"], "map")}</div>' if "map" in figures else "",
        "When and how high": plots("months", "hours", "elevation") if figures.keys() & MOMENTS else "",
        "Metadata": plots("coverage", beside=parts) if (parts := _components(found)) else "",
        "Split": plots("split", beside=_split(found)) if len(found.sides) > 1 else "",
        "Near duplicates": near_duplicates,
        "Observers": plots("observers", beside=people) if (people := table(("", ""), observer_rows(found))) else "",
        "Rights": _texts(found),
        "Most common classes": _pictures(examples[0]) if examples else "",
        "Least common classes": _pictures(examples[1]) if examples else "",
    }  # fmt: skip


def _faults(found: Description) -> str:
    if not found.faults:
        return ""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in found.faults)
    return note("Left out, because of faults that linnaeus verify explains:") + f'<ul class="warnings">{lines}</ul>'


def _origin(found: Description) -> str:
    text = f"{printable(str(found.labels))}: {found.rows:,} rows"
    if found.repeated:
        text += f", {found.repeated:,} of them with the picture of an earlier row"
    return note(f"{text}.")


def _components(found: Description) -> str:
    rows = [
        [printable(name), f"{rows:,}", f"{rows / found.rows:.1%}" if found.rows else "–"]
        for name, rows in found.components.items()
    ]
    return table(("data set", "known rows", "share"), rows)


def _split(found: Description) -> str:
    sides = ", ".join(f"{side.name} {side.rows:,}" for side in found.sides)
    tables = [table(split_columns(other), rows) for other, rows in split_tables(found)]
    return note(f"Rows: {sides}.") + "".join(tables)


def text_rows(texts: Mapping[str, int], rows: int) -> Iterable[list[object]]:
    """Most frequent texts with their rows and share, then all others together."""
    ordered = list(texts.items())
    for text, count in ordered[:LINES]:
        yield [text or "not given", f"{count:,}", f"{count / rows:.1%}"]
    if rest := ordered[LINES:]:
        count = sum(number for _, number in rest)
        yield [f"{len(rest):,} others", f"{count:,}", f"{count / rows:.1%}"]


def _texts(found: Description) -> str:
    parts = []
    for what, texts in (("licence", found.licenses), ("rights holder", found.holders), ("source", found.sources)):
        if texts and set(texts) != {UNKNOWN}:
            parts.append(f"<div>{table((what, 'rows', 'share'), text_rows(texts, found.rows))}</div>")
    return f'<div class="side">{"".join(parts)}</div>' if parts else ""


def _pictures(classes: Sequence[ClassExamples]) -> str:
    parts = []
    for one in classes:
        figures = []
        for example in one.examples:
            picture = f'<img alt="row {example.row}" src="data:image/jpeg;base64,{example.picture}">'
            caption = example.credit or f"row {example.row}"
            figures.append(
                f"<figure>{picture if example.picture else html.escape(example.reason)}"
                f"<figcaption>{html.escape(printable(caption))}</figcaption></figure>"
            )
        title = f"{one.name}, {one.rows:,} row{'' if one.rows == 1 else 's'}"
        parts.append(f'<div><h4>{html.escape(title)}</h4><div class="pictures">{"".join(figures)}</div></div>')
    return f'<div class="plots">{"".join(parts)}</div>' if parts else ""
