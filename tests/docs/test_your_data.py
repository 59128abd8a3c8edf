"""docs/your_data.md: its first four commands lead to a report; it and data_files.md name every choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnaeus_jax.building.steps.options import IMAGE_FORMS, SPLIT_SCHEMES
from linnaeus_jax.data.preprocessing import RESIZE_MODES
from linnaeus_jax.reading.schema import REASONS
from tests.docs.commands import run
from tests.docs.pages import DOCS, blocks

ROOT = Path(__file__).parents[2]
PAGE = DOCS / "your_data.md"


#: what `.ci/newcomer` types in a clone and an environment of its own, and what is typed behind the last
INSTALLING = ("make setup", ". .venv/bin/activate")
SHORTER = "--config.train.epochs=2"


def first_commands() -> list[str]:
    return blocks(PAGE)[0].text.strip().splitlines()


@pytest.mark.slow
def test_a_newcomer_has_a_report_after_four_commands(tmp_path, settings):
    """Beside a folder of pictures; the commands of the first block of the page, in one shell, from the third on."""
    lines = first_commands()
    assert len(lines) <= 4
    run(
        "linnaeus demo --as folders --out pictures --rows 300 --image-size 96",
        tmp_path,
        settings,
    )
    typed = [line for line in lines if line not in INSTALLING]
    printed, _ = run("\n".join([*typed[:-1], f"{typed[-1]} {SHORTER}"]), tmp_path, settings)
    _, found, after = printed.partition("\nreport: runs/mine/report.html\nwhat to try next:\n")
    assert found, printed[-3000:]
    advice, _, after = after.partition("\nnext:\n")
    assert "--config=runs/mine/config.json" in advice
    assert after
    assert all(line.startswith("  linnaeus ") for line in after.splitlines())
    report = (tmp_path / "runs" / "mine" / "report.html").read_text()
    assert "Rutilala" in report
    assert "finished" in report


def test_ci_types_what_comes_before_training():
    """In a fresh clone and in this order."""
    script = (ROOT / ".ci" / "newcomer").read_text().splitlines()
    assert [line for line in script if line in first_commands()] == first_commands()[:-1]


@pytest.mark.parametrize(
    ("page", "choices"),
    [
        ("your_data.md", (*REASONS, *(f"`{name}`" for name in (*SPLIT_SCHEMES, *IMAGE_FORMS, *RESIZE_MODES)))),
        ("data_files.md", [f"`{name}`" for name in (*IMAGE_FORMS, *RESIZE_MODES)]),
    ],
)
def test_the_pages_list_every_choice(page, choices):
    text = (DOCS / page).read_text()
    assert not [name for name in choices if name not in text]
