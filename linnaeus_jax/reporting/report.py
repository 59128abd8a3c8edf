"""The run report: one self-contained HTML page about a run, or about several side by side."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.plugins import import_named
from linnaeus_jax.config.saved import MISSING, config_difference, flatten, plain
from linnaeus_jax.data.baselines import BASELINES_FILE, TITLES
from linnaeus_jax.files import DAMAGED_LOG, UNREADABLE_CHECKPOINTS, read_json, write_atomically
from linnaeus_jax.metrics.names import CHAINS, result_name
from linnaeus_jax.metrics.phases import WITHOUT_METADATA, named, phase_label, widest_first
from linnaeus_jax.metrics.table import BUILT_IN, RISK_LEVELS
from linnaeus_jax.reporting import class_tables as classes
from linnaeus_jax.reporting import report_plots as plots
from linnaeus_jax.reporting.alerts import STALLS_FILE, STARVING, WAIT_SHARE
from linnaeus_jax.reporting.next_steps import suggestions
from linnaeus_jax.reporting.page import escaped, note, page, percent, table, with_options
from linnaeus_jax.reporting.report_plots import Runs
from linnaeus_jax.reporting.run_record import RunRecord, files_fit
from linnaeus_jax.reporting.verdicts import accuracy, baselines, verdicts
from linnaeus_jax.taxonomy.ranks import TASK_PATTERN, in_order, task_name

#: metrics per task of the section on mistakes and confidence
CONFIDENCE = (
    "taxonomic_distance",
    "ece",
    "nll",
    "brier",
    "aurc",
    *(f"coverage_at_risk_{percent}" for percent in RISK_LEVELS),
)

#: kinds of baselines -> what a classifier is given
GIVEN = {"colours": "colour histograms", "features": "features of the trunk as it was read"}
#: characters shown of a line of `STALLS_FILE`
STALL_LENGTH = 600

Tasks = Sequence[str]
#: heading -> markup from the runs and the tasks that any of them measured; empty where the runs lack its data
SECTIONS: dict[str, Callable[[Runs, Tasks], str]] = {}


def section(
    title: str, text: str | Callable[[Runs, Tasks], str] = "", *, per_run: bool = False
) -> Callable[[Callable[[Any, Tasks], str]], Callable[[Any, Tasks], str]]:
    """Decorator: adds a section with a note `text`; `per_run`: of one part for each run, given a `RunRecord`."""

    def add(make: Callable[[Any, Tasks], str]) -> Callable[[Any, Tasks], str]:
        def content(runs: Runs, tasks: Tasks) -> str:
            if per_run:
                markup = side_by_side({label: make(run, tasks) for label, run in runs.items()})
            else:
                markup = make(runs, tasks)
            words = text(runs, tasks) if callable(text) else text
            return note(words) + markup if words and markup else markup

        SECTIONS[title] = content
        return make

    return add


def side_by_side(contents: Mapping[str, str]) -> str:
    """What there is of each run, under the run's label where there are several."""
    parts = []
    for label, content in contents.items():
        if content:
            kind = ' class="wide"' if len(contents) == 1 or "<img" in content else ""  # figures need the width
            heading = f"<h3>{escaped(label)}</h3>" if len(contents) > 1 else ""
            parts.append(f"<div{kind}>{heading}{content}</div>")
    return f'<div class="side">{"".join(parts)}</div>' if parts else ""


# ---- facts about a run


def tasks_of(runs: Iterable[RunRecord]) -> list[str]:
    """Tasks that any run measured, finest rank first."""
    pattern = re.compile(rf"(?:train|val)/(?:epoch_avg_)?acc1_({TASK_PATTERN})$")
    runs = list(runs)
    tasks = {match[1] for run in runs for name in run.names if (match := pattern.match(name))}
    return in_order(tasks, *(run.config.get("data", {}).get("task_keys_h5", ()) for run in runs))


