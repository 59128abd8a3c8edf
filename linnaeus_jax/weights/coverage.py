"""What became of every leaf of a model and of every array of a file, for people and for the record of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from linnaeus_jax.mistakes import shortened

LOADED, RESIZED, MATCHED = "loaded", "resized", "matched rows"
OTHER_SHAPE, INITIAL, SKIPPED = "other shape", "initial", "skipped"
#: of a leaf of the model: the first five; of an array of the file that went nowhere: the last
STATUSES = (LOADED, RESIZED, MATCHED, OTHER_SHAPE, INITIAL, SKIPPED)
#: lines below the table for each status
SHOWN = 12
#: width of the table in characters where no terminal decides it
WIDTH = 110


class Row(NamedTuple):
    """One leaf of the model, or one array of a file that was not used.

    Attributes:
      name: canonical name of the leaf, or name of the array in the file.
      group: the module, as in the table.
      status: one of `STATUSES`.
      note: why, or where it comes from; empty where the name says all.
      parameters: values of the leaf that can be trained, 0 of arrays that were not used.
      taken: how many of them come from the file.
      allowed: whether this is as the kind of file has it, so that `model.pretrained_strict` does not mind.
    """

    name: str
    group: str
    status: str
    note: str = ""
    parameters: int = 0
    taken: int = 0
    allowed: bool = True


def group_of(name: str) -> str:
    """The module that a row belongs to: the first part of the name, with the second of numbered stages and of heads."""
    match = re.match(r"(?:stages|downsample_layers|blocks|head)\.\w+(?=\.)|[^.]+", name)
    return match[0] if match else name


@dataclass(frozen=True)
class Coverage:
    """Every leaf of the model and every array of the files, each once, and remarks about all of them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def of(self, *statuses: str) -> list[Row]:
        """The rows of these statuses, in order."""
        return [row for row in self.rows if row.status in statuses]

    def whole(self) -> frozenset[str]:
        """Names of the leaves whose values are all of the file, in the shape that they had there."""
        return frozenset(row.name for row in self.of(LOADED, MATCHED) if row.taken == row.parameters)

    def counts(self) -> dict[str, int]:
        """Number of rows by status."""
        return {status: len(self.of(status)) for status in STATUSES}

    def summary(self) -> str:
        """One sentence: how many leaves are of the file, and how many parameters."""
        leaves = [row for row in self.rows if row.status != SKIPPED]
        taken = self.of(LOADED, RESIZED, MATCHED)
        total = sum(row.parameters for row in leaves)
        share = f"{sum(row.taken for row in taken) / total:.1%}" if total else "none"
        return f"{len(taken)} of {len(leaves)} arrays of the model are of the file ({share} of {total:,} parameters)"

    def table(self, width: int = WIDTH) -> str:
        """Text for people: a row for each module, then what is not simply loaded, then the remarks."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.group, []).append(row)
        table = Table(title=self.summary(), title_justify="left")
        table.add_column("module", overflow="fold")
        for heading in (*STATUSES, "parameters"):
            table.add_column(heading, justify="right")
        for group, rows in groups.items():
            counts = [sum(row.status == status for row in rows) for status in STATUSES]
            parameters = sum(row.parameters for row in rows)
            table.add_row(group, *(str(count or "") for count in counts), f"{parameters:,}" if parameters else "")
        console = Console(width=width, no_color=True, highlight=False, markup=False, emoji=False)
        with console.capture() as text:
            console.print(table)
        lines = [line.rstrip() for line in text.get().splitlines()]
        return "\n".join([*lines, *self._lists(), *self.notes])

    def _lists(self) -> Iterable[str]:
        for status in STATUSES:
            rows = self.of(status)
            if status == LOADED:
                rows = [row for row in rows if row.note and not re.fullmatch(r"from \S+", row.note)]
            if rows:
                yield f"{status}:"
            by_note: dict[str, list[str]] = {}
            for row in rows:
                by_note.setdefault(row.note, []).append(row.name)
            for note, names in list(by_note.items())[:SHOWN]:
                yield f"  {shortened(names)}{f': {note}' if note else ''}"
            if len(by_note) > SHOWN:
                yield f"  and {sum(map(len, list(by_note.values())[SHOWN:]))} more"

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON types."""
        return {
            "summary": self.summary(),
            "counts": self.counts(),
            "notes": list(self.notes),
            "rows": [{**row._asdict()} for row in self.rows],
        }


def first_of(rows: Mapping[str, str] | Iterable[str], number: int = 5) -> str:
    """The first names, with their texts in a mapping, and how many more there are."""
    items = [f"{name} ({text})" for name, text in rows.items()] if isinstance(rows, Mapping) else list(rows)
    return shortened(items, number)
