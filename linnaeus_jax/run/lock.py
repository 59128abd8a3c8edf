"""One run at a time in a run directory."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import IO

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import locked

LOCK_FILE = "run.lock"


class RunLock:
    """A lock on a run directory, as of `files.locked`."""

    def __init__(self, root: Path) -> None:
        self.path = root / LOCK_FILE
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Takes the lock if the directory exists and it is not held by this object already.

        Raises:
          UserError: another process has it; the message says which.
          OSError: the directory cannot be written.
        """
        if self._file is not None or not self.path.parent.is_dir():
            return
        file = self.path.open("a+", encoding="utf-8")
        try:
            held = locked(file)
        except OSError:
            file.close()
            raise
        if held is None:
            file.close()
            return
        if not held:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise UserError(
                f"{self.path.parent} is in use by {holder or 'another process'}; let that run end (or end it), or "
                "choose another --workdir"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Gives the lock back; the file stays, since removing it would let two others hold one each."""
        if self._file is not None:
            self._file.close()
            self._file = None
