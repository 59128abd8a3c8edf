"""What every source of a data set is read into: one table, one row per picture and per record without a picture.

Values are text as the source has it, without spaces around it; what stands for "not given" is null. Whether a date,
coordinate or label can be used is decided later, in one place for all sources; a reader rejects only what it alone can
see (no picture named, path out of the folder, malformed line).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

# Why a row is not used. The same words stand in rejected.csv, in totals and in the manual.
NO_PICTURE_NAMED = "no picture named"
NO_SUCH_PICTURE = "no such picture"
AMBIGUOUS = "ambiguous picture name"
UNREADABLE_PICTURE = "unreadable picture"
DUPLICATE_PICTURE = "duplicate picture"
NO_LABEL = "no usable label"
TWO_PARENTS = "taxon with two parents"
UNRESOLVED_SYNONYM = "unresolvable synonym"
MALFORMED = "malformed record"
UNSAFE_PATH = "unsafe path"
UNCLAIMED = "no record names it"
EXCLUDED = "excluded by a list"
NO_BOX = "no box that is taken"
REASONS: tuple[str, ...] = (
    NO_PICTURE_NAMED,
    NO_SUCH_PICTURE,
    AMBIGUOUS,
    UNREADABLE_PICTURE,
    DUPLICATE_PICTURE,
    NO_LABEL,
    TWO_PARENTS,
    UNRESOLVED_SYNONYM,
    MALFORMED,
    UNSAFE_PATH,
    UNCLAIMED,
    EXCLUDED,
    NO_BOX,
)

#: column of a list of doubted labels that people fill in, and what they write for a picture that is not to be used
CORRECT, EXCLUDE = "correct", "exclude"
#: of a list of pairs, beside `PICTURE`, the other picture
OTHER = "other"
#: columns of every frame, in this order at its front and end
LINE, PICTURE, OCCURRENCE, REASON, DETAIL = "line", "picture", "occurrence", "reason", "detail"
WHERE_AND_WHEN: tuple[str, ...] = (
    "latitude",
    "longitude",
    "uncertainty",
    "date",
    "time",
    "year",
    "month",
    "day",
    "hour",
    "zone",
    "elevation",
    "elevation_max",
    "in_region",
    "observer",
)
RIGHTS: tuple[str, ...] = ("license", "rights_holder", "doi")
TAXON_NOTES: tuple[str, ...] = ("status", "accepted_id", "accepted_name", "scientific_name", "taxon_rank")
SPLIT, PLACE = "split", "place"
#: of --split: by `place`; and by a column that becomes it
FOLDER_PLACE, COLUMN = "folder:place", "column:"
SUBSET = "subset_"
#: every standard column but those of ranks and subsets
FIXED_COLUMNS: tuple[str, ...] = (
    LINE,
    PICTURE,
    OCCURRENCE,
    *WHERE_AND_WHEN,
    *RIGHTS,
    *TAXON_NOTES,
    SPLIT,
    PLACE,
    REASON,
    DETAIL,
)
#: parts of a label: taxon id, scientific name, common name
LABEL_PARTS: tuple[str, ...] = ("id", "name", "common")
LABEL_PREFIXES: tuple[str, ...] = tuple(f"{part}_{sign}" for part in LABEL_PARTS for sign in "L:")

#: which box of its picture a row is about, where the boxes of a source have labels of their own; else not there
OWN_BOX = "own_box"
WRITTEN = "written_"

#: (what is being done, done, total); total 0 where it is unknown
Progress = Callable[[str, int, int], None]


def label_column(part: str, level: str) -> str:
    """Column of a rank: ("id", "L10") -> "id_L10", ("name", ":fine") -> "name_:fine"."""
    return f"{part}_{level}"


def written_column(level: str) -> str:
    """Column of the names of a rank as the source writes them, where they were changed: "L10" -> "written_L10"."""
    return f"{WRITTEN}{level}"


@dataclass(frozen=True)
class SourceRows:
    """Rows of one source.

    Attributes:
      frame: one row per picture of the source and per record without a picture. Null = not given; an absent column is
        unknown for all rows; `line`, `picture`, `reason` and `detail` are always there. `line` Int64: 1-based number of
        the line or record in the source, 0 where there is none. `id_<level>`, `name_<level>`, `common_<level>`
        Categorical. `written_<level>`: the name as the source writes it, where it was changed. All others String.
        `picture` is relative to `root` with "/" between folders, null = the record has no picture. Pictures with one
        `occurrence` belong together, null = alone. `reason` and `detail` are set where
        the reader rejects the row.
      root: folder that `picture` is relative to.
      levels: ranks offered, finest first, as "L10", "L20", "L33_5"; ":fine" where a rank has a name of its own.
      files: what was read, in reading order.
      links: standard column -> column of the source, for the report.
      warnings: what a person should know, one line each.
      named: levels that are kept where no ranks are asked for, beside the usual ones.
    """

    frame: pl.DataFrame
    root: Path
    levels: tuple[str, ...]
    files: tuple[Path, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


def standard_order(columns: list[str], levels: tuple[str, ...]) -> list[str]:
    """The given column names in the standard order: what and labels first, subsets, reason and detail last."""
    labels = [label_column(part, level) for level in levels for part in LABEL_PARTS]
    labels += [written_column(level) for level in levels]
    subsets = sorted(name for name in columns if name.startswith(SUBSET))
    order = [LINE, PICTURE, OCCURRENCE, *labels, *FIXED_COLUMNS[3:-2], *subsets, REASON, DETAIL]
    return [name for name in order if name in columns]


def column_type(name: str) -> type[pl.DataType]:
    """Type of a standard column."""
    if name == LINE:
        return pl.Int64
    return pl.Categorical if name.startswith(LABEL_PREFIXES) else pl.String


def mapped(series: pl.Series, rule: Callable[[str], str | None]) -> pl.Series:
    """A text or categorical column with a rule applied to each of its distinct values; null stays null."""
    values = series.unique().drop_nulls()
    results = pl.Series([rule(value) for value in values.cast(pl.String)], dtype=pl.String)
    return results.gather(places_in(series, values)).alias(series.name)


def as_text(series: pl.Series) -> pl.Series:
    """A categorical column as text whose equal values share their memory."""
    values = series.unique().drop_nulls()
    return values.cast(pl.String).gather(places_in(series, values)).alias(series.name)


def places_in(series: pl.Series, values: pl.Series) -> pl.Series:
    """uint32: where in `values` each value of a column stands; null for null."""
    return series.replace_strict(values, pl.Series(range(values.len()), dtype=pl.UInt32), default=None)


def standard_frame(frame: pl.DataFrame, levels: tuple[str, ...]) -> pl.DataFrame:
    """A frame with the columns that are always there, the types and the order of `SourceRows`; others are left out."""
    missing = [name for name in (PICTURE, REASON, DETAIL) if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
    if LINE not in frame.columns:
        frame = frame.with_columns(pl.lit(0, pl.Int64).alias(LINE))
    names = standard_order(frame.columns, levels)
    return pl.DataFrame([_as(frame[name], column_type(name)) for name in names])


def _as(series: pl.Series, kind: type[pl.DataType]) -> pl.Series:
    if series.dtype == kind:
        return series
    if kind == pl.String and series.dtype == pl.Categorical:
        return as_text(series)
    return series.cast(kind) if kind == pl.Int64 else series.cast(pl.String).cast(kind)
