"""What is stored of pictures: files that go on where they were left, and views by epoch."""

from __future__ import annotations

import json
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data import stored_inputs
from linnaeus_jax.data.batch_reader import BatchReader
from linnaeus_jax.data.images import rows_of_views
from linnaeus_jax.data.plans import EpochPlan
from linnaeus_jax.data.stored_inputs import StoredFile, StoredInputs, StoredSpec

SPEC = StoredSpec("key", rows=7, views=3, shape=(2, 2))


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(7, 3, 2, 2)).astype(np.float16)


def written(path, values, batch=2, spec=SPEC):
    file = StoredFile(path, spec)
    while file.done < spec.rows:
        file.append(values[file.done : file.done + batch])
    return file


def test_what_is_read_is_what_was_written(tmp_path, values, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    written(tmp_path / "train.bin", values)
    names = [*("train.bin.partial", "train.jsonl.partial") * 4, ""]
    assert synced == [str(tmp_path.resolve() / name) for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.bin", "train.jsonl"]
    rows = np.array([9, 3, 4, 0, 11, 5, 6])  # of a labels file of 12 rows
    source = pickle.loads(pickle.dumps(StoredInputs(tmp_path / "train.bin", SPEC, rows, 12)))
    assert len(source) == 12
    assert source.image_shape == (2, 2)
    out = np.empty((3, 2, 2), np.float16)
    assert source.read(np.array([9 * 3 + 2, 6 * 3, 3 * 3 + 1]), out).all()
    np.testing.assert_array_equal(out, [values[0, 2], values[6, 0], values[1, 1]])
    assert source.read(np.array([], int), out[:0]).shape == (0,)  # a process that has only padding of a batch
    with pytest.raises(IndexError, match="row 1 is not of this split"):
        source.read(np.array([3]), out[:1])
    with pytest.raises(IndexError, match="rows 12"):
        source.read(np.array([36]), out[:1])


@pytest.mark.parametrize(
    ("break_it", "left"),
    [
        (lambda data, lines: (data[:-1], lines), 6),  # the last row lost a byte
        (lambda data, lines: (data[:10], lines), 0),
        (lambda data, lines: (data[:40] + bytes([data[40] ^ 1]) + data[41:], lines), 0),
        (lambda data, lines: (data[:60] + bytes([data[60] ^ 1]) + data[61:], lines), 2),
        (lambda data, lines: (data, lines[:-1]), 6),
        (lambda data, lines: (data, [*lines[:-1], lines[-1][:9]]), 6),
        (lambda data, lines: (data, lines[:1]), 0),
        (lambda data, lines: (data, []), 0),
        (lambda data, lines: (b"", lines), 0),
        (lambda data, lines: (data + b"more", lines), 7),
    ],
)
def test_a_file_that_was_cut_off_goes_on_from_what_is_whole(tmp_path, values, break_it, left):
    path, journal = tmp_path / "train.bin", tmp_path / "train.jsonl"
    written(path, values)
    data, lines = break_it(path.read_bytes(), journal.read_text().splitlines())
    path.write_bytes(data)
    journal.write_text("".join(f"{line}\n" for line in lines))
    file = StoredFile(path, SPEC)
    assert file.done == left
    written(path, values, batch=1)
    assert path.read_bytes()[: SPEC.bytes] == values.tobytes()
    assert StoredFile(path, SPEC).done == 7


@pytest.mark.parametrize("broken", ["journal", "data"])
def test_what_another_run_reads_stays_as_it_is_while_it_is_made_anew(tmp_path, values, broken):
    path, journal = tmp_path / "train.bin", tmp_path / "train.jsonl"
    written(path, values)
    reader, late = (StoredInputs(path, SPEC, np.arange(7), 7) for _ in range(2))
    out, rows = np.empty((21, 2, 2), np.float16), np.arange(21)
    assert reader.read(rows, out).all()
    file = journal if broken == "journal" else path
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) * 2 // 3] ^= 1
    file.write_bytes(damaged)
    before = path.read_bytes()
    again = StoredFile(path, SPEC)
    assert 0 < again.done < 7
    while again.done < 7:
        assert path.read_bytes() == before  # also for a process that opens it now
        assert late.read(rows, out).all()
        again.append(values[again.done : again.done + 1])
    assert path.read_bytes() == values.tobytes()
    assert StoredFile(path, SPEC).done == 7
    assert not list(tmp_path.glob("*.partial"))
    assert reader.read(rows, out).all()


def test_a_file_that_something_else_cuts_is_named(tmp_path, values):
    written(tmp_path / "train.bin", values)
    source = StoredInputs(tmp_path / "train.bin", SPEC, np.arange(7), 7)
    out = np.empty((21, 2, 2), np.float16)
    assert source.read(np.arange(21), out).all()
    os.truncate(tmp_path / "train.bin", 50)
    with pytest.raises(OSError, match=r"train\.bin: the file ends after 50 bytes"):
        source.read(np.arange(21), out)


@pytest.mark.parametrize("other", [{"key": "other"}, {"views": 1}, {"shape": (4,)}, {"rows": 8}])
def test_a_file_of_anything_else_is_made_anew(tmp_path, values, other):
    written(tmp_path / "train.bin", values)
    spec = StoredSpec(**{**SPEC.__dict__, **other})
    assert StoredFile(tmp_path / "train.bin", spec).done == 0
    assert json.loads((tmp_path / "train.jsonl.partial").read_text())["key"] == spec.key


def test_no_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_inputs.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"train\.bin: 0\.0 MB are to be stored .*lower train\.tune_views"):
        StoredFile(tmp_path / "train.bin", SPEC)
    assert not list(tmp_path.iterdir())
    needed = SPEC.rows * SPEC.row_bytes
    monkeypatch.setattr(stored_inputs.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    assert StoredFile(tmp_path / "train.bin", SPEC).done == 0, "there is just enough"


def test_a_picture_that_could_not_be_read_trains_nothing(tmp_path, values):
    values[3] = np.nan
    written(tmp_path / "train.bin", values)
    source = StoredInputs(tmp_path / "train.bin", SPEC, np.arange(7), 7)
    reader = BatchReader({}, np.arange(7), source, io_threads=0)
    index = np.array([2, 3])
    batch = reader.read(
        EpochPlan(index, np.full(2, -1, np.int32), np.arange(2, dtype=np.int32), np.ones(2, np.float32))
    )
    assert batch["weight"].tolist() == [1, 0]
    assert not batch["image"][1].any()


def test_values_of_another_shape_are_not_written(tmp_path, values):
    file = StoredFile(tmp_path / "train.bin", SPEC)
    for wrong in (values[:, :2], np.concatenate([values, values]), values[..., 0]):
        with pytest.raises(ValueError, match="does not continue 0 rows"):
            file.append(wrong)


@given(st.integers(1, 9), st.integers(0, 50), st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_every_view_of_every_row_comes_once_in_as_many_epochs_as_there_are_views(views, first, rows):
    rows = np.array(rows)
    seen = [rows_of_views(SimpleNamespace(views=views), rows, first + epoch) for epoch in range(views)]
    row, view = np.divmod(np.stack(seen), views)
    assert (row == rows).all()
    assert (np.sort(view, axis=0) == np.arange(views)[:, None]).all()


def test_a_batch_holds_the_views_of_its_epoch_beside_their_labels(tmp_path, values):
    written(tmp_path / "train.bin", values)
    source = StoredInputs(tmp_path / "train.bin", SPEC, np.arange(7), 7)
    reader = BatchReader({"label": np.arange(7)[:, None]}, np.arange(7), source, io_threads=2)
    index = np.array([5, 2, -1])
    alone = np.full(3, -1, np.int32)
    for epoch in (0, 1, 5):
        plan = EpochPlan(index, alone, np.arange(3, dtype=np.int32), (index >= 0).astype(np.float32), epoch)
        batch = reader.read(plan)
        assert batch["image"].dtype == np.float16
        expected = [values[5, (5 + epoch) % 3], values[2, (2 + epoch) % 3], np.zeros((2, 2))]
        np.testing.assert_array_equal(batch["image"], expected)
        assert batch["label"][:2, 0].tolist() == [5, 2]
        assert batch["row"][:2].tolist() == [5, 2]
