"""A table (CSV, TSV, either of them gzipped, or Parquet) as rows of a data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.building.sources import matching, records
from linnaeus_jax.building.sources.matching import Matcher
from linnaeus_jax.building.sources.source import (
    MAP,
    PICTURES,
    QUOTES,
    RANK_MAP,
    SEPARATOR,
    Common,
    Option,
    Request,
    source,
)
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.columns import Links
from linnaeus_jax.reading.file_columns import has_folders, joined_paths
from linnaeus_jax.reading.identification import check_taxa, identify
from linnaeus_jax.reading.picture_folder import Listing, find_files, open_folder, relative_to
from linnaeus_jax.reading.schema import SourceRows
from linnaeus_jax.reading.table import TextOptions, read_columns
from linnaeus_jax.reading.text import printable

_TIMES = ("date", "time", "year", "month", "day", "hour")


def read(
    table: Path,
    *,
    separator: str | None = None,
    quotes: str = "csv",
    encoding: str | None = None,
    **common: Any,
) -> SourceRows:
    """Reads a table with one picture per row.

    Args:
      table: the file; Parquet and gzip are seen from its first bytes, the separator of a text from its first line.
      pictures: folder that the paths are relative to, whose other pictures become rows with the reason "no record names
        it"; None: the table's own folder, which is not searched.
      separator: character between fields; None: found.
      quotes: "csv", or "none" where quotes are text.
      encoding: of the text; None: UTF-8, and Latin-1 for lines that are not.
      common: fields of `source.Common`.

    Raises:
      UserError: no such file, not a table, no column of pictures or taxa, an option that names what is not there.
    """
    asked = Common(**common)
    root = open_folder(asked.pictures or table.parent)
    text = TextOptions(separator, quotes, encoding)
    frame, links, warnings = read_columns(
        table, text, mapping=asked.mapping, rank_map=asked.rank_map, check=_check, progress=asked.progress
    )
    listing = None
    if asked.pictures is not None or _needs_listing(frame) or has_folders(frame):
        listing = asked.listing(root)
    if has_folders(frame):
        frame, links = _with_folders(frame, links, listing)
    frame, places = records.with_places(frame, links, asked.split)
    frame, levels, notes = identify(frame, links, table.name, asked.names)
    notes += [*places, *records.crossing_ranks(frame, levels, links)]
    frame = records.standard_splits(frame)
    if schema.PICTURE in frame.columns:
        named, mapped = relative_to(frame[schema.PICTURE], root)
        frame, warnings = frame.with_columns(named.alias(schema.PICTURE)), [*warnings, *mapped]
    frame = _with_files(frame, root, listing, asked.follow_links)
    frame, ambiguous = _without_ambiguous(frame, table.name)
    notes += ambiguous
    frame = asked.finished(frame, levels, listing if asked.pictures is not None else None)
    if asked.pictures is not None and listing is not None:
        warnings += listing.warnings([os.path.relpath(os.path.abspath(table), root)])
    lost = records.lost_pictures(frame, root)
    return SourceRows(frame, root, levels, (table,), records.links_of(frame, links), (*warnings, *notes, *lost))


@source(
    Option("--table", type=Path, metavar="FILE", help="CSV, TSV or Parquet, one row for each picture"),
    *(PICTURES, MAP, RANK_MAP, SEPARATOR, QUOTES),
    Option("--encoding", help="default: UTF-8, and Latin-1 for lines that are not"),
)
def _read(request: Request) -> SourceRows:
    args = request.args
    text = {name: getattr(args, name) for name in ("separator", "quotes", "encoding")}
    return read(args.table, pictures=args.pictures, **text, **request.columns, **request.common)


def _check(links: Links, header: Sequence[str], where: str) -> None:
    """Raises UserError without a column of pictures or taxa."""
    check_taxa(links, header, where)
    if not {schema.PICTURE, schema.OCCURRENCE} & set(links.names):
        advice = "name one with --map picture=COLUMN"
        raise UserError(f"{where}: no column names pictures; {advice}. Its columns are {', '.join(header)}")


def _needs_listing(frame: pl.DataFrame) -> bool:
    """Whether pictures can only be found by looking through the whole folder: by ids, or by addresses of the web."""
    if schema.PICTURE not in frame.columns:
        return True
    return bool(frame.select(matching.is_address(schema.PICTURE).any()).item())


def _with_folders(frame: pl.DataFrame, links: Links, listing: Listing | None) -> tuple[pl.DataFrame, Links]:
    """`picture` joined from the columns of folders and names, and links that say so."""
    paths, made_of = joined_paths(frame, listing)
    names = {**links.names, schema.PICTURE: " + ".join(links.names[name] for name in made_of)}
    return frame.with_columns(paths.alias(schema.PICTURE)), Links(names, links.positions)


def _without_ambiguous(frame: pl.DataFrame, where: str) -> tuple[pl.DataFrame, list[str]]:
    """Rejects records that name one file by its name alone though they are of several pictures: their times differ."""
    times = [name for name in _TIMES if name in frame.columns]
    picture = pl.when(pl.col(schema.REASON).is_null() & ~pl.col(schema.PICTURE).str.contains("/")).then(schema.PICTURE)
    frame = frame.with_columns(picture.alias("_bare"))
    again = frame.filter(pl.col("_bare").is_not_null() & pl.col("_bare").is_duplicated())
    if again.is_empty() or not times:
        return frame.drop("_bare"), []
    taken = again.group_by("_bare").agg(pl.struct(times).n_unique().alias("times"))
    several = taken.filter(pl.col("times") > 1)["_bare"]
    detail = "other records name it, too, with other times: which folder's picture is meant?"
    frame = records.reject(frame, pl.col("_bare").is_in(several.implode()), schema.AMBIGUOUS, detail).drop("_bare")
    if several.is_empty():
        return frame, []
    count = again.filter(pl.col("_bare").is_in(several.implode())).height
    return frame, [
        f"{where}: {count} records of different times name only {several.len()} files, such as "
        f"{printable(several.sort()[0])}: they are of several folders; name their column with --map folder=COLUMN"
    ]


def _with_files(frame: pl.DataFrame, root: Path, listing: Listing | None, follow_links: bool) -> pl.DataFrame:
    """`picture` as found on disk, with reasons where it was not."""
    if schema.PICTURE not in frame.columns:
        return files_by_id(frame, Matcher(listing or Listing(root)))
    if listing is not None and _needs_listing(frame):
        ids = pl.col(schema.OCCURRENCE) if schema.OCCURRENCE in frame.columns else pl.lit(None, pl.String)
        place = pl.when(ids.is_not_null()).then(pl.int_range(pl.len(), dtype=pl.Int64).over(ids) + 1)
        media = frame.select(
            pl.col(schema.PICTURE).alias(matching.IDENTIFIER), ids.alias(matching.ID), place.alias("number")
        )
        found = Matcher(listing).match_media(media)
    else:
        found = find_files(frame[schema.PICTURE], root, listing, follow_links=follow_links)
    return records.with_found(frame, found)


def files_by_id(frame: pl.DataFrame, matcher: Matcher) -> pl.DataFrame:
    """Records that name no pictures: one row per file that is named by their id, or one row without a picture."""
    frame = frame.with_row_index("row")
    ids = frame.filter(pl.col(schema.REASON).is_null())
    names = {schema.OCCURRENCE: matching.ID} | {name: name for name in matching.OTHER_IDS if name in frame.columns}
    found = matcher.match_records(ids.select("row", *(pl.col(name).alias(new) for name, new in names.items())))
    found = found.rename({"path": schema.PICTURE})
    frame = frame.join(found, on="row", how="left", maintain_order="left_right").drop("row")
    return records.reject(frame, pl.col(schema.PICTURE).is_null(), schema.NO_PICTURE_NAMED)
