"""The command line of the builder: every source, wrong options, hostile input."""

from __future__ import annotations

import csv
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import h5py
import numpy as np
import polars as pl
import pytest

from linnaeus_jax.building.steps.summary import MOST_WARNINGS, summary_tables
from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import load_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.demo.as_files import write_demo_files
from linnaeus_jax.tools import verify_dataset
from linnaeus_jax.tools.build_dataset import main
from tests.building.helpers import write_pictures
from tests.campaign.pictures_made import jpeg_of_scans


def table(folder: Path, pictures: list[str], **columns: list[str]) -> Path:
    """A CSV file with the columns picture, species and those given."""
    path = folder / "records.csv"
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["picture", "species", *columns])
        species = [f"Genus species{i % 3}" for i in range(len(pictures))]
        writer.writerows(zip(pictures, species, *columns.values(), strict=True))
    return path


def build(*argv: object) -> int:
    return main([str(part) for part in argv])


def totals(out: Path) -> dict:
    return json.loads((out / "build.json").read_text())["totals"]


@pytest.mark.parametrize("form", ["folders", "table", "dwca"])
def test_every_source_gives_a_data_set_without_faults(tmp_path, form, capsys):
    source = write_demo_files(tmp_path / "demo", form, rows=160, image_size=32)
    out = tmp_path / "out"
    pictures = [] if form == "folders" else ["--pictures", tmp_path / "demo" / "photos"]
    assert build(f"--{form}", source, *pictures, "--out", out, "--size", 32) == 0
    printed = capsys.readouterr().out
    assert f"next: linnaeus train --config={out}/config.py" in printed.replace("\n", "")
    result = totals(out)
    assert result["in"] == result["used"] + sum(result["rejected"].values())
    assert result["used"] == {"folders": 160, "table": 159, "dwca": 160}[form]
    assert verify_dataset.main([str(out / "labels.h5"), "--images", str(out / "images.h5")]) == 0
    with h5py.File(out / "labels.h5") as labels:
        names = set(labels["taxon_names/taxa_L20/name"].asstr()[:])
        assert len(names) == 12
        assert "Rutilala" in names
        if form == "dwca":
            assert set(labels["source_doi"].asstr()[:]) == {"10.15468/dl.demo42"}
            assert set(labels["license"].asstr()[:]) == {"CC-BY 4.0"}


