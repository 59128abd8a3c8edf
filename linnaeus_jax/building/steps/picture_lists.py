"""Lists of pictures that a build is given: those to leave out, and pairs that stay on one side of the split."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.delimited import find_dialect
from linnaeus_jax.reading.schema import DETAIL, EXCLUDED, OTHER, PICTURE, REASON, SourceRows
from linnaeus_jax.reading.text import printable

#: column of the rows of a source: a number for pictures that show the same
DUPLICATES = "duplicates"


def without_excluded(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Rows of a source, of which those with the listed pictures are rejected.

    Args:
      path: names of pictures below their folder, one a line, or the column `picture` of a CSV file.

    Raises:
      UserError: the list cannot be read, or names a picture that the source does not have.
    """
    names = [line[0] for line in _lines(path, (PICTURE,), "--exclude")]
    _check_known(frame, names, f"--exclude {path}")
    excluded = pl.col(PICTURE).is_in(names) & pl.col(REASON).is_null()
    return frame.with_columns(
        pl.when(excluded).then(pl.lit(EXCLUDED)).otherwise(REASON).alias(REASON),
        pl.when(excluded).then(pl.lit(path.name)).otherwise(DETAIL).alias(DETAIL),
    )


def with_duplicates(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Rows of a source with the column `DUPLICATES`: a number for the pictures that pairs join, null for the others.

    Args:
      path: a CSV file with the columns `picture` and `other`, as `describe --near-duplicates` writes it.

    Raises:
      UserError: the list cannot be read, or names a picture that the source does not have.
    """
    pairs = _lines(path, (PICTURE, OTHER), "--group-duplicates")
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    _check_known(frame, names, f"--group-duplicates {path}")
    if not pairs:
        return frame
    place = {name: number for number, name in enumerate(names)}
    first, second = zip(*((place[a], place[b]) for a, b in pairs), strict=True)
    graph = coo_array((np.ones(len(pairs), bool), (first, second)), shape=(len(names), len(names)))
    group = connected_components(graph, directed=False)[1].astype(np.int64)
    table = pl.DataFrame({PICTURE: names, DUPLICATES: group})
    return frame.join(table, on=PICTURE, how="left", maintain_order="left")


def _check_known(frame: pl.DataFrame, names: Sequence[str], what: str) -> None:
    unknown = sorted(set(names) - set(frame[PICTURE].drop_nulls().to_list()))
    if unknown:
        raise UserError(
            f"{what}: {len(unknown)} of {len(set(names))} pictures are not in the source, such as "
            f"{printable(unknown[0])}; name them as rejected.csv and labels.h5 do, below the folder of the pictures"
        )


def _lines(path: Path, columns: Sequence[str], option: str) -> list[list[str]]:
    """The columns of a CSV file that names them; of a file that does not, its lines, where one column is wanted."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option} {path} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    separator = find_dialect(text.partition("\n")[0].encode()).separator
    lines = list(csv.reader(text.splitlines(), delimiter=separator))
    head = lines[0] if lines else []
    if columns[0] not in head:
        if len(columns) == 1:
            return [[line.strip()] for line in text.splitlines() if line.strip()]
        head = []
    if missing := [name for name in columns if name not in head]:
        raise UserError(f"{option} {path}: it needs the columns {' and '.join(columns)}, and has no {missing[0]}")
    places = [head.index(name) for name in columns]
    short = next((number for number, line in enumerate(lines, 1) if line and len(line) <= max(places)), 0)
    if short:
        raise UserError(f"{option} {path}, line {short}: it has fewer fields than the first line names")
    return [[line[place] for place in places] for line in lines[1:] if line]


def with_lists(source: SourceRows, exclude: Path | None, group_duplicates: Path | None) -> SourceRows:
    """A source after both lists, which are among its files from then on.

    Raises:
      UserError: see `without_excluded` and `with_duplicates`.
    """
    for path, change in ((exclude, without_excluded), (group_duplicates, with_duplicates)):
        if path is not None:
            source = replace(source, frame=change(source.frame, path), files=(*source.files, path))
    return source
