"""A Darwin Core archive, as GBIF and iNaturalist export it, with pictures on disk, as rows of a data set.

An occurrence has one row for each of its pictures: for every line of the media file, or, where that has none of the
occurrence, for every file on disk that is named by its id. Every line of both files is in at least one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.building.sources import matching, records
from linnaeus_jax.building.sources.archive import META, FileDescription, read_meta
from linnaeus_jax.building.sources.matching import Matcher
from linnaeus_jax.building.sources.source import MAP, PICTURES, QUOTES, RANK_MAP, Common, Option, Request, source
from linnaeus_jax.building.sources.table import files_by_id
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.archive import Archive
from linnaeus_jax.reading.columns import Links, link_columns, plain
from linnaeus_jax.reading.delimited import RecordReader, find_dialect
from linnaeus_jax.reading.identification import check_taxa, identify
from linnaeus_jax.reading.picture_folder import open_folder
from linnaeus_jax.reading.schema import Progress, SourceRows
from linnaeus_jax.reading.table import joined, read_records
from linnaeus_jax.reading.text import printable

#: row types of media files, the preferred first
MEDIA_TYPES: tuple[str, ...] = (
    "http://rs.gbif.org/terms/1.0/Multimedia",
    "http://rs.gbif.org/terms/1.0/Image",
    "http://rs.tdwg.org/ac/terms/Multimedia",
)
#: row types of occurrences, by their last part; the others are those of archives from before 2010
_OCCURRENCES = frozenset(("occurrence", "simpledarwinrecord", "darwincore", "darwinrecord"))
_TABLES = (".csv", ".tsv", ".txt", ".tab")
_OTHER_TEXTS = ("citations.txt", "rights.txt", "readme.txt", "verbatim.txt")
_DOWNLOAD_DOI = re.compile(r"10\.15468/dl\.[0-9a-z]+", re.IGNORECASE)
_ANY_DOI = re.compile(r"\b10\.\d{4,9}/[^\s\"'<>;,]+")
_OWN_IDENTIFIER = re.compile(
    r"<alternateIdentifier[^>]*>([^<]+)<|packageId=\"([^\"]+)\"|<citation[^>]*identifier=\"([^\"]+)\""
)
_NOT_PICTURES = r"(?i)\.(mp3|wav|m4a|aac|ogg|oga|flac|aiff?|wma|mp4|mpe?g|mov|avi|webm|mkv|3gp|pdf|html?|txt)$"


def read(
    archive: Path,
    *,
    quotes: str = "csv",
    **common: Any,
) -> SourceRows:
    """Reads an archive of occurrences.

    Args:
      archive: the zip, or the folder that it was unpacked to.
      pictures: folder of the pictures, whose files are found by path, number of a photo, file name or id (see
        `matching`); pictures of it that no record names become rows with that reason. None: the folder that the
        archive lies in, whose other pictures are left aside.
      quotes: "csv": as the archive says; "none": quotes are text, whatever it says.
      common: fields of `source.Common`.

    Raises:
      UserError: what is no archive of occurrences, is damaged or is not safe to read.
    """
    asked = Common(**common)
    root = open_folder(asked.pictures or (archive if archive.is_dir() else archive.parent))
    with Archive(archive, META) as opened:
        core, media, metadata, warnings = _described(opened)
        if quotes == "none":
            core, media = _unquoted(core), media and _unquoted(media)
        occurrences, links, notes = _read_occurrences(opened, core, asked.mapping, asked.rank_map, asked.progress)
        media_rows = None
        if media is not None:
            media_rows, _, about_media = _read_file(opened, media, media=True, progress=asked.progress)
            notes += about_media
        doi = asked.doi or _find_doi(opened, metadata)
    mode = "scientific" if asked.names == "auto" else asked.names  # what the terms of Darwin Core are for
    occurrences, places = records.with_places(occurrences, links, asked.split)
    occurrences, levels, more = identify(occurrences, links, core.names[0], mode)
    occurrences = records.standard_splits(_without_repeats(occurrences))
    if doi:
        occurrences = occurrences.with_columns(pl.lit(doi).alias("doi"))
    listing = asked.listing(root)
    matcher = Matcher(listing)
    if media is None or media_rows is None:
        frame = files_by_id(occurrences, matcher)
    else:
        frame = _by_media(occurrences, media_rows, matcher, media.names[0])
    frame = asked.finished(frame, levels, listing if asked.pictures is not None else None)
    if asked.pictures is not None:
        warnings += listing.warnings()
    members = (*core.names, *(media.names if media else ()))
    files = (archive,) if archive.is_file() else tuple(archive / name for name in members)
    said = (*warnings, *notes, *more, *places, *records.lost_pictures(frame, root))
    return SourceRows(frame, root, levels, files, records.links_of(frame, links), said)


@source(
    Option("--dwca", type=Path, metavar="FILE", help="Darwin Core archive of GBIF or iNaturalist"),
    *(PICTURES, MAP, RANK_MAP, QUOTES),
)
def _read(request: Request) -> SourceRows:
    args = request.args
    return read(args.dwca, pictures=args.pictures, quotes=args.quotes, **request.columns, **request.common)


def _unquoted(description: FileDescription) -> FileDescription:
    return replace(description, dialect=replace(description.dialect, quote=None))


def _described(opened: Archive) -> tuple[FileDescription, FileDescription | None, str | None, list[str]]:
    """The core file, the media file, the name of the metadata; warnings. Raises UserError for other archives."""
    if META not in opened.names:
        return (*_undescribed(opened), None, [])
    described, metadata = read_meta(opened)
    core, *others = described
    if core.kind.casefold() not in _OCCURRENCES:
        kind = printable(core.kind) or "unknown"
        advice = "download the occurrences, as GBIF offers them for every data set, or give their table with --table"
        raise UserError(f"{opened.path.name} is an archive of {kind} records; only occurrences can be read: {advice}")
    media = [kind.casefold() for kind in MEDIA_TYPES]
    found = [other for kind in media for other in others if other.row_type.casefold() == kind]
    warnings = [
        f"{opened.path.name}: {other.names[0]} is not read, since {found[0].names[0]} is" for other in found[1:]
    ]
    return core, found[0] if found else None, metadata, warnings


def _undescribed(opened: Archive) -> tuple[FileDescription, FileDescription | None]:
    """The files of an archive without meta.xml: GBIF's simple table, or the tables of a full archive alone."""
    if "occurrence.txt" in opened.names:
        core, *media = [
            FileDescription((name,), "Occurrence", replace(find_dialect(b"gbifID\t"), header_lines=1), None, {}, {})
            for name in ("occurrence.txt", "multimedia.txt")
            if name in opened.names
        ]
        return core, media[0] if media else None
    tables = [name for name in opened.names if name.lower().endswith(_TABLES) and name.lower() not in _OTHER_TEXTS]
    if len(tables) != 1:
        there = ", ".join(map(printable, opened.names[:10])) or "nothing"
        raise UserError(f"{opened.path.name} has no {META} and not one table alone; there are {there}")
    with opened.open(tables[0]) as source:
        dialect = find_dialect(source.stream.read(1 << 16))
    return FileDescription((tables[0],), "Occurrence", dialect, None, {}, {}), None


