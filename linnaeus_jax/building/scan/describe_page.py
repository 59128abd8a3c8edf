"""The description of a data set as one HTML page and as PNG files."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.describe import (
    RANK_COLUMNS,
    RANK_NOTE,
    UNKNOWN,
    Description,
    observer_rows,
    rank_rows,
    split_columns,
    split_tables,
)
from linnaeus_jax.building.scan.describe_figures import FIGURES
from linnaeus_jax.building.scan.pictures import UnreadableError, read_one
from linnaeus_jax.data.credits import credit_line, read_credits
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.files import write_atomically
from linnaeus_jax.reading.labelled_pictures import open_pictures
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.figures import image
from linnaeus_jax.reporting.mistakes import SIDE, thumbnail
from linnaeus_jax.reporting.page import note, page, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: classes at each end of the tail that have example pictures, and pictures of each
CLASSES, PICTURES = 8, 3
MOMENTS = {"months", "hours", "elevation"}
#: lines of a table of texts
LINES = 15
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
) -> list[Path]:
    """Writes `dataset.html` and a PNG per figure into the folder `out`; the files, the page first."""
    out.mkdir(parents=True, exist_ok=True)
    figures = {name: figure for name, draw in FIGURES.items() if (figure := draw(found)) is not None}
    path = out / "dataset.html"
    write_atomically(path, page(f"Data set {printable(found.labels.name)}", sections(found, figures, examples)))
    files = [path]
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png")
        files.append(out / f"{name}.png")
    return files


def sections(
    found: Description,
    figures: Mapping[str, Figure],
    examples: tuple[Sequence[ClassExamples], Sequence[ClassExamples]] | None,
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
        "Observers": plots("observers", beside=people) if (people := table(("", ""), observer_rows(found))) else "",
        "Rights": _texts(found),
        "Most common classes": _pictures(examples[0]) if examples else "",
        "Least common classes": _pictures(examples[1]) if examples else "",
    }  # fmt: skip


def _faults(found: Description) -> str:
    if not found.faults:
        return ""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in found.faults)
    return note("Left out, because of faults that verify_dataset explains:") + f'<ul class="warnings">{lines}</ul>'


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
