"""A whole build: every form of storing, going on after an end at any moment, parts, refusals."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import zlib
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import polars as pl
import pytest
import simplejpeg
from PIL import Image

from linnaeus_jax.building.scan.pictures import PictureChecks
from linnaeus_jax.building.scan.verify import verify_labels
from linnaeus_jax.building.steps import build as building
from linnaeus_jax.building.steps.build import _in_whole, build, build_shard, discard, merge
from linnaeus_jax.building.steps.options import IMAGE_FORMS, BuildOptions
from linnaeus_jax.building.steps.pixels import (
    BATCH,
    DATA_OFFSET,
    Journal,
    Outcome,
    StreamedBytes,
    encode_jpeg,
    read_pictures,
)
from linnaeus_jax.building.steps.plan import plan_build
from linnaeus_jax.config import load_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.paths import Shard
from linnaeus_jax.reading.schema import DUPLICATE_PICTURE
from linnaeus_jax.tools.build_dataset import main
from tests.building.build_driver import plan
from tests.building.helpers import rows_of, write_pictures
from tests.forks import begin, call

COUNT = 15 * BATCH + 40
NOISE = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Pictures of which one is cut, one is empty, one is no picture, and one lies there twice."""
    root = tmp_path_factory.mktemp("pictures")
    names = write_pictures(root, COUNT)
    (root / names[3]).write_bytes((root / names[3]).read_bytes()[:-200])
    (root / names[5]).write_bytes(b"")
    (root / names[300]).write_text("no picture")
    (root / names[301]).write_bytes((root / names[7]).read_bytes())
    return root


def contents(out: Path) -> dict[str, bytes]:
    """Every file below a folder; config.py without the name of the folder."""
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    return files | {"config.py": files["config.py"].replace(str(out).encode(), b"OUT")}


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory) -> dict[str, Path]:
    """An uninterrupted build in every form."""
    folders = {form: tmp_path_factory.mktemp(form) / "data" for form in IMAGE_FORMS}
    for form, out in folders.items():
        build(plan(pictures, form), out)
    return folders


def test_in_is_used_and_rejected(pictures, whole):
    for out in whole.values():
        totals = json.loads((out / "build.json").read_text())["totals"]
        rejected = pl.read_csv(out / "rejected.csv")
        assert totals["rejected"] == {"unreadable picture": 3, "duplicate picture": 1}
        assert totals["in"] == COUNT == totals["used"] + len(rejected)
        assert dict(rejected.select("picture", "detail").iter_rows())["p0005.jpg"] == "empty file"
        copied = dict(rejected.select("picture", "detail").iter_rows())["p0301.jpg"]
        assert re.sub(r" \[\d+\]", "", copied) == "the same bytes as p0007.jpg, but labelled G1 s1, not G3 s7"
        with h5py.File(out / "labels.h5") as labels:
            identifiers = labels["img_identifiers"].asstr()[:].tolist()
        assert sorted([*identifiers, *rejected["picture"]]) == sorted(path.name for path in pictures.iterdir())
        blanked = pl.read_csv(out / "blanked.csv")
        assert totals["blanked"] == {"SPATIAL": len(blanked)}
        assert set(blanked["picture"]) <= set(identifiers)


def test_every_form_holds_the_pictures(pictures, whole):
    with h5py.File(whole["raw"] / "labels.h5") as labels:
        identifiers = labels["img_identifiers"].asstr()[:]
    with h5py.File(whole["raw"] / "images.h5") as raw, h5py.File(whole["original"] / "images.h5") as original:
        assert raw["images"].chunks is None
        assert len(raw["images"]) == len(identifiers)
        offsets, data = original["image_offsets"][:], original["image_bytes"][:].tobytes()
        pixels = np.empty((48, 48, 3), np.uint8)
        for row in (0, 3, 200, 400, len(identifiers) - 1):
            file = (pictures / identifiers[row]).read_bytes()
            assert data[offsets[row] : offsets[row + 1]] == file
            Preprocessing(pixels.shape[:2]).decode(file, pixels)
            np.testing.assert_array_equal(raw["images"][row], pixels)
    with h5py.File(whole["jpeg"] / "images.h5") as packed, h5py.File(whole["raw"] / "images.h5") as raw:
        offsets = packed["image_offsets"][:]
        assert offsets.dtype == np.int64  # files may be of any size
        Preprocessing(pixels.shape[:2]).decode(packed["image_bytes"][: offsets[1]].tobytes(), pixels)
        assert np.abs(pixels.astype(int) - raw["images"][0]).mean() < 4
    assert not (whole["folder"] / "images.h5").exists()