def _read_file(
    opened: Archive,
    description: FileDescription,
    *,
    media: bool,
    mapping: Mapping[str, str] | None = None,
    rank_map: Mapping[str, str] | None = None,
    progress: Progress | None,
) -> tuple[pl.DataFrame | None, Links, list[str]]:
    """Records of the core or media file; `occurrence` is the id of the record. None where there are none."""
    frames, warnings = [], []
    links = Links({}, {})
    for name in description.names:
        with opened.open(name) as source:
            reader = RecordReader(source, description.dialect)
            header = _header(reader, description, f"{opened.path.name}: {name}")
            constants = [term for term in description.defaults if term not in description.terms.values()]
            links = link_columns(
                [*header, *constants], name, mapping=mapping, rank_map=rank_map, media=media, first=True
            )
            places = {key: place for key, place in links.positions.items() if key != schema.PICTURE}
            names = {key: links.names[key] for key in places}
            own = _id_place(description, header, places, media)
            if own is not None:
                places[schema.OCCURRENCE], names[schema.OCCURRENCE] = own, header[own] or "id"
            links = Links(names, places)
            if not media:
                check_taxa(links, filter(None, header), name)
            in_file = Links(names, {key: place for key, place in places.items() if place < len(header)})
            frame = read_records(reader, in_file, len(header), progress)
            warnings += reader.warnings
        if frame is not None:
            frames.append(_with_defaults(frame, description, links))
    return joined(frames), links, warnings


