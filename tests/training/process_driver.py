"""One of two processes that train together: process_driver.py INDEX PORT DATA WORKDIR."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax

from linnaeus_jax import trainer
from tests.tiny import tiny_config


def main() -> None:
    index, port, data, workdir = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), initialization_timeout=60)
    final = trainer.run(tiny_config(Path(data), train__epochs=2), Path(workdir))
    Path(f"{workdir}_{index}.json").write_text(json.dumps(final))


if __name__ == "__main__":
    main()