def test_jpeg_keeps_what_is_cut_out_at_full_size():
    options = BuildOptions(
        images="jpeg", size=24, resize_mode="center_crop", interpolation="bicubic", crop_fraction=0.75
    )
    image = np.full((60, 102, 3), 99, np.uint8)
    assert read_image(encode_jpeg(image, options)).shape == (32, 54, 3)
    with mock.patch.object(simplejpeg, "encode_jpeg", lambda image, *_: image.tobytes()):
        kept = np.frombuffer(encode_jpeg(NOISE, options), np.uint8).reshape(32, 48, 3)
    np.testing.assert_array_equal(kept, np.asarray(Image.fromarray(NOISE).resize((48, 32), Image.Resampling.BICUBIC)))


@pytest.mark.parametrize("form", ["raw", "folder"])
def test_how_pictures_become_square_is_stored_and_configured(tmp_path, form):
    """A run with the config.py of the data set resizes as the build did, whatever is left to resize."""
    names = write_pictures(tmp_path / "pictures", 8)
    given = {"size": 32, "resize_mode": "center_crop", "interpolation": "bicubic", "crop_fraction": 0.75}
    build(plan(tmp_path / "pictures", form, **given), tmp_path / "out")
    config, _ = load_config([f"--config={tmp_path}/out/config.py"])
    how = Preprocessing.from_config(typed(config))
    assert how == Preprocessing((32, 32), "center_crop", "bicubic", crop_fraction=0.75)
    with h5py.File(tmp_path / "out" / "labels.h5") as labels:
        stored = dict(labels["metadata/image_processing"].attrs)
        options = json.loads(labels["metadata"].attrs["config_json"])["options"]
    assert options.items() >= given.items()
    assert {key: stored.get(key) for key in given} == (given if form == "raw" else dict.fromkeys(given))
    if form == "raw":
        with h5py.File(tmp_path / "out" / "images.h5") as images:
            np.testing.assert_array_equal(
                images["images"][0], how.decode((tmp_path / "pictures" / names[0]).read_bytes())
            )


def test_every_form_says_whose_pictures_it_holds_and_raw_ones_have_checksums(whole):
    for form in ("raw", "jpeg", "original"):
        with h5py.File(whole[form] / "images.h5") as images, h5py.File(whole[form] / "labels.h5") as labels:
            texts = labels["img_identifiers"][:]
            assert images.attrs["sha256_of_identifiers"] == hashlib.sha256(b"\0".join([*texts, b""])).hexdigest()
            if form == "raw":
                assert images["image_crc32"][:].tolist() == [zlib.crc32(image) for image in images["images"]]


