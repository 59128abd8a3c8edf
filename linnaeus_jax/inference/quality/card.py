"""The card of a bundle, for people: README.md with plain tables, and the pictures that it shows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference import conformal
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.files import FORMAT, format_version
from linnaeus_jax.inference.bundle.members import OTHERS, described
from linnaeus_jax.inference.paths import EVIDENCE
from linnaeus_jax.inference.pooling import MEAN
from linnaeus_jax.inference.quality.extending import added_rows
from linnaeus_jax.inference.quality.measured_novelty import card_section
from linnaeus_jax.inference.quality.measured_sets import COVERAGE, MeasuredSets, span
from linnaeus_jax.inference.quality.measuring import WITH, WITHOUT, Measured
from linnaeus_jax.metrics.judged import (
    LEAST_ROWS,
    MEASURES,
    THRESHOLDS,
    Judged,
    accuracy,
    accuracy_by_rows,
    coverage_and_risk,
    ece,
    macro_accuracy,
    nll,
    reliability,
    roll_up,
    roll_up_rows,
)
from linnaeus_jax.reporting.figures import COLORS, DASHES, MARKERS, grid, labels, legend
from linnaeus_jax.reporting.tables import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---- The pictures of a card


#: points of the curves over confidences
CONFIDENCES = np.linspace(0, 1, 101)
#: least share of the rows of a risk-coverage curve that is drawn: of a few rows it says nothing
LEAST_COVERAGE = 0.02


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG of 120 dots per inch, the same bytes every time."""
    figure.savefig(path, dpi=120, metadata={"Software": None})


def draw_accuracy(path: Path, ranks: Sequence[str], columns: Mapping[str, NDArray[np.float64]]) -> None:
    """Bars of accuracy by rank, coarsest first; `columns` is name -> [T], finest first."""
    figure, (axis,) = grid(1, 1, 3.2)
    width = 0.8 / len(columns)
    for position, (name, values) in enumerate(columns.items()):
        x = np.arange(len(ranks)) + (position - (len(columns) - 1) / 2) * width
        bars = axis.bar(x, 100 * np.nan_to_num(values[::-1]), 0.92 * width, color=COLORS[position], label=name)
        axis.bar_label(bars, [f"{100 * v:.1f}" if np.isfinite(v) else "" for v in values[::-1]], fontsize=8, padding=2)
    axis.set_xticks(np.arange(len(ranks)), list(ranks)[::-1])
    axis.set_ylim(0, 108)
    labels(axis, "Accuracy over the labelled rows", "", "%")
    legend(figure, [axis])
    save(figure, path)


def draw_reliability(path: Path, ranks: Sequence[str], before: Judged, after: Judged) -> None:
    """Accuracy against confidence in bins, one panel per rank."""
    places = [place for place in reversed(range(len(ranks))) if before.known[:, place].any()]
    figure, axes = grid(len(places), 4, 3.0)
    for axis, place in zip(axes, places, strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=1, ls="--", label="perfectly calibrated")
        for position, (name, judged) in enumerate((("before", before), ("after (the path)", after))):
            confidence, right, rows = reliability(judged, place).T
            some = rows >= LEAST_ROWS
            axis.plot(confidence[some], right[some], color=COLORS[position], lw=1.4, label=name)
            size = 6 + 90 * rows / rows.sum()  # area by share of the rows
            axis.scatter(confidence, right, s=size, color=COLORS[position], zorder=3)
        axis.set_xlim(0, 1.03)
        axis.set_ylim(0, 1.03)
        labels(axis, ranks[place], "probability of the answer", "share that is right")
    legend(figure, axes)
    save(figure, path)


