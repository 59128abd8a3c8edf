"""Which column of a source means what: one table of usual names, and the options that overrule it.

Names are compared without case, spaces, "_", "-" and "."; of a term's full address only the last part counts, so that
`http://rs.tdwg.org/dwc/terms/decimalLatitude`, `dwc:decimalLatitude` and `Decimal_Latitude` are one name. Names of one
standard column stand in tiers: an earlier tier wins silently, two columns of one tier are an error asking for `--map`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import schema
from linnaeus_jax.taxonomy.ranks import OWN_NAME, RANK_LEVELS, task_name

# What labels, dates and pictures are derived from; these columns are not in the frame of a source.
EPITHET, GENERIC_NAME, TAXON_ID, COMMON_NAME = "_epithet", "_generic_name", "_taxon_id", "_common_name"
PRESENCE, SPECIMEN, CATALOG, DATASET = "_presence", "_occurrence_id", "_catalog_number", "_dataset"
MEDIA_TYPE, MEDIA_FORMAT, IDENTIFIER, CREATOR = "_type", "_format", "_identifier", "_creator"
#: where a picture was taken, by name: kept as `place` where a split asks for it
STATION = "_place"
#: a label of no named rank, as tables for machine learning have them: the species where nothing better is there
LABEL = "_label"
#: name of a class folder, in the taxonomy beside class folders; elsewhere the folder of a picture, see `file_columns`
FOLDER = "_folder"
#: the folder around all of them, a whole path beside the name, and a name beside the folder
ROOT_FOLDER, FILE_PATH, FILE_NAME = "_root_folder", "_file_path", "_file_name"
#: part of a column named like a rank alone: ids or names, seen from its values
EITHER = "_either"

#: standard column -> tiers of usual names, the best first; the standard name itself always comes before them
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    schema.PICTURE: (
        "image img photo file_name filename file",
        "path image_path picture_path photo_path file_path filepath image_file picture_file img_path imagefile",
        "img_identifiers img_identifier image_id photo_id image_name picture_name",
        "image_url photo_url picture_url url_image",
    ),
    schema.OCCURRENCE: ("gbifID", "occurrence_id", "observation_id obs_id", "observation_uuid uuid", "id"),
    "latitude": ("decimalLatitude", "lat raw_lat raw_latitude"),
    "longitude": ("decimalLongitude", "lon lng long raw_lon raw_longitude"),
    "uncertainty": (
        "coordinateUncertaintyInMeters",
        "location_uncertainty coordinate_uncertainty uncertainty_m",
        "positional_accuracy accuracy",
        "public_positional_accuracy",
    ),
    "date": (
        "eventDate",
        "observed_on raw_date_observed date_observed observation_date datetime date_time observed_at timestamp",
    ),
    "time": ("eventTime", "time_observed_at time_of_day"),
    "year": (),
    "month": (),
    "day": (),
    "hour": ("hour_of_day",),
    "elevation": ("minimumElevationInMeters", "raw_elevation altitude elev elevation_m"),
    "elevation_max": ("maximumElevationInMeters",),
    "in_region": (),
    "observer": ("observer_id", "inaturalistLogin", "recordedBy", "user_login", "user_id", "user_name photographer"),
    "license": ("licence", "image_license photo_license license_name"),
    "rights_holder": ("copyright_holder", "copyright attribution"),
    "doi": ("source_doi", "download_doi dataset_doi"),
    "status": ("taxonomicStatus",),
    "accepted_id": ("acceptedTaxonKey", "acceptedNameUsageID", "accepted_taxon_id"),
    "accepted_name": ("acceptedScientificName", "acceptedNameUsage", "accepted_taxon_name"),
    "scientific_name": ("scientificName", "taxon_name taxon latin_name"),
    "taxon_rank": ("taxonRank", "rank"),
    schema.SPLIT: ("partition",),
    EPITHET: ("specificEpithet epithet", "species_epithet"),
    GENERIC_NAME: ("genericName",),
    TAXON_ID: ("taxonKey", "taxonID"),
    COMMON_NAME: ("vernacularName common_name english_name",),
    PRESENCE: ("occurrenceStatus",),
    SPECIMEN: ("occurrenceID",),
    CATALOG: ("catalogNumber",),
    DATASET: ("datasetID",),
    STATION: (  # the widest first
        "locationID",
        *("site", "siteID", "site_name", "locationName", "station", "stationID", "station_name"),
        *("deploymentID", "deployment", "camera", "cameraID", "camera_name", "camera_trap"),
    ),
    FOLDER: (
        "relative_path rel_path",
        "folder folder_name directory image_dir_name class_folder dir dir_name folder_path directory_path",
    ),
    ROOT_FOLDER: ("root_folder", "folder"),
    FILE_PATH: ("path file_path image_path", "location"),
    FILE_NAME: ("name",),
    LABEL: ("label class_name category_name category",),
}
#: the same for the media file of an archive
MEDIA_NAMES: dict[str, tuple[str, ...]] = {
    IDENTIFIER: ("accessURI", "identifier"),
    MEDIA_TYPE: ("type",),
    MEDIA_FORMAT: ("format",),
    CREATOR: ("creator",),
    "license": ("license", "rights usageTerms"),
    "rights_holder": ("rightsHolder", "owner"),
}
#: per rank or level; {rank} is its name, {level} "L10"
_RANK_NAMES: dict[str, tuple[str, ...]] = {
    "id": (
        "taxa_{level} {level}_taxon_id {level}_id",
        "{rank}_key {rank}_id {rank}_taxon_id",
        "taxon_{rank}_id",
    ),
    "name": ("{level}_name", "{rank}_name taxon_{rank}_name name_{rank}"),
    "common": ("{level}_common_name {level}_common", "{rank}_common_name common_name_{rank} {rank}_vernacular_name"),
}
#: sign before the name of a rank that the taxonomy does not have
OWN = ":"
#: names that columns of predictions have already
_TAKEN = ("answer", "always")
_LEVEL = re.compile(r"L(\d+)(?:[_.](\d+))?")
_ID_COLUMN = re.compile(r"(?:^|[\W_])(?i:id|key)$|[a-z](?:ID|Id|Key)$")


def plain(name: str) -> str:
    """A column's name as it is compared: the last part of an address, lower case, letters and digits alone."""
    last = re.split(r"[/#:]", name.strip().strip("\ufeff").rstrip("/#:"))[-1]
    return re.sub(r"[\s_.\-]+", "", last).casefold()


