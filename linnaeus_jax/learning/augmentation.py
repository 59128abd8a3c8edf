"""Augmentation of single images inside the compiled step, and normalisation.

`augment` turns a uint8 batch into float32 [0, 1] in this order: random resized crop, flips, policy (AutoAugment or
RandAugment), colour jitter, random erasing. Every random number of an image derives from (key, row id), so that the
result does not depend on the position in the batch, on the split into micro-batches or on the number of devices.
Crop, flips and all affine operators of the policy are one chain of coordinates, read from the image once.
Stages that are off are not traced. Evaluation calls `normalize` only.
A stage is a function of one image, mapped over the batch by `_for_each`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import backend
from linnaeus_jax.learning import pixel_ops
from linnaeus_jax.learning.pixel_ops import FILL, OP_CODE
from linnaeus_jax.learning.policies import POLICY_NAMES, Policy, get_policy

ERASE_MODES = ("pixel", "const", "rand")
_CROP_ATTEMPTS = 10
_CROP_DRAWS, _FLIP_DRAWS, _JITTER_DRAWS = 2 * _CROP_ATTEMPTS + 2, 2, 3
_ERASE_DRAWS = 5  # of the gate and of every rectangle


@dataclasses.dataclass(frozen=True)
class AugmentSettings:
    """What `augment` does; hashable, a static argument of the step. The defaults do nothing."""

    hflip_prob: float = 0.0
    vflip_prob: float = 0.0
    crop_scale: tuple[float, float] | None = None  # share of the image's area; None: no crop
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height of the crop
    color_jitter: float = 0.0  # factors are uniform in [max(0, 1 - x), 1 + x]
    policy: str = ""
    num_ops: int = 2  # of randaugment
    magnitude: float = 9.0  # of randaugment, 0..10
    erase_prob: float = 0.0
    erase_mode: str = "pixel"
    erase_count: int = 1
    erase_area: tuple[float, float] = (0.02, 0.4)  # share of the image's area
    erase_ratio: tuple[float, float] = (0.3, 3.3)  # height / width

    @classmethod
    def from_config(cls, aug: Any) -> AugmentSettings:
        """Settings of a valid `aug` section of the configuration, see `validate`."""
        crop, erase, auto = aug.random_resized_crop, aug.random_erase, aug.autoaug
        return cls(
            hflip_prob=float(aug.hflip_prob),
            vflip_prob=float(aug.vflip_prob),
            crop_scale=_pair(crop.scale) if crop.enabled else None,
            crop_ratio=_pair(crop.ratio),
            color_jitter=float(aug.color_jitter),
            policy=auto.policy,
            num_ops=int(auto.num_ops),
            magnitude=float(auto.magnitude),
            erase_prob=float(erase.prob),
            erase_mode=erase.mode,
            erase_count=int(erase.count),
            erase_area=_pair(erase.area_range),
            erase_ratio=_pair(erase.aspect_ratio),
        )


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)


def validate(aug: Any) -> list[str]:
    """Checks what the declarations of the `aug` section leave open; one text per wrong key, empty if all are right."""
    errors = []

    def check(key: str, ok: bool, want: str) -> None:
        if not ok:
            value = functools.reduce(lambda node, part: node[part], key.split("."), aug)
            errors.append(f"aug.{key} is {value!r}; it must be {want}")

    check("autoaug.policy", aug.autoaug.policy in ("", *POLICY_NAMES), f"'' (off) or one of {', '.join(POLICY_NAMES)}")
    check("random_erase.mode", aug.random_erase.mode in ERASE_MODES, f"one of {', '.join(ERASE_MODES)}")
    for section, name in (
        ("random_resized_crop", "scale"),
        ("random_resized_crop", "ratio"),
        ("random_erase", "area_range"),
        ("random_erase", "aspect_ratio"),
    ):
        low, high = aug[section][name]
        check(f"{section}.{name}", low <= high, "two numbers (low, high) with low <= high")
    return errors


# ---------------------------------------------------------------------------------------------- public functions
def normalize(image: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]) -> jax.Array:
    """(image - mean) / std per channel, the last step before the model in training and evaluation.

    Args:
      image: [..., 3]; uint8 grey levels, or float in [0, 1]. The dtype decides, never the values.
      mean: per channel, of values in [0, 1].
      std: likewise.

    Returns:
      float32 [..., 3].
    """
    x = image.astype(jnp.float32) / 255 if image.dtype == jnp.uint8 else image
    shape = (1,) * (x.ndim - 1) + (3,)
    return (x - jnp.asarray(mean, jnp.float32).reshape(shape)) / jnp.asarray(std, jnp.float32).reshape(shape)


def denormalize(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """What `normalize` was given, float32 [..., 3] in [0, 1], for looking at."""
    return pixels * np.asarray(std, np.float32) + np.asarray(mean, np.float32)


def row_keys(key: jax.Array, row: jax.Array) -> jax.Array:
    """One random key per row id: `fold_in(key, row)`.

    Args:
      key: scalar key of one stream at one step.
      row: int32 [B].

    Returns:
      Keys [B].
    """
    return jax.vmap(lambda r: jax.random.fold_in(key, r))(row)


def augment(image: jax.Array, row: jax.Array, key: jax.Array, settings: AugmentSettings) -> jax.Array:
    """Augments every image of a batch with its own random numbers.

    Args:
      image: uint8 [B, H, W, 3], RGB.
      row: int32 [B], row ids; with `key` they determine all random numbers of an image.
      key: scalar key, already folded with the step.
      settings: static.

    Returns:
      float32 [B, H, W, 3] in [0, 1], not normalised.

    Raises:
      ValueError: image is not uint8.
    """
    if image.dtype != jnp.uint8:
        raise ValueError(f"augment() takes uint8 images, not {image.dtype}; grey levels are scaled by their dtype")
    policy = get_policy(settings.policy, settings.num_ops, settings.magnitude) if settings.policy else None
    slots = policy.op.shape[1] if policy else 0
    row_key, noise_key = jax.random.split(key)
    # each stage owns its draws, used or not, so that switching one stage leaves the others as they were
    sizes = (_CROP_DRAWS, _FLIP_DRAWS, _JITTER_DRAWS, _ERASE_DRAWS * (1 + settings.erase_count), 3 * slots)
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (sum(sizes),)))(row_keys(row_key, row))
    *moving, u_jitter, u_erase, u_policy = jnp.split(uniform, list(itertools.accumulate(sizes[:-1])), axis=1)

    ops, values = jax.vmap(lambda u: _draw_slots(u, policy))(u_policy)
    out, filled = _for_each(functools.partial(_move, settings=settings, policy=policy), image, *moving, ops, values)
    for slot in range(slots):
        assert policy is not None
        color_slot = functools.partial(_color_slot, slot=slot, present=policy.present[slot])
        out = _for_each(color_slot, out, ops[:, slot], values[:, slot], filled)
    if settings.color_jitter > 0:
        low, high = max(0.0, 1 - settings.color_jitter), 1 + settings.color_jitter
        out = _for_each(
            lambda x, u: pixel_ops.color_jitter(x.astype(jnp.float32), *(low + (high - low) * u)), out, u_jitter
        )
    if settings.erase_prob > 0:
        noise = _noise(noise_key, 2 * math.prod(image.shape[1:]), settings)
        out = _for_each(
            lambda x, u: random_erase(x.astype(jnp.float32), u.reshape(-1, _ERASE_DRAWS), noise, settings), out, u_erase
        )
    return out.astype(jnp.float32) / 255


def _one_by_one() -> bool:
    """Whether a stage loops over the images; a loop over a batch that is spread over devices would gather it."""
    return backend.ONE_PICTURE_AT_A_TIME.here() and jax.device_count() == 1


def _for_each(stage: Callable[..., Any], *args: Any) -> Any:
    """Maps a stage over the leading axis of its arguments.

    On one CPU a loop is several times cheaper than `vmap`: only the operators that an image drew run, and a stage's
    result is stored before the next one reads it, where XLA's CPU compiler would compute it again for every reader.
    """
    if _one_by_one():
        return jax.lax.map(lambda one: stage(*one), args)
    return jax.vmap(stage)(*args)


def _noise(key: jax.Array, size: int, settings: AugmentSettings) -> jax.Array:
    """Noise that fills erased rectangles, float32 [size]; [0] where none is used.

    Every image reads a window of it at its own offset: independent within an image, at the price of two images.
    """
    if settings.erase_prob <= 0 or settings.erase_mode == "const":
        return jnp.zeros(0)
    draw = jax.random.normal if settings.erase_mode == "pixel" else functools.partial(jax.random.uniform, maxval=255.0)
    # in two steps of a loop: otherwise XLA's CPU compiler computes the noise again for every pixel that reads it
    return jax.lax.map(lambda k: draw(k, (size // 2,)), jax.random.split(key)).reshape(size)


def cumulative_settings(settings: AugmentSettings) -> list[tuple[str, AugmentSettings]]:
    """(name, settings) of the input and of each active stage with everything before it, for looking at the stages.

    Stages draw from separate streams, so that a stage's random numbers do not change when later ones are added.
    """
    active = {
        "crop": (settings.crop_scale is not None, {"crop_scale": settings.crop_scale}),
        "flip": (
            settings.hflip_prob > 0 or settings.vflip_prob > 0,
            {"hflip_prob": settings.hflip_prob, "vflip_prob": settings.vflip_prob},
        ),
        settings.policy: (bool(settings.policy), {"policy": settings.policy}),
        "colour jitter": (settings.color_jitter > 0, {"color_jitter": settings.color_jitter}),
        "random erasing": (settings.erase_prob > 0, {"erase_prob": settings.erase_prob}),
    }
    current = dataclasses.replace(
        settings, hflip_prob=0.0, vflip_prob=0.0, crop_scale=None, policy="", color_jitter=0.0, erase_prob=0.0
    )
    stages = [("input", current)]
    for name, (on, changes) in active.items():
        if on:
            current = dataclasses.replace(current, **changes)  # type: ignore[arg-type]
            stages.append((name, current))
    return stages


# ------------------------------------------------------------------------------------------------------ one image
def _draw_slots(uniform: jax.Array, policy: Policy | None) -> tuple[jax.Array, jax.Array]:
    """Operator codes int32 [S] and arguments float32 [S] of one image, from float32 [3 * S]; S = 0 without policy."""
    if policy is None:
        return jnp.zeros(0, jnp.int32), jnp.zeros(0)
    return draw_policy(uniform.reshape(3, -1), policy)


def _move(
    image: jax.Array,
    u_crop: jax.Array,
    u_flip: jax.Array,
    ops: jax.Array,
    values: jax.Array,
    settings: AugmentSettings,
    policy: Policy | None,
) -> tuple[jax.Array, dict[int, jax.Array]]:
    """Crop, flips and the affine operators of the policy in one reading of an image.

    Returns:
      The image [H, W, 3], 0..255: uint8 where a policy follows or nothing moves, float32 otherwise; and per slot with
      affine operators the points that it moved in from outside, bool [H, W].
    """
    height, width, _ = image.shape
    x, y = pixel_ops.pixel_centres(height, width)
    moved = False  # whether the points are still the pixel centres

    filled: dict[int, jax.Array] = {}
    if policy is not None:
        for slot in reversed(range(len(policy.present))):  # from the output back to the input
            if set(policy.present[slot]) & set(pixel_ops.AFFINE_OPS):
                matrix = pixel_ops.affine_matrix(ops[slot], values[slot], height, width)
                x, y = pixel_ops.affine_points(matrix, x, y)
                filled[slot] = pixel_ops.outside(x, y, height, width)
                moved = True
    if settings.hflip_prob > 0 or settings.vflip_prob > 0:
        x = jnp.where(u_flip[0] < settings.hflip_prob, width - x, x)
        y = jnp.where(u_flip[1] < settings.vflip_prob, height - y, y)
        moved = True
    if settings.crop_scale is not None:
        left, top, crop_width, crop_height = crop_window(
            u_crop, height, width, settings.crop_scale, settings.crop_ratio
        )
        x, y = left + x * (crop_width / width), top + y * (crop_height / height)
        moved = True

    if not moved:
        return image, filled
    out = pixel_ops.sample(image, x, y)
    return (out if policy is None else jnp.round(out).astype(jnp.uint8)), filled


def crop_window(
    uniform: jax.Array, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Window of a random resized crop (Inception style): uniform area, log-uniform aspect ratio, uniform place.

    The first of ten proposals that fits into the image is taken; if none does, the largest central window with an
    aspect ratio within bounds. Windows are not rounded to whole pixels.

    Args:
      uniform: float32 [22] in [0, 1): ten areas, ten aspect ratios, column, row.
      height: rows of the image.
      width: columns of the image.
      scale: bounds of the window's share of the image's area.
      ratio: bounds of its width / height.

    Returns:
      left, top, width, height in pixels, float32 [] each.
    """
    u_area, u_ratio, place = jnp.split(uniform, (_CROP_ATTEMPTS, 2 * _CROP_ATTEMPTS))
    area = (scale[0] + (scale[1] - scale[0]) * u_area) * (height * width)
    aspect = ratio[0] * jnp.exp(math.log(ratio[1] / ratio[0]) * u_ratio)
    widths, heights = jnp.sqrt(area * aspect), jnp.sqrt(area / aspect)
    fits = (widths <= width) & (heights <= height)
    first = jnp.argmax(fits)
    fallback_width, fallback_height = min(width, height * ratio[1]), min(height, width / ratio[0])
    crop_width = jnp.where(fits[first], widths[first], fallback_width)
    crop_height = jnp.where(fits[first], heights[first], fallback_height)
    place = jnp.where(fits[first], place, 0.5)
    return place[0] * (width - crop_width), place[1] * (height - crop_height), crop_width, crop_height