def test_no_picture_of_an_occurrence_falls_on_the_other_side(whole):
    with h5py.File(whole["raw"] / "labels.h5") as labels:
        side, occurrence = labels["split"][:], labels["occurrence_id"].asstr()[:]
        assert labels["split"].attrs["names"].tolist() == ["train", "val", "test"]
        assert set(labels["taxon_names/taxa_L20/name"].asstr()[:]) == {"G0", "G1", "G2", "G3"}
    for one in set(occurrence):
        assert len(set(side[occurrence == one])) == 1


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("form", ["raw", "original"])
@pytest.mark.parametrize("moment", range(8))
def test_a_build_that_was_ended_goes_on_to_the_same_bytes(pictures, whole, tmp_path, monkeypatch, form, moment):
    points = [(StreamedBytes, "write", 2), (Journal, "add", 1), (Journal, "add", 2), (building, "close_images", 1)]
    points += [(building, "finish_rows", 1), (building, "write_outputs", 1), (os, "replace", 3), (os, "replace", 9)]
    where, name, number = points[moment]
    calls = 0
    original = getattr(where, name)

    def ending(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            raise Ended
        return original(*args, **kwargs)

    out = tmp_path / "data"
    with monkeypatch.context() as patch:
        patch.setattr(where, name, ending)
        with pytest.raises(Ended):
            build(plan(pictures, form), out)
    if form == "raw":
        with open(out / ".build" / "journal.jsonl", "ab") as journal:
            journal.write(b'[["half a')  # as a full disk or a power cut leaves it
    build(plan(pictures, form), out)
    assert contents(out) == contents(whole[form])


@pytest.mark.parametrize("form", ["raw", "original"])
@pytest.mark.parametrize("lost", ["pixels", "end of the pixels", "line of the journal"])
def test_what_a_power_failure_took_is_read_again(pictures, whole, tmp_path, monkeypatch, form, lost):
    """The files have their length, but the disk holds zeros in place of what was written last."""

    def ending(*args):
        raise Ended

    out = tmp_path / "data"
    with monkeypatch.context() as patch:
        patch.setattr(building, "close_images", ending)
        with pytest.raises(Ended):
            build(plan(pictures, form), out)
    journal, pixels = out / ".build" / "journal.jsonl", out / ".build" / "images.h5"
    file = journal if lost == "line of the journal" else pixels
    content = file.read_bytes()
    at = {"pixels": len(content) // 2, "end of the pixels": len(content) - 100, "line of the journal": 3000}[lost]
    file.write_bytes(content[:at] + bytes(100) + content[at + 100 :])
    before = len(Journal.load(journal).outcomes) if file == journal else COUNT
    assert (before < COUNT) is (file == journal)
    known = Journal.load(journal, pixels=pixels).outcomes
    assert 0 < len(known) < COUNT
    build(plan(pictures, form), out)
    assert contents(out) == contents(whole[form])


def test_a_journal_goes_on_behind_the_last_batch_that_is_whole(tmp_path):
    outcomes = [Outcome("a", 3), Outcome(reason="unreadable picture", detail="x")]
    journal = tmp_path / "journal.jsonl"
    Journal(journal).add(outcomes, zlib.crc32(b"abc"))
    pixels = tmp_path / "pixels"
    pixels.write_bytes(bytes(DATA_OFFSET) + b"abc")
    Journal.load(journal, 3, pixels).add([Outcome("b", 2)], 0)
    text = journal.read_bytes()
    assert Journal.load(journal).outcomes == [*outcomes, Outcome("b", 2)]
    for most, file in ((3, None), (None, pixels), (4, pixels)):  # the pixels of the second line are not there
        journal.write_bytes(text)
        assert Journal.load(journal, most, file).outcomes == outcomes
    for damaged in (b'{"crc32": 0}\n', b"[3]\n", b"{}\n", b"7\n", bytes(20) + b"\n"):
        journal.write_bytes(text + damaged)
        assert len(Journal.load(journal).outcomes) == 3
        assert journal.read_bytes() == text


def test_a_copy_is_one_of_the_first_picture_also_after_going_on(tmp_path):
    picture, journal = tmp_path / write_pictures(tmp_path, 1)[0], Journal(tmp_path / "journal.jsonl")
    digest = hashlib.blake2b(picture.read_bytes(), digest_size=16).hexdigest()
    known = [Outcome(digest), Outcome(digest, 0, "duplicate picture", "0")]
    journal.add(known, 0)
    options = BuildOptions(images="folder")
    outcomes = read_pictures([str(picture)] * 3, options, journal.path, None, 1, lambda *_: None)
    assert outcomes == [*known, known[1]]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["raw", "jpeg"])
def test_twenty_kills(pictures, whole, tmp_path, form):
    out, moments = tmp_path / "data", random.Random(7)
    driver, arguments, said = "tests.building.build_driver", [str(pictures), str(out), form], tmp_path / "said"
    killed = tries = 0
    while killed < 20:
        tries += 1
        assert tries < 100
        begun = begin(driver, arguments, said)
        while not begun.says("ready"):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.12))
        begun.process.kill()
        status = begun.ended(60).status
        killed += status == -signal.SIGKILL
        if status == 0:  # it was quicker: the next one begins anew
            assert contents(out) == contents(whole[form])
            shutil.rmtree(out)
    assert call(driver, arguments, said, seconds=60).status == 0
    assert contents(out) == contents(whole[form])


