"""Settings of the process, each tried in a process of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import linnaeus_jax
from linnaeus_jax import backend
from linnaeus_jax.config import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import typed
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
    monkeypatch.setattr(process, "_accepted", lambda name, value: True)
    for training in (True, False):
        monkeypatch.delenv("XLA_FLAGS")
        wanted = process.compiler_options(training=training)
        given = min(wanted)
        monkeypatch.setenv("XLA_FLAGS", f"--other --{given}=2")
        assert process.compiler_options(training=training).keys() == wanted.keys() - {given}, "what is set stays"


GAPS = """
from linnaeus_jax.step import process
libc = process._libc()
if libc is None:
    raise SystemExit("no glibc")
before = libc.sbrk(0)
process.retire_heap_fragments()  # nothing, since freed memory is not kept
assert libc.sbrk(0) == before
print(process.keep_freed_memory())
blocks = [libc.malloc(20_000) for _ in range(4000)]
for block in blocks[::2]:
    libc.free(block)
assert blocks[0] <= libc.malloc(20_000) <= blocks[-1]
process.retire_heap_fragments()
print(libc.malloc(20_000) > blocks[-1])
"""


@pytest.mark.tricks
@pytest.mark.parametrize(("platforms", "expected"), [("cpu", True), ("cuda,cpu", False), ("tpu", False)])
def test_freed_memory_is_kept_where_cpus_compute(platforms, expected, monkeypatch):
    monkeypatch.setattr(process, "_kept", {"heap": False, "largest": 0})
    calls = []

    def mallopt(*setting: int) -> int:
        calls.append(setting)
        return 1

    libc = SimpleNamespace(mallopt=mallopt)
    monkeypatch.setattr(process, "_libc", lambda: libc)
    monkeypatch.setattr(backend.jax, "config", SimpleNamespace(jax_platforms=platforms))
    assert process.keep_freed_memory() == process.keep_freed_memory() == expected
    assert len(calls) == 3 * expected  # once for a process
    assert process.keep_freed_memory(process.LARGEST_KEPT) == expected
    assert len(calls) == 3 * expected, "what has no limit stays without"
    monkeypatch.setattr(process, "_kept", {"heap": False, "largest": 0})
    assert process.keep_freed_memory(process.LARGEST_KEPT) == process.keep_freed_memory() == expected
    assert len(calls) == 9 * expected, "training takes the limit away"


def test_an_installed_accelerator_may_be_used(monkeypatch):
    monkeypatch.setattr(backend.jax, "config", SimpleNamespace(jax_platforms=None))
    monkeypatch.setattr(backend, "entry_points", lambda group: [])
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    assert backend.only_cpus()
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: name if name == "libtpu" else None)
    assert not backend.only_cpus()
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(backend, "entry_points", lambda group: ["xla_cuda13"])
    assert not backend.only_cpus()


@pytest.mark.tricks
@pytest.mark.needs("linux")
def test_gaps_of_the_heap_are_used_no_more():
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


KEPT = """
from linnaeus_jax.step import process
libc = process._libc()
if libc is None or not process.keep_freed_memory():
    raise SystemExit("no glibc")
blocks = [libc.malloc(2**30) for _ in range(3)]  # addresses; no page of them is touched
before = libc.sbrk(0)
for block in blocks:
    libc.free(block)
print(libc.sbrk(0) == before)
"""


@pytest.mark.needs("linux")
def test_gigabytes_of_freed_memory_stay_too():
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr


FAULTS = """
import resource, sys
import jax
from linnaeus_jax.step import process
process.set_up_inference()
wide = jax.numpy.ones((4096, 8))
forward = jax.jit(lambda x: (x @ wide.T) @ wide)  # a temporary of 64 MiB, 16,384 pages
faults = []
for _ in range(21):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(forward(wide))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults)[10])  # the median: the heap still grows in the first ones
"""


@pytest.mark.slow  # JAX in two processes
@pytest.mark.needs("linux")
@pytest.mark.tricks
def test_a_forward_pass_finds_the_memory_of_the_last_one():
    faults = {}
    for plain in ("", "kept-memory"):
        environ = {**os.environ, "LINNAEUS_PLAIN": plain, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=environ)
        faults[plain] = int(done.stdout)
    assert faults[""] < 1600 < 16_000 < faults["kept-memory"], faults


@pytest.mark.parametrize("program", ["predict", "serve", "evaluate", "bundle"])
def test_programs_that_run_a_model_set_up_their_process_before_they_read_it(program, tmp_path, monkeypatch):
    """Each is given a bundle, or a run, without content."""
    main = importlib.import_module(f"linnaeus_jax.tools.{program}").main
    called = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda _: called.append("memory"))
    monkeypatch.setattr(process, "use_compilation_cache", lambda: called.append("cache"))
    (tmp_path / "bundle.json").write_text("{}", encoding="utf-8")
    more = {
        "predict": [str(tmp_path)],
        "serve": ["--port=0"],
        "evaluate": ["--labels=x.h5", "--images=x.h5"],
        "bundle": [str(tmp_path / "out")],
    }
    assert main([str(tmp_path), *more[program]]) == 2
    assert called == ["memory", "cache"]


FIRST = """
import importlib, sys
from linnaeus_jax.step import process
def set_up():
    print(sorted({"polars", "orbax", "h5py", "cv2", "scipy"} & set(sys.modules)))
    raise SystemExit
process.set_up_inference = set_up
for name, arguments in {"predict": "x y", "serve": "x", "evaluate": "x", "bundle": "x y"}.items():
    try:
        importlib.import_module(f"linnaeus_jax.tools.{name}").main(arguments.split())
    except SystemExit:
        pass
"""


def test_programs_that_run_a_model_set_up_their_process_before_libraries_start_threads():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n" * 4, done.stderr


@pytest.mark.parametrize("asked", [False, True])
def test_a_loaded_model_leaves_the_process_alone_unless_asked(asked, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda _: called.append("memory"))
    with pytest.raises(UserError, match="neither a bundle"):
        linnaeus_jax.load(tmp_path, keep_freed_memory=asked)
    assert called == ["memory"] * asked


BATCH = """
import os, threading
from linnaeus_jax.step import process
end, threads = threading.Event(), []
def another():
    threads.append(threading.Thread(target=end.wait))
    threads[-1].start()
another()
print(process.use_batch_scheduling(), process.use_batch_scheduling())
another()
print({os.sched_getscheduler(number) == os.SCHED_BATCH for number in (0, *(each.native_id for each in threads))})
end.set()
"""


@pytest.mark.needs("linux")
def test_every_thread_is_scheduled_as_batch():
    done = subprocess.run([sys.executable, "-c", BATCH], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False", "{True}"]  # a policy that was chosen stays


def test_scheduling_that_is_forbidden_or_unknown_stays(monkeypatch):
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden, raising=False)
    assert not process.use_batch_scheduling()
    monkeypatch.delattr(os, "sched_getscheduler", raising=False)
    assert not process.use_batch_scheduling()


@pytest.mark.tricks
@pytest.mark.parametrize("several", [True, False])
def test_only_processes_that_train_together_on_cpu_are_scheduled_as_batch(several, monkeypatch):
    called: list[bool] = []
    monkeypatch.setattr(process, "use_batch_scheduling", lambda: called.append(True))
    monkeypatch.setattr(process, "keep_freed_memory", lambda: True)
    monkeypatch.setattr(process, "use_compilation_cache", lambda _: "")
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: several)
    process.set_up_jax(typed(get_config()))
    assert bool(called) == several
