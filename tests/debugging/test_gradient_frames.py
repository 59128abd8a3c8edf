"""Frames of the backward pass: values, order, lifted transforms, and who is named first."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.debugging.frame_recorder import COLLECTION, GRADIENTS, FrameRecorder
from linnaeus_jax.debugging.frames import Frames, concatenate, merge
from linnaeus_jax.debugging.overflow import DebugUnderflowOverflow, OverflowDetected
from tests.debugging.test_frames import tiny


class Root(nn.Module):
    """Square root of the magnitude: finite everywhere, its derivative is not at 0."""

    def __call__(self, x):
        return jnp.sqrt(jnp.abs(x))


class Chain(nn.Module):
    """Two layers around a root."""

    remat: bool = False

    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        x = dense(3, name="first")(x)
        x = Root(name="root")(x)
        return {"y": dense(2, name="last")(x)}


class Layer(nn.Module):
    """One scanned layer."""

    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(4, name="wi")(x)), None


class Stack(nn.Module):
    """Three scanned layers and one more."""

    collections: tuple[str, ...] = ("params", COLLECTION, GRADIENTS)

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(
            nn.remat(Layer), length=3, variable_axes=dict.fromkeys(self.collections, 0), split_rngs={"params": True}
        )
        x, _ = scan(name="layers")(x, None)
        return nn.Dense(2, name="last")(x)


def squares(out: Any) -> jax.Array:
    """A loss."""
    return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(out)]))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def initial(model: nn.Module, x: np.ndarray) -> Any:
    return jax.jit(model.init)(jax.random.key(0), x)


def backward(model: nn.Module, variables: Any, *args: Any, **kwargs: Any) -> Frames:
    """Gradient frames of `squares` of the model's output."""
    recorder = FrameRecorder(model)

    def step(params, *args):
        taps = recorder.cotangent_taps(variables, *args, **kwargs)

        def loss(params, taps):
            out, frames = recorder.apply({"params": params}, *args, taps=taps, **kwargs)
            return squares(out), frames

        (grads, found), _ = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, taps)
        return found.frames(grads)

    return jax.jit(step)(variables["params"], *args)


def extremes(value):
    value = np.abs(np.asarray(value))
    return float(value.min()), float(value.max())


@pytest.mark.parametrize("remat", [False, True])
def test_values_and_order(remat):
    x = normal(1, 5, 4)
    model = Chain(remat)
    variables = initial(model, x)
    params = variables["params"]

    def loss(params, x, hidden, root):
        a = x @ params["first"]["kernel"] + params["first"]["bias"][None] + hidden
        b = jnp.sqrt(jnp.abs(a)) + root
        return jnp.sum((b @ params["last"]["kernel"] + params["last"]["bias"][None]) ** 2)

    zero = np.zeros((5, 3), np.float32)
    grads, dx, dhidden, droot = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(params, x, zero, zero)
    first, last = jax.device_get((params["first"], params["last"]))
    y = np.sqrt(np.abs(x @ first["kernel"] + first["bias"][None])) @ last["kernel"] + last["bias"][None]
    expected = {
        "last": [
            ("grad weight", grads["last"]["kernel"]),
            ("grad bias", grads["last"]["bias"]),
            ("grad input[0]", droot),
            ("grad output", 2 * y),
        ],
        "root": [("grad input[0]", dhidden), ("grad output", droot)],
        "first": [
            ("grad weight", grads["first"]["kernel"]),
            ("grad bias", grads["first"]["bias"]),
            ("grad input[0]", dx),
            ("grad output", dhidden),
        ],
        "": [("grad input[0]", dx)],
    }
    frames = backward(model, variables, x).listing()
    assert [frame.name for frame in frames] == list(expected)
    assert all(frame.backward for frame in frames)
    for frame in frames:
        assert [row.label for row in frame.rows] == [label for label, _ in expected[frame.name]]
        for row, (label, value) in zip(frame.rows, expected[frame.name], strict=True):
            np.testing.assert_allclose((row.absmin, row.absmax), extremes(value), rtol=1e-5, err_msg=label)


