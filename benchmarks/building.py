"""How fast a data set is built: against a bare loop that decodes the same pictures on all cores, and the memory that a
table of many rows takes.

    python -m benchmarks.building [decode] [memory] [--pictures 10000] [--rows 1000000] [--pairs 3]
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.common import add_names, interleaved, write_results
from linnaeus_jax.building.sources import table
from linnaeus_jax.building.steps.build import build
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.plan import BuildPlan, plan_build
from linnaeus_jax.data.preprocessing import Preprocessing

SIZE = 224


def write_photos(directory: Path, count: int) -> None:
    """Different JPEGs of 500 x 375 pixels, smooth with some noise."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 16, (375, 500, 3), np.uint8)
    for i in range(count):
        coarse = rng.integers(0, 256, (47, 63, 3), np.uint8)
        picture = cv2.add(cv2.resize(coarse, (500, 375), interpolation=cv2.INTER_CUBIC), np.roll(noise, i, axis=1))
        cv2.imwrite(str(directory / f"{i:07d}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, 90])


def write_table(path: Path, names: Sequence[str]) -> None:
    """A table of the pictures with four ranks, place, date, elevation and observer."""
    rng = np.random.default_rng(1)
    species = (rng.pareto(1.0, len(names)) * 20).astype(int) % 10_000
    numbers = np.stack([rng.uniform(-90, 90, len(names)), rng.uniform(-180, 180, len(names))], 1).round(4)
    header = ["file", "species", "genus", "family", "order", "latitude", "longitude", "date", "elevation", "observer"]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i, (name, one) in enumerate(zip(names, species.tolist(), strict=True)):
            taxa = [f"Genus{one // 4} species{one}", f"Genus{one // 4}", f"Family{one // 40}", f"Order{one // 400}"]
            date = f"20{i % 20:02d}-{i % 12 + 1:02d}-{i % 28 + 1:02d}T{i % 24:02d}:{i % 60:02d}"
            writer.writerow([name, *taxa, *numbers[i].tolist(), date, i % 3000, f"observer {i % 50_000}"])


def made_plan(directory: Path, images: str) -> BuildPlan:
    source = table.read(directory / "table.csv", pictures=directory / "photos")
    return plan_build(source, BuildOptions(images=images, size=SIZE), {})


def measure_decode(args: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Building raw pixels against reading and decoding alone."""
    photos = directory / "photos"
    photos.mkdir()
    write_photos(photos, args.pictures)
    paths = sorted(map(str, photos.iterdir()))
    write_table(directory / "table.csv", [Path(path).name for path in paths])
    cores = os.cpu_count() or 1

    def decode(piece: Sequence[str]) -> None:
        out = np.empty((SIZE, SIZE, 3), np.uint8)
        for path in piece:
            with open(path, "rb") as file:
                Preprocessing(out.shape[:2]).decode(file.read(), out)

    def bare() -> None:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(decode, [paths[start : start + 64] for start in range(0, len(paths), 64)]))

    def whole() -> None:
        shutil.rmtree(directory / "out", ignore_errors=True)
        build(made_plan(directory, "raw"), directory / "out")

    ratios = interleaved(whole, bare, args.pairs)
    return [{"what": f"build of {args.pictures} JPEGs 500x375 to {SIZE}, g = bare decode loop", **ratios.row()}]


def measure_memory(args: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Peak memory of a process that builds from a large table; the pictures are small, as their size does not count."""
    photos = directory / "photos"
    photos.mkdir()
    jpeg = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
    names = []
    for i in range(args.rows):
        if i % 1000 == 0:
            (photos / f"{i // 1000:04d}").mkdir()
        names.append(f"{i // 1000:04d}/{i:07d}.jpg")
        with open(photos / names[-1], "wb") as file:
            file.write(jpeg + i.to_bytes(8, "little"))  # different bytes, the same picture
    write_table(directory / "table.csv", names)
    command = ["-m", "linnaeus_jax.tools.build_dataset", "--table", str(directory / "table.csv")]
    command += ["--pictures", str(photos), "--images", "folder", "--out", str(directory / "out")]
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return [{"what": f"table of {args.rows} rows", "f_seconds": round(seconds, 1), "peak_mb": round(peak / 1024)}]


MEASURES: dict[str, Callable[[argparse.Namespace, Path], list[dict[str, Any]]]] = {
    "decode": measure_decode,
    "memory": measure_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, MEASURES)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3, help="rounds of the comparison")
    args = parser.parse_args()
    rows = []
    for name in args.names:
        with tempfile.TemporaryDirectory() as directory:
            rows += MEASURES[name](args, Path(directory))
    write_results("building", rows, shlex.join(["python", "-m", "benchmarks.building", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
