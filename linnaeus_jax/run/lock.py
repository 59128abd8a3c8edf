"""One run at a time in a run directory."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from linnaeus_jax.config.errors import UserError

log = logging.getLogger("linnaeus_jax")

LOCK_FILE = "run.lock"
#: of file systems that know no locks
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class RunLock:
    """A lock on a run directory, which the system takes away from a process that ended, however it did.

    On NFS the server keeps it (Linux translates `flock` to a lock on the file's bytes there).
    """

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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            if error.errno in _UNSUPPORTED:
                log.warning("%s: this file system has no locks, so nothing keeps two runs apart here", self.path.parent)
                return
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise UserError(
                f"{self.path.parent} is in use by {holder or 'another process'}; let that run end (or end it), or "
                "choose another --workdir"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Gives the lock back; the file stays, since removing it would let two others hold one each."""
        if self._file is not None:
            self._file.close()
            self._file = None
