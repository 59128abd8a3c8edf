"""docs/your_data.md: its commands, typed, print what it shows, and a newcomer gets to a report with four of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from linnaeus_jax.building.options import IMAGE_FORMS, SPLITS
from linnaeus_jax.building.rows import REASONS
from linnaeus_jax.data.decoding import RESIZE_MODES
from tests.docs.commands import blocks, commands, matches, run, updated

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "your_data.md"


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows(tmp_path):
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(updated(PAGE, tmp_path))
        return
    typed = 0
    for command in commands(PAGE):
        printed = run(command.line, tmp_path)
        assert matches(command.output, printed), f"$ {command.line}\nshown:\n{command.output}\nprinted:\n{printed}"
        typed += 1
    assert typed >= 10


@pytest.mark.slow
def test_a_newcomer_has_a_report_after_four_commands(tmp_path):
    """On a clone of this repository, beside a folder of pictures; the first block of the page, typed into one shell."""
    block = blocks(PAGE)[0]
    lines = block.strip().splitlines()
    assert len(lines) <= 4
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    run(
        f"python -m linnaeus_jax.tools.make_demo --as folders --out {clone}/pictures --rows 200 --image-size 64",
        tmp_path,
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(["bash", "-e", "-c", block], cwd=clone, env=environment, check=True, capture_output=True)
    report = (clone / "runs" / "mine" / "report.html").read_text()
    assert "Rutilala" in report
    assert "finished" in report
    shutil.rmtree(clone)


def test_the_page_lists_every_choice():
    text = PAGE.read_text()
    for name in (*REASONS, *(f"`{name}`" for name in (*SPLITS, *IMAGE_FORMS, *RESIZE_MODES))):
        assert name in text, f"docs/your_data.md does not explain {name}"
