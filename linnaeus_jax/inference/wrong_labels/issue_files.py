"""What is at issue as a list for people to correct (CSV), as JSON, and as a page with pictures."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.files import make_directory, write_atomically, write_json
from linnaeus_jax.inference.files.gallery import SIDE, STYLE, picture_element
from linnaeus_jax.inference.files.prediction_lines import csv_line
from linnaeus_jax.inference.wrong_labels.label_issues import LabelIssues
from linnaeus_jax.inference.wrong_labels.labelled_features import LabelledFeatures
from linnaeus_jax.reading.labelled_pictures import open_pictures, stored_picture
from linnaeus_jax.reading.schema import CORRECT, EXCLUDE
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.page import note, page, table
from linnaeus_jax.taxonomy.ranks import task_name

#: of the page: rows that it shows unless told otherwise; pictures of each of the two taxa beside one; their longer side
MOST, BESIDE, SMALL = 200, 3, 96
LIST, JSON, PAGE = "label_issues.csv", "label_issues.json", "label_issues.html"
COLUMNS = (
    *("id", CORRECT, "rank", "given", "suggested", "differs_at"),
    *("given_probability", "suggested_probability", "score"),
)

_STYLE = """
.card{contain-intrinsic-size:auto 560px}.card:focus{outline:3px solid #0b5cad}
.strip{display:flex;gap:6px;margin:2px 0 6px}.strip figure{width:calc(33% - 4px)}
.strip img{height:72px;margin:0}.card h4{font-weight:400;font-size:12.5px;margin:6px 0 0}
"""

Entry = Mapping[str, Any]
Picture = Callable[[int, int], str]


def issue_entries(rows: LabelledFeatures, found: LabelIssues) -> Iterator[dict[str, Any]]:
    """Of each row at issue, the worst first, what the list says and `similar`: rows of the given and of the suggested
    taxon that are most similar."""
    for row in found.order[found.at_issue[found.order]].tolist():
        place = found.place[row]
        task = rows.tasks[place]
        rank, given = found.ranks[task], int(rows.label[row, place])
        other, share = int(rank.other[row]), rank.shares(row).round(4).tolist()
        ancestors = [rows.tree.anc[task][index] for index in (given, other)]
        same = np.flatnonzero((ancestors[0] == ancestors[1]) & (ancestors[0] >= 0))
        coarsest = rows.tasks[place + (same[0] if len(same) else len(ancestors[0])) - 1]
        yield {
            "row": row,
            "id": rows.ids[row],
            CORRECT: "",
            "rank": task_name(task),
            "given": rows.names.label(task, given),
            "suggested": rows.names.label(task, other),
            "differs_at": task_name(coarsest),
            "given_probability": share[given],
            "suggested_probability": share[other],
            "score": round(float(found.score[row]), 4),
            "similar": [rows.most_similar(row, place, index, BESIDE) for index in (given, other)],
        }


def summary(rows: LabelledFeatures, found: LabelIssues) -> dict[str, Any]:
    """What is said of all rows: `ranks`: rows that are judged and at issue there; `pairs` of taxa, most rows first."""
    ranks = {
        task_name(task): {"judged": int((~np.isnan(rank.margin)).sum()), "at_issue": int(rank.issue.sum())}
        for task, rank in found.ranks.items()
    }
    pairs = [
        {
            "rank": task_name(task),
            "given": rows.names.label(task, given),
            "suggested": rows.names.label(task, other),
            "rows": count,
        }
        for task, rank in found.ranks.items()
        for given, other, count in rank.joint
    ]
    return {
        "rows": len(rows),
        "at_issue": int(found.at_issue.sum()),
        "notes": list(rows.notes),
        "ranks": ranks,
        "pairs": sorted(pairs, key=lambda pair: -pair["rows"]),
    }


def write_issues(
    out: Path,
    rows: LabelledFeatures,
    found: LabelIssues,
    most: int = MOST,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Writes the three files into a folder, each whole; returns the content of the JSON.

    Args:
      most: rows that the page shows.
      progress: told (rows shown, rows to show).
    """
    entries = list(issue_entries(rows, found))
    similar = [
        {"given": [rows.ids[i] for i in entry["similar"][0]], "suggested": [rows.ids[i] for i in entry["similar"][1]]}
        for entry in entries
    ]
    listed = [{name: entry[name] for name in COLUMNS} for entry in entries]
    issues = [{**entry, "similar": near} for entry, near in zip(listed, similar, strict=True)]
    content = summary(rows, found) | {"issues": [{k: v for k, v in entry.items() if k != CORRECT} for entry in issues]}
    make_directory(out)
    write_atomically(out / PAGE, issue_page(content, entries[:most], _pictures(rows), progress))
    write_json(out / JSON, content)
    write_atomically(out / LIST, [csv_line(COLUMNS), *(csv_line(entry.values()) for entry in listed)])
    return content


def _pictures(rows: LabelledFeatures) -> Picture:
    """A function of a row and the longer side in pixels to an element of HTML; it says so where there is no picture."""
    opened: list[tuple[ImageSource | None, int]] = []
    for side in rows.sides:
        try:
            source = None
            if side.images is not None:
                source = open_pictures(side.images, Path(side.table.path), side.extension)
        except UserError as error:
            why = printable(str(error))
            return lambda row, side: note(f"no picture: {why}")
        opened += [(source, int(number)) for number in side.rows]

    def element(row: int, side: int) -> str:
        source, number = opened[row]
        if source is None:
            return note("no picture: --images names none")
        return picture_element(functools.partial(_pixels, source, number, side), side)

    return element


def _pixels(source: ImageSource, row: int, side: int) -> NDArray[np.uint8]:
    stored = stored_picture(source, row)
    return read_image(stored, (2 * side, 2 * side)) if isinstance(stored, bytes) else stored


def issue_page(
    content: Mapping[str, Any],
    shown: Sequence[Entry],
    picture: Picture,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """The page, which holds everything that it shows.

    Args:
      content: of `summary`.
      shown: of `issue_entries`.
      picture: see `_pictures`.
    """
    cards = []
    for card in in_order(functools.partial(_card, picture=picture), shown):
        cards.append(card)
        progress(len(cards), len(shown))
    ranks = [(rank, of["judged"], of["at_issue"]) for rank, of in content["ranks"].items()]
    pairs = [[pair[key] for key in ("rank", "given", "suggested", "rows")] for pair in content["pairs"][:20]]
    part = f"the worst {len(shown):,} of {content['at_issue']:,}" if len(shown) < content["at_issue"] else "all of them"
    said = note(
        f"{content['at_issue']:,} of {content['rows']:,} labels are at issue; shown: {part}, the worst first. Write "
        f"the right taxon, or {EXCLUDE}, into the column {CORRECT!r} of {LIST}; empty: the label is right."
    )
    said += "".join(map(note, content["notes"])) + table(("rank", "labels judged", "at issue"), ranks)
    sections = {
        "Labels at issue": said,
        "The worst first": f'<style>{STYLE}{_STYLE}</style><div class="cards">{"".join(cards)}</div>' if cards else "",
        "Taxa that are taken for each other": table(("rank", "labelled", "looks like", "rows"), pairs, left=3),
    }
    return page("Labels that are probably wrong", sections)


def _card(entry: Entry, picture: Picture) -> str:
    strips = ""
    for taxon, what, similar in zip(("given", "suggested"), ("labelled", "looks like"), entry["similar"]):
        name, share = html.escape(printable(entry[taxon])), 100 * entry[f"{taxon}_probability"]
        figures = "".join(f"<figure>{picture(row, SMALL)}</figure>" for row in similar)
        strips += f'<h4>{what} <b>{name}</b>, {share:.1f}&nbsp;%</h4><div class="strip">{figures}</div>'
    return (
        f'<article class="card" tabindex="0"><figure>{picture(entry["row"], SIDE)}</figure>'
        f"<h3>another {html.escape(entry['differs_at'])}?</h3>"
        f'<p class="file">{html.escape(printable(entry["id"]))}</p>{strips}</article>'
    )
