"""How fast the loader is: raw images against a bare gather, JPEG decoding with 1 and 2 threads, and worker processes
against threads for a decoder that holds the GIL.

    python -m benchmarks.input_pipeline [raw] [jpeg] [gil] [--images 1500] [--size 224] [--batch 64] [--updates 40] ...

The files are made in a temporary directory and read once before, so that the page cache is warm.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np

from benchmarks.common import add_names, interleaved, write_results
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles, ImageSource
from linnaeus_jax.data.loader import ReadSettings, TrainLoader
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows


def write_files(directory: Path, count: int, size: int) -> tuple[Path, Path]:
    """Smooth random images, as raw pixels and as JPEG of quality 90 in one packed file."""
    rng = np.random.default_rng(0)
    raw, packed = directory / "raw.h5", directory / "packed.h5"
    encoded = []
    with h5py.File(raw, "w") as file:
        images = file.create_dataset("images", (count, size, size, 3), np.uint8)
        for i in range(count):
            coarse = rng.integers(0, 256, (size // 8, size // 8, 3), np.uint8)
            image = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
            image = cv2.add(image, rng.integers(0, 16, image.shape, np.uint8))
            images[i] = image
            encoded.append(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].ravel())
    with h5py.File(packed, "w") as file:
        file["image_bytes"] = np.concatenate(encoded)
        file["image_offsets"] = np.cumsum([0] + [len(data) for data in encoded])
    return raw, packed


class RunLengths:
    """Images as runs of equal values, decoded in pure Python: a decoder that holds the GIL."""

    def __init__(self, count: int, size: int) -> None:
        rng = np.random.default_rng(3)
        self.image_shape = (size, size, 3)
        self._count, self._length = count, 16
        self._runs = rng.integers(0, 256, (min(count, 64), size * size * 3 // self._length)).tolist()

    def __len__(self) -> int:
        return self._count

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        for target, row in zip(out, rows.tolist(), strict=True):
            pixels = bytearray()
            for value in self._runs[row % len(self._runs)]:
                pixels += bytes((value,)) * self._length
            target.reshape(-1)[: len(pixels)] = np.frombuffer(pixels, np.uint8)
        return np.ones(len(rows), bool)


def loader(source: ImageSource, batch: int, updates: int, **options: int) -> TrainLoader:
    """`updates` batches with labels and metadata."""
    count = len(source)
    rng = np.random.default_rng(1)
    arrays = {
        "label": rng.integers(0, 100, (count, 4), np.int32),
        "meta": rng.standard_normal((count, 17), np.float32),
        "meta_valid": np.ones((count, 3), bool),
    }
    settings = SamplerSettings(batch_size=batch)
    epochs = -(-updates // (count // batch))
    plans = PlanSequence({"": TrainingRows(arrays["label"], arrays["label"][:, 0])}, [""] * epochs, settings, seed=0)
    return TrainLoader(arrays, np.arange(count), source, plans, ReadSettings(**options), stop_step=updates)


def epoch(source: ImageSource, batch: int, updates: int, *, threads: int, io_threads: int) -> Callable[[], None]:
    """A run through `updates` batches."""

    def run() -> None:
        with loader(source, batch, updates, num_threads=threads, buffer=3, io_threads=io_threads) as batches:
            for _ in batches:
                pass

    return run


def steady(source: ImageSource, batch: int, updates: int, **options: int) -> tuple[float, float]:
    """Seconds until the first batch, and seconds of `updates` batches once the queues are drained."""
    warm = 2 + 3 * options["worker_processes"]
    start = time.perf_counter()
    with loader(source, batch, warm + updates + 2 * warm, **options) as batches:
        next(batches)
        first = time.perf_counter() - start
        for _ in range(warm - 1):
            next(batches)
        start = time.perf_counter()
        for _ in range(updates):
            next(batches)
        return first, time.perf_counter() - start


def against_threads(source: ImageSource, batch: int, updates: int, pairs: int) -> list[dict[str, object]]:
    """Rows for 1 thread, 2 threads, 1 and 2 processes; the repetitions alternate, the numbers are medians."""
    kinds = [(1, 0), (2, 0), (0, 1), (0, 2)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for number in range(pairs):
        for kind in kinds[number % 4 :] + kinds[: number % 4]:
            options = {"num_threads": kind[0], "worker_processes": kind[1], "buffer": 2, "io_threads": 0}
            found[kind].append(steady(source, batch, updates, **options))
    rows = []
    for kind in kinds:
        ratios = [one / own for (_, one), (_, own) in zip(found[kinds[0]], found[kind], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append(
            {
                "what": "a decoder that holds the GIL, relative to 1 thread",
                "grain_threads": kind[0],
                "worker_processes": kind[1],
                "images_per_s": round(updates * batch / statistics.median(own for _, own in found[kind])),
                "first_batch_s": round(statistics.median(first for first, _ in found[kind]), 3),
                "ratio": round(middle, 3),
                "ratio_low": round(low, 3),
                "ratio_high": round(high, 3),
            }
        )
    return rows


def bare_gather(path: Path, batch: int, updates: int) -> Callable[[], None]:
    """The floor: np.take from a memory map into one buffer."""
    with h5py.File(path) as file:
        images = file["images"]
        mapped = np.memmap(path, np.uint8, "r", images.id.get_offset(), images.shape)
    out = np.empty((batch, *mapped.shape[1:]), np.uint8)

    def run() -> None:
        rng = np.random.default_rng(2)
        for _ in range(updates):
            np.take(mapped, rng.integers(0, len(mapped), batch), axis=0, out=out, mode="clip")

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1500, help="images in the test files")
    parser.add_argument("--size", type=int, default=224, help="side of the images")
    parser.add_argument("--batch", type=int, default=64, help="rows of one batch")
    parser.add_argument("--updates", type=int, default=40, help="raw batches per measurement; decoders take a quarter")
    parser.add_argument("--pairs", type=int, default=9, help="alternating repetitions")
    add_names(parser, ("raw", "jpeg", "gil"))
    args = parser.parse_args()
    fewer = max(1, args.updates // 4)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        raw_path, packed_path = write_files(Path(name), args.images, args.size)
        how = Preprocessing((args.size, args.size))
        raw, packed = (open_images(ImageFiles(path, how)) for path in (raw_path, packed_path))
        floor = bare_gather(raw_path, args.batch, args.updates)
        for threads, io_threads in ((0, 0), (1, 0), (2, 0), (1, 2)) if "raw" in args.names else ():
            run = epoch(raw, args.batch, args.updates, threads=threads, io_threads=io_threads)
            result = interleaved(run, floor, args.pairs)
            rows.append(
                {
                    "what": "raw pictures, speed relative to a bare np.take loop",
                    "grain_threads": threads,
                    "io_threads": io_threads,
                    "images_per_s": round(args.updates * args.batch / result.f_seconds),
                    **result.row(),
                }
            )
        if "jpeg" in args.names:
            one = epoch(packed, args.batch, fewer, threads=1, io_threads=1)
            two = epoch(packed, args.batch, fewer, threads=1, io_threads=2)
            result = interleaved(two, one, args.pairs)
            rows.append(
                {
                    "what": "JPEG, 2 decoding threads relative to 1",
                    "grain_threads": 1,
                    "io_threads": 2,
                    "images_per_s": round(fewer * args.batch / result.f_seconds),
                    **result.row(),
                }
            )
    if "gil" in args.names:
        rows += against_threads(RunLengths(args.images, args.size), args.batch, fewer, args.pairs)
    command = shlex.join(["python", "-m", "benchmarks.input_pipeline", *sys.argv[1:]])
    print(write_results("input_pipeline", rows, command))


if __name__ == "__main__":
    main()
