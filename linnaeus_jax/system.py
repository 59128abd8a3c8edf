"""What Linux has and other systems lack. What is lacking is done without, which is decided here and nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import math
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

#: flags of `os.open` for reading bytes as they are
READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)
#: likewise, where what is opened may be a pipe, which nobody should wait for
READ_AT_ONCE = READ | getattr(os, "O_NONBLOCK", 0)
CAN_FORK = hasattr(os, "fork")
#: whether a child process may inherit a socket
CAN_PASS_SOCKETS = hasattr(socket, "AF_UNIX")
_STATM = Path("/proc/self/statm")
#: of file systems that cannot do something at all
UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
#: likewise, of directories that are to be synced, or opened for it
_NO_DIRECTORY_SYNC = {*UNSUPPORTED, errno.EINVAL, errno.EBADF, errno.EACCES}
#: of Linux
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

#: of writing: a full disk, a quota, a limit of sizes, storage that fails
WRITE_ERRORS = {errno.ENOSPC, errno.EFBIG, errno.EIO, *([errno.EDQUOT] if hasattr(errno, "EDQUOT") else [])}
#: the number of such an error in messages of libraries: HDF5, TensorStore, safetensors, Polars
_NUMBER_IN_TEXT = re.compile(r"(?:os error|os_error_code=|errno|code:)[ =']*(\d+)", re.IGNORECASE)
#: the file, in those of HDF5 and TensorStore
_FILE_IN_TEXT = re.compile(r"(?:filename = |local file )(['\"])(.+?)\1")


def write_error(error: BaseException) -> OSError | None:
    """What the system said where writing failed, as exceptions of any library tell it; None for every other error.

    Returns:
      An OSError whose `filename` is the file that was written, if the exception, or a file that was open in the calls
      that it came through, tells it.
    """
    name = number = None
    if isinstance(error, OSError):
        number = error.errno
        # of a copy: from where, to where
        name = error.filename if number == errno.EIO else error.filename2 or error.filename
    if number is None and (told := _NUMBER_IN_TEXT.search(str(error))):
        number = int(told[1])
    if number not in WRITE_ERRORS:
        return None
    if name is None:
        told = _FILE_IN_TEXT.search(str(error))
        name = told[2] if told else _file_written(error)
    return OSError(number, os.strerror(number), name)


def _file_written(error: BaseException) -> str | None:
    """The innermost file that was open for writing in the calls that an error came through, or of their objects."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        values = traceback.tb_frame.f_locals
        for value in (*values.values(), *getattr(values.get("self"), "__dict__", {}).values()):
            if isinstance(value, io.IOBase):
                with contextlib.suppress(ValueError, AttributeError):  # detached, or in memory
                    name, mode = value.name, str(value.mode)  # type: ignore[attr-defined]
                    if set(mode) & set("wax+") and isinstance(name, str | os.PathLike):
                        found = os.fspath(name)
        traceback = traceback.tb_next
    return found


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of writing within the block whose file is not known are those of `path`."""
    try:
        yield
    except Exception as error:
        if (found := write_error(error)) is None:
            raise
        raise OSError(found.errno, found.strerror, found.filename or str(path)) from error


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of these names that the system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits for the end of this block; processes that are started in it do not get it, as this one ends them.

    In the main thread, since Python answers signals there, whichever thread they reach; elsewhere it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    answer = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, answer)
    if arrived:
        signal.raise_signal(signal.SIGINT)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def c_library() -> ctypes.CDLL | None:
    """The library of C that this process has loaded; its functions differ from system to system."""
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # the latter on Windows
        return None


def lock(descriptor: int) -> bool:
    """Locks an open file until it is closed, or its process has ended; False where another process has the lock.

    Raises:
      OSError: the lock cannot be asked for; of `UNSUPPORTED` where there are none.
    """
    return filelock.lock_descriptor(descriptor, blocking=False)


def sync(path: Path) -> None:
    """Returns when a file's content, or the names in a directory, are on the disk and outlast a power failure.

    Raises:
      OSError: they cannot be written. Systems that do not sync directories are left to their own rules.
    """
    is_directory = path.is_dir()
    try:
        _sync(path, READ)
    except OSError as error:
        if is_directory and error.errno in _NO_DIRECTORY_SYNC:
            return
        if error.errno != errno.EBADF:
            raise
        _sync(path, os.O_RDWR)  # Windows syncs only what may be written


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(first: Path, second: Path) -> bool:
    """Lets two names change places at once; False where system or file system cannot."""
    try:
        rename = c_library().renameat2  # type: ignore[union-attr]
    except AttributeError:
        return False
    return rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0


class PositionedReader:
    """Reads an open file at any place, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()  # of the position, where the system reads at no other

    def read_into(self, out: memoryview, start: int) -> int:
        """Bytes read from byte `start` on, fewer than asked for at the end of the file, or if they are very many."""
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, (out,), start)
        with self._lock:
            os.lseek(self._descriptor, start, os.SEEK_SET)
            data = os.read(self._descriptor, out.nbytes)
        out.cast("B")[: len(data)] = data
        return len(data)


def memory_limit() -> int | None:
    """Bytes of address space that this process may have (`ulimit -v`); None: as many as there are."""
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if resource is None or limit == resource.RLIM_INFINITY else limit


def can_limit_memory() -> bool:
    """Whether `limit_memory` has an effect."""
    return resource is not None and _STATM.exists()


def limit_memory(more: int) -> None:
    """Limits the address space of this process to what it has now and `more` bytes; it leaves no core dump."""
    if resource is None:
        return
    _lower(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(FileNotFoundError):
        used = int(_STATM.read_text("ascii").split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, used + more)


def _lower(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def open_file_limits() -> tuple[float, float]:
    """How many files this process may open now, and may let itself open; infinite where nothing is known of a limit."""
    if resource is None:
        return math.inf, math.inf
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return tuple(math.inf if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))  # type: ignore[return-value]


def allow_open_files(count: float) -> None:
    """Raises the limit of open files to `count`, at most the second of `open_file_limits`."""
    if resource is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if math.isinf(count) else int(count), hard))


#: names that Windows keeps for devices, with any suffix
_DEVICE = re.compile(r"(?i)^(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³])(?=\.|$)")
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]|[. ]+$')


def file_name(text: str) -> str:
    """A name that every system allows for a file or directory, of any text: what is refused becomes "_".

    Different texts may get the same name.
    """
    return _DEVICE.sub(r"\1_", _NOT_IN_NAMES.sub("_", text)) or "_"
