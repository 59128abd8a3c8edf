"""Hostile pictures: each is read or refused within bounds of time and memory, and nothing of it reaches the terminal.

It is decoded as training, `build_dataset` and `predict` do, in a thread of a process that has imported everything.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from linnaeus_jax.data.decoding import image_size
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.exif import observation_of
from tests.campaign.case import Case, Outcome
from tests.campaign.pictures_made import GENERATORS, damaged_ones
from tests.forks import FORKS

#: seconds of CPU for the bytes and pixels that a request may bring, and bytes of memory beside those of the file
SECONDS, MEMORY = 6.0, 3 * 2**30
LONGEST = 120.0
#: that C libraries may write to stderr for one picture
LINES = 3
#: seeds of the generators, each with other sizes
ROUNDS, DAMAGED = 3, 400


def cases(seed: int, directory: Path, rounds: int = ROUNDS, damaged: int = DAMAGED) -> Iterator[Case]:
    """All cases, of every format in turn."""
    rng = random.Random(seed)
    for number in range(rounds):
        for kind, generator in GENERATORS.items():
            for name, data in generator(random.Random(f"{seed} {number} {kind}")):
                yield Case(kind, f"{kind} {number}: {name}", partial(_run, zlib.compress(data, 1)))
    for kind, name, data in damaged_ones(rng, damaged):
        yield Case("damaged", f"{kind} {name}", partial(_run, zlib.compress(data, 1)))


def _run(packed: bytes, directory: Path) -> Outcome:
    """Reads a picture, whose bytes are packed since all cases are in memory, in a child."""
    data = zlib.decompress(packed)
    said, result = directory / "said", directory / "result"
    (directory / "picture").write_bytes(data)
    child = FORKS.Process(target=_in_child, args=(directory,))
    child.start()
    child.join(LONGEST)
    if child.exitcode is None:
        child.kill()
        child.join()
    ended = child.exitcode or 0
    child.close()
    words, _, used = result.read_text().rpartition("\n") if result.exists() else ("", "", "0 0")
    seconds, memory = float(used.split()[0]), int(used.split()[1])
    text = f"{len(data)} bytes, {seconds:.1f} s, {memory / 2**20:.0f} MiB"
    if ended or not result.exists():
        return Outcome(False, f"killed by signal {-ended}" if ended < 0 else "no result", text)
    if seconds > SECONDS:
        return Outcome(False, f"more than {SECONDS:g} s", f"{text}: {words}")
    if memory > MEMORY + 4 * len(data):
        return Outcome(False, "too much memory", f"{text}: {words}")
    if len(said.read_bytes().splitlines()) > LINES or words.count("\n"):
        return Outcome(False, "says too much", f"{text}: {words} {said.read_text(errors='replace')[:500]}")
    return Outcome(not words.startswith("!"), words.split(":")[0], f"{text}: {words}")


def _in_child(directory: Path) -> None:
    data = (directory / "picture").read_bytes()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(directory / "said", os.O_RDWR | os.O_CREAT, 0o644), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  the process ends here
    out = np.empty((224, 224, 3), np.uint8)
    words = "refused before it is decoded"
    try:
        image_size(data)
        words = "refused"
        Preprocessing(out.shape[:2]).decode(data, out)
        words = "read"
    except ValueError as error:
        words = f"{words}: {error}"
    except Exception as error:
        words = f"! {type(error).__name__}: {error}"
    observation_of(data)
    used = resource.getrusage(resource.RUSAGE_SELF)
    (directory / "result").write_text(f"{words}\n{used.ru_utime + used.ru_stime} {used.ru_maxrss * 1024}")
