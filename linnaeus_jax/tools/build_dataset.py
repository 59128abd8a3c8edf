"""Builds a data set from pictures and what is known of them.

    python -m linnaeus_jax.tools.build_dataset --folders pictures --out data/mine
    python -m linnaeus_jax.tools.build_dataset --table records.csv --pictures photos --out data/mine
    python -m linnaeus_jax.tools.build_dataset --dwca gbif.zip --pictures photos --out data/mine
    python -m linnaeus_jax.tools.build_dataset --lists train=train.txt,test=test.txt --ranks fine,coarse --out data/mine

Writes labels.h5, images.h5 and a config.py to train with, lists what it did not use in rejected.csv and what it blanked
in blanked.csv. The same command goes on with a build that was ended. See docs/your_data.md.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linnaeus_jax import tools
from linnaeus_jax.building.sources import coco, darwin_core, folders, lists, table
from linnaeus_jax.building.steps.build import SUMMARY, build, build_shard, discard, merge
from linnaeus_jax.building.steps.finish import REJECTED, Finished, training_rows
from linnaeus_jax.building.steps.options import IMAGE_FORMS, SPLIT_SCHEMES, TEMPORAL_FORMS, BuildOptions
from linnaeus_jax.building.steps.plan import NothingUsable, plan_build
from linnaeus_jax.building.steps.starter_config import (
    Budget,
    Size,
    choose_size,
    has_accelerator,
    has_weights,
    machine_speed,
)
from linnaeus_jax.building.steps.summary import summary_tables
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.preprocessing import INTERPOLATIONS, RESIZE_MODES
from linnaeus_jax.reading.columns import is_own, own_or_level, rank_name, split_options
from linnaeus_jax.reading.schema import Progress, SourceRows
from linnaeus_jax.reading.shards import Shard
from linnaeus_jax.reading.table import QUOTES
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.taxonomy.scientific_names import MODES

#: source -> options that it has beside those of all
USED: dict[str, set[str]] = {
    "folders": {"map", "rank_map", "exif", "folder_ranks", "taxonomy"},
    "table": {"map", "rank_map", "pictures", "separator", "quotes", "encoding"},
    "dwca": {"map", "rank_map", "pictures"},
    "coco": {"map", "pictures", "coco_val", "coco_categories"},
    "lists": {"pictures", "separator", "columns", "class_names"},
}


def argument_parser() -> argparse.ArgumentParser:
    """The options of the tool, in groups."""
    parser = tools.parser("build_dataset", __doc__)
    source = parser.add_argument_group("source, one of").add_mutually_exclusive_group(required=True)
    source.add_argument("--folders", type=Path, metavar="DIR", help="class folders: family/genus/species/picture.jpg")
    source.add_argument("--table", type=Path, metavar="FILE", help="CSV, TSV or Parquet, one row for each picture")
    source.add_argument("--dwca", type=Path, metavar="FILE", help="Darwin Core archive of GBIF or iNaturalist")
    source.add_argument("--coco", type=Path, metavar="JSON", help="annotations of an iNaturalist competition")
    source.add_argument(
        "--lists", nargs="+", metavar="SPLIT=FILE", help="lists of paths with labels: train=train.txt,test=test.txt"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the data set")

    where = parser.add_argument_group("reading the source")
    where.add_argument(
        "--pictures", type=Path, metavar="DIR", help="folder of the pictures; default: beside the source"
    )
    where.add_argument("--follow-links", action="store_true", help="follow symbolic links out of that folder")
    where.add_argument("--coco-val", type=Path, metavar="JSON", help="--coco: annotations of the validation pictures")
    where.add_argument("--coco-categories", type=Path, metavar="JSON", help="--coco: categories in a file of their own")
    where.add_argument("--separator", help="--table, --lists: character between fields; default: found")
    where.add_argument("--columns", default="", help="--lists: what the fields are, - to leave out: path,fine,-,coarse")
    where.add_argument(
        "--class-names", nargs="+", default=[], metavar="[RANK=]FILE", help="--lists: names of numbered classes"
    )
    where.add_argument("--quotes", choices=QUOTES, default="csv", help="--table: whether quotes are text (csv)")
    where.add_argument("--encoding", help="--table: default: UTF-8, and Latin-1 for lines that are not")
    where.add_argument(
        "--map", nargs="+", default=[], metavar="WHAT=COLUMN", help="columns with unusual names: latitude=lat_wgs84"
    )
    where.add_argument(
        "--rank-map", nargs="+", default=[], metavar="RANK=NAME[:ID]", help="columns of ranks: tribe=Tribus"
    )
    where.add_argument("--exif", action="store_true", help="--folders: place and date from the pictures")
    where.add_argument("--doi", help="DOI of the download, kept with every picture")

    labels = parser.add_argument_group("labels")
    labels.add_argument(
        "--ranks", type=levels, default=(), help="ranks, finest first: species,genus, or any names: fine,coarse"
    )
    labels.add_argument("--folder-ranks", default="", help="--folders: ranks from the outermost, e.g. order,family")
    labels.add_argument("--taxonomy", type=Path, metavar="CSV", help="--folders: coarser ranks of the finest names")
    labels.add_argument(
        "--names",
        choices=MODES,
        default="auto",
        help="whether names are scientific and brought to one spelling; plain: left as they are written (auto: seen)",
    )
    labels.add_argument("--synonyms", type=Path, metavar="CSV", help="columns name and accepted")
    labels.add_argument("--min-per-class", type=int, default=1, metavar="N", help="smaller classes become null")

    pictures = parser.add_argument_group("pictures")
    pictures.add_argument("--images", choices=IMAGE_FORMS, default="raw", help="how they are stored (raw)")
    pictures.add_argument("--size", type=int, default=224, help="side in pixels (224)")
    pictures.add_argument("--resize-mode", choices=RESIZE_MODES, default="squash", help="how they become square")
    pictures.add_argument("--interpolation", choices=INTERPOLATIONS, default="area", help="how they are resized (area)")
    pictures.add_argument(
        "--crop-fraction",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="--resize-mode center_crop: share of the shorter side that is kept (1)",
    )
    pictures.add_argument("--quality", type=int, default=90, help="of --images jpeg (90)")

    facts = parser.add_argument_group("metadata")
    facts.add_argument(
        "--temporal", choices=TEMPORAL_FORMS, default="month", help="what is encoded of the date (month)"
    )
    facts.add_argument(
        "--day-first",
        action=argparse.BooleanOptionalAction,
        help="whether 5/6/2023 is a day in June; without it such dates count as unknown",
    )
    facts.add_argument(
        "--elevation-scales",
        type=scales,
        default=BuildOptions.elevation_scales,
        metavar="M,M",
        help="metres of the sines and cosines of the elevation (100,500,1000,2000,4000)",
    )
    facts.add_argument("--max-uncertainty", type=float, default=50_000.0, metavar="M", help="of coordinates (50000)")

    split = parser.add_argument_group("split")
    split.add_argument(
        "--split", choices=SPLIT_SCHEMES, help="default: that of the source if it has one, else stratified"
    )
    split.add_argument("--val", type=float, default=0.1, help="share of the rows for validation (0.1)")
    split.add_argument("--test", type=float, default=0.0, help="share of the rows for a test (0)")
    split.add_argument("--seed", type=int, default=42, help="of random splits (42)")
    split.add_argument("--place-size", type=float, default=0.1, help="--split place: degrees of one place (0.1)")

    work = parser.add_argument_group("work")
    parts = work.add_mutually_exclusive_group()
    parts.add_argument("--shard", type=shard, metavar="I/N", help="build part I of N, on any machine that sees --out")
    parts.add_argument("--merge", type=int, metavar="N", help="join the N parts, without copying pixels")
    work.add_argument("--threads", type=int, default=0, help="that decode (one for each core)")
    work.add_argument(
        "--minutes",
        type=tools.minutes,
        metavar="N",
        help="how long storing and training may take on this machine: config.py is chosen so (half an hour)",
    )
    work.add_argument("--strict", action="store_true", help="nothing may be rejected, blanked or changed")
    work.add_argument("--force", action="store_true", help="replace the data set that --out holds")
    return parser


def levels(text: str) -> tuple[str, ...]:
    """ "species,genus" -> ("L10", "L20"); "fine,coarse" -> (":fine", ":coarse")."""
    try:
        return tuple(own_or_level(name) for name in text.split(",") if name.strip())
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def scales(text: str) -> tuple[float, ...]:
    """ "100,1000" -> (100.0, 1000.0)."""
    return tuple(float(part) for part in text.split(",") if part)


def shard(text: str) -> Shard:
    """ "2/8" -> part 2 of 8."""
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_source(args: argparse.Namespace, progress: Progress) -> SourceRows:
    """The rows of the source that the arguments name.

    Raises:
      UserError: an option that this source does not have, or a source that cannot be read.
    """
    mapping, rank_map = split_options(args.map, "--map"), split_options(args.rank_map, "--rank-map")
    own = {rank_name(level): level for level in args.ranks if is_own(level)}
    rank_map = {own.get(rank, rank): column for rank, column in rank_map.items()}
    columns: dict[str, Any] = {"mapping": mapping, "rank_map": rank_map}
    common: dict[str, Any] = {
        "names": args.names,
        "follow_links": args.follow_links,
        "doi": args.doi,
        "leave_out": [args.out],
        "progress": progress,
    }
    kind = next(kind for kind in USED if getattr(args, kind))
    idle = sorted(set().union(*USED.values()) - USED[kind])
    wrong = [f"--{name.replace('_', '-')}" for name in idle if getattr(args, name) not in (None, "", [], False, "csv")]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: not for --{kind}; see --help")
    if args.folders:
        ranks = [own.get(name.strip(), name) for name in args.folder_ranks.split(",") if name.strip()] or None
        layout: dict[str, Any] = {"ranks": ranks, "innermost": args.ranks if own else (), "taxonomy": args.taxonomy}
        return folders.read(args.folders, **layout, exif=args.exif, **columns, **common)
    columns["rank_map"] = {level: name for name, level in own.items()} | rank_map
    if args.table:
        text = {name: getattr(args, name) for name in ("separator", "quotes", "encoding")}
        return table.read(args.table, pictures=args.pictures, **text, **columns, **common)
    if args.dwca:
        return darwin_core.read(args.dwca, pictures=args.pictures, **columns, **common)
    if args.lists:
        given = [lists.ListFile.parse(text) for text in _several(args.lists)]
        options = {"separator": args.separator, "columns": [name for name in args.columns.split(",") if name.strip()]}
        names = _several(args.class_names)
        return lists.read(given, ranks=args.ranks, pictures=args.pictures, class_names=names, **options, **common)
    files = {"validation": args.coco_val, "categories": args.coco_categories}
    return coco.read(args.coco, pictures=args.pictures, mapping=mapping, **files, **common)


def _several(texts: Sequence[str]) -> list[str]:
    """["a,b", "c"] -> ["a", "b", "c"]."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def read_synonyms(path: Path | None) -> dict[str, str]:
    """Name -> accepted name, from a CSV file with these columns.

    Raises:
      UserError: a column is missing, or a name has two accepted names.
    """
    if path is None:
        return {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"name", "accepted"} <= set(rows.fieldnames or ()):
            columns = ", ".join(rows.fieldnames or ()) or "none"
            raise UserError(f"--synonyms {path}: it needs the columns name and accepted; its columns: {columns}")
        synonyms: dict[str, str] = {}
        for row in rows:
            name, accepted = (" ".join((row[key] or "").split()) for key in ("name", "accepted"))
            if name and accepted and synonyms.setdefault(name, accepted) != accepted:
                raise UserError(f"--synonyms {path}: {name} has two accepted names, {synonyms[name]} and {accepted}")
    return synonyms