def test_layers_of_a_scan_come_last_first():
    x = normal(9, 2, 4)  # none of its gradients is a difference near 0
    variables = initial(Stack(), x)
    frames = {frame.name: frame for frame in backward(Stack(), variables, x).listing()}
    layers = [f"layers.{layer}{part}" for layer in (2, 1, 0) for part in (".wi", "")]
    assert list(frames) == ["last", *layers, ""]

    def row(name, label):
        return next(row[1:3] for row in frames[name].rows if row.label == label)

    assert row("last", "grad input[0]") == row("layers.2", "grad output[0]")
    assert row("layers.2", "grad input[0]") == row("layers.1", "grad output[0]")
    assert row("layers.0", "grad input[0]") == row("", "grad input[0]")
    grads = jax.jit(jax.grad(lambda p: squares(Stack().apply({"params": p}, x))))(variables["params"])
    kernels = np.asarray(grads["layers"]["wi"]["kernel"])
    for layer in range(3):
        np.testing.assert_allclose(row(f"layers.{layer}.wi", "grad weight"), extremes(kernels[layer]), rtol=1e-5)


def test_scans_that_hold_gradient_frames_back_are_errors():
    module = Stack(("params", COLLECTION))
    x = np.ones((2, 4), np.float32)
    variables = initial(module, x)
    with pytest.raises(ValueError, match=r"gradient frames of module .* give the collection 'frame_gradients' an axis"):
        backward(module, variables, x)


def test_a_module_called_twice_has_two_frames():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = nn.Dense(4, name="shared")
            return shared(shared(x))

    x = np.ones((2, 4), np.float32)
    variables = initial(Twice(), x)
    second, first, _ = backward(Twice(), variables, x).listing()
    assert second.rows[2][1:3] == first.rows[3][1:3]  # what leaves the second call enters the first
    assert second.rows[0] == first.rows[0]  # the gradient of their weight is one


def test_first_bad_gradient_is_named(capsys):
    """Forward everything is finite; the report goes on into the backward pass."""
    x = np.zeros((2, 4), np.float32)
    model = Chain()
    variables = initial(model, x)
    debug = DebugUnderflowOverflow(model, max_frames_to_save=3)
    taps = debug.cotangent_taps(variables, x)

    @jax.jit
    def step(params, taps):
        def loss(params, taps):
            out, frames = debug.record({"params": params}, x, taps=taps)
            return squares(jax.tree.map(lambda y: y + 1, out)), frames

        (grads, found), frames = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, taps)
        return concatenate(frames, found.frames(grads))

    frames = step(variables["params"], taps)
    with pytest.raises(OverflowDetected) as caught:
        debug.check(frames)
    assert caught.value.frame.name == "root"
    assert [row.has_nan or row.has_inf for row in caught.value.frame.rows] == [True, False]
    text = capsys.readouterr().out
    assert text.startswith("grad input[0] has ")
    assert "Last 3 forward and gradient frames:" in text
    assert "                  last Dense\n" in text
    assert " grad output\n" in text


@pytest.mark.slow
def test_the_real_model_under_remat_scan_and_accumulation():
    """Merged over micro-batches they are those of the whole batch, computed in one program of the plain model."""
    image, meta = normal(1, 4, 32, 32, 3), normal(2, 4, 2)
    plain, lifted = tiny(), tiny(remat=True, scan_layers=True)
    shapes = jax.eval_shape(plain.init, jax.random.key(0), image, meta)["params"]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: np.float32(0.2 * random.standard_normal(leaf.shape)), shapes)
    expected = backward(plain, {"params": params}, image, meta).listing()
    parts = [backward(lifted, {"params": params}, image[rows], meta[rows]) for rows in (slice(2), slice(2, 4))]
    found = functools.reduce(merge, parts).listing()
    assert [frame.name for frame in found] == [frame.name for frame in expected]
    assert len(found) > 90
    for ours, theirs in zip(found, expected, strict=True):
        assert [row.label for row in ours.rows] == [row.label for row in theirs.rows]
        for row, other in zip(ours.rows, theirs.rows, strict=True):
            if "put" in row.label:  # gradients of weights are sums over the rows of a micro-batch
                tolerance = 1e-5 * max(1.0, other.absmax)
                np.testing.assert_allclose(row[1:3], other[1:3], rtol=0, atol=tolerance, err_msg=ours.name + row.label)
