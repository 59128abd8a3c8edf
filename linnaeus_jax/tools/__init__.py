"""Command lines over the other subpackages, and what they share."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus_jax.inference.model import Model
    from linnaeus_jax.reading.box_cuts import Cut
    from linnaeus_jax.reading.boxes import BoxFile

from linnaeus_jax.config.exit_status import MEMORY_ADVICE, as_program, exit_status
from linnaeus_jax.config.memory_limit import under_memory_limit
from linnaeus_jax.config.redaction import sanitize

#: of the option --extension
EXTENSION_HELP = "data.hybrid.file_extension of a folder (default: none if identifiers end like .png, else .jpg)"

#: endings of pictures that are drawn
PICTURES = (".png", ".pdf", ".svg")

Main = Callable[[Sequence[str]], int | None]


class Parser(argparse.ArgumentParser):
    """A parser that also answers a shell which asks for completions, and takes "-,species" as the value of an option:
    argparse takes what begins with a dash for another option."""

    _answering = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if "_ARGCOMPLETE" in os.environ and not self._answering:
            import argcomplete

            self._answering = True  # the answer parses what is typed so far
            argcomplete.autocomplete(self)  # prints them and ends the process
        joined: list[str] = []
        for text in sys.argv[1:] if args is None else args:
            if text.startswith("-,") and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
                joined[-1] += f"={text}"
            else:
                joined.append(text)
        return super().parse_known_args(joined, namespace)


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of the tool of that name, whose help shows the tool's docstring as it is written."""
    program = sys.argv[0]
    return Parser(
        prog=program if program.startswith("linnaeus ") else f"python -m {__name__}.{name}",
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def runtime_option(parser: Any) -> None:
    """Adds --runtime; the model says which ones there are."""
    parser.add_argument(
        "--runtime",
        default="auto",
        help="of the forward pass: xla, onnx, or auto (default: the faster one, of bundles made with --onnx)",
    )


def novelty_option(parser: Any) -> None:
    """Adds --novelty."""
    parser.add_argument(
        "--novelty",
        default="auto",
        metavar="SHARE",
        help="say whether the taxon is a known one, with this share of false alarms (auto: 0.05, if it can; off)",
    )


def plugins_option(parser: argparse.ArgumentParser, what: str = "that a bundle needs") -> None:
    """Adds --plugins; `what` says in its help which ones."""
    parser.add_argument(
        "--plugins",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="FILE,...",
        help=f"modules or .py files {what}; they are run as programs, so give only what you trust",
    )


def box_options(parser: argparse.ArgumentParser, whole: str) -> None:
    """Adds which boxes are cut from the pictures, and how; `whole` says in the help what becomes of a picture."""
    boxes = parser.add_argument_group("boxes")
    boxes.add_argument(
        "--boxes",
        type=Path,
        metavar="FILE",
        help=f"{whole} only what is in these boxes: JSON of MegaDetector, SpeciesNet or COCO, a table, or a Camtrap DP",
    )
    boxes.add_argument("--box-margin", type=float, metavar="SHARE", help="of the longer side, added all around (0.1)")
    boxes.add_argument("--box-confidence", type=float, metavar="NUMBER", help="least one of the detector (0.2)")
    boxes.add_argument("--box-min-side", type=int, metavar="PIXELS", help="least shorter side of a box (0)")
    boxes.add_argument(
        "--box-square", action=argparse.BooleanOptionalAction, help="make the shorter side as long as the longer one"
    )
    boxes.add_argument("--box-categories", metavar="NAME,...", help="only these, such as animal (all)")
    boxes.add_argument("--without-box", choices=("whole", "skip"), help="pictures without a box: whole, or left out")
    boxes.add_argument(
        "--box-columns", nargs="+", default=[], metavar="WHAT=COLUMN", help="of a table, with unusual names: x=left"
    )
    boxes.add_argument("--box-units", choices=("relative", "pixel"), help="of a table (seen from its numbers)")


def boxes_of(args: argparse.Namespace) -> BoxFile:
    """The boxes of --boxes. Raises UserError for a file or options that cannot be used."""
    from linnaeus_jax.config.errors import UserError
    from linnaeus_jax.reading.boxes import read_boxes
    from linnaeus_jax.reading.camtrap_dp import is_package, read_package
    from linnaeus_jax.reading.columns import split_options

    if not is_package(args.boxes):
        return read_boxes(args.boxes, split_options(args.box_columns, "--box-columns"), args.box_units)
    if args.box_columns or args.box_units:
        raise UserError(f"--box-columns and --box-units are of tables, but {args.boxes} is a Camtrap DP")
    return read_package(args.boxes).boxes()


def prior_options(parser: Any) -> None:
    """Adds a prior of places and dates."""
    parser.add_argument("--prior", type=Path, metavar="NPZ", help="of places and dates, from linnaeus prior build")
    parser.add_argument("--prior-weight", type=float, metavar="NUMBER", help="beside the picture (that of the prior)")
    parser.add_argument(
        "--prior-cut",
        type=float,
        default=0.0,
        metavar="TIMES",
        help="exclude taxa that are less than so many times as common there and then as everywhere (none)",
    )


def with_prior(args: argparse.Namespace, model: Model, say: Callable[[str], None]) -> Model:
    """A model with the prior that the arguments name, if they do; tells what it knows.

    Raises:
      UserError: a prior that cannot be used.
    """
    from linnaeus_jax.config.errors import UserError
    from linnaeus_jax.inference.prior import read_prior, weighted

    if args.prior is None:
        if args.prior_weight is not None or args.prior_cut:
            raise UserError("--prior-weight and --prior-cut are of a prior: give --prior FILE, too")
        return model
    if not 0 <= args.prior_cut < 1:
        raise UserError(f"--prior-cut is {args.prior_cut:g}; give a number below 1, such as 0.01")
    prior = weighted(read_prior(args.prior), args.prior_weight)
    found = model.with_prior(prior, args.prior_cut)
    assert found.answers.prior is not None
    task = model.bundle.tasks[0]
    own, classes = found.answers.prior.own[task], len(model.bundle.taxonomy.classes[task]) - model.bundle.taxonomy.first
    rank = model.bundle.taxonomy.ranks[task]
    say(f"{args.prior}: knows {own:,} of {classes:,} taxa of the rank {rank}; weight {prior.weight:g}")
    inputs = {kind for component in model.bundle.encoder.components for kind in component.inputs}
    if inputs & {"place", "date"}:
        say("the model is told places or dates, too, so they count twice; linnaeus prior fit finds the right weight")
    return found


def pooling_options(parser: argparse.ArgumentParser) -> None:
    """Adds which pictures are answered together."""
    pooling = parser.add_argument_group("several pictures, one answer")
    which = pooling.add_mutually_exclusive_group()
    which.add_argument(
        "--together", metavar="COLUMN", help="one answer for all pictures with the same text there, of --meta"
    )
    which.add_argument(
        "--sequence-gap",
        type=float,
        metavar="SECONDS",
        help="one answer for pictures of one camera that follow each other so soon, by the times of --meta or EXIF",
    )
    pooling.add_argument("--camera", metavar="COLUMN", help="of --meta, for --sequence-gap (the folder)")
    pooling.add_argument(
        "--pool", choices=("evidence", "mean"), default="evidence", help="how (evidence); mean of the probabilities"
    )
    pooling.add_argument(
        "--views", type=int, default=1, metavar="N", help="of each picture: mirrored, crops; 1 to 12 (1)"
    )


def check_pooling(args: argparse.Namespace) -> None:
    """Raises UserError for `pooling_options` that do not fit each other or the other options of predicting."""
    from linnaeus_jax.config.errors import UserError

    gap = args.sequence_gap is not None
    grouped = "--sequence-gap" if gap else "--together" if args.together is not None else ""
    if args.camera is not None and not gap:
        raise UserError("--camera is for --sequence-gap; give both, or leave it out")
    if args.meta is None and (args.together is not None or args.camera is not None):
        option = "--together" if args.camera is None else "--camera"
        raise UserError(f"{option} names a column of the table --meta; give both")
    pooled = grouped or ("--views" if args.views != 1 else "")
    if args.pool == "mean" and not pooled:
        raise UserError("--pool is for --together, --sequence-gap and --views; give one of them")
    single = {"--queue": args.queue, "--explain": args.explain is not None}
    if grouped:
        form = args.out is not None and args.out.suffix.lower() in (".json", ".zip")
        single |= {"--shard": bool(args.shard), f"{args.out}, a package or JSON": form}
    if pooled and (other := next((name for name, given in single.items() if given), "")):
        why = " takes pictures one by one" if other == "--shard" else " is of single pictures or boxes"
        raise UserError(f"{other}{why}; leave it or {pooled} out")
    if grouped and args.boxes is not None and args.without_box != "skip":
        raise UserError(f"{grouped} with --boxes pools boxes alone; give --without-box skip, too")


def cut_of(args: argparse.Namespace, stored: Cut | None = None, without: str = "whole") -> Cut:
    """The settings of `box_options`; those that are not given are as `stored`, or as usual.

    Raises:
      UserError: a value that cannot be, or options without --boxes.
    """
    from linnaeus_jax.config.errors import UserError
    from linnaeus_jax.reading.box_cuts import Cut

    categories = args.box_categories
    given = {
        "margin": args.box_margin,
        "confidence": args.box_confidence,
        "min_side": args.box_min_side,
        "square": args.box_square,
        "categories": None if categories is None else tuple(filter(None, map(str.strip, categories.split(",")))),
        "without": args.without_box,
    }
    known = {name: value for name, value in given.items() if value is not None}
    if args.boxes is None and (known or args.box_columns or args.box_units):
        raise UserError("options of boxes need the file that has them: --boxes FILE")
    return replace(stored or Cut(), **{"without": without, **known})


def picture(text: str) -> Path:
    """Type of an option that names the picture to write; what cannot be written is refused before the work begins."""
    path = Path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r} must end in one of {', '.join(PICTURES)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file in a folder that exists")
    return path


def minutes(text: str) -> float:
    """Type of an option that gives a time: "10" -> 10.0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return number


def command(*errors: type[Exception], status: int = 2) -> Callable[[Main], Callable[..., int]]:
    """Decorator of a tool's main function: `errors` are the user's too, see `exit_status`."""

    def decorate(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            if argv is not None:
                return exit_status(lambda: main(argv), *errors, status=status)
            call = functools.partial(exit_status, lambda: main(sys.argv[1:]), *errors, status=status)
            return as_program(lambda: under_memory_limit(call, MEMORY_ADVICE, status))

        return run

    return decorate


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on stderr with rate and remaining time; yields a function of (what is done, done, total), whose first call
    shows a bar. A total of 0 is unknown. Nothing is shown where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    text, rate = (TextColumn(form, markup=False) for form in ("{task.description}", "{task.fields[rate]}"))
    columns = (text, BarColumn(), MofNCompleteColumn(), rate)
    console = Console(stderr=True)
    remaining, silent = TimeRemainingColumn(), not console.is_terminal
    with Progress(*columns, remaining, console=console, transient=True, disable=silent) as bars:
        begun: dict[str, tuple[TaskID, float, int]] = {}

        def progress(what: str, done: int, total: int) -> None:
            what = sanitize(what)
            if what not in begun:
                begun[what] = bars.add_task(what, total=total or None, rate=""), time.perf_counter(), done
            task, start, first = begun[what]
            rate = (done - first) / max(time.perf_counter() - start, 1e-9)
            bars.update(task, completed=done, total=total or None, rate=f"{rate:,.0f}/s")

        yield progress


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """One bar of `progress_bars`; yields a function of (done, total)."""
    with progress_bars() as progress:
        yield functools.partial(progress, what)
