"""A Camtrap DP package as rows of a data set: one for each medium, or with its own boxes one for each box.

A medium shows what people said of it; where nobody did, what they said of the event that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.building.sources import matching, records
from linnaeus_jax.building.sources.matching import Matcher
from linnaeus_jax.building.sources.source import PICTURES, Common, Option, Request, source
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.camtrap_dp import BOX, MACHINE, NAME, Package, is_package, read_package
from linnaeus_jax.reading.columns import Links, level_name
from linnaeus_jax.reading.identification import identify
from linnaeus_jax.reading.picture_folder import open_folder
from linnaeus_jax.reading.schema import OWN_BOX, SourceRows, label_column
from linnaeus_jax.taxonomy.ranks import RANK_LEVELS

#: rank of blank, animal, human and vehicle, for those who ask for it
TYPE = columns.OWN + "observation_type"
#: types of what a medium of an event with animals may show instead of them
_WITHOUT_TAXON = ["blank", "human", "vehicle", "unknown"]
_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
_COLUMNS = {
    "latitude": "latitude",
    "longitude": "longitude",
    "uncertainty": "coordinateUncertainty",
    "date": "timestamp",
}


def read(package: Path, *, machine_labels: bool = False, own_boxes: bool = False, **common: Any) -> SourceRows:
    """Reads a package.

    Args:
      package: its folder, its datapackage.json, or a zip of it.
      pictures: folder of the pictures, which are found by path, file name, or the id of the medium; None: that of the
        package, whose other pictures are left aside.
      machine_labels: take what a machine said where no person said anything.
      own_boxes: a row for each box, whose label counts before that of its medium.
      common: fields of `source.Common`.

    Raises:
      UserError: see `read_package`.
    """
    asked = Common(**common)
    found = read_package(package, asked.progress)
    root = open_folder(asked.pictures or found.folder)
    media, notes = _labelled(found, machine_labels, own_boxes)
    listing = asked.listing(root)
    frame = _with_files(media, Matcher(listing))
    frame = frame.with_columns(pl.col(old).alias(new) for new, old in _COLUMNS.items())
    frame = frame.with_columns(pl.lit(value).alias(name) for name, value in _rights(found.descriptor).items())
    names = {name: name for name in ("scientific_name", "taxon_rank", columns.COMMON_NAME) if name in frame.columns}
    names |= {name: name for name in frame.columns if columns.part_and_level(name)}
    own = frame[BOX]
    mode = "scientific" if asked.names == "auto" else asked.names
    frame, levels, more = identify(frame.drop(BOX), Links(names, {}), package.name, mode)
    frame = asked.finished(frame, levels, listing if asked.pictures is not None else None)
    if own_boxes:
        frame = frame.with_columns(own.extend_constant(None, frame.height - own.len()).alias(OWN_BOX))
    warnings = (*found.warnings, *notes, *more, *records.lost_pictures(frame, root))
    files = (
        (found.path,)
        if found.path.is_file()
        else tuple(
            found.path / name
            for name in ("datapackage.json", *(path for table in found.tables.values() for path in table.paths))
        )
    )
    return SourceRows(frame, root, levels, files, {name: _COLUMNS.get(name, name) for name in frame.columns}, warnings)


@source(
    Option("--camtrap-dp", type=Path, metavar="PACKAGE", help="Camtrap DP of a camera trap survey: folder or zip"),
    PICTURES,
    Option(
        "--machine-labels", action="store_true", help="take what a machine has classified, where no person has done so"
    ),
)
def _read(request: Request) -> SourceRows:
    args = request.args
    boxes = args.boxes is not None and is_package(args.boxes)
    options = {"machine_labels": args.machine_labels, "own_boxes": boxes}
    return read(args.camtrap_dp, pictures=args.pictures, **options, **request.common)


# ---- what each medium shows


def _said(observations: pl.DataFrame, unit: Sequence[str], machine: bool) -> pl.DataFrame:
    """One row for each unit: `taxa` and `types`, lists of what is said of it; null where there is none."""
    person = (pl.col("classificationMethod") != MACHINE).fill_null(True)
    count = person & (person == person.max().over(unit)) if not machine else person == person.max().over(unit)
    names = pl.col("scientificName", "observationType").drop_nulls().unique().sort()
    found = observations.filter(pl.all_horizontal(pl.col(unit).is_not_null()) & count).group_by(unit).agg(names)
    lists = pl.col("scientificName", "observationType")
    return found.with_columns(pl.when(lists.list.len() > 0).then(lists)).rename(
        {"scientificName": "taxa", "observationType": "types"}
    )


def _time(column: str) -> pl.Expr:
    text = pl.col(column).str.replace("Z$", "+00:00")
    return text.str.to_datetime("%Y-%m-%dT%H:%M:%S%z", strict=False, time_zone="UTC")


def _events(media: pl.DataFrame, observations: pl.DataFrame) -> pl.DataFrame:
    """`mediaID`, `event`: the event that media-based observations or the medium name, else the one during which it was
    taken."""
    events = observations.filter(pl.col("observationLevel") == "event")
    spans = events.select("deploymentID", event="eventID", start=_time("eventStart"), end=_time("eventEnd"))
    spans = spans.drop_nulls(["deploymentID", "event", "start"]).unique(["deploymentID", "event"]).sort("start")
    named = observations.filter(pl.col("mediaID").is_not_null() & pl.col("eventID").is_not_null())
    named = named.select("mediaID", said="eventID").unique("mediaID", keep="first", maintain_order=True)
    taken = media.select("mediaID", "deploymentID", "eventID", taken=_time("timestamp")).sort("taken")
    near = taken.drop_nulls(["taken", "deploymentID"]).join_asof(
        spans, left_on="taken", right_on="start", by="deploymentID", check_sortedness=False
    )
    near = near.filter(pl.col("taken") <= pl.col("end")).select("mediaID", "event")
    found = taken.join(named, on="mediaID", how="left").join(near, on="mediaID", how="left")
    return found.select("mediaID", pl.coalesce("said", "eventID", "event").alias("event"))


def _labelled(package: Package, machine: bool, own_boxes: bool) -> tuple[pl.DataFrame, list[str]]:
    """Media, or their boxes, with what they show; and notes."""
    all_said = package.observations
    media = package.named.join(_events(package.media, all_said), on="mediaID", how="left", maintain_order="left")
    of_media = all_said.filter(pl.col("mediaID").is_not_null())
    events = all_said.filter(pl.col("mediaID").is_null()).rename({"eventID": "event"})
    by_event = ["event"] if package.version == "0.6" else ["deploymentID", "event"]
    sources = [(_said(events, by_event, machine), by_event)]  # the first that names a taxon, or that there is none
    if own_boxes:
        boxes = of_media.filter(pl.col(BOX).is_not_null()).select("mediaID", BOX).unique(maintain_order=True)
        media = media.join(boxes, on="mediaID", how="left", maintain_order="left_right")
        sources.insert(0, (_said(of_media.filter(pl.col(BOX).is_null()), ["mediaID"], machine), ["mediaID"]))
        sources.insert(0, (_said(of_media, ["mediaID", BOX], machine), ["mediaID", BOX]))
    else:
        media = media.with_columns(pl.lit(None, pl.Int64).alias(BOX))
        sources.insert(0, (_said(of_media, ["mediaID"], machine), ["mediaID"]))
    media = media.with_columns(pl.lit(None, pl.List(pl.String)).alias(name) for name in ("taxa", "types"))
    for said, keys in sources:
        coarser = said.rename({"taxa": "_taxa", "types": "_types"})
        media = media.join(coarser, on=keys, how="left", maintain_order="left")
        decided = pl.col("types").list.set_intersection(_WITHOUT_TAXON).list.len().fill_null(0) > 0
        media = media.with_columns(
            pl.when(decided).then("taxa").otherwise(pl.coalesce("taxa", "_taxa")).alias("taxa"),
            pl.coalesce("types", "_types").alias("types"),
        ).drop("_taxa", "_types")
    told = pl.coalesce("taxa", "types")
    several = pl.when(told.list.len() > 1).then(told).list.join(", ")
    one = [pl.when(pl.col(name).list.len() == 1).then(pl.col(name).list.first()) for name in ("taxa", "types")]
    media = media.with_columns(
        one[0].alias("scientific_name"),
        one[1].alias(label_column("name", TYPE)),
        several.alias("several"),
        pl.coalesce("locationID", "deploymentID").alias(schema.PLACE),
        pl.concat_str("deploymentID", "event", separator="/").alias(schema.OCCURRENCE),
    )
    media = media.join(_taxa(package), on="scientific_name", how="left", maintain_order="left")
    return media, _notes(package, media, machine)


def _notes(package: Package, media: pl.DataFrame, machine: bool) -> list[str]:
    notes = []
    by_machine = package.observations.filter(pl.col("classificationMethod") == MACHINE).height
    if by_machine and not machine:
        notes.append(f"{by_machine:,} observations of machines are not taken as labels; --machine-labels takes them")
    kinds = media.filter(pl.col("scientific_name").is_null())[label_column("name", TYPE)].drop_nulls()
    if kinds.len():
        listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.value_counts().iter_rows()))
        rank = TYPE.removeprefix(columns.OWN)
        notes.append(f"media without a taxon: {listed}; these words are the rank {rank}, which --ranks may name")
    return notes


def _taxa(package: Package) -> pl.DataFrame:
    """`scientific_name`, and rank, coarser ranks and common name where the package describes it."""
    rows = []
    for taxon in package.taxonomic:
        rank = str(taxon.get("taxonRank") or "").lower()
        names = {key: taxon.get(key) for key in _RANKS} | ({rank: taxon["scientificName"]} if rank in _RANKS else {})
        said = taxon.get("vernacularNames")
        common = said if isinstance(said, dict) else {}
        row = {"scientific_name": taxon["scientificName"], "taxon_rank": rank or None}
        row |= {columns.COMMON_NAME: next(filter(None, map(common.get, ("eng", "en", *common))), None)}
        row |= {label_column("name", level_name(RANK_LEVELS[key])): name for key, name in names.items()}
        rows.append({key: value if isinstance(value, str) and value.strip() else None for key, value in row.items()})
    ranks = (label_column("name", level_name(RANK_LEVELS[key])) for key in _RANKS)
    kinds = dict.fromkeys(("scientific_name", "taxon_rank", columns.COMMON_NAME, *ranks), pl.String)
    found = pl.DataFrame(rows, kinds).unique("scientific_name", keep="first", maintain_order=True)
    return found.select(
        name for name in found.columns if name in ("scientific_name", "taxon_rank") or found[name].count()
    )


def _with_files(media: pl.DataFrame, matcher: Matcher) -> pl.DataFrame:
    """`picture` as found on disk, with reasons: a malformed record, no picture, no file, several taxa."""
    wanted = media.unique("mediaID", keep="first", maintain_order=True).select(
        "mediaID",
        pl.col(NAME).alias(matching.IDENTIFIER),
        pl.col("mediaID").alias(matching.ID),
        pl.lit(1, pl.Int64).alias("number"),
    )
    found = matcher.match_media(wanted.drop("mediaID")).with_columns(wanted["mediaID"])
    found = found.rename({schema.REASON: "_reason", schema.DETAIL: "_detail"})
    frame = media.join(found, on="mediaID", how="left", maintain_order="left")
    kind = pl.col("fileMediatype")
    no_picture = pl.format("no picture but {}", kind)
    frame = records.reject(frame, kind.str.contains(r"^(video|audio)/"), schema.NO_PICTURE_NAMED, no_picture)
    frame = records.reject(frame, pl.col("_reason").is_not_null(), pl.col("_reason"), pl.col("_detail"))
    shown = pl.format("several are said to be on it: {}", "several")
    return records.reject(frame, pl.col("several").is_not_null(), schema.NO_LABEL, shown)


def _rights(descriptor: Mapping[str, Any]) -> dict[str, str]:
    """Licence and holder of the media, and the DOI of the package."""

    def entries(key: str, of: str, wanted: str) -> list[dict[str, Any]]:
        listed = descriptor.get(key)
        found = listed if isinstance(listed, list) else []
        return [each for each in found if isinstance(each, dict) and each.get(of) == wanted]

    licenses = [each.get("name") or each.get("path") for each in entries("licenses", "scope", "media")]
    holders = [each.get("title") for each in entries("contributors", "role", "rightsHolder")]
    doi = re.findall(r"10\.\d{4,9}/[^\s\"'<>;,]+", str(descriptor.get("id") or ""))
    found = {"license": licenses, "rights_holder": holders, "doi": doi}
    return {key: values[0] for key, values in found.items() if values and isinstance(values[0], str)}
