"""multipart/form-data (RFC 7578) that is in memory as a whole: read at once by Starlette's parser, in any thread."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from typing import NamedTuple

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

#: files of a form, other fields, and bytes of one of those
MAX_PARTS = 1000
MAX_TEXT = 2**20


class FormError(ValueError):
    """A body that is no form, or too much of one; the message is the reason."""


class File(NamedTuple):
    """A file of a form."""

    name: str
    data: bytes


class _Parser(MultiPartParser):
    spool_max_size = sys.maxsize  # pictures that were sent are never written to a disk
    ended = False

    def on_end(self) -> None:
        self.ended = True


def read_form(content_type: str, body: bytes) -> list[tuple[str, str | File]]:
    """Names and values of a form in their order; text that is not UTF-8 is read as Latin-1.

    Raises:
      FormError: it is broken, ends early or has too many parts.
    """

    async def stream() -> AsyncGenerator[bytes]:
        yield body

    limits = {"max_files": MAX_PARTS, "max_fields": MAX_PARTS, "max_part_size": MAX_TEXT}
    parser = _Parser(Headers({"content-type": content_type}), stream(), **limits)
    try:
        parser.parse().send(None)  # everything is there, so that it ends without waiting for anything
    except StopIteration as parsed:
        parts = [(name, _read(value)) for name, value in parsed.value.multi_items()]
        if not parser.ended:
            raise FormError("it ends early") from None
        return parts
    except MultiPartException as error:
        raise FormError(str(error.__cause__ or error.message)) from error
    raise AssertionError("Starlette's parser waits, although the whole body is there")


def _read(value: str | UploadFile) -> str | File:
    if isinstance(value, str):
        return value
    with value.file:
        return File(value.filename or "", value.file.read())
