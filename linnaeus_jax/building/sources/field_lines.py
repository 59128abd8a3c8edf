"""Small text files of a few fields on each line, with commas, tabs, semicolons, bars or spaces between them."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.delimited import Utf8Blocks, find_dialect
from linnaeus_jax.reading.paths import SUFFIXES, is_picture
from linnaeus_jax.reading.table import opened
from linnaeus_jax.reading.text import printable

_PICTURE_FIRST = re.compile(rf"(?i)^(.*?\.(?:{'|'.join(SUFFIXES)}))\s+(.*)$")


@dataclass(frozen=True)
class FieldLines:
    """The lines of a file.

    Attributes:
      numbers: of each line in its file, from 1.
      fields: of each line; all of the same number.
      header: the fields of a first line that names the others; empty where there is none.
    """

    numbers: list[int]
    fields: list[list[str]]
    header: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Fields on each line."""
        return len(self.fields[0])


def read_text(path: Path) -> str:
    """The text of a file, gzipped or not; lines that are not UTF-8 are read as Latin-1.

    Raises:
      UserError: no such file, or damaged.
    """
    if not path.is_file():
        raise UserError(f"{printable(str(path))} {'is not a file' if path.exists() else 'does not exist'}")
    with opened(path) as source:
        blocks = Utf8Blocks(source, None)
        return blocks.mended(b"".join(iter(blocks.read, b""))).decode().replace("\0", "")


def read_lines(path: Path, separator: str | None = None, *, label_count: int = 0) -> FieldLines:
    """The fields of every line; empty lines and comments that begin with "# " are left out.

    Args:
      path: the file.
      separator: between fields, "\\t" for a tab; None: the commonest of comma, tab, semicolon and bar in the first
        line, else spaces.
      label_count: fields beside a path, which may hold spaces itself; 0: not known.

    Raises:
      UserError: no such file, no lines, or lines of different numbers of fields.
    """
    texts = [(number, text) for number, text in enumerate(read_text(path).splitlines(), 1)]
    texts = [(number, text.strip()) for number, text in texts if text.strip() and not text.startswith("# ")]
    if not texts:
        raise UserError(f"{path.name} is empty")
    char = (separator or find_dialect(texts[0][1].encode()).separator).replace("\\t", "\t")
    if separator is None and char not in texts[0][1]:
        char = " "
    try:
        lines = [_by_spaces(text, label_count) if char == " " else _by(char, text) for _, text in texts]
    except (csv.Error, TypeError) as error:
        raise UserError(f"{path.name} cannot be split at {char!r}: {error}") from None
    if all(len(fields) > 1 and not fields[-1] for fields in lines):  # a separator at the end of every line
        lines = [fields[:-1] for fields in lines]
    width = len(lines[0])
    odd = [place for place, fields in enumerate(lines) if len(fields) != width]
    if odd:
        shown = ", ".join(f"line {texts[place][0]} has {len(lines[place])}" for place in odd[:3])
        raise UserError(
            f"{path.name}: {len(odd)} lines have another number of fields than line {texts[0][0]}, which has {width}: "
            f"{shown} ({printable(texts[odd[0]][1])})"
        )
    return FieldLines([number for number, _ in texts], lines)


def _by(char: str, text: str) -> list[str]:
    return [part.strip() for part in next(csv.reader([text], delimiter=char, skipinitialspace=True))]


def _by_spaces(text: str, label_count: int) -> list[str]:
    """A path, which may hold spaces, and labels."""
    if is_picture(text):
        return [text] if " " not in text or not text.split()[0].isdecimal() else text.split(maxsplit=1)
    match = _PICTURE_FIRST.fullmatch(text)
    if match and label_count == 1:
        return [match[1], match[2]]
    if label_count:
        return text.rsplit(maxsplit=label_count)
    return [match[1], *match[2].split()] if match else text.split()
