"""Batches: rows, pixels and order of the plan, exact resume, padding, placeholders, processes, and a clean end."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import grain
import h5py
import numpy as np
import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data import loader as loader_module
from linnaeus_jax.data.batch_reader import BatchReader
from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles, ImageReadError
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.loader import EvalLoader, ReadSettings, TrainLoader
from linnaeus_jax.data.plans import EpochPlan, PlanSequence
from linnaeus_jax.data.samplers import SamplerSettings
from tests.data.helpers import MISSING_FILES, SIDE_32, folder_images, golden_pixels, of_group, unpack_folder

FIXTURES = Path(__file__).parents[1] / "fixtures"  # worker processes import this file, and not tests.conftest
COUNT = 60  # images in the file
ROWS = np.random.default_rng(5).permutation(COUNT)[:50]  # a split of 50 rows
ARRAYS = {
    "label": np.stack([ROWS % 4, ROWS % 2], axis=1).astype(np.int32),
    "meta": np.stack([ROWS, -ROWS], axis=1).astype(np.float32),
    "meta_valid": (ROWS % 3 > 0)[:, None],
}
THREADS = [(0, 0), (1, 1), (3, 2)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "images.h5"
    with h5py.File(path, "w") as file:
        file["images"] = golden_pixels(COUNT)
    return open_images(ImageFiles(path, SIDE_32))


def plans(epochs=3, process=(0, 1), **settings):
    sampler = SamplerSettings(**{"batch_size": 8, "mix_block": 2, "accumulation_steps": 2} | settings)
    index, count = process
    share = np.split(np.arange(sampler.batch_size), count)[index]
    rows = {"": of_group(ARRAYS["label"][:, 0])}
    return PlanSequence(rows, [""] * epochs, sampler, seed=1, positions=share)


def train(source, plan=None, threads=(1, 1), start_step=0, stop_step=None, **options):
    settings = ReadSettings(**{"num_threads": threads[0], "io_threads": threads[1]} | options)
    plan = plans() if plan is None else plan
    return TrainLoader(ARRAYS, ROWS, source, plan, settings, start_step=start_step, stop_step=stop_step)


def collect(loader):
    with loader:
        return list(loader)


def assert_same(one, two):
    assert [update for update, _ in one] == [update for update, _ in two]
    for (_, first), (_, second) in zip(one, two):
        assert first.keys() == second.keys()
        for name in first:
            assert first[name].dtype == second[name].dtype
            np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize(
    ("count", "processes", "threads"), [(1, 0, 1), (16, 0, 16), (192, 0, 32), (16, 4, 4), (2, 4, 1)]
)
def test_decoding_threads_follow_the_cores(monkeypatch, count, processes, threads):
    monkeypatch.setattr(loader_module, "usable_cores", lambda: count)
    data = typed(get_config()).data.replaced({"worker_processes": processes})
    assert ReadSettings.from_config(data).io_threads == threads
    assert ReadSettings.from_config(data.replaced({"prefetch.num_io_threads": 5})).io_threads == 5


def test_what_is_only_copied_needs_no_pool(source):
    reader = BatchReader({}, np.arange(COUNT), source, 4)
    rows = np.arange(COUNT)
    none = np.zeros(COUNT, np.int32)
    batch = reader.read(EpochPlan(rows, none, none, np.ones(COUNT, np.float32)))
    np.testing.assert_array_equal(batch["image"], golden_pixels(COUNT))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("linnaeus-images")]
    reader.close()


def test_batches_are_what_the_plan_says(source):
    plan, pixels = plans(), golden_pixels(COUNT)
    batches = collect(train(source, plan))
    assert [update for update, _ in batches] == list(range(plan.total))
    for update, batch in batches:
        want = plan.plan_of_step(update)
        real = want.index >= 0
        rows = ROWS[want.index]
        assert batch["image"].shape == (2, 8, 32, 32, 3)
        np.testing.assert_array_equal(batch["row"][real], rows[real])
        np.testing.assert_array_equal(batch["image"][real], pixels[rows[real]])
        assert not batch["image"][~real].any()
        np.testing.assert_array_equal(batch["weight"], real.astype(np.float32))
        np.testing.assert_array_equal(batch["partner"], want.partner)
        np.testing.assert_array_equal(batch["group"], want.group)
        for name, values in ARRAYS.items():
            np.testing.assert_array_equal(batch[name], values[np.maximum(want.index, 0)])
        types = {
            name: batch[name].dtype for name in ("image", "label", "meta", "meta_valid", "row", "group", "partner")
        }
        assert types == dict(image=np.uint8, label=np.int32, meta=np.float32, meta_valid=bool,
                             row=np.int32, group=np.int32, partner=np.int32)  # fmt: skip


def test_threads_change_nothing(source):
    want = collect(train(source, threads=(0, 0)))
    for threads in THREADS[1:]:
        assert_same(collect(train(source, threads=threads, buffer=3)), want)


@pytest.mark.parametrize("threads", THREADS)
def test_resume_at_every_update(source, threads):
    want = collect(train(source, threads=(0, 0)))
    for start in range(len(want) + 1):
        assert_same(collect(train(source, threads=threads, start_step=start)), want[start:])
    assert_same(collect(train(source, threads=threads, start_step=2, stop_step=4)), want[2:4])


@pytest.mark.parametrize("threads", THREADS)
def test_next_index_is_the_state_of_the_grain_iterator(source, threads):
    """The number of updates made, which a checkpoint keeps, is all that Grain's own state holds, prefetched or not."""
    want = collect(train(source, threads=(0, 0)))
    with train(source, threads=threads, buffer=3) as loader:
        for update in range(5):
            assert (
                loader._grain._iterator.get_state()
                == {"next_index": loader._grain.next_index}
                == {"next_index": update}
            )
            next(loader)
    own = iter(grain.MapDataset.range(len(want)).to_iter_dataset())
    own.set_state({"next_index": 5})
    assert list(own) == [update for update, _ in want[5:]]
    with train(source, threads=threads) as loader:
        loader._grain._iterator.set_state({"next_index": 5})
        for name, values in next(loader)[1].items():
            np.testing.assert_array_equal(values, want[5][1][name])


