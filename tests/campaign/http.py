"""Untrusted requests to the server: JSON, forms, headers, host names, connections.

Each request is refused or its connection closed in time and without much memory; afterwards others are served.
"""

from __future__ import annotations

import atexit
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import psutil

from linnaeus_jax.inference.bundle.files import write_bundle
from tests.campaign.case import Case, Outcome
from tests.inference.conftest import small_bundle

TOKEN = "a-token-of-the-campaign"
#: seconds within which each is answered or closed, of the machine that may be doing other things; bytes of memory
SLOW, MEMORY = 30.0, 300 * 2**20
#: bytes of a request that the buffers of the system may take before its sender notices that nobody reads
UNREAD = 32 * 2**20
GET = b"GET /info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % TOKEN.encode()


@dataclass
class Server:
    """Address and process of a server that wants `TOKEN`."""

    port: int
    pid: int

    @property
    def memory(self) -> int:
        """Bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def connected(self, seconds: float = SLOW) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def sent(self, parts: Iterator[bytes] | list[bytes]) -> tuple[int, int]:
        """Status of the answer, 0 where the connection was closed without one, and how many bytes it took."""
        taken = 0
        with self.connected() as client:
            try:
                for part in parts:
                    client.sendall(part)
                    taken += len(part)
            except (BrokenPipeError, ConnectionResetError):
                pass
            try:
                answer = client.recv(2**16)
            except ConnectionResetError:
                answer = b""
        found = re.match(rb"HTTP/1\.1 (\d+) ", answer)
        return int(found[1]) if found else 0, taken


class Started:
    """A server of its own process, started at its first use and ended with this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def server(self) -> Server:
        self._directory.mkdir(parents=True, exist_ok=True)
        bundle, token = self._directory / "bundle", self._directory / "token"
        if not bundle.exists():
            write_bundle(small_bundle(), bundle)
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "linnaeus_jax.tools.serve", str(bundle), "--port=0", "--buckets=1"]
        options = ["--max-seconds=10", f"--token-file={token}"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        atexit.register(process.terminate)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127.0.0.1:(\d+)/", line):
                return Server(int(found[1]), process.pid)
        raise RuntimeError(f"the server ended with {process.wait()}")


#: sends something; what is wrong, or "", and the kind of end
Attack = Callable[[Server], tuple[str, str]]


def cases(seed: int, directory: Path) -> Iterator[Case]:
    """All cases in an order that the seed decides."""
    started = Started(directory)
    yield from made(seed, lambda: started.server)


def made(seed: int, server: Callable[[], Server]) -> Iterator[Case]:
    """All cases against a server."""
    rng = random.Random(seed)
    attacks = [*_bodies(rng, 60), *_heads(rng, 40), *_names(rng), *_connections()]
    rng.shuffle(attacks)
    for group, name, attack in attacks:
        yield Case(group, f"{group}: {name}", partial(_run, attack, server))


def _run(attack: Attack, server: Callable[[], Server], directory: Path) -> Outcome:
    there = server()
    before, start = there.memory, time.monotonic()
    wrong, what = attack(there)
    seconds, grown = time.monotonic() - start, there.memory - before
    status, _ = there.sent([GET])
    if wrong:
        return Outcome(False, what, wrong)
    if status != 200:
        return Outcome(False, "others are not served", f"status {status} after it")
    if seconds > SLOW:
        return Outcome(False, f"took more than {SLOW:.0f} s", f"{seconds:.1f} s")
    if grown > MEMORY:
        return Outcome(False, "takes memory", f"{grown / 2**20:.0f} MiB")
    return Outcome(True, what)


# ---- bodies

Group = tuple[str, str, Attack]


def _bodies(rng: random.Random, count: int) -> Iterator[Group]:
    """JSON and forms that are small and would cost much, and mixtures of them."""
    items = [b"1", b"[]", b"{}", b'""', b"null", b'"aGk="', b"[[[]]]", b'{"data":"aGk="}', b"1e999", b'{"a":1}']
    places = [b'"images":[%s]', b'"metadata":[%s]', b'"restrict":[%s]', b'"components":{"a":[%s]}', b'"x":[%s]']
    for number in range(count):
        item, place, times = rng.choice(items), rng.choice(places), rng.choice([60_000, 300_000, 1_500_000])
        kind, cut = rng.choice(["list", "list", "keys", "keys within"]), rng.random() if rng.random() < 0.2 else 1.0
        name = f"{number}, {kind}, {times} of {item.decode()} in {place.decode()}"
        yield "JSON", name, _posted("application/json", partial(_json, item, place, times, kind, cut))
    for depth in (b"[", b'{"a":', b'{"images":[{"data":['):
        yield "JSON", f"depth of {depth.decode()}", _posted("application/json", partial(_times, b"", depth, 2_000_000))
    for value in (b"9", b"0.1", b"\xff", b'"x'):
        for key in (b"latitude", b"date", b"top_k"):
            begin = b'{"images":["aGk="],"%s":%s' % (key, value[:-1])
            long = partial(_times, begin, value[-1:], 10_000_000, b'"}' if value[:1] == b'"' else b"}")
            yield "JSON", f"a long {key.decode()} of {value!r}", _posted("application/json", long)
    for name, content in _FORMS.items():
        yield "form", name, _posted("multipart/form-data; boundary=m", content)
    yield "form", "a long boundary", _posted(f"multipart/form-data; boundary={'m' * 20_000}", lambda: b"x")


def _json(item: bytes, place: bytes, times: int, kind: str, cut: float) -> bytes:
    keys = b",".join(b'"%x":%s' % (key, item) for key in range(times // 4 if "keys" in kind else 0))
    inside = {"list": place % b",".join([item] * times), "keys": keys}.get(kind, place % (b"{%s}" % keys))
    body = b'{"images":["aGk="],%s}' % inside
    return body[: round(cut * len(body))]


def _times(begin: bytes, piece: bytes, times: int, end: bytes = b"") -> bytes:
    return begin + piece * times + end


def _form(content: bytes) -> bytes:
    return _PART % (b"images", b'; filename="a"', b"x") + content + b"--m--\r\n"


_PART = b'--m\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
#: name -> makes the body
_FORMS: dict[str, Callable[[], bytes]] = {
    "commas": lambda: _form(_PART % (b"restrict", b"", b"1" + b"," * 1_000_000)),
    "lines in 10 fields": lambda: _form(_PART % (b"restrict", b"", b"1\n" * 500_000) * 10),
    "observations": lambda: _form(_PART % (b"metadata", b"", b"[" + b"{}," * 300_000 + b"{}]")),
    "1,500 fields": lambda: _form(b"".join(_PART % (b"f%d" % number, b"", b"1") for number in range(1500))),
    "line ends": lambda: _form(b"\r\n" * 5_000_000),
    "headers of a part": lambda: _form(b"--m\r\n" + b"a: b\r\n" * 1_000_000),
    "a long header of a part": lambda: _form(b"--m\r\nX: " + b"a" * 10_000_000),
    "30 MB": lambda: _form(_PART % (b"images", b'; filename="a"', bytes(30_000_000))),
}


def _posted(kind: str, made: Callable[[], bytes]) -> Attack:
    def attack(server: Server) -> tuple[str, str]:
        body = made()
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: {kind}\r\n"
        status, _ = server.sent([f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body])
        return ("" if status in (400, 413, 415, 422) else f"status {status}"), f"status {status}"

    return attack


# ---- headers


def _heads(rng: random.Random, count: int) -> Iterator[Group]:
    """Too many, too long, broken; 300 MB of them."""
    begun = b"GET /info HTTP/1.1\r\nHost: localhost\r\n"
    chunked = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for name, begin, piece in (
        ("value", begun + b"X: ", b"a"),
        ("name", begun, b"a"),
        ("many", begun, b"X: a\r\n"),
        ("empty lines", b"", b"\r\n"),
        ("address", b"GET /", b"a"),
        ("method", b"", b"A"),
        ("trailers", chunked + b"1\r\nx\r\n0\r\n", b"X: a\r\n"),
        ("of a chunk", chunked + b"1;", b"a"),
        ("of many chunks", chunked, b"1;a=b\r\nx\r\n"),
        ("second request", GET + b"GET / HTTP/1.1\r\nX: ", b"a"),
        ("requests", b"", b"GET /info HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
    ):
        yield "headers", f"300 MB, {name}", partial(_endless, begin, piece)
    for number in range(count):
        text = bytearray(GET if rng.random() < 0.5 else chunked + b"5\r\nhello\r\n0\r\n\r\n")
        for _ in range(rng.randrange(1, 6)):
            text[rng.randrange(len(text))] = rng.choice(b"\0\r\n :\xff,;Aa0 \t")
        if rng.random() < 0.3:
            text = bytearray(rng.randbytes(rng.randrange(1, 2000)))
        yield "headers", f"broken {number}", partial(_broken, bytes(text) + b"\r\n\r\n")


def _endless(begin: bytes, piece: bytes, server: Server) -> tuple[str, str]:
    block = piece * (2**16 // len(piece))
    end = time.monotonic() + SLOW / 2

    def parts() -> Iterator[bytes]:
        yield begin
        for _ in range(300 * 2**20 // len(block)):
            if time.monotonic() > end:
                return
            yield block

    status, taken = server.sent(parts())
    few = taken < UNREAD or status in (400, 401, 413, 408)
    return ("" if few else f"took {taken >> 20} MiB, status {status}"), "refused early"


def _broken(request: bytes, server: Server) -> tuple[str, str]:
    status, _ = server.sent([request])
    return ("" if status < 500 else f"status {status}"), "below 500, or closed"


# ---- names, pages of other sites, token


def _names(rng: random.Random) -> Iterator[Group]:
    names = [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "",
        "10.0.0.1",
        "[::2]",
        "localhost/..",
        "a@b",
    ]
    for host in [*names, "localhost\r\nHost: evil.example", "x" * 30_000, "".join(map(chr, range(33, 127)))]:
        for path in ("/", "/info", "/predict", "/metrics", "/health"):
            yield "host", f"{host[:40]!r} {path}", partial(_asked, {"Host": host}, path, (400,))
    for token in ("", "Bearer x", f"Bearer {TOKEN}x", "Basic Og==", "Basic %%%", f"Digest {TOKEN}", TOKEN, "\xff"):
        path = rng.choice(["/", "/info", "/metrics", "/predict", "/page.js", "/openapi.json", "//health", "/health/"])
        headers = {"Host": "localhost", "Authorization": token}
        yield "token", f"{token[:30]!r} {path}", partial(_asked, headers, path, (401,))
    for origin in (
        "http://evil.example",
        "null",
        "https://localhost.evil.example",
        "http://localhost:1",
        "",
        "x" * 9000,
    ):
        headers = {"Host": "localhost", "Authorization": f"Bearer {TOKEN}", "Origin": origin}
        yield "origin", repr(origin[:40]), partial(_asked, headers, "/predict", (403,))


def _asked(headers: dict[str, str], path: str, statuses: tuple[int, ...], server: Server) -> tuple[str, str]:
    method = "POST" if path == "/predict" else "GET"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "Content-Length: 0"]
    status, _ = server.sent(["\r\n".join([*lines, "", ""]).encode("latin-1")])
    return ("" if status in statuses else f"status {status}"), f"status {status}"


# ---- connections


def _connections() -> Iterator[Group]:
    """Many that do nothing, or little; others are served meanwhile."""
    post = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n" % TOKEN.encode()
    for name, begin in {
        "nothing": b"",
        "half a line": b"GET / HT",
        "half the headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        "one answer": GET,
        "half a body, not allowed": b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx",
        "half a body": post + b"Content-Length: 1000000\r\n\r\nx",
    }.items():
        for count in (100, 400 if "body" in name else 900):
            yield "connections", f"{count} that send {name}", partial(_idle, count, begin)


def _idle(count: int, begin: bytes, server: Server) -> tuple[str, str]:
    kept: list[socket.socket] = []
    try:
        for _ in range(count):
            kept.append(server.connected())
            kept[-1].sendall(begin)
        start = time.monotonic()
        status, _ = server.sent([GET])
        if status != 200 or time.monotonic() - start > SLOW / 4:
            return f"status {status} after {time.monotonic() - start:.1f} s while they are open", "others wait"
    finally:
        for each in kept:
            each.close()
    return "", "others are served meanwhile"
