"""A page of pictures, each with the most similar ones of a file of vectors."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.files import write_atomically
from linnaeus_jax.inference.files.gallery import MOST, STYLE
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.page import note, page

__all__ = ["MOST", "Shown", "write_similar"]

_STYLE = """
.cards{grid-template-columns:repeat(auto-fill,minmax(min(100%,170px),1fr))}.card{contain-intrinsic-size:auto 270px}
.card td:last-child{width:auto;white-space:normal;text-align:left}
.card.asked{border:2px solid #0b5cad;background:#f0f6fc}
"""


@dataclass(frozen=True)
class Shown:
    """A picture as the page has it.

    Attributes:
      name: its id.
      element: makes the picture as an element of HTML.
      taxa: rank -> name, "" where it is not known.
      distance: from the picture that was asked for; None of this one itself.
    """

    name: str
    element: Callable[[], str]
    taxa: Mapping[str, str]
    distance: float | None = None


def write_similar(
    out: Path,
    title: str,
    said: str,
    groups: Sequence[Sequence[Shown]],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the page, which holds everything that it shows.

    Args:
      said: about all of them.
      groups: of each picture that was asked for, this and its neighbours, the nearest first.
      progress: (done, total).
    """
    elements = in_order(lambda shown: shown.element(), (shown for group in groups for shown in group))
    total, cards = sum(map(len, groups)), list[list[str]]()
    done = 0
    for group in groups:
        cards.append([])
        for shown in group:
            cards[-1].append(_card(shown, next(elements)))
            done += 1
            if progress:
                progress(done, total)
    sections = "".join(
        f'<h3>{html.escape(printable(group[0].name))}</h3><div class="cards">{"".join(some)}</div>'
        for group, some in zip(groups, cards)
    )
    write_atomically(out, page(title, {"The nearest first": f"<style>{STYLE}{_STYLE}</style>{note(said)}{sections}"}))


def _card(shown: Shown, picture: str) -> str:
    taxa = "".join(
        f"<tr><td>{html.escape(rank)}</td><td>{html.escape(printable(name))}</td></tr>"
        for rank, name in shown.taxa.items()
        if name
    )
    kind, heading = (" asked", "asked for") if shown.distance is None else ("", f"distance {shown.distance:.4f}")
    return (
        f'<article class="card{kind}"><figure>{picture}</figure><h3>{heading}</h3>'
        f'<p class="file">{html.escape(printable(shown.name))}</p><table>{taxa}</table></article>'
    )
