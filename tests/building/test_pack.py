"""Packing and unpacking give back the same bytes, refuse what is unsafe, and never leave half a result."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.pack import PackOptions, pack
from linnaeus_jax.building.scan.pictures import PictureChecks
from linnaeus_jax.building.scan.verify import verify_labels
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.h5_images import open_h5
from linnaeus_jax.data.images import ImageFiles, ImageReadError
from linnaeus_jax.data.labels_file import IDENTIFIERS
from linnaeus_jax.data.preprocessing import Preprocessing
from tests.building.samples import ROWS, TEXT, encoded, identifiers, pixels, write_clean, write_folder, write_packed

PLAIN = PackOptions(extension="")
ODD = [
    "ü/鸟 \U0001f98b.png",
    "a'b\"c.png",
    "..hidden..png",
    "-rf.png",
    "\u202egnp",
    "x" * 200,
    "deep/er/and/deeper.png",
]


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Path:
    return write_clean(tmp_path_factory.mktemp("labels") / "labels.h5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures"))


def labels_of(path: Path, names: list[str]) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset(IDENTIFIERS, data=np.array(names, object), dtype=TEXT)
        file["taxa_L10"] = np.ones(len(names), np.uint32)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_and_back_are_the_same_bytes(labels, folder, tmp_path):
    report = pack(labels, folder, tmp_path / "images.h5", PLAIN)
    assert (report.rows, report.bytes, report.missing) == (ROWS, sum(map(len, encoded())), 0)
    with h5py.File(tmp_path / "images.h5") as file:
        assert file["image_bytes"][:].tobytes() == b"".join(encoded())
        assert file["image_bytes"].chunks is None
        provenance = json.loads(file.attrs["provenance"])
    assert (provenance["rows"], provenance["folder"], provenance["extension"]) == (ROWS, folder.name, "")
    report = pack(labels, tmp_path / "images.h5", tmp_path / "back", PLAIN)
    assert report.rows == ROWS
    assert contents(tmp_path / "back") == contents(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "images.h5"]


def test_odd_names_and_an_extension(tmp_path, monkeypatch):
    monkeypatch.setattr("linnaeus_jax.building.pack.PIECE_BYTES", 64)  # many pieces, also of one row
    labels = labels_of(tmp_path / "labels.h5", ODD)
    rng = np.random.default_rng(0)
    files = {name if name.endswith(".png") else f"{name}.png": rng.bytes(1 + 40 * i) for i, name in enumerate(ODD)}
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    options = PackOptions(extension="png")
    pack(labels, tmp_path / "in", tmp_path / "images.h5", options)
    pack(labels, tmp_path / "images.h5", tmp_path / "out", options)
    assert contents(tmp_path / "out") == files


def test_the_extension_that_nobody_gives(tmp_path):
    for names, files in ((["a", "b.png"], ["a.jpg", "b.png.jpg"]), (["a.JPEG", "b.png"], ["a.JPEG", "b.png"])):
        labels = labels_of(tmp_path / "labels.h5", names)
        out = tmp_path / files[0]
        pack(labels, write_packed(tmp_path / "images.h5", [b"1", b"2"]), out, PackOptions())
        assert sorted(contents(out)) == files


def test_missing_pictures_are_named_or_allowed(labels, tmp_path):
    folder = write_folder(tmp_path / "pictures")
    names = identifiers()
    for row in range(3, 10):
        (folder / names[row]).unlink()
    (folder / names[20]).write_bytes(b"")
    out = tmp_path / "images.h5"
    with pytest.raises(UserError, match="8 of 60 rows have no file") as error:
        pack(labels, folder, out, PLAIN)
    assert [f"row {row}: {names[row]}" in str(error.value) for row in range(2, 9)] == [False, *[True] * 5, False]
    assert list(tmp_path.iterdir()) == [folder]
    report = pack(labels, folder, out, PackOptions("", allow_missing=True))
    assert (report.rows, report.missing) == (52, 8)
    found = verify_labels(labels, pictures=PictureChecks(out))
    assert next(f.message for f in found.findings if f.check == "missing_image").startswith(
        "8 of 60 rows have no picture"
    )
    assert "unreadable_image" not in {f.check for f in found.findings}
    image = np.empty((1, 8, 8, 3), np.uint8)
    with pytest.raises(ImageReadError, match=r"row 3: .*empty"):
        open_h5(ImageFiles(out, Preprocessing((8, 8)))).read(np.array([3]), image)
    assert not open_h5(ImageFiles(out, Preprocessing((8, 8)), allow_missing=True)).read(np.array([3]), image)[0]
    assert pack(labels, out, tmp_path / "back", PLAIN).missing == 8
    assert contents(tmp_path / "back") == {name: data for name, data in contents(folder).items() if data}


@pytest.mark.parametrize("bad", ["../x.png", "/tmp/x.png", "a/../../x.png", "a\nb.png", "..\\b.png"])
def test_unsafe_identifiers_are_refused_both_ways(bad, tmp_path):
    labels = labels_of(tmp_path / "labels.h5", ["good.png", bad])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.png").write_bytes(b"1")
    (tmp_path / "x.png").write_bytes(b"2")
    with pytest.raises(UserError, match=r"row 1: .*(in the path|out of the folder)") as error:
        pack(labels, tmp_path / "in", tmp_path / "images.h5", PLAIN)
    assert "\n" not in str(error.value)
    write_packed(tmp_path / "packed.h5", [b"3", b"4"])
    with pytest.raises(UserError, match=r"row 1: .*(in the path|out of the folder)"):
        pack(labels, tmp_path / "packed.h5", tmp_path / "out", PLAIN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "labels.h5", "packed.h5", "x.png"]
    assert (tmp_path / "x.png").read_bytes() == b"2"


def test_links_out_of_the_folder_are_refused(labels, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "birds").symlink_to(write_folder(tmp_path / "elsewhere") / "birds")
    with pytest.raises(UserError, match=r"row 0: .*symbolic link"):
        pack(labels, folder, tmp_path / "images.h5", PLAIN)


def test_nothing_is_overwritten_unless_asked(labels, folder, tmp_path):
    out, back = tmp_path / "images.h5", tmp_path / "back"
    out.write_bytes(b"mine")
    with pytest.raises(UserError, match="--force"):
        pack(labels, folder, out, PLAIN)
    assert out.read_bytes() == b"mine"
    force = PackOptions("", force=True)
    pack(labels, folder, out, force)
    back.mkdir()
    pack(labels, out, back, PLAIN)  # an empty folder is free
    with pytest.raises(UserError, match="--force to move it"):
        pack(labels, out, back, PLAIN)
    (back / "mine.txt").write_text("mine")
    pack(labels, out, back, force)
    assert (tmp_path / "back.old" / "mine.txt").read_text() == "mine"
    assert contents(back) == contents(folder)
    with pytest.raises(UserError, match="remove one of them"):
        pack(labels, out, back, force)


def test_one_identifier_in_two_rows(tmp_path):
    labels = labels_of(tmp_path / "labels.h5", ["a.png", "b.png", "a.png"])
    same, other = write_packed(tmp_path / "same.h5", [b"1", b"2", b"1"]), tmp_path / "other.h5"
    assert pack(labels, same, tmp_path / "out", PLAIN).rows == 2
    with pytest.raises(UserError, match="rows 0 and 2 have one identifier"):
        pack(labels, write_packed(other, [b"1", b"2", b"3"]), tmp_path / "out2", PLAIN)
    assert not list(tmp_path.glob("out2*"))


def test_a_picture_cannot_be_a_folder_too(tmp_path):
    labels = labels_of(tmp_path / "labels.h5", ["a", "a/b"])
    with pytest.raises(UserError, match="row 1: a/b"):
        pack(labels, write_packed(tmp_path / "images.h5", [b"1", b"2"]), tmp_path / "out", PLAIN)


@pytest.mark.parametrize(
    ("images", "out", "options", "words"),
    [
        ("folder", "out", PLAIN, "must be a file ending with .h5"),
        ("packed.h5", "again.h5", PLAIN, "packed already"),
        ("raw.h5", "out", PLAIN, "add --png"),
        ("short.h5", "out", PLAIN, "holds 2 pictures"),
        ("none.h5", "out", PLAIN, "no such"),
        ("raw.h5", "raw.h5", PackOptions(force=True), "the file that is read"),
    ],
)
def test_what_does_not_fit_together(images, out, options, words, labels, folder, tmp_path):
    (tmp_path / "folder").symlink_to(folder)
    write_packed(tmp_path / "packed.h5", encoded())
    write_packed(tmp_path / "short.h5", encoded()[:2])
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["images"] = pixels()
    with pytest.raises(UserError, match=words):
        pack(labels, tmp_path / images, tmp_path / out, options)


def test_raw_pictures_as_png_and_as_a_fast_file(labels, tmp_path):
    with h5py.File(tmp_path / "slow.h5", "w") as file:
        file.create_dataset("images", data=pixels(), chunks=(16, 24, 32, 3), compression="gzip")
    pack(labels, tmp_path / "slow.h5", tmp_path / "fast.h5", PLAIN)
    source = open_h5(ImageFiles(tmp_path / "fast.h5", Preprocessing((0, 0))))
    assert type(source).__name__ == "ContiguousImages"
    out = np.empty((ROWS, 24, 32, 3), np.uint8)
    source.read(np.arange(ROWS), out)
    assert np.array_equal(out, pixels())
    pack(labels, tmp_path / "slow.h5", tmp_path / "png", PackOptions(png=True))
    pack(labels, tmp_path / "png", tmp_path / "packed.h5", PackOptions(extension=".png"))
    found = verify_labels(labels, pictures=PictureChecks(tmp_path / "packed.h5"))
    assert found.is_clean(strict=True)
    with h5py.File(tmp_path / "packed.h5") as file:
        start, stop = file["image_offsets"][7:9]
        data = file["image_bytes"][start:stop].tobytes()
    from linnaeus_jax.data.decoding import read_image

    assert np.array_equal(read_image(data), pixels()[7])


def test_no_room_is_said_before_anything_is_written(labels, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("linnaeus_jax.building.pack.shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"images\.h5: the pictures take 0\.1 MB, more than is free; free space there"):
        pack(labels, folder, tmp_path / "images.h5", PLAIN)
    assert not (tmp_path / "images.h5").exists()


def test_a_file_that_was_packed_for_other_labels(labels, folder, tmp_path):
    pack(labels, folder, tmp_path / "images.h5", PLAIN)
    other = labels_of(tmp_path / "other.h5", identifiers()[::-1])
    found = verify_labels(other, pictures=PictureChecks(tmp_path / "images.h5", decode="none"))
    assert "alignment" in {f.check for f in found.findings}


@pytest.mark.parametrize("content", [b"another", bytes(9999)], ids=["shorter", "longer"])
def test_a_file_that_changes_meanwhile(labels, tmp_path, monkeypatch, content):
    folder = write_folder(tmp_path / "pictures")

    def progress(done: int, total: int) -> None:
        if done == 1:  # once: a file that is just written again is a short one
            (folder / identifiers()[-1]).write_bytes(content)

    monkeypatch.setattr("linnaeus_jax.building.pack.PIECE_ROWS", 1)
    monkeypatch.setattr("linnaeus_jax.building.pack.THREADS", 1)
    with pytest.raises(UserError, match="changed while it was packed"):
        pack(labels, folder, tmp_path / "images.h5", PackOptions("", progress=progress))
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again(tmp_path):
    """What has its final name is complete; the second run gives the bytes of one that was never ended."""
    rows = 4000
    names = [f"{row % 7}/{row}.bin" for row in range(rows)]
    labels = labels_of(tmp_path / "labels.h5", names)
    rng = np.random.default_rng(0)
    files = {name: rng.bytes(20_000) for name in names}
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    pack(labels, tmp_path / "in", tmp_path / "whole.h5", PLAIN)
    draw = random.Random(0)
    for images, out in (("in", "images.h5"), ("whole.h5", "out")):
        command = [sys.executable, "-m", "linnaeus_jax.tools.pack", str(labels), "--images", str(tmp_path / images)]
        command += ["--out", str(tmp_path / out), "--extension", ""]
        killed = 0
        for _ in range(8):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while not (tmp_path / f"{out}.partial").exists() and process.poll() is None:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += not (tmp_path / out).exists()
            if (tmp_path / out).exists():
                break
        assert killed
        if not (tmp_path / out).exists():
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        assert not (tmp_path / f"{out}.partial").exists()
    assert (tmp_path / "images.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert contents(tmp_path / "out") == files
