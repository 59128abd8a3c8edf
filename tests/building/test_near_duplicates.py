"""Pictures that show the same: found however they were changed, listed, left out or kept on one side of a split."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import cv2
import h5py
import numpy as np
import polars as pl
import pytest

from linnaeus_jax.building.scan.near_duplicates import FILE, Pair, agreement, near_duplicates
from linnaeus_jax.building.steps.picture_lists import DUPLICATES, with_duplicates, without_excluded
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.schema import EXCLUDED
from linnaeus_jax.tools import build_dataset, describe_dataset
from tests.building.helpers import rows_of

COUNT = 30


def photographs(count: int = COUNT, seed: int = 0) -> list[np.ndarray]:
    """uint8 [120, 150, 3] each: colours at several scales, no two alike."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        layers = [rng.uniform(0, 255, (side, side, 3)).astype(np.float32) for side in (3, 8, 24, 60)]
        sized = [cv2.resize(layer, (150, 120), interpolation=cv2.INTER_CUBIC) for layer in layers]
        found.append(np.clip(sum(w * x for w, x in zip((0.4, 0.3, 0.2, 0.1), sized)), 0, 255).astype(np.uint8))
    return found


def recompressed(image: np.ndarray) -> np.ndarray:
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))


CHANGES = {
    "scaled": lambda x: cv2.resize(x, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
    "cropped at a corner": lambda x: x[12:, 15:],
    "cropped in the middle": lambda x: x[6:-6, 7:-7],
    "recompressed": recompressed,
    "mirrored": lambda x: x[:, ::-1],
    "moved": lambda x: np.roll(x, (4, 6), (0, 1)),
    "darker": lambda x: (0.8 * x).astype(np.uint8),
}


class Raw:
    """Pictures [64, 64] in memory; `broken` cannot be read."""

    image_shape = (64, 64, 3)

    def __init__(self, images, broken=()):
        self.images, self.broken = [cv2.resize(x, (64, 64), interpolation=cv2.INTER_AREA) for x in images], broken

    def __len__(self):
        return len(self.images)

    def read(self, rows, out):
        if rows[0] in self.broken:
            raise OSError(5, "Input/output error")
        out[:] = self.images[rows[0]]
        return np.ones(1, bool)


def test_changed_copies_are_found():
    images = photographs()
    copies = [change(images[number]) for number, change in enumerate(CHANGES.values())]
    pairs = near_duplicates(Raw([*images, *copies]), np.ones(COUNT + len(copies), int))
    planted = {(COUNT + number, number): name for number, name in enumerate(CHANGES)}
    assert {planted[pair.row, pair.other] for pair in pairs} == set(CHANGES)
    assert len(pairs) == len(CHANGES)
    assert all(0.45 <= pair.similarity <= 1 for pair in pairs)


def test_copies_of_copies_the_most_similar_first_and_what_cannot_be_read():
    images = photographs()
    source = Raw([*images, images[5], recompressed(images[5]), images[0]], broken=(0,))
    seen = []
    pairs = near_duplicates(source, np.ones(COUNT + 3, int), lambda *where: seen.append(where))
    assert {(pair.row, pair.other) for pair in pairs} == {(COUNT, 5), (COUNT + 1, 5), (COUNT + 1, COUNT)}
    assert (pairs[0].row, pairs[0].other) == (COUNT, 5)
    assert [pair.similarity for pair in pairs] == sorted((pair.similarity for pair in pairs), reverse=True)
    assert {what: (done, total) for what, done, total in seen}["reading"] == (COUNT + 3, COUNT + 3)


def outline(rng: np.random.Generator) -> np.ndarray:
    image, axes = np.full((64, 64, 3), 255, np.uint8), rng.integers(8, 28, 2).tolist()
    cv2.ellipse(image, (32, 32), axes, float(rng.uniform(0, 90)), 0, 360, (40, 90, 40), -1)
    return image


def test_where_pictures_of_other_classes_agree_a_pair_must_agree_more():
    """Drawn outlines are alike; their real copies are alike to the pixel."""
    rng = np.random.default_rng(0)
    many = [outline(rng) for _ in range(500)]
    few = near_duplicates(Raw(many[:60]), np.arange(60) + 1)
    assert len(few) > 50  # too few pairs to tell what is usual
    pairs = near_duplicates(Raw([*many, many[7]]), np.append(np.arange(500), 7) + 1)
    assert (500, 7) in {(pair.row, pair.other) for pair in pairs}
    assert len(pairs) < 20


def test_plain_pictures_are_no_pair():
    grey = np.full((64, 64), 128, np.uint8)
    textured = np.asarray(cv2.cvtColor(cv2.resize(photographs(1)[0], (64, 64)), cv2.COLOR_RGB2GRAY), np.uint8)
    assert agreement(grey, grey) == agreement(grey, textured) == agreement(textured, grey) == 0
    assert agreement(textured, textured) == pytest.approx(1, abs=1e-5)
    assert near_duplicates(Raw([]), np.zeros(0, int)) == []
    assert near_duplicates(Raw(photographs(1)), np.ones(1, int)) == []
    assert Pair(1, 0, 0.5) == Pair(1, 0, 0.5)


# ---- lists


def test_lists_of_pictures(tmp_path):
    frame = rows_of(picture=["a, b.jpg", "c.jpg", "d.jpg", "e.jpg"], name_L10=["x"] * 4).frame
    path = tmp_path / "list.txt"
    tables = 'similarity,picture\n1,"a, b.jpg"\n1,d.jpg\n', "similarity;picture\n1;a, b.jpg\n1;d.jpg\n"
    for text in ("a, b.jpg\n\nd.jpg\n", *tables):
        path.write_text(text)
        found = without_excluded(frame, path)
        assert found["reason"].to_list() == [EXCLUDED, None, EXCLUDED, None]
        assert found["detail"].to_list() == ["list.txt", None, "list.txt", None]
    path.write_text("other,picture\nc.jpg,d.jpg\ne.jpg,c.jpg\n")
    groups = with_duplicates(frame, path)[DUPLICATES].to_list()
    assert groups[0] is None
    assert groups[1] == groups[2] == groups[3]
    path.write_text("picture,other\n")
    assert DUPLICATES not in with_duplicates(frame, path).columns
    rejected = frame.with_columns(pl.lit("no such picture").alias("reason"))
    path.write_text("c.jpg\n")
    assert set(without_excluded(rejected, path)["reason"]) == {"no such picture"}  # as it was


@pytest.mark.parametrize(
    ("change", "text", "message"),
    [
        (without_excluded, "x.jpg\nc.jpg\n", "list: 1 of 2 pictures are not in the source, such as x.jpg"),
        (with_duplicates, "c.jpg,d.jpg\n", "it needs the columns picture and other, and has no picture"),
        (with_duplicates, "picture,similarity\nc.jpg,1\n", "it needs the columns picture and other, and has no other"),
        (with_duplicates, "picture,other\nc.jpg\n", "list, line 2: it has fewer fields than the first line names"),
        (without_excluded, None, "list cannot be read: No such file or directory"),
    ],
)
def test_lists_that_cannot_be(change, text, message, tmp_path):
    path = tmp_path / "list"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        change(rows_of(picture=["c.jpg", "d.jpg"], name_L10=["x"] * 2).frame, path)


# ---- the tools


def sides_of(out: Path) -> dict[str, int]:
    with h5py.File(out / "labels.h5") as file:
        return dict(zip(file["img_identifiers"].asstr()[:], file["split"][:].tolist()))


def test_described_and_built_again(tmp_path, capsys):
    images = photographs(20)
    names = [f"{'ab'[number % 2]}/{number:02}.png" for number in range(20)]
    for number in range(8):  # a copy of each of eight
        names.append(f"{'ab'[number % 2]}/copy of {number:02}.png")
        images.append(CHANGES["mirrored" if number % 2 else "scaled"](images[number]))
    for name, image in zip(names, images):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), image)
    build = ["--folders", str(tmp_path / "photos"), "--val", "0.4", "--size", "64"]
    assert build_dataset.main([*build, "--out", str(tmp_path / "first")]) == 0
    described = [str(tmp_path / "first" / "labels.h5"), "--out", str(tmp_path / "page"), "--near-duplicates"]
    with pytest.raises(SystemExit):
        describe_dataset.main(described)
    assert describe_dataset.main([*described, "--images", str(tmp_path / "first" / "images.h5")]) == 0
    said = capsys.readouterr().out
    with (tmp_path / "page" / FILE).open(newline="") as file:
        pairs = list(csv.DictReader(file))
    planted = {frozenset((names[number], names[20 + number])) for number in range(8)}
    assert {frozenset((pair["picture"], pair["other"])) for pair in pairs} == planted
    before = sides_of(tmp_path / "first")
    across = [before[pair["picture"]] != before[pair["other"]] for pair in pairs]
    assert across == sorted(across, reverse=True)
    assert 0 < sum(across) < 8
    assert f"8 pairs of pictures that show the same, {sum(across)} of them on two sides" in said
    page = (tmp_path / "page" / "dataset.html").read_text()
    assert page.count("<figure>") >= 16
    assert all(name in page for name in itertools.chain(*planted))

    lists = ["--group-duplicates", str(tmp_path / "page" / FILE)]
    assert build_dataset.main([*build, *lists, "--out", str(tmp_path / "grouped")]) == 0
    after = sides_of(tmp_path / "grouped")
    assert len(after) == 28
    assert all(len({after[name] for name in pair}) == 1 for pair in planted)
    assert build_dataset.main([*build, "--exclude", lists[1], "--out", str(tmp_path / "without")]) == 0
    assert len(sides_of(tmp_path / "without")) == 20
    totals = json.loads((tmp_path / "without" / "build.json").read_text())["totals"]
    assert totals["rejected"][EXCLUDED] == 8
    sources = json.loads(h5py.File(tmp_path / "grouped" / "labels.h5")["metadata"].attrs["config_json"])["sources"]
    assert [source["file"] for source in sources] == [FILE]
