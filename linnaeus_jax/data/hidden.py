"""Taxa that a run is to know nothing of (`data.hide_taxa`), so that what is said of new ones can be measured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linnaeus_jax.data.labels import LabelTable
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.mistakes import InputError

log = logging.getLogger(__name__)


def without_taxa(tables: Sequence[LabelTable], names: TaxonNames, hide: Sequence[str]) -> list[LabelTable]:
    """The tables with no taxon at any rank in the rows of some taxa and of all below them, so that they are not used.

    Args:
      names: of the taxa in the tables.
      hide: scientific names, in any case, or taxon ids.

    Raises:
      InputError: a taxon that no row has, or none is left.
    """
    wanted = {text.strip().casefold() for text in hide}
    found, hidden = set(), [np.zeros(len(table), bool) for table in tables]
    for place, (task, ids) in enumerate(names.classes.items()):
        taxa = []
        for taxon, name in zip(ids.tolist(), names.name[task].tolist(), strict=True):
            if taxon and (texts := wanted & {str(taxon), str(name).casefold()}):
                found |= texts
                taxa.append(taxon)
        for rows, table in zip(hidden, tables, strict=True):
            rows |= np.isin(table.taxon[:, place], taxa)
    files = " and ".join(table.path for table in tables)
    if unknown := sorted(wanted - found):
        raise InputError(
            f"data.hide_taxa names {unknown[0]!r}, of which {files} has no row; give scientific names or taxon ids"
        )
    if all(rows.all() for rows in hidden):
        raise InputError(f"data.hide_taxa hides every row of {files}; hide fewer taxa")
    log.info("data.hide_taxa: %d rows of %s are not used", sum(int(rows.sum()) for rows in hidden), files)
    return [
        replace(table, taxon=np.where(rows[:, None], 0, table.taxon))
        for table, rows in zip(tables, hidden, strict=True)
    ]
