"""Files of boxes, sound and not, and the part of a picture that a box is."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.box_cuts import CLIPPED, Box, BoxError, Cut
from linnaeus_jax.reading.boxes import BoxFile, read_boxes

NAMES = {"1": "animal", "2": "person"}


def detection(*place: Any, conf: Any = 0.9, category: Any = "1") -> dict[str, Any]:
    return {"category": category, "conf": conf, "bbox": list(place)}


def megadetector(path: Path, *images: Any, version: Any = "1.4", **more: Any) -> Path:
    content = {"info": {"format_version": version}, "detection_categories": NAMES, "images": images, **more}
    path.write_text(json.dumps(content))
    return path


def of(path: Path, *detections: Any, **more: Any) -> BoxFile:
    return read_boxes(megadetector(path, {"file": "a.jpg", "detections": list(detections)}, **more))


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4", 1.3])
def test_every_version_of_megadetector(tmp_path, version):
    both = [detection(0.1, 0.2, 0.3, 0.4), detection(0, 0, 1, 1, category="2")]
    images = [
        {"file": "cam\\a.jpg", "max_detection_conf": 0.9, "detections": both},
        {"file": "./b.jpg", "detections": [], "failure": None},
        {"file": "c.jpg", "failure": "Failure image access", "detections": None},
        {"file": "d.jpg", "failure": "Failure image access"},
        {"file": "e.mp4", "frame_rate": 20, "detections": [{**detection(0, 0, 1, 1), "frame_number": 3}]},
    ]
    found = read_boxes(megadetector(tmp_path / "b.json", *images, version=version))
    assert found.form == f"MegaDetector {version}"
    assert found.boxes == {
        "cam/a.jpg": [Box(1, (0.1, 0.2, 0.3, 0.4), 0.9, "animal"), Box(2, (0, 0, 1, 1), 0.9, "person")],
        **{name: [] for name in ("b.jpg", "c.jpg", "d.jpg", "e.mp4")},
    }
    assert found.said() == [
        "b.json: the detector failed on 2 pictures, which have no boxes",
        "b.json: 1 videos are left aside",
    ]


def test_boxes_that_cannot_be_used_are_counted_by_their_reason(tmp_path):
    path = tmp_path / "b.json"
    bad = [
        *(detection(*place) for place in ((1.2, 0, 0.1, 0.1), (0, -0.5, 0.1, 0.5))),
        *(detection(*place) for place in ((0, 0, 0, 0.1), (0, 0, 0.1, -0.1), (0, 0, -1e-300, 0.1))),
        *(detection(*place) for place in ((0, 0, 1), ("0", 0, 1, 1), (0, 0, 1, math.nan), (0, 0, 1, math.inf))),
        *(detection(*place) for place in ((0, 0, 1, 10**400), (True, 0, 1, 1), (0.5,))),
        {"category": "1", "conf": 0.5},
        "no detection",
        *(detection(0, 0, 1, 1, conf=conf) for conf in (math.nan, -0.1, 1.1, "0.5", None)),
        {"category": "1", "bbox": [0, 0, 1, 1]},
        *(detection(0, 0, 1, 1, category=category) for category in ("7", 1, None, ["1"])),
        detection(0, 0, 1, 1),
    ]
    found = of(path, *bad)
    assert [box.number for box in found.boxes["a.jpg"]] == [len(bad)]
    assert found.said() == [
        "b.json: 24 boxes are left out: 9, since their place is not four finite numbers; 6, since their confidence is "
        "no number from 0 to 1; 4, since the file does not name their category; 3, since their width or height is not "
        "above 0; 2, since they lie outside of the picture"
    ]
    path.write_text(path.read_text().replace("NaN", "1e999"))  # infinite, too
    assert read_boxes(path).faults == found.faults
    json.dumps(read_boxes(path).document, allow_nan=False)


def test_entries_and_categories_that_are_missing(tmp_path):
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"images": [{"detections": []}, 5, {"file": "a.jpg", "detections": {}}, {"file": ""}]}))
    found = read_boxes(path)
    assert found.boxes == {"a.jpg": []}
    assert found.said() == [
        "b.json says no format_version; it is read as MegaDetector's 1.0",
        "b.json names no detection_categories; 1 is read as animal, 2 person, 3 vehicle",
        "b.json: 3 entries name no picture ('file') and are left out",
    ]
    newer = of(path, detection(0, 0, 1, 1), version="1.6")
    assert newer.said() == ["b.json: format_version 1.6 is newer than 1.4, as which it is read"]
    assert len(newer.boxes["a.jpg"]) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "b.json is empty"),
        (" \n ", "b.json is empty"),
        ('{"images": [{"file": "a.jp', "b.json is no JSON, cut off: Unterminated string"),
        ('{"images": [{"file": "a.jpg"}', "b.json is no JSON, cut off: Expecting"),
        ('{"images": nothing}', "b.json is no JSON, Expecting value"),
        ('{"images": [' + "[" * 100_000, "b.json is nested too deeply"),
        ('{"images": [' + "1" * 5000 + "]}", "b.json is no JSON"),
        ("file,x,y", "b.json is no JSON: it begins with file,x,y"),
        ("\x1b[2J", r"b.json is no JSON: it begins with \x1b[2J"),
        ("[]", "JSON of no known form; give results of MegaDetector"),
        ('{"images": {}}', "JSON of no known form"),
        ('{"info": {"format_version": "2.0"}, "images": []}', "format_version is 2.0; versions 1.0 to 1.4"),
        ('{"info": {"format_version": "\\u001b[1"}, "images": []}', r"format_version is \x1b[1; versions"),
        ('{"images": [{"file": "a/b.jpg"}, {"file": "a\\\\b.jpg"}]}', "stands there twice; keep one of them"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, said):
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(UserError) as caught:
        read_boxes(tmp_path / "b.json")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_options_of_tables(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_boxes(tmp_path / "none.json")
    with pytest.raises(UserError, match="is not a file"):
        read_boxes(tmp_path)
    with pytest.raises(UserError, match="--box-columns and --box-units are of tables"):
        read_boxes(megadetector(tmp_path / "b.json"), units="pixel")


def test_speciesnet(tmp_path):
    path = tmp_path / "p.json"
    animal = {"category": "1", "label": "animal", "conf": 0.8, "bbox": [0.1, 0.2, 0.3, 0.4]}
    entries = [
        {"filepath": "/other/cam/a.jpg", "detections": [animal, {**animal, "label": "human", "conf": 0.3}]},
        {"filepath": "b.jpg", "failures": ["DETECTOR"]},
        {"filepath": "c.jpg", "detections": [{"category": "1", "conf": 0.8, "bbox": [0, 0, 1, 1]}]},
    ]
    path.write_text(json.dumps({"predictions": entries}))
    found = read_boxes(path)
    place = (0.1, 0.2, 0.3, 0.4)
    assert found.boxes == {
        "/other/cam/a.jpg": [Box(1, place, 0.8, "animal"), Box(2, place, 0.3, "human")],
        "b.jpg": [],
        "c.jpg": [],
    }
    assert dict(found.faults) == {"the file does not name their category": 1}


def test_coco(tmp_path):
    path = tmp_path / "c.json"
    content = {
        "images": [{"id": 5, "file_name": "a.jpg", "width": 200, "height": 100}, {"id": 6, "file_name": "b.jpg"}],
        "categories": [{"id": 3, "name": "bird"}],
        "annotations": [
            {"image_id": 5, "bbox": [20, 10, 50.5, 30], "category_id": 3},
            {"image_id": 5, "bbox": [300, 10, 50, 30], "category_id": 3},
            {"image_id": 6, "bbox": [20, 10, 50, 30], "category_id": 3, "score": 0.5},
            {"image_id": 6, "bbox": [20, 10, 50, 30], "category_id": 4},
            {"image_id": 6, "bbox": [20, 10, 50, 30], "score": math.nan},
            {"image_id": 7, "bbox": [20, 10, 50, 30], "category_id": 3},
        ],
    }
    path.write_text(json.dumps(content))
    found = read_boxes(path)
    assert found.boxes == {
        "a.jpg": [Box(1, (20, 10, 50.5, 30), None, "bird", (200, 100))],
        "b.jpg": [Box(1, (20, 10, 50, 30), 0.5, "bird", None)],
    }
    assert found.said()[0] == "c.json: 1 annotations are of no image that it has, and are left out"
    assert found.faults.total() == 3
    rows, columns, _ = Cut(margin=0).region(found.boxes["a.jpg"][0], (50, 100))  # a smaller copy
    assert (columns, rows) == (slice(10, 35), slice(5, 20))
    with pytest.raises(BoxError, match="before the picture was turned"):
        Cut().region(found.boxes["a.jpg"][0], (200, 100))


def test_tables(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text(
        "File,X,Y,Width,Height,Score,Label\na.jpg,0.1,0.2,0.3,0.4,0.9,fox\na.jpg,0.5,0.5,0.1,x,0.9,fox\n"
        "b.jpg,,,,,,\na.jpg,0.5,0.5,0.1,0.1,NaN,fox\na.jpg,0,0,0.5,1,0.3,\nbad line\n,0,0,1,1,1,fox\n"
    )
    found = read_boxes(path)
    assert found.boxes == {
        "a.jpg": [Box(1, (0.1, 0.2, 0.3, 0.4), 0.9, "fox"), Box(4, (0, 0, 0.5, 1), 0.3)],
        "b.jpg": [],
    }
    assert found.said() == [
        "b.csv: 2 records are malformed or name no picture",
        "b.csv: by its numbers the unit of its boxes is relative; --box-units says another",
        "b.csv: 2 boxes are left out: 1, since their place is not four finite numbers; 1, since their confidence is no "
        "number from 0 to 1",
    ]
    pixels = pl.DataFrame({"picture": ["a.jpg"], "left": [10], "top": [20], "w": [30], "h": [1]})
    pixels.write_parquet(tmp_path / "b.parquet")
    assert read_boxes(tmp_path / "b.parquet").boxes == {"a.jpg": [Box(1, (10, 20, 30, 1), None, "", None)]}
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"p;l;t;b;h\na.jpg;0,1;0,1;0,5;0,25\n"))
    names = {"file": "p", "x": "l", "y": "t", "width": "b"}
    assert read_boxes(tmp_path / "c.csv.gz", names, "pixel").boxes["a.jpg"][0].place == (0.1, 0.1, 0.5, 0.25)
    for columns, said in (
        ({}, "has no column for file, x, y, width; say which it is with --box-columns file=COLUMN"),
        ({"x": "q"}, "--box-columns x=q: c.csv.gz has p, l, t, b, h"),
        ({"z": "p"}, "--box-columns z: choose one of file, x, y"),
    ):
        with pytest.raises(UserError, match=said):
            read_boxes(tmp_path / "c.csv.gz", columns)
    with pytest.raises(UserError, match="choose one of relative, pixel"):
        read_boxes(path, units="inch")


def test_which_boxes_are_taken(tmp_path):
    boxes = [detection(0, 0, 1, 1, conf=conf, category=kind) for conf, kind in ((0.1, "1"), (0.2, "1"), (0.9, "2"))]
    found = of(tmp_path / "b.json", *boxes)
    taken, left = found.taken(Cut())
    assert [box.number for box in taken["a.jpg"]] == [2, 3]
    assert dict(left) == {"their confidence is below 0.2": 1}
    taken, left = found.taken(Cut(categories=("animal",), confidence=0))
    assert [box.number for box in taken["a.jpg"]] == [1, 2]
    assert dict(left) == {"they are of other categories": 1}
    with pytest.raises(UserError, match=r"--box-categories bird: .* names no such category; it has animal, person"):
        found.taken(Cut(categories=("bird",)))


def test_which_picture_a_name_means(tmp_path):
    names = ["a.jpg", "cam/a.jpg", "/mnt/d/cam2/b.jpg", "C:\\x\\cam3\\c.jpg", "../up.jpg", "q.jpg"]
    found = read_boxes(megadetector(tmp_path / "b.json", *({"file": name, "detections": []} for name in names)))
    place = tmp_path.as_posix()
    pictures = [
        (f"{place}/a.jpg", "a.jpg"),
        (f"{place}/cam/a.jpg", "cam/a.jpg"),
        ("/here/cam2/b.jpg", "cam2/b.jpg"),
        ("/here/cam3/c.jpg", "c.jpg"),
        (f"{Path(place).parent.as_posix()}/up.jpg", "up.jpg"),
        (f"{place}/none.jpg", "none.jpg"),
    ]
    assert found.match(pictures) == ["a.jpg", "cam/a.jpg", "/mnt/d/cam2/b.jpg", "C:/x/cam3/c.jpg", "../up.jpg", None]
    assert found.match([pictures[0]] * 2) == ["a.jpg"] * 2
    with pytest.raises(UserError, match=r"q.jpg may be /x/q.jpg or /y/q.jpg; write the folder before the name"):
        found.match([("/x/q.jpg", "q.jpg"), ("/y/q.jpg", "q.jpg")])
    two = read_boxes(megadetector(tmp_path / "b.json", {"file": "/m/1/a.jpg"}, {"file": "/m/2/a.jpg"}))
    with pytest.raises(UserError, match=r"/m/1/a.jpg and /m/2/a.jpg may both be a.jpg; give the folder above it"):
        two.match([("/here/a.jpg", "a.jpg")])


# ---- what is cut


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    start=st.tuples(st.integers(-10, 39), st.integers(-10, 39)),
    length=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    margin=st.sampled_from([0, 0.25, 0.5, 1]),
)
def test_the_region_is_that_of_pixel_by_pixel_arithmetic(size, start, length, margin):
    """Beside a picture that is laid out on a canvas: whole and quarter pixels, so that nothing is lost by rounding."""
    height, width = size
    inside = np.zeros((height, width), bool)
    for y in range(height):
        for x in range(width):
            inside[y, x] = start[0] <= x < start[0] + length[0] and start[1] <= y < start[1] + length[1]
    box = Box(1, (*start, *length), scale=None)
    cut = Cut(margin=margin)
    if not inside.any():
        with pytest.raises(BoxError, match="outside"):
            cut.region(box, size)
        return
    ys, xs = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    added = margin * max(len(ys), len(xs))
    expected = [
        slice(max(0, math.floor(seen[0] - added + 0.5)), min(most, math.floor(seen[-1] + 1 + added + 0.5)))
        for seen, most in ((ys, height), (xs, width))
    ]
    rows, columns, notes = cut.region(box, size)
    assert [rows, columns] == expected
    beyond = min(start) < -1 or start[0] + length[0] > width + 1 or start[1] + length[1] > height + 1
    assert notes == ((CLIPPED,) if beyond else ())
    relative = Box(1, (start[0] / width, start[1] / height, length[0] / width, length[1] / height))
    near, _, _ = cut.region(relative, size)
    assert abs(near.start - rows.start) <= 1
    assert abs(near.stop - rows.stop) <= 1


@given(
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    place=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 4),
    square=st.booleans(),
)
def test_whatever_the_numbers_a_part_of_the_picture_is_cut_or_a_reason_given(size, place, square):
    try:
        rows, columns, _ = Cut(square=square).region(Box(1, place), size)
    except BoxError:
        return
    assert 0 <= rows.start < rows.stop <= size[0]
    assert 0 <= columns.start < columns.stop <= size[1]


def test_a_square_is_moved_into_the_picture_where_it_fits():
    cut = Cut(margin=0, square=True)
    assert cut.region(Box(1, (0, 10, 4, 20), scale=None), (100, 100))[:2] == (slice(10, 30), slice(0, 20))
    assert cut.region(Box(1, (50, 10, 4, 20), scale=None), (100, 100))[:2] == (slice(10, 30), slice(42, 62))
    assert cut.region(Box(1, (90, 10, 4, 20), scale=None), (100, 100))[:2] == (slice(10, 30), slice(80, 100))
    assert cut.region(Box(1, (2, 0, 2, 100), scale=None), (100, 6))[:2] == (slice(0, 100), slice(0, 6))


def test_small_boxes_and_settings_that_cannot_be():
    with pytest.raises(BoxError, match="its shorter side is 4 pixels, less than 5"):
        Cut(min_side=5).region(Box(1, (0, 0, 4, 20), scale=None), (100, 100))
    for option, wrong in (
        ("margin", lambda: Cut(margin=-1)),
        ("margin", lambda: Cut(margin=math.nan)),
        ("confidence", lambda: Cut(confidence=2)),
        ("min-side", lambda: Cut(min_side=-1)),
    ):
        with pytest.raises(UserError, match=f"--box-{option} is"):
            wrong()
    cut = Cut(0.2, 0.3, 4, True, ("animal",), "skip")
    assert Cut.from_json(json.loads(json.dumps(cut.to_json()))) == cut
