"""Where the files of a run lie, reading them, and writing them so that a crash never leaves half of one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from linnaeus_jax import system
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.system import sync, write_error

#: `extra` of a log record that goes into the files of a run, and not to the console
FILES_ONLY = {"files_only": True}
log = logging.getLogger("linnaeus_jax")

#: bytes that are read at once to look at a checksum
_PIECE = 1 << 24


def sync_tree(directory: Path) -> None:
    """`sync` of every file and directory below a directory, and of itself last; links are not followed.

    Others may write there meanwhile: what is gone when its turn comes needs none.
    """
    for root, _, names in os.walk(directory, topdown=False):
        for path in (*(Path(root, name) for name in names), Path(root)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                continue
            with contextlib.suppress(FileNotFoundError):
                sync(path)


def free_directory(path: str | Path) -> Path:
    """A directory to suggest: the path itself, or with `_2`, `_3`, ... behind it where there is something already."""
    path, number = Path(path), 1
    while os.path.lexists(free := path if number == 1 else path.with_name(f"{path.name}_{number}")):
        number += 1
    return free


def make_directory(path: Path) -> None:
    """Makes a directory with its parents, where they are missing, so that it outlasts a power failure."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for directory in reversed(missing):
        sync(directory.parent)


def locked(file: IO[Any]) -> bool | None:
    """Locks an open file until it is closed, or its process has ended, however it did.

    On NFS the server keeps the lock (Linux translates `flock` to a lock on the file's bytes there).

    Returns:
      True; False where another process has the lock; None, with a warning, where there are no locks.

    Raises:
      OSError: the lock cannot be asked for.
    """
    try:
        return system.lock(file.fileno())
    except OSError as error:
        if error.errno not in system.UNSUPPORTED:
            raise
        where = Path(str(file.name)).parent
        log.warning("%s: this file system has no locks, so nothing keeps two processes apart here", where)
        return None


def locked_elsewhere(path: Path) -> bool:
    """Whether there is such a file and another process has locked it, see `locked`."""
    try:
        with path.open("ab") if path.is_file() else contextlib.nullcontext() as file:
            return file is not None and locked(file) is False
    except FileNotFoundError:  # removed meanwhile
        return False


def _named(error: BaseException, unfinished: Path, path: Path) -> OSError | None:
    """An error of the system with the name that users know instead of the unfinished one's; None of other errors."""
    known = write_error(error) or error
    if not isinstance(known, OSError) or known.errno is None:
        return None
    name = str(unfinished) if known.filename is None else os.fspath(known.filename)
    if not isinstance(name, str) or not name.startswith(str(unfinished)):
        return None if known is error else known
    return OSError(known.errno, known.strerror, f"{path}{name.removeprefix(str(unfinished))}")


