"""How programs end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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
    assert "internal error of linnaeus_jax: ZeroDivisionError: by nothing\n" in said
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
        ("raise KeyError('named')", 70, "internal error of linnaeus_jax"),
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


def program(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", *arguments], stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("arguments", [("linnaeus_jax", "--help"), ("linnaeus_jax", "pack", "--help")])
def test_who_reads_the_output_may_leave(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with program(*arguments, stdout=writing) as process:
        os.close(writing)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_a_full_disk_of_the_output_is_named():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full, program("linnaeus_jax", "--version", stdout=full, env=buffered) as process:
        _, said = process.communicate(timeout=60)
    text = "the standard output: No space left on device; free space there, or choose another place\n"
    assert (process.returncode, said) == (2, text)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5])
def test_ctrl_c_is_one_line_at_any_moment(tmp_path, delay):
    """From the first import of this package on; -2: Python was ending, and no longer had the handler."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    arguments = ("linnaeus_jax.tools.make_demo", "--out", str(tmp_path / "demo"), "--rows", "3000")
    with program(*arguments, stdout=subprocess.DEVNULL, env=environment, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "linnaeus_jax.interrupts" in line:
                break
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith("import time:")]
    assert (process.returncode, said) in ((130, ["interrupted\n"]), (-signal.SIGINT, []))
