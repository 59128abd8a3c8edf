"""Describes a data set: text here, figures as PNG and one HTML page in a folder.

    linnaeus describe data/demo/labels.h5 --images data/demo/images.h5 --out description
    linnaeus describe train.h5 --val-labels val.h5 --out description

Classes and their sizes, how far rows are identified, where, when, how high and by whom, which metadata are known, what
the sides of a split share, licences, and with --images pictures of the most and least common classes. With
--near-duplicates also pairs of pictures that show the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from linnaeus_jax import tools
from linnaeus_jax.building.scan.describe import (
    RANK_COLUMNS,
    RANK_NOTE,
    Description,
    describe,
    observer_rows,
    rank_rows,
    split_columns,
    split_tables,
)
from linnaeus_jax.building.scan.describe_page import example_pictures, text_rows, write_description
from linnaeus_jax.building.scan.near_duplicates import DETAILS, FILE, search
from linnaeus_jax.reading.labelled_pictures import open_pictures
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.reporting.tables import table
from linnaeus_jax.taxonomy.ranks import task_name


def show(found: Description, console: Console) -> None:
    """The tables of the page."""
    console.print(f"{printable(str(found.labels))}: {found.rows:,} rows", soft_wrap=True)
    for fault in found.faults:
        console.print(f"left out: {fault}", soft_wrap=True)
    columns, rows = RANK_COLUMNS, rank_rows(found)
    if console.width < 90:  # the share of all rows stands in the next table too
        columns, rows = columns[:3] + columns[4:], [row[:3] + row[4:] for row in rows]
    console.print(table(RANK_NOTE, columns, rows))
    if found.rows:
        depth = [[task_name(task) if task else "no label", rows, f"{rows / found.rows:.1%}"]
                 for task, rows in found.depth.items()]  # fmt: skip
        console.print(table("Finest rank that is known", ("rank", "rows", "share"), depth))
        parts = [[printable(name), rows, f"{rows / found.rows:.1%}"] for name, rows in found.components.items()]
        if parts:
            console.print(table("Metadata", ("data set", "known rows", "share"), parts))
    for other, rows in split_tables(found):
        console.print(table(f"Split: {found.sides[0].rows:,} rows train, {other.rows:,} rows {other.name}",
                            split_columns(other), rows))  # fmt: skip
    if rows := observer_rows(found):
        console.print(table("Observers", ("", ""), rows))
    for title, texts in (("Licences", found.licenses), ("Rights holders", found.holders), ("Sources", found.sources)):
        if texts:
            console.print(table(title, ("", "rows", "share"), list(text_rows(texts, found.rows))))


@tools.command(ValueError)
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("describe_dataset", __doc__)
    parser.add_argument("labels", type=Path, metavar="LABELS", help="labels.h5")
    parser.add_argument("--images", type=Path, metavar="PATH", help="HDF5 file or folder of the pictures")
    parser.add_argument("--extension", help=tools.EXTENSION_HELP)
    parser.add_argument("--val-labels", type=Path, metavar="LABELS", help="labels of a separate validation set")
    parser.add_argument(
        "--near-duplicates",
        action="store_true",
        help="also pictures that show the same, scaled, cropped, compressed again or mirrored: near_duplicates.csv",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for dataset.html and the figures")
    args = parser.parse_args(argv)
    if args.near_duplicates and (args.images is None or args.val_labels is not None):
        parser.error("--near-duplicates needs --images, and one labels file with both sides of a split")
    found = describe(args.labels, args.val_labels)
    examples = example_pictures(found, args.images, args.extension) if args.images is not None else None
    near, section = None, ""
    if args.near_duplicates:
        source = open_pictures(args.images, args.labels, args.extension, side=DETAILS)
        with tools.progress_bars() as progress:
            near = search(found, source, progress)
        section = near.section(source)
    files = write_description(args.out, found, examples, section)
    show(found, PlainConsole())
    if near is not None:
        near.write(args.out / FILE)
        print(f"{near.summary()}: {args.out / FILE}, for build --group-duplicates or --exclude")
    print(f"{files[0]} and {len(files) - 1} figures beside it")


if __name__ == "__main__":
    sys.exit(main())
