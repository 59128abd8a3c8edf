"""Where the files of a run lie, reading them, and writing them so that a crash never leaves half of one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.mistakes import InputError

#: `extra` of a log record that goes into the files of a run, and not to the console
FILES_ONLY = {"files_only": True}


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yields where to write what then replaces `path`, whole and at once; it is removed where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # of a disk that fails; the error that is raised says it
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(unfinished)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def replaced_directory(path: Path) -> Iterator[Path]:
    """Yields a new directory that then replaces `path`, whole and at once; it is removed where that fails."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        if path.exists():
            shutil.rmtree(path)
        os.replace(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replaces `path` so that a reader or a crash sees the old or the new text, never a part; obeys the umask.

    Args:
      text: the whole of it, or its parts.
    """
    with replaced_file(path) as unfinished, unfinished.open("x", encoding="utf-8") as file:
        file.writelines((text,) if isinstance(text, str) else text)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


class DamagedFileError(InputError):
    """A file is not what it should be; the message names it and what to do."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
      DamagedFileError: it holds something else.
      OSError: it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is no JSON ({error}); restore it from a copy") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} holds no JSON object but {type(value).__name__}; restore it from a copy")
    return value


#: SHA-256 of the files beside it, by their paths
DIGESTS = "digests.json"


def sha256_of(path: Path, size: int | None = None) -> str:
    """Of a file, in hexadecimal; `size`: of its first bytes alone."""
    with path.open("rb") as file:
        if size is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        while size > 0 and (part := file.read(min(size, 1 << 20))):
            digest.update(part)
            size -= len(part)
        return digest.hexdigest()


def write_digests(directory: Path, names: Iterable[str]) -> None:
    """Writes `DIGESTS` of some files, and of all files in some directories, below a directory."""
    files = [file for name in names for file in (directory / name, *(directory / name).rglob("*")) if file.is_file()]
    digests = {file.relative_to(directory).as_posix(): sha256_of(file) for file in sorted(files)}
    write_json(directory / DIGESTS, digests)


