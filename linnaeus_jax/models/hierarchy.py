"""Between the classes of one rank and those of the next coarser one: gathers by parent, sums over children, priors.

Every class has at most one parent, so an array [classes, parents] between two ranks is never needed: time and memory
are O(B * classes).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: index of the parent of every class, -1 for none
Parents = Sequence[int] | np.ndarray
#: added to every prior probability, so that its logarithm is finite
PRIOR_EPSILON = 1e-10
#: what the prior of a class without a parent is, by `orphan_prior`
ORPHAN_PRIORS = {"neutral": 1.0, "epsilon": PRIOR_EPSILON}
#: parents with at most so many children are reduced child by child
UNROLLED = 16


class ParentLinks:
    """The links of C classes to P classes of the next coarser rank.

    Children are summed through static tables, one for all parents with 1, 2, 3 to 4, 5 to 8, ... children, so that at
    most half of a table is padding. Unlike a scatter, whose order of addition is not fixed on a GPU, this gives the
    same bits every time; and the backward pass of the sum is the gather by parent, and vice versa.

    Attributes:
      parents: int32 [C], -1 for a class without a parent (the null class, an orphan).
      num_parents: P.
      orphans: int32, the classes without a parent.
      has_children: bool [P].
    """

    def __init__(self, parents: Parents, num_parents: int) -> None:
        self.parents, self.num_parents = np.asarray(parents, np.int32), num_parents
        self.orphans = np.flatnonzero(self.parents < 0).astype(np.int32)
        linked = np.argsort(self.parents, kind="stable").astype(np.int32)[len(self.orphans) :]
        counts = np.bincount(self.parents[linked], minlength=num_parents)
        self.has_children = counts > 0
        start = np.cumsum(counts) - counts
        self._tables: list[tuple[np.ndarray, np.ndarray]] = []  # children [n, width], and which of them there are
        row = np.zeros(num_parents, np.int32)  # of every parent with children, in all tables one below the other
        width = 1
        while (many := counts > width // 2).any():
            mine = np.flatnonzero(many & (counts <= width))
            if len(mine):
                row[mine] = np.arange(len(mine)) + sum(len(table) for table, _ in self._tables)
                position = start[mine][:, None] + np.arange(width)[None, :]
                there = np.arange(width)[None, :] < counts[mine][:, None]
                self._tables.append((linked[np.where(there, position, start[mine][:, None])], there))
            width *= 2
        self._row = row

    def of_parent(self, x_BP: jax.Array, without: float = 0.0) -> jax.Array:
        """[B, C]: the value of every class's parent, `without` for classes without one."""

        @jax.custom_vjp
        def gather(x_BP: jax.Array) -> jax.Array:
            values = x_BP[:, np.maximum(self.parents, 0)]
            return jnp.where(self.parents[None, :] >= 0, values, without) if len(self.orphans) else values

        gather.defvjp(lambda x_BP: (gather(x_BP), None), lambda _, grad_BC: (self.sum_of_children(grad_BC),))
        return gather(x_BP)

    def sum_of_children(self, x_BC: jax.Array) -> jax.Array:
        """[B, P]: the sum over every parent's children, 0 where there are none."""

        @jax.custom_vjp
        def total(x_BC: jax.Array) -> jax.Array:
            return self._reduced(x_BC, _sum, 0.0)

        total.defvjp(lambda x_BC: (total(x_BC), None), lambda _, grad_BP: (self.of_parent(grad_BP),))
        return total(x_BC)

    def logsumexp_of_children(self, x_BC: jax.Array) -> jax.Array:
        """[B, P]: the logarithm of the sum of exponentials of every parent's children, 0 where there are none."""

        @jax.custom_vjp
        def total(x_BC: jax.Array) -> jax.Array:
            return self._reduced(x_BC, _logsumexp, jnp.finfo(x_BC.dtype).min)

        def backward(saved: tuple[jax.Array, jax.Array], grad_BP: jax.Array) -> tuple[jax.Array]:
            x_BC, total_BP = saved
            below_BC = x_BC - self.of_parent(total_BP)
            if len(self.orphans):  # they are in no sum, and their exponential may overflow
                below_BC = jnp.where(self.parents[None, :] >= 0, below_BC, 0.0)
            return (self.of_parent(grad_BP) * jnp.exp(below_BC),)

        total.defvjp(lambda x_BC: (total_BP := total(x_BC), (x_BC, total_BP)), backward)
        return total(x_BC)

    def _reduced(self, x_BC: jax.Array, reduce: Callable[[list[jax.Array]], jax.Array], padding: Any) -> jax.Array:
        if not self._tables:
            return jnp.zeros((x_BC.shape[0], self.num_parents), x_BC.dtype)

        def values(children: np.ndarray, there: np.ndarray) -> jax.Array:
            gathered = x_BC[:, children.reshape(-1)].reshape(-1, *children.shape)
            return gathered if there.all() else jnp.where(there[None], gathered, padding)

        parts = []
        for children, there in self._tables:
            if children.shape[1] <= UNROLLED:  # XLA fuses these gathers, so that none of them is a value in memory
                parts.append(reduce([values(children[:, k], there[:, k]) for k in range(children.shape[1])]))
            else:
                parts.append(reduce([values(children, there)]))
        # plain indexing of the last axis would give an array in column order, which XLA on CPU then reads column-wise
        row_BP = jnp.broadcast_to(self._row[None, :], (x_BC.shape[0], self.num_parents))
        by_parent = jnp.take_along_axis(jnp.concatenate(parts, axis=1), row_BP, axis=1, mode="promise_in_bounds")
        return by_parent if self.has_children.all() else jnp.where(self.has_children[None, :], by_parent, 0.0)


