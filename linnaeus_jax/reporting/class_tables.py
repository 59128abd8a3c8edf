"""What a run has found out about its classes, by name: the worst ones, what they are taken for, confident mistakes."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linnaeus_jax.data.credits import CREDITS, credit_line
from linnaeus_jax.data.taxon_names import describe_taxon
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE
from linnaeus_jax.reporting.page import percent, table
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.taxonomy.ranks import task_name

#: phase -> {task -> curves}, written at a validation: `reliability`, `risk_coverage`, `distance`, `class_counts`
CURVES_FILE = "assets/validation_curves.json"
WORST_CLASSES, CONFUSIONS = 15, 8


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers or None under column names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def validation_curves(run: RunRecord) -> dict[str, dict[str, Any]]:
    """Task -> curves of `val`, or of the first phase there is."""
    phases = run.json(CURVES_FILE) or {}
    return phases.get("val") or next(iter(phases.values()), {})


def _class_counts(curves: Mapping[str, Any]) -> np.ndarray:
    """float64 [2, C], validation rows of each class and how many are predicted right; [2, 0] where not measured."""
    return np.asarray(curves.get("class_counts", ((), ())), np.float64)


def class_names(run: RunRecord, task: str) -> Callable[[int], str]:
    """Index of a class -> what people read for it: its names where the data have some, and its taxon id."""
    indices = (run.json("assets/class_to_idx.json") or {}).get(task, {})
    names = (run.json("assets/taxon_names.json") or {}).get(task, {})
    texts = {
        index: "unknown" if taxon == "null" else describe_taxon(taxon, **names.get(taxon, {}))
        for taxon, index in indices.items()
    }
    return lambda index: texts.get(index, f"class {index}")


def worst_class_rows(run: RunRecord) -> tuple[str, list[tuple[str, int, float, int | None]]]:
    """The finest task whose classes were measured, and of each class its name, validation rows, share that is right
    and training rows, worst first; "" and no rows without any."""
    counts = (run.json("metadata/class_label_counts.json") or {}).get("train", {})
    for task, curves in validation_curves(run).items():
        total, right = _class_counts(curves)
        name = class_names(run, task)
        measured = [i for i in np.flatnonzero(total).tolist() if name(i) != "unknown"]
        if measured:
            measured.sort(key=lambda i: (right[i] / total[i], -total[i]))
            trained = counts.get(task, [None] * len(total))
            rows = [(i, int(total[i]), float(right[i] / total[i])) for i in measured[:WORST_CLASSES]]
            return task, [(name(i), count, share, trained[i]) for i, count, share in rows]
    return "", []


def class_tables(run: RunRecord) -> dict[str, Table]:
    """Tables for trackers, of the last validation: `worst_classes` and `confident_mistakes`, where there are any."""
    task, worst = worst_class_rows(run)
    classes = [[task_name(task), name, rows, 100 * share, training] for name, rows, share, training in worst]
    mistakes = []
    for task, one in (run.json(MISTAKES_FILE) or {}).items():
        name = class_names(run, task)
        for entry in one["confident"]:
            sure = 100 * entry["probability"]
            facts = [task_name(task), entry["row"], name(entry["label"]), name(entry["predicted"]), sure]
            mistakes.append([*facts, *(entry.get(field, "") for field in CREDITS)])
    tables = {
        "worst_classes": Table(("rank", "class", "validation rows", "top-1 %", "training rows"), classes),
        "confident_mistakes": Table(("rank", "row", "label", "taken for", "sure %", *CREDITS), mistakes),
    }
    return {title: one for title, one in tables.items() if one.rows}


# ---- sections of the report


def worst_classes(run: RunRecord, _: Sequence[str]) -> str:
    task, classes = worst_class_rows(run)
    rows = [[name, rows, percent(share, 100), training] for name, rows, share, training in classes]
    return table([task_name(task), "validation rows", "top-1 %", "training rows"], rows) if rows else ""


def confusions(run: RunRecord, _: Sequence[str]) -> str:
    parts = []
    for task, mistakes in (run.json(MISTAKES_FILE) or {}).items():
        name, (total, _) = class_names(run, task), _class_counts(validation_curves(run).get(task, {}))
        rows = []
        for pair in mistakes["pairs"][:CONFUSIONS]:
            label, predicted = pair["label"], pair["predicted"]
            share = 100 * pair["rows"] / total[label] if label < len(total) and total[label] else None
            rows.append([name(label), name(predicted), pair["rows"], percent(share)])
        columns = ["label", "taken for", "rows", "of the label's rows %"]
        parts.append(
            f"<div><h4>{html.escape(task_name(task))}</h4>{table(columns, rows, left=2)}</div>" if rows else ""
        )
    return f'<div class="side">{"".join(parts)}</div>' if any(parts) else ""


def confident_mistakes(run: RunRecord, _: Sequence[str]) -> str:
    parts = []
    for task, mistakes in (run.json(MISTAKES_FILE) or {}).items():
        name = class_names(run, task)
        figures = [mistake_figure(entry, name) for entry in mistakes["confident"]]
        if figures:
            parts.append(f'<h4>{html.escape(task_name(task))}</h4><div class="pictures">{"".join(figures)}</div>')
    return "".join(parts)


def mistake_figure(entry: Mapping[str, Any], name: Callable[[int], str]) -> str:
    """A picture with what it is, what it was taken for, and whose it is."""
    facts = [f"is {name(entry['label'])}", f"taken for {name(entry['predicted'])}"]
    facts += [f"{100 * entry['probability']:.2f} % sure", f"row {entry['row']}"]
    caption = "<br>".join(map(html.escape, facts))
    if credit := credit_line(entry):
        caption += f"<br><small>{html.escape(credit)}</small>"
    picture = f'<img alt="mistake" src="data:image/jpeg;base64,{html.escape(entry["image"])}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
