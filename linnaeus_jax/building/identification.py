"""What a record says of its taxon -> one id, name and common name per rank.

Everything is done on the distinct values of a column, never row by row.
"""

from __future__ import annotations

import re

import polars as pl

from linnaeus_jax.building import columns, rows
from linnaeus_jax.building.columns import EITHER, Links
from linnaeus_jax.building.rows import mapped
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.taxonomy.ranks import RANK_LEVELS

SPECIES, GENUS = "L10", "L20"
#: ranks that occur in data beside those of the table of ranks
_OTHER_RANKS = {
    "variety": 5.0,
    "form": 5.0,
    "forma": 5.0,
    "subform": 5.0,
    "subvariety": 5.0,
    "cultivar": 5.0,
    "infraspecificname": 5.0,
    "infrahybrid": 5.0,
    "infraspecies": 5.0,
    "hybrid": 10.0,
    "speciesaggregate": 11.0,
    "genushybrid": 20.0,
}
_RANK_NUMBERS = {**RANK_LEVELS, **_OTHER_RANKS}
#: words behind a genus that say that the species is not known or not sure
_UNSURE = frozenset("sp spp spec species indet ssp subsp cf aff nr gr agg group complex".split())
#: words of authors' names that look like epithets
_AUTHOR_WORDS = frozenset("de van von ex et da del der den di du le la and in non nec auct".split())
_GENUS = re.compile(r"[^\W\d_a-z][^\W_]+(-[^\W_]+)?")  # digits occur in provisional names
_EPITHET = re.compile(r"[^\W\d_A-Z][^\W_A-Z]+(-[^\W_]+)*|\d+-[^\W\d_]+")
_NUMBERED = re.compile(r"sp+\.?\d+")  # one of several unknown species
_TWO_LOWER_WORDS = re.compile(r"[a-z]{2,} [a-z-]{2,}")
_INTEGER = r"^\d+(\.0+)?$"
_HYBRID = "×"


def binomial(text: str) -> str | None:
    """Genus and epithet of a scientific name, without subgenus, authors, year and what is below the species.

    "Parus major Linnaeus, 1758" -> "Parus major"; "Bombus (Pyrobombus) impatiens" -> "Bombus impatiens"; "Quercus x
    hispanica Lam." -> "Quercus × hispanica". None where it names no species: a genus alone, "Parus sp.", "Parus cf.
    major", a formula of two parents ("Salix alba × fragilis").
    """
    if _TWO_LOWER_WORDS.fullmatch(text.strip()):
        text = text.strip().capitalize()
    words = [word for word in text.replace(_HYBRID, f" {_HYBRID} ").split() if not word.startswith("(")]
    words = [_HYBRID if word in ("x", "X") else word for word in words]
    mark = words[:1] == [_HYBRID]
    words = words[mark:]
    between = words[1:2] == [_HYBRID]
    genus, epithet = words[:1], words[1 + between : 2 + between]
    formula = _HYBRID in words[2 + between :]
    if not genus or not epithet or formula or not _GENUS.fullmatch(genus[0]):
        return None
    word = epithet[0]
    if (
        word.rstrip(".") in _UNSURE
        or _NUMBERED.fullmatch(word)
        or word in _AUTHOR_WORDS
        or not _EPITHET.fullmatch(word)
    ):
        return None
    return f"{_HYBRID} " * mark + genus[0] + (f" {_HYBRID} " if between else " ") + word


def without_authors(text: str) -> str:
    """A scientific name of any rank without authors: the binomial, or the first word."""
    return binomial(text) or (text.split() or [text])[0]


def rank_number(text: str) -> float | None:
    """Level of a `taxonRank`: "SPECIES" -> 10.0, "Genus" -> 20.0; None for "unranked" and unknown words."""
    return _RANK_NUMBERS.get(columns.plain(text))


