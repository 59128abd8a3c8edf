"""Runs a part of the campaign and prints its table; started again, it goes on with the cases that have no result.

    python -m tests.campaign kills|inputs|damage|faults|power|http|pictures [--out runs/campaign] [--seed 0] [--cases N]

Writes `PART.jsonl` with the end of every case into `--out`; directories of cases that ended badly stay there.
Ends with 1 if a case ended badly.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.campaign.case import Case, Outcome

PARTS = ("kills", "inputs", "damage", "faults", "power", "http", "pictures")


def end_of(case: Case, directory: Path) -> Outcome:
    """Runs a case in `directory`, which stays only if the end is bad."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        outcome = case.run(directory)
    except Exception as error:  # a case that cannot be run is as bad as one that fails
        outcome = Outcome(False, "the case itself failed", f"{type(error).__name__}: {error}")
    if outcome.good:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def table(part: str, results: list[dict[str, str | bool | float]]) -> Table:
    """How many cases of each group ended in which way; bad ends are marked with !."""
    ends = Counter((str(r["group"]), ("" if r["good"] else "! ") + str(r["what"])) for r in results)
    good = sum(bool(r["good"]) for r in results)
    found = Table(title=f"{part}: {len(results)} cases, {good} ended as they shall")
    for name in ("group", "end"):
        found.add_column(name)
    found.add_column("cases", justify="right")
    for (group, what), count in sorted(ends.items()):
        found.add_row(group, what, str(count))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, help="only the first N")
    args = parser.parse_args(argv)
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"{args.part}.jsonl"
    done = {}
    if log.exists():
        done = {(r["seed"], r["name"]): r for r in map(json.loads, log.read_text().splitlines())}
    made = importlib.import_module(f"tests.campaign.{args.part}").cases(args.seed, out / f"{args.part}.made")
    cases = list(itertools.islice(made, args.cases))
    left = [case for case in cases if (args.seed, case.name) not in done]
    for number, case in enumerate(track(left, f"{args.part}, {len(cases) - len(left)} done before")):
        started = time.monotonic()
        outcome = end_of(case, out / f"{args.part}.{args.seed}.{len(done) + number}")
        result = {
            "seed": args.seed,
            "group": case.group,
            "name": case.name,
            "good": outcome.good,
            "what": outcome.what,
            "detail": outcome.detail,
            "seconds": round(time.monotonic() - started, 2),
        }
        with log.open("a") as file:
            file.write(json.dumps(result) + "\n")
        done[args.seed, case.name] = result
    results = [done[args.seed, case.name] for case in cases]
    console = Console()
    console.print(table(args.part, results))
    for result in results:
        if not result["good"]:
            console.print(f"{result['name']}: {result['what']}\n{result['detail']}", markup=False)
    return int(any(not result["good"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
