"""The taxonomy of a model with taxa that were added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames, id_of_name
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.taxonomy.tree import TaxonomyTree

#: of mistakes in a message
_SHOWN = 20


class _Rank:
    """The classes of one rank while taxa are added."""

    def __init__(self, task: str, rank: str, old: Taxonomy) -> None:
        self.task, self.rank, self.first = task, rank, old.first
        names = old.names
        self.ids, self.names = names.classes[task].tolist(), [str(name) for name in names.name[task]]
        self.common = [str(name) for name in names.common_name[task]]
        self.parent = old.tree.parent[task].tolist()
        self.known = len(self.ids)
        self._by_name = {name.casefold(): at for at, name in enumerate(self.names) if name and at >= self.first}
        self._by_id = {taxon: at for at, taxon in enumerate(self.ids) if at >= self.first}

    def find(self, taxon: int, name: str) -> int | None:
        """A taxon by its name, or by its id where no name contradicts that."""
        at = self._by_name.get(name.casefold())
        if at is None and taxon in self._by_id and not (name and self.names[self._by_id[taxon]]):
            at = self._by_id[taxon]
        return at

    def add(self, taxon: int, name: str, common: str, parent: int) -> int:
        if taxon in self._by_id:
            taxon = id_of_name(self.task, name, self._by_id)
        at = self._by_id[taxon] = self._by_name[name.casefold()] = len(self.ids)
        self.ids.append(taxon)
        self.names.append(name)
        self.common.append(common)
        self.parent.append(parent)
        return at

    def text(self, at: int) -> str:
        return f"{self.rank} {self.names[at] or self.ids[at]}"


def grown_taxonomy(
    old: Taxonomy,
    tasks: Sequence[str],
    taxon_NT: NDArray[np.integer],
    names: Mapping[str, Mapping[int, tuple[str, str]]],
) -> tuple[Taxonomy, NDArray[np.int32]]:
    """The taxonomy with the new taxa behind those that are there, and the classes [N, ranks] of every row.

    Args:
      tasks: ranks of the columns; those that the model does not have count for nothing, those that are not told follow
        from the finest known taxon.
      taxon_NT: taxon ids of rows, 0 for none.
      names: rank -> taxon id -> scientific and common name.

    Raises:
      UserError: what is wrong, a line for each taxon.
    """
    ranks = [_Rank(task, old.ranks[task], old) for task in old.tasks]
    columns = [tasks.index(rank.task) if rank.task in tasks else None for rank in ranks]
    if columns[0] is None:
        raise UserError(
            f"the pictures have no {ranks[0].rank}, the finest rank of the model; name its folders or column"
        )
    paths, row = np.unique(np.asarray(taxon_NT, np.int64), axis=0, return_inverse=True)
    wrong, label = list[str](), np.full((len(paths), len(ranks)), -1, np.int32)
    said = [names.get(rank.task, {}) for rank in ranks]
    order = sorted(range(len(paths)), key=lambda at: said[0].get(int(paths[at, columns[0]]), ("", ""))[0])
    for at in order:
        above: int | None = None
        for place in reversed(range(len(ranks))):
            column = columns[place]
            taxon = 0 if column is None else int(paths[at, column])
            name = said[place].get(taxon, ("", ""))
            above = _placed(ranks[place : place + 2], taxon, name, above, wrong, finest=not place) if taxon else None
        if above is None:
            wrong += [f"a picture has no {ranks[0].rank}; name it, or leave the picture out"] * (not taxon)
            continue
        for place, rank in enumerate(ranks):
            label[at, place] = above
            above = rank.parent[above] if above >= 0 else -1
    if wrong:
        lines = list(dict.fromkeys(wrong))
        raise UserError("\n".join([*lines[:_SHOWN], *[f"and {len(lines) - _SHOWN} more"] * (len(lines) > _SHOWN)]))
    classes = {rank.task: np.array(rank.ids, np.int64) for rank in ranks}
    text = {
        rank.task: {
            str(taxon): {"name": name, "common_name": common}
            for taxon, name, common in zip(rank.ids, rank.names, rank.common, strict=True)
        }
        for rank in ranks
    }
    tree = TaxonomyTree(
        old.tasks,
        {task: len(ids) for task, ids in classes.items()},
        {rank.task: np.array(rank.parent, np.int32) for rank in ranks},
        null_possible=old.tree.null_possible,
        null_below=old.tree.null_below,
    )
    label = np.where(label < 0, 0 if old.first else -1, label).astype(np.int32)
    return Taxonomy(tree, TaxonNames.from_json(classes, text)), label[row.reshape(-1)]


def _placed(
    ranks: Sequence[_Rank], taxon: int, name: tuple[str, str], above: int | None, wrong: list[str], *, finest: bool
) -> int | None:
    """The class of a taxon at the first of two ranks; None, with a line in `wrong`, where it cannot be.

    Args:
      above: its class at the other; None: it is not told.
    """
    rank, *coarser = ranks
    called, at = f"{rank.rank} {name[0] or taxon}", rank.find(taxon, name[0])
    if at is None:
        if coarser and above is None:
            wrong.append(f"{called}: its {coarser[0].rank} is not told; name it by a folder or column")
            return None
        return rank.add(taxon, name[0], name[1], -1 if above is None else above)
    parent = rank.parent[at]
    if at < rank.known and finest:
        wrong.append(f"{called} is in the model already; leave its pictures out, since only a training changes it")
        return None
    if above is not None and parent != above:
        there = coarser[0].text(parent) if parent >= 0 else f"no {coarser[0].rank}"
        wrong.append(f"{called} lies in {there}, and by a picture in {coarser[0].text(above)}; it can have one parent")
        return None
    return at
