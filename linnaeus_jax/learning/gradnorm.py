"""GradNorm (Chen et al. 2018): task weights that make every task train at a similar rate.

Per-task gradients come from one forward pass and one batched pullback; the training gradient is their weighted sum,
so a measuring step costs T - 1 extra backward passes and leaves the update itself unchanged. Norms are those of the
gradient of the global batch mean, so they do not depend on the number of devices. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from linnaeus_jax import backend

RULES = ("mult", "paper")
#: smallest weight of the `paper` rule, whose additive step could cross zero
MIN_WEIGHT = 1e-3
_EPS = 1e-8


class GradNormState(NamedTuple):
    """Part of the train state, so that a resumed run continues with the same weights. T tasks in task order."""

    weights: jax.Array  # float32 [T], sum stays what it was initially
    initial_losses: jax.Array  # float32 [T], loss at the task's first measured update
    initialized: jax.Array  # bool [T]


class TaskGradients(struct.PyTreeNode):
    """What GradNorm measures: gradients of the single, unweighted task losses."""

    losses: jax.Array  # float32 [T]
    grads: Any  # like the parameters, leading [T]; None where frozen


def init_gradnorm(weights: Sequence[float] | np.ndarray) -> GradNormState:
    """The state before the first measurement."""
    initial = jnp.asarray(weights, jnp.float32)
    return GradNormState(initial, jnp.zeros_like(initial), jnp.zeros(initial.shape, bool))


def task_gradients(loss_vector_fn: Callable[[Any], tuple[jax.Array, Any]], params: Any) -> tuple[jax.Array, Any, Any]:
    """Gradients of all tasks from one forward pass: vjp, then the pullback of the T unit cotangents.

    On GPUs one after the other: fused kernels have no rule for vmap, a single task fills the device, and the memory is
    that of one. Elsewhere under vmap: XLA on CPU runs convolutions inside a loop on one thread.

    Args:
      loss_vector_fn: params -> (losses float32 [T], aux). Divide by counts of the whole update (not of the
        micro-batch), so that results of micro-batches simply add up.
      params: pytree of arrays.

    Returns:
      (losses [T], aux, gradients): `gradients` is like `params` with a leading axis T on every leaf.
    """
    losses, pullback, aux = jax.vjp(loss_vector_fn, params, has_aux=True)
    units = jnp.eye(losses.shape[0], dtype=losses.dtype)
    mapped = backend.TASKS_TOGETHER.here()
    (gradients,) = jax.vmap(pullback)(units) if mapped else jax.lax.map(pullback, units)
    return losses, aux, gradients


def combine(gradients: Any, weights: jax.Array) -> Any:
    """The training gradient ``sum_k weights[k] * gradients[k]``, like the parameters.

    In a measuring step, `weights` are those from before the update: measuring must not change the training step.
    """
    # a product and a sum, not a matrix product: accelerators would round that to tf32
    return jax.tree.map(
        lambda g: jnp.sum(g * weights.reshape((-1,) + (1,) * (g.ndim - 1)).astype(g.dtype), axis=0), gradients
    )


def shared_norms(gradients: Any, shared_mask: Any) -> jax.Array:
    """L2 norm of every task's gradient over the shared parameters.

    Args:
      gradients: pytree with leading axis T, of `task_gradients`; may be None where not shared.
      shared_mask: pytree of Python bools like the parameters, True = shared; at least one is.

    Returns:
      float32 [T].
    """
    leaves = jax.tree.leaves(jax.tree.map(lambda shared, g: g if shared else None, shared_mask, gradients))
    squares = [jnp.sum(jnp.square(g.astype(jnp.float32)), axis=tuple(range(1, g.ndim))) for g in leaves]
    return jnp.sqrt(sum(squares[1:], squares[0]))


def gradnorm_update(
    state: GradNormState,
    norms: jax.Array,
    losses: jax.Array,
    active: jax.Array,
    *,
    alpha: float,
    rule: str = "mult",
    kappa: float = 0.5,
    lr: float = 0.025,
) -> tuple[GradNormState, dict[str, jax.Array]]:
    """One update of the task weights.

    With G = weights * norms, training rates r = (L / L0) / mean(L / L0) and targets mean(G) * r ** alpha, means over
    the active tasks and L0 = loss at the task's own first update:

    * ``mult``: w <- w * (target / G) ** kappa, a damped fixed point; kappa = 1 equalises in one update
    * ``paper``: w <- max(w - lr * sign(G - target) * norms, 1e-3), the paper's gradient step on sum |G - target|

    and then the active weights are rescaled to the sum they had.

    Args:
      norms: float32 [T], gradient norms of the unweighted task losses.
      losses: float32 [T], unweighted task losses.
      active: bool [T], tasks with at least one valid sample. A task whose loss or gradient is 0 or not finite
        says nothing about its weight and is left out too; such tasks keep their weight.
      alpha: strength of the pull on slow tasks, >= 0; 0 = equal weighted norms.
      rule: one of `RULES`.
      kappa: damping of ``mult`` in (0, 1].
      lr: step size of ``paper``, > 0.

    Returns:
      (state, metrics): float32 [T] ``loss``, ``norm`` (unweighted), ``target`` (0 where left out), ``ratio``,
      ``weight``, ``weight_delta`` and float32 [] ``avg_norm``, the mean that the targets start from.
    """
    weights = state.weights
    weighted = weights * norms
    active = active & (weighted > _EPS) & jnp.isfinite(weighted) & (losses > 0) & jnp.isfinite(losses)

    def mean_active(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(active, values, 0.0)) / jnp.maximum(jnp.sum(active, dtype=jnp.float32), 1.0)

    initial = jnp.where(active & ~state.initialized, losses, state.initial_losses)
    progress = jnp.where(active, losses / jnp.maximum(initial, _EPS), 0.0)
    ratio = progress / jnp.maximum(mean_active(progress), _EPS)
    average = mean_active(weighted)
    target = jnp.where(active, average * ratio**alpha, 0.0)
    if rule == "mult":
        moved = weights * (target / jnp.maximum(weighted, _EPS)) ** kappa
    else:
        moved = jnp.maximum(weights - lr * jnp.sign(weighted - target) * norms, MIN_WEIGHT)
    before, after = mean_active(weights), mean_active(moved)
    new = jnp.where(active & (after > 0), moved * before / jnp.where(after > 0, after, 1.0), weights)
    metrics = {"avg_norm": average, "loss": losses, "norm": norms, "target": target, "ratio": ratio}
    metrics |= {"weight": new, "weight_delta": new - weights}
    return GradNormState(new, initial, state.initialized | active), metrics


@dataclass(frozen=True, eq=False)
class GradNormSettings:
    """How GradNorm measures and moves the task weights."""

    shared: Any  # pytree of bools like the parameters: what trains of the trunk, over which norms are taken
    alpha: float
    rule: str
    kappa: float
    lr: float
    zero_metadata: bool  # measure without metadata
    refine: bool  # measure with what hierarchical heads take from the coarser ranks
    folded: bool  # the measured losses are those that train, so that one pass serves both

    def new_weights(
        self, state: GradNormState, measured: TaskGradients, counts: jax.Array
    ) -> tuple[GradNormState, dict[str, jax.Array]]:
        """New task weights; tasks without a labelled sample (`counts` 0) keep theirs."""
        return gradnorm_update(
            state,
            shared_norms(measured.grads, self.shared),
            measured.losses,
            counts > 0,
            alpha=self.alpha,
            rule=self.rule,
            kappa=self.kappa,
            lr=self.lr,
        )
