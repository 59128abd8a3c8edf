"""The ONNX programs of a bundle on real pictures: how near their logits are, and how often they are right.

    python -m benchmarks.onnx_pictures BUNDLE plants --data DIR [--seed 0] [--pictures 500]

BUNDLE is one of a row of `benchmarks.real`, whose test pictures are taken. `difference` is the largest one between the
logits of onnxruntime and of XLA, of the largest logit where that is above 1; `same` the share of pictures with the same
finest class; `right` the share of pictures whose finest class is the label. The quantized program takes its ranges from
200 training pictures. Needs jax2onnx.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import write_results
from benchmarks.real.sets import SETS, SPLITS, read
from linnaeus_jax.inference.files.onnx_int8 import MOST, int8_program
from linnaeus_jax.inference.model import Model, read_bundle_or_run
from linnaeus_jax.inference.onnx_program import onnx_program, session


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a table and writes benchmarks/results/onnx_pictures.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("set", choices=SPLITS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the row")
    parser.add_argument("--pictures", type=int, default=500)
    options = parser.parse_args(argv)
    name, scheme = SPLITS[options.set]
    rows = read(SETS[name], options.data)
    sides = np.array(rows.sides(scheme, options.seed))
    rng, model = np.random.default_rng(0), Model(read_bundle_or_run(options.bundle), buckets=(8,), runtime="xla")
    bundle, tasks = model.bundle, model.bundle.tasks
    named = np.array([bool(each[0]) for each in rows.names])
    test, train = (rng.permutation(np.flatnonzero((sides == side) & named)) for side in ("test", "train"))
    test, train = test[: options.pictures], train[:MOST]
    image, ranges = (model.read([options.data / rows.paths[row] for row in some]) for some in (test, train))
    label = np.array([rows.names[row][0] for row in test])
    whole = onnx_program(bundle, "")
    small, _ = int8_program(whole, ranges, tasks)

    def found(program: bytes) -> dict[str, np.ndarray]:
        there = session(program)
        parts = [there.run(list(tasks), {"image": image[at : at + 8]}) for at in range(0, len(image), 8)]
        return {task: np.concatenate(of) for task, of in zip(tasks, zip(*parts), strict=True)}

    assert not bundle.encoder.components, "of bundles without metadata"
    nothing = np.zeros((len(image), 0), np.float32)
    ours = model.forward(image, nothing, nothing.astype(bool))
    names, first = bundle.taxonomy.names.name[tasks[0]], bundle.taxonomy.first
    table = []
    for form, logits, size in (
        ("XLA", ours, 0),
        ("ONNX", found(whole), len(whole)),
        ("ONNX, 8-bit convolutions", found(small), len(small)),
    ):
        best = first + logits[tasks[0]][:, first:].argmax(axis=1)
        same = best == first + ours[tasks[0]][:, first:].argmax(axis=1)
        away = max(np.abs(logits[t] - ours[t]).max() / max(1.0, np.abs(ours[t]).max()) for t in tasks)
        table.append(
            {
                "form": form,
                "pictures": len(image),
                "difference": float(f"{away:.2e}"),
                "same": round(100 * float(same.mean()), 2),
                "right": round(100 * float((names[best] == label).mean()), 2),
                "mb": round(size / 1e6, 1),
            }
        )
    command = ["python", "-m", "benchmarks.onnx_pictures", *(sys.argv[1:] if argv is None else argv)]
    print(write_results("onnx_pictures", table, shlex.join(command)))


if __name__ == "__main__":
    main()
