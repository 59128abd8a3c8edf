"""What a person reads when a data set is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from linnaeus_jax.building.steps.finish import Finished
from linnaeus_jax.reading.text import printable

#: warnings that are printed; all stand in build.json
MOST_WARNINGS = 20


def summary_tables(finished: Finished, out: Path) -> Iterator[Table | str]:
    """Totals, ranks and the split of a data set, and its warnings."""
    totals = finished.totals
    table = Table("pictures", "", "", title=f"Data set in {printable(str(out))}", title_justify="left")
    table.columns[1].justify = "right"
    table.add_row("in the source", f"{totals['in']:,}", "pictures, and records without one")
    table.add_row("used", f"{totals['used']:,}", "")
    for reason, count in totals["rejected"].items():
        table.add_row(f"  rejected: {reason}", f"{count:,}", "rejected.csv")
    for component, count in totals["blanked"].items():
        table.add_row(f"  used, {component} blanked", f"{count:,}", "blanked.csv")
    for key, what, file in (
        ("names", "used or rejected, a name cleaned", "names.csv"),
        ("synonyms", "used or rejected, a synonym replaced", "synonyms.csv"),
        ("moved", "used, moved to the side of their occurrence or copy", "moved.csv"),
    ):
        if totals.get(key):  # older data sets have not all of them
            table.add_row(f"  {what}", f"{totals[key]:,}", file)
    for component, count in totals["known"].items():
        table.add_row(f"  used, {component} known", f"{count:,}", _percent(count, totals["used"]))
    for side, count in totals["split"].items():
        if count:
            table.add_row(f"  used, for {side}", f"{count:,}", _percent(count, totals["used"]))
    yield table
    yield _ranks(totals["ranks"], totals["used"])
    if totals["small_classes"]:
        yield f"{totals['small_classes']:,} classes below the minimum became null at their rank: small_classes.csv"
    for warning in finished.warnings[:MOST_WARNINGS]:
        yield f"warning: {printable(warning, limit=300)}"
    if len(finished.warnings) > MOST_WARNINGS:
        yield f"... and {len(finished.warnings) - MOST_WARNINGS} more warnings, see build.json"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _ranks(ranks: dict[str, dict[str, Any]], used: int) -> Table:
    table = Table("rank", "column", "classes", "labelled", "largest class", "smallest", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for task, rank in ranks.items():
        labelled = f"{rank['labelled']:,} ({_percent(rank['labelled'], used)})"
        sizes = (f"{rank[key]:,}" for key in ("largest", "smallest"))
        table.add_row(rank["rank"], task, f"{rank['classes']:,}", labelled, *sizes)
    return table
