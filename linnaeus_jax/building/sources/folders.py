"""A tree of class folders as rows of a data set: the names of the folders are the labels of the pictures in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.building.sources import records
from linnaeus_jax.building.sources.source import MAP, RANK_MAP, Common, Option, Request, source
from linnaeus_jax.building.sources.split_folders import (
    NO_RANK,
    SplitFolders,
    find_split,
    read_as,
    readings,
    untaken,
    what_crosses,
)
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns, identification, schema
from linnaeus_jax.reading.columns import Links, is_own, own_or_level, rank_name
from linnaeus_jax.reading.exif import read_exif
from linnaeus_jax.reading.paths import SUFFIXES
from linnaeus_jax.reading.picture_folder import open_folder
from linnaeus_jax.reading.schema import PLACE, SourceRows
from linnaeus_jax.reading.table import TextOptions, read_columns
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.scientific_names import NameClassifier, is_unknown

TAXONOMY = "taxonomy.csv"
#: ranks of nested folders where none are given, from the innermost
USUAL_RANKS: tuple[str, ...] = ("L10", "L20", "L30", "L40", "L50", "L60", "L70")
_KINGDOMS = frozenset("Animalia Plantae Fungi Chromista Protozoa Bacteria Archaea Viruses".split())
#: "001.Black_footed_Albatross", "00001_Lumbricus_terrestris"
_NUMBERED = re.compile(r"^(?:\d+\.\s*|\d{3,}[_ -]+)(?=\D)")


def read(
    folder: Path,
    *,
    ranks: Sequence[str] | None = None,
    innermost: Sequence[str] = (),
    taxonomy: Path | None = None,
    exif: bool = False,
    **common: Any,
) -> SourceRows:
    """Reads class folders: `family/genus/species/picture.jpg`, `species/picture.jpg` or any depth.

    The deepest folders are species, those around them genera, families, orders, classes, phyla, kingdoms. A picture in
    a folder further out has the ranks of the folders it lies in. Folders named train, val and test give the split.

    Args:
      folder: the root.
      ranks: ranks of the folders from the outermost, instead of those above, by any names, all of which are kept;
        "-" = of no rank, "place" = of a place, which is kept for the split.
      innermost: levels of the folders from the innermost, where no `ranks` are given.
      taxonomy: table with one line per class: name, coarser ranks, ids, common names, accepted names; None:
        "taxonomy.csv" in the root where it is there.
      exif: whether position, elevation, date and time are read from the pictures.
      common: fields of `source.Common`.

    Raises:
      UserError: no pictures, ranks that do not fit or do not nest, a taxonomy with two lines for one name.
    """
    asked = Common(**common)
    root = open_folder(folder, "folder")
    listing = asked.listing(root)
    pictures = pl.Series(schema.PICTURE, listing.pictures(), dtype=pl.String)
    if pictures.is_empty():
        raise UserError(f"{folder} holds no pictures; their suffixes are {', '.join(SUFFIXES)}")
    if taxonomy is None and TAXONOMY in listing.files:
        taxonomy = root / TAXONOMY
    frame = pl.DataFrame({schema.PICTURE: pictures, "_in": pictures.str.extract(r"^(.*)/[^/]*$").fill_null("")})
    counted = frame.group_by("_in", maintain_order=True).len()
    layout = find_layout(dict(counted.iter_rows()), ranks, folder, innermost=innermost)
    classes, levels, warnings = _labels(layout, asked.names)
    if taxonomy is not None:
        classes, levels, notes = _with_taxonomy(classes, levels, taxonomy, asked)
        levels = _ordered(levels, layout)
        warnings += notes
    frame = frame.join(classes, on="_in", how="left", maintain_order="left")
    for where, why in (
        (pl.col("_in").str.replace("/.*", "").is_in(list(layout.split.beside)), "lies beside the folders of the split"),
        (pl.col("_in").is_in(layout.without_class), "lies in no class folder"),
    ):
        frame = records.reject(frame, where, schema.NO_LABEL, why)
    if layout.place is not None:
        places = {path: names[layout.place] for path, names in layout.split.parts.items() if len(names) > layout.place}
        place = pl.col("_in").replace_strict(places, default=None, return_dtype=pl.String)
        frame = frame.with_columns(place.alias(PLACE))
    if exif:
        frame = frame.hstack(read_exif(root, listing.pictures(), asked.progress))
    frame = asked.finished(frame, levels, listing)
    files = () if taxonomy is None else (taxonomy,)
    if empty := listing.empty_folders():
        shown = f"{', '.join(map(printable, empty[:5]))}{' ...' * (len(empty) > 5)}"
        warnings.append(f"{len(empty)} folders hold no pictures: {shown}")
    warnings += listing.warnings([TAXONOMY])
    return SourceRows(frame, root, levels, files, layout.links(), tuple(warnings), layout.levels)


@source(
    Option("--folders", type=Path, metavar="DIR", help="class folders: family/genus/species/picture.jpg"),
    *(MAP, RANK_MAP),
    Option("--exif", action="store_true", help="place and date from the pictures"),
    Option(
        "--folder-ranks",
        default="",
        metavar="RANK,...",
        help="ranks of the folders, by any names, the outermost and coarsest first (--ranks runs the other way): "
        "class,family,species; all are kept. - is a folder of no rank, place one of a place, for --split folder:place",
    ),
    Option("--taxonomy", type=Path, metavar="CSV", help="coarser ranks of the finest names"),
)
def _read(request: Request) -> SourceRows:
    args = request.args
    ranks = [name.strip() for name in args.folder_ranks.split(",")] if args.folder_ranks else None
    rows = read(
        args.folders,
        ranks=ranks,
        innermost=args.ranks if request.own else (),
        taxonomy=args.taxonomy,
        exif=args.exif,
        mapping=request.mapping,
        rank_map=request.rank_map,
        **request.common,
    )
    selected, named = (",".join(map(rank_name, levels)) for levels in (args.ranks, rows.named[::-1]))
    if args.ranks and (left_out := [rank_name(level) for level in rows.named if level not in args.ranks]) and ranks:
        less = ",".join(NO_RANK if rank in left_out else rank for rank in ranks)
        raise UserError(
            f"--ranks {selected} leaves out {', '.join(left_out)} of --folder-ranks {args.folder_ranks}, which alone "
            f"says what is kept, the outermost first: leave --ranks out, or give --folder-ranks {less} without it"
        )
    if lacking := [rank_name(level) for level in args.ranks if level not in rows.levels]:
        given = ",".join(map(rank_name, args.ranks[::-1]))
        raise UserError(
            f"--ranks {selected} selects among the ranks of the folders, which are taken as {named}, the outermost "
            f"first; {', '.join(lacking)} is none of them. Name the folders with --folder-ranks alone, the outermost "
            f"first, such as --folder-ranks {given}"
        )
    return rows


@dataclass(frozen=True)
class Layout:
    """What the folders of a tree stand for.

    Attributes:
      ranks: what the folders are, without the one of the split, from the outermost: ranks, "-" or "place".
      named: whether a person says so.
      levels: those that are ranks.
      places: how far out the folder of each of them lies; 0 = outermost.
      classes: folder, relative to the root -> names of the class folders it lies in, from the outermost.
      split: the folders of the split.
      warnings: what a person should know, one line each.
    """

    ranks: tuple[str, ...]
    named: bool
    levels: tuple[str, ...]
    places: tuple[int, ...]
    classes: Mapping[str, tuple[str, ...]]
    split: SplitFolders
    warnings: tuple[str, ...]

    @property
    def place(self) -> int | None:
        """How far out the folders of places lie."""
        return self.ranks.index(PLACE) if PLACE in self.ranks else None

    @property
    def without_class(self) -> list[str]:
        """Folders of pictures that lie in no class folder."""
        return [folder for folder, names in self.classes.items() if not names]

    def links(self) -> dict[str, str]:
        """Standard column -> the folder it is from, for the report."""
        places = list(range(1, len(self.ranks) + 2))
        found = {schema.SPLIT: f"folder {places.pop(self.split.place)}"} if self.split.by_folder else {}
        if self.place is not None:
            found[PLACE] = f"folder {places[self.place]}"
        return found | {
            schema.label_column("name", level): f"folder {places[place]}"
            for place, level in zip(self.places, self.levels)
        }


def find_layout(
    pictures: Mapping[str, int], ranks: Sequence[str] | None, root: Path, *, innermost: Sequence[str] = ()
) -> Layout:
    """Ranks of nested folders.

    Args:
      pictures: folder, relative to the root -> pictures that lie in it.
      ranks: ranks of the folders from the outermost; None: the innermost folders have the ranks `innermost`, without
        those the usual ones.
      root: for advice.
      innermost: levels, finest first.

    Raises:
      UserError: folders nested deeper than there are ranks, no class folders, ranks unknown or not in order, a split
        that is not clear.
    """
    if not any(pictures):
        raise UserError("the pictures lie in no class folder; put them into one folder per class, or give a table")
    given = tuple(rank if rank in (NO_RANK, PLACE) else own_or_level(rank) for rank in ranks or ())
    named = [level for level in given if level not in (NO_RANK, PLACE)]
    numbers = [columns.level_number(level) for level in named if not is_own(level)]
    once = [level for level in given if level != NO_RANK]
    if len(set(once)) < len(once) or numbers != sorted(numbers, reverse=True) or (given and not named):
        raise UserError(
            f"--folder-ranks {','.join(ranks or ())}: name them from the outermost folder, coarse to fine (--ranks "
            f"runs the other way), each once; {NO_RANK} is a folder of no rank, {PLACE} one of a place"
        )
    split = find_split(pictures, root, len(given))
    parts, warnings = split.parts, [*split.warnings, *columns.misspelt(named or innermost)]
    depth = max(map(len, parts.values()))
    if not given and not innermost and depth > len(USUAL_RANKS):
        raise UserError(f"folders are nested {depth} deep; say what they are with --folder-ranks, from the outermost")
    of_folders = given or (tuple(innermost) or USUAL_RANKS)[:depth][::-1]
    if depth > len(of_folders):
        raise UserError(untaken(parts, of_folders, depth))
    if lacking := [rank_name(level) for level in given[depth:] if level != NO_RANK]:
        raise UserError(
            f"--folder-ranks {','.join(ranks or ())} names {len(given)} levels, but the folders are nested {depth} "
            f"deep, such as {printable(max(pictures, key=lambda path: len(parts[path])))}, so that none is "
            f"{', '.join(lacking)}: name those that there are, from the outermost"
        )
    places = tuple(place for place, level in enumerate(of_folders) if level not in (NO_RANK, PLACE))
    levels = tuple(of_folders[place] for place in places)
    classes = {folder: tuple(names[at] for at in places if at < len(names)) for folder, names in parts.items()}
    classes, notes = _at_their_depth(classes, levels)
    if not given and not innermost:
        notes += [*_rare_depth(parts, pictures), *_families_elsewhere(classes, levels)]
    return Layout(of_folders, bool(given or innermost), levels, places, classes, split, (*warnings, *notes))


def _families_elsewhere(classes: Mapping[str, Sequence[str]], levels: Sequence[str]) -> Iterator[str]:
    """A warning where most folders of a level end as families do, and the level stands as another rank."""
    for place, level in enumerate(levels):
        names = sorted({names[place] for names in classes.values() if len(names) > place})
        families = [name for name in names if re.fullmatch(r"[A-Z][a-z]+(idae|aceae)", name)]
        if 2 * len(families) > len(names) and rank_name(level) != "family":
            shown = ", ".join(printable(name) for name in families[:3])
            yield (
                f"folders such as {shown} look like families, but stand as {rank_name(level)}, since nothing says what "
                "the folders are: give --folder-ranks, from the outermost, e.g. class,family,species"
            )


def _at_their_depth(
    classes: dict[str, tuple[str, ...]], levels: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Class folders without folders in them that lie less deep than others, and a warning that names them.

    They are classes of the rank of their depth. Below that, ranks of the taxonomy are unknown; at ranks with names of
    their own the class is one of the finest rank, too, under the same name.
    """
    holding = {names[:end] for names in classes.values() for end in range(len(names))}
    found = {folder: names for folder, names in classes.items() if names and names not in holding}
    short = {folder: names for folder, names in found.items() if len(names) < len(levels)}
    if not short or len(short) == len(found):
        return classes, []
    own = {folder: names + names[-1:] * _own_below(levels, len(names)) for folder, names in short.items()}
    shallow = sorted(set(short.values()))
    shown = ", ".join(printable("/".join(names)) for names in shallow[:5]) + " ..." * (len(shallow) > 5)
    kinds = "; ".join(
        f"those {depth} deep are classes of {rank_name(levels[depth - 1])}, "
        + (
            f"and of {rank_name(levels[-1])} under the same name"
            if _own_below(levels, depth)
            else f"their {rank_name(levels[depth])} is unknown"
        )
        for depth in sorted({*map(len, shallow)})
    )
    return {**classes, **own}, [f"{len(shallow)} class folders lie less deep than others ({shown}): {kinds}"]


