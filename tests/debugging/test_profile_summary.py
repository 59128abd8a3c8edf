"""The summary of a trace: interval arithmetic, and a real trace."""

from __future__ import annotations

import json
import time

import jax
import jax.numpy as jnp
import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.debugging.profile_summary import covered, find_traces, self_times, summarise
from linnaeus_jax.debugging.profiler import StepProfiler
from linnaeus_jax.tools import profile_summary


def test_covered_time_counts_overlaps_once():
    spans = [(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (6.0, 9.0), (4.0, 4.0)]
    assert covered(spans) == 3 + 4
    assert covered([*spans, (2.0, 6.0), (8.0, 20.0)]) == 20
    assert covered([]) == 0


def test_self_times_leave_out_nested_operations():
    operations = [("while", 0, 100), ("dot", 10, 40), ("dot", 50, 60), ("inner", 20, 30), ("copy", 100, 105)]
    assert self_times(operations) == {"while": (60, 1), "dot": (30, 2), "inner": (10, 1), "copy": (5, 1)}
    assert self_times([("one", 0, 10), ("longer", 5, 15)]) == {"one": (5, 1), "longer": (10, 1)}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Two cycles of a step that computes for some milliseconds, with 30 ms waits for input."""
    directory = tmp_path_factory.mktemp("profiler")
    settings = get_config().debug.profiler
    settings.enabled, settings.schedule = True, (0, 1, 3, 2)
    profiler = StepProfiler(settings, directory)
    step = jax.jit(lambda x: jnp.tanh(x @ x) + jnp.sin(x))
    x = step(jnp.full((300, 300), 0.01)).block_until_ready()
    for i in range(8):
        with profiler.input_wait():
            time.sleep(0.03)
        with profiler.before_step(i, i):
            x = step(x)
        profiler.after_step(x.block_until_ready())
    profiler.close()
    return directory


def test_summary_of_a_real_trace(traces):
    first, second = (summarise(path) for path in find_traces(traces))
    assert (first["run"], first["steps"]) == ("cycle_0001", [1, 2, 3])
    assert (second["run"], second["steps"]) == ("cycle_0002", [5, 6, 7])
    [device] = first["devices"].values()
    assert device["computing"] + device["idle"] == pytest.approx(1.0)
    assert device["computing"] + device["waiting_for_input"] + device["other_idle"] == pytest.approx(1.0)
    assert device["computing"] > 0
    # two waits of 30 ms lie between the three steps
    assert device["waiting_for_input"] * first["window_ms"] >= 59
    assert device["other_idle"] >= -1e-9
    assert first["operations"][0]["ms"] > 0
    assert sum(row["share"] for row in first["operations"]) == pytest.approx(1.0)


def test_command_line(traces, tmp_path, capsys):
    assert profile_summary.main([str(traces)]) == 0
    out = capsys.readouterr().out
    assert "cycle_0002" in out
    assert "waiting for" in out
    assert profile_summary.main([str(traces), "--json", "--top", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(summary["operations"]) for summary in found] == [1, 1]
    assert profile_summary.main([str(tmp_path)]) == 2
    assert "xplane" in capsys.readouterr().err
    for content in (b"", b"garbage"):
        (tmp_path / "cut.xplane.pb").write_bytes(content)
        assert profile_summary.main([str(tmp_path)]) == 2
        assert "cut.xplane.pb" in capsys.readouterr().err
