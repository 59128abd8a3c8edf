"""Drawn faults that are the same program, see `tests.mutations`."""

from __future__ import annotations

#: (file, line, what is changed) -> why nobody can tell the two apart
EQUIVALENT: dict[tuple[str, str, str], str] = {}
