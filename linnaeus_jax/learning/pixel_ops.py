"""Pixel operators on one image, written so that `jax.vmap` gives every image of a batch its own operator.

Operators fall into three families of fixed cost: geometry (one bilinear gather for any chain of affine maps),
256-entry tables per channel, and blends with a degenerate image (grey, smoothed, blurred). A switch chooses the
family; `vmap` turns it into a selection. Results follow Pillow's 8-bit arithmetic: tables exactly, blends to one
grey level, geometry to rounding.

Coordinates are in pixels with pixel (row 0, column 0) centred at (x, y) = (0.5, 0.5); a map takes *output* points
to *input* points. Images are [H, W, 3], RGB.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

IDENTITY = "identity"
AFFINE_OPS = ("shear_x", "shear_y", "rotate", "translate_x", "translate_y")
TABLE_OPS = (
    "posterize",
    "solarize",
    "solarize_add",
    "invert",
    "autocontrast",
    "equalize",
    "brightness",
    "contrast",
)
BLEND_OPS = ("color", "sharpness", "blur")
OPS = (IDENTITY, *AFFINE_OPS, *TABLE_OPS, *BLEND_OPS)
OP_CODE = {name: code for code, name in enumerate(OPS)}

#: grey value of pixels that an affine operator moved in from outside of the image
FILL = 128


# ----------------------------------------------------------------------------------------------------- geometry
def pixel_centres(height: int, width: int) -> tuple[jax.Array, jax.Array]:
    """Returns x, y of all pixel centres, float32 [height, width] each."""
    y, x = jnp.meshgrid(jnp.arange(height) + 0.5, jnp.arange(width) + 0.5, indexing="ij")
    return x.astype(jnp.float32), y.astype(jnp.float32)


def affine_matrix(op: jax.Array | int, value: jax.Array | float, height: int, width: int) -> jax.Array:
    """Output-to-input matrix of one affine operator; the identity for every other operator.

    Args:
      op: int32 [], a code of `OP_CODE`.
      value: float32 []: shear factor (about the top left corner), degrees counter-clockwise about the centre, or
        shift as a fraction of the image's width or height.
      height: rows of the image.
      width: columns of the image.

    Returns:
      float32 [2, 3].
    """
    of = {name: jnp.where(op == OP_CODE[name], value, 0.0) for name in AFFINE_OPS}
    angle = jnp.deg2rad(of["rotate"])
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    cx, cy = width / 2, height / 2
    tx = cx - cos * cx + sin * cy + of["translate_x"] * width
    ty = cy - sin * cx - cos * cy + of["translate_y"] * height
    return jnp.stack([jnp.stack([cos, of["shear_x"] - sin, tx]), jnp.stack([of["shear_y"] + sin, cos, ty])])


def affine_points(matrix: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Maps points x, y (any one shape) by `matrix` float32 [2, 3]."""
    (a, b, c), (d, e, f) = matrix
    return a * x + b * y + c, d * x + e * y + f


def outside(x: jax.Array, y: jax.Array, height: int, width: int) -> jax.Array:
    """Returns which points lie outside of an image, bool of the shape of x."""
    return (x < 0) | (x >= width) | (y < 0) | (y >= height)