def draw_roll_up(path: Path, ranks: Sequence[str], paths: Judged, first: int) -> None:
    """What is answered at which confidence, and errors against coverage of every rank."""
    figure, (left, right) = grid(2, 2, 3.4)
    found = roll_up(paths, CONFIDENCES.tolist(), first)
    shares = np.array([[*each.shares[::-1], each.unanswered] for each in found]).T * 100
    shades = [COLORS[place % len(COLORS)] for place in reversed(range(len(ranks)))]
    stacked = [*zip(reversed(ranks), shares, shades, strict=False)][::-1]  # the finest rank lies at the bottom
    left.stackplot(
        CONFIDENCES,
        [share for _, share, _ in stacked],
        colors=[shade for _, _, shade in stacked],
        alpha=0.55,
        labels=[f"answered at {rank}" for rank, _, _ in stacked],
    )
    left.plot(
        CONFIDENCES, [100 * each.error for each in found], color="black", lw=1.8, label="errors among the answers"
    )
    left.set_xlim(0, 1)
    left.set_ylim(0, 100)
    labels(left, "Answers by --min-confidence", "least probability of an answer", "% of the rows")
    for place, rank in enumerate(ranks):
        if paths.known[:, place].any():
            coverage, risk = coverage_and_risk(paths, place)
            shown = coverage >= LEAST_COVERAGE
            color, dash = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
            right.plot(100 * coverage[shown], 100 * risk[shown], lw=1.6, ls=dash, color=color, label=rank)
            right.plot(100 * coverage[-1:], 100 * risk[-1:], marker=MARKERS[1], ms=4, color=color)
    right.set_xlim(0, 101)
    right.set_ylim(bottom=0)
    labels(right, "Errors, answering the most certain first", "% of the labelled rows answered", "% errors")
    legend(figure, [left, right])
    save(figure, path)


# ----------------------------------------------------------------------------------------------------------------------


IMAGES = "images"
#: `facts.weights` -> what they are
WEIGHTS = {
    "ema": "moving average of the parameters",
    "last": "last parameters",
    "published": "as published, not trained further",
}


def write_card(bundle: Bundle, measured: Measured | None, directory: Path) -> None:
    """Writes README.md and, where something was measured, images/*.png into the directory of a bundle."""
    sections = [_head(bundle), _use(bundle), _about(bundle, measured)]
    if measured is None and "names" in bundle.facts:
        sections.append(
            "## How good it is\n\nNames have changed since this model was measured: what was measured stands in the "
            "card of the bundle before. What was merged has the sum of the probabilities."
        )
    elif measured is None:
        sections.append(
            "## How good it is\n\nThis bundle was made without data: nothing was measured, and its probabilities are "
            "not calibrated."
        )
    else:
        images = directory / IMAGES
        images.mkdir()
        paths = measured.judged[WITH, "paths"]
        ranks = list(bundle.taxonomy.ranks.values())
        draw_accuracy(images / "accuracy.png", ranks, _accuracies(measured))
        draw_reliability(images / "reliability.png", ranks, measured.raw, paths)
        draw_roll_up(images / "roll_up.png", ranks, paths, bundle.taxonomy.first)
        sections += [_accuracy(bundle, measured), _test(bundle, measured), _by_rows(bundle, measured)]
        sections += [_subsets(bundle, measured), _calibration(bundle, measured)]
        sections += [_roll_up(bundle, measured), _coverage(bundle, measured), _together(bundle, measured)]
        sections.append(card_section(measured.novelty))
    sections += [_limits(bundle), _licences(bundle, measured)]
    (directory / "README.md").write_text("\n\n".join(filter(None, sections)) + "\n", encoding="utf-8", newline="\n")


def summary(measured: Measured) -> dict[str, Any]:
    """The numbers of the card as JSON types: by rank, finest first, None where nothing is labelled."""
    judged = {
        "raw": measured.raw,
        **{f"{name}{_SUFFIX[phase]}": each for (phase, name), each in measured.judged.items()},
        **({"test": measured.test} if measured.test is not None else {}),
        **({} if measured.together is None else {"occurrence": measured.together.judged[EVIDENCE]}),
    }
    return {
        "rows": len(measured.rows.labels),
        "of": measured.rows.total,
        **({} if measured.novelty is None else {"novelty": dict(measured.novelty)}),
        **({"not_finite": measured.rows.not_finite} if measured.rows.not_finite else {}),
        **{name: {what: _json(of(each)) for what, of in MEASURES.items()} for name, each in judged.items()},
    }


