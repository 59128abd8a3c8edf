"""Processes that decode untrusted images, each ended and replaced where a picture takes too long.

`data/picture_costs` refuses what is known to be costly; this bounds what nobody has thought of. A thread that decodes
cannot be ended, so a picture that hangs its decoder would keep it for good. Each process has a socket of its own, so
that one which dies, of whatever cause, takes nothing from the others. Libraries of process pools with a time limit for
each task (pebble, billiard) share one pipe among all processes: with pebble, the death of an idle one ends the pool.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import linnaeus_jax
from linnaeus_jax import system
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.server import decoder_process
from linnaeus_jax.inference.server.decoder_process import DAMAGED, KEY, LENGTH, PIXELS, TOO_COSTLY, UNKNOWN
from linnaeus_jax.reading.box_cuts import Box, Cut

#: seconds that a picture may take; half of what a request may, where that is less
SECONDS = 10.0
#: seconds within which a new process must be ready, and within which one that has nothing to do must answer
STARTING, ANSWERING = 60.0, 2.0
_STATUS = {TOO_COSTLY: 413, UNKNOWN: 415, DAMAGED: 422}


class Undecoded(Exception):
    """A picture without pixels; the message is the reason.

    Attributes:
      status: that HTTP has for it: 413 too large or too costly, 415 of no known kind, 422 damaged, 503 no decoder.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Read(NamedTuple):
    """What is seen of a picture.

    Attributes:
      pixels: uint8 [H, W, 3]; None: the box cannot be cut out.
      why: not; "" where it can.
      notes: what must be said of it.
    """

    pixels: NDArray[np.uint8] | None
    why: str
    notes: tuple[str, ...]


class _Process:
    """One process, used by one task at a time."""

    def __init__(self, settings: str) -> None:
        package = str(Path(linnaeus_jax.__file__).parents[1])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path}
        self._key = secrets.token_bytes(32)
        #: listens until the process has connected, where it cannot inherit a socket
        self._listener: socket.socket | None = None
        if system.CAN_PASS_SOCKETS:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._start(str(theirs.fileno()), settings, pass_fds=(theirs.fileno(),))
        else:
            self._socket = self._listener = socket.create_server(("127.0.0.1", 0))
            self._environment[KEY] = self._key.hex()
            self._start(f"127.0.0.1:{self._listener.getsockname()[1]}", settings)
        self._socket.setblocking(False)
        self._ready, self.begun = False, time.monotonic()

    def _start(self, place: str, settings: str, pass_fds: tuple[int, ...] = ()) -> None:
        command = [sys.executable, "-m", decoder_process.__name__, place, settings]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=pass_fds, env=self._environment)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def starting(self) -> bool:
        """Whether it is not ready yet, and need not be."""
        return not self._ready and time.monotonic() - self.begun < STARTING

    async def ready(self) -> None:
        """Waits until it is. Raises EOFError or OSError where it has ended."""
        if not self._ready:
            if self._listener is not None:
                await self._accept(self._listener)
            await self._receive()
            self._ready = True

    async def _accept(self, listener: socket.socket) -> None:
        """Waits until the process has connected, and not another one."""
        while self._listener is not None:
            self._socket, _ = await asyncio.get_running_loop().sock_accept(listener)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hmac.compare_digest(await self._exactly(len(self._key)), self._key):
                self._listener = None
                listener.close()
            else:
                self._socket.close()

    async def ask(self, *messages: bytes) -> tuple[bytes, bytes]:
        """Kind and content of its answer to two messages. Raises EOFError or OSError where it has ended."""
        loop = asyncio.get_running_loop()
        for message in messages:
            await loop.sock_sendall(self._socket, LENGTH.pack(len(message)))
            await loop.sock_sendall(self._socket, message)
        answer = await self._receive()
        return answer[:1], answer[1:]

    async def _receive(self) -> bytes:
        (size,) = LENGTH.unpack(await self._exactly(LENGTH.size))
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        loop, got = asyncio.get_running_loop(), bytearray(size)
        view = memoryview(got)
        while view:
            count = await loop.sock_recv_into(self._socket, view)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(got)

    def kill(self) -> None:
        self._process.kill()  # not SIGTERM, which waits for the interpreter, and the decoder does not return to it
        self._socket.close()
        if self._listener is not None:
            self._listener.close()

    def wait(self) -> str:
        """How it ended, or that it has not within a second."""
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return "not yet"
        return signal.Signals(-status).name if status < 0 else f"status {status}"


