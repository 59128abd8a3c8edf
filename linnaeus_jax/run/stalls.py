"""Stalls of a run: what the watchdog finds, in the log, in the sinks and in `STALLS_FILE` for the report."""

from __future__ import annotations

import logging
import math
import time

from linnaeus_jax.files import RunDirectory, json_text
from linnaeus_jax.reporting.alerts import STALLS_FILE
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.watchdog import Watchdog

log = logging.getLogger("linnaeus_jax")


class Stalls:
    """Tells people of stalls.

    Args:
      sinks: that reach a person; they may be opened later than the watch begins.
    """

    def __init__(self, directory: RunDirectory, seconds: float, sinks: Sinks) -> None:
        self._directory, self._sinks = directory, sinks
        self.watchdog = Watchdog(seconds if math.isfinite(seconds) else 0.0, self._tell, self._goes_on)

    def _tell(self, what: str, seconds: float, waiting: str, stacks: str) -> None:
        text = f"nothing has finished for {seconds:.0f} s (debug.stall_seconds); last: {what}. {waiting}"
        log.warning("%s", text)
        log.debug("the threads of this process:\n%s", stacks)
        if self._sinks.metrics_log is not None:  # of the process that writes, once the run directory is its own
            row = {"timestamp": time.time(), "last": what, "seconds": round(seconds, 1), "waiting": waiting}
            with (self._directory.root / STALLS_FILE).open("a", encoding="utf-8", newline="\n") as file:
                file.write(json_text(row) + "\n")
        self._sinks.alert("Stalled", text, logged=True)

    def _goes_on(self, what: str, seconds: float) -> None:
        log.warning("the run goes on: what followed %s took %.0f s", what, seconds)
