"""docs/your_data.md: its first four commands lead to a report; it and data_files.md name every choice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from linnaeus_jax.building.options import IMAGE_FORMS, SPLITS
from linnaeus_jax.building.rows import REASONS
from linnaeus_jax.data.preprocessing import RESIZE_MODES
from tests.docs.commands import run
from tests.docs.pages import DOCS, blocks

ROOT = Path(__file__).parents[2]
PAGE = DOCS / "your_data.md"


@pytest.mark.slow
def test_a_newcomer_has_a_report_after_four_commands(tmp_path):
    """On a clone of this repository, beside a folder of pictures; the first block of the page, typed into one shell."""
    block = blocks(PAGE)[0].text
    lines = block.strip().splitlines()
    assert len(lines) <= 4
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    run(
        f"python -m linnaeus_jax.tools.make_demo --as folders --out {clone}/pictures --rows 200 --image-size 64",
        tmp_path,
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=clone, env=environment, check=True, capture_output=True, text=True
    )
    _, found, after = done.stdout.partition("\nreport: runs/mine/report.html\nnext:\n")
    assert found
    assert all(line.startswith("  python -m linnaeus_jax.tools.") for line in after.splitlines())
    report = (clone / "runs" / "mine" / "report.html").read_text()
    assert "Rutilala" in report
    assert "finished" in report
    shutil.rmtree(clone)


@pytest.mark.parametrize(
    ("page", "choices"),
    [
        ("your_data.md", (*REASONS, *(f"`{name}`" for name in (*SPLITS, *IMAGE_FORMS, *RESIZE_MODES)))),
        ("data_files.md", [f"`{name}`" for name in (*IMAGE_FORMS, *RESIZE_MODES)]),
    ],
)
def test_the_pages_list_every_choice(page, choices):
    text = (DOCS / page).read_text()
    assert not [name for name in choices if name not in text]
