"""Which file on disk a downloaded picture is: by path, by the number of a photo, by file name, by the id of its record.

Programs that download the pictures of an archive name files in a few usual ways; each is tried on all rows before the
next one, and a file that a row has got is not given away again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import polars as pl

from linnaeus_jax.reading import schema
from linnaeus_jax.reading.paths import SUFFIX
from linnaeus_jax.reading.picture_folder import Listing, find_files
from linnaeus_jax.reading.schema import mapped
from linnaeus_jax.reading.text import printable

#: columns that a picture is looked for by
IDENTIFIER, ID, OTHER_IDS = "identifier", "id", ("specimen", "catalog")
_LAST = r"([^/\\]*)$"
#: a number in a folder of one record that is larger than this is a name, not a place in a series
_LARGEST_NUMBER = 100


def is_address(column: str) -> pl.Expr:
    """Whether an identifier is an address of the web rather than a path."""
    return pl.col(column).str.contains(r"(?i)^[a-z][a-z0-9+.]*://")


class FileKeys:
    """The pictures of a folder by what their names say.

    Attributes:
      stems: `stem`, `path`: file names without suffix that only one file has.
      by_id: `id`, `number`, `kind`, `path`: files named "<id>_<number>" or "<id>-<number>" (kind 0), "<id>" (kind 1),
        or lying in a folder "<id>" (kind 2). `number` from 1.
    """

    def __init__(self, listing: Listing) -> None:
        paths = pl.Series("path", listing.pictures(), dtype=pl.String)
        files = pl.DataFrame({"path": paths}).with_columns(
            pl.col("path").str.extract(_LAST).str.replace(SUFFIX, "").alias("stem"),
            pl.col("path").str.extract(r"([^/]+)/[^/]*$").alias("folder"),
        )
        self.stems = files.filter(pl.col("stem").is_unique()).select("stem", "path")
        series = files.with_columns(
            pl.col("stem").str.extract(r"^(.+)[_-]\d{1,4}$").alias("id"),
            pl.col("stem").str.extract(r"[_-](\d{1,4})$").cast(pl.Int64).alias("number"),
        ).filter(pl.col("id").is_not_null())
        alone = files.select(pl.col("stem").alias("id"), pl.lit(1, pl.Int64).alias("number"), "path")
        self.by_id = pl.concat(
            [
                _kind(_from_one(series), 0),
                _kind(alone, 1),
                _kind(_in_folders(files), 2),
            ]
        )


def _kind(frame: pl.DataFrame, kind: int) -> pl.DataFrame:
    return frame.select("id", "number", pl.lit(kind, pl.Int64).alias("kind"), "path")


def _from_one(files: pl.DataFrame) -> pl.DataFrame:
    """Numbers of an id that begin with 0 are raised by one."""
    return files.with_columns(pl.col("number") + (pl.col("number").min().over("id") == 0).cast(pl.Int64))


def _in_folders(files: pl.DataFrame) -> pl.DataFrame:
    """Files of a folder: numbered by their names, if these are small numbers, else in the order of their names."""
    inside = files.filter(pl.col("folder").is_not_null()).with_columns(
        pl.col("folder").alias("id"),
        pl.col("stem").str.extract(r"^(\d{1,9})$").cast(pl.Int64).alias("number"),
    )
    numbered = (pl.col("number").is_not_null().all() & (pl.col("number").max() <= _LARGEST_NUMBER)).over("id")
    inside = inside.with_columns(numbered.alias("numbered")).sort("id", "number", "stem", "path", nulls_last=True)
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("id") + 1
    by_place = inside.filter(~pl.col("numbered")).with_columns(place.alias("number"))
    return pl.concat([_from_one(inside.filter("numbered")), by_place])


class Matcher:
    """Gives the files of a picture folder to media rows and records, each file once, paths and addresses excepted."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._keys = FileKeys(listing)

    def match_media(self, media: pl.DataFrame) -> pl.DataFrame:
        """Files of media rows.

        Args:
          media: [N] rows: `identifier` (path or address), `id` (of the record), `number` (place among the pictures of
            its record, from 1), maybe `specimen`, `catalog` (other ids of the record). All String but the number.

        Returns:
          [N] rows: `picture`, `reason`, `detail`.
        """
        several = pl.col(IDENTIFIER).n_unique().over(_name_of(IDENTIFIER)) > 1
        media = media.with_row_index("row").with_columns(_name_of(IDENTIFIER).alias("name"), several.alias("several"))
        local = media.select(pl.when(~is_address(IDENTIFIER)).then(IDENTIFIER)).to_series()
        by_path = find_files(local, self._listing.root, self._listing)
        here = by_path[schema.PICTURE].is_not_null() & by_path[schema.REASON].is_null()
        unsafe = (by_path[schema.REASON] == schema.UNSAFE_PATH).fill_null(False)
        found = [media.select("row", by_path[schema.PICTURE].alias("path")).filter(here)]
        self._take(found[0])
        left = media.filter(~here & ~unsafe)
        ids = [name for name in (ID, *OTHER_IDS) if name in media.columns]
        steps: tuple[Callable[[pl.DataFrame], pl.DataFrame], ...]
        steps = (self._by_photo, self._by_name, *(partial(self._by_id, name) for name in ids))
        for step in steps:
            new = step(left).unique("row", keep="first", maintain_order=True)
            new = new.unique("path", keep="first", maintain_order=True)
            self._take(new)
            left = left.join(new, on="row", how="anti")
            found.append(new)
        paths = media.select("row").join(pl.concat(found), on="row", how="left", maintain_order="left")["path"]
        named = media[IDENTIFIER].is_not_null()
        reason = pl.when(unsafe).then(pl.lit(schema.UNSAFE_PATH)).when(named).then(pl.lit(schema.NO_SUCH_PICTURE))
        return pl.select(
            pl.coalesce(paths, by_path[schema.PICTURE]).alias(schema.PICTURE),
            pl.when(paths.is_null()).then(reason.otherwise(pl.lit(schema.NO_PICTURE_NAMED))).alias(schema.REASON),
            pl.when(paths.is_null())
            .then(pl.coalesce(by_path[schema.DETAIL], _shown(media[IDENTIFIER])))
            .alias(schema.DETAIL),
        )

    def match_records(self, records: pl.DataFrame) -> pl.DataFrame:
        """All files of records that name no media: `row`, `path`, in the order of rows and numbers.

        Args:
          records: `row`, `id`, and maybe `specimen`, `catalog`.
        """
        found = []
        for name in (ID, *OTHER_IDS):
            if name in records.columns:
                new = self._ids(records, name).join(self._keys.by_id, on="id").sort("row", "number", "kind", "path")
                new = new.select("row", "path").unique("path", keep="first", maintain_order=True)
                self._take(new)
                records = records.join(new, on="row", how="anti")
                found.append(new)
        return pl.concat(found).sort("row", maintain_order=True)

    def _take(self, found: pl.DataFrame) -> None:
        taken = found["path"].unique().implode()
        self._keys.stems = self._keys.stems.filter(~pl.col("path").is_in(taken))
        self._keys.by_id = self._keys.by_id.filter(~pl.col("path").is_in(taken))

    def _by_photo(self, media: pl.DataFrame) -> pl.DataFrame:
        """ ".../photos/12345/original.jpg" -> 12345.*"""
        photo = pl.col(IDENTIFIER).str.extract(r"/photos?/(\d+)(?:/|\.|$)").alias("stem")
        return media.select("row", photo).join(self._keys.stems, on="stem").select("row", "path").sort("row")

    def _by_name(self, media: pl.DataFrame) -> pl.DataFrame:
        """The file name of an address or path, where only one identifier ends in it."""
        names = media.filter(~pl.col("several")).select("row", pl.col("name").alias("stem"))
        return names.join(self._keys.stems, on="stem").select("row", "path").sort("row")

    def _by_id(self, column: str, media: pl.DataFrame) -> pl.DataFrame:
        """ "<id>_<number>", "<id>" for the first picture of a record, the files of a folder "<id>"."""
        ids = self._ids(media, column, "number")
        return ids.join(self._keys.by_id, on=["id", "number"]).sort("row", "kind", "path").select("row", "path")

    def _ids(self, frame: pl.DataFrame, column: str, *others: str) -> pl.DataFrame:
        """`row` and one kind of id, as `id`; another than the record's own only where it is of one record."""
        own = frame.filter(pl.col(ID).n_unique().over(column) == 1) if column != ID else frame
        return own.filter(pl.col(column).is_not_null()).select("row", pl.col(column).alias("id"), *others)


def _shown(texts: pl.Series) -> pl.Series:
    """Texts as they may be printed; most need no change."""
    harmless = texts.str.contains(r"^[ -\[\]-~]{0,160}$")
    return texts.set(~harmless, None).fill_null(mapped(texts.set(harmless, None), printable))


def _name_of(column: str) -> pl.Expr:
    """File name without suffix of an address or a path."""
    return pl.col(column).str.replace(r"[?#].*$", "").str.extract(_LAST).str.replace(SUFFIX, "")
