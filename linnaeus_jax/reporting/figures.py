"""What all figures of the reports share: sizes, colours, panels, and how they get into a page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 11.6  # inches at 100 pixels
#: inches of a figure that a telephone shows as a whole
NARROW = 6.0
#: Okabe & Ito's palette, which people with colour-blindness can tell apart, without its yellow
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#7A5195")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("", "o", "s", "^", "D", "v", "P")


def image(figure: Figure, title: str) -> str:
    """The figure as SVG within the page; on a narrow screen a wide one keeps a size that can be read, and scrolls."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "linnaeus_jax"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    data = base64.b64encode(file.getvalue()).decode()
    picture = f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{data}">'
    wide = " wide-figure" if figure.get_figwidth() > NARROW else ""
    return f'<div class="scroll{wide}">{picture}</div>'


def literal(text: str) -> str:
    """A text of unknown origin for a figure, in which a pair of dollars would be a formula."""
    return text.replace("$", "\\$")


def grid(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with `count` panels, each `height` inches high."""
    from matplotlib.figure import Figure  # the import takes a second, which only those who draw should pay

    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, rows * height + 0.5), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes[:count]


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels."""
    handles = {
        label: handle
        for panel in axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        if not label.startswith("_")
    }
    longest = max((len(label) for label in handles), default=1)
    columns = max(1, min(len(handles), int(150 / (longest + 8))))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9, frameon=False
    )


def labels(panel: Axes, title: str, x: str, y: str) -> None:
    """Title and names of the axes of a panel."""
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.tick_params(labelsize=8)