def phases_of(runs: Iterable[RunRecord]) -> dict[str, str]:
    """Validation phases that any run had -> what they mean, widest first; the alias `val_mask` is left out."""
    names = {match[1] for run in runs for name in run.names if (match := re.match(r"(val[^/]*)/loss$", name))}
    return {phase: phase_label(phase) for phase in widest_first(names)}


def best(run: RunRecord, name: str, *, higher: bool) -> tuple[float, int] | None:
    """Best value of an epoch metric and its epoch; None where it was never measured."""
    pairs = [(float(row.values[name]), row.epoch) for row in run.rows if row.event == "epoch" and name in row.values]
    finite = [pair for pair in pairs if np.isfinite(pair[0])]
    return (max if higher else min)(finite, key=lambda pair: pair[0], default=None)


def accuracy_names(run: RunRecord, phase: str, tasks: Tasks) -> list[str]:
    """Per task the top-1 accuracy on rows with a label, or on all rows where labels are never missing."""
    names = [[result_name(phase, f"{kind}acc1_{task}") for kind in ("non_null/", "")] for task in tasks]
    return [labelled if labelled in run.names else all_rows for labelled, all_rows in names]


def status(run: RunRecord) -> str:
    """How the run ended, as far as its rows tell."""
    reason = next((row.values["early_stop/reason"] for row in run.rows if "early_stop/reason" in row.values), None)
    if reason is not None:
        return f"stopped early: {reason}"
    if any(row.event == "final" for row in run.rows):
        return "finished"
    total = run.schedule.get("total_steps")
    return f"unfinished after {run.rows[-1].step}{f' of {total}' if total else ''} updates"


def warnings(run: RunRecord) -> list[str]:
    """Everything that a person should look at."""
    texts = [*verdicts(run), *(f"schedule: {text}" for text in run.schedule.get("warnings", ()))]
    skipped = run.last("train/skipped_updates")
    if skipped:
        texts.append(f"updates skipped because of non-finite values: {skipped:.0f}")
    values = ((name, x) for row in run.rows for name, x in row.values.items())
    bad = list(dict.fromkeys(name for name, x in values if isinstance(x, float) and not np.isfinite(x)))
    if bad:
        texts.append(f"non-finite values in {len(bad)} metrics: {', '.join(bad[:5])}{' …' if len(bad) > 5 else ''}")
    if not status(run).startswith("finished"):
        texts.append(status(run))
    waits = run.series(WAIT_SHARE)[1]
    if len(waits) and np.median(waits) > STARVING:
        share = f"{100 * np.median(waits):.0f} % of the time"
        texts.append(f"starved of data: half of the log points waited for data {share}")
    moved = run.root / "logs" / "metrics_log.superseded.jsonl"
    if moved.is_file():
        count = len(moved.read_text(encoding="utf-8").splitlines())
        texts.append(f"restarted: {count} rows written before a kill were superseded")
    for step, found in (run.json(f"logs/{DAMAGED_LOG}") or {}).items():
        texts.append(
            f"restarted after {step} updates with a metrics log that {found}: rows before may be gone or wrong"
        )
    stalls = run.root / STALLS_FILE
    if stalls.is_file():
        lines = stalls.read_text(encoding="utf-8", errors="replace").splitlines()
        texts.append(f"stalled {len(lines)} times, at last: {lines[-1][:STALL_LENGTH] if lines else ''}")
    for path in sorted((run.root / UNREADABLE_CHECKPOINTS).glob("*/reason.json")):
        aside = read_json(path)
        texts.append(
            f"restarted from an older checkpoint: that of step {aside['step']} could not be read ({aside['reason']}) "
            f"and lies in {UNREADABLE_CHECKPOINTS}/{path.parent.name}"
        )
    return texts


# ---- sections


