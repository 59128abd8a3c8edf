"""What a record says of its taxon -> one id, name and common name per rank.

Everything is done on the distinct values of a column, never row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.columns import EITHER, Links
from linnaeus_jax.reading.schema import mapped
from linnaeus_jax.taxonomy.ranks import RANK_LEVELS
from linnaeus_jax.taxonomy.scientific_names import (
    NameClassifier,
    is_epithet,
    is_family,
    is_unknown,
    may_be_genus,
    read_name,
    tidy,
    without_authors,
)

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
_INTEGER = r"^\d+(\.0+)?$"
#: the same where different texts are different numbers
_ONE_SPELLING = r"^(0|[1-9]\d*)$"
#: texts that programs write for a missing value, and that may be names as well
_MAYBE_MISSING = ("nan", "none", "null")


def check_taxa(links: Links, header: Iterable[str], where: str) -> None:
    """Raises UserError where no column says anything of a taxon."""
    if not links.levels and not {"scientific_name", columns.EPITHET, columns.LABEL} & set(links.names):
        advice = "name one with --rank-map species=COLUMN"
        raise UserError(f"{where}: no column names a taxon; {advice}. Its columns are {', '.join(header)}")


def rank_number(text: str) -> float | None:
    """Level of a `taxonRank`: "SPECIES" -> 10.0, "Genus" -> 20.0; None for "unranked" and unknown words."""
    return _RANK_NUMBERS.get(columns.plain(text))


def identify(
    frame: pl.DataFrame, links: Links, where: str, names: str = "auto", rows: str = "rows"
) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Labels per rank from whatever a source says of its taxa.

    A record identified to a coarser rank than species (`taxonRank`) has no label below that rank. The species is, in
    this order: the source's own column of species; genus and epithet; the first two words of `scientificName`, where
    the rank is species or below or is not given; a column such as "label". What is below the species counts for it.
    Names that are scientific are brought to one spelling, see `scientific_names`; one that names a genus alone gives
    the genus, where no column does.

    Args:
      frame: standard columns and those beginning with "_", categorical or String.
      links: what they were linked to.
      where: name of the source for messages.
      names: one of `scientific_names.MODES`.
      rows: what messages call the rows of the frame.

    Returns:
      The frame without the columns beginning with "_", with `written_<level>`, the names as they were written where
      they were changed; the levels that have labels, finest first; warnings.
    """
    warnings: list[str] = []
    frame = _name_or_id(frame, where, rows, warnings)
    rank = pl.Series([None] * frame.height, dtype=pl.Float64)
    if "taxon_rank" in frame.columns:
        rank = mapped(frame["taxon_rank"], _rank_text).cast(pl.Float64)
    frame = _labels(frame.with_columns(rank.alias("_rank")), links, names)
    frame = _common_names(_species_ids(frame))
    frame = _accepted(frame, links)
    frame = _not_below_the_rank(frame)
    given = {
        (found[1], frame[name].null_count() < frame.height)
        for name in frame.columns
        if (found := columns.part_and_level(name)) and found[0] in ("id", "name")
    }
    # where no text names a taxon the ranks are those of the texts, so that the rows tell why they are not used
    levels = [level for level, known in given if known] or [level for level, _ in given]
    frame = _presence(frame)
    warnings += _maybe_missing(frame, where, rows)
    return frame.select(pl.exclude("^_.*$")), columns.finest_first(levels), warnings


def _rank_text(text: str) -> str | None:
    number = rank_number(text)
    return None if number is None else str(number)


def _all_integers(series: pl.Series, pattern: str = _INTEGER) -> bool:
    values = series.unique().drop_nulls().cast(pl.String)
    return values.len() > 0 and bool(values.str.contains(pattern).all())


