"""What looking inside costs: updates under the overflow detector and with the event log, against the same without.

    python -m benchmarks.debugging [detector] [gradients] [event_log] [--model mFormerV1-sm] [--pairs 12]

  detector   every update computed once more, its module calls judged on the host before it is made
  gradients  the same with the gradients of every call
  event_log  ten updates, one of them logged: measured in the graph, read back and written as JSON lines

Without a name, all of them run. The update is the compiled one of a real run, and the host does what a run's host does.
`ratio` = time over the baseline's, median over interleaved rounds with quartiles; `control` = the baseline against
itself, whose distance from 1 is the noise. `change` is how far the parameters are from those of the run without after
ten updates of the same data, relative to the length of the way that they went: recording must not change what is
learned. Images are random, labels generated. Writes results/debugging.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax

from benchmarks.common import add_names, interleaved, write_results
from benchmarks.step_common import (
    BARE,
    MODELS,
    Built,
    Case,
    Stepper,
    build,
    default_cases,
    ratio_row,
    repeated,
    write_labels,
)
from linnaeus_jax.debugging.event_log import DebugEventLog
from linnaeus_jax.step import probes
from linnaeus_jax.step.placement import fetch

COMPARED_UPDATES = 10
#: updates of full length, so that ten of them go somewhere
PLAIN = {**BARE, "lr_scheduler.warmup_steps": 0}
DETECTOR = {"debug.underflow_overflow.enabled": True}
#: name -> (settings, updates of one measurement, greatest ratio allowed)
SUBJECTS: dict[str, tuple[dict[str, Any], int, float | None]] = {
    "detector": (DETECTOR, 1, None),
    "gradients": ({**DETECTOR, "debug.underflow_overflow.gradients": True}, 1, None),
    "event_log": ({"debug.jsonl.enabled": True}, 10, 1.02),
}


class WatchedStepper(Stepper):
    """Updates with what the trainer's host does beside them for the sake of debugging."""

    def __init__(self, built: Built, name: str, folder: Path) -> None:
        super().__init__(built, name)
        self.debug, self.probes = built.debug, built.program.settings.probes
        if built.debug.config.debug.jsonl.enabled:
            built.debug.describe(built.program, lambda step: step)
            built.debug.event_log = DebugEventLog(folder, 0)
        built.debug.compile(built.program, self.state, self.batch, built.placement)

    def __call__(self) -> Any:
        update, batch = self.count, self.batch
        with self.debug.around_update(update, self.compiled, self.state, batch, batch):
            found = super().__call__()
        state, outputs = found
        self.debug.after_update(update, state, outputs, batch)
        due = probes.due(self.probes, update)
        if due:
            probes.consume(due, update, 0, fetch(outputs.probes))
        return found


def change_of_course(baseline: Built, watched: Built, folder: Path) -> float:
    """Distance of the two runs' parameters after `COMPARED_UPDATES`, over the distance that the baseline went."""
    steppers = [baseline.stepper("baseline"), WatchedStepper(watched, "watched", folder)]
    start = jax.device_get(steppers[0].state.params)
    for stepper in steppers:
        for _ in range(COMPARED_UPDATES):
            stepper()
    without, with_it = (jax.device_get(stepper.state.params) for stepper in steppers)

    def distance(left: Any, right: Any) -> float:
        return float(optax.tree.norm(jax.tree.map(lambda a, b: a.astype("float64") - b, left, right)))

    return distance(with_it, without) / distance(without, start)


def measure(name: str, case: Case, pairs: int, labels: Path) -> dict[str, Any]:
    """One row of the table."""
    changes, updates, limit = SUBJECTS[name]
    baseline, watched = build(case, labels, PLAIN), build(case, labels, {**PLAIN, **changes})
    change = change_of_course(baseline, watched, labels.parent / f"{name}_change")
    off = baseline.stepper("off")
    on: Callable[[], object] = WatchedStepper(watched, name, labels.parent / name)
    times = interleaved(repeated(off, updates), repeated(on, updates), pairs)
    about = {"updates": updates, "change": float(f"{change:.2g}")}
    return {**case.row(), **about, **ratio_row(f"{name} / off", times, updates, limit)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, SUBJECTS)
    parser.add_argument("--pairs", type=int, default=12, help="interleaved rounds, at least 2 (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, default="mFormerV1-sm", help="default: %(default)s")
    parser.add_argument("--img-size", type=int, help="side of the images in pixels")
    parser.add_argument("--batch", type=int, help="rows of an update")
    args = parser.parse_args(argv)
    typed = sys.argv[1:] if argv is None else argv
    known = {case.model: case for case in default_cases()}
    case = known.get(args.model, dataclasses.replace(default_cases()[-1], model=args.model))
    changes = {key: getattr(args, key) for key in ("img_size", "batch") if getattr(args, key) is not None}
    case = dataclasses.replace(case, **changes)
    with tempfile.TemporaryDirectory() as directory:
        labels = write_labels(Path(directory) / "labels.h5")
        rows = [measure(name, case, args.pairs, labels) for name in args.names]
    print(write_results("debugging", rows, shlex.join(["python", "-m", "benchmarks.debugging", *typed])))


if __name__ == "__main__":
    main()
