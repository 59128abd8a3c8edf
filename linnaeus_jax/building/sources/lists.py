"""Lists of files with labels as rows of a data set: `train/a/1.jpg, 3, 0` on each line, one list for each split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.building.sources import class_names as names_of
from linnaeus_jax.building.sources import records
from linnaeus_jax.building.sources.class_names import FieldLines, read_lines
from linnaeus_jax.building.sources.source import PICTURES, SEPARATOR, Common, Option, Request, source
from linnaeus_jax.building.sources.split_folders import split_named
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import identification, schema
from linnaeus_jax.reading.columns import USUAL_NAMES, Links, own_or_level, plain, rank_name
from linnaeus_jax.reading.delimited import clean_text
from linnaeus_jax.reading.paths import SUFFIX, is_picture
from linnaeus_jax.reading.picture_folder import Listing, find_files, open_folder, relative_to
from linnaeus_jax.reading.schema import SourceRows
from linnaeus_jax.reading.text import printable

PATH = "path"
SKIPPED = "-"
_PATH_NAMES = {plain(name) for tier in USUAL_NAMES[schema.PICTURE] for name in tier.split()}
#: number of the list that a row is from
_LIST = "_list"


@dataclass(frozen=True)
class ListFile:
    """One list: the split that it is of, or None, and its file."""

    split: str | None
    file: Path

    @classmethod
    def parse(cls, text: str) -> ListFile:
        """From "train=lists/train.txt", or "train.txt" whose name says the split.

        Raises:
          UserError: no split of that name.
        """
        name, sign, path = text.partition("=")
        if not sign:
            return cls(split_named(Path(text).stem), Path(text))
        if split_named(name.strip()) is None:
            raise UserError(f"--lists {text}: {name!r} is no side of a split; there are train, val and test")
        return cls(split_named(name.strip()), Path(path.strip()))


def read(
    lists: Sequence[ListFile],
    *,
    ranks: Sequence[str] = (),
    columns: Sequence[str] = (),
    class_names: Sequence[str] = (),
    separator: str | None = None,
    **common: Any,
) -> SourceRows:
    """Reads lists with one picture on each line: its path, then its labels.

    Fields are separated by commas, tabs, semicolons, bars or spaces. Labels are names or numbers; 0 is a class. Without
    labels the folders of a path are them, the innermost first; further ones must be of no account, or `columns` be
    the path alone.

    Args:
      lists: of which each gives the split of its pictures.
      ranks: levels of the labels, finest first; none: species, of lists with one label.
      columns: what the fields are: "path", ranks, "-" for what is left out; none: the path, then the ranks in order.
      class_names: files with the names of numbered classes, see `class_names.read`.
      separator: character between fields; None: found.
      common: fields of `source.Common`.

    Raises:
      UserError: a list that is missing, empty or has lines of different numbers of fields; fields that fit no ranks; a
        picture with two labels or in two lists; numbers without a name.
    """
    asked = Common(**common)
    read_in = [
        read_lines(one.file, separator, label_count=len(columns) - 1 if columns else len(ranks)) for one in lists
    ]
    for one, lines in zip(lists, read_in):
        if lines.width != read_in[0].width:
            raise UserError(
                f"{one.file.name} has {lines.width} fields on each line, {lists[0].file.name} {read_in[0].width}; all "
                "lists must have the same fields"
            )
    read_in = [_without_header(lines) for lines in read_in]
    wanted = tuple(ranks) or _usual_ranks(read_in[0], lists[0].file, columns)
    if read_in[0].width == 1 and not columns:
        _check_depth([lines.fields[row][0] for lines in read_in for row in range(len(lines.fields))], wanted)
    frames, warnings = [], []
    for number, (one, lines) in enumerate(zip(lists, read_in)):
        places = _places(lines, wanted, columns, one.file, named=bool(class_names))
        frames.append(
            _frame(lines, places, wanted).with_columns(
                pl.lit(one.split, pl.String).alias(schema.SPLIT), pl.lit(number).alias(_LIST)
            )
        )
        if lines.header:
            warnings.append(
                f"{one.file.name}: the first line names the fields: {', '.join(map(printable, lines.header))}"
            )
    frame = pl.concat(frames).with_columns(
        pl.lit(None, pl.String).alias(name) for name in (schema.REASON, schema.DETAIL)
    )
    frame, notes = names_of.name_classes(frame, wanted, names_of.read(class_names, wanted))
    warnings += notes
    root = open_folder(asked.pictures or lists[0].file.parent)
    listing = asked.listing(root)
    frame, notes = _in_folder(frame, lists, listing)
    named, mapped = relative_to(frame[schema.PICTURE], root)
    frame = records.with_found(frame, find_files(named, root, listing, follow_links=asked.follow_links))
    warnings += notes + mapped + _missing(frame, lists, root)
    frame, notes = _once(frame, lists, wanted)
    frame, levels, more = identification.identify(frame.drop(_LIST), Links({}, {}), "the list", asked.names)
    if not any(one.split for one in lists):
        frame = frame.drop(schema.SPLIT)
    levels = tuple(level for level in wanted if level in levels)
    frame = asked.finished(frame, levels, listing)
    files = tuple(dict.fromkeys([*(one.file for one in lists), *names_of.files_of(class_names)]))
    known = [os.path.relpath(os.path.abspath(file), root) for file in files]
    links = {schema.PICTURE: PATH} | {schema.label_column("name", level): rank_name(level) for level in levels}
    return SourceRows(frame, root, levels, files, links, (*warnings, *notes, *more, *listing.warnings(known)))


@source(
    Option(
        "--lists", nargs="+", metavar="SPLIT=FILE", help="lists of paths with labels: train=train.txt,test=test.txt"
    ),
    *(PICTURES, SEPARATOR),
    Option("--columns", default="", help="what the fields are, - to leave out: path,fine,-,coarse"),
    Option("--class-names", nargs="+", default=[], metavar="[RANK=]FILE", help="names of numbered classes"),
)
def _read(request: Request) -> SourceRows:
    args = request.args
    return read(
        [ListFile.parse(text) for text in _several(args.lists)],
        ranks=args.ranks,
        pictures=args.pictures,
        columns=[name for name in args.columns.split(",") if name.strip()],
        class_names=_several(args.class_names),
        separator=args.separator,
        **request.common,
    )


def _several(texts: Sequence[str]) -> list[str]:
    """["a,b", "c"] -> ["a", "b", "c"]."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _without_header(lines: FieldLines) -> FieldLines:
    """Lines whose first one names the fields, with that one as their header."""
    first, rest = lines.fields[0], lines.fields[1:101]
    if any(map(is_picture, first)) or not rest:
        return lines
    if any(is_picture(field) for fields in rest for field in fields) or {*map(plain, first)} & _PATH_NAMES:
        return FieldLines(lines.numbers[1:], lines.fields[1:], first)
    return lines


