"""A case of the campaign, and how it ended."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
      good: it ended as it shall.
      what: the kind of end, in a few words that many cases share: a row of the table.
      detail: what was seen, for whoever mends it.
    """

    good: bool
    what: str
    detail: str = ""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
      group: a column of the table, such as the kind of file or the moment of a kill.
      name: unique in its part, the same in every run with the same seed.
      run: does it in an empty directory of its own, which is removed if the end is good.
    """

    group: str
    name: str
    run: Callable[[Path], Outcome]


@dataclass(frozen=True)
class Ended:
    """A program that has ended; `status` is None where it was killed for taking too long."""

    status: int | None
    out: str
    error: str

    @property
    def has_traceback(self) -> bool:
        """Whether a fault of the program shows."""
        return "Traceback (most recent call last)" in self.error or "internal error of linnaeus_jax" in self.error

    def refused(self, status: int = 2) -> Outcome:
        """Good where the program said in lines of its own what is wrong, and ended with this status."""
        lines = [line for line in self.error.splitlines() if line.strip()]
        last = "\n".join(lines[-12:])
        if self.status is None:
            return Outcome(False, "hangs", last)
        if self.has_traceback:
            return Outcome(False, "traceback", last)
        if self.status < 0:
            return Outcome(False, f"killed by signal {-self.status}", last)
        if self.status == 0:
            return Outcome(False, "accepted", last)
        if self.status != status or not lines:
            return Outcome(False, f"status {self.status}" if lines else "says nothing", last)
        return Outcome(True, f"one line, status {status}", last)


def run_program(
    arguments: Sequence[str], *, seconds: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    """Runs a program to its end, or kills it after some seconds."""
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env
    ) as process:
        try:
            out, error = process.communicate(timeout=seconds)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            status = None
    return Ended(status, out.decode(errors="replace"), error.decode(errors="replace"))
