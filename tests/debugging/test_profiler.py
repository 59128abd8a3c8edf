"""The profiler: schedule, traces of real steps, failures."""

from __future__ import annotations

import gzip
import json
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from linnaeus_jax.debugging.profiler import StepProfiler, profiler_state, schedule_errors


def settings(schedule=(1, 1, 3, 2), *, enabled=True, stack=False, shapes=False, memory=False):
    return SimpleNamespace(
        enabled=enabled, schedule=schedule, record_shapes=shapes, with_stack=stack, device_memory=memory
    )


@jax.jit
def tiny_step(x):
    return jnp.tanh(x @ x)


def train(profiler: StepProfiler, steps: int, first: int = 0, fail_at: int | None = None) -> None:
    x = jnp.eye(8) * 0.5
    tiny_step(x).block_until_ready()
    try:
        for i in range(steps):
            with profiler.input_wait():
                time.sleep(0.001)
            with profiler.before_step(i, first + i):
                x = tiny_step(x)
            if i == fail_at:
                raise RuntimeError("injected")
            profiler.after_step(x)
    finally:
        profiler.close()


def step_numbers(directory):
    """Run -> `step_num`s of its `train` events, from the JSON trace; and the names of all events."""
    found, names = {}, set()
    for path in sorted(directory.glob("plugins/profile/*/*.trace.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names |= {event.get("name", "") for event in events}
        found[path.parent.name] = [int(e["args"]["step_num"]) for e in events if e.get("name") == "train"]
    return found, names


def test_states_of_the_schedule(fixtures):
    for case in json.loads((fixtures / "observability_profiler_schedule.json").read_text()):
        assert [profiler_state(case["schedule"], i) for i in range(len(case["states"]))] == case["states"]


@pytest.mark.parametrize("schedule", [(1, 1, 3), (1, 1, 0, 2), (-1, 1, 3, 2), (1, 1, 3, -1), (1, 1, 2.5, 1)])
def test_bad_schedules(schedule, tmp_path):
    assert schedule_errors(schedule)
    with pytest.raises(ValueError, match=r"debug\.profiler\.schedule"):
        StepProfiler(settings(schedule), tmp_path)


def test_two_cycles_hold_the_right_steps(tmp_path):
    train(StepProfiler(settings(), tmp_path / "profiler"), 20)
    found, names = step_numbers(tmp_path / "profiler")
    assert found == {"cycle_0001": [2, 3, 4], "cycle_0002": [7, 8, 9]}
    assert not any(name.startswith("$") for name in names)


def test_a_trace_holds_only_its_own_updates(tmp_path, monkeypatch):
    done: list[str] = []
    monkeypatch.setattr(jax, "block_until_ready", lambda outputs: done.append(f"update {outputs} computed"))
    for name in ("start_trace", "stop_trace"):
        monkeypatch.setattr(jax.profiler, name, lambda *_, name=name, **__: done.append(name))
    profiler = StepProfiler(settings((2, 0, 1, 1)), tmp_path)
    for i in range(4):
        with profiler.before_step(i, i):
            profiler.after_step(i)
    assert done == ["update 1 computed", "start_trace", "update 2 computed", "stop_trace"]


def test_resumed_run_and_stacks(tmp_path):
    train(StepProfiler(settings((0, 1, 1, 1), stack=True, shapes=True), tmp_path, start_step=40), 3, first=40)
    found, names = step_numbers(tmp_path)
    assert found == {"cycle_0001_from_40": [41]}
    assert any(name.startswith("$") and "profiler.py:" in name for name in names)


def test_device_memory_profile_of_every_cycle(tmp_path):
    train(StepProfiler(settings((0, 1, 1, 2), memory=True), tmp_path), 6)
    for cycle in (1, 2):  # gzipped protocol buffers of pprof
        assert gzip.decompress((tmp_path / f"device_memory_cycle_000{cycle}.prof").read_bytes())


def test_disabled_writes_nothing(tmp_path):
    for profiler in (
        StepProfiler(settings(enabled=False), tmp_path / "a"),
        StepProfiler(settings(), tmp_path / "a", is_coordinator=False),
    ):
        train(profiler, 6)
    assert not (tmp_path / "a").exists()


def test_a_failing_step_still_leaves_its_trace(tmp_path):
    with pytest.raises(RuntimeError, match="injected"):
        train(StepProfiler(settings(), tmp_path), 20, fail_at=3)
    assert step_numbers(tmp_path)[0] == {"cycle_0001": [2, 3]}


def test_a_failing_profiler_warns_and_ends(tmp_path, monkeypatch, caplog):
    jax.profiler.start_trace(str(tmp_path / "other"))  # a second trace cannot start
    monkeypatch.setattr(logging.getLogger("linnaeus_jax"), "propagate", True)
    try:
        with caplog.at_level(logging.WARNING):
            train(StepProfiler(settings(), tmp_path / "ours"), 20)
    finally:
        jax.profiler.stop_trace()
    assert "cannot start a trace" in caplog.text
    assert len(caplog.records) == 1
    assert not (tmp_path / "ours").exists()


@pytest.mark.slow
def test_tensorboard_serves_the_traces(tmp_path):
    train(StepProfiler(settings(), tmp_path), 12)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--host", "127.0.0.1"]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with (tmp_path / "server.txt").open("w") as output:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output, env=environment)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str, **query: str):
        with opener.open(f"http://127.0.0.1:{port}/{path}?{urllib.parse.urlencode(query)}", timeout=60) as response:
            body = response.read()
        return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)

    try:
        for attempt in range(120):
            try:
                plugins = get("data/plugins_listing")
                break
            except (urllib.error.URLError, ConnectionError):
                if attempt == 119 or server.poll() is not None:
                    raise AssertionError((tmp_path / "server.txt").read_text()) from None
                time.sleep(0.5)
        assert plugins["profile"]["enabled"] is True
        assert sorted(get("data/plugin/profile/runs")) == ["cycle_0001", "cycle_0002"]
        tools = get("data/plugin/profile/run_tools", run="cycle_0002")
        assert {"overview_page", "trace_viewer@"} <= set(tools)
        tag = "trace_viewer@"
        host = get("data/plugin/profile/hosts", run="cycle_0002", tag=tag)[0]
        host = host["hostname"] if isinstance(host, dict) else host
        trace = get("data/plugin/profile/data", run="cycle_0002", tag=tag, host=host)
        assert {"train 7", "train 8", "train 9"} <= {event.get("name") for event in trace["traceEvents"]}
    finally:
        server.terminate()
        server.wait(30)
