"""Text on its way out, to a terminal, a log or a file: without secrets, and without commands to the terminal."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
import unicodedata
from functools import cache
from typing import Any

# ---- What a terminal that knows few characters is shown: letters without their marks, signs as ASCII has them


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


# ----------------------------------------------------------------------------------------------------------------------


_SECRET = r"api_?key|app_?key|access_?key(?:_id)?|pass|passwd|password|secret|token|credentials?"
#: a key whose text is a secret: one of these words, alone or beside others with an underscore between
_SECRET_KEY = re.compile(rf"(?:.*[_-])?(?:{_SECRET})(?:[_-].*)?", re.IGNORECASE)
#: `user:password@` of an address, from the colon of its scheme on, so that a long text takes linear time; an address
#: that passed as a path has a single slash
_LOGIN = re.compile(r"(?<=[\w+.-])(:(?://+|/(?=[^/\s:@]+:)))[^/\s]+@")
#: a secret among the parameters of an address or of an rclone connection string
_PARAMETER = re.compile(
    rf"([?&;,](?:[\w-]*[_-])?(?:{_SECRET}|key|sig|signature)(?:[_-][\w-]*)?=)(\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|[^,&;:#\s]+)",
    re.IGNORECASE,
)
REDACTED = "<redacted>"
#: shortest value of an environment variable that is looked for in texts; shorter ones are words of other meanings
_SHORTEST = 8
#: control characters but for the tab and the end of a line, marks that change the direction of writing, half characters
_COMMANDS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def redacted(tree: Any) -> Any:
    """A copy of a plain tree without its secrets: texts under the key of a secret, passwords and tokens within
    addresses and connection strings, and values of secret environment variables wherever they stand. Keys, numbers and
    the shape of the tree stay as they are."""
    return _redacted(tree, _of_environment(), secret=False)


def _redacted(tree: Any, values: tuple[str, ...], *, secret: bool) -> Any:
    if isinstance(tree, dict):
        return {
            key: _redacted(value, values, secret=not isinstance(value, dict) and _is_secret(str(key)))
            for key, value in tree.items()
        }
    if isinstance(tree, (list, tuple)):
        return [_redacted(item, values, secret=secret) for item in tree]
    if not isinstance(tree, str) or not tree:
        return tree
    if secret:
        return REDACTED
    for value in values:
        tree = tree.replace(value, REDACTED)
    return _PARAMETER.sub(rf"\1{REDACTED}", _LOGIN.sub(rf"\1{REDACTED}@", tree))


def _of_environment() -> tuple[str, ...]:
    """What the environment keeps under the names of secrets, but for paths of files that exist; the longest first."""
    values = {value for name, value in os.environ.items() if len(value) >= _SHORTEST and _is_secret(name)}
    return tuple(sorted((value for value in values if not os.path.exists(value)), key=len, reverse=True))


@cache
def _is_secret(name: str) -> bool:
    return _SECRET_KEY.fullmatch(name) is not None


def sanitize(text: object) -> str:
    r"""Text for people, who may see it on a terminal: without secrets, and what is a command to the terminal written as
    an escape: `\x1b`, `\u202e`. Lines and tabs stay."""
    return _COMMANDS.sub(_escape, joined_bytes(redacted(str(text))))


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
