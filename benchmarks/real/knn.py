"""The nearest training rows by stored features, for each rank: a process of its own.

python -m benchmarks.real.knn LABELS.h5 OUT.npz TASK,... RANK,... FEATURES ...

Each of the k nearest votes with its cosine. k is the one of `COUNTS` with the best accuracy on the validation rows.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real import control
from linnaeus_jax.inference.files.nearest import Nearest, Neighbours

COUNTS = (1, 3, 5, 10, 20, 50)


def votes(found: Neighbours, label: NDArray[Any], count: int, number: int) -> NDArray[Any]:
    """Shares [Q, C] of the votes of the `count` nearest rows, whose classes are `label` [N]."""
    cosine = np.maximum(1 - found.distance[:, :count], 1e-6)
    shares = np.zeros((len(cosine), number))
    np.add.at(shares, (np.arange(len(cosine))[:, None], label[found.row[:, :count]]), cosine)
    return shares / shares.sum(axis=1, keepdims=True)


def neighbours(
    x: NDArray[Any], y: NDArray[Any], x_val: NDArray[Any], y_val: NDArray[Any], x_test: NDArray[Any], number: int
) -> tuple[str, NDArray[Any]]:
    """See `control.Fit`."""
    search = Nearest(x)
    chosen_on, judged = search(x_val, max(COUNTS)), search(x_test, max(COUNTS))
    scores = [float((votes(chosen_on, y, k, number).argmax(axis=1) == y_val).mean()) for k in COUNTS]
    said = ", ".join(f"k={k} {100 * s:.1f} %" for k, s in zip(COUNTS, scores))
    return said, votes(judged, y, COUNTS[int(np.argmax(scores))], number)


if __name__ == "__main__":
    sys.exit(control.main(sys.argv[1:], neighbours, standardised=False))
