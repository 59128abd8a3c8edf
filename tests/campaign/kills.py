"""Runs with everything on, each killed several times at random moments until it ends.

A start is killed some random time after it has begun something (an update, a save, a validation, ...), either the
process alone or with the processes that it has started, as a scheduler does. At the end its parameters, metrics log,
event log, checkpoints, progress and what W&B and TensorBoard hold are compared with a run that was never killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign import kill_child
from tests.campaign.case import Case, Outcome
from tests.campaign.kill_compare import assert_same
from tests.forks import FORKS
from tests.run.test_kill import EVERYTHING
from tests.step.test_train_step import V0 as SMALL_V0
from tests.tiny import write_tiny_data

KILLS = 4
#: with which each start must end or be killed, on a machine that others use, too
SECONDS = 900.0


def tuples(value: Any) -> Any:
    """Lists as tuples, which the config holds."""
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


OVERRIDES = {name: tuples(value) for name, value in EVERYTHING.items() if name != "two_groups"} | {
    "train__epochs": 3,
    "data__batch_size": 4,
    "train__accumulation_steps": 2,
    "loss__grad_weighting__task__type": "gradnorm",
    "loss__grad_weighting__task__update_interval": 3,
    "schedule__mixup__level_switch_epochs": (1,),
    "experiment__wandb__enabled": True,
    "experiment__wandb__mode": "offline",
    "experiment__tensorboard__enabled": True,
    "debug__jsonl__enabled": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "toy": {"model__type": "toy"},
    "mFormerV1": {},
    "mFormerV0": SMALL_V0,
}
#: the models of consecutive cases: those that compile for long come seldom
ORDER = ("toy",) * 6 + ("mFormerV1",) + ("toy",) * 5 + ("mFormerV0",)
#: what must have begun how often, at most, when a start is killed; the last two end a run
TIMES = {
    "start": 1,
    "sink": 2,
    "update": 12,
    "save": 2,
    "validation": 4,
    "row": 10,
    "end of epoch": 2,
    "tables": 1,
    "report": 1,
}


@dataclass(frozen=True)
class Kill:
    """When a start is killed: `delay` seconds after the `count`-th `moment`; `all`: what it has started, too."""

    moment: str
    count: int
    delay: float
    all: bool


def drawn(rng: random.Random) -> list[Kill]:
    """The kills of one run."""
    moments = sorted(rng.choices(list(TIMES), k=KILLS), key=lambda moment: moment in ("tables", "report"))
    return [
        Kill(moment, rng.randint(1, TIMES[moment]), rng.choice((0.0, rng.expovariate(5.0))), rng.random() < 0.5)
        for moment in moments
    ]


def started_by(pid: int) -> list[int]:
    """The processes that are descended from one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    found, last = [pid], [pid]
    while last:
        last = [child for child, parent in parents.items() if parent in last]
        found += last
    return found[1:]


class Runs:
    """Starts runs in processes that are forked from one that has imported everything."""

    def __init__(self, overrides: dict[str, Any], data: Path) -> None:
        self.overrides, self.data = overrides, data

    def start(self, workdir: Path, kill: Kill | None = None) -> int | str:
        """Trains; returns the exit code, or what was going on when it was killed."""
        receiver, sender = FORKS.Pipe(duplex=False)
        arguments = (self.overrides, self.data, workdir, workdir.with_name("output.txt"), sender)
        process = FORKS.Process(target=kill_child.train, args=arguments)
        process.start()
        sender.close()
        try:
            last = self._wait(receiver, kill)
            if last is not None and process.is_alive():
                assert process.pid is not None
                assert kill is not None
                others = started_by(process.pid)
                for pid in [process.pid, *(others if kill.all else ())]:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(pid, signal.SIGKILL)
                process.join()
                gone(others)
                return last
            process.join()
        finally:
            if process.is_alive():
                process.kill()
        assert process.exitcode is not None
        return process.exitcode

    def _wait(self, receiver: Any, kill: Kill | None) -> str | None:
        """Until the moment of the kill: what was begun last; None where the run has ended before."""
        last, left, until = "", 0 if kill is None else kill.count, time.monotonic() + SECONDS
        try:
            while receiver.poll(max(0.0, until - time.monotonic())):
                last = receiver.recv()
                if kill is not None and last == kill.moment:
                    left -= 1
                    if not left:
                        until = time.monotonic() + kill.delay
        except EOFError:
            return None
        if kill is None or left > 0:
            raise TimeoutError(f"no end within {SECONDS:.0f} s; begun last: {last}")
        return last


def gone(pids: list[int]) -> None:
    """Waits until processes have ended that lost the one that started them."""
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        if time.monotonic() > until:
            raise TimeoutError(f"processes {pids} live on")
        time.sleep(0.02)


@functools.cache
def never_killed(model: str, directory: Path) -> tuple[Runs, Path]:
    """Starts runs of a model, and one that was never killed."""
    data, whole = directory / "data", directory / model / "run"
    if not data.exists():
        write_tiny_data(data)
    runs = Runs({**OVERRIDES, **MODELS[model]}, data)
    if not (whole / "report.html").exists():
        whole.parent.mkdir(parents=True, exist_ok=True)
        assert runs.start(whole) == 0, (whole.parent / "output.txt").read_text()[-2000:]
    return runs, whole


def killed_run(model: str, kills: list[Kill], made: Path, directory: Path) -> Outcome:
    """A run that is killed several times until it ends."""
    runs, whole = never_killed(model, made)
    workdir, moments, ids = directory / "run", [], set()
    for kill in [*kills, None]:
        end = runs.start(workdir, kill)
        if (workdir / "run_id.txt").exists():
            ids.add((workdir / "run_id.txt").read_text())
        if isinstance(end, str):
            assert kill is not None
            moments.append(f"{end}{', all' if kill.all else ''}")
            continue
        detail = f"killed {len(moments)} times: {'; '.join(moments)}"
        if end != 0:
            text = (directory / "output.txt").read_text()[-2000:]
            return Outcome(False, "does not go on", f"{detail}; status {end}: {text}")
        if kill is None:
            break
    try:
        assert len(ids) == 1, f"ids {ids}"
        assert_same(workdir, whole)
    except AssertionError as error:
        return Outcome(False, "differs", f"{detail}\n{error}")
    return Outcome(True, f"as never killed, after {len(moments)} kills", detail)


def cases(seed: int, directory: Path) -> Iterator[Case]:
    """Enough for a hundred kills."""
    rng = random.Random(seed)
    for number in range(2 * len(ORDER)):
        model = ORDER[number % len(ORDER)]
        kills = drawn(rng)
        yield Case(model, f"run {number}", functools.partial(killed_run, model, kills, directory))