@pytest.mark.parametrize("form", ["raw", "jpeg", "folder"])
def test_parts_make_the_same_whole_without_copies(pictures, whole, tmp_path, form):
    out = tmp_path / "data"
    made = plan(pictures, form)
    with pytest.raises(UserError, match="not built yet: --shard 1/3, --shard 2/3, --shard 3/3"):
        merge(made, out, 3)
    for index in (2, 3, 1):
        build_shard(made, out, Shard(index, 3))
    merge(made, out, 3)
    assert (out / "labels.h5").read_bytes() == (whole[form] / "labels.h5").read_bytes()
    assert (out / "rejected.csv").read_bytes() == (whole[form] / "rejected.csv").read_bytes()
    if form != "folder":
        with h5py.File(out / "images.h5") as joined, h5py.File(whole[form] / "images.h5") as single:
            for name in single:
                np.testing.assert_array_equal(joined[name][:], single[name][:])
                assert joined[name].dtype == single[name].dtype
        assert (out / "images.h5").stat().st_size < 50_000
        moved = tmp_path / "elsewhere"
        out.rename(moved)
        if form == "raw":
            with h5py.File(moved / "shards/2-of-3/images.h5", "r+") as part:
                part["images"][4, 0, 0, 0] ^= 1
            found = verify_labels(moved / "labels.h5", pictures=PictureChecks(moved / "images.h5"))
            assert "2-of-3/images.h5: the pixels of row 4 are not those" in str(found.findings.to_json())
            with h5py.File(moved / "shards/2-of-3/images.h5", "r+") as part:
                part["images"][4, 0, 0, 0] ^= 1
        with h5py.File(moved / "images.h5") as joined, h5py.File(whole[form] / "images.h5") as single:
            for name in single:
                np.testing.assert_array_equal(joined[name][:], single[name][:])


def test_a_finished_data_set_is_left_alone_and_another_is_not_overwritten(pictures, whole, tmp_path):
    out = tmp_path / "data"
    first = build(plan(pictures), out)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert build(plan(pictures), out).totals == first.totals
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(UserError, match="other rows, options or versions; give another --out, or --force"):
        build(plan(pictures, "jpeg"), out)
    (out / "notes.txt").write_text("mine")
    discard(out)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    (out / "labels.h5").write_text("mine")
    with pytest.raises(UserError, match=r"holds labels.h5 of another origin"):
        build(plan(pictures), out)


def test_another_fact_of_a_row_is_another_data_set(tmp_path):
    names = write_pictures(tmp_path / "pictures", 3)

    def made(holder: str):
        source = rows_of(
            tmp_path / "pictures", levels=("L10",), picture=names, name_L10=["A a"] * 3, rights_holder=[holder] * 3
        )
        return plan_build(source, BuildOptions(size=16), {})

    build(made("Ann"), tmp_path / "data")
    with pytest.raises(UserError, match="other rows, options or versions"):
        build(made("Bo"), tmp_path / "data")


