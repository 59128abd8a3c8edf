"""One page with pictures and what was predicted for them, the least certain first."""

from __future__ import annotations

import heapq
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.files import json_text, write_atomically
from linnaeus_jax.inference.answers import Answered, AnswerOptions, Answers
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.novelty import novelty_text
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.mistakes import thumbnail
from linnaeus_jax.reporting.page import note, page

#: pictures of a page at most: each takes about 10 kB of it
MOST = 2000
#: longer side of a picture in pixels
SIDE = 224
#: taxa of a set that are shown
SHOWN = 20

STYLE = """
nav{display:none}.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,250px),1fr));gap:14px}
.card{border:1px solid #d5dae0;border-radius:6px;padding:8px 10px;
content-visibility:auto;contain-intrinsic-size:auto 380px;overflow-wrap:anywhere}
.card figure,.cards figure{width:auto;font-size:13px}.card img{height:auto;width:100%;max-width:100%;max-height:224px;
object-fit:contain;background:#f4f6f8;margin:0 0 6px}
.card h3{font-size:15px;margin:0 0 4px}.card .file{color:#57606a;font-size:12px;margin:0 0 6px}
.card table{width:100%;font-size:12.5px;margin:2px 0}.card td{padding:2px 4px;overflow-wrap:anywhere}
.card td:first-child{white-space:nowrap;color:#57606a}.card td:nth-child(2){text-align:left;width:60%}
.card td:last-child{width:64px;white-space:nowrap}.card small{color:#57606a;font-weight:400}
.bar{display:block;background:#e4e8ec;height:6px;border-radius:3px;margin-top:2px}
.bar i{display:block;background:#0b5cad;height:6px;border-radius:3px}
.card .set{font-size:12.5px;margin:4px 0 0}
.card .notes{color:#8a4b00;font-size:12px;margin:4px 0 0}
"""

Row = Mapping[str, Any]


class LeastCertain:
    """Keeps the pictures that a page will show, of any number.

    Their order: those without an answer first, then by the least probability along the path.
    """

    def __init__(self, answers: Answers, options: AnswerOptions, most: int = MOST) -> None:
        self._answers, self._options, self._most = answers, options, most
        self._kept: list[tuple[bool, float, int, Row]] = []  # a heap, whose first one is the most certain

    def _keep(self, uncertainty: tuple[bool, float], row: Row) -> bool:
        entry = (*uncertainty, -row["place"], row)
        if len(self._kept) < self._most:
            heapq.heappush(self._kept, entry)
            return True
        return heapq.heappushpop(self._kept, entry) is not entry

    def offer(self, part: Part[Answered], first: int, places: Sequence[int] | None = None) -> str:
        """Takes a part whose first picture has the number `first`; returns lines for `restore`.

        Args:
          places: numbers of the pictures that have an answer, where they do not follow each other.
        """
        answered = part.answered
        if answered is None:
            return ""
        uncertain = list(zip((answered.answer < 0).tolist(), (-answered.probability.min(axis=1)).tolist()))
        if places is None:
            places = [first + number for number, reason in enumerate(part.reasons) if not reason]
        least = self._kept[0][:2] if len(self._kept) == self._most else (False, -2.0)
        wanted = [row for row, value in enumerate(uncertain) if value > least]
        if not wanted:
            return ""
        predictions, names, lines = part.predictions(self._answers, self._options), part.names, []
        for row in wanted:
            said = predictions[row].to_json()
            del said["top"]
            said |= {"file": names[row], "place": places[row], "metadata_from": part.metadata_from[row]}
            said |= {"occurrence": part.occurrences[row]} if part.occurrences else {}
            if self._keep(uncertain[row], said):
                lines.append(json_text([uncertain[row], said]) + "\n")
        return "".join(lines)

    def restore(self, lines: Iterable[Any]) -> None:
        """Takes what an interrupted process kept."""
        for uncertainty, row in lines:
            self._keep(tuple(uncertainty), row)

    def rows(self) -> list[Row]:
        """The least certain first."""
        return [row for *_, row in sorted(self._kept, key=lambda entry: entry[:3], reverse=True)]


