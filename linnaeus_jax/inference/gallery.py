"""One page with pictures and what was predicted for them, the least certain first."""

from __future__ import annotations

import heapq
import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from linnaeus_jax.building.parallel import in_order
from linnaeus_jax.building.text import printable
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.files import write_atomically
from linnaeus_jax.reporting.mistakes import thumbnail
from linnaeus_jax.reporting.page import note, page

#: pictures of a page at most: each takes about 10 kB of it
MOST = 2000
#: longer side of a picture in pixels
SIDE = 224

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
.card .notes{color:#8a4b00;font-size:12px;margin:4px 0 0}
"""

Row = Mapping[str, Any]


def certainty(row: Row) -> tuple[bool, float]:
    """What a page is ordered by: whether there is an answer at all, then the least probability along the path."""
    return row["answer"] is not None, min((taxon["probability"] for taxon in row["path"]), default=0.0)


def write_gallery(
    out: Path,
    rows: Iterable[Row],
    paths: Callable[[int], Path],
    title: str,
    *,
    most: int = MOST,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes the page, which holds everything that it shows.

    Args:
      rows: lines of predictions, see `prediction_files.row_of`, of all pictures in order; those of pictures that could
        not be read are passed over.
      paths: where the picture of a line lies, by its place.
      most: pictures that are shown, the least certain ones.
      progress: (done, total).

    Returns:
      How many are shown.
    """
    total = 0
    kept: list[tuple[bool, float, int, Row]] = []
    for place, row in enumerate(rows):
        if "unreadable" in row:
            continue
        total += 1
        entry = (not certainty(row)[0], -certainty(row)[1], -place, row)  # the largest are the least certain
        if len(kept) < most:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    shown = sorted(kept, key=lambda entry: entry[:3], reverse=True)
    cards = _cards([(paths(-place), row) for _, _, place, row in shown], progress)
    part = f"the {len(shown):,} least certain of {total:,}" if len(shown) < total else f"all {total:,}"
    said = note(f"Pictures: {part}. First those without an answer, then by the least probability along the path.")
    write_atomically(
        out,
        page(title, {"Least certain first": f'<style>{STYLE}</style>{said}<div class="cards">{"".join(cards)}</div>'}),
    )
    return len(shown)


def _cards(shown: list[tuple[Path, Row]], progress: Callable[[int, int], None] | None) -> Iterator[str]:
    pictures = in_order(lambda entry: _picture(entry[0]), shown)
    for done, (picture, (_, row)) in enumerate(zip(pictures, shown), 1):
        yield _card(row, picture)
        if progress:
            progress(done, len(shown))


def _picture(path: Path) -> str:
    """The picture as an element, or why there is none."""
    try:
        data = thumbnail(read_image(path.read_bytes(), (2 * SIDE, 2 * SIDE)), SIDE)
    except (OSError, ValueError) as error:  # moved or changed since it was predicted
        return note(f"no picture: {printable(str(error))}")
    return f'<img loading="lazy" decoding="async" alt="" src="data:image/jpeg;base64,{data}">'


def _card(row: Row, picture: str) -> str:
    answer = row["answer"]
    heading = f"{_label(answer)} {_percent(answer)}" if answer else "unknown"
    lines = "".join(
        f"<tr><td>{html.escape(taxon['rank'])}</td><td>{_label(taxon)}</td><td>{_percent(taxon)}{_bar(taxon)}</td></tr>"
        for taxon in [*row["path"], *row["always"]]
    )
    used = f"with {', '.join(row['inputs'])}" if row["inputs"] else "from the picture alone"
    used += {"exif": " (EXIF)", "table": " (table)"}.get(row["metadata_from"], "")
    notes = "".join(f'<p class="notes">{html.escape(printable(text))}</p>' for text in row["notes"])
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
