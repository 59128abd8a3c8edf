"""The commands of the manual's pages from M to Z, typed; in two files, which two processes can share."""

from __future__ import annotations

import pytest

from tests.docs.pages import name, pages
from tests.docs.typing_pages import type_page

PAGES = [page for page in pages() if page.stem.lower() >= "m"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_does_what_the_page_shows(page, workspace, settings, tmp_path):
    type_page(page, workspace, settings, tmp_path)