def write_gallery(
    out: Path,
    rows: Sequence[Row],
    paths: Sequence[Path],
    total: int,
    title: str,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the page, which holds everything that it shows.

    Args:
      rows: of `LeastCertain`.
      paths: where each of these pictures lies.
      total: pictures that were predicted.
      progress: (done, total).
    """
    cards = _cards(list(zip(paths, rows)), progress)
    part = f"the {len(rows):,} least certain of {total:,}" if len(rows) < total else f"all {total:,}"
    said = note(f"Pictures: {part}. First those without an answer, then by the least probability along the path.")
    body = f'<style>{STYLE}</style>{said}<div class="cards">{"".join(cards)}</div>'
    write_atomically(out, page(title, {"Least certain first": body}))


def _cards(shown: list[tuple[Path, Row]], progress: Callable[[int, int], None] | None) -> Iterator[str]:
    pictures = in_order(lambda entry: picture_element(lambda: pixels_of(entry[0].read_bytes())), shown)
    for done, (picture, (_, row)) in enumerate(zip(pictures, shown), 1):
        yield _card(row, picture)
        if progress:
            progress(done, len(shown))


def picture_element(read: Callable[[], NDArray[np.uint8]], side: int = SIDE) -> str:
    """The picture whose pixels [h, w, 3] are read as an element of HTML, at most `side` pixels a side, or why there is
    none."""
    try:
        data = thumbnail(read(), side)
    except (OSError, ValueError) as error:  # moved or changed since it was predicted
        return note(f"no picture: {printable(str(error))}")
    return f'<img loading="lazy" decoding="async" alt="" src="data:image/jpeg;base64,{data}">'


def pixels_of(data: bytes) -> NDArray[np.uint8]:
    """The pixels [h, w, 3] of a file, enough of them for a page."""
    return read_image(data, (2 * SIDE, 2 * SIDE))


def _card(row: Row, picture: str) -> str:
    answer = row["answer"]
    heading = f"{_label(answer)} {_percent(answer)}" if answer else "unknown"
    lines = "".join(
        f"<tr><td>{html.escape(taxon['rank'])}</td><td>{_label(taxon)}</td><td>{_percent(taxon)}{_bar(taxon)}</td></tr>"
        for taxon in [*row["path"], *row["always"]]
    )
    used = f"with {', '.join(row['inputs'])}" if row["inputs"] else "from the picture alone"
    used += {"exif": " (EXIF)", "table": " (table)"}.get(row["metadata_from"], "")
    if "occurrence" in row:
        occurrence, count = row["occurrence"]
        used = f"{used}; {count:,} picture{'s' * (count > 1)} of {printable(str(occurrence))}"
    texts = [*filter(None, (novelty_text(row), row["reason_text"])), *row["notes"]]
    notes = "".join(f'<p class="notes">{html.escape(printable(text))}</p>' for text in texts)
    if "set" in row:
        notes = f'<p class="set">set: {shortened(map(_label, row["set"]), SHOWN)}</p>{notes}'
    return (
        f'<article class="card"><figure>{picture}</figure><h3>{heading}</h3>'
        f'<p class="file">{html.escape(printable(row["file"]))}<br>{html.escape(used)}</p>'
        f"<table>{lines}</table>{notes}</article>"
    )


def _label(taxon: Row) -> str:
    if not taxon["taxon_id"]:
        return "unknown"
    common = f" <small>{html.escape(taxon['common_name'])}</small>" if taxon["common_name"] else ""
    return html.escape(taxon["name"] or str(taxon["taxon_id"])) + common


def _percent(taxon: Row) -> str:
    return f"{100 * taxon['probability']:.1f}&nbsp;%"


def _bar(taxon: Row) -> str:
    return f'<span class="bar"><i style="width:{100 * taxon["probability"]:.0f}%"></i></span>'
