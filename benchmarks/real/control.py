"""Logistic regression of scikit-learn on stored features, one for each rank: a process of its own.

python -m benchmarks.real.control LABELS.h5 OUT.npz TASK,... RANK,... FEATURES ...

Features are standardised by the training rows. The strength of the penalty is the one of `STRENGTHS` with the best
accuracy on the validation rows, for each rank.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

STRENGTHS = (0.003, 0.01, 0.03, 0.1)


def main(argv: list[str]) -> int:
    """Writes the arrays of `figures` that there are without calibration."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        print("scikit-learn is not installed: pip install -e '.[bench]'", file=sys.stderr)
        return 1
    labels, out = Path(argv[0]), Path(argv[1])
    tasks, ranks = argv[2].split(","), argv[3].split(",")
    x = np.concatenate([np.load(path) for path in argv[4:]], axis=1).astype(np.float32)
    with h5py.File(labels) as file:
        side = file["split"][:]
        taxa = [file[task][:] for task in tasks]
    train, val, test = (np.flatnonzero(side == place) for place in range(3))
    x = (x - x[train].mean(axis=0)) / np.maximum(x[train].std(axis=0), 1e-6)
    arrays: dict[str, Any] = {"ranks": np.array(ranks)}
    label, predicted, probability, of_label, fine = [], [], [], [], None
    for rank, taxon in zip(ranks, taxa, strict=True):
        classes, y = np.unique(taxon, return_inverse=True)
        tried = [LogisticRegression(C=c, max_iter=1000).fit(x[train], y[train]) for c in STRENGTHS]
        scores = [one.score(x[val], y[val]) for one in tried]
        best = tried[int(np.argmax(scores))]
        print(f"{rank}: " + ", ".join(f"C={c} {100 * s:.1f} %" for c, s in zip(STRENGTHS, scores)))
        p = np.zeros((len(test), len(classes)))
        p[:, best.classes_] = best.predict_proba(x[test])
        label.append(y[test])
        predicted.append(p.argmax(axis=1))
        probability.append(p.max(axis=1))
        of_label.append(p[np.arange(len(test)), y[test]])
        arrays[f"count/{rank}"] = np.bincount(y[train], minlength=len(classes))
        if fine is None:
            fine, fine_taxa, summed = p, taxon, []
            names = classes
        total = np.zeros((len(test), len(classes)))
        for column, name in enumerate(names):
            total[:, y[np.flatnonzero(fine_taxa == name)[0]]] += fine[:, column]
        summed.append(total.argmax(axis=1))
    arrays["label"] = np.stack(label, axis=1).astype(np.int16)
    arrays["raw/predicted"] = np.stack(predicted, axis=1).astype(np.int16)
    arrays["raw/probability"] = np.stack(probability, axis=1).astype(np.float16)
    arrays["raw/of_label"] = np.log(np.maximum(np.stack(of_label, axis=1), 1e-12)).astype(np.float16)
    arrays["summed/predicted"] = np.stack(summed, axis=1).astype(np.int16)
    np.savez_compressed(out, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
