"""`linnaeus` and `python` for the commands of the manual: forks of one process that has imported the programs.

`python -m tests.docs.forks SOCKET` is that process. The script of `shim`, first in the path of the commands under these
names, sends it arguments, directory, environment and the three standard streams, and ends as the program ends. Anything
else, and a program with other settings for JAX than the process has read, is left to the real Python.
"""

from __future__ import annotations

import array
import importlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from tests.forks import LATE, MAIN, TOOLS, become

SESSION = "tests.docs.session"  # the Python blocks of a page
VERBS = "linnaeus_jax.__main__"
#: what can be started: `linnaeus`, the program that trains, every tool, and the Python blocks of a page
PROGRAMS = (VERBS, MAIN, SESSION, *TOOLS)
#: read when JAX is imported, but for those that are set or read later
_SETTINGS = ("JAX_", "TF_")
_LATER = (
    "JAX_NUM_CPU_DEVICES",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)

_SHIM = """#!{python} -IS
import array, json, os, signal, socket, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "linnaeus":
    words = ["-m", {verbs!r}, *words]
ours = len(words) > 1 and words[0] == "-m" and words[1] in {programs}
found = {{k: v for k, v in os.environ.items() if k.startswith({prefixes}) and k not in {later}}}
if not ours or found != {settings}:
    os.execv({python!r}, [{python!r}, *words])
with socket.socket(socket.AF_UNIX) as link:
    link.connect({address!r})
    asked = json.dumps([words[1], words[2:], os.getcwd(), dict(os.environ)]).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    link.sendmsg([len(asked).to_bytes(8, "big")], rights)
    link.sendall(asked)
    answers = link.makefile("rb")
    child = int(answers.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = int(answers.readline() or 255)
os._exit(status)
"""


def shim(folder: Path, address: Path, environment: dict[str, str]) -> None:
    """Writes `linnaeus`, `python` and `python3` into a folder; `environment`: of the process at the address."""
    text = _SHIM.format(
        python=sys.executable,
        programs=PROGRAMS,
        verbs=VERBS,
        prefixes=_SETTINGS,
        later=_LATER,
        settings={k: v for k, v in environment.items() if k.startswith(_SETTINGS) and k not in _LATER},
        address=str(address),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("linnaeus", "python", "python3"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def serve(address: str) -> NoReturn:
    """Imports everything, then forks for each connection; says `ready` on standard output."""
    for module in (*PROGRAMS, *LATE):
        importlib.import_module(module)
    logging.getLogger().handlers.clear()  # of a library that has logged something while it was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for here
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        print("ready", flush=True)
        while True:
            link, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _start(link)
            link.close()


def _start(link: socket.socket) -> NoReturn:
    """Reads what is asked, starts it in a child, says its process id and its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams = array.array("i")
    head, rights, _, _ = link.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(rights[0][2])
    with link.makefile("rb") as reading:
        asked = json.loads(reading.read(int.from_bytes(head, "big")))
    child = os.fork()
    if child == 0:
        link.close()
        _run(*asked, streams=streams)
    link.sendall(f"{child}\n".encode())
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    link.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
    os._exit(0)


def _run(
    program: str, arguments: list[str], directory: str, environment: dict[str, str], *, streams: Iterable[int]
) -> NoReturn:
    """Runs a program as `python -m` would, in the directory, with the environment and the streams of who asked."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    become(program, arguments)


if __name__ == "__main__":
    serve(sys.argv[1])
