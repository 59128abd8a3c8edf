"""The same pixels from every layout, resizing, and what is refused or replaced by a placeholder."""

from __future__ import annotations

import os
import pickle
import re
import threading
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data import h5_images, hdf5
from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.h5_direct import ContiguousImages, WholeChunkImages
from linnaeus_jax.data.h5_images import H5Images, PackedImages
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles, ImageReadError, ResizedImages, image_path
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.preprocessing import Preprocessing
from tests.conftest import FIXTURES
from tests.data.helpers import (
    MISSING_FILES,
    SIDE_32,
    folder_images,
    golden_pixels,
    golden_settings,
    unpack_folder,
    write_packed,
)

ROWS = np.array([31, 0, 7, 7, 39])
LAYOUTS: dict[str, tuple[dict[str, Any], type]] = {
    "contiguous": ({}, ContiguousImages),
    "chunk": ({"chunks": (1, 32, 32, 3)}, WholeChunkImages),
    "wide chunks": ({"chunks": (7, 32, 32, 3)}, H5Images),
    "lzf": ({"chunks": (1, 32, 32, 3), "compression": "lzf"}, H5Images),
    "gzip": ({"chunks": (1, 32, 32, 3), "compression": "gzip"}, H5Images),
    "gzip, wide": ({"chunks": (7, 32, 32, 3), "compression": "gzip", "shuffle": True}, H5Images),
    "gzip, tiles": ({"chunks": (9, 20, 14, 1), "compression": "gzip"}, H5Images),
    "checksum": ({"chunks": (1, 32, 32, 3), "fletcher32": True}, H5Images),
}


