"""Faults of the world around a run: calls on files that fail or hang, cut and deleted data, mounts, limits, the clock.

Files fail by `failing_files.c`, loaded into the program before the C library, so that writes of every library fail, at
a call drawn by the seed. A run with a fault must end with status 2 and one message, or end as if nothing had happened;
given the same command again it must have the metrics and parameters of a run without faults. What cannot be simulated
on this machine is a case that is skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.chosen_checkpoint import read_arrays
from tests.campaign.case import Case, Ended, Outcome, run_program
from tests.forks import MAIN, call
from tests.tiny import write_tiny_data

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SECONDS = 600.0
CONFIG = """from pathlib import Path
from tests.tiny import tiny_config

def get_config():
    return tiny_config(Path({data!r}), {settings})
"""
SETTINGS: dict[str, Any] = {
    "env__compilation_cache_dir": "",
    "experiment__tensorboard__enabled": True,
    "schedule__checkpoint__keep_last_n": 2,
}
#: of metrics: depend on the clock
TIMES = re.compile(r"timestamp|_sec$|per_sec|ETA|eta|^pipeline/|seconds|time")
#: letters of `failing_files.c` and what they are called
CALLS = {"w": "write", "s": "sync", "r": "rename", "o": "open for writing"}
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What the cases share: data, compiled programs, a run without faults and the library that makes files fail."""

    directory: Path

    @functools.cached_property
    def library(self) -> Path | None:
        """None where there is no C compiler."""
        built = self.directory / "failing_files.so"
        compiler = shutil.which("cc")
        if compiler and not built.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", built, HERE / "failing_files.c", "-ldl"])
        return built if built.exists() else None

    def config(self, directory: Path, **settings: Any) -> Path:
        """A configuration file for data of its own in a directory."""
        data, path = directory / "data", directory / "config.py"
        if not data.exists():
            write_tiny_data(data)
        known = {**SETTINGS, "env__compilation_cache_dir": str(self.directory / "compiled"), **settings}
        listed = ", ".join(f"{key}={value!r}" for key, value in known.items())
        path.write_text(CONFIG.format(data=str(data), settings=listed))
        return path

    @functools.cached_property
    def reference(self) -> Path:
        """The directory of a run without faults."""
        run = self.directory / "reference"
        if not (run / "report.html").exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            ended = train(self.config(self.directory), run)
            assert ended.status == 0, ended.error
        return run

    def calls(self, kind: str) -> int:
        """How often a run makes a call of `CALLS` in its directory, or reads pictures ("i")."""
        counted = self.directory / f"calls_{kind}.json"
        if not counted.exists():
            run, count = self.directory / "counted", self.directory / "count"
            shutil.rmtree(run, ignore_errors=True)
            below = self.directory / "data" if kind == "i" else run
            env = self.failing(below, kind, 0, 0, 0) | {"FAULT_COUNT": str(count)}
            train(self.config(self.directory), run, env)
            counted.write_text(count.read_text())
        return int(counted.read_text())

    def failing(self, below: Path, kind: str, first: int, last: int, error: int) -> dict[str, str]:
        """Environment in which calls fail from the first to the last one."""
        return {
            "LD_PRELOAD": str(self.library),
            "FAULT_BELOW": str(below),
            "FAULT_CALLS": kind,
            "FAULT_FIRST": str(first),
            "FAULT_LAST": str(last),
            "FAULT_ERROR": str(error),
        }

    def compare(self, run: Path) -> str:
        """The first difference of a finished run from the reference; empty: none."""
        for name, ours, theirs in zip(("rows", "parameters"), _result(run), _result(self.reference), strict=True):
            if ours != theirs:
                return f"other {name}: {_first_difference(ours, theirs)}"
        return ""


def _first_difference(ours: Any, theirs: Any) -> str:
    pairs = itertools.zip_longest(ours, theirs)
    return next((f"{a}\ninstead of\n{b}" for a, b in pairs if a != b), "")[:800]