def _header(reader: RecordReader, description: FileDescription, where: str) -> list[str]:
    """Names of a file's columns: the terms of meta.xml, or its own header line where nothing is described."""
    if not description.terms:
        return reader.header
    width = len(reader.header) if description.dialect.header_lines else reader.first_width()
    last = max([*description.terms, description.id or 0])
    if last >= width:
        raise UserError(f"{where} has {width} columns, but {META} describes column {last + 1}")
    return [description.terms.get(place, "") for place in range(width)]


def _id_place(
    description: FileDescription, header: Sequence[str], places: Mapping[str, int], media: bool
) -> int | None:
    """Where the id of the record stands."""
    if description.id is not None or not media:
        return description.id if description.id is not None else places.get(schema.OCCURRENCE)
    known = [place for place, name in enumerate(header) if plain(name) in ("gbifid", "coreid", "id")]
    return known[0] if known else 0


def _with_defaults(frame: pl.DataFrame, description: FileDescription, links: Links) -> pl.DataFrame:
    """Fills in the defaults of meta.xml, not in malformed records."""
    for standard, name in links.names.items():
        value = description.defaults.get(name)
        if value is not None:
            own = pl.col(standard).cast(pl.String) if standard in frame.columns else pl.lit(None, pl.String)
            filled = pl.when(pl.col(schema.REASON).is_null()).then(pl.coalesce(own, pl.lit(value)))
            frame = frame.with_columns(filled.cast(schema.column_type(standard)).alias(standard))
    return frame


def _read_occurrences(
    opened: Archive,
    core: FileDescription,
    mapping: Mapping[str, str] | None,
    rank_map: Mapping[str, str] | None,
    progress: Progress | None,
) -> tuple[pl.DataFrame, Links, list[str]]:
    frame, links, warnings = _read_file(
        opened, core, media=False, mapping=mapping, rank_map=rank_map, progress=progress
    )
    if frame is None:
        raise UserError(f"{opened.path.name}: {core.names[0]} has no records")
    if schema.OCCURRENCE not in frame.columns:
        raise UserError(f"{opened.path.name}: {core.names[0]} has no column of ids, such as gbifID")
    others = {columns.SPECIMEN: "specimen", columns.CATALOG: "catalog"}
    frame = frame.rename(others, strict=False)
    if "specimen" in frame.columns:  # the last part of an address or urn
        frame = frame.with_columns(pl.col("specimen").str.extract(r"([^/:]+)/?$"))
    if columns.DATASET in frame.columns and "doi" not in frame.columns:
        frame = frame.with_columns(schema.mapped(frame[columns.DATASET], _doi_in).alias("doi"))
    return frame, links, warnings


def _doi_in(text: str) -> str | None:
    match = _ANY_DOI.search(text)
    return match[0].rstrip(".") if match else None


