"""How long a bundle takes for an answer, from a picture file on: a process of its own.

python -m benchmarks.real.latency BUNDLE OUT.json PICTURE ...

One picture at a time by `Model.predict` and by a server that runs beside its client, then all pictures as
`tools.predict` reads them. CPU-seconds hardly change where other programs run, seconds do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import linnaeus_jax
from benchmarks.serving import closed, request_of, server
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job, predict_files
from linnaeus_jax.inference.metadata import Observation

#: rows of the compiled programs
ONE, MANY = 1, 16
#: answers to one picture; seconds of a client
TIMES, SECONDS = 15, 2.0


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds and CPU-seconds."""
    seconds, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - seconds, time.process_time() - cpu


def measured(bundle: str, pictures: list[Path]) -> dict[str, Any]:
    """All of it, as JSON types."""
    one = linnaeus_jax.load(bundle, buckets=(ONE,))
    one.predict(pictures[0])
    alone = [timed(lambda path=path: one.predict(path)) for path in pictures[:TIMES]]  # type: ignore[misc]
    many = linnaeus_jax.load(bundle, buckets=(MANY,))
    jobs = [Job(PictureFile(path, path.name, path.name), Observation()) for path in pictures]

    def answered() -> None:
        parts = predict_files(many, jobs, many.answers.options())
        assert sum(len(part.names) for part in parts) == len(jobs)

    list(predict_files(many, jobs[:MANY], many.answers.options()))
    seconds, cpu = timed(answered)
    with server(bundle, argparse.Namespace(together=MANY, serve="")) as address:
        served = closed(address, [request_of([path]) for path in pictures], 1, SECONDS)
    return {
        "predict_ms": round(1000 * statistics.median(each for each, _ in alone), 1),
        "predict_cpu_ms": round(1000 * statistics.median(each for _, each in alone), 1),
        "pictures_per_s": round(len(jobs) / seconds, 1),
        "pictures_per_cpu_s": round(len(jobs) / cpu, 1),
        "server_ms": served["p50_ms"],
        "pictures": len(jobs),
    }


def main(argv: list[str]) -> int:
    """Writes the JSON file."""
    Path(argv[1]).write_text(json.dumps(measured(argv[0], [Path(path) for path in argv[2:]])) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
