"""What the evaluation of a model on records of other classes says: numbers, and a page for people."""

from __future__ import annotations

import functools
import html
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.data.credits import read_credits
from linnaeus_jax.inference import conformal
from linnaeus_jax.inference.answers import MIN_CONFIDENCE
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.paths import NOT_FINITE
from linnaeus_jax.inference.quality.evaluating import PATH, UNKNOWN, Evaluated, Pictures
from linnaeus_jax.inference.quality.measured_novelty import judged
from linnaeus_jax.inference.quality.measured_sets import span
from linnaeus_jax.metrics.judged import (
    MEASURES,
    THRESHOLDS,
    coverage_and_risk,
    haurc,
    number,
    reliability,
    roll_up,
    roll_up_rows,
)
from linnaeus_jax.reporting.class_tables import WrongAtRank, confusion_tables, mistake_pictures
from linnaeus_jax.reporting.mistakes import with_pictures
from linnaeus_jax.reporting.page import note, page, percent, table
from linnaeus_jax.reporting.report_plots import confidence

#: unknown taxa that are listed of each rank
LISTED = 10
#: of `coverage_rows`
COVERAGE_COLUMNS = (
    "coverage",
    "unknown %",
    "errors %",
    "sets that hold the truth %",
    "of one taxon %",
    "mean size",
    "as written",
)
#: of `occurrence_rows`
OCCURRENCE_COLUMNS = ("rank", "occurrences right %", "mean of classes %", "ECE %", "NLL")


def summary(bundle: Bundle, evaluated: Evaluated) -> dict[str, Any]:
    """All numbers as JSON types; None where nothing is labelled. Shares are fractions, ranks run coarse to fine."""
    labelled, taxonomy = evaluated.labelled, bundle.taxonomy
    values = {name: {kind: of(one) for kind, one in evaluated.judged.items()} for name, of in MEASURES.items()}
    of_all = evaluated.occurrences
    together = {} if of_all is None else {name: of(of_all) for name, of in MEASURES.items()}
    ranks = {}
    for place, rank in taxonomy.coarse_first:
        unknown = labelled.unknown[:, place]
        ranks[rank] = {
            "rows": int(evaluated.judged[PATH].known[:, place].sum()),
            "unknown_rows": int(unknown.sum()),
            "unknown_taxa": len(np.unique(labelled.taxon[unknown, place])),
            **{name: {kind: number(one[place]) for kind, one in of.items()} for name, of in values.items()},
            **{f"occurrence_{name}": number(one[place]) for name, one in together.items()},
        }
    rolled = roll_up(evaluated.strict, THRESHOLDS, taxonomy.first)
    return {
        "labels": str(labelled.path),
        "split": labelled.split or "all rows",
        "rows": len(labelled.rows),
        "not_finite": evaluated.not_finite,
        **({} if of_all is None else {"occurrences": len(of_all.label)}),
        "notes": [*labelled.notes, *_not_finite(evaluated)],
        "metadata": {
            component.name: float(labelled.valid[:, place].mean())
            for place, component in enumerate(bundle.encoder.components)
        },
        "ranks": ranks,
        "unknown_taxa_answered": {rank: _answered(evaluated, place, bundle) for place, rank in taxonomy.coarse_first},
        "roll_up": [each.to_json(list(taxonomy.ranks.values())) for each in rolled],
        "coverage": _coverage(bundle, evaluated),
        **({} if evaluated.novelty is None else {"novelty": judged(evaluated.novelty, labelled.label, UNKNOWN)}),
        "haurc": number(haurc(evaluated.strict, taxonomy.tree.finest_below(), taxonomy.first)),
    }


def _coverage(bundle: Bundle, evaluated: Evaluated) -> list[dict[str, Any]]:
    """Of every level that the bundle has thresholds for: answers as of `RollUp.to_json`, and sets."""
    known, taxonomy = bundle.calibration, bundle.taxonomy
    found = []
    for each in evaluated.sets.numbers():
        if str(round(100 * each["coverage"])) not in known.coverage:
            continue
        least = conformal.least_confidence(known.coverage, known.coverage_rows, each["coverage"])
        (answers,) = roll_up(evaluated.strict, [least], taxonomy.first)
        found.append({"answers": answers.to_json(list(taxonomy.ranks.values())), "sets": each})
    return found


