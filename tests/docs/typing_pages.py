"""Typing one page of the manual in a copy of the workspace, and the README in a fresh clone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.docs.commands import typed
from tests.docs.decisions import SHORTENED, TYPED_ELSEWHERE
from tests.docs.pages import README, name
from tests.docs.workspace import cloned, copied, unclean


def type_page(page: Path, workspace: Path, settings: dict[str, str], folder: Path) -> None:
    """Runs every block of the page; with `UPDATE_DOCS` in the environment the page gets what its commands print."""
    place = (cloned if page == README else copied)(workspace, folder / "workspace")
    update = bool(os.environ.get("UPDATE_DOCS"))
    skip, more = TYPED_ELSEWHERE.get(name(page), {}), SHORTENED.get(name(page), {})
    text = typed(page, place, settings, update=update, skip=skip.keys(), more=more)
    if update:
        page.write_text(text, encoding="utf-8")
    if page == README:
        assert not (found := unclean(place)), f"the README's commands leave what `make lint` refuses:\n{found}"
    shutil.rmtree(place)
