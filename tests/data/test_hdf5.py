"""Untrusted HDF5 files: nothing outside of them is read, nothing small fills the memory, none ends in a crash."""

from __future__ import annotations

import ast
import gc
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.scan.describe import describe
from linnaeus_jax.building.scan.pictures import PictureChecks
from linnaeus_jax.building.scan.verify import verify_labels
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data import hdf5
from linnaeus_jax.data.hdf5 import UnsafeFileError, open_hdf5
from linnaeus_jax.data.labels import read_identifiers, read_label_tables, read_split_column
from linnaeus_jax.data.labels_file import damage_told
from linnaeus_jax.data.metadata import ComponentSettings
from linnaeus_jax.data.taxon_names import read_taxon_names
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.reading.labelled_pictures import open_pictures
from tests.building.samples import ROWS, TASKS, encoded, identifiers, pixels, replace, write_clean, write_packed
from tests.data.hdf5_malformed import MALFORMED

SECRET = b"root:x:0:0:" * 400


@pytest.fixture(scope="module", autouse=True)
def collected_soon() -> Iterator[None]:
    """Closing a file goes through all objects of HDF5 that Python has not collected: a third of the time here."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    with h5py.File(folder / "raw.h5", "w") as file:
        file["images"] = pixels()
    write_packed(folder / "packed.h5", encoded())
    return write_clean(folder / "labels.h5")


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A labels file of which the pictures are all there is to check."""
    path = tmp_path_factory.mktemp("bare") / "labels.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("img_identifiers", data=np.array(identifiers(), object), dtype=h5py.string_dtype())
    return path


def external(name: str, kind: str = "S8", rows: int = ROWS) -> Callable[[h5py.File, Path], None]:
    """A data set whose values are the bytes of another file."""

    def write(file: h5py.File, folder: Path) -> None:
        (folder / "secret").write_bytes(SECRET)
        if name in file:
            del file[name]
        file.create_dataset(name, (rows,), kind, external=[(str(folder / "secret"), 0, h5py.h5f.UNLIMITED)])

    return write


def virtual(source: str, dataset: str = "x") -> Callable[[h5py.File, Path], None]:
    """Identifiers that are rows of another file; `source` may hold {folder}."""

    def write(file: h5py.File, folder: Path) -> None:
        layout = h5py.VirtualLayout((ROWS,), "S8")
        layout[:] = h5py.VirtualSource(source.format(folder=folder), dataset, (ROWS,), "S8")
        del file["img_identifiers"]
        file.create_virtual_dataset("img_identifiers", layout)

    return write


def through_part(write_part: Callable[[h5py.File, Path], None]) -> Callable[[h5py.File, Path], None]:
    def write(file: h5py.File, folder: Path) -> None:
        with h5py.File(folder / "part.h5", "w") as part:
            write_part(part, folder)
        virtual("part.h5")(file, folder)

    return write


def linked(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "private.h5", "w") as other:
        other["x"] = np.full(ROWS, b"secret", "S8")
    del file["license"]
    file["license"] = h5py.ExternalLink("private.h5", "/x")