def _own_below(levels: Sequence[str], depth: int) -> int:
    """How many ranks below a depth take the name of a class folder there: all, if they have names of their own."""
    below = levels[depth:]
    return len(below) if all(map(is_own, below)) else 0


def _rare_depth(parts: Mapping[str, tuple[str, ...]], pictures: Mapping[str, int]) -> list[str]:
    """A warning where few pictures lie as deep as the deepest ones, since these decide the ranks of all folders."""
    by_depth: Counter[int] = Counter()
    for folder, names in parts.items():
        by_depth[len(names)] += pictures[folder]
    deepest = max(by_depth)
    few, shallower = by_depth[deepest], {depth: count for depth, count in by_depth.items() if 0 < depth < deepest}
    if not shallower or 2 * few > sum(shallower.values()) + few:
        return []
    deep = sorted({"/".join(names) for names in parts.values() if len(names) == deepest})
    usual = max(shallower, key=lambda depth: shallower[depth])
    ranks = [rank_name(level) for level in USUAL_RANKS[:usual][::-1]]
    now = [rank_name(level) for level in USUAL_RANKS[:deepest][::-1]]
    shown = ", ".join(map(printable, deep[:3])) + (f" ... ({len(deep)} folders)" if len(deep) > 3 else "")
    return [
        f"only {few} of {few + sum(shallower.values())} pictures lie as deep as {shown}, which makes the folders "
        f"{', '.join(now)}; if that folder is no rank of its own, give "
        f"--folder-ranks={','.join([*ranks, *[NO_RANK] * (deepest - usual)])}"
    ]


