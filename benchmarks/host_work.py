"""What the training loop itself costs the host: Python time of one update, plain and with a log point.

    python -m benchmarks.host_work [--updates 400] [--pairs 20] [--model mFormerV1-tiny]

The real trainer runs on generated data, but its compiled step is hollow: it takes and gives the same arrays and
computes nothing. Counted is the CPU time of the main thread from one dispatch to the next, so that waiting for the
device, for data and for other processes is left out. The call of the compiled step is shown by itself (`dispatch_ms`)
and not counted: it is JAX's work, and on a CPU it holds the computation. A log point is held in one pass of the loop
and written in the next; its cost is that of both beyond a plain one. Targets: 1 ms for a plain update, 5 ms where
something is logged. CPU time grows with the load of the machine, too: see `load` in the JSON file.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import write_results
from benchmarks.step_common import CLASSES, MODELS, ROWS_PER_SPECIES, Case, case_config, write_labels
from linnaeus_jax.run import trainer
from linnaeus_jax.run.train_log import TrainLog
from linnaeus_jax.step import compilation

PLAIN_LIMIT_MS, LOG_LIMIT_MS = 1.0, 5.0
WARM_UP = 20  # updates that are not counted
IMG_SIZE, BATCH = 32, 4

#: what is written at a log point
SINKS: dict[str, dict[str, Any]] = {
    "metrics log": {},
    "metrics log and event log": {"debug.jsonl.enabled": True},
    "metrics log and W&B offline": {
        "experiment.wandb.enabled": True,
        "experiment.wandb.mode": "offline",
    },
}


class Clock:
    """Runs a compiled step and notes when; `log_steps` are the updates after which something was held for the log."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.dispatch: list[float] = []
        self.wall: list[float] = []
        self.log_steps: set[int] = set()

    def timed(self, step: compilation.CompiledStep) -> Any:
        """`step` with the clock read before every call."""

        def call(state: Any, batch: Any) -> Any:
            self.wall.append(time.perf_counter())
            self.cpu.append(time.thread_time())
            found = step(state, batch)
            self.dispatch.append(time.thread_time() - self.cpu[-1])
            return found

        return call


def hollow_step(step: Any, state: Any, batch: Any) -> Any:
    """A step with the arguments and results of `step` that computes next to nothing."""
    outputs = jax.eval_shape(step, state, batch)[1]

    def hollow(state: Any, batch: Any) -> Any:
        touched = sum(
            x.reshape(-1)[:1].astype(jnp.float32).sum() for x in batch.values()
        )  # or the argument were dropped
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)
        return state.replace(step=state.step + 1), zeros.replace(loss=0 * touched)

    return hollow


def measure(model: str, labels: Path, workdir: Path, updates: int, every: int, changes: Mapping[str, Any]) -> Clock:
    """One run of `updates` hollow updates that logs every `every` of them."""
    config = case_config(
        Case(model, IMG_SIZE, BATCH, False),
        labels,
        {
            "data.h5.train_images_path": str(labels.with_name("images.h5")),
            "train.epochs": 1,
            "schedule.mixup.prob.enabled": False,
            "schedule.validation.interval_epochs": 0,
            "loss.grad_weighting.task.type": "static",
            "debug.early_exit_after_n_optimizer_steps": updates,
            "debug.jsonl.enabled": False,
            "experiment.log_level_main": "ERROR",
            **{f"schedule.metrics.{kind}_interval": every for kind in ("step", "console", "wandb", "lr", "pipeline")},
            **changes,
        },
    )
    clock, defer, compile_step = Clock(), TrainLog.defer, compilation.compile_step

    def compile_hollow(step: Any, state: Any, batch: Any, placement: Any, name: str, *, donate: bool) -> Any:
        hollow = hollow_step(step, state, batch)
        return clock.timed(compile_step(hollow, state, batch, placement, name, donate=donate))

    def noted(self: TrainLog, completed: int, *arguments: Any, at_end: bool) -> bool:
        is_log_point = defer(self, completed, *arguments, at_end=at_end)
        clock.log_steps |= {completed} if is_log_point else set()
        return is_log_point

    with (
        mock.patch.object(compilation, "compile_step", compile_hollow),
        mock.patch.object(TrainLog, "defer", noted),
    ):
        trainer.run(config, workdir)
    return clock


def row(name: str, clock: Clock) -> dict[str, Any]:
    """Medians and 90th percentiles in milliseconds of plain updates and of log points."""
    dispatch = 1e3 * np.array(clock.dispatch)
    cpu = 1e3 * np.diff(clock.cpu) - dispatch[:-1]  # cpu[k]: between the dispatches of updates k and k + 1
    wall = 1e3 * np.diff(clock.wall)
    steps = np.arange(WARM_UP, len(cpu) - 1)
    held = np.array([step + 1 in clock.log_steps for step in steps])  # `step` counts completed updates
    written = np.array([step in clock.log_steps for step in steps])
    plain = cpu[steps[~held & ~written]]
    points = steps[held & (steps + 1 < len(cpu))]
    log = cpu[points] + cpu[points + 1] - np.median(plain)
    return {
        "written to": name,
        "plain_ms": round(float(np.median(plain)), 3),
        "plain_p90_ms": round(float(np.quantile(plain, 0.9)), 3),
        "log_ms": round(float(np.median(log)), 3),
        "log_p90_ms": round(float(np.quantile(log, 0.9)), 3),
        "dispatch_ms": round(float(np.median(dispatch[WARM_UP:])), 3),
        "plain_wall_ms": round(float(np.median(wall[steps[~held & ~written]])), 3),
        "log_points": len(log),
        "within": bool(np.median(plain) <= PLAIN_LIMIT_MS and np.median(log) <= LOG_LIMIT_MS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=400, help="of each run")
    parser.add_argument("--pairs", type=int, default=20, help="log points of each run, among plain updates")
    parser.add_argument("--model", choices=MODELS, default="mFormerV1-tiny")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        labels = write_labels(directory / "labels.h5")
        with h5py.File(directory / "images.h5", "w") as file:
            file["images"] = np.full((CLASSES[0] * ROWS_PER_SPECIES, IMG_SIZE, IMG_SIZE, 3), 128, np.uint8)
        every = max(2, options.updates // options.pairs)
        for number, (sinks, changes) in enumerate(SINKS.items()):
            workdir = directory / f"run{number}"
            rows.append(row(sinks, measure(options.model, labels, workdir, options.updates, every, changes)))
    print(write_results("host_work", rows, shlex.join(["python", "-m", "benchmarks.host_work", *sys.argv[1:]])))


if __name__ == "__main__":
    main()