def level_of(text: str) -> str:
    """Level of a rank as people name it: "genus" -> "L20", "L33_5" -> "L33_5"; ":fine" stays. Raises UserError for an
    unknown one."""
    wanted = text.strip()
    number = RANK_LEVELS.get(wanted.casefold())
    if number is not None:
        return level_name(number)
    if match := _LEVEL.fullmatch(wanted.upper()):
        return f"L{match[1]}_{match[2]}" if match[2] else f"L{match[1]}"
    if is_own(wanted):
        return wanted
    raise UserError(
        f"rank {text!r} is unknown; write a level such as L10 or L33_5, or one of {', '.join(RANK_LEVELS)}; ranks with "
        "other names are those that --ranks lists, finest first"
    )


def own_or_level(text: str) -> str:
    """Level of a rank by any name: ":fine" of one that the taxonomy does not have; spaces become "_".

    Raises UserError for what cannot be the name of a rank.
    """
    wanted = text.strip()
    if wanted.casefold() in RANK_LEVELS or _LEVEL.fullmatch(wanted.upper()):
        return level_of(wanted)
    name = "_".join(wanted.split())
    if re.fullmatch(OWN_NAME, name) and name.casefold() not in _TAKEN:
        return OWN + name
    raise UserError(
        f"{text!r} cannot be the name of a rank: begin with a letter, then letters, digits, '_' and '-'; "
        f"{' and '.join(map(repr, _TAKEN))} are taken"
    )


def is_own(level: str) -> bool:
    """Whether a rank has a name of its own and no level of the taxonomy."""
    return level.startswith(OWN)


def task_of(level: str) -> str:
    """Label column of a rank: "L10" -> "taxa_L10", ":fine" -> "taxa_fine"."""
    return f"taxa_{level.removeprefix(OWN)}"


def rank_name(level: str) -> str:
    """What people call a rank: "L10" -> "species", ":fine" -> "fine"."""
    return task_name(task_of(level))


def misspelt(levels: Iterable[str]) -> list[str]:
    """A warning for each rank with a name of its own that is nearly one of the taxonomy."""
    found = []
    for level in filter(is_own, levels):
        near = difflib.get_close_matches(rank_name(level).casefold(), RANK_LEVELS, n=1, cutoff=0.8)
        if near:
            found.append(f"rank {rank_name(level)!r} is none of the taxonomy and keeps its name; is {near[0]} meant?")
    return found


