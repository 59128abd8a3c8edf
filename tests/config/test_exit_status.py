"""How programs end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from linnaeus_jax.config.errors import ConfigError, UserError
from linnaeus_jax.config.exit_status import exit_status


def raising(error: BaseException) -> int:
    def call() -> int:
        raise error

    return exit_status(call, KeyError)


def test_what_is_returned():
    assert exit_status(lambda: None) == 0
    assert exit_status(lambda: 3) == 3


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UserError("mend it"), 2, "mend it\n"),
        (ConfigError(["a", "b"]), 2, "b"),
        (
            FileNotFoundError(2, "No such file or directory", "x.h5"),
            2,
            "x.h5: No such file or directory; restore it, or name another\n",
        ),
        (KeyError("named"), 2, "'named'\n"),
        (MemoryError(), 2, "out of memory"),
        (RuntimeError("can't start new thread"), 2, "out of memory; use smaller"),
        (ImportError("x.so: failed to map segment from shared object"), 2, "out of memory; use smaller"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_faults_of_the_user_are_told_without_a_traceback(capsys, error, status, text):
    assert raising(error) == status
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said


def test_a_line_is_not_endless(capsys):
    assert raising(UserError("a" * 10**5 + "\nend")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert len(lines[0]) < 2000
    assert lines[1] == "end"


def test_any_other_error_says_that_it_is_ours_and_where_the_traceback_is(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert raising(ZeroDivisionError("by\nnothing")) == 70
    said = capsys.readouterr().err
    assert "a fault of linnaeus_jax, not yours: ZeroDivisionError: by nothing\n" in said
    path = re.search(r"report it with (\S+)", said)
    assert path is not None
    assert "raise error" in Path(path[1]).read_text()


def test_a_reader_that_has_seen_enough_is_no_error():
    program = (
        "import sys\nfrom linnaeus_jax.config.exit_status import exit_status\n"
        "def call():\n    for _ in range(100000): print('a line')\n"
        "sys.exit(exit_status(call))"
    )
    command = f'{sys.executable} -c "$PROGRAM" | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command],
        env={"PROGRAM": program, "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a line\n", "")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("return 3", 3, ""),
        ("os.abort()", 2, "out of memory"),
        ("os.kill(os.getpid(), 11)", 2, "out of memory"),
        ("bytearray(2**34)", 2, "out of memory"),
        ("raise ImportError('libx.so: failed to map segment from shared object')", 2, "out of memory"),
        ("os.kill(os.getppid(), 15); time.sleep(60)", -15, ""),
        ("os.kill(os.getpid(), 9)", -9, ""),
        ("raise KeyError('named')", 70, "a fault of linnaeus_jax"),
    ],
)
def test_memory_that_is_limited_and_used_up_is_told_in_a_line(tmp_path, body, status, said):
    program = (
        "import os, resource, sys, time\nresource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "from linnaeus_jax.config.exit_status import exit_status\n"
        "from linnaeus_jax.config.memory_limit import under_memory_limit\n"
        f"def call():\n    {body}\nsys.exit(under_memory_limit(lambda: exit_status(call), 'do less', 2))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said) or status == 70
