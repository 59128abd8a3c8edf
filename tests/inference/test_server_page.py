"""The page of the server in a browser: dropped picture, place, date, answer, errors; wide and narrow, by keyboard."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.server.access import access_of
from linnaeus_jax.inference.server.requests import Limits
from tests.inference.chromium import Page, browser
from tests.inference.serving_helpers import encoded, serving

pytestmark = pytest.mark.needs("chromium")

ANSWERED = "document.querySelector('#status').textContent.startsWith('Answer:')"
TITLES = "[...document.querySelectorAll('.columns h3')].map((e) => e.textContent)"


@pytest.fixture(scope="module")
def site(model, pictures, tmp_path_factory):
    """`page`, `url`, five pictures `many`, and the files `good`, `cut` (truncated), `large` (too many bytes)."""
    folder = tmp_path_factory.mktemp("page")
    content = encoded(pictures.pixels[0], "JPEG")
    files = {"good": content, "cut": content[:-500], "large": content + bytes(300_000)}
    for name, data in files.items():
        (folder / f"{name} picture.jpg").write_bytes(data)
    many = [folder / f'picture {number}, "ä".jpg' for number in range(5)]
    for path, pixels in zip(many, pictures.pixels, strict=False):
        path.write_bytes(encoded(pixels, "JPEG"))
    with serving(model, Limits(body_bytes=200_000, pictures=3)) as url, browser(folder / "profile") as page:
        paths = {name: folder / f"{name} picture.jpg" for name in files}
        yield SimpleNamespace(page=page, url=url, many=many, **paths)


def open_page(site: SimpleNamespace, width: int, height: int, url: str = "") -> Page:
    site.page.errors.clear()
    site.page.requests.clear()
    site.page.open(f"{url or site.url}/", width, height, mobile=width < 500)
    site.page.wait("!document.querySelector('#place').hidden")
    return site.page


def probabilities(page: Page) -> list[str]:
    return page.value("[...document.querySelectorAll('.taxon > div > .number')].map((e) => e.textContent)")


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_picture_place_date_answer(site, width, height, tmp_path: Path):
    page = open_page(site, width, height)
    page.drop("#drop", site.good)
    page.wait(ANSWERED)
    assert page.value(TITLES) == ["Picture alone"]
    assert len(probabilities(page)) == 3
    page.click("#world", 0.55, 0.22)
    page.wait(f"{TITLES}.length === 2 && {ANSWERED}")
    assert page.value(TITLES) == ["With place", "Picture alone"]
    place = page.value("[latitude.value, longitude.value].map(Number)")
    assert place == pytest.approx([90 - 0.22 * 180, -180 + 0.55 * 360], abs=1.5)
    page.fill("#date", "2024-02-29")
    page.wait(f"{TITLES}[0] === 'With date and place' && {ANSWERED}")
    page.fill("#elevation", "171")
    page.wait(f"{TITLES}[0] === 'With date, place and elevation' && {ANSWERED}")
    assert len(probabilities(page)) == 6
    assert page.value("document.querySelectorAll('.change').length") == 3
    assert page.value("document.documentElement.scrollWidth <= innerWidth"), "it scrolls to the side"
    page.screenshot(tmp_path / "page.png")
    assert page.errors == []
    allowed = (f"{site.url}/", "data:", f"blob:{site.url}/")
    assert [url for url in page.requests if not url.startswith(allowed)] == []


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_sets_and_novelty(judging, model, site, width, height, tmp_path: Path):
    measured = {"coverage": {"90": 0.6}, "coverage_rows": 99, "sets": {"90": 0.2}, "set_rows": 99}
    bundle = dataclasses.replace(judging, calibration=dataclasses.replace(judging.calibration, **measured))
    mine = Model(bundle, buckets=model.forward.buckets)
    mine.forward, mine._others = model.forward, model._others  # compiled already
    said = mine.predict([path.read_bytes() for path in site.many], coverage=0.9, as_sets=True)
    assert len({one.novelty for one in said}) > 1
    words = {"known": "Known taxon", "new_below": "New taxon", "outside": "Outside: like no training picture"}
    with serving(mine, Limits(pictures=3)) as url:
        page = open_page(site, width, height, url)
        page.fill("#confidence", "set 0.9")
        page.drop("#drop", *site.many)
        page.wait(ANSWERED)
        for one, text in zip(said, page.value(SEEN), strict=True):
            assert words[one.novelty] in text
            assert one.reason_text in text
            assert all((taxon.name or "unknown") in text for taxon in (one.set or ())[:3])
            assert ("ight 90 times in 100" in text, ("after all" in text)) == (True, one.novelty != "known")
        rows = list(csv.DictReader(io.StringIO(page.downloaded("#csv", tmp_path / "answers.csv"))))
        for one, row in zip(said, rows, strict=True):
            assert (row["novelty"], row["set_size"]) == (one.novelty, str(one.set_size))
            assert [taxon[2] for taxon in json.loads(row["set"])] == [taxon.name for taxon in one.set or ()]
            assert row["novelty_taxon"] == (one.novelty_taxon.name if one.novelty_taxon else "")
        page.drop("#drop", site.many[0])
        page.wait(f"{TITLES}.length === 1 && {ANSWERED}")
        assert page.value("document.querySelectorAll('.set li').length") == len(said[0].set or ())
        assert f"(known {100 * said[0].known_score:.0f} %, distance" in page.value("document.body.innerText")
        assert page.value("document.documentElement.scrollWidth <= innerWidth"), "it scrolls to the side"
        page.screenshot(tmp_path / "page.png")
        page.fill("#confidence", "0.5")
        page.wait(f"!document.querySelector('.set') && {ANSWERED}")
        assert page.errors == []


SEEN = "[...document.querySelectorAll('.picture .what')].map((e) => e.innerText.replace(/\\s+/g, ' '))"


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_several_pictures(site, model, width, height, tmp_path: Path):
    """More than a request may hold, one of them damaged; their answers are those of each alone, and come as CSV."""
    page = open_page(site, width, height)
    page.fill("#date", "2024-02-29")
    files = [*site.many, site.cut]
    page.drop("#drop", *files)
    page.wait(ANSWERED)
    seen = page.value(SEEN)
    expected = model.predict([path.read_bytes() for path in site.many], date="2024-02-29")
    for path, prediction, text in zip(site.many, expected, seen, strict=False):
        assert path.name in text
        assert (prediction.answer.name if prediction.answer else "Unknown") in text
    assert seen[-1].startswith("cut picture.jpg No answer (422): the picture (cut picture.jpg): truncated")
    rows = list(csv.DictReader(io.StringIO(page.downloaded("#csv", tmp_path / "answers.csv"))))
    assert [row["file"] for row in rows] == [path.name for path in files]
    for prediction, row in zip(expected, rows, strict=False):
        species = prediction.path[-1]
        assert (row["answer_name"], row["species_name"]) == (getattr(prediction.answer, "name", ""), species.name)
        assert float(row["species_probability"]) == pytest.approx(species.probability, abs=1e-4)
        assert (row["inputs"], row["problem"]) == ("TEMPORAL", "")
    assert "truncated" in rows[-1]["problem"]
    page.click(".picture summary")
    page.wait("document.querySelectorAll('.picture[open] .taxon').length === 3")
    assert page.value("document.documentElement.scrollWidth <= innerWidth"), "it scrolls to the side"
    page.screenshot(tmp_path / "page.png")
    assert [error for error in page.errors if "422" not in error] == []
    page.drop("#drop", site.good)  # and one alone again
    page.wait(f"{TITLES}.length === 2 && {ANSWERED}")
    (tmp_path / "answers.csv").unlink()
    assert page.downloaded("#csv", tmp_path / "answers.csv").count("\n") == 2


def test_errors_are_told_and_mended(site):
    page = open_page(site, 1280, 900)
    page.choose("#file", site.cut)
    text = page.wait("!document.querySelector('#error').hidden && document.querySelector('#error').innerText")
    assert "the picture (cut picture.jpg): truncated" in text
    page.choose("#file", site.large)
    page.wait("document.querySelector('#error-text').textContent.includes('at most 0.2 MiB')")
    page.choose("#file", site.good)
    page.wait(ANSWERED)
    assert page.value("document.querySelector('#error').hidden")
    page.fill("#latitude", "91")
    page.wait("document.querySelector('#error-text').textContent.startsWith('latitude:')")
    page.fill("#latitude", "9")
    page.wait(ANSWERED)
    page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    page.fill("#longitude", "9")
    page.wait("document.querySelector('#error-text').textContent === 'The server cannot be reached.'")
    page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.click("#again")
    page.wait(f"{TITLES}.length === 2 && {ANSWERED}")


def test_keyboard_and_names_for_those_who_do_not_see(site):
    page = open_page(site, 1280, 900)
    focused = []
    for _ in range(12):  # a date has several stops
        page.press("Tab")
        focused.append(page.value("document.activeElement.id"))
    focused = list(dict.fromkeys(focused))
    order = ["file", "world", "zoom-in", "latitude", "longitude", "clear-place", "date", "elevation"]
    assert [name for name in focused if name in order] == order
    page.value("document.querySelector('#world').focus()")
    for key in ("ArrowUp", "+", "ArrowRight"):
        page.press(key)
    assert page.value("[latitude.value, longitude.value].map(Number)") == [5, 2.5]
    page.choose("#file", site.good)
    page.wait(f"{TITLES}.length === 2 && {ANSWERED}")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "spinbutton", "combobox", "Date", "application"}
    unnamed = [
        node
        for node in nodes
        if node.get("role", {}).get("value") in controls
        and not node.get("name", {}).get("value")
        and not node["ignored"]
    ]
    assert unnamed == []
    assert page.value("document.querySelector('#status').getAttribute('role')") == "status"


def test_several_pictures_share_what_the_model_takes(site):
    """A model that looks at pictures alone has no place, date or elevation."""
    page = open_page(site, 1280, 900)
    said = "document.querySelector('#drop-text').textContent"
    page.drop("#drop", *site.many[:2])
    page.wait(ANSWERED)
    assert page.value(said).startswith("2 pictures: drop or choose others. For all of them: ")
    page.value("document.querySelectorAll('#place, #date-field, #elevation-field').forEach((e) => e.hidden = true)")
    page.drop("#drop", *site.many[:3])
    page.wait(f"{said}.startsWith('3')")
    assert page.value(said) == "3 pictures: drop or choose others."


def test_only_what_is_nearly_certain_is_100_percent(site):
    page = open_page(site, 1280, 900)
    shown = page.value("[1, 0.9987, 0.994, 0.5, 0.0123].map(percent)")
    assert shown == ["100.0 %", "99.9 %", "99 %", "50 %", "1.2 %"]


def test_a_token_is_asked_for_as_a_password(site, model):
    """With the page's address holding it, as browsers keep what they were given; without it there is no page."""
    with serving(model, Limits(), access_of("127.0.0.1", token="a-token")) as url:
        page = site.page
        page.call("Page.navigate", url=f"{url}/")
        page.wait("!document.querySelector('#drop')")
        page.open(f"{url.replace('//', '//me:a-token@')}/", 1280, 900)
        page.wait("!document.querySelector('#place').hidden")
        page.drop("#drop", site.good)
        page.wait(ANSWERED)
