"""The process that starts the manual's commands, one for each worker of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.commands import started


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the commands."""
    with started(tmp_path_factory.mktemp("forks")) as environment:
        yield environment
