"""What stands before the server's endpoints: limits of size, time and queue, headers of security, counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linnaeus_jax.inference.server.access import Access
from linnaeus_jax.inference.server.batching import Batcher
from linnaeus_jax.inference.server.requests import RETRY_AFTER, Limits

#: endpoints that take pictures, which the limits of the queue are for
PREDICT, EMBED = "/predict", "/embed"
#: a body that is too large is read and thrown away up to so many times the limit, since a client that is still sending
#: when the connection closes never sees the answer
DRAINED = 8
#: status in the metrics where the client closed the connection before its body was there, as nginx has it
CLIENT_LEFT = 499
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


_CLOSE = {"Connection": "close"}  # the rest of the body must not be taken for the next request


class BodyTooLarge(Exception):
    """More bytes came than a request may have."""


class ServerMetrics:
    """Numbers for Prometheus, of one server."""

    def __init__(self, batcher: Batcher[Any]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        named = {"namespace": "linnaeus", "registry": registry}
        self.requests = Counter("requests", "answered requests", ["path", "status"], **named)  # type: ignore[arg-type]
        self.seconds = Histogram("request_seconds", "from the first byte to the answer", ["path"], **named)  # type: ignore[arg-type]
        self.active = Gauge("requests_active", "predictions that are being worked on", **named)  # type: ignore[arg-type]
        self.pictures = Counter("pictures", "pictures that were computed", **named)  # type: ignore[arg-type]
        self.batches = Counter("batches", "batches by their compiled size", ["bucket"], **named)  # type: ignore[arg-type]
        waiting = Gauge("pictures_waiting", "pictures that no batch has taken yet", **named)  # type: ignore[arg-type]
        waiting.set_function(lambda: batcher.waiting)
        compilations = Gauge("compilations", "programs compiled so far", **named)  # type: ignore[arg-type]
        compilations.set_function(lambda: batcher.compilations)
        batcher.on_batch = self._on_batch

    def _on_batch(self, rows: int, bucket: int) -> None:
        self.pictures.inc(rows)
        self.batches.labels(str(bucket)).inc()

    def text(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self._registry)


class Guard:
    """ASGI middleware: the only place that refuses a request for who asks, its size, its time or the length of the
    queue."""

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: ServerMetrics, paths: tuple[str, ...], access: Access
    ) -> None:
        self._app, self._limits, self._metrics, self._paths = app, limits, metrics, frozenset(paths)
        self._access = access
        self._active = self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._limits)
        start = time.perf_counter()
        try:
            await self._limited(exchange)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, str(exchange.status or 500)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - start)

    async def _limited(self, exchange: Exchange) -> None:
        if refusal := self._access.refusal(exchange.scope):
            await exchange.refuse(refusal.status, refusal.detail, refusal.headers)
            return
        predicts = exchange.scope["path"] in (PREDICT, EMBED)
        held = min(exchange.content_length or self._limits.body_bytes, self._limits.body_bytes) if predicts else 0
        full = self._active >= self._limits.queue or (self._active and self._held + held > self._limits.held_bytes)
        if predicts and full:
            again = {"Retry-After": str(RETRY_AFTER)}
            await exchange.refuse(503, f"{self._active} requests are being answered; try again later", again)
            return
        self._active += predicts
        self._held += held
        self._metrics.active.set(self._active)
        try:
            async with asyncio.timeout(self._limits.seconds):
                if exchange.content_length > self._limits.body_bytes:
                    raise BodyTooLarge
                await self._app(exchange.scope, exchange.receive, exchange.send)
        except BodyTooLarge:
            await exchange.refuse(413, f"the body is larger than {self._limits.body_bytes} bytes", _CLOSE)
        except TimeoutError:
            if exchange.received:
                again = {"Retry-After": str(RETRY_AFTER)}
                await exchange.refuse(504, f"no answer within {self._limits.seconds:g} s; try again later", again)
            else:
                detail = f"the body was not there after {self._limits.seconds:g} s"
                await exchange.refuse(408, detail, _CLOSE, drain=False)
        except ClientDisconnect:
            exchange.status = exchange.status or CLIENT_LEFT
        finally:
            self._active -= predicts
            self._held -= held
            self._metrics.active.set(self._active)


class Exchange:
    """One request and its answer, as they pass the guard.

    Attributes:
      content_length: bytes of the body by its header; 0 where that says nothing.
      received: whether the whole body has come.
      status: of the answer; 0 as long as there is none.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.scope, self._receive, self._send, self._limits = scope, receive, send, limits
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        self.content_length = int(length) if length.isdigit() else 0
        self._waits_for_100 = headers.get(b"expect", b"").lower() == b"100-continue"
        self.received = False
        self.status = self._bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self.received = not message.get("more_body", False)
            if self._bytes > self._limits.body_bytes:
                raise BodyTooLarge
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", []), *HEADERS.items()]}
        await self._send(message)

    async def refuse(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, drain: bool = True
    ) -> None:
        """Answers with an error, if nothing was answered yet, after the body was read and thrown away."""
        if self.status:
            return
        if drain and not (self._waits_for_100 and not self._bytes):
            await self._drain()
        response = JSONResponse({"detail": detail}, status, dict(headers or {}))
        await response(self.scope, self._receive, self.send)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._limits.seconds):
                while not self.received and self._bytes <= DRAINED * self._limits.body_bytes:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return
                    self._bytes += len(message.get("body", b""))
                    self.received = not message.get("more_body", False)
        except TimeoutError:
            return
