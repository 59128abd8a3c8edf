"""A table (CSV, TSV, either of them gzipped, or Parquet) as rows of a data set."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl

from linnaeus_jax.building import matching, records, rows
from linnaeus_jax.building.archive import check_tar
from linnaeus_jax.building.columns import Links, link_columns
from linnaeus_jax.building.delimited import RecordReader, TextSource, find_dialect
from linnaeus_jax.building.identification import identify
from linnaeus_jax.building.matching import Matcher
from linnaeus_jax.building.picture_folder import Listing, find_files, list_files, open_folder, unclaimed
from linnaeus_jax.building.rows import Progress, SourceRows
from linnaeus_jax.config.errors import UserError

QUOTES = ("csv", "none")
#: rows of a Parquet table that are taken at once
_SLICE = 1 << 18
_HEAD = 1 << 16


@dataclass(frozen=True)
class TextOptions:
    """How a text table is written; None: found.

    Attributes:
      separator: character between fields.
      quotes: "csv", or "none" where quotes are text.
      encoding: of the text; None: UTF-8, and Latin-1 for lines that are not.
    """

    separator: str | None = None
    quotes: str = "csv"
    encoding: str | None = None


def read(
    table: Path,
    *,
    pictures: Path | None = None,
    mapping: Mapping[str, str] | None = None,
    rank_map: Mapping[str, str] | None = None,
    separator: str | None = None,
    quotes: str = "csv",
    encoding: str | None = None,
    names: str = "auto",
    doi: str | None = None,
    follow_links: bool = False,
    leave_out: Sequence[Path] = (),
    progress: Progress | None = None,
) -> SourceRows:
    """Reads a table with one picture per row.

    Args:
      table: the file; Parquet and gzip are seen from its first bytes, the separator of a text from its first line.
      pictures: folder that the paths are relative to, whose other pictures become rows with the reason "no record names
        it"; None: the table's own folder, which is not searched.
      mapping: standard column -> column of the table, which wins over usual names.
      rank_map: rank -> "NAME_COLUMN[:ID_COLUMN]".
      separator: character between fields; None: found.
      quotes: "csv", or "none" where quotes are text.
      encoding: of the text; None: UTF-8, and Latin-1 for lines that are not.
      names: whether names are scientific, one of `scientific_names.MODES`.
      doi: of the download, for rows without their own.
      follow_links: whether links may lead out of the picture folder.
      leave_out: folders to leave out of the picture folder.
      progress: (what, done, total).

    Raises:
      UserError: no such file, not a table, no column of pictures or taxa, an option that names what is not there.
    """
    root = open_folder(table.parent if pictures is None else pictures)
    text = TextOptions(separator, quotes, encoding)
    frame, links, warnings = read_columns(
        table, text, mapping=mapping, rank_map=rank_map, check=_check, progress=progress
    )
    frame, levels, notes = identify(frame, links, table.name, names)
    frame = records.standard_splits(frame)
    if doi:
        own = pl.col("doi").cast(pl.String) if "doi" in frame.columns else pl.lit(None, pl.String)
        frame = frame.with_columns(pl.coalesce(own, pl.lit(doi)).alias("doi"))
    listing = None
    if pictures is not None or _needs_listing(frame):
        listing = list_files(root, follow_links=follow_links, leave_out=leave_out, progress=progress)
    frame = _with_files(frame, root, listing, follow_links)
    frame = rows.standard_frame(frame, levels)
    if pictures is not None and listing is not None:
        rest = rows.standard_frame(unclaimed(listing, frame[rows.PICTURE]), levels)
        frame = pl.concat([frame, rest], how="diagonal")
        warnings += listing.warnings([os.path.relpath(os.path.abspath(table), root)])
    lost = records.lost_pictures(frame, root)
    return SourceRows(frame, root, levels, (table,), records.links_of(frame, links), (*warnings, *notes, *lost))


def _check(links: Links, header: Sequence[str], where: str) -> None:
    """Raises UserError without a column of pictures or taxa."""
    records.check_taxa(links, header, where)
    if not {rows.PICTURE, rows.OCCURRENCE} & set(links.names):
        advice = "name one with --map picture=COLUMN"
        raise UserError(f"{where}: no column names pictures; {advice}. Its columns are {', '.join(header)}")


def read_columns(
    table: Path,
    text: TextOptions,
    *,
    mapping: Mapping[str, str] | None = None,
    rank_map: Mapping[str, str] | None = None,
    check: Callable[[Links, Sequence[str], str], None],
    only: Collection[str] | None = None,
    progress: Progress | None = None,
) -> tuple[pl.DataFrame, Links, list[str]]:
    """The columns of a table that are linked to standard columns, with `line`, `reason`, `detail`; the links; warnings.

    `check` is called with the links, the table's columns and its name before anything is read; `only` names the
    standard columns that are looked for, by default all.
    """
    if not table.is_file():
        raise UserError(f"table {str(table)!r} {'is not a file' if table.exists() else 'does not exist'}")
    if text.quotes not in QUOTES:
        raise UserError(f"--quotes {text.quotes!r}: choose one of {', '.join(QUOTES)}")

    def link(header: Sequence[str]) -> Links:
        links = link_columns(header, table.name, mapping=mapping, rank_map=rank_map, only=only)
        check(links, header, table.name)
        return links

    check_tar(table)
    with open(table, "rb") as file:
        start = file.read(4)
    if start == b"PAR1":
        return (*_read_parquet(table, link, progress), [])
    if start.startswith(b"PK\x03\x04"):
        raise UserError(f"{table.name} is a zip file: give an archive of GBIF with --dwca, save a spreadsheet as CSV")
    return _read_text(table, text, link, progress)


def _read_text(
    table: Path, text: TextOptions, link: Callable[[Sequence[str]], Links], progress: Progress | None
) -> tuple[pl.DataFrame, Links, list[str]]:
    with opened(table) as source:
        quote = '"' if text.quotes == "csv" else None
        dialect = find_dialect(_head(table), quote=quote, encoding=text.encoding)
        if text.separator:
            dialect = replace(dialect, separator=text.separator.replace("\\t", "\t"), quote=quote)
        if len(dialect.separator) != 1 or not dialect.separator.isascii():
            raise UserError(f"--separator {text.separator!r} is not one ASCII character")
        reader = RecordReader(source, dialect)
        links = link(reader.header)
        frame = records.read_records(reader, links, len(reader.header), progress)
    if frame is None:
        raise UserError(f"{table.name} has a header and no records")
    return frame, links, reader.warnings


@contextmanager
def opened(table: Path) -> Iterator[TextSource]:
    """The text of a table; a damaged gzip file is a UserError."""
    with open(table, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        try:
            yield TextSource(stream, table.name, os.path.getsize(table), file.tell)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{table.name} is damaged or cut off: {error}") from None


def _head(table: Path) -> bytes:
    with opened(table) as source:
        return source.stream.read(_HEAD)


def _read_parquet(
    table: Path, link: Callable[[Sequence[str]], Links], progress: Progress | None
) -> tuple[pl.DataFrame, Links]:
    try:
        lazy = pl.scan_parquet(table)
        schema = lazy.collect_schema()
        links = link(schema.names())
        height = lazy.select(pl.len()).collect().item()
        if not height:
            raise UserError(f"{table.name} has no rows")
        columns_of = [_text(pl.col(name), schema[name], standard) for standard, name in links.names.items()]
        blocks = []
        for first in range(0, height, _SLICE):
            block = lazy.slice(first, _SLICE).select(columns_of).collect()
            lines = pl.int_range(first + 1, first + block.height + 1, dtype=pl.Int64, eager=True).alias(rows.LINE)
            none = (pl.lit(None, pl.String).alias(name) for name in (rows.REASON, rows.DETAIL))
            blocks.append(records.compact(block.insert_column(0, lines).with_columns(none)))
            if progress:
                progress(f"reading {table.name}", first + block.height, height)
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{table.name} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    return pl.concat(blocks), links


def _text(column: pl.Expr, kind: pl.DataType, standard: str) -> pl.Expr:
    """A column of any type as text; whole numbers stored as floats, as tables with gaps have them, without ".0"."""
    if kind.is_nested() or kind == pl.Object:
        raise UserError(f"the column for {standard} holds {kind}, not single values; choose another one")
    if isinstance(kind, pl.Datetime):
        if kind.time_zone:
            column = column.dt.convert_time_zone("UTC")
        return column.dt.to_string("%Y-%m-%dT%H:%M:%SZ" if kind.time_zone else "%Y-%m-%dT%H:%M:%S").alias(standard)
    if kind == pl.Binary:
        column = column.cast(pl.String)
    text = column.cast(pl.String)
    return (text.str.replace(r"\.0$", "") if kind.is_float() else text).alias(standard)


def _needs_listing(frame: pl.DataFrame) -> bool:
    """Whether pictures can only be found by looking through the whole folder: by ids, or by addresses of the web."""
    if rows.PICTURE not in frame.columns:
        return True
    return bool(frame.select(matching.is_address(rows.PICTURE).any()).item())


def _with_files(frame: pl.DataFrame, root: Path, listing: Listing | None, follow_links: bool) -> pl.DataFrame:
    """`picture` as found on disk, with reasons where it was not."""
    if rows.PICTURE not in frame.columns:
        return files_by_id(frame, Matcher(listing or Listing(root)))
    if listing is not None and _needs_listing(frame):
        ids = pl.col(rows.OCCURRENCE) if rows.OCCURRENCE in frame.columns else pl.lit(None, pl.String)
        place = pl.when(ids.is_not_null()).then(pl.int_range(pl.len(), dtype=pl.Int64).over(ids) + 1)
        media = frame.select(
            pl.col(rows.PICTURE).alias(matching.IDENTIFIER), ids.alias(matching.ID), place.alias("number")
        )
        found = Matcher(listing).match_media(media)
    else:
        found = find_files(frame[rows.PICTURE], root, listing, follow_links=follow_links)
    return records.with_found(frame, found)


def files_by_id(frame: pl.DataFrame, matcher: Matcher) -> pl.DataFrame:
    """Records that name no pictures: one row per file that is named by their id, or one row without a picture."""
    frame = frame.with_row_index("row")
    ids = frame.filter(pl.col(rows.REASON).is_null())
    names = {rows.OCCURRENCE: matching.ID} | {name: name for name in matching.OTHER_IDS if name in frame.columns}
    found = matcher.match_records(ids.select("row", *(pl.col(name).alias(new) for name, new in names.items())))
    found = found.rename({"path": rows.PICTURE})
    frame = frame.join(found, on="row", how="left", maintain_order="left_right").drop("row")
    return records.reject(frame, pl.col(rows.PICTURE).is_null(), rows.NO_PICTURE_NAMED)