_SUFFIX = {WITH: "", WITHOUT: " without metadata"}


def _json(values: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]


def _accuracies(measured: Measured) -> dict[str, NDArray[np.float64]]:
    """Column of tables and figures -> accuracy [T]."""
    names = {
        (WITH, "ranks"): "every rank by itself",
        (WITH, "paths"): "the path",
        (WITHOUT, "paths"): "the path, without metadata",
    }
    return {name: accuracy(measured.judged[key]) for key, name in names.items() if key in measured.judged}


def _head(bundle: Bundle) -> str:
    ranks = [rank for _, rank in bundle.taxonomy.coarse_first]
    which = f"{len(ranks)} ranks that agree with each other: {', '.join(ranks)}"
    which = which if len(ranks) > 1 else f"one rank: {ranks[0]}"
    title = one_cell(str(bundle.facts.get("title") or "A model"))
    return f"# {title}\n\nA model that names the taxon in a picture at {which}."


def _use(bundle: Bundle) -> str:
    text = """## How to use it

With `linnaeus_jax` installed, from the directory that holds this one under the name `bundle`:

```
linnaeus predict bundle pictures/ --out predictions.csv
linnaeus serve bundle
python -c "import linnaeus_jax; print(linnaeus_jax.load('bundle').predict('picture.jpg')[0].answer)"
```
"""
    if bundle.encoder.components:
        names = ", ".join(component.name for component in bundle.encoder.components)
        text += f"\n\nMetadata of the pictures ({names}) make the answers better; each may be missing."
    else:
        text += "\n\nThe model looks at the picture alone: place, date and elevation change nothing."
    if not bundle.plugins:
        return text
    names = ", ".join(one_cell(name.rpartition("/")[2]) for name in bundle.plugins)
    return (
        f"{text}\n\nIts run had plugins, which are programs and not part of the bundle: {names}. Where its model needs "
        "them, name your copies by `--plugins`, or `plugins=` in Python."
    )


def _about(bundle: Bundle, measured: Measured | None) -> str:
    facts = bundle.facts
    height, width = bundle.preprocessing.size
    values = sum(np.size(leaf) for leaf in jax.tree.leaves(bundle.variables["params"]))
    weights = WEIGHTS.get(str(facts.get("weights")), WEIGHTS["last"])
    classes = ", ".join(
        f"{rank} {bundle.taxonomy.tree.num_classes[bundle.tasks[place]] - bundle.taxonomy.first:,}"
        for place, rank in bundle.taxonomy.coarse_first
    )
    metadata = [
        f"{component.name} ({', '.join(component.inputs) or 'given as numbers'}, {len(component.columns)} numbers)"
        for component in bundle.encoder.components
    ]
    rows = [
        ("model", f"{bundle.settings.get('type', '')}-{bundle.settings.get('variant', '')}".strip("-")),
        ("parameters", f"{values:,}"),
        ("weights", f"{weights} after {facts['step']:,} updates" if "step" in facts else weights),
        ("picture", f"{height} x {width} pixels, {bundle.preprocessing.resizing}"),
        ("metadata", "; ".join(metadata) or "none"),
        ("taxa", classes),
        ("unknown", "can be answered at any rank" if bundle.taxonomy.first else "is no class of this model"),
        ("format", f"{FORMAT}, version {format_version(bundle)}"),
    ]
    if OTHERS in bundle.variables:
        steps = ", ".join(f"{step:,}" for step in facts["steps"])
        rows[1:3] = [*described(bundle), ("weights", f"{weights} after {steps} updates")]
    if "names" in facts:
        rows.append(("names", f"changed after the training, by {one_cell(str(facts['names']))}"))
    rows += added_rows(facts)
    if measured is not None:
        rows.append(("calibrated on", _sample(measured)))
    return "## What it is\n\n" + table(("", ""), rows, left=2)