def read(source, rows=ROWS):
    out = np.full((len(rows), *source.image_shape), 99, np.uint8)
    return out, source.read(np.asarray(rows, np.int64), out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unpack_folder(FIXTURES, tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def identifiers():
    return read_identifiers(str(FIXTURES / "data_labels.h5"))


def test_golden_images(fixtures):
    source = open_images(ImageFiles(fixtures / "data_images.h5", SIDE_32, range(400)))
    out, ok = read(source, np.arange(400))
    np.testing.assert_array_equal(out, golden_pixels())
    assert ok.all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pixels(tmp_path, layout):
    options, expected = LAYOUTS[layout]
    with h5py.File(tmp_path / "i.h5", "w") as file:
        file.create_dataset("images", data=golden_pixels(40), **options)
    source = open_images(ImageFiles(tmp_path / "i.h5", SIDE_32))
    assert type(source) is expected
    for one in (source, pickle.loads(pickle.dumps(source))):
        out, ok = read(one)
        np.testing.assert_array_equal(out, golden_pixels(40)[ROWS])
        assert ok.all()
        assert len(one) == 40
    with pytest.raises(IndexError, match=r"rows 0\.\.40 asked for, but it holds 40"):
        read(source, [0, 40])
    assert read(source, [])[0].shape == (0, 32, 32, 3)


def test_a_file_is_opened_once_in_each_process(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "i.h5", "w") as file:
        file.create_dataset("images", data=golden_pixels(4), compression="gzip")
    source, opened = open_images(ImageFiles(tmp_path / "i.h5", SIDE_32)), []
    assert type(source) is H5Images

    def counted(path):
        opened.append(os.getpid())
        return hdf5.open_hdf5(path)

    monkeypatch.setattr(h5_images, "open_hdf5", counted)
    own = os.getpid()
    for process in (own, own, -1, -1):  # a fork must not read from its parent's handle
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        np.testing.assert_array_equal(read(source, [1])[0], golden_pixels(4)[[1]])
    assert opened == [own, -1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_is_cut_while_it_is_read_is_named(tmp_path, layout):
    """A memory map of it would end the process."""
    path = tmp_path / "i.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=golden_pixels(40), **LAYOUTS[layout][0])
    source = open_images(ImageFiles(path, SIDE_32))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(OSError, match=rf"{path}(: the file ends after| cannot be read)"):
        read(source, np.arange(40))


def test_a_packed_file_that_is_cut_while_it_is_read_is_named(tmp_path):
    path = write_packed(tmp_path / "i.h5", golden_pixels(4))
    source = open_images(ImageFiles(path, SIDE_32))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ImageReadError, match=r"row 3: .*the file ends after"):
        read(source, [3])


def test_a_deleted_file_is_read_on(tmp_path):
    with h5py.File(tmp_path / "i.h5", "w") as file:
        file["images"] = golden_pixels(40)
    source = open_images(ImageFiles(tmp_path / "i.h5", SIDE_32))
    (tmp_path / "i.h5").unlink()
    np.testing.assert_array_equal(read(source)[0], golden_pixels(40)[ROWS])


def test_a_shifted_file_is_not_read_past_hdf5(tmp_path):
    """Behind a user block the offsets that HDF5 reports start elsewhere."""
    with h5py.File(tmp_path / "i.h5", "w", userblock_size=512) as file:
        file["images"] = golden_pixels(40)
    np.testing.assert_array_equal(read(open_images(ImageFiles(tmp_path / "i.h5", SIDE_32)))[0], golden_pixels(40)[ROWS])


def test_chunks_never_written_are_zero(tmp_path):
    with h5py.File(tmp_path / "i.h5", "w") as file:
        images = file.create_dataset("images", (40, 32, 32, 3), np.uint8, chunks=(1, 32, 32, 3))
        images[:10] = golden_pixels(10)
    source = open_images(ImageFiles(tmp_path / "i.h5", SIDE_32))
    assert isinstance(source, H5Images)
    out, _ = read(source, [3, 20])
    np.testing.assert_array_equal(out[0], golden_pixels(10)[3])
    assert not out[1].any()


def test_a_damaged_chunk_is_named(tmp_path):
    with h5py.File(tmp_path / "i.h5", "w") as file:
        images = file.create_dataset("images", data=golden_pixels(40), compression="gzip", chunks=(5, 32, 32, 3))
        chunk = images.id.get_chunk_info(2)
    with open(tmp_path / "i.h5", "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)
    source = open_images(ImageFiles(tmp_path / "i.h5", SIDE_32))
    np.testing.assert_array_equal(read(source, [9, 15])[0], golden_pixels(40)[[9, 15]])
    with pytest.raises(OSError, match=r"i\.h5 cannot be read: images 12\.\.12 .*copy or build"):
        read(source, [9, 12])


@pytest.mark.parametrize("layout", ["contiguous", "gzip", "gzip, tiles"])
def test_threads_share_a_source(tmp_path, layout):
    with h5py.File(tmp_path / "i.h5", "w") as file:
        file.create_dataset("images", data=golden_pixels(40), **LAYOUTS[layout][0])
    source, wrong = open_images(ImageFiles(tmp_path / "i.h5", SIDE_32)), []

    def work(seed):
        for rows in np.random.default_rng(seed).integers(0, 40, (20, 6)):
            if not np.array_equal(read(source, rows)[0], golden_pixels(40)[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_packed_png_is_exact_and_jpeg_is_near(tmp_path):
    exact = open_images(ImageFiles(write_packed(tmp_path / "png.h5", golden_pixels(40)), SIDE_32, range(40)))
    assert isinstance(exact, PackedImages)
    for source in (exact, pickle.loads(pickle.dumps(exact))):
        np.testing.assert_array_equal(read(source)[0], golden_pixels(40)[ROWS])
    smooth = np.stack([cv2.resize(image[:2, :2], (32, 32)) for image in golden_pixels(40)])
    near = open_images(ImageFiles(write_packed(tmp_path / "jpg.h5", smooth, ".jpg"), SIDE_32))
    assert np.abs(read(near)[0].astype(int) - smooth[ROWS]).mean() < 3


def test_golden_folder(fixtures, folder, identifiers):
    bad = sorted(MISSING_FILES + golden_settings(fixtures)["corrupt"] + golden_settings(fixtures)["empty"])
    good = np.setdiff1d(np.arange(400), bad)
    source = folder_images(folder, identifiers, "png")
    out, ok = read(source, good)
    np.testing.assert_array_equal(out, golden_pixels()[good])
    assert ok.all()
    for row in bad:
        with pytest.raises(ImageReadError, match=rf"row {row}: .*{identifiers[row]}.*restore the file"):
            read(source, [0, row])


def test_placeholders_are_zero_flagged_and_counted(fixtures, folder, identifiers, caplog):
    bad = sorted(MISSING_FILES + golden_settings(fixtures)["corrupt"] + golden_settings(fixtures)["empty"])
    source = folder_images(folder, identifiers, ".png", allow_missing=True)
    out, ok = read(source, np.arange(400))
    assert np.flatnonzero(~ok).tolist() == bad
    assert not out[bad].any()
    np.testing.assert_array_equal(out[ok], golden_pixels()[ok])
    assert source.placeholders == len(bad) == 9
    read(source, [3] * 100)
    numbers = [record.args[1] for record in caplog.records]
    assert numbers == [*range(1, 11), 100]


def test_decoded_images_come_from_the_cache(tmp_path, folder, identifiers):
    cache = ImageCache(10 * 32 * 32 * 3)
    source = folder_images(folder, identifiers, ".png", cache=cache)
    first, _ = read(source, [1, 2])
    again, _ = read(source, [2, 1])
    np.testing.assert_array_equal(first, again[::-1])
    assert (cache.stats().hits, cache.stats().misses) == (2, 2)
    other = folder_images(folder, identifiers[4:], ".png", cache=cache)
    np.testing.assert_array_equal(read(other, [1])[0], golden_pixels()[[5]])  # not the row 1 of the first source


def test_extension_rules():
    for extension in ("png", ".png"):
        assert image_path("d", "a", extension) == "d/a.png"
        assert image_path("d", "a.PNG", extension) == "d/a.PNG"
    assert image_path("d", "sub/a.b", ".jpg") == "d/sub/a.b.jpg"
    assert image_path("d", "a", "") == "d/a"


def test_stored_images_are_resized(tmp_path):
    with h5py.File(tmp_path / "i.h5", "w") as file:
        file["images"] = golden_pixels(40)
    source = open_images(ImageFiles(tmp_path / "i.h5", Preprocessing((16, 16))))
    assert isinstance(source, ResizedImages)
    want = np.empty((len(ROWS), 16, 16, 3), np.uint8)
    for image, target in zip(golden_pixels(40)[ROWS], want):
        Preprocessing((16, 16)).resize(image, target)
    np.testing.assert_array_equal(read(source)[0], want)
    packed = open_images(ImageFiles(write_packed(tmp_path / "p.h5", golden_pixels(40)), Preprocessing((16, 16))))
    np.testing.assert_array_equal(read(packed)[0], want)


# ---- refused files ---------------------------------------------------------------------------------------------------


def test_unusable_image_files(tmp_path, folder):
    path = tmp_path / "i.h5"
    with pytest.raises(FileNotFoundError, match=r"data\.h5\.\*images_path"):
        open_images(ImageFiles(path, SIDE_32))
    with pytest.raises(FileNotFoundError, match=r"data\.hybrid\.images_dir"):
        folder_images(tmp_path / "nowhere", ["a"], ".png")

    def write(**datasets):
        with h5py.File(path, "w") as file:
            for name, values in datasets.items():
                file[name] = values

    write(pictures=golden_pixels(4))
    with pytest.raises(KeyError, match=r"no dataset 'images' .*pictures"):
        open_images(ImageFiles(path, SIDE_32))
    for wrong in (golden_pixels(4).astype(np.float32), golden_pixels(4)[..., :1], golden_pixels(4)[0]):
        write(images=wrong)
        with pytest.raises(ValueError, match=r"images are uint8 \(N, H, W, 3\)"):
            open_images(ImageFiles(path, SIDE_32))
    write(images=golden_pixels(4))
    with pytest.raises(ValueError, match="4 images, but its labels file has 5 rows"):
        open_images(ImageFiles(path, SIDE_32, range(5)))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match="copy or build it again"):
        open_images(ImageFiles(path, SIDE_32))


@pytest.mark.parametrize(
    ("data", "offsets", "message"),
    [
        (np.zeros(9, np.uint8), [0, 4, 8], "must ascend from 0 to the 9 bytes"),
        (np.zeros(9, np.uint8), [0, 5, 4, 9], "must ascend"),
        (np.zeros(9, np.uint8), [1, 9], "must ascend"),
        (np.zeros(9, np.int16), [0, 9], "must be contiguous uint8"),
    ],
)
def test_unusable_packed_files(tmp_path, data, offsets, message):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["image_bytes"], file["image_offsets"] = data, offsets
    with pytest.raises(ValueError, match=message):
        open_images(ImageFiles(tmp_path / "p.h5", SIDE_32))


def test_a_packed_file_may_hold_no_picture(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["image_bytes"], file["image_offsets"] = np.zeros(0, np.uint8), [0]
    assert len(open_images(ImageFiles(tmp_path / "p.h5", SIDE_32))) == 0


def test_packed_files_need_offsets(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["image_bytes"] = np.zeros(9, np.uint8)
    with pytest.raises(KeyError, match="needs 'image_offsets'"):
        open_images(ImageFiles(tmp_path / "p.h5", SIDE_32))


def test_identifiers_lead_below_the_folder_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    names = np.array(["a..b.jpg", "c/..d.jpg", "e/../../f.jpg"], np.dtypes.StringDType())
    for outside in ("../g.jpg", "/etc/passwd", "e/../../f.jpg"):
        names[2] = outside
        with pytest.raises(UserError, match=f"row 2 .* the picture '{re.escape(outside)}', outside of the folder"):
            folder_images(tmp_path / "folder", names, "")
    assert len(folder_images(tmp_path / "folder", names[:2], "")) == 2


def test_values_outside_of_hdf5_are_not_read(tmp_path):
    """HDF5 would show the bytes of any file as pixels or labels."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(256)) * 12)
    for name, shape, open_it in (
        ("images", (1, 32, 32, 3), lambda path: open_images(ImageFiles(path, SIDE_32))),
        ("img_identifiers", (2,), lambda path: read_identifiers(str(path))),
    ):
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            kind = np.uint8 if len(shape) > 1 else "S8"
            file.create_dataset(name, shape, kind, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        with pytest.raises(ValueError, match=f"values of '/{name}' lie in .*secret.*, a file of another kind"):
            open_it(path)
