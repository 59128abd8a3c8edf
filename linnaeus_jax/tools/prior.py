"""Makes a prior of places and dates from occurrences, without a picture.

    linnaeus prior build --occurrences records.csv --out prior.npz
    linnaeus prior fit prior.npz BUNDLE --labels labels.h5 --images images.h5
    linnaeus prior map prior.npz "Parus major" --month 5 --out map.png

`build` counts a table (CSV, TSV or Parquet with coordinates, dates and taxa, by the names of Darwin Core or usual ones)
or an archive of GBIF, by cell and month. `fit` finds the weight beside a model with which labels of validation rows are
most probable, and writes it into the file. `map` draws where a taxon is common. `linnaeus predict BUNDLE photos --prior
prior.npz` uses it, softly: nothing is excluded unless --prior-cut asks for it. No network is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError


def argument_parser() -> argparse.ArgumentParser:
    parser = tools.parser("prior", __doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="count occurrences", allow_abbrev=False)
    build.add_argument(
        "--occurrences", type=Path, required=True, metavar="TABLE", help="CSV, TSV, Parquet, or a zip of GBIF"
    )
    build.add_argument("--out", type=Path, required=True, metavar="NPZ", help="the prior")
    build.add_argument("--map", nargs="+", default=[], metavar="WHAT=COLUMN", help="columns with unusual names")
    build.add_argument("--rank-map", nargs="+", default=[], metavar="RANK=NAME[:ID]", help="columns of ranks")
    build.add_argument("--cell", type=float, default=2.0, metavar="DEGREES", help="height of a cell, 0.1 to 30 (2)")
    build.add_argument("--max-uncertainty", type=float, default=50_000.0, metavar="M", help="of coordinates (50000)")
    fit = verbs.add_parser("fit", help="find the weight beside a model", allow_abbrev=False)
    fit.add_argument("prior", type=Path, metavar="NPZ", help="of build; it is written anew")
    fit.add_argument("source", type=Path, metavar="BUNDLE", help="a bundle, or a run directory")
    fit.add_argument("--labels", type=Path, required=True, metavar="H5", help="labels file with places")
    fit.add_argument("--images", type=Path, required=True, metavar="H5_OR_DIRECTORY", help="its pictures")
    fit.add_argument("--split", choices=("train", "val", "test"), default="", help="rows of the labels file (all)")
    fit.add_argument("--checkpoint", default="best", help="of a run: best (default), newest or a step")
    tools.plugins_option(fit)
    draw = verbs.add_parser("map", help="draw where a taxon is common", allow_abbrev=False)
    draw.add_argument("prior", type=Path, metavar="NPZ", help="of build")
    draw.add_argument("taxon", help="scientific name")
    draw.add_argument(
        "--month", type=int, choices=range(1, 13), default=0, metavar="1-12", help="of one month (the year)"
    )
    draw.add_argument("--out", type=tools.picture, required=True, metavar="PNG", help="the picture: .png, .pdf or .svg")
    return parser


def read_occurrences(args: argparse.Namespace) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Standard columns, a row for each occurrence; their ranks, finest first; warnings."""
    import zipfile

    import polars as pl

    from linnaeus_jax.building.sources import darwin_core
    from linnaeus_jax.reading import schema
    from linnaeus_jax.reading.columns import split_options
    from linnaeus_jax.reading.identification import check_taxa, identify
    from linnaeus_jax.reading.table import TextOptions, read_columns

    path = args.occurrences
    options: dict[str, Any] = {
        "mapping": split_options(args.map, "--map"),
        "rank_map": split_options(args.rank_map, "--rank-map"),
    }
    if path.is_dir() or (path.is_file() and zipfile.is_zipfile(path)):
        source = darwin_core.read(path, **options)
        frame, levels, notes = source.frame, source.levels, [text for text in source.warnings if "picture" not in text]
        frame = frame.filter(pl.col(schema.REASON).ne_missing(schema.MALFORMED)).unique(
            schema.OCCURRENCE, maintain_order=True
        )
        return frame, levels, notes
    frame, links, warnings = read_columns(path, TextOptions(), **options, check=check_taxa)
    frame, levels, notes = identify(frame, links, path.name)
    whole = frame.filter(pl.col(schema.REASON).is_null())
    bad = frame.height - whole.height
    return whole, levels, [*warnings, *notes, *([f"{bad:,} records are malformed or say absent"] if bad else [])]


def build(args: argparse.Namespace) -> int:
    from linnaeus_jax.files import sha256_of
    from linnaeus_jax.inference.quality.prior_fitting import prior_of
    from linnaeus_jax.reporting.logs import console

    if not 0.1 <= args.cell <= 30:
        raise UserError(f"--cell is {args.cell:g}; give degrees from 0.1 to 30")
    frame, levels, notes = read_occurrences(args)
    prior, more = prior_of(frame, levels, args.cell, args.max_uncertainty)
    source = args.occurrences
    about = {"occurrences": source.name, **({"sha256": sha256_of(source)} if source.is_file() else {})}
    replace(prior, about=about).save(args.out)
    for line in (*notes, *more, f"{args.out}: weight 1, until linnaeus prior fit finds one"):
        console.print(line, soft_wrap=True)
    return 0


def fit(args: argparse.Namespace) -> int:
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.inference.files.prediction_files import model_digest
    from linnaeus_jax.inference.forward import usual_buckets
    from linnaeus_jax.inference.model import Model, read_bundle_or_run
    from linnaeus_jax.inference.prior import read_prior
    from linnaeus_jax.inference.quality.evaluating import Pictures, read_labelled
    from linnaeus_jax.inference.quality.prior_fitting import fitted
    from linnaeus_jax.reporting.logs import console

    prior = read_prior(args.prior)
    bundle = read_bundle_or_run(args.source, args.checkpoint, args.plugins)
    model = Model(bundle, (usual_buckets(bundle.preprocessing.size)[-1],))
    labelled = read_labelled(bundle, args.labels, args.split)
    pictures = Pictures.of(bundle, args.images, args.labels)
    with tools.progress_bar("pictures") as progress:
        weight, measured = fitted(model, prior, labelled, pictures, progress)
    about = {**(prior.about or {}), "model": model_digest(bundle), **measured}
    replace(prior, weight=weight, about=about).save(args.prior)
    console.print(
        f"{args.prior}: weight {weight:g}, by {measured['rows']:,} pictures with a place: "
        f"{100 * measured['right_without']:.1f} % right without the prior, {100 * measured['right']:.1f} % with it",
        soft_wrap=True,
    )
    return 0


def draw(args: argparse.Namespace) -> int:
    from linnaeus_jax.inference.prior import read_prior
    from linnaeus_jax.inference.quality.prior_fitting import draw_map

    draw_map(read_prior(args.prior), args.taxon, args.out, args.month)
    return 0


@tools.command()
def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    args = argument_parser().parse_args(argv)
    return {"build": build, "fit": fit, "map": draw}[args.verb](args)


if __name__ == "__main__":
    sys.exit(main())