def _sample(measured: Measured) -> str:
    count, total = len(measured.rows.labels), measured.rows.total
    drawn = "all" if count == total else f"{count:,}, drawn at random, of"
    return f"{drawn} {total:,} {measured.rows.kind}"


def _accuracy(bundle: Bundle, measured: Measured) -> str:
    columns = _accuracies(measured)
    columns["mean of classes"] = macro_accuracy(measured.judged[WITH, "paths"])
    rows = [
        (rank, f"{measured.raw.known[:, place].sum():,}", *(percent(column[place]) for column in columns.values()))
        for place, rank in bundle.taxonomy.coarse_first
    ]
    text = table(("rank", "labelled rows", *(f"{name}, %" for name in columns)), rows)
    return (
        f"## How good it is\n\nMeasured on {_sample(measured)}. Accuracy is the share of the rows labelled at a rank "
        'that are answered rightly there; "unknown" is then wrong. *The path* is the most probable one through the '
        "taxonomy, the answer of `predict`; *mean of classes* is its accuracy of each class, averaged.\n\n"
        f"{text}\n\n![accuracy by rank]({IMAGES}/accuracy.png)"
    )


def _test(bundle: Bundle, measured: Measured) -> str:
    """What the labels file sets aside for testing, where it does."""
    if (test := measured.test) is None:
        return ""
    columns = [measure(test) for measure in (accuracy, macro_accuracy, nll, ece)]
    rows = [
        (rank, f"{test.known[:, place].sum():,}", *map(percent, (columns[0][place], columns[1][place])))
        + tuple(number(column[place]) for column in columns[2:])
        for place, rank in bundle.taxonomy.coarse_first
    ]
    head = ("rank", "labelled rows", "the path, %", "mean of classes, %", "NLL", "ECE")
    return (
        f"### On test rows\n\n{len(test.label):,} rows that were set aside: neither trained on, nor used to choose or "
        f"calibrate anything. Where they and the validation rows differ, these say more.\n\n{table(head, rows)}"
    )


def _by_rows(bundle: Bundle, measured: Measured) -> str:
    """Accuracy by how many training rows a class has; nothing where these are not known."""
    if not (counts := bundle.calibration.path_counts):
        return ""
    finest, which, judged = bundle.taxonomy.tasks[0], "validation", measured.judged[WITH, "paths"]
    if measured.test is not None:
        which, judged = "test", measured.test
    if not (found := accuracy_by_rows(judged, counts[finest])):
        return ""
    rows = [
        (f"{least:,} or more" if most is None else f"{least} to {most}", f"{count:,}", percent(share))
        for least, most, count, share in found
    ]
    rank = bundle.taxonomy.ranks[finest]
    return (
        f"### By training rows\n\nAccuracy of the path at {rank}, by how many training rows the {rank} has.\n\n"
        + table((f"training rows of the {rank}", f"{which} rows", "right, %"), rows)
    )


def _subsets(bundle: Bundle, measured: Measured) -> str:
    paths, rows = measured.judged[WITH, "paths"], []
    for kind, name, inside in measured.rows.subsets:
        if inside.any():
            values = accuracy(paths.take(inside))
            cells = [percent(values[place]) for place, _ in bundle.taxonomy.coarse_first]
            rows.append((kind, name, f"{int(inside.sum()):,}", *cells))
    if not rows:
        return ""
    text = table(("subset of", "", "rows", *(f"{rank}, %" for _, rank in bundle.taxonomy.coarse_first)), rows, left=2)
    rarity = any(row[0] == "rarity" for row in rows)
    note = (
        f" Rarity is by training rows of the {bundle.taxonomy.ranks[bundle.tasks[0]]}: `lt_p1` are the rarest."
        if rarity
        else ""
    )
    return f"### By subset\n\nAccuracy of the path.{note}\n\n{text}"


