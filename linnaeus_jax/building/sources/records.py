"""Records of a table as standard columns, compact in memory: what repeats is categorical."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from linnaeus_jax.building.sources.split_folders import several_parents
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
    if columns.STATION in found:
        found.setdefault(schema.PLACE, found[columns.STATION])
    species = {part: schema.label_column(part, "L10") for part in schema.LABEL_PARTS}
    made = [(columns.EPITHET, "name"), ("scientific_name", "name"), (columns.LABEL, "name")]
    for standard, part in (*made, (columns.TAXON_ID, "id"), (columns.COMMON_NAME, "common")):
        if standard in found:
            found.setdefault(species[part], found[standard])
    return {name: found[name].rpartition("/")[2] for name in frame.columns if name in found}


def with_places(frame: pl.DataFrame, links: Links, split: str | None) -> tuple[pl.DataFrame, list[str]]:
    """The column of stations as `place` where the split is by it; a sentence where it could be, and no split is asked
    for."""
    if columns.STATION not in frame.columns:
        return frame, []
    if split == schema.FOLDER_PLACE:
        return frame.rename({columns.STATION: schema.PLACE}), []
    places, name = frame[columns.STATION].drop_nulls(), links.names[columns.STATION]
    is_rank = any(other != columns.STATION and each == name for other, each in links.names.items())
    if split is not None or is_rank or places.n_unique() < 2 or 2 * places.n_unique() > places.len():
        return frame, []
    return frame, [
        f"pictures of each of {places.n_unique():,} places (column {printable(name)}) may fall to both sides of the "
        f"split; --split {schema.COLUMN}{printable(name)} keeps those of one place on one side"
    ]


def crossing_ranks(frame: pl.DataFrame, levels: Sequence[str], links: Links) -> list[str]:
    """A sentence for a rank with a name of its own that does not nest with another, as stations do not."""
    called = [schema.label_column("name", level) for level in levels]
    known = [(level, name) for level, name in zip(levels, called) if name in frame.columns]
    rows = frame.select(pl.col(name).cast(pl.String).fill_null("") for _, name in known).unique().rows()
    stations = {columns.plain(name) for name in " ".join(columns.USUAL_NAMES[columns.STATION]).split()}
    own = [place for place, (level, _) in enumerate(known) if columns.is_own(level)]
    for place in sorted(own, key=lambda at: columns.plain(columns.rank_name(known[at][0])) not in stations):
        for other, (level, _) in enumerate(known):
            both = (several_parents(rows, *pair) for pair in ((place, other), (other, place)))
            if place != other and all(both):
                rank, each = columns.rank_name(known[place][0]), columns.rank_name(level)
                column = next((links.names[name] for name in _columns_of(known[place][0]) if name in links.names), rank)
                return [
                    f"taxa of {each} lie in several of {rank}, and these in several of {each}, as no ranks of a "
                    f"taxonomy do. If {rank} is a place, leave it out of the ranks and give --split {schema.COLUMN}"
                    f"{printable(column)}, which keeps the pictures of a place on one side of the split; as ranks, "
                    "rows that contradict the others are rejected"
                ]
    return []


def _columns_of(level: str) -> list[str]:
    return [schema.label_column(part, level) for part in (*schema.LABEL_PARTS, columns.EITHER)]


def lost_pictures(frame: pl.DataFrame, root: Path) -> list[str]:
    """A warning where pictures are named and none is found."""
    named = frame.filter(pl.col(schema.PICTURE).is_not_null() & pl.col(schema.REASON).ne_missing(schema.UNCLAIMED))
    if named.is_empty() or named[schema.REASON].ne_missing(schema.NO_SUCH_PICTURE).any():
        return []
    first = printable(named[schema.PICTURE][0])
    return [f"none of the {named.height} pictures that are named is below {root}, e.g. {first}; is it their folder?"]
