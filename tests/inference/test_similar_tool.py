"""`tools.similar` from its command line to its tables and its page."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import GPS, IFD

from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.files import similar_page
from linnaeus_jax.inference.files.gallery import picture_element
from linnaeus_jax.inference.files.nearest import Nearest
from linnaeus_jax.inference.files.vector_files import open_vectors
from linnaeus_jax.tools import embed, similar
from tests.inference.chromium import browser


@pytest.fixture
def vectors(shared, trained, pictures, capsys) -> str:
    """Of the eight pictures in `photos`; 9.png is 3.png with a pixel changed."""
    changed = pictures.pixels[3].copy()
    changed[0, 0] = 0
    Image.fromarray(changed).save(shared / "9.png")
    assert embed.main([trained, "photos", "--out", "v.npz"]) == 0
    capsys.readouterr()
    return "v.npz"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> SimpleNamespace:
    status = similar.main(list(arguments))
    said = capsys.readouterr()
    return SimpleNamespace(status=status, out=" ".join(said.out.split()), err=said.err)


def listed(out: str) -> list[tuple[str, str]]:
    """(id, distance) of the neighbours that are printed."""
    return re.findall(r"│ (photos/\d\.png|a/\d\.png) .*?(\d\.\d{4}) │", out)


def test_rows_of_the_file(vectors, capsys):
    result = run(capsys, vectors, "--rows", "photos/3.png", "5", "-k", "3")
    assert result.status == 0
    search = open_vectors(Path(vectors))
    own = np.array([3, 5])
    found = Nearest(search)(search[own], 3, own)
    wanted = [
        (f"photos/{row}.png", f"{far:.4f}") for row, far in zip(found.row.ravel().tolist(), found.distance.ravel())
    ]
    assert listed(result.out) == wanted
    assert "photos/3.png" in result.out.split("nearest first")[0]
    far = run(capsys, vectors, "--rows", "photos/3.png", "-k", "3", "--metric", "euclidean")
    distance = np.linalg.norm(search[:].astype(float) - search[own[:1]].astype(float), axis=1)
    assert [float(text) for _, text in listed(far.out)] == pytest.approx(np.sort(distance)[1:4].tolist(), abs=1e-4)
    assert len(listed(run(capsys, vectors, "--rows", "0", "-k", "99").out)) == 7


def test_pictures_that_are_asked_for(vectors, trained, shared, capsys):
    asked = ["--query", "9.png", "photos/broken.jpg", "photos/1.png"]
    result = run(capsys, vectors, *asked, "--bundle", trained, "-k", "1")
    assert result.status == 0
    (near, distance), (same, none) = listed(result.out)
    assert (near, same) == ("photos/3.png", "photos/1.png")
    assert float(distance) < 0.05
    assert float(none) == pytest.approx(0, abs=1e-4)  # of float16 beside float32
    assert "photos/broken.jpg is left out: 10 bytes that no image decoder understands" in result.out


def test_metadata_count_where_the_vectors_have_them(shared, trained, model, capsys):
    exif = Image.Exif()
    place: Any = exif.get_ifd(IFD.GPSInfo)
    place.update(
        {GPS.GPSLatitudeRef: "N", GPS.GPSLatitude: (52.0, 30.0, 0.0), GPS.GPSLongitudeRef: "E"}
        | {GPS.GPSLongitude: (13.0, 24.0, 0.0)}
    )
    with Image.open("photos/3.png") as image:
        image.save("there.jpg", exif=exif)
        image.save("somewhere.jpg")
    pictures = ["somewhere.jpg", "there.jpg"]
    assert embed.main([trained, *pictures, "--with-metadata", "--out", "m.npz", "--dtype", "float32"]) == 0
    capsys.readouterr()
    asked = ["m.npz", "--query", "there.jpg", "--bundle", trained]
    result = run(capsys, *asked, "-k", "2", "--metric", "euclidean")
    (first, none), (second, far) = re.findall(r"│ (\w+\.jpg) +│ +(\d\.\d{4})", result.out)
    assert (first, none, second) == ("there.jpg", "0.0000", "somewhere.jpg")
    assert float(far) > 0


def test_a_page(vectors, trained, shared, capsys):
    (shared / "photos" / "2.png").unlink()  # since they were embedded
    result = run(capsys, vectors, "--rows", "photos/0.png", "--html", "s.html", "-k", "7")
    assert "s.html: 8 pictures" in result.out
    text = Path("s.html").read_text()
    assert text.count("<article") == 8
    assert text.count('class="card asked"') == 1
    assert text.count("data:image/jpeg;base64,") == 7
    assert text.count("no picture: ") == 1
    assert not re.search(r"https?://|<script", text)
    distances = [float(number) for number in re.findall(r"distance (\d\.\d{4})", text)]
    assert len(distances) == 7
    assert distances == sorted(distances)
    run(capsys, vectors, "--query", "9.png", "--bundle", trained, "--html", "q.html", "-k", "1")
    assert Path("q.html").read_text().count("data:image/jpeg;base64,") == 2


@pytest.mark.parametrize("folder", [False, True])
def test_a_page_of_a_data_set(shared, trained, pictures, capsys, folder):
    with h5py.File("labels.h5", "w") as file:
        file["img_identifiers"] = [f"a/{row}.png" for row in range(4)]
        file["taxa_fine"], file["taxa_coarse"] = np.array([7, 8, 8, 0]), np.array([1, 1, 1, 2])
        for place, name in enumerate(("fine", "coarse")):
            file[f"taxa_{name}"].attrs["rank_place"] = place
    with h5py.File("images.h5", "w") as file:
        file["images"] = pictures.pixels[:4]
    (shared / "a").mkdir()
    for row in range(4):
        (shared / "photos" / f"{row}.png").rename(shared / "a" / f"{row}.png")
    more = ["--images", "."] if folder else []
    assert embed.main([trained, "labels.h5", "--out", "v.parquet", *more, "--shard", "1/2"]) == 0
    capsys.readouterr()
    held = open_vectors(Path("v.parquet"))
    result = run(capsys, "v.parquet", "--rows", "0", "-k", "3", "--html", "s.html")
    assert "nearest first ┃ fine ┃ coarse ┃ distance" in result.out
    assert len(listed(result.out)) == len(held) - 1
    text = Path("s.html").read_text()
    assert text.count("data:image/jpeg;base64,") == len(held)
    assert text.count("<tr><td>coarse</td>") == len(held)
    cards = re.findall(r'base64,([^"]+)".*?<p class="file">(a/\d\.png)', text)
    alone = {name: picture for picture, name in cards}
    assert len(set(alone.values())) == len(held)


def test_a_page_names_what_is_not_html(tmp_path):
    shown = similar_page.Shown("<b>.png", lambda: "PICTURE", {"<i>": "a & b", "genus": ""}, 0.5)
    told = list[tuple[int, int]]()
    asked = dataclasses.replace(shown, distance=None)
    similar_page.write_similar(tmp_path / "s.html", "t", "said", [[asked, shown]], lambda *both: told.append(both))
    text = (tmp_path / "s.html").read_text()
    assert text.count("PICTURE") == 2
    assert text.count("&lt;b&gt;.png") == 3
    assert "<tr><td>&lt;i&gt;</td><td>a &amp; b</td></tr>" in text
    assert "genus" not in text
    assert told == [(1, 2), (2, 2)]


def test_vectors_of_another_model(vectors, bundle, capsys):
    weights = jax.tree.map(lambda leaf: leaf + 1, dict(bundle.variables))
    darker = dataclasses.replace(bundle.preprocessing, mean=(0.1, 0.1, 0.1))
    for name, changed in (("weights", {"variables": weights}), ("preprocessing", {"preprocessing": darker})):
        write_bundle(dataclasses.replace(bundle, **changed), Path(name))
        result = run(capsys, vectors, "--query", "9.png", "--bundle", name)
        assert (result.status, result.err.count("\n")) == (2, 1)
        assert f"v.npz holds vectors of another model than {name}: {name} differ; give the bundle" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "8"], "'8' is no id of v.npz, and no row number below 8; its first id is 'photos/0.png'"),
        (["--rows", "photos/x.png"], "'photos/x.png' is no id of v.npz"),
        (["--rows", "1", "-k", "0"], "-k is 0; give at least 1"),
        (["--rows", "1", "--html", "photos"], "--html photos is a folder"),
        (["--rows", "1", "2", "-k", "99", "--html", "s.html"], "--html shows at most 8 pictures"),
        (["--query", "9.png"], "--query needs the model of the vectors: give it by --bundle"),
        (["--query", "photos/broken.jpg", "--bundle", "TRAINED"], "none of the pictures of --query can be read"),
    ],
)
def test_wrong_arguments_are_one_message(vectors, trained, shared, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(similar_page, "MOST", 8)
    result = run(capsys, vectors, *(trained if text == "TRAINED" else text for text in arguments))
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert message in result.err
    assert not Path("s.html").exists()


def test_a_page_of_many(vectors, capsys, monkeypatch):
    monkeypatch.setattr(similar, "PRINTED", 2)
    result = run(capsys, vectors, "--rows", *map(str, range(5)), "-k", "1")
    assert len(listed(result.out)) == 2
    assert "... and 3 more pictures; a page of all of them: --html similar.html" in result.out


#: elements beyond the card that they stand in
BEYOND = """[...document.querySelectorAll('.card *')].filter((e) => e.getBoundingClientRect().right >
e.closest('.card').getBoundingClientRect().right + 0.5).map((e) => e.outerHTML)"""


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_page_in_a_browser(tmp_path, pictures, width, height):
    element = functools.partial(picture_element, lambda: pictures.pixels[0])
    name = f"{'a long name of a folder' * 9}/{'0123456789' * 9}.png"
    shown = similar_page.Shown(name, element, {"species": "Rubrisagitta hibernalis", "genus": "Rubrisagitta" * 3}, 0.5)
    asked = dataclasses.replace(shown, distance=None, taxa={})
    similar_page.write_similar(tmp_path / "s.html", "Similar", "said", [[asked, *[shown] * 300]] * 2)
    with browser(tmp_path / "profile") as page:
        page.open((tmp_path / "s.html").as_uri(), width, height, mobile=width < 500)
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value("document.querySelectorAll('.card').length") == 602
        assert page.value(BEYOND) == []
        page.wait("document.querySelector('.card img').naturalWidth > 0")  # decoded lazily
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