def _name_or_id(frame: pl.DataFrame, where: str, rows: str, warnings: list[str]) -> pl.DataFrame:
    """Columns named like a rank alone become names, whatever these look like. Ids lose a ".0".

    Only beside a column of names are they ids, if all of them are integers. Ids that are no integers cannot stand in a
    label file: the names count, and where there are none they are the names.
    """
    for column in frame.columns:
        found = columns.part_and_level(column)
        if not found or found[0] not in (EITHER, "id"):
            continue
        part, level = found
        name, number = schema.label_column("name", level), schema.label_column("id", level)
        named = name in frame.columns or (part == "id" and schema.label_column(EITHER, level) in frame.columns)
        if part == EITHER and named and number not in frame.columns and _all_integers(frame[column], _ONE_SPELLING):
            frame = frame.rename({column: number})
        elif part == EITHER:
            if named and frame[column].null_count() < frame.height:
                raise UserError(
                    f"{where} has two columns with names of {level}; choose one with --rank-map {level}=COLUMN"
                )
            frame = frame.drop(name, strict=False).rename({column: name})
        elif _all_integers(frame[column]):
            plain = mapped(frame[column], lambda text: text.split(".")[0])
            frame = frame.with_columns(plain.cast(pl.Categorical))
            if not named and (zeros := (plain.str.strip_chars_start("0") == "").sum()):
                warnings.append(
                    f"{where}: {zeros} {rows} have the id 0 of {columns.rank_name(level)}, which stands for no taxon; "
                    f"if 0 is a class, give --map name_{level}=COLUMN"
                )
        elif named:
            if frame[column].null_count() < frame.height:
                warnings.append(f"{where}: ids of {level} are not all integers; the names alone are used")
            frame = frame.drop(column)
        else:
            frame = frame.rename({column: name})
    return frame


def _maybe_missing(frame: pl.DataFrame, where: str, rows: str) -> Iterator[str]:
    """A warning for each name that may stand for a missing value."""
    for column in frame.columns:
        found = columns.part_and_level(column)
        if found and found[0] == "name":
            for name, count in frame[column].value_counts(sort=True).cast({column: pl.String}).rows():
                if name and name.lower() in _MAYBE_MISSING:
                    yield (
                        f"{where}: {count} {rows} have the {columns.rank_name(found[1])} {name!r}, taken as a name; "
                        "if it stands for a missing one, leave it empty"
                    )


@dataclass(frozen=True)
class _Judges:
    """Whether the names of the columns that may name a species are scientific, and whether some of them are epithets
    alone, to which the genus belongs."""

    species: NameClassifier
    scientific: NameClassifier
    label: NameClassifier
    epithets: bool

    @classmethod
    def of(cls, frame: pl.DataFrame, links: Links, mode: str) -> _Judges:
        species, genus = schema.label_column("name", SPECIES), schema.label_column("name", GENUS)
        genera = [text for text in _texts(frame, genus) if may_be_genus(text)]
        exact = columns.plain(links.names.get("scientific_name", "")) in ("scientificname", "latinname")
        epithets = []
        if {species, genus} <= set(frame.columns):
            pairs = frame.select(pl.col(genus, species).cast(pl.String)).unique().drop_nulls().rows()
            epithets = [f"{one} {text}" for one, text in pairs if one[:1].isupper() and is_epithet(text)]
        return cls(
            NameClassifier(_texts(frame, species), mode, genera),
            NameClassifier(
                _texts(frame, "scientific_name"), "scientific" if exact and mode == "auto" else mode, genera
            ),
            NameClassifier(_texts(frame, columns.LABEL), mode, genera),
            bool(epithets) and NameClassifier(epithets, mode).scientific,
        )


def _texts(frame: pl.DataFrame, column: str) -> list[str]:
    """The distinct texts of a column, none where it is absent."""
    return frame[column].unique().drop_nulls().cast(pl.String).sort().to_list() if column in frame.columns else []


