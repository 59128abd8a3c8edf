"""Tables on the console, and how a share stands in tables of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table with left-aligned first column and right-aligned rest."""
    result = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        result.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        result.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    return result


def percent(share: float | None) -> str:
    """72.3; - where there is none."""
    return "-" if share is None or math.isnan(share) else f"{100 * share:.1f}"