def _find_doi(opened: Archive, metadata: str | None) -> str | None:
    """DOI of the download, where GBIF writes it, or else the archive's own in its metadata."""
    own = None
    for name in dict.fromkeys((metadata or "", "metadata.xml", "eml.xml", "citations.txt", "rights.txt")):
        if name not in opened.names:
            continue
        text = opened.text(name)
        if match := _DOWNLOAD_DOI.search(text):
            return match[0].lower()
        identifiers = ("".join(groups) for groups in _OWN_IDENTIFIER.findall(text))
        own = own or next(filter(None, map(_doi_in, identifiers)), None)
    return own


def _without_repeats(occurrences: pl.DataFrame) -> pl.DataFrame:
    """Rejects records whose id another record has had already."""
    own = pl.col(schema.OCCURRENCE)
    first = pl.col(schema.LINE).first().over(schema.OCCURRENCE)
    detail = pl.format("its id stands on line {} already", first)
    return records.reject(occurrences, own.is_not_null() & ~own.is_first_distinct(), schema.MALFORMED, detail)


def _is_picture(media: pl.DataFrame) -> pl.Series:
    """bool [N]: whether media rows are pictures: by type, else by format, else by the suffix of the file."""
    here = {name: pl.col(name).cast(pl.String).str.to_lowercase() for name in media.columns}
    none = pl.lit(None, pl.String)
    kind = here.get(columns.MEDIA_TYPE, none)
    form = here.get(columns.MEDIA_FORMAT, none)
    suffix = here.get(columns.IDENTIFIER, none).str.replace(r"[?#].*$", "").str.contains(_NOT_PICTURES)
    other = pl.coalesce(
        pl.when(kind.str.contains("sound|audio|video|moving|text")).then(pl.lit(True)),
        pl.when(kind.str.contains("image|photo")).then(pl.lit(False)),
        pl.when(form.str.contains("^(audio|video|text|application)")).then(pl.lit(True)),
        pl.when(form.str.contains("^image")).then(pl.lit(False)),
        suffix,
        pl.lit(False),
    )
    return media.with_columns((~other).alias("picture"))["picture"]  # a select would give one row of literals alone


def _by_media(occurrences: pl.DataFrame, media: pl.DataFrame, matcher: Matcher, name: str) -> pl.DataFrame:
    """One row per line of the media file, and rows for the occurrences that it does not mention.

    What the rows are is decided on few columns; the many of the occurrences are copied once, at the end.
    """
    few = [
        name
        for name in (schema.OCCURRENCE, *matching.OTHER_IDS, schema.REASON, schema.DETAIL)
        if name in occurrences.columns
    ]
    records_of = occurrences.select(few).with_row_index("core")
    ids = records_of.filter(pl.col(schema.OCCURRENCE).is_not_null() & pl.col(schema.OCCURRENCE).is_first_distinct())
    media = media.join(ids.select(schema.OCCURRENCE, "core"), on=schema.OCCURRENCE, how="left", maintain_order="left")
    media, lost = _lost(media, matcher, name)
    found = _match(media, records_of, matcher).with_columns(media["core"], *_rights(media))
    known = found.with_columns(pl.col(schema.REASON, schema.DETAIL).name.prefix("_"))
    known = known.with_columns(
        records_of[schema.REASON].gather(known["core"]), records_of[schema.DETAIL].gather(known["core"])
    )
    known = records.reject(known, pl.col("_reason").is_not_null(), pl.col("_reason"), pl.col("_detail"))
    silent = records_of.filter(~pl.col("core").is_in(media["core"].unique().implode()))
    parts = [known.drop("_reason", "_detail"), files_by_id(silent, matcher).drop(few[:-2]), lost]
    frame = pl.concat(parts, how="diagonal").sort("core", nulls_last=True, maintain_order=True)
    core = frame["core"]
    for column in occurrences.columns:
        if column in (schema.REASON, schema.DETAIL):
            continue
        values = occurrences[column].gather(core)
        own = frame[column] if column in frame.columns else None
        frame = frame.with_columns(
            (values if own is None else pl.select(pl.coalesce(own, values)).to_series()).alias(column)
        )
    return frame.drop("core")