def draw_policy(uniform: jax.Array, policy: Policy) -> tuple[jax.Array, jax.Array]:
    """Chooses the operators of one image.

    Args:
      uniform: float32 [3, S] in [0, 1): choice, whether the operator is applied, argument.
      policy: N choices, S slots.

    Returns:
      int32 [S] operator codes (the identity where the operator was not applied), float32 [S] arguments.
    """
    choices, slots = policy.op.shape
    choose, apply, argument = uniform
    choice = jnp.minimum((choose * choices).astype(jnp.int32), choices - 1)
    if policy.joint:
        choice = jnp.broadcast_to(choice[0], choice.shape)
    slot = jnp.arange(slots)
    op = jnp.asarray(policy.op)[choice, slot]
    op = jnp.where(apply < jnp.asarray(policy.prob)[choice, slot], op, OP_CODE[pixel_ops.IDENTITY])
    sign = jnp.where(argument < 0.5, -1.0, 1.0)
    share = jnp.where(op == OP_CODE["blur"], argument, sign)
    return op, jnp.asarray(policy.base)[choice, slot] + jnp.asarray(policy.delta)[choice, slot] * share


def _color_slot(
    image: jax.Array,
    op: jax.Array,
    value: jax.Array,
    filled: dict[int, jax.Array],
    slot: int,
    present: Collection[str],
) -> jax.Array:
    """Applies the colour operator of one slot to an image whose geometry is done already; uint8 [H, W, 3] both.

    Slots act in order: points that slot k moved in from outside are grey from slot k on, and statistics of earlier
    slots leave out what later slots cover.
    """
    later = [mask for k, mask in filled.items() if k > slot]
    visible = ~functools.reduce(jnp.logical_or, later) if later else None
    out = pixel_ops.apply_color_op(image, op, value, present, visible=visible)
    return jnp.where(filled[slot][..., None], jnp.uint8(FILL), out) if slot in filled else out


