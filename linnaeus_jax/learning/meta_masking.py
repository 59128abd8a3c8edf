"""Masking of metadata: at random per sample in training, by component in validation phases.

Metadata are D columns in K components (consecutive slices). The model sees only zeros where a component is masked;
`valid` [B, K] records which components are present. In training, masking follows mixing, so that a masked component
cannot come back from the partner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NONE, PARTIAL, FULL = 0, 1, 2

Bounds = Sequence[tuple[int, int]]


class MaskDraws(NamedTuple):
    """The random numbers of one batch, uniform in [0, 1), float32 [B] each."""

    full: jax.Array
    partial: jax.Array
    combo: jax.Array


def column_components(bounds: Bounds, columns: int) -> np.ndarray:
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
) -> tuple[np.ndarray, np.ndarray]:
    """Combinations of components that partial masking chooses from.

    Args:
      whitelist: names of the components masked by each combination.
      weights: relative frequency of each combination; empty: equal.
      components: names of the active components, in metadata order.

    Returns:
      bool [n, K], True where masked; float32 [n] logarithms of the probabilities.

    Raises:
      ValueError: unknown component, empty combination, or weights that do not fit.
    """
    key = "schedule.meta_masking.partial"
    table = np.zeros((len(whitelist), len(components)), bool)
    for n, names in enumerate(whitelist):
        names = (names,) if isinstance(names, str) else names
        if unknown := [name for name in names if name not in components]:
            raise ValueError(
                f"{key}.whitelist[{n}] names {unknown[0]!r}, which is no active metadata component; "
                f"use {', '.join(components) or 'none: no component is enabled'}"
            )
        if not names:
            raise ValueError(f"{key}.whitelist[{n}] is empty and would mask nothing; remove it")
        table[n, [components.index(name) for name in names]] = True
    if len(weights) not in (0, len(whitelist)):
        raise ValueError(f"{key}.weights has {len(weights)} entries for {len(whitelist)} combinations; give one each")
    weight = np.asarray(weights if len(weights) else np.ones(len(whitelist)), np.float64)
    if len(weight) and (weight.min() < 0 or not 0 < weight.sum() < np.inf):
        raise ValueError(f"{key}.weights is {tuple(weights)}; weights must be >= 0 and not all 0")
    with np.errstate(divide="ignore"):
        return table, np.log(weight / weight.sum()).astype(np.float32) if len(weight) else weight.astype(np.float32)


def draw_masks(key: jax.Array, batch_size: int) -> MaskDraws:
    """Draws the random numbers of a batch.

    Args:
      key: keys [B], one per sample (`augmentation.row_keys`), which makes the draws independent of the sample's
        position in the batch and of the split into micro-batches; or one scalar key.
      batch_size: B.
    """
    keys = jax.random.split(key, batch_size) if key.ndim == 0 else key
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (3,)))(keys)
    return MaskDraws(uniform[:, 0], uniform[:, 1], uniform[:, 2])


def mask_metadata(
    meta: jax.Array,
    valid: jax.Array,
    key_or_draws: jax.Array | MaskDraws,
    *,
    p_full: jax.Array | float,
    p_partial: jax.Array | float,
    partial_active: jax.Array | bool,
    combos: np.ndarray | jax.Array,
    log_weights: np.ndarray | jax.Array,
    bounds: Bounds,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Masks metadata at random, per sample: everything, else one combination of components, else nothing.

    Args:
      meta: float32 [B, D].
      valid: bool [B, K].
      key_or_draws: see `draw_masks`, or the draws themselves.
      p_full: probability of masking everything.
      p_partial: probability, of the samples not fully masked, of masking a combination.
      partial_active: whether partial masking happens at this step.
      combos: bool [n, K], see `combo_table`; with n = 0 there is no partial masking.
      log_weights: float32 [n].
      bounds: (start, stop) columns of every component.

    Returns:
      meta [B, D] with zeros where masked; valid [B, K]; int32 [B] of NONE, PARTIAL or FULL.
    """
    draws = key_or_draws if isinstance(key_or_draws, MaskDraws) else draw_masks(key_or_draws, meta.shape[0])
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


def component_mask(components: Sequence[str], masked: Sequence[str] | None) -> np.ndarray:
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
        raise ValueError(
            f"validation phase masks {sorted(unknown)[0]!r}, which is no active metadata component; "
            f"use {', '.join(components) or 'none: no component is enabled'}"
        )
    return np.array([masked is not None and name not in masked for name in components], bool)


def valid_counts(valid: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mergeable share of samples in which each component is present: 100 * sum / count is the percentage.

    Args:
      valid: bool [B, K].
      weight: float32 [B], 0 for padding.

    Returns:
      float32 [K] sum, float32 [] count, of samples with positive weight.
    """
    real = weight > 0
    return jnp.sum(valid & real[:, None], axis=0, dtype=jnp.float32), jnp.sum(real, dtype=jnp.float32)


def component_bounds(dims: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """(start, stop) columns of consecutive components, given their widths in metadata order."""
    stops = np.cumsum(list(dims.values()), dtype=int).tolist()
    return tuple((stop - dim, stop) for stop, dim in zip(stops, dims.values()))
