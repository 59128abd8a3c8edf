"""Connections that never end their headers, or send too many, or do nothing, over bare sockets; without a model."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from linnaeus_jax.inference.server.connections import PIPELINED, Seldom
from linnaeus_jax.inference.server.requests import Limits
from linnaeus_jax.inference.server.serving import server_of

LIMITS = Limits(connections=40, header_bytes=20_000, header_seconds=0.6, seconds=1.0)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: bytes of an answer that fills every buffer of the system
LARGE = 30 * 2**20


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers `/large` with many bytes, `/never` when the client has gone, the rest at once or after its body."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
        return
    more = scope["path"] != "/at-once"
    while more:
        message = await receive()
        gone = message["type"] == "http.disconnect"
        more = not gone and (message.get("more_body", False) or scope["path"] == "/never")
    body = bytes(LARGE) if scope["path"] == "/large" else b"ok"
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


application.state = SimpleNamespace(service=SimpleNamespace(limits=LIMITS))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    ready = threading.Event()
    app: Any = application
    server = server_of(app, ready.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert ready.wait(30)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def connected(port: int, begin: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(begin)
        yield client


def status_of(client: socket.socket) -> int:
    """Of the answer; 0 where the server closed the connection without one."""
    try:
        found = client.recv(2**16)
    except ConnectionResetError:
        return 0
    return int(found.split()[1]) if found else 0


def status(port: int, request: bytes = GET) -> int:
    with connected(port, request) as client:
        return status_of(client)


def open_at(port: int) -> set[int]:
    """The ports of the clients whose connections the server has open."""
    of_server = [each for each in psutil.Process().net_connections("tcp") if each.laddr and each.laddr.port == port]
    return {each.raddr.port for each in of_server if each.raddr and each.status == psutil.CONN_ESTABLISHED}


def seconds_until_closed(client: socket.socket, trickle: bytes = b"") -> float:
    """Sends a byte now and then until the server ends the connection."""
    start = time.monotonic()
    while time.monotonic() - start < 15:
        if trickle:
            try:
                client.sendall(trickle)
            except (BrokenPipeError, ConnectionResetError):
                break
        if select.select([client], [], [], 0.05)[0]:
            try:
                if not client.recv(2**16):
                    break
            except ConnectionResetError:
                break
    return time.monotonic() - start


#: what a client begins with, and what it then sends now and then
NEVER_ENDED = [
    (b"", b""),
    (b"GET", b""),
    (b"GET / HTTP/1.1\r\n", b"a"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X: a\r\n"),
    (b"GET /", b"x"),
    (GET + b"GET / HTTP/1.1\r\n", b"a"),  # the second request of a connection
    (b"POST /at-once HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", b"x"),  # is answered before
    (GET, b"\r\n"),
]


def test_who_never_ends_a_request_is_disconnected_in_time(port):
    def ended(case: tuple[bytes, bytes]) -> float:
        with connected(port, case[0]) as client:
            return seconds_until_closed(client, case[1])

    with ThreadPoolExecutor(len(NEVER_ENDED)) as pool:
        taken = list(pool.map(ended, NEVER_ENDED))
    assert max(taken) < LIMITS.header_seconds + 3
    assert status(port) == 200


def test_the_reason_is_given(port):
    with connected(port, b"GET / HTTP/1.1\r\nHost: a\r\n") as client:
        found = client.recv(2**16)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert "headers were not there after 0.6 s" in json.loads(found.partition(b"\r\n\r\n")[2])["detail"]
    with connected(port, b"no HTTP\r\n\r\n") as client:
        assert client.recv(2**16).startswith(b"HTTP/1.1 400 ")


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"a"),
        (b"GET / HTTP/1.1\r\n", b"X-Name: value\r\n"),
        (b"GET /", b"a"),
        (b"A", b"A"),
        (CHUNKED, b"X-Name: value\r\n"),
        (CHUNKED + b"X: ", b"a"),
        (GET + b"GET / HTTP/1.1\r\nX: ", b"a"),
        (b"", GET),
    ],
    ids=["value", "name", "many", "address", "method", "trailers", "trailer", "second request", "requests"],
)
def test_300_megabytes_of_headers_are_refused_early(port, begin, piece):
    block = piece * (2**16 // len(piece))
    before, sent = psutil.Process().memory_info().rss, 0
    with connected(port, begin) as client:
        try:
            while sent < 300 * 2**20:
                client.sendall(block)
                sent += len(block)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 16 * 2**20  # what the buffers of the system hold
    assert psutil.Process().memory_info().rss - before < 30 * 2**20
    assert status(port) == 200


def test_a_few_requests_may_come_at_once(port):
    with connected(port, PIPELINED * GET) as client:
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < PIPELINED:
            answers += client.recv(2**16)


def test_headers_are_counted_in_bytes(port):
    def request(size: int) -> bytes:
        return b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * size + b"\r\n\r\n"

    assert status(port, request(LIMITS.header_bytes - 100)) == 200
    assert status(port, request(LIMITS.header_bytes + 1)) == 431
    with connected(port) as client:  # in pieces they are counted alike
        whole = request(LIMITS.header_bytes - 100)
        for start in range(0, len(whole), 997):
            client.sendall(whole[start : start + 997])
            time.sleep(0.001)
        assert status_of(client) == 200
    chunks = b"".join(b"1;x=y\r\nx\r\n" for _ in range(5000))  # a body of many small chunks is no header
    assert status(port, CHUNKED.partition(b"1\r\nx")[0] + chunks + b"0\r\n\r\n") == 200


def test_idle_connections_make_room(port):
    """1,200 connections that do nothing: others are served, and the server keeps to its number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as kept:
        for number in range(1200):
            kept.enter_context(connected(port, b"GET / HT" if number % 2 else b""))
            if number % 200 == 199:
                assert status(port) == 200
        assert len(open_at(port)) <= LIMITS.connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert status(port) == 200


