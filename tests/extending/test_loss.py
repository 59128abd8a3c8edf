"""A loss in one file of the user's own: trained with, resumed, evaluated; its options and its errors."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.learning.losses import make_criterion
from linnaeus_jax.registry import LOSSES
from tests.extending.common import config_with, train_resume_evaluate

FUNCS = {"loss__task_specific__train__funcs": ("FocalLoss",), "loss__task_specific__val__funcs": ("FocalLoss",)}


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
    config_with("loss_example.py")
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


def test_what_it_raises_in_validation_is_one_config_error():
    config = config_with("loss_example.py", "loss.task_specific.val.funcs=('FocalLoss',)", "loss.FocalLoss.gamma=-1")
    errors = [error for error in config_errors(config) if "loss" in error]
    assert errors == ["loss.FocalLoss: gamma = -1.0 must be 0 or more"]


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