def build_options(args: argparse.Namespace, source: SourceRows) -> BuildOptions:
    """The options of the data set."""
    values = {
        field.name: getattr(args, field.name) for field in dataclasses.fields(BuildOptions) if field.name != "split"
    }
    split = args.split or ("given" if "split" in source.frame.columns else "stratified")
    return BuildOptions(split=split, **values)


@contextmanager
def rejected_listed(out: Path) -> Iterator[None]:
    """Leaves rejected.csv also where no row can be used; a data set that is in the folder is not touched."""
    try:
        yield
    except NothingUsable as error:
        if (out / SUMMARY).exists():
            raise
        out.mkdir(parents=True, exist_ok=True)
        Finished({}, tables={REJECTED: error.rejected}).write_tables(out)
        raise UserError(f"{error}. All are listed in {out}/{REJECTED}") from None


def chosen(rows: int, img_size: int, budget: Budget | None) -> Size:
    """What config.py trains on this machine."""
    return choose_size(rows, img_size, accelerated=has_accelerator(), pretrained=has_weights(), budget=budget)


@tools.command(ValueError)
def main(argv: Sequence[str]) -> None:
    args = argument_parser().parse_args(argv)
    console = PlainConsole()
    there = (args.out / SUMMARY).exists() and not args.force
    with tools.progress_bars() as progress, rejected_listed(args.out):
        source = read_source(args, progress)
        plan = plan_build(source, build_options(args, source), read_synonyms(args.synonyms), args.synonyms)
        if args.minutes is not None:
            plan = dataclasses.replace(plan, budget=Budget(args.minutes, machine_speed()))
            chosen(len(plan.candidates) // 2, args.size, plan.budget)  # far too little is said before pictures are read
        if args.force:
            discard(args.out, args.shard, keep_parts=bool(args.merge))
        if args.shard:
            build_shard(plan, args.out, args.shard, threads=args.threads, progress=progress)
        elif args.merge:
            finished = merge(plan, args.out, args.merge, strict=args.strict)
        else:
            finished = build(plan, args.out, threads=args.threads, strict=args.strict, progress=progress)
    if args.shard:
        part, parts = args.shard.index, args.shard.count
        console.print(f"part {part} of {parts} is built; join all with --merge {parts} in place of --shard")
        return
    for content in summary_tables(finished, args.out):
        console.print(content)
    size = chosen(training_rows(finished), args.size, plan.budget)
    if there and args.minutes is not None:
        console.print(f"{args.out}/config.py stays as it was written; --force makes it anew", soft_wrap=True)
    console.print(f"config.py: model {size.model}, {size.epochs} epochs; {size.remark}", soft_wrap=True)
    console.print(
        f"next: python -m linnaeus_jax.main --config={args.out}/config.py --workdir=runs/mine", soft_wrap=True
    )


if __name__ == "__main__":
    sys.exit(main())
