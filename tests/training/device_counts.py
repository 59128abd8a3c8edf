"""Three SGD updates on 1, 2 and 8 devices; writes how far they differ. Run as a program with 8 virtual devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax

jax.config.update("jax_default_matmul_precision", "highest")

from tests.tiny import tiny_config
from tests.training.programs import build, largest_update, relative_difference, run_updates
from tests.training.test_step import SGD


def main(directory: Path) -> None:
    params = {}
    for devices in (1, 2, 8):
        program, inputs, placement = build(tiny_config(directory, **SGD), directory, devices)
        start = jax.device_get(jax.jit(program.initial_state)().params)
        params[devices] = jax.device_get(run_updates(program, inputs, placement, 3)[0].params)
    found = {str(n): relative_difference(params[n], params[1], start) for n in (2, 8)}
    found["largest"] = largest_update(params[1], start)
    (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