def _sum(values: list[jax.Array]) -> jax.Array:
    """[B, P]: the sum of several values [B, P], or of one [B, P, width] over its last axis."""
    return functools.reduce(jnp.add, values) if values[0].ndim == 2 else jnp.sum(values[0], axis=2)


def _logsumexp(values: list[jax.Array]) -> jax.Array:
    """The logarithm of the sum of exponentials, of what `_sum` takes."""
    if values[0].ndim > 2:
        return jax.nn.logsumexp(values[0], axis=2)
    largest = functools.reduce(jnp.maximum, values)
    return largest + jnp.log(_sum([jnp.exp(value - largest) for value in values]))


def gumbel_noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard Gumbel noise float32, -log of an exponential variable (Jang et al. 2017)."""
    return -jnp.log(jnp.maximum(jax.random.exponential(key, shape), jnp.finfo(jnp.float32).tiny))


def log_prior(prob_BP: jax.Array, links: ParentLinks, orphan_prior: str) -> jax.Array:
    """[B, C]: log(probability of the parent + 1e-10).

    Args:
      prob_BP: probabilities of the coarser classes.
      orphan_prior: key of `ORPHAN_PRIORS`, for classes without a parent.
    """
    return links.of_parent(jnp.log(prob_BP + PRIOR_EPSILON), float(np.log(ORPHAN_PRIORS[orphan_prior])))


def hard_log_prior(parent_logits_BP: jax.Array, links: ParentLinks, orphan_prior: str) -> jax.Array:
    """[B, C]: `log_prior` of a one-hot distribution, all on the best parent, the first one of equals."""
    best_B1 = jnp.argmax(parent_logits_BP, axis=1, keepdims=True)
    prior = jnp.where(links.parents[None, :] == best_B1, 1.0, 0.0) + PRIOR_EPSILON
    prior = jnp.where(links.parents[None, :] < 0, ORPHAN_PRIORS[orphan_prior], prior)
    return jnp.log(prior.astype(parent_logits_BP.dtype))


def path_log_probs(logits_BC: jax.Array, parent_logits_BP: jax.Array, links: ParentLinks) -> jax.Array:
    """Log-probabilities [B, C] of classes as paths through the tree: those of the parent times a softmax over siblings.

    Classes without a parent (the null class: "not known at this rank") are possible under every parent. With S_g the
    sum of exp(logit) over the children of g, O that over the classes without a parent, and p(g) the softmax of the
    parent's logits:

        p(c) = p(g) exp(z_c) / (S_g + O),    p(o) = exp(z_o) * sum over g of p(g) / (S_g + O)

    The sum over the rank is 1, and what the children of g lack of p(g) went to classes without a parent; all of it
    where g has no children. Without any class that has no parent, parents without children count as impossible.

    Args:
      logits_BC: any finite values; computed in their dtype.
      parent_logits_BP: logits or log-probabilities of the coarser rank.
    """
    parents, count, has_children = links.parents, links.num_parents, links.has_children
    if not len(links.orphans):
        if not has_children.all():
            parent_logits_BP = parent_logits_BP[:, np.flatnonzero(has_children)]
            links = ParentLinks((np.cumsum(has_children) - 1)[parents], parent_logits_BP.shape[1])
        log_parent_BP = jax.nn.log_softmax(parent_logits_BP, axis=1)
        return logits_BC + links.of_parent(log_parent_BP - links.logsumexp_of_children(logits_BC))
    # the classes without a parent are one more group of siblings, the last
    groups = ParentLinks(np.where(parents < 0, count, parents), count + 1)
    log_S_BP, log_O_B1 = jnp.split(groups.logsumexp_of_children(logits_BC), [count], axis=1)
    total_BP = jnp.where(has_children[None, :], jnp.logaddexp(log_S_BP, log_O_B1), log_O_B1)
    log_share_BP = jax.nn.log_softmax(parent_logits_BP, axis=1) - total_BP
    log_share_B1 = jax.nn.logsumexp(log_share_BP, axis=1, keepdims=True)
    return logits_BC + groups.of_parent(jnp.concatenate([log_share_BP, log_share_B1], axis=1))
