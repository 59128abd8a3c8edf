"""Measures how good trained models are on a public set of real pictures.

    python -m benchmarks.real grocery --data GroceryStoreDataset --out build/real
    python -m benchmarks.real plants head-lite0 control-lite0 --data DIR --out build/real --seeds 0,1,2

SET is one of `sets.SPLITS`, ROW one of `rows.ROWS` (default: those that need no tuning of a trunk). A row begins from
an empty directory: the data set is built, features of every picture are computed once for each trunk, and each seed is
trained, bundled and judged on the test rows. What is made stays in --out; a row with a JSON file is not made again.
Everything is chosen on training and validation rows. Results: `benchmarks/results/real/SET/ROW-SEED.json`, with what
was said of each test row in an .npz file beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import RESULTS
from benchmarks.real.making import Place, make_row
from benchmarks.real.rows import ROWS, TRUNKS, Row
from benchmarks.real.sets import SETS, SPLITS, PublicSet, read
from linnaeus_jax.config.errors import UserError

#: rows that are made where none is named
DEFAULT = ("head-lite0", "head-lite2", "control-lite0", "control-lite2")


def argument_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", metavar="SET", choices=SPLITS, help=", ".join(SPLITS))
    parser.add_argument("rows", metavar="ROW", nargs="*", help=", ".join(ROWS))
    parser.add_argument(
        "--data", type=Path, required=True, help="clone of the set's repository, or the folder of its clones"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for what is made; the same one goes on")
    parser.add_argument("--seeds", default="0,1,2", help="of training, and of the split where it is drawn (0,1,2)")
    parser.add_argument("--weights", default="", help="folder of the MobileNetV2 .tflite files of google-coral")
    parser.add_argument(
        "--torch-python", default=sys.executable, help="that has what the extra bench installs (default: this one)"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="of training by PyTorch (default: the row's)")
    parser.add_argument(
        "--without-latency", action="store_true", help="do not time the answers of the bundle of seed 0"
    )
    parser.add_argument("--results", type=Path, default=RESULTS / "real", help="folder of the JSON files")
    return parser


def expected_minutes(of: PublicSet, rows: Sequence[tuple[Row, int]], out: Path) -> float:
    """CPU-minutes of what is not made yet, roughly."""
    minutes, trunks = 0.0, {name for row, _ in rows if row.how in ("head", "control", "knn") for name in row.trunks}
    for name in trunks:
        if not (out / of.name / f"{name}.features").is_file():
            minutes += of.pictures * (TRUNKS[name].seconds + 0.01) / 60
    # torch is told its minutes
    return minutes + sum(row.minutes * (1 if row.network else max(0.5, of.pictures / 5421)) for row, _ in rows)


def checked_rows(names: Sequence[str], weights: str) -> dict[str, Row]:
    """The rows of these names.

    Raises:
      UserError: no such row, or one whose weights are not named.
    """
    if unknown := [name for name in names if name not in ROWS]:
        raise UserError(f"{unknown[0]!r} is no row; choose among {', '.join(ROWS)}")
    rows = {name: ROWS[name] for name in names or DEFAULT}
    for name, row in rows.items():
        if not weights and any("{weights}" in TRUNKS[trunk].weights for trunk in row.trunks):
            raise UserError(f"{name} needs the .tflite files of google-coral/test_data: give their folder by --weights")
    return rows


def main() -> int:
    """Command line; returns the exit status."""
    args = argument_parser().parse_args()
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        print(f"--seeds is {args.seeds!r}; give numbers such as 0,1,2", file=sys.stderr)
        return 1
    try:
        rows = checked_rows(args.rows, args.weights)
        set_name, scheme = SPLITS[args.set]
        found = read(SETS[set_name], args.data)
        of = found.of
        print(
            f"{of.title}: {of.pictures:,} pictures, licence: {of.licence}; "
            + ", ".join(f"https://{each}" for each in of.repositories)
        )
        torch = args.torch_python, args.minutes
        place = Place(args.set, found, scheme, args.data, args.out, args.results, args.weights, *torch)
        todo = [(name, seed) for name in rows for seed in seeds if not place.result(name, seed).is_file()]
        minutes = expected_minutes(of, [(rows[name], seed) for name, seed in todo], args.out)
        print(f"{len(todo)} of {len(rows) * len(seeds)} results are to be made, about {minutes:.0f} CPU-minutes")
        for name, seed in todo:
            command = f"python -m benchmarks.real {args.set} {name} --data DIR --out DIR --seeds {seed}"
            if "{weights}" in "".join(TRUNKS[trunk].weights for trunk in rows[name].trunks):
                command += " --weights DIR"
            if rows[name].how == "torch":
                command += " --torch-python PYTHON" + (f" --minutes {args.minutes:g}" if args.minutes else "")
            report = make_row(place, name, rows[name], seed, command, timed=not args.without_latency)
            shares = report["figures"]["raw"]
            said = ", ".join(f"{rank} {100 * each['accuracy']:.1f} %" for rank, each in shares.items())
            print(f"{name} seed {seed}: {said}; {report['cost']['cpu_minutes']:.1f} CPU-minutes", flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
