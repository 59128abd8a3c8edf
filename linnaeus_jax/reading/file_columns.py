"""The folder and the name of a picture in columns of their own, as one path.

Timelapse writes `RootFolder, File, RelativePath`, camtrapR `Directory, FileName`, others `path, name` or a whole path
beside the name. Which way of joining them is meant is seen from the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from linnaeus_jax.reading import schema
from linnaeus_jax.reading.columns import FILE_NAME, FILE_PATH, FOLDER, ROOT_FOLDER
from linnaeus_jax.reading.paths import SUFFIX
from linnaeus_jax.reading.picture_folder import Listing

_BESIDE = (FOLDER, FILE_PATH)


def has_folders(frame: pl.DataFrame) -> bool:
    """Whether a table has columns that may say the folders of its pictures."""
    known = [name for name in (*_BESIDE, FILE_NAME) if name in frame.columns and _known(frame, name)]
    return _known(frame, schema.PICTURE) and bool(known)


def joined_paths(frame: pl.DataFrame, listing: Listing | None) -> tuple[pl.Series, tuple[str, ...]]:
    """Paths of the pictures, String [N], and the standard columns that they are made of.

    Args:
      frame: with `picture` and columns that `has_folders`.
      listing: of the picture folder: the way of joining that finds most files is taken; None: folder and name.
    """
    ways = list(_ways(frame))
    if listing is None:
        return ways[0]
    files = pl.Series([path.casefold() for path in listing.files + listing.of_systems], dtype=pl.String)
    bare = files.str.replace(SUFFIX, "")
    known = pl.concat([files, bare]).unique().implode()

    def found(paths: pl.Series) -> int:
        distinct = paths.unique().drop_nulls().str.to_lowercase()
        return int(distinct.is_in(known).sum())

    return max(ways, key=lambda way: found(way[0]))  # of equally good ones the first


def _known(frame: pl.DataFrame, name: str) -> bool:
    return name in frame.columns and frame[name].null_count() < frame.height


def _plain(frame: pl.DataFrame, name: str) -> pl.Series:
    """A column with "/" between folders and none around it; null where it is empty or the folder itself."""
    text = frame[name].cast(pl.String).str.replace_all("\\", "/", literal=True)
    text = text.str.replace(r"^[A-Za-z][A-Za-z0-9+.-]*://", "").str.replace_all(r"/{2,}", "/")
    text = text.str.replace(r"^(\./)+", "").str.strip_chars_end("/")
    return text.set((text == "") | (text == "."), None)


def _ways(frame: pl.DataFrame) -> Iterator[tuple[pl.Series, tuple[str, ...]]]:
    """Every way of joining the columns, the likeliest first."""
    name, folders = schema.PICTURE, [column for column in _BESIDE if _known(frame, column)]
    given = frame[name].cast(pl.String)
    if _known(frame, FILE_NAME) and not given.str.contains(SUFFIX).any():  # a folder, and a name beside it
        name, folders = FILE_NAME, [schema.PICTURE, *folders]
    names = _plain(frame, name)
    for column in folders:
        folder = _plain(frame, column)
        whole = _join(folder, names)
        relative = _without_common(folder)
        if _known(frame, ROOT_FOLDER) and column != ROOT_FOLDER:
            yield _join(folder, names), (column, name)
            yield _join(_plain(frame, ROOT_FOLDER), whole), (ROOT_FOLDER, column, name)
        else:
            yield whole, (column, name)
        if relative is not None:
            for depth in range(relative[1]):
                yield _join(folder.str.replace(rf"^/?([^/]+/){{{depth + 1}}}", ""), names), (column, name)
            yield _join(relative[0], names), (column, name)
    if _known(frame, ROOT_FOLDER):
        yield _join(_plain(frame, ROOT_FOLDER), names), (ROOT_FOLDER, name)
    yield given, (schema.PICTURE,)


def _join(folder: pl.Series, name: pl.Series) -> pl.Series:
    """Folder and name as one path: the folder where that is the whole path, the name where that has its folder."""
    pair = pl.DataFrame({"folder": folder, "name": name})
    low_folder, low_name = pl.col("folder").str.to_lowercase(), pl.col("name").str.to_lowercase()
    is_whole = (low_folder == low_name) | low_folder.str.ends_with(pl.format("/{}", low_name))
    return pair.select(
        pl.when(pl.col("name").is_null() | pl.col("folder").is_null())
        .then(pl.col("name"))
        .when(is_whole)
        .then(pl.col("folder"))
        .when(low_name.str.starts_with(pl.format("{}/", low_folder)))
        .then(pl.col("name"))
        .otherwise(pl.format("{}/{}", "folder", "name"))
    ).to_series()


def _without_common(folder: pl.Series) -> tuple[pl.Series, int] | None:
    """Folders without the ones that all of them begin with, and how many these are; None where there is none."""
    parts = [text.strip("/").split("/") for text in folder.unique().drop_nulls()]
    shared = 0
    while parts and all(len(each) > shared and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    if not shared:
        return None
    rest = folder.str.replace(rf"^/?[^/]+(/[^/]+){{{shared - 1}}}/?", "")
    return rest.set(rest == "", None), shared - 1
