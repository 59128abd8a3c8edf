"""Predictions for people, on the console."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.files.unfinished import PICTURES, UNREADABLE, Summary, sidecar_path
from linnaeus_jax.inference.novelty import novelty_text
from linnaeus_jax.inference.paths import NOT_FINITE
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.tables import table

#: columns of a terminal from which on there is room for every rank
_WIDE = 120
#: taxa of a set that are shown
SHOWN = 5


def answers_table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """The answers of predictions, see `predicting.Part.rows`.

    Args:
      width: of the console in characters; a wide one has room for all ranks.
    """
    folder = os.path.commonpath([os.path.dirname(row["file"]) or "." for row in rows]) if _one_kind(rows) else ""
    lines = []
    for row in rows:
        file = printable(os.path.relpath(row["file"], folder) if folder else row["file"])
        file += f" box {row['box']}" if "box" in row else ""
        file += f" and {row['pictures'] - 1} more" if row.get("pictures", 1) > 1 else ""
        if "no_answer" in row:
            lines.append([file, "", "", "", f"no answer: {printable(row['no_answer'])}"])
            continue
        answer, path = row["answer"], row["path"]
        common = f" ({answer['common_name']})" if answer and answer["common_name"] else ""
        beyond = [taxon for taxon in path if width >= _WIDE or (taxon == path[-1] and taxon != answer)]
        ranks = " > ".join(f"{_name(taxon)} {_percent(taxon)}" for taxon in beyond)
        always = [f"{_name(taxon)} {_percent(taxon)}" for taxon in row["always"]]
        said = "; ".join(
            filter(None, [novelty_text(row), ranks, row["reason_text"], *always, *map(printable, row["notes"])])
        )
        what = f"{_name(answer)}{common}" if answer else "unknown"
        if "set" in row:
            said = f"set: {shortened(map(_name, row['set']), SHOWN)}; {said}".removesuffix("; ")
        lines.append([file, what, *([answer["rank"], _percent(answer)] if answer else ["", ""]), said])
    last = "path, with %" if width >= _WIDE else "finest, with %"
    result = table(printable(folder), ["picture", "answer", "rank", "%", last], lines)
    for column in (1, 2, 4):
        result.columns[column].justify = "left"
    result.columns[2].no_wrap = True
    return result


def _one_kind(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the paths have a folder in common: all absolute, or all relative."""
    return len({os.path.isabs(row["file"]) for row in rows}) == 1


def _name(taxon: Mapping[str, Any]) -> str:
    return (taxon["name"] or str(taxon["taxon_id"])) if taxon["taxon_id"] else "unknown"


def _percent(taxon: Mapping[str, Any]) -> str:
    return f"{100 * taxon['probability']:.0f}"


def summary_lines(
    summary: Summary,
    bundle: Bundle,
    options: AnswerOptions,
    source: str,
    out: Path | None,
    coverage: float | None = None,
    what: str = "pictures",
) -> list[str]:
    """What came of all pictures.

    Args:
      source: what metadata were taken from, for people.
      out: the file of predictions, if there is one.
      coverage: that was asked for.
      what: is counted.
    """
    read = summary.answered
    ranks = [bundle.taxonomy.ranks[task] for task in bundle.tasks]
    answers = [f"{summary.answers[rank]:,} to {rank}" for rank in ranks if rank in summary.answers]
    answers += [f"{summary.answers['']:,} unknown"] if "" in summary.answers else []
    where = "" if out is None else f"{out}: "
    least = f"at {options.min_confidence:g} or more"
    if coverage is not None:
        none = options.min_confidence < sys.float_info.min  # just above 0
        threshold = "any probability" if none else f"{options.min_confidence:.4g} or more"
        least = f"for a coverage of {coverage:g}, at {threshold}"
    lines = [f"{where}{read:,} {what} predicted, {least}: {', '.join(answers) or 'none'}"]
    if of := summary.occurrences:
        said = [f"{of[rank]:,} to {rank}" for rank in ranks if rank in of] + [f"{of['']:,} unknown"] * ("" in of)
        beside = "" if out is None else f"; {what} are in {sidecar_path(out, PICTURES + out.suffix)}"
        lines.append(f"{of.total():,} occurrences answered together: {', '.join(said)}{beside}")
    if summary.reasons:
        codes = ", ".join(f"{count:,} {code}" for code, count in summary.reasons.most_common())
        lines.append(f"above the finest rank or unknown: {codes}")
    if options.least_share is not None and read:
        lines.append(f"sets for a coverage of {coverage:g} hold {summary.set_size / read:.1f} taxa on average")
    if summary.novelty:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in summary.novelty.most_common())
        lines.append(f"taxa of {what}, for a share of {options.novelty:g} of false alarms: {counts}")
    components = [component.name for component in bundle.encoder.components]
    if components and read:
        counts = ", ".join(f"{name} for {summary.inputs.get(name, 0):,}" for name in components)
        lines.append(f"metadata from {source}: {counts} of {read:,} {what}")
    if summary.notes:
        some = "1 picture has" if summary.notes == 1 else f"{summary.notes:,} {what} have"
        lines.append(f"{some} notes on what was given and not used")
    listed = "" if out is None else f", listed in {sidecar_path(out, UNREADABLE)}"
    if summary.unreadable:
        lines.append(f"{summary.unreadable:,} of {summary.pictures:,} {what} cannot be read{listed}")
    if summary.not_finite:
        lines.append(f"{summary.not_finite:,} of {summary.pictures:,} {what} have no answer{listed}: {NOT_FINITE}")
    return lines
