"""Linear discriminants (Fisher 1936): weights of a linear classifier in closed form, from sums over labelled features.

Classes are taken as normal distributions with one covariance, which is shrunk towards a multiple of the identity.
Letters of shapes: N rows, D features, T ranks, C classes of a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Affine = tuple[NDArray[np.float32], NDArray[np.float32]]
#: share of the identity in the covariance; scales that are tried
SHRINKAGE, SCALES = 0.2, np.exp(np.linspace(-4.0, 1.0, 21))


class FeatureSums:
    """Sums of features and of their products, from which the discriminants of every rank follow.

    Args:
      classes: rank -> number of classes.
      width: features D.
    """

    def __init__(self, classes: Mapping[str, int], width: int) -> None:
        self.classes, self.width = dict(classes), width
        self.rows = 0.0
        self.products = np.zeros((width, width))
        # the last line of each is of rows without a label
        self.sums = {rank: np.zeros((count + 1, width)) for rank, count in self.classes.items()}
        self.counts = {rank: np.zeros(count + 1) for rank, count in self.classes.items()}

    def add(
        self, x_ND: NDArray[np.float32], label_NT: NDArray[np.integer], weight_N: NDArray[np.float32] | None = None
    ) -> None:
        """Adds rows, each as if it were there `weight_N` times; a label below 0 is none."""
        weight_N = np.ones(len(x_ND), np.float32) if weight_N is None else weight_N
        weighted_ND = x_ND * weight_N[:, None]
        self.rows += float(weight_N.sum())
        self.products += x_ND.T @ weighted_ND
        for place, (rank, sums) in enumerate(self.sums.items()):
            label = np.where(label_NT[:, place] < 0, self.classes[rank], label_NT[:, place])
            for one in np.unique(label):
                chosen = label == one
                sums[one] += weighted_ND[chosen].sum(axis=0)
                self.counts[rank][one] += weight_N[chosen].sum()

    def __add__(self, other: FeatureSums) -> FeatureSums:
        both = FeatureSums(self.classes, self.width)
        both.rows, both.products = self.rows + other.rows, self.products + other.products
        both.sums = {rank: sums + other.sums[rank] for rank, sums in self.sums.items()}
        both.counts = {rank: counts + other.counts[rank] for rank, counts in self.counts.items()}
        return both

    def discriminants(self, rank: str) -> Affine | None:
        """Kernel [D, C] and bias [C] of a rank; None where fewer than two classes have rows or all features are equal.

        A class without rows has the mean of all rows, as if half a row were of it. Rows without a label are one more
        class in the covariance.
        """
        from scipy.linalg import cho_factor, cho_solve

        sums, counts = self.sums[rank], self.counts[rank]
        if (counts[:-1] > 0).sum() < 2:
            return None
        mean = sums.sum(axis=0) / self.rows
        means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], mean)
        within = (self.products - means.T @ (means * counts[:, None])) / self.rows
        size = np.trace(within) / self.width
        if not np.isfinite(size) or size <= 1e-12 * max(np.trace(self.products) / (self.rows * self.width), 1e-30):
            return None
        within *= 1 - SHRINKAGE
        within[np.diag_indices_from(within)] += SHRINKAGE * size
        away = (means[:-1] - mean).T
        kernel = cho_solve(cho_factor(within, overwrite_a=True), away)
        share = np.maximum(counts[:-1], 0.5) / max(counts[:-1].sum(), 1)
        bias = np.log(share) - 0.5 * (away * kernel).sum(axis=0) - mean @ kernel
        return kernel.astype(np.float32), bias.astype(np.float32)


def best_scale(logits_NC: NDArray[np.float32], label_N: NDArray[np.integer]) -> float:
    """Factor of logits with which they are likeliest, for other rows than those that they were fitted to."""
    known = label_N >= 0
    if not known.any():
        return 1.0
    losses = [cross_entropy(scale * logits_NC[known], label_N[known]) for scale in SCALES]
    return float(SCALES[int(np.argmin(losses))])


def cross_entropy(logits_NC: NDArray[np.floating], label_N: NDArray[np.integer]) -> float:
    """Mean of -log p of the labels."""
    logits = logits_NC.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1))
    return float((total - shifted[np.arange(len(label_N)), label_N]).mean())


def fitted(halves: Sequence[FeatureSums], sample: tuple[NDArray[np.float32], NDArray[np.integer]]) -> dict[str, Affine]:
    """Rank -> kernel [D, C] and bias [C], scaled so that their softmax is of use as probabilities.

    Args:
      halves: sums over one half of the rows and over the other.
      sample: features [n, D] and labels [n, T] of rows of the second half, which say the scale.
    """
    whole, found = halves[0] + halves[1], {}
    for place, rank in enumerate(whole.classes):
        affine, half = whole.discriminants(rank), halves[0].discriminants(rank)
        if affine is None:
            continue
        scale = 1.0 if half is None else best_scale(sample[0] @ half[0] + half[1], sample[1][:, place])
        found[rank] = (affine[0] * scale, affine[1] * scale)
    return found
