"""Features that another program has computed: an array float16 [rows of the labels file, D] in a .npy file.

Set `data.h5.images_path = "features.npy"` and `train.tune = "head"`.
"""

from __future__ import annotations

import numpy as np

from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.registry import IMAGE_SOURCES


@IMAGE_SOURCES.register("npy")
class Features:
    copies_only = True

    def __init__(self, files: ImageFiles) -> None:
        self.values = np.load(files.path, mmap_mode="r")
        self.image_shape, self.dtype = self.values.shape[1:], self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        out[:] = self.values[rows]
        return np.ones(len(rows), bool)
