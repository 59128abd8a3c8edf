"""What tells a mistake of the user from a fault of the program, in every subpackage."""

from __future__ import annotations


class InputError(ValueError):
    """A setting, or what a file holds, cannot be used; the message says what, where and how to mend it.

    Every other `ValueError`, `KeyError` or `RuntimeError` is a fault of the program.
    """

    __str__ = Exception.__str__  # also of one that is a `KeyError`, which would quote its text