def level_name(number: float) -> str:
    """33.5 -> "L33_5"."""
    return "L" + f"{number:g}".replace(".", "_")


def level_number(level: str) -> float:
    """ "L33_5" -> 33.5; infinite for a rank with a name of its own, which is none of the taxonomy."""
    return math.inf if is_own(level) else float(level[1:].replace("_", "."))


def finest_first(levels: Iterable[str]) -> tuple[str, ...]:
    """Levels in ascending order, each once; behind them ranks with names of their own, as they come."""
    return tuple(sorted(dict.fromkeys(levels), key=level_number))


def _plain_table(tiers: Mapping[str, Sequence[str]]) -> dict[str, list[tuple[str, int]]]:
    """Plain name -> (standard column, tier) of each standard column that it may stand for."""
    table: dict[str, list[tuple[str, int]]] = {}
    for standard, groups in tiers.items():
        for tier, names in enumerate(("" if standard.startswith("_") else standard, *groups)):
            for name in names.split():
                places = table.setdefault(plain(name), [])
                if all(standard != other for other, _ in places):
                    places.append((standard, tier))
    return table


def _rank_names() -> dict[str, tuple[str, ...]]:
    """Usual names of the columns of every rank."""
    tiers: dict[str, tuple[str, ...]] = {}
    for rank, number in RANK_LEVELS.items():
        level = level_name(number)
        for part, names in _RANK_NAMES.items():
            tiers[schema.label_column(part, level)] = tuple(text.format(rank=rank, level=level) for text in names)
        tiers[schema.label_column(EITHER, level)] = (f"{rank} {level}",)
    return tiers


_TABLE_COLUMNS = _plain_table(USUAL_NAMES | _rank_names())
_MEDIA_COLUMNS = _plain_table(MEDIA_NAMES)
_RANK_COLUMN = re.compile(rf"({'|'.join((*schema.LABEL_PARTS, EITHER))})_(L\d+(?:_\d+)?|{OWN}{OWN_NAME})")


def part_and_level(standard: str) -> tuple[str, str] | None:
    """("id", "L33_5") of "id_L33_5"; None for a column that is no rank's."""
    match = _RANK_COLUMN.fullmatch(standard)
    return (match[1], match[2]) if match else None


def is_name(standard: str) -> bool:
    """Whether a standard column holds names of taxa."""
    found = part_and_level(standard)
    return found[0] in ("name", EITHER) if found else standard in (LABEL, EPITHET, GENERIC_NAME, "scientific_name")


