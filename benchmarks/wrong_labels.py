"""Measures how many wrong labels of a public set are found, beside cleanlab on the same probabilities.

    python -m benchmarks.wrong_labels grocery --data GroceryStoreDataset --out build/real --cleanlab-python PYTHON

Labels of 5 and 10 % of the rows are changed by a seed: to a sister, a class below the same coarser one, or to the class
that heads on the true labels confuse most with the true one (so too where there is no sister). Measured is the
precision among as many rows of the list as were changed. cleanlab, of which PYTHON has version 2.9, gets the
probabilities of the finest rank out of folds that `find_label_issues` here begins with: its own `find_label_issues` as
it comes, continued by its quality scores, and whichever of its scores is best by the truth, which nobody would know.
Features of the pictures are those of `benchmarks.real`, made once. Results: `benchmarks/results/wrong_labels_SET.json`,
with the answers for every row in an .npz file beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, write_results
from benchmarks.real.labels import read_labels
from benchmarks.real.making import Place, features, pixels, tasks_of
from benchmarks.real.rows import TRUNKS
from benchmarks.real.sets import SETS, SPLITS, read
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.inference.paths import log_softmax
from linnaeus_jax.inference.wrong_labels.label_issues import find_label_issues
from linnaeus_jax.inference.wrong_labels.labelled_features import LabelledFeatures, of_data_set
from linnaeus_jax.learning.regression import fit_ranks

SHARES, KINDS = (0.05, 0.1), ("sister", "confused")
#: what the other Python runs: of label [N] and p [N, C] the scores [N] of all of its ways, the lower the worse
CLEANLAB = """
import sys, warnings, numpy as np
warnings.filterwarnings("ignore")
import cleanlab
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
given = np.load(sys.argv[1])
label, p = given["label"], given["p"]
found = {"version": np.array(cleanlab.__version__)}
for method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
    found[method] = get_label_quality_scores(label, p, method=method)
for by in ("self_confidence", "normalized_margin"):
    score = found[by].copy()
    rows = find_label_issues(label, p, return_indices_ranked_by=by, n_jobs=1)
    score[rows] = np.arange(len(rows)) - len(rows)
    found["find_label_issues " + by] = score
np.savez(sys.argv[2], **found)
"""
DEFAULT = "find_label_issues self_confidence"


def changed(
    label: NDArray[np.int64], p: NDArray[np.float64], share: float, kind: str, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels [N, T] of which a share is wrong, and which ones.

    Args:
      p: [N, C], of the classes of the finest rank, by heads that have seen the true labels of other rows.
      kind: one of `KINDS`.
    """
    rng, finest = np.random.default_rng(seed), label[:, 0].copy()
    classes, first = np.unique(finest, return_index=True)
    path, taken = dict(zip(classes.tolist(), label[first])), np.zeros((p.shape[1], p.shape[1]))
    np.add.at(taken, finest, p)
    np.fill_diagonal(taken, -1.0)
    for row in rng.permutation(len(label))[: round(share * len(label))].tolist():
        own = int(label[row, 0])
        sisters = [each for each in classes.tolist() if path[each][1] == path[own][1] and each != own]
        finest[row] = rng.choice(sisters) if kind == "sister" and sisters else taken[own].argmax()
    return np.stack([path[each] for each in finest.tolist()]), finest != label[:, 0]


def precision(score: NDArray[np.floating], wrong: NDArray[np.bool_]) -> float:
    """Share of wrong labels among as many rows, the lowest scores first, as there are wrong ones."""
    return float(wrong[np.argsort(score, kind="stable")[: wrong.sum()]].mean())


