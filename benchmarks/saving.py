"""What a part of saving costs or gains: the time that the loop waits, work in the background, restoring.

    python -m benchmarks.saving [--without digests|syncing|whole_copies] [--model mFormerV1-sm] [--pairs 10]
                               [--directory DIR]

The state is that of a run with AdamW and a moving average, filled with noise, saved and restored by what a run uses,
alternately as it is and without one part of it. `ratio` is the time without over the time with it, `control` that of
the whole against itself; limit: it adds at most 2 % to the time that the loop waits, a ratio of 0.98. Files are
restored right after they were written, from the system's cache; a slow disk adds to both sides, but for syncing: there
it is what is measured, so give a `--directory` on the disk of the runs. Arrays are synced by their library either way.
`--without whole_copies` lets each of several devices (`JAX_NUM_CPU_DEVICES=8`) copy a part of every small array to the
host, as Orbax does by itself; it has no limit.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import jax
import numpy as np
from orbax.checkpoint.path import atomicity

from benchmarks.common import compared, write_results
from benchmarks.step_common import MODELS, Case, build, write_labels
from linnaeus_jax.compat import orbax_parts
from linnaeus_jax.run import checkpoints as module
from linnaeus_jax.run import digests
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.step.placement import Placement

LIMIT = 0.98
#: what is measured -> its unit's name in the table
MEASURES = {"loop waits": "wait", "in the background": "background", "CPU time of it all": "cpu", "restore": "restore"}


def state_of(model: str, labels: Path) -> Any:
    """Noise in the shapes of a state with AdamW and a moving average, and its bytes."""
    program = build(Case(model, 224, 2 * jax.device_count(), None), labels, {"train.ema.enabled": True}).program
    rng = np.random.default_rng(0)
    everywhere = Placement(jax.devices()).replicated

    def fill(leaf: Any) -> jax.Array:
        floating = np.issubdtype(leaf.dtype, np.floating)
        values = rng.standard_normal(leaf.shape, np.float32) if floating else np.zeros(leaf.shape)
        return jax.device_put(values.astype(leaf.dtype), everywhere)

    return jax.tree.map(fill, jax.eval_shape(program.initial_state).replace(interval=None))


@contextlib.contextmanager
def without_digests() -> Iterator[None]:
    """Checkpoints as they were before there were digests."""
    with (
        mock.patch.object(module, "PathWithDigests", atomicity.AtomicRenameTemporaryPath),
        mock.patch.object(module, "check_digests"),
    ):
        yield


@contextlib.contextmanager
def without_syncing() -> Iterator[None]:
    """Checkpoints that have their name before they are on the disk."""
    with mock.patch.object(digests, "sync_tree"), mock.patch.object(digests, "sync"):
        yield


def without_whole_copies() -> contextlib.AbstractContextManager[Any]:
    """Every device copies a part of every array that it can."""
    return mock.patch.object(orbax_parts, "SMALLEST_PART", 0)


#: what may be left out, which also names the results
PARTS = {"digests": without_digests, "syncing": without_syncing, "whole_copies": without_whole_copies}


def saved_and_restored(directory: Path, state: Any) -> dict[str, float]:
    """Seconds of each of `MEASURES` for one checkpoint."""
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        with contextlib.closing(Checkpoints(Path(name))) as checkpoints:
            checkpoints.steps()  # opened, as in a run that has saved before
            cpu, start = time.process_time(), time.perf_counter()
            checkpoints.save(1, state, {"host": {}})
            waited = time.perf_counter() - start
            checkpoints.wait()
            background, cpu = time.perf_counter() - start - waited, time.process_time() - cpu
            start = time.perf_counter()
            jax.block_until_ready(checkpoints.restore(1, abstract))
            restore = time.perf_counter() - start
    return {"wait": waited, "background": background, "cpu": cpu, "restore": restore}


def rows_of(model: str, directory: Path, pairs: int, part: str = "digests") -> list[dict[str, Any]]:
    """One row for each of `MEASURES`; `part` of `PARTS` is left out for comparison."""
    state = state_of(model, write_labels(directory / "labels.h5"))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes"))
    found: dict[str, dict[str, list[float]]] = {"with": defaultdict(list), "without": defaultdict(list)}

    def one(kind: str) -> dict[str, float]:
        with PARTS[part]() if kind == "without" else contextlib.nullcontext():
            seconds = saved_and_restored(directory, state)
        for measure, value in seconds.items():
            found[kind][measure].append(value)
        return seconds

    def waits(kind: str) -> Callable[[], float]:
        return lambda: one(kind)["wait"]

    ratios = compared(waits("with"), waits("without"), pairs)
    rows = []
    for measure, key in MEASURES.items():
        with_it, without = (median(found[kind][key]) for kind in ("with", "without"))
        row: dict[str, Any] = {"model": model, "state_mib": round(size / 2**20, 1), "part": part, "measure": measure}
        row |= {"seconds": round(with_it, 4), "seconds_without": round(without, 4)}
        row |= {"added_seconds": round(with_it - without, 4)}
        if key == "wait":
            row |= {name: value for name, value in ratios.row().items() if name.startswith(("ratio", "control"))}
            row |= {} if part == "whole_copies" else {"limit": LIMIT}
        else:
            row["ratio"] = float(f"{without / with_it:.4g}")
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", choices=PARTS, default="digests", help="what the other side leaves out")
    parser.add_argument("--model", choices=MODELS, default="mFormerV1-sm")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--directory", type=Path, help="where checkpoints are written (default: a temporary directory)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        rows = rows_of(options.model, Path(name), options.pairs, options.without)
    given = sys.argv[1:] if argv is None else argv
    results = "saving" if options.without == "digests" else f"saving_{options.without}"
    print(write_results(results, rows, shlex.join(["python", "-m", "benchmarks.saving", *given])))


if __name__ == "__main__":
    main()