def _labels(frame: pl.DataFrame, links: Links, mode: str) -> pl.DataFrame:
    """The names of every rank in one spelling, and as they were written."""
    species, genus = schema.label_column("name", SPECIES), schema.label_column("name", GENUS)
    judges = _Judges.of(frame, links, mode)
    best = next((classifier for classifier in (judges.species, judges.label) if classifier.scientific), judges.species)
    for column in frame.columns:
        found = columns.part_and_level(column)
        if found and found[0] == "name" and found[1] != SPECIES and not columns.is_own(found[1]):
            rule = best.coarser if columns.level_number(found[1]) >= columns.level_number(GENUS) else _finer(best)
            frame = _rewritten(frame, found[1], mapped(frame[column], rule))
    wanted = (species, genus, columns.EPITHET, columns.GENERIC_NAME, "scientific_name", columns.LABEL)
    here = [name for name in wanted if name in frame.columns]
    if not set(here) - {genus, columns.GENERIC_NAME}:
        return frame
    keys = frame.select(*here, "_rank")
    distinct = keys.unique(maintain_order=True)
    blank = [None] * distinct.height
    parts = [distinct[name].cast(pl.String).to_list() if name in here else blank for name in wanted]
    found_names = [_Said(*values).name(judges) for values in zip(*parts, distinct["_rank"].to_list())]
    made = {f"_{part}": [getattr(one, part) for one in found_names] for part in ("species", "genus", "written")}
    distinct = distinct.with_columns(pl.Series(key, values, pl.String) for key, values in made.items())
    joined = keys.join(distinct, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    frame = frame.with_columns(joined["_species"].cast(pl.Categorical).alias(species))
    if joined["_written"].null_count() < frame.height:
        frame = _ids_of_names(frame.with_columns(joined["_written"].alias(schema.written_column(SPECIES))))
    return _with_genera(frame, joined["_genus"])


def _read(text: str, classifier: NameClassifier) -> _Found:
    """A text as a name; as it is where it is none that is scientific."""
    name = classifier.read(text)
    own = name.species if name else tidy(text)
    return _Found(own, name.genus if name else None, text if own != tidy(text) else None)


def _finer(classifier: NameClassifier) -> Callable[[str], str | None]:
    """The rule for names between species and genus and below the species: what is below it is kept."""

    def rule(text: str) -> str | None:
        name = classifier.read(text)
        return None if is_unknown(text) else (name and name.below) or tidy(text)

    return rule


def _rewritten(frame: pl.DataFrame, level: str, names: pl.Series) -> pl.DataFrame:
    """Puts names in place of a level's own, which are kept where they differ in more than spaces."""
    column = schema.label_column("name", level)
    written = frame[column].cast(pl.String)
    changed = (names != mapped(frame[column], tidy)) | (names.is_null() & written.is_not_null())
    frame = frame.with_columns(names.cast(pl.Categorical).alias(column))
    if not changed.fill_null(False).any():
        return frame
    kept = pl.select(pl.when(changed).then(written)).to_series()
    return frame.with_columns(kept.alias(schema.written_column(level)))


def _ids_of_names(frame: pl.DataFrame) -> pl.DataFrame:
    """No id of the species where the text names none, nor where a changed name has another id than its other rows.

    The id is of a subspecies, or of another spelling, then; a name without an id takes that of the same name.
    """
    number, name = schema.label_column("id", SPECIES), pl.col(schema.label_column("name", SPECIES))
    if number not in frame.columns:
        return frame
    changed = pl.col(schema.written_column(SPECIES)).is_not_null()
    several = name.is_not_null() & (pl.col(number).drop_nulls().n_unique().over(name) > 1)
    return frame.with_columns(pl.when(~(changed & (name.is_null() | several))).then(pl.col(number)).alias(number))


@dataclass(frozen=True)
class _Found:
    """What a record says: its species, its genus or coarser taxon, and the text where that was not taken as it is."""

    species: str | None = None
    genus: str | None = None
    written: str | None = None


@dataclass(frozen=True)
class _Said:
    """What the columns of a record say of its species."""

    own: str | None
    genus: str | None
    epithet: str | None
    generic: str | None
    scientific: str | None
    label: str | None
    rank: float | None

    def name(self, judges: _Judges) -> _Found:
        """The species, from the first column that says something of it."""
        if self.rank is not None and self.rank > RANK_LEVELS["species"]:
            said = ((self.scientific, judges.scientific), (self.own, judges.species))
            known = [classifier.read(text) for text, classifier in said if text]
            genus = next((name.genus for name in known if name and name.genus), None)
            return _Found(genus=genus if self.rank == RANK_LEVELS["genus"] else None)
        unknown = None
        for text, rule in (
            (self.own, self._of_species),
            (self.epithet, self._of_epithet),
            (self.scientific, self._of_scientific),
            (self.label, self._of_label),
        ):
            if text is None or (rule == self._of_epithet and not self._genus and len(text.split()) == 1):
                continue
            found = _Found() if is_unknown(text) else rule(text, judges)
            if found.species or found.genus:
                return found
            unknown = unknown or text
        return _Found(written=unknown)

    @property
    def _genus(self) -> str | None:
        return self.genus or self.generic

    def _of_species(self, text: str, judges: _Judges) -> _Found:
        if judges.epithets and self._genus and len(text.split()) == 1 and is_epithet(text):
            return _Found(f"{self._genus} {text}", self._genus)
        return _read(text, judges.species)

    def _of_scientific(self, text: str, judges: _Judges) -> _Found:
        found, classifier = _read(text, judges.scientific), judges.scientific
        latin = classifier.scientific or not may_be_genus(text)
        is_other = found.genus is None and (classifier.sure or (latin and len(text.split()) == 1))
        return _Found() if is_other else found  # a virus, a number beside Latin names, the name of a family

    def _of_label(self, text: str, judges: _Judges) -> _Found:
        return _read(text, judges.label)

    def _of_epithet(self, text: str, judges: _Judges) -> _Found:
        """`specificEpithet`, which holds a whole name, authors or a qualifier in many archives."""
        genus = self._genus
        whole = read_name(text) if len(text.split()) > 1 else None
        if whole and (genus is None or not text[:1].islower() or text.casefold().startswith(f"{genus} ".casefold())):
            return _Found(whole.species, whole.genus, text)
        name = read_name(f"{genus} {text[:1].lower()}{text[1:]}") if genus else None
        if name is None:  # no genus of usual form: the two as they are
            return _Found(f"{genus} {text}" if genus else None, genus)
        return _Found(name.species, name.genus, text if name.species != f"{genus} {text}" else None)


def _with_genera(frame: pl.DataFrame, said: pl.Series) -> pl.DataFrame:
    """Genus, and family, of the rows that no column gives one, from their names.

    A source without a column of genera gets one if some rows are known to the genus only.
    """
    species, genus, family = (schema.label_column("name", level) for level in (SPECIES, GENUS, "L30"))
    number = schema.label_column("id", GENUS)
    coarser = {
        text.casefold()
        for column in frame.columns
        if (part := columns.part_and_level(column)) and part[0] == "name"
        if columns.level_number(part[1]) > columns.level_number(GENUS)
        for text in _texts(frame, column)
    }
    genera = mapped(said, lambda text: text if may_be_genus(text) and text.casefold() not in coarser else None)
    alone = genera.is_not_null() & frame[species].is_null()
    if genus in frame.columns or alone.any():
        own = pl.col(genus).cast(pl.String) if genus in frame.columns else pl.lit(None, pl.String)
        free = pl.lit(True) if number not in frame.columns else pl.col(number).is_null()
        given = pl.when(free).then(pl.coalesce(own, pl.lit(genera))).otherwise(own)
        frame = frame.with_columns(given.cast(pl.Categorical).alias(genus))
    if family in frame.columns:
        families = mapped(said, lambda text: text if is_family(text) else None)
        given = pl.coalesce(pl.col(family).cast(pl.String), pl.lit(families))
        frame = frame.with_columns(given.cast(pl.Categorical).alias(family))
    return frame


def _species_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """`taxonID` of rows identified to the species is the species' id, where no column has ids of the species."""
    number, name = schema.label_column("id", SPECIES), schema.label_column("name", SPECIES)
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
    target = schema.label_column("common", level)
    if target in frame.columns:
        return frame
    own = _is_of(frame, level, schema.label_column("name", level))
    return frame.with_columns(pl.when(own).then(pl.col(columns.COMMON_NAME)).alias(target))


def _accepted(frame: pl.DataFrame, links: Links) -> pl.DataFrame:
    """Accepted names without authors. GBIF's keys and names of species are those of the accepted species already."""
    if "accepted_name" in frame.columns:
        frame = frame.with_columns(mapped(frame["accepted_name"], without_authors))
    number, name = schema.label_column("id", SPECIES), schema.label_column("name", SPECIES)
    if "status" not in frame.columns:
        frame = _synonyms(frame, number, name)
    by_gbif = columns.plain(links.names.get(number, "")) == "specieskey" and "accepted_id" in frame.columns
    if not by_gbif:
        return frame
    pairs = [
        (own, accepted)
        for own, accepted in ((number, "accepted_id"), (name, "accepted_name"))
        if {own, accepted} <= set(frame.columns)
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
    absent = absent.fill_null(False) & frame[schema.REASON].is_null()
    return frame.with_columns(
        pl.when(pl.lit(absent)).then(pl.lit(schema.NO_LABEL)).otherwise(pl.col(schema.REASON)).alias(schema.REASON),
        pl.when(pl.lit(absent))
        .then(pl.lit("occurrenceStatus ABSENT"))
        .otherwise(pl.col(schema.DETAIL))
        .alias(schema.DETAIL),
    )
