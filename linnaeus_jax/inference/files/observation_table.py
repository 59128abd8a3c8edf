"""A table with place, date and elevation of pictures, and which of its rows belongs to which picture."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.camtrap_dp import DESCRIPTOR, NAME, Package, is_package, read_package
from linnaeus_jax.reading.columns import FOLDER, Links
from linnaeus_jax.reading.dates import BadDate, read_moment
from linnaeus_jax.reading.file_columns import has_folders, joined_paths
from linnaeus_jax.reading.metadata import Observation, with_decimal_point
from linnaeus_jax.reading.paths import is_picture
from linnaeus_jax.reading.table import TextOptions, read_columns
from linnaeus_jax.reading.text import printable

_MOMENT = ("date", "time", "year", "month", "day", "hour")
#: a date that has a time of day already, or is two dates
_TIME_OR_RANGE = re.compile(r"\d[T ]+\d{1,2} ?([:h]\d\d|[ap]\.?m)|^\d{4}-.*/", re.IGNORECASE)
_KNOWN = ("latitude", "longitude", "elevation", *_MOMENT)
#: columns that are looked for, by their usual names
_COLUMNS = (schema.PICTURE, FOLDER, *_KNOWN)


@dataclass(frozen=True, eq=False)
class ObservationTable:
    """Rows of a table.

    Attributes:
      path: the file.
      links: what is known -> the table's column, for messages.
      lines: where each row stands in the file.
      pictures: which picture each row is about, with "/" between folders.
      observations: what each row says.
      groups: what each row has in the column that was asked for; () for none.
      warnings: what a person should know, one line each.
    """

    path: Path
    links: Mapping[str, str]
    lines: Sequence[int]
    pictures: Sequence[str]
    observations: Sequence[Observation]
    warnings: tuple[str, ...] = ()
    groups: Sequence[str | None] = ()

    def match(self, pictures: Sequence[PictureFile]) -> list[int | None]:
        """The row of every picture, None where no row is about it.

        A row is about the picture whose path ends in the path that the row gives: a file name alone is enough. Relative
        paths may also start at the table's own folder. A name without a suffix fits a file with one.

        Raises:
          UserError: a row that fits several pictures, or two rows for one picture.
        """
        by_name: dict[str, list[int]] = {}
        for row, text in enumerate(self.pictures):
            by_name.setdefault(text.rpartition("/")[2], []).append(row)
        found: list[int | None] = []
        for picture in pictures:
            place = os.path.abspath(picture.path).replace(os.sep, "/")
            name = place.rpartition("/")[2]
            fitting = [row for row in by_name.get(name, ()) if self._fits(self.pictures[row], place)]
            if not fitting and is_picture(name):
                bare = place[: place.rindex(".")]
                fitting = [
                    row for row in by_name.get(bare.rpartition("/")[2], ()) if self._fits(self.pictures[row], bare)
                ]
            found.append(self._one(fitting, picture))
        self._check_once(found, pictures)
        return found

    def _fits(self, text: str, place: str) -> bool:
        if text.startswith("/"):
            return os.path.normpath(text) == place
        folder = os.path.dirname(os.path.abspath(self.path)).replace(os.sep, "/")
        return f"/{text}" == place[-len(text) - 1 :] or os.path.normpath(f"{folder}/{text}") == place

    def _one(self, fitting: Sequence[int], picture: PictureFile) -> int | None:
        """The row with the longest path."""
        if not fitting:
            return None
        longest = max(len(self.pictures[row]) for row in fitting)
        best = [row for row in fitting if len(self.pictures[row]) == longest]
        groups = self.groups or [None] * len(self.lines)
        said = [(self.observations[row], groups[row]) for row in best]
        if any(each != said[0] for each in said):  # repeated rows do no harm
            lines = " and ".join(str(self.lines[row]) for row in best[:2])
            raise UserError(
                f"{self.path}: the records {lines} are both about {printable(picture.name)} and differ; keep "
                "one of them"
            )
        return best[0]

    def _check_once(self, found: Sequence[int | None], pictures: Sequence[PictureFile]) -> None:
        first: dict[int, PictureFile] = {}
        for row, picture in zip(found, pictures):
            if row is None:
                continue
            other = first.setdefault(row, picture)
            if os.path.abspath(other.path) != os.path.abspath(picture.path):
                raise UserError(
                    f"{self.path}: record {self.lines[row]} names {printable(self.pictures[row])}, which may be "
                    f"{printable(other.name)} or {printable(picture.name)}; write the folder before the name"
                )


def read_observation_table(
    path: Path, mapping: Mapping[str, str] | None = None, group: str | None = None
) -> ObservationTable:
    """Reads a CSV, TSV (either may be gzipped) or Parquet table, or a Camtrap DP package.

    Args:
      path: the table or package. Columns of a table are found by the usual names, see `reading.columns`: file,
        filename, path, picture; latitude, decimalLatitude; date, eventDate and so on.
      mapping: what is known -> column of the table, for other names.
      group: column of `ObservationTable.groups`.

    Raises:
      UserError: no such table, no column of pictures, none of what could be known, or two columns for one thing.
    """
    if is_package(path):
        if mapping or group:
            raise UserError(f"--map, --together and --camera name columns of a table, and {path} is a Camtrap DP")
        return table_of_package(read_package(path))
    asked = {} if group is None else {schema.OCCURRENCE: group}
    only, check = (*_COLUMNS, *asked), functools.partial(_check, alone=bool(asked))
    mapping = {**(mapping or {}), **asked}
    frame, links, warnings = read_columns(path, TextOptions(), mapping=mapping, rank_map={}, check=check, only=only)
    bad = frame.filter(pl.col(schema.REASON).is_not_null())
    frame = frame.filter(pl.col(schema.REASON).is_null())
    if bad.height:
        warnings = [*warnings, f"{path.name}: {bad.height} malformed records are left out, first line {bad['line'][0]}"]
    nameless = frame[schema.PICTURE].null_count()
    if nameless:
        warnings = [*warnings, f"{path.name}: {nameless} records name no picture and are left out"]
        frame = frame.filter(pl.col(schema.PICTURE).is_not_null())
    if has_folders(frame) and not frame[FOLDER].cast(pl.String).str.contains(r"^([/\\]|[A-Za-z]:)").any():
        frame = frame.with_columns(joined_paths(frame, None)[0].alias(schema.PICTURE))
    pictures = (
        frame[schema.PICTURE].cast(pl.String).str.replace_all("\\", "/", literal=True).str.replace(r"^(\./)+", "")
    )
    return ObservationTable(
        path,
        links.names,
        frame[schema.LINE].to_list(),
        pictures.to_list(),
        list(_observations(frame)),
        tuple(warnings),
        frame[schema.OCCURRENCE].cast(pl.String).to_list() if asked else (),
    )


def table_of_package(package: Package) -> ObservationTable:
    """What a Camtrap DP package knows of its media: place of the camera, and time."""
    media = package.named.filter(pl.col(schema.REASON).is_null())
    known = media.select("latitude", "longitude", "timestamp").iter_rows()
    path = package.path / DESCRIPTOR if package.path.is_dir() else package.path
    observations = [Observation(*each) for each in known]
    return ObservationTable(
        path, {}, media[schema.LINE].to_list(), media[NAME].to_list(), observations, package.warnings
    )


def _check(links: Links, header: Sequence[str], where: str, *, alone: bool) -> None:
    """`alone`: the table need not say anything else."""
    if schema.PICTURE not in links.names:
        raise UserError(
            f"{where}: no column names the pictures; call it file, or say which it is with --map picture=COLUMN. Its "
            f"columns are {', '.join(header)}"
        )
    if not alone and not set(links.names) & set(_KNOWN):
        raise UserError(
            f"{where} has none of the columns latitude, longitude, date and elevation; say which they are with --map "
            f"latitude=COLUMN. Its columns are {', '.join(header)}"
        )


def _observations(frame: pl.DataFrame) -> Iterator[Observation]:
    degrees = [
        with_decimal_point(pl.col(name).cast(pl.String)) for name in ("latitude", "longitude") if name in frame.columns
    ]
    known = [name for name in (schema.LINE, *_KNOWN) if name in frame.columns]
    frame = frame.select(pl.col(name).cast(pl.String) for name in known).with_columns(degrees)
    for row in frame.iter_rows(named=True):
        yield Observation(
            row.get("latitude"), row.get("longitude"), _moment(*map(row.get, _MOMENT)), row.get("elevation")
        )


def _moment(
    date: str | None, time: str | None, year: str | None, month: str | None, day: str | None, hour: str | None
) -> str | None:
    """A date as text, from one column or from several."""
    if year is not None and month is not None and not (date and _is_date(date)):
        date = "-".join(part.zfill(2) for part in (year, month, day) if part is not None)
    if date is None or (time is None and hour is None) or _TIME_OR_RANGE.search(date):
        return date
    return f"{date}T{time or f'{hour}:00'}"


def _is_date(text: str) -> bool:
    try:
        return bool(read_moment(text))
    except BadDate:
        return False
