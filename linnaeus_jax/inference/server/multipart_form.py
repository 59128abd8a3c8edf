"""multipart/form-data (RFC 7578) that is in memory as a whole: read at once, in any thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

#: parts of a form, and bytes of one that is no file
MAX_PARTS = 1000
MAX_TEXT = 2**20


class FormError(ValueError):
    """A body that is no form, or too much of one; the message is the reason."""


@dataclass
class Part:
    """One field of a form.

    Attributes:
      name: of the field.
      filename: None where it is no file.
      data: of the field.
    """

    name: str = ""
    filename: str | None = None
    data: bytes = b""

    @property
    def text(self) -> str:
        """Raises FormError where it is no UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise FormError(f"{self.name} is no UTF-8") from error


@dataclass
class _Reader:
    """Takes what the parser finds."""

    parts: list[Part] = field(default_factory=list)
    ended: bool = False
    header: bytes = b""
    value: bytes = b""
    pieces: list[memoryview] = field(default_factory=list)

    def on_part_begin(self) -> None:
        if len(self.parts) == MAX_PARTS:
            raise FormError(f"more than {MAX_PARTS} parts")
        self.parts.append(Part())
        self.pieces = []

    def on_header_begin(self) -> None:
        self.header = self.value = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def on_header_end(self) -> None:
        if self.header.lower() != b"content-disposition":
            return
        options = parse_options_header(self.value)[1]
        part = self.parts[-1]
        part.name = options.get(b"name", b"").decode(errors="replace")
        if b"filename" in options:
            part.filename = options[b"filename"].decode(errors="replace")

    def on_headers_finished(self) -> None:
        if not self.parts[-1].name:
            raise FormError("a part has no name")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.pieces.append(memoryview(data)[start:end])

    def on_part_end(self) -> None:
        part = self.parts[-1]
        part.data = b"".join(self.pieces)
        if part.filename is None and len(part.data) > MAX_TEXT:
            raise FormError(f"{part.name} holds {len(part.data)} bytes, more than {MAX_TEXT}")

    def on_end(self) -> None:
        self.ended = True


def read_form(content_type: str, body: bytes) -> list[Part]:
    """The parts of a form in their order.

    Raises:
      FormError: it is broken, ends early or has too many parts.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not boundary:
        raise FormError("its content type names no boundary")
    reader = _Reader()
    names = [name for name in dir(reader) if name.startswith("on_")]
    try:
        parser = MultipartParser(boundary, {name: getattr(reader, name) for name in names})  # type: ignore[arg-type, misc]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise FormError(str(error)) from error
    if not reader.ended:
        raise FormError("it ends early")
    return reader.parts
