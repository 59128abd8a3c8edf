"""Pictures that are not where records name them: at which level of the folders they lie."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import polars as pl

from linnaeus_jax.reading.schema import DETAIL, NO_SUCH_PICTURE, PICTURE, REASON, UNCLAIMED
from linnaeus_jax.reading.text import printable


def looked_for(frame: pl.DataFrame, root: Path) -> str:
    """One picture that was looked for, and where one of that name lies; "" where none was looked for in vain.

    Args:
      frame: rows with their reasons.
      root: folder that pictures are relative to.
    """
    missing = frame.filter(pl.col(REASON) == NO_SUCH_PICTURE)
    named = [text for row in missing.select(PICTURE, DETAIL).rows() for text in row[:1] + row[1:] if text]
    if not named:
        return ""
    first = named[0]
    text = f"; looked for {printable(str(root / first))!r}"
    there = frame.filter(pl.col(REASON) == UNCLAIMED)[PICTURE].drop_nulls().to_list()
    if not there:
        return f"{text}, and {printable(str(root))} holds no other pictures: give their folder with --pictures"
    by_name = {PurePosixPath(path).name: PurePosixPath(path) for path in reversed(there)}
    for each in named:
        wanted = PurePosixPath(each.replace("\\", "/"))
        found = by_name.get(wanted.name)
        if found is not None and len(alike := [path for path in there if PurePosixPath(path).name == wanted.name]) > 1:
            several = ", ".join(printable(str(PurePosixPath(path).parent)) for path in alike[:3])
            return (
                f"{text}; {printable(wanted.name)} is in {len(alike)} folders ({several}{' ...' * (len(alike) > 3)}): "
                "the records must say which, by the path or by a column that --map folder=COLUMN names"
            )
        if found is not None:
            return f"{text}; {printable(str(root / found))!r} is there: give {_option(root, wanted, found)}"
    return f"{text}; there are other names, such as {printable(str(root / there[0]))!r}: give another --pictures"


def _option(root: Path, wanted: PurePosixPath, found: PurePosixPath) -> str:
    """The folder from which the wanted path would be the found file."""
    shared = 0
    for a, b in zip(reversed(wanted.parts), reversed(found.parts)):
        if a != b:
            break
        shared += 1
    if shared == len(wanted.parts):
        folder = root.joinpath(*found.parts[: len(found.parts) - shared])
        return f"--pictures {printable(str(folder))}"
    above = wanted.parts[: len(wanted.parts) - shared]
    if root.parts[-len(above) :] == above and shared == len(found.parts):
        return f"--pictures {printable(str(root.parents[len(above) - 1]))}"
    return f"a folder in which it is {printable(str(wanted))!r}, or correct the paths of the records"