@section("Overview")
def overview(runs: Runs, tasks: Tasks) -> str:
    records = runs.values()
    facts: dict[str, list[Any]] = {"state": [status(run) for run in records]}
    facts["updates"] = [f"{run.rows[-1].step:,}" for run in records]
    facts["epochs"] = [run.rows[-1].epoch + 1 for run in records]
    minutes = [(run.rows[-1].timestamp - run.rows[0].timestamp) / 60 for run in records]
    facts["first to last log row [min]"] = [round(value, 1) for value in minutes]
    for label, name, scale in (
        ("images per second, median", "train/images_per_sec", 1),
        ("waiting for data [%]", WAIT_SHARE, 100),
    ):
        series = [run.series(name)[1] for run in records]
        facts[label] = [float(f"{scale * np.median(values):.3g}") if len(values) else None for values in series]
    scores = [("best validation loss (epoch)", "loss", BUILT_IN["loss"])]
    scores += [(f"best, {BUILT_IN[name].heading} (epoch)", name, BUILT_IN[name]) for name in CHAINS]
    named = [(label, [f"val/{name}"] * len(records), info) for label, name, info in scores]
    for task in tasks:  # over the rows that the table of the phases counts, too
        names = [accuracy_names(run, "val", [task])[0] for run in records]
        named.append((f"best top-1 {task_name(task)} [%] (epoch)", names, BUILT_IN["acc1"]))
    for label, names, info in named:
        pairs = [best(run, name, higher=info.higher_is_better) for run, name in zip(records, names, strict=True)]
        top = (max if info.higher_is_better else min)((pair[0] for pair in pairs if pair), default=None)
        facts[label] = [
            (
                f"{percent(pair[0], info.scale) if '[%]' in label else f'{pair[0]:.4g}'} ({pair[1]})",
                "best" if len(runs) > 1 and pair[0] == top else "",
            )
            if pair
            else None
            for pair in pairs
        ]
    facts["warnings"] = [len(warnings(run)) for run in records]
    rows = [[label, *values] for label, values in facts.items() if any(value is not None for value in values)]
    return table(["", *runs], rows)


@section("Warnings", per_run=True)
def warning_list(run: RunRecord, _: Tasks) -> str:
    items = "".join(f"<li>{escaped(text)}</li>" for text in warnings(run))
    return f'<ul class="warnings">{items}</ul>' if items else ""


@section(
    "What to try next",
    "Judged by the numbers of this run; each command has a directory of its own.",
    per_run=True,
)
def to_try(run: RunRecord, _: Tasks) -> str:
    items = []
    for one in suggestions(run):
        command = f"<br><code>{with_options(one.command)}</code>" if one.command else ""
        items.append(f"<li>{with_options(one.why)}{command}</li>")
    return f'<ul class="commands">{"".join(items)}</ul>' if items else ""


@section("Loss", "Loss per row, averaged over the ranks; that of training is with augmentation, mixing and masking.")
def loss_curves(runs: Runs, _: Tasks) -> str:
    return plots.losses(runs, phases_of(runs.values()))


section("Accuracy", "All rows count: where a row has no label at a rank, “unknown” is the right answer there.")(
    plots.accuracies
)


def counted_rows(runs: Runs, tasks: Tasks) -> str:
    """Which rows the accuracies of a rank are over."""
    labelled = any("non_null/" in name for run in runs.values() for name in accuracy_names(run, "val", tasks))
    rows = (
        "the rows whose label is known there" if labelled else "all rows, where “unknown” is right for a missing label"
    )
    return f"Last measurement of each phase; accuracies of a rank are over {rows}."


