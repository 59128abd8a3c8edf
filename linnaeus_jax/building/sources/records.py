"""Records of a table as standard columns, compact in memory: what repeats is categorical."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.columns import Links
from linnaeus_jax.reading.text import printable

_SPLITS = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}


def standard_splits(frame: pl.DataFrame) -> pl.DataFrame:
    """Names of splits as train, val and test; other words are left."""
    if schema.SPLIT not in frame.columns:
        return frame
    known = (pl.col(schema.SPLIT).cast(pl.String).str.to_lowercase()).replace(_SPLITS)
    return frame.with_columns(known.alias(schema.SPLIT))


def reject(
    frame: pl.DataFrame, condition: pl.Expr, reason: pl.Expr | str, detail: pl.Expr | str | None = None
) -> pl.DataFrame:
    """Sets reason and detail of the rows that fulfil a condition and have no reason yet."""
    new = condition.fill_null(False) & pl.col(schema.REASON).is_null()
    said = detail if isinstance(detail, pl.Expr) else pl.lit(detail, pl.String)
    return frame.with_columns(
        pl.when(new)
        .then(reason if isinstance(reason, pl.Expr) else pl.lit(reason))
        .otherwise(pl.col(schema.REASON))
        .alias(schema.REASON),
        pl.when(new).then(said).otherwise(pl.col(schema.DETAIL)).alias(schema.DETAIL),
    )


def with_found(frame: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """`picture` as found on disk, with reasons where none is named or found.

    Args:
      frame: [N] rows with `picture` as named, null = none.
      found: [N] rows `picture`, `reason`, `detail` of `find_files` or a `Matcher`.
    """
    frame = reject(frame, pl.col(schema.PICTURE).is_null(), schema.NO_PICTURE_NAMED)
    found = found.rename({schema.REASON: "_reason", schema.DETAIL: "_detail"})
    frame = frame.drop(schema.PICTURE).hstack(found)
    frame = reject(frame, pl.col("_reason").is_not_null(), pl.col("_reason"), pl.col("_detail"))
    return frame.drop("_reason", "_detail")


def links_of(frame: pl.DataFrame, links: Links) -> dict[str, str]:
    """Standard column of a frame -> column of the source, of a term's address the last part; in the frame's order."""
    found = dict(links.names)
    for standard, name in links.names.items():
        rank = columns.part_and_level(standard)
        if rank and rank[0] == columns.EITHER:
            for part in ("id", "name"):
                found.setdefault(schema.label_column(part, rank[1]), name)
    species = {part: schema.label_column(part, "L10") for part in schema.LABEL_PARTS}
    made = [(columns.EPITHET, "name"), ("scientific_name", "name"), (columns.LABEL, "name")]
    for standard, part in (*made, (columns.TAXON_ID, "id"), (columns.COMMON_NAME, "common")):
        if standard in found:
            found.setdefault(species[part], found[standard])
    return {name: found[name].rpartition("/")[2] for name in frame.columns if name in found}


def lost_pictures(frame: pl.DataFrame, root: Path) -> list[str]:
    """A warning where pictures are named and none is found."""
    named = frame.filter(pl.col(schema.PICTURE).is_not_null() & pl.col(schema.REASON).ne_missing(schema.UNCLAIMED))
    if named.is_empty() or named[schema.REASON].ne_missing(schema.NO_SUCH_PICTURE).any():
        return []
    first = printable(named[schema.PICTURE][0])
    return [f"none of the {named.height} pictures that are named is below {root}, e.g. {first}; is it their folder?"]
