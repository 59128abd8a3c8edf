"""Honest baselines on the demo data: what metadata alone, colours, and pixels without features can tell of the species.

A model is worth something only above all of them; it cannot pass the ceilings of `DemoSummary`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.baselines import commonest_share, histograms, kernel_accuracies, square_roots, standardised
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.demo.generate import DemoSummary, validation_rows

#: of the kernel on metadata and pixels, which are noisier than histograms
RIDGE = 1.0


def demo_baselines(summary: DemoSummary) -> dict[str, float]:
    """Species accuracy of models that cannot combine picture and metadata, on the files of `summary`.

    Returns:
      Shares of right answers on the validation rows with a species: "majority" (always the commonest species),
      "metadata" (a kernel classifier on all three components), "pixels" (a linear one on every other pixel), "colours"
      (a kernel classifier on colour histograms).
    """
    with open_hdf5(summary.images_path) as file:
        images = file["images"][:]
    with open_hdf5(summary.labels_path) as file:
        species = file["taxa_L10"][:]
        elevation = file["elevation_broadrange_2"][:]
        elevation[file["raw_elevation"][:] == 0] = 0.0  # missing, written as encoded 0 m
        metadata = np.concatenate([file["temporal"][:], file["spatial"][:], elevation], axis=1)
    val = validation_rows(len(species))
    train = np.setdiff1d(np.arange(len(species)), val)
    train, val = train[species[train] > 0], val[species[val] > 0]
    y = np.unique(species, return_inverse=True)[1]
    labels = {"species": (y[train], y[val])}

    def accuracy(x: NDArray[np.float32], *, gaussian: bool = True) -> float:
        ours, theirs = standardised(x[train], x[val])
        return kernel_accuracies(ours, theirs, labels, gaussian=gaussian, ridge=RIDGE)["species"] / 100

    pixels = images[:, ::2, ::2].reshape(len(images), -1).astype(np.float32)
    colours = square_roots(histograms(images))
    commonest = commonest_share(*(np.bincount(part, minlength=y.max() + 1).tolist() for part in labels["species"]))
    return {
        "majority": (commonest or 0.0) / 100,
        "metadata": accuracy(metadata),
        "pixels": accuracy(pixels, gaussian=False),
        "colours": kernel_accuracies(colours[train], colours[val], labels)["species"] / 100,
    }
