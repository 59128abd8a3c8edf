"""The workspace of the manual's commands, made once for all workers, and the process that starts them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import started
from tests.docs.workspace import made


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the commands."""
    with started(tmp_path_factory.mktemp("forks")) as environment:
        yield environment


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Path:
    """The workspace; tests take copies."""
    base = tmp_path_factory.getbasetemp()
    return made(base.parent if base.name.startswith("popen-") else base, settings)