@dataclass(frozen=True)
class Links:
    """Which column of a source stands for which standard column.

    Attributes:
      names: standard column -> name of the source's column. Of those beginning with "_" others are made.
      positions: standard column -> place of the source's column, from 0.
    """

    names: Mapping[str, str]
    positions: Mapping[str, int]

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels that a column is linked to, finest first."""
        return finest_first(found[1] for found in map(part_and_level, self.names) if found)


def split_options(options: Iterable[str], option: str) -> dict[str, str]:
    """Values of a repeated option "KEY=COLUMN" as a mapping. Raises UserError for another form or a key given twice."""
    found: dict[str, str] = {}
    for text in options:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UserError(f"{option} {text!r} is not of the form KEY=COLUMN, e.g. {option} latitude=my_lat")
        if key.strip() in found:
            raise UserError(f"{option} gives {key.strip()!r} twice: {found[key.strip()]!r} and {value.strip()!r}")
        found[key.strip()] = value.strip()
    return found


def link_columns(
    header: Sequence[str],
    where: str,
    *,
    mapping: Mapping[str, str] | None = None,
    rank_map: Mapping[str, str] | None = None,
    media: bool = False,
    first: bool = False,
    only: Collection[str] | None = None,
) -> Links:
    """Links the columns of a source to the standard columns.

    Args:
      header: names of the source's columns.
      where: name of the source for messages.
      mapping: standard column -> column of the source, which wins over usual names; "" = none.
      rank_map: rank or level -> "NAME_COLUMN", "NAME_COLUMN:ID_COLUMN" or ":ID_COLUMN"; "" = no such rank.
      media: whether the source is the media file of an archive, which has usual names of its own.
      first: whether the first of several columns for one standard column counts; else they are an error.
      only: the standard columns that are looked for; None: all.

    Raises:
      UserError: an unknown standard column, rank or source column; two columns for one standard column.
    """
    chosen = _chosen(header, where, mapping or {}, rank_map or {})
    of_ranks = [(found[1], place) for name, place in chosen.items() if (found := part_and_level(name))]
    not_species = {place for level, place in of_ranks if level != "L10"}
    candidates: dict[str, dict[int, list[int]]] = {}
    for position, name in enumerate(header):
        for standard, tier in (_MEDIA_COLUMNS if media else _TABLE_COLUMNS).get(plain(name), ()):
            if (only is not None and standard not in only) or (position in not_species and is_name(standard)):
                continue
            candidates.setdefault(standard, {}).setdefault(tier, []).append(position)
        if only is None and not media and name.strip().casefold().startswith(schema.SUBSET):
            candidates.setdefault(name.strip(), {}).setdefault(0, []).append(position)
    positions = {standard: position for standard, position in chosen.items() if position is not None}
    for standard, tiers in candidates.items():
        if standard not in chosen:
            best = tiers[min(tiers)]
            if len(best) > 1 and not first:
                raise UserError(_twice(where, standard, [header[position] for position in best]))
            positions[standard] = best[0]
    for standard, other in (
        (FOLDER, ROOT_FOLDER),
        *((schema.PICTURE, name) for name in (FOLDER, FILE_PATH, FILE_NAME)),
    ):
        if other in positions and positions[other] == positions.get(standard):
            del positions[other]
    return Links({standard: header[position] for standard, position in positions.items()}, positions)


def _twice(where: str, standard: str, names: Sequence[str]) -> str:
    found = part_and_level(standard)
    option = f"--rank-map {found[1]}=COLUMN" if found else f"--map {standard.lstrip('_')}=COLUMN"
    if len(set(names)) == 1:
        return f"{where} has {len(names)} columns named {names[0]!r}; rename one of them"
    listed = " and ".join(map(repr, names))
    return f"{where}: the columns {listed} both stand for {found[1] if found else standard}; choose one with {option}"


def _chosen(
    header: Sequence[str], where: str, mapping: Mapping[str, str], rank_map: Mapping[str, str]
) -> dict[str, int | None]:
    """Standard column -> position, or None for "no column", of what the options name."""
    chosen: dict[str, int | None] = {}
    for key, column in mapping.items():
        standard = _standard(key)
        found = part_and_level(standard)
        chosen[standard] = _position(header, where, column, f"--map {key}={column}") if column else None
        if found:
            chosen.setdefault(schema.label_column(EITHER, found[1]), None)
    for rank, text in rank_map.items():
        level, option = level_of(rank), f"--rank-map {rank.removeprefix(OWN)}={text}"
        name, sign, number = (text, "", "") if text in header else text.rpartition(":")
        if not sign:
            name, number = text, ""
        for part, column in (("name", name), ("id", number)):
            chosen[schema.label_column(part, level)] = _position(header, where, column, option) if column else None
        chosen[schema.label_column(EITHER, level)] = None
        if name and not number and not is_own(level):
            part = "id" if _says_ids(name) else EITHER
            chosen[schema.label_column(part, level)] = chosen.pop(schema.label_column("name", level))
    return chosen


def _says_ids(column: str) -> bool:
    """Whether a column is called one of ids: "taxonID", "tribus_id", "speciesKey", "taxa_L10"."""
    usual = any(standard.startswith("id_") for standard, _ in _TABLE_COLUMNS.get(plain(column), ()))
    return usual or _ID_COLUMN.search(column) is not None


def _standard(key: str) -> str:
    """The standard column that an option names. Raises UserError for an unknown one."""
    wanted = key.strip()
    known = [name for name in USUAL_NAMES if not name.startswith("_")]
    hidden = {name.lstrip("_"): name for name in USUAL_NAMES if name.startswith("_")}
    if wanted in known or part_and_level(wanted) or wanted.startswith(schema.SUBSET):
        return wanted
    if wanted in hidden:
        return hidden[wanted]
    raise UserError(
        f"--map {key}: no such column; there are {', '.join(known)}, subset_<name>; for ranks use --rank-map"
    )


def _position(header: Sequence[str], where: str, column: str, option: str) -> int:
    """Place of a column by its exact name, else by its plain name. Raises UserError unless there is exactly one."""
    exact = [place for place, name in enumerate(header) if name == column]
    found = exact or [place for place, name in enumerate(header) if plain(name) == plain(column)]
    if len(found) == 1:
        return found[0]
    fault = f"has {len(found)} columns {column!r}" if found else f"has no column {column!r}"
    raise UserError(f"{option}: {where} {fault}; its columns are {', '.join(header)}")
