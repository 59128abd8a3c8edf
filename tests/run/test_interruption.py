"""Signals of one process, and how several agree; real processes: test_kill.py and test_two_processes.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from jax.experimental import multihost_utils

from linnaeus_jax.run import interruption
from linnaeus_jax.run.interruption import Interruption


@pytest.fixture
def hangup_is_not_ignored():
    """As it is where the tests themselves run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_is_not_ignored")
@pytest.mark.parametrize("number", Interruption.SIGNALS)
def test_a_signal_becomes_a_request_and_handlers_come_back(number):
    before = [signal.getsignal(each) for each in Interruption.SIGNALS]
    with Interruption() as found:
        assert not found.requested()
        os.kill(os.getpid(), number)
        assert found.requested()
        assert found.requested()
    assert found.exit_code == {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 138, "SIGHUP": 129}[number.name]
    assert [signal.getsignal(each) for each in Interruption.SIGNALS] == before


def test_an_ignored_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as found:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not found.requested()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with Interruption() as found:
            seen.append((signal.getsignal(signal.SIGTERM), found.requested()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


def test_second_ctrl_c_leaves_at_once():
    program = (
        "import os, signal, sys\n"
        "from linnaeus_jax.run.interruption import Interruption\n"
        "with Interruption():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('once', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('twice', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["once"], done.stderr[-2000:]
    assert done.returncode == 130
    assert "ended at once; the same command goes on from the newest checkpoint\n" in done.stderr


def test_signals_are_answered_while_the_main_thread_runs_no_python():
    """As while XLA compiles: no instruction of Python runs there, and so no signal handler."""
    program = (
        "import hashlib, os, signal, threading, time\n"
        "from linnaeus_jax.run.interruption import Interruption\n"
        "def press():\n"
        "    for _ in range(2):\n"
        "        time.sleep(0.2)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "with Interruption() as interruption, interruption.during('compiling'):\n"
        "    threading.Thread(target=press).start()\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 200_000_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr[-2000:]
    first, second = done.stderr.splitlines()[-2:]
    assert first.startswith("Ctrl-C: the run saves its state and ends as soon as compiling and one update are done;")
    assert second.startswith("ended at once")


def test_the_pipe_of_signals_is_closed_again():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Interruption():
            assert signal.set_wakeup_fd(-1) >= 0
    for thread in [thread for thread in threading.enumerate() if thread.name == "signals"]:
        thread.join(10)
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def distributed(monkeypatch):
    """Pretends that `jax.distributed` runs; returns what the service was asked and which answer it gives."""
    asked: list[int] = []
    state: dict[str, Any] = {"asked": asked, "at": None, "numbers": []}

    def reached(count: int) -> bool:
        asked.append(count)
        return len(asked) == state["at"]

    monkeypatch.setattr(interruption.jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", reached)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: np.array([*state["numbers"], own]))
    return state


def test_the_service_keeps_its_own_sigterm_and_hears_of_the_others(distributed):
    heard = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with Interruption() as found:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert heard == [signal.SIGTERM]
            assert not found.requested(), "only the service says when"
            distributed["at"] = 2
            assert found.requested()
        assert found.exit_code == 138
    finally:
        signal.signal(signal.SIGTERM, previous)


@pytest.mark.parametrize(
    ("others", "number"), [([0, 0], signal.SIGTERM), ([0, int(signal.SIGINT)], signal.SIGINT)], ids=["TERM", "INT"]
)
def test_processes_agree_on_the_number(distributed, others, number):
    distributed["numbers"], distributed["at"] = others, 1
    with Interruption() as found:
        assert found.requested()
    assert found.exit_code == 128 + number


def test_the_count_goes_on_in_a_second_run(distributed):
    for _ in range(2):
        with Interruption() as found:
            assert not found.requested()
    first, second = distributed["asked"]
    assert second == first + 1
