"""Which labels count in which task's loss: null labels with a scheduled probability, all others always.

A label is null when the class is unknown at that rank (class 0, in data that has null labels at all). After mixing,
a target is null when more than half of its mass is. Functions take any leading shape: ``[B, T]`` for one batch,
``[A, B, T]`` for the micro-batches of one update.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def null_mask(
    label: jax.Array,
    partner_label: jax.Array | None = None,
    lam: jax.Array | None = None,
    *,
    null_possible: bool = True,
) -> jax.Array:
    """True where the (mixed) target is null: ``lam * [label = 0] + (1 - lam) * [partner_label = 0] > 0.5``.

    Args:
      label: int32 [..., T].
      partner_label: int32 [..., T], label of the mixing partner; None: nothing is mixed.
      lam: float32 [...], weight of `label`.
      null_possible: False where class 0 is an ordinary class (data without null labels): nothing is null.

    Returns:
      bool [..., T].
    """
    if not null_possible:
        return jnp.zeros(label.shape, bool)
    if partner_label is None or lam is None:
        return label == 0
    lam = lam[..., None]
    return jnp.where(label == 0, lam, 0.0) + jnp.where(partner_label == 0, 1.0 - lam, 0.0) > 0.5


def inclusion_uniforms(key: jax.Array, shape: tuple[int, ...], num_tasks: int) -> jax.Array:
    """Independent uniforms in [0, 1) per sample and task: float32 [*shape, T].

    Task k draws from ``fold_in(key, k)``, one number per global row, so that a task's draws depend neither on the
    other tasks nor on how rows are spread over devices or micro-batches ((A, B) draws what (A * B,) does).
    """
    keys = jax.vmap(lambda task: jax.random.fold_in(key, task))(jnp.arange(num_tasks))
    return jnp.moveaxis(jax.vmap(lambda k: jax.random.uniform(k, shape))(keys), 0, -1)


def loss_mask(
    null: jax.Array,
    *,
    probability: jax.Array | float | None = None,
    uniforms: jax.Array | None = None,
    phase1: bool = False,
) -> jax.Array:
    """True where a label counts in the loss.

    Args:
      null: bool [..., T] of `null_mask`.
      probability: with which null labels count; None: all count (schedule disabled, validation).
      uniforms: float32 [..., T]; a null label counts iff its number is below `probability`; needed with it.
      phase1: no null label counts, whatever the schedule says.

    Returns:
      bool [..., T].

    Raises:
      ValueError: `probability` without `uniforms`.
    """
    if phase1:
        return ~null
    if probability is None:
        return jnp.ones(null.shape, bool)
    if uniforms is None:
        raise ValueError("loss_mask(probability=...) needs uniforms of the mask's shape, see inclusion_uniforms")
    return ~null | (uniforms < probability)
