"""The files of a Darwin Core archive, read from the zip or the folder as they lie; nothing is unpacked.

An archive comes from elsewhere: every way in which it could reach out of itself, or fill the memory, is an error.
Format: https://dwc.tdwg.org/text/
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.hdf5 import BOMB_RATIO, BOMB_SIZE
from linnaeus_jax.reading.delimited import Dialect, TextSource, check_encoding
from linnaeus_jax.reading.paths import is_of_system
from linnaeus_jax.reading.table import check_tar
from linnaeus_jax.reading.text import printable

META = "meta.xml"
_LARGEST_XML = 16 << 20
_ENCRYPTED = 1


class Archive:
    """Named files of a zip or a folder.

    Attributes:
      path: the zip or folder.
      names: files in it, with "/" between folders.
    """

    def __init__(self, path: Path) -> None:
        """Raises UserError for what is no zip or folder, or not safe to read."""
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self.names = sorted(entry.name for entry in os.scandir(path) if entry.is_file() and entry.name[0] != ".")
            self._inside = ""
            return
        if not path.is_file():
            raise UserError(f"archive {str(path)!r} does not exist")
        check_tar(path)
        with self._errors():
            self._zip = zipfile.ZipFile(path)
            members = [info for info in self._zip.infolist() if not info.is_dir()]
            for info in members:
                self._check_member(info)
        names = [info.filename for info in members if not any(map(is_of_system, info.filename.split("/")))]
        # zips of a folder, made by hand, have everything in that folder
        metas = [name for name in names if name.rpartition("/")[2] == META]
        self._inside = metas[0][: -len(META)] if len(metas) == 1 else ""
        self.names = [name[len(self._inside) :] for name in names if name.startswith(self._inside)]

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.filename.replace("\\", "/")
        where = f"{self.path.name}: {printable(info.filename)}"
        if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
            raise UserError(f"{where} would lie outside of the archive; it is not read")
        if info.flag_bits & _ENCRYPTED:
            raise UserError(f"{where} is encrypted; unpack the archive and give the folder")
        if info.file_size > BOMB_SIZE and info.file_size > BOMB_RATIO * info.compress_size:
            raise UserError(
                f"{where} would grow from {info.compress_size} to {info.file_size} bytes, "
                f"more than {BOMB_RATIO} times; it is not read"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise UserError(f"{self.path.name} is no zip file or is damaged: {printable(str(error))}") from None

    def _member(self, name: str, said_by: str) -> str:
        """Full name of a file that the archive names. Raises UserError for one that is not in it."""
        fault = f"{self.path.name}: {said_by} names {printable(name)!r}"
        parts = name.replace("\\", "/").split("/")
        if "://" in name or parts[0] == "" or ":" in parts[0] or ".." in parts or "\0" in name:
            raise UserError(f"{fault}, which is not a file of the archive")
        if self._zip is None:
            place = os.path.realpath(self.path / name)
            root = os.path.realpath(self.path)
            if os.path.isfile(place) and os.path.commonpath([root, place]) != root:
                raise UserError(f"{fault}, a link that leads out of the archive")
            there = os.path.isfile(place)
        else:
            there = name in self.names
        if not there:
            raise UserError(f"{fault}, which is missing; there are {', '.join(map(printable, self.names[:10]))}")
        return self._inside + name

    @contextmanager
    def open(self, name: str, said_by: str = META) -> Iterator[TextSource]:
        """A file of the archive; no more of it is read than its declared size."""
        member = self._member(name, said_by)
        with self._errors():
            if self._zip is None:
                size = os.path.getsize(self.path / name)
            else:
                size = self._zip.getinfo(member).file_size
            with (self.path / name).open("rb") if self._zip is None else self._zip.open(member) as stream:
                counted = _Counted(stream)
                yield TextSource(cast(BinaryIO, counted), name, size, lambda: counted.count)

    def text(self, name: str, said_by: str = META, largest: int = _LARGEST_XML) -> str:
        """A short file as text. Raises UserError for one that is not short."""
        with self.open(name, said_by) as source:
            if source.size > largest:
                raise UserError(f"{self.path.name}: {name} has {source.size} bytes, more than {largest}")
            data = source.stream.read(largest)
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")


class _Counted:
    """A stream that counts what was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.count += len(data)
        return data


