"""One process of `benchmarks.predicting costs`: reads images, or computes a forward pass, under what users run under.

    python -m benchmarks.inference_worker reading|forward BUNDLE FOLDER

Prints a line of JSON: CPU seconds of user and system, page faults and images of the part after a first batch, and the
largest resident memory in MB.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np

from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.inference.forward import usual_buckets
from linnaeus_jax.inference.model import load
from linnaeus_jax.inference.pictures import read_picture
from linnaeus_jax.reading.paths import read_file
from linnaeus_jax.step.process import set_up_inference


def main(part: str, bundle: str, folder: str) -> None:
    set_up_inference()
    model, files = load(bundle), [str(path) for path in sorted(Path(folder).iterdir())]
    rows = usual_buckets(model.bundle.preprocessing.size)[-1]
    blank = model.forward.zeros(rows)
    images = np.random.default_rng(0).integers(0, 256, blank[0].shape, np.uint8)

    def run(some: list[str]) -> int:
        if part == "forward":
            for _ in range(0, len(some), rows):
                model.forward(images, *blank[1:])
            return -(-len(some) // rows) * rows
        how = model.bundle.preprocessing
        return sum(1 for _ in in_order(lambda name: read_picture(read_file(name), how), some))

    run(files[:rows])
    before = resource.getrusage(resource.RUSAGE_SELF)
    count = run(files)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "user": after.ru_utime - before.ru_utime,
                "system": after.ru_stime - before.ru_stime,
                "faults": after.ru_minflt - before.ru_minflt,
                "images": count,
                "peak_mb": after.ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
