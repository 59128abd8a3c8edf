"""Limits of size, time and queue, before any endpoint."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from linnaeus_jax.inference.server.access import Access
from linnaeus_jax.inference.server.guard import DRAINED, Guard, ServerMetrics
from linnaeus_jax.inference.server.requests import Limits

LIMITS = Limits(body_bytes=100, seconds=0.2, queue=1)


class Client:
    """Sends a body in parts, and keeps what comes back.

    Attributes:
      read: bytes of the body that the server took.
    """

    def __init__(self, *parts: bytes, ends: bool = True, headers: dict[str, str] | None = None) -> None:
        self._parts, self._ends, self.read = list(parts), ends, 0
        pairs = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **(headers or {})}.items()]
        self.scope = {"type": "http", "method": "POST", "path": "/predict", "headers": pairs}
        self.sent: list[dict] = []

    async def receive(self):
        if not self._parts and not self._ends:
            await asyncio.sleep(60)
        part = self._parts.pop(0) if self._parts else b""
        self.read += len(part)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._ends}

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def detail(self) -> str:
        return json.loads(self.sent[1]["body"])["detail"]


def metrics() -> ServerMetrics:
    batcher: Any = SimpleNamespace(waiting=0, compilations=0)
    return ServerMetrics(batcher)


async def reads_all(scope, receive, send):
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def never_answers(scope, receive, send):
    await receive()
    await asyncio.sleep(60)


def ask(app, client: Client, limits: Limits = LIMITS) -> ServerMetrics:
    counted = metrics()
    asyncio.run(Guard(app, limits, counted, ("/predict",), Access())(client.scope, client.receive, client.send))
    return counted


def test_what_is_small_passes():
    client = Client(b"x" * 60, b"x" * 40)
    text = ask(reads_all, client).text().decode()
    assert client.status == 200
    assert client.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in client.headers["content-security-policy"]
    assert 'linnaeus_requests_total{path="/predict",status="200"} 1.0' in text


@pytest.mark.parametrize("headers", [{}, {"content-length": "150"}])
def test_body_too_large(headers):
    """It is read to its end, so that the client gets to see the answer, and not kept."""
    client = Client(*[b"x" * 50] * 3, headers=headers)
    ask(reads_all, client)
    assert client.status == 413
    assert "100 bytes" in client.detail
    assert client.read == 150


def test_endless_body_is_not_read_for_ever():
    client = Client(*[b"x" * 50] * 100)
    ask(reads_all, client)
    assert client.status == 413
    assert client.read <= DRAINED * 100 + 100


def test_client_that_asks_first_is_spared_sending():
    client = Client(*[b"x" * 50] * 3, headers={"content-length": "150", "expect": "100-continue"})
    ask(reads_all, client)
    assert (client.status, client.read) == (413, 0)


def test_slow_body_and_slow_answer():
    client = Client(b"x", ends=False)
    ask(reads_all, client)
    assert client.status == 408
    client = Client(b"x")
    ask(never_answers, client)
    assert client.status == 504
    assert int(client.headers["retry-after"]) >= 1


@pytest.mark.parametrize("limits", [LIMITS, Limits(body_bytes=100, seconds=0.2, queue=9, held_bytes=150)])
def test_full_queue(limits):
    """As many requests, or as many bytes of them, as a server holds."""

    async def two() -> list[Client]:
        guard = Guard(never_answers, limits, metrics(), ("/predict",), Access())
        clients = [Client(b"x"), Client(b"x")]
        await asyncio.gather(*(guard(each.scope, each.receive, each.send) for each in clients))
        last = Client(b"x")
        await guard(last.scope, last.receive, last.send)
        return [*clients, last]

    clients = asyncio.run(two())
    assert [client.status for client in clients] == [504, 503, 504]
    assert int(clients[1].headers["retry-after"]) >= 1


def test_places_and_bytes_are_given_back():
    """After requests that ended in every way, as many are answered at once as before."""
    limits = Limits(body_bytes=100, seconds=0.05, queue=2, held_bytes=250)

    async def fails(scope, receive, send):
        raise ValueError

    async def leaves(scope, receive, send):
        raise ClientDisconnect

    async def ask_all() -> list[Client]:
        served: list[Any] = []

        async def by_turns(scope, receive, send):
            await served[-1](scope, receive, send)

        guard = Guard(by_turns, limits, metrics(), ("/predict",), Access())

        async def asked(app: Any, client: Client) -> Client:
            served.append(app)
            await guard(client.scope, client.receive, client.send)
            return client

        for app, client in (
            (reads_all, Client(b"x" * 99)),
            (reads_all, Client(b"x" * 300)),
            (reads_all, Client(b"x", ends=False)),
            (never_answers, Client(b"x")),
            (leaves, Client(b"x")),
        ):
            await asked(app, client)
        with pytest.raises(ValueError):
            await asked(fails, Client(b"x"))
        return list(await asyncio.gather(*(asked(never_answers, Client(b"x")) for _ in range(3))))

    assert [client.status for client in asyncio.run(ask_all())] == [504, 504, 503]
