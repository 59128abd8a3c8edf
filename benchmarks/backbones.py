"""How many pictures per second of CPU time the trunks read whose published weights are known, on one thread.

    python -m benchmarks.backbones [NAME ...] [--batch 4] [--rounds 9]

Weights and pictures are random, and of the size that the published weights are for; compiled as predictions are.
`pictures_per_cpu_s` is that of the fastest round. What has the same network is measured once. The manual's table of
backbones is written from the file: run `make reference` afterwards.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import add_names, write_results
from benchmarks.efficientnet_forward import Timed
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.step.process import compiler_options, keep_freed_memory
from linnaeus_jax.weights import formats  # noqa: F401  # which registers them
from linnaeus_jax.weights.backbones import costs_of, trunk_of
from linnaeus_jax.weights.formats.base import Known, known_weights


def networks() -> dict[str, Known]:
    """TYPE-VARIANT-SIDE -> the first of the known weights of that network."""
    found: dict[str, Known] = {}
    for known in known_weights():
        if known.type:
            found.setdefault(name_of(known), known)
    return found


def name_of(known: Known) -> str:
    """Of its network: type, variant, side of the pictures."""
    return f"{known.type}-{known.variant}-{known.preprocessing.size[0]}"


def forward(model: ModelFamily, batch: int) -> Timed:
    """The features of `batch` random pictures."""
    pictures = jnp.asarray(np.random.default_rng(0).standard_normal((batch, *model.img_size, 3), np.float32))
    variables: Any = jax.jit(model.init)(jax.random.key(0), pictures[:1], jnp.zeros((1, 0)))

    def features(variables: Any, pictures: jax.Array) -> Any:
        return model.apply(variables, pictures, method="encode_image")

    compiled = jax.jit(features).lower(variables, pictures).compile(compiler_options(training=False))
    return Timed(lambda: jax.block_until_ready(compiled(variables, pictures)), batch)


def measured(known: Known, batch: int, rounds: int) -> dict[str, Any]:
    """The line of one network."""
    model = trunk_of(known)
    assert model is not None
    timed = forward(model, batch)
    for _ in range(rounds + 1):
        timed()
    return {"network": name_of(known), **costs_of(known), "batch": batch, "pictures_per_cpu_s": timed.rate}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, networks())
    parser.add_argument("--batch", type=int, default=4, help="pictures at once")
    parser.add_argument("--rounds", type=int, default=9, help="how often each is measured")
    options = parser.parse_args(argv)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # before XLA starts its threads, of which it starts one for each core
    try:
        keep_freed_memory()
        rows = [measured(networks()[name], options.batch, options.rounds) for name in options.names]
    finally:
        os.sched_setaffinity(0, cores)
    command = ["python", "-m", "benchmarks.backbones", *(sys.argv[1:] if argv is None else argv)]
    print(write_results("backbones", rows, shlex.join(command)))


if __name__ == "__main__":
    main()
