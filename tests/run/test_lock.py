"""Two starts in one run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.run.lock import LOCK_FILE, RunLock

HOLD = """
import pathlib, sys, time
from linnaeus_jax.run.lock import RunLock
lock = RunLock(pathlib.Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_the_second_is_refused_and_told_who_has_it(tmp_path):
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    first.acquire()
    with pytest.raises(UserError, match=rf"in use by process {os.getpid()} on .* since \d{{4}}-.*--workdir"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_directory_that_does_not_exist_is_not_made(tmp_path):
    RunLock(tmp_path / "run").acquire()
    assert not (tmp_path / "run").exists()


def test_a_killed_process_keeps_nothing(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on"):
            RunLock(tmp_path).acquire()
        holder.send_signal(signal.SIGKILL)
    lock = RunLock(tmp_path)
    lock.acquire()
    (line,) = (tmp_path / LOCK_FILE).read_text().splitlines()  # of the killed one nothing is left
    assert line.startswith(f"process {os.getpid()} on")
    lock.release()


def test_without_locks_the_run_goes_on_with_a_warning(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    RunLock(tmp_path).acquire()
    assert "this file system has no locks" in caplog.text