def _result(run: Path) -> tuple[list[Any], list[Any]]:
    """Rows of the metrics log without times, and the bytes of the last parameters."""
    lines = (run / "logs" / "metrics_log.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if not TIMES.search(k)} for line in lines]
    rows.sort(key=lambda row: (row["global_step"], row["event"]))
    with contextlib.closing(Checkpoints(run / "checkpoints", read_only=True)) as checkpoints:
        tree = read_arrays(checkpoints, checkpoints.steps()[-1], ("params",))
    return rows, [(jax.tree_util.keystr(k), np.asarray(v).tobytes()) for k, v in jax.tree.leaves_with_path(tree)]


def train(config: Path, run: Path, env: Mapping[str, str] | None = None, *, prefix: tuple[str, ...] = ()) -> Ended:
    """One start of a run; a process of its own imports everything only where that differs from other processes."""
    arguments = (f"--config={config}", f"--workdir={run}")
    if not env and not prefix:
        return call(MAIN, arguments, config.with_name("said"), seconds=SECONDS, directory=REPOSITORY)
    command = [*prefix, sys.executable, "-m", MAIN, *arguments]
    return run_program(command, seconds=SECONDS, cwd=REPOSITORY, env={**os.environ, **(env or {})})


def verdict(bench: Bench, ended: Ended, config: Path, run: Path) -> Outcome:
    """Good where the program said what is wrong, or went on; and the same command then gives the reference's result."""
    outcome = ended.refused()
    if ended.status == 0 and not ended.has_traceback:
        outcome = Outcome(True, "goes on")
    if "Traceback (most" in ended.out or "Logging error" in ended.error:
        outcome = Outcome(False, "traceback", ended.out[-2000:] + ended.error[-2000:])
    if not outcome.good:
        return dataclasses.replace(outcome, detail=outcome.detail + ended.out[-500:])
    again = train(config, run)
    if again.status != 0:
        return Outcome(False, f"{outcome.what}; not resumed", f"{outcome.detail}\n{again.error[-1500:]}")
    if different := bench.compare(run):
        return Outcome(False, f"{outcome.what}; resumed with another result", f"{outcome.detail}\n{different}")
    if left := [path.name for path in run.rglob("*.tmp")]:
        return Outcome(False, f"{outcome.what}; leaves files", str(left))
    return Outcome(True, f"{outcome.what}; then the same result", outcome.detail)


# ---- calls that fail


def failing_call(bench: Bench, kind: str, first: int, lasts: bool, error: int) -> Callable[[Path], Outcome]:
    """A call in the run directory fails, once or from then on."""

    def run(directory: Path) -> Outcome:
        if bench.library is None:
            return Outcome(True, "skipped: no C compiler")
        config, target = bench.config(directory), directory / "run"
        last = 10**9 if lasts else first
        return verdict(bench, train(config, target, bench.failing(target, kind, first, last, error)), config, target)

    return run


def failing_read(bench: Bench, first: int, lasts: bool, error: int) -> Callable[[Path], Outcome]:
    """A read of the pictures fails, once (then it must be tried again) or from then on."""

    def run(directory: Path) -> Outcome:
        if bench.library is None:
            return Outcome(True, "skipped: no C compiler")
        config, target = bench.config(directory), directory / "run"
        env = bench.failing(directory / "data", "i", first, 10**9 if lasts else first, error)
        return verdict(bench, train(config, target, env), config, target)

    return run


def stalled(bench: Bench, kind: str, first: int) -> Callable[[Path], Outcome]:
    """A call takes some seconds: the watchdog says so, and the run goes on."""

    def run(directory: Path) -> Outcome:
        if bench.library is None:
            return Outcome(True, "skipped: no C compiler")
        config, target = bench.config(directory, debug__stall_seconds=2.0), directory / "run"
        below = directory / "data" if kind == "i" else target
        env = bench.failing(below, kind, first, first, 0) | {"FAULT_SECONDS": "6"}
        ended = train(config, target, env)
        outcome = verdict(bench, ended, config, target)
        log = (target / "logs" / "debug_log_rank0.txt").read_text()
        if outcome.good and "nothing has finished for" not in log + ended.out + ended.error:
            return Outcome(False, "the stall is not told")
        return dataclasses.replace(outcome, what=f"told; {outcome.what}")

    return run


# ---- data that change while a run reads them


def while_running(bench: Bench, change: Callable[[Path], None]) -> Callable[[Path], Outcome]:
    """`change` of the data after the first log point of a run, undone before the next start."""

    def run(directory: Path) -> Outcome:
        # a reader that is slow and reads ahead little, so that much is left to read
        config = bench.config(directory, data__prefetch__max_processed_batches=1)
        target, data = directory / "run", directory / "data"
        shutil.copytree(data, directory / "kept")
        env = {}
        if bench.library is not None:
            env = bench.failing(data / "images.h5", "i", 1, 10**9, 0) | {"FAULT_SECONDS": "0.02"}
        done = threading.Event()

        def watch() -> None:
            log = target / "logs" / "metrics_log.jsonl"
            while not done.is_set() and not (log.exists() and log.read_text().count("\n")):
                time.sleep(0.002)
            if not done.is_set():
                change(data)

        watcher = threading.Thread(target=watch)
        watcher.start()
        ended = train(config, target, env)
        done.set()
        watcher.join()
        shutil.rmtree(directory / "data", ignore_errors=True)
        shutil.copytree(directory / "kept", directory / "data")
        return verdict(bench, ended, config, target)

    return run


def cut(data: Path) -> None:
    """Half of the pictures are gone."""
    os.truncate(data / "images.h5", (data / "images.h5").stat().st_size // 2)


def delete(data: Path) -> None:
    """Both files are gone."""
    shutil.rmtree(data)


# ---- limits, mounts, the clock


def limited(bench: Bench, limit: int, value: int) -> Callable[[Path], Outcome]:
    """A limit of the process, set between fork and exec."""

    def run(directory: Path) -> Outcome:
        config, target = bench.config(directory), directory / "run"
        name = {resource.RLIMIT_FSIZE: "fsize", resource.RLIMIT_AS: "as", resource.RLIMIT_NOFILE: "nofile"}[limit]
        if shutil.which("prlimit") is None:
            return Outcome(True, "skipped: no prlimit")
        return verdict(bench, train(config, target, prefix=("prlimit", f"--{name}={value}")), config, target)

    return run


def mounted(*options: str) -> Callable[[Path], bool]:
    """Mounts onto a directory; False where that is not allowed."""

    def mount(path: Path) -> bool:
        path.mkdir(exist_ok=True)
        return subprocess.run(["mount", *options, str(path)], capture_output=True).returncode == 0

    return mount


def small_disk(bench: Bench, kilobytes: int) -> Callable[[Path], Outcome]:
    """A run directory on a disk that is full before the end, and larger at the next start."""

    def run(directory: Path) -> Outcome:
        config, disk = bench.config(directory), directory / "disk"
        if not mounted("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs")(disk):
            return Outcome(True, "skipped: no mounts here")
        try:
            ended = train(config, disk / "run")
            subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
            return verdict(bench, ended, config, disk / "run")
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=False)

    return run


#: programs that only read a run: arguments, where {run} and {out} are put in
READERS = {
    "training": (),
    "report": ("report", "{run}", "--out={out}/report.html"),
    "report beside the run": ("report", "{run}"),
    "evaluate": ("evaluate", "{run}"),
    "bundle": ("bundle", "{run}", "{out}/bundle"),
    "export_weights": ("export_weights", "{run}", "{out}/weights.safetensors"),
    "replay_metrics": ("replay_metrics", "{run}", "--to", "tensorboard", "--out={out}/replayed"),
    "analyze_debug_logs": ("analyze_debug_logs", "{run}"),
}


def read_only_run(bench: Bench, name: str) -> Callable[[Path], Outcome]:
    """A program on a finished run that is mounted read-only: works, or says in one line why not."""

    def run(directory: Path) -> Outcome:
        source = shutil.copytree(bench.reference, directory / "source")
        target, out = directory / "run", directory / "out"
        out.mkdir()
        if not mounted("--bind", "-o", "ro", str(source))(target):
            return Outcome(True, "skipped: no mounts here")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=False)
        try:
            if name == "training":
                ended = train(bench.config(bench.directory), target)
            else:
                program, *rest = (part.format(run=target, out=out) for part in READERS[name])
                command = [sys.executable, "-m", f"linnaeus_jax.tools.{program}", *rest]
                ended = run_program(command, seconds=SECONDS, cwd=REPOSITORY)
        finally:
            subprocess.run(["umount", "-l", str(target)], check=False)
        if ended.status == 0 and not ended.has_traceback:
            outcome = Outcome(True, "works")
        else:  # the analyser's status for a missing file is documented
            outcome = ended.refused(1 if name == "analyze_debug_logs" else 2)
        return dataclasses.replace(outcome, detail=outcome.detail or ended.error[-500:])

    return run


