"""CPU time of an image in the forward pass of a bundle: XLA against onnxruntime, both as `predict` runs them.

    python -m benchmarks.onnx_forward [--models EfficientNet:lite0:224 ViT:s16:224 ...] [--pairs 9]

Weights and images are random; 8 images are computed at once, as `predict` does on CPUs. `onnx` and `xla` are CPU-ms of
an image (user and system), `..._wall` milliseconds of wall time, medians; `ratio` is how many times the CPU time of
onnxruntime XLA takes, with quartiles over alternating rounds; `control` is onnxruntime against itself. Needs jax2onnx.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import compared, write_results
from linnaeus_jax.config import get_config
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration, model_of
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.onnx_program import onnx_program
from linnaeus_jax.models.names import initial_variables
from linnaeus_jax.reading.metadata import MetadataEncoder
from linnaeus_jax.step.process import LARGEST_KEPT, keep_freed_memory
from linnaeus_jax.taxonomy.tree import TaxonomyTree

MODELS = ("EfficientNet:lite0:224", "EfficientNet:lite2:260", "ConvNeXt:tiny:224", "ViT:s16:224", "mFormerV1:sm:224")
ROWS, CLASSES = 8, 100


def bundle_of(name: str, variant: str, size: int) -> Bundle:
    """Of one rank, with random weights and an ONNX program."""
    import jax

    config = get_config()
    config.model.type, config.model.variant = name, variant
    tree = TaxonomyTree(("species",), {"species": CLASSES}, {"species": np.full(CLASSES, -1)})
    ids = {"species": np.arange(CLASSES)}
    taxonomy, encoder = Taxonomy(tree, TaxonNames.from_json(ids, {})), MetadataEncoder(())
    model = model_of(config.model, Preprocessing((size, size)), encoder, taxonomy)
    parts = initial_variables(model, jax.random.key(0)), Preprocessing((size, size)), encoder, taxonomy
    bundle = Bundle(Path(name), config.model, model, *parts, Calibration.none(("species",)))
    return dataclasses.replace(bundle, onnx=onnx_program(bundle, ""))


def measured(name: str, variant: str, size: int, pairs: int) -> dict[str, object]:
    """A row of the table."""
    bundle = bundle_of(name, variant, size)
    image = np.random.default_rng(0).integers(0, 256, (ROWS, size, size, 3), dtype=np.uint8)
    inputs = image, np.zeros((ROWS, 0), np.float32), np.zeros((ROWS, 0), bool)
    walls: dict[str, list[float]] = {"xla": [], "onnx": []}

    def timed(runtime: str) -> float:
        forward = models[runtime].forward
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(4):
            forward(*inputs)
        walls[runtime].append((time.perf_counter() - start) / 4 / ROWS * 1e3)
        return (time.process_time() - cpu) / 4 / ROWS * 1e3

    models = {runtime: Model(bundle, buckets=(ROWS,), runtime=runtime) for runtime in walls}
    for runtime in walls:
        timed(runtime)
        walls[runtime].clear()
    found = compared(lambda: timed("onnx"), lambda: timed("xla"), pairs).row()
    wall = {f"{runtime}_wall": round(statistics.median(of), 1) for runtime, of in walls.items()}
    ratios = {key: found[key] for key in ("ratio", "ratio_low", "ratio_high", "control")}
    return {
        "model": f"{name} {variant}",
        "size": size,
        "onnx": found["f_seconds"],
        "xla": found["g_seconds"],
        **wall,
        **ratios,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a table and writes benchmarks/results/onnx_forward.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="FAMILY:VARIANT:SIZE")
    parser.add_argument("--pairs", type=int, default=9, help="alternating rounds")
    options = parser.parse_args(argv)
    keep_freed_memory(LARGEST_KEPT)
    rows = []
    for text in options.models:
        name, variant, size = text.split(":")
        rows.append(measured(name, variant, int(size), options.pairs))
    command = ["python", "-m", "benchmarks.onnx_forward", *(sys.argv[1:] if argv is None else argv)]
    print(write_results("onnx_forward", rows, shlex.join(command)))


if __name__ == "__main__":
    main()
