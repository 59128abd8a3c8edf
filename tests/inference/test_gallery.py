"""The page of pictures with predictions."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.files.gallery import LeastCertain, write_gallery
from linnaeus_jax.inference.files.predicting import Part


def row(name: str, answered: bool = True, **others: Any) -> dict[str, Any]:
    family = {"rank": "family", "taxon_id": 31, "name": "Par<idae", "common_name": "tits", "probability": 0.9}
    species = {"rank": "species", "taxon_id": 0, "name": "", "common_name": "", "probability": 0.6}
    answer = family if answered else None
    known = {
        "metadata_from": "exif",
        "inputs": ["SPATIAL"],
        "notes": ["lat <91>"],
        "always": [],
        "reason_text": "why <",
    }
    return {"file": name, "answer": answer, "path": [family, species], **known, **others}


def files_of(text: str) -> list[str]:
    return re.findall(r'class="file">(\w+)<', text)


def test_a_page_holds_everything_that_it_shows(tmp_path):
    picture = tmp_path / "picture.png"
    Image.fromarray(np.zeros((300, 200, 3), np.uint8)).save(picture)
    asked = {"rank": "genus", "taxon_id": 7, "name": "Aus", "common_name": "", "probability": 0.25}
    rows = [row("none", False), row("gone", inputs=[], metadata_from=""), row("sure", always=[asked])]
    out = tmp_path / "look" / "gallery.html"
    done: list[tuple[int, int]] = []
    paths = [picture, tmp_path / "gone.jpg", picture]
    write_gallery(out, rows, paths, 3, "A <title>", lambda *at: done.append(at))
    text = out.read_text()
    assert files_of(text) == ["none", "gone", "sure"]
    assert done[-1] == (3, 3)
    assert "all 3." in text
    assert text.count("data:image/jpeg;base64,") == 2
    assert "no picture: " in text
    assert "<td>Aus</td><td>25.0&nbsp;%" in text
    for said in (
        "Par&lt;idae",
        "why &lt;",
        "lat &lt;91&gt;",
        "with SPATIAL (EXIF)",
        "from the picture alone",
        "60.0&nbsp;%",
    ):
        assert said in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)  # nothing is fetched
    assert "<script" not in text
    write_gallery(out, rows[:1], paths, 5000, "t")
    assert "the 1 least certain of 5,000." in out.read_text()


def part_of(answers: Answers, confident: list[float], reasons: list[str]) -> Part:
    """Pictures that are the same taxa with more or less confidence."""
    read = [value for value, reason in zip(confident, reasons, strict=True) if not reason]
    tasks = answers.taxonomy.tasks
    logits = {task: np.zeros((len(read), len(answers.taxonomy.classes[task])), np.float32) for task in tasks}
    for task in tasks:
        logits[task][:, 1] = 10 * np.array(read, np.float32)
    empty: list[tuple[str, ...]] = [()] * len(read)
    names = [f"p{round(100 * value)}" for value in confident]
    return Part(names, reasons, answers.answered(logits, answers.options()), empty, empty, [""] * len(read))


@pytest.mark.parametrize(("most", "expected"), [(9, ["p0", "p10", "p50", "p60", "p90"]), (3, ["p0", "p10", "p50"])])
def test_the_least_certain_ones_are_kept_also_over_an_interruption(bundle, most, expected):
    answers = Answers(bundle.taxonomy, bundle.calibration)
    parts = [part_of(answers, [0.9, 0.1, 0.7], ["", "", "broken"]), part_of(answers, [0.5, 0.6, 0.0], ["", "", ""])]
    least = LeastCertain(answers, answers.options(), most)
    lines = least.offer(parts[0], 0)
    assert least.offer(Part(["x"], ["broken"]), 3) == ""
    again = LeastCertain(answers, answers.options(), most)
    again.restore(map(json.loads, lines.splitlines()))
    for one in (least, again):
        one.offer(parts[1], 3)
        assert [each["file"] for each in one.rows()] == expected
        assert [each["place"] for each in one.rows()][:3] == [5, 1, 3]
    assert least.rows() == again.rows()
    assert least.rows()[0]["answer"] is None