def coverage_rows(numbers: Mapping[str, Any], share: Callable[[float | None], Any]) -> list[list[Any]]:
    """A table of answers and sets for a coverage, with the columns `COVERAGE_COLUMNS`; `share` says a share."""
    return [
        [f"{sets['coverage']:g}", *map(share, (answers["unanswered"], answers["error"], sets["held"], sets["single"]))]
        + ["-" if sets[name] is None else f"{sets[name]:.1f}" for name in ("mean_size", "mean_taxa")]
        for answers, sets in ((each["answers"], each["sets"]) for each in numbers["coverage"])
    ]


def _not_finite(evaluated: Evaluated) -> list[str]:
    bad = evaluated.not_finite
    return [f"{bad} of {bad + len(evaluated.labelled.rows)} rows are left out: {NOT_FINITE}"] if bad else []


def _answered(evaluated: Evaluated, place: int, bundle: Bundle) -> dict[str, float | None]:
    """What becomes of rows whose taxon at a rank is unknown to the model, at `MIN_CONFIDENCE`: shares of these rows.

    `named`: another taxon of that rank or below is answered, which is wrong; `coarser`: the answer is at a coarser rank
    and right there; `coarser_wrong`; `none`: no answer. The rest is answered at a rank that is not labelled.
    """
    judged = evaluated.judged[PATH].take(evaluated.labelled.unknown[:, place])
    count, width = judged.label.shape
    if not count:
        return dict.fromkeys(("named", "coarser", "coarser_wrong", "none"))
    deepest = judged.deepest(MIN_CONFIDENCE, bundle.taxonomy.first)
    at = np.arange(count), np.minimum(deepest, width - 1)
    coarser = (deepest > place) & (deepest < width) & judged.known[at]
    right = judged.right[at]
    parts = {
        "named": deepest <= place,
        "coarser": coarser & right,
        "coarser_wrong": coarser & ~right,
        "none": deepest == width,
    }
    return {name: float(part.mean()) for name, part in parts.items()}


# ---- the page


def evaluation_page(bundle: Bundle, evaluated: Evaluated, pictures: Pictures) -> str:
    """One self-contained page of HTML."""
    numbers, wrong = summary(bundle, evaluated), list(_wrong(bundle, evaluated, pictures))
    title = f"{bundle.facts.get('title') or bundle.source.name} on {evaluated.labelled.path.name}"
    sections = {
        "What was measured": _overview(bundle, numbers),
        "Accuracy by rank": accuracy_table(numbers) + occurrence_table(numbers),
        "Taxa that the model does not know": _unknown(bundle, evaluated, numbers),
        "What it says of known, new and other taxa": novelty_table(numbers),
        "Calibration, risk and coverage": _confidence(bundle, evaluated),
        "Answers by --min-confidence": roll_up_table(numbers),
        "Answers and sets by --coverage": coverage_table(numbers),
        "What is taken for what": confusion_tables(wrong),
        "The most confident mistakes": mistake_pictures(wrong),
    }
    return page(title, sections)


def _overview(bundle: Bundle, numbers: Mapping[str, Any]) -> str:
    rows = [
        ("model", f"{bundle.settings.get('type')} {bundle.settings.get('variant')}"),
        ("after updates", bundle.facts.get("step", bundle.facts.get("steps"))),
        ("labels file", Path(numbers["labels"]).name),
        ("split", numbers["split"]),
        ("rows with a taxon", numbers["rows"]),
        *((f"rows with {name}", f"{100 * share:.1f} %") for name, share in numbers["metadata"].items()),
    ]
    return table(["", ""], rows, left=2) + "".join(note(text) for text in numbers["notes"])


