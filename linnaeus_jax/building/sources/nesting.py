"""Levels of folders that do not nest as ranks do: the same folders lie in several, as species do in camera stations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from linnaeus_jax.reading.columns import rank_name
from linnaeus_jax.reading.schema import PLACE
from linnaeus_jax.reading.text import printable

#: a folder of no rank
NO_RANK = "-"
#: shares of the inner folders that lie in several, and of the outer ones that hold such, from which on levels cross: a
#: few misplaced folders do not make a taxonomy something else
INNER, OUTER = 0.25, 0.5

#: names of the ranks of a folder, the outermost first; "" for what counts for nothing
Names = Sequence[str]


def read_as(names: Names, ranks: Sequence[str]) -> str:
    """Ranks of nested folders as --folder-ranks takes them, and which of the folders `names` each of them is."""
    called = [rank if rank in (NO_RANK, PLACE) else rank_name(rank) for rank in ranks]
    taken = [f"{printable(name)} = {rank}" for name, rank in zip(names, called) if rank != NO_RANK]
    return f"{','.join(called)} ({', '.join(taken)})"


def untaken(parts: Mapping[str, Names], levels: Sequence[str], depth: int) -> str:
    """What is wrong where folders are nested deeper than there are ranks, with both readings."""
    ranks = [level if level in (NO_RANK, PLACE) else rank_name(level) for level in levels]
    deepest = [names for names in parts.values() if len(names) == depth]
    missing, names = depth - len(levels), deepest[0]
    return (
        f"folders are nested {depth} deep, such as {printable('/'.join(names))} ({len(deepest)} in all), and "
        f"{len(ranks)} ranks are named ({', '.join(ranks)}): name one for each, from the outermost, or {NO_RANK} for a "
        f"folder of no rank. Those further out have none: --folder-ranks={read_as(names, [NO_RANK] * missing + ranks)}"
        "; or those further in count for the folder around: "
        f"--folder-ranks={read_as(names, ranks + [NO_RANK] * missing)}"
    )


def several_parents(folders: Iterable[Names], outer: int, inner: int) -> dict[str, set[str]]:
    """Inner folder -> outer ones that it lies in, of all with more than one, where there are so many that the two
    levels cannot be ranks; else {}."""
    above: dict[str, set[str]] = defaultdict(set)
    for names in folders:
        if len(names) > inner and names[outer] and names[inner]:
            above[names[inner]].add(names[outer])
    several = {name: parents for name, parents in above.items() if len(parents) > 1}
    holders, every = set().union(*several.values()), set().union(*above.values())
    return several if len(several) >= INNER * len(above) and len(holders) >= OUTER * len(every) else {}


def what_crosses(folders: Sequence[Names], levels: Sequence[str]) -> str:
    """Two neighbouring levels that do not nest, in words, with examples; "" where all do."""
    for outer, inner in pairwise(range(len(levels))):
        if several := several_parents(folders, outer, inner):
            shown = sorted(several.items(), key=lambda item: (-len(item[1]), item[0]))[:3]
            texts = (f"{printable(name)} in {', '.join(map(printable, sorted(of)[:4]))}" for name, of in shown)
            return (
                f"{len(several)} folders of {rank_name(levels[inner])} lie in several of {rank_name(levels[outer])} "
                f"({'; '.join(texts)}), as no rank of a taxonomy does"
            )
    return ""


def readings(folders: Sequence[Names], levels: Sequence[str], inner_is_place: bool) -> list[list[str]]:
    """How levels of which some cross may be meant: a rank, `PLACE` or `NO_RANK` for each, the most probable first.

    Args:
      folders: distinct names at `levels`.
      levels: ranks, the outermost first.
      inner_is_place: whether it is more probable that the innermost folders are the places.
    """
    every = range(len(levels))
    kept = {place: [k for k in every if k != place] for place in every}
    nests = (p for p in every[:-1] if not any(several_parents(folders, *pair) for pair in pairwise(kept[p])))
    place = next(nests, None)
    if place is None:  # all that is further out than the last level that crosses the next one
        place = max(k for k in every[:-1] if several_parents(folders, k, k + 1))
        kept[place] = list(every[place + 1 :])
    found = [[levels[k] if k in kept[p] else PLACE if k == p else NO_RANK for k in every] for p in (place, every[-1])]
    return found[::-1] if inner_is_place else found
