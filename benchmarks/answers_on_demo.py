"""How good the answers of a model are on the validation rows of its run: calibration, paths, roll-up, restriction.

    python -m benchmarks.answers_on_demo runs/quickstart [--splits 20] [--lists 200]

The rows are halved at random, 20 times; temperatures are fitted on one half, and everything is measured on the other.
For every rank, with means over the splits: `rows`, labelled there on all rows; `acc`, percent right among them, of
every rank by itself (`rank`) and of the most probable path (`path`); `NLL` in nats and `ECE` (15 bins) of the softmax
of the logits (`raw`), of every rank with its temperature (`rank`), of the path before (`path0`) and after (`path`)
temperatures were fitted; `worse`, in how many splits the NLL was higher after than `raw`.

Then, over all rows: the share of paths that are one branch of the tree, what is answered at which least probability
(by temperatures of the other half), and how many of random lists of taxa given as `restrict` let another class appear.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration, bundle_of_run
from linnaeus_jax.inference.paths import some
from linnaeus_jax.inference.quality.calibration import fit, judge
from linnaeus_jax.inference.quality.measuring import WITH, Rows, measure, read_rows
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.metrics.judged import THRESHOLDS, accuracy, ece, nll, roll_up

Arrays = dict[str, NDArray[np.float64]]
NAME = "answers_on_demo"
#: rows of which the answers to every restricted list are looked at
RESTRICTED_ROWS = 32


def halves(bundle: Bundle, rows: Rows, splits: int) -> Arrays:
    """ "acc/rank", "NLL/raw" ... -> [splits, T], measured on the half that nothing was fitted on."""
    none, found = Calibration.none(bundle.tasks), []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(rows.labels))
        fitting, rest = np.array_split(order, 2)
        fitted = fit(some(rows.logits[WITH], fitting), rows.labels[fitting], bundle.taxonomy)
        logits, labels = some(rows.logits[WITH], rest), rows.labels[rest]
        values: Arrays = {}
        for name, calibration, consistency in (
            ("raw", none, "documented"),
            ("rank", fitted, "documented"),
            ("path0", none, "path"),
            ("path", fitted, "path"),
        ):
            judged = judge(logits, labels, Answers(bundle.taxonomy, calibration), consistency)
            values |= {f"NLL/{name}": nll(judged), f"ECE/{name}": ece(judged), f"acc/{name}": accuracy(judged)}
        found.append(values)
    return {name: np.stack([values[name] for values in found]) for name in found[0]}


def by_rank(bundle: Bundle, rows: Rows, measured: Arrays) -> list[dict[str, Any]]:
    """One line per rank, coarsest first."""
    lines = []
    for place in reversed(range(len(bundle.tasks))):
        line: dict[str, Any] = {
            "rank": bundle.taxonomy.ranks[bundle.tasks[place]],
            "rows": int((rows.labels[:, place] >= bundle.taxonomy.first).sum()),
        }
        for name in ("rank", "path"):
            line[f"acc {name}"] = float(f"{100 * measured[f'acc/{name}'][:, place].mean():.5g}")
        for what in ("NLL", "ECE"):
            for name in ("raw", "rank", "path0", "path"):
                line[f"{what} {name}"] = float(f"{measured[f'{what}/{name}'][:, place].mean():.4g}")
        for name in ("rank", "path"):
            worse = measured[f"NLL/{name}"][:, place] > measured["NLL/raw"][:, place]
            line[f"worse {name}"] = int(worse.sum())
        lines.append(line)
    return lines


def consistency(bundle: Bundle, best: NDArray[np.int32]) -> float:
    """Share of paths [N, T] whose classes are one branch: each is the parent of the next, nothing known below null."""
    first, agree = bundle.taxonomy.first, np.ones(len(best), bool)
    for place, task in enumerate(bundle.tasks[:-1]):
        own, above = best[:, place], best[:, place + 1]
        parent = np.maximum(bundle.taxonomy.tree.parent[task][np.maximum(own, 0)], first - 1)
        agree &= (own < first) | (parent == above)
    return float(agree.mean())


def leaking_lists(bundle: Bundle, rows: Rows, lists: int) -> int:
    """How many of random lists of one to five taxa of any rank let a class appear that they exclude."""
    rng, leaks, taxonomy = np.random.default_rng(0), 0, bundle.taxonomy
    answers = Answers(taxonomy, Calibration.none(bundle.tasks))
    taxa = np.concatenate([taxonomy.classes[task][taxonomy.first :] for task in bundle.tasks])
    for _ in range(lists):
        chosen = some(rows.logits[WITH], rng.choice(len(rows.labels), min(RESTRICTED_ROWS, len(rows.labels)), False))
        wanted = rng.choice(taxa, int(rng.integers(1, 6)), replace=False).tolist()
        allowed = taxonomy.allowed(wanted)
        known = {int(taxonomy.classes[task][i]) for task, each in allowed.items() for i in np.flatnonzero(each)}
        leaked = False
        for kind in ("path", "documented"):
            options = answers.options(restrict=wanted, consistency=kind, top_k=10**6)
            _, by_task = answers.probabilities(chosen, options)
            leaked |= any(by_task[task][:, ~allowed[task]].any() for task in bundle.tasks)
            leaked |= any(not named(one) <= known | {0} for one in answers(chosen, options))
        leaks += leaked
    return leaks


def named(prediction: Prediction) -> set[int]:
    """Taxon ids that a prediction shows; 0 for unknown."""
    listed = [taxon for taxa in prediction.top.values() for taxon in taxa]
    return {taxon.taxon_id for taxon in [*prediction.path, *listed, *filter(None, [prediction.answer])]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run whose data are where its configuration says")
    parser.add_argument("--checkpoint", default="best", help="best (default), newest or a step")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--lists", type=int, default=200)
    options = parser.parse_args()
    try:
        bundle = bundle_of_run(options.run, options.checkpoint)
        rows = read_rows(bundle)
    except UserError as error:
        sys.exit(str(error))
    measured = measure(rows, bundle)
    paths = measured.judged[WITH, "paths"]
    rolled = []
    for each in roll_up(paths, THRESHOLDS, bundle.taxonomy.first):
        shares = {
            f"% {bundle.taxonomy.ranks[task]}": 100 * s for task, s in zip(bundle.tasks, each.shares, strict=True)
        }
        line = {"min_confidence": each.threshold, **dict(reversed(shares.items()))}
        line |= {"% none": 100 * each.unanswered, "% errors": 100 * each.error}
        rolled.append({name: float(f"{value:.4g}") for name, value in line.items()})
    details = {
        "step": bundle.facts["step"],
        "validation rows": len(rows.labels),
        "splits": options.splits,
        "paths that are one branch": consistency(bundle, paths.predicted),
        "random lists": options.lists,
        "lists that leak": leaking_lists(bundle, rows, options.lists),
        "roll-up": rolled,
    }
    command = f"python -m benchmarks.{NAME} RUN {shlex.join(sys.argv[2:])}".strip()
    common.write_results(NAME, by_rank(bundle, rows, halves(bundle, rows, options.splits)), command, details)
    for name, value in details.items():
        for line in value if isinstance(value, list) else [value]:
            print(f"{name}: {line}")


if __name__ == "__main__":
    main()
