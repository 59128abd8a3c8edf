"""A process that decodes pictures of strangers for the server, which ends it where a picture takes too long.

    python -m linnaeus_jax.inference.server.decoder_process DESCRIPTOR SETTINGS

`DESCRIPTOR` is a connected socket, `SETTINGS` is JSON: the fields of `Preprocessing`, and `pixels` and `seconds`, the
most that a picture may have and take. It says that it is ready, and then answers every picture; an empty one is a
ping. JAX is not imported: a new process is ready within a second. Nothing is unpickled on either side.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any

import cv2

from linnaeus_jax.data.decoding import TooCostly, image_size
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.pictures import PictureError, read_picture

#: how messages begin: bytes that follow; a message of an answer is one of the kinds below and its content
LENGTH = struct.Struct(">Q")
READY, PIXELS, TOO_COSTLY, UNKNOWN, DAMAGED = b"r", b"p", b"c", b"u", b"d"
#: memory that a picture may take: 48 bytes for each pixel, as the most wasteful decoder does, and this
MEMORY = 2**29
#: seconds after which it ends by itself where nobody has ended it
GRACE = 5.0


def settings_of(preprocessing: Preprocessing, pixels: int, seconds: float) -> str:
    """The argument `SETTINGS`."""
    return json.dumps(dataclasses.asdict(preprocessing) | {"pixels": pixels, "seconds": seconds})


def answer(raw: bytes, preprocessing: Preprocessing, pixels: int) -> tuple[bytes, bytes]:
    """Kind and content of the answer to a picture: uint8 [H, W, 3] in one piece, or why there are none."""
    try:
        height, width = image_size(raw)
        if height * width > pixels:
            return TOO_COSTLY, f"{width} x {height} pixels; send at most {pixels}".encode()
    except TooCostly as error:
        return TOO_COSTLY, str(error).encode()
    except ValueError as error:
        return UNKNOWN, str(error).encode()
    try:
        return PIXELS, read_picture(raw, preprocessing).tobytes()
    except PictureError as error:
        return DAMAGED, str(error).encode()
    except MemoryError:
        return DAMAGED, b"decoding it takes too much memory"
    except Exception as error:  # whatever a decoder makes of it
        return DAMAGED, f"{type(error).__name__}: {error}".encode()


def main(argv: Sequence[str]) -> None:
    """Answers until the server is gone."""
    settings: dict[str, Any] = json.loads(argv[1])
    pixels, seconds = settings.pop("pixels"), settings.pop("seconds")
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    preprocessing = Preprocessing(**fields)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server, which still needs its decoders
    cv2.setNumThreads(1)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, used + MEMORY + 48 * pixels)
    _limit(resource.RLIMIT_CORE, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C libraries have lines for every damage, and strangers send it
    with socket.socket(fileno=int(argv[0])) as server, server.makefile("rb") as messages:
        _send(server, READY, b"")
        while (raw := _receive(messages)) is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE)  # the default of SIGALRM ends the process
            kind, content = answer(raw, preprocessing, pixels) if raw else (READY, b"")
            signal.setitimer(signal.ITIMER_REAL, 0)
            _send(server, kind, content)


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _send(server: socket.socket, kind: bytes, content: bytes) -> None:
    server.sendall(LENGTH.pack(1 + len(content)) + kind + content)


def _receive(server: IO[bytes]) -> bytes | None:
    """The next message; None where the server is gone."""
    head = server.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    raw = server.read(size)
    return raw if len(raw) == size else None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the server is gone
