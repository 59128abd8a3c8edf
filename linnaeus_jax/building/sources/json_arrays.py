"""JSON files of gigabytes: the arrays of the outermost object, element by element, never the whole file in memory."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.schema import Progress
from linnaeus_jax.reading.text import printable

#: bytes read and elements given at once; longest element in characters
BLOCK, BATCH, LONGEST_ELEMENT = 1 << 22, 1 << 15, 1 << 24
_SPACES = re.compile(r"[ \t\r\n]*")
#: key of an object under which a key is kept that stands twice in it
DUPLICATE_KEY = object()


def _object(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        found[DUPLICATE_KEY] = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return found


def _number(text: str) -> str:
    return text.removesuffix(".0")


def _nothing(_: str) -> None:
    return None


def decoder() -> json.JSONDecoder:
    """Numbers as the text they are written with (5.0 as "5"), NaN and infinities as None; see `DUPLICATE_KEY`."""
    return json.JSONDecoder(
        object_pairs_hook=_object, parse_int=str, parse_float=_number, parse_constant=_nothing, strict=False
    )


class JsonArrays:
    """The arrays of a JSON object, in batches of their elements, whose values are those of `decoder`.

    Args:
      path: the file, in UTF-8.
      progress: (what, bytes done, bytes in all).
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self._path, self._progress = path, progress
        self._size = os.path.getsize(path)
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at = "", 0
        self._bytes = self._before = 0
        self._where = "the first line"
        self._decode = decoder().raw_decode

    def __iter__(self) -> Iterator[tuple[str, list[Any] | None]]:
        """(key, elements) of every array, as often as there are batches and at least once; (key, None) of other values.

        Raises:
          UserError: not JSON, cut off, not an object, a key that stands twice, nested too deeply, an element that is
            longer than `LONGEST_ELEMENT`.
        """
        with open(self._path, "rb") as self._file:
            self._check_start(self._file)
            seen: set[str] = set()
            self._take("{")
            more = not self._took("}")
            while more:
                key = self._key()
                if key in seen:
                    raise UserError(f"{self._path.name}: {printable(key)!r} stands twice; keep one of them")
                seen.add(key)
                self._where = repr(printable(key))
                self._take(":")
                if self._next() == "[":
                    for elements in self._elements():
                        yield key, elements
                else:
                    self._value()
                    yield key, None
                more = self._took(",")
                if not more:
                    self._take("}")
            if self._next():
                raise self._fault("something stands behind its end")

    def _check_start(self, file: BinaryIO) -> None:
        start = file.read(4)
        file.seek(0)
        if start.startswith((b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zX")):
            raise UserError(f"{self._path.name} is packed; unpack it and give the .json file in it")

    def _elements(self) -> Iterator[list[Any]]:
        key, count = self._where, 0
        self._take("[")
        batch: list[Any] = []
        more = not self._took("]")
        while more:
            count += 1
            self._where = f"entry {count} of {key}"
            self._next()
            batch.append(self._value())
            more = self._took(",")
            if not more:
                self._take("]")
            elif len(batch) == BATCH:
                yield batch
                batch = []
        yield batch

    def _key(self) -> str:
        if self._next() != '"':
            raise self._fault("there is no '\"' where a name must begin")
        return str(self._value())

    def _value(self) -> Any:
        """The value at the place reached; reads on until it is whole."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError:
                raise UserError(f"{self._path.name}: {self._where} is nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at > LONGEST_ELEMENT:
                    long = f", or longer than {LONGEST_ELEMENT} characters"
                    raise self._fault(f"{error}{long}") from None
                if not self._fill():
                    raise self._fault(str(getattr(error, "msg", error)), getattr(error, "pos", None)) from None
                continue
            if len(self._text) - end > 2 or not self._fill():  # a number may go on in the next block: 0|.5, 1e+|5
                self._at = end
                return value

    def _next(self) -> str:
        """The next character that is no space; "" at the end of the file."""
        while True:
            self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _took(self, character: str) -> bool:
        """Passes a character, if it is the next one."""
        found = self._next() == character
        self._at += found
        return found

    def _take(self, character: str) -> None:
        if not self._took(character):
            raise self._fault(f"there is no {character!r} where one must stand")

    def _fill(self) -> bool:
        """Reads on; False at the end of the file. As much again as is waiting, so that a long value is tried seldom."""
        data = self._file.read(max(BLOCK, len(self._text) - self._at))
        try:
            text = self._utf8.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self._path.name} is not in UTF-8 ({error.reason} behind byte {self._bytes + error.start})"
            ) from None
        if not data:
            return False
        self._bytes += len(data)
        self._before += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        if self._progress:
            self._progress(f"reading {self._path.name}", self._bytes, self._size)
        return True

    def _fault(self, what: str, place: int | None = None) -> UserError:
        place = self._at if place is None else place
        end = "cut off or " if place >= len(self._text.rstrip()) or what.startswith("Unterminated") else ""
        return UserError(
            f"{self._path.name} is {end}not valid JSON: {what} (in {self._where}, character {self._before + place})"
        )
