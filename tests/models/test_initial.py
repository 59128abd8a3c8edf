"""Initial values: the same numbers under a trace and outside of one."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamNotFoundError, ScopeParamShapeError

from linnaeus_jax.models import initial, initial_variables, parameter_table, rotary
from tests.models.builds import build

SHAPES = ((), (1,), (0, 8), (3, 3, 2, 60))
INITIALIZERS = {
    "zeros": (initial.zeros, SHAPES),
    "constant": (initial.constant(0.1), SHAPES),
    "normal": (initial.normal(0.02), SHAPES),
    "fan_out_normal": (initial.fan_out_normal, SHAPES[-1:]),  # of kernels
    "uniform": (initial.uniform(-0.5, 0.25), SHAPES),
}


@pytest.mark.parametrize(
    ("init", "shape"),
    [pytest.param(init, s, id=f"{name}-{s}") for name, (init, shapes) in INITIALIZERS.items() for s in shapes],
)
def test_evaluated_and_traced_values_are_the_same(init, shape):
    key = jax.random.key(3)
    found = initial.trace(lambda key: {"a": init(key, shape)}).evaluate(key)["a"]
    expected = jax.jit(init, static_argnums=1)(key, shape)
    assert (found.shape, found.dtype) == (shape, np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_what_is_made_from_drawn_values_is_evaluated_too():
    def init(key):
        one, other = jax.random.split(key)
        value = initial.normal(2.0)(one, (5,))
        return value, jax.numpy.tanh(value) + initial.uniform(0.0, 1.0)(other, (5,)), initial.ones(key, (3,), np.int8)

    key = jax.random.key(1)
    found, expected = initial.trace(init).evaluate(key), jax.jit(init)(key)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("start", rotary.ROPE_INITS)
def test_rotary_frequencies_are_evaluated_without_a_program_of_their_own(start):
    key, shape = jax.random.key(2), (2, 3, 8)
    init = rotary.freqs_init(start, 10.0)
    traced = initial.trace(lambda key: init(key, shape))
    assert traced._finish[0] is not None
    np.testing.assert_allclose(traced.evaluate(key), jax.jit(init, static_argnums=1)(key, shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", initial.WEIGHT_INITS)
@pytest.mark.parametrize("family", ["mFormerV1", "mFormerV0"])
def test_weights_keep_the_size_of_their_inputs_or_have_one_deviation(family, kind):
    model = build(components=(), num_classes={"taxa_L10": 50}, img_size=32, type=family, weight_init=kind)
    params = initial_variables(model, jax.random.key(0))["params"]
    seen = set()
    for row in parameter_table(model):
        kernel = np.asarray(functools.reduce(lambda node, part: node[part], row.path, params))
        # convolutions of MBConv begin in their own way
        if row.layer_type not in (("Linear", "Conv2d") if family == "mFormerV1" else ("Linear",)) or kernel.size < 700:
            continue
        inputs = int(np.prod(kernel.shape[:-1]))
        fixed = kind == "normal" or row.name.startswith("head.")
        assert kernel.std() == pytest.approx(0.02 if fixed else inputs**-0.5, rel=0.12), row.name
        seen.add(fixed)
    assert seen == ({True} if kind == "normal" else {True, False})
    assert np.asarray(params["cls_token_1"]).std() == pytest.approx(0.02, rel=0.3)


calls: list[tuple[int, ...]] = []


class Scaled(nn.Module):
    """x * scale, with a scale of a given size."""

    size: int
    twice: bool = False

    @nn.compact
    def __call__(self, x):
        def init(key, shape, dtype):
            calls.append(shape)
            return jnp.ones(shape, dtype)

        for _ in range(1 + self.twice):
            x = x * initial.parameter(self, "scale", init, (self.size,))
        return x


def test_a_parameter_is_taken_without_its_initializer():
    variables = Scaled(3).init(jax.random.key(0), jnp.ones(3))
    calls.clear()
    np.testing.assert_array_equal(Scaled(3).apply(variables, jnp.full(3, 2.0)), 2.0)
    assert not calls


def test_a_wrong_parameter_is_refused_as_flax_does():
    variables = Scaled(3).init(jax.random.key(0), jnp.ones(3))
    with pytest.raises(ScopeParamShapeError, match="scale"):
        Scaled(2).apply(variables, jnp.ones(2))
    with pytest.raises(ScopeParamNotFoundError, match="scale"):
        Scaled(3).apply({"params": {"other": jnp.ones(3)}}, jnp.ones(3))
    with pytest.raises(ValueError, match="scale"):
        Scaled(3, twice=True).apply(variables, jnp.ones(3))


def test_few_programs_draw_many_shapes(monkeypatch):
    counts, draw = set(), initial._draw

    def counted(key, kind, count):
        counts.add(count)
        return draw(key, kind, count)

    monkeypatch.setattr(initial, "_draw", counted)
    traced = initial.trace(lambda key: [initial.normal(1.0)(key, (size,)) for size in range(1, 4000, 397)])
    traced.evaluate(jax.random.key(0))
    assert counts == {1024, 4096}
