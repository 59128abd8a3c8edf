"""The door of a learning-rate schedule, tried from outside: the example trains, resumes, is shown and is checked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linnaeus_jax.checks import validate_schedule_config
from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.typed import typed
from linnaeus_jax.schedules import ResolvedSchedule, build_scheduler
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.tools import report
from linnaeus_jax.tools import schedule as tool
from tests.extending.common import config_with, train_resume_evaluate
from tests.plugins import forget_plugins

GROUP = "lr_scheduler.parameter_groups.heads"


@pytest.fixture
def config():
    config = config_with("schedule_example.py")
    config.train.epochs = 4
    config.lr_scheduler.warmup_epochs, config.lr_scheduler.warmup_steps = None, 8
    return config


@pytest.mark.slow
def test_example_trains_resumes_and_is_evaluated(tmp_path, monkeypatch, capsys):
    overrides = {"lr_scheduler__name": "polynomial", "lr_scheduler__polynomial__power": 3.0}
    overrides |= {"lr_scheduler__warmup_steps": 1, "schedule__metrics__lr_interval": 1}
    outcome = train_resume_evaluate(tmp_path, "schedule_example.py", monkeypatch, capsys, **overrides)
    summary = json.loads((outcome.run / "assets" / "schedule_summary.json").read_text())
    (spec,) = ResolvedSchedule.from_dict(summary["resolved"]).learning_rates
    assert (spec.name, spec.options) == ("polynomial", {"power": 3.0})
    assert "polynomial updates 1 .. 5" in (outcome.run / "assets" / "schedule_summary.txt").read_text()
    applied = {row["global_step"]: row["train/lr"] for row in outcome.rows if "train/lr" in row}
    forget_plugins()  # as another process: the report imports the plugin that the run names
    assert report.main([str(outcome.run), f"--out={tmp_path / 'report.html'}"]) == 0
    for step in (5, 6):  # of the resumed run, which is 6 updates long
        expected = spec.min_lr + (spec.peak - spec.min_lr) * (1 - (step - 2) / 5) ** 3
        assert applied[step] == pytest.approx(expected, rel=1e-6)


def test_one_group_alone_takes_it_and_the_dry_run_shows_it(config, capsys, tmp_path):
    config.optimizer.parameter_groups.enabled = config.lr_scheduler.parameter_groups.enabled = True
    with config.unlocked():
        config.optimizer.parameter_groups.heads = {"lr_multiplier": 2.0}
        config.lr_scheduler.parameter_groups.heads = {"name": "POLYNOMIAL", "warmup_steps": 4}
    complete_open_nodes(config)
    assert validate_schedule_config(config) == []
    resolved = tool.run(typed(config), (10,), out=tmp_path)
    assert "heads: polynomial" in capsys.readouterr().out
    heads, default = resolved.learning_rates
    assert (heads.name, heads.options, default.name) == ("polynomial", {"power": 2.0}, "cosine")
    assert ResolvedSchedule.from_dict(json.loads(json.dumps(resolved.to_dict()))) == resolved
    rates = on_host(build_scheduler(resolved))(np.arange(45))["heads"]
    assert rates[3] < rates[4] == pytest.approx(heads.peak)
    assert rates[40] == rates[44] == pytest.approx(heads.min_lr)


def test_a_schedule_has_a_warmup_of_its_own(config, capsys):
    config.lr_scheduler.name = "inverse_sqrt"
    resolved = tool.run(typed(config), (10,))
    assert "inverse_sqrt" in capsys.readouterr().out
    rates = on_host(build_scheduler(resolved))(np.arange(40))["default"] / resolved.learning_rates[0].peak
    np.testing.assert_allclose(rates[:8], np.arange(1, 9) / 8, rtol=1e-6)
    np.testing.assert_allclose(rates[8:], np.sqrt(8 / np.arange(9, 41)), rtol=1e-6)
