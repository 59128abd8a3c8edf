"""Camtrap DP packages as rows of a data set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from linnaeus_jax.building.sources import camtrap_dp
from linnaeus_jax.building.steps.boxed_rows import BOX, with_boxes
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.box_cuts import Cut
from linnaeus_jax.reading.camtrap_dp import read_package
from linnaeus_jax.tools import build_dataset
from tests.building.helpers import write_pictures
from tests.building.packages import TAXA, medium, seen, write_package


def pictures(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def plain(frame: pl.DataFrame, *names: str) -> list[tuple]:
    return frame.select(pl.col(names).cast(pl.String)).rows()


def test_what_people_said_of_media_and_of_events(tmp_path):
    media = [
        *(medium(number) for number in range(7)),
        medium(7, camera="d2"),
        medium(8, "video/8.mp4", fileMediatype="video/mp4"),
        medium(9, timestamp="soon"),
    ]
    machine = {"classificationMethod": "machine"}
    said = [
        seen(0, 0, "Parus major", eventID="e1"),
        seen(1, 0, "Sus scrofa", **machine),  # a person has said something else
        seen(2, 1, kind="blank"),  # though the event shows a bird
        seen(3, 2, "Aves"),
        seen(4, 3, "Parus major"),
        seen(5, 3, "Sus scrofa"),
        seen(6, 4, "Sus scrofa", **machine),
        seen(7, None, "Parus major", eventID="e1", eventEnd="2024-05-17T08:00:04Z"),
        seen(8, 5, kind="vehicle"),
        seen(9, 8, "Parus major"),
    ]
    root = write_package(tmp_path / "p", media, said)
    pictures(root, *(f"photos/{number}.png" for number in range(10) if number != 7))
    source = camtrap_dp.read(root)
    names = ("picture", "name_L10", "name_L20", "name_L50", "name_:observation_type", "occurrence", "place", "reason")
    assert plain(source.frame, *names) == [
        ("photos/0.png", "Parus major", "Parus", None, "animal", "d1/e1", "l1", None),
        ("photos/1.png", None, None, None, "blank", "d1/e1", "l1", None),
        ("photos/2.png", None, None, "Aves", "animal", "d1/e1", "l1", None),
        ("photos/3.png", None, None, None, "animal", "d1/e1", "l1", "no usable label"),
        ("photos/4.png", "Parus major", "Parus", None, "animal", "d1/e1", "l1", None),
        ("photos/5.png", None, None, None, "vehicle", None, "l1", None),
        ("photos/6.png", None, None, None, None, None, "l1", None),
        ("photos/7.png", None, None, None, None, None, "l2", "no such picture"),
        ("video/8.mp4", "Parus major", "Parus", None, "animal", None, "l1", "no picture named"),
        ("photos/9.png", None, None, None, None, None, "l1", None),
    ]
    first = source.frame.row(0, named=True)
    assert (first["latitude"], first["longitude"], first["date"]) == ("51.5", "13.25", "2024-05-17T10:00:00+02:00")
    assert (first["common_L10"], first["license"]) == ("great tit", "https://example.org/by")
    assert source.frame["detail"][3] == "several are said to be on it: Parus major, Sus scrofa"
    assert source.frame["detail"][8] == "no picture but video/mp4"
    assert any("2 observations of machines are not taken as labels" in text for text in source.warnings)
    assert any("1 blank, 1 vehicle" in text for text in source.warnings)
    trusting = camtrap_dp.read(root, machine_labels=True).frame
    assert plain(trusting, "name_L10")[0] == ("Parus major",)
    assert plain(trusting, "name_L10")[4] == ("Sus scrofa",)


def test_boxes_have_labels_of_their_own(tmp_path):
    machine = {"classificationMethod": "machine", "classificationProbability": "0.7"}
    left, right, low = (0.1, 0.1, 0.3, 0.3), (0.6, 0.5, 0.3, 0.4), (0.1, 0.6, 0.2, 0.2)
    said = [
        seen(0, 0, "Parus major", box=left),
        seen(1, 0, "Sus scrofa", box=right),
        seen(2, 0, box=right, **machine),  # the same box
        seen(3, 1, "Parus major"),
        seen(4, 1, box=left, **machine),
        seen(5, 1, box=low, **(machine | {"classificationProbability": "0.1"})),
        seen(6, 2, "Parus major", box=(0.1, 0.1, 0.0, 0.2)),
        seen(7, 3, "Parus major"),
    ]
    root = write_package(tmp_path / "p", map(medium, range(4)), said)
    pictures(root, *(f"photos/{number}.png" for number in range(4)))
    found = read_package(root).boxes()
    numbers = {name: [(box.number, box.confidence) for box in boxes] for name, boxes in found.boxes.items()}
    assert numbers == {
        "photos/0.png": [(1, None), (2, None)],
        "photos/1.png": [(1, 0.7), (2, 0.1)],
        "photos/2.png": [],
        "photos/3.png": [],
    }
    assert found.faults.total() == 1
    rows = with_boxes(camtrap_dp.read(root, own_boxes=True), found, Cut())
    assert plain(rows.frame.with_columns(pl.col(BOX).str.slice(0, 2)), "picture", "name_L10", BOX, "reason") == [
        ("photos/0.png", "Parus major", "[1", None),
        ("photos/0.png", "Sus scrofa", "[2", None),
        ("photos/1.png", "Parus major", "[1", None),
        ("photos/2.png", "Parus major", None, "no box that is taken"),
        ("photos/3.png", "Parus major", None, None),
    ]


def test_files_of_the_web_are_found_by_name(tmp_path):
    web = "https://example.org/{}/file"
    media = [
        medium(0, web.format(0), fileName="a.png"),
        medium(1, web.format(1), fileName="b.png"),
        medium(2, web.format(2), "d2", fileName="b.png"),
        medium(3, web.format(3)),
    ]
    root = write_package(tmp_path / "p", media, [])
    photos = tmp_path / "photos"
    pictures(photos, "a.png", "d1/b.png", "d2/b.png", "m3.png", "other.png")
    frame = camtrap_dp.read(root, pictures=photos).frame
    assert plain(frame, "picture", "reason") == [
        *((name, None) for name in ("a.png", "d1/b.png", "d2/b.png", "m3.png")),
        ("other.png", "no record names it"),
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_from_a_zip_and_a_whole_build(tmp_path, capsys, packed):
    names = write_pictures(tmp_path / "photos", 6)
    media = [medium(number, f"photos/{name}") for number, name in enumerate(names)]
    said = [seen(number, number, "Parus major" if number % 2 else "Sus scrofa") for number in range(5)]
    said.append(seen(5, 5, kind="blank"))
    root = write_package(tmp_path / "p", media, said)
    package = Path(shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, "p")) if packed else root
    options = ["--pictures", str(tmp_path), "--out", str(tmp_path / "out"), "--size", "32", "--split", "folder:place"]
    assert build_dataset.main(["--camtrap-dp", str(package), *options, "--ranks", "species,observation_type"]) == 0
    said_of_it = capsys.readouterr().out
    assert "1 blank" in said_of_it
    assert "taxa_obser" in said_of_it


def damaged(root: Path, what: str) -> None:
    path = root / "datapackage.json"
    document = json.loads(path.read_text())
    resources = document["resources"]
    if what == "no json":
        path.write_text("{")
    elif what == "no resources":
        path.write_text("[]")
    elif what == "version 2":
        path.write_text(path.read_text().replace("1.0.2", "2.0"))
    elif what == "no media":
        path.write_text(json.dumps({**document, "resources": resources[:1]}))
    elif what == "outside":
        resources[0]["path"] = "../deployments.csv"
        path.write_text(json.dumps(document))
    elif what == "web":
        resources[2]["path"] = "https://example.org/observations.csv"
        path.write_text(json.dumps(document))
    elif what == "packed":
        (root / "media.csv").write_bytes(b"\x1f\x8b packed")
    elif what == "column":
        (root / "deployments.csv").write_text("deploymentID,latitude\nd1,51\n")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no json", "datapackage.json is no JSON"),
        ("no resources", "lists no resources"),
        ("version 2", "is Camtrap DP 2.0; 0.6 and 1.x are read"),
        ("no media", "media is not among the resources"),
        ("outside", "not a file of the archive"),
        ("web", "download it beside datapackage.json"),
        ("packed", "media.csv is compressed"),
        ("column", "deployments.csv has no column longitude"),
    ],
)
def test_what_is_no_package(tmp_path, what, message):
    root = write_package(tmp_path / "p", [medium(0)], [])
    damaged(root, what)
    with pytest.raises(UserError, match=message) as error:
        read_package(root)
    assert "\n" not in str(error.value)


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    root = write_package(tmp_path / "p", [medium(0), medium(0), medium(1, camera="d9")], [seen(0, 0, "Parus major")])
    with (root / "observations.csv").open("a") as file:
        file.write("too,few\n")
    package = read_package(root)
    assert package.media.height == 2
    assert package.observations.height == 1
    assert [text.partition(": ")[2] for text in package.warnings] == [
        "observations: 1 rows are malformed and left out, the first in line 3",
        "1 rows of media repeat a mediaID and are left out",
        "1 media are of a deployment that it has not; their place is unknown",
    ]


def test_version_0_6(tmp_path):
    root = write_package(tmp_path / "p", [medium(0), medium(1)], [], version="0.6", taxonomic=TAXA)
    text = (root / "datapackage.json").read_text()
    document = json.loads(text)
    for level, key, row in (("media", "mediaID", "m0"), ("event", "eventID", "e1")):
        (root / f"{level}.obs.csv").write_text(
            f"observationID,{key},observationType,scientificName\n{level},{row},animal,Parus major\n"
        )
        document["resources"].append({"name": f"{level}-observations", "path": f"{level}.obs.csv"})
    document["resources"] = [each for each in document["resources"] if each["name"] != "observations"]
    (root / "datapackage.json").write_text(json.dumps(document))
    (root / "media.csv").write_text(
        "mediaID,deploymentID,eventID,timestamp,filePath\nm0,d1,e0,2024-05-17T10:00:00Z,0.png\n"
        "m1,d1,e1,2024-05-17T11:00:00Z,1.png\n"
    )
    frame = camtrap_dp.read(root).frame
    assert plain(frame, "name_L10", "occurrence") == [("Parus major", "d1/e0"), ("Parus major", "d1/e1")]
