"""A loss in one file of the user's own: trained with, resumed, evaluated; its options and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config import ConfigError, load_config
from linnaeus_jax.learning.losses import make_criterion
from linnaeus_jax.registry import LOSSES
from tests.extending.common import EXAMPLES, train_resume_evaluate

FUNCS = {"loss__task_specific__train__funcs": ("FocalLoss",), "loss__task_specific__val__funcs": ("FocalLoss",)}


def config_with(*options: str):
    plugin = f"--config.env.plugins=('{EXAMPLES / 'loss_example.py'}',)"
    return load_config([f"--config={Path(__file__).parents[2]}/configs/quickstart.py", plugin, *options])[0]


@pytest.mark.slow
def test_a_run_trains_with_it(tmp_path, monkeypatch, capsys):
    mixing = {"schedule__mixup__prob__enabled": True}
    outcome = train_resume_evaluate(
        tmp_path, "loss_example.py", monkeypatch, capsys, loss__FocalLoss__gamma=50.0, **FUNCS, **mixing
    )
    saved = json.loads((outcome.run / "config.json").read_text())
    assert saved["loss"]["FocalLoss"] == {"gamma": 50.0}
    loss = outcome.evaluated["val"]["loss_unweighted"]
    assert 0 < loss < 0.1  # cross entropy would be near log(C), the factor (1 - p) ** 50 is small at once
    last = [row for row in outcome.rows if row["event"] == "epoch"][-1]
    assert last["val/loss"] == pytest.approx(loss, rel=1e-6)


def test_without_focus_it_is_cross_entropy_also_where_rows_are_mixed():
    config_with()
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(4, 5)), jnp.float32)
    target = (jnp.array([0, 1, 2, 4]), jnp.array([0, 3, 0, 1]), jnp.array([1.0, 0.5, 0.3, 0.9]))
    plain, focal = (
        make_criterion(name, num_classes=5, options=options)
        for name, options in (("CrossEntropyLoss", {}), ("FocalLoss", {"gamma": 0.0}))
    )
    np.testing.assert_allclose(focal(logits, *target), plain(logits, *target), rtol=1e-6)
    found, expected = (jax.grad(lambda z, f=f: f(z, *target).sum())(logits) for f in (focal, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # the mixture of two losses, not the loss of a mixture
    focal = make_criterion("FocalLoss", num_classes=5)
    label, partner_label, lam = target
    mixed = lam * focal(logits, label) + (1 - lam) * focal(logits, partner_label)
    np.testing.assert_array_equal(focal(logits, *target), mixed)
    assert focal(logits.astype(jnp.bfloat16), label).dtype == jnp.float32


def test_its_option_is_a_key():
    chosen = "--config.loss.task_specific.train.funcs=('FocalLoss',)"
    config = config_with(chosen, "--config.loss.FocalLoss.gamma=1")
    assert config.loss.FocalLoss.to_dict() == {"gamma": 1.0}
    assert not [error for error in config_errors(config) if error.startswith("loss.")]
    with pytest.raises(ConfigError, match=r"loss.FocalLoss.gama: unknown key; did you mean .*gamma"):
        config_with("--config.loss.FocalLoss.gama=1")
    with pytest.raises(ConfigError, match=r"FocalLoss.gamma = 'much': expected a number"):
        config_with("--config.loss.FocalLoss.gamma=much")


@pytest.mark.parametrize("split", ["train", "val"])
def test_what_it_raises_is_one_config_error(split):
    config = config_with(
        f"--config.loss.task_specific.{split}.funcs=('FocalLoss',)", "--config.loss.FocalLoss.gamma=-1"
    )
    errors = [error for error in config_errors(config) if "loss" in error]
    assert errors == ["loss.FocalLoss: gamma = -1.0 must be 0 or more"]


def test_a_name_that_is_not_registered():
    config = config_with("--config.loss.task_specific.train.funcs=('FocalLos',)")
    (error,) = (error for error in config_errors(config) if "loss" in error)
    assert "'FocalLos', which is unknown; choose among CrossEntropyLoss," in error
    assert error.endswith("FocalLoss")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda logits, label: logits.mean(), r"loss.Odd: must return one loss per row, shape \(2,\)"),
        (lambda logits, label, *, missing: logits[:, 0], "loss.Odd: .* missing 1 required keyword-only argument"),
        (lambda logits: logits[:, 0], "loss.Odd: .* takes 1 positional argument but 2 were given"),
    ],
)
def test_what_is_no_loss_is_named(monkeypatch, function, text):
    monkeypatch.setitem(LOSSES.entries, "Odd", function)
    with pytest.raises(ValueError, match=text):
        make_criterion("Odd", num_classes=3)
