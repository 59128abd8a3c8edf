"""Tables of text (CSV, TSV, the files of an archive), read in blocks, each line accounted for.

A record with another number of fields than the header is never filled up, cut or skipped: it is a row of its own with
the reason "malformed record". A line whose quotes break the rules costs itself alone, since the reader of Python's
`csv` begins anew on the line behind it.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.text import printable

BLOCK = 1 << 24
LONGEST_RECORD = 1 << 26
#: a quoted field over more lines than this is a quote that was never closed
LONGEST_SPAN = 1000
#: what stands for "not given"
NOT_GIVEN: tuple[str, ...] = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N")
#: the same in a column of names, which may be called "nan" or "None"
NO_NAME: tuple[str, ...] = ("", "NA", "N/A", "NaN", "\\N")
_SEPARATOR_LINE = re.compile(rb"sep=([!-~\t])", re.IGNORECASE)
#: stands for a carriage return within a field
_RETURN = "\ue00d"
csv.field_size_limit(LONGEST_RECORD)
_UNCLOSED = "a quote opened on this line is never closed"


@dataclass(frozen=True)
class Dialect:
    """How fields are written.

    Attributes:
      separator: one ASCII character between fields.
      quote: character around fields that hold separators or line ends; None: quotes are text.
      encoding: None: UTF-8, and lines that are not UTF-8 as Latin-1.
      header_lines: lines before the first record, the last of which names the columns.
    """

    separator: str = ","
    quote: str | None = '"'
    encoding: str | None = None
    header_lines: int = 1


@dataclass
class TextSource:
    """An open file of text.

    Attributes:
      stream: its bytes.
      name: for messages and progress.
      size: bytes in all, 0 = unknown.
      position: bytes read of them so far.
    """

    stream: BinaryIO
    name: str
    size: int
    position: Callable[[], int]


def find_dialect(head: bytes, *, quote: str | None = '"', encoding: str | None = None) -> Dialect:
    """Dialect of a table from its first line: the commonest of tab, comma, semicolon and bar outside of quotes.

    A first line "sep=;", as Excel writes it, is obeyed.
    """
    line = head.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"").replace(b"\r", b"\n").lstrip(b"\n").split(b"\n", 1)[0]
    if named := _SEPARATOR_LINE.fullmatch(line.strip(b'" ')):
        return Dialect(named[1].decode(), quote, encoding, header_lines=2)
    bare = b"".join(line.split(b'"')[::2]) if quote else line
    separator = max(",\t;|", key=lambda char: bare.count(char.encode()))
    if separator == "\t" and b"gbifID" in line:
        quote = None  # tables of GBIF never quote
    return Dialect(separator, quote, encoding)


def clean_text(name: str) -> pl.Expr:
    """A text column without spaces around it, null where it says "not given"."""
    text = pl.col(name).str.strip_chars()
    return pl.when(text.is_in(NO_NAME if columns.is_name(name) else NOT_GIVEN)).then(None).otherwise(text).alias(name)


def check_encoding(name: str, where: str) -> None:
    """Raises UserError for what is no encoding of text; `where` names the file."""
    try:
        "".encode(name)
        codecs.getincrementaldecoder(name)
    except (LookupError, ValueError):  # ValueError: a null character in the name
        raise UserError(f"{where}: encoding {printable(name)!r} is unknown; name another, e.g. UTF-8") from None


def _unmarked_utf16(data: bytes) -> str:
    """The encoding of UTF-16 without a byte order mark, whose every second byte is mostly NUL; "" of other text."""
    nul = np.frombuffer(data[:4096], np.uint8) == 0
    shares = [float(nul[first::2].mean()) if len(nul) > 1 else 0.0 for first in (0, 1)]
    if max(shares) < 0.4 or min(shares) > 0.05:
        return ""
    return "utf-16-le" if shares[1] > shares[0] else "utf-16-be"


class Utf8Blocks:
    """The bytes of a file as UTF-8, in blocks.

    Attributes:
      unmarked: the encoding of a file of UTF-16 without a byte order mark; "" of others.
      latin_lines: lines that were not UTF-8 and were read as Latin-1.
      replaced: characters that a declared encoding does not have.
    """

    def __init__(self, source: TextSource, encoding: str | None) -> None:
        self.unmarked, self.latin_lines, self.replaced = "", 0, 0
        self._stream, self._name, self._encoding = source.stream, source.name, encoding
        first = self._stream.read(BLOCK)
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            self._encoding = encoding = "utf-16"
        elif not encoding:
            self.unmarked = self._encoding = encoding = _unmarked_utf16(first)
        self._decoder: codecs.IncrementalDecoder | None = None
        if encoding:
            check_encoding(encoding, source.name)
            if codecs.lookup(encoding).name not in ("utf-8", "ascii"):
                self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._first: bytes | None = self._utf8(first).removeprefix(codecs.BOM_UTF8)
        self._returns_end_lines = b"\n" not in self._first and b"\r" in self._first

    def read(self) -> bytes:
        """The next block; empty at the end of the file."""
        data, self._first = self._first, None
        if data is None:
            data = self._utf8(self._stream.read(BLOCK))
        return data.replace(b"\r", b"\n") if self._returns_end_lines else data

    def _utf8(self, data: bytes) -> bytes:
        if self._decoder is None:
            return data
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeError as error:  # of the few encodings that replace nothing
            raise UserError(f"{self._name} cannot be read as {self._encoding}: {error}") from None
        self.replaced += text.count("\ufffd")
        return text.encode()

    def decode_with_fallback(self, records: bytes) -> str:
        """The text of whole lines: those that are not UTF-8 are read as Latin-1 and counted."""
        try:
            return records.decode()
        except UnicodeDecodeError:
            return "\n".join(map(self._decode_line, records.split(b"\n")))

    def _decode_line(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.latin_lines += 1
            return line.decode("latin-1")

    def warnings(self, name: str) -> list[str]:
        """Which fallbacks were taken, for people."""
        found = []
        if self.unmarked:
            found.append(f"{name}: read as {self.unmarked}, as its NUL bytes show; --encoding names another")
        if self.latin_lines:
            found.append(f"{name}: {self.latin_lines} lines are not UTF-8 and were read as Latin-1")
        if self.replaced:
            found.append(f"{name}: {self.replaced} characters do not fit its encoding and were replaced")
        return found


class RecordReader:
    """Reads the records of one text file.

    Attributes:
      header: names of the columns, from the last header line; empty without header lines.
    """

    def __init__(self, source: TextSource, dialect: Dialect) -> None:
        """Reads the header lines. Raises UserError for an empty file."""
        self.source, self.dialect = source, dialect
        self._format: dict[str, Any] = dict(
            delimiter=dialect.separator,
            quotechar=dialect.quote,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
            strict=True,
        )
        self._blocks = Utf8Blocks(source, dialect.encoding)
        self._rest = self._blocks.read()
        self._line = 1  # of the first byte of the rest
        self._ended = False
        self._swallowed: list[tuple[int, int]] = []  # first and last line of each record that may hold others
        self.header: list[str] = []
        while not self._rest.strip(b"\r\n \t") and not self._ended:
            self._line += self._rest.count(b"\n")
            self._rest = b""
            self._more()
        if not self._rest:
            raise UserError(f"{source.name} is empty")
        for _ in range(dialect.header_lines):
            self.header = self._take_header()

    @property
    def warnings(self) -> list[str]:
        """Which fallbacks were taken, and what may be wrong, so far."""
        found = self._blocks.warnings(self.source.name)
        if self._swallowed:
            lines = sum(last - first + 1 for first, last in self._swallowed)
            shown = ", ".join(f"{first} to {last}" for first, last in self._swallowed[:3])
            found.append(
                f"{self.source.name}: quotes make {len(self._swallowed)} records of {lines} lines that each have the "
                f"fields of a record: lines {shown}{', ...' * (len(self._swallowed) > 3)}. If these quotes are text, "
                "remove them there, or build with --quotes none"
            )
        return found

    def read(
        self, positions: Mapping[str, int], width: int, progress: schema.Progress | None = None
    ) -> Iterator[pl.DataFrame]:
        """Records in blocks.

        Args:
          positions: name of a column in the frames -> place of the field, from 0.
          width: fields of every record.
          progress: told of the bytes read.

        Yields:
          Frames with `line` Int64 (1-based, where the record begins), the named columns as String, `reason`, `detail`.
        """
        while True:
            if progress:
                progress(f"reading {self.source.name}", self.source.position(), self.source.size)
            frame = self._take_records(positions, width)
            if frame is not None:
                yield frame
            elif self._ended:
                return
            self._more()

    def first_width(self) -> int:
        """Fields of the first record, for files without a header line."""
        return len(self._first()[0])

    def _first(self) -> tuple[list[str], int]:
        """The next record, and how many lines it has. Raises UserError where it cannot be read."""
        while True:
            lines = [_text(line.decode(errors="replace")) for line in self._rest.split(b"\n", LONGEST_SPAN)[:-1]]
            feed = _Lines(lines)
            try:
                return next(csv.reader(feed, **self._format)), feed.next
            except (_Unclosed, csv.Error) as error:
                whole = isinstance(error, csv.Error) or len(lines) == LONGEST_SPAN or len(self._rest) >= LONGEST_RECORD
                if whole or self._ended:
                    raise UserError(f"{self.source.name}: the header cannot be read: {_fault_of(error)}") from None
                self._more()

    def _more(self) -> None:
        """Appends a block to the rest; at the end of the file a line end, where the last line has none."""
        block = self._blocks.read()
        self._rest += block
        if not block and not self._ended:
            self._ended = True
            if self._rest and not self._rest.endswith(b"\n"):
                self._rest += b"\n"

    def _take_header(self) -> list[str]:
        if not self._rest:
            self._more()
        if not self._rest:
            return []
        _, count = self._first()
        taken = b"\n".join(self._rest.split(b"\n", count)[:-1])
        self._line += count
        self._rest = self._rest[len(taken) + 1 :]
        text = self._blocks.decode_with_fallback(taken).replace("\0", "")
        record = next(csv.reader(_Lines(_text(text).split("\n")), **self._format), [])
        return [name.strip() for name in record] if record or not self._rest else self._take_header()

    def _take_records(self, positions: Mapping[str, int], width: int) -> pl.DataFrame | None:
        """The whole records of the rest; None where there are none yet."""
        whole = self._rest.rfind(b"\n") + 1
        text = _text(self._blocks.decode_with_fallback(self._rest[:whole]))
        lines, has_nul = text.split("\n")[:-1], "\0" in text
        found: list[tuple[str, ...]] = []
        numbers: list[int] = []
        faults: list[tuple[int, str]] = []
        places = tuple(positions.values())
        feed = _Lines(lines)
        reader = csv.reader(feed, **self._format)
        while (first := feed.begin()) < len(lines):
            try:
                record = next(reader)
            except (_Unclosed, csv.Error) as error:
                if isinstance(error, _Unclosed) and feed.next - first < LONGEST_SPAN and not self._ended:
                    feed.next = first  # its end may be in the next block
                    break
                faults.append((self._line + first, _fault_of(error)))
                feed.next = first + 1
                reader = csv.reader(feed, **self._format)
                continue
            if feed.next - first > 1 and width > 1:
                self._find_swallowed(lines[first : feed.next], first, width)
            with_nul = has_nul and any("\0" in field for field in record)
            if len(record) == width and not with_nul:
                found.append(tuple([record[place] for place in places]))
                numbers.append(self._line + first)
            elif record:
                faults.append((self._line + first, _fault(len(record), width, with_nul)))
        left = "".join(line + "\n" for line in lines[feed.next :]).encode()
        self._rest = left.replace(_RETURN.encode(), b"\r") + self._rest[whole:]
        self._line += feed.next
        if not feed.next and len(self._rest) > LONGEST_RECORD:
            limit = f"{LONGEST_RECORD >> 20} MiB"
            raise UserError(f"{self.source.name}: line {self._line} is longer than {limit}; is it a table of text?")
        columns = zip(*found) if found else ([] for _ in positions)
        texts = {name: pl.Series(values, dtype=pl.String) for name, values in zip(positions, columns)}
        if _RETURN in text:
            texts = {name: values.str.replace_all(_RETURN, "\r", literal=True) for name, values in texts.items()}
        frame = pl.DataFrame({schema.LINE: pl.Series(numbers, dtype=pl.Int64)} | texts)
        return _with_malformed(frame, faults) if feed.next else None

    def _find_swallowed(self, read: list[str], first: int, width: int) -> None:
        """Notes a record of several lines of which each has the separators of a record, inside of quotes or not."""
        if all(text.count(self.dialect.separator) == width - 1 for text in read):
            self._swallowed.append((self._line + first, self._line + first + len(read) - 1))


def _text(text: str) -> str:
    """Text without carriage returns that end no line, which stand for themselves and which `csv` refuses."""
    return re.sub(r"\r(?!\n|$)", _RETURN, text) if "\r" in text else text


class _Unclosed(Exception):
    """A quoted field did not end within the lines at hand."""


class _Lines:
    """Lines for `csv.reader`, which stop with `_Unclosed` in the middle of a record."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.next, self._first = lines, 0, 0

    def begin(self) -> int:
        """A record begins here; returns the index of its first line."""
        self._first = self.next
        return self.next

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self.next == len(self.lines) or self.next - self._first >= LONGEST_SPAN:
            raise _Unclosed
        self.next += 1
        return self.lines[self.next - 1] + "\n"


def _fault_of(error: Exception) -> str:
    if isinstance(error, _Unclosed):
        return _UNCLOSED
    return "text behind a closing quote" if "expected after" in str(error) else str(error)


def _fault(fields: int, width: int, with_nul: bool) -> str:
    if with_nul:
        return "a NUL byte in the text; if it is in UTF-16 or UTF-32, name it with --encoding"
    return f"{fields} fields where the header has {width}"


def _with_malformed(frame: pl.DataFrame, faults: list[tuple[int, str]]) -> pl.DataFrame:
    """The records and, at their place, a row for each malformed one: (line, detail)."""
    frame = frame.with_columns(pl.lit(None, pl.String).alias(name) for name in (schema.REASON, schema.DETAIL))
    if not faults:
        return frame
    lines, details = zip(*faults)
    bad = pl.DataFrame({schema.LINE: lines, schema.REASON: [schema.MALFORMED] * len(lines), schema.DETAIL: details})
    return pl.concat([frame, bad], how="diagonal").sort(schema.LINE, maintain_order=True)
