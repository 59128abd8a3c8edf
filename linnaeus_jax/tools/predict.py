"""Identifies what is on pictures, with a bundle or a run.

    linnaeus predict BUNDLE photos
    linnaeus predict BUNDLE photos --meta places.csv --out predictions.csv
    linnaeus predict BUNDLE 'trip/**/*.jpg' --restrict local_species.txt --gallery look.html

Of every picture it gives one taxon of each rank that agree with each other, with probabilities, and as the answer the
finest of them that is at least --min-confidence probable: "a genus, probably" is an answer, and so is "unknown". Place,
date and elevation come from the table --meta (columns file, latitude, longitude, date, elevation, or the names of
Darwin Core), without one from the EXIF data of the pictures. Without --out the answers are printed. The same command
goes on with a file that was not finished. Pictures that cannot be read are listed and end nothing. With --boxes there
is an answer for each box that a detector has found; with --together or --sequence-gap one for several pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus_jax.inference.answers import AnswerOptions
    from linnaeus_jax.inference.bundle.bundle import Bundle
    from linnaeus_jax.inference.files.megadetector import BoxSource
    from linnaeus_jax.inference.files.occurrences import Occurrences
    from linnaeus_jax.inference.files.predicting import Job
    from linnaeus_jax.inference.files.unfinished import Summary, Unfinished
    from linnaeus_jax.inference.model import Model
    from linnaeus_jax.inference.pooling import Pooling
    from linnaeus_jax.reading.paths import Shard

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import write_atomically
from linnaeus_jax.reading.text import text_lines

#: pictures whose answers are printed
PRINTED = 100
JSON_ADVICE = "give --boxes, and leave --without-box whole out; write .csv for answers of whole pictures"


def source_options(parser: argparse.ArgumentParser, pictures: str = "") -> None:
    """Adds what names a model and pictures; `pictures` is said of these, too."""
    parser.add_argument("source", metavar="BUNDLE", type=Path, help="a bundle, or a run directory")
    parser.add_argument(
        "pictures", metavar="PICTURES", nargs="+", help=f"files, folders, patterns such as 'a/**/*.jpg'{pictures}"
    )
    parser.add_argument("--checkpoint", default="", help="of a run: best (default), newest or a step")
    tools.plugins_option(parser)


def known_options(parser: argparse.ArgumentParser) -> None:
    """Adds where place, date and elevation come from."""
    known = parser.add_argument_group("what is known of the pictures")
    known.add_argument("--meta", type=Path, metavar="TABLE", help="CSV, TSV or Parquet, one row for each picture")
    known.add_argument(
        "--camtrap-dp",
        dest="meta",
        type=Path,
        metavar="PACKAGE",
        help="instead: the Camtrap DP that the pictures are of",
    )
    known.add_argument(
        "--map", nargs="+", default=[], metavar="WHAT=COLUMN", help="its columns with unusual names: latitude=wgs84_n"
    )
    known.add_argument("--no-exif", action="store_true", help="leave the EXIF data of the pictures alone")


def work_options(parser: argparse.ArgumentParser) -> None:
    """Adds which pictures are read, and how."""
    work = parser.add_argument_group("work")
    work.add_argument(
        "--recursive", action=argparse.BooleanOptionalAction, default=True, help="also folders below folders (default)"
    )
    work.add_argument("--shard", metavar="I/N", help="only part I of N, I from 1 to N; each part has its own --out")
    tools.runtime_option(work)
    work.add_argument("--batch-size", type=int, default=0, help="pictures computed at once (up to 64; on CPUs 8)")
    work.add_argument("--threads", type=int, default=0, help="that read pictures (one for each core)")


def argument_parser() -> argparse.ArgumentParser:
    """The options of the tool, in groups."""
    parser = tools.parser("predict", __doc__)
    source_options(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="predictions as .csv, .jsonl or .parquet; .json: with --boxes, as MegaDetector writes it; .camtrap.zip: "
        "the package of --camtrap-dp with the answers as observations; .dwca.zip: a Darwin Core archive of occurrences",
    )
    parser.add_argument("--force", action="store_true", help="replace the predictions that --out holds")
    parser.add_argument(
        "--gallery", type=Path, metavar="HTML", help="a page of the pictures, the least certain first (at most 2000)"
    )
    parser.add_argument(
        "--explain", type=Path, metavar="DIR", help="a PNG for each picture: what moved the answer; slow"
    )
    parser.add_argument(
        "--queue",
        type=int,
        default=0,
        metavar="N",
        help="only the N pictures to label next: those of which the model is least sure, of different kinds, rare taxa "
        "first; their names stand in FILE.txt, too",
    )
    known_options(parser)
    tools.box_options(parser, "answer")
    tools.pooling_options(parser)

    answers = parser.add_argument_group("answers")
    answers.add_argument("--top-k", type=int, default=5, help="taxa of each rank that are listed (5)")
    least = answers.add_mutually_exclusive_group()
    least.add_argument("--min-confidence", type=float, default=0.5, help="least probability of an answer (0.5)")
    least.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="instead: the finest taxon so that this share of the answers, such as 0.9, holds the truth",
    )
    answers.add_argument(
        "--as",
        dest="form",
        choices=("answers", "sets"),
        default="answers",
        help="sets: with --coverage, also the smallest set of taxa that holds the truth as often (default: answers)",
    )
    tools.novelty_option(answers)
    answers.add_argument(
        "--class-balance",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="0: taxa are as likely beforehand as in training (default); 1: all alike, for the sake of rare ones",
    )
    answers.add_argument(
        "--restrict",
        type=Path,
        metavar="TXT",
        help="only these taxa, what lies below them, and their ancestors; one id or scientific name a line",
    )
    answers.add_argument(
        "--always-report", type=Path, metavar="TXT", help="taxa whose probability is always given, in the same form"
    )
    answers.add_argument(
        "--consistency",
        choices=("path", "documented"),
        default="path",
        help="path: the best path of the tree (default); documented: each rank alone, null where they contradict",
    )
    tools.prior_options(answers)
    work_options(parser)
    return parser


def shard_of(args: argparse.Namespace) -> Shard:
    """The part that --shard asks for. Raises UserError for a wrong one."""
    from linnaeus_jax.reading.paths import Shard

    try:
        return Shard.parse(args.shard) if args.shard else Shard(1, 1)
    except ValueError as error:
        raise UserError(str(error)) from None


def pictures_of(args: argparse.Namespace, progress: Any, group: str | None = None) -> list[Job]:
    """The pictures of this part with what the table says of them, `group` by a column; tells how many have no row.

    Raises:
      UserError: no pictures, a table that cannot be used, or a wrong --shard.
    """
    from linnaeus_jax.inference.files.observation_table import read_observation_table
    from linnaeus_jax.inference.files.picture_list import list_pictures, of_shard
    from linnaeus_jax.inference.files.predicting import Job
    from linnaeus_jax.reading.columns import split_options
    from linnaeus_jax.reading.metadata import Observation

    shard = shard_of(args)
    if args.map and args.meta is None:
        raise UserError("--map names columns of the table --meta; give both")
    pictures = list_pictures(args.pictures, recursive=args.recursive, progress=progress, say=say)
    if args.meta is None:
        return [Job(picture) for picture in of_shard(pictures, shard)]
    table = read_observation_table(args.meta, split_options(args.map, "--map"), group)
    for warning in table.warnings:
        say(warning)
    rows = dict(zip((picture.path for picture in pictures), table.match(pictures)))
    known = {path: Observation() if row is None else table.observations[row] for path, row in rows.items()}
    groups = {path: table.groups[row] for path, row in rows.items() if row is not None and table.groups}
    mine = of_shard(pictures, shard)
    without = [picture.name for picture in mine if rows[picture.path] is None]
    if without:
        named = f"{', '.join(without[:3])}{' ...' if len(without) > 3 else ''}"
        say(f"{len(without)} of {len(mine)} pictures have no row in {args.meta}: {named}")
    return [Job(each, known[each.path], group=groups.get(each.path)) for each in mine]


def with_boxes(args: argparse.Namespace, jobs: list[Job], bundle: Bundle) -> tuple[list[Job], BoxSource | None]:
    """A job for each box of --boxes, and where their answers belong; tells what the file holds and what is left out.

    Raises:
      UserError: a file or options that cannot be used.
    """
    from linnaeus_jax.inference.files.boxed import boxed
    from linnaeus_jax.inference.files.megadetector import BoxSource, check_relative
    from linnaeus_jax.reading.box_cuts import from_training, of_facts

    as_json = is_json(args.out)
    stored = of_facts(bundle.facts)
    cut = tools.cut_of(args, stored, "skip" if as_json else "whole")
    if remark := from_training(None if args.boxes is None else cut, stored):
        say(remark)
    if args.boxes is None:
        return jobs, None
    found = tools.boxes_of(args)
    if as_json:
        check_relative(found, args.out)
    jobs, names, lines = boxed(jobs, found, cut, part=bool(args.shard))
    say(f"{args.boxes}: boxes of {found.form}")
    for line in lines:
        say(line)
    return jobs, BoxSource(found, names)


def made_of(args: argparse.Namespace, jobs: Sequence[Job], exif: bool) -> dict[str, Any]:
    """Which pictures and metadata are meant, as JSON types."""

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    return {
        "pictures": f"{len(jobs)}, {digest(chr(10).join(job.picture.name for job in jobs))[:16]}",
        "metadata": digest(repr([job.observation for job in jobs]))[:16] if args.meta else "exif" if exif else "none",
        "shard": args.shard or "",
    }


def made_with(
    args: argparse.Namespace, model: Model, jobs: Sequence[Job], exif: bool, occurrences: Occurrences | None
) -> dict[str, Any]:
    """What the predictions depend on, as JSON types."""
    from linnaeus_jax.inference.files.boxed import digest_of
    from linnaeus_jax.inference.files.prediction_files import digest_of_package, digest_of_prior, model_digest

    return {
        "model": model_digest(model.bundle),
        **made_of(args, jobs, exif),
        "top_k": args.top_k,
        "min_confidence": args.min_confidence,
        "consistency": args.consistency,
        "restrict": sorted(text_lines(args.restrict)) if args.restrict else None,
        "always_report": text_lines(args.always_report) if args.always_report else [],
        **({} if args.coverage is None else {"coverage": args.coverage}),
        **({} if args.form == "answers" else {"as": args.form}),
        **({"novelty": args.novelty} if args.novelty != "off" and model.answers.novelty else {}),
        **({"class_balance": args.class_balance} if args.class_balance else {}),
        **({} if args.boxes is None else {"boxes": digest_of(jobs, args.boxes if is_json(args.out) else None)}),
        **digest_of_package(args.out, args.meta),
        **({} if args.prior is None else {"prior": digest_of_prior(model)}),
        **({"together": occurrences.digest} if occurrences else {}),
        **({"pool": args.pool, "views": args.views} if occurrences or args.views != 1 else {}),
        "gallery": args.gallery is not None,
        "reasons": True,  # lines of earlier versions had none
    }


def is_json(out: Path | None) -> bool:
    """Whether answers are written in the form of MegaDetector."""
    return out is not None and out.suffix.lower() == ".json"


def say_resumed(work: Unfinished, total: int) -> int:
    """Tells what an earlier process has done of all pictures; returns how many."""
    done = work.summary.pictures
    if work.changed:
        say(f"{work.changed} has changed since it was read: it and what follows are done again")
    if done:
        say(f"going on after {done:,} of {total:,} pictures")
    return done


def say(text: str) -> None:
    """Prints a line of any width."""
    from linnaeus_jax.reporting.logs import console

    console.print(text, soft_wrap=True)


def check(args: argparse.Namespace) -> None:
    """Raises UserError for arguments that cannot be, before anything is read."""
    from linnaeus_jax.inference.files.prediction_files import ALL_FORMATS, check_format

    if args.out is not None:
        check_format(args.out, ALL_FORMATS)
    if is_json(args.out) and (args.boxes is None or args.without_box == "whole"):
        raise UserError(f"{args.out} is JSON of MegaDetector, which has answers for boxes alone: {JSON_ADVICE}")
    if args.queue < 0:
        raise UserError(f"--queue is {args.queue}; give a number of pictures")
    if args.form == "sets" and args.coverage is None:
        raise UserError("--as sets needs --coverage, such as 0.9; give it, or leave out --as")
    if args.force and args.out is None:
        raise UserError("--force replaces the file of --out; give one")
    whole = {"--gallery": args.gallery, "--explain": args.explain, "--queue": args.queue or None}
    if args.boxes is not None and (others := [name for name, value in whole.items() if value is not None]):
        raise UserError(f"{others[0]} is of whole pictures; leave it or --boxes out")
    tools.check_pooling(args)
    check_source(args, {"--out": args.out, "--gallery": args.gallery})
    if args.explain is not None and args.explain.is_file():
        raise UserError(f"--explain {args.explain} is a file; give another name")


def check_source(args: argparse.Namespace, files: Mapping[str, Path | None]) -> None:
    """Raises UserError for arguments of `source_options` and `work_options` that cannot be, and for files that are to
    be written, by their options, where there is a folder."""
    from linnaeus_jax.inference.bundle.files import is_bundle

    for name, path in files.items():
        if path is not None and path.is_dir():
            raise UserError(f"{name} {path} is a folder; give another name")
    if args.batch_size < 0 or args.threads < 0:
        raise UserError("--batch-size and --threads are counts; give at least 1")
    if args.checkpoint and is_bundle(args.source):
        raise UserError(f"--checkpoint chooses a checkpoint of a run, but {args.source} is a bundle, which holds one")


def options_of(args: argparse.Namespace, model: Model) -> AnswerOptions:
    return model.answers.options(
        top_k=args.top_k,
        min_confidence=args.min_confidence,
        consistency=args.consistency,
        restrict=text_lines(args.restrict) if args.restrict else None,
        always_report=text_lines(args.always_report) if args.always_report else (),
        coverage=args.coverage,
        class_balance=args.class_balance,
        as_sets=args.form == "sets",
        novelty=args.novelty,
    )


@tools.command()
def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    args = argument_parser().parse_args(argv)
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.inference.files.explained import explain_files
    from linnaeus_jax.inference.files.occurrences import occurrences_of
    from linnaeus_jax.inference.files.predicting import batch_for
    from linnaeus_jax.inference.files.prediction_display import summary_lines
    from linnaeus_jax.inference.files.unfinished import finished, remove, sidecar_path
    from linnaeus_jax.inference.model import Model, read_bundle_or_run
    from linnaeus_jax.inference.pooling import Pooling

    check(args)
    bundle = read_bundle_or_run(args.source, args.checkpoint or "best", args.plugins)
    with tools.progress_bars() as progress:
        jobs = pictures_of(args, progress, args.together or args.camera)
    if not jobs:
        say(f"part {args.shard} has no pictures")
        return 0
    jobs, boxes = with_boxes(args, jobs, bundle)
    if not jobs:
        raise UserError(f"{args.boxes} has no box that is taken; --without-box whole answers for whole pictures")
    occurrences = occurrences_of(jobs, args.together, args.sequence_gap, exif=not args.no_exif)
    if occurrences is not None:
        jobs = occurrences.jobs
        say(occurrences.line)
    if args.queue > len(jobs):
        raise UserError(f"--queue {args.queue}: there are {len(jobs):,} pictures; give fewer")
    model = Model(
        bundle, buckets=(batch_for(len(jobs), bundle.preprocessing.size, args.batch_size),), runtime=args.runtime
    )
    model = tools.with_prior(args, model, say)
    options, pooling = options_of(args, model), None
    if occurrences is not None or args.views != 1:
        pooling = Pooling(model.answers, args.pool, args.views)
        pooling.check(options)
    if not bundle.calibration.rows:
        say("the probabilities are not calibrated: that is done where a bundle is made, by linnaeus bundle")
    if args.meta is not None and not bundle.encoder.components and (args.out is None or args.out.suffix != ".zip"):
        used = "nothing" if occurrences is None else "nothing but what belongs together"
        say(f"the model knows no metadata: of {args.meta} {used} is used")
    exif = args.meta is None and not args.no_exif
    if args.queue:
        jobs = queue(args, model, jobs, options, exif)
    about = made_with(args, model, jobs, exif, occurrences)
    if args.out is not None and args.force:
        remove(args.out, finished=True)
    summary = finished(args.out, about, [job.picture for job in jobs]) if args.out is not None else None
    if summary is not None:
        say(f"{args.out} is complete: nothing is left to do (predict again with --force)")
        remove(args.out, finished=False)
    else:
        summary = predict(args, model, jobs, options, exif, about, boxes, occurrences, pooling)
    if args.queue and args.out is not None:
        names = sidecar_path(args.out, "txt")
        write_atomically(names, "".join(f"{job.picture.name}\n" for job in jobs))
        say(f"{args.out}, {names}: the {len(jobs):,} pictures to label next")
    source = f"the table {args.meta}" if args.meta is not None else "EXIF data" if exif else "no source"
    what = "pictures" if args.boxes is None else "boxes and whole pictures"
    for line in summary_lines(summary, model.bundle, options, source, args.out, args.coverage, what):
        say(line)
    unexplained = 0
    if args.explain is not None:
        from linnaeus_jax.inference.quality.explaining import explain

        with tools.progress_bar("explaining") as progress:
            unexplained = explain_files(explain, args.explain, model, jobs, options, exif, say, progress)
    return 2 if not summary.answered or summary.not_finite or unexplained else 0


def queue(args: argparse.Namespace, model: Model, jobs: Sequence[Job], options: AnswerOptions, exif: bool) -> list[Job]:
    """The pictures to label next. Raises UserError where none can be read."""
    from linnaeus_jax.inference.files.queue import to_label

    with tools.progress_bar("choosing") as progress:
        found = to_label(model, jobs, options, args.queue, exif=exif, threads=args.threads, progress=progress)
    if not found:
        raise UserError("--queue: none of the pictures can be read; predict without it says why")
    return found


def predict(
    args: argparse.Namespace,
    model: Model,
    jobs: Sequence[Job],
    options: AnswerOptions,
    exif: bool,
    about: Mapping[str, Any],
    boxes: BoxSource | None = None,
    occurrences: Occurrences | None = None,
    pooling: Pooling | None = None,
) -> Summary:
    """Predicts what is left to do, and writes or prints all of it."""
    from linnaeus_jax.inference.files.darwin_core import DarwinCoreLines
    from linnaeus_jax.inference.files.gallery import LeastCertain, write_gallery
    from linnaeus_jax.inference.files.occurrences import each_part
    from linnaeus_jax.inference.files.prediction_display import answers_table
    from linnaeus_jax.inference.files.prediction_files import form_of, unfinished
    from linnaeus_jax.inference.files.prediction_lines import WholeLines
    from linnaeus_jax.inference.files.unfinished import UNFINISHED, remove, sidecar_path
    from linnaeus_jax.reporting.logs import console

    title = str(model.bundle.facts.get("title") or args.source.name)
    files = [job.picture for job in jobs]
    lines = form_of(args.out, model.bundle, options, title, boxes, args.meta, files, occurrences is not None)
    for line in lines.said if isinstance(lines, WholeLines) else ():
        say(line)
    least = LeastCertain(model.answers, options)
    printed: list[Mapping[str, Any]] = []
    with contextlib.ExitStack() as stack:
        if args.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="predict-")))
        else:
            folder = sidecar_path(args.out, UNFINISHED)
        work = stack.enter_context(unfinished(folder, args.out or folder, about, lines, files))
        least.restore(work.gallery())
        done = say_resumed(work, len(jobs))
        with tools.progress_bar("predicting") as progress:
            progress(done, len(jobs))
            how: Any = {"exif": exif, "known": isinstance(lines, DarwinCoreLines), "threads": args.threads}
            for part, whole, places in each_part(model, jobs, options, pooling, occurrences, done, **how):
                shown = part if whole is None else whole
                page = least.offer(shown, work.summary.pictures, places) if args.gallery is not None else ""
                work.add(part, page, whole)
                progress(work.summary.pictures, len(jobs))
                if args.out is None and len(printed) < PRINTED:
                    printed += shown.rows(model.answers, options)
        if args.gallery is not None:
            chosen = least.rows()
            paths = [jobs[row["place"]].picture.path for row in chosen]
            with tools.progress_bar("gallery") as progress:
                write_gallery(args.gallery, chosen, paths, work.summary.answered, f"Predictions of {title}", progress)
            say(f"{args.gallery}: {len(chosen):,} pictures, {args.gallery.stat().st_size / 1e6:.1f} MB")
        if args.out is not None:
            work.finish(args.out, about)
    if args.out is not None:
        remove(args.out, finished=False)  # Windows removes no open files
    else:
        console.print(answers_table(printed[:PRINTED], console.width))
        if len(jobs) > PRINTED:
            say(f"... and {len(jobs) - PRINTED:,} more pictures; write them all with --out predictions.csv")
    return work.summary


if __name__ == "__main__":
    sys.exit(main())
