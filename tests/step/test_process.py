"""Settings of the process, each tried in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from linnaeus_jax.step import process
from linnaeus_jax.step.process import cache_directory

COMPILED = """
import sys, jax
from linnaeus_jax.step import process
print(process.use_compilation_cache(sys.argv[1]))
print(jax.jit(lambda x: x * 2 + 1)(3.0))
"""


def run(directory: str, **environ: str) -> list[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", COMPILED, directory],
        capture_output=True,
        text=True,
        check=True,
        env={**inherited, **environ},
    )
    return done.stdout.splitlines()


def test_the_cache_is_where_the_line_says(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    default = cache_directory()
    line, result = run("auto", XDG_CACHE_HOME=str(tmp_path))
    assert default.is_relative_to(tmp_path)
    assert (line, result) == (f"compiled programs are kept in {default}", "7.0")
    assert list(default.glob("*-cache"))


def test_what_cannot_be_written_is_no_failure(tmp_path: Path):
    (tmp_path / "file").touch()
    line, result = run(str(tmp_path / "file" / "cache"))
    assert line.startswith("compiled programs are not kept: ")
    assert "env.compilation_cache_dir" in line
    assert result == "7.0"


def test_a_cache_can_be_chosen_and_turned_off(tmp_path: Path):
    chosen = str(tmp_path / "chosen")
    assert run("auto", JAX_COMPILATION_CACHE_DIR=chosen)[0] == f"compiled programs are kept in {chosen}"
    other = str(tmp_path / "other")
    assert "is empty" in run("", JAX_COMPILATION_CACHE_DIR=other)[0]
    assert not list(Path(other).glob("*-cache"))


def test_options_of_the_compiler_are_those_that_this_version_knows(monkeypatch):
    options = process.compiler_options(training=False)
    assert jax.jit(lambda x: x + 1.0, compiler_options=options)(1.0) == 2.0
    assert not process._accepted("xla_cpu_no_such_option", "1")


GAPS = """
from linnaeus_jax.step import process
libc = process._libc()
if libc is None:
    raise SystemExit("no glibc")
before = libc.sbrk(0)
process.leave_gaps()  # nothing, since freed memory is not kept
assert libc.sbrk(0) == before
print(process.keep_freed_memory())
blocks = [libc.malloc(20_000) for _ in range(4000)]
for block in blocks[::2]:
    libc.free(block)
assert blocks[0] <= libc.malloc(20_000) <= blocks[-1]
process.leave_gaps()
print(libc.malloc(20_000) > blocks[-1])
"""


def test_gaps_of_the_heap_are_used_no_more():
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("another C library")
    assert done.stdout.split() == ["True", "True"], done.stderr
