"""A Camtrap DP package (https://camtrap-dp.tdwg.org): cameras, their media, and what people and machines saw on them.

Versions 0.6 and 1.0 to 1.0.2 are read, from the folder or the zip as they lie. All values are text.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.archive import Archive
from linnaeus_jax.reading.boxes import BoxFile
from linnaeus_jax.reading.columns import Links
from linnaeus_jax.reading.delimited import Dialect, RecordReader, find_dialect
from linnaeus_jax.reading.schema import REASON, Progress
from linnaeus_jax.reading.table import joined, read_records
from linnaeus_jax.reading.text import printable

DESCRIPTOR = "datapackage.json"
MACHINE = "machine"
#: number of the box of an observation among those of its medium, from 1; null where it has none
BOX = "box"
#: what a medium is called in the folder of its pictures
NAME = "name"
_PLACE = ("bboxX", "bboxY", "bboxWidth", "bboxHeight")
#: table -> columns that it must have, and others that are read
_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deployments": (("deploymentID", "latitude", "longitude"), ("locationID", "coordinateUncertainty")),
    "media": (
        ("mediaID", "deploymentID", "timestamp", "filePath"),
        ("fileName", "fileMediatype", "eventID"),
    ),
    "observations": (
        ("observationID", "observationType"),
        (
            *("deploymentID", "mediaID", "eventID", "eventStart", "eventEnd", "observationLevel", "scientificName"),
            *("classificationMethod", "classificationProbability", *_PLACE),
        ),
    ),
}
#: observations of version 0.6 by their level
_OF_LEVEL = {"media-observations": "media", "event-observations": "event"}
_VERSION = re.compile(r"camtrap-dp/v?(\d+)\.(\d[\w.-]*)/")


def is_package(path: Path) -> bool:
    """Whether a path is a package: a folder or a zip with its descriptor, or the descriptor itself."""
    if path.is_dir():
        return (path / DESCRIPTOR).is_file()
    if path.name == DESCRIPTOR or not zipfile.is_zipfile(path):
        return path.name == DESCRIPTOR and path.is_file()
    with zipfile.ZipFile(path) as file:
        return any(name.rpartition("/")[2] == DESCRIPTOR for name in file.namelist())


@dataclass(frozen=True, eq=False)
class Table:
    """How a table is written.

    Attributes:
      resource: its name among the resources.
      paths: its files, each with a header.
      header: names of all columns, of the last file.
      dialect: of the last file.
    """

    resource: str
    paths: tuple[str, ...]
    header: tuple[str, ...]
    dialect: Dialect


@dataclass(frozen=True, eq=False)
class Package:
    """What a package says.

    Attributes:
      path: the folder or the zip.
      descriptor: the content of datapackage.json.
      version: such as "1.0.2"; "" where it is not said.
      deployments, media: columns of `_COLUMNS`, as far as they are there, `line`, `reason` and `detail`. Each id once.
      observations: the same, with `observationLevel` and `box`; those that are malformed are left out.
      tables: how each is written.
      warnings: what a person should know, one line each.
      digest: SHA-256 over the descriptor and the tables.
    """

    path: Path
    descriptor: Mapping[str, Any]
    version: str
    deployments: pl.DataFrame
    media: pl.DataFrame
    observations: pl.DataFrame
    tables: Mapping[str, Table]
    warnings: tuple[str, ...]
    digest: str

    @property
    def folder(self) -> Path:
        """Where relative paths of media begin."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def named(self) -> pl.DataFrame:
        """`media` with latitude, longitude and more of their cameras, and `name`: the path of a file of the package; of
        a file of the web its file name, behind that of the deployment where several have it, else the id."""
        address = pl.col("filePath").str.contains(r"(?i)^[a-z][a-z0-9+.]*://")
        inside = pl.concat_str("deploymentID", "fileName", separator="/")
        name = pl.coalesce(
            pl.when(~address).then("filePath"),
            pl.when(pl.col("fileName").is_unique()).then("fileName"),
            pl.when(inside.is_unique()).then(inside),
            "mediaID",
        )
        media = self.media.with_columns(name.str.replace_all("\\", "/", literal=True).alias(NAME))
        cameras = self.deployments.drop("line", "reason", "detail")
        return media.join(cameras, on="deploymentID", how="left", maintain_order="left")

    @property
    def taxonomic(self) -> list[dict[str, Any]]:
        """The taxa that are described."""
        listed = self.descriptor.get("taxonomic")
        entries = listed if isinstance(listed, list) else []
        return [each for each in entries if isinstance(each, dict) and isinstance(each.get("scientificName"), str)]

    def boxes(self) -> BoxFile:
        """The boxes of media-based observations, by `name`. Their category is the type of the observation; a machine
        that names no taxon has the confidence that something is there."""
        found = BoxFile(self.path, f"Camtrap DP {self.version}".rstrip())
        names = dict(self.named.filter(pl.col(REASON).is_null()).select("mediaID", NAME).iter_rows())
        listed = {medium: found.picture(name) for medium, name in names.items()}
        boxed = self.observations.filter(pl.col(BOX).is_not_null() & pl.col("mediaID").is_in(list(names)))
        for row in boxed.unique(["mediaID", BOX], keep="first", maintain_order=True).iter_rows(named=True):
            place = [_number(row[side]) for side in _PLACE]
            sure = row["classificationMethod"] == MACHINE and row["scientificName"] is None
            confidence = _number(row["classificationProbability"]) if sure else None
            found.add(listed[row["mediaID"]], row[BOX], place, confidence, row["observationType"])
            found.categories[row["observationType"]] = row["observationType"]
        return found


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def read_package(path: Path, progress: Progress | None = None) -> Package:
    """Reads a package.

    Args:
      path: its folder, its datapackage.json, or a zip of it.

    Raises:
      UserError: no package, of another version, tables or columns that are missing, or what is not safe to read.
    """
    path = path.parent if path.name == DESCRIPTOR else path
    if not is_package(path):
        raise UserError(f"{path} is no Camtrap DP: give the folder with its {DESCRIPTOR}, or a zip of that folder")
    with Archive(path, DESCRIPTOR) as opened:
        text = opened.text(DESCRIPTOR)
        try:
            descriptor = json.loads(text.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: {DESCRIPTOR} is no JSON: {printable(str(error))}") from None
        version, warnings = _version(path, descriptor)
        digest = hashlib.sha256(text.encode("utf-8", "replace"))
        frames, tables = {}, {}
        for name in ("deployments", "media", "observations", *_OF_LEVEL):
            resource = _resource(descriptor, name)
            if resource is None and (name in _OF_LEVEL or (name == "observations" and version == "0.6")):
                continue
            frames[name], tables[name], more = _read_table(opened, name, resource, progress, digest)
            warnings += more
    parts = [frames.get("observations"), *(frames.get(name) for name in _OF_LEVEL)]
    observations = pl.concat([part for part in parts if part is not None], how="diagonal")
    for name, key in (("deployments", "deploymentID"), ("media", "mediaID")):
        once = frames[name].unique(key, keep="first", maintain_order=True)
        if lost := frames[name].height - once.height:
            warnings.append(f"{path.name}: {lost:,} rows of {name} repeat a {key} and are left out")
        frames[name] = once
    orphans = frames["media"].join(frames["deployments"], on="deploymentID", how="anti").height
    if orphans:
        warnings.append(f"{path.name}: {orphans:,} media are of a deployment that it has not; their place is unknown")
    return Package(
        *(path, descriptor, version, frames["deployments"], frames["media"], _numbered(observations), tables),
        *(tuple(warnings), digest.hexdigest()),
    )


def _version(path: Path, descriptor: Any) -> tuple[str, list[str]]:
    """Version of a descriptor, and warnings. Raises UserError for what is no descriptor, or of version 2."""
    if not isinstance(descriptor, dict) or not isinstance(descriptor.get("resources"), list):
        raise UserError(f"{path}: {DESCRIPTOR} lists no resources; it is no data package")
    schemas = [each.get("schema") for each in descriptor["resources"] if isinstance(each, dict)]
    found = next(filter(None, (_VERSION.search(str(text)) for text in (descriptor.get("profile"), *schemas))), None)
    if found is None:
        return "", [f"{path.name} names no version of Camtrap DP; it is read as 1.0"]
    version = f"{found[1]}.{found[2]}"
    if found[1] != "1" and version != "0.6":
        raise UserError(f"{path} is Camtrap DP {version}; 0.6 and 1.x are read")
    known = version in ("0.6", "1.0", "1.0.1", "1.0.2")
    return version, [] if known else [f"{path.name} is Camtrap DP {version}; it is read as 1.0.2"]


def _resource(descriptor: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    found = [each for each in descriptor["resources"] if isinstance(each, dict) and each.get("name") == name]
    return found[0] if found else None


def paths_of(resource: Mapping[str, Any]) -> tuple[str, ...]:
    """The files of a resource; none where it holds its data itself."""
    listed = resource.get("path")
    given = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
    return tuple(each for each in given if isinstance(each, str))


def _read_table(
    opened: Archive, name: str, resource: Mapping[str, Any] | None, progress: Progress | None, digest: Any
) -> tuple[pl.DataFrame, Table, list[str]]:
    where = f"{opened.path.name}: {name}"
    if resource is None or not paths_of(resource):
        raise UserError(f"{where} is not among the resources with a file of {DESCRIPTOR}")
    needed, others = _COLUMNS[name if name not in _OF_LEVEL else "observations"]
    frames, warnings = [], []
    for path in paths_of(resource):
        if "://" in path:
            raise UserError(f"{where} lies at {printable(path)}; download it beside {DESCRIPTOR} and name it there")
        with opened.open(path) as source:
            head = source.stream.read(1 << 16)
            digest.update(head)
            while block := source.stream.read(1 << 20):
                digest.update(block)
        if head.startswith((b"\x1f\x8b", b"PK\x03\x04")):
            raise UserError(f"{where}: {printable(path)} is compressed; unpack it, and name the plain file")
        encoding = resource.get("encoding")
        plain = not isinstance(encoding, str) or encoding.lower().replace("-", "") == "utf8"
        dialect = find_dialect(head, encoding=None if plain else encoding)
        with opened.open(path) as source:
            reader = RecordReader(source, dialect)
            if missing := [column for column in needed if column not in reader.header]:
                raise UserError(f"{where}: {printable(path)} has no column {missing[0]}")
            there = [column for column in (*needed, *others) if column in reader.header]
            links = Links({key: key for key in there}, {key: reader.header.index(key) for key in there})
            frame = read_records(reader, links, len(reader.header), progress)
            warnings += reader.warnings
        absent = (pl.lit(None, pl.String).alias(key) for key in (*needed, *others) if key not in there)
        if frame is not None:
            frames.append(frame.with_columns(pl.col(there).cast(pl.String), *absent))
    table = Table(name, paths_of(resource), tuple(reader.header), dialect)
    frame = joined(frames)
    if frame is None:
        kinds = {"line": pl.Int64(), **dict.fromkeys((*needed, *others, "reason", "detail"), pl.String())}
        return pl.DataFrame(schema=kinds), table, warnings
    if name != "media":
        bad = frame.filter(pl.col(REASON).is_not_null() | pl.any_horizontal(pl.col(needed[:1]).is_null()))
        if bad.height:
            warnings.append(
                f"{where}: {bad.height:,} rows are malformed and left out, the first in line {bad['line'][0]}"
            )
            frame = frame.join(bad, on="line", how="anti", maintain_order="left")
    if name in _OF_LEVEL:
        frame = frame.with_columns(pl.lit(_OF_LEVEL[name]).alias("observationLevel"))
    return frame, table, warnings


def _numbered(observations: pl.DataFrame) -> pl.DataFrame:
    """`box`: observations of one medium with the same four numbers are of the same box."""
    place = pl.concat_str(_PLACE, separator=" ")  # null where one of them is
    first = observations.select("mediaID", place.alias("place")).filter(pl.all_horizontal(pl.all().is_not_null()))
    first = first.unique(maintain_order=True)
    first = first.with_columns((pl.int_range(pl.len(), dtype=pl.Int64).over("mediaID") + 1).alias(BOX))
    numbered = observations.with_columns(place.alias("place"))
    return numbered.join(first, on=["mediaID", "place"], how="left", maintain_order="left").drop("place")
