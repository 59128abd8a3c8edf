"""The columns of a table of any kind (CSV, TSV, either of them gzipped, or Parquet) that mean something, as text."""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.columns import Links, link_columns
from linnaeus_jax.reading.delimited import RecordReader, TextSource, clean_text, find_dialect
from linnaeus_jax.reading.metadata import with_decimal_point
from linnaeus_jax.reading.schema import Progress

QUOTES = ("csv", "none")
#: rows of a Parquet table that are taken at once
_SLICE = 1 << 18
_HEAD = 1 << 16
#: columns whose values seldom repeat
_DISTINCT = frozenset(
    (
        schema.PICTURE,
        schema.OCCURRENCE,
        "latitude",
        "longitude",
        "uncertainty",
        "date",
        "time",
        "elevation",
        "elevation_max",
        schema.REASON,
        schema.DETAIL,
        columns.IDENTIFIER,
        columns.SPECIMEN,
        columns.CATALOG,
    )
)
_NUMBERS = ("latitude", "longitude", "uncertainty", "elevation", "elevation_max")


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

    def link(header: Sequence[str]) -> Links:
        links = link_columns(header, table.name, mapping=mapping, rank_map=rank_map, only=only)
        check(links, header, table.name)
        return links

    return read_linked(table, text, link, progress)


def read_linked(
    table: Path, text: TextOptions, link: Callable[[Sequence[str]], Links], progress: Progress | None = None
) -> tuple[pl.DataFrame, Links, list[str]]:
    """As `read_columns`, with columns that `link` chooses of the header."""
    if not table.is_file():
        raise UserError(f"table {str(table)!r} {'is not a file' if table.exists() else 'does not exist'}")
    if text.quotes not in QUOTES:
        raise UserError(f"--quotes {text.quotes!r}: choose one of {', '.join(QUOTES)}")
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
        frame = read_records(reader, links, len(reader.header), progress)
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
        kinds = lazy.collect_schema()
        links = link(kinds.names())
        height = lazy.select(pl.len()).collect().item()
        if not height:
            raise UserError(f"{table.name} has no rows")
        columns_of = [_text(pl.col(name), kinds[name], standard) for standard, name in links.names.items()]
        blocks = []
        for first in range(0, height, _SLICE):
            block = lazy.slice(first, _SLICE).select(columns_of).collect()
            lines = pl.int_range(first + 1, first + block.height + 1, dtype=pl.Int64, eager=True).alias(schema.LINE)
            none = (pl.lit(None, pl.String).alias(name) for name in (schema.REASON, schema.DETAIL))
            blocks.append(compact(block.insert_column(0, lines).with_columns(none)))
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
    text = (column.fill_nan(None) if kind.is_float() else column).cast(pl.String)
    return (text.str.replace(r"\.0$", "") if kind.is_float() else text).alias(standard)


def compact(frame: pl.DataFrame) -> pl.DataFrame:
    """Text of a block, cleaned; what repeats as Categorical. `line`, `reason` and `detail` stay as they are."""
    texts = [name for name in frame.columns if name not in (schema.LINE, schema.REASON, schema.DETAIL)]
    frame = frame.with_columns(clean_text(name) for name in texts)
    return frame.with_columns(pl.col(name).cast(pl.Categorical) for name in texts if name not in _DISTINCT)


def read_records(
    reader: RecordReader, links: Links, width: int, progress: schema.Progress | None
) -> pl.DataFrame | None:
    """All records of a text file: `line`, the linked standard columns, `reason`, `detail`. None: there are none."""
    frame = joined(map(compact, reader.read(links.positions, width, progress)))
    if frame is not None and reader.dialect.separator == ";":  # as spreadsheets write tables where 1.5 is 1,5
        decimal = (with_decimal_point(pl.col(name)) for name in _NUMBERS if name in frame.columns)
        frame = frame.with_columns(decimal)
    return frame


def joined(frames: Iterable[pl.DataFrame]) -> pl.DataFrame | None:
    """Blocks as one frame."""
    blocks = list(frames)
    return pl.concat(blocks) if blocks else None


def check_tar(path: Path) -> None:
    """Raises UserError for a tar file, packed or not, which is unpacked by hand."""
    try:
        is_tar = tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        is_tar = False
    if is_tar:
        raise UserError(f"{path.name} is a tar file: unpack it (tar -xf {path.name}) and give what is in it")