def cleanlab(python: str, label: NDArray[np.int64], p: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Scores [N] of each of its ways, and `version`."""
    classes, label = np.unique(label, return_inverse=True)
    p = p[:, classes] / p[:, classes].sum(axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "given.npz", Path(folder) / "found.npz"
        np.savez(given, label=label, p=p)
        subprocess.run([python, "-c", CLEANLAB, str(given), str(found)], check=True, stdout=subprocess.DEVNULL)
        with np.load(found) as arrays:
            return {name: arrays[name] for name in arrays.files}


def measure(
    rows: LabelledFeatures, seeds: Sequence[int], python: str
) -> tuple[list[dict[str, Any]], dict[str, NDArray[np.generic]]]:
    """A line for each kind, share and seed, and arrays of each row."""
    task, sizes, lines, arrays = rows.tasks[0], rows.tree.num_classes, [], dict[str, NDArray[np.generic]]()
    truth = np.exp(log_softmax(fit_ranks(rows.features, rows.label, sizes)[task].logits))
    for kind in KINDS:
        for share in SHARES:
            for seed in seeds:
                label, wrong = changed(rows.label, truth, share, kind, seed)
                started = time.process_time()
                logits = {of: fit.logits for of, fit in fit_ranks(rows.features, label, sizes).items()}
                found = find_label_issues(dataclasses.replace(rows, label=label, logits=logits))
                seconds = time.process_time() - started
                theirs = cleanlab(python, label[:, 0], np.exp(log_softmax(logits[task])))
                version = str(theirs.pop("version"))
                shares = {name: precision(score, wrong) for name, score in theirs.items()}
                best = max(shares, key=shares.__getitem__)
                line: dict[str, Any] = {"kind": kind, "share": share, "seed": seed, "changed": int(wrong.sum())}
                line |= {"here": round(precision(found.score, wrong), 4), "cleanlab": round(shares[DEFAULT], 4)}
                line |= {"its best score": round(shares[best], 4), "best": best, "version": version}
                line |= {"at issue": int(found.at_issue.sum())}
                line |= {"of them wrong": round(float(wrong[found.at_issue].mean()), 4)}
                lines.append(line | {"CPU-seconds": round(seconds, 1)})
                print(json.dumps(lines[-1]), flush=True)
                name = f"{kind}-{share:g}-{seed}"
                arrays[f"{name}/label"] = label[:, 0].astype(np.int32)
                arrays[f"{name}/score"] = found.score.astype(np.float32)
                arrays[f"{name}/cleanlab"] = theirs[DEFAULT].astype(np.float32)
    return lines, arrays


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", metavar="SET", choices=SPLITS, help=", ".join(SPLITS))
    parser.add_argument("--data", type=Path, required=True, help="clone of the set's repository")
    parser.add_argument("--out", type=Path, required=True, help="folder of benchmarks.real for what is made")
    parser.add_argument("--trunk", choices=TRUNKS, default="lite0", help="whose features are used (lite0)")
    parser.add_argument("--seeds", default="0,1,2", help="of the changes (0,1,2)")
    parser.add_argument("--cleanlab-python", default=sys.executable, help="that has cleanlab (default: this one)")
    args = parser.parse_args()
    try:
        name, scheme = SPLITS[args.set]
        place = Place(args.set, read(SETS[name], args.data), scheme, args.data, args.out, RESULTS / "real", "")
        values, _ = features(place, args.trunk)
        labels = pixels(place, TRUNKS[args.trunk].size)[0] / "labels.h5"
        tasks, ids, x = tasks_of(labels.parent), read_identifiers(str(labels)), np.load(values)
        known = read_labels(labels, tasks)[0][:, 0] >= 0  # others have no sister
        rows = of_data_set(labels, tasks, (ids[known].tolist(), x[known]))
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except (UserError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    lines, arrays = measure(rows, seeds, args.cleanlab_python)
    command = f"python -m benchmarks.wrong_labels {args.set} --data DIR --out DIR --seeds {args.seeds}"
    command += f" --trunk {args.trunk} --cleanlab-python PYTHON"
    of = {key: [line[key] for line in lines] for key in ("here", "cleanlab", "its best score")}
    means = {key: round(float(np.mean(shares)), 4) for key, shares in of.items()}
    write_results(f"wrong_labels_{args.set}", lines, command, {"trunk": args.trunk, "means": means})
    kept: dict[str, Any] = {"ids": np.array(rows.ids), **arrays}
    np.savez_compressed(RESULTS / f"wrong_labels_{args.set}.npz", **kept)
    print(json.dumps(means))
    return 0


if __name__ == "__main__":
    sys.exit(main())
