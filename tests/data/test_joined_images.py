"""Virtual data sets over several files are read like one file, and every form of storage gives the same pixels."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.data.h5_direct import ContiguousImages, WholeChunkImages
from linnaeus_jax.data.h5_images import H5Images, JoinedImages, PackedImages, Part, Runs
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles, ImageSource
from linnaeus_jax.data.preprocessing import Preprocessing
from tests.data.helpers import SIDE_32, folder_images, golden_pixels, write_packed

PIXELS = golden_pixels(40)
#: (part, first row, end) of the runs of a merged file: one part with a row left out
RUNS = ((0, 0, 15), (1, 0, 4), (1, 5, 13), (2, 2, 14))
#: rows of PIXELS in each part
PARTS = (range(15), range(15, 28), range(26, 40))
#: rows of PIXELS in the merged file
MERGED = np.array([PARTS[part][row] for part, first, end in RUNS for row in range(first, end)])
ROWS = np.array([31, 0, 7, 7, 38, 16, 14, 15])


def write_parts(folder: Path, options: Sequence[dict[str, Any]] = ({}, {}, {})) -> None:
    folder.mkdir(exist_ok=True)
    for number, (rows, option) in enumerate(zip(PARTS, options, strict=True)):
        with h5py.File(folder / f"part_{number}.h5", "w") as file:
            file.create_dataset("images", data=PIXELS[rows.start : rows.stop], **option)


def merge(
    path: Path, runs: Sequence[tuple[int, int, int]] = RUNS, folder: str = "parts", rows: int | None = None
) -> Path:
    """A virtual data set over the parts, by names relative to its own folder."""
    total = rows or sum(end - first for _, first, end in runs)
    layout, at = h5py.VirtualLayout((total, 32, 32, 3), np.uint8), 0
    for part, first, end in runs:
        name = f"{folder}/part_{part}.h5"
        layout[at : at + end - first] = h5py.VirtualSource(name, "images", (len(PARTS[part]), 32, 32, 3))[first:end]
        at += end - first
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("images", layout)
    return path


def read(source: ImageSource, rows: Any = ROWS) -> np.ndarray:
    out = np.full((len(rows), *source.image_shape), 99, np.uint8)
    assert source.read(np.asarray(rows, np.int64), out).all()
    return out


CHUNK: dict[str, Any] = {"chunks": (1, 32, 32, 3)}


@pytest.mark.parametrize(
    ("options", "readers"),
    [
        (({}, {}, {}), (ContiguousImages, ContiguousImages, ContiguousImages)),
        (({}, CHUNK, {"compression": "gzip"}), (ContiguousImages, WholeChunkImages, H5Images)),
        (({}, {"compression": "lzf"}, {}), (ContiguousImages, H5Images, ContiguousImages)),
    ],
)
def test_parts_are_read_as_one(tmp_path, monkeypatch, options, readers):
    write_parts(tmp_path / "parts", options)
    merge(tmp_path / "merged.h5")
    monkeypatch.chdir("/")
    source = open_images(ImageFiles(tmp_path / "merged.h5", SIDE_32, range(len(MERGED))))
    assert isinstance(source, JoinedImages)
    assert tuple(type(part) for part in source.parts) == readers
    for one in (source, pickle.loads(pickle.dumps(source))):
        assert len(one) == len(MERGED) == 39
        np.testing.assert_array_equal(read(one), PIXELS[MERGED[ROWS]])
        np.testing.assert_array_equal(read(one, range(39)), PIXELS[MERGED])
        np.testing.assert_array_equal(read(one, [3, 1]), PIXELS[MERGED[[3, 1]]])  # of one part
        assert read(one, []).shape == (0, 32, 32, 3)
    with pytest.raises(IndexError, match=r"rows 0\.\.39 asked for, but it holds 39"):
        read(source, [0, 39])


def test_runs_may_be_written_in_any_order(tmp_path):
    write_parts(tmp_path / "parts")
    layout = h5py.VirtualLayout((28, 32, 32, 3), np.uint8)
    for part, rows in ((1, slice(15, 28)), (0, slice(0, 15))):
        layout[rows] = h5py.VirtualSource(f"parts/part_{part}.h5", "images", (len(PARTS[part]), 32, 32, 3))
    with h5py.File(tmp_path / "merged.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
    source = open_images(ImageFiles(tmp_path / "merged.h5", SIDE_32))
    assert isinstance(source, JoinedImages)
    np.testing.assert_array_equal(read(source, range(28)), PIXELS[:28])


def test_the_whole_folder_may_move(tmp_path):
    (tmp_path / "here").mkdir()
    write_parts(tmp_path / "here" / "parts")
    merge(tmp_path / "here" / "merged.h5")
    shutil.move(tmp_path / "here", tmp_path / "there")
    np.testing.assert_array_equal(
        read(open_images(ImageFiles(tmp_path / "there" / "merged.h5", SIDE_32))), PIXELS[MERGED[ROWS]]
    )


def test_a_part_may_be_merged_itself(tmp_path):
    write_parts(tmp_path / "parts")
    merge(tmp_path / "part_0.h5", ((0, 0, 15),))
    merge(tmp_path / "all.h5", ((0, 3, 15), (0, 0, 3)), folder=".")
    source = open_images(ImageFiles(tmp_path / "all.h5", SIDE_32))
    np.testing.assert_array_equal(read(source, range(15)), PIXELS[[*range(3, 15), *range(3)]])
    assert isinstance(source, JoinedImages)


def test_what_h5py_would_give_as_zeros_is_an_error(tmp_path):
    write_parts(tmp_path / "parts")
    path = merge(tmp_path / "merged.h5")
    (tmp_path / "parts" / "part_1.h5").rename(tmp_path / "away.h5")
    with pytest.raises(FileNotFoundError, match=r"merged\.h5: its part parts/part_1\.h5 is missing; put it back at"):
        open_images(ImageFiles(path, SIDE_32))
    with h5py.File(tmp_path / "parts" / "part_1.h5", "w") as file:
        file["images"] = PIXELS[:8]
    with pytest.raises(ValueError, match=r"its part .*part_1\.h5 holds 8 rows of the 13 that it takes from it"):
        open_images(ImageFiles(path, SIDE_32))
    with h5py.File(tmp_path / "parts" / "part_1.h5", "w") as file:
        file["pictures"] = PIXELS[:8]
    with pytest.raises(KeyError, match=r"part_1\.h5 has no dataset 'images' .*pictures"):
        open_images(ImageFiles(path, SIDE_32))
    (tmp_path / "parts" / "part_1.h5").write_bytes((tmp_path / "away.h5").read_bytes()[:2000])
    with pytest.raises(OSError, match=r"part_1\.h5: not a complete HDF5 file"):
        open_images(ImageFiles(path, SIDE_32))
    merge(path, ((0, 0, 15), (2, 0, 14)), rows=35)
    with pytest.raises(ValueError, match=r"rows 29\.\.34 of '/images' are in none of its parts"):
        open_images(ImageFiles(path, SIDE_32))


def test_rows_that_are_not_consecutive_are_read_by_h5py(tmp_path):
    write_parts(tmp_path / "parts")
    layout = h5py.VirtualLayout((30, 32, 32, 3), np.uint8)
    for number in range(2):
        source = h5py.VirtualSource(f"parts/part_{number}.h5", "images", (len(PARTS[number]), 32, 32, 3))
        layout[number : number + 26 : 2] = source[:13]
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
    images = open_images(ImageFiles(tmp_path / "m.h5", SIDE_32))
    assert isinstance(images, H5Images)
    np.testing.assert_array_equal(read(images, [0, 1, 4, 5]), PIXELS[[0, 15, 2, 17]])
    (tmp_path / "parts" / "part_1.h5").unlink()
    with pytest.raises(FileNotFoundError, match="is missing"):
        open_images(ImageFiles(tmp_path / "m.h5", SIDE_32))


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=8), st.data())
def test_runs(runs, data):
    part, first, length = (np.array(column, np.int64) for column in zip(*runs))
    starts = np.concatenate([[0], np.cumsum(length)])
    table = Runs(starts, first, part, tuple(Part(Path(str(i)), "images") for i in range(4)))
    want = [(p, f + i) for p, f, n in runs for i in range(n)]
    rows = data.draw(st.lists(st.integers(0, len(want) - 1)))
    got = table.locate(np.array(rows, np.int64))
    assert list(zip(*(column.tolist() for column in got))) == [want[row] for row in rows]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(want))] * 2)))
    pieces = [(p, row) for p, begin, end in table.pieces(start, stop) for row in range(begin, end)]
    assert pieces == want[start:stop]


# ---- encoded images --------------------------------------------------------------------------------------------------


def merge_packed(path: Path, pieces: int = 1) -> Path:
    """The parts as PNG in packed files, merged; each part is split into pieces of bytes that cut through images."""
    offsets, runs = [0], []
    for number, rows in enumerate(PARTS):
        part = write_packed(path.parent / f"packed_{number}.h5", PIXELS[rows.start : rows.stop])
        with h5py.File(part) as file:
            own = file["image_offsets"][:]
        for of_part, first, end in RUNS:
            if of_part == number:
                offsets += (offsets[-1] + own[first + 1 : end + 1] - own[first]).tolist()
                cuts = np.linspace(own[first], own[end], pieces + 1).astype(int).tolist()
                runs += [(part.name, int(own[-1]), start, stop) for start, stop in itertools.pairwise(cuts)]
    layout, at = h5py.VirtualLayout((offsets[-1],), np.uint8), 0
    for name, size, start, stop in runs:
        layout[at : at + stop - start] = h5py.VirtualSource(name, "image_bytes", (size,))[start:stop]
        at += stop - start
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("image_bytes", layout)
        file["image_offsets"] = np.array(offsets)
    return path


@pytest.mark.parametrize("pieces", [1, 7])
def test_packed_parts_are_read_as_one(tmp_path, pieces):
    path = merge_packed(tmp_path / "merged.h5", pieces)
    source = open_images(ImageFiles(path, SIDE_32, range(39)))
    assert isinstance(source, PackedImages)
    for one in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(read(one, range(39)), PIXELS[MERGED])
    (tmp_path / "packed_2.h5").unlink()
    with pytest.raises(FileNotFoundError, match=r"its part packed_2\.h5 is missing"):
        open_images(ImageFiles(path, SIDE_32))


def test_offsets_may_be_virtual(tmp_path):
    packed = write_packed(tmp_path / "packed.h5", PIXELS)
    with h5py.File(packed) as file:
        size, count = file["image_bytes"].size, file["image_offsets"].size
    with h5py.File(tmp_path / "merged.h5", "w") as file:
        for name, length, kind in (("image_bytes", size, np.uint8), ("image_offsets", count, np.int64)):
            layout = h5py.VirtualLayout((length,), kind)
            layout[:] = h5py.VirtualSource("packed.h5", name, (length,))
            file.create_virtual_dataset(name, layout)
    np.testing.assert_array_equal(read(open_images(ImageFiles(tmp_path / "merged.h5", SIDE_32))), PIXELS[ROWS])
    packed.unlink()
    with pytest.raises(FileNotFoundError, match="is missing"):
        open_images(ImageFiles(tmp_path / "merged.h5", SIDE_32))


def test_packed_parts_must_be_contiguous(tmp_path):
    path = merge_packed(tmp_path / "merged.h5")
    with h5py.File(tmp_path / "packed_1.h5", "r+") as file:
        stored = file["image_bytes"][:]
        del file["image_bytes"]
        file.create_dataset("image_bytes", data=stored, compression="gzip")
    with pytest.raises(ValueError, match="must be contiguous uint8"):
        open_images(ImageFiles(path, SIDE_32))


# ---- every form of storage -------------------------------------------------------------------------------------------


def stored_forms(folder: Path, images: np.ndarray) -> dict[str, ImageSource]:
    """The same images in every lossless form."""
    count, side = images.shape[:2]
    layouts: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "one image a chunk": {"chunks": (1, *images.shape[1:])},
        "lzf": {"chunks": (1, *images.shape[1:]), "compression": "lzf"},
        "gzip": {"chunks": (4, *images.shape[1:]), "compression": "gzip"},
    }
    forms: dict[str, ImageSource] = {}
    for name, options in layouts.items():
        path = folder / f"{name}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("images", data=images, **options)
        forms[name] = open_images(ImageFiles(path, Preprocessing((side, side))))
    pictures = folder / "pictures"
    pictures.mkdir()
    for row, image in enumerate(images):
        cv2.imwrite(str(pictures / f"{row}.png"), image[..., ::-1])
    forms["folder"] = folder_images(pictures, [str(row) for row in range(count)], ".png")
    forms["packed"] = open_images(ImageFiles(write_packed(folder / "packed.h5", images), Preprocessing((side, side))))
    layout, cuts = h5py.VirtualLayout(images.shape, np.uint8), (0, count // 3, count // 2, count)
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["images"] = images[start:stop]
        layout[start:stop] = h5py.VirtualSource(f"{number}.h5", "images", (stop - start, *images.shape[1:]))
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
    forms["three parts"] = open_images(ImageFiles(folder / "virtual.h5", Preprocessing((side, side))))
    return forms


def test_lossless_forms_give_the_same_pixels(tmp_path):
    images = golden_pixels(400)
    rows = np.random.default_rng(0).permutation(400)
    for name, source in stored_forms(tmp_path, images).items():
        np.testing.assert_array_equal(read(source, rows), images[rows], err_msg=name)


@pytest.mark.parametrize("mode", ["squash", "center_crop", "pad"])
@pytest.mark.parametrize("reduced", [True, False])
def test_jpeg_in_a_folder_and_packed_give_the_same_pixels(tmp_path, mode, reduced):
    encoded = []
    for row in range(12):
        coarse = np.random.default_rng(row).integers(0, 256, (5, 7, 3), np.uint8)
        image = cv2.resize(coarse, (90 + 40 * row, 200 - 10 * row), interpolation=cv2.INTER_CUBIC)
        encoded.append(cv2.imencode(".jpg", image)[1].ravel())
        encoded[-1].tofile(tmp_path / f"{row}.jpg")
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file["image_bytes"] = np.concatenate(encoded)
        file["image_offsets"] = np.cumsum([0] + [len(data) for data in encoded])
    how = Preprocessing((32, 32), mode, reduced_decode=reduced)
    folder = folder_images(tmp_path, [str(row) for row in range(12)], ".jpg", how)
    packed = open_images(ImageFiles(tmp_path / "packed.h5", how))
    rows = np.arange(12)[::-1]
    np.testing.assert_array_equal(read(folder, rows), read(packed, rows))


@pytest.mark.parametrize("mode", ["center_crop", "pad"])
def test_stored_pictures_of_another_size_follow_the_mode(tmp_path, mode):
    wide, how = np.repeat(golden_pixels(4), 2, axis=2), Preprocessing((16, 16), mode)
    with h5py.File(tmp_path / "i.h5", "w") as file:
        file["images"] = wide
    packed = open_images(ImageFiles(write_packed(tmp_path / "p.h5", wide), how))
    raw = open_images(ImageFiles(tmp_path / "i.h5", how))
    np.testing.assert_array_equal(read(raw, range(4)), read(packed, range(4)))
    borders = read(raw, range(4))[:, :4]
    assert borders.any() == (mode == "center_crop")