def test_strict_writes_no_data_set_but_the_lists(pictures, tmp_path):
    out = tmp_path / "data"
    with pytest.raises(
        UserError, match=r"--strict: 3 rejected \(unreadable picture\); 1 rejected \(duplicate"
    ) as error:
        build(plan(pictures), out, strict=True)
    assert "blanked (SPATIAL)" in str(error.value)
    assert {path.name for path in out.iterdir() if path.name != ".build"} >= {"rejected.csv", "blanked.csv"}
    assert not (out / "labels.h5").exists()
    assert not (out / "images.h5").exists()
    assert build(plan(pictures), out).totals["used"] == COUNT - 4


def test_one_process_builds_in_a_folder(pictures, tmp_path):
    out = tmp_path / "data"
    out.mkdir()
    with open(out / ".build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process builds here"):
            build(plan(pictures), out)
        with pytest.raises(UserError, match="another process builds here"):  # --force
            discard(out)
        assert (out / ".build.lock").exists()
    discard(out)
    assert not (out / ".build").exists()
    with building.work_folder(out, "x", "build.json"):  # whoever finds it complete takes the lock away, too
        (out / ".build.lock").unlink()


def test_a_pipe_or_a_folder_under_the_name_of_a_picture_is_unreadable(tmp_path):
    root = tmp_path / "pictures"
    write_pictures(root, 4)
    (root / "p0001.jpg").unlink()
    (root / "p0002.jpg").unlink()
    os.mkfifo(root / "p0001.jpg")
    (root / "p0002.jpg").mkdir()
    made = build(plan(root), tmp_path / "data")
    assert made.totals["rejected"] == {"unreadable picture": 2}


def test_memory_is_bounded_by_the_batches_in_flight(pictures, tmp_path, monkeypatch):
    """However many pictures there are, few of them are decoded before the first are written."""
    decoded = written = most = 0

    def counting(self, data):
        nonlocal written, most
        most = max(most, decoded - written)
        written += BATCH
        return write(self, data)

    def store(*args):
        nonlocal decoded
        decoded += 1
        return keep(*args)

    write, keep = StreamedBytes.write, sys.modules["linnaeus_jax.building.steps.pixels"].store
    monkeypatch.setattr(StreamedBytes, "write", counting)
    monkeypatch.setattr("linnaeus_jax.building.steps.pixels.store", store)
    build(plan(pictures), tmp_path / "data", threads=2)
    assert most <= 6 * BATCH


def test_what_a_source_gives_half_of_is_said(tmp_path):
    names = write_pictures(tmp_path / "pictures", 4)
    source = rows_of(
        tmp_path / "pictures",
        levels=("L10",),
        picture=names,
        name_L10=["A a"] * 4,
        latitude=["47"] * 4,
        split=["train", "val", None, "train"],
    )
    finished = build(plan_build(source, BuildOptions(size=16, split="given"), {}), tmp_path / "data")
    assert finished.totals["split"] == {"train": 3, "val": 1, "test": 0}
    assert any("a column of latitude alone" in warning for warning in finished.warnings)
    assert any("1 rows have no given side" in warning for warning in finished.warnings)