def identify(frame: pl.DataFrame, links: Links, where: str) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Labels per rank from whatever a source says of its taxa.

    A record identified to a coarser rank than species (`taxonRank`) has no label below that rank. The species is, in
    this order: the source's own column of species; genus and epithet; the first two words of `scientificName`, where
    the rank is species or below or is not given; a column such as "label". What is below the species counts for it.

    Args:
      frame: standard columns and those beginning with "_", categorical or String.
      links: what they were linked to.
      where: name of the source for messages.

    Returns:
      The frame without the columns beginning with "_"; the levels that have labels, finest first; warnings.
    """
    warnings: list[str] = []
    frame = _name_or_id(frame, where, warnings)
    names = [name for name in ("taxon_rank",) if name in frame.columns]
    ranks = frame.select(mapped(frame[name], _rank_text).cast(pl.Float64).alias("_rank") for name in names)
    rank = ranks["_rank"] if names else pl.Series("_rank", [None] * frame.height, dtype=pl.Float64)
    frame = frame.with_columns(rank)
    species = _species(frame)
    if species is not None:
        frame = frame.with_columns(species.alias(rows.label_column("name", SPECIES)))
    frame = _common_names(_species_ids(frame))
    frame = _accepted(frame, links)
    frame = _not_below_the_rank(frame)
    levels = [
        found[1]
        for name in frame.columns
        if (found := columns.part_and_level(name))
        and found[0] in ("id", "name")
        and frame[name].null_count() < frame.height
    ]
    frame = _presence(frame)
    return frame.select(pl.exclude("^_.*$")), columns.finest_first(levels), warnings


def _rank_text(text: str) -> str | None:
    number = rank_number(text)
    return None if number is None else str(number)


def _all_integers(series: pl.Series) -> bool:
    values = series.unique().drop_nulls().cast(pl.String)
    return values.len() > 0 and bool(values.str.contains(_INTEGER).all())


def _name_or_id(frame: pl.DataFrame, where: str, warnings: list[str]) -> pl.DataFrame:
    """Columns named like a rank alone become ids, if all of their values are integers, or names. Ids lose a ".0".

    Ids that are no integers cannot stand in a label file: the names count, and where there are none they are the names.
    """
    for column in frame.columns:
        found = columns.part_and_level(column)
        if not found or found[0] not in (EITHER, "id"):
            continue
        level = found[1]
        integers = _all_integers(frame[column])
        name, number = rows.label_column("name", level), rows.label_column("id", level)
        if integers:
            frame = frame.with_columns(mapped(frame[column], lambda text: text.split(".")[0]).cast(pl.Categorical))
        if columns.is_own(level) and found[0] == EITHER:  # of class folders, say: 0 is a class
            integers = False
        target = number if integers else name
        if found[0] == EITHER and target in frame.columns and frame[column].null_count() < frame.height:
            kind = "ids" if integers else "names"
            raise UserError(
                f"{where} has two columns with {kind} of {level}; choose one with --rank-map {level}=COLUMN"
            )
        named = name in frame.columns or rows.label_column(EITHER, level) in frame.columns
        if found[0] == "id" and not integers and named:
            if frame[column].null_count() < frame.height:
                warnings.append(f"{where}: ids of {level} are not all integers; the names alone are used")
            frame = frame.drop(column)
            continue
        if column != target:
            frame = frame.drop(target, strict=False).rename({column: target})
    return frame


def _species(frame: pl.DataFrame) -> pl.Series | None:
    """The species of every row; None where no column says anything of it."""
    wanted = (
        rows.label_column("name", SPECIES),
        rows.label_column("name", GENUS),
        columns.EPITHET,
        columns.GENERIC_NAME,
        "scientific_name",
        columns.LABEL,
    )
    here = [name for name in wanted if name in frame.columns]
    if not set(here) - {wanted[1], columns.GENERIC_NAME}:
        return None
    keys = frame.select(*here, "_rank")
    distinct = keys.unique()
    blank = [None] * distinct.height
    parts = [distinct[name].cast(pl.String).to_list() if name in here else blank for name in wanted]
    result = [_species_of(*values) for values in zip(*parts, distinct["_rank"].to_list())]
    distinct = distinct.with_columns(pl.Series("_species", result, dtype=pl.String).cast(pl.Categorical))
    return keys.join(distinct, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")["_species"]


def _species_of(
    name: str | None,
    genus: str | None,
    epithet: str | None,
    generic: str | None,
    scientific: str | None,
    label: str | None,
    rank: float | None,
) -> str | None:
    if rank is not None and rank > RANK_LEVELS["species"]:
        return None
    genus = genus or generic
    if name:
        words = name.split()
        if len(words) == 1 and genus and genus[:1].isupper() and _EPITHET.fullmatch(name):
            return f"{genus} {name}"
        return None if len(words) > 1 and words[1].rstrip(".") in _UNSURE else " ".join(words)
    if genus and epithet and epithet.rstrip(".") not in _UNSURE:
        return f"{genus} {epithet}"
    return (binomial(scientific) if scientific else None) or label


def _species_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """`taxonID` of rows identified to the species is the species' id, where no column has ids of the species."""
    number, name = rows.label_column("id", SPECIES), rows.label_column("name", SPECIES)
    if columns.TAXON_ID not in frame.columns or number in frame.columns or not _all_integers(frame[columns.TAXON_ID]):
        return frame
    return frame.with_columns(pl.when(_is_of(frame, SPECIES, name)).then(pl.col(columns.TAXON_ID)).alias(number))