def class_names(folder: str) -> dict[str, str]:
    """Level -> name from the name of one class folder, where it says more than its own rank; {} otherwise.

    "00001_Animalia_Annelida_Clitellata_Haplotaxida_Lumbricidae_Lumbricus_terrestris", as the competitions of
    iNaturalist name their folders, has all ranks.
    """
    words = folder.split("_")
    words = words[words[0].isdigit() :]
    if len(words) < 7 or words[0] not in _KINGDOMS:
        return {}
    names = dict(zip(USUAL_RANKS[:0:-1], words[:6]))
    return names | {"L10": f"{words[5]} {' '.join(words[6:])}"}


def class_name(folder: str) -> str:
    """Name of a class from its folder: "001.Black_footed_Albatross" -> "Black footed Albatross"."""
    return _spaced(_NUMBERED.sub("", folder)) or folder


def _spaced(text: str) -> str:
    return " ".join(text.replace("_", " ").split())


def _class_names(folders: Iterable[str]) -> dict[str, str]:
    """Folder -> name of its class, of all folders of a rank; a number before it stays where it tells two apart."""
    found = {folder: class_name(folder) for folder in folders}
    written: dict[str, set[str]] = {}
    for folder, name in found.items():
        written.setdefault(name, set()).add(_spaced(folder))
    return {folder: name if len(written[name]) == 1 else _spaced(folder) or folder for folder, name in found.items()}