def accuracy_table(numbers: Mapping[str, Any]) -> str:
    """Accuracy, likelihood and calibration of every rank."""
    rows = []
    kinds = list(next(iter(numbers["ranks"].values()))["accuracy"])
    for rank, one in numbers["ranks"].items():
        shares = [percent(one["accuracy"][kind], 100) for kind in kinds]
        rows.append([rank, one["rows"], *shares, one["nll"][PATH], percent(one["ece"][PATH], 100)])
    columns = ["rank", "rows of known taxa", *(f"{kind} %" for kind in kinds), "NLL of the path", "ECE of the path %"]
    return table(columns, rows) + note(
        "Over the rows whose taxon at that rank is a class of the model; null answers count as wrong."
    )


def occurrence_rows(numbers: Mapping[str, Any], share: Callable[[float | None], Any]) -> list[list[Any]]:
    """A table of answers for occurrences with the columns `OCCURRENCE_COLUMNS`; none without them."""
    return [
        [rank, *(share(one[f"occurrence_{name}"]) for name in ("accuracy", "macro_accuracy", "ece"))]
        + [one["occurrence_nll"]]
        for rank, one in numbers["ranks"].items()
        if "occurrences" in numbers
    ]


def occurrence_table(numbers: Mapping[str, Any]) -> str:
    """How good the answers for whole occurrences are, "" without any."""
    if not (rows := occurrence_rows(numbers, lambda share: percent(share, 100))):
        return ""
    said = f"One answer for each of the {numbers['occurrences']:,} occurrences of these rows; a row of none is its own."
    return table(OCCURRENCE_COLUMNS, rows) + note(said)


NOVELTY_COLUMNS = (
    *("rows of", "rows", "said to be known %", "new %", "outside %", "AUROC %", "taken for known %", "right parent %"),
)


def novelty_rows(numbers: Mapping[str, Any], share: Callable[[float | None], Any]) -> list[list[Any]]:
    """A table with the columns `NOVELTY_COLUMNS`; empty where the model does not say what is new."""
    found = []
    for kind, name in (("known", "known taxa"), ("new", "new ones below known"), ("outside", "others")):
        if one := numbers.get("novelty", {}).get(kind):
            measured = (one.get(each) for each in ("auroc", "false_positives", "right_parent"))
            found.append([name, one["rows"], *map(share, (*one["said"].values(), *measured))])
    return found


def novelty_table(numbers: Mapping[str, Any]) -> str:
    """How well it tells taxa that it does not know."""
    if not (rows := novelty_rows(numbers, lambda share: "-" if share is None else percent(share, 100))):
        return note("The model does not say it: its bundle has no statistics of features.")
    return table(list(NOVELTY_COLUMNS), rows) + note(
        "AUROC of the score, against known taxa; taken for known: where 95 % of the known are; right parent: the taxon "
        "that they would be new below is the deepest known one above theirs, over all rows."
    )


def _unknown(bundle: Bundle, evaluated: Evaluated, numbers: Mapping[str, Any]) -> str:
    rows = []
    for rank, one in numbers["ranks"].items():
        if one["unknown_rows"]:
            shares = [percent(share, 100) for share in numbers["unknown_taxa_answered"][rank].values()]
            rows.append([rank, one["unknown_rows"], one["unknown_taxa"], *shares])
    if not rows:
        return note("None: every taxon of the file is a class of the model.")
    columns = [
        "rank",
        "rows",
        "taxa",
        "another taxon named %",
        "right at a coarser rank %",
        "wrong there %",
        "no answer %",
    ]
    lists = "".join(_most_frequent(bundle, evaluated, place, rank) for place, rank in bundle.taxonomy.coarse_first)
    said = note(
        f"No answer at these ranks can be right; shares of these rows at a confidence of {MIN_CONFIDENCE:g} or more."
    )
    return table(columns, rows) + said + f'<div class="side">{lists}</div>'


