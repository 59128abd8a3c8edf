"""The overflow detector under transforms of JAX and Flax: a NaN anywhere is reported, or a message says what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax.core.scope import CollectionFilter
from jax import P

from linnaeus_jax.debugging.frame_recorder import COLLECTION
from linnaeus_jax.debugging.frames import concatenate, merge
from linnaeus_jax.debugging.overflow import DebugUnderflowOverflow, OverflowDetected

GOOD = np.arange(20, dtype=np.float32).reshape(4, 5) / 20
BAD = GOOD.copy()
BAD[3, 0] = np.nan  # on the last device, in the last pass


class _Two(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3, name="second")(nn.Dense(4, name="first")(x))


def random_variables(model: nn.Module) -> Any:
    """Without a compilation."""
    shapes, random = jax.eval_shape(model.init, jax.random.key(0), GOOD), np.random.default_rng(0)
    return jax.device_put(jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), shapes))


def detector(model: nn.Module, said: list[str] | None = None) -> DebugUnderflowOverflow:
    return DebugUnderflowOverflow(model, write=(said if said is not None else []).append)


def under_shard_map(spec: jax.P) -> Callable[..., Any]:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def call(record: Callable[..., Any], variables: Any, x: jax.Array) -> Any:
        specs = (P(), P("data")), (P("data"), spec)
        sharded = jax.shard_map(record, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
        return sharded(variables, x)

    return call


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "shard_map, one for all": under_shard_map(P()),
    "shard_map, one after the other": under_shard_map(P("data")),
    "vmap": lambda record, v, x: jax.vmap(lambda row: record(v, row))(x[:, None]),
    "vmap of vmap": lambda record, v, x: jax.vmap(jax.vmap(lambda row: record(v, row)))(x.reshape(2, 2, 1, 5)),
    "pmap": lambda record, v, x: jax.pmap(lambda rows: record(v, rows))(x.reshape(2, 2, 5)),
    "scan": lambda record, v, x: jax.lax.scan(lambda carry, row: (carry, record(v, row)), 0, x[:, None])[1],
}


def transformed(name: str, record: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled whole, but for `jax.pmap`, which compiles for itself."""
    call = functools.partial(TRANSFORMS[name], record)
    return call if name == "pmap" else jax.jit(call)


@pytest.fixture(scope="module")
def whole() -> Any:
    """Frames of the whole batch at once."""
    return jax.jit(detector(_Two()).record)(random_variables(_Two()), GOOD)[1].listing()


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_every_pass_on_every_device_is_checked(transform, whole):
    model = _Two()
    variables = random_variables(model)
    plain = transformed(transform, lambda *inputs: (model.apply(*inputs), ()))(variables, GOOD)[0]
    said: list[str] = []
    debug = detector(model, said)
    record = transformed(transform, debug.record)
    out, frames = record(variables, GOOD)
    np.testing.assert_allclose(out, plain, rtol=1e-6)
    debug.check(frames)
    assert said == []
    for frame, other in zip(frames.listing(), whole, strict=True):
        assert (frame.name, len(frame.rows)) == (other.name, len(other.rows))
        for row, same in zip(frame.rows, other.rows, strict=True):
            assert (row.absmin, row.absmax) == pytest.approx((same.absmin, same.absmax), rel=1e-5), (frame.name, row)
    _, frames = record(variables, BAD)
    with pytest.raises(OverflowDetected) as caught:
        debug.check(frames)
    assert caught.value.batch_number == 1
    assert caught.value.frame.name == "first"
    assert "input[0] has nans" in said


def test_frames_of_several_passes_are_not_joined():
    model = _Two()
    variables = random_variables(model)
    _, frames = jax.jit(jax.vmap(lambda row: detector(model).record(variables, row)))(GOOD[:, None])
    for join in (merge, concatenate):
        with pytest.raises(ValueError, match="several passes"):
            join(frames, frames)
    one = jax.tree.map(lambda x: np.asarray(x)[0], frames)
    both = jax.jit(lambda one: concatenate(one, merge(one, one)))(one)
    assert len(both.listing()) == 2 * len(one.listing())
    with pytest.raises(ValueError, match="cannot have the values"):
        frames.replace(rows=frames.rows[..., :2]).listing()


class _Cond(nn.Module):
    same: bool

    def setup(self) -> None:
        self.a, self.b = nn.Dense(3), nn.Dense(3)

    def __call__(self, x: jax.Array, first: bool = True) -> Any:
        if self.is_initializing():
            self.a(x), self.b(x)
        other = (lambda module, x: module.a(2 * x)) if self.same else (lambda module, x: module.b(nn.relu(x)))
        return nn.cond(first, lambda module, x: module.a(x), other, self, x)


class _Checkpoint(nn.Module):
    transform: Callable[..., Any]

    def setup(self) -> None:
        self.inner = nn.Dense(3)

    def __call__(self, x: jax.Array) -> Any:
        if self.is_initializing():
            return self.inner(x)
        if self.transform is nn.remat:
            return nn.remat(lambda module, x: module.inner(x))(self, x)
        return self.transform(lambda x: self.inner(x))(x)


class _While(nn.Module):
    def setup(self) -> None:
        self.inner = nn.Dense(5)

    def __call__(self, x: jax.Array) -> Any:
        if self.is_initializing():
            return self.inner(x)
        body = lambda module, carry: (carry[0] + 1, module.inner(carry[1]))  # noqa: E731
        return nn.while_loop(lambda module, carry: carry[0] < 3, body, self, (0, x))[1]


class _Recurrent(nn.Module):
    axes: Mapping[CollectionFilter, int]

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        return nn.RNN(nn.LSTMCell(6), variable_axes=self.axes)(x[None])


@pytest.mark.parametrize(
    "model",
    [_Cond(same=True), _Checkpoint(nn.remat), _Recurrent({COLLECTION: 0})],
    ids=["cond", "remat", "RNN with an axis"],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_lets_frames_out_is_watched(model, compiled):
    variables = random_variables(model)
    debug = detector(model)
    record = jax.jit(debug.record) if compiled else debug.record
    out, frames = record(variables, GOOD)
    np.testing.assert_allclose(out, jax.jit(model.apply)(variables, GOOD), rtol=1e-5)
    debug.check(frames)
    with pytest.raises(OverflowDetected):
        debug.check(record(variables, BAD)[1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Cond(same=False), "branches call different modules; let every branch call the same"),
        (_Checkpoint(jax.checkpoint), r"'inner' \(Dense\) cannot leave the jax transform .*nn.remat"),
        (_Checkpoint(jax.vmap), r"'inner' \(Dense\) cannot leave the jax transform .*nn.vmap"),
        (_Checkpoint(jax.jit), r"'inner' \(Dense\) cannot leave the jax transform"),
        (_While(), "nn.while_loop has no such axis, use nn.scan instead"),
        (_Recurrent({}), r"nn.RNN\(..., variable_axes=\{'frames': 0\}\)"),
    ],
    ids=["cond", "checkpoint", "vmap", "jit", "while_loop", "RNN"],
)
def test_what_holds_frames_back_is_named(model, message):
    variables = random_variables(model)
    jax.eval_shape(model.apply, variables, GOOD)  # the model itself is in order
    for call in (detector(model).apply, jax.jit(detector(model).record)):
        with pytest.raises(ValueError, match=message):
            call(variables, GOOD)
