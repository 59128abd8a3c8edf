"""Taxonomy-aware label smoothing: wrong classes share probability mass by how close they are in the tree.

Row y of the smoothing matrix keeps ``1 - alpha`` on y and spreads ``alpha`` over the other classes c of the same rank
in proportion to ``exp(-beta * d(y, c))``, d = edges on the path through the lowest common ancestor (2 per rank
climbed), infinite without a common ancestor. The loss never builds that C x C matrix: a row is the sum over y's
ancestors of (mass) x (does c lie below that ancestor), one integer comparison per class and rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.mistakes import InputError

#: a row whose unnormalised off-diagonal weights sum to no more than this has no usable relative
MIN_ROW_WEIGHT = 1e-9
_KEY = "loss.taxonomy_smoothing"


def smoothing_matrix(distance: np.ndarray, *, alpha: float, beta: float) -> NDArray[np.float32]:
    """The dense smoothing matrix of any distance: the definition, for inspection and small class counts.

    Args:
      distance: [R, C], >= 0, of the first R classes to all, inf where they are unrelated; the diagonal is ignored.
      alpha: mass moved off the true class, in [0, 1].
      beta: decay per unit of distance, >= 0.

    Returns:
      float32 [R, C], rows sum to 1. Rows without any relative are uniform; C = 1 gives [[1]].
    """
    distance = np.asarray(distance, np.float64)
    classes = distance.shape[1]
    if classes == 1:
        return np.ones((1, 1), np.float32)
    related = np.isfinite(distance)
    weight = np.where(related, np.exp(-beta * np.where(related, distance, 0.0)), 0.0)
    np.fill_diagonal(weight, 0.0)
    total = weight.sum(axis=1, keepdims=True)
    usable = total > MIN_ROW_WEIGHT
    matrix = alpha * np.where(usable, weight / np.where(usable, total, 1.0), 1.0 / (classes - 1))
    np.fill_diagonal(matrix, 1.0 - alpha)
    return matrix.astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class TaxonomySmoothing:
    """The smoothing of one rank with C classes and K coarser ranks, in O(C K) memory. Build with `from_parents`.

    Attributes:
      ancestors: int32 [C, K], ancestor k+1 steps up, -1 from the first missing link on.
      subtree_mass: float32 [C, K], mass that row y puts on every class below its ancestor k+1 steps up, in addition
        to what the coarser ancestors put there.
      uniform_mass: float32 [C], mass that row y puts on every class (rows without relatives).
      label_mass: float32 [C], what the true class gets in addition to the above; its total is 1 - alpha.
      alpha, beta: as configured.
    """

    ancestors: np.ndarray
    subtree_mass: np.ndarray
    uniform_mass: np.ndarray
    label_mass: np.ndarray
    alpha: float
    beta: float

    @property
    def num_classes(self) -> int:
        return self.ancestors.shape[0]

    @classmethod
    def from_parents(
        cls,
        parents: Sequence[np.ndarray],
        level: int = 0,
        *,
        alpha: float,
        beta: float,
        fallback_to_uniform: bool = True,
    ) -> TaxonomySmoothing:
        """Builds the tables of rank `level` from parent links.

        Args:
          parents: one int array [C_l] per rank, finest first: index of the parent at rank l+1, or -1. All -1 at the
            last rank. The null class has no parent, so it neither gives nor receives by kinship.
          level: position of the smoothed rank in `parents`.
          alpha: mass moved off the true class, in [0, 1].
          beta: decay per edge, >= 0.
          fallback_to_uniform: all classes of a rank without any parent spread alpha evenly; otherwise such a rank is an
            error. A single class without a relative (the null class, an only child) always spreads alpha evenly.

        Raises:
          ValueError: no class of the rank has a parent and `fallback_to_uniform` is False.
        """
        ancestors, counts = _ancestors(parents, level)
        classes, depth = ancestors.shape
        exists = ancestors >= 0
        decay = np.exp(-2.0 * beta * np.arange(1, depth + 1))
        # newly met classes per step up; the step below the first is the class itself
        relatives = np.diff(np.concatenate([np.ones((classes, 1)), counts], axis=1), axis=1)
        total = np.sum(np.where(exists, relatives * decay[None, :], 0.0), axis=1)
        alone = total <= MIN_ROW_WEIGHT
        if classes > 1 and not fallback_to_uniform and not exists.any():
            raise InputError(
                f"taxonomy smoothing of rank {level}: none of its {classes} classes has a parent; set "
                f"{_KEY}.fallback_to_uniform=True or disable smoothing for this task"
            )

        # A class first met k steps up lies below the ancestors k, k+1, ... up, whose masses telescope to decay_k. A
        # step that meets nobody takes the weight of the next: its own would fall on y alone and could dwarf the row.
        weight = np.zeros((classes, depth + 1))
        for k in reversed(range(depth)):
            weight[:, k] = np.where(exists[:, k] & (relatives[:, k] > 0), decay[k], weight[:, k + 1])
        step = weight[:, :-1] - weight[:, 1:]
        scale = np.where(alone, 0.0, alpha / np.where(alone, 1.0, total))
        subtree_mass = scale[:, None] * step
        uniform_mass = np.where(alone, alpha / max(classes - 1, 1), 0.0)
        target = 1.0 if classes == 1 else 1.0 - alpha
        label_mass = target - uniform_mass - subtree_mass.sum(axis=1)
        return cls(
            ancestors=ancestors,
            subtree_mass=subtree_mass.astype(np.float32),
            uniform_mass=uniform_mass.astype(np.float32),
            label_mass=label_mass.astype(np.float32),
            alpha=float(alpha),
            beta=float(beta),
        )

    def spread_mass(self, label: jax.Array) -> jax.Array:
        """What rows `label` of the matrix put on every class, but for `label_mass[label]` on the label itself.

        Args:
          label: int32 [B].

        Returns:
          float32 [B, C], or [B, 1] where no class of the rank has a parent. Elementwise: K comparisons per entry.
        """
        mass = jnp.asarray(self.uniform_mass)[label][:, None]
        ancestors = jnp.asarray(self.ancestors)
        chain = ancestors[label]
        subtree = jnp.asarray(self.subtree_mass)[label]
        for k in range(ancestors.shape[1]):
            below = ancestors[:, k][None, :] == chain[:, k][:, None]
            mass = mass + jnp.where(below, subtree[:, k][:, None], 0.0)
        return mass

    def distance_matrix(self, rows: int | None = None) -> NDArray[np.float32]:
        """float32 [R, C]: edges from the first `rows` classes (None: all) to every class, 0 on the diagonal, inf
        without a common ancestor."""
        own = self.ancestors[:rows]
        distance = np.full((len(own), self.num_classes), np.inf, np.float32)
        for k in reversed(range(self.ancestors.shape[1])):
            near = (own[:, k, None] == self.ancestors[None, :, k]) & (own[:, k, None] >= 0)
            distance[near] = 2.0 * (k + 1)
        np.fill_diagonal(distance, 0.0)
        return distance

    def dense_matrix(self, rows: int | None = None) -> NDArray[np.float32]:
        """float32 [R, C]: the same smoothing of the first `rows` classes by the dense definition, for inspection."""
        return smoothing_matrix(self.distance_matrix(rows), alpha=self.alpha, beta=self.beta)


def _ancestors(parents: Sequence[np.ndarray], level: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Ancestor chains int32 [C, K] of one rank and the number of its classes below each, float64 [C, K] (0 for none).

    K is the longest chain that occurs, so a rank without parents has K = 0.
    """
    chain, sizes = [], []
    current = np.arange(parents[level].size)
    for rank in range(level, len(parents) - 1):
        current = np.where(current >= 0, parents[rank][current], -1)
        if np.all(current < 0):
            break
        below = np.bincount(current[current >= 0], minlength=parents[rank + 1].size)
        chain.append(current)
        sizes.append(np.where(current >= 0, below[current], 0))
    shape = (parents[level].size, len(chain))
    return (
        np.stack(chain, axis=1).astype(np.int32) if chain else np.zeros(shape, np.int32),
        np.stack(sizes, axis=1).astype(np.float64) if sizes else np.zeros(shape),
    )
