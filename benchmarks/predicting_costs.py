"""CPU time, page faults and memory of predicting, beside what reading and the bare forward pass cost.

    python -m benchmarks.predicting costs [--images 512] [--pairs 3]

EfficientNet-lite0 with its published weights and invented names, JPEGs of 500 x 375. Each measurement is a process of
its own, in turns with those in which `LINNAEUS_PLAIN=kept-memory,small-batches` takes the memory settings away
(`before`). CPU-ms are user plus system per image: of `predict` and of a server at 16 images a request, the difference
between all images and an eighth of them, so without the start, which is stated apart. `share` is what reading and the
forward pass cost together by what the program costs; the goal is 0.8.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.serving import Clients, request_of, server, write_pictures
from linnaeus_jax.tools import bundle as bundle_tool

Row = dict[str, Any]
GOAL = 0.8
PLAIN = "kept-memory,small-batches"
TOGETHER, CLIENTS = 16, 4


def make_bundle(place: Path) -> Path:
    """A bundle of the published classifier; its 1,000 classes bear invented names."""
    letters = "abcdefghij"
    names = [
        f"Genus{letters[n // 100]}{letters[n // 10 % 10]} species{letters[n % 10]}{n // 10:02d}" for n in range(1000)
    ]
    names = [name.translate(str.maketrans("0123456789", letters)) for name in names]
    (place / "labels.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    given = ["--from-weights", "package:efficientnet-lite0", "--labels", str(place / "labels.txt")]
    if bundle_tool.main([*given, str(place / "bundle")]):
        raise SystemExit("the bundle could not be made")
    return place / "bundle"


def worker(part: str, bundle: Path, folder: Path, environ: Mapping[str, str]) -> Row:
    """What `benchmarks.inference_worker` measures, by image."""
    command = [sys.executable, "-m", "benchmarks.inference_worker", part, str(bundle), str(folder)]
    found = json.loads(subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    return {
        "cpu_ms": 1e3 * (found["user"] + found["system"]) / found["images"],
        "system_ms": 1e3 * found["system"] / found["images"],
        "faults": found["faults"] / found["images"],
        "peak_mb": found["peak_mb"],
    }


def _usage(command: list[str], environ: Mapping[str, str]) -> tuple[float, float, int, float]:
    """CPU seconds, those of the system, page faults and largest memory in MB of a program."""
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_stime, used.ru_minflt, used.ru_maxrss / 1024


def predicted(bundle: Path, few: Path, many: Path, environ: Mapping[str, str]) -> Row:
    """`tools.predict`, by image."""
    command = [sys.executable, "-m", "linnaeus_jax.tools.predict", str(bundle)]
    out = many.parent / "predictions.csv"
    used = [_usage([*command, str(folder), "--out", str(out), "--force"], environ) for folder in (few, many)]
    counts = [len(list(folder.iterdir())) for folder in (few, many)]
    return _by_image(used, counts)


def _by_image(used: list[tuple[float, float, int, float]], counts: list[int]) -> Row:
    cpu, system, faults = ((used[1][k] - used[0][k]) / (counts[1] - counts[0]) for k in range(3))
    row = {"cpu_ms": 1e3 * cpu, "system_ms": 1e3 * system, "faults": faults, "peak_mb": used[1][3]}
    return row | {"start_s": used[0][0] - cpu * counts[0]}


def served(bundle: Path, many: Path, environ: Mapping[str, str]) -> Row:
    """A server and its decoders, by image."""
    files = sorted(many.iterdir())
    requests = [request_of(files[start : start + TOGETHER]) for start in range(0, len(files), TOGETHER)]
    options = argparse.Namespace(together=TOGETHER, serve="")
    known = {process.pid for process in psutil.Process().children(recursive=True)}
    saved = dict(os.environ)
    os.environ.update(environ)
    try:
        with server(str(bundle), options) as address, Clients(address, CLIENTS) as clients:
            mine = [each for each in psutil.Process().children(recursive=True) if each.pid not in known]
            used = []
            for some in (requests[: max(1, len(requests) // 8)], requests):
                clients.ask_all(some)
                times = [each.cpu_times() for each in mine]
                cpu, system = sum(t.user + t.system for t in times), sum(t.system for t in times)
                peak = max(_peak_mb(each.pid) for each in mine)
                used.append((cpu, system, sum(_faults(each.pid) for each in mine), peak))
    finally:
        os.environ.clear()
        os.environ.update(saved)
    row = _by_image(used, [0, len(files)])
    return row


def _faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def costs(options: argparse.Namespace, place: Path) -> list[Row]:
    """A line for each part, medians over the rounds, before and now."""
    few, many = place / "few", place / "many"
    many.mkdir()
    few.mkdir()
    bundle = make_bundle(place)
    for path in write_pictures(many, options.images, 500, 375)[: max(1, options.images // 8)]:
        shutil.copy(path, few)
    kinds = {"before": {**os.environ, "LINNAEUS_PLAIN": PLAIN}, "now": {**os.environ, "LINNAEUS_PLAIN": ""}}
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for _ in range(options.pairs):
        for kind, environ in kinds.items():
            for part in ("reading", "forward"):
                found[part, kind].append(worker(part, bundle, many, environ))
            found["predict", kind].append(predicted(bundle, few, many, environ))
            found["server", kind].append(served(bundle, many, environ))
    rows: list[Row] = []
    for (part, kind), measured in found.items():
        row = {key: round(statistics.median(each[key] for each in measured), 2) for key in measured[0]}
        rows.append({"what": part, "kind": kind, **row})
        if part in ("predict", "server"):
            shares = [
                (reading["cpu_ms"] + forward["cpu_ms"]) / whole["cpu_ms"]
                for reading, forward, whole in zip(
                    found["reading", kind], found["forward", kind], measured, strict=True
                )
            ]
            share = statistics.median(shares)
            rows[-1] |= {"share": round(share, 3), "limit": GOAL, "within": share >= GOAL}
    return rows
