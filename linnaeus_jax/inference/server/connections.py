"""Connections of the server: how many there may be, how long each may wait, and how large the head of a request may be.

uvicorn has no limit for any of them with httptools, whose parser is faster than h11: a client that never ends its
headers, or that does not read its answer, would keep its connection and its memory for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import traceback
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from linnaeus_jax.inference.server.requests import RETRY_AFTER, Limits

#: seconds between two checks of the connections
ENFORCE_EVERY = 0.5
#: requests that may come before the one in front of them is answered
PIPELINED = 32
#: seconds that a connection which the server has closed has for reading what was sent
LINGER = 5.0


class Seldom(logging.Filter):
    """Passes one record of each kind in some time, with how many there were since, so that no client can fill the log.

    A kind is a line of code, with the line that raised the error that is logged; requests that are cancelled when the
    server stops have none.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._seen: dict[Any, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        where: Any = None
        for frame, line in traceback.walk_tb(error.__traceback__ if error else None):
            where = frame.f_code, line
        kind, now = (record.pathname, record.lineno, type(error), where), time.monotonic()
        last, held = self._seen.get(kind, (-math.inf, 0))
        if now - last < self._seconds:
            self._seen[kind] = last, held + 1
            return False
        self._seen[kind] = now, 0
        if held:
            record.msg, record.args = f"{record.getMessage().rstrip()} (and {held} times before)", ()
        return True


def limit_logs() -> None:
    """Puts `Seldom` before what the server's libraries log."""
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, Seldom) for each in logger.filters):
            logger.addFilter(Seldom())


class TooMuch(ValueError):
    """A request whose line and headers are larger than they may be, or more requests than may wait."""


class Connection(HttpToolsProtocol):
    """One connection, with the limits of its class; see `connections_with`.

    A connection works from the end of the headers until the answer was given; that time is limited by `Guard`. At all
    other times it waits, and then a limit of this class holds.

    Attributes:
      since: time of the event loop at which it began to wait as it does now.
    """

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.since = self.loop.time()
        #: bytes of line, headers and trailers: of those that are complete; that came after the last complete part
        self._complete = self._unfinished = 0
        self._moved = self._asking = self._in_head = self._closing = False
        self._answering: Any = None  # of several requests the first, while `cycle` is the last

    @property
    def works(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    # ---- events

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._asking = True  # the first request must begin as soon as a begun one must go on
        others = [each for each in self.connections if each is not self and not each.transport.is_closing()]
        if len(others) < self.limits.connections:
            return
        waiting = [each for each in others if isinstance(each, Connection) and not each.works]
        if waiting:
            min(waiting, key=lambda each: each.since).transport.abort()
        else:
            self._refuse(503, f"{len(others)} connections are at work; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._answering is not None:  # uvicorn tells the last request alone; the others would be written to nobody
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._asking and not self.works:
            self._asking, self.since = True, self.loop.time()
        self._moved = False
        super().data_received(data)
        self._unfinished = 0 if self._moved else self._unfinished + len(data)
        if self._unfinished > self.limits.header_bytes:
            self._refuse(431, self._too_large)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:  # uvicorn reads on whenever one of them is answered
            raise TooMuch
        super().on_message_begin()
        self._complete, self._moved, self._in_head = 0, True, True

    def on_url(self, url: bytes) -> None:
        self._take(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._take(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._moved, self._asking, self._in_head = True, False, False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_chunk_header(self) -> None:
        self._moved = True

    def on_message_complete(self) -> None:
        self._moved, self._asking = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.since, self._asking = self.loop.time(), False
        super().on_response_complete()

    # ---- limits

    def _take(self, count: int) -> None:
        """Called from within the parser, which passes the error on to `send_400_response`."""
        self._complete += count
        if self._complete > self.limits.header_bytes:
            raise TooMuch

    @property
    def _too_large(self) -> str:
        return f"line and headers of a request may have {self.limits.header_bytes} bytes; send fewer or shorter ones"

    def send_400_response(self, msg: str) -> None:
        if self._complete > self.limits.header_bytes:
            self._refuse(431, self._too_large)
        else:
            self._refuse(400, "this is no HTTP request that can be read")

    def _refuse(self, status: int, detail: str) -> None:
        """Answers with an error where nothing is being answered, and closes the connection."""
        if self.works:  # trailers, or a further request: nothing may come between the parts of an answer
            self.transport.abort()
            return
        body = json.dumps({"detail": detail}).encode()
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", "connection: close"]
        lines += [f"retry-after: {RETRY_AFTER}"] if status == 503 else []
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

    def enforce_timeouts(self) -> None:
        """Ends the connection if it has waited too long; called now and then."""
        now = self.loop.time()
        if self.transport.is_closing():
            if not self._closing:
                self._closing, self.since = True, now
            elif now - self.since > LINGER:
                self.transport.abort()
        elif self.works:
            return
        elif self.transport.get_write_buffer_size():
            if now - self.since > self.limits.seconds:
                self.transport.abort()
        elif self._asking and now - self.since > self.limits.header_seconds:
            if self._in_head:
                self._refuse(408, f"the headers were not there after {self.limits.header_seconds:g} s")
            self.transport.close()


def connections_with(limits: Limits) -> type[Connection]:
    """`Connection` with some limits, for the option `http` of uvicorn."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
