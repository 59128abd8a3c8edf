"""Programs under `ulimit -v`: one line in place of what C++ prints, and everything else as without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
from linnaeus_jax.config.memory_limit import under_memory_limit
def call():
    {}
print('at the end', under_memory_limit(call, 'do less', 2))
"""


def ended(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [("return 0", 0), ("return 70", 70), ("raise SystemExit(143)", 143), ("os.kill(os.getpid(), 9)", -9)],
)
def test_ends_are_those_of_the_program(body, status):
    done = ended(body)
    assert done.returncode == status
    assert "at the end 0" in done.stdout if status == 0 else not done.stdout
    assert not done.stderr


@pytest.mark.parametrize("body", ["os.abort()", "import ctypes; ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()"])
def test_a_process_that_is_aborted_had_no_memory(body):
    done = ended(body)
    assert done.returncode == 2
    assert done.stderr == "out of memory (this shell's limit is 4.3 GB, see ulimit -v): do less\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_signals_reach_the_program_once(name):
    number = signal.Signals[name]
    body = (
        # what is printed through a buffer could be interrupted by its own handler
        f"signal.signal({int(number)}, lambda *_: os.write(1, b'caught\\n')); os.write(1, b'ready\\n'); "
        "time.sleep(0.3); time.sleep(0.3); return 5"
    )
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, number)  # as a terminal does
        assert process.stdout.read() == "caught\n"
    assert process.returncode == 5


def test_the_program_ends_with_its_parent():
    body = "print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(body)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{child}/exe")


def test_without_a_limit_nothing_is_started(monkeypatch):
    from linnaeus_jax.config import memory_limit

    monkeypatch.setattr(memory_limit.system, "memory_limit", lambda: None)
    monkeypatch.setattr(memory_limit.os, "fork", None)
    assert memory_limit.under_memory_limit(lambda: 3, "do less", 2) == 3


def test_the_number_of_the_parent_is_that_from_before_the_child(monkeypatch):
    """A parent that ends at once is not taken for whoever takes over its children."""
    from linnaeus_jax.config import memory_limit

    told: list[int] = []
    monkeypatch.setattr(memory_limit.system, "memory_limit", lambda: 2**32)
    monkeypatch.setattr(memory_limit.os, "fork", lambda: 0)  # this process is the child, too
    monkeypatch.setattr(memory_limit.os, "setpgid", lambda process, group: None)
    monkeypatch.setattr(memory_limit, "_prepare", told.append)
    assert memory_limit.under_memory_limit(lambda: 0, "do less", 2) == 0
    assert told == [os.getpid()]