class Decoders:
    """Decodes pictures of any kind for one model.

    Args:
      pixels: width times height that a picture may have.
      seconds: that it may take.
      processes: that decode at once.
      cut: how boxes are cut out.
    """

    def __init__(
        self, preprocessing: Preprocessing, pixels: int, seconds: float, processes: int, cut: Cut | None = None
    ) -> None:
        self._shape = (*preprocessing.size, 3)
        self._settings = decoder_process.settings_of(preprocessing, pixels, seconds, cut or Cut())
        self._seconds, self._count = seconds, processes
        self._idle: asyncio.LifoQueue[_Process] = asyncio.LifoQueue()
        self._all: list[_Process] = []
        self._killed: list[_Process] = []  # until the system has their end
        self._answered = time.monotonic()
        self._closed = False

    def start(self) -> None:
        """Starts the processes, which are ready within a second or so."""
        for _ in range(self._count):
            self._idle.put_nowait(self._new())

    def close(self) -> None:
        """Ends the processes, whatever they do."""
        self._closed = True
        for process in self._all:
            process.kill()
        for process in (*self._all, *self._killed):
            process.wait()

    async def read(self, raw: bytes, boxes: Sequence[Box] = ()) -> list[Read]:
        """Of each box of a picture, or of all of it. Where the caller is cancelled, the decoding is ended.

        Raises:
          Undecoded: there are no pixels, or no decoder.
        """
        head = decoder_process.message_of(boxes)
        process = await self._taken()
        try:
            async with asyncio.timeout(self._seconds):
                kind, content = await process.ask(head, raw)
        except TimeoutError:
            process = self._replaced(process)
            raise Undecoded(422, f"it takes more than {self._seconds:g} s to decode") from None
        except (OSError, EOFError):
            end = await asyncio.to_thread(process.wait)
            process = self._replaced(process)
            raise Undecoded(422, f"its decoder ended over it ({end})") from None
        except BaseException:
            process = self._replaced(process)
            raise
        finally:
            self._idle.put_nowait(process)
            self._answered = time.monotonic()
        if kind != PIXELS:
            raise Undecoded(_STATUS[kind], content.decode())
        said, _, pixels = content.partition(b"\n")
        rows = iter(np.frombuffer(pixels, np.uint8).reshape(-1, *self._shape))
        return [Read(None if why else next(rows), why, tuple(notes)) for why, notes in json.loads(said)]

    async def fault(self) -> str:
        """Why no picture can be decoded; empty where one can. Idle processes are pinged, and replaced where they do not
        answer."""
        if self._idle.empty():  # all are at work, each of them for a bounded time
            waited = time.monotonic() - self._answered
            return "" if waited < self._seconds + STARTING else f"no picture was decoded for {waited:.0f} s"
        asked = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        asking = [asyncio.ensure_future(self._asked(process)) for process in asked]
        await asyncio.wait(asking)
        faults = [each.result() for each in asking]
        return "" if "" in faults else faults[0]

    async def _asked(self, process: _Process) -> str:
        """Why an idle process does not answer; puts it, or another one, back."""
        try:
            async with asyncio.timeout(ANSWERING):
                await process.ready()
                await process.ask(b"", b"")
            return ""
        except TimeoutError:
            if process.starting:
                return "the decoders are starting"
            process = self._replaced(process)
        except (OSError, EOFError):
            process = self._replaced(process)
        finally:
            self._idle.put_nowait(process)
        return f"no decoder answers within {ANSWERING:g} s; they are started again"

    async def _taken(self) -> _Process:
        """A process that is ready. Raises Undecoded where there is none."""
        process = await self._idle.get()
        starting: list[_Process] = []
        while process.starting and not self._idle.empty():  # another one may be ready
            starting.append(process)
            process = self._idle.get_nowait()
        for each in starting:
            self._idle.put_nowait(each)
        try:
            if process.ended:  # while it had nothing to do
                process = self._replaced(process)
            async with asyncio.timeout_at(max(process.begun + STARTING, time.monotonic() + ANSWERING)):
                await process.ready()
        except (TimeoutError, OSError, EOFError):
            process = self._replaced(process)
            self._idle.put_nowait(process)
            raise Undecoded(503, "no decoder starts; the log of the server says why") from None
        except BaseException:
            self._idle.put_nowait(process)
            raise
        return process

    def _new(self) -> _Process:
        process = _Process(self._settings)
        self._all.append(process)
        return process

    def _replaced(self, process: _Process) -> _Process:
        """A new process in place of one that is ended."""
        process.kill()
        self._all = [each for each in self._all if each is not process]
        self._killed = [each for each in [*self._killed, process] if not each.ended]
        return process if self._closed else self._new()