def sample(image: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Reads `image` [H, W, 3] at points x, y [h, w], bilinearly; edges are extended.

    Returns:
      float32 [h, w, 3], in the image's units, not rounded.
    """
    height, width, channels = image.shape
    pixels = image.reshape(height * width, channels)

    def read(row: jax.Array, column: jax.Array) -> jax.Array:
        index = jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)
        return pixels.at[index].get(mode="promise_in_bounds").astype(jnp.float32)

    left, top = jnp.floor(x - 0.5), jnp.floor(y - 0.5)
    column, row = left.astype(jnp.int32), top.astype(jnp.int32)
    right_share, low_share = (x - 0.5 - left)[..., None], (y - 0.5 - top)[..., None]
    upper = read(row, column) * (1 - right_share) + read(row, column + 1) * right_share
    lower = read(row + 1, column) * (1 - right_share) + read(row + 1, column + 1) * right_share
    return upper * (1 - low_share) + lower * low_share


# ------------------------------------------------------------------------------------------------------- colour
def grey(image: jax.Array) -> jax.Array:
    """Rec. 601 luma of float RGB values [..., 3], float32 [...]."""
    # a contraction: stored once, where a sum of slices would be evaluated again for each channel that reads it
    return jnp.einsum("...c,c->...", image, np.array((0.299, 0.587, 0.114), np.float32), precision="highest")


def _grey_u8(image: jax.Array) -> jax.Array:
    """Luma of a uint8 image in fixed point, rounded, int32 [H, W]."""
    red, green, blue = (image[..., c].astype(jnp.int32) for c in range(3))
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def _blend(degenerate: jax.Array, image: jax.Array, factor: jax.Array | float) -> jax.Array:
    """degenerate + factor * (image - degenerate) on grey levels, clipped and truncated to uint8."""
    start = degenerate.astype(jnp.float32)
    return jnp.clip(start + factor * (image.astype(jnp.float32) - start), 0, 255).astype(jnp.uint8)


def histogram(image: jax.Array, visible: jax.Array | None = None) -> jax.Array:
    """Counts of the grey levels of a uint8 image [H, W, 3] per channel, int32 [3, 256].

    Args:
      image: uint8 [H, W, 3].
      visible: bool [H, W], pixels to count; None: all.
    """
    level = image.astype(jnp.int32) + 256 * jnp.arange(3)[None, None, :]
    weight = jnp.int32(1) if visible is None else jnp.broadcast_to(visible[..., None], level.shape).astype(jnp.int32)
    return jnp.zeros(3 * 256, jnp.int32).at[level].add(weight, mode="promise_in_bounds").reshape(3, 256)


def equalize_table(counts: jax.Array) -> jax.Array:
    """Table that flattens the histogram `counts`, int32 [3, 256] both; the identity where one level is used."""
    last = 255 - jnp.argmax(counts[:, ::-1] > 0, axis=1)
    step = (counts.sum(axis=1) - jnp.take_along_axis(counts, last[:, None], axis=1)[:, 0]) // 255
    before = jnp.cumsum(counts, axis=1) - counts
    table = jnp.minimum((step[:, None] // 2 + before) // jnp.maximum(step, 1)[:, None], 255)
    return jnp.where(step[:, None] > 0, table, jnp.arange(256)[None, :])


@functools.cache
def _levels_short_by_one() -> NDArray[np.int32]:
    """Where Pillow's autocontrast stays one below a whole number by rounding in float64: int32, ascending, codes
    (low * 256 + high) * 256 + level."""
    high, level = np.arange(256)[:, None], np.arange(256)[None, :]
    codes = []
    for low in range(255):
        scale = 255.0 / np.maximum(high - low, 1)
        exact, whole = np.divmod((level - low) * 255, np.maximum(high - low, 1))
        short = (level > low) & (level <= high) & (whole == 0) & ((level * scale + -low * scale).astype(int) < exact)
        codes.append(low * 256 * 256 + np.flatnonzero(short))
    return np.concatenate(codes).astype(np.int32)


def autocontrast_table(counts: jax.Array) -> jax.Array:
    """Table that stretches the used range of `counts` int32 [3, 256] to 0..255; int32 [3, 256]."""
    level = jnp.arange(256)[None, :]
    low = jnp.argmax(counts > 0, axis=1)[:, None]
    high = 255 - jnp.argmax(counts[:, ::-1] > 0, axis=1)[:, None]
    stretched = jnp.clip((level - low) * 255 // jnp.maximum(high - low, 1), 0, 255)
    codes, code = jnp.asarray(_levels_short_by_one()), (low * 256 + high) * 256 + level
    found = jnp.minimum(jnp.searchsorted(codes, code, method="scan_unrolled"), len(codes) - 1)
    return jnp.where(high > low, stretched - (codes[found] == code), level)


def _table(
    image: jax.Array,
    op: jax.Array | int,
    value: jax.Array | float,
    visible: jax.Array | None,
    present: Collection[str],
) -> jax.Array:
    """uint8 [3, 256] table of the operator `op`; the identity where it is not a table operator."""
    level = jnp.arange(256)
    whole = jnp.round(value).astype(jnp.int32)
    shift = jnp.clip(8 - whole, 0, 7)  # an operator with another meaning of `value` must not shift out of range
    tables = {
        "posterize": lambda: (level >> shift) << shift,
        "solarize": lambda: jnp.where(level < whole, level, 255 - level),
        "solarize_add": lambda: jnp.where(level < 128, jnp.clip(level + whole, 0, 255), level),
        "invert": lambda: 255 - level,
        "brightness": lambda: _blend(jnp.zeros_like(level), level, value),
    }
    if {"contrast", "autocontrast", "equalize"} & set(present):
        counts = histogram(image, visible)
        mean = grey(jnp.sum(counts * level[None, :], axis=1) / jnp.maximum(counts.sum(axis=1), 1))  # luma is linear
        tables["contrast"] = lambda: _blend(jnp.full_like(level, jnp.floor(mean + 0.5)), level, value)
        tables["autocontrast"] = lambda: autocontrast_table(counts)
        tables["equalize"] = lambda: equalize_table(counts)
    named = [name for name in TABLE_OPS if name in present]
    candidates = [jnp.broadcast_to(level[None, :], (3, 256))]
    candidates += [jnp.broadcast_to(t if t.ndim == 2 else t[None, :], (3, 256)) for t in (tables[n]() for n in named)]
    hit = op == jnp.array([OP_CODE[name] for name in named])
    weight = jnp.concatenate([~jnp.any(hit, keepdims=True), hit]).astype(jnp.float32)
    # a contraction rather than a select: it is stored once, a select would be evaluated again for every pixel
    stacked = jnp.stack(candidates).astype(jnp.float32)
    return jnp.einsum("k,kcl->cl", weight, stacked, precision="highest").astype(jnp.uint8)


def _smooth(image: jax.Array) -> jax.Array:
    """3 x 3 smoothing (centre 5, neighbours 1, divided by 13) of a uint8 image; the border is copied."""
    height, width, _ = image.shape
    x = image.astype(jnp.int32)
    padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
    box = functools.reduce(jnp.add, (padded[i : i + height, j : j + width] for i in range(3) for j in range(3)))
    row, column = jnp.arange(height)[:, None, None], jnp.arange(width)[None, :, None]
    inner = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    return jnp.where(inner, ((box + 4 * x) / 13 + 0.5).astype(jnp.uint8), image)


def gaussian_blur(image: jax.Array, sigma: jax.Array | float) -> jax.Array:
    """Gaussian blur as Pillow's: three box filters per axis of the same total variance; edge pixels are repeated.

    The three filters are one matrix per axis, so the cost is independent of sigma.

    Args:
      image: uint8 or float32 grey levels [H, W, 3].
      sigma: float32 [], standard deviation in pixels, >= 0; a negative one counts as 0.

    Returns:
      float32 [H, W, 3], not rounded.
    """
    variance = jnp.square(jnp.maximum(sigma, 0.0)) / 3  # of one box: ((2 whole + 1)^2 - 1) / 12 and what is missing
    whole = jnp.floor((jnp.sqrt(12 * variance + 1) - 1) / 2)
    short = 3 * variance - whole * (whole + 1)
    radius = whole + (2 * whole + 1) * short / (6 * (jnp.square(whole + 1) - variance))

    def kernel(size: int) -> jax.Array:
        place = jnp.arange(size)
        weight = jnp.clip(radius + 1 - jnp.abs(place[:, None] - place[None, :]), 0, 1)
        # what falls off an end is that end's pixel again
        weight = weight.at[:, 0].add(jnp.maximum(radius - place, 0))
        weight = weight.at[:, -1].add(jnp.maximum(radius - place[::-1], 0))
        return jnp.linalg.multi_dot([weight / (2 * radius + 1)] * 3, precision="highest")

    x = jnp.einsum("ih,hwc->iwc", kernel(image.shape[0]), image.astype(jnp.float32), precision="highest")
    return jnp.einsum("jw,iwc->ijc", kernel(image.shape[1]), x, precision="highest")


def apply_color_op(
    image: jax.Array,
    op: jax.Array | int,
    value: jax.Array | float,
    present: Collection[str],
    *,
    visible: jax.Array | None = None,
) -> jax.Array:
    """Applies one table or blend operator; every other operator leaves the image as it is.

    Args:
      image: uint8 [H, W, 3].
      op: int32 [], a code of `OP_CODE`.
      value: float32 []: bits kept (posterize), threshold (solarize), addend below 128 (solarize_add), blend factor
        with 1 = unchanged (brightness, contrast, color, sharpness), sigma in pixels (blur); unused otherwise.
      present: names of the operators that `op` can take; only these are traced.
      visible: bool [H, W], pixels that statistics (histogram, mean) are taken of; None: all.

    Returns:
      uint8 [H, W, 3].
    """

    def tabulated() -> jax.Array:
        table = _table(image, op, value, visible, present).reshape(-1)
        index = image.astype(jnp.int32) + 256 * jnp.arange(3)[None, None, :]
        return table.at[index].get(mode="promise_in_bounds")

    branches = {
        TABLE_OPS: tabulated,
        ("color",): lambda: _blend(jnp.broadcast_to(_grey_u8(image)[..., None], image.shape), image, value),
        ("sharpness",): lambda: _blend(_smooth(image), image, value),
        ("blur",): lambda: jnp.round(gaussian_blur(image, value)).astype(jnp.uint8),
    }
    traced = [names for names in branches if set(names) & set(present)]
    family = np.zeros(len(OPS), np.int32)  # branch of every operator code; 0: the image as it is
    for number, names in enumerate(traced, start=1):
        family[[OP_CODE[name] for name in names]] = number
    return jax.lax.switch(jnp.asarray(family)[op], [lambda: image, *(branches[names] for names in traced)])


def color_jitter(image: jax.Array, brightness: jax.Array, contrast: jax.Array, saturation: jax.Array) -> jax.Array:
    """Scales brightness, then contrast about the mean luma, then saturation about the luma, clipping after each.

    Args:
      image: float32 [H, W, 3], grey levels 0..255.
      brightness, contrast, saturation: float32 [], factors, 1 = unchanged.

    Returns:
      float32 [H, W, 3], 0..255.
    """
    x = jnp.clip(image * brightness, 0, 255)
    mean = jnp.mean(grey(x))
    x = jnp.clip(mean + (x - mean) * contrast, 0, 255)
    luma = grey(x)[..., None]
    return jnp.clip(luma + (x - luma) * saturation, 0, 255)
