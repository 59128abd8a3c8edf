"""How fast a server answers, and how much of the speed of predicting a folder it keeps.

    python -m benchmarks.serving MODEL [throughput] [latency] [--pictures 2000] [--pairs 5] [--seconds 10] ...

  throughput  JPEGs through the server from --clients connections, one and --together pictures per request, relative to
              inference/predicting over the same files (more is better)
  latency     milliseconds from a request of one picture to its answer: with 1, 4, 16 and 64 clients that each ask again
              as soon as they are answered, and with requests that come at random times (Poisson) at 50 and 80 % of the
              pictures per second that most of them reached; a late answer does not delay the next request

MODEL is a bundle or a run. The server is a process of its own on loopback, and the clients are another, so that they
take a part of the same cores; both sides get the same files, with place and date. `ratio` is the median over
alternating rounds with quartiles, `control` that of predicting against itself, whose distance from 1 is the noise.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import linnaeus_jax
from benchmarks.common import add_names, interleaved, write_results
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job, predict_files
from linnaeus_jax.inference.files.prediction_lines import JsonLines
from linnaeus_jax.reading.metadata import Observation

Row = dict[str, Any]
OBSERVATION = {"latitude": "48.2", "longitude": "16.4", "date": "2024-05-17"}
CLOSED_LOADS = (1, 4, 16, 64)
OPEN_LOADS = (0.5, 0.8)
CUTS = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}


def write_pictures(folder: Path, count: int, width: int, height: int) -> list[Path]:
    """JPEGs of blurred noise, of the size of files that photographs have."""
    rng, paths = np.random.default_rng(0), []
    for number in range(count):
        small = rng.integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8)
        picture = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
        paths.append(folder / f"{number:05d}.jpg")
        cv2.imwrite(str(paths[-1]), picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
    return paths


def request_of(files: Sequence[Path]) -> bytes:
    """A request, ready to be sent: a multipart form with pictures and what is known of them."""
    mark = uuid.uuid4().hex
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in OBSERVATION.items()
    ]
    for file in files:
        named = f'Content-Disposition: form-data; name="images"; filename="{file.name}"'
        parts += [f"--{mark}\r\n{named}\r\nContent-Type: image/jpeg\r\n\r\n".encode(), file.read_bytes(), b"\r\n"]
    parts.append(f"--{mark}--\r\n".encode())
    body = b"".join(parts)
    kind = f"Content-Type: multipart/form-data; boundary={mark}"
    return f"POST /predict HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def server(model: str, options: argparse.Namespace) -> Iterator[str]:
    """Host and port of a server that is a process of its own."""
    limits = ["--max-queue=1000", f"--max-pictures={options.together}", "--max-body-mib=200", "--max-seconds=120"]
    command = [sys.executable, "-m", "linnaeus_jax.tools.serve", model, "--port=0", *limits, *options.serve.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = (re.search(r"serving on http://([^/]+)/", line) for line in process.stdout)
        address = next((match[1] for match in found if match), "")
        if not address:
            raise SystemExit(f"the server ended with {process.wait()}")
        yield address
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


class Clients:
    """Connections that stay open, one per thread. Bare sockets: the clients take their time from the server's cores."""

    def __init__(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._mine = (host, int(port)), threading.local()
        self._open: list[socket.socket] = []
        self.pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()
        for connection in self._open:
            connection.close()

    def ask(self, request: bytes) -> float:
        """Seconds until the answer was there."""
        connection = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = socket.create_connection(self._address, timeout=120)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
        start = time.perf_counter()
        connection.sendall(request)
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += _some(connection)
        head = bytes(received[:end])
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if not head.startswith(b"HTTP/1.1 200") or length is None:
            raise SystemExit(f"{head!r} {bytes(received[end:])!r}")
        while len(received) < end + 4 + int(length[1]):
            received += _some(connection)
        return time.perf_counter() - start

    def ask_all(self, requests: Sequence[bytes]) -> None:
        for _ in self.pool.map(self.ask, requests):
            pass


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(2**18)
    if not data:
        raise SystemExit("the server closed the connection")
    return data


def throughput(options: argparse.Namespace, files: Sequence[Path], address: str) -> list[Row]:
    """Server against the loop over a folder, in alternation."""
    model = linnaeus_jax.load(options.model, buckets=(64,))
    answer_options = model.answers.options()
    lines = JsonLines(model.bundle.taxonomy, answer_options)  # what tools.predict writes
    known = Observation(48.2, 16.4, "2024-05-17")
    jobs = [Job(PictureFile(file, file.name, file.name), known) for file in files]

    def predict() -> None:
        parts = predict_files(model, jobs, answer_options)
        assert sum(len(lines.lines(part)) for part in parts) == len(jobs)

    rows = []
    for together in (1, options.together):
        groups = [files[start : start + together] for start in range(0, len(files), together)]
        requests = [request_of(group) for group in groups]
        with Clients(address, options.clients) as clients:
            ratios = interleaved(functools.partial(clients.ask_all, requests), predict, options.pairs)
        rows.append(
            {
                "what": "throughput",
                "pictures_per_request": together,
                "clients": options.clients,
                "pictures_per_s": round(len(files) / ratios.f_seconds, 1),
                "predict_pictures_per_s": round(len(files) / ratios.g_seconds, 1),
                "ratio": round(ratios.ratio, 3),
                "ratio_low": round(ratios.ratio_low, 3),
                "ratio_high": round(ratios.ratio_high, 3),
                "control": round(ratios.control, 3),
                "limit": 0.8,
            }
        )
    return rows


def latency(options: argparse.Namespace, files: Sequence[Path], address: str) -> list[Row]:
    """Percentiles by load."""
    requests = [request_of([file]) for file in files[:500]]
    rows = [closed(address, requests, clients, options.seconds) for clients in CLOSED_LOADS]
    most = max(row["pictures_per_s"] for row in rows)
    return rows + [open_loop(address, requests, share, share * most, options.seconds) for share in OPEN_LOADS]


def closed(address: str, requests: Sequence[bytes], count: int, seconds: float) -> Row:
    """So many clients that ask again as soon as they are answered."""
    turns = itertools.cycle(requests)

    def client(until: float) -> list[float]:
        times = []
        while time.perf_counter() < until:
            times.append(clients.ask(next(turns)))
        return times

    with Clients(address, count) as clients:
        clients.ask_all(requests[: 4 * count])
        start = time.perf_counter()
        times = [each for done in clients.pool.map(client, [start + seconds] * count) for each in done]
        taken = time.perf_counter() - start
    return {
        "what": "latency",
        "load": f"{count} clients",
        "pictures_per_s": round(len(times) / taken, 1),
        **cuts(times),
    }


def open_loop(address: str, requests: Sequence[bytes], share: float, rate: float, seconds: float) -> Row:
    """Requests at random times; the time of one counts from when it was due."""
    rng, turns = random.Random(0), itertools.cycle(requests)

    def late(due: float, request: bytes) -> float:
        clients.ask(request)
        return time.perf_counter() - due

    with Clients(address, 128) as clients:
        clients.ask_all(requests[:128])
        due, asked = time.perf_counter(), []
        end = due + seconds
        while due < end:
            due += rng.expovariate(rate)
            time.sleep(max(0.0, due - time.perf_counter()))
            asked.append(clients.pool.submit(late, due, next(turns)))
        answered = [each.result() for each in asked]
    return {
        "what": "latency",
        "load": f"{share:.0%}",
        "pictures_per_s": round(len(answered) / seconds, 1),
        **cuts(answered),
    }


def cuts(times: Sequence[float]) -> Row:
    """Percentiles in milliseconds."""
    percentiles = statistics.quantiles(times, n=100, method="inclusive")
    return {name: round(1000 * percentiles[cut - 1], 2) for name, cut in CUTS.items()}


BENCHMARKS: dict[str, Callable[[argparse.Namespace, Sequence[Path], str], list[Row]]] = {
    "throughput": throughput,
    "latency": latency,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a bundle or a run directory")
    add_names(parser, BENCHMARKS)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--pairs", type=int, default=5, help="rounds of the throughput")
    parser.add_argument("--clients", type=int, default=16, help="connections of the throughput")
    parser.add_argument("--together", type=int, default=16, help="pictures of a large request")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load of the latency")
    parser.add_argument("--serve", default="", help="more options of tools.serve, in one text")
    parser.add_argument("--results", default="serving", help="name of the file in benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(options.model, options) as address:
        files = write_pictures(Path(folder), options.pictures, *options.size)
        rows = [row for name in options.names for row in BENCHMARKS[name](options, files, address)]
    command = f"python -m benchmarks.serving {shlex.join(sys.argv[1:])}"
    write_results(
        options.results, rows, command, {"picture": "x".join(map(str, options.size)), "seconds": options.seconds}
    )


if __name__ == "__main__":
    main()
