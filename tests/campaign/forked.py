"""Programs of this package in children of one process that has imported everything, so that they start at once.

The children have done what the program does before it looks at its arguments, and nothing else; no device is in use.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.campaign.case import Ended
from tests.forks import FORKS


def call(program: str, arguments: Sequence[str], directory: Path, *, seconds: float) -> Ended:
    """Runs `python -m program arguments` in a directory to its end, or kills it and its children after some seconds.

    What it says lies in `said.out` and `said.err` of the directory, the seconds of CPU that it took in `said.cpu`, its
    temporary files in `tmp`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    child = FORKS.Process(target=_run, args=(program, tuple(arguments), str(directory)))
    child.start()
    child.join(seconds)
    status = child.exitcode
    if status is None:
        os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
    child.close()
    out, error = ((directory / name).read_text(errors="replace") for name in ("said.out", "said.err"))
    return Ended(status, out, error)


def _run(program: str, arguments: tuple[str, ...], directory: str) -> None:
    os.setpgid(0, 0)
    os.chdir(directory)
    sys.dont_write_bytecode = True  # a directory of a case holds what the program left, not a compiled config
    os.makedirs("tmp", exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = f"{directory}/tmp"
    for number, name in ((0, os.devnull), (1, "said.out"), (2, "said.err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.argv = [program, *arguments]
    try:
        raise SystemExit(importlib.import_module(program).main(list(arguments)))
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        Path("said.cpu").write_text(str(used.ru_utime + used.ru_stime))