@pytest.mark.parametrize("threads", THREADS)
def test_processes_read_disjoint_parts_of_one_batch(source, threads):
    whole = collect(train(source, plans(process=(0, 1))))
    parts = [collect(train(source, plans(process=(i, 2)), threads)) for i in range(2)]
    assert [len(part) for part in parts] == [len(whole)] * 2
    for (_, batch), (_, left), (_, right) in zip(whole, *parts):
        for name in batch:
            np.testing.assert_array_equal(np.concatenate([left[name], right[name]], axis=1), batch[name])


def test_unreadable_image_reaches_the_consumer_and_skips_nothing(source):
    class Flaky:
        image_shape, broken = source.image_shape, True

        def __len__(self):
            return len(source)

        def read(self, rows, out):
            if self.broken and 3 in rows:
                raise ImageReadError("row 3: gone.png: no such file")
            return source.read(rows, out)

    want = collect(train(source))
    for threads in THREADS:
        flaky, got = Flaky(), []
        with train(flaky, threads=threads) as loader:
            with pytest.raises(ImageReadError, match=r"^row 3: gone.png: no such file$"):
                got.extend(iter(loader))  # keeps what came before the failure
            flaky.broken = False
            assert_same([*got, *loader], want)


def test_placeholders_have_no_weight_and_no_partner(tmp_path):
    folder = unpack_folder(FIXTURES, tmp_path)
    names = read_identifiers(str(FIXTURES / "data_labels.h5"))
    images = folder_images(folder, names, ".png", allow_missing=True)
    rows = np.arange(32)
    plan = PlanSequence({"": of_group(rows // 8)}, [""], SamplerSettings(batch_size=8, mix_block=2), seed=0)
    with TrainLoader({"label": rows[:, None].astype(np.int32)}, rows, images, plan) as loader:
        batches = [batch for _, batch in loader]
        placeholders = loader.stats().placeholders
    row, weight, partner, group = (
        np.concatenate([batch[key][0] for batch in batches]) for key in ("row", "weight", "partner", "group")
    )
    bad = np.isin(row, MISSING_FILES)
    assert placeholders == bad.sum() == 2
    np.testing.assert_array_equal(weight, (~bad).astype(np.float32))
    position = np.tile(np.arange(8), 4)
    touched = bad | bad.reshape(-1, 2)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(partner[touched], position[touched])
    assert (group[touched] == -1).all()
    np.testing.assert_array_equal(partner[~touched], position[~touched] ^ 1)


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
def test_validation_is_in_order_padded_and_repeatable(source, threads):
    loader = EvalLoader(ARRAYS, ROWS, source, 16, ReadSettings(num_threads=threads[0], io_threads=threads[1]))
    passes = [list(loader) for _ in range(2)]
    assert len(loader) == len(passes[0]) == 4
    for batches in passes:
        row, weight = (np.concatenate([batch[name] for batch in batches]) for name in ("row", "weight"))
        assert weight.tolist() == [1.0] * 50 + [0.0] * 14
        np.testing.assert_array_equal(row[:50], ROWS)
        image = np.concatenate([batch["image"] for batch in batches])
        np.testing.assert_array_equal(image[:50], golden_pixels(COUNT)[ROWS])
        assert not image[50:].any()
        assert all((batch["partner"] == np.arange(16)).all() for batch in batches)
    assert not loader._active  # a pass that has ended holds no memory
    loader.close()


def test_validation_over_processes(source):
    whole = list(EvalLoader(ARRAYS, ROWS, source, 16))
    shares = [np.r_[0:4, 12:16], np.r_[4:12]]  # as devices may stand in the mesh
    parts = [list(EvalLoader(ARRAYS, ROWS, source, 16, positions=share)) for share in shares]
    for batch, left, right in zip(whole, *parts, strict=True):
        for name in batch:
            joined = np.concatenate([left[name], right[name]])[np.argsort(np.concatenate(shares))]
            np.testing.assert_array_equal(joined, batch[name])


def test_an_empty_split_has_no_batch(source):
    empty = EvalLoader({"label": np.empty((0, 2), np.int32)}, np.empty(0, np.int64), source, 16)
    assert len(empty) == 0
    assert list(empty) == []


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
def test_closing_leaves_no_thread(source, threads):
    before = set(threading.enumerate())
    with train(source, threads=threads, buffer=4) as loader:
        next(loader)
    loader.close()
    with pytest.raises(ValueError, match="the loader is closed"):
        next(loader)
    evaluation = EvalLoader(ARRAYS, ROWS, source, 16, ReadSettings(num_threads=threads[0], io_threads=threads[1]))
    for _ in evaluation:
        break  # an abandoned pass
    evaluation.close()
    # a thread that Grain has started, and that had nothing to read yet, ends by itself
    until = time.monotonic() + 30
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < until, set(threading.enumerate()) - before
        time.sleep(0.01)


def test_memory_bound(source, caplog):
    caplog.set_level(logging.INFO, "linnaeus_jax.data")
    loader = train(source, buffer=3)
    assert f"at most {loader.memory_bytes / 1e6:.0f} MB" in caplog.text
    assert loader.memory_bytes == (3 + 2) * 2 * 8 * 32 * 32 * 3
    assert train(source, threads=(0, 0), buffer=3).memory_bytes == 2 * 2 * 8 * 32 * 32 * 3
    loader.close()


def test_counters(tmp_path):
    folder = unpack_folder(FIXTURES, tmp_path)
    names = read_identifiers(str(FIXTURES / "data_labels.h5"))
    rows = np.setdiff1d(np.arange(40), MISSING_FILES)[:32]
    images = folder_images(folder, names, ".png", cache=ImageCache(2**24))
    plan = PlanSequence({"": of_group(rows % 2)}, ["", ""], SamplerSettings(batch_size=16, mix_block=2), seed=0)
    with TrainLoader({"label": rows[:, None]}, rows, images, plan) as loader:
        assert sum(1 for _ in loader) == 4
        stats = loader.stats()
    assert (stats.samples, stats.batches, stats.placeholders) == (64, 4, 0)
    assert stats.cache is not None
    assert (stats.cache.misses, stats.cache.hits) == (32, 32)
    assert (stats.batch_index_q, stats.preprocess_q, stats.processed_batch_q) == (0, 0, 0)
    assert 0 < stats.decode_seconds <= stats.read_seconds
    row = stats.row()
    assert row["pipeline/cache/hits"] == 32
    assert row["pipeline/throughput/prefetch"] > 0


def test_no_cache_no_cache_metrics(source, tmp_path):
    """Raw pixels are not decoded, so nothing is cached; a capacity of 0 is no cache either."""
    names = [f"{i}.png" for i in range(COUNT)]
    uncached = folder_images(tmp_path, names, ".png", cache=ImageCache(0))
    for images in (source, uncached):
        with train(images) as loader:
            assert not [name for name in loader.stats().row() if "cache" in name]
    with train(folder_images(tmp_path, names, ".png", cache=ImageCache(1))) as loader:
        assert sum("cache" in name for name in loader.stats().row()) == 4


def test_steps_outside_of_the_run(source):
    with pytest.raises(ValueError, match="do not lie within the run"):
        train(source, start_step=99)


# ---- worker processes ------------------------------------------------------------------------------------------------


class Locked:
    """A decoder in pure Python: it holds the GIL. Row `broken` cannot be read, by an error that pickle refuses."""

    def __init__(self, source, broken=-1):
        self._source, self.broken, self.image_shape = source, broken, source.image_shape

    def __len__(self):
        return len(self._source)

    def read(self, rows, out):
        if self.broken in rows:
            raise LockedError(self.broken, "cannot be decoded")
        ok = self._source.read(rows, out)
        for _ in range(2000):
            pass
        return ok


class LockedError(Exception):
    def __init__(self, row, reason):
        super().__init__(f"row {row} {reason}")


def left_behind():
    """Processes, and blocks of shared memory."""
    blocks = [name for name in os.listdir("/dev/shm") if name.startswith("psm_")]
    return [child.name for child in multiprocessing.active_children()], sorted(blocks)


def test_a_batch_that_a_worker_process_cannot_read_is_not_skipped(source):
    want = collect(train(source))
    bad = int(want[1][1]["row"][0, 0])
    with train(Locked(source, broken=bad), worker_processes=1) as loader:
        assert_same([next(loader)], want[:1])
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"^LockedError: row {bad} cannot be decoded$"):
                next(loader)
        assert loader._grain.next_index == 1


@pytest.mark.slow
def test_worker_processes_change_nothing_and_leave_nothing(source):
    """Two processes, from the start and resumed, closed in the middle, one evaluation."""
    before, want = left_behind(), collect(train(source))
    assert_same(collect(train(Locked(source), threads=(0, 2), worker_processes=2)), want)
    with train(source, worker_processes=2, start_step=3) as loader:
        assert_same([next(loader)], want[3:4])  # the second process has started, but was not asked yet
        assert loader._grain.next_index == 4
        row = loader.stats().row()
        assert not [name for name in row if "queue" in name or "cache" in name]
        assert row["pipeline/throughput/prefetch"] > 0
    with pytest.raises(ValueError, match="the loader is closed"):
        next(loader)
    evaluation = EvalLoader(ARRAYS, ROWS, source, 16, ReadSettings(worker_processes=1))
    for batch, other in zip(evaluation, EvalLoader(ARRAYS, ROWS, source, 16), strict=True):
        assert_same([(0, batch)], [(0, other)])
    evaluation.close()
    for _ in range(100):  # Grain unlinks shared memory in a thread
        if left_behind() == before:
            break
        time.sleep(0.1)
    assert left_behind() == before


@pytest.mark.slow
def test_worker_processes_share_the_cache_and_report(tmp_path):
    folder = unpack_folder(FIXTURES, tmp_path)
    names = read_identifiers(str(FIXTURES / "data_labels.h5"))
    rows = np.setdiff1d(np.arange(40), MISSING_FILES)[:32]
    images = folder_images(folder, names, ".png", cache=ImageCache(2**24))
    plan = PlanSequence({"": of_group(rows % 2)}, ["", ""], SamplerSettings(batch_size=16, mix_block=2), seed=0)
    with TrainLoader({"label": rows[:, None]}, rows, images, plan, ReadSettings(worker_processes=2)) as loader:
        assert sum(1 for _ in loader) == 4
        stats = loader.stats()
    assert (stats.samples, stats.batches) == (64, 4)
    assert stats.cache is not None
    assert stats.cache.hits + stats.cache.misses == 64
    assert stats.cache.capacity == 2**24
    assert 0 < stats.decode_seconds <= stats.read_seconds


ORPHAN = """
import os, signal, sys
from pathlib import Path
import numpy as np
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.data.loader import ReadSettings, TrainLoader
from linnaeus_jax.data.plans import EpochPlan, PlanSequence
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows

if __name__ == "__main__":
    import multiprocessing
    rows = np.arange(32, dtype=np.int32)
    settings = SamplerSettings(batch_size=8, mix_block=2)
    plans = PlanSequence({"": TrainingRows(rows[:, None], rows % 2)}, [""] * 100, settings, seed=0)
    images = open_images(ImageFiles(Path(sys.argv[1]), Preprocessing((32, 32))))
    loader = TrainLoader({"label": rows[:, None]}, rows, images, plans, ReadSettings(worker_processes=2))
    next(loader), next(loader)  # both have started
    children = multiprocessing.active_children()
    for child in children:  # as a terminal and a batch system do
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGTERM)
    for _ in range(50):
        next(loader)
    print(*(child.pid for child in children), flush=True)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise KeyboardInterrupt  # the loader is not closed
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "interrupt"])
def test_worker_processes_end_with_their_parent(tmp_path, end):
    """They outlive signals to the whole group, so that a run can stop well, but not their parent."""
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["images"] = golden_pixels(32)
    (tmp_path / "orphan.py").write_text(ORPHAN)
    command = [sys.executable, str(tmp_path / "orphan.py"), str(tmp_path / "images.h5"), end]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_validation_batch_is_read_again_and_none_is_repeated():
    class Once:
        image_shape, failed = (2, 2, 3), False

        def __len__(self):
            return 6

        def read(self, rows, out):
            if 4 in rows and not self.failed:
                self.failed = True
                raise OSError(5, "Input/output error")
            out[:] = np.asarray(rows, np.uint8)[:, None, None, None]
            return np.ones(len(rows), bool)

    def retry(read):
        try:
            return read()
        except OSError:
            return read()

    arrays = {"label": np.arange(6, dtype=np.int32)[:, None]}
    with contextlib.closing(EvalLoader(arrays, np.arange(6), Once(), 2, retry=retry)) as loader:
        assert [batch["label"][:, 0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