def _is_of(frame: pl.DataFrame, level: str, name: str) -> pl.Expr:
    """Whether a row's own taxon is of a level: by its rank, else because the scientific name is the level's name."""
    same = pl.lit(True)
    if "scientific_name" in frame.columns and name in frame.columns:
        plain_name = mapped(frame["scientific_name"], lambda text: " ".join(text.split()))
        same = pl.lit(plain_name.is_null() | (plain_name == frame[name].cast(pl.String)).fill_null(False))
    return pl.when(pl.col("_rank").is_null()).then(same).otherwise(pl.col("_rank") == columns.level_number(level))


def _common_names(frame: pl.DataFrame) -> pl.DataFrame:
    """The common name of a row's taxon is that of its finest rank."""
    levels = [
        found[1] for name in frame.columns if (found := columns.part_and_level(name)) and found[0] in ("id", "name")
    ]
    if columns.COMMON_NAME not in frame.columns or not levels:
        return frame
    level = columns.finest_first(levels)[0]
    level = SPECIES if SPECIES in levels else level
    target = rows.label_column("common", level)
    if target in frame.columns:
        return frame
    own = _is_of(frame, level, rows.label_column("name", level))
    return frame.with_columns(pl.when(own).then(pl.col(columns.COMMON_NAME)).alias(target))


def _accepted(frame: pl.DataFrame, links: Links) -> pl.DataFrame:
    """Accepted names without authors. GBIF's keys and names of species are those of the accepted species already."""
    if "accepted_name" in frame.columns:
        frame = frame.with_columns(mapped(frame["accepted_name"], without_authors))
    number, name = rows.label_column("id", SPECIES), rows.label_column("name", SPECIES)
    if "status" not in frame.columns:
        frame = _synonyms(frame, number, name)
    by_gbif = columns.plain(links.names.get(number, "")) == "specieskey" and "accepted_id" in frame.columns
    if not by_gbif:
        return frame
    pairs = [
        (number, "accepted_id"),
        *([(name, "accepted_name")] if {name, "accepted_name"} <= set(frame.columns) else []),
    ]
    below = pl.col("_rank").is_null() | (pl.col("_rank") <= columns.level_number(SPECIES))
    return frame.with_columns(
        pl.when(below)
        .then(pl.coalesce(pl.col(own).cast(pl.String), pl.col(accepted).cast(pl.String)))
        .otherwise(pl.col(accepted).cast(pl.String))
        .cast(pl.Categorical)
        .alias(accepted)
        for own, accepted in pairs
    )


def _synonyms(frame: pl.DataFrame, number: str, name: str) -> pl.DataFrame:
    """Where no column tells synonyms, a taxon with another accepted taxon is one."""
    for own, accepted in ((number, "accepted_id"), (name, "accepted_name")):
        if {own, accepted} <= set(frame.columns):
            other = pl.col(own).cast(pl.String) != pl.col(accepted).cast(pl.String)
            return frame.with_columns(pl.when(other).then(pl.lit("SYNONYM")).alias("status"))
    return frame


def _not_below_the_rank(frame: pl.DataFrame) -> pl.DataFrame:
    """No labels below the rank that a row is identified to."""
    finer = []
    for name in frame.columns:
        found = columns.part_and_level(name)
        if found:
            known = pl.col("_rank").is_null() | (pl.col("_rank") <= columns.level_number(found[1]))
            finer.append(pl.when(known).then(pl.col(name)).alias(name))
    return frame.with_columns(finer)


def _presence(frame: pl.DataFrame) -> pl.DataFrame:
    """Records of absence have no label."""
    if columns.PRESENCE not in frame.columns:
        return frame
    absent = mapped(frame[columns.PRESENCE], str.casefold) == "absent"
    absent = absent.fill_null(False) & frame[rows.REASON].is_null()
    return frame.with_columns(
        pl.when(pl.lit(absent)).then(pl.lit(rows.NO_LABEL)).otherwise(pl.col(rows.REASON)).alias(rows.REASON),
        pl.when(pl.lit(absent))
        .then(pl.lit("occurrenceStatus ABSENT"))
        .otherwise(pl.col(rows.DETAIL))
        .alias(rows.DETAIL),
    )
