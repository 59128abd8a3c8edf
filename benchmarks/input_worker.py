"""Reads batches with the package that PYTHONPATH names, as often as another process says.

A child of `benchmarks.input_ratios`. It opens HDF5 files, prints a line, reads lines of JSON
`[file, batch, updates, Grain threads, decoding threads]`, reads so many batches and answers with the seconds and CPU
seconds that it took. Of the package it uses `open_images` and `benchmarks.input_pipeline.epoch` alone, which every
commit since 574d9d1 has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def opened(path: Path, size: int) -> Any:
    """The images of a file at the size of the model."""
    images = importlib.import_module("linnaeus_jax.data.images")
    try:
        sources = importlib.import_module("linnaeus_jax.data.image_sources")
    except ModuleNotFoundError:  # before the sources had files of their own
        return images.open_images(path, size)
    try:
        how = importlib.import_module("linnaeus_jax.data.preprocessing").Preprocessing((size, size))
    except ModuleNotFoundError:  # before how pictures are resized was an object
        how = size
    return sources.open_images(images.ImageFiles(path, how))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", type=int, help="side of the images that the model takes")
    parser.add_argument("files", nargs="+", help="files of images")
    args = parser.parse_args()
    epoch = importlib.import_module("benchmarks.input_pipeline").epoch
    sources = {name: opened(Path(name), args.size) for name in args.files}
    print("ready", flush=True)
    for line in sys.stdin:
        name, batch, updates, threads, io_threads = json.loads(line)
        run = epoch(sources[name], batch, updates, threads=threads, io_threads=io_threads)
        started, cpu = time.perf_counter(), time.process_time()
        run()
        print(json.dumps([time.perf_counter() - started, time.process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main()
