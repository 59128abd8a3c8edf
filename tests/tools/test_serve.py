"""The tool that serves a model: its command line, and a server under load in a process of its own."""

from __future__ import annotations

import base64
import functools
import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import linnaeus_jax
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.server.batching import WAIT
from linnaeus_jax.inference.server.requests import RETRY_AFTER
from linnaeus_jax.inference.server.serving import ENDING, SERVER_BUCKETS
from linnaeus_jax.tools import serve
from tests.campaign.pictures_made import jpeg_of_scans
from tests.inference.conftest import small_bundle
from tests.inference.serving_helpers import bomb, encoded

REQUESTS, AT_ONCE, EVERY = 1000, 16, 20  # one of EVERY is malformed: 5 %


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "neither a bundle"),
        (["nothing", "--buckets=1,x"], "--buckets is '1,x'"),
        (["nothing", "--max-queue=0"], "--max-queue is 0"),
        (["nothing", "--host=no.such.host.invalid"], "cannot listen on no.such.host.invalid:0"),
        (["nothing", "--port=99999"], "cannot listen"),
        (["nothing", "--host-names=http://a"], "--host-names holds 'http://a'"),
        (["nothing", "--origins=a"], "--origins holds 'a'"),
        (["nothing", "--token-file=no/such/file"], "no/such/file: No such file or directory"),
        (["nothing", "--token-file=/dev/null"], "/dev/null holds no token"),
        (["nothing", "--max-connections=0"], "--max-connections is 0"),
        (["nothing", "--max-connections=2000000000"], "raise the limit of open files (ulimit -Hn)"),
    ],
)
def test_errors(arguments, words, capsys):
    assert serve.main(["--port=0", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_port_that_is_taken(capsys):
    with serve.listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert serve.main(["nothing", f"--port={port}"]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_no_search_for_garbage_goes_through_what_was_loaded(monkeypatch):
    collected = []
    monkeypatch.setattr(serve.gc, "collect", lambda: collected.append(gc.get_freeze_count()))
    frozen = gc.get_freeze_count()
    try:
        serve.keep_what_is_loaded()
        assert collected == [frozen]  # what is garbage goes before
        assert gc.get_freeze_count() > frozen + 10_000
    finally:
        gc.unfreeze()


def wrong_requests(picture: bytes) -> list[tuple[range, dict[str, Any]]]:
    """Malformed requests, with the statuses that answer them."""
    client_error = range(400, 500)
    as_json = {"content-type": "application/json"}
    return [
        (client_error, {"url": "/predict", "files": {"images": ("cut.jpg", picture[:-300])}}),
        (client_error, {"url": "/predict", "files": {"images": ("bomb.png", bomb())}}),
        (client_error, {"url": "/predict", "content": b'{"images": ["', "headers": as_json}),
        (client_error, {"url": "/../../../etc/passwd", "content": picture}),
        (client_error, {"url": "/predict", "json": {"images": ["../../../etc/passwd"]}}),
        (client_error, {"url": "/predict", "files": {"images": ("large.jpg", bytes(50 * 2**20))}}),
    ]


@contextmanager
def served(bundle: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address and process of a server."""
    command = [sys.executable, "-m", "linnaeus_jax.tools.serve", str(bundle), "--port=0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"serving on (http://[^ ]+)/", line):
                yield found[1], process
                break
        else:
            raise AssertionError(f"the server ended with {process.wait()}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def resident(url: str) -> float:
    """Bytes of memory of the server."""
    found = re.search(r"^process_resident_memory_bytes (.+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.slow
def test_thousand_requests(tmp_path):
    write_bundle(small_bundle(), tmp_path / "bundle")
    pixels = np.random.default_rng(3).integers(0, 256, (200, 90, 80, 3), dtype=np.uint8)
    files = [encoded(each, "JPEG") for each in pixels]
    places = np.random.default_rng(4).uniform(-80, 80, (200, 2)).round(3)
    model = linnaeus_jax.load(tmp_path / "bundle")
    expected = model.predict(files, latitude=list(places[:, 0]), longitude=list(places[:, 1]))
    alone = model.predict(files)
    wrong = wrong_requests(files[0])

    def ask(client: httpx.Client, number: int) -> str:
        """What is wrong with the answer; empty if nothing is."""
        if number % EVERY == 0:
            statuses, request = wrong[number // EVERY % len(wrong)]
            status = client.post(**request).status_code
            return "" if status in statuses else f"{request['url']}: {status}"
        row, with_place = number % 200, number % 3 > 0
        where = {"latitude": places[row, 0], "longitude": places[row, 1]} if with_place else {}
        if number % 2:
            answer = client.post("/predict", files={"images": (f"{row}.jpg", files[row])}, data=where)
        else:
            content = {"data": base64.b64encode(files[row]).decode(), "name": f"{row}.jpg"}
            answer = client.post("/predict", json={"images": [content], **where})
        if answer.status_code != 200:
            return f"{row}: {answer.status_code} {answer.text[:200]}"
        picture = answer.json()["predictions"][0]
        right = (expected if with_place else alone)[row]
        mistakes = [picture["image"] != f"{row}.jpg", picture["inputs"] != list(right.inputs)]
        for taxon, other in zip(picture["path"], right.path, strict=True):
            mistakes += [taxon["taxon_id"] != other.taxon_id, abs(taxon["probability"] - other.probability) > 1e-5]
        return f"{row}: {picture['path']} is not {right.path}" if any(mistakes) else ""

    with served(tmp_path / "bundle") as (url, process), httpx.Client(base_url=url, timeout=120) as client:
        asked = functools.partial(ask, client)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            warming = [answer for answer in pool.map(asked, range(300)) if answer]
            before = resident(url)
            mistakes = [answer for answer in pool.map(asked, range(REQUESTS)) if answer]
            after = resident(url)
        assert warming + mistakes == []
        assert after <= 1.1 * before, f"memory grew from {before:.4g} to {after:.4g} bytes"
        health = httpx.get(f"{url}/health").json()
        assert health["compilations"] == len(health["batch_sizes"])
        print(json.dumps({"before": before, "after": after}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_stopping_answers_what_has_come(tmp_path):
    """Requests that were accepted before SIGTERM are answered, and the process ends without an error."""
    write_bundle(small_bundle(), tmp_path / "bundle")
    pixels = np.random.default_rng(3).integers(0, 256, (90, 80, 3), dtype=np.uint8)
    content = encoded(pixels)
    with served(tmp_path / "bundle", "--max-pictures=400") as (url, process), ThreadPoolExecutor(4) as pool:
        with httpx.Client(base_url=url, timeout=60) as client:
            client.get("/health")
            many = [("images", (f"{number}.png", content)) for number in range(400)]
            answers = [pool.submit(client.post, "/predict", files=many) for _ in range(4)]
            while "linnaeus_requests_active 4.0" not in client.get("/metrics").text:
                pass
            process.send_signal(signal.SIGTERM)
            for answer in answers:
                assert answer.result().status_code == 200
                assert len(answer.result().json()["predictions"]) == 400
        assert process.wait(60) == 0


def stop_decoders(process: subprocess.Popen[str]) -> None:
    """Lets every decoder hang, as a picture does that nobody has thought of."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    decoders = [child for child in children if b"decoder_process" in Path(f"/proc/{child}/cmdline").read_bytes()]
    assert len(decoders) == 2
    for decoder in decoders:
        os.kill(decoder, signal.SIGSTOP)


@pytest.mark.slow
def test_pictures_that_hang_their_decoders(tmp_path):
    """They are answered in time, later ones as ever; /health sees decoders; the end comes in time."""
    write_bundle(small_bundle(), tmp_path / "bundle")
    picture = encoded(np.random.default_rng(3).integers(0, 256, (90, 80, 3), dtype=np.uint8))
    files = [("images", ("a.png", picture))]
    hostile = [("images", ("a.jpg", jpeg_of_scans(1000, 1000, 20_000)))]
    options = ("--decoders=2", "--max-seconds=3", "--buckets=1")
    with served(tmp_path / "bundle", *options) as (url, process), ThreadPoolExecutor(6) as pool:
        with httpx.Client(base_url=url, timeout=60) as client:
            for _ in range(2):
                refused = client.post("/predict", files=hostile)
                assert (refused.status_code, "scans" in refused.text) == (413, True)
                assert client.post("/predict", files=files).status_code == 200
            stop_decoders(process)
            for answer in [pool.submit(client.post, "/predict", files=files) for _ in range(2)]:
                assert answer.result().status_code == 422
                assert "picture 0 (a.png): it takes more than 1.5 s to decode" in answer.result().text
            assert client.post("/predict", files=files).status_code == 200
            stop_decoders(process)
            health = client.get("/health")
            assert health.status_code == 503
            assert health.json()["status"] == "failed"
            assert "no decoder answers within 2 s; they are started again" in health.json()["reason"]
            while (health := client.get("/health")).status_code != 200:
                assert health.json()["reason"] == "the decoders are starting"
            assert client.post("/predict", files=files).status_code == 200
            stop_decoders(process)
            hanging = [pool.submit(client.post, "/predict", files=files) for _ in range(3)]
            while "linnaeus_requests_active 3.0" not in client.get("/metrics").text:
                pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(3 + RETRY_AFTER + ENDING) == 0
            for answer in hanging:
                answer.exception()


def test_what_the_help_calls_defaults_are_the_servers():
    parser = serve._parser()
    assert parser.get_default("wait_ms") == 1000 * WAIT
    assert f"(default: {','.join(map(str, SERVER_BUCKETS))};" in " ".join(parser.format_help().split())
