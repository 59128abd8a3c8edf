"""A probe in one file of the user's own: its values are logged where they are due, also after a resume."""

from __future__ import annotations

import json

import pytest

from linnaeus_jax import registry
from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.step.probes import Probe, registered_probes
from tests.extending.common import config_with, train_resume_evaluate


@pytest.mark.slow
def test_values_are_logged_where_they_are_due(tmp_path, monkeypatch, capsys):
    outcome = train_resume_evaluate(
        tmp_path,
        "probe_example.py",
        monkeypatch,
        capsys,
        debug__probes__dead_units__every=2,
        debug__probes__dead_units__threshold=1e9,
        train__accumulation_steps=2,
        data__batch_size=16,
    )
    rows = [row for row in outcome.rows if row["event"] == "probe"]
    assert [row["global_step"] for row in rows] == [1, 3, 5]  # after the updates of steps 0, 2 and 4
    for row in rows:
        values = {name: value for name, value in row.items() if name.startswith("probe/dead_units/")}
        assert {"probe/dead_units/stem", "probe/dead_units/aggregate"} < values.keys()
        assert set(values.values()) == {1.0}  # with this threshold, every unit counts as dead
    assert not any(name.startswith("probe/") for row in outcome.rows if row["event"] != "probe" for name in row)
    saved = json.loads((outcome.run / "config.json").read_text())
    assert saved["debug"]["probes"] == {"dead_units": {"every": 2, "threshold": 1e9}}


def test_how_often_it_measures():
    config = config_with("probe_example.py")
    (probe,) = registered_probes(config.debug.probes)
    assert (probe.name, probe.every) == ("probe/dead_units", 50)
    config.debug.probes.dead_units.every = 0
    assert registered_probes(config.debug.probes) == []
    config.debug.probes.dead_units.every = -1
    message = "debug.probes.dead_units.every = -1 is out of range; it must be 0 or more"
    assert message in config_errors(config)


def test_what_is_no_probe_is_named(monkeypatch):
    registry.PROBES.register("loss")(lambda inputs, *, every=10: inputs.loss)
    with pytest.raises(ValueError, match=r"debug\.probes\.loss is no probe: register a subclass of .*Probe"):
        registered_probes({})


def test_two_probes_of_one_name():
    registry.PROBES.register("same")(type("First", (Probe,), {}))
    with pytest.raises(ValueError, match="probe 'same' is registered twice; choose another name"):
        registry.PROBES.register("same")(type("Second", (Probe,), {}))
