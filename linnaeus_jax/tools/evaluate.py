"""Evaluates a run or a bundle: a run in every phase in one pass over its validation rows, or over other data.

linnaeus evaluate RUN [--phases=val,val_mask_meta,val_mask_TEMPORAL | --phases=all]
    [--checkpoint=best|newest|STEP] [--split=val|test | --labels=H5 --images=H5_OR_DIRECTORY] [--batch-size=N]
    [--predictions=out.npz [--logits]] [--json]
linnaeus evaluate BUNDLE --labels=H5 --images=H5_OR_DIRECTORY [--report=out.html]
    [--split=val|test] [--extension=.jpg] [--batch-size=N] [--json]

Config, classes and parameters (their moving average where one was kept) come from RUN; the labels files it was trained
on must still be where its config says. `all` is `val` and every combination of masked metadata components. Test rows
are those that the labels file itself sets aside, in a dataset `split` (data.h5.use_split_column); what is measured on
them bears the names of validation.

A bundle (or, with --report, a run) is evaluated as it answers: the consistent path with calibrated probabilities, with
and without metadata. The classes of the labels file may differ from the model's: they are matched by taxon id, and
those that the model does not know are counted apart. --split then means the rows that the file's dataset `split` says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus_jax.step.evaluation import Evaluation

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError


def show(evaluation: Evaluation, tasks: Sequence[str], title: str, rows_name: str) -> None:
    """Prints a table of the phases, and one of every rank in `val` or the first phase; `rows_name` stands for `val`."""
    from linnaeus_jax.metrics.phases import MAIN, phase_label
    from linnaeus_jax.metrics.table import of_plugins
    from linnaeus_jax.reporting.display import phase_tables
    from linnaeus_jax.reporting.logs import console
    from linnaeus_jax.reporting.tables import table
    from linnaeus_jax.taxonomy.ranks import task_name

    def label(phase: str) -> str:
        return rows_name if phase == MAIN.name else phase_label(phase)

    first = MAIN.name if MAIN.name in evaluation.metrics else next(iter(evaluation.metrics))
    columns = {
        "non_null/acc1": "top-1\n%",
        "non_null/loss": "loss",
        "ece": "ECE",
        "taxonomic_distance": "distance\nof errors",
        "aurc": "AURC",
        "coverage_at_risk_5": "answered\nat 5 %\nerrors",
    }
    values = evaluation.metrics[first]
    rows = [[task_name(task), *(values.get(f"{name}_{task}", "-") for name in columns)] for task in tasks]
    for part in phase_tables(
        f"{title}; of a rank, over the rows labelled there", evaluation.metrics, tasks, console.width, label
    ):
        console.print(part)
    console.print(table(f"{label(first)}; over the rows labelled there", ["rank", *columns.values()], rows))
    rows = [
        [heading, *(info.scale * phase[key] if key in phase else "-" for phase in evaluation.metrics.values())]
        for name, info in of_plugins().items()
        for key, heading in info.measured(name, tasks)
    ]
    if rows:
        console.print(table("metrics of plugins", ["metric", *map(label, evaluation.metrics)], rows))


def called(options: argparse.Namespace, step: int) -> str:
    """What people read for a checkpoint of a run: which one of how many updates."""
    which = f" ({options.checkpoint} checkpoint)" if options.checkpoint in ("best", "newest") else ""
    return f"{options.run.name} after {step} updates{which}"


def of_bundle(options: argparse.Namespace) -> int:
    """Evaluates a bundle, or a run as a bundle would be; returns the exit status."""
    from linnaeus_jax.files import json_text, write_atomically
    from linnaeus_jax.inference.bundle.files import is_bundle
    from linnaeus_jax.inference.forward import usual_buckets
    from linnaeus_jax.inference.model import Model, read_bundle_or_run
    from linnaeus_jax.inference.quality.evaluating import Pictures, evaluate_labelled, read_labelled
    from linnaeus_jax.inference.quality.evaluation_page import evaluation_page, summary
    from linnaeus_jax.reporting.logs import console

    for name in ("phases", "predictions", "logits"):
        if getattr(options, name):
            raise UserError(f"--{name} is for runs without --report; leave it out")
    if not (options.labels and options.images):
        raise UserError("give the records to evaluate on: --labels FILE.h5 and --images FILE.h5 or a folder")
    if options.batch_size < 0:
        raise UserError(f"--batch-size is {options.batch_size}; give at least 1")
    bundle = read_bundle_or_run(options.run, options.checkpoint, options.plugins)
    model = Model(bundle, (options.batch_size or usual_buckets(bundle.preprocessing.size)[-1],))
    labels = Path(options.labels)
    labelled = read_labelled(model.bundle, labels, options.split)
    pictures = Pictures.of(model.bundle, Path(options.images), labels, options.extension)
    with tools.progress_bar("pictures") as progress:
        evaluated = evaluate_labelled(model, labelled, pictures, progress)
    numbers = summary(model.bundle, evaluated)
    if options.report:
        write_atomically(options.report, evaluation_page(model.bundle, evaluated, pictures))
    if options.json:
        print(json_text(numbers, indent=1))
    else:
        name = options.run.name if is_bundle(options.run) else called(options, bundle.facts["step"])
        show_bundle(numbers, f"{name} on {labels.name}, {numbers['rows']} rows")
        if options.report:
            console.print(f"report: {options.report}", soft_wrap=True)
    return 2 if evaluated.not_finite else 0


def show_bundle(numbers: Mapping[str, Any], title: str) -> None:
    """Prints the tables of `evaluation_page.summary`."""
    from linnaeus_jax.inference.quality.evaluating import PATH
    from linnaeus_jax.inference.quality.evaluation_page import (
        COVERAGE_COLUMNS,
        NOVELTY_COLUMNS,
        OCCURRENCE_COLUMNS,
        coverage_rows,
        haurc_text,
        novelty_rows,
        occurrence_rows,
    )
    from linnaeus_jax.metrics.judged import roll_up_rows
    from linnaeus_jax.reporting.logs import console
    from linnaeus_jax.reporting.tables import percent, table

    for text in numbers["notes"]:
        console.print(text, soft_wrap=True)
    ranks = numbers["ranks"]
    kinds = list(next(iter(ranks.values()))["accuracy"])
    rows = [
        [rank, one["rows"], one["unknown_rows"], *map(percent, (*one["accuracy"].values(), one["ece"][PATH]))]
        for rank, one in ranks.items()
    ]
    columns = ["rank", "rows", "of unknown\ntaxa", *(f"{kind}\n%" for kind in kinds), "ECE\n%"]
    console.print(table(title, columns, rows))
    if rows := occurrence_rows(numbers, percent):
        console.print(table(f"one answer for each of {numbers['occurrences']:,} occurrences", OCCURRENCE_COLUMNS, rows))
    rows = roll_up_rows(numbers["roll_up"], percent)
    columns = ["confi-\ndence", *(f"at {rank}\n%" for rank in ranks), "no answer\n%", "errors\n%"]
    console.print(table("answers by --min-confidence", columns, rows))
    if rows := coverage_rows(numbers, percent):
        console.print(table("answers and sets by --coverage", COVERAGE_COLUMNS, rows))
    if rows := novelty_rows(numbers, percent):
        console.print(table("known, new and other taxa", [*NOVELTY_COLUMNS], rows))
    if text := haurc_text(numbers).strip():
        console.print(text, soft_wrap=True)


@tools.command()
def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    parser = tools.parser("evaluate", __doc__)
    parser.add_argument("run", type=Path, help="the run directory, or a bundle")
    parser.add_argument("--phases", default="", help="comma-separated, or all; default: val and val_mask_meta")
    parser.add_argument("--checkpoint", "--step", default="best", help="of a run: best (default), newest or a step")
    parser.add_argument("--split", choices=("val", "test"), default="", help="rows of the labels file")
    parser.add_argument("--labels", default="", help="other labels file (HDF5)")
    parser.add_argument("--images", default="", help="its images: an HDF5 file or a folder")
    parser.add_argument("--batch-size", type=int, default=0, help="default: as the run validated")
    parser.add_argument("--predictions", type=Path, help="write the predictions of every row to this .npz file")
    parser.add_argument("--logits", action="store_true", help="with all logits")
    parser.add_argument("--report", type=Path, help="write a page to this .html file; needs --labels and --images")
    parser.add_argument("--extension", help=tools.EXTENSION_HELP)
    parser.add_argument("--json", action="store_true", help="print all metrics as JSON instead of tables")
    tools.plugins_option(parser)
    options = parser.parse_args(argv)
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.files import json_text
    from linnaeus_jax.inference.bundle.files import is_bundle
    from linnaeus_jax.inference.paths import NOT_FINITE
    from linnaeus_jax.metrics.phases import phase_label
    from linnaeus_jax.reporting.logs import setup_logging
    from linnaeus_jax.run.evaluate import (
        EvaluateError,
        evaluate,
        load,
        other_split,
        parse_phases,
        save_predictions,
        test_split,
    )

    # no log line may stand between JSON; warnings then go to stderr
    setup_logging(None, process=int(options.json), level="INFO", data_level="WARNING")
    if options.report or is_bundle(options.run):
        return of_bundle(options)
    if options.extension is not None:
        raise EvaluateError("--extension is for bundles; a run has data.hybrid.file_extension")
    if bool(options.labels) != bool(options.images):
        raise EvaluateError("--labels and --images belong together; give both or neither")
    if options.split and options.labels:
        raise EvaluateError(
            "--split means rows of the run's own labels file, so it excludes --labels; give one of them"
        )
    if options.logits and options.predictions is None:
        raise EvaluateError("--logits needs --predictions=FILE.npz, where they are written")
    loaded = load(options.run, options.checkpoint)
    components = loaded.experiment.program.evaluation.component_names
    phases = parse_phases(options.phases or ("val,val_mask_meta" if components else "val"), components)
    split = None
    if options.labels:
        split = other_split(loaded, options.labels, options.images)
    elif options.split == "test":
        split = test_split(loaded)
    elif not loaded.step and loaded.experiment.directory.out_of_fold.is_file():
        print("the heads of step 0 were fitted to these rows, too, which are no measure of them", file=sys.stderr)
    keep = options.predictions is not None
    evaluation = evaluate(loaded, phases, split, batch_size=options.batch_size, predictions=keep, logits=options.logits)
    if keep:
        save_predictions(options.predictions, evaluation, loaded.dataset)
    if options.json:
        print(json_text({"step": loaded.step, "phases": evaluation.metrics}, indent=1))
    else:
        rows = evaluation.sums[phases[0].name]["count"]
        name = "other data" if options.labels else "test" if options.split == "test" else phase_label("val")
        title = f"{called(options, loaded.step)}, {rows} rows"
        show(evaluation, loaded.dataset.tasks, title, name)
    bad = {phase: count for phase, count in evaluation.not_finite.items() if count}
    for phase, count in bad.items():
        print(f"{phase}: {count} labelled rows have no answer: {NOT_FINITE}", file=sys.stderr)
    return 2 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
