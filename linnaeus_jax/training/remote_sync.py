"""Copies the run directory to a remote with rclone, in the background and never in the way."""

from __future__ import annotations

import logging
import subprocess
import threading
from pathlib import Path

log = logging.getLogger("linnaeus_jax")

#: what is still being written
EXCLUDED = ("*.orbax-checkpoint-tmp*/**", "*.tmp")


class RemoteSync:
    """One worker thread that copies when asked; requests during a copy are served by one more copy after it.

    Args:
      source: the run directory.
      remote: any rclone destination, a local directory included.
      executable: the rclone program.
      timeout: seconds that the final copy may take.
    """

    def __init__(self, source: Path, remote: str, executable: str, timeout: float) -> None:
        self.source, self.remote, self.executable, self.timeout = source, remote, executable, timeout
        self.failures = 0
        self._wanted = threading.Event()
        self._stop = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._work, name="remote-sync", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Asks for a copy of what is there now; returns at once."""
        self._wanted.set()

    def close(self) -> None:
        """A last copy of everything, at most `timeout` seconds long."""
        self._stop = True
        self._wanted.set()
        self._thread.join(self.timeout)
        if self._thread.is_alive():
            log.warning("the last copy to %s took longer than %g s and was ended", self.remote, self.timeout)
            if self._process is not None:
                self._process.kill()
            self._thread.join(10)

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            last = self._stop
            self._copy()
            if last:
                return

    def _copy(self) -> None:
        command = [self.executable, "copy", str(self.source), self.remote]
        command += [part for pattern in EXCLUDED for part in ("--exclude", pattern)]
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
            )
            _, errors = self._process.communicate()
            code = self._process.returncode
        except OSError as error:
            code, errors = -1, str(error)
        if code:
            self.failures += 1
            reason = (errors or "").strip().splitlines()[-1:] or [f"exit status {code}"]
            log.warning("copying the run directory to %s failed (%s); training goes on", self.remote, reason[0])


def bucket_errors(bucket: object) -> list[str]:
    """What is wrong with `env.output.bucket`."""
    if bucket.enabled and not bucket.remote:  # type: ignore[attr-defined]
        return ["env.output.bucket.enabled is True but env.output.bucket.remote is empty; name an rclone destination"]
    return []
