"""Private parts of libraries: they are there in the versions of the tests, and what happens without them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from linnaeus_jax.compat import SEEN, flax_parts, jax_parts, orbax_parts, wandb_parts
from linnaeus_jax.models import initial

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


@pytest.mark.parametrize("library", SEEN)
def test_the_parts_were_seen_in_the_versions_that_are_tested(library):
    """Who raises a version looks whether the parts of `compat` are still what they were, then changes `SEEN`."""
    pinned = re.findall(rf"^{library}==([^;\n]*)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert SEEN[library] == (pinned[0], pinned[-1])


def test_every_function_says_what_happens_without_it():
    for module in (flax_parts, jax_parts, orbax_parts, wandb_parts):
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_"):
                text = value.__doc__ or ""
                assert re.search(r"Without|A version", text) or name in ("paths",), f"{module.__name__}.{name}"


def test_a_function_without_its_count_of_programs_has_none():
    jitted = jax.jit(lambda x: x + 1)
    jitted(1)
    assert jax_parts.compilations(jitted) == 1
    assert jax_parts.compilations(lambda x: x) == 0


def test_results_are_left_out_with_and_without_dead_code_elimination(monkeypatch):
    key = jax.random.key(3)
    constant = jax.make_jaxpr(lambda key: (jax.random.normal(key), jnp.ones(2)))(key)
    used = jax.make_jaxpr(lambda key: (jnp.ones(2), jax.random.normal(key)))(key)
    ours = [jax_parts.without_first(traced, 1)(key) for traced in (constant, used)]
    monkeypatch.setattr(jax_parts, "dce_jaxpr", None)
    for one, traced in zip(ours, (constant, used), strict=True):
        np.testing.assert_array_equal(one[0], jax_parts.without_first(traced, 1)(key)[0])


def test_without_a_trace_state_there_is_none(monkeypatch):
    assert jax_parts.trace_state() == jax_parts.trace_state()
    monkeypatch.setattr(jax_parts, "get_opaque_trace_state", None)
    assert jax_parts.trace_state() is None


class OfScopes(nn.Module):
    @nn.compact
    def __call__(self, x):
        weight = initial.parameter(self, "weight", initial.ones, (3,))
        assert flax_parts.declared_parameters(self) == ["weight"]
        assert list(flax_parts.trace_levels(self)) == [jax_parts.trace_state()]
        return x * weight


def test_a_parameter_is_declared_with_and_without_reserving_it(monkeypatch):
    x = jnp.ones(3)
    variables = OfScopes().init(jax.random.key(0), x)
    ours = OfScopes().apply(variables, x)
    monkeypatch.setattr(initial, "reserve", lambda *_: False)
    np.testing.assert_array_equal(ours, OfScopes().apply(variables, x))


def test_scopes_without_these_parts():
    class Other:
        scope = object()

    assert not flax_parts.reserve(Other(), "weight", "params")  # type: ignore[arg-type]
    assert flax_parts.declared_parameters(Other()) == []  # type: ignore[arg-type]
    assert list(flax_parts.trace_levels(Other())) == []  # type: ignore[arg-type]


def test_the_clock_of_orbax_is_one_that_nobody_sets():
    clock = orbax_parts._SteadyTime()
    assert abs(clock.time() - time.monotonic()) < 60 < abs(clock.time() - time.time())
    assert clock.sleep is time.sleep


def test_wandb_names_what_it_keeps_outside(monkeypatch):
    assert [variable for variable, _ in wandb_parts.outside_directories()] == ["WANDB_DATA_DIR", "WANDB_CACHE_DIR"]
    monkeypatch.setattr(wandb_parts.wandb, "env", object())
    assert wandb_parts.outside_directories() == []


def test_the_same_operation_of_the_same_values_is_done_once():
    """Constants are the same by content; what a loop and the like hold is not compared."""
    one, same, other = (np.full((3, 3), value, np.float32) for value in (2, 2, 3))

    def computed(x):
        def scaled(by):
            return jax.lax.scan(lambda x, _: (x * by[:1], None), x, None, length=2)[0]

        return (
            jnp.ones((x.shape[0], 3))
            + jnp.dot(x, one)
            + jax.jit(jnp.dot)(x, same)
            + jnp.dot(x, other)
            + scaled(one)
            + scaled(other)
        )

    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_allclose(jax_parts.inlined(jax.make_jaxpr(computed)(x), {})(x)[0], computed(x), rtol=1e-6)
    (rows,) = export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((rows, 3), np.float32)
    call = jax_parts.inlined(jax.make_jaxpr(computed)(shape), {})
    operations = [eqn.primitive.name for eqn in jax.make_jaxpr(call)(shape).jaxpr.eqns]
    assert (operations.count("dot_general"), operations.count("scan")) == (2, 2)