def command(tmp_path, *rows: tuple[str, str], **options: str) -> tuple[int, str]:
    """Builds a table of (picture, species) with the tool; the exit status and what is in rejected.csv."""
    (tmp_path / "t.csv").write_text("picture,species\n" + "".join(f'{name},"{label}"\n' for name, label in rows))
    arguments = ["--table", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out"), "--size", "8"]
    status = main([*arguments, *(text for name, value in options.items() for text in (f"--{name}", value))])
    listed = tmp_path / "out/rejected.csv"
    return status, listed.read_text() if listed.exists() else ""


def test_what_is_rejected_is_listed_where_nothing_is_usable(tmp_path, capsys):
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    status, listed = command(tmp_path, ("bad.jpg", "unidentified"), ("none.jpg", "Parus major"))
    assert status == 2
    assert "2,bad.jpg,no usable label,no name and no id at any rank in use: 'unidentified' names none" in listed
    told = capsys.readouterr().err
    assert "no picture can be used: no such picture (1), no usable label (1)" in told.replace("\n", " ")
    assert "rejected.csv" in told
    status, listed = command(tmp_path, ("bad.jpg", "Parus major"), ("bad.jpg", "Parus ater"))
    assert status == 2
    assert listed.count("unreadable picture") == 2
    write_pictures(tmp_path, 1)
    (tmp_path / "p0000.jpg").rename(tmp_path / "bad.jpg")
    assert command(tmp_path, ("bad.jpg", "Parus major"), ("bad.jpg", "Parus ater"))[0] == 0, "as if it were the first"
    assert command(tmp_path, ("none.jpg", "Parus major"))[0] == 2
    assert (tmp_path / "out/labels.h5").exists()


def test_texts_that_all_name_no_taxon_are_listed(tmp_path):
    write_pictures(tmp_path, 1)
    assert "'?' names none" in command(tmp_path, ("p0000.jpg", "?"))[1]


def test_a_copy_with_another_label_is_said(tmp_path):
    write_pictures(tmp_path, 2)
    (tmp_path / "p0002.jpg").write_bytes((tmp_path / "p0000.jpg").read_bytes())
    (tmp_path / "p0003.jpg").write_bytes((tmp_path / "p0001.jpg").read_bytes())
    rows = [
        ("p0000.jpg", "Parus major"),
        ("p0001.jpg", "Parus ater"),
        ("p0002.jpg", "Parus ater"),
        ("p0003.jpg", "Parus ater"),
    ]
    status, listed = command(tmp_path, *rows, split="none")
    assert status == 0
    details = [line.split(",", 3)[3] for line in listed.splitlines()[1:]]
    assert re.fullmatch(
        r'"?the same bytes as p0000.jpg, but labelled Parus ater \[\d+\], not Parus major \[\d+\]"?', details[0]
    )
    assert details[1] == "the same bytes as p0001.jpg"
    (warning,) = json.loads((tmp_path / "out/build.json").read_text())["warnings"]
    assert warning.startswith(
        "1 pictures are copies of others with another label, and the first one counts: p0002.jpg has"
    )


def test_what_was_made_of_names_is_listed(tmp_path, capsys):
    written = ["Parus major", "PARUS MAJOR", "Parus major L.", "Parus ater", "Parus sp.", "-"]
    pictures = write_pictures(tmp_path, len(written))
    assert command(tmp_path, *zip(pictures, written), split="none")[0] == 0
    totals = json.loads((tmp_path / "out/build.json").read_text())["totals"]
    assert {task: rank["classes"] for task, rank in totals["ranks"].items()} == {"taxa_L10": 2, "taxa_L20": 1}
    assert totals["names"] == 4
    assert (tmp_path / "out/names.csv").read_text() == (
        'task,written,name,rows\ntaxa_L10,-,"",1\ntaxa_L10,Parus sp.,"",1\n'
        "taxa_L10,PARUS MAJOR,Parus major,1\ntaxa_L10,Parus major L.,Parus major,1\n"
    )
    assert "used or rejected, a name cleaned │ 4 │ names.csv" in " ".join(capsys.readouterr().out.split())


def test_duplicates_within_a_part_and_over_parts_name_the_candidate_of_the_whole():
    seen: dict[str, int] = {}
    first = [Outcome("a", 3), Outcome("b", 2), Outcome("a", 0, DUPLICATE_PICTURE, "0")]
    second = [Outcome("c", 4), Outcome("c", 0, DUPLICATE_PICTURE, "0"), Outcome("b", 2), Outcome(reason="unreadable")]
    assert [_in_whole(outcome, 0, i, seen) for i, outcome in enumerate(first)] == first
    assert [_in_whole(outcome, 3, 3 + i, seen) for i, outcome in enumerate(second)] == [
        Outcome("c", 4),
        Outcome("c", 0, DUPLICATE_PICTURE, "3"),
        Outcome("b", 0, DUPLICATE_PICTURE, "1"),
        Outcome(reason="unreadable"),
    ]
