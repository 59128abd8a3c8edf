"""Puts the pictures of a folder into one HDF5 file, or takes them out again; no byte of a picture changes.

    linnaeus pack labels.h5 --images pictures/ --out images.h5
    linnaeus pack labels.h5 --images images.h5 --out pictures/
    linnaeus pack labels.h5 --images raw.h5 --out pictures/ --png
    linnaeus pack labels.h5 --images compressed.h5 --out images.h5

Packed files are read faster than folders. Raw pixels become PNG files, or, stored contiguously, a file that is read
through a memory map. What is written appears under its name when it is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools
from linnaeus_jax.building.pack import PackOptions, pack


@tools.command()
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("pack", __doc__)
    parser.add_argument("labels", type=Path, metavar="LABELS", help="labels.h5, whose rows the pictures belong to")
    parser.add_argument("--images", type=Path, required=True, metavar="PATH", help="folder, or HDF5 file of pictures")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="file ending with .h5, or a folder")
    parser.add_argument("--extension", help=tools.EXTENSION_HELP)
    parser.add_argument("--png", action="store_true", help="write raw pixels as PNG files")
    parser.add_argument("--allow-missing", action="store_true", help="pack rows without a file as empty pictures")
    parser.add_argument("--force", action="store_true", help="replace the file --out; move the folder --out aside")
    args = parser.parse_args(argv)
    with tools.progress_bar("packing") as progress:
        options = PackOptions(args.extension, args.allow_missing, args.force, args.png, progress)
        report = pack(args.labels, args.images, args.out, options)
    print(f"{report.out}: {report.rows} pictures, {report.bytes} bytes")
    if report.missing:
        print(f"{report.missing} rows have no picture; train with data.hybrid.allow_missing_images=True to read them")
    if args.png:
        print("train with data.hybrid.use_hybrid=True data.hybrid.file_extension=.png")


if __name__ == "__main__":
    sys.exit(main())
