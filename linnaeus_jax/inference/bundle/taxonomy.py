"""The classes of a model: ranks, taxon ids, names and tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.taxonomy.ranks import task_name
from linnaeus_jax.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """What the outputs of a model mean; tasks run from the finest rank to the coarsest."""

    tree: TaxonomyTree
    names: TaxonNames

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.tree.task_keys

    @property
    def classes(self) -> Mapping[str, NDArray[np.int64]]:
        """Task -> taxon id of each class, 0 for null."""
        return self.names.classes

    @property
    def first(self) -> int:
        """Index of the first class that is a taxon: 1 where class 0 is null."""
        return int(self.tree.null_possible)

    @cached_property
    def ranks(self) -> dict[str, str]:
        """Task -> what people call it."""
        return {task: task_name(task) for task in self.tasks}

    @cached_property
    def coarse_first(self) -> list[tuple[int, str]]:
        """Place among the tasks and name of every rank, coarsest first."""
        return list(enumerate(self.ranks.values()))[::-1]

    @cached_property
    def described(self) -> dict[str, list[tuple[str, int, str, str]]]:
        """Task -> rank, taxon id, scientific and common name of every class, as plain Python values."""
        names = self.names
        return {
            task: list(
                zip(
                    repeat(self.ranks[task]),
                    names.classes[task].tolist(),
                    map(str, names.name[task].tolist()),
                    map(str, names.common_name[task].tolist()),
                )
            )
            for task in self.tasks
        }

    @cached_property
    def _by_text(self) -> tuple[dict[str, list[tuple[str, int]]], ...]:
        """Classes by taxon id, by name, and by name in any case."""
        found: tuple[dict[str, list[tuple[str, int]]], ...] = ({}, {}, {})
        for task in self.tasks:
            for index in range(self.first, len(self.classes[task])):
                taxon, name = str(self.classes[task][index]), str(self.names.name[task][index])
                for texts, text in zip(found, (taxon, name, name.casefold())):
                    if text:
                        texts.setdefault(text, []).append((task, index))
        return found

    def _find_one(self, taxon: str | int) -> list[tuple[str, int]]:
        """A number is an id before it is a name; a text is a name before it is an id."""
        by_id, by_name, in_any_case = self._by_text
        text = str(taxon).strip()
        named = by_name.get(text) or in_any_case.get(text.casefold(), [])
        numbered = by_id.get(text, [])
        return (numbered or named) if isinstance(taxon, int) else (named or numbered)

    def find(self, taxa: str | int | Iterable[str | int]) -> list[tuple[str, int]]:
        """(task, class index) of taxa given by id or scientific name, or of one; a name that several ranks share gives
        several. A text is a name before it is an id, a number an id before it is a name.

        Raises:
          UserError: taxa that the model does not know.
        """
        asked = [taxa] if isinstance(taxa, (str, int)) else list(taxa)
        found = [self._find_one(taxon) for taxon in asked]
        unknown = [str(taxon).strip() for taxon, classes in zip(asked, found) if not classes]
        if unknown:
            more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
            raise UserError(
                f"the model does not know {len(unknown)} of {len(asked)} taxa: {', '.join(unknown[:10])}{more}; give "
                "taxon ids or scientific names of its classes"
            )
        return [one for classes in found for one in classes]

    def allowed(self, taxa: str | int | Iterable[str | int]) -> dict[str, NDArray[np.bool_]]:
        """Task -> bool [C], the classes that predictions restricted to some taxa may name: these taxa, everything below
        them, and their ancestors. Class 0 is allowed where it is null.

        Raises:
          UserError: taxa that the model does not know, or none.
        """
        found = self.find(taxa)
        if not found:
            raise UserError("the list of taxa to restrict to is empty; name at least one")
        listed = {task: np.zeros(len(self.classes[task]), bool) for task in self.tasks}
        for task, index in found:
            listed[task][index] = True
        allowed = {task: mask.copy() for task, mask in listed.items()}
        for place, task in enumerate(self.tasks):
            ancestors = self.tree.anc[task]
            for up in range(1, ancestors.shape[1]):
                above, coarser = ancestors[:, up], self.tasks[place + up]
                has = above >= 0
                allowed[task][has] |= listed[coarser][above[has]]  # below a listed one
                allowed[coarser][above[has & listed[task]]] = True
            if self.tree.null_possible:
                allowed[task][0] = True
        return allowed
