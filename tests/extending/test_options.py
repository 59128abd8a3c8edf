"""Options of examples are keys of the configuration, typed and checked like any other, whatever the door."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config.errors import ConfigError
from tests.extending.common import config_with


class Door(NamedTuple):
    """An example as it is configured.

    Attributes:
      chosen: what chooses it, `{}` for its name.
      name: under which it is registered.
      section, options: where its options stand, and their values by default.
      option: of which a value is given.
      wrong: a value that it refuses, and the error.
      unknown: beginning and end of the error of a name that nothing has.
    """

    example: str
    chosen: str
    name: str
    section: str
    options: dict[str, Any]
    option: tuple[str, Any]
    wrong: tuple[Any, str]
    unknown: tuple[str, str] = ("", "")


OPTIMIZER = "optimizer.parameter_groups.enabled=True", "optimizer.parameter_groups.default.optimizer={}"
DOORS = {
    "loss": Door(
        "loss_example.py", "loss.task_specific.train.funcs=('{}',)", "FocalLoss", "loss.FocalLoss", {"gamma": 2.0},
        ("gamma", 1), (-1, "loss.FocalLoss: gamma = -1.0 must be 0 or more"),
        ("loss.task_specific.train.funcs holds 'FocalLossy', which is unknown; choose among CrossEntropyLoss,",
         "FocalLoss"),
    ),
    "optimizer": Door(
        "optimizer_example.py", "optimizer.name={}", "signum", "optimizer.signum", {"beta": 0.9},
        ("beta", 0), (1, "optimizer.signum: beta = 1.0 must be in [0, 1)"),
        ("optimizer.name = 'signumy' is unknown; choose one of adamw,", "signum"),
    ),
    "schedule": Door(
        "schedule_example.py", "lr_scheduler.name={}", "polynomial", "lr_scheduler.polynomial", {"power": 2.0},
        ("power", 3), (-1, "lr_scheduler.polynomial: power = -1.0 must be above 0; 1 is a linear decay"),
        ("lr_scheduler.name = 'polynomialy' is unknown; choose one of cosine, linear, step, wsd,", "inverse_sqrt"),
    ),
    "sampler": Door(
        "sampler_example.py", "data.sampler.type={}", "capped", "data.sampler.capped", {"most": 500},
        ("most", 250), (0, "data.sampler.capped.most = 0 must be at least 1"),
        ("data.sampler.type = 'cappedy' is unknown; choose one of grouped, standard,", "capped"),
    ),
    "model": Door(
        "model_example.py", "model.type={}", "SmallNet", "model.SmallNet", {"meta_width": 8},
        ("meta_width", 3), (0, "model.SmallNet.meta_width = 0 must be 1 or more"),
        ("model.type = 'SmallNety' is unknown; choose one of ConvNeXt, EfficientNet,", "SmallNet"),
    ),
    "probe": Door(
        "probe_example.py", "", "dead_units", "debug.probes.dead_units", {"every": 50, "threshold": 0.0},
        ("threshold", 0.5),
        (-0.5, "debug.probes.dead_units: threshold = -0.5 is below 0, so that no unit could be dead"),
    ),
    "metric": Door(
        "metric_example.py", "", "top_k", "metrics.top_k", {"k": 5, "task": "taxa_L10"}, ("k", 3), (0, ""),
    ),
}  # fmt: skip


def configured(door: Door, *options: str, name: str = "") -> Any:
    """With the model of the quickstart where the example is no model."""
    small = ("model.variant=narrow",) if door.section.startswith("model.") and not name else ()
    chosen = (door.chosen.format(name or door.name),) if door.chosen else ()
    return config_with(door.example, *chosen, *small, *options)


@pytest.fixture(params=DOORS)
def door(request) -> Door:
    return DOORS[request.param]


def test_an_option_is_a_typed_key(door):
    key, value = door.option
    config = configured(door, f"{door.section}.{key}={value}")
    section = config
    for part in door.section.split("."):
        section = section[part]
    assert section.to_dict() == {**door.options, key: value}
    assert type(section[key]) is type(door.options[key])
    assert not [error for error in config_errors(config) if door.name in error]


def test_another_key_and_another_type_are_refused(door):
    key, _ = door.option
    misspelt = f"{key[:-1]}x"
    with pytest.raises(ConfigError, match=rf"{door.section}\.{misspelt}: unknown key"):
        configured(door, f"{door.section}.{misspelt}=1")
    with pytest.raises(ConfigError, match=rf"{door.section}\.{key} = 'much': expected an? (number|integer)"):
        configured(door, f"{door.section}.{key}=much")


def test_what_an_example_refuses_is_one_config_error(door):
    value, message = door.wrong
    errors = config_errors(configured(door, f"{door.section}.{door.option[0]}={value}"))
    assert [error for error in errors if door.name in error] == [message] * bool(message)


@pytest.mark.parametrize("door", [name for name, door in DOORS.items() if door.chosen], indirect=True)
def test_a_name_that_nothing_has_is_one_config_error(door):
    name = f"{door.name}y"
    (error,) = (error for error in config_errors(configured(door, name=name)) if name in error)
    begins, ends = door.unknown
    assert error.startswith(begins)
    assert error.endswith(ends)
