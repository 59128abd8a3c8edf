"""The run report: one self-contained HTML page about a run, or about several side by side."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.saved import config_difference, flatten, plain
from linnaeus_jax.files import write_atomically
from linnaeus_jax.metrics.names import CHAINS, phase_label, result_name
from linnaeus_jax.reporting import report_plots as plots
from linnaeus_jax.reporting.alerts import STARVING, WAIT_SHARE
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE
from linnaeus_jax.reporting.report_plots import Runs
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.taxonomy.ranks import task_name

#: phase -> {task -> curves}, written at a validation: `reliability`, `risk_coverage`, `distance`, `classes`
CURVES_FILE = "assets/validation_curves.json"
#: metric per task -> heading with unit, of the table on mistakes and confidence
TRUST = {
    "taxonomic_distance": "mean distance of errors [edges]",
    "ece": "calibration error (ECE)",
    "nll": "log loss [nats]",
    "brier": "Brier score",
    "aurc": "area under risk–coverage",
    "coverage_at_risk_1": "answered at ≤ 1 % errors [%]",
    "coverage_at_risk_5": "answered at ≤ 5 % errors [%]",
    "coverage_at_risk_10": "answered at ≤ 10 % errors [%]",
}
WORST_CLASSES, CONFUSIONS = 15, 8

STYLE = """
body{font:15px/1.45 system-ui,"Segoe UI",Helvetica,Arial,sans-serif;color:#1b1f24;background:#fff;
max-width:1180px;margin:0 auto;padding:12px 10px 60px}
h1{font-size:26px;margin:14px 0 2px}
h2{font-size:20px;margin:34px 0 6px;border-bottom:1px solid #d5dae0;padding-bottom:3px}
h3{font-size:16px;margin:14px 0 4px}h4{font-size:14px;margin:8px 0 2px}p{margin:4px 0 8px;max-width:900px;color:#444c56}
nav{margin:8px 0;font-size:13px}nav a{margin-right:12px;color:#0b5cad;text-decoration:none;white-space:nowrap}
img{width:100%;height:auto;display:block;margin:6px 0}
table{border-collapse:collapse;font-size:13.5px;margin:4px 0 10px;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid #e4e8ec;vertical-align:top}
th{font-weight:600;background:#f4f6f8}th:first-child,td:first-child{text-align:left}
td.text{text-align:left;font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12.5px;overflow-wrap:anywhere}
td.best{font-weight:700;background:#e8f4ec}.side{display:flex;flex-wrap:wrap;gap:8px 36px}
.pictures{display:flex;flex-wrap:wrap;gap:8px 14px}figure{margin:0;width:128px;font-size:12px;line-height:1.3}
figure img{width:auto;height:96px;max-width:128px;margin:2px 0}
.wide{flex:1 0 100%}table.text th{text-align:left}
ul.warnings{margin:4px 0;padding-left:20px}ul.warnings li{margin:2px 0}.scroll{overflow-x:auto}
"""


class Html(str):
    """Text that is markup already and is not escaped again."""


def cell(value: Any) -> str:
    """A value as people read it; None is a dash."""
    if isinstance(value, Html):
        return value
    if value is None:
        return "–"
    return html.escape(f"{value:,.4g}" if isinstance(value, float) else str(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, text: bool = False) -> Html:
    """A table; a row may hold `(value, "best")` pairs, which are marked. With `text` all columns are left-aligned."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = []
    for row in rows:
        parts = []
        for item in row:
            value, kind = item if isinstance(item, tuple) else (item, "text" if text else "")
            parts.append(f'<td class="{kind}">{cell(value)}</td>' if kind else f"<td>{cell(value)}</td>")
        body.append(f"<tr>{''.join(parts)}</tr>")
    if not body:
        return Html("")
    kind = ' class="text"' if text else ""
    return Html(f'<div class="scroll"><table{kind}><tr>{head}</tr>{"".join(body)}</table></div>')


def percent(value: float | None, factor: float = 1.0) -> str | None:
    """A percentage with two decimals."""
    return None if value is None else f"{factor * value:.2f}"


def note(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def side_by_side(runs: Runs, make: Callable[[RunRecord], str]) -> str:
    """What `make` gives for each run, under the run's name where there are several."""
    parts = []
    for label, run in runs.items():
        content = make(run)
        if content:
            kind = ' class="wide"' if len(runs) == 1 or "<img" in content else ""  # figures need the whole width
            heading = f"<h3>{html.escape(label)}</h3>" if len(runs) > 1 else ""
            parts.append(f"<div{kind}>{heading}{content}</div>")
    return f'<div class="side">{"".join(parts)}</div>' if parts else ""


# ---- facts about a run


def tasks_of(runs: Runs) -> list[str]:
    """Tasks that any run measured, finest rank first."""
    found = {
        match[1]
        for run in runs.values()
        for name in run.names
        if (match := re.match(r"(?:train|val)/(?:epoch_avg_)?acc1_(.+)$", name))
    }

    def rank(task: str) -> tuple[float, str]:
        number = re.search(r"_L(\d+)$", task)
        return (float(number[1]) if number else np.inf, task)

    return sorted(found, key=rank)


def phases_of(runs: Runs) -> dict[str, str]:
    """Validation phases that any run had -> what they mean, widest first; the alias `val_mask` is left out."""
    names = {match[1] for run in runs.values() for name in run.names if (match := re.match(r"(val[^/]*)/loss$", name))}
    first = ("val", "val_no_mask", "val_mask_meta")
    found = [phase for phase in first if phase in names]
    found += sorted(names.difference(first, ("val_mask",)), key=lambda phase: (phase.count("_"), phase))
    return {phase: phase_label(phase) for phase in found}


def best_of(name: str, values: Iterable[Any], key: Callable[[Any], float]) -> Any:
    """The best of the values of a loss or an accuracy; None of none."""
    return (min if "loss" in name else max)(values, key=key, default=None)


def best(run: RunRecord, name: str) -> tuple[float, int] | None:
    """Best value of an epoch metric and its epoch; None where it was never measured."""
    found = [(row.values[name], row.epoch) for row in run.rows if row.event == "epoch" and name in row.values]
    found = [(float(value), epoch) for value, epoch in found if np.isfinite(value)]
    return best_of(name, found, lambda pair: pair[0])


def accuracy_names(run: RunRecord, phase: str, tasks: Sequence[str]) -> list[str]:
    """Per task the top-1 accuracy on rows whose label is known, or on all rows where labels are never missing."""
    names = [[result_name(phase, f"{kind}acc1_{task}") for kind in ("non_null/", "")] for task in tasks]
    return [known if known in run.names else every for known, every in names]


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
    found = [f"schedule: {text}" for text in run.schedule.get("warnings", ())]
    skipped = run.last("train/skipped_updates")
    if skipped:
        found.append(f"updates skipped because of non-finite values: {skipped:.0f}")
    bad = dict.fromkeys(
        name for row in run.rows for name, x in row.values.items() if isinstance(x, float) and not np.isfinite(x)
    )
    if bad:
        names = list(bad)
        found.append(
            f"non-finite values in {len(names)} metrics: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        )
    if not status(run).startswith("finished"):
        found.append(status(run))
    waits = run.series(WAIT_SHARE)[1]
    if len(waits) and np.median(waits) > STARVING:
        found.append(
            f"starved of data: half of the log points waited for data {100 * np.median(waits):.0f} % of the time"
        )
    moved = run.root / "logs" / "metrics_log.superseded.jsonl"
    if moved.is_file():
        count = len(moved.read_text().splitlines())
        found.append(f"restarted: {count} rows written before a kill were superseded")
    return found


# ---- sections: each gives markup, or nothing where the runs lack its data


def overview(runs: Runs) -> str:
    tasks = tasks_of(runs)
    facts: dict[str, list[Any]] = {"state": [status(run) for run in runs.values()]}
    facts["updates"] = [f"{run.rows[-1].step:,}" for run in runs.values()]
    facts["epochs"] = [run.rows[-1].epoch + 1 for run in runs.values()]
    minutes = [(run.rows[-1].timestamp - run.rows[0].timestamp) / 60 for run in runs.values()]
    facts["first to last log row [min]"] = [round(value, 1) for value in minutes]
    for label, name, scale in (
        ("images per second, median", "train/images_per_sec", 1),
        ("waiting for data [%]", WAIT_SHARE, 100),
    ):
        series = [run.series(name)[1] for run in runs.values()]
        facts[label] = [float(f"{scale * np.median(values):.3g}") if len(values) else None for values in series]
    scores = [("best validation loss (epoch)", "val/loss", 1.0)]
    scores += [("best, all ranks right [%] (epoch)", "val/chain_accuracy", 100.0)]
    scores += [("best, all known ranks right [%] (epoch)", "val/partial_chain_accuracy", 100.0)]
    scores += [(f"best top-1 {task_name(task)} [%] (epoch)", f"val/acc1_{task}", 1.0) for task in tasks]
    for label, name, factor in scores:
        values = [best(run, name) for run in runs.values()]
        known = [value[0] for value in values if value]
        top = best_of(name, known, float)
        facts[label] = [
            (f"{factor * value[0]:.4g} ({value[1]})", "best" if len(runs) > 1 and value[0] == top else "")
            if value
            else None
            for value in values
        ]
    facts["warnings"] = [len(warnings(run)) for run in runs.values()]
    rows = [[label, *values] for label, values in facts.items() if any(value is not None for value in values)]
    return table(["", *runs], rows)


def warning_list(runs: Runs) -> str:
    def one(run: RunRecord) -> str:
        items = "".join(f"<li>{html.escape(text)}</li>" for text in warnings(run))
        return f'<ul class="warnings">{items}</ul>' if items else ""

    return side_by_side(runs, one)


def loss_curves(runs: Runs) -> str:
    figure = plots.losses(runs, phases_of(runs))
    text = "Loss per row, averaged over the ranks; that of training is with augmentation, mixing and masking."
    return note(text) + figure if figure else ""


def accuracy_curves(runs: Runs) -> str:
    figure = plots.accuracies(runs, tasks_of(runs))
    text = "All rows count: where a row has no label at a rank, “unknown” is the right answer there."
    return note(text) + figure if figure else ""


def phase_results(runs: Runs) -> str:
    tasks = tasks_of(runs)

    def one(run: RunRecord) -> str:
        rows = []
        for phase, label in ({"train": phase_label("train")} | phases_of({"": run})).items():
            chains = [run.last(result_name(phase, name)) for name in CHAINS]
            rows.append(
                [label, run.last(result_name(phase, "loss_unweighted"))]
                + [percent(value, 100) for value in chains]
                + [percent(run.last(name)) for name in accuracy_names(run, phase, tasks)]
            )
        columns = ["phase", "loss, mean of ranks [nats]", "all ranks right %", "all known ranks right %"]
        columns += [f"{task_name(task)} %" for task in tasks]
        return table(columns, [row for row in rows if any(value is not None for value in row[1:])])

    names = [name for run in runs.values() for name in accuracy_names(run, "val", tasks_of(runs))]
    known = any("non_null/" in name for name in names)
    rows = "the rows whose label is known there" if known else "all rows, where “unknown” is right for a missing label"
    text = f"Last measurement of each phase; accuracies of a rank are over {rows}."
    content = side_by_side(runs, one)
    return note(text) + content if content else ""


def worth(run: RunRecord, tasks: Sequence[str]) -> dict[str, list[float | None]]:
    """Masked phase -> points of accuracy lost, per task and then of the whole chain."""
    found: dict[str, list[float | None]] = {}
    for phase, label in phases_of({"": run}).items():
        if phase in ("val", "val_no_mask"):
            continue
        both = [row for row in run.rows if row.event == "epoch" and {"val/loss", f"{phase}/loss"} <= row.values.keys()]
        if not both:
            continue
        values = both[-1].values
        pairs = list(zip(accuracy_names(run, "val", tasks), accuracy_names(run, phase, tasks), strict=True))
        drops = [values[a] - values[b] if a in values and b in values else None for a, b in pairs]
        chain = ("val/chain_accuracy", f"{phase}/chain_accuracy")
        drops.append(100 * (values[chain[0]] - values[chain[1]]) if set(chain) <= values.keys() else None)
        found["all metadata" if phase == "val_mask_meta" else label.removeprefix("without ")] = drops
    return found


def metadata_worth(runs: Runs) -> str:
    tasks = tasks_of(runs)

    def one(run: RunRecord) -> str:
        found = worth(run, tasks)
        groups = [*map(task_name, tasks), "all ranks"]
        return table(
            ["metadata", *(f"{group} [points]" for group in groups)],
            [[label, *(None if v is None else f"{v:+.2f}" for v in drops)] for label, drops in found.items()],
        ) + plots.bars(
            "metadata worth", groups, found, "accuracy lost [percentage points]", "rank; colours: what is masked"
        )

    text = "Validation accuracy with all metadata minus that with some masked, where both were last measured."
    content = side_by_side(runs, one)
    return note(text) + content if content else ""


def _curves(run: RunRecord) -> dict[str, dict[str, Any]]:
    found = run.json(CURVES_FILE) or {}
    return found.get("val") or next(iter(found.values()), {})


def trust(runs: Runs) -> str:
    tasks = tasks_of(runs)

    def one(run: RunRecord) -> str:
        known = [key for key in TRUST if any(f"val/{key}_{task}" in run.names for task in tasks)]

        def value(key: str, task: str) -> float | str | None:
            found = run.last(f"val/{key}_{task}")
            return percent(found, 100) if key.startswith("coverage") else found

        rows = [[task_name(task), *(value(key, task) for key in known)] for task in tasks] if known else []
        consistency = run.last("val/consistency_rate")
        content: str = table(["rank", *(TRUST[key] for key in known)], rows)
        if consistency is not None:
            content += note(f"Predicted ranks agree with the taxonomy in {100 * consistency:.2f} % of the rows.")
        found = _curves(run)
        named = {task_name(task): one for task, one in found.items()}
        return content + plots.confidence(named) + plots.distances(named)

    return side_by_side(runs, one)


def rarity_order(name: str) -> tuple[float, bool]:
    """Sorts `lt_p1`, `p1_p5`, ..., `ge_p99` by percentile."""
    number = re.search(r"p([\d.]+)", name)
    return (float(number[1]) if number else np.inf, not name.startswith("lt"))


def subsets(runs: Runs) -> str:
    tasks = tasks_of(runs)

    def one(run: RunRecord) -> str:
        kinds: dict[str, dict[str, None]] = {}
        for name in run.names:
            if match := re.match(r"val/subset/([^/]+)/(.+)/count$", name):
                kinds.setdefault(match[1], {})[match[2]] = None
        parts = []
        for kind, names in kinds.items():
            bins = [name for name in names if run.last(f"val/subset/{kind}/{name}/count")]
            if kind == "rarity":
                bins.sort(key=rarity_order)
            values = {task_name(t): [run.last(f"val/subset/{kind}/{name}/acc1_{t}") for name in bins] for t in tasks}
            rows = [
                [
                    name,
                    f"{run.last(f'val/subset/{kind}/{name}/count'):.0f}",
                    *(percent(value[i]) for value in values.values()),
                ]
                for i, name in enumerate(bins)
            ]
            if kind == "rarity":
                title = "Rare against common: classes by their count in training, rarest first"
                figure = plots.bars("rarity", bins, values, "top-1 accuracy [%]", "percentile of the class's count")
            else:
                title, figure = f"Subsets by {kind}, worst first", ""
                rows.sort(key=lambda row: np.inf if row[2] is None else float(row[2]))
            columns = [kind, "rows", *(f"{name} %" for name in values)]
            parts.append(f"<h4>{html.escape(title)}</h4>{figure}{table(columns, rows)}" if rows else "")
        return "".join(parts)

    return side_by_side(runs, one)


def taxa(run: RunRecord, task: str) -> dict[int, str]:
    """Index of a class -> what people look it up by, its taxon id."""
    indices = (run.json("assets/class_to_idx.json") or {}).get(task, {})
    return {index: "unknown" if name == "null" else str(name) for name, index in indices.items()}


def confusions(runs: Runs) -> str:
    """The most frequent wrong pairs of every rank."""

    def one(run: RunRecord) -> str:
        parts = []
        for task, found in (run.json(MISTAKES_FILE) or {}).items():
            taxon, classes = taxa(run, task), _curves(run).get(task, {}).get("classes", ())
            rows = []
            for pair in found["pairs"][:CONFUSIONS]:
                label, predicted = pair["label"], pair["predicted"]
                share = 100 * pair["rows"] / classes[label][0] if label < len(classes) and classes[label][0] else None
                rows.append([*(taxon.get(i, f"class {i}") for i in (label, predicted)), pair["rows"], percent(share)])
            columns = ["label", "taken for", "rows", "of the label's rows %"]
            parts.append(f"<div><h4>{html.escape(task_name(task))}</h4>{table(columns, rows)}</div>" if rows else "")
        return f'<div class="side">{"".join(parts)}</div>' if any(parts) else ""

    content = side_by_side(runs, one)
    text = "Taxon ids of the pairs that the last validation confused most often; rows without a label do not count."
    return note(text) + content if content else ""


def confident_mistakes(runs: Runs) -> str:
    """Pictures of every rank's most confident wrong predictions."""

    def one(run: RunRecord) -> str:
        parts = []
        for task, found in (run.json(MISTAKES_FILE) or {}).items():
            taxon = taxa(run, task)
            figures = []
            for entry in found["confident"]:
                label, predicted = (taxon.get(entry[key], f"class {entry[key]}") for key in ("label", "predicted"))
                facts = [f"is {label}", f"taken for {predicted}", f"{100 * entry['probability']:.2f} % sure"]
                facts.append(f"row {entry['row']}")
                caption = "<br>".join(map(html.escape, facts))
                picture = f'<img alt="mistake" src="data:image/jpeg;base64,{html.escape(entry["image"])}">'
                figures.append(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>")
            if figures:
                parts.append(f'<h4>{html.escape(task_name(task))}</h4><div class="pictures">{"".join(figures)}</div>')
        return "".join(parts)

    content = side_by_side(runs, one)
    text = "Taxon ids; the rows are those of the labels file of the validation split, pictured without augmentation."
    return note(text) + content if content else ""


def worst_classes(runs: Runs) -> str:
    def one(run: RunRecord) -> str:
        counts = (run.json("metadata/class_label_counts.json") or {}).get("train", {})
        for task, found in _curves(run).items():  # the finest rank that has them
            classes = np.asarray(found.get("classes", ()), np.float64).reshape(-1, 2)
            taxon = taxa(run, task)
            seen = [i for i in np.flatnonzero(classes[:, 0]).tolist() if taxon.get(i) != "unknown"]
            if not seen:
                continue
            seen.sort(key=lambda i: (classes[i, 1] / classes[i, 0], -classes[i, 0]))
            rows = [
                [taxon.get(i, f"class {i}"), f"{classes[i, 0]:.0f}", percent(classes[i, 1] / classes[i, 0], 100)]
                + [counts[task][i] if task in counts else None]
                for i in seen[:WORST_CLASSES]
            ]
            return table([f"taxon id ({task_name(task)})", "validation rows", "top-1 %", "training rows"], rows)
        return ""

    return side_by_side(runs, one)


def schedule_curves(runs: Runs) -> str:
    def one(run: RunRecord) -> str:
        figure, gap = plots.schedules(run)
        text = (
            ""
            if gap is None
            else note(f"Largest relative difference of an applied learning rate from its plan: {gap:.1e}.")
        )
        return text + figure if figure else ""

    return side_by_side(runs, one)


def data_table(runs: Runs) -> str:
    def one(run: RunRecord) -> str:
        sizes = run.json("assets/num_classes.json") or {}
        density = run.json("metadata/task_label_density.json") or {}
        splits = list(density)
        rows = [
            [task_name(task), task, size, *(percent(density[split].get(task)) for split in splits)]
            for task, size in sizes.items()
        ]
        return table(["rank", "column", "classes", *(f"labelled in {split} %" for split in splits)], rows)

    return side_by_side(runs, one)


def settings(runs: Runs) -> str:
    found = {label: run.config for label, run in runs.items() if run.config}
    if len(found) == 1:
        changed = config_difference(plain(get_config()), next(iter(found.values())))
        content = table(["setting", "default", "this run"], changed_rows(changed), text=True)
        return note("Settings that are not the default.") + content if content else ""
    flat = {label: flatten(config) for label, config in found.items()}
    keys = sorted(set().union(*flat.values())) if flat else []
    rows = [[key, *(json.dumps(one.get(key, "<absent>")) for one in flat.values())] for key in keys]
    content = table(["setting", *flat], [row for row in rows if len(set(row[1:])) > 1], text=True)
    return note("Settings in which the runs differ.") + content if content else ""


def changed_rows(changed: Iterable[tuple[str, Any, Any]]) -> list[list[str]]:
    return [[key, json.dumps(old), json.dumps(new)] for key, old, new in changed]


def versions(runs: Runs) -> str:
    found = {label: run.json("assets/versions.json") or {} for label, run in runs.items()}
    keys = list(dict.fromkeys(key for one in found.values() for key in one))
    return table(["", *found], [[key, *(str(one.get(key, "–")) for one in found.values())] for key in keys], text=True)


SECTIONS: dict[str, Callable[[Runs], str]] = {
    "Overview": overview,
    "Warnings": warning_list,
    "Loss": loss_curves,
    "Accuracy": accuracy_curves,
    "Results per phase": phase_results,
    "What each metadata component is worth": metadata_worth,
    "Mistakes and confidence": trust,
    "Subsets": subsets,
    "Worst classes": worst_classes,
    "Confused classes": confusions,
    "Confident mistakes": confident_mistakes,
    "Schedules, planned and applied": schedule_curves,
    "Gradients": lambda runs: plots.gradients(runs, tasks_of(runs)),
    "Speed": plots.speed,
    "Data": data_table,
    "Settings": settings,
    "Versions": versions,
}


def labels(directories: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell the runs apart."""
    parts = [path.resolve().parts for path in directories]
    for depth in range(1, max(map(len, parts)) + 1):
        found = ["/".join(path[-depth:]) for path in parts]
        if len(set(found)) == len(found):
            return found
    raise ValueError(f"the same run is given twice: {', '.join(map(str, directories))}")


def write_report(run_directories: Sequence[Path], out: Path) -> Path:
    """Writes one HTML page about the runs, without references to anything outside it; returns its path.

    Args:
      run_directories: of one run, or of several that are shown side by side.
      out: the HTML file; an older one is replaced.

    Raises:
      RunError: a directory holds no readable metrics log, or a damaged file.
      ValueError: no directory, or the same twice.
    """
    if not run_directories:
        raise ValueError("no run directory given; give at least one")
    directories = [Path(directory) for directory in run_directories]
    runs = {label: RunRecord.load(path) for label, path in zip(labels(directories), directories, strict=True)}
    body, links = [], []
    for number, (title, make) in enumerate(SECTIONS.items()):
        content = make(runs)
        if content:
            body.append(f'<section id="s{number}"><h2>{html.escape(title)}</h2>{content}</section>')
            links.append(f'<a href="#s{number}">{html.escape(title)}</a>')
    title = "Run " + next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs: {', '.join(runs)}"
    page = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        f"<nav>{' '.join(links)}</nav>{''.join(body)}</body></html>\n"
    )
    write_atomically(out, page)
    os.chmod(out, 0o644)
    return out
