"""Lists the pictures of a run or a data set whose label is probably wrong, with the taxon that they look like.

    linnaeus label-issues RUN --out issues
    linnaeus label-issues data/mine --features vectors.npz --out issues

Each label is judged by heads that were fitted to other pictures, and by the most similar other pictures. A run has
stored features (train.tune); those of a data set are what `linnaeus embed BUNDLE data/mine --out vectors.npz` gives.
Writes label_issues.html, .json and .csv, the worst first. Write the right taxon, or exclude, into the column `correct`
of the CSV; `linnaeus build --corrections issues/label_issues.csv --out data/mine` takes it, without reading a picture.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus_jax.inference.wrong_labels.labelled_features import LabelledFeatures

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError


def features_options(parser: argparse.ArgumentParser) -> None:
    """Adds what names rows with features."""
    parser.add_argument("source", type=Path, metavar="RUN|DATASET", help="of a data set its folder or its labels.h5")
    parser.add_argument(
        "--features", type=Path, metavar="FILE", help="of a data set: vectors, which linnaeus embed writes"
    )


def read_rows(
    source: Path, features: Path | None, images: Path | None = None, extension: str | None = None
) -> LabelledFeatures:
    """The rows that the arguments name.

    Raises:
      UserError: there are none, or no features of them.
    """
    from linnaeus_jax.building.scan.label_file import LabelFile
    from linnaeus_jax.inference.files.vector_files import ID, open_vectors
    from linnaeus_jax.inference.wrong_labels.labelled_features import of_data_set, of_run

    labels = source / "labels.h5" if source.is_dir() else source
    if (source / "config.json").is_file():
        if features is not None or images is not None:
            raise UserError(f"{source} is a run, which has features and pictures; leave --features and --images out")
        return of_run(source)
    if not labels.is_file():
        raise UserError(f"{source}: no run, and no data set, which has a labels.h5; give one of both")
    if features is None:
        raise UserError(
            f"{labels} has no features; run linnaeus embed BUNDLE {source} --out vectors.npz, and give --features "
            "vectors.npz"
        )
    with LabelFile(labels) as file:
        tasks = file.tasks
    if images is None and (beside := labels.with_name("images.h5")).exists():
        images = beside
    vectors = open_vectors(features)
    return of_data_set(labels, tasks, (vectors.rows[ID].to_list(), vectors[:]), images, extension)


def check_out(out: Path, *, force: bool) -> None:
    """Raises UserError where the list is there and people have written into it."""
    from linnaeus_jax.inference.wrong_labels.issue_files import LIST
    from linnaeus_jax.reading.schema import CORRECT

    if force or not (out / LIST).is_file():
        return
    with (out / LIST).open(newline="", encoding="utf-8-sig", errors="replace") as file:
        if any((row.get(CORRECT) or "").strip() for row in csv.DictReader(file)):
            raise UserError(f"{out / LIST} has corrections; give another --out, or --force to replace it")


@tools.command()
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("label_issues", __doc__)
    features_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the three files")
    parser.add_argument("--images", type=Path, metavar="PATH", help="of a data set (images.h5 beside labels.h5)")
    parser.add_argument("--extension", help=tools.EXTENSION_HELP)
    parser.add_argument("--most", type=int, default=200, metavar="N", help="pictures that the page shows (200)")
    parser.add_argument("--force", action="store_true", help="replace a list that has corrections")
    args = parser.parse_args(argv)
    if args.most < 1:
        raise UserError(f"--most is {args.most}; give at least 1")
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.inference.wrong_labels.issue_files import LIST, PAGE, write_issues
    from linnaeus_jax.inference.wrong_labels.label_issues import find_label_issues
    from linnaeus_jax.reporting.logs import PlainConsole
    from linnaeus_jax.reporting.tables import table

    check_out(args.out, force=args.force)
    rows = read_rows(args.source, args.features, args.images, args.extension)
    with tools.progress_bars() as progress:
        found = find_label_issues(rows, progress)
        said = write_issues(args.out, rows, found, args.most, lambda *at: progress("drawing the page", *at))
    console = PlainConsole()
    ranks = [[rank, of["judged"], of["at_issue"]] for rank, of in said["ranks"].items()]
    console.print(table(f"Labels of {said['rows']:,} pictures", ("rank", "judged", "at issue"), ranks))
    for text in said["notes"]:
        console.print(text, soft_wrap=True)
    console.print(f"{said['at_issue']:,} at issue: {args.out / PAGE} shows them, {args.out / LIST} is to be corrected",
                  soft_wrap=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