def _usual_ranks(lines: FieldLines, file: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """Ranks where none are asked for: species, or those that a header or `columns` name.

    Raises:
      UserError: several labels without names.
    """
    path = _path_place(lines)
    named = [name for name in columns if name not in (PATH, SKIPPED)]
    named = named or [name for place, name in enumerate(lines.header) if place != path]
    if lines.width <= 2 and (not columns or columns == [PATH]):
        return ("L10",)
    if named:
        return tuple(map(own_or_level, named))
    raise UserError(
        f"{file.name} has {lines.width - 1} labels on each line ({printable(', '.join(lines.fields[0]))}): name them "
        "with --ranks, finest first, e.g. --ranks fine,coarse"
    )


def _check_depth(paths: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises UserError where folders that tell pictures apart lie further out than there are ranks."""
    inside = pl.Series(paths, dtype=pl.String).str.replace_all("\\", "/", literal=True).str.replace(r"^(\.?/)+", "")
    folders = [path.split("/")[: -1 - len(wanted)] for path in inside.unique(maintain_order=True)]
    outer = list(dict.fromkeys("/".join(name for name in names if not split_named(name)) for names in folders))
    if len([names for names in outer if names]) > 1:
        ranks, coarser = ",".join(map(rank_name, wanted)), "family" if wanted == ("L10",) else "coarse"
        shown = " and ".join(map(printable, [names for names in outer if names][:2]))
        raise UserError(
            f"the paths have folders further out than the rank that is named ({ranks}), such as {shown}: give each a "
            f"rank, finest first, e.g. --ranks {ranks},{coarser}; or leave them out with --columns path"
        )


def _path_place(lines: FieldLines) -> int:
    """Which field is the path: the first that looks like a picture, or that a header calls so, or the first."""
    for place in range(lines.width):
        if all(is_picture(fields[place]) for fields in lines.fields[:100]):
            return place
    return next((place for place, name in enumerate(lines.header) if plain(name) in _PATH_NAMES), 0)


def _places(
    lines: FieldLines, wanted: Sequence[str], columns: Sequence[str], file: Path, *, named: bool
) -> dict[str, int]:
    """PATH and each rank -> its field; ranks that are left out come from the folders or the class names.

    Raises:
      UserError: other fields than ranks.
    """
    ranks = {rank_name(level): level for level in wanted}
    if columns:
        given = ",".join(columns)
        unknown = [name for name in columns if name not in (PATH, SKIPPED, *ranks)]
        if unknown or columns.count(PATH) != 1 or len(columns) != lines.width:
            raise UserError(
                f"--columns {given}: {file.name} has {lines.width} fields on each line "
                f"({printable(', '.join(lines.fields[0]))}); say of each what it is: path (once), "
                f"{', '.join(ranks)}, or - for what is left out"
            )
        return {ranks.get(name, name): place for place, name in enumerate(columns) if name != SKIPPED}
    path = _path_place(lines)
    header = {plain(name): place for place, name in enumerate(lines.header)}
    if all(plain(rank) in header for rank in ranks):
        return {PATH: path} | {level: header[plain(rank)] for rank, level in ranks.items()}
    labels = [place for place in range(lines.width) if place != path]
    if not labels or len(labels) == len(wanted) or (named and len(labels) < len(wanted)):
        return {PATH: path} | dict(zip(wanted, labels))
    raise UserError(
        f"{file.name} has {len(labels)} labels on each line ({printable(', '.join(lines.fields[0]))}), and --ranks "
        f"names {len(wanted)} ({', '.join(ranks)}); name as many, or say what the fields are, e.g. --columns "
        f"{','.join([PATH, *ranks, SKIPPED][: lines.width])}"
    )


def _frame(lines: FieldLines, places: dict[str, int], wanted: Sequence[str]) -> pl.DataFrame:
    """`line`, `picture` and the labels of every line."""
    fields = list(zip(*lines.fields))
    data: dict[str, pl.Series] = {
        schema.LINE: pl.Series(lines.numbers, dtype=pl.Int64),
        schema.PICTURE: pl.Series(fields[places[PATH]], dtype=pl.String),
    }
    from_folders = lines.width == 1
    for depth, level in enumerate(wanted):
        column = schema.label_column("name", level)
        if from_folders:
            pattern = r"([^/]+)/" + r"[^/]+/" * depth + r"[^/]*$"
            data[column] = data[schema.PICTURE].str.extract(pattern)
        elif level in places:
            data[column] = pl.Series(fields[places[level]], dtype=pl.String)
        else:
            data[column] = pl.Series([None] * len(lines.numbers), dtype=pl.String)
    frame = pl.DataFrame(data)
    return frame.with_columns(clean_text(name) for name in frame.columns if name != schema.LINE)


def _in_folder(frame: pl.DataFrame, lists: Sequence[ListFile], listing: Listing) -> tuple[pl.DataFrame, list[str]]:
    """Paths below the picture folder: those of a list of which none is there may begin one folder further out or in."""
    files = pl.Series(listing.files, dtype=pl.String)
    known = pl.concat([files, files.str.replace(SUFFIX, "")]).unique().implode()
    outermost = [folder for folder in listing.folders if folder and "/" not in folder]
    parts, warnings = [], []
    for number, one in enumerate(lists):
        part = frame.filter(pl.col(_LIST) == number)
        path = part[schema.PICTURE].str.replace_all("\\", "/", literal=True).str.replace(r"^(\./)+", "")
        tries = {"": path, "/": path.str.replace("^/+", ""), "..": path.str.replace(r"^/?[^/]+/", "")}
        tries |= {f"{folder}/": folder + "/" + tries["/"] for folder in outermost}
        hits = {what: int(text.is_in(known).sum()) for what, text in tries.items()}
        best = "" if hits[""] else max(hits, key=lambda what: hits[what])
        if hits[best] and best:
            part = part.with_columns(tries[best].alias(schema.PICTURE))
            where = "without their first folder" if best == ".." else f"below {printable(best)}" if best != "/" else ""
            if where:
                warnings.append(f"the paths of {one.file.name} are found {where} of {printable(str(listing.root))}")
        parts.append(part)
    return pl.concat(parts), warnings


def _missing(frame: pl.DataFrame, lists: Sequence[ListFile], root: Path) -> list[str]:
    """A warning for each list that names pictures which are not there.

    Raises:
      UserError: no picture of any list is there.
    """
    lost = frame.filter(pl.col(schema.REASON) == schema.NO_SUCH_PICTURE)
    if lost.height == frame.height:
        shown = printable(frame[schema.PICTURE][0])
        raise UserError(
            f"none of the {frame.height} pictures of {', '.join(one.file.name for one in lists)} is below {root}, e.g. "
            f"{shown}; give the folder that the paths begin in with --pictures"
        )
    warnings = []
    for number, one in enumerate(lists):
        of_list = lost.filter(pl.col(_LIST) == number)
        if of_list.height:
            shown = ", ".join(
                f"line {line} {printable(path)}"
                for line, path in of_list.select(schema.LINE, schema.PICTURE)[:3].rows()
            )
            warnings.append(f"{one.file.name} names {of_list.height} pictures that are not there: {shown}")
    return warnings


def _once(frame: pl.DataFrame, lists: Sequence[ListFile], wanted: Sequence[str]) -> tuple[pl.DataFrame, list[str]]:
    """Every picture once. Raises UserError for one in two lists or with two labels."""
    names = [schema.label_column("name", level) for level in wanted]
    again = frame.filter(pl.col(schema.PICTURE).is_not_null() & pl.col(schema.PICTURE).is_duplicated())
    if again.is_empty():
        return frame, []
    for what, fault in (([_LIST], "stand in two lists"), (names, "have two labels")):
        differ = again.filter(pl.any_horizontal(pl.col(name).n_unique().over(schema.PICTURE) > 1 for name in what))
        if differ.height:
            first = differ.filter(pl.col(schema.PICTURE) == differ[schema.PICTURE][0]).unique(
                what, maintain_order=True
            )[:2]
            places = " and ".join(
                f"{lists[number].file.name}, line {line}" for number, line in first.select(_LIST, schema.LINE).rows()
            )
            count = differ[schema.PICTURE].n_unique()
            raise UserError(
                f"{count} pictures {fault}: {printable(differ[schema.PICTURE][0])} in {places}; keep one of them"
            )
    kept = frame.filter(pl.col(schema.PICTURE).is_null() | pl.col(schema.PICTURE).is_first_distinct())
    return kept, [f"{frame.height - kept.height} lines name a picture again with the same labels and are left out"]
