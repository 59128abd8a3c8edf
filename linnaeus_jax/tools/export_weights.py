"""Writes the weights of a run as one .safetensors file, under the names and in the layouts of PyTorch.

    linnaeus export-weights runs/quickstart weights.safetensors
    linnaeus export-weights runs/quickstart last.safetensors --checkpoint newest --weights last
    linnaeus export-weights runs/tuned trunk.safetensors --like hf:facebook/dinov2-base

The file takes the best checkpoint by the run's own ranking (`--checkpoint best`), and the moving average of the
parameters where one was kept. It says of itself which model, classes and checkpoint it holds; `model.pretrained` takes
it as it is, and so does the PyTorch model that this program's family is made after. With `--like` names and shapes are
those of a file of the source that the run began with, for its own program: the trunk alone, without heads and metadata.
The data of the run are not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    parser = tools.parser("export_weights", __doc__)
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    parser.add_argument("--checkpoint", default="best", help="best (default), newest or a step")
    parser.add_argument("--weights", choices=("ema", "last"), default="", help="default: ema where the run kept one")
    parser.add_argument("--like", default="", help="a file of another program whose names are taken")
    options = parser.parse_args(argv)
    from linnaeus_jax.reporting.logs import console
    from linnaeus_jax.run.saved_weights import read_run
    from linnaeus_jax.weights.exporting import restored_state
    from linnaeus_jax.weights.files import check_target, write_state

    check_target(options.out)
    saved = read_run(options.run, options.checkpoint, options.weights or "ema")
    if options.weights == "ema" and saved.weights != "ema":
        raise UserError(f"{options.run} kept no moving average (train.ema.enabled); use --weights last")
    arrays, about = saved.torch_state(), saved.facts
    if options.like:
        arrays, about = restored_state(saved.model, saved.settings["type"], arrays, options.like), {}
    write_state(options.out, arrays, about)
    values = sum(array.size for array in arrays.values())
    which = "moving average" if saved.weights == "ema" else "last parameters"
    console.print(
        f"{options.out}: {len(arrays)} arrays, {values:,} values, {options.out.stat().st_size / 1e6:.1f} MB; "
        f"{which} after {saved.step} updates",
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
