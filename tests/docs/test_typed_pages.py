"""The commands of the manual's pages, typed in a copy of the workspace; those of the README in a fresh clone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.docs.commands import run, typed
from tests.docs.decisions import COMPILED_AS_USERS, FEWER_ROWS, SHORTENED, TYPED_BEFORE, TYPED_ELSEWHERE
from tests.docs.pages import README, name, pages
from tests.docs.workspace import cloned, copied, made, unclean


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Path:
    """The workspace; tests take copies."""
    return made(tmp_path_factory.mktemp("docs"), settings)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_command_does_what_the_page_shows(page, workspace, settings, tmp_path):
    """With `UPDATE_DOCS` in the environment the page gets what its commands print."""
    place = (cloned if page == README else copied)(workspace, tmp_path / "workspace")
    update = bool(os.environ.get("UPDATE_DOCS"))
    skip, more = TYPED_ELSEWHERE.get(name(page), {}), SHORTENED.get(name(page), {})
    before = {}
    for line, directory in TYPED_BEFORE.get(name(page), {}).items():
        shutil.copytree(place / "runs" / "demo", place / directory)
        before[line] = (place / f"{directory}.txt").read_text()
    if name(page) in FEWER_ROWS:
        shutil.rmtree(place / "data" / "demo")
        run("linnaeus demo --out data/demo --rows 1200", place, settings)
    if name(page) in COMPILED_AS_USERS:
        settings = {key: value for key, value in settings.items() if key != "XLA_FLAGS"}
    text = typed(page, place, settings, update=update, skip=skip.keys(), more=more, before=before)
    if update:
        page.write_text(text, encoding="utf-8")
    if page == README:
        assert not (found := unclean(place)), f"the README's commands leave what `make lint` refuses:\n{found}"
    shutil.rmtree(place)
