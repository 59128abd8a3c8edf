"""Writes a model as a program that runs without this package: StableHLO of `jax.export` with its weights inside.

    linnaeus export BUNDLE OUT
    linnaeus export runs/quickstart OUT --checkpoint newest --platforms cpu

OUT becomes a directory: model.jax_export takes any number of pictures on every platform it was exported for,
classes.json says what its outputs mean, example.py names pictures with it in 20 lines, and weights.safetensors holds
the weights under PyTorch's names. With --onnx, model.onnx is the same program for ONNX runtimes; with --int8 there is
one of a quarter of its size, too. JAX reads the program of an earlier version for half a year; the README.md there says
until when. The weights do not expire, nor does model.onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.paths import typed_command


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    parser = tools.parser("export", __doc__)
    parser.add_argument("model", type=Path, help="a bundle, or the directory of a run")
    parser.add_argument("out", type=Path, help="the directory to write")
    parser.add_argument("--checkpoint", default="best", help="of a run: best (default), newest or a step")
    parser.add_argument(
        "--platforms", default="cpu,cuda", help="comma-separated: cpu, cuda, rocm, tpu (default: %(default)s)"
    )
    parser.add_argument(
        "--onnx", action="store_true", help="write model.onnx, too, compared with this program (needs jax2onnx)"
    )
    parser.add_argument(
        "--int8",
        nargs="+",
        metavar="PICTURES",
        help="with --onnx: also model_int8.onnx, with 8-bit convolutions, by the ranges that these pictures give",
    )
    parser.add_argument("--force", action="store_true", help="replace an export that lies there")
    tools.plugins_option(parser)
    options = parser.parse_args(argv)
    from linnaeus_jax.inference.files.exporting import (
        EXAMPLE,
        ONNX_EXAMPLE,
        PROGRAM,
        check_out,
        check_platforms,
        write_export,
    )
    from linnaeus_jax.inference.files.onnx_int8 import FAMILIES, read_images
    from linnaeus_jax.inference.model import read_bundle_or_run
    from linnaeus_jax.inference.onnx_program import translator
    from linnaeus_jax.reporting.logs import console

    platforms = check_platforms([name.strip() for name in options.platforms.split(",") if name.strip()])
    check_out(options.out, force=options.force)
    if options.int8 and not options.onnx:
        raise UserError("--int8 is another form of the ONNX program; give --onnx, too")
    if options.onnx:
        translator()
    bundle = read_bundle_or_run(options.model, options.checkpoint, options.plugins)
    images = None
    if options.int8:
        if bundle.settings["type"] not in FAMILIES:
            raise UserError(f"--int8 is for {', '.join(FAMILIES)}; this is {bundle.settings['type']}: leave it out")
        images = read_images(options.int8, bundle.preprocessing)
    console.print(f"exporting {options.model} for {', '.join(platforms)} ...", soft_wrap=True)
    lines = write_export(bundle, options.out, platforms, onnx=options.onnx, int8=images, force=options.force)
    size = (options.out / PROGRAM).stat().st_size / 1e6
    example = typed_command("python", options.out / (ONNX_EXAMPLE if options.onnx else EXAMPLE), "PICTURE")
    console.print(f"{options.out}: {PROGRAM} of {size:.1f} MB; try {example}", soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
