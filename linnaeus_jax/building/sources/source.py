"""What a source of data sets says of itself: its option of `linnaeus build`, the options beside it, and its reader.

Each module of this folder may register one with the decorator `source`; so may a plugin of `linnaeus build`.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.columns import is_own, rank_name, split_options
from linnaeus_jax.reading.picture_folder import Listing, list_files, unclaimed
from linnaeus_jax.reading.schema import Progress, SourceRows


class Option:
    """An option that not every source has.

    Args:
      flag: such as "--separator".
      keywords: of `argparse.ArgumentParser.add_argument`.
    """

    def __init__(self, flag: str, **keywords: Any) -> None:
        self.flag, self.keywords = flag, keywords

    def given(self, args: argparse.Namespace) -> bool:
        """Whether the arguments have another value than its default."""
        default = self.keywords.get("default", False if self.keywords.get("action") == "store_true" else None)
        return bool(getattr(args, self.flag.removeprefix("--").replace("-", "_")) != default)


PICTURES = Option("--pictures", type=Path, metavar="DIR", help="folder of the pictures; default: beside the source")
QUOTES = Option(
    "--quotes", choices=("csv", "none"), default="csv", help="none: quotes are text, and enclose no fields (csv)"
)
SEPARATOR = Option("--separator", help="character between fields; default: found")
MAP = Option(
    "--map", nargs="+", default=[], metavar="WHAT=COLUMN", help="columns with unusual names: latitude=lat_wgs84"
)
RANK_MAP = Option("--rank-map", nargs="+", default=[], metavar="RANK=NAME[:ID]", help="columns of ranks: tribe=Tribus")


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every source is asked, beside its own options.

    Attributes:
      pictures: folder that paths are relative to, whose other pictures become rows with the reason "no record names
        it"; None: that of the source, which is not searched.
      mapping: standard column -> column of the source, which wins over usual names.
      rank_map: rank -> "NAME_COLUMN[:ID_COLUMN]".
      names: whether names are scientific, one of `scientific_names.MODES`.
      doi: of the download, for rows without their own.
      split: that is asked for; see `records.with_places`.
      follow_links: whether links may lead out of the picture folder.
      leave_out: folders to leave out of the picture folder.
      progress: (what, done, total).
    """

    pictures: Path | None = None
    mapping: Mapping[str, str] | None = None
    rank_map: Mapping[str, str] | None = None
    names: str = "auto"
    doi: str | None = None
    split: str | None = None
    follow_links: bool = False
    leave_out: Sequence[Path] = ()
    progress: Progress | None = None

    def listing(self, root: Path) -> Listing:
        """The files of the picture folder."""
        return list_files(root, follow_links=self.follow_links, leave_out=self.leave_out, progress=self.progress)

    def finished(self, frame: pl.DataFrame, levels: tuple[str, ...], listing: Listing | None) -> pl.DataFrame:
        """A frame with standard columns, `doi`, and a row for each picture of the listing that no record names."""
        if self.doi:
            own = pl.col("doi").cast(pl.String) if "doi" in frame.columns else pl.lit(None, pl.String)
            frame = frame.with_columns(pl.coalesce(own, pl.lit(self.doi)).alias("doi"))
        frame = schema.standard_frame(frame, levels)
        if listing is None:
            return frame
        rest = schema.standard_frame(unclaimed(listing, frame[schema.PICTURE]), levels)
        return pl.concat([frame, rest], how="diagonal")


@dataclass(frozen=True)
class Request:
    """What a user asks of a source.

    Attributes:
      args: of `linnaeus build`.
      progress: (what, done, total).
    """

    args: argparse.Namespace
    progress: Progress

    @cached_property
    def own(self) -> dict[str, str]:
        """Rank with a name of its own -> its level."""
        return {rank_name(level): level for level in self.args.ranks if is_own(level)}

    @cached_property
    def mapping(self) -> dict[str, str]:
        """Of --map: standard column -> column of the source."""
        return split_options(self.args.map, "--map")

    @cached_property
    def rank_map(self) -> dict[str, str]:
        """Of --rank-map: rank, or level where it has a name of its own, -> "NAME_COLUMN[:ID_COLUMN]"."""
        given = split_options(self.args.rank_map, "--rank-map")
        return {self.own.get(rank, rank): column for rank, column in given.items()}

    @cached_property
    def columns(self) -> dict[str, Any]:
        """`mapping` and `rank_map` of a table; columns are found by the names of ranks of their own."""
        return {"mapping": self.mapping, "rank_map": {level: name for name, level in self.own.items()} | self.rank_map}

    @cached_property
    def common(self) -> dict[str, Any]:
        """The fields of `Common` that options of all sources give."""
        args = self.args
        given = {
            "names": args.names,
            "follow_links": args.follow_links,
            "doi": args.doi,
            "split": args.split,
            "leave_out": [args.out],
        }
        return given | {"progress": self.progress}


@dataclass(frozen=True)
class Source:
    """A kind of source.

    Attributes:
      option: that names one, and its keywords.
      options: those that it has beside the options of all.
      read: its rows. Raises UserError for a source that cannot be read.
    """

    option: Option
    options: tuple[Option, ...]
    read: Callable[[Request], SourceRows]


#: option -> source
SOURCES: dict[str, Source] = {}
Reader = Callable[[Request], SourceRows]


def source(option: Option, *options: Option) -> Callable[[Reader], Reader]:
    """Decorator: makes a reader the source of `option`.

    Raises:
      UserError: another source has the option.
    """

    def add(read: Reader) -> Reader:
        if option.flag in SOURCES and SOURCES[option.flag].read.__module__ != read.__module__:
            raise UserError(f"{option.flag} is a source already; choose another option")
        SOURCES[option.flag] = Source(option, options, read)
        return read

    return add


def sources() -> Mapping[str, Source]:
    """Option -> source, by name: of the modules of this folder, and of plugins that were imported."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    return dict(sorted(SOURCES.items()))