def _calibration(bundle: Bundle, measured: Measured) -> str:
    columns = [measured.raw, measured.judged[WITH, "ranks"], measured.judged[WITH, "paths"]]
    values = [of(each) for of in (nll, ece) for each in columns]
    rows = [(rank, *(number(each[place]) for each in values)) for place, rank in bundle.taxonomy.coarse_first]
    unknown = ""
    if not bundle.calibration.path_counts:
        unknown = (
            ' Part of the probability stays with "unknown" as often as training labels were missing, so that answers '
            "may be right more often than they say."
        )
    names = [f"{what} {which}" for what in ("NLL", "ECE") for which in ("before", "of a rank", "of the path")]
    return (
        "### Calibration\n\n*Before*: softmax of the logits. *Of a rank*: with a temperature for every rank. *Of the "
        "path*: of taxa in the answer of `predict`. Temperatures were fitted on one half of the rows and measured on "
        "the other, both ways. NLL is the mean of -log of the label's probability, in nats; ECE the expected "
        f"calibration error in 15 bins.{unknown}\n\n{table(('rank', *names), rows)}\n\n"
        f"![reliability before and after]({IMAGES}/reliability.png)\n\nThe area of a dot is its share of the rows; "
        "dots of fewer than 10 rows are not joined."
    )


def _roll_up(bundle: Bundle, measured: Measured) -> str:
    found = roll_up(measured.judged[WITH, "paths"], THRESHOLDS, bundle.taxonomy.first)
    ranks = list(bundle.taxonomy.ranks.values())
    rows = roll_up_rows((each.to_json(ranks) for each in found), percent)
    head = ("--min-confidence", *(f"{rank}, %" for rank in ranks[::-1]), "no answer, %", "errors, %")
    return (
        "### Answering only as deep as it is sure\n\nShare of the rows that are answered at each rank when the answer "
        "is the deepest taxon of the path with at least some probability, and errors among the answers.\n\n"
        f"{table(head, rows)}\n\n![risk and coverage]({IMAGES}/roll_up.png)"
    )


def _coverage(bundle: Bundle, measured: Measured) -> str:
    """What `--coverage` promises; nothing where the bundle has no such thresholds."""
    known, judged, rows = bundle.calibration, measured.judged[WITH, "paths"], []
    levels = [level for level in COVERAGE if str(level) in known.coverage]
    if not levels:
        return ""
    ranks = list(bundle.taxonomy.ranks.values())
    least = [conformal.least_confidence(known.coverage, known.coverage_rows, level / 100) for level in levels]
    score = conformal.scores(judged, bundle.taxonomy.first)
    for level, each in zip(levels, roll_up(judged, least, bundle.taxonomy.first), strict=True):
        answered = each.to_json(ranks)
        shares = map(percent, (*answered["answered"].values(), answered["unanswered"]))
        rows.append(
            (f"{level / 100:g}", f"{answered['min_confidence']:.3f}", *shares, percent(conformal.held(score, level)))
        )
    head = ("--coverage", "least probability", *(f"{rank}, %" for rank in ranks[::-1]), "no answer, %", "hold it, %")
    by_sets = _sets(bundle, measured)
    return (
        "### Answers that hold the truth\n\nWith `--coverage 0.9` the answer is as deep as 90 of 100 answers allow: so "
        "many of them are the true taxon, one above it, or none, on pictures like the validation rows. *Hold it*: what "
        "the threshold of one half of these rows gave on the other, both ways; the bundle's own thresholds are of all "
        f"{known.coverage_rows:,} rows labelled at the finest rank.\n\n{table(head, rows)}{by_sets}"
    )


