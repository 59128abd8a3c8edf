"""Whether pictures that `predict --queue` names are worth more, once they are labelled, than random ones.

    python -m benchmarks.labelling plants --features lite0.features --labels pixels-224/labels.h5

From 200 random labels on, a budget is reached by labelling what the queue names of the rest, or random pictures, and a
logistic regression (scikit-learn, in the extra `bench`) of stored features is fitted each time. Test rows are every
fifth of a class. Results: `benchmarks/results/labelling_NAME.json`, means and deviations of five seeds, per cent.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import write_results
from linnaeus_jax.inference.files.queue import KEPT, Unsure, chosen, unsure

BUDGETS, SEEDS, COMPONENTS = (200, 400, 800, 1600), 5, 256
#: (features of the rest, probabilities [N, C], training rows of each class, how many, rng) -> which of the rest
Choice = Callable[[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64], int, np.random.Generator], NDArray]


def by_queue(
    x: NDArray[np.float32], probability: NDArray[np.float64], rows: NDArray[np.float64], count: int, _: object
) -> NDArray[np.int64]:
    """As `predict --queue`."""
    found = unsure(probability, rows, x)
    kept = np.argsort(-found.uncertainty, kind="stable")[: KEPT * count]
    some = Unsure(found.uncertainty[kept], found.rarity[kept], found.vector[kept])
    return kept[chosen(some, count)]


def at_random(x: NDArray[np.float32], _: object, __: object, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Any of them."""
    return rng.choice(len(x), count, replace=False)


def measured(x: NDArray[np.float32], label: NDArray[np.int64], choose: Choice, seed: int) -> list[tuple[float, float]]:
    """Accuracy and mean of classes on the test rows at each budget."""
    from sklearn.linear_model import LogisticRegression

    rng, order = np.random.default_rng(seed), np.argsort(label, kind="stable")
    test = np.zeros(len(label), bool)
    test[order[::5]] = True
    pool = np.flatnonzero(~test)
    z = (x - x[pool].mean(axis=0)) / (x[pool].std(axis=0) + 1e-6)
    z = z @ np.linalg.svd(z[pool[:4000]], full_matrices=False)[2][:COMPONENTS].T
    rows, found = rng.choice(pool, BUDGETS[0], replace=False), []
    for budget, following in zip(BUDGETS, (*BUDGETS[1:], 0)):
        assert len(rows) == budget
        classes, target = np.unique(label[rows], return_inverse=True)
        probability = np.zeros((len(z), label.max() + 1))
        with warnings.catch_warnings(action="ignore"):
            fit = LogisticRegression(C=0.1, max_iter=60).fit(z[rows], target)
        probability[:, classes] = fit.predict_proba(z)
        right = probability[test].argmax(axis=1) == label[test]
        each = [right[label[test] == one].mean() for one in np.unique(label[test])]
        found.append((100 * float(right.mean()), 100 * float(np.mean(each))))
        if following:
            rest = np.setdiff1d(pool, rows)
            counts = np.bincount(label[rows], minlength=label.max() + 1).astype(float)
            rows = np.concatenate([rows, rest[choose(x[rest], probability[rest], counts, following - budget, rng)]])
    return found


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the set")
    parser.add_argument("--features", type=Path, required=True, help="a row for each of the labels file, as .npy")
    parser.add_argument("--labels", type=Path, required=True, help="labels.h5; the finest rank is labelled")
    args = parser.parse_args()
    x = np.load(args.features).astype(np.float32)
    with h5py.File(args.labels) as file:
        task = min((name for name in file if name.startswith("taxa_L")), key=lambda name: int(name[6:]))
        label = np.unique(file[task][:], return_inverse=True)[1].astype(np.int64)
    rows = []
    for name, choose in (("random", at_random), ("queue", by_queue)):
        found = np.array([measured(x, label, choose, seed) for seed in range(SEEDS)])
        for place, budget in enumerate(BUDGETS):
            accuracy, macro = found[:, place].T
            columns = {"accuracy": accuracy.mean(), "± ": accuracy.std(ddof=1)}
            columns |= {"mean of classes": macro.mean(), "±": macro.std(ddof=1)}
            rows.append({"labelled by": name, "labels": budget, **{key: float(x) for key, x in columns.items()}})
    write_results(
        f"labelling_{args.name}", rows, f"python -m benchmarks.labelling {args.name} --features FILE --labels FILE"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
