"""Finds the largest batch that fits into the memory of a device, without running anything.

    linnaeus autobatch --config=configs/x.py [--fractions 0.6,0.8] [--memory-gb 80] [--json]

Every step that a run of the config needs is compiled on this machine for abstract shapes, and what it takes of one
device is added up, see `linnaeus_jax.run.autobatch`. The rows are those of a micro-batch on each device: the value of
data.batch_size_per_device. With data.autobatch.enabled a run does the same by itself. --memory-gb is
data.autobatch.device_memory_gb; on a CPU it must be given, and says what would fit there: a GPU's compiler may need
more or less. What a device holds besides (batches that wait, a validation) is for the rest of its memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax

from linnaeus_jax import tools
from linnaeus_jax.config import load_config
from linnaeus_jax.config.derived import default_workdir
from linnaeus_jax.config.typed import Config
from linnaeus_jax.files import RunDirectory, json_text
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.reporting.tables import table
from linnaeus_jax.run.autobatch import device_budget, largest_batch
from linnaeus_jax.run.experiment import step_memory
from linnaeus_jax.run.pretrained import apply_weight_requirements, read_initial_weights
from linnaeus_jax.step.process import set_up_jax


def _fractions(text: str) -> tuple[float, ...]:
    found = tuple(float(part) for part in text.split(","))
    if not all(0 < fraction <= 1 for fraction in found):
        raise argparse.ArgumentTypeError(f"{text} must be shares above 0, at most 1")
    return found


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Compiles, and prints a table or JSON."""
    parser = tools.parser("autobatch", __doc__)
    parser.add_argument("--fractions", type=_fractions, help="of a device's memory (default: as configured)")
    parser.add_argument("--memory-gb", type=float, help="10^9 bytes of a device (default: as configured, or its own)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options, rest = parser.parse_known_args(argv)
    tree = load_config(rest)[0]
    if options.memory_gb is not None:
        tree.data.autobatch.device_memory_gb = options.memory_gb
    config, source, _ = apply_weight_requirements(tree)
    fractions = options.fractions or (config.data.autobatch.target_memory_fraction,)
    configs = [config.replaced({"data.autobatch.target_memory_fraction": fraction}) for fraction in fractions]
    set_up_jax(config)
    directory, known = RunDirectory(default_workdir(config)), dict[int, int]()
    measure = step_memory(config, directory, read_initial_weights, source)

    def memory(candidate: Config) -> int:
        rows = candidate.data.batch_size_per_device or 0
        if rows not in known:
            known[rows] = measure(candidate)
        return known[rows]

    found: list[dict[str, Any]] = []
    for one in configs:
        fit = largest_batch(one, jax.device_count(), device_budget(one), memory)
        fraction = one.data.autobatch.target_memory_fraction
        found.append({"fraction": fraction, "rows": fit.rows, "bytes": fit.bytes, "budget": fit.budget})
    if options.json:
        print(json_text(found, indent=1))
        return
    columns = ["share of the memory", "data.batch_size_per_device", "an update takes", "of"]
    cells = [
        [
            f"{row['fraction']:g}",
            row["rows"],
            f"{row['bytes'] / 1e9:.2f} GB",
            f"{row['budget'] / 1e9:.2f} GB",
        ]
        for row in found
    ]
    PlainConsole().print(table("largest batch of each device", columns, cells))


if __name__ == "__main__":
    sys.exit(main())
