"""A data set of which taxa have been renamed, merged, moved or split; no picture is read again."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from linnaeus_jax.building.steps.corrections import ID, LABELS, read_taxa, write_taxa
from linnaeus_jax.data.taxon_changes import ChangedTaxa
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.files import write_atomically
from linnaeus_jax.reading.schema import CORRECT
from linnaeus_jax.taxonomy.tree import TaxonomyTree

#: pictures of taxa that are split, in the form of `--corrections`
UNDECIDED = "undecided.csv"
_CONFIG, _IMAGES = "config.py", 'str(HERE / "images.h5")'


def renamed_labels(
    labels: Path,
    tasks: tuple[str, ...],
    out: Path,
    change: Callable[[TaxonomyTree, TaxonNames], ChangedTaxa],
    applied: dict[str, object],
) -> tuple[ChangedTaxa, int, int]:
    """Writes the labels file with the taxa as they are now; the rows stay as they are.

    The first file stays beside it where `out` is the same. In another folder a config.py that lies beside it follows,
    with the pictures where they are. `UNDECIDED` beside `out` lists the pictures of taxa that are split.

    Args:
      tasks: its label columns, finest rank first.
      change: of the taxa of the file; see `change_taxa`.
      applied: what the file says of the list.

    Returns:
      What changed, how many rows have other taxa, and how many pictures are undecided.
    """
    table, names, tree, before = read_taxa(labels, tasks)
    changed = change(tree, names)
    taxon = changed.rows(table.label)
    rows = int((taxon != table.taxon).any(axis=1).sum())
    columns = {task: taxon[:, t] for t, task in enumerate(tasks)}
    write_taxa(labels, out, columns, [*before, applied | {"rows": rows}], changed.names)
    config = labels.parent / _CONFIG
    if out.parent != labels.parent and labels.name == out.name == LABELS and config.is_file():
        there = (labels.parent / "images.h5").resolve()
        write_atomically(out.parent / _CONFIG, config.read_text(encoding="utf-8").replace(_IMAGES, repr(str(there))))
    found = io.StringIO()
    writer, undecided = csv.writer(found, lineterminator="\n"), 0
    writer.writerow((ID, "taxon", "becomes", CORRECT))
    for task, at, to in changed.split:
        of = np.flatnonzero(table.label[:, tasks.index(task)] == at)
        undecided += len(of)
        writer.writerows((str(name), names.label(task, at), to, "") for name in table.identifiers[of])
    if changed.split:
        write_atomically(out.parent / UNDECIDED, found.getvalue())
    return changed, rows, undecided
