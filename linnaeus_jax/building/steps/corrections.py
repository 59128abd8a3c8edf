"""Labels that people have corrected, written into a data set that is built, of which no picture is read again.

The rows stay as they are, so that pictures and everything that is stored of them fit as before. A row that is excluded
names no taxon any more, and is in no split of a run.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.steps.build import SUMMARY
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels import LabelTable, read_label_tables
from linnaeus_jax.data.labels_file import json_attribute, open_labels
from linnaeus_jax.data.taxon_names import GROUP, TaxonNames, read_taxon_names, write_taxon_names
from linnaeus_jax.files import json_text, read_json, replaced_file, sha256_of, write_json
from linnaeus_jax.reading.delimited import find_dialect
from linnaeus_jax.reading.schema import CORRECT, EXCLUDE
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.tree import TaxonomyTree

LABELS, BEFORE = "labels.h5", "labels.before.h5"
#: column of the list that names the picture
ID = "id"
#: attribute of the group `metadata`: the lists that were applied
APPLIED = "corrections"
_ID_AT_END = re.compile(r"(?:.*\[)?(\d+)\]?")


@dataclass(frozen=True)
class Corrected:
    """How many rows got another label, were excluded, and had that label before."""

    changed: int
    excluded: int
    same: int


def read_corrections(path: Path) -> dict[str, str]:
    """Id of a picture -> its right taxon, or "exclude", of the lines that say one.

    Raises:
      UserError: a column is missing, or an id has two taxa.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--corrections {path}: no text file in UTF-8 that can be read: {error}") from error
    separator = find_dialect(text.partition("\n")[0].encode()).separator
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    if not {ID, CORRECT} <= set(rows.fieldnames or ()):
        there = printable(", ".join(rows.fieldnames or ()) or "none")
        raise UserError(f"--corrections {path}: it needs the columns {ID} and {CORRECT}; its columns: {there}")
    found: dict[str, str] = {}
    for row in rows:
        taxon = " ".join((row[CORRECT] or "").split())
        if taxon and found.setdefault(row[ID], taxon) != taxon:
            raise UserError(f"--corrections {path}: {printable(row[ID])} is {found[row[ID]]!r} and {taxon!r}; keep one")
    if not found:
        raise UserError(f"--corrections {path}: the column {CORRECT} is empty; write the right taxa into it")
    return found


def apply_corrections(directory: Path, path: Path, tasks: tuple[str, ...]) -> Corrected:
    """Writes the labels file of a data set anew, whole and at once; the first one stays beside it as `BEFORE`.

    A taxon is one of the file, at any rank: its name, its id, or "name [id]". Ranks above it follow, those below it
    are unknown then.

    Args:
      tasks: its label columns, finest rank first.

    Raises:
      UserError: an id that is no picture of the file, a taxon that it does not have, or files that cannot be read.
    """
    labels, corrections = directory / LABELS, read_corrections(path)
    table, names, tree, applied = read_taxa(labels, tasks)
    classes = names.classes
    rows = {text: row for row, text in enumerate(table.identifiers.tolist())}
    if lost := [text for text in corrections if text not in rows]:
        raise UserError(
            f"--corrections {path}: {len(lost)} of {len(corrections)} ids, such as {printable(lost[0])!r}, are no "
            f"pictures of {labels}; give the list that was made of this data set"
        )
    taxa = _Taxa(path, tasks, classes, {task: names.name[task].tolist() for task in tasks}, tree)
    taxon = table.taxon.copy()
    for text, correct in corrections.items():
        taxon[rows[text]] = taxa.path_of(correct)
    changed = (taxon != table.taxon).any(axis=1)
    left_out = int((changed & (taxon == 0).all(axis=1)).sum())
    if changed.any():
        said = {"file": path.name, "sha256": sha256_of(path), "rows": int(changed.sum())}
        write_taxa(labels, labels, {task: taxon[:, t] for t, task in enumerate(tasks)}, [*applied, said])
    return Corrected(int(changed.sum()) - left_out, left_out, len(corrections) - int(changed.sum()))


def read_taxa(
    labels: Path, tasks: tuple[str, ...]
) -> tuple[LabelTable, TaxonNames, TaxonomyTree, list[dict[str, object]]]:
    """Rows, names and tree of a labels file, and the lists that were applied to it. Raises UserError as above."""
    try:
        (table,), classes = read_label_tables([str(labels)], tasks, (), null_possible=True)
        names = read_taxon_names([str(labels)], classes)
        tree, _ = TaxonomyTree.from_labels(classes, [table.label], null_possible=True)
        with open_labels(str(labels)) as file:
            applied = json_attribute(file["metadata"], APPLIED) or [] if "metadata" in file else []
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return table, names, tree, applied


@dataclass(frozen=True)
class _Taxa:
    """The taxa of a labels file, by what people write for them."""

    path: Path
    tasks: tuple[str, ...]
    classes: Mapping[str, NDArray[np.int64]]
    names: Mapping[str, list[str]]
    tree: TaxonomyTree

    def path_of(self, text: str) -> NDArray[np.int64]:
        """Taxon ids [T] of a taxon and its ancestors; UserError where there is no such taxon."""
        ids = np.zeros(len(self.tasks), np.int64)
        if text.lower() == EXCLUDE:
            return ids
        number = _ID_AT_END.fullmatch(text)
        for place, task in enumerate(self.tasks):
            known, names = self.classes[task].tolist(), self.names[task]
            at = names.index(text) if text in names else None
            if at is None and number and int(number[1]) in known[1:]:
                at = known.index(int(number[1]))
            if at is not None:
                for above, index in enumerate(self.tree.anc[task][at].tolist(), place):
                    ids[above] = self.classes[self.tasks[above]][index] if index > 0 else 0
                return ids
        every = [name for names in self.names.values() for name in names if name]
        near = difflib.get_close_matches(text, every, 1)
        hint = f"did you mean {near[0]!r}?" if near else "build its pictures with the others first"
        raise UserError(f"--corrections {self.path}: {printable(text)!r} is no taxon of this data set; {hint}")


def write_taxa(
    labels: Path,
    out: Path,
    taxon: Mapping[str, NDArray[np.int64]],
    applied: list[dict[str, object]],
    names: TaxonNames | None = None,
) -> None:
    """Writes a labels file with other taxa, and names, to `out`; where that is the file itself, the first one stays
    beside it as `BEFORE`."""
    directory, before = labels.parent, labels.parent / BEFORE
    changed = io.BytesIO(labels.read_bytes())  # in memory: on a full disk HDF5 ends the process
    with h5py.File(changed, "r+") as file:
        for task, values in taxon.items():
            file[task][:] = values.astype(file[task].dtype)
        for task, ids in names.classes.items() if names else ():
            known = np.flatnonzero(ids)
            file.require_group(GROUP).pop(task, None)
            columns = (names.name[task], names.common_name[task]) if names else ()
            write_taxon_names(file, task, ids[known], *(list(map(str, each[known].tolist())) for each in columns))
        file.require_group("metadata").attrs[APPLIED] = json_text(applied)
    if out == labels and not before.exists():
        with replaced_file(before) as unfinished:
            shutil.copyfile(labels, unfinished)
        if (directory / SUMMARY).is_file():  # what a build that replaces this one removes
            made = read_json(directory / SUMMARY)
            write_json(directory / SUMMARY, made | {"files": [*made.get("files", ()), BEFORE]})
    with replaced_file(out) as unfinished:
        unfinished.write_bytes(changed.getbuffer())
