"""How much faster pictures are read than by another commit, form by form and with the same threads.

    python -m benchmarks.input_ratios [jpeg] [gzip] [tiles] [mapped] [--pairs 12] [--batch 64] [--size 224] ...

  jpeg     JPEG of --side pixels, packed, decoded and resized to --size
  gzip     one deflated picture of --size in each HDF5 chunk
  tiles    the chunks that h5py chooses by itself: parts of many pictures
  mapped   raw pixels; also with default threads against one thread, which mere copying must not lose by

Both commits run in a child process each, which reads through the loader as often as it is told, so that rounds
alternate. `ratio` is the median of their times with quartiles, `control` that of the working tree against itself,
`cpu_ratio` the median of CPU seconds, which other work on the machine disturbs less. Files are made in a temporary
directory and are in the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from benchmarks.common import add_names, compared, write_results
from benchmarks.input_pipeline import write_files
from benchmarks.other_commit import BASELINE, HERE, start, worktree

Row = dict[str, Any]
#: (Grain threads, decoding threads) of the default configuration on two cores, and of one thread
DEFAULT, ONE = (2, 2), (1, 0)


class Reader:
    """A child process that reads with the packages of a checkout."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.cpu: dict[str, list[float]] = {}

    def answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"a reading process ended with status {self._child.wait()}; its messages stand above")
        return line

    def run(self, what: str, job: list[Any]) -> Callable[[], float]:
        """Reads once and returns its seconds; CPU seconds are kept under `what`."""

        def ask() -> float:
            assert self._child.stdin is not None
            print(json.dumps(job), file=self._child.stdin, flush=True)
            seconds, cpu = json.loads(self.answer())
            self.cpu.setdefault(what, []).append(cpu)
            return float(seconds)

        return ask


@contextlib.contextmanager
def reading(package: Path, size: int, files: list[str]) -> Iterator[Reader]:
    child = start("input_worker", [str(size), *files], package)
    try:
        reader = Reader(child)
        reader.answer()
        yield reader
    finally:
        child.kill()
        child.communicate()


@dataclass(frozen=True)
class Form:
    """A way of storing pictures, and what is wanted of it."""

    write: Callable[[Path, argparse.Namespace], Path]
    about: str
    share: float  # of the updates, since some take long
    limit: float | None


def _jpeg(folder: Path, args: argparse.Namespace) -> Path:
    return write_files(folder, max(args.batch, args.images // 8), args.side)[1]


def _raw(folder: Path, args: argparse.Namespace) -> Path:
    return write_files(folder, args.images, args.size)[0]


def _deflated(chunks: bool) -> Callable[[Path, argparse.Namespace], Path]:
    def write(folder: Path, args: argparse.Namespace) -> Path:
        path = folder / "deflated.h5"
        with h5py.File(_raw(folder, args)) as raw, h5py.File(path, "w") as file:
            images = raw["images"]
            options = {"chunks": (1, *images.shape[1:])} if chunks else {}
            file.create_dataset("images", data=images[:], compression="gzip", **options)
        return path

    return write


FORMS: Mapping[str, Form] = {
    "jpeg": Form(_jpeg, "JPEG of {side} pixels to {size}", 0.1, 1.6),
    "gzip": Form(_deflated(True), "one deflated picture of {size} pixels in a chunk", 0.2, None),
    "tiles": Form(_deflated(False), "deflated parts of many pictures in a chunk", 0.02, None),
    "mapped": Form(_raw, "raw pictures of {size} pixels", 1.0, None),
}


def measure(name: str, folder: Path, args: argparse.Namespace, baseline: Path) -> list[Row]:
    """The rows of one form."""
    form = FORMS[name]
    path = str(form.write(folder, args))
    updates = max(1, round(args.updates * form.share))
    rows: list[Row] = []

    def row(
        what: str, limit: float | None, f: tuple[Reader, tuple[int, int]], g: tuple[Reader, tuple[int, int]]
    ) -> None:
        of_f, of_g = f"{what} f", f"{what} g"
        times = compared(
            f[0].run(of_f, [path, args.batch, updates, *f[1]]),
            g[0].run(of_g, [path, args.batch, updates, *g[1]]),
            args.pairs,
        )
        cpu = statistics.median(g[0].cpu[of_g]) / statistics.median(f[0].cpu[of_f])
        speed = round(updates * args.batch / times.f_seconds)
        about = {"what": f"{form.about.format(**vars(args))}: {what}", "threads": f"{f[1]}", "images_per_s": speed}
        rows.append({**about, **times.row(), "cpu_ratio": round(cpu, 3)})
        if limit is not None:
            rows[-1] |= {"limit": limit, "within": times.ratio >= limit}

    with reading(HERE, args.size, [path]) as now, reading(baseline, args.size, [path]) as then:
        row(f"now / {args.baseline}", form.limit, (now, DEFAULT), (then, DEFAULT))
        if name == "mapped":
            row("default threads / one thread, now", 1.0, (now, DEFAULT), (now, ONE))
            row(f"default threads / one thread, {args.baseline}", None, (then, DEFAULT), (then, ONE))
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000, help="raw pictures; an eighth of it as JPEG")
    parser.add_argument("--size", type=int, default=224, help="side of the images that the model takes")
    parser.add_argument("--side", type=int, default=1024, help="side of the JPEG")
    parser.add_argument("--batch", type=int, default=64, help="rows of one batch")
    parser.add_argument("--updates", type=int, default=40, help="raw batches per measurement; the others take fewer")
    parser.add_argument("--baseline", default=BASELINE, help="commit to compare with (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="alternating repetitions")
    add_names(parser, FORMS)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    with worktree(args.baseline) as baseline:
        for name in args.names:
            with tempfile.TemporaryDirectory() as folder:
                rows += measure(name, Path(folder), args, baseline)
    typed = sys.argv[1:] if argv is None else argv
    print(write_results("input_ratios", rows, shlex.join(["python", "-m", "benchmarks.input_ratios", *typed])))


if __name__ == "__main__":
    main()
