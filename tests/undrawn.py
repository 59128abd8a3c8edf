"""Runs without the pictures that end them: drawing takes longer than all else that a run of the tests does."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from linnaeus_jax.run import finish

_WRITE_REPORT, _PLOT_SCHEDULE = finish.write_report, finish.plot_schedule


def undrawn() -> AbstractContextManager[Any]:
    """Runs write neither `report.html` nor `assets/schedule.png`."""
    return mock.patch.multiple(finish, write_report=_path, plot_schedule=lambda *_, **__: None)


def drawing() -> AbstractContextManager[Any]:
    """Within `undrawn`: runs write them, as they do for a user."""
    return mock.patch.multiple(finish, write_report=_WRITE_REPORT, plot_schedule=_PLOT_SCHEDULE)


def _path(_: Any, path: Path) -> Path:
    return path
