"""Programs and tests in processes that start at once: forks of one that has imported what they import.

Python has one such process for all contexts, whose modules are those that were named before its first fork. They are
named here, since which test comes first is chance: a module that a fork imports by itself leaves, for instance, the
temporary directories that wandb makes when it is imported.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import pkgutil
import resource
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

import jax
import wandb
import wandb.sdk.data_types._private as wandb_media

import linnaeus_jax.tools
from tests.campaign.case import Ended

MAIN = "linnaeus_jax.main"
TOOLS = tuple(f"linnaeus_jax.tools.{module.name}" for module in pkgutil.iter_modules(linnaeus_jax.tools.__path__))
#: what programs import only once their arguments are read
LATE = (
    "linnaeus_jax.run.trainer",
    "linnaeus_jax.inference.model",
    "linnaeus_jax.inference.server.serving",
    "linnaeus_jax.reporting",
    "matplotlib.pyplot",
)
#: what programs of tests are, and what they and the campaigns import
TESTED = (
    "tests.tiny",
    "tests.building.build_driver",
    "tests.run.kill_driver",
    "tests.run.process_driver",
    "tests.run.signal_driver",
    "tests.step.programs",
    "tests.campaign.kill_child",
    "tests.campaign.pictures",
)

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([MAIN, *TOOLS, *LATE, *TESTED])


def become(program: str, arguments: Sequence[str]) -> NoReturn:
    """Does in a fork what `python -m program arguments` does in a new process: the program is executed anew.

    Directory, environment and the standard streams are set; no device is in use yet.
    """
    tempfile.tempdir = None  # what was read from the environment of the process that forks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, os.getcwd())
    if count := os.environ.get("JAX_NUM_CPU_DEVICES"):
        jax.config.update("jax_num_cpu_devices", int(count))
    _leave_shared_directories()
    sys.argv = [program, *arguments]
    sys.modules.pop(program, None)
    status = 1
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _leave_shared_directories() -> None:
    """The temporary directories that wandb makes when it is imported belong to all forks: none removes them."""
    for made in (wandb_media.MEDIA_TMP, wandb.Artifact._TMP_DIR):
        atexit.unregister(made.cleanup)
        made._finalizer.detach()  # type: ignore[attr-defined]


def _status(code: object) -> int:
    """The exit status that Python makes of what ends a program."""
    if code is None or isinstance(code, int):
        return int(code or 0)
    print(code, file=sys.stderr)
    return 1


@dataclass(frozen=True)
class Begun:
    """A program that runs, and the directory that holds what it says."""

    process: ForkServerProcess
    said: Path

    def says(self, text: str) -> bool:
        """Whether it has said this, or has ended."""
        said = self.said / "said.out"
        return (said.exists() and text in said.read_text(errors="replace")) or not self.process.is_alive()

    def ended(self, seconds: float) -> Ended:
        """Waits for its end, or kills it and its children after some seconds."""
        self.process.join(seconds)
        status = self.process.exitcode
        if status is None:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
            self.process.join()
        self.process.close()
        out, error = ((self.said / name).read_text(errors="replace") for name in ("said.out", "said.err"))
        return Ended(status, out, error)


def begin(
    program: str,
    arguments: Sequence[str],
    said: Path,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Begun:
    """Starts `python -m program arguments`.

    Args:
      program: The module.
      arguments: What follows it.
      said: What it says goes to `said.out` and `said.err` here, the seconds of CPU that it took to `said.cpu`, its
        temporary files to `tmp`.
      directory: Where it runs; None is `said`.
      environment: Variables that are set on top of those of this process.
    """
    said.mkdir(parents=True, exist_ok=True)
    (said / "said.out").unlink(missing_ok=True)
    given = {**os.environ, "TMPDIR": str(said / "tmp"), **(environment or {})}
    process = FORKS.Process(target=_begun, args=(program, tuple(arguments), said, directory or said, given))
    process.start()
    return Begun(process, said)


def call(
    program: str,
    arguments: Sequence[str],
    said: Path,
    *,
    seconds: float,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """The end of a program, see `begin` and `Begun.ended`."""
    return begin(program, arguments, said, directory=directory, environment=environment).ended(seconds)


def _begun(program: str, arguments: tuple[str, ...], said: Path, directory: Path, environment: dict[str, str]) -> None:
    os.setpgid(0, 0)
    sys.dont_write_bytecode = True  # a directory of a case holds what the program left, not a compiled config
    os.environ.clear()
    os.environ.update(environment)
    os.makedirs(os.environ["TMPDIR"], exist_ok=True)
    streams = ((0, Path(os.devnull)), (1, said / "said.out"), (2, said / "said.err"))
    for number, path in streams:
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.chdir(directory)
    atexit.register(functools.partial(_write_cpu, (said / "said.cpu").absolute()))
    become(program, arguments)


def _write_cpu(path: Path) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    path.write_text(str(used.ru_utime + used.ru_stime))
