"""Tables of text (CSV, TSV, the files of an archive), read in blocks, each line accounted for.

A record with another number of fields than the header is never filled up, cut or skipped: it is a row of its own with
the reason "malformed record". Where fields and records end is found on whole blocks by counting quotes, separators and
line ends, and polars parses what has been checked. A block whose quotes do not pair up goes through Python's `csv`,
record by record; a line whose quotes break the rules costs itself alone.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

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
_NEWLINE, _RETURN = 10, 13
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

    def mended(self, records: bytes) -> bytes:
        """Whole lines as valid UTF-8: those that are not are read as Latin-1 and counted."""
        if records.isascii():
            return records
        try:
            records.decode()
        except UnicodeDecodeError:
            return b"\n".join(map(self._mended_line, records.split(b"\n")))
        return records

    def _mended_line(self, line: bytes) -> bytes:
        try:
            line.decode()
        except UnicodeDecodeError:
            self.latin_lines += 1
            return line.decode("latin-1").encode()
        return line

    def warnings(self, name: str) -> list[str]:
        """What was mended, for people."""
        found = []
        if self.unmarked:
            found.append(f"{name}: read as {self.unmarked}, as its NUL bytes show; --encoding names another")
        if self.latin_lines:
            found.append(f"{name}: {self.latin_lines} lines are not UTF-8 and were read as Latin-1")
        if self.replaced:
            found.append(f"{name}: {self.replaced} characters do not fit its encoding and were replaced")
        return found


@dataclass(frozen=True)
class _Layout:
    """Where records and fields of a block end, by counting.

    Attributes:
      sound: whether quotes open at the start of a field and close at its end; the rest holds only then.
      ends: int64[R], positions of the line ends that end a record.
      newlines: int64[L], positions of all line ends.
      separators: int64[S], positions of the separators outside of quotes.
    """

    sound: bool
    ends: NDArray[np.int64]
    newlines: NDArray[np.int64]
    separators: NDArray[np.int64]


def _layout(data: NDArray[np.uint8], separator: int, quote: int | None) -> _Layout:
    newlines = np.flatnonzero(data == _NEWLINE)
    separators = np.flatnonzero(data == separator)
    quotes = newlines[:0] if quote is None else np.flatnonzero(data == quote)
    if quote is None or quotes.size == 0:
        return _Layout(True, newlines, newlines, separators)
    before = data[quotes[::2] - 1]
    before[0] = before[0] if quotes[0] else _NEWLINE
    opens = np.isin(before, (separator, _NEWLINE))
    opens[1:] |= quotes[2::2] - 1 == quotes[1:-1:2]  # the second of a doubled quote
    closing = quotes[1::2]
    after = np.full(closing.size, _NEWLINE, np.uint8)
    inside = closing + 1 < data.size
    after[inside] = data[closing[inside] + 1]
    closes = np.isin(after, (separator, _NEWLINE, quote))
    returns = np.flatnonzero(after == _RETURN)
    following = closing[returns] + 2
    closes[returns] = (following >= data.size) | (data[np.minimum(following, data.size - 1)] == _NEWLINE)
    ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    separators = separators[np.searchsorted(quotes, separators) % 2 == 0]
    return _Layout(bool(opens.all() and closes.all()), ends, newlines, separators)


class RecordReader:
    """Reads the records of one text file.

    Attributes:
      header: names of the columns, from the last header line; empty without header lines.
    """

    def __init__(self, source: TextSource, dialect: Dialect) -> None:
        """Reads the header lines. Raises UserError for an empty file."""
        self.source, self.dialect = source, dialect
        self._separator = ord(dialect.separator)
        self._quote = ord(dialect.quote) if dialect.quote else None
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
        """What was mended, and what may be wrong, so far."""
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
        while b"\n" not in self._rest and not self._ended:
            self._more()
        layout = _layout(np.frombuffer(self._rest, np.uint8), self._separator, self._quote)
        end = int(layout.ends[0]) if layout.ends.size else len(self._rest)
        return int(np.searchsorted(layout.separators, end)) + 1

    def _more(self) -> None:
        """Appends a block to the rest; at the end of the file a line end, where the last line has none."""
        block = self._blocks.read()
        self._rest += block
        if not block and not self._ended:
            self._ended = True
            if self._rest and not self._rest.endswith(b"\n"):
                self._rest += b"\n"

    def _take_header(self) -> list[str]:
        layout = _layout(np.frombuffer(self._rest, np.uint8), self._separator, self._quote)
        while not layout.ends.size and not self._ended and len(self._rest) < LONGEST_RECORD:
            self._more()
            layout = _layout(np.frombuffer(self._rest, np.uint8), self._separator, self._quote)
        ends = layout.ends if layout.ends.size and layout.sound else layout.newlines
        end = int(ends[0]) if ends.size else len(self._rest)
        text = self._blocks.mended(self._rest[:end]).decode().replace("\0", "")
        self._line += text.count("\n") + 1
        self._rest = self._rest[end + 1 :]
        try:
            record = next(csv.reader(io.StringIO(text, newline=""), **self._format()), [])
        except csv.Error as error:
            raise UserError(f"{self.source.name}: the header cannot be read: {error}") from None
        return [name.strip() for name in record] if record or not self._rest else self._take_header()

    def _format(self) -> dict:
        quoting = csv.QUOTE_MINIMAL if self.dialect.quote else csv.QUOTE_NONE
        return dict(delimiter=self.dialect.separator, quotechar=self.dialect.quote, quoting=quoting, strict=True)

    def _take_records(self, positions: Mapping[str, int], width: int) -> pl.DataFrame | None:
        """The whole records of the rest; None where there are none yet."""
        if not self._rest:
            return None
        data = np.frombuffer(self._rest, np.uint8)
        layout = _layout(data, self._separator, self._quote)
        taken = int(layout.ends[-1]) + 1 if layout.ends.size else 0
        left = data.size - taken
        endless = self._ended or layout.newlines.size - np.searchsorted(layout.newlines, taken) > LONGEST_SPAN
        if not layout.sound or (left and endless):
            return self._take_by_csv(positions, width)
        if not taken:
            if left > LONGEST_RECORD:
                limit = f"{LONGEST_RECORD >> 20} MiB"
                raise UserError(f"{self.source.name}: line {self._line} is longer than {limit}; is it a table of text?")
            return None
        frame = self._parse(data[:taken], layout, positions, width)
        self._line += int(np.searchsorted(layout.newlines, taken))
        self._rest = self._rest[taken:]
        return frame

    def _parse(
        self, data: NDArray[np.uint8], layout: _Layout, positions: Mapping[str, int], width: int
    ) -> pl.DataFrame:
        """Records of a block that has been checked, by polars."""
        ends = layout.ends
        starts = np.concatenate(([0], ends[:-1] + 1))
        fields = np.diff(np.searchsorted(layout.separators, ends), prepend=0) + 1
        lines = self._line + np.searchsorted(layout.newlines, starts)
        length = ends - starts
        blank = (length == 0) | ((length == 1) & (data[starts] == _RETURN))
        self._find_swallowed(data, layout, lines, width)
        with_nul = np.zeros(ends.size, bool)
        with_nul[np.searchsorted(ends, np.flatnonzero(data == 0))] = True
        wrong = ~blank & (with_nul | (fields != width))
        keep = ~blank & ~wrong
        kept = data if keep.all() else data[np.repeat(keep, length + 1)]
        frame = self._polars(self._blocks.mended(kept.tobytes()), positions, width, int(keep.sum()))
        frame = frame.insert_column(0, pl.Series(schema.LINE, lines[keep], pl.Int64))
        details = [_fault(int(fields[at]), width, bool(with_nul[at])) for at in np.flatnonzero(wrong)]
        return _with_malformed(frame, list(zip(lines[wrong].tolist(), details)))

    def _find_swallowed(self, data: NDArray[np.uint8], layout: _Layout, lines: NDArray[np.int64], width: int) -> None:
        """Notes the records of several lines of which each has the separators of a record, inside of quotes or not.

        Args:
          lines: int64 [R], where the records begin.
        """
        last = self._line + np.searchsorted(layout.newlines, layout.ends)
        several = np.flatnonzero(last > lines)
        if several.size and width > 1:
            separators = np.searchsorted(np.flatnonzero(data == self._separator), layout.newlines)
            fitting = np.cumsum(np.diff(separators, prepend=0) == width - 1)
            before = np.concatenate(([0], fitting))[lines[several] - self._line]
            whole = fitting[last[several] - self._line] - before == last[several] - lines[several] + 1
            spans = zip(lines[several[whole]].tolist(), last[several[whole]].tolist())
            self._swallowed += spans

    def _polars(self, data: bytes, positions: Mapping[str, int], width: int, height: int) -> pl.DataFrame:
        places = sorted(set(positions.values()))
        if not places or not height:
            return pl.DataFrame({name: pl.Series([None] * height, dtype=pl.String) for name in positions})
        frame = pl.read_csv(
            data,
            has_header=False,
            columns=places,
            separator=self.dialect.separator,
            quote_char=self.dialect.quote,
            schema={f"column_{place + 1}": pl.String for place in range(width)},
            encoding="utf8",
        )
        if frame.height != height:  # the counts above and polars must agree, or rows would shift
            raise RuntimeError(f"{self.source.name}: {height} records were counted, {frame.height} parsed")
        return frame.select(pl.col(f"column_{place + 1}").alias(name) for name, place in positions.items())

    def _take_by_csv(self, positions: Mapping[str, int], width: int) -> pl.DataFrame | None:
        """The same by Python's csv, which takes quotes inside of fields as text."""
        whole = self._rest.rfind(b"\n") + 1
        lines = self._blocks.mended(self._rest[:whole]).decode().split("\n")[:-1]
        found: list[list[str]] = []
        numbers: list[int] = []
        faults: list[tuple[int, str]] = []
        feed = _Lines(lines)
        reader = csv.reader(feed, **self._format())
        while feed.next < len(lines):
            first = feed.begin()
            try:
                record = next(reader)
            except (_Unclosed, csv.Error) as error:
                if isinstance(error, _Unclosed) and feed.next - first < LONGEST_SPAN and not self._ended:
                    feed.next = first  # its end may be in the next block
                    break
                faults.append((self._line + first, _csv_fault(error)))
                feed.next = first + 1
                reader = csv.reader(feed, **self._format())
                continue
            read = lines[first : feed.next]
            if len(read) > 1 and width > 1 and all(text.count(self.dialect.separator) == width - 1 for text in read):
                self._swallowed.append((self._line + first, self._line + feed.next - 1))
            with_nul = any("\0" in field for field in record)
            if len(record) == width and not with_nul:
                found.append([record[place] for place in positions.values()])
                numbers.append(self._line + first)
            elif record:
                faults.append((self._line + first, _fault(len(record), width, with_nul)))
        self._rest = "".join(line + "\n" for line in lines[feed.next :]).encode() + self._rest[whole:]
        self._line += feed.next
        columns = zip(*found) if found else ([] for _ in positions)
        texts = {name: pl.Series(values, dtype=pl.String) for name, values in zip(positions, columns)}
        frame = pl.DataFrame({schema.LINE: pl.Series(numbers, dtype=pl.Int64)} | texts)
        return _with_malformed(frame, faults) if found or faults else None


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


def _csv_fault(error: Exception) -> str:
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
