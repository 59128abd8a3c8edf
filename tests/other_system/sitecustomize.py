"""Makes Linux lack what Windows lacks, in every Python process that has this directory on its path.

What is refused with errors of Windows: names that it does not allow, files that are moved or removed while this process
has them open, directories that are opened or replaced, `fsync` of what was opened for reading, symbolic links.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import io
import multiprocessing
import multiprocessing.popen_fork
import os
import re
import select  # noqa: F401  # of `NAMES`
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

import platformdirs.unix  # noqa: F401  # of wandb, which takes another file on Windows

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "uvloop")
NAMES = {
    "os": "fork forkpty posix_fadvise preadv pread pwritev pwrite sched_getaffinity sched_setaffinity "
    "sched_getscheduler sched_setscheduler sched_param SCHED_BATCH SCHED_OTHER register_at_fork getuid "
    "geteuid getgid getegid setpgid getpgid killpg setsid nice getloadavg mkfifo "
    "fchmod fchown chown sync set_blocking get_blocking memfd_create O_DIRECTORY O_NOFOLLOW O_CLOEXEC "
    "O_NONBLOCK O_SYNC O_DSYNC O_TMPFILE O_NOATIME",
    "signal": "SIGUSR1 SIGUSR2 SIGHUP SIGALRM SIGKILL SIGSTOP SIGCONT SIGQUIT SIGBUS SIGPIPE alarm setitimer getitimer "
    "ITIMER_REAL pthread_sigmask pthread_kill sigwait sigtimedwait siginterrupt pause SIG_BLOCK SIG_SETMASK",
    "socket": "AF_UNIX SO_REUSEPORT SCM_RIGHTS send_fds recv_fds",
    "select": "poll epoll",
}
#: in a name of Windows: these characters, these words before the first dot, or these ends
_REFUSED_NAME = re.compile(r'[\x00-\x1f<>:"|?*\\]|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)|[. ]$', re.IGNORECASE)
#: modules through which the package opens and moves files
_BETWEEN = ("pathlib", "contextlib", "shutil", "os", "io", __name__)


class _Absent(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _asked_by_the_package() -> bool:
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("linnaeus_jax")


def _check_name(path: Any) -> None:
    if isinstance(path, int):
        return
    for name in os.fsdecode(path).split("/"):
        if name not in (".", "..") and _REFUSED_NAME.search(name):
            raise OSError(errno.EINVAL, "the name is not one of Windows", os.fsdecode(path))


_listdir, _open, _os_open, _readlink, _fsync = os.listdir, io.open, os.open, os.readlink, os.fsync


def _check_closed(path: Any) -> None:
    """Refuses what this process has open or mapped, and directories that hold such files."""
    moved = os.path.realpath(os.fsdecode(path))
    used = set()
    for number in _listdir("/proc/self/fd"):
        try:
            used.add(_readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one that lists them
            continue
    with _open("/proc/self/maps", encoding="utf-8") as maps:
        used |= {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line}
    for file in used:
        if file == moved or file.startswith(moved + "/"):
            raise PermissionError(errno.EACCES, f"{file} is open in this process", os.fsdecode(path))


def _moving(real: Callable[..., Any], *, replaces: bool) -> Callable[..., Any]:
    def moved(source: Any, target: Any, **options: Any) -> Any:
        if _asked_by_the_package() or "orbax" in str(sys._getframe(1).f_globals.get("__name__")):
            _check_name(target)
            for path in (source, target):
                _check_closed(path)
            if os.path.exists(target) and (os.path.isdir(target) or not replaces):
                raise PermissionError(errno.EACCES, "it exists", os.fsdecode(target))
        return real(source, target, **options)

    return moved


def _removing(real: Callable[..., Any]) -> Callable[..., Any]:
    def removed(path: Any, **options: Any) -> Any:
        if _asked_by_the_package() and not options:
            _check_closed(path)
        return real(path, **options)

    return removed


def _opened(
    file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *more: Any, **named: Any
) -> Any:
    if _asked_by_the_package():
        _check_special(file)
        if "b" not in mode and encoding is None:
            raise AssertionError(f"{file} is opened without an encoding")
        if set(mode) & set("wax+"):
            _check_name(file)
    return _open(file, mode, buffering, encoding, *more, **named)


def _opened_by_system(path: Any, flags: int, *more: Any, **named: Any) -> int:
    if _asked_by_the_package():
        _check_special(path)
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a directory", os.fsdecode(path))
        if flags & os.O_CREAT:
            _check_name(path)
    return _os_open(path, flags, *more, **named)


def _check_special(path: Any) -> None:
    if (
        not isinstance(path, int)
        and os.fsdecode(path) != os.devnull
        and os.fsdecode(path).startswith(("/proc", "/dev"))
    ):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))


def _made(path: Any, *more: Any, **named: Any) -> None:
    _check_name(path)
    _mkdir(path, *more, **named)


def _synced(descriptor: int) -> None:
    if _get_flags(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _fsync(descriptor)


def _no_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "a required privilege is not held by the client")


_get_flags, _mkdir, _init, _library = fcntl.fcntl, os.mkdir, subprocess.Popen.__init__, ctypes.CDLL.__init__


def _started(self: Any, *given: Any, **named: Any) -> None:
    if named.get("pass_fds") or named.get("preexec_fn"):
        raise ValueError("pass_fds and preexec_fn are not supported on Windows platforms")
    _init(self, *given, **named)


def _loaded(self: Any, name: Any, *given: Any, **named: Any) -> None:
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    _library(self, name, *given, **named)


def _take_away() -> None:
    fcntl.O_ACCMODE = os.O_ACCMODE  # type: ignore[attr-defined]
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Absent())
    pair = socket.socketpair
    family = socket.AF_UNIX
    socket.socketpair = lambda *_: pair(family)  # type: ignore[assignment]  # Windows has it, of another family
    for module, names in NAMES.items():
        for name in names.split():
            vars(sys.modules[module]).pop(name, None)
    if hasattr(os, "process_cpu_count"):  # of Python 3.13, which asks for what was taken away where it was there
        os.process_cpu_count = os.cpu_count
    tempfile._bin_openflags = os.O_RDWR | os.O_CREAT | os.O_EXCL  # type: ignore[attr-defined]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    multiprocessing.set_start_method("spawn")
    multiprocessing.popen_fork.Popen.kill = lambda self: self._send_signal(9)  # type: ignore[attr-defined,method-assign]
    subprocess.Popen.kill = lambda self: self.send_signal(9)  # type: ignore[method-assign]
    subprocess.Popen.__init__ = _started  # type: ignore[method-assign]
    ctypes.CDLL.__init__ = _loaded  # type: ignore[method-assign]
    builtins.open = io.open = _opened  # type: ignore[assignment]
    os.open, os.mkdir, os.fsync, os.symlink = _opened_by_system, _made, _synced, _no_links  # type: ignore[assignment]
    os.rename, os.replace = _moving(os.rename, replaces=False), _moving(os.replace, replaces=True)
    os.remove = os.unlink = _removing(os.unlink)
    os.rmdir = _removing(os.rmdir)


_take_away()
