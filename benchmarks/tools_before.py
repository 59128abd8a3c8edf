"""How fast the tools of the working tree are beside those of another commit: building, predicting, serving.

    python -m benchmarks.tools_before BUNDLE PICTURES [building] [predicting] [serving] [--baseline 2f7c967]

  building    build_dataset of a table with a column of dates and one of places, at 128 px, from an empty folder
  predicting  predict over all pictures, to a CSV file
  serving     a server's answers to requests of one picture, eight at once, from when it is ready

BUNDLE is one that both commits read, PICTURES a folder of JPEG files. Each tool is a process, and both share what is
compiled on disk, as a second start does. `ratio` is the time of the other commit over that of the working tree, the
median over alternating rounds with quartiles; `control` the working tree against itself, whose distance from 1 is the
noise. Writes results/tools_before.json (--name).
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import other_commit
from benchmarks.common import add_names, compared, write_results

BASELINE = "2f7c967"  # the last commit before the subpackages of building and inference were put in order
CLIENTS, ROUNDS, SIZE = 8, 3, 128


def tool(package: Path, cache: Path, name: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Starts a tool of a checkout."""
    return subprocess.Popen(
        [sys.executable, "-m", f"linnaeus_jax.tools.{name}", *map(str, arguments)],
        env=other_commit.environment(package, JAX_COMPILATION_CACHE_DIR=str(cache)),
        cwd=package,
        stdout=subprocess.DEVNULL,
    )


def seconds_of(process: subprocess.Popen[bytes]) -> float:
    """Until a tool that has just been started ends.

    Raises:
      SystemExit: it failed; its own message stands above.
    """
    started = time.perf_counter()
    if process.wait():
        raise SystemExit(f"{process.args!r} failed")
    return time.perf_counter() - started


def building(package: Path, scratch: Path, bundle: Path, pictures: list[Path]) -> float:
    """Seconds of a build."""
    table = scratch / "table.csv"
    if not table.is_file():
        with table.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("picture", "species", "genus", "date", "latitude", "longitude"))
            for place, picture in enumerate(pictures):
                kind = place % 20
                where = place % 80, place % 170
                rows.writerow((picture.name, f"Genus{kind // 4} kind{kind}", f"Genus{kind // 4}", "2021-05-04", *where))
    out = ["--out", scratch / "built", "--size", SIZE, "--force"]
    return seconds_of(tool(package, scratch, "build_dataset", "--table", table, "--pictures", pictures[0].parent, *out))


def predicting(package: Path, scratch: Path, bundle: Path, pictures: list[Path]) -> float:
    """Seconds of a prediction."""
    out = scratch / "predicted.csv"
    out.unlink(missing_ok=True)
    return seconds_of(tool(package, scratch, "predict", bundle, pictures[0].parent, "--out", out))


def serving(package: Path, scratch: Path, bundle: Path, pictures: list[Path]) -> float:
    """Seconds of `ROUNDS` answers to each picture, from a server that is ready."""
    port = 8765
    server = tool(package, scratch, "serve", bundle, "--port", port)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)

        def ask(picture: Path) -> None:
            body = json.dumps({"images": [b64encode(picture.read_bytes()).decode()]}).encode()
            request = urllib.request.Request(f"{url}/predict", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=60).read()

        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(ask, (pictures * CLIENTS)[: 16 * CLIENTS]))
            started = time.perf_counter()
            list(clients.map(ask, pictures * ROUNDS))
            return time.perf_counter() - started
    finally:
        server.terminate()
        server.wait()


PARTS: dict[str, Callable[[Path, Path, Path, list[Path]], float]] = {
    part.__name__: part for part in (building, predicting, serving)
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("pictures", type=Path)
    add_names(parser, PARTS)
    parser.add_argument("--baseline", default=BASELINE, help=f"the other commit ({BASELINE})")
    parser.add_argument("--pairs", type=int, default=4, help="rounds (4)")
    parser.add_argument("--name", default="tools_before")
    args = parser.parse_args()
    bundle, pictures = args.bundle.resolve(), sorted(args.pictures.resolve().glob("*.jp*g"))
    rows = []
    with other_commit.worktree(args.baseline) as before, tempfile.TemporaryDirectory() as directory:
        for name in args.names:
            given = Path(directory), bundle, pictures
            ours, theirs = (functools.partial(PARTS[name], tree, *given) for tree in (other_commit.HERE, before))
            found = compared(ours, theirs, args.pairs)
            rows.append({"part": name, "pictures": len(pictures), **found.row()})
    command = f"python -m benchmarks.tools_before {' '.join(sys.argv[3:])}".strip()
    write_results(args.name, rows, command, {"baseline": args.baseline, "commit": other_commit.here()})


if __name__ == "__main__":
    main()
