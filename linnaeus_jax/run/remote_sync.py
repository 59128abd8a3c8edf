"""Copies the run directory to a remote with rclone, in the background and never in the way."""

from __future__ import annotations

import logging
import subprocess
import threading
from pathlib import Path

from linnaeus_jax.config.errors import TrainingError
from linnaeus_jax.config.typed import Config
from linnaeus_jax.files import RunDirectory

log = logging.getLogger("linnaeus_jax")

#: what is still being written
EXCLUDED = ("--exclude", "*.orbax-checkpoint-tmp*/**", "--exclude", "*.tmp", "--exclude", "/stored/**")
#: rclone's exit status for a missing directory or file
NOT_FOUND = (3, 4)
#: seconds that each question about the identity of a remote may take
QUESTION_SECONDS = 60.0


class RemoteSyncError(TrainingError):
    """The remote directory belongs to something else; the message says what to do."""


class RemoteSync:
    """One worker thread that copies when asked; requests during a copy are served by one more copy after it.

    Everything is copied, and only below `checkpoints` is anything deleted: there the remote gets to hold what the run
    directory holds. rclone deletes only after all transfers succeeded.

    Args:
      source: the run directory.
      remote: where it goes: any rclone destination, a local directory included. No other run may use it.
      identity: name of the file in the run directory that tells runs apart.
      executable: the rclone program.
      timeout: seconds that the final copy may take.
    """

    def __init__(self, source: Path, remote: str, identity: str, executable: str, timeout: float) -> None:
        self.source, self.remote, self.identity = source, remote, identity
        self.executable, self.timeout = executable, timeout
        self.claimed = self._refused = False
        self._wanted = threading.Event()
        self._stop = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._work, name="remote-sync", daemon=True)
        self._thread.start()

    @classmethod
    def from_config(cls, config: Config, directory: RunDirectory) -> RemoteSync | None:
        """The copy to `env.output.bucket`; None where it is off."""
        bucket, names = config.env.output.bucket, config.experiment
        if not bucket.enabled:
            return None
        remote = remote_directory(bucket.remote, names.project, names.group, names.name)
        return cls(directory.root, remote, directory.run_id_file.name, bucket.executable, bucket.timeout_seconds)

    def claim(self) -> None:
        """Makes sure that the remote directory is this run's, and marks it so; nothing is copied before.

        Raises:
          RemoteSyncError: it holds another run, or files of unknown origin. A remote that cannot be reached is only
            warned about and asked again before each copy.
        """
        run_id = (self.source / self.identity).read_text(encoding="utf-8").strip()
        code, remote_id, reason = self._run("cat", f"{self.remote}/{self.identity}", seconds=QUESTION_SECONDS)
        if code in NOT_FOUND or (code == 0 and not remote_id.strip()):  # stores of objects have no missing directories
            code, names, reason = self._run("lsf", self.remote, seconds=QUESTION_SECONDS)
            if code == 0 and names.strip():
                self._refuse(f"holds {names.split()[0]} and more but no {self.identity}, so it may be anything")
            if code == 0 or code in NOT_FOUND:
                mark = (str(self.source / self.identity), f"{self.remote}/{self.identity}")
                code, _, reason = self._run("copyto", *mark, seconds=QUESTION_SECONDS)
        elif code == 0 and remote_id.strip() != run_id:
            self._refuse(f"holds run {remote_id.strip()} and this is run {run_id}")
        self.claimed = code == 0
        if code:
            self._failed(reason)

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
            if not self._refused:
                self._copy()
            if last:
                return

    def _copy(self) -> None:
        if not self.claimed:
            try:
                self.claim()
            except RemoteSyncError as error:
                log.error("%s", error)
        if not self.claimed:
            return
        # logs grow while they are read; what was there at the start is copied
        arguments = [str(self.source), self.remote, "--exclude", "/checkpoints/**", "--local-no-check-updated"]
        transfers = [("copy", *arguments, *EXCLUDED)]
        checkpoints = self.source / "checkpoints"
        # with a complete one here the remote cannot lose its last
        if any(".orbax-checkpoint-tmp" not in path.name for path in checkpoints.glob("ckpt_step_*")):
            arguments = [str(checkpoints), f"{self.remote}/checkpoints", "--delete-after"]
            transfers.append(("sync", *arguments, *EXCLUDED))
        for transfer in transfers:
            code, _, reason = self._run(*transfer)
            if code:
                self._failed(reason)

    def _run(self, *arguments: str, seconds: float | None = None) -> tuple[int, str, str]:
        """Exit status, output and the last line of the errors of one rclone command."""
        try:
            self._process = subprocess.Popen(
                [self.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            return -1, "", str(error)
        with self._process as process:
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                return -1, "", f"no answer in {seconds:g} s"
        lines = errors.strip().splitlines()
        return process.returncode, output, lines[-1] if lines else f"exit status {process.returncode}"

    def _failed(self, reason: str) -> None:
        log.warning("copying the run directory to %s failed (%s); training goes on", self.remote, reason)

    def _refuse(self, reason: str) -> None:
        self._refused = True
        raise RemoteSyncError(
            f"{self.remote} {reason}; choose another experiment.name or env.output.bucket.remote, or, to go on with "
            f"what is there, start with a copy of it: {self.executable} copy {self.remote} NEW_WORKDIR"
        )


def remote_directory(remote: str, *names: str) -> str:
    """`<remote>/<name>/<name>...` in rclone's notation, where a bare remote ends with a colon."""
    start = remote if remote.endswith((":", "/")) else f"{remote}/"
    return start + "/".join(names)