def clock_back(bench: Bench) -> Callable[[Path], Outcome]:
    """A run is stopped by a full disk, and goes on a day before."""

    def run(directory: Path) -> Outcome:
        if bench.library is None:
            return Outcome(True, "skipped: no C compiler")
        config, target = bench.config(directory), directory / "run"
        first = bench.calls("w") * 2 // 3
        train(config, target, bench.failing(target, "w", first, 10**9, errno.ENOSPC))
        ended = train(config, target, bench.failing(target, "", 0, 0, 0) | {"FAULT_BACK": "86400"})
        return verdict(bench, ended, config, target)

    return run


def clock_forward(bench: Bench, share: float, seconds: int) -> Callable[[Path], Outcome]:
    """The clock is set forward while a call of a save takes 3 s."""

    def run(directory: Path) -> Outcome:
        if bench.library is None:
            return Outcome(True, "skipped: no C compiler")
        config, target = bench.config(directory), directory / "run"
        first = 1 + int(share * bench.calls("s"))
        env = bench.failing(target, "s", first, first, 0) | {"FAULT_SECONDS": "3", "FAULT_JUMP": str(seconds)}
        ended = train(config, target, env)
        if ended.status != 0:
            return Outcome(False, "ends", ended.error[-1500:])
        return verdict(bench, ended, config, target)

    return run


