"""What tells a mistake of the user from a fault of the program, in every subpackage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


class InputError(ValueError):
    """A setting, or what a file holds, cannot be used; the message says what, where and how to mend it.

    Every other `ValueError`, `KeyError` or `RuntimeError` is a fault of the program.
    """

    __str__ = Exception.__str__  # also of one that is a `KeyError`, which would quote its text


def whole(value: Any) -> int:
    """An integer, or its digits as the key of a JSON object has them; TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, str)) or not _WHOLE.fullmatch(str(value)):
        raise TypeError(f"{str(value)[:100]!r} stands where an integer is needed")
    return int(value)


def shortened(items: Iterable[str], most: int = 3, *, separator: str = ", ") -> str:
    """The first of some texts, and how many more there are."""
    listed = list(items)
    return separator.join(listed[:most]) + (f" and {len(listed) - most:,} more" if len(listed) > most else "")