def simple_baselines(run: RunRecord, tasks: Tasks) -> str:
    """What simple means reach, beside the run; "" where that is not known."""
    percents = {TITLES.get(kind, kind): of for kind, of in baselines(run).items()}
    if not percents:
        return ""
    percents["this run, best validation"] = {t: x for t in tasks if (x := accuracy(run, "val/", t)) is not None}
    top = {t: max((of[t] for of in percents.values() if t in of), default=None) for t in tasks}
    rows = [
        [label, *((percent(of[t]), "best" if of[t] == top[t] else "") if t in of else None for t in tasks)]
        for label, of in percents.items()
    ]
    kept = (run.json(BASELINES_FILE) or {}).get("rows", {})
    sample = ", ".join(
        f"{part:,} of {every:,} for {phase_label(name)}" for name, (part, every) in kept.items() if part < every
    )
    given = " or ".join(text for kind, text in GIVEN.items() if TITLES[kind] in percents)
    text = "In validation, over the rows that are labelled at a rank."
    if given:
        text += f" A kernel classifier knows {given}{sample and f', of evenly spaced rows: {sample}'}."
    return f"<h4>Simple baselines</h4>{note(text)}{table(['', *(f'{task_name(t)} %' for t in tasks)], rows)}"


@section("Results per phase", counted_rows, per_run=True)
def phase_results(run: RunRecord, tasks: Tasks) -> str:
    rows = []
    for phase, label in ({"train": phase_label("train")} | phases_of([run])).items():
        chains = [run.last(result_name(phase, name)) for name in CHAINS]
        rows.append(
            [label, run.last(result_name(phase, "loss_unweighted"))]
            + [percent(value, 100) for value in chains]
            + [percent(run.last(name)) for name in accuracy_names(run, phase, tasks)]
            + [percent(run.last(result_name(phase, f"macro_acc1_{task}"))) for task in tasks[:1]]
        )
    columns = ["phase", BUILT_IN["loss_unweighted"].heading, *(f"{BUILT_IN[name].label} %" for name in CHAINS)]
    columns += [f"{task_name(task)} %" for task in tasks] + [f"{task_name(t)}, mean of classes %" for t in tasks[:1]]
    measured = table(columns, [row for row in rows if any(value is not None for value in row[1:])])
    return measured + simple_baselines(run, tasks) if measured else ""


def worth(run: RunRecord, tasks: Tasks) -> dict[str, list[float | None]]:
    """Masked phase -> points of accuracy lost, per task and then of the whole chain."""
    losses: dict[str, list[float | None]] = {}
    for phase, label in phases_of([run]).items():
        known = named(phase)
        if known is None or known.masked == () or known.view is not None:
            continue
        both = [row for row in run.rows if row.event == "epoch" and {"val/loss", f"{phase}/loss"} <= row.values.keys()]
        if not both:
            continue
        values = both[-1].values
        pairs = list(zip(accuracy_names(run, "val", tasks), accuracy_names(run, phase, tasks), strict=True))
        drops = [values[a] - values[b] if a in values and b in values else None for a, b in pairs]
        chain = ("val/chain_accuracy", f"{phase}/chain_accuracy")
        drops.append(100 * (values[chain[0]] - values[chain[1]]) if set(chain) <= values.keys() else None)
        losses["all metadata" if known == WITHOUT_METADATA else label.removeprefix("without ")] = drops
    return losses


@section(
    "What each metadata component is worth",
    "Validation accuracy with all metadata minus that with some masked, where both were last measured.",
    per_run=True,
)
def metadata_worth(run: RunRecord, tasks: Tasks) -> str:
    losses = worth(run, tasks)
    groups = [*map(task_name, tasks), "all ranks"]
    columns = ["metadata", *(f"{group} [points]" for group in groups)]
    rows = [[label, *(None if v is None else f"{v:+.2f}" for v in drops)] for label, drops in losses.items()]
    return table(columns, rows) + plots.bars(
        "metadata worth", groups, losses, "accuracy lost [percentage points]", "rank; colours: what is masked"
    )


