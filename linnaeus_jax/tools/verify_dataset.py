"""Checks a labels file, of this or another program, and the pictures that belong to it.

    linnaeus verify data/demo/labels.h5 --images data/demo/images.h5
    linnaeus verify labels.h5 --images pictures/ --decode sample --json

Exit status: 0 without errors, 1 with errors (with --strict also with warnings), 2 where there is nothing to check.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from linnaeus_jax import tools
from linnaeus_jax.building.scan.checks import ERROR, LEVELS, NOTE, SHOWN, WARNING
from linnaeus_jax.building.scan.pictures import DECODE, PictureChecks
from linnaeus_jax.building.scan.verify import Verification, verify_labels
from linnaeus_jax.files import json_text, write_json
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.reporting.tables import table

STYLES = {ERROR: "bold red", WARNING: "yellow", NOTE: "dim"}


def show(found: Verification, console: Console) -> None:
    """The tables of facts, then every finding, errors first."""
    console.print(f"{printable(str(found.labels))}: {found.rows} rows")
    if found.ranks:
        rows = [
            [f.rank, f.classes, f.labelled, f"{f.smallest} / {f.median:g} / {f.largest}", f.one_row, f.orphans, f.gaps]
            for f in found.ranks
        ]
        columns = ["rank", "classes", "labelled rows", "least / median / most", "of 1 row", "no parent", "gaps"]
        console.print(table("Labels", columns, rows))
    if found.components:
        parts = [[printable(f.name), f.width, f.known, f"{f.share:.1%}"] for f in found.components]
        console.print(table("Metadata", ["data set", "columns", "known rows", "share"], parts))
    if found.split:
        console.print(f"split: {', '.join(f'{name} {count}' for name, count in found.split.items())} rows")
    if (images := found.images) is not None:
        line = f"pictures: {images.count} {images.storage}, {images.checked} of them decoded"
        if images.heights:
            sizes = [f"{name} {low:g} to {high:g} (median {mid:g})" for name, (low, mid, high) in
                     (("height", images.heights), ("width", images.widths))]  # fmt: skip
            line += f"; {', '.join(sizes)} pixels"
        console.print(line)
    for level in LEVELS:
        for finding in found.findings:
            if finding.level != level:
                continue
            where = (
                f" (rows {', '.join(map(str, finding.rows))}{', ...' if len(finding.rows) == SHOWN else ''})"
                if finding.rows
                else ""
            )
            text = Text.assemble((f"{level:7}", STYLES[level]), f" {finding.check}: {finding.message}{where}")
            console.print(text, soft_wrap=True)
            for example in finding.examples:
                console.print(Text(f"          {example}"), soft_wrap=True)
    counts = [f"{level}s: {found.findings.number(level)}" for level in LEVELS]
    console.print(", ".join(counts))


@tools.command()
def main(argv: Sequence[str]) -> int:
    parser = tools.parser("verify_dataset", __doc__)
    parser.add_argument("labels", type=Path, metavar="LABELS", help="labels.h5")
    parser.add_argument("--images", type=Path, metavar="PATH", help="HDF5 file or folder of the pictures")
    parser.add_argument("--extension", help=tools.EXTENSION_HELP)
    parser.add_argument("--decode", choices=DECODE, default="all", help="which pictures are decoded (default all)")
    parser.add_argument("--sample", type=int, default=1000, help="pictures of --decode sample")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="label columns; default: all")
    parser.add_argument("--conflict-limit", type=float, help="data.parent_conflict_limit (default: that of the config)")
    parser.add_argument("--threshold", type=int, default=1, help="fewest rows per link of a class to its parent")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the report as JSON to this file")
    args = parser.parse_args(argv)
    with tools.progress_bar("decoding") as progress:
        pictures = None
        if args.images is not None:
            pictures = PictureChecks(args.images, args.extension, args.decode, args.sample, progress)
        found = verify_labels(
            args.labels,
            tasks=args.tasks,
            conflict_limit=args.conflict_limit,
            threshold=args.threshold,
            pictures=pictures,
        )
    if args.out is not None:
        write_json(args.out, found.to_json())
    if args.json:
        print(json_text(found.to_json(), indent=1))
    else:
        show(found, PlainConsole())
    return 0 if found.is_clean(strict=args.strict) else 1


if __name__ == "__main__":
    sys.exit(main())
