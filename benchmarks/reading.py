"""How fast pictures are read in every form, and what balanced classes cost.

    python -m benchmarks.reading [reduced] [packed] [mapped] [balanced] [--images 1500] [--size 224] ...

  reduced    a JPEG of --side pixels to --size: decoded at reduced scale against decoded in full
  packed     JPEG in one packed HDF5 file against the same files in a folder, both through the loader
  mapped     raw pixels through the loader, of one file and of a virtual dataset over four, against a bare np.take and
             against each other
  balanced   updates of a small model on --rows rows with balanced classes against plain ones: the loader, the update
             and its part of the epoch's plan

`ratio` is the median over alternating rounds with quartiles, `control` that of the first program against itself, whose
distance from 1 is the noise. Speeds are relative to the second program named (more is better), `balanced` is time
relative to plain sampling (less is better). Files are made in a temporary directory and read once before, so that the
page cache is warm.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Ratios, add_names, as_read, interleaved, write_results
from benchmarks.input_pipeline import bare_gather, epoch, write_files
from benchmarks.step_common import (
    BARE,
    Case,
    RandomImages,
    build,
    case_config,
    default_cases,
    write_labels,
)
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles, ImageSource
from linnaeus_jax.data.loader import ReadSettings, TrainLoader
from linnaeus_jax.data.plans import PlanSequence, plan_epoch
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows
from linnaeus_jax.run.inputs import split_arrays

Row = dict[str, Any]
PARTS = 4


@dataclass(frozen=True)
class Options:
    """The command line, and where files are made."""

    images: int
    size: int
    side: int
    batch: int
    updates: int
    rows: int
    train_updates: int
    pairs: int
    folder: Path
    case: Case


class Identifiers(list[str]):
    """Stands for the labels file of a folder of images."""

    @property
    def identifiers(self) -> NDArray[Any]:
        return np.array(list(self), np.dtypes.StringDType())


def speed(what: str, times: Ratios, images: int, limit: float | None, **about: object) -> Row:
    """A line: images per second of f, and how many times faster f is than g."""
    row: Row = {"what": what, **about, "images_per_s": round(images / times.f_seconds), **times.row()}
    return row if limit is None else {**row, "limit": limit, "within": times.ratio >= limit}


def reduced(options: Options) -> list[Row]:
    """One large picture, decoded and resized."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (options.side // 16, options.side // 16, 3), np.uint8)
    image = cv2.resize(coarse, (options.side, options.side), interpolation=cv2.INTER_CUBIC)
    image = cv2.add(image, rng.integers(0, 16, image.shape, np.uint8))
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
    out = np.empty((options.size, options.size, 3), np.uint8)
    cv2.setNumThreads(1)
    size = (options.size, options.size)
    quick, whole = (Preprocessing(size, reduced_decode=on) for on in (True, False))
    times = interleaved(lambda: quick.decode(data, out), lambda: whole.decode(data, out), 3 * options.pairs)
    about = f"JPEG of {options.side} pixels and {len(data) // 1000} kB to {options.size}: reduced / full decode"
    return [speed(about, times, 1, 2.0)]


