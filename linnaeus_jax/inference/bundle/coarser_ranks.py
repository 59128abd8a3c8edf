"""Families, orders and coarser ranks for the classes of a published classifier, from a table of species or genera."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.identification import GENUS, SPECIES, check_taxa, identify
from linnaeus_jax.reading.table import TextOptions, read_columns

#: of names in messages
_SHOWN = 5


class RankTable:
    """What a table says of the ranks above the genus, by species where it lists them, else by genus.

    Attributes:
      levels: above the genus, finest first, such as ("L30", "L40").

    Raises:
      UserError: no such file, not a table, no column of species or genera, or none of a coarser rank; a taxon with two
        names at one rank.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        frame, links, _ = read_columns(path, TextOptions(), check=check_taxa)
        frame, levels, _ = identify(frame, links, path.name, "scientific")
        self.levels = tuple(level for level in levels if columns.level_number(level) > columns.level_number(GENUS))
        names = {level: schema.label_column("name", level) for level in (SPECIES, GENUS, *self.levels)}
        known = {level: name for level, name in names.items() if name in frame.columns}
        if not {SPECIES, GENUS} & set(known) or not set(self.levels) <= set(known) or not self.levels:
            raise UserError(
                f"{path}: columns with the names of a species or genus and of at least one coarser rank are needed, "
                f"such as genus,family,order; its columns are {', '.join(links.names.values())}"
            )
        self._of: dict[tuple[str, str], dict[str, str]] = {}
        for row in frame.select(known.values()).unique(maintain_order=True).iter_rows(named=True):
            above = {level: row[known[level]] for level in self.levels if row[known[level]]}
            species = row.get(known.get(SPECIES, ""))
            genus = row.get(known.get(GENUS, "")) or (species or "").partition(" ")[0]
            for level, name in ((SPECIES, species), (GENUS, genus)):
                if name:
                    self._add(level, name, above)

    def _add(self, level: str, name: str, above: Mapping[str, str]) -> None:
        """Of a genus that stands in two families nothing is known there: its species tell."""
        said = self._of.setdefault((level, name), {})
        for rank, taxon in above.items():
            if said.setdefault(rank, taxon) != taxon:
                if level == SPECIES:
                    raise UserError(
                        f"{self.path}: the {columns.rank_name(rank)} of {name!r} is {said[rank]!r} in one line and "
                        f"{taxon!r} in another; keep one of them"
                    )
                said[rank] = ""

    def above(self, species: str, genus: str) -> dict[str, str]:
        """{level: name} of one species; a level that the table does not tell is missing."""
        both = self._of.get((GENUS, genus), {}) | self._of.get((SPECIES, species), {})
        return {level: name for level, name in both.items() if name}

    def of_all(self, taxa: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
        """The same for all (species, genus).

        Raises:
          UserError: a level that the table does not tell for all of them, or a taxon in two coarser ones.
        """
        found = [self.above(*taxon) for taxon in taxa]
        for level in self.levels:
            lacking = [species for (species, _), above in zip(taxa, found, strict=True) if level not in above]
            if lacking:
                listed = ", ".join(lacking[:_SHOWN]) + (", …" if len(lacking) > _SHOWN else "")
                raise UserError(
                    f"{self.path} does not tell the {columns.rank_name(level)} of {len(lacking)} of {len(taxa)} "
                    f"classes: {listed}; add their species or genera"
                )
        return found