@contextlib.contextmanager
def replaced_file(path: Path, *, large: bool = False) -> Iterator[Path]:
    """Yields where to write what then replaces `path`, whole and at once; it is removed where that fails.

    After the block a power failure changes nothing any more, and one within it leaves what was there before.

    Args:
      large: what a kill leaves is `<name>.partial`, which the next try writes over; one process may write at a time.
    """
    make_directory(path.parent)
    unfinished = path.with_name(f"{path.name}.partial" if large else f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield unfinished
        sync(unfinished)
        os.replace(unfinished, path)
        sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # of a disk that fails; the error that is raised says it
            unfinished.unlink(missing_ok=True)
        if (named := _named(error, unfinished, path)) is not None:
            raise named from error
        raise


@contextlib.contextmanager
def replaced_directory(path: Path) -> Iterator[Path]:
    """Yields a new directory that then replaces `path`, whole and at once; it is removed where that fails.

    What was there before is removed last. Where the system cannot exchange two names it is first renamed to
    `<name>.<32 digits>.old`, and a power failure may leave it there.
    """
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    make_directory(path.parent)
    number = uuid.uuid4().hex
    unfinished, old = (path.with_name(f"{path.name}.{number}.{suffix}") for suffix in ("tmp", "old"))
    try:
        unfinished.mkdir()
        yield unfinished
        sync_tree(unfinished)
        if not path.exists():
            os.replace(unfinished, path)
        elif system.exchange(unfinished, path):
            old = unfinished
        else:
            os.replace(path, old)
            try:
                os.replace(unfinished, path)
            except BaseException:
                os.replace(old, path)
                raise
        sync(path.parent)
    except BaseException as error:
        if old != unfinished:
            shutil.rmtree(unfinished, ignore_errors=True)
        if (named := _named(error, unfinished, path)) is not None:
            raise named from error
        raise
    if old.exists():
        shutil.rmtree(old)


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replaces `path` so that a reader or a crash sees the old or the new text, never a part; obeys the umask.

    Args:
      text: the whole of it, or its parts.
    """
    with replaced_file(path) as unfinished, unfinished.open("x", encoding="utf-8", newline="\n") as file:
        file.writelines((text,) if isinstance(text, str) else text)


def set_lines_aside(path: Path, aside: Path, chosen: Callable[[str], bool]) -> int:
    """Moves the chosen lines of a text file to the end of `aside`, line by line; returns how many."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        moves = [chosen(line) for line in lines]
    if any(moves):
        with (
            path.open(encoding="utf-8", errors="replace") as lines,
            aside.open("a", encoding="utf-8", newline="\n") as to,
        ):
            to.writelines(line.rstrip("\n") + "\n" for line in itertools.compress(lines, moves))
        sync(aside)
        with path.open(encoding="utf-8", errors="replace") as lines:
            write_atomically(path, (line.rstrip("\n") + "\n" for line, moved in zip(lines, moves) if not moved))
    return sum(moves)


def json_text(value: Any, **options: Any) -> str:
    """`value` as strict JSON: numbers that are not finite are null.

    Args:
      options: of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        plain = json.dumps(value, default=options.get("default"))
        return json.dumps(json.loads(plain, parse_constant=lambda _: None), allow_nan=False, **options)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON, atomically."""
    write_atomically(path, json_text(value, indent=1) + "\n")


def journal_entries(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """What a journal says: one line of JSON for each piece of work, written after the data that it vouches for.

    A process that is ended, or a power failure, may leave a line cut short or damaged; nothing after it counts.

    Yields:
      Byte at which the line ends, and what it holds, of each line up to the first that is not whole.
    """
    end = 0
    for line in file:
        end += len(line)
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            return
        if entry is None:
            return
        yield end, entry


def crc32_of(file: IO[bytes], size: int) -> int | None:
    """CRC-32 of the next bytes of a file, in pieces; None where there are fewer."""
    crc = 0
    while size:
        data = file.read(min(size, _PIECE))
        if not data:
            return None
        crc, size = zlib.crc32(data, crc), size - len(data)
    return crc


class DamagedFileError(InputError):
    """A file is not what it should be; the message names it and what to do."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
      DamagedFileError: it holds something else.
      OSError: it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is no JSON ({error}); restore it from a copy") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} holds no JSON object but {type(value).__name__}; restore it from a copy")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a key stands in it twice, since readers differ in which one counts."""
    value = dict(pairs)
    if len(value) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {key[:100]!r} stands in it twice")
    return value


#: digests of the files beside it, by their paths
DIGESTS = "digests.json"
#: in `DIGESTS` of a checkpoint, and in a boundary file: the number of updates that it was written after
STEP = "step"
_DIGEST = re.compile("[0-9a-f]{64}(:[0-9]{1,18})?")


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


def digest_of(path: Path) -> str:
    """What is kept of a file to tell damage: `SHA-256:bytes`, of what it holds now."""
    size = path.stat().st_size
    return f"{sha256_of(path, size)}:{size}"


def damage_of(path: Path, digest: str, *, may_grow: bool = False) -> str:
    """What is wrong with a file, by what `digest_of` said of it, or by its SHA-256 alone; "" for nothing.

    Args:
      may_grow: whether it may have become longer since.

    Raises:
      OSError: it cannot be read.
    """
    if not path.is_file():
        return "is missing"
    if not _DIGEST.fullmatch(digest):
        return f"cannot be checked: {digest[:80]!r} is no digest"
    sha256, _, kept = digest.partition(":")
    size, found = int(kept) if kept else None, path.stat().st_size
    if size is not None and (found < size or (found > size and not may_grow)):
        return f"is damaged: it has {found} of {size} bytes"
    if sha256_of(path, size) != sha256:
        return "is damaged or was changed: its SHA-256 is not the one kept"
    return ""


def write_digests(directory: Path, names: Iterable[str], step: int | None = None) -> None:
    """Writes `DIGESTS` of some files, and of all files in some directories, below a directory.

    Args:
      step: of a checkpoint, kept with them.
    """
    files = [file for name in names for file in (directory / name, *(directory / name).rglob("*")) if file.is_file()]
    digests = {file.relative_to(directory).as_posix(): digest_of(file) for file in sorted(files)}
    write_json(directory / DIGESTS, digests if step is None else {STEP: step, **digests})


def check_digests(directory: Path, name: str, step: int | None = None) -> bool:
    """Checks one of the names of `write_digests`; nothing where there is no `DIGESTS`, as in earlier versions.

    Args:
      step: that a checkpoint is named after.

    Returns:
      Whether the step is kept there; earlier versions did not.

    Raises:
      DamagedFileError: a file is missing or not what was written, or the checkpoint is of another step.
      OSError: a file cannot be read.
    """
    if not (directory / DIGESTS).is_file():
        return False
    digests = read_json(directory / DIGESTS)
    kept = digests.pop(STEP, None)
    check_step(directory, step, kept)
    known = [file for file in digests if file.partition("/")[0] == name]
    if not known:
        raise DamagedFileError(f"{directory / DIGESTS} is damaged: it has nothing of {name}")
    for file in known:
        if found := damage_of(directory / file, str(digests[file])):
            raise DamagedFileError(f"{directory / file} {found}")
    return kept is not None


def check_step(path: Path, named: int | None, kept: object) -> None:
    """Raises DamagedFileError where what is named after one step was kept of another; None for one not known."""
    if None not in (named, kept) and named != kept:
        raise DamagedFileError(
            f"{path} is named after update {named}, but was written after update {kept}: it was renamed or copied; "
            "give it its name back, or remove it"
        )


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of what it holds, for `read_sealed`."""
    value = json.loads(json_text(value))
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
        self.stored = root / "stored"
        self.out_of_fold = root / "checkpoints" / "out_of_fold.npz"  # see `run/frozen_trunk.py`
        self.assets = root / "assets"
        self.metadata = root / "metadata"
        self.config_json = root / "config.json"
        self.progress_json = root / "progress.json"
        self.run_id_file = root / "run_id.txt"
        self.metrics_log = self.logs / "metrics_log.jsonl"

    def create(self) -> None:
        """Makes the directories.

        Raises:
          OSError: naming the directory that could not be made.
        """
        for directory in (self.checkpoints, self.logs, self.assets, self.metadata):
            make_directory(directory)

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
        for path in dict.fromkeys((*written.values(), *(path.parent for path in written.values()))):
            sync(path)  # a digest must not outlast a power failure that its file does not
        self._write_digests({name: digest_of(path) for name, path in written.items()})

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
        return "" if known is None else damage_of(path, known, may_grow=True)

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
        if not all(_DIGEST.fullmatch(str(digest)) for digest in digests.values()):
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
