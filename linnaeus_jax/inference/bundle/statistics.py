"""Statistics of the features of training rows: a mean for each taxon that rows end at, and one covariance within them.

Letters of shapes: N rows, D features, T ranks, finest first, G groups of rows, K directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.weights.files import read_state, write_state

#: share of the identity in a covariance, of which so many directions are kept, and of `outside`; tried in
#: `benchmarks.novelty`
SHRINKAGE, DIRECTIONS, OF_OUTSIDE = 0.8, 128, 0.2
#: products of a matrix product up to which OpenBLAS uses one thread
ONE_THREAD = 1 << 18
#: most features, of which the products are computed
MOST_FEATURES = 8192
_ARRAYS, _OUTSIDE = ("label", "count", "mean", "axes", "variance"), "outside/"


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """What is known of the features of training rows.

    Attributes:
      layer: whose features, see `inference.forward.layers_of`.
      label: int32 [G, T], classes of each group; null, or -1, where there is none.
      count: int64 [G], rows of each.
      mean: float32 [G, D].
      axes: float32 [D, K], directions of the largest variances within groups, of length 1.
      variance: float32 [K], these; `rest`: that of every other direction.
      shrinkage: share of a multiple of the identity in the covariance of distances.
      outside: of another layer, as one group, by which it is told what is like no training row; None: by these.
    """

    layer: str
    label: NDArray[np.int32]
    count: NDArray[np.int64]
    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    variance: NDArray[np.float32]
    rest: float
    shrinkage: float = SHRINKAGE
    outside: FeatureStatistics | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Of which features are needed."""
        return (self.layer, *([self.outside.layer] if self.outside is not None else ()))

    @classmethod
    def of(
        cls,
        x_ND: NDArray[np.floating],
        label_NT: NDArray[np.integer],
        layer: str = "trunk",
        directions: int = DIRECTIONS,
    ) -> FeatureStatistics | None:
        """Of features and the classes of each row; None where there is no variance within groups."""
        label, place, count = np.unique(label_NT, axis=0, return_inverse=True, return_counts=True)
        place, x = place.reshape(-1), np.asarray(x_ND, np.float64)
        mean = np.zeros((len(label), x.shape[1]))
        np.add.at(mean, place, x)
        mean /= count[:, None]
        away = x - mean[place]
        variance, axes = np.linalg.eigh(away.T @ away / len(x))
        variance, total = np.maximum(variance, 0.0), float(variance.sum())
        if not total > 1e-12 * max(float(np.square(x).sum()) / len(x), 1e-30):
            return None
        kept = slice(max(0, len(variance) - directions), None)
        others = variance[: kept.start]
        rest = float(others.mean()) if len(others) else 0.0
        found = [np.asarray(array, np.float32) for array in (mean, axes[:, kept], variance[kept])]
        return cls(layer, label.astype(np.int32), count.astype(np.int64), found[0], found[1], found[2], rest)

    @classmethod
    def of_layers(
        cls, features: Mapping[str, NDArray[np.floating]], label_NT: NDArray[np.integer]
    ) -> FeatureStatistics | None:
        """Of the first of some layers by taxa, and of another one, where there is one, as a whole (`outside`)."""
        (layer, x), *others = features.items()
        found = cls.of(x, label_NT, layer)
        if found is None or not others:
            return found
        ((layer, x),) = others
        outside = cls.of(x, np.full_like(label_NT, -1), layer)
        return replace(found, outside=None if outside is None else replace(outside, shrinkage=OF_OUTSIDE))

    @cached_property
    def _prepared(self) -> tuple[NDArray[np.float64], ...]:
        """Centre [D], axes [D, K], weights of squares along these [K] and in every direction [1], means [G, D], these
        along the axes [G, K], and their squared lengths [G]."""
        width, variance = len(self.axes), self.variance.astype(np.float64)
        size = self.shrinkage * (variance.sum() + self.rest * (width - len(variance))) / width
        of_all = np.array([1 / ((1 - self.shrinkage) * self.rest + size) if len(variance) < width else 0.0])
        of_axes = 1 / ((1 - self.shrinkage) * variance + size) - of_all
        axes, centre = self.axes.astype(np.float64), np.average(self.mean.astype(np.float64), axis=0)
        mean = self.mean - centre
        length = of_all * np.square(mean).sum(axis=1) + np.square(mean @ axes) @ of_axes
        return centre, axes, of_axes, of_all, mean, mean @ axes, length

    def distances(self, x_ND: NDArray[np.floating]) -> NDArray[np.float64]:
        """Squared Mahalanobis distances [N, G] to the means (Lee et al. 2018, A Simple Unified Framework for Detecting
        Out-of-Distribution Samples and Adversarial Attacks).

        Raises:
          UserError: features of another model.
        """
        if x_ND.shape[1] != self.mean.shape[1]:
            raise UserError(
                f"the feature statistics are of {self.mean.shape[1]} features, but the model has {x_ND.shape[1]}; make "
                "the bundle again from its run"
            )
        centre, axes, of_axes, of_all, mean, mean_along, mean_length = self._prepared
        x = x_ND - centre
        along = _product(x, axes)
        length = of_all * np.square(x).sum(axis=1) + (np.square(along) * of_axes).sum(axis=1)
        cross = of_all * _product(x, mean.T) + _product(along * of_axes, mean_along.T)
        return np.asarray(np.maximum(length[:, None] + mean_length - 2 * cross, 0.0))

    def write(self, path: Path) -> None:
        """Writes a .safetensors file."""
        arrays, facts = self._arrays(""), {"layer": self.layer}
        if self.outside is not None:
            arrays, facts = arrays | self.outside._arrays(_OUTSIDE), facts | {"outside": self.outside.layer}
        write_state(path, arrays, facts)

    def _arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        arrays = {f"{prefix}{name}": getattr(self, name) for name in _ARRAYS}
        return arrays | {f"{prefix}rest": np.array([self.rest], np.float32)}

    @classmethod
    def read(cls, path: Path, taxonomy: Taxonomy) -> FeatureStatistics:
        """What `write` wrote. Raises ValueError or UserError where it is something else, or of other classes."""
        state = read_state(path)
        found = cls._of_arrays(state.arrays, state.facts.get("layer"), taxonomy, path.name)
        if "outside" not in state.facts:
            return found
        arrays = {name.removeprefix(_OUTSIDE): a for name, a in state.arrays.items() if name.startswith(_OUTSIDE)}
        outside = cls._of_arrays(arrays, state.facts["outside"], taxonomy, path.name)
        return replace(found, outside=replace(outside, shrinkage=OF_OUTSIDE))

    @classmethod
    def _of_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], layer: Any, taxonomy: Taxonomy, name: str
    ) -> FeatureStatistics:
        arrays = {key: array for key, array in arrays.items() if not key.startswith(_OUTSIDE)}
        _check(arrays, len(taxonomy.tasks), name)
        if not isinstance(layer, str):
            raise ValueError(f"{name} does not say of which layer it is")
        label, sizes = arrays["label"], [len(taxonomy.classes[task]) for task in taxonomy.tasks]
        if (label < -1).any() or (label >= sizes).any():
            raise ValueError(f"{name} names classes that the model does not have")
        label, count = label.astype(np.int32), arrays["count"].astype(np.int64)
        mean, axes, variance = (np.asarray(arrays[key], np.float32) for key in ("mean", "axes", "variance"))
        return cls(layer, label, count, mean, axes, variance, float(arrays["rest"][0]))


