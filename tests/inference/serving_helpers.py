"""A server of this process on loopback, and pictures for it."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image

from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.server.access import Access
from linnaeus_jax.inference.server.requests import Limits
from linnaeus_jax.inference.server.serving import create_app, server_of


@contextmanager
def serving(model: Model, limits: Limits | None = None, access: Access | None = None) -> Iterator[str]:
    """The address of a server, without a slash at its end."""
    app = create_app(model, limits, access=access)
    ready = threading.Event()
    server = server_of(app, ready.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert ready.wait(120)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """The bytes of a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def bomb() -> bytes:
    """A small PNG of 100 megapixels."""
    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(buffer, "PNG")
    return buffer.getvalue()
