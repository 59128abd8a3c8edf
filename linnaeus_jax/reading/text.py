"""Text from files of unknown origin, made safe to print: one line, nothing invisible; lists in text files."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from linnaeus_jax.config.errors import UserError

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\0": r"\0", "\\": r"\\"}


def _shown(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    # A pictograph beyond the basic plane is two columns wide in some terminals and none in others.
    is_pictograph = character > "\uffff" and unicodedata.category(character) in ("So", "Sk")
    if character.isprintable() and not is_pictograph:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def printable(text: str | bytes, limit: int = 160) -> str:
    r"""Text for one line of a terminal, a log or a report; letters of every script stay.

    Control characters, line separators, marks that change the direction of writing, invisible characters, private and
    unassigned ones, emoji and the backslash are written as escapes: `\n`, `\0`, `\x1b`, `\u202e`, `\U0001f98b`, `\\`.
    It says nothing of HTML or rich markup, which have rules of their own.

    Args:
      text: bytes are read as UTF-8, those that are not as `\xff`.
      limit: most characters of the text that are shown; "..." follows where more were there.
    """
    if isinstance(text, bytes):
        parts = text[: 4 * limit + 4].decode("utf-8", "surrogateescape")
        shown = "".join(f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else _shown(c) for c in parts[:limit])
        return shown + ("..." if len(parts) > limit else "")
    if len(text) <= limit and text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_shown, text[:limit])) + ("..." if len(text) > limit else "")


def text_lines(path: Path) -> list[str]:
    """Entries of a list, one a line; what follows # is a remark.

    Raises:
      UserError: no such file, or it is not text.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    return [text for line in lines if (text := line.partition("#")[0].strip())]
