"""Processes that decode for the server: what they answer, and how they are ended and replaced."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from linnaeus_jax import system
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.pictures import read_picture
from linnaeus_jax.inference.server import decoder_process, serving
from linnaeus_jax.inference.server.decoders import Decoders, Undecoded
from linnaeus_jax.inference.server.requests import RETRY_AFTER, Limits
from linnaeus_jax.reading.box_cuts import Box, Cut
from tests.campaign.pictures_made import encoded, jpeg_of_scans
from tests.inference.serving_helpers import bomb
from tests.inference.serving_helpers import encoded as file_of

PREPROCESSING = Preprocessing((32, 24), resize_mode="pad", reduced_decode=False)
PICTURE = file_of(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8), "JPEG")


def test_a_picture_is_answered_by_pixels_or_by_a_reason():
    kind, content = decoder_process.answer(PICTURE, PREPROCESSING, 10**6, Cut())
    assert kind == decoder_process.PIXELS
    said, _, pixels = content.partition(b"\n")
    assert json.loads(said) == [["", []]]
    np.testing.assert_array_equal(
        np.frombuffer(pixels, np.uint8).reshape(32, 24, 3), read_picture(PICTURE, PREPROCESSING)
    )
    for raw, kind, words in (
        (bomb(), decoder_process.TOO_COSTLY, b"10000 x 10000 pixels; send at most 1000000"),
        (jpeg_of_scans(64, 64, 2000), decoder_process.TOO_COSTLY, b"scans"),
        (b"#!/bin/sh", decoder_process.UNKNOWN, b"no image decoder"),
        (PICTURE[:-300], decoder_process.DAMAGED, b"truncated"),
    ):
        for boxes in ([], [Box(1, (0.0, 0.0, 0.5, 0.5))]):
            got, content = decoder_process.answer(raw, PREPROCESSING, 10**6, Cut(), boxes)
            assert (got, words in content) == (kind, True), content


def test_jax_is_not_imported():
    program = "import sys, linnaeus_jax.inference.server.decoder_process\nsys.exit('jax' in sys.modules)"
    env = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == 0


def test_the_end_of_the_server_is_timed(model, monkeypatch):
    """A timer that ends the process is set by the signal, before anything waits for anything."""
    calls = []
    monkeypatch.setattr(
        serving.faulthandler, "dump_traceback_later", lambda *given, **named: calls.append((given, named))
    )
    server = serving.server_of(serving.create_app(model, Limits(seconds=7)))
    server.handle_exit(signal.SIGTERM, None)
    assert calls == [((7 + RETRY_AFTER + serving.ENDING,), {"exit": True})]
    assert server.should_exit


def slow_picture() -> bytes:
    """One that is accepted and takes seconds."""
    return jpeg_of_scans(6000, 6000, 90)


@pytest.mark.slow
@pytest.mark.parametrize("inherited", [True, False])
def test_processes_are_ended_and_replaced(monkeypatch, inherited):
    """Whether they inherit their sockets or connect to one."""
    monkeypatch.setattr(system, "CAN_PASS_SOCKETS", inherited)

    async def run() -> None:
        pool = Decoders(PREPROCESSING, 64_000_000, 0.6, 2)
        pool.start()
        try:
            await story(pool)
        finally:
            await asyncio.to_thread(pool.close)
        assert all(process.ended for process in pool._all)

    async def works(pool: Decoders) -> None:
        [row] = await pool.read(PICTURE)
        np.testing.assert_array_equal(row.pixels, read_picture(PICTURE, PREPROCESSING))

    async def story(pool: Decoders) -> None:
        await asyncio.gather(*(works(pool) for _ in range(5)))
        assert await pool.fault() == ""

        slow = slow_picture()  # more of them than there are processes
        answers = await asyncio.gather(*(pool.read(slow) for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in answers] == ["it takes more than 0.6 s to decode"] * 3
        assert [each.status for each in answers if isinstance(each, Undecoded)] == [422] * 3
        await works(pool)

        reading = asyncio.ensure_future(pool.read(slow))
        await asyncio.sleep(0.2)
        reading.cancel()  # as for a client that has left
        assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], asyncio.CancelledError)
        await asyncio.gather(works(pool), works(pool))

        reading = asyncio.ensure_future(pool.read(slow))
        await asyncio.sleep(0.2)
        busy = {process for process in pool._all if process not in pool._idle._queue}  # type: ignore[attr-defined]
        os.kill(busy.pop()._process.pid, signal.SIGSEGV)
        assert "its decoder ended over it (SIGSEGV)" in str((await asyncio.gather(reading, return_exceptions=True))[0])
        for process in list(pool._all):  # idle ones die
            os.kill(process._process.pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        await asyncio.gather(works(pool), works(pool))

        for process in list(pool._all):
            os.kill(process._process.pid, signal.SIGSTOP)
        assert await pool.fault() == "no decoder answers within 2 s; they are started again"
        await asyncio.gather(works(pool), works(pool))
        assert await pool.fault() == ""

    asyncio.run(run())


@pytest.mark.slow
def test_decoders_that_do_not_start(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(decoder_process, "__name__", "no.such.module")

    async def run() -> None:
        pool = Decoders(PREPROCESSING, 10**6, 5, 1)
        pool.start()
        with pytest.raises(Undecoded, match="no decoder starts") as refused:
            await pool.read(PICTURE)
        assert refused.value.status == 503
        assert "no decoder answers" in await pool.fault()
        pool.close()

    asyncio.run(run())


@pytest.mark.slow
def test_memory_of_a_process_is_bounded():
    """Far below what the picture needs, whose header says little."""
    large = dataclasses.replace(PREPROCESSING, size=(30_000, 30_000))

    async def run() -> None:
        pool = Decoders(large, 10**6, 20, 1)
        pool.start()
        started = time.monotonic()
        with pytest.raises(Undecoded, match="too much memory"):
            await pool.read(encoded(40, 30, "PNG"))
        assert time.monotonic() - started < 15
        await asyncio.to_thread(pool.close)

    asyncio.run(run())
