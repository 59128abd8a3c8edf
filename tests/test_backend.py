"""Platform optimisations: each says what it is for, none is used elsewhere, and one variable takes all of them back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax import backend
from linnaeus_jax.backend import CPU, EVERYWHERE, OPTIMISATIONS, PLAIN
from linnaeus_jax.learning.branches import computed_if
from linnaeus_jax.learning.buckets import global_norm, worth_gathering
from linnaeus_jax.learning.gradnorm import task_gradients
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models import operations
from linnaeus_jax.models.depthwise import depthwise_conv
from linnaeus_jax.models.layers import BatchNorm2d, Swish, max_pool
from linnaeus_jax.models.rotary import rotate
from linnaeus_jax.run.trainer import run
from linnaeus_jax.step import process
from tests.step import toy
from tests.tiny import tiny_config

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.tricks


@pytest.mark.parametrize("name", OPTIMISATIONS)
def test_each_says_what_it_gains_and_what_shows_it(name):
    form = OPTIMISATIONS[name]
    assert len(form.gains) > 20
    assert form.devices
    assert set(form.devices) <= set(EVERYWHERE)
    benchmarks = re.findall(r"python -m benchmarks\.(\w+)", form.measured)
    assert benchmarks
    assert all((ROOT / "benchmarks" / f"{benchmark}.py").is_file() for benchmark in benchmarks)
    uses = [path for path in (ROOT / "linnaeus_jax").rglob("*.py") if f"backend.{_variable(form)}" in path.read_text()]
    assert uses, "nothing asks it"


def _variable(form: backend.Optimisation) -> str:
    return next(name for name, value in vars(backend).items() if value is form)


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_none_is_used_on_another_kind_of_device(kind, monkeypatch):
    with backend.tracing_for(kind):
        assert {name for name, form in OPTIMISATIONS.items() if form.here()} == {
            name for name, form in OPTIMISATIONS.items() if kind in form.devices
        }
        monkeypatch.setenv(PLAIN, "all")
        assert not [name for name, form in OPTIMISATIONS.items() if form.here()]


def test_some_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(PLAIN, "gathered-leaves, selected")
    assert {name for name, form in OPTIMISATIONS.items() if not form.allowed()} == {
        "gathered-leaves",
        "selected",
    }
    monkeypatch.setenv(PLAIN, "")
    assert all(form.allowed() for form in OPTIMISATIONS.values())


@pytest.mark.parametrize("given", ["none", "joined_leaves", "all,selected"])
def test_a_name_that_is_no_trick_is_refused(given, monkeypatch):
    monkeypatch.setenv(PLAIN, given)
    with pytest.raises(InputError, match=f"LINNAEUS_PLAIN={given} names '.*'; give all, or some of .*gathered-leaves"):
        backend.GATHERED_LEAVES.here()


# ---- every plain form computes what the optimisation computes
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, 6, 6, 8)), jnp.float32)
ROWS = jnp.asarray(RNG.normal(size=(3, 5, 8)), jnp.float32)
WIDE, SQUARE = (jnp.asarray(RNG.normal(size=(8, width)), jnp.float32) for width in (12, 8))
ROW = jnp.asarray(RNG.normal(size=8), jnp.float32)
KERNEL = jnp.asarray(RNG.normal(size=(3, 3, 1, 8)), jnp.float32)
ANGLES = jnp.asarray(RNG.normal(size=(5, 2, 2)), jnp.float32)
HEADS = jnp.asarray(RNG.normal(size=(3, 5, 2, 4)), jnp.float32)


def _batch_norm(x):
    module = BatchNorm2d()
    return module.apply(module.init(jax.random.key(0), x, train=False), x, train=True, mutable=["batch_stats"])[0]


FORMS: dict[str, tuple[Any, ...]] = {
    "gelu": (operations.gelu, X),
    "swish": (Swish().apply, {}, X),
    "linear": (operations.linear, ROWS, WIDE, jnp.zeros(12)),
    "linear of a narrow layer": (operations.linear, ROWS, WIDE[:, :4], jnp.zeros(4)),
    "linear of gelu": (lambda x, k, b: operations.linear_of_gelu(operations.gelu(x), x, k, b), ROWS, SQUARE, ROW),
    "patches": (operations.patch_conv, X, jnp.asarray(RNG.normal(size=(2, 2, 8, 4)), jnp.float32)),
    "layer norm": (lambda x, s, b: operations.layer_norm(x, s, b, 1e-6, jnp.float32), ROWS, ROW, ROW),
    "depthwise": (lambda x, k: depthwise_conv(x, k), X, KERNEL),
    "depthwise with stride": (lambda x, k: depthwise_conv(x, k, stride=2), X, KERNEL),
    "depthwise by shifts": (lambda x, k: depthwise_conv(x, k, impl="shift"), X, KERNEL),
    "pool": (max_pool, X),
    "batch norm": (_batch_norm, X),
    "rotation": (lambda x, a: rotate(x, a, "rotary"), HEADS, ANGLES),
    "condition": (lambda x: computed_if(x.sum() > 0, lambda y: y * 2, x), X),
    "gradients of tasks": (lambda w: task_gradients(lambda w: ((ROWS @ w).mean((0, 1)) ** 2, None), w)[2], SQUARE),
    "norm of a tree": (lambda x, w: global_norm({"a": x, "b": w}), X, SQUARE),
}


def _value_and_gradients(function, args):
    """Compiled anew, on one device."""
    arrays = [i for i, arg in enumerate(args) if isinstance(arg, jax.Array)]

    def summed(*args):
        out = function(*args)
        return jnp.sum(jnp.sin(out)), out

    found = jax.jit(jax.value_and_grad(summed, argnums=arrays, has_aux=True))(*args)
    return jax.tree.leaves(found)


@pytest.mark.parametrize("large", [False, True], ids=["small", "as large arrays"])
@pytest.mark.parametrize("name", FORMS)
def test_the_plain_form_computes_the_same(name, large, monkeypatch):
    function, *args = FORMS[name]
    if large:
        for limit in ("WORTH_A_LOOP", "WORTH_FREEING"):
            monkeypatch.setattr(operations, limit, 2)
    ours = _value_and_gradients(function, args)
    monkeypatch.setenv(PLAIN, "all")
    for one, other in zip(ours, _value_and_gradients(function, args), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_a_condition_chooses_alike_on_every_kind_of_device(kind):
    with backend.tracing_for(kind):
        for condition in (True, False):
            found = computed_if(jnp.bool_(condition), lambda x: x * 2, X, store=True)
            np.testing.assert_array_equal(found, X * 2 if condition else X)


def test_nothing_is_left_of_the_tricks_in_what_is_traced(monkeypatch):
    def update(x, kernel, angles):
        out = rotate(operations.gelu(depthwise_conv(x, kernel))[:, :5, :2, :4], angles, "rotary")
        return out.sum()

    trace = jax.make_jaxpr(jax.grad(lambda *args: update(*args)))
    assert "custom_vjp" in str(jax.make_jaxpr(lambda *args: update(*args))(X, KERNEL, ANGLES))
    monkeypatch.setenv(PLAIN, "all")
    plain = str(jax.make_jaxpr(lambda *args: update(*args))(X, KERNEL, ANGLES))
    assert "conv_general_dilated" in plain
    assert "platform_index" not in plain
    assert "optimization_barrier" not in str(trace(X, KERNEL, ANGLES))


def test_the_process_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv(PLAIN, "all")
    monkeypatch.setattr(process, "_kept", {"heap": False, "largest": 0})
    assert process.compiler_options(training=True) == {}
    assert not process.keep_freed_memory()
    assert not worth_gathering()
    assert backend.automatic_dtype() == "float32"  # no optimisation
    assert backend.target() == CPU


@pytest.mark.slow  # two runs of a toy
def test_a_run_in_the_plain_way_is_the_same(tmp_path, monkeypatch):
    """Accumulation, augmentation, GradNorm, evaluation, checkpoints: nothing needs one."""
    toy.register(monkeypatch)
    found = []
    for plain in ("", "all"):
        monkeypatch.setenv(PLAIN, plain)
        config = tiny_config(tmp_path, model__type="toy", train__accumulation_steps=2, train__ema__enabled=True)
        config.loss.grad_weighting.task.type, config.loss.grad_weighting.task.update_interval = "gradnorm", 3
        config.train.epochs = 2
        found.append(run(config, tmp_path / f"run_{plain}"))
    ours, plainly = ({name: value for name, value in one.items() if "loss" in name} for one in found)
    assert ours
    assert ours == pytest.approx(plainly, rel=1e-4)