def packed(options: Options) -> list[Row]:
    """The same bytes, packed and as files."""
    _, path = write_files(options.folder, options.images, options.size)
    pictures = options.folder / "pictures"
    pictures.mkdir()
    with h5py.File(path) as file:
        data, offsets = file["image_bytes"][:], file["image_offsets"][:]
    for row, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        data[start:stop].tofile(pictures / f"{row}.jpg")
    names = Identifiers(map(str, range(options.images)))
    folder = open_images(ImageFiles(pictures, Preprocessing((options.size, options.size)), names, ".jpg"), "folder")
    one = open_images(ImageFiles(path, Preprocessing((options.size, options.size))))
    few = max(1, options.updates // 4)
    times = interleaved(functools.partial(_bytes_of, one), functools.partial(_bytes_of, folder), options.pairs)
    rows = [speed("the bytes of JPEG alone: packed / folder", times, options.images, None)]
    for threads, io_threads in ((0, 0), (1, 2)):
        f, g = (epoch(source, options.batch, few, threads=threads, io_threads=io_threads) for source in (one, folder))
        times = interleaved(f, g, 2 * options.pairs)  # decoding is most of it, so that the difference is small
        about = {"grain_threads": threads, "io_threads": io_threads}
        rows.append(speed("JPEG through the loader: packed / folder", times, few * options.batch, 1.0, **about))
    return rows


def _bytes_of(source: Any) -> int:
    """Reads every encoded image."""
    return sum(len(bytes(source.encoded(row))) for row in range(len(source)))


def virtual_copy(path: Path, whole: Path) -> Path:
    """The images of a file in several ones, and a virtual dataset over them."""
    with h5py.File(whole) as file:
        images = file["images"]
        layout = h5py.VirtualLayout(images.shape, np.uint8)
        cuts = np.linspace(0, len(images), PARTS + 1).astype(int).tolist()
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            name = f"{path.stem}_{number}.h5"
            with h5py.File(path.parent / name, "w") as part:
                part["images"] = images[start:stop]
            layout[start:stop] = h5py.VirtualSource(name, "images", (stop - start, *images.shape[1:]))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("images", layout)
    return path


def mapped(options: Options) -> list[Row]:
    """Raw pixels in one file, in several, and without a loader."""
    path, _ = write_files(options.folder, options.images, options.size)
    joined_path = virtual_copy(options.folder / "joined.h5", path)
    how = Preprocessing((options.size, options.size))
    whole, joined = (open_images(ImageFiles(one, how)) for one in (path, joined_path))
    floor, images, rows = bare_gather(path, options.batch, options.updates), options.updates * options.batch, []
    for threads in (0, 1):

        def run(source: ImageSource, threads: int = threads) -> Callable[[], None]:
            return epoch(source, options.batch, options.updates, threads=threads, io_threads=0)

        about = {"grain_threads": threads, "io_threads": 0}
        for what, f, g, limit in (
            ("raw pictures through the loader / bare np.take", run(whole), floor, 0.5),
            (f"virtual dataset of {PARTS} parts through the loader / bare np.take", run(joined), floor, 0.5),
            (f"virtual dataset of {PARTS} parts / one file, both through the loader", run(joined), run(whole), None),
        ):
            rows.append(speed(what, interleaved(f, g, options.pairs), images, limit, **about))
    return rows


def long_tail(rows: int) -> np.ndarray:
    """int64 [rows], numbers of training rows of a small file, a few of them very often."""
    rng = np.random.default_rng(0)
    return rng.permutation((rng.pareto(0.7, rows) * 20).astype(np.int64))


def balanced(options: Options) -> list[Row]:
    """What an update costs with its data: the loader, the update, and the plan of the epoch divided by its updates."""
    labels = write_labels(options.folder / "labels.h5")
    split = build_dataset(as_read(case_config(options.case, labels, BARE))).train
    index = long_tail(options.rows) % len(split)
    arrays = {name: array[index] for name, array in split_arrays(split).items()}
    rows = TrainingRows(arrays["label"], arrays["label"][:, 0], has_null=True)
    step = build(options.case, labels, BARE)
    stepper = step.stepper()
    images = RandomImages(options.rows, options.case.img_size)

    def training(plans: PlanSequence) -> Callable[[], None]:
        plans.plan(0)  # its time is measured alone

        def run() -> None:
            reading = ReadSettings(num_threads=1, io_threads=0)
            with TrainLoader(
                arrays, np.arange(options.rows), images, plans, reading, stop_step=options.train_updates
            ) as loader:
                for _, batch in loader:
                    on_device = step.placement.to_device(batch, step.placement.update)
                    stepper.state, outputs = stepper.compiled(stepper.state, on_device)
            jax.block_until_ready(outputs)

        return run

    found: list[Row] = []
    plain = SamplerSettings(batch_size=options.case.batch)
    for kind in ("sqrt", "equal"):
        settings = SamplerSettings(batch_size=options.case.batch, class_balance=kind)
        plans = [PlanSequence({"": rows}, [""], one, seed=0) for one in (plain, settings)]
        updates = min(options.train_updates, plans[0].total)
        planning = interleaved(
            lambda: plan_epoch(rows, plain, seed=0, epoch=0),
            lambda settings=settings: plan_epoch(rows, settings, seed=0, epoch=0),  # type: ignore[misc]
            max(2, options.pairs // 2),
        )
        times = interleaved(training(plans[0]), training(plans[1]), options.pairs)
        about = {**options.case.row(), "class_balance": kind, "rows": options.rows}
        shares = [seconds / plans[0].total for seconds in (planning.f_seconds, planning.g_seconds)]
        found += [
            {**about, "what": "plan of an epoch", **_milliseconds(planning, 1)},
            {**about, "what": "update with its data", **_milliseconds(times, updates)},
            {**about, "what": "update with its data and its part of the plan", **_with_plan(times, updates, shares)},
        ]
    return found


def _milliseconds(times: Ratios, updates: int) -> Row:
    """Time of one, plain and balanced, and their ratio."""
    return {
        "plain_ms": round(times.f_seconds / updates * 1e3, 4),
        "balanced_ms": round(times.g_seconds / updates * 1e3, 4),
        **{key: round(getattr(times, key), 4) for key in ("ratio", "ratio_low", "ratio_high", "control")},
    }


def _with_plan(times: Ratios, updates: int, plan_seconds: list[float]) -> Row:
    """The same with the seconds of a plan that fall on one update; the ratio of the medians, corrected by theirs."""
    plain = times.f_seconds / updates
    ratio = (times.ratio * plain + plan_seconds[1]) / (plain + plan_seconds[0])
    return {
        "plain_ms": round((plain + plan_seconds[0]) * 1e3, 4),
        "balanced_ms": round((plain * times.ratio + plan_seconds[1]) * 1e3, 4),
        "ratio": round(ratio, 4),
        "control": round(times.control, 4),
        "limit": 1.02,
        "within": ratio <= 1.02,
    }


BENCHMARKS: Mapping[str, Callable[[Options], list[Row]]] = {
    "reduced": reduced,
    "packed": packed,
    "mapped": mapped,
    "balanced": balanced,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1500, help="images in the test files")
    parser.add_argument("--size", type=int, default=224, help="side of the images that the model takes")
    parser.add_argument("--side", type=int, default=2000, help="side of the large picture")
    parser.add_argument("--batch", type=int, default=64, help="rows of one batch")
    parser.add_argument("--updates", type=int, default=40, help="raw batches per measurement; decoders take a quarter")
    parser.add_argument("--rows", type=int, default=10**6, help="training rows, balanced")
    parser.add_argument("--train-updates", type=int, default=20, help="updates per measurement, balanced")
    parser.add_argument("--img-size", type=int, help="side of the images of the model, balanced")
    parser.add_argument("--pairs", type=int, default=12, help="alternating repetitions")
    add_names(parser, BENCHMARKS)
    args = parser.parse_args()
    case = default_cases()[0]
    if args.img_size is not None:
        case = Case(case.model, args.img_size, args.batch, case.remat)
    rows: list[Row] = []
    for name in args.names:
        with tempfile.TemporaryDirectory() as folder:
            numbers = (args.images, args.size, args.side, args.batch, args.updates, args.rows, args.train_updates)
            rows += BENCHMARKS[name](Options(*numbers, args.pairs, Path(folder), case))
    print(write_results("reading", rows, shlex.join(["python", "-m", "benchmarks.reading", *sys.argv[1:]])))


if __name__ == "__main__":
    main()