def _most_frequent(bundle: Bundle, evaluated: Evaluated, place: int, rank: str) -> str:
    """The unknown taxa with the most rows, and what the path says of them."""
    labelled, task = evaluated.labelled, bundle.tasks[place]
    rows = labelled.unknown[:, place]
    if not rows.any():
        return ""
    of_file = {int(taxon): index for index, taxon in enumerate(labelled.names.classes[task])}
    best = evaluated.judged[PATH].predicted[rows, place]
    taxa, name = labelled.taxon[rows, place], class_name(bundle, task)
    lines = []
    for taxon, count in Counter(taxa.tolist()).most_common(LISTED):
        often, times = Counter(best[taxa == taxon].tolist()).most_common(1)[0]
        answer = f"{name(often)} ({100 * times / count:.0f} %)"
        lines.append([labelled.names.label(task, of_file[taxon]), count, answer])
    return f"<div><h4>{html.escape(rank)}</h4>{table(['taxon', 'rows', 'most often taken for'], lines)}</div>"


def class_name(bundle: Bundle, task: str) -> Callable[[int], str]:
    """Class -> what people read for it."""
    return lambda index: "unknown" if index < bundle.taxonomy.first else bundle.taxonomy.names.label(task, index)


def _confidence(bundle: Bundle, evaluated: Evaluated) -> str:
    judged = evaluated.judged[PATH]
    curves = {}
    for place, rank in bundle.taxonomy.coarse_first:
        if judged.known[:, place].any():
            curve = np.stack(coverage_and_risk(judged, place), axis=1).tolist()
            curves[rank] = {"reliability": reliability(judged, place).tolist(), "risk_coverage": curve}
    return confidence(curves) + note("Of the path, over the rows whose taxon the model knows.") if curves else ""


def roll_up_table(numbers: Mapping[str, Any]) -> str:
    """What is answered where at which confidence, and how much of it is wrong."""
    rows = roll_up_rows(numbers["roll_up"], lambda share: percent(share, 100))
    columns = ["confidence", *(f"answered at {rank} %" for rank in numbers["ranks"]), "no answer %", "errors %"]
    return table(columns, rows) + note(
        "Every row is answered at the deepest rank that is probable enough. Errors are a share of the answers; "
        "naming a taxon at the rank of one that the model does not know is an error." + haurc_text(numbers)
    )


def coverage_table(numbers: Mapping[str, Any]) -> str:
    """What answers and sets for a coverage give; a note where the bundle has no thresholds."""
    if not numbers["coverage"]:
        return note(
            "This model has no thresholds for it; linnaeus bundle measures them on the validation rows of the run."
        )
    rows = coverage_rows(numbers, lambda share: percent(share, 100))
    parts = [
        [f"{each['sets']['coverage']:g}", span(group), group["rows"], percent(group["held"], 100)]
        + [f"{group['mean_size']:.1f}"]
        for each in numbers["coverage"]
        for group in each["sets"]["by_training_rows"]
    ]
    columns = ["coverage", "training rows of the taxon", "rows", "sets that hold the truth %", "mean size"]
    said = note(
        "Answers that are unknown, errors among the others; sets of taxa over the rows whose finest label has no taxa "
        "below it. Coverage holds for rows like the validation rows of the model."
    )
    return table(COVERAGE_COLUMNS, rows) + said + (table(columns, parts) if parts else "")


def haurc_text(numbers: Mapping[str, Any]) -> str:
    """A sentence on the area under errors over all confidences; empty where there is none."""
    if numbers["haurc"] is None:
        return ""
    return (
        f" Area under the hierarchical risk–coverage curve (hAURC, Goren et al. 2024): {numbers['haurc']:.4f};"
        " 0 is best."
    )


def _wrong(bundle: Bundle, evaluated: Evaluated, pictures: Pictures) -> Iterator[WrongAtRank]:
    """The mistakes of every rank, coarsest first, with pictures."""
    judged, tasks = evaluated.judged[PATH], bundle.tasks
    found = {task: judged.mistakes(place, bundle.taxonomy.first) for place, task in reversed([*enumerate(tasks)])}
    credits = functools.partial(read_credits, str(evaluated.labelled.path))
    pictured = with_pictures(found, pictures.thumbnails, credits)
    for place, rank in bundle.taxonomy.coarse_first:
        labelled = np.bincount(judged.label[judged.known[:, place], place])
        yield WrongAtRank(rank, class_name(bundle, tasks[place]), pictured[tasks[place]], labelled)
