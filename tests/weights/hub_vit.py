"""The recorded vision transformers of hubs: how their weights and pictures are drawn, for recording and for tests.

A fixture holds, for each case, names and shapes of a file, its description and what the source's program computed:
`{"names": {name: shape}, "description": {file: JSON}, "keys": {...}}` as JSON, features and perhaps logits by size.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

#: height and width of the pictures: the first is what the networks were made for
SIZES = ((32, 32), (40, 56), (24, 24))
ROWS = 2


def drawn_array(name: str, shape: Sequence[int]) -> np.ndarray:
    """Values of the size of trained ones, by the name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.normal(size=tuple(shape))
    last = name.rpartition(".")[2]
    if last == "bias_mask":  # keys have no bias
        values = np.repeat([1.0, 0.0, 1.0], len(values) // 3)
    elif last in ("gamma", "lambda1", "gamma_1", "gamma_2"):
        values = 0.5 + 0.2 * values
    elif len(shape) == 1 and last == "weight":  # of a norm
        values = 1 + 0.2 * values
    elif len(shape) >= 2 and last in ("weight", "in_proj_weight", "proj"):
        values = values / np.sqrt(np.prod(shape[1:]))
    else:
        values = 0.3 * values
    return np.asarray(values, np.float32)


def drawn_state(names: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """The arrays of a file."""
    return {name: drawn_array(name, shape) for name, shape in names.items()}


def pictures(size: tuple[int, int]) -> np.ndarray:
    """float32 [rows, height, width, 3], as normalised pictures are."""
    return np.random.default_rng(sum(size)).normal(size=(ROWS, *size, 3)).astype(np.float32)
