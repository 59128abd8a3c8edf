"""Features that were computed before, as an image source for `data.h5.images_path`; a plugin of the benchmark."""

from __future__ import annotations

import numpy as np

from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.registry import IMAGE_SOURCES


@IMAGE_SOURCES.register("features")
class Features:
    """float16 [rows of the labels file, D], as `np.save` writes them."""

    copies_only = True

    def __init__(self, files: ImageFiles) -> None:
        self.values = np.load(files.path, mmap_mode="r")
        self.image_shape, self.dtype = self.values.shape[1:], self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copies rows; all can be read."""
        np.take(self.values, rows, axis=0, out=out)
        return np.ones(len(rows), bool)
