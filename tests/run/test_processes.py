"""Processes that fail, agree and leave together; `test_two_processes.py` and `test_clusters.py` start real ones."""

from __future__ import annotations

import os
import threading

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from linnaeus_jax import main
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.processes import Processes
from linnaeus_jax.run import processes, trainer


@pytest.fixture
def two(monkeypatch):
    """Pretends that there is another process; what it would send follows from what this one sends."""
    answer = {"other": lambda own: own}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: np.stack([own, answer["other"](own)]))
    return answer


def test_what_fails_on_one_fails_on_all(two):
    with processes.fail_on_all():
        pass
    with pytest.raises(UserError, match=r"^here$"), processes.fail_on_all():
        raise UserError("here")
    text = np.frombuffer("Platte fehlt: ä".encode(), np.uint8)
    two["other"] = lambda own: np.concatenate([text, own[len(text) :]])
    with pytest.raises(UserError, match=r"process 1 of 2 cannot take part: Platte fehlt: ä$"), processes.fail_on_all():
        pass


def test_long_and_empty_errors_are_told(two):
    told: list[bytes] = []

    def other(own: np.ndarray) -> np.ndarray:
        told.append(own.tobytes().rstrip(b"\0"))
        return own

    two["other"] = other
    for text in ("x" * 5000, ""):
        with pytest.raises(UserError), processes.fail_on_all():
            raise UserError(text)
    assert told == [b"x" * 1000, b"error"]


def test_processes_must_make_the_same_run(two):
    made = {"configuration": {"a": 1}, "data": [1, 2]}
    processes.check_agreement(made)
    two["other"] = lambda own: np.stack([own[0], own[1] ^ 1])
    with pytest.raises(UserError, match="process 1 of 2 has another data than process 0; give all processes"):
        processes.check_agreement(made)


def test_one_process_waits_for_nobody():
    with pytest.raises(UserError, match="here"), processes.fail_on_all():
        raise UserError("here")
    assert processes.exit_process(2) == 2
    processes.join(None)


def test_who_failed_leaves_at_once_and_process_0_last(two, monkeypatch):
    done: list[object] = []
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setattr(processes.logging, "shutdown", lambda: None)
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: done.append("waited"))
    processes.exit_process(0)
    processes.exit_process(2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    processes.exit_process(70)
    assert done == ["waited", 2, 70]


def test_the_end_of_another_process_is_told_from_faults_of_this_one(two, monkeypatch):
    gone = jax.errors.JaxRuntimeError("INTERNAL: Gloo all-reduce failed: Connection reset by peer")
    assert processes.ended_elsewhere(gone)
    assert not processes.ended_elsewhere(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
    assert not processes.ended_elsewhere(ValueError("gloo"))


def test_processes_that_do_not_find_each_other(monkeypatch):
    def initialize(**_: object) -> None:
        raise RuntimeError("DEADLINE_EXCEEDED: Barrier timed out\nmore")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(
        UserError, match=r"\(Slurm\) did not find each other: DEADLINE_EXCEEDED: Barrier timed out; see"
    ):
        processes.join(Processes("Slurm", {}))


def test_waiting_for_processes_has_an_end(monkeypatch, capfd):
    ended = threading.Event()
    monkeypatch.setattr(processes, "JOIN_TIMEOUT", 0.01)
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: ended.wait(60))
    processes.join(Processes("coordinator a:1", {}))
    assert ended.is_set()
    assert "(coordinator a:1) did not find each other: nothing after 0.01 s; see" in capfd.readouterr().err


@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_is_kept_before_joining_starts_threads(keep, monkeypatch):
    called: list[str] = []
    monkeypatch.setattr(processes, "keep_freed_memory", lambda: called.append("keep"))
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: called.append("join"))
    monkeypatch.setattr(trainer, "run", lambda *_: called.append("run"))
    given = ["--coordinator=a:1", "--processes=2", "--process=0"]
    assert main.main(["--config=configs/quickstart.py", f"--config.env.keep_freed_memory={keep}", *given]) == 0
    assert called == ["keep"] * keep + ["join", "run"]