def _labels(layout: Layout, mode: str) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Labels of each folder: `_in`, `_class` (its own name) and the label columns; the levels; warnings."""
    found = []
    by_level = [
        _class_names({names[place] for names in layout.classes.values() if place < len(names)})
        for place in range(len(layout.levels))
    ]
    for folder, names in layout.classes.items():
        labels = {level: known[name] for level, known, name in zip(layout.levels, by_level, names)}
        full = class_names(names[-1]) if len(names) == len(layout.levels) else {}
        found.append({"_in": folder, "_class": names[-1] if names else None, **(full or labels)})
    of_names = columns.finest_first(key for labels in found for key in labels if key not in ("_in", "_class"))
    data = {key: [labels.get(key) for labels in found] for key in ("_in", "_class", *of_names)}
    frame = pl.DataFrame(data, dict.fromkeys(data, pl.String))
    frame = frame.rename({level: schema.label_column(columns.EITHER, level) for level in of_names})
    kept = {"_in": "in", "_class": "class"}
    text = [pl.lit(None, pl.String).alias(name) for name in (schema.REASON, schema.DETAIL)]
    labelled, levels, warnings = identification.identify(
        frame.rename(kept).with_columns(text), Links({}, {}), "the folder", mode, "class folders"
    )
    labelled = labelled.rename({new: old for old, new in kept.items()})
    if layout.named:  # names alone make no rank beside those that a person names
        levels = tuple(level for level in levels if level in of_names)
    warnings += _crossing(layout, labelled, mode)
    if layout.split.by_folder:
        splits = [layout.split.by_folder.get(folder) for folder in layout.classes]
        labelled = labelled.with_columns(pl.Series(schema.SPLIT, splits, dtype=pl.String))
    return labelled, _ordered(levels, layout), [*layout.warnings, *warnings]


def _crossing(layout: Layout, labelled: pl.DataFrame, mode: str) -> list[str]:
    """A warning where folders do not nest as ranks do; raises UserError where no person says that they are ranks."""
    absent = pl.lit(None, pl.String)
    labels = [(schema.label_column("name", level), level) for level in layout.levels]
    known = labelled.select((pl.col(one) if one in labelled.columns else absent).alias(level) for one, level in labels)
    keys = [
        tuple("" if is_unknown(folder) else name or folder for name, folder in zip(row, folders))
        for row, folders in zip(known.cast(pl.String).rows(), layout.classes.values())
    ]
    latin = [
        NameClassifier({names[k] for names in keys if k < len(names)}, mode).scientific
        for k in range(len(layout.levels))
    ]
    words, offers = what_crosses(keys, layout.levels), []
    if not words:
        return []
    example = max(layout.split.parts.values(), key=len)
    meant = readings(keys, layout.levels, any(latin[:-1]) and not latin[-1])
    for reading in meant:
        usual = iter(USUAL_RANKS[: sum(level in layout.levels for level in reading)][::-1])
        full = list(layout.ranks)
        for at, level in zip(layout.places, reading):
            named = layout.named or level not in layout.levels
            full[at] = NO_RANK if level == PLACE and layout.place is not None else level if named else next(usual)
        offers.append(f"--folder-ranks {read_as(example, full)}")
    text = (
        f"{words}. Folders such as {printable(example[layout.places[meant[0].index(PLACE)]])} look like places: give "
        f"{offers[0]}, then --split folder:place keeps the pictures of a place on one side of the split; or, if the "
        f"others are the places, {offers[1]}"
    )
    if layout.named:
        return [f"{text}. As ranks, rows that contradict the others are rejected"]
    raise UserError(f"{text}; if all are ranks nevertheless, name these with --folder-ranks")


def _ordered(levels: Sequence[str], layout: Layout) -> tuple[str, ...]:
    """Levels, finest first: those of the folders by their depth where any has a name of its own."""
    if not any(map(is_own, layout.levels)):
        return columns.finest_first(levels)
    return tuple(dict.fromkeys((*(level for level in layout.levels[::-1] if level in levels), *levels)))


def _key(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


def _with_taxonomy(
    classes: pl.DataFrame, levels: tuple[str, ...], path: Path, asked: Common
) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Labels completed by a taxonomy: the line of a class, or what all lines with its genus, family ... agree on."""
    frame, links, warnings = read_columns(
        path, TextOptions(), mapping=asked.mapping, rank_map=asked.rank_map, check=identification.check_taxa
    )
    bad = frame.filter(pl.col(schema.REASON).is_not_null())
    if bad.height:
        line, detail = bad.select(schema.LINE, schema.DETAIL).row(0)
        raise UserError(f"{path.name}, line {line}: {detail}")
    folders = frame.select(columns.FOLDER) if columns.FOLDER in frame.columns else None
    frame, known, notes = identification.identify(frame, links, path.name, asked.names)
    wanted = [name for name in frame.columns if columns.part_and_level(name) or name in schema.TAXON_NOTES]
    lines = frame.select(pl.col(wanted).cast(pl.String)).to_dicts()
    names = folders.to_series().cast(pl.String).to_list() if folders is not None else None
    lookup = _Taxonomy(path.name, lines, frame[schema.LINE].to_list(), known, names)
    found, missing = [], []
    for row in classes.select(pl.all().cast(pl.String)).to_dicts():
        more = lookup.find(row, levels)
        if more is None and row["_class"] is not None and not is_unknown(class_name(row["_class"])):
            missing.append(row["_in"])
        found.append(row | {key: value for key, value in (more or {}).items() if value is not None})
    if missing:
        shown = ", ".join(map(printable, missing[:5])) + (" ..." if len(missing) > 5 else "")
        warnings.append(f"{path.name} lacks {len(missing)} class folders, which keep their own names: {shown}")
    keys = list(dict.fromkeys(key for row in found for key in row))
    complete = pl.DataFrame({key: [row.get(key) for row in found] for key in keys}, dict.fromkeys(keys, pl.String))
    return complete, columns.finest_first((*levels, *known)), warnings + notes


