"""The page of pictures with predictions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.inference.gallery import write_gallery


def row(name: str, probability: float, answered: bool = True, **others: Any) -> dict[str, Any]:
    family = {"rank": "family", "taxon_id": 31, "name": "Par<idae", "common_name": "tits", "probability": 0.9}
    species = {"rank": "species", "taxon_id": 0, "name": "", "common_name": "", "probability": probability}
    answer = family if answered else None
    known = {"metadata_from": "exif", "inputs": ["SPATIAL"], "notes": ["lat <91>"], "always": []}
    return {"file": name, "answer": answer, "path": [family, species], **known, **others}


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(np.zeros((300, 200, 3), np.uint8)).save(path)
    return path


def shown(text: str) -> list[str]:
    return re.findall(r'class="file">(\w+)<', text)


def test_least_certain_first(picture, tmp_path):
    rows = [row("sure", 0.95), row("less", 0.6), {"file": "bad", "unreadable": "empty"}, row("least", 0.8, False)]
    out = tmp_path / "look" / "gallery.html"
    done: list[tuple[int, int]] = []
    assert write_gallery(out, rows, lambda place: picture, "A <title>", progress=lambda *at: done.append(at)) == 3
    text = out.read_text()
    assert shown(text) == ["least", "less", "sure"]
    assert done[-1] == (3, 3)
    assert "all 3." in text
    assert text.count("data:image/jpeg;base64,") == 3
    assert "Par&lt;idae" in text
    assert "lat &lt;91&gt;" in text
    assert "with SPATIAL (EXIF)" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)  # nothing is fetched
    assert "<script" not in text


def test_only_so_many_and_pictures_that_are_gone(picture, tmp_path):
    rows = [row(f"p{i}", i / 100, inputs=[], metadata_from="") for i in (50, 30, 10, 40, 20)]
    out = tmp_path / "g.html"
    places = [picture, picture, tmp_path / "gone.jpg", picture, picture]
    assert write_gallery(out, rows, places.__getitem__, "t", most=3) == 3
    text = out.read_text()
    assert shown(text) == ["p10", "p20", "p30"]
    assert "the 3 least certain of 5." in text
    assert "no picture: " in text
    assert "from the picture alone" in text