@dataclass(frozen=True)
class FileDescription:
    """One file of an archive.

    Attributes:
      names: of the files that hold its records.
      kind: last part of its row type: "Occurrence", "Multimedia" ...
      row_type: in full.
      dialect: how it is written.
      id: place of the record's id, or of the id of the record that a row belongs to; None: not described.
      terms: place -> term; only those that are described.
      defaults: term -> value of records that have none; terms without a place are constant.
    """

    names: tuple[str, ...]
    row_type: str
    dialect: Dialect
    id: int | None
    terms: dict[int, str]
    defaults: dict[str, str]

    @property
    def kind(self) -> str:
        return re.split(r"[/#:]", self.row_type)[-1]


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses document types, and with them every kind of entity."""

    def doctype(self, *_: object) -> None:
        raise UserError("has a DOCTYPE, which no Darwin Core archive needs; it is not read")


def read_meta(archive: Archive) -> tuple[list[FileDescription], str | None]:
    """Files described by meta.xml, the core first, and the name of the metadata file. Raises UserError for faults."""
    where = f"{archive.path.name}: {META}"
    try:
        root = ElementTree.fromstring(archive.text(META), ElementTree.XMLParser(target=_NoDoctype()))
    except ElementTree.ParseError as error:
        raise UserError(f"{where} is no XML: {error}") from None
    except UserError as error:
        raise error if str(error).startswith(archive.path.name) else UserError(f"{where} {error}") from None
    core = [_describe(element, where) for element in root if _tag(element) == "core"]
    others = [_describe(element, where) for element in root if _tag(element) == "extension"]
    if len(core) != 1:
        raise UserError(f"{where} describes {len(core)} core files, not one")
    return core + others, root.get("metadata")


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _describe(element: ElementTree.Element, where: str) -> FileDescription:
    names = [(part.text or "").strip() for files in element if _tag(files) == "files" for part in files]
    if not any(names):
        raise UserError(f"{where} names no file for its {_tag(element)}")
    where = f"{where}, {printable(names[0])}"
    terms: dict[int, str] = {}
    defaults: dict[str, str] = {}
    place = None
    for field in element:
        tag, term = _tag(field), field.get("term", "")
        index = _number(field.get("index"), f"{where}: index") if field.get("index") else None
        if tag in ("id", "coreid"):
            place = index
        elif tag == "field":
            if index is not None:
                terms.setdefault(index, term)
            if field.get("default"):
                defaults[term] = field.get("default", "")
    dialect = Dialect(
        separator=_character(element.get("fieldsTerminatedBy", ","), f"{where}: fieldsTerminatedBy") or ",",
        quote=_character(element.get("fieldsEnclosedBy", '"'), f"{where}: fieldsEnclosedBy"),
        encoding=_encoding(element.get("encoding") or "utf-8", where),
        header_lines=_number(element.get("ignoreHeaderLines") or "0", f"{where}: ignoreHeaderLines"),
    )
    ends = element.get("linesTerminatedBy", "\\n")
    if ends.strip("\\rn \r\n"):
        raise UserError(f"{where}: linesTerminatedBy {printable(ends)!r} is not a line end")
    return FileDescription(tuple(filter(None, names)), element.get("rowType", ""), dialect, place, terms, defaults)


def _number(text: str | None, where: str) -> int:
    if text is None or not text.strip().isdecimal() or len(text) > 6:
        raise UserError(f"{where} {printable(text or '')!r} is not a number")
    return int(text)


def _character(text: str, where: str) -> str | None:
    """One character, written as itself or as an escape. A tab in an attribute arrives as a space."""
    char = {"\\t": "\t", " ": "\t", "\\'": "'", '\\"': '"', "&quot;": '"'}.get(text, text)
    if len(char) > 1 or not char.isascii() or char in ("\n", "\r"):
        raise UserError(f"{where} {printable(text)!r} is not one ASCII character")
    return char or None


def _encoding(name: str, where: str) -> str | None:
    """None for UTF-8, which is checked line by line."""
    check_encoding(name, where)
    return None if name.lower().replace("-", "") in ("utf8", "ascii", "usascii") else name