def test_the_oldest_idle_connection_is_closed_and_not_one_at_work(port):
    with ExitStack() as kept:
        never = b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n"
        working = kept.enter_context(connected(port, never))
        idle = kept.enter_context(connected(port, GET))  # and waits for its next request
        assert status_of(idle) == 200
        others = [kept.enter_context(connected(port, never)) for _ in range(LIMITS.connections - 2)]
        time.sleep(0.1)
        assert status(port) == 200
        assert idle.recv(1) == b""
        others.append(kept.enter_context(connected(port, never)))
        time.sleep(0.1)
        with connected(port, GET) as client:  # now all are at work
            found = client.recv(2**16)
        assert found.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in found
        assert not select.select([working, *others], [], [], 0)[0]
    time.sleep(0.2)
    assert status(port) == 200


def test_who_does_not_read_the_answer_is_disconnected(port):
    with connected(port, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n") as client:
        mine = client.getsockname()[1]
        deadline = time.monotonic() + LIMITS.seconds + 5
        while mine in open_at(port):
            assert time.monotonic() < deadline, "the answer is kept for it"
            time.sleep(0.1)


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


OTHER_PROTOCOLS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS
    bytes(100),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    request("/")[:-2] + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    request("/")[:-2] + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAA\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
)


@pytest.mark.parametrize("path", ["/at-once", "/", "/large", "/never"])
def test_clients_that_leave_write_nothing_into_the_log(port, caplog, path):
    for reset in (True, False):
        for delay in (0.0, 0.02):
            with socket.create_connection(("127.0.0.1", port)) as client:
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(30 * request(path))
                time.sleep(delay)
    time.sleep(0.2)
    assert not caplog.records


def test_other_protocols_write_nothing_into_the_log(port, caplog):
    for sent in OTHER_PROTOCOLS:
        for half_closed in (True, False):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(sent)
                if half_closed:
                    client.shutdown(socket.SHUT_WR)
                time.sleep(0.02)
    time.sleep(0.1)
    assert not caplog.records


def test_an_error_that_clients_can_repeat_is_logged_once_in_a_while(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seldom, passed = Seldom(60.0), []

    def log(error: BaseException, line: int = 1) -> None:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "x.py", line, "failed %d", (3,), None)
        try:
            raise error
        except BaseException:
            record.exc_info = sys.exc_info()  # type: ignore[assignment]
        if seldom.filter(record):
            passed.append(record.getMessage())

    for _ in range(50):
        log(RuntimeError("a"))
    assert passed == ["failed 3"]
    log(KeyError("a"))
    log(RuntimeError("a"), line=2)
    log(asyncio.CancelledError())
    assert len(passed) == 3
    now[0] = 61.0
    log(RuntimeError("a"))
    assert passed[3] == "failed 3 (and 49 times before)"
