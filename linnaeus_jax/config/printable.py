"""What a terminal that knows few characters is shown: letters without their marks, signs as ASCII has them."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
import unicodedata

#: name of the error handler of codecs
READABLE = "linnaeus_jax.readable"
_SIGNS = dict(zip("–—−×·•’‘“”│┃─━ØøŁłĐđ", "---x.*''\"\"||--OoLlDd", strict=True))
_SIGNS |= {"→": "->", "←": "<-", "✓": "ok", "ß": "ss", "Æ": "AE", "æ": "ae", "Œ": "OE", "œ": "oe"}


def joined_bytes(text: str) -> str:
    """`text` with those bytes of file names that the locale could not decode, where they are UTF-8, decoded."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # halves of characters that stand for no byte
        return text


def _readable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_ascii, joined_bytes(error.object[error.start : error.end]))), error.end


def _ascii(character: str) -> str:
    plain = _SIGNS.get(character) or unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(READABLE, _readable)


def print_readably() -> None:
    """From here on no character that this process prints is an error; once, where a program begins."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError, OSError):  # closed, or a pipe where a file was opened
                stream.reconfigure(errors=READABLE)
