"""Records of a table as standard columns, compact in memory: what repeats is categorical."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from linnaeus_jax.building import columns, rows
from linnaeus_jax.building.columns import Links
from linnaeus_jax.building.delimited import RecordReader, clean_text
from linnaeus_jax.building.text import printable
from linnaeus_jax.config.errors import UserError

#: columns whose values seldom repeat
_DISTINCT = frozenset(
    (
        rows.PICTURE,
        rows.OCCURRENCE,
        "latitude",
        "longitude",
        "uncertainty",
        "date",
        "time",
        "elevation",
        "elevation_max",
        rows.REASON,
        rows.DETAIL,
        columns.IDENTIFIER,
        columns.SPECIMEN,
        columns.CATALOG,
    )
)
_NUMBERS = ("latitude", "longitude", "uncertainty", "elevation", "elevation_max")
_SPLITS = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}


def compact(frame: pl.DataFrame) -> pl.DataFrame:
    """Text of a block, cleaned; what repeats as Categorical. `line`, `reason` and `detail` stay as they are."""
    texts = [name for name in frame.columns if name not in (rows.LINE, rows.REASON, rows.DETAIL)]
    frame = frame.with_columns(clean_text(name) for name in texts)
    return frame.with_columns(pl.col(name).cast(pl.Categorical) for name in texts if name not in _DISTINCT)


def read_records(reader: RecordReader, links: Links, width: int, progress: rows.Progress | None) -> pl.DataFrame | None:
    """All records of a text file: `line`, the linked standard columns, `reason`, `detail`. None: there are none."""
    frame = joined(map(compact, reader.read(links.positions, width, progress)))
    if frame is not None and reader.dialect.separator == ";":  # as spreadsheets write tables where 1.5 is 1,5
        decimal = (
            pl.col(name).str.replace(r"^([+-]?\d+),(\d+)$", "$1.$2") for name in _NUMBERS if name in frame.columns
        )
        frame = frame.with_columns(decimal)
    return frame


def joined(frames: Iterable[pl.DataFrame]) -> pl.DataFrame | None:
    """Blocks as one frame."""
    blocks = list(frames)
    return pl.concat(blocks) if blocks else None


def standard_splits(frame: pl.DataFrame) -> pl.DataFrame:
    """Names of splits as train, val and test; other words are left."""
    if rows.SPLIT not in frame.columns:
        return frame
    known = (pl.col(rows.SPLIT).cast(pl.String).str.to_lowercase()).replace(_SPLITS)
    return frame.with_columns(known.alias(rows.SPLIT))


def check_taxa(links: Links, header: Iterable[str], where: str) -> None:
    """Raises UserError where no column says anything of a taxon."""
    if not links.levels and not {"scientific_name", columns.EPITHET, columns.LABEL} & set(links.names):
        advice = "name one with --rank-map species=COLUMN"
        raise UserError(f"{where}: no column names a taxon; {advice}. Its columns are {', '.join(header)}")


def reject(
    frame: pl.DataFrame, condition: pl.Expr, reason: pl.Expr | str, detail: pl.Expr | str | None = None
) -> pl.DataFrame:
    """Sets reason and detail of the rows that fulfil a condition and have no reason yet."""
    new = condition.fill_null(False) & pl.col(rows.REASON).is_null()
    said = detail if isinstance(detail, pl.Expr) else pl.lit(detail, pl.String)
    return frame.with_columns(
        pl.when(new)
        .then(reason if isinstance(reason, pl.Expr) else pl.lit(reason))
        .otherwise(pl.col(rows.REASON))
        .alias(rows.REASON),
        pl.when(new).then(said).otherwise(pl.col(rows.DETAIL)).alias(rows.DETAIL),
    )


def with_found(frame: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """`picture` as found on disk, with reasons where none is named or found.

    Args:
      frame: [N] rows with `picture` as named, null = none.
      found: [N] rows `picture`, `reason`, `detail` of `find_files` or a `Matcher`.
    """
    frame = reject(frame, pl.col(rows.PICTURE).is_null(), rows.NO_PICTURE_NAMED)
    found = found.rename({rows.REASON: "_reason", rows.DETAIL: "_detail"})
    frame = frame.drop(rows.PICTURE).hstack(found)
    frame = reject(frame, pl.col("_reason").is_not_null(), pl.col("_reason"), pl.col("_detail"))
    return frame.drop("_reason", "_detail")


def links_of(frame: pl.DataFrame, links: Links) -> dict[str, str]:
    """Standard column of a frame -> column of the source, of a term's address the last part; in the frame's order."""
    found = dict(links.names)
    for standard, name in links.names.items():
        rank = columns.part_and_level(standard)
        if rank and rank[0] == columns.EITHER:
            for part in ("id", "name"):
                found.setdefault(rows.label_column(part, rank[1]), name)
    species = {part: rows.label_column(part, "L10") for part in rows.LABEL_PARTS}
    made = [(columns.EPITHET, "name"), ("scientific_name", "name"), (columns.LABEL, "name")]
    for standard, part in (*made, (columns.TAXON_ID, "id"), (columns.COMMON_NAME, "common")):
        if standard in found:
            found.setdefault(species[part], found[standard])
    return {name: found[name].rpartition("/")[2] for name in frame.columns if name in found}


def lost_pictures(frame: pl.DataFrame, root: Path) -> list[str]:
    """A warning where pictures are named and none is found."""
    named = frame.filter(pl.col(rows.PICTURE).is_not_null() & pl.col(rows.REASON).ne_missing(rows.UNCLAIMED))
    if named.is_empty() or named[rows.REASON].ne_missing(rows.NO_SUCH_PICTURE).any():
        return []
    first = printable(named[rows.PICTURE][0])
    return [f"none of the {named.height} pictures that are named is below {root}, e.g. {first}; is it their folder?"]
