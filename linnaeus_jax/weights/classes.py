"""Rows of classification heads between two sets of classes: matched by taxon id where the ids are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import read_json
from linnaeus_jax.mistakes import InputError, whole
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
        found = {}
        for task, classes in read_json(path).items():
            found[task] = {0 if taxon == "null" else whole(taxon): whole(index) for taxon, index in classes.items()}
            if len({index for index in found[task].values() if index >= 0}) < len(classes):
                raise ValueError(f"the taxa of {task} must have class indices of 0 or more, each its own")
        return found
    except OSError as error:
        raise UserError(f"model.pretrained_classes = {str(path)!r} cannot be read: {error}") from error
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"model.pretrained_classes = {str(path)!r} is no class_to_idx.json: {{task: {{taxon id: class index}}}} is "
            f"needed ({error})"
        ) from error


def ids_of_maps(maps: Mapping[str, Any], name: str) -> dict[str, list[int]]:
    """Task -> taxon ids of its classes, in order, of the four documented maps in a class_index_map.json; those other
    than `idx_to_taxon_id` may be missing.

    Args:
      name: of the file, for messages.

    Raises:
      InputError: a map that contradicts itself or another one.
      LookupError, TypeError, AttributeError: it has another form.
    """
    found = {}
    for task, of_index in maps["idx_to_taxon_id"].items():
        if sorted(map(whole, of_index)) != list(range(len(of_index))):
            raise InputError(f"{name}: the classes of {task} are not numbered from 0 to {len(of_index) - 1}")
        ids = [whole(of_index[str(index)]) for index in range(len(of_index))]
        if len(set(ids)) != len(ids) or min(ids, default=0) < 0:
            raise InputError(f"{name}: the taxon ids of {task} must be different numbers of 0 or more")
        null = 0 if ids[:1] == [0] else None
        others = {
            "taxon_id_to_idx": {str(taxon): index for index, taxon in enumerate(ids)},
            "num_classes_per_rank": len(ids),
            "null_taxon_ids": null,
        }
        for other, needed in others.items():
            if task in maps.get(other, {}) and maps[other][task] != needed:
                raise InputError(f"{name}: {other} of {task} contradicts idx_to_taxon_id")
        found[task] = ids
    return found


def classes_of(file: StateFile, given: str) -> ClassRows:
    """The classes of a file: those of `given`, the key model.pretrained_classes, else as the file has them.

    Raises:
      UserError: `given` cannot be read, or the file's own list is of another length than its head.
    """
    if given:
        return read_classes(given)
    found: Any = file.facts.get("classes", {})
    for task, ids in found.items():
        if len(set(ids)) < len(ids):
            raise UserError(f"{file.path}: its list of the classes of {task} names a taxon twice; export it again")
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
    if known and len(known) < source_count:
        raise UserError(
            f"the list of the classes of {task} names {len(known)} of the {source_count} rows of the head in the file; "
            "give the class_to_idx.json that belongs to the weights in model.pretrained_classes"
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