class _Taxonomy:
    """Lines of a taxonomy by the names, ids or folders of their classes."""

    def __init__(
        self,
        where: str,
        lines: Sequence[dict[str, str | None]],
        numbers: Sequence[int],
        levels: tuple[str, ...],
        folders: Sequence[str | None] | None,
    ) -> None:
        self._classes: dict[str, dict[str, str | None]] = {}
        self._coarser: dict[tuple[str, str], dict[str, str | None]] = {}
        seen: dict[str, int] = {}
        for place, (line, number) in enumerate(zip(lines, numbers)):
            own = folders[place] if folders is not None else None
            finest = [line.get(schema.label_column(part, levels[0])) for part in ("name", "id")]
            for name in {_key(name) for name in ([own] if own else finest) if name}:
                if name in seen:
                    raise UserError(f"{where} has two lines for {printable(name)!r}: {seen[name]} and {number}")
                seen[name] = number
                self._classes[name] = line
            for place_of_level, level in enumerate(levels[1:], 1):
                name_here = line.get(schema.label_column("name", level))
                if name_here:
                    above = {
                        key: value
                        for key, value in line.items()
                        if (found := columns.part_and_level(key)) and found[1] in levels[place_of_level:]
                    }
                    common = self._coarser.setdefault((level, _key(name_here)), above)
                    for key in above:
                        common[key] = above[key] if common.get(key) in (None, above[key]) else None

    def find(self, row: Mapping[str, str | None], levels: tuple[str, ...]) -> dict[str, str | None] | None:
        """What is known of a class folder; None where it is not in the taxonomy."""
        labels = [(level, row.get(schema.label_column(part, level))) for level in levels for part in ("name", "id")]
        given = [(level, name) for level, name in labels if name]
        for name in (row["_class"], class_name(row["_class"] or ""), *[name for _, name in given[:2]]):
            if name and _key(name) in self._classes:
                return self._classes[_key(name)]
        return next(
            (self._coarser[key] for level, name in given if (key := (level, _key(name))) in self._coarser), None
        )
