"""Rows of classification heads between two sets of classes: matched by taxon id where the ids are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights.files import StateFile

#: task -> taxon id -> row; the id of the null class is 0
ClassRows = dict[str, dict[int, int]]


class RowMatch(NamedTuple):
    """Which row of the file each class takes: int [C], -1 where there is none; or None and the reason."""

    rows: NDArray[np.int64] | None
    note: str


def read_classes(path: str | Path) -> ClassRows:
    """A `class_to_idx.json`, {task: {taxon id as text, "null" for the null class: class index}}.

    Raises:
      UserError: no such file, or another content.
    """
    path = Path(path).expanduser()
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        found = {
            task: {0 if taxon == "null" else int(taxon): int(index) for taxon, index in classes.items()}
            for task, classes in tree.items()
        }
        if bad := [index for classes in found.values() for index in classes.values() if index < 0]:
            raise ValueError(f"class index {bad[0]}")
        return found
    except OSError as error:
        raise UserError(f"model.pretrained_classes = {str(path)!r} cannot be read: {error}") from error
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"model.pretrained_classes = {str(path)!r} is no class_to_idx.json: {{task: {{taxon id: class index}}}} is "
            f"needed ({error})"
        ) from error


def classes_of(file: StateFile, given: str) -> ClassRows:
    """The classes of a file: those of `given`, the key model.pretrained_classes, else as the file has them.

    Raises:
      UserError: `given` cannot be read, or the file's own list is of another length than its head.
    """
    if given:
        return read_classes(given)
    found: Any = file.facts.get("classes", {})
    return {task: {int(taxon): row for row, taxon in enumerate(ids)} for task, ids in found.items()}


def match_rows(task: str, source: ClassRows, source_count: int, ids: Sequence[int] | None, count: int) -> RowMatch:
    """Which rows of the file's head of `task` the classes of the model take.

    Args:
      source: the classes of the file.
      source_count: rows of the file's head.
      ids: taxon ids of the model's classes, 0 for null; None where they are unknown.
      count: number of the model's classes.

    Raises:
      UserError: the list of classes has an index that the head has not.
    """
    known = source.get(task)
    if known and max(known.values()) >= source_count:
        raise UserError(
            f"the classes of {task} have indices up to {max(known.values())}, but the head in the file has "
            f"{source_count} rows; give the class_to_idx.json that belongs to the weights in model.pretrained_classes"
        )
    if known and ids is not None:
        rows = np.array([known.get(int(taxon), -1) for taxon in ids], np.int64)
        found = int((rows >= 0).sum())
        same = found == count == source_count and bool((rows == np.arange(count)).all())
        return RowMatch(rows, "" if same else f"{found} of {count} rows by taxon id")
    if source_count == count:
        which = "the model" if known else "the file"
        note = f"rows in the order of the file: the classes of {which} are unknown; check that it is this one"
        return RowMatch(np.arange(count), note)
    return RowMatch(
        None,
        f"the file has {source_count} classes, the model {count}, and whose they are is unknown: give "
        "model.pretrained_classes",
    )


def ids_by_row(rows: Mapping[int, int]) -> list[int]:
    """Taxon ids in the order of their rows."""
    return [taxon for taxon, _ in sorted(rows.items(), key=lambda item: item[1])]
