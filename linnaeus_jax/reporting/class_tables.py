"""What a run has found out about its classes, by name: the worst ones, what they are taken for, confident mistakes."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linnaeus_jax.data.credits import CREDITS, FILE, credit_line
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
    """The finest task with classes that are not always right, and of each of them its name, validation rows, share that
    is right and training rows, worst first; "" and no rows without any."""
    counts = (run.json("metadata/class_label_counts.json") or {}).get("train", {})
    for task, curves in validation_curves(run).items():
        total, right = _class_counts(curves)
        name = class_names(run, task)
        measured = [i for i in np.flatnonzero(total > right).tolist() if name(i) != "unknown"]
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
    for wrong in _wrong(run):
        for entry in wrong.mistakes["confident"]:
            names = wrong.name(entry["label"]), wrong.name(entry["predicted"])
            facts = [wrong.rank, entry["row"], *names, 100 * entry["probability"]]
            mistakes.append([*facts, *(entry.get(field, "") for field in (FILE, *CREDITS))])
    tables = {
        "worst_classes": Table(("rank", "class", "validation rows", "top-1 %", "training rows"), classes),
        "confident_mistakes": Table(("rank", "row", "label", "taken for", "sure %", FILE, *CREDITS), mistakes),
    }
    return {title: one for title, one in tables.items() if one.rows}


# ---- sections of the report


def worst_classes(run: RunRecord, _: Sequence[str]) -> str:
    task, classes = worst_class_rows(run)
    rows = [[name, rows, percent(share, 100), training] for name, rows, share, training in classes]
    return table([task_name(task), "validation rows", "top-1 %", "training rows"], rows) if rows else ""


def confusions(run: RunRecord, _: Sequence[str]) -> str:
    return confusion_tables(_wrong(run))


def confident_mistakes(run: RunRecord, _: Sequence[str]) -> str:
    return mistake_pictures(_wrong(run))


@dataclass(frozen=True, eq=False)
class WrongAtRank:
    """The mistakes at one rank.

    Attributes:
      rank: what people call it.
      name: index of a class -> what people read for it.
      mistakes: as of `metrics.mistakes`, with pictures as of `reporting.mistakes`.
      labelled: [C] at most, rows labelled with each class; 0 or missing: not known.
    """

    rank: str
    name: Callable[[int], str]
    mistakes: Mapping[str, Sequence[Mapping[str, Any]]]
    labelled: np.ndarray


def _wrong(run: RunRecord) -> Iterator[WrongAtRank]:
    """The mistakes of the last validation at every rank."""
    curves = validation_curves(run)
    for task, one in (run.json(MISTAKES_FILE) or {}).items():
        yield WrongAtRank(task_name(task), class_names(run, task), one, _class_counts(curves.get(task, {}))[0])


def confusion_tables(ranks: Iterable[WrongAtRank]) -> str:
    """The most frequent wrong pairs of every rank, side by side; "" without any."""
    parts = []
    for each in ranks:
        rows = []
        for pair in each.mistakes["pairs"][:CONFUSIONS]:
            label, count = pair["label"], pair["rows"]
            total = each.labelled[label] if label < len(each.labelled) else 0
            share = percent(100 * count / total) if total else None
            rows.append([each.name(label), each.name(pair["predicted"]), count, share])
        columns = ["label", "taken for", "rows", "of the label's rows %"]
        parts.append(f"<div><h4>{html.escape(each.rank)}</h4>{table(columns, rows, left=2)}</div>" if rows else "")
    return f'<div class="side">{"".join(parts)}</div>' if any(parts) else ""


def mistake_pictures(ranks: Iterable[WrongAtRank]) -> str:
    """Pictures of the most confident mistakes of every rank; "" without any."""
    parts = []
    for each in ranks:
        figures = "".join(mistake_figure(entry, each.name) for entry in each.mistakes["confident"])
        parts.append(f'<h4>{html.escape(each.rank)}</h4><div class="pictures">{figures}</div>' if figures else "")
    return "".join(parts)


def mistake_figure(entry: Mapping[str, Any], name: Callable[[int], str]) -> str:
    """A picture with what it is, what it was taken for, and whose it is."""
    facts = [f"is {name(entry['label'])}", f"taken for {name(entry['predicted'])}"]
    facts += [f"{100 * entry['probability']:.2f} % sure", f"row {entry['row']}", entry.get(FILE, "")]
    caption = "<br>".join(map(html.escape, filter(None, facts)))
    if credit := credit_line(entry):
        caption += f"<br><small>{html.escape(credit)}</small>"
    image = entry["image"]
    picture = f'<img alt="mistake" src="data:image/jpeg;base64,{html.escape(image)}">' if image else ""
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
