"""Folders named train, val and test in a tree of class folders: the split of whoever made the data set."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.columns import rank_name
from linnaeus_jax.reading.schema import PLACE
from linnaeus_jax.reading.text import printable

# ---- Levels of folders that do not nest as ranks do: the same folders lie in several, as species do in camera stations


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


# ----------------------------------------------------------------------------------------------------------------------


_SIDES = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
#: "train_mini", "train_val2018", "test2019", "Test set", "val_images"
_NAME = re.compile(r"([a-z]+?)(?:[ _-]?(?:mini|val|set|data|images|imgs|split))?(?:[ _-]?\d{1,4})?")

Parts = tuple[str, ...]


def split_named(name: str) -> str | None:
    """The split that a folder or list is named after: "Training" -> "train"; None: it is none."""
    match = _NAME.fullmatch(name.casefold())
    return _SIDES.get(match[1]) if match else None


@dataclass(frozen=True)
class SplitFolders:
    """Where the split of a tree is.

    Attributes:
      parts: folder of pictures -> its folders from the outermost, without that of the split.
      by_folder: folder -> split; empty where no folders give a split.
      place: how far out the folder of the split lies; 0 = outermost.
      beside: folders that lie beside those of the split.
      warnings: what a person should know, one line each.
    """

    parts: Mapping[str, Parts]
    by_folder: Mapping[str, str] = field(default_factory=dict)
    place: int = 0
    beside: Sequence[str] = ()
    warnings: Sequence[str] = ()


def find_split(folders: Iterable[str], root: Path, named_ranks: int) -> SplitFolders:
    """Finds the folders of the split.

    They may be the outermost folders, alone or beside others, which then are left out; or lie within every class
    folder. Where that is not clear, nothing is guessed.

    Args:
      folders: that hold pictures, relative to the root.
      root: for advice.
      named_ranks: how many ranks of folders the user names. As many as there are folders: none of them is a split.

    Raises:
      UserError: folders of a split at another place, or one of a single split beside other folders.
    """
    parts = {folder: tuple(filter(None, folder.split("/"))) for folder in folders}
    holders: dict[Parts, dict[str, str]] = {}
    for names in parts.values():
        for place, name in enumerate(names):
            if named := split_named(name):
                holders.setdefault(names[:place], {})[name] = named
    whole = [at for at, found in holders.items() if {"train"} < set(found.values())]
    if max(map(len, parts.values())) == named_ranks:
        shown = _shown([*whole[0], name] for name in holders[whole[0]]) if whole else ""
        return SplitFolders(parts, warnings=[f"--folder-ranks makes {shown} classes: no split is taken"] * bool(whole))
    outermost = {names[0] for names in parts.values() if names}
    if () in whole or (() in holders and outermost == set(holders[()])):
        return _outermost(parts, holders[()], root)
    if () in holders:
        return _one_split(parts, holders[()], outermost, root)
    if not whole:
        return SplitFolders(parts)
    places = {folder: [i for i, name in enumerate(names) if split_named(name)] for folder, names in parts.items()}
    odd = [folder for folder, found in places.items() if len(found) != 1]
    if odd or len(holders) == 1:
        at = root.joinpath(*whole[0])
        found = _shown([name] for name in holders[whole[0]])
        raise UserError(
            f"{printable(str(at))} holds folders of a split ({found}), and other pictures lie elsewhere or further out"
            f"{f', such as {printable(odd[0])}' if odd else ''}. Give --folders {printable(str(at))}, or name every "
            "folder from the outermost with --folder-ranks to take them as classes"
        )
    inner = {folder: tuple(name for name in names if not split_named(name)) for folder, names in parts.items()}
    splits = {folder: split_named(parts[folder][found[0]]) or "" for folder, found in places.items()}
    place = min(found[0] for found in places.values())
    return SplitFolders(inner, splits, place, warnings=["the folders train, val, test within classes are the split"])


def _outermost(parts: Mapping[str, Parts], split: Mapping[str, str], root: Path) -> SplitFolders:
    """The outermost folders give the split; what lies beside them is left out."""
    inner, splits = {}, {}
    for folder, names in parts.items():
        inner[folder] = names[1:] if names[:1] and names[0] in split else ()
        if names[:1] and names[0] in split:
            splits[folder] = split[names[0]]
    if not any(inner.values()):
        if set(split.values()) == {"train"}:
            return SplitFolders(parts)
        raise UserError(
            f"the pictures lie in {_shown([name] for name in split)}, which are folders of a split, and there in no "
            "class folder; put them into one folder per class, or give lists of labels with --lists"
        )
    beside = sorted({names[0] for names in parts.values() if names} - set(split))
    warnings = ["the outermost folders are taken as the split" if not beside else "folders are taken as the split"]
    for name, named in sorted(split.items()):
        if not any(inner[folder] for folder, names in parts.items() if names[:1] == (name,)):
            warnings.append(f"the pictures of {printable(name)} lie in no class folder: none is used for {named}")
    if beside:
        warnings.append(
            f"the folders beside {_shown([name] for name in sorted(split))} are left out: "
            f"{_shown([name] for name in beside)}; if one is of the split, rename it to train, val or test; if all are "
            "classes, name every folder, from the outermost, with --folder-ranks"
        )
    return SplitFolders(inner, splits, 0, beside, warnings)


def _one_split(parts: Mapping[str, Parts], split: Mapping[str, str], outermost: set[str], root: Path) -> SplitFolders:
    """Folders of a single split beside others, or val and test without train: "train" may be a class of vehicles."""
    names, others = _shown([name] for name in split), _shown([name] for name in sorted(outermost - set(split)))
    if set(split.values()) != {"train"}:
        raise UserError(
            f"{names} is named like the folder of a split, but lies beside {others} and no folder named train. Leave "
            f"only the folders train, val and test in {printable(str(root))}, or classes alone; --folder-ranks with a "
            "name for every folder, from the outermost, takes all of them as classes"
        )
    deep = {
        inside: max(len(p) for p in parts.values() if p[:1] and (p[0] in split) == inside) for inside in (True, False)
    }
    if deep[True] > max(deep[False], 1):
        return _outermost(parts, split, root)
    advice = f"if it is the training side of a split, give --folders {printable(str(root / next(iter(split))))}"
    return SplitFolders(
        parts, warnings=[f"{names} is taken as a class like the folders beside it ({others}); {advice}"]
    )


def _shown(paths: Iterable[Sequence[str]]) -> str:
    """The first few folders, for people."""
    texts = [printable("/".join(path)) for path in paths]
    return ", ".join(texts[:5]) + (f" ... ({len(texts)} in all)" if len(texts) > 5 else "")
