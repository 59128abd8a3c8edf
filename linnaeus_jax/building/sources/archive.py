"""The files of a Darwin Core archive, as its meta.xml describes them. Format: https://dwc.tdwg.org/text/"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.archive import Archive
from linnaeus_jax.reading.delimited import Dialect, check_encoding
from linnaeus_jax.reading.text import printable

META = "meta.xml"


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
