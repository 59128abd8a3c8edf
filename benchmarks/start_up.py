"""How long a run takes to start: imports, and the first update after them, with and without compiled programs on disk.

    python -m benchmarks.start_up [--pairs 12] [--name start_up] [--config.model.variant=sm ...]

The run is that of `configs/quickstart.py` on the demo data, with the keys that are given. Every round starts it three
times: with an empty `env.compilation_cache_dir`, and twice with what that start has left there. `ratio` is the first
update of the second start over that of the cold one, `control` third over second; limit 0.25. `step` traces and
compiles or loads the train step, `initial_state` makes the state of step 0; CPU seconds are of all threads.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import other_commit
from benchmarks.common import write_results
from linnaeus_jax.tools import make_demo

LIMIT = 0.25
STARTS = ("cold", "second", "third")


def start(directory: Path, cache: Path, keys: Sequence[str], package: Path = other_commit.HERE) -> dict[str, float]:
    """Seconds of one start of a run in a new run directory, with the package of a checkout."""
    config = package / "configs" / "quickstart.py"
    with tempfile.TemporaryDirectory(dir=directory) as run:
        given = [f"--config={config}", f"--workdir={run}", f"--config.env.compilation_cache_dir={cache}", *keys]
        command = [sys.executable, "-m", "benchmarks.start_worker", "--", *given]
        env = other_commit.environment(package)
        ended = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"the run failed:\n{ended.stderr[-2000:]}")
    seconds: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


def rows_of(directory: Path, pairs: int, keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each of `STARTS`: medians, and the ratio to the start before."""
    make_demo.main(["--out", str(directory / "data" / "demo")])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in STARTS}
    for _ in range(pairs):
        with tempfile.TemporaryDirectory(dir=directory) as cache:
            for name in STARTS:
                found[name].append(start(directory, Path(cache), keys))

    def ratio(key: str, name: str, to: str) -> float:
        pairs = zip(found[name], found[to], strict=True)
        return round(statistics.median(one[key] / other[key] for one, other in pairs), 3)

    rows = []
    for name in STARTS:
        row: dict[str, Any] = {"start": name}
        row |= {key: round(statistics.median(each[key] for each in found[name]), 2) for key in found[name][0]}
        if name == "second":
            row |= {"ratio": ratio("first_update", name, "cold"), "cpu_ratio": ratio("first_update_cpu", name, "cold")}
            row |= {"control": ratio("first_update", "third", name), "limit": LIMIT}
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="rounds (default: %(default)s)")
    parser.add_argument("--name", default="start_up", help="of the file in results/ (default: %(default)s)")
    options, keys = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as name:
        rows = rows_of(Path(name), options.pairs, keys)
    given = sys.argv[1:] if argv is None else argv
    print(write_results(options.name, rows, shlex.join(["python", "-m", "benchmarks.start_up", *given])))


if __name__ == "__main__":
    main()
