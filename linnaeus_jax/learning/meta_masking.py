"""Masking of metadata: at random per sample in training, by component in validation phases.

Metadata are D columns in K components (consecutive slices). The model sees only zeros where a component is masked;
`valid` [B, K] records which components are present. In training, masking follows mixing, so that a masked component
cannot come back from the partner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.mistakes import InputError

NONE, PARTIAL, FULL = 0, 1, 2

Bounds = Sequence[tuple[int, int]]


class MaskDraws(NamedTuple):
    """The random numbers of one batch, uniform in [0, 1), float32 [B] each."""

    full: jax.Array
    partial: jax.Array
    combo: jax.Array


def column_components(bounds: Bounds, columns: int) -> NDArray[np.int32]:
    """Component index of every metadata column.

    Args:
      bounds: (start, stop) of every component, consecutive from column 0.
      columns: D.

    Returns:
      int32 [D].

    Raises:
      ValueError: the components do not tile the columns.
    """
    starts = [0, *(stop for _, stop in bounds)]
    if [start for start, _ in bounds] != starts[:-1] or starts[-1] != columns:
        raise ValueError(f"components {list(bounds)} must cover the {columns} metadata columns without gap or overlap")
    return np.repeat(np.arange(len(bounds), dtype=np.int32), [stop - start for start, stop in bounds])


def combo_table(
    whitelist: Sequence[Sequence[str]], weights: Sequence[float], components: Sequence[str]
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Combinations of components that partial masking chooses from.

    Args:
      whitelist: names of the components masked by each combination.
      weights: relative frequency of each combination; empty: equal.
      components: names of the active components, in metadata order.

    Returns:
      bool [n, K], True where masked; float32 [n] logarithms of the probabilities.

    Raises:
      ValueError: an empty combination.
    """
    table = np.zeros((len(whitelist), len(components)), bool)
    for n, names in enumerate(whitelist):
        if not names:
            raise InputError(f"schedule.meta_masking.partial.whitelist[{n}] is empty and would mask nothing; remove it")
        table[n, [components.index(name) for name in names]] = True
    weight = np.asarray(weights if len(weights) else np.ones(len(whitelist)), np.float64)
    with np.errstate(divide="ignore"):
        return table, np.log(weight / weight.sum()).astype(np.float32) if len(weight) else weight.astype(np.float32)


def draw_masks(keys: jax.Array) -> MaskDraws:
    """Draws the random numbers of a batch.

    Args:
      keys: keys [B], one per row (`augmentation.row_keys`), so that the draws depend neither on the row's position in
        the batch nor on the split into micro-batches.
    """
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (3,)))(keys)
    return MaskDraws(uniform[:, 0], uniform[:, 1], uniform[:, 2])


def mask_metadata(
    meta: jax.Array,
    valid: jax.Array,
    *,
    p_full: jax.Array | float,
    p_partial: jax.Array | float,
    partial_active: jax.Array | bool,
    draws: MaskDraws,
    combos: np.ndarray | jax.Array,
    log_weights: np.ndarray | jax.Array,
    bounds: Bounds,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Masks metadata at random, per sample: everything, else one combination of components, else nothing.

    Args:
      meta: float32 [B, D].
      valid: bool [B, K].
      p_full: probability of masking everything.
      p_partial: probability, of the samples not fully masked, of masking a combination.
      partial_active: whether partial masking happens at this step.
      draws: see `draw_masks`.
      combos: bool [n, K], see `combo_table`; with n = 0 there is no partial masking.
      log_weights: float32 [n].
      bounds: (start, stop) columns of every component.

    Returns:
      meta [B, D] with zeros where masked; valid [B, K]; int32 [B] of NONE, PARTIAL or FULL.
    """
    full = draws.full < p_full
    drop = jnp.broadcast_to(full[:, None], valid.shape)
    partial = jnp.zeros_like(full)
    if len(combos):
        partial = ~full & (draws.partial < p_partial) & jnp.asarray(partial_active)
        cumulative = jnp.cumsum(jax.nn.softmax(jnp.asarray(log_weights)))
        # scaled to the last sum, so that rounding can neither reach past the end nor into a trailing weight of 0
        combo = jnp.searchsorted(cumulative, draws.combo * cumulative[-1], side="right")
        last = jnp.max(jnp.where(jnp.asarray(log_weights) > -jnp.inf, jnp.arange(len(combos)), 0))
        drop = drop | (partial[:, None] & jnp.asarray(combos)[jnp.minimum(combo, last)])
    kind = jnp.where(full, FULL, jnp.where(partial, PARTIAL, NONE)).astype(jnp.int32)
    return zero_components(meta, ~drop, bounds), valid & ~drop, kind


def zero_components(meta: jax.Array, component_mask: jax.Array, bounds: Bounds) -> jax.Array:
    """Zeroes the components where `component_mask` is False.

    Args:
      meta: float32 [B, D].
      component_mask: bool [B, K] or [1, K].
      bounds: (start, stop) columns of every component.

    Returns:
      float32 [B, D].
    """
    return jnp.where(component_mask[:, column_components(bounds, meta.shape[1])], meta, 0.0)


def component_mask(components: Sequence[str], masked: Sequence[str] | None) -> NDArray[np.bool_]:
    """Components that a validation phase shows to the model.

    Args:
      components: names of the active components, in metadata order.
      masked: names of the components to mask; None: all of them.

    Returns:
      bool [K].

    Raises:
      ValueError: unknown component.
    """
    if unknown := set(masked or ()) - set(components):
        raise InputError(
            f"validation phase masks {sorted(unknown)[0]!r}, which is no active metadata component; "
            f"use {', '.join(components) or 'none: no component is enabled'}"
        )
    return np.array([masked is not None and name not in masked for name in components], bool)
