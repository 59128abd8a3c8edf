"""The operation that makes the first NaN or infinity is named, in functions and in real runs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from linnaeus_jax.debugging import nonfinite
from linnaeus_jax.metrics.extras import signed_confidence
from linnaeus_jax.models import layers
from linnaeus_jax.run.trainer import UserError, run
from linnaeus_jax.tools.replay import replay
from tests.tiny import tiny_config


def line_of(function, text: str) -> str:
    """`file:line` of the line of `function` that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if text in line]
    return f"{__file__}:{first + offset}"


def root(x):
    return x * jnp.sqrt(x - 2)


def flat_root(x):
    """Finite; its gradient is 0 * inf at x <= 100."""
    return x + 0 * jnp.sqrt(jnp.maximum(x - 100, 0))


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize(
    ("function", "text", "operation"), [(root, "sqrt", "sqrt"), (flat_root, "sqrt(jnp.maximum", "mul")]
)
def test_operation_and_line_are_named(remat, scanned, function, text, operation):
    """In the forward and in the backward pass, inside scans and checkpoints."""
    one = jax.checkpoint(function) if remat else function

    def loss(x):
        if not scanned:
            return one(x).sum()
        return jax.lax.scan(lambda carry, _: (one(carry), None), x, None, length=3)[0].sum()

    with nonfinite.switched_on(nans=True, infs=False):
        error = nonfinite.locate(jax.jit(jax.grad(loss)), jnp.ones(3))
        assert nonfinite.locate(jax.grad(loss), jnp.full(3, 200.0)) is None
    assert error is not None
    message = str(nonfinite.explained(error, "update 7"))
    assert message.startswith(f"update 7: `{operation}` makes the first NaN, ")
    assert f"{line_of(function, text)} in {function.__name__}, `" in message
    assert ("in the gradient of" in message) == (function is flat_root)
    assert jax.config.jax_traceback_filtering == "auto"  # type: ignore[attr-defined]


def test_infinities_only_where_asked_for():
    with nonfinite.switched_on(nans=True, infs=False):
        assert nonfinite.locate(lambda x: 1 / x, jnp.zeros(2)) is None
    with nonfinite.switched_on(nans=False, infs=True):
        error = nonfinite.locate(lambda x: 1 / x, jnp.zeros(2))
    assert error is not None
    message = str(nonfinite.explained(error, "here", before=list("abcde")))
    assert "`div` makes the first infinity" in message
    assert "bad already: a, b, c and 2 more before the computation" in message
    assert nonfinite.kinds() == ()


def test_bad_inputs_are_named():
    tree = {"state": {"a": jnp.ones(2), "b": jnp.asarray([1.0, jnp.nan])}, "batch": {"row": jnp.arange(2)}}
    assert nonfinite.invalid(tree, ("nan",)) == ["['state']['b']"]
    assert nonfinite.invalid(tree, ("inf",)) == []


def test_validation_marks_rows_without_a_nan():
    """Rows that do not count are no reason to stop a run that looks for NaNs."""
    with nonfinite.switched_on(nans=True, infs=True):
        found = jax.jit(signed_confidence)(jnp.full((2, 1), 0.5), jnp.ones((2, 1), bool), jnp.array([[True], [False]]))
    assert found.tolist() == [[0.5], [2.0]]


@pytest.mark.parametrize("flag", ["nans", "infs"])
def test_the_environment_is_not_overruled(flag):
    code = (
        "import jax\nfrom linnaeus_jax.debugging import nonfinite\n"
        "from linnaeus_jax.config import get_config\nfrom linnaeus_jax.config.typed import typed\n"
        "from linnaeus_jax.step.process import set_up_jax\nset_up_jax(typed(get_config()))\n"
        "with nonfinite.switched_on(nans=False, infs=False):\n    print(nonfinite.kinds())"
    )
    env = {**os.environ, f"JAX_DEBUG_{flag.upper()}": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str((flag[:3],))


class _Planted(nn.Module):
    """GELU plus nothing, in a form that is not finite from the second update on."""

    broken: bool

    @nn.compact
    def __call__(self, x):
        moved = self.param("moved", nn.initializers.zeros, (), jnp.float32)
        y = jax.nn.gelu(x, approximate=False) + moved * x
        if self.broken:
            y = y + 0 * jax.lax.stop_gradient(jnp.log(jnp.where(moved == 0, 1.0, -1.0)))
        return y


@pytest.mark.slow
def test_a_run_names_the_operation(tmp_path, monkeypatch, one_device, capfd, other_layers):
    """The update, the operation and its line reach the user once, in a step that was compiled ahead of time."""
    monkeypatch.setitem(layers.ACTIVATIONS, "gelu", lambda **kwargs: _Planted(broken=True, **kwargs))
    config = tiny_config(
        tmp_path / "data",
        train__epochs=2,
        lr_scheduler__warmup_steps=0,
        debug__nans=True,
        debug__crash_bundle=True,
    )
    with pytest.raises(UserError) as caught:
        run(config, tmp_path / "run")
    message = str(caught.value)
    assert message.startswith("update 1: `log` makes the first NaN, at ")
    assert line_of(_Planted, "jnp.log") in message
    assert "Nothing of it was kept" in message
    assert "base_lr" in message
    shown = capfd.readouterr()
    assert message not in shown.out + shown.err  # whoever calls `run` shows it
    assert message in (tmp_path / "run" / "logs" / "debug_log_rank0.txt").read_text()
    assert not jax.config.jax_debug_nans  # type: ignore[attr-defined]
    (bundle,) = (tmp_path / "run" / "crash").iterdir()
    assert bundle.name == "update_1"
    assert replay(bundle, debug_nans=True) == 1
    assert message in capfd.readouterr().out


@pytest.mark.slow
def test_a_good_run_passes_every_check(tmp_path, one_device):
    """In training and in validation, with mixing and masking, which mark values of their own."""
    config = tiny_config(
        tmp_path / "data",
        train__epochs=1,
        debug__nans=True,
        debug__infs=True,
        schedule__mixup__prob__enabled=True,
        schedule__meta_masking__enabled=True,
        schedule__null_masking__enabled=True,
    )
    final = run(config, tmp_path / "run")
    assert final
