"""The compiled forward pass in a few batch sizes: pictures and metadata in, logits or feature vectors out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import backend
from linnaeus_jax.compat.jax_parts import compilations
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.members import each_run, with_own_features
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.models.entering import can_enter, in_two, mean_over_places
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.step.placement import Placement, fetch
from linnaeus_jax.step.process import compiler_options

#: rows that are computed at once; a batch is filled up to the next of these
BUCKETS = (1, 8, 64)
#: on CPUs: rows that are always computed at once, and pixels of a larger batch
_FEW_ROWS, _FEW_PIXELS = 8, 2**18
#: pixels of a batch
LARGEST_BATCH = 1 << 26
#: of products; with the default a GPU rounds to 10 bits, and answers would depend on the batch and on the device
PRECISION = "highest"
#: features [B, D] of a picture, as heads get them: with nothing known besides its pixels, and with its metadata
TRUNK, FUSED = "trunk", "fused"
#: layer -> outermost modules of a model that come behind it
BEHIND = {TRUNK: ("head", "fusion"), FUSED: ("head",)}
#: what enters a block of the trunk, see `models.entering`: the name of the layer ends with the number of the block
BLOCK = "block_"


def usual_buckets(size: tuple[int, int], buckets: Sequence[int] = BUCKETS) -> tuple[int, ...]:
    """Those of `buckets` that suit the devices of this process.

    On CPUs more than 8 rows are computed at once only of small images: the temporaries of a forward pass grow with the
    batch (0.6 GB of EfficientNet-lite0 for 64 rows of 224 px), and it is no faster.

    Args:
      size: height and width of the images.
      buckets: rows, at least one of them 8 or less.
    """
    if not backend.SMALL_BATCHES.here():
        return tuple(buckets)
    most = max(_FEW_ROWS, _FEW_PIXELS // (size[0] * size[1]))
    return tuple(rows for rows in buckets if rows <= most)


def forward_pass(
    model: ModelFamily, preprocessing: Preprocessing, layers: Sequence[str] = (), *, logits: bool = True
) -> Callable[[Any, jax.Array, jax.Array, jax.Array], dict[str, jax.Array]]:
    """(variables, image uint8 [B, H, W, 3], meta float32 [B, D], valid [B, K]) -> {task: logits float32 [B, C]}, and
    {layer: features float32 [B, F]} of `layers`: `TRUNK`, `FUSED`, or one `BLOCK`. Of a bundle of several runs see
    `of_runs`."""
    block = next((layer for layer in layers if layer.startswith(BLOCK)), "")

    def encode(module: ModelFamily, pixels: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        if not block:
            return module.encode_image(pixels), {}
        entering, encoded = in_two(module, pixels, int(block.removeprefix(BLOCK)))
        return encoded, {block: mean_over_places(entering)}

    def outputs(module: ModelFamily, pixels: jax.Array, meta: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
        encoded, found = encode(module, pixels)
        fused = module.encode_tokens(encoded, meta, meta_valid_BK=valid)
        found |= {FUSED: fused, TRUNK: encoded if module.fuses_late else module.encode_tokens(encoded)}
        vectors = {layer: found[layer].astype(jnp.float32) for layer in layers}
        return {**(module.classify(fused) if logits else {}), **vectors}

    def compute(variables: Any, image: jax.Array, meta: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
        with jax.default_matmul_precision(PRECISION):
            pixels = normalize(image, preprocessing.mean, preprocessing.std)
            found: list[Any] = []
            for each in each_run(variables):
                if layers:
                    found.append(model.apply(each, pixels, meta, valid, method=outputs))
                else:
                    found.append(model.apply(each, pixels, meta, meta_valid_BK=valid))
        return of_runs(found, variables)

    return compute


def of_runs(found: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> dict[str, jax.Array]:
    """What the runs of a bundle say together: the mean of their log-probabilities [B, C], beside each other the
    features [B, F] of those that have their own, and what enters a block of the first; of one run what it says.

    Args:
      found: of each run, see `forward_pass`.
    """
    if len(found) == 1:
        return dict(found[0])
    together = {}
    for name in found[0]:
        if name in BEHIND:
            places = with_own_features(variables, BEHIND[name])
            together[name] = jnp.concatenate([found[place][name] for place in places], axis=1)
        elif name.startswith(BLOCK):
            together[name] = found[0][name]
        else:
            together[name] = jnp.mean(jnp.stack([jax.nn.log_softmax(each[name]) for each in found]), axis=0)
    return together


def layers_of(model: ModelFamily) -> tuple[str, ...]:
    """Vectors for the heads that cost nothing beside the logits: tokens of metadata would need a second pass for the
    trunk, for which `FUSED` with nothing known is the same; without metadata both are one."""
    if not model.fuses_late:
        return (FUSED,)
    return (TRUNK, FUSED) if model.components else (TRUNK,)


def every_layer(bundle: Bundle) -> tuple[str, ...]:
    """Those of `layers_of`, and what the statistics of a bundle are of besides."""
    judged = () if bundle.statistics is None else bundle.statistics.layers
    return tuple(dict.fromkeys((*layers_of(bundle.model), *judged)))


def has_layer(model: ModelFamily, layer: str) -> bool:
    """Whether a model gives a layer beside the logits."""
    blocks = [f"{BLOCK}{block}" for block in range(model.trunk_blocks + 1) if can_enter(model, block)]
    return layer in (*layers_of(model), *blocks)


@dataclass(frozen=True, eq=False)
class Pending:
    """Outputs that are being computed: of each part, the device arrays and how many rows count."""

    parts: list[tuple[dict[str, jax.Array], int]]

    def result(self) -> dict[str, NDArray[np.float32]]:
        """Waits; task or layer -> float32 [N, C]."""
        pieces = [{task: z[:count] for task, z in fetch(logits).items()} for logits, count in self.parts]
        return {task: np.concatenate([piece[task] for piece in pieces]) for task in pieces[0]}


class Forward:
    """The forward pass of one model on the devices of this process.

    Attributes:
      buckets: rows of a batch over all devices, ascending; fewer of large images, see `LARGEST_BATCH`.
      compilations: programs compiled so far, at most one per bucket.

    Args:
      layers, logits: what is computed, see `forward_pass`.
    """

    def __init__(
        self,
        model: ModelFamily,
        variables: Mapping[str, Any],
        preprocessing: Preprocessing,
        buckets: Sequence[int] = BUCKETS,
        layers: Sequence[str] = (),
        *,
        logits: bool = True,
    ) -> None:
        self._placement = Placement(jax.local_devices())
        devices = self._placement.device_count
        most = max(1, LARGEST_BATCH // math.prod(model.img_size))  # a file of 1 kB may ask for pictures of 4096 pixels
        self.buckets = tuple(sorted({-(-min(rows, most) // devices) * devices for rows in buckets}))
        self._model, self._variables = model, self._placement.replicate(dict(variables))
        self._preprocessing = preprocessing
        batch, replicated = self._placement.batch, self._placement.replicated
        self._jitted = jax.jit(
            forward_pass(model, preprocessing, layers, logits=logits),
            in_shardings=(replicated, batch, batch, batch),
            out_shardings=batch,
            compiler_options=compiler_options(training=False),
        )

    def giving(self, *layers: str, logits: bool = False) -> Forward:
        """The same model in the same batch sizes with other outputs, see `forward_pass`; it shares the variables."""
        return Forward(self._model, self._variables, self._preprocessing, self.buckets, layers, logits=logits)

    def width(self, layer: str) -> int:
        """Columns of one of its outputs."""
        shapes: Any = jax.eval_shape(self._jitted, self._variables, *self.zeros(self.buckets[0]))
        return int(shapes[layer].shape[1])

    @property
    def compilations(self) -> int:
        return compilations(self._jitted)

    def warm_up(self) -> None:
        """Compiles and runs every bucket once."""
        for rows in self.buckets:
            self(*self.zeros(rows))

    def zeros(self, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Black pictures without metadata, as arguments."""
        model = self._model
        return (
            np.zeros((rows, *model.img_size, 3), np.uint8),
            np.zeros((rows, model.meta_dim), np.float32),
            np.zeros((rows, len(model.components)), bool),
        )

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds some rows if they fill at least half of it, else the largest that they fill;
        so at most half of what is computed is padding. At the least, the smallest bucket."""
        filled = [bucket for bucket in self.buckets if bucket <= rows]
        larger = next((bucket for bucket in self.buckets if bucket >= rows), None)
        return larger if larger is not None and (not filled or 2 * rows >= larger) else filled[-1]

    def dispatch(self, image: np.ndarray, meta: np.ndarray, valid: np.ndarray) -> Pending:
        """Starts computing; see `__call__` for the arguments. At least one row."""
        parts, start = [], 0
        while start < len(image):
            bucket = self.bucket(len(image) - start)
            rows = slice(start, min(start + bucket, len(image)))
            count = rows.stop - rows.start
            arrays = {"image": image[rows], "meta": meta[rows], "valid": valid[rows]}
            if count < bucket:
                filled = dict(zip(arrays, self.zeros(bucket), strict=True))
                for name, array in arrays.items():
                    filled[name][:count] = array
                arrays = filled
            placed = self._placement.to_device(arrays, self._placement.batch)
            parts.append((self._jitted(self._variables, *placed.values()), count))
            start = rows.stop
        return Pending(parts)

    def __call__(self, image: np.ndarray, meta: np.ndarray, valid: np.ndarray) -> dict[str, NDArray[np.float32]]:
        """Task or layer -> float32 [N, C]; the numbers do not depend on how the rows are batched, up to rounding.

        Args:
          image: uint8 [N, H, W, 3].
          meta: float32 [N, D], zeros where a component is missing.
          valid: bool [N, K].
        """
        return self.dispatch(image, meta, valid).result()