def erase_rectangle(
    uniform: jax.Array, height: int, width: int, area: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Rectangle of random erasing (arXiv:1708.04896): uniform area and aspect ratio, uniform corner, one attempt.

    Args:
      uniform: float32 [4] in [0, 1): area, aspect ratio, row, column.
      height: rows of the image.
      width: columns of the image.
      area: bounds of the rectangle's share of the image's area.
      ratio: bounds of its height / width.

    Returns:
      top, left, height, width, int32 [] each; height and width are 0 where the rectangle does not fit.
    """
    share, aspect, u_top, u_left = uniform
    target = (area[0] + (area[1] - area[0]) * share) * (height * width)
    aspect = ratio[0] + (ratio[1] - ratio[0]) * aspect
    h = jnp.round(jnp.sqrt(target * aspect)).astype(jnp.int32)
    w = jnp.round(jnp.sqrt(target / aspect)).astype(jnp.int32)
    fits = (h < height) & (w < width)
    h, w = jnp.where(fits, h, 0), jnp.where(fits, w, 0)
    return (u_top * (height - h)).astype(jnp.int32), (u_left * (width - w)).astype(jnp.int32), h, w


def random_erase(image: jax.Array, uniform: jax.Array, noise: jax.Array, settings: AugmentSettings) -> jax.Array:
    """Overwrites rectangles of an image with the settings' probability.

    Modes: `const` one uniform grey level per rectangle, `rand` uniform per pixel and channel, `pixel` normal with
    the image's mean and standard deviation of the channel, clipped.

    Args:
      image: float32 [H, W, 3], 0..255.
      uniform: float32 [1 + erase_count, 5] in [0, 1): first gate and place in `noise`, then four numbers of
        `erase_rectangle` and a grey level per rectangle.
      noise: float32 [2 * H * W * 3] of the mode; unused for `const`.
      settings: static.
    """
    height, width, _ = image.shape
    row, column = jnp.arange(height)[:, None], jnp.arange(width)[None, :]

    def erased() -> jax.Array:
        out, fill = image, jnp.zeros(())
        if settings.erase_mode != "const":
            start = (uniform[0, 1] * image.size).astype(jnp.int32)
            fill = jax.lax.dynamic_slice(noise, (start,), (image.size,)).reshape(image.shape)
        if settings.erase_mode == "pixel":
            mean, std = (moment(image, axis=(0, 1), keepdims=True) for moment in (jnp.mean, jnp.std))
            fill = jnp.clip(mean + std * fill, 0, 255)
        for u in uniform[1:]:
            top, left, h, w = erase_rectangle(u[:4], height, width, settings.erase_area, settings.erase_ratio)
            inside = (row >= top) & (row < top + h) & (column >= left) & (column < left + w)
            level = 255 * u[4] if settings.erase_mode == "const" else fill
            out = jnp.where(inside[..., None], level, out)
        return out

    return jax.lax.cond(uniform[0, 0] < settings.erase_prob, erased, lambda: image)
