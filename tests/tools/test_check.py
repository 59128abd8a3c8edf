"""The dry run: what it measures is what the run does, and nothing is left behind."""

from __future__ import annotations

import argparse

import pytest

from linnaeus_jax import tools
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import ConfigError, UserError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.learning.update import ParameterRow
from linnaeus_jax.reporting.logs import console
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.tools import check
from tests.tiny import tiny_config


def rendered(table) -> str:
    with console.capture() as shown:
        console.print(table)
    return shown.get()


def test_parameters_are_grouped_by_module():
    rows = (
        ParameterRow("stem.weight", (2, 3), "default", "adamw", 0.05, 0.5),
        ParameterRow("stages.0.norm.weight", (4,), "default", "adamw", 0.0, 0.75),
        ParameterRow("stages.0.conv.weight", (4, 4), "default", "adamw", 0.05, 0.75),
        ParameterRow("head.bias", (7,), "heads", "sgd", 0.0, 1.0),
    )
    text = rendered(check.parameter_table(rows, every=False))
    (stage,) = [line for line in text.splitlines() if "stages.0" in line]
    for cell in ("2", "20", "adamw", "0 to 0.05", "0.75"):
        assert cell in stage
    assert "norm" not in text
    assert "norm" in rendered(check.parameter_table(rows, every=True))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("check")
    config = tiny_config(directory / "data", data__meta__active=False)
    return preview_experiment(config, RunDirectory(directory / "run"))


def test_the_measured_step_has_the_probes_of_the_run(built):
    assert {probe.name for probe in built.program.settings.probes} == {probe.name for probe in built.debug.probes()}
    assert built.program.settings.probes


@pytest.mark.slow
def test_a_trial_checkpoint_leaves_nothing(built):
    text = check.trial_checkpoint(built, built.initial_state())
    assert "MB, written in" in text
    assert [path.name for path in built.directory.root.parent.iterdir()] == ["data"]


def test_a_wrong_config_is_refused_before_anything_is_read(tmp_path):
    config = tiny_config(tmp_path / "data", train__epochs=0, aug__hflip_prob=2.0)
    with pytest.raises(ConfigError, match=r"(?s)train\.epochs.*aug\.hflip_prob|aug\.hflip_prob.*train\.epochs"):
        preview_experiment(config, RunDirectory(tmp_path / "run"))


@pytest.mark.parametrize(
    ("minutes", "storing", "of_epoch", "words"),
    [
        (20, 10.0, 20.0, "in 20 minutes: it fits as it is: 0:14:50"),
        (10, 10.0, 20.0, "in 10 minutes: give --config.train.epochs=25; it takes 0:09:50"),
        (5, 60.0, 10.0, "in 5 minutes: give --config.train.tune_views=2 --config.train.epochs=6; it takes 0:05:00"),
    ],
)
def test_what_fits_a_budget_is_said_as_arguments(minutes, storing, of_epoch, words):
    config = get_config()
    config.train.epochs, config.train.tune = 40, "last:5"
    times = {"beside": 60.0 if storing > 10 else 40.0, "storing": storing, "of_epoch": of_epoch}
    assert check.within(minutes, typed(config), **times, stored=True).startswith(words)


def test_a_budget_that_nothing_fits_is_one_line():
    config = get_config()
    config.train.tune = "last:5"
    with pytest.raises(UserError, match=r"--minutes 2 is too little: .* 3\.5 minutes .*--config\.train\.tune=head"):
        check.within(2, typed(config), beside=60.0, storing=50.0, of_epoch=20.0, stored=True)


@pytest.mark.parametrize("text", ["0", "-1", "ten", "nan", "inf", ""])
def test_minutes_are_a_number_above_0(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of minutes above 0"):
        tools.minutes(text)
