"""Tables on the console."""

from __future__ import annotations

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
