"""An optimizer in one file of the user's own: trained with, resumed, evaluated; its options and its errors."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config import get_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.learning.transforms import build_transform
from linnaeus_jax.registry import OPTIMIZERS
from tests.extending.common import config_with, train_resume_evaluate
from tests.learning.test_filters import Info


@pytest.mark.slow
def test_a_run_trains_with_it(tmp_path, monkeypatch, capsys):
    outcome = train_resume_evaluate(
        tmp_path,
        "optimizer_example.py",
        monkeypatch,
        capsys,
        optimizer__name="signum",
        optimizer__signum__beta=0.5,
        optimizer__weight_decay=0.0,
    )
    saved = json.loads((outcome.run / "config.json").read_text())
    assert saved["optimizer"]["signum"] == {"beta": 0.5}
    losses = [row["val/loss"] for row in outcome.rows if row["event"] == "epoch"]
    assert losses[1] < losses[0]
    assert outcome.evaluated["val"]["loss_unweighted"] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_step_applies_rate_and_sign_and_the_program_adds_the_decay(decay):
    config = config_with("optimizer_example.py", "optimizer.name=Signum", "optimizer.signum.beta=0.5")
    config.optimizer.weight_decay = decay
    optimizer = build_optimizer(typed(config).optimizer, [Info("w", ("w",), (2, 2)), Info("b.bias", ("b",), (2,))])
    assert {row.optimizer for row in optimizer.rows} == {"signum"}
    params = {"w": jnp.full((2, 2), 3.0), "b": jnp.full((2,), 3.0)}
    state = optimizer.transform.init(params)
    for grad, sign in ((1.0, 1.0), (-0.5, -1.0), (0.25, 1.0)):  # momentum 0.5, 0, 0.125
        grads = {name: jnp.full(x.shape, grad) for name, x in params.items()}
        descent, state = optimizer.transform.update(grads, state, params)
        sign = 0.0 if grad == -0.5 else sign
        np.testing.assert_allclose(descent["w"], sign + 3 * decay)
        np.testing.assert_allclose(descent["b"], sign)  # biases have no decay
    updates = optimizer.apply_learning_rates(descent, {"default": 0.1})
    np.testing.assert_allclose(updates["b"], -0.1, rtol=1e-6)


def test_one_group_may_use_it():
    config = config_with("optimizer_example.py", "optimizer.parameter_groups.enabled=True")
    config.optimizer.parameter_groups.default.optimizer = "signum"
    assert not [error for error in config_errors(config) if error.startswith("optimizer")]
    config.optimizer.parameter_groups.default.optimizer = "signus"
    (error,) = (error for error in config_errors(config) if error.startswith("optimizer"))
    assert error.startswith("optimizer.parameter_groups.default.optimizer = 'signus' is unknown; choose one of adamw,")
    assert error.endswith("signum")


def test_keys_of_the_section_are_given_to_who_asks(monkeypatch):
    def asks(*, betas, momentum, add_decay):
        assert momentum == 0.9
        return optax.chain(add_decay, optax.scale(betas[0]))

    monkeypatch.setitem(OPTIMIZERS.entries, "asks", asks)
    settings = typed(get_config()).optimizer
    transform = build_transform("asks", settings, {("w",): 0.5})
    params = {"w": jnp.ones(1)}
    updates, _ = transform.update({"w": jnp.ones(1)}, transform.init(params), params)
    np.testing.assert_allclose(updates["w"], settings.betas[0] * 1.5)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 3, "optimizer.odd: must return an optax.GradientTransformation, not 3"),
        (lambda *, missing: optax.identity(), "optimizer.odd: .* missing 1 required keyword-only argument: 'missing'"),
    ],
)
def test_what_is_no_optimizer_is_named(monkeypatch, function, text):
    monkeypatch.setitem(OPTIMIZERS.entries, "odd", function)
    with pytest.raises(ValueError, match=text):
        build_transform("odd", typed(get_config()).optimizer)