def check_digests(directory: Path, name: str) -> None:
    """Checks one of the names of `write_digests`; nothing where there is no `DIGESTS`, as in earlier versions.

    Raises:
      DamagedFileError: a file is missing or not what was written.
      OSError: a file cannot be read.
    """
    if not (directory / DIGESTS).is_file():
        return
    digests = read_json(directory / DIGESTS)
    known = [file for file in digests if file.partition("/")[0] == name]
    if not known:
        raise DamagedFileError(f"{directory / DIGESTS} is damaged: it has nothing of {name}")
    for file in known:
        if not (directory / file).is_file():
            raise DamagedFileError(f"{directory / file} is missing")
        if sha256_of(directory / file) != digests[file]:
            raise DamagedFileError(f"{directory / file} is damaged: its SHA-256 is not the one written with it")


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of what it holds, for `read_sealed`."""
    return {**value, "sha256": _sha256_of_json(value)}


def read_sealed(path: Path) -> dict[str, Any]:
    """What was sealed into a file; an object without a digest, as earlier versions wrote it, is returned as it is.

    Raises:
      DamagedFileError: the file holds something else.
      OSError: it cannot be read.
    """
    value = read_json(path)
    if value.pop("sha256", None) not in (None, _sha256_of_json(value)):
        raise DamagedFileError(f"{path} is damaged: its SHA-256 is not that of its content")
    return value


def _sha256_of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_UNFINISHED = re.compile(r".+\.[0-9a-f]{32}\.tmp")
#: of a run directory: damaged checkpoints, each with `reason.json`
UNREADABLE_CHECKPOINTS = "unreadable_checkpoints"
#: of a run directory, below `logs`: {updates made: what was found wrong with the metrics log at a restart there}
DAMAGED_LOG = "metrics_log.damage.json"


class RunDirectory:
    """`root` with its documented subdirectories; nothing is created before `create()`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.logs = root / "logs"
        self.assets = root / "assets"
        self.metadata = root / "metadata"
        self.config_json = root / "config.json"
        self.progress_json = root / "progress.json"
        self.run_id_file = root / "run_id.txt"
        self.metrics_log = self.logs / "metrics_log.jsonl"

    @classmethod
    def of(cls, config: ConfigDict, workdir: str | Path | None) -> RunDirectory:
        """`workdir`, or `<env.output.base_dir>/<project>/<group>/<name>`."""
        names = config.experiment
        default = Path(config.env.output.base_dir) / names.project / names.group / names.name
        return cls(Path(workdir) if workdir else default)

    def create(self) -> None:
        """Makes the directories.

        Raises:
          OSError: naming the directory that could not be made.
        """
        for directory in (self.checkpoints, self.logs, self.assets, self.metadata):
            directory.mkdir(parents=True, exist_ok=True)

    def remove_unfinished(self) -> None:
        """Removes what a kill inside of `replaced_file` or `replaced_directory` left; no other process may be writing
        here."""
        for path in list(self.root.rglob("*.tmp")):
            if _UNFINISHED.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self, *paths: Path) -> Iterator[None]:
        """Keeps the digests of files of this directory that the block writes, for `check`; of one that grows later, of
        what it holds now. A kill within the block leaves them without."""
        names = [path.relative_to(self.root).as_posix() for path in paths]
        self._write_digests(dict.fromkeys(names))
        yield
        written = {name: path for name, path in zip(names, paths, strict=True) if path.is_file()}
        sizes = {name: path.stat().st_size for name, path in written.items()}
        self._write_digests({name: f"{sha256_of(path, sizes[name])}:{sizes[name]}" for name, path in written.items()})

    def check(self, path: Path) -> None:
        """Checks a file of this directory; nothing where no digest of it was kept, as in earlier versions.

        Raises:
          DamagedFileError: it is missing, or not what was written.
          OSError: it cannot be read.
        """
        if found := self.damage(path):
            raise DamagedFileError(
                f"{path} {found}; restore it from a copy, or remove {self.root / DIGESTS} to use what there is"
            )

    def damage(self, path: Path) -> str:
        """What `check` finds wrong with a file; "" for nothing.

        Raises:
          DamagedFileError: the digests themselves are no digests.
        """
        known = self._digests().get(path.relative_to(self.root).as_posix())
        if known is None:
            return ""
        if not path.is_file():
            return "is missing"
        digest, _, size = str(known).partition(":")
        if path.stat().st_size < int(size):
            return f"is damaged: it has {path.stat().st_size} of {size} bytes"
        if sha256_of(path, int(size)) != digest:
            return "is damaged or was changed: its SHA-256 is not the one kept"
        return ""

    def read_json(self, path: Path) -> dict[str, Any]:
        """As `read_json`, of a file of this directory that is checked."""
        self.check(path)
        return read_json(path)

    def _digests(self) -> dict[str, Any]:
        """Path below the root -> SHA-256 and size of a file."""
        path = self.root / DIGESTS
        if not path.is_file():
            return {}
        digests = read_json(path)
        if not all(re.fullmatch("[0-9a-f]{64}:[0-9]{1,18}", str(digest)) for digest in digests.values()):
            raise DamagedFileError(f"{path} is damaged; remove it, and files of this run are used unchecked")
        return digests

    def _write_digests(self, changes: Mapping[str, str | None]) -> None:
        """`changes`: None for those to forget."""
        try:
            known = self._digests()
        except DamagedFileError:  # of files that are all written again, or unchecked from now on
            known = {}
        new = {name: digest for name, digest in sorted({**known, **changes}.items()) if digest is not None}
        if new != known or not (self.root / DIGESTS).is_file():
            write_json(self.root / DIGESTS, new)

    def keep_run_id(self, run_id: str, saved: str = "") -> str:
        """The identity of the run in external trackers, from now on kept here: `saved`, that of its checkpoints, else
        that of an earlier start, else `run_id`."""
        path = self.run_id_file
        kept = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
        wanted = saved or kept or run_id
        if wanted != kept:
            write_atomically(path, wanted + "\n")
        return wanted

    def resolve(self, path: str) -> Path:
        """A directory from the config: `{output_dir}` is the run directory, relative paths lie below it."""
        return self.root / path.replace("{output_dir}", str(self.root.resolve()))
