"""Selective mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) inside the compiled step.

Who is mixed with whom is planned with the batch: `partner` holds a position within the micro-batch that lies in the
same block of `block` consecutive rows. Blocks divide the rows of one device, so no image crosses devices. Whether a
micro-batch is mixed, how, and with which lam is drawn here, once per micro-batch; boxes and metadata picks are
drawn per sample. Labels are not interpolated: losses get `label`, `partner_label` and `lam`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from linnaeus_jax.learning.branches import computed_if
from linnaeus_jax.learning.meta_masking import Bounds, column_components, zero_components
from linnaeus_jax.mistakes import InputError


@dataclasses.dataclass(frozen=True)
class MixSettings:
    """How micro-batches are mixed; hashable, a static argument of the step. The defaults do nothing."""

    block: int = 1  # rows among which partners lie
    mixup: bool = False
    cutmix: bool = False
    mixup_alpha: float = 1.0  # lambda ~ Beta(alpha, alpha); <= 0: lambda = 1, nothing is mixed
    cutmix_alpha: float = 1.0
    minmax: tuple[float, float] | None = None  # bounds of the share that cutmix pastes, before clipping at edges
    switch_prob: float = 0.5  # chance of cutmix where both are enabled

    @property
    def mixes(self) -> bool:
        """Whether anything is ever mixed."""
        return self.mixup or self.cutmix

    @classmethod
    def from_config(cls, mixup: Any, block: int) -> MixSettings:
        """Settings of the `schedule.mixup` section of the configuration.

        Args:
          mixup: the section.
          block: rows among which the plan drew partners.
        """
        return cls(
            block=block,
            mixup=bool(mixup.enabled),
            cutmix=bool(mixup.cutmix.enabled),
            mixup_alpha=float(mixup.alpha),
            cutmix_alpha=float(mixup.cutmix.alpha),
            minmax=tuple(mixup.cutmix.minmax) or None,
            switch_prob=float(mixup.switch_prob),
        )


class MixDraws(NamedTuple):
    """The random numbers of one micro-batch."""

    active: jax.Array  # bool [], whether anything is mixed
    cutmix: jax.Array  # bool [], cutmix instead of mixup
    lam: jax.Array  # float32 [], weight of a row's own image before `minmax` and before the box is clipped
    pick: jax.Array  # float32 [B] in [0, 1), the row's own metadata below 0.5 where both are valid
    centre: jax.Array  # int32 [B, 2], row in [0, H] and column in [0, W] of the box centres


def interpolate(
    of: Callable[[jax.Array], jax.Array], label: jax.Array, partner_label: jax.Array | None, lam: jax.Array | None
) -> jax.Array:
    """``lam * of(label) + (1 - lam) * of(partner_label)``, or ``of(label)`` where nothing is mixed.

    Args:
      of: int32 [B] -> [B, ...].
      label: int32 [B].
      partner_label: int32 [B], or None.
      lam: float32 [B], or None.
    """
    value = of(label)
    if partner_label is None or lam is None:
        return value
    weight = lam.reshape((-1,) + (1,) * (value.ndim - 1))
    return weight * value + (1.0 - weight) * of(partner_label)


def draw_mix(
    key: jax.Array, p_mix: jax.Array | float, batch_size: int, image_size: tuple[int, int], settings: MixSettings
) -> MixDraws:
    """Draws the random numbers of a micro-batch.

    Args:
      key: scalar key, folded with the step and the micro-batch.
      p_mix: probability that the micro-batch is mixed.
      batch_size: B.
      image_size: H, W.
      settings: static.
    """
    gate_key, switch_key, lam_key, pick_key, centre_key = jax.random.split(key, 5)
    switch = settings.switch_prob if settings.mixup else 1.0
    cutmix = (jax.random.uniform(switch_key) < switch) & settings.cutmix
    alpha = jnp.where(cutmix, settings.cutmix_alpha, settings.mixup_alpha)
    lam = symmetric_beta(lam_key, jnp.maximum(alpha, 1e-3))
    top = jnp.asarray(image_size, jnp.int32)[None, :] + 1
    return MixDraws(
        active=(jax.random.uniform(gate_key) < p_mix) & (alpha > 0),
        cutmix=cutmix,
        lam=jnp.where(alpha > 0, lam, 1.0),
        pick=jax.random.uniform(pick_key, (batch_size,)),
        centre=jax.random.randint(centre_key, (batch_size, 2), 0, top),
    )


def symmetric_beta(key: jax.Array, alpha: jax.Array | float, shape: tuple[int, ...] = ()) -> jax.Array:
    """Draws from Beta(alpha, alpha), float32 `shape`; exact for every alpha > 0, and without a loop.

    If t has Student's distribution with 2 alpha degrees of freedom, 1/2 + t / (2 sqrt(2 alpha + t^2)) has this one, and
    t comes from two uniform numbers (Bailey 1994; Devroye 1996). The rejection sampling of `jax.random.beta` is a loop
    of unknown length, in each round of which the host of a GPU waits for the device.

    Args:
      key: scalar key.
      alpha: at least 1e-3.
      shape: of the result.
    """
    turn_key, length_key = jax.random.split(key)
    cosine = jnp.cos(2 * jnp.pi * jax.random.uniform(turn_key, shape))
    length = -jnp.log1p(-jax.random.uniform(length_key, shape)) / alpha
    squared = jnp.expm1(length) * jnp.square(cosine)  # t^2 / (2 alpha); infinite where the result is 0 or 1
    near_0 = 0.5 / ((1 + squared) * (1 + 1 / jnp.sqrt(1 + 1 / squared)))  # the lesser of the result and 1 - result
    return jnp.where(cosine < 0, near_0, 1 - near_0)


def cutmix_box(
    lam: jax.Array, centre: jax.Array, height: int, width: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Box of area (1 - lam) around a centre, clipped at the image's edges.

    Args:
      lam: float32 [], share of the image outside of an unclipped box.
      centre: int32 [..., 2], row in [0, H], column in [0, W].
      height: H.
      width: W.

    Returns:
      top, left, bottom, right, int32 [...] each (bottom and right exclusive); float32 [...] share of the image
      outside of the clipped box.
    """
    side = jnp.sqrt(1 - lam)
    half_height, half_width = (jnp.floor(n * side).astype(jnp.int32) // 2 for n in (height, width))
    row, column = centre[..., 0], centre[..., 1]
    top, bottom = jnp.clip(row - half_height, 0, height), jnp.clip(row + half_height, 0, height)
    left, right = jnp.clip(column - half_width, 0, width), jnp.clip(column + half_width, 0, width)
    return top, left, bottom, right, 1 - ((bottom - top) * (right - left)).astype(jnp.float32) / (height * width)


def mix_labels(
    label: jax.Array,
    partner: jax.Array,
    group: jax.Array,
    draws: MixDraws,
    *,
    settings: MixSettings,
    image_size: tuple[int, int],
) -> tuple[jax.Array, jax.Array]:
    """The targets of a micro-batch: lam[i] on label[i, t], 1 - lam[i] on partner_label[i, t].

    Args:
      label: int32 [B, T].
      partner, group, draws, settings: as for `mix_inputs`.
      image_size: H, W.

    Returns:
      (int32 [B, T] `partner_label`, the row's own where it is not mixed; float32 [B] `lam`, 1 where it is not mixed).

    Raises:
      ValueError: block does not divide B.
    """
    if not settings.mixes:
        return label, jnp.ones(label.shape[0], jnp.float32)
    mixed, of_partner = _pairs(partner, group, draws, settings)
    return of_partner(label), _lam_and_box(draws, mixed, settings, *image_size)[0]


def mix_inputs(
    image: jax.Array,
    meta: jax.Array,
    valid: jax.Array,
    partner: jax.Array,
    group: jax.Array,
    draws: MixDraws,
    *,
    settings: MixSettings,
    bounds: Bounds,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Images, metadata and their validity of a micro-batch, mixed with given random numbers.

    Image: mixup lam * image + (1 - lam) * partner's image; cutmix the partner's pixels inside of the box, with lam
    corrected to the area outside of it. Metadata, per component: where both are valid one of the two, by `pick` and
    independent of lam; where one is valid that one; where neither is, zeros. Rows of group -1 and rows that are their
    own partner stay as they are.

    Args:
      image: float [B, H, W, 3].
      meta, valid: float32 [B, D], bool [B, K].
      partner, group: int32 [B], positions within the micro-batch, inside of the row's block; -1 is never mixed.
      settings: static; `block` must divide B and the rows of one device.
      bounds: (start, stop) columns of every metadata component.

    Raises:
      ValueError: block does not divide B, or the image is not floating point.
    """
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise ValueError(f"mixing takes float images in [0, 1] or normalised, not {image.dtype}; augment first")
    if not settings.mixes:
        return image, meta, valid
    height, width = image.shape[1:3]
    mixed, of_partner = _pairs(partner, group, draws, settings)
    lam, box = _lam_and_box(draws, mixed, settings, height, width)

    def blend(image: jax.Array) -> jax.Array:
        weight = lam[:, None, None, None]
        if box is not None:
            inside = _inside(mixed, box, height, width)
            weight = jnp.where(draws.cutmix, 1.0 - inside[..., None].astype(jnp.float32), weight)
        weight = weight.astype(image.dtype)
        return weight * image + (1 - weight) * of_partner(image)

    take_partner = mixed[:, None] & of_partner(valid) & (~valid | (draws.pick >= 0.5)[:, None])
    picked = jnp.where(take_partner[:, column_components(bounds, meta.shape[1])], of_partner(meta), meta)
    return (
        computed_if(draws.active, blend, image, store=True),
        zero_components(picked, valid | take_partner | ~mixed[:, None], bounds),
        valid | take_partner,
    )


def _pairs(
    partner: jax.Array, group: jax.Array, draws: MixDraws, settings: MixSettings
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """(bool [B], whether a row is mixed; array [B, ...] -> the rows of the partners, itself where it is not)."""
    batch = partner.shape[0]
    if batch % settings.block:
        raise InputError(f"schedule.mixup.mix_block = {settings.block} does not divide a micro-batch of {batch} rows")
    row = jnp.arange(batch, dtype=jnp.int32)
    mixed = draws.active & (group >= 0) & (partner != row)
    return mixed, _partners(jnp.where(mixed, partner, row), settings.block)


def _lam_and_box(
    draws: MixDraws, mixed: jax.Array, settings: MixSettings, height: int, width: int
) -> tuple[jax.Array, list[jax.Array] | None]:
    """float32 [B], weight of a row's own image, 1 where it is not mixed; and the boxes of cutmix."""
    lam = jnp.broadcast_to(draws.lam, mixed.shape)
    if not settings.cutmix:
        return jnp.where(mixed, lam, 1.0), None
    pasted = 1 - draws.lam
    if settings.minmax is not None:
        pasted = settings.minmax[0] + (settings.minmax[1] - settings.minmax[0]) * pasted
    *box, box_lam = cutmix_box(1 - pasted, draws.centre, height, width)
    return jnp.where(mixed, jnp.where(draws.cutmix, box_lam, lam), 1.0), box


def _partners(partner: jax.Array, size: int) -> Callable[[jax.Array], jax.Array]:
    """Array [B, ...] -> the rows of the partners; gathered within blocks of `size` rows, so that sharded rows stay on
    their device."""
    blocks = partner.shape[0] // size
    position = partner.reshape(blocks, size)
    position = jnp.clip(position - size * jnp.arange(blocks)[:, None], 0, size - 1)

    def of_partner(x: jax.Array) -> jax.Array:
        rows = x.reshape(blocks, size, *x.shape[1:])
        return jax.vmap(lambda block, i: block.at[i].get(mode="promise_in_bounds"))(rows, position).reshape(x.shape)

    return of_partner


def _inside(mixed: jax.Array, box: Sequence[jax.Array], height: int, width: int) -> jax.Array:
    """bool [B, H, W]: pixels of mixed rows in the boxes (top, left, bottom, right), int32 [B] each."""
    top, left, bottom, right = (side[:, None, None] for side in box)
    y, x = jnp.arange(height)[None, :, None], jnp.arange(width)[None, None, :]
    return mixed[:, None, None] & (y >= top) & (y < bottom) & (x >= left) & (x < right)
