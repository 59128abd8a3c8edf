"""A process that decodes untrusted images for the server, which ends it where a picture takes too long.

    python -m linnaeus_jax.inference.server.decoder_process SOCKET SETTINGS

`SOCKET` is the descriptor of a connected one, or an address (127.0.0.1:PORT) to connect to, where it sends first what
the environment variable `KEY` holds; `SETTINGS` is JSON: the fields of `Preprocessing`, `pixels` and `seconds`, the
most that a picture may have and take, and `cut`, how boxes are cut out of it. It says that it is ready, and then
answers pairs of messages: the boxes of a picture as JSON, an empty list for all of it, and the picture; an empty one is
a ping. JAX is not imported: a new process is ready within a second. Nothing is unpickled on either side.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any

import cv2

from linnaeus_jax import system
from linnaeus_jax.data.decoding import TooCostly, image_size
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.pictures import PictureError, read_picture, whole_picture
from linnaeus_jax.reading.box_cuts import Box, BoxError, Cut

#: how messages begin: bytes that follow; a message of an answer is one of the kinds below and its content
LENGTH = struct.Struct(">Q")
READY, PIXELS, TOO_COSTLY, UNKNOWN, DAMAGED = b"r", b"p", b"c", b"u", b"d"
#: memory that a picture may take: 48 bytes for each pixel, as the most wasteful decoder does, and this
MEMORY = 2**29
#: environment variable: 64 hexadecimal digits that tell the server its own process from another one
KEY = "LINNAEUS_DECODER_KEY"
#: seconds after which it ends by itself where nobody has ended it
GRACE = 5.0


def settings_of(preprocessing: Preprocessing, pixels: int, seconds: float, cut: Cut) -> str:
    """The argument `SETTINGS`."""
    return json.dumps(dataclasses.asdict(preprocessing) | {"pixels": pixels, "seconds": seconds, "cut": cut.to_json()})


def message_of(boxes: Sequence[Box]) -> bytes:
    """What is sent before a picture."""
    return json.dumps([dataclasses.asdict(box) for box in boxes]).encode()


def answer(
    raw: bytes, preprocessing: Preprocessing, pixels: int, cut: Cut, boxes: Sequence[Box] = ()
) -> tuple[bytes, bytes]:
    """Kind and content of the answer to a picture: that of `rows_of`, or why there is none."""
    try:
        height, width = image_size(raw)
        if height * width > pixels:
            return TOO_COSTLY, f"{width} x {height} pixels; send at most {pixels}".encode()
    except TooCostly as error:
        return TOO_COSTLY, str(error).encode()
    except ValueError as error:
        return UNKNOWN, str(error).encode()
    try:
        return PIXELS, rows_of(raw, preprocessing, cut, boxes)
    except PictureError as error:
        return DAMAGED, str(error).encode()
    except MemoryError:
        return DAMAGED, b"decoding it takes too much memory"
    except Exception as error:  # whatever a decoder makes of it
        return DAMAGED, f"{type(error).__name__}: {error}".encode()


def rows_of(raw: bytes, preprocessing: Preprocessing, cut: Cut, boxes: Sequence[Box]) -> bytes:
    """A line of JSON: why each box has no pixels, "" where it has, and notes; behind it all pixels, uint8 [N, H, W, 3].

    Raises:
      PictureError: it cannot be read.
    """
    if not boxes:
        return b'[["", []]]\n' + read_picture(raw, preprocessing).tobytes()
    whole, said, pixels = whole_picture(raw), list[tuple[str, Sequence[str]]](), list[bytes]()
    for box in boxes:
        try:
            seen, notes = cut.pixels(whole, box)
        except BoxError as error:
            said.append((str(error), ()))
        else:
            said.append(("", notes))
            pixels.append(read_picture(seen, preprocessing).tobytes())
    return b"\n".join((json.dumps(said).encode(), b"".join(pixels)))


def main(argv: Sequence[str]) -> None:
    """Answers until the server is gone."""
    settings: dict[str, Any] = json.loads(argv[1])
    pixels, seconds, cut = settings.pop("pixels"), settings.pop("seconds"), Cut.from_json(settings.pop("cut"))
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    preprocessing = Preprocessing(**fields)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server, which still needs its decoders
    cv2.setNumThreads(1)
    system.limit_memory(MEMORY + 48 * pixels)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C libraries have lines for every damage, and anyone may send one
    with _connected(argv[0]) as server, server.makefile("rb") as messages:
        _send(server, READY, b"")
        while (head := _receive(messages)) is not None and (raw := _receive(messages)) is not None:
            faulthandler.dump_traceback_later(seconds + GRACE, exit=True)
            boxes = [Box(**fields) for fields in json.loads(head or "[]")]
            kind, content = answer(raw, preprocessing, pixels, cut, boxes) if raw else (READY, b"")
            faulthandler.cancel_dump_traceback_later()
            _send(server, kind, content)


def _connected(place: str) -> socket.socket:
    if place.isdecimal():
        return socket.socket(fileno=int(place))
    host, _, port = place.rpartition(":")
    server = socket.create_connection((host, int(port)))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.sendall(bytes.fromhex(os.environ[KEY]))
    return server


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
