"""The classes of a model: ranks, taxon ids, names and tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import files
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.files import json_text
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.run.saved_weights import BUNDLE_CLASSES
from linnaeus_jax.taxonomy.ranks import task_name
from linnaeus_jax.taxonomy.tree import MOST_RANKS, TaxonomyTree, parents_of
from linnaeus_jax.weights.classes import ids_of_maps


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """What the outputs of a model mean; tasks run from the finest rank to the coarsest.

    Attributes:
      tree, names: of the taxa that are answered.
      heads: what the columns of the heads mean, where taxa have been merged or moved since; None: the same.
    """

    tree: TaxonomyTree
    names: TaxonNames
    heads: Heads | None = None

    @property
    def of_heads(self) -> Taxonomy:
        """The taxa that the model was trained with."""
        return self.heads.taxonomy if self.heads else self

    def summed(self, of_columns: Mapping[str, Any]) -> dict[str, Any]:
        """Task -> [..., C] of each class the sum over its columns of a head, [..., columns]; what is no class counts
        for null."""
        if self.heads is None:
            return dict(of_columns)
        found = {}
        for task, values in of_columns.items():
            of = np.maximum(self.heads.class_of[task], self.first - 1)
            found[task] = np.zeros((*np.shape(values)[:-1], len(self.classes[task])), np.asarray(values).dtype)
            np.add.at(found[task].T, of[of >= 0], np.asarray(values).T[of >= 0])
        return found

    def columns(self, task: str, classes: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Columns of a head whose class is one of these, bool [C]."""
        of = self.heads.class_of[task] if self.heads else np.arange(len(classes))
        return np.flatnonzero(np.append(classes, False)[np.maximum(of, self.first - 1)])

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
            raise UserError(
                f"the model does not know {len(unknown)} of {len(asked)} taxa: {shortened(unknown, 10)}; give "
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


@dataclass(frozen=True, eq=False)
class Heads:
    """The taxa that a model was trained with, where it answers others.

    Attributes:
      taxonomy: of the columns of the heads.
      class_of: task -> int64 [columns], the class of the same rank that each is now; -1: unknown there.
    """

    taxonomy: Taxonomy
    class_of: Mapping[str, NDArray[np.int64]]


# ---- Tree and classes of a bundle as JSON files, and back


TAXONOMY = "taxonomy.json"
CLASS_MAP = BUNDLE_CLASSES
CHANGED = "changed_taxonomy.json"


def write_taxonomy(taxonomy: Taxonomy, tree: Path, classes: Path) -> None:
    """Writes `taxonomy.json` and `class_index_map.json`, the latter with the four maps that the original documents."""
    tree.write_text(json_text(taxonomy.tree.to_json(), indent=1) + "\n", encoding="utf-8", newline="\n")
    ids = {task: taxonomy.classes[task].tolist() for task in taxonomy.tasks}
    maps = {
        "idx_to_taxon_id": {task: {str(i): taxon for i, taxon in enumerate(each)} for task, each in ids.items()},
        "taxon_id_to_idx": {task: {str(taxon): i for i, taxon in enumerate(each)} for task, each in ids.items()},
        "null_taxon_ids": dict.fromkeys(ids, 0 if taxonomy.tree.null_possible else None),
        "num_classes_per_rank": {task: len(each) for task, each in ids.items()},
        "names": taxonomy.names.to_json(),
    }
    classes.write_text(json_text(maps, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def read_taxonomy(tree: Path, classes: Path) -> Taxonomy:
    """The inverse of `write_taxonomy`.

    Raises:
      UserError: a file that is no JSON, or holds something of another kind.
      ValueError: files that do not fit each other.
    """
    links, maps = read_json(tree), read_json(classes)
    try:
        return taxonomy_of(links, maps)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"{error} is missing" if isinstance(error, LookupError) else str(error)
        raise UserError(
            f"{tree.name} and {classes.name} in {tree.parent} are no taxonomy: {what}; make the bundle again"
        ) from error


def changed_to_json(taxonomy: Taxonomy) -> dict[str, Any]:
    """What a bundle says beside the taxa of its heads, where it answers others."""
    assert taxonomy.heads is not None
    ids = {task: taxonomy.classes[task].tolist() for task in taxonomy.tasks}
    maps = {"idx_to_taxon_id": {task: {str(i): taxon for i, taxon in enumerate(each)} for task, each in ids.items()}}
    class_of = {task: each.tolist() for task, each in taxonomy.heads.class_of.items()}
    return {
        "tree": taxonomy.tree.to_json(),
        "classes": maps | {"names": taxonomy.names.to_json()},
        "class_of": class_of,
    }


def changed_of(heads: Taxonomy, path: Path) -> Taxonomy:
    """The inverse of `changed_to_json`. Raises UserError for what does not fit the heads."""
    said = read_json(path)
    try:
        now = taxonomy_of(said["tree"], said["classes"])
        if not all(isinstance(at, int) for task in heads.tasks for at in said["class_of"][task]):
            raise TypeError("class_of holds what is no integer")
        class_of = {task: np.array(said["class_of"][task], np.int64) for task in heads.tasks}
        if now.tasks != heads.tasks or now.first != heads.first or now.tree.null_below != heads.tree.null_below:
            raise ValueError("its ranks, or null, are not those of the heads")
        for task, each in class_of.items():
            fits = len(each) == len(heads.classes[task]) and not each[: heads.first].any()
            taxa, count = each[heads.first :], len(now.classes[task])
            if not fits or not ((taxa == -1) | ((taxa >= heads.first) & (taxa < count))).all():
                raise ValueError(f"class_of.{task} is not a class, or -1, for each of {len(heads.classes[task])}")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path} does not fit the classes of the bundle: {error}; make the bundle again") from error
    return Taxonomy(now.tree, now.names, Heads(heads, class_of))


def taxonomy_of(links: Mapping[str, Any], maps: Mapping[str, Any]) -> Taxonomy:
    """The same from the content of both files; ValueError, KeyError, TypeError where they do not fit each other."""
    tasks, found = tuple(links["task_keys"]), ids_of_maps(maps, CLASS_MAP)
    if len(tasks) > MOST_RANKS or len(set(tasks)) < len(tasks) or set(tasks) != set(found):
        raise ValueError(f"{TAXONOMY} must name the ranks of {CLASS_MAP}, each once, at most {MOST_RANKS}")
    ids = {task: np.array(found[task], np.int64) for task in tasks}
    for task, count in ((task, links["num_classes"][task]) for task in tasks):
        if count != len(ids[task]):
            raise ValueError(f"{CLASS_MAP} has {len(ids[task])} classes of {task}, but {TAXONOMY} has {count}")
    null_possible = bool(links["metadata"].get("null_possible", True))
    null_below = bool(links["metadata"].get("null_below", True))
    if null_possible and (wrong := [task for task in tasks if len(ids[task]) and ids[task][0] != 0]):
        raise ValueError(
            f"{CLASS_MAP}: class 0 of {wrong[0]} is taxon {ids[wrong[0]][0]}, and should be 0, which is null"
        )
    sizes = {task: len(each) for task, each in ids.items()}
    parents = parents_of(links["hierarchy_map_raw"], sizes, TAXONOMY)
    return Taxonomy(
        TaxonomyTree(tasks, sizes, parents, null_possible=null_possible, null_below=null_below),
        TaxonNames.from_json(ids, maps.get("names", {})),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a bundle; UserError where it cannot be read."""
    try:
        return files.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; copy the bundle again") from error