def _lost(media: pl.DataFrame, matcher: Matcher, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Media rows that can be used, and rows for those that are malformed or of no record.

    The files of the latter are found, too, so that none of them counts a second time as one that no record names.
    """
    said = schema.mapped(media.filter(pl.col("core").is_null())[schema.OCCURRENCE], printable)
    usable = media.filter(pl.col("core").is_not_null() & pl.col(schema.REASON).is_null())
    lost = media.filter(pl.col("core").is_null())
    if columns.IDENTIFIER not in lost.columns:
        lost = lost.with_columns(pl.lit(None, pl.String).alias(columns.IDENTIFIER))
    number = pl.int_range(pl.len(), dtype=pl.Int64).over(schema.OCCURRENCE) + 1
    files = matcher.match_media(
        lost.select(
            pl.col(columns.IDENTIFIER).alias(matching.IDENTIFIER),
            pl.col(schema.OCCURRENCE).alias(matching.ID),
            number.alias("number"),
        )
    )
    picture = files.select(pl.when(pl.col(schema.REASON).is_null()).then(schema.PICTURE)).to_series()
    lost = lost.with_columns(said.alias(schema.OCCURRENCE), picture.alias(schema.PICTURE))
    unknown = pl.coalesce(pl.format("record id {} is not in the archive", schema.OCCURRENCE), pl.lit("no record id"))
    lost = records.reject(lost, pl.lit(True), schema.MALFORMED, unknown)
    detail = pl.format("{}: {}", pl.lit(name), schema.DETAIL).alias(schema.DETAIL)
    return usable, lost.select(schema.LINE, schema.PICTURE, "core", schema.REASON, detail)


def _match(media: pl.DataFrame, records_of: pl.DataFrame, matcher: Matcher) -> pl.DataFrame:
    """`picture`, `reason`, `detail` of media rows; `core` is the place of their records in `records_of`."""
    picture = _is_picture(media)
    shown = media.filter(picture)
    others = {name: name for name in matching.OTHER_IDS if name in records_of.columns}
    wanted = pl.DataFrame(
        [
            shown[columns.IDENTIFIER].alias(matching.IDENTIFIER)
            if columns.IDENTIFIER in shown.columns
            else pl.Series(matching.IDENTIFIER, [None] * shown.height, dtype=pl.String),
            *(
                records_of[name].gather(shown["core"]).alias(new)
                for name, new in {schema.OCCURRENCE: matching.ID, **others}.items()
            ),
            shown.select(pl.int_range(pl.len(), dtype=pl.Int64).over("core") + 1).to_series().alias("number"),
        ]
    )
    found = matcher.match_media(wanted).with_columns(picture.arg_true().alias("place"))
    kinds = [name for name in (columns.MEDIA_TYPE, columns.MEDIA_FORMAT) if name in media.columns]
    kind = pl.concat_str([pl.col(kinds).cast(pl.String)] if kinds else [pl.lit("")], separator=" ", ignore_nulls=True)
    said = media.filter(~picture).with_columns(kind.alias("said"))["said"]
    other = pl.DataFrame(
        [
            (~picture).arg_true().alias("place"),
            pl.Series(schema.REASON, [schema.NO_PICTURE_NAMED] * said.len(), dtype=pl.String),
            schema.mapped(said, lambda text: f"no picture but {printable(text) or 'another medium'}").alias(
                schema.DETAIL
            ),
        ]
    )
    return pl.concat([found, other], how="diagonal").sort("place").drop("place")


def _rights(media: pl.DataFrame) -> list[pl.Series]:
    """Licence and owner as the media file gives them."""
    found = []
    for target, sources in (("license", ("license",)), ("rights_holder", ("rights_holder", columns.CREATOR))):
        parts = [media[name] for name in sources if name in media.columns]
        if parts:
            found.append(pl.select(pl.coalesce(parts)).to_series().alias(target))
    return found
