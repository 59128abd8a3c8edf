"""Simple baselines of a data set: the commonest class, and a kernel classifier on vectors.

The classifier is kernel ridge regression: one Cholesky factorisation answers for all ranks at once, so it takes a
second for a few thousand rows and any number of classes, and needs no tuning. On square roots of colour histograms it
is about as good as a forest, on those of a trunk's features better than logistic regression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: where a run keeps what simple models tell of its data, below its directory
BASELINES_FILE = "assets/baselines.json"
#: kinds of baselines -> what people call them
TITLES = {
    "commonest": "always the commonest class",
    "colours": "colours of the pictures alone",
    "features": "frozen features, nothing trained",
}
#: levels of each colour in a histogram
LEVELS = 8


def commonest_share(train: Sequence[int], val: Sequence[int], null: int | None = None) -> float | None:
    """How many labelled validation rows, in percent, are of the class with most training rows; None without any.

    Args:
      train, val: rows of each class; `null`: the class that stands for no label.
    """
    known = [(rows, found) for index, (rows, found) in enumerate(zip(train, val)) if index != null]
    total = sum(found for _, found in known)
    return 100 * max(known)[1] / total if total else None


def histograms(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """float32 [n, 512]: share of the pixels of each picture uint8 [n, H, W, 3] in each of 8 x 8 x 8 colours."""
    levels = (images.reshape(len(images), -1, 3) // (256 // LEVELS)).astype(np.int64)
    colour = (levels[..., 0] * LEVELS + levels[..., 1]) * LEVELS + levels[..., 2]
    counts = [np.bincount(one, minlength=LEVELS**3) for one in colour]
    return (np.stack(counts) / colour.shape[1]).astype(np.float32)


def square_roots(x: NDArray[Any]) -> NDArray[np.float32]:
    """Square roots float32 [n, D] of values [n, D] with their signs, each row of length 1: what is rare counts, too."""
    roots = np.sign(x) * np.sqrt(np.abs(x.astype(np.float32)))
    length = np.linalg.norm(roots, axis=1, keepdims=True)
    return np.asarray(roots / np.maximum(length, 1e-12), np.float32)


def standardised(train: NDArray[Any], val: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Columns of mean 0 and variance 1 over the training rows, float32 [n, D] of each."""
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-3
    first, second = (np.asarray((x - mean) / deviation, np.float32) for x in (train, val))
    return first, second


def kernel_accuracies(
    train: NDArray[np.float32],
    val: NDArray[np.float32],
    labels: Mapping[str, tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]],
    *,
    gaussian: bool = True,
    ridge: float = 0.05,
) -> dict[str, float]:
    """Accuracy in percent at each rank of kernel ridge regression, over the labelled rows of `val`.

    Args:
      train, val: float32 [n, D] and [m, D].
      labels: rank -> classes int [n] and [m], below 0 where a row has no label.
      gaussian: whether the kernel is exp(-(squared distance) / (its mean over the training rows)); else it is linear.
      ridge: added to the diagonal of the kernel, whose own entries there are about 1: more for noisier vectors.

    Returns:
      Ranks without a labelled row in `train` or in `val` are left out.
    """
    from scipy.linalg import cho_factor, cho_solve

    norms = (np.square(train).sum(axis=1), np.square(val).sum(axis=1))
    spread = np.float32(max(2 * (norms[0].mean() - np.square(train.mean(axis=0)).sum()), 1e-12))

    def kernel(x: NDArray[np.float32], norm: NDArray[np.float32]) -> NDArray[np.float32]:
        products = x @ train.T
        if not gaussian:
            return products / spread
        return np.exp((norm[:, None] + norms[0][None, :] - 2 * products).clip(0) / -spread)

    classes = {rank: np.unique(ours[ours >= 0]) for rank, (ours, _) in labels.items()}
    targets = [(labels[rank][0][:, None] == some[None, :]).astype(np.float32) for rank, some in classes.items()]
    gram = kernel(train, norms[0])
    gram[np.diag_indices_from(gram)] += np.float32(ridge)
    solved = cho_solve(cho_factor(gram, overwrite_a=True), np.concatenate(targets, axis=1))
    scores = np.split(kernel(val, norms[1]) @ solved, np.cumsum([len(some) for some in classes.values()])[:-1], axis=1)
    found = {}
    for (rank, some), score in zip(classes.items(), scores, strict=True):
        theirs = labels[rank][1]
        known = theirs >= 0
        if len(some) and known.any():
            found[rank] = 100 * float((some[score[known].argmax(axis=1)] == theirs[known]).mean())
    return found
