"""The shapes that flow from the loader through the step, named once.

Letters: A micro-batches per update, B rows of one micro-batch over all devices, H W image size, T tasks (finest rank
first), D metadata columns, K metadata components, C classes of one task.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

import numpy as np


class Batch(TypedDict):
    """One micro-batch `[B, ...]`; the loader's updates carry a leading [A]."""

    image: np.ndarray  # uint8 [B, H, W, 3], RGB; or what is stored of it, float16 [B, ...], see `data/stored_inputs.py`
    label: np.ndarray  # int32 [B, T], class index; 0 is null where null labels are possible
    meta: np.ndarray  # float32 [B, D], invalid components zero
    meta_valid: np.ndarray  # bool [B, K]
    group: np.ndarray  # int32 [B], rows of one group may be mixed; -1: never mixed
    partner: np.ndarray  # int32 [B], position within the batch of the row to mix with; itself: none
    row: np.ndarray  # int32 [B], row of the labels file
    weight: np.ndarray  # float32 [B], 0 for padding and placeholders
    rarity: NotRequired[np.ndarray]  # int32 [B], rarity bin
    subsets: NotRequired[np.ndarray]  # int32 [B, kinds], position of the row in the user's own subsets, -1: none
    taxa_subset: NotRequired[np.ndarray]  # bool [B, S], membership of the user's taxa subsets
