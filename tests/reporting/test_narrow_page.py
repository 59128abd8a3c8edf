"""The report on the width of a telephone, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnaeus_jax.reporting.report import write_report
from tests.inference.chromium import browser
from tests.reporting.helpers import make_run

BEYOND = """[...document.querySelectorAll('body *')]
.filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')).map((e) => e.outerHTML)"""

#: the first two pictures of a row of them stand side by side
HALVES = """[...document.querySelectorAll('.pictures')].filter((e) => e.children[1])
.every((e) => e.children[0].offsetTop === e.children[1].offsetTop)"""
#: no line ends within a word of a key
WHOLE = """[...document.querySelectorAll('table.text td:first-child')].flatMap((e) => [...e.childNodes])
.every((node) => { const range = document.createRange(); range.selectNode(node);
return range.getClientRects().length <= 1; })"""


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_nothing_lies_beyond_a_narrow_screen_but_figures_that_scroll(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "other")]
    for number, shown in enumerate((runs[:1], runs)):
        report = write_report(shown, tmp_path / f"{number}.html")
        with browser(tmp_path / f"profile{number}") as page:
            page.open(report.as_uri(), 390, 844, mobile=True)
            assert page.value("document.documentElement.scrollWidth") <= 390
            assert page.value(BEYOND) == []
            widths = page.value("[...document.querySelectorAll('.wide-figure img')].map((e) => e.width)")
            assert len(widths) >= 6
            assert page.value(HALVES) is True
            assert page.value(WHOLE) is True
            assert min(widths) >= 820  # text of 9 points in a figure of 1160 pixels stays above 6
