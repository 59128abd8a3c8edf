"""Two processes that train together, one core each, next to one process on one core.

    python -m benchmarks.processes [--model mFormerV1-sm --img-size 224 --batch 8]

Every process trains on `--batch` rows of an update (weak scaling), pinned to its core, and is told to make its
repetitions in rounds whose order rotates. `per_process` is the speed of each relative to one process alone: of the two
that train together, of two that do not know of each other (`apart`: what sharing memory and caches costs on this
machine), and of one process against itself (`control`). Medians over the rounds with quartiles.
Writes results/processes.json (--name).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import socket
import statistics
import sys
from collections.abc import Iterator, Sequence

from benchmarks import other_commit
from benchmarks.common import write_results
from benchmarks.step_common import MODELS
from benchmarks.step_worker import Settings
from benchmarks.train_step import Worker

LIMIT = 0.85


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes that are started inside run on one core; so does this one meanwhile."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class Together:
    """Workers that are told at once."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def __call__(self, updates: int) -> float:
        """Seconds until the last of them has made its updates."""
        for worker in self._workers:
            worker.tell("training", updates)
        return max(float(worker.answer()["seconds"]) for worker in self._workers)


@contextlib.contextmanager
def workers(
    program: str, settings: Settings, cores: Sequence[int], options: Sequence[Sequence[str]]
) -> Iterator[list[Worker]]:
    """One child per core, with its options; ended after the `with`. All are started before one is waited for."""
    with contextlib.ExitStack() as closing:
        started = []
        for core, own in zip(cores, options, strict=True):
            with pinned(core):
                process = other_commit.start(program, [json.dumps(dataclasses.asdict(settings)), *own])
            closing.callback(process.wait)
            closing.callback(process.kill)
            started.append(process)
        yield [Worker(process, f"core {core}") for process, core in zip(started, cores, strict=True)]


def measure(args: argparse.Namespace, cores: Sequence[int]) -> dict[str, list[float]]:
    """Seconds of `--updates` updates by round of one process, of one again, of both together and of both apart."""
    alone = Settings(args.model, args.img_size, args.batch, args.dtype, None, False, ("training",))
    both = dataclasses.replace(alone, batch=args.batch * len(cores))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    members = [
        [f"--coordinator={address}", f"--processes={len(cores)}", f"--process={index}"] for index in range(len(cores))
    ]
    with (
        workers("step_worker", alone, cores, [[] for _ in cores]) as apart,
        workers("process_worker", both, cores, members) as joined,
    ):
        sides = {"joined": Together(joined), "apart": Together(apart), "one": None, "again": None}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(args.pairs + 1):
            one = Together([apart[number % len(apart)]])  # cores take turns: they need not be alike
            order = [*sides][number % len(sides) :] + [*sides][: number % len(sides)]
            for name in order:
                taken = (sides[name] or one)(args.updates)
                if number:
                    seconds[name].append(taken)
    return seconds


def row(what: str, alone: Sequence[float], other: Sequence[float], updates: int, rows: int) -> dict[str, object]:
    """Speed of each process of one side relative to one alone."""
    ratios = [a / b for a, b in zip(alone, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "what": what,
        "ms": round(statistics.median(other) / updates * 1e3, 2),
        "images_per_s": round(rows * updates / statistics.median(other), 2),
        "per_process": round(middle, 3),
        "low": round(low, 3),
        "high": round(high, 3),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="mFormerV1-sm", metavar="FAMILY-VARIANT")
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8, help="rows of an update of each process")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--pairs", type=int, default=12, help="rounds, at least 2")
    parser.add_argument("--updates", type=int, default=2, help="updates that are timed at once")
    parser.add_argument("--name", default="processes", help="of the file in results/")
    args = parser.parse_args(argv)
    if args.pairs < 2:
        parser.error(f"--pairs is {args.pairs}; give at least 2 rounds")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed, and this process may use one")
    seconds = measure(args, cores)
    one = seconds["one"]
    rows = [
        row("one process, control", one, seconds["again"], args.updates, args.batch),
        row("two processes apart", one, seconds["apart"], args.updates, args.batch * 2),
        row("two processes together", one, seconds["joined"], args.updates, args.batch * 2),
    ]
    rows[-1] |= {"limit": LIMIT}
    case = {name: vars(args)[name] for name in ("model", "img_size", "batch", "dtype", "pairs", "updates")}
    command = shlex.join(["python", "-m", "benchmarks.processes", *(sys.argv[1:] if argv is None else argv)])
    write_results(args.name, rows, command, {"case": case, "cores": cores})


if __name__ == "__main__":
    main()
