"""Texts of unknown origin, made fit for one line of a log, a table or a page."""

from __future__ import annotations

import unicodedata

#: longest text that people are shown, in characters
LONGEST = 200
#: marks that reverse or isolate the direction of what follows, and with it of text that is not theirs
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_UNSHOWABLE = ("Cc", "Cs", "Zl", "Zp")  # control, surrogate, line and paragraph separator


def sanitize_line(text: str) -> str:
    """The text on one line: runs of white space become one space; control characters, marks of writing direction and
    half characters become U+FFFD; what is beyond `LONGEST` characters, an ellipsis."""
    text = " ".join(text[: 4 * LONGEST].split())
    if not text.isprintable():
        text = "".join(
            "\ufffd" if unicodedata.category(character) in _UNSHOWABLE or character in _DIRECTIONS else character
            for character in text
        )
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
