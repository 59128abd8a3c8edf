"""How fast heads train on features, and how fast what a trunk makes of pictures is stored (`train.tune`).

    python -m benchmarks.stored_inputs [head] [storing] [--rows 100000] [--batch 256] [--pairs 5]

  head     seconds of an epoch of a whole run: `--rows` rows of 1,280 float16 features, four ranks of 1,000, 300, 60 and
           15 classes, `--batch` rows an update; the median of the epochs after the first. The goal is 10 s on two cores
  storing  EfficientNet-Lite0 at 224 px: pictures in two views through the loader, the augmentation and the trunk onto
           the disk, against the bare forward pass of the same trunk over as many pictures that are in memory already.
           `ratio` is the speed of storing relative to that, the median over alternating rounds with quartiles; the
           goal is 0.9. `control` is storing against itself

Weights, features and pictures are random. `peak_mb` is the most memory that the process has held until then.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from benchmarks.common import add_names, compared, write_results
from benchmarks.step_common import BARE, Case, case_config, write_labels
from linnaeus_jax.data.stored_inputs import StoredFile
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import stored, trainer
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.interruption import Interruption
from linnaeus_jax.run.watchdog import Watchdog
from linnaeus_jax.step.process import compiler_options, keep_freed_memory

Row = dict[str, Any]
FEATURES, SIDE, EPOCHS = 1280, 224, 4
#: pictures that are stored in a round, in batches, beside each of them one augmented view
PICTURES, BATCH = 256, 64


def peak_mb() -> float:
    """The most resident memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def configured(labels: Path, images: Path, batch: int, **changes: Any) -> ConfigDict:
    """A run of Lite0 on training rows alone, without metadata."""
    case = Case("EfficientNet-lite0", SIDE, batch, False)
    settings = {"data.h5.train_images_path": str(images), "data.meta.active": False, "train.epochs": EPOCHS}
    return case_config(case, labels, {**BARE, **settings, **{key.replace("__", "."): changes[key] for key in changes}})


def head(options: argparse.Namespace, folder: Path) -> list[Row]:
    from benchmarks.real import features as image_source  # noqa: F401  # it registers itself

    labels, features = write_labels(folder / "labels.h5", options.rows), folder / "head.features"
    values = np.lib.format.open_memmap(features, "w+", np.float16, (options.rows, FEATURES))
    rng = np.random.default_rng(0)
    for first in range(0, options.rows, 10_000):
        part = values[first : first + 10_000]
        part[:] = rng.standard_normal(part.shape, np.float32)
    values.flush()
    trainer.run(configured(labels, features, options.batch, train__tune="head"), folder / "head")
    lines = (folder / "head" / "logs" / "metrics_log.jsonl").read_text().splitlines()
    times = [row[key] for row in map(json.loads, lines) for key in row if key == "train/epoch_duration_sec"]
    seconds = statistics.median(times[1:])
    shape = {"rows": options.rows, "batch": options.batch}
    return [{"part": "head", **shape, "seconds": seconds, "rows_per_s": options.rows / seconds, "peak_mb": peak_mb()}]


def storing(options: argparse.Namespace, folder: Path) -> list[Row]:
    labels, pictures = write_labels(folder / "few.h5", PICTURES), folder / "pictures.h5"
    with h5py.File(pictures, "w") as file:
        file["images"] = np.random.default_rng(0).integers(0, 256, (PICTURES, SIDE, SIDE, 3), np.uint8)
    return [storing_of(tune, labels, pictures, options.pairs) for tune in ("head", "last:5")]


def storing_of(tune: str, labels: Path, pictures: Path, pairs: int) -> Row:
    """The line of one `train.tune`."""
    config = configured(labels, pictures, 32, train__tune=tune, train__tune_views=1, data__batch_size_val=BATCH)
    experiment = preview_experiment(config, RunDirectory(labels.parent / "storing"))
    state, split = experiment.initial_state(), experiment.inputs.dataset.train
    weights = state.params, state.model_state
    spec = stored.spec_of(experiment, split, "random")
    view, interruption, watchdog = stored.view_function(experiment), Interruption(), Watchdog(0.0, print)
    path = labels.parent / "stored.bin"

    def ours() -> float:
        start = time.perf_counter()
        writer = stored.Writer(spec, StoredFile(path, spec), 0)
        stored.store_split(experiment, view, weights, split, writer, interruption, watchdog)
        seconds = time.perf_counter() - start
        path.with_suffix(".jsonl").unlink()  # so that all is written again
        return seconds

    model, block = experiment.program.model, experiment.program.objective.block
    batch = jnp.asarray(np.random.default_rng(0).standard_normal((BATCH, SIDE, SIDE, 3), np.float32))
    given = {"params": state.params, **state.model_state}
    forward = jax.jit(lambda given, batch: model.apply(given, batch, block, method="forward_prefix"))
    bare = forward.lower(given, batch).compile(compiler_options(training=False))

    def theirs() -> float:
        start = time.perf_counter()
        for _ in range(PICTURES * spec.views // BATCH):
            jax.block_until_ready(bare(given, batch))
        return time.perf_counter() - start

    times = compared(ours, theirs, pairs).row()
    ratios = {key: times[key] for key in ("ratio", "ratio_low", "ratio_high", "control")}
    views_per_s = PICTURES * spec.views / times["f_seconds"]
    return {"part": f"storing {tune}", "views_per_s": views_per_s, **ratios, "peak_mb": peak_mb()}


PARTS: dict[str, Callable[[argparse.Namespace, Path], list[Row]]] = {"head": head, "storing": storing}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, PARTS)
    parser.add_argument("--rows", type=int, default=100_000, help="rows that heads train on (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="rows of an update of heads (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each comparison (default: %(default)s)")
    options = parser.parse_args(argv)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        rows = [line for name in options.names for line in PARTS[name](options, Path(folder))]
    command = ["python", "-m", "benchmarks.stored_inputs", *(sys.argv[1:] if argv is None else argv)]
    print(write_results("stored_inputs", rows, shlex.join(command)))


if __name__ == "__main__":
    main()
