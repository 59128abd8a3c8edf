"""Builds a data set from pictures and what is known of them.

    linnaeus build --folders pictures --out data/mine
    linnaeus build --table records.csv --pictures photos --out data/mine
    linnaeus build --dwca gbif.zip --pictures photos --out data/mine
    linnaeus build --camtrap-dp survey --out data/mine
    linnaeus build --lists train=train.txt,test=test.txt --ranks fine,coarse --out data/mine
    linnaeus build --corrections label_issues.csv --out data/mine

Writes labels.h5, images.h5 and a config.py to train with, lists what it did not use in rejected.csv and what it blanked
in blanked.csv. The same command goes on with a build that was ended. See docs/your_data.md.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from linnaeus_jax import tools
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.sources.source import Request, sources
from linnaeus_jax.building.steps.boxed_rows import with_boxes
from linnaeus_jax.building.steps.build import SUMMARY, build, build_shard, discard, merge
from linnaeus_jax.building.steps.corrections import BEFORE, LABELS, apply_corrections
from linnaeus_jax.building.steps.finish import REJECTED, Finished, training_rows
from linnaeus_jax.building.steps.machine import has_accelerator, has_weights, machine_speed
from linnaeus_jax.building.steps.options import (
    IMAGE_FORMS,
    SPLIT_SCHEMES,
    TEMPORAL_FORMS,
    BuildOptions,
)
from linnaeus_jax.building.steps.picture_lists import with_lists
from linnaeus_jax.building.steps.plan import NothingUsable, plan_build
from linnaeus_jax.building.steps.starter_config import (
    Budget,
    Size,
    choose_size,
    training_command,
)
from linnaeus_jax.building.steps.summary import summary_tables
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.plugins import import_named
from linnaeus_jax.data.preprocessing import INTERPOLATIONS, RESIZE_MODES
from linnaeus_jax.reading.box_cuts import Cut
from linnaeus_jax.reading.columns import own_or_level
from linnaeus_jax.reading.paths import Shard
from linnaeus_jax.reading.schema import COLUMN, FOLDER_PLACE, Progress, SourceRows
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.taxonomy.scientific_names import MODES

#: sources of which a column may be the place of the split
WITH_COLUMNS = ("--table", "--dwca")
#: sources whose help an option names, where no more have it
FEW = 2


def argument_parser() -> argparse.ArgumentParser:
    """The options of the tool, in groups."""
    parser = tools.parser("build_dataset", __doc__)
    kinds = sources().values()
    group = parser.add_argument_group("source, one of").add_mutually_exclusive_group(required=True)
    for kind in kinds:
        group.add_argument(kind.option.flag, **kind.option.keywords)
    group.add_argument(
        "--corrections",
        type=Path,
        metavar="CSV",
        help="columns id and correct, as linnaeus label-issues writes them: other labels for the data set in --out, of "
        "which no picture is read again",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the data set")

    where = parser.add_argument_group("reading the source")
    for option in dict.fromkeys(option for kind in kinds for option in kind.options):
        users = [kind.option.flag for kind in kinds if option in kind.options]
        whose = f"{', '.join(users)}: " if len(users) <= FEW else ""
        where.add_argument(option.flag, **{**option.keywords, "help": whose + option.keywords.get("help", "")})
    where.add_argument("--follow-links", action="store_true", help="follow symbolic links out of the pictures' folder")
    tools.plugins_option(parser, "that bring sources of their own")
    where.add_argument("--doi", help="DOI of the download, kept with every picture")

    labels = parser.add_argument_group("labels")
    labels.add_argument(
        "--ranks",
        type=levels,
        default=(),
        metavar="RANK,...",
        help="selection of the ranks that the source has, the finest first (--folder-ranks runs the other way): "
        "species,genus, or any names: fine,coarse",
    )
    labels.add_argument(
        "--names",
        choices=MODES,
        default="auto",
        help="whether names are scientific and brought to one spelling; plain: left as they are written (auto: seen)",
    )
    labels.add_argument("--synonyms", type=Path, metavar="CSV", help="columns name and accepted")
    labels.add_argument("--min-per-class", type=int, default=1, metavar="N", help="smaller classes become null")

    pictures = parser.add_argument_group("pictures")
    pictures.add_argument(
        "--exclude", type=Path, metavar="LIST", help="leave out: names, one a line, or the column picture of a CSV file"
    )
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

    tools.box_options(parser, "store")

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
        "--split",
        type=split_scheme,
        metavar="SCHEME",
        help=f"{', '.join(SPLIT_SCHEMES)}, or {COLUMN}NAME, whole places by a column of a table (default: that of the "
        "source if it has one, else stratified)",
    )
    split.add_argument("--val", type=float, default=0.1, help="share of the rows for validation (0.1)")
    split.add_argument("--test", type=float, default=0.0, help="share of the rows for a test (0)")
    split.add_argument("--seed", type=int, default=42, help="of random splits (42)")
    split.add_argument("--place-size", type=float, default=0.1, help="--split place: degrees of one place (0.1)")

    split.add_argument(
        "--group-duplicates",
        type=Path,
        metavar="CSV",
        help="pairs of pictures that show the same, from describe --near-duplicates: they fall to one side",
    )

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


def import_plugins(argv: Sequence[str]) -> None:
    """Imports what --plugins names, before there is a parser: it has the options of their sources, too."""
    given = [text.partition("=")[2] for text in argv if text.startswith("--plugins=")]
    given += [text for option, text in itertools.pairwise(argv) if option == "--plugins"]
    import_named(name for text in given for name in text.split(",") if name)


def levels(text: str) -> tuple[str, ...]:
    """ "species,genus" -> ("L10", "L20"); "fine,coarse" -> (":fine", ":coarse")."""
    try:
        return tuple(own_or_level(name) for name in text.split(",") if name.strip())
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def split_scheme(text: str) -> str:
    """One of `SPLIT_SCHEMES`, or "column:station"."""
    if text in SPLIT_SCHEMES or (text.startswith(COLUMN) and text != COLUMN):
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: choose one of {', '.join(SPLIT_SCHEMES)}, or {COLUMN}NAME")


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
    kinds = sources().values()
    kind = next(kind for kind in kinds if kind.option.given(args))
    if args.split and args.split.startswith(COLUMN):
        if kind.option.flag not in WITH_COLUMNS:
            raise UserError(
                f"--split {args.split}: {kind.option.flag} has no columns of its own; folders are places with "
                f"--folder-ranks place,species --split {FOLDER_PLACE}"
            )
        args.map, args.split = [*args.map, f"place={args.split.removeprefix(COLUMN)}"], FOLDER_PLACE
    idle = {option for other in kinds for option in other.options} - set(kind.options)
    if wrong := sorted(option.flag for option in idle if option.given(args)):
        raise UserError(f"{', '.join(wrong)}: not for {kind.option.flag}; see --help")
    return kind.read(Request(args, progress))


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


def build_options(args: argparse.Namespace, source: SourceRows, cut: Cut | None = None) -> BuildOptions:
    """The options of the data set."""
    values = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(BuildOptions)
        if field.name not in ("split", "boxes")
    }
    split = args.split or ("given" if "split" in source.frame.columns else "stratified")
    return BuildOptions(split=split, boxes=cut, **values)


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


def correct(parser: argparse.ArgumentParser, args: argparse.Namespace, console: Console) -> None:
    """Corrects the labels of the data set in --out.

    Raises:
      UserError: there is none, another option is given, or the list does not fit.
    """
    others = sorted(vars(args).keys() - {"out", "corrections"})
    if given := [name for name in others if getattr(args, name) != parser.get_default(name)]:
        raise UserError(f"--{given[0].replace('_', '-')}: not for --corrections, which takes --out alone; leave it out")
    if not (args.out / LABELS).is_file():
        raise UserError(f"--out {args.out} has no {LABELS}; name the folder of a data set that is built")
    with LabelFile(args.out / LABELS) as file:
        tasks = file.tasks
    found = apply_corrections(args.out, args.corrections, tasks)
    console.print(
        f"{args.out / LABELS}: {found.changed:,} labels corrected, {found.excluded:,} pictures excluded, "
        f"{found.same:,} were so already; as it was: {BEFORE}",
        soft_wrap=True,
    )


def chosen(rows: int, img_size: int, budget: Budget | None) -> Size:
    """What config.py trains on this machine."""
    return choose_size(rows, img_size, accelerated=has_accelerator(), pretrained=has_weights(), budget=budget)


@tools.command(ValueError)
def main(argv: Sequence[str]) -> None:
    import_plugins(argv)
    parser = argument_parser()
    args = parser.parse_args(argv)
    console = PlainConsole()
    if args.corrections is not None:
        correct(parser, args, console)
        return
    there = (args.out / SUMMARY).exists() and not args.force
    with tools.progress_bars() as progress, rejected_listed(args.out):
        source = with_lists(read_source(args, progress), args.exclude, args.group_duplicates)
        cut = tools.cut_of(args)
        if args.boxes is not None:
            source = with_boxes(source, tools.boxes_of(args), cut)
        options = build_options(args, source, cut if args.boxes is not None else None)
        plan = plan_build(source, options, read_synonyms(args.synonyms), args.synonyms)
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
    console.print(f"next: {training_command(args.out)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
