"""The notebook of the manual runs, and what it stores is small and of no machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import ROOT
from tests.docs.workspace import environment

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_classifier.ipynb"
#: seconds of a cell, bytes of the file
LONGEST, LARGEST = 600, 200_000


def test_its_outputs_are_small_and_of_no_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert not re.search(r"/(home|root|tmp|work|Users)/|Traceback|\d\.\d+ ?s\b|images/s", text)
    book = nbformat.reads(text, 4)
    nbformat.validate(book)
    assert any("image/jpeg" in output.get("data", {}) for cell in book.cells for output in cell.get("outputs", ()))


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\((\.\./[\w./]+)\)", NOTEBOOK.read_text(encoding="utf-8")):
        assert (NOTEBOOK.parent / target).is_file(), target
    assert "notebooks/first_classifier.ipynb" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own libraries
def test_no_cell_of_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for key in os.environ.keys() - environment().keys():
        monkeypatch.delenv(key)
    for key, value in environment().items():
        monkeypatch.setenv(key, value)
    book = nbformat.read(NOTEBOOK, 4)
    stored = [len(cell.get("outputs", ())) > 0 for cell in book.cells]
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=LONGEST, kernel_name="python3", resources=where).execute()
    for cell, kept in zip(book.cells, stored, strict=True):
        texts = "".join(output.get("text", "") for output in cell.get("outputs", ()))
        assert "Traceback" not in texts
        assert cell.get("outputs") or not kept
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    assert "species: " in "".join(output.get("text", "") for output in book.cells[-2].outputs)
