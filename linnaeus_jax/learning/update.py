"""What one gradient does to the parameters: clipping, the optimizer, learning rates, the moving average.

Every optimizer here is linear in the learning rate, decoupled weight decay included. So the optax transform leaves the
learning rate and the sign out, and an update multiplies by the learning rate of each group: state and structure of the
optimizer do not depend on schedules, and the rate that is logged is the rate that was applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from linnaeus_jax.learning.branches import computed_if
from linnaeus_jax.learning.buckets import LeafBuckets, as_stored, global_norm

Rates = Mapping[str, jax.typing.ArrayLike]


@dataclass(frozen=True)
class ParameterRow:
    """What happens to one parameter: a row of the dry-run table."""

    name: str
    shape: tuple[int, ...]
    group: str
    optimizer: str  # as registered, or "frozen"
    weight_decay: float
    lr_multiplier: float  # multiplier of the group times the layer factor


@dataclass(frozen=True)
class Optimizer:
    """A gradient transformation with the grouping that updates and reports need.

    Attributes:
      transform: optax transformation from gradients to what is subtracted per unit of learning rate; zeros for frozen
        parameters. Its state depends only on which optimizer a parameter has.
      factor: tree like the parameters; learning-rate factor of each leaf (layer-wise decay), a float, or float32
        `[layers, 1, ...]` for stacked layers.
      lr_multipliers: learning-rate multiplier of each trainable group, in configuration order. A multiplier of 0 is a
        learning rate, not a freeze: such parameters have gradients, norms and optimizer state like all others.
      rows: one row per parameter, in the given order.
      overlaps: one text per parameter that several groups asked for (the first got it).
      group_tree: tree like the parameters; group name of each leaf.
      ndim: tree like the parameters; axes of one layer's parameter: a leaf has as many more as scans stack it.
      buckets: of small leaves to whose elements `transform` does the same; it takes gathered trees as well.
    """

    transform: optax.GradientTransformation
    factor: Any
    lr_multipliers: dict[str, float]
    rows: tuple[ParameterRow, ...]
    overlaps: tuple[str, ...]
    group_tree: Any
    ndim: Any
    buckets: LeafBuckets

    def split_frozen(self, tree: Any) -> tuple[Any, Any]:
        """(what trains, what is frozen) of a tree like the parameters, each with None for the other."""
        trains = jax.tree.map(lambda group: group in self.lr_multipliers, self.group_tree)
        return (
            jax.tree.map(lambda train, part: part if train else None, trains, tree),
            jax.tree.map(lambda train, part: None if train else part, trains, tree),
        )

    def apply_learning_rates(self, updates: optax.Updates, lrs: Rates) -> optax.Updates:
        """Applies rate and sign: `-lrs[group] * factor * updates`, for `optax.apply_updates`.

        Args:
          updates: tree from `transform.update`, may be None where frozen or gathered elsewhere.
          lrs: learning rate (scalar) of every trainable group.

        Raises:
          ValueError: a trainable group has no learning rate.
        """
        missing = [group for group in self.lr_multipliers if group not in lrs]
        if missing:
            raise ValueError(f"no learning rate for the optimizer groups {missing}; got rates for {sorted(lrs)}")

        def scaled(group: str, factor: Any, update: Any) -> Any:
            trains = group in self.lr_multipliers and update is not None
            return -1.0 * lrs[group] * factor * update if trains else update

        return jax.tree.map(scaled, self.group_tree, self.factor, updates)


def merge_params(trained: Any, frozen: Any) -> Any:
    """The whole tree that `Optimizer.split_frozen` parted; `trained` itself where `frozen` is None."""
    if frozen is None:
        return trained
    return jax.tree.map(lambda part, rest: rest if part is None else part, trained, frozen, is_leaf=lambda x: x is None)


@dataclass(frozen=True, eq=False)
class UpdateSettings:
    """What of the configuration an update depends on."""

    optimizer: Optimizer
    clip_mode: str  # norm or adaptive
    clip_limit: float | None  # None: nothing is clipped
    ema_decay: float | None  # None: there is no moving average


class Trainable(NamedTuple):
    """What an update changes."""

    params: Any
    opt_state: Any
    ema: Any  # like the parameters, or None


class Update:
    """One optimizer update: `norm` tells whether it can be made, `new(rates, finite)` makes it. Pure.

    Args:
      old: before it; whole trees.
      grads: like the parameters, None where frozen.
      step: int32 [], updates before this one.

    Attributes:
      norm: float32 [], of the gradient before clipping.
    """

    def __init__(self, settings: UpdateSettings, old: Trainable, grads: Any, step: jax.Array) -> None:
        self._settings, self._step = settings, step
        optimizer, buckets = settings.optimizer, settings.optimizer.buckets
        params, self._frozen = optimizer.split_frozen(old.params)
        nothing: tuple[Any, Any] = None, None
        ema, self._frozen_ema = nothing if old.ema is None else optimizer.split_frozen(old.ema)
        self._old = Trainable(buckets.gather(params), buckets.gather_state(old.opt_state), buckets.gather(ema))
        grads = as_stored(grads)
        self._grads = buckets.gather(grads)
        self.norm = global_norm(buckets.leaves(self._grads))
        if settings.clip_mode == "adaptive":  # it looks at the units of single leaves
            self._grads = buckets.gather(clip_units(grads, params, settings.clip_limit, optimizer.ndim))
        self._compute = jax.jit(self._updated)  # traced once for `changes` and `new`

    def changes(self, rates: Rates, finite: jax.Array) -> Any:
        """What is added to the parameters, zero where the update is skipped, None where frozen."""
        _, changes, _ = self._compute(self._old, self._step, self._grads, rates)
        changes = jax.tree.map(lambda change: jnp.where(finite, change, 0.0), changes)
        return self._settings.optimizer.buckets.scatter(changes)

    def new(self, rates: Rates, finite: jax.Array) -> tuple[Trainable, jax.Array]:
        """What is there after it, the old where not `finite`; and the norm of the clipped gradient, float32 [].

        On a CPU this is a `lax.cond` branch: XLA fuses nothing across its border, and its operands, the gradients, are
        arrays in memory. So the update is compiled alike with and without probes, to the bit, and the update of a
        bucket is not computed again for each leaf that is sliced from it.
        """

        def updated(old: tuple[Trainable, jax.Array]) -> tuple[Trainable, jax.Array]:
            new, _, clipped_norm = self._compute(old[0], self._step, self._grads, rates)
            return new, clipped_norm

        new, clipped_norm = computed_if(finite, updated, (self._old, self.norm))
        buckets = self._settings.optimizer.buckets
        params = merge_params(buckets.scatter(new.params), self._frozen)
        ema = merge_params(buckets.scatter(new.ema), self._frozen_ema)
        return Trainable(params, buckets.scatter_state(new.opt_state), ema), clipped_norm

    def _updated(self, old: Trainable, step: jax.Array, grads: Any, rates: Rates) -> tuple[Trainable, Any, jax.Array]:
        """(new, what is added to the parameters, norm after clipping), all of gathered trees."""
        optimizer, decay = self._settings.optimizer, self._settings.ema_decay
        norm = global_norm(optimizer.buckets.leaves(grads))  # within the branch, see `new`
        if self._settings.clip_mode == "norm":
            grads, norm = clip_norm(grads, norm, self._settings.clip_limit)
        descent, opt_state = optimizer.transform.update(grads, old.opt_state, old.params)
        changes = optimizer.apply_learning_rates(descent, rates)
        params = optax.apply_updates(old.params, changes)
        ema = None if decay is None else ema_update(old.ema, params, decay, step)
        return Trainable(params, opt_state, ema), changes, norm


def clip_norm(grads: Any, norm: jax.Array, limit: float | None) -> tuple[Any, jax.Array]:
    """Gradients times min(1, limit / (norm + 1e-6)), and their norm after that.

    Args:
      norm: float32 [], of all of `grads`; if it is not finite, that is passed on, not hidden.
      limit: largest norm; None: nothing is clipped.
    """
    if limit is None:
        return grads, norm
    factor = jnp.minimum(1.0, limit / (norm + 1e-6))
    return jax.tree.map(lambda g: g * factor, grads), norm * factor


def clip_units(grads: Any, params: Any, limit: float | None, ndim: Any = None) -> Any:
    """Limits each output unit's gradient to `limit` times the norm of its weights (Brock et al., 2021).

    Args:
      grads, params: trees of floats, None where frozen.
      limit: largest ratio; None: nothing is clipped.
      ndim: tree of axes per layer, see `Optimizer`; every layer of a stacked leaf is taken on its own. None: nothing is
        stacked.
    """
    if limit is None:
        return grads
    layers, weights = (_layers(tree, ndim) for tree in (grads, params))
    transform = optax.adaptive_grad_clip(limit)
    clipped, _ = transform.update(layers, transform.init(weights), weights)
    return jax.tree.map(
        lambda grad, found: jnp.stack(found).reshape(grad.shape) if isinstance(found, list) else found, grads, clipped
    )


def _layers(tree: Any, ndim: Any) -> Any:
    """`tree` with stacked leaves as lists of their layers."""
    if ndim is None:
        return tree

    def unstacked(axes: int, leaf: jax.Array | None) -> Any:
        if leaf is None or leaf.ndim == axes:
            return leaf
        return list(leaf.reshape(-1, *leaf.shape[leaf.ndim - axes :]))

    return jax.tree.map(unstacked, ndim, tree)


def ema_update(ema: optax.Params, params: optax.Params, decay: float, step: jax.typing.ArrayLike) -> optax.Params:
    """Moves the averaged parameters towards the current ones.

    The decay used is min(decay, (1 + step) / (10 + step)), so that the average follows the weights closely at first.

    Args:
      ema: tree of averages.
      params: tree of current parameters, same structure.
      decay: final weight of the old average, in [0, 1).
      step: number of updates before this one (int scalar, may be traced).
    """
    step = jnp.asarray(step, jnp.float32)
    return optax.incremental_update(params, ema, 1.0 - jnp.minimum(decay, (1.0 + step) / (10.0 + step)))
