"""Logistic regression of scikit-learn on stored features, one for each rank: a process of its own.

python -m benchmarks.real.control LABELS.h5 OUT.npz TASK,... RANK,... FEATURES ...

Features are standardised by the training rows. The strength of the penalty is the one of `STRENGTHS` with the best
accuracy on the validation rows, for each rank, all of rows that are labelled there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.real.labels import read_labels

STRENGTHS = (0.003, 0.01, 0.03, 0.1)


#: features of rows to fit on and their classes, of rows to choose on and their classes, of rows to judge, and how many
#: classes there are -> what was chosen, for people, and probabilities [rows to judge, classes]
Fit = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], int], tuple[str, NDArray[Any]]]


def regression(
    x: NDArray[Any], y: NDArray[Any], x_val: NDArray[Any], y_val: NDArray[Any], x_test: NDArray[Any], number: int
) -> tuple[str, NDArray[Any]]:
    """The regression; see `Fit`."""
    from sklearn.linear_model import LogisticRegression

    tried = [LogisticRegression(C=c, max_iter=1000).fit(x, y) for c in STRENGTHS]
    scores = [one.score(x_val, y_val) for one in tried]
    best = tried[int(np.argmax(scores))]
    p = np.zeros((len(x_test), number))
    p[:, best.classes_] = best.predict_proba(x_test)
    return ", ".join(f"C={c} {100 * s:.1f} %" for c, s in zip(STRENGTHS, scores)), p


def main(argv: list[str], fit: Fit = regression, *, standardised: bool = True) -> int:
    """Writes the arrays of `figures` that there are without calibration."""
    labels, out = Path(argv[0]), Path(argv[1])
    tasks, ranks = argv[2].split(","), argv[3].split(",")
    x = np.concatenate([np.load(path) for path in argv[4:]], axis=1).astype(np.float32)
    with h5py.File(labels) as file:
        side = file["split"][:]
    classes, names = read_labels(labels, tasks)
    train, val, test = (np.flatnonzero(side == place) for place in range(3))
    if standardised:
        x = (x - x[train].mean(axis=0)) / np.maximum(x[train].std(axis=0), 1e-6)
    arrays: dict[str, Any] = {"ranks": np.array(ranks), f"names/{ranks[-1]}": names}
    predicted, probability, of_label, every = [], [], [], []
    for place, rank in enumerate(ranks):
        y = classes[:, place]
        number, fit_on, chosen_on = y.max() + 1, train[y[train] >= 0], val[y[val] >= 0]
        said, p = fit(x[fit_on], y[fit_on], x[chosen_on], y[chosen_on], x[test], number)
        print(f"{rank}: {said}")
        predicted.append(p.argmax(axis=1))
        probability.append(p.max(axis=1))
        of_label.append(np.where(y[test] >= 0, p[np.arange(len(test)), y[test]], 1.0))
        arrays[f"count/{rank}"] = np.bincount(y[fit_on], minlength=number)
        every.append(p)
    known = np.flatnonzero(classes[:, 0] >= 0)
    lineage = classes[known[np.unique(classes[known, 0], return_index=True)[1]]]  # of each finest class
    summed = [(every[0] @ np.eye(p.shape[1])[lineage[:, place]]).argmax(axis=1) for place, p in enumerate(every)]
    arrays["label"] = classes[test].astype(np.int16)
    arrays["raw/predicted"] = np.stack(predicted, axis=1).astype(np.int16)
    arrays["raw/probability"] = np.stack(probability, axis=1).astype(np.float16)
    arrays["raw/of_label"] = np.log(np.maximum(np.stack(of_label, axis=1), 1e-12)).astype(np.float16)
    arrays["summed/predicted"] = np.stack(summed, axis=1).astype(np.int16)
    np.savez_compressed(out, **arrays)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ImportError:
        sys.exit("scikit-learn is not installed: pip install -e '.[bench]'")