def part_in_a_circle(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((ROWS,), "S8")
    layout[:] = h5py.VirtualSource("labels.h5", "img_identifiers", (ROWS,), "S8")
    file.create_virtual_dataset("x", layout)


OUTSIDE: dict[str, tuple[Callable[[h5py.File, Path], None], str]] = {
    "identifiers": (external("img_identifiers"), r"'/img_identifiers' lie in '.*secret', a file of another kind"),
    "labels": (external("taxa_L10", "u4"), "'/taxa_L10' lie in"),
    "a column that nobody asks for": (external("any"), "'/any' lie in"),
    "deep within": (external("taxon_names/taxa_L10/deep/er"), "'/taxon_names/taxa_L10/deep/er' lie in"),
    "a link": (linked, "'/license' is a link into another file, 'private.h5', which is not followed"),
    "through a part": (through_part(external("x")), r"part\.h5: the values of '/x' lie in"),
    "a part's link": (through_part(lambda file, _: file.update({"x": h5py.ExternalLink("y.h5", "/x")})), r"part\.h5: "),
    "a part above": (virtual("../other.h5"), r"takes rows from '\.\./other\.h5'; only files in the folder"),
    "a part elsewhere": (virtual("/etc/x.h5"), "takes rows from '/etc/x.h5'"),
    "itself": (virtual(".", "img_identifiers"), "takes its rows from itself"),
    "a circle": (through_part(part_in_a_circle), "lead in a circle"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_nothing_outside_of_a_file_is_read(clean, tmp_path, case):
    write, words = OUTSIDE[case]
    path = tmp_path / "labels.h5"
    shutil.copy(clean, path)
    with h5py.File(path, "r+") as file:
        write(file, tmp_path)
    for read in (verify_labels, describe, lambda path: read_identifiers(str(path)), open_hdf5):
        with pytest.raises((UserError, ValueError), match=words):
            read(path)
    with pytest.raises(UserError, match=words):
        open_pictures(path, clean, None)


def test_parts_beside_and_below_are_read(clean, tmp_path):
    shutil.copy(clean, tmp_path / "labels.h5")
    for name in ("part.h5", "below/part.h5"):
        (tmp_path / "below").mkdir(exist_ok=True)
        with h5py.File(tmp_path / name, "w") as part:
            part["x"] = np.full(ROWS, b"picture", "S8")
        with h5py.File(tmp_path / "labels.h5", "r+") as file:
            virtual(name)(file, tmp_path)
        assert (read_identifiers(str(tmp_path / "labels.h5")) == "picture").all()


LARGE: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "wide texts": (
        lambda file: replace(file, "img_identifiers", np.full(ROWS, b"x" * (1 << 20), "S1048576"), compression="gzip"),
        "'/img_identifiers' holds texts of 1048576 bytes each; at most 65536 are read",
    ),
    "many texts": (
        lambda file: file.create_dataset("x", (1 << 14,), "S65536", chunks=(64,), compression="gzip"),
        "1073741824 of them in '/x', more than 200 times",
    ),
    "rows never written": (lambda file: file.create_dataset("x", (10**12,), "u4", chunks=(1 << 16,)), "in '/x', more"),
    "one row of a huge chunk": (
        lambda file: file.create_dataset("x", (5,), "u4", chunks=(1 << 28,), maxshape=(None,), compression="gzip"),
        "1073741824 of them in '/x'",
    ),
    "many data sets": (
        lambda file: [file.create_dataset(f"x{i}", (1 << 20,), "u8", chunks=(1 << 16,)) for i in range(40)],
        "they unpack to 335",
    ),
    "texts that stand for what was not written": (
        lambda file: file.create_dataset("x", (10**6,), h5py.string_dtype(), fillvalue=b"y" * 999, chunks=(1 << 16,)),
        "of them in '/x'",
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_small_files_that_fill_the_memory_are_refused(clean, tmp_path, case):
    write, words = LARGE[case]
    path = tmp_path / "labels.h5"
    shutil.copy(clean, path)
    with h5py.File(path, "r+") as file:
        write(file)
    assert path.stat().st_size < 1 << 20
    for read in (verify_labels, describe, lambda path: read_identifiers(str(path))):
        with pytest.raises((UserError, ValueError), match=words):
            read(path)


def shared_texts(file: h5py.File, **options: object) -> None:
    """10,000 rows that all name one text of 100 kB."""
    del file["img_identifiers"]
    texts = file.create_dataset("img_identifiers", (10_000,), h5py.string_dtype(), **options)
    texts[0] = "x" * 100_000
    file.flush()
    if texts.chunks is not None:
        mask, row = texts.id.read_direct_chunk((0,))
        if "compression" not in options:
            texts.id.write_direct_chunk((0,), row[:16] * 10_000, mask)
        else:
            texts.id.write_direct_chunk((0,), zlib.compress(zlib.decompress(row)[:16] * 10_000), mask)
    else:
        with open(file.filename, "r+b") as raw:
            raw.seek(texts.id.get_offset())
            row = raw.read(16)
            raw.seek(texts.id.get_offset())
            raw.write(row * 10_000)


@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (10_000,)}, {"chunks": (10_000,), "compression": "gzip"},
     {"chunks": (10_000,), "compression": "gzip", "shuffle": True}],
)  # fmt: skip
def test_rows_that_share_one_text_are_refused(clean, tmp_path, options):
    path = tmp_path / "labels.h5"
    shutil.copy(clean, path)
    with h5py.File(path, "r+") as file:
        shared_texts(file, **options)
    with h5py.File(path) as file:
        assert len(file["img_identifiers"][9_999]) == 100_000  # what HDF5 reads
    words = "the texts of '/img_identifiers' take 1000000000 bytes together, more than"
    with pytest.raises(ValueError, match=words):
        read_identifiers(str(path))
    assert words in str(verify_labels(path).findings.to_json())
    describe(path)


@pytest.mark.parametrize("chunks", [None, (64,)])
def test_texts_are_measured_whatever_the_width_of_addresses(tmp_path, chunks):
    """Here 4 bytes; files that h5py makes by default have 8."""
    made = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    made.set_sizes(4, 8)
    path = tmp_path / "x.h5"
    texts = ["a" * (number % 7) for number in range(1000)]
    with h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, made)) as file:
        file.create_dataset("x", data=texts, dtype=h5py.string_dtype(), chunks=chunks)
    with h5py.File(path) as file:
        pieces = list(hdf5._text_lengths(path, file["x"]))
        assert np.concatenate(pieces)[:1000].tolist() == list(map(len, texts))
        hdf5.check_texts(path, file["x"])