def _product(a_ND: NDArray[np.float64], b_DK: NDArray[np.float64]) -> NDArray[np.float64]:
    """a @ b, in pieces that OpenBLAS computes with one thread.

    Its threads wait for more work without sleeping, and the forward pass, which runs beside, then took 60 % more time.
    """
    rows, width = len(a_ND), max(1, ONE_THREAD // (2 * a_ND.shape[1]))
    pairs = np.concatenate([a_ND, a_ND[-1:]]) if rows % 2 else a_ND  # a single row would be another operation
    found = np.empty((len(pairs), b_DK.shape[1]))
    for row in range(0, len(pairs), 2):
        for column in range(0, b_DK.shape[1], width):
            here = slice(row, row + 2), slice(column, column + width)
            found[here] = pairs[here[0]] @ b_DK[:, here[1]]
    return found[:rows]


def _check(arrays: Mapping[str, NDArray[Any]], ranks: int, name: str) -> None:
    """Raises ValueError for arrays that are no statistics of so many ranks."""
    shapes = {key: array.shape for key, array in arrays.items()}
    try:
        (groups, width), (_, directions) = shapes["mean"], shapes["axes"]
    except (KeyError, ValueError):
        raise ValueError(f"{name} holds no feature statistics") from None
    wanted = {"label": (groups, ranks), "count": (groups,), "mean": (groups, width), "axes": (width, directions)}
    whole_numbers = all(arrays[key].dtype.kind in "iu" for key in ("label", "count") if key in arrays)
    if shapes != wanted | {"variance": (directions,), "rest": (1,)} or not groups or not whole_numbers:
        raise ValueError(f"{name} holds no feature statistics of {ranks} ranks")
    variance, rest = arrays["variance"], float(arrays["rest"][0])
    if (arrays["count"] < 1).any() or (variance < 0).any() or rest < 0 or not 0 < variance.sum() < 1e30:
        raise ValueError(f"{name} holds counts or variances that cannot be")
