"""Two honest baselines on the demo data: what metadata alone, and pixels without features, can tell about the species.

A model is worth something only above both; it cannot pass the ceilings of `DemoSummary`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.demo.generate import DemoSummary, validation_rows

BATCH = 128
HIDDEN = 64

Layers = list[tuple[Array, Array]]  # (weight [in, out], bias [out]) per layer


def _logits(layers: Layers, x: Array) -> Array:
    *hidden, (weight, bias) = layers
    for w, b in hidden:
        x = jax.nn.relu(x @ w + b[None, :])
    return x @ weight + bias[None, :]


def fit(
    x: NDArray[np.float32], y: NDArray[np.int32], hidden: tuple[int, ...], rate: float, decay: float, epochs: int
) -> Layers:
    """Multinomial logistic regression, or a multi-layer perceptron with `hidden` widths, fitted by AdamW.

    Args:
      x: float32 [N, D], standardised. y: int32 [N], classes from 0.
      rate: first learning rate; it falls to 0 along a cosine.
      decay: weight decay.

    Returns:
      Weights and biases per layer, of the epoch with the best accuracy on the last tenth of the rows, which is kept
      out of the fit.
    """
    widths = [x.shape[1], *hidden, int(y.max()) + 1]
    keys = jax.random.split(jax.random.key(0), len(widths))
    layers: Layers = [
        (jax.random.normal(key, (a, b)) * (2 / a) ** 0.5 * (1.0 if i < len(hidden) else 0.01), jnp.zeros(b))
        for i, (key, a, b) in enumerate(zip(keys, widths, widths[1:]))
    ]
    fitted = len(x) - len(x) // 10
    steps = fitted // BATCH
    optimizer = optax.adamw(optax.cosine_decay_schedule(rate, steps * epochs), weight_decay=decay)

    def loss(layers: Layers, rows: Array, x: Array, y: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(_logits(layers, x[rows]), y[rows]).mean()

    @functools.partial(jax.jit, donate_argnames="state")
    def epoch(
        layers: Layers, state: optax.OptState, key: Array, x: Array, y: Array
    ) -> tuple[Layers, optax.OptState, Array]:
        def step(carry: tuple[Layers, optax.OptState], rows: Array) -> tuple[tuple[Layers, optax.OptState], None]:
            layers, state = carry
            updates, state = optimizer.update(jax.grad(loss)(layers, rows, x, y), state, layers)
            return (optax.apply_updates(layers, updates), state), None

        order = jax.random.permutation(key, fitted)[: steps * BATCH].reshape(steps, BATCH)
        (layers, state), _ = jax.lax.scan(step, (layers, state), order)
        return layers, state, (_logits(layers, x[fitted:]).argmax(axis=1) == y[fitted:]).mean()

    state, best, best_score = optimizer.init(layers), layers, -1.0
    device_x, device_y = jnp.asarray(x), jnp.asarray(y)
    for key in jax.random.split(keys[-1], epochs):
        layers, state, score = epoch(layers, state, key, device_x, device_y)
        if float(score) > best_score:
            best, best_score = layers, float(score)
    return best


def demo_baselines(summary: DemoSummary) -> dict[str, float]:
    """Species accuracy of models that cannot combine picture and metadata, on the files of `summary`.

    Returns:
      Shares of right answers on the validation rows with a species: "majority" (always the commonest species),
      "metadata" (a perceptron with one hidden layer, on all three components), "pixels" (softmax regression on
      standardised pixels). The last two stop early on a tenth of the train rows.
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
    train = np.random.default_rng(0).permutation(train)  # its last tenth decides when to stop
    train, val = train[species[train] > 0], val[species[val] > 0]
    y = np.unique(species, return_inverse=True)[1].astype(np.int32)

    def accuracy(x: NDArray[np.float32], hidden: tuple[int, ...], rate: float, decay: float, epochs: int) -> float:
        mean, std = x[train].mean(axis=0), x[train].std(axis=0) + 1e-3
        x = (x - mean[None, :]) / std[None, :]
        layers = fit(x[train], y[train], hidden, rate, decay, epochs)
        return float((np.asarray(_logits(layers, jnp.asarray(x[val]))).argmax(axis=1) == y[val]).mean())

    return {
        "majority": float((y[val] == np.bincount(y[train]).argmax()).mean()),
        "metadata": accuracy(metadata, (HIDDEN,), 3e-3, 1e-3, 60),
        "pixels": accuracy(images.reshape(len(images), -1).astype(np.float32), (), 3e-4, 0.1, 30),
    }
