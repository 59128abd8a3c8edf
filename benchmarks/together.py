"""What several runs in one bundle are worth, beside the bundle of each.

    nice python -m benchmarks.together grocery auto5-lite0 --data DIR --out build/real [--seeds 0,1,2]

The runs are trained as a row of `benchmarks.real` is, by seeds of their own on the split of the first.
`linnaeus bundle RUN RUN RUN OUT` puts them into one. Each bundle answers every test row by the most probable path, as
`linnaeus evaluate` asks it. In the table: accuracy, NLL and ECE of each rank, mean size and coverage of the sets for
90 %, bytes, and CPU-milliseconds of a picture, reading included. Answers and probabilities of every row stand in the
.npz file beside the JSON file.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, write_results
from benchmarks.real.making import Place, labels, of_tasks, once, pixels, settings, tasks_of, train
from benchmarks.real.rows import ROWS
from benchmarks.real.sets import SETS, SPLITS, read
from linnaeus_jax.inference.model import Model, load
from linnaeus_jax.inference.quality.evaluating import PATH, Evaluated, Pictures, evaluate_labelled, read_labelled
from linnaeus_jax.metrics.judged import MEASURES
from linnaeus_jax.tools import bundle as bundle_tool

#: pictures that are answered before time is taken
FIRST = 64


def evaluated(bundle: Path, split: Path, images: Path) -> tuple[Model, Evaluated, float]:
    """What a bundle says of the test rows of a labels file, and CPU-milliseconds of a picture."""
    model = load(bundle)
    rows, pictures = read_labelled(model.bundle, split, "test"), Pictures.of(model.bundle, images, split)
    evaluate_labelled(model, rows.take(np.arange(FIRST)), pictures)
    started = time.process_time()
    found = evaluate_labelled(model, rows, pictures)
    return model, found, 1000 * (time.process_time() - started) / len(rows.rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", metavar="SET", choices=SPLITS, help=", ".join(SPLITS))
    parser.add_argument("row", choices=[name for name, row in ROWS.items() if row.how == "pictures" and row.trunks])
    parser.add_argument("--data", type=Path, required=True, help="clone of the set's repository")
    parser.add_argument("--out", type=Path, required=True, help="folder of benchmarks.real for what is made")
    parser.add_argument("--seeds", default="0,1,2", help="of the runs (0,1,2)")
    options = parser.parse_args(arguments)
    set_name, scheme = SPLITS[options.set]
    found, row = read(SETS[set_name], options.data), ROWS[options.row]
    place = Place(options.set, found, scheme, options.data, options.out, RESULTS / "real", "")
    built, _ = pixels(place, row.side)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    split, images, folder = labels(place, built, seeds[0]), built / "images.h5", options.out / place.name
    given = {"data.h5.labels_path": str(split)} | of_tasks(row.settings, tasks_of(built))
    runs, bundles = [], dict[str, Path]()
    for seed in seeds:
        runs.append(folder / f"{options.row}-together-{seed}")
        once(runs[-1], lambda: train(built, runs[-1], settings(place, row.trunks, given), seed), goes_on=True)  # noqa: B023
    for name, members in {**{f"seed {seed}": [run] for seed, run in zip(seeds, runs)}, "together": runs}.items():
        bundles[name] = folder / f"{options.row}-{name.replace(' ', '-')}-bundle"
        if status := bundle_tool.main([*map(str, members), str(bundles[name]), "--force"]):
            return status
    table, arrays = [], dict[str, Any]()
    for name, path in bundles.items():
        model, answers, milliseconds = evaluated(path, split, images)
        judged = answers.judged[PATH]
        values = {what: MEASURES[what](judged) for what in ("accuracy", "nll", "ece")}
        line: dict[str, Any] = {"bundle": name, "CPU-ms": round(milliseconds, 2)}
        line["MB"] = round(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6, 1)
        for place_of, task in enumerate(model.bundle.tasks):
            rank = model.bundle.taxonomy.ranks[task]
            line[rank] = {what: round(float(each[place_of]), 4) for what, each in values.items()}
        line["sets"] = [each for each in answers.sets.numbers() if each["coverage"] == 0.9]
        table.append(line)
        print(line, flush=True)
        arrays |= {f"{name}/predicted": judged.predicted.astype(np.int16), "label": judged.label.astype(np.int16)}
        arrays |= {f"{name}/probability": judged.probability.astype(np.float16), "row": judged.row}
    shown = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.together", *shown])
    command = command.replace(str(options.data), "DIR").replace(str(options.out), "DIR")
    write_results(f"together_{options.set}", table, command)
    np.savez_compressed(RESULTS / f"together_{options.set}.npz", **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
