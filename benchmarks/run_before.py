"""How fast runs of the working tree start, save and restore beside those of another commit.

    python -m benchmarks.run_before [starting] [checkpoints] [--baseline f45f064e] [--model mFormerV1-sm]

  starting     a run of configs/quickstart.py on the demo data from its process to its first update, compiled before
  checkpoints  of the model's state with AdamW and a moving average: how long the loop waits, what is written in the
               background, and restoring right after that

Each side of `checkpoints` is a process that lives for all rounds. `ratio` is the time of the other commit
over that of the working tree, the median over alternating rounds with quartiles; `control` the working tree against
itself, whose distance from 1 is the noise; limit 0.97. Writes results/run_before.json (--name).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import other_commit, start_up
from benchmarks.common import Ratios, add_names, compared, write_results
from benchmarks.step_common import MODELS
from linnaeus_jax.tools import make_demo

BASELINE = "f45f064e"  # the last commit before instruments stood beside the step
LIMIT = 0.97


def starting(before: Path, scratch: Path, model: str, pairs: int) -> dict[str, Ratios]:
    """From the start of a run to its first update, imports included."""
    make_demo.main(["--out", str(scratch / "data" / "demo")])

    def seconds(package: Path, cache: str) -> float:
        found = start_up.start(scratch, scratch / cache, (), package)
        return found["imports"] + found["first_update"]

    ours, theirs = functools.partial(seconds, other_commit.HERE, "ours"), functools.partial(seconds, before, "theirs")
    return {"start": compared(ours, theirs, pairs)}


def checkpoints(before: Path, scratch: Path, model: str, pairs: int) -> dict[str, Ratios]:
    """What the loop waits for, what goes on behind it, and restoring."""
    with contextlib.ExitStack() as stack:

        def rounds(package: Path) -> Iterator[dict[str, float]]:
            child = stack.enter_context(other_commit.start("saving_worker", [model], package))
            assert child.stdin is not None
            assert child.stdout is not None
            stack.callback(child.stdin.close)  # which ends it
            while True:
                print(file=child.stdin, flush=True)
                line = child.stdout.readline()
                if not line:
                    raise SystemExit(f"benchmarks/saving_worker.py failed with the packages of {package}")
                yield json.loads(line)

        ours, theirs = rounds(other_commit.HERE), rounds(before)
        found: tuple[list[dict[str, float]], ...] = [], []

        def wait(of: Iterator[dict[str, float]], into: list[dict[str, float]]) -> float:
            into.append(next(of))
            return into[-1]["wait"]

        ratios = {"wait": compared(lambda: wait(ours, found[0]), lambda: wait(theirs, found[1]), pairs)}
    for measure in ("background", "restore"):  # of the same rounds, in the same order
        one, other = (iter([seconds[measure] for seconds in side]) for side in found)
        ratios[measure] = compared(functools.partial(next, one), functools.partial(next, other), pairs)
    return ratios


PARTS: dict[str, Callable[[Path, Path, str, int], dict[str, Ratios]]] = {
    part.__name__: part for part in (starting, checkpoints)
}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, PARTS)
    parser.add_argument("--baseline", default=BASELINE, help="the other commit (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, default="mFormerV1-sm", help="whose state is saved")
    parser.add_argument("--pairs", type=int, default=10, help="rounds (default: %(default)s)")
    parser.add_argument("--name", default="run_before", help="of the file in results/ (default: %(default)s)")
    args = parser.parse_args(argv)
    rows = []
    with other_commit.worktree(args.baseline) as before, tempfile.TemporaryDirectory() as directory:
        for name in args.names:
            for measure, ratios in PARTS[name](before, Path(directory), args.model, args.pairs).items():
                rows.append({"measure": measure, **ratios.row(), "limit": LIMIT})
    given = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "benchmarks.run_before", *given])
    write_results(args.name, rows, command, {"baseline": args.baseline, "commit": other_commit.here()})


if __name__ == "__main__":
    main()