def _sets(bundle: Bundle, measured: Measured) -> str:
    """What sets for a coverage hold, and how large they are."""
    answers, own = Answers(bundle.taxonomy, bundle.calibration), measured.rows
    found = MeasuredSets.of(own.logits[WITH], own.labels, answers)
    by_others = [conformal.held_rows(-measured.set_score[found.known], level) for level in found.levels]
    held = np.zeros(found.held.shape, bool)
    for place, right in enumerate(by_others):
        held[found.known, place] = False if right is None else right
    rows, groups = [], []
    for each, right in zip(replace(found, held=held).numbers(), by_others, strict=True):
        if right is None:
            continue
        said = percent(each["single"]), f"{each['mean_size']:.1f}", f"{each['mean_taxa']:.1f}", percent(each["held"])
        rows.append((f"{each['coverage']:g}", *said))
        for group in each["by_training_rows"] if each["coverage"] == 0.9 else ():
            groups.append((span(group), f"{group['rows']:,}", f"{group['mean_size']:.1f}", percent(group["held"])))
    if not rows:
        return ""
    text = (
        "\n\nWith `--as sets` there is also a set of taxa that holds the truth as often, in place of a coarser answer "
        "or none. It is never empty: where first answers are right more often than asked, all sets are of one taxon."
        "\n\n" + table(("--coverage", "of one taxon, %", "mean size", "as written", "hold it, %"), rows)
    )
    head = ("training rows of the taxon", "rows", "mean size at 0.9", "hold it, %")
    return f"{text}\n\n{table(head, groups)}" if groups else text


def _together(bundle: Bundle, measured: Measured) -> str:
    """What answering the pictures of an occurrence together gives; nothing where too few have several."""
    if (found := measured.together) is None:
        return ""
    columns = (found.single, found.judged[EVIDENCE], found.judged[MEAN])
    values = [(accuracy(each), nll(each)) for each in columns]
    rows = [
        (rank, *(percent(right[place]) for right, _ in values), *(number(loss[place]) for _, loss in values))
        for place, rank in bundle.taxonomy.coarse_first
    ]
    names = ("alone", "together", "mean")
    head = ("rank", *(f"right {name}, %" for name in names), *(f"NLL {name}" for name in names))
    groups, pictures = len(found.judged[EVIDENCE].label), len(found.single.label)
    return (
        f"### Several pictures, one answer\n\n{groups:,} occurrences with {pictures:,} pictures: each picture *alone*, "
        "and one answer for each occurrence by `--together`, by evidence or by the *mean* of the probabilities. The "
        f"dependence of the pictures, {found.dependence:.2f} (0: independent, 1: all say the same), was fitted on one "
        f"half of them and measured on the other, both ways.\n\n{table(head, rows)}"
    )


def _limits(bundle: Bundle) -> str:
    return (
        "## Intended use and limits\n\nIt proposes taxa for pictures like those that it was trained on, to people who "
        "can check them. It knows the listed taxa only and names one of them for anything that it is shown, the "
        "numbers above hold for pictures like the validation rows, and a probability proves no rare or new record."
    )


def _licences(bundle: Bundle, measured: Measured | None) -> str:
    weights = bundle.facts.get("licence") or "not stated; ask whoever gave you this bundle"
    text = f"## Licences\n\nWeights: {one_cell(str(weights))}"
    if initial := bundle.facts.get("initial weights"):
        text += f"\n\nTraining began with other weights: {one_cell(str(initial))}"
    if measured is None:
        return text
    if not measured.rows.licences:
        return text + "\n\nTraining pictures: the data set states no licences."
    rows = [(name or "not stated", f"{count:,}") for name, count in measured.rows.licences.items()]
    return text + "\n\nTraining pictures:\n\n" + table(("licence", "rows"), rows[:30])


# ---- markdown


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A markdown table; the first `left` columns are texts, the others numbers."""
    rule = [":--" if column < left else "--:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(map(one_cell, row))} |" for row in (head, rule, *rows))


def one_cell(text: str) -> str:
    """A text of unknown origin as one cell of a table: what Markdown or HTML would take for markup is escaped."""
    return re.sub(r"([\\`*\[\]<>&|])", r"\\\1", " ".join(text.split()))


def number(value: float) -> str:
    """0.123; - where there is none."""
    return "-" if math.isnan(value) else f"{value:.3f}"