@section("Mistakes and confidence", per_run=True)
def confidence(run: RunRecord, tasks: Tasks) -> str:
    measured = [name for name in CONFIDENCE if any(f"val/{name}_{task}" in run.names for task in tasks)]

    def value(name: str, task: str) -> float | str | None:
        last = run.last(f"val/{name}_{task}")
        return percent(last, 100) if BUILT_IN[name].unit == "fraction" else last

    rows = [[task_name(task), *(value(name, task) for name in measured)] for task in tasks] if measured else []
    consistency = run.last("val/consistency_rate")
    content = table(["rank", *(BUILT_IN[name].heading for name in measured)], rows)
    if consistency is not None:
        content += note(f"Predicted ranks agree with the taxonomy in {100 * consistency:.2f} % of the rows.")
    curves = {task_name(task): one for task, one in classes.validation_curves(run).items()}
    return content + plots.confidence(curves) + plots.distances(curves)


def rarity_order(name: str) -> tuple[float, bool]:
    """Sorts `lt_p1`, `p1_p5`, ..., `ge_p99` by percentile."""
    number = re.search(r"p([\d.]+)", name)
    return (float(number[1]) if number else np.inf, not name.startswith("lt"))


def rarity_words(name: str) -> str:
    """`lt_p1`, `p1_p5`, `ge_p99` as people read them: "below 1", "1–5", "from 99"."""
    return name.replace("lt_p", "below ").replace("ge_p", "from ").replace("_p", "–").removeprefix("p")


@section("Subsets", per_run=True)
def subsets(run: RunRecord, tasks: Tasks) -> str:
    kinds: dict[str, dict[str, float | None]] = {}
    for metric in run.names:
        if match := re.match(r"val/subset/([^/]+)/(.+)/count$", metric):
            kinds.setdefault(match[1], {})[match[2]] = run.last(metric)
    parts = []
    for kind, counts in kinds.items():
        names = [name for name, count in counts.items() if count]
        if kind == "rarity":
            names.sort(key=rarity_order)
        values = {task_name(t): [run.last(f"val/subset/{kind}/{name}/acc1_{t}") for name in names] for t in tasks}
        heading, shown = kind, names
        if kind == "rarity":
            heading, shown = "percentile", [rarity_words(name) for name in names]
        rows = [
            [word, f"{counts[name]:.0f}", *(percent(column[i]) for column in values.values())]
            for i, (name, word) in enumerate(zip(names, shown, strict=True))
        ]
        if kind == "rarity":
            title = "Rare against common: classes by their count in training, rarest first"
            figure = plots.bars("rarity", shown, values, "top-1 accuracy [%]", "percentile of the class's count")
        else:
            title, figure = f"Subsets by {kind}, worst first", ""
            rows.sort(key=lambda row: np.inf if row[2] is None else float(row[2]))
        columns = [heading, "rows", *(f"{name} %" for name in values)]
        parts.append(f"<h4>{escaped(title)}</h4>{figure}{table(columns, rows)}" if rows else "")
    return "".join(parts)


section("Worst classes", per_run=True)(classes.worst_classes)
section(
    "Confused classes",
    "Pairs that the last validation confused most often, taxon ids in brackets; rows without a label do not count.",
    per_run=True,
)(classes.confusions)
section(
    "Confident mistakes",
    "Taxon ids in brackets; the rows are those of the labels file of the validation split, pictured without "
    "augmentation.",
    per_run=True,
)(classes.confident_mistakes)


@section("Schedules, planned and applied", per_run=True)
def schedule_curves(run: RunRecord, _: Tasks) -> str:
    figure, gap = plots.schedules(run)
    if not figure or gap is None:
        return figure
    return note(f"Largest relative difference of an applied learning rate from its plan: {gap:.1e}.") + figure


section("Gradients")(plots.gradients)
section("Speed")(plots.speed)


@section("Data", per_run=True)
def data_table(run: RunRecord, _: Tasks) -> str:
    sizes = {task: len(taxa.keys() - {"null"}) for task, taxa in (run.json("assets/class_to_idx.json") or {}).items()}
    density = run.json("metadata/task_label_density.json") or {}
    rows = [
        [task_name(task), task, size, *(percent(shares.get(task)) for shares in density.values())]
        for task, size in sizes.items()
    ]
    return table(["rank", "column", "classes", *(f"labelled in {split} %" for split in density)], rows)