def test_constant_columns_are_read(tmp_path):
    """A column of one value is packed a thousand times, and is as it should be."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.ones(10**7, "u4"), compression="gzip")
    with open_hdf5(tmp_path / "x.h5") as file:
        assert file["x"].nbytes > 200 * (tmp_path / "x.h5").stat().st_size


def test_a_pipe_a_folder_and_too_many_objects(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "gone"):
        with pytest.raises(FileNotFoundError):
            open_hdf5(path)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(5):
            file.create_group(str(number))
    monkeypatch.setattr(hdf5, "MAX_OBJECTS", 4)
    with pytest.raises(UnsafeFileError, match="more than 4 groups and data sets"):
        open_hdf5(tmp_path / "x.h5")


COMPONENTS = (ComponentSettings("SPATIAL", "spatial", (), 3), ComponentSettings("TEMPORAL", "temporal", (), 2))
NAMES = (
    "spatial temporal elevation_broadrange_2 raw_lat in_region observer_id split occurrence_id license metadata "
    "taxon_names taxon_names/taxa_L10 taxon_names/taxa_L10/taxon_id taxon_names/taxa_L10/name subset_mine"
).split()


def trained_on(path: Path) -> None:
    _, classes = read_label_tables([str(path)], TASKS, COMPONENTS, null_possible=True)
    read_taxon_names([str(path)], classes)
    read_split_column(str(path))


@pytest.mark.parametrize("kind", MALFORMED)
def test_no_malformed_labels_end_in_a_crash(clean, tmp_path, kind):
    path, number = tmp_path / "x.h5", list(MALFORMED).index(kind)
    for name in (("img_identifiers", "taxa_L10")[number % 2], NAMES[number * 7 % len(NAMES)]):
        shutil.copy(clean, path)
        with h5py.File(path, "r+") as file:
            file["subset_mine"] = np.arange(ROWS)
            MALFORMED[kind](file, name)
        with suppress(UserError):
            verify_labels(path, pictures=PictureChecks(clean.parent / "raw.h5", decode="none"))
        with suppress(UserError):
            describe(path)
        with suppress(ValueError):
            trained_on(path)


@pytest.mark.parametrize("kind", MALFORMED)
def test_no_malformed_pictures_end_in_a_crash(clean, bare, tmp_path, kind):
    path = tmp_path / "x.h5"
    for source, name in (("raw.h5", "images"), ("packed.h5", "image_bytes"), ("packed.h5", "image_offsets")):
        shutil.copy(clean.parent / source, path)
        with h5py.File(path, "r+") as file:
            MALFORMED[kind](file, name)
        verify_labels(bare, pictures=PictureChecks(path, decode="none"))


@pytest.mark.parametrize("chunks", [None, (2,), (7,)])
def test_lengths_of_texts_are_those_that_the_file_says(tmp_path, monkeypatch, chunks):
    monkeypatch.setattr(hdf5, "_PIECE", 3)
    texts = ["", "a", "né", "abcd", "efghijk", "lm", "x" * 40]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("texts", data=texts, dtype=h5py.string_dtype(), chunks=chunks)
    with h5py.File(tmp_path / "a.h5") as file:
        found = np.concatenate(list(hdf5._text_lengths(tmp_path / "a.h5", file["texts"])))
    assert sorted(found.tolist()) == sorted(len(text.encode()) for text in texts)


def test_what_hdf5_raises_of_a_file_names_it_and_what_others_raise_passes(tmp_path):
    path = tmp_path / "a.h5"
    h5py.File(path, "w").close()
    with pytest.raises(InputError, match=r"a\.h5 is damaged, or no file of this program: .*nothing"):
        with damage_told(h5py.File(path), path) as file:
            file["nothing"]
    with pytest.raises(KeyError, match="ours"):
        with damage_told(h5py.File(path), path):
            raise KeyError("ours")


def test_one_function_opens_every_file():
    """All other calls of h5py.File write a new one, or go on with it."""
    package = Path(hdf5.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "h5py.File(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "h5py.File" and path.name != "hdf5.py":
                assert ast.unparse(node.args[1]) in ("'w'", "'r+'"), f"{path}: line {node.lineno}"