def test_parts_are_built_and_joined_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for taken in ("mine", "mine_2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
    write_pictures(tmp_path / "pictures" / "A", 5)
    write_pictures(tmp_path / "pictures" / "B", 5, seed=1)
    out = tmp_path / "out"
    common = ("--folders", tmp_path / "pictures", "--out", out, "--size", 16)
    assert build(*common, "--merge", 2) == 2
    assert "not built yet: --shard 1/2, --shard 2/2" in capsys.readouterr().err
    assert build(*common, "--shard", "1/2") == build(*common, "--shard", "2/2") == 0
    assert "join all with --merge 2" in capsys.readouterr().out
    assert build(*common, "--merge", 2) == 0
    assert totals(out)["used"] == 10
    assert "--workdir=runs/mine_3" in capsys.readouterr().out
    assert "--workdir=runs/mine_3" in (out / "config.py").read_text()
    assert build(*common, "--images", "jpeg") == 2
    assert "--force" in capsys.readouterr().err
    assert build(*common, "--images", "jpeg", "--force") == 0
    assert not (out / "shards").exists()


def test_warnings_that_are_not_printed_are_counted():
    totals: dict[str, Any] = dict.fromkeys(("in", "used", "small_classes"), 0)
    totals |= {key: {} for key in ("rejected", "blanked", "known", "split", "ranks")}
    finished: Any = SimpleNamespace(totals=totals, warnings=[str(i) for i in range(MOST_WARNINGS + 3)])
    *_, last_printed, rest = summary_tables(finished, Path("out"))
    assert (last_printed, rest) == (f"warning: {MOST_WARNINGS - 1}", "... and 3 more warnings, see build.json")
    finished.warnings = finished.warnings[:MOST_WARNINGS]
    assert list(summary_tables(finished, Path("out")))[-1] == f"warning: {MOST_WARNINGS - 1}"


def test_force_replaces_what_is_built_and_no_part_beside(tmp_path):
    write_pictures(tmp_path / "pictures" / "A", 6)
    common = ("--folders", tmp_path / "pictures", "--out", tmp_path / "out", "--size", 16)
    for part in ("1/2", "2/2"):
        assert build(*common, "--shard", part) == 0
    assert build(*common, "--shard", "2/2", "--force") == 0
    assert build(*common, "--merge", 2) == 0
    assert build(*common, "--merge", 2, "--force") == 0
    assert totals(tmp_path / "out")["used"] == 6


def test_names_get_their_accepted_name_from_a_file(tmp_path):
    names = write_pictures(tmp_path, 6)
    (tmp_path / "names.csv").write_text("name,accepted\nGenus species0,Genus species1\n")
    out = tmp_path / "out"
    assert build("--table", table(tmp_path, names), "--out", out, "--synonyms", tmp_path / "names.csv") == 0
    assert totals(out)["ranks"]["taxa_L10"]["classes"] == 2
    listed = pl.read_csv(out / "synonyms.csv").row(0, named=True)
    assert (listed["name"], listed["accepted"], listed["rows"]) == ("Genus species0", "Genus species1", 2)


def test_lists_with_ranks_of_any_name(tmp_path, capsys):
    pictures = {name: write_pictures(tmp_path / name, 12, seed=seed) for seed, name in enumerate(("train", "test"))}
    for side, names in pictures.items():
        lines = [f"{side}/{name}, {place % 3}, {place % 3 // 2}\n" for place, name in enumerate(names)]
        (tmp_path / f"{side}.txt").write_text("".join(lines))
    (tmp_path / "classes.csv").write_text("sort,id,kind,kind id\nPink,0,Apple,0\nGala,1,Apple,0\nKiwi,2,Kiwi,1\n")
    lists = f"train={tmp_path}/train.txt,test={tmp_path}/test.txt"
    out, options = tmp_path / "out", ("--class-names", tmp_path / "classes.csv", "--size", 32)
    assert build("--lists", lists, "--ranks", "sort,a-kind", *options, "--out", out) == 0
    assert totals(out)["split"] == {"train": 12, "val": 0, "test": 12}
    ranks = {task: (rank["rank"], rank["classes"]) for task, rank in totals(out)["ranks"].items()}
    assert ranks == {"taxa_sort": ("sort", 3), "taxa_a-kind": ("a-kind", 2)}
    printed = " ".join(capsys.readouterr().out.split())
    assert "config.py: model tiny, 150 epochs; chosen for 12 training rows of 32 px on a CPU" in printed
    assert "pictures of less than 64 px are learned better with --size 64" in printed
    assert "│ sort │ taxa_sort │" in printed
    assert verify_dataset.main([str(out / "labels.h5"), "--images", str(out / "images.h5")]) == 0
    assert "taxa_sort: no rank" not in capsys.readouterr().out
    with h5py.File(out / "labels.h5") as labels:
        assert set(labels["taxon_names/taxa_sort/name"].asstr()[:]) == {"Pink", "Gala", "Kiwi"}
    config, _ = load_config([f"--config={out}/config.py"])
    assert config.data.task_keys_h5 == ("taxa_sort", "taxa_a-kind")
    assert config_errors(config) == []
    dataset = build_dataset(typed(config))
    assert (len(dataset.train), len(dataset.val), len(dataset.test_rows)) == (10, 2, 12)
    assert [dataset.class_name(task, 1) for task in dataset.tasks]


def test_a_table_with_ranks_of_any_name_where_0_is_a_class(tmp_path, capsys):
    names = write_pictures(tmp_path, 6)
    path = table(tmp_path, names, shape=["0", "1", "0", "1", "0", "1"])
    given = ("--table", path, "--out", tmp_path / "out", "--size", 16, "--split", "none")
    assert build(*given, "--ranks", "shape") == 0
    assert totals(tmp_path / "out")["ranks"]["taxa_shape"] == {
        "rank": "shape",
        "classes": 2,
        "labelled": 6,
        "largest": 3,
        "smallest": 3,
    }
    assert build(*given, "--force", "--ranks", "form") == 2
    assert "records.csv has no column 'form'; its columns are picture, species, shape" in capsys.readouterr().err
    assert build(*given, "--force", "--ranks", "genus,shape,species") == 2
    assert "--ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--size", "4"], "--size 4: give 8 to 4096 pixels"),
        (["--val", "0.7", "--test", "0.5"], "leave rows for training"),
        (["--val", "0.5", "--test", "0.5"], "leave rows for training"),
        (["--ranks", "species,genus"], "--ranks: the source has no genus"),
        (["--exif", "--coco-val", "x.json"], "--coco-val, --exif: not for --table"),
        (["--map", "latitude=nowhere"], "nowhere"),
        (["--map", "latitude"], "KEY=COLUMN"),
        (["--rank-map", "clan=species"], "clan"),
        (["--synonyms", "{table}"], "it needs the columns name and accepted"),
        (["--pictures", "{table}"], "is not a folder"),
    ],
)
def test_wrong_options_are_one_message(tmp_path, capsys, argv, message):
    path = table(tmp_path, write_pictures(tmp_path, 3))
    given = [part.format(table=path) for part in argv]
    assert build("--table", path, "--out", tmp_path / "out", *given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out" / "labels.h5").exists()


@pytest.mark.parametrize(
    "argv", [["--shard", "3/2"], ["--ranks", "4th"], ["--elevation-scales", "a"], ["--split", "x"]]
)
def test_arguments_that_cannot_be_read_end_with_usage(tmp_path, capsys, argv):
    with pytest.raises(SystemExit) as ended:
        build("--table", "t.csv", "--out", tmp_path, *argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_all_wrong_options_are_named_at_once(tmp_path, capsys):
    path = table(tmp_path, write_pictures(tmp_path, 3))
    assert build("--table", path, "--out", tmp_path / "out", "--size", 1, "--quality", 0, "--min-per-class", 0) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("--size 1", "--quality 0", "--min-per-class 0"))


# ---- hostile input


def huge_png() -> bytes:
    """A PNG of a few kilobytes that says it has 65 000 x 65 000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 65_000, 65_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_hostile_pictures_and_paths_are_rejected_one_line_each(tmp_path, capsys):
    folder, outside = tmp_path / "pictures", tmp_path / "outside"
    names = write_pictures(folder, 6)
    write_pictures(outside, 1)
    (folder / "huge.png").write_bytes(huge_png())
    (folder / "scans.jpg").write_bytes(jpeg_of_scans(64, 64, 5000))
    (folder / "link.jpg").symlink_to(outside / "p0000.jpg")
    (folder / "way").symlink_to(outside)
    os.mkfifo(folder / "pipe.jpg")
    odd = ["new\nline.jpg", "emoji \U0001f98b.jpg", "right\u202eto left.jpg", "tab\t.jpg"]
    for name in odd:
        (folder / name).write_bytes((folder / names[0]).read_bytes() + name.encode())
    named = [*names, "huge.png", "scans.jpg", "link.jpg", "way/p0000.jpg", "pipe.jpg", "../outside/p0000.jpg", *odd]
    named += [str(outside / "p0000.jpg"), "nul\0.jpg", "no such.jpg"]
    out = tmp_path / "out"
    assert build("--table", table(tmp_path, named), "--pictures", folder, "--out", out, "--size", 16) == 0
    text = (out / "rejected.csv").read_text()
    rejected = pl.read_csv(out / "rejected.csv", infer_schema=False)
    result = totals(out)
    assert result["in"] == result["used"] + len(rejected)
    assert text.count("\n") == len(rejected) + 1
    assert text.replace("\n", "").isprintable()
    reasons = dict(rejected.select("picture", "reason").iter_rows())
    assert reasons["huge.png"] == reasons["scans.jpg"] == "unreadable picture"
    assert reasons["link.jpg"] == reasons["way/p0000.jpg"] == reasons["../outside/p0000.jpg"] == "unsafe path"
    assert reasons["no such.jpg"] == reasons["pipe.jpg"] == "no such picture"
    assert reasons[r"new\nline.jpg"] == reasons[r"tab\t.jpg"] == "unsafe path"
    details = dict(rejected.select("picture", "detail").iter_rows())
    assert "65000" in details["huge.png"]
    assert details["scans.jpg"] == "a JPEG of 4096 pixels with 1001 or more scans, which would take too long"
    with h5py.File(out / "labels.h5") as labels:
        used = set(labels["img_identifiers"].asstr()[:])
    assert set(names) <= used
    assert not any("\n" in name or "\0" in name for name in used)
    assert "\u202e" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"../meta.xml": "x", "occurrence.txt": "gbifID\n"}, "../meta.xml"),
        ({"meta.xml": '<!DOCTYPE a [<!ENTITY b "c">]><archive/>', "occurrence.txt": "gbifID\n1\n"}, "meta.xml"),
        ({"meta.xml": "<archive>", "occurrence.txt": "gbifID\n1\n"}, "meta.xml"),
        ({"readme.txt": "nothing"}, "archive"),
    ],
)
def test_hostile_archives_are_one_message(tmp_path, capsys, members, message):
    write_pictures(tmp_path / "photos", 1)
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert build("--dwca", path, "--pictures", tmp_path / "photos", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_a_zip_bomb_is_refused(tmp_path, capsys):
    write_pictures(tmp_path / "photos", 1)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("occurrence.txt", "w") as member:
            member.write(b"gbifID\tspecies\n")
            for _ in range(30):
                member.write(bytes(10_000_000))
    assert build("--dwca", path, "--pictures", tmp_path / "photos", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "occurrence.txt" in error
    assert error.count("\n") == 1


def test_pictures_of_the_other_way_up_are_stored_upright(tmp_path):
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:, 20:] = 255
    data = cv2.imencode(".jpg", picture)[1].tobytes()
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    (tmp_path / "pictures" / "A").mkdir(parents=True)
    turned = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
    (tmp_path / "pictures" / "A" / "turned.jpg").write_bytes(turned)
    assert build("--folders", tmp_path / "pictures", "--out", tmp_path / "out", "--size", 16) == 0
    with h5py.File(tmp_path / "out" / "images.h5") as file:
        image = file["images"][0]
    assert image[:6].mean() < 30
    assert image[10:].mean() > 220


@pytest.fixture
def station_photos(tmp_path) -> Path:
    """Photos of camera stations, species within each; a species is seen by several of them."""
    seen = {"StationA": ("PBE", "VTA"), "StationB": ("MNE", "PBE", "VTA", "NO_ID"), "StationC": ("EGY", "PBE", "TRA")}
    for seed, (station, species) in enumerate((at, one) for at, of in seen.items() for one in of):
        write_pictures(tmp_path / "photos" / station / species, 4, seed=seed)
    return tmp_path / "photos"


def test_a_column_of_stations_is_named_as_a_place_for_the_split(tmp_path, capsys):
    write_pictures(tmp_path / "photos", 24)
    names = sorted(path.name for path in (tmp_path / "photos").iterdir())
    lines = [f"{name},{('Parus major', 'Pica pica')[i % 2]},{'ABC'[i // 8]},x{i % 6}" for i, name in enumerate(names)]
    table = tmp_path / "records.csv"
    table.write_text("\n".join(["picture,species,Station ID,spot", *lines]))
    common = ("--table", table, "--pictures", tmp_path / "photos", "--size", 16, "--val", 0.3)
    said = "; --split column:Station ID keeps those of one place on one side"
    assert build(*common, "--out", tmp_path / "out") == 0
    assert f"each of 3 places (column Station ID) may fall to both sides of the split{said}" in warned(tmp_path / "out")
    assert build(*common, "--out", tmp_path / "out", "--split", "random", "--force") == 0
    assert said not in warned(tmp_path / "out")
    for split, places in (("column:Station ID", 3), ("folder:place", 3), ("column:spot", 6)):
        assert build(*common, "--out", tmp_path / "out", "--split", split, "--force") == 0
        with h5py.File(tmp_path / "out" / "labels.h5") as labels:
            sides = set(zip(labels["place"].asstr()[:], labels["split"][:].tolist(), strict=True))
            assert "occurrence_id" not in labels  # none is told
        assert len(sides) == places
        assert {side for _, side in sides} == {0, 1}
    build(*common, "--out", tmp_path / "out", "--ranks", "species,spot", "--rank-map", "spot=Station ID", "--force")
    assert "taxa of species lie in several of spot, and these in several of species" in warned(tmp_path / "out")
    assert "give --split column:Station ID, which keeps" in warned(tmp_path / "out")
    capsys.readouterr()
    assert build(*common, "--out", tmp_path / "no", "--split", "column:where") == 2
    assert "has no column 'where'" in capsys.readouterr().err
    assert build("--folders", tmp_path / "photos", "--out", tmp_path / "no", "--split", "column:where") == 2
    assert "--folders has no columns of its own; folders are places with --folder-ranks" in capsys.readouterr().err


def warned(out: Path) -> str:
    return "\n".join(json.loads((out / "build.json").read_text())["warnings"])


def test_folders_that_do_not_nest_are_offered_as_places(station_photos, tmp_path, capsys):
    common = ("--folders", station_photos, "--size", 16, "--val", 0.3)
    assert build(*common, "--out", tmp_path / "out") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "PBE in StationA, StationB, StationC" in said
    assert "such as StationA look like places: give --folder-ranks place,species (StationA = place, PBE" in said
    assert not (tmp_path / "out").exists()
    split = ("--split", "folder:place")
    assert build(*common, "--out", tmp_path / "out", "--folder-ranks", "place,species", *split) == 0
    assert totals(tmp_path / "out")["rejected"] == {"no usable label": 4}
    assert list(totals(tmp_path / "out")["ranks"]) == ["taxa_L10"]
    with h5py.File(tmp_path / "out" / "labels.h5") as labels:
        sides = set(zip(labels["place"].asstr()[:], labels["split"][:].tolist(), strict=True))
    assert len(sides) == 3
    assert {side for _, side in sides} == {0, 1}
    assert verify_dataset.main([str(tmp_path / "out" / file) for file in ("labels.h5",)]) == 0
    assert build(*common, "--out", tmp_path / "none", "--folder-ranks", "-,species") == 0
    capsys.readouterr()
    assert build(*common, "--out", tmp_path / "other", "--folder-ranks", "-,species", *split) == 2
    assert "--split folder:place: the source has no place to divide by" in capsys.readouterr().err
    assert build(*common, "--out", tmp_path / "other", "--folder-ranks", "genus,species") == 0
    assert totals(tmp_path / "other")["rejected"]["taxon with two parents"] > 0
    assert "look like places" in json.loads((tmp_path / "other" / "build.json").read_text())["warnings"][0]


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        (["--folder-ranks", "class,family,species"], ["species", "family", "class"]),
        (["--folder-ranks=class,family,-"], ["family", "class"]),
        (["--folder-ranks", "-,shelf,sort"], ["sort", "shelf"]),
        (["--folder-ranks", "class,tribe,species", "--ranks", "species,tribe,class"], ["species", "tribe", "class"]),
        (["--folder-ranks", "class,family,species", "--ranks", "species,family"], "leaves out class of --folder-ranks"),
        (["--folder-ranks", "species,family,class"], "coarse to fine"),
        (["--folder-ranks", "class,,species"], "'' cannot be the name of a rank"),
        (["--folder-ranks", "class,order,family,species"], "nested 3 deep"),
        (["--ranks", "species,family,class"], "--folder-ranks class,family,species"),
    ],
)
def test_one_option_says_the_ranks_of_folders(tmp_path, capsys, given, ranks):
    for seed, folder in enumerate(("Aves/Corvidae/Jay", "Aves/Paridae/Great tit", "Liliopsida/Iridaceae/Iris sp.")):
        write_pictures(tmp_path / "photos" / folder, 2, seed=seed)
    status = build("--folders", tmp_path / "photos", "--out", tmp_path / "out", "--size", 16, *given)
    if isinstance(ranks, str):
        assert status == 2
        assert ranks in " ".join(capsys.readouterr().err.split())
    else:
        assert status == 0
        assert [rank["rank"] for rank in totals(tmp_path / "out")["ranks"].values()] == ranks
        assert totals(tmp_path / "out")["used"] == 6