def cases(seed: int, directory: Path) -> Iterator[Case]:
    """Each kind once, then further calls that fail, drawn by the seed."""
    bench, rng = Bench(directory), random.Random(seed)

    def a_call(kind: str) -> Case:
        # a write at any moment: the count of a run is known when the case runs, the share of it now
        share, lasts, error = rng.random(), rng.random() < 0.5, rng.choice(ERRORS)

        def run(path: Path) -> Outcome:
            first = 1 + int(share * bench.calls(kind))
            outcome = failing_call(bench, kind, first, lasts, error)(path)
            return dataclasses.replace(outcome, detail=f"call {first}: {outcome.detail}")

        name = f"{CALLS[kind]} at {share:.4f}, {errno.errorcode[error]}{', from then on' if lasts else ''}"
        return Case(f"{CALLS[kind]}: {errno.errorcode[error]}", name, run)

    def a_read(share: float, lasts: bool, error: int) -> Case:
        def run(path: Path) -> Outcome:
            return failing_read(bench, 1 + int(share * bench.calls("i")), lasts, error)(path)

        ending = "from then on" if lasts else "once"
        return Case(f"reading: {errno.errorcode[error]} {ending}", f"read at {share:.3f} {ending}", run)

    def a_stall(kind: str, share: float) -> Case:
        def run(path: Path) -> Outcome:
            return stalled(bench, kind, 1 + int(share * bench.calls(kind)))(path)

        return Case("stalled storage", f"stalled {kind} at {share:.3f}", run)

    yield Case("data cut while read", "cut", while_running(bench, cut))
    yield a_call("w")
    yield a_read(0.7, True, errno.EIO)
    yield Case("file-size limit", "fsize", limited(bench, resource.RLIMIT_FSIZE, 20_000))
    yield Case("finished run mounted read-only", "training", read_only_run(bench, "training"))
    yield Case("full disk", "700 kB", small_disk(bench, 700))
    yield a_read(0.7, False, errno.EIO)
    yield a_stall("i", 0.8)
    yield a_call("w")
    yield a_call("r")
    yield Case("memory limit", "as", limited(bench, resource.RLIMIT_AS, 1_500_000_000))
    yield Case("open files limit", "nofile", limited(bench, resource.RLIMIT_NOFILE, 24))
    yield Case("data deleted while read", "deleted", while_running(bench, delete))
    yield a_call("s")
    yield Case("clock set back", "a day", clock_back(bench))
    for share, seconds in ((0.3, 3600), (0.5, 86400), (0.7, 3600)):
        yield Case("clock set forward", f"{seconds} s at {share}", clock_forward(bench, share, seconds))
    for name in list(READERS)[1:]:
        yield Case("finished run mounted read-only", name, read_only_run(bench, name))
    for size in (100, 1500):
        yield Case("full disk", f"{size} kB", small_disk(bench, size))
    yield a_stall("w", 0.5)
    for number in range(30):
        yield a_call("wwro"[number % 4] if number % 7 else "s")