@section("Initial weights", per_run=True)
def initial_weights(run: RunRecord, _: Tasks) -> str:
    record = run.json("metadata/pretrained.json")
    if not record:
        return ""
    files = table(["file", "SHA-256"], [[file["path"], file["sha256"]] for file in record["files"]], text=True)
    counts = record["coverage"]["counts"]
    return note(f"{record['coverage']['summary']}.") + files + table(["arrays", "number"], [*map(list, counts.items())])


@section("Settings")
def settings(runs: Runs, _: Tasks) -> str:
    default = plain(get_config())  # of keys that came after a run, too
    configs = {label: run.config for label, run in runs.items() if run.config}
    if len(configs) == 1:
        changed = config_difference(default, next(iter(configs.values())))
        rows = [[key, json.dumps(old), json.dumps(new)] for key, old, new in changed if new != MISSING]
        content = table(["setting", "default", "this run"], rows, text=True)
        return note("Settings that are not the default.") + content if content else ""
    flat = {label: flatten(config) for label, config in configs.items()}
    keys, given = sorted(set().union(*flat.values())) if flat else [], flatten(default)
    rows = [[key, *(json.dumps(one.get(key, given.get(key, MISSING))) for one in flat.values())] for key in keys]
    content = table(["setting", *flat], [row for row in rows if len(set(row[1:])) > 1], text=True)
    return note("Settings in which the runs differ.") + content if content else ""


@section("Versions")
def versions(runs: Runs, _: Tasks) -> str:
    packages = {label: run.json("assets/versions.json") or {} for label, run in runs.items()}
    keys = list(dict.fromkeys(key for one in packages.values() for key in one))
    rows = [[key, *(str(one.get(key, "–")) for one in packages.values())] for key in keys]
    return table(["", *packages], rows, text=True)


@section("Metrics of plugins", per_run=True)
def plugin_metrics(run: RunRecord, tasks: Tasks) -> str:
    phases = {"train": phase_label("train")} | phases_of([run])
    rows: list[list[Any]] = []
    measured = [(info, *one) for name, info in run.plugin_metrics.items() for one in info.measured(name, tasks)]
    for info, key, heading in measured:
        values = [run.last(result_name(phase, key)) for phase in phases]
        top = best(run, f"val/{key}", higher=info.higher_is_better)
        numbers = [None if value is None else info.scale * value for value in [*values, top and top[0]]]
        if any(number is not None for number in numbers):
            rows.append([heading, *numbers, info.formula])
    return table(["metric", *phases.values(), "best validation", "formula"], rows)


def labels(directories: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell the runs apart."""
    parts = [path.absolute().parts for path in directories]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"the same run is given twice: {', '.join(map(str, directories))}")


def write_report(run_directories: Sequence[Path], out: Path) -> Path:
    """Writes one HTML page about the runs, without references to anything outside it; returns its path.

    Args:
      run_directories: of one run, or of several that are shown side by side; at least one.
      out: the HTML file; an older one is replaced.

    Raises:
      RunError: a directory holds no readable metrics log, or a damaged file.
      OSError: the page cannot be written.
      ValueError: the same directory is given twice.
      ConfigError: a plugin of a run cannot be imported.
    """
    runs = {label: RunRecord.load(path) for label, path in zip(labels(run_directories), run_directories, strict=True)}
    for run in runs.values():  # a schedule of the user's own is drawn by its class
        import_named(run.config.get("env", {}).get("plugins", ()))
    tasks = tasks_of(runs.values())
    title = "Run " + next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs: {', '.join(runs)}"
    out.parent.mkdir(parents=True, exist_ok=True)  # said before anything is drawn, where it cannot be
    sections = {}
    for heading, make in SECTIONS.items():
        with files_fit(runs.values(), f"section {heading!r} of the report"):
            sections[heading] = make(runs, tasks)
    write_atomically(out, page(title, sections))
    os.chmod(out, 0o644)
    return out
