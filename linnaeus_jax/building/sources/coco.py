"""The annotations of the iNaturalist competitions (JSON in the form of COCO) as rows of a data set.

Every entry of `images` is one row, whatever is wrong with it, and so is every annotation of an image that has no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.building.sources import records
from linnaeus_jax.building.sources.json_arrays import DUPLICATE_KEY, JsonArrays, decoder
from linnaeus_jax.building.sources.source import MAP, PICTURES, Common, Option, Request, source
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels import MAX_TAXON_ID
from linnaeus_jax.reading import columns, schema
from linnaeus_jax.reading.columns import Links, level_name, level_number
from linnaeus_jax.reading.delimited import clean_text
from linnaeus_jax.reading.identification import SPECIES, identify
from linnaeus_jax.reading.picture_folder import find_files, open_folder, relative_to
from linnaeus_jax.reading.schema import Progress, SourceRows, label_column, mapped
from linnaeus_jax.reading.table import compact
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.ranks import RANK_LEVELS

#: standard column -> key of the entries of `images`
IMAGE_KEYS: dict[str, str] = {
    schema.PICTURE: "file_name",
    "license": "license",
    "rights_holder": "rights_holder",
    "date": "date",
    "latitude": "latitude",
    "longitude": "longitude",
    "uncertainty": "location_uncertainty",
}
_RANKS = {rank: level_name(number) for rank, number in RANK_LEVELS.items() if number > level_number(SPECIES)}
#: column -> key of the entries of `categories`
_CATEGORY_KEYS: dict[str, str] = {
    "category": "id",
    label_column("name", SPECIES): "name",
    columns.EPITHET: "specific_epithet",
    columns.COMMON_NAME: "common_name",
    "supercategory": "supercategory",
    **{label_column("name", level): rank for rank, level in _RANKS.items()},
}
#: pictures that share all of these are of one occurrence
_SAME = ("category", "date", "latitude", "longitude", "rights_holder")
_FAULT = "fault"
_MIDNIGHT = r"[T ]00:00:00(\.0+)?(Z|[+-]00:?00)?$"


# ---- entries as columns ---------------------------------------------------------------------------------------------


def _texts(name: str, key: str, elements: list[Any], faults: dict[int, str]) -> pl.Series:
    """String column of what elements have under a key; what is no single value is null and a fault."""
    values = [element.get(key) for element in elements]
    try:
        return pl.Series(name, values, pl.String, strict=True)
    except (TypeError, UnicodeEncodeError):
        pass
    for place, value in enumerate(values):
        if isinstance(value, dict | list):
            kind = "an object" if isinstance(value, dict) else "an array"
            faults.setdefault(place, f"{key} is {kind}, not a single value")
            values[place] = None
        elif isinstance(value, bool):
            values[place] = "true" if value else "false"
        elif isinstance(value, str):  # half of a pair of surrogates is no text
            values[place] = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return pl.Series(name, values, pl.String)


def _block(elements: list[Any], keys: Mapping[str, str], first: int) -> pl.DataFrame:
    """Entries as text: `line` from `first`, a column for each of `keys` (column -> key), `fault`."""
    faults: dict[int, str] = {}
    for place, element in enumerate(elements):
        if not isinstance(element, dict):
            faults[place], elements[place] = "the entry is no object", {}
        elif DUPLICATE_KEY in element:
            faults[place] = f"{element[DUPLICATE_KEY]} stands twice in the entry"
    found = [_texts(name, key, elements, faults) for name, key in keys.items()]
    said = pl.Series(_FAULT, [faults.get(place) for place in range(len(elements))], pl.String)
    line = pl.int_range(first, first + len(elements), dtype=pl.Int64, eager=True).alias(schema.LINE)
    return pl.DataFrame([line, *found, said])


def _compact(block: pl.DataFrame) -> pl.DataFrame:
    """Standard columns of images as all sources have them; ids and paths as they are."""
    exact = ("image", schema.PICTURE, _FAULT)
    return compact(block.drop(exact)).hstack(block.select(exact))


def _read_arrays(path: Path, image_keys: Mapping[str, str], progress: Progress | None) -> dict[str, pl.DataFrame]:
    """The entries of one file as columns: "images", "annotations", "categories", "licenses".

    Raises:
      UserError: no such file, not JSON, or not all of the three arrays that tell what the images show.
    """
    if not path.is_file():
        raise UserError(f"annotations {str(path)!r} {'are not a file' if path.exists() else 'do not exist'}")
    keys: dict[str, Mapping[str, str]] = {
        "images": {"image": "id", **image_keys},
        "annotations": {"image": "image_id", "category": "category_id"},
        "categories": _CATEGORY_KEYS,
        "licenses": {"id": "id", "name": "name", "url": "url"},
    }
    blocks: dict[str, list[pl.DataFrame]] = {}
    for name, elements in JsonArrays(path, progress):
        if name not in keys:
            continue
        if elements is None:
            raise UserError(f"{path.name}: {name!r} is not an array; this is no file of annotations")
        done = blocks.setdefault(name, [])
        block = _block(elements, keys[name], 1 + sum(part.height for part in done))
        done.append(_compact(block) if name == "images" else block)
    for name in ("images", "categories"):
        if name not in blocks:
            raise UserError(f"{path.name}: there is no array {name!r}; this is no file of annotations")
    found = {name: pl.concat(blocks.get(name) or [_block([], names, 1)]) for name, names in keys.items()}
    if not found["annotations"].height:
        raise UserError(
            f"{path.name} has no annotations: such a file names pictures for a test, and nothing can be learned from "
            "it; give the file of the training or the validation pictures"
        )
    both = [found[name]["image"] for name in ("images", "annotations")]
    if all(map(_are_integers, both)):  # which take less memory
        for name in ("images", "annotations"):
            found[name] = found[name].with_columns(pl.col("image").cast(pl.Int64))
    return found


def _are_integers(ids: pl.Series) -> bool:
    """Whether ids as numbers are the same texts again."""
    numbers = ids.cast(pl.Int64, strict=False)
    return bool((numbers.cast(pl.String) == ids).all()) and numbers.null_count() == ids.null_count()


# ---- categories -----------------------------------------------------------------------------------------------------


def _categories(files: Mapping[Path, Mapping[str, pl.DataFrame]]) -> pl.DataFrame:
    """The categories of all files: `category` (the id) and what else is given, one row per id, in order of the files.

    Raises:
      UserError: a faulty entry, or one id for two categories.
    """
    for path, arrays in files.items():
        table = arrays["categories"]
        fault = pl.coalesce(_FAULT, pl.when(pl.col("category").is_null()).then(pl.lit("it has no id")))
        faulty = table.select(schema.LINE, fault.alias(_FAULT)).drop_nulls()
        if faulty.height:
            line, why = faulty.row(0)
            raise UserError(f"{path.name}: entry {line} of 'categories' cannot be used: {printable(why)}")
    names = [name for name in _CATEGORY_KEYS if name != "category"]
    table = pl.concat([arrays["categories"] for arrays in files.values()])
    table = table.with_columns(clean_text(name) for name in names)
    for name in names:
        given = table.filter(pl.col(name).is_not_null()).group_by("category", maintain_order=True)
        double = given.agg(pl.col(name).unique(maintain_order=True)).filter(pl.col(name).list.len() > 1)
        if double.height:
            number, values = double.row(0)
            listed = " and ".join(repr(printable(value)) for value in values[:2])
            raise UserError(
                f"{' and '.join(path.name for path in files)}: category {printable(number)} has the "
                f"{_CATEGORY_KEYS[name]} {listed}; an id must mean one category, so give files of one competition"
            )
    return table.group_by("category", maintain_order=True).agg(pl.col(names).drop_nulls().first())


def _described_apart(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Categories with what another file says of them: an array of entries, or an object with it as `categories`.

    Raises:
      UserError: no such file, or not categories.
    """
    if not path.is_file():
        raise UserError(f"categories {str(path)!r} {'are not a file' if path.exists() else 'do not exist'}")
    try:
        entries = decoder().decode(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is not JSON: {error}") from None
    entries = entries.get("categories") if isinstance(entries, dict) else entries
    if not isinstance(entries, list):
        raise UserError(f"{path.name} holds no array of categories")
    apart = _categories({path: {"categories": _block(entries, _CATEGORY_KEYS, 1)}})
    names = [name for name in table.columns if name != "category"]
    both = table.join(apart, on="category", how="left", suffix="_apart", maintain_order="left")
    return both.select("category", *(pl.coalesce(f"{name}_apart", name).alias(name) for name in names))


def _labels(table: pl.DataFrame, where: str, mode: str) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """`category` and the label columns of the categories; levels, finest first; warnings.

    The id of a category is the taxon id of the species unless one of them cannot be: 0 stands for "not known".
    """
    notes: list[str] = []
    name, number = label_column("name", SPECIES), label_column("id", SPECIES)
    values = table["category"].cast(pl.UInt64, strict=False)
    usable = (values.is_between(1, MAX_TAXON_ID) & (values.cast(pl.String) == table["category"])).fill_null(False)
    if not usable.all():
        bad = table.filter(~usable)["category"][0]
        why = "which stands for an unknown taxon" if bad == "0" else "which cannot be the id of a taxon"
        notes.append(
            f"{where}: a category has the id {printable(bad)}, {why}; the names of categories count, not their ids"
        )
        if table[name].null_count() == table.height:
            table = table.with_columns(pl.col("category").alias(name))
        twice = table.filter(pl.col(name).is_not_null() & pl.col(name).is_duplicated())
        if twice.height:
            first = printable(twice[name][0])
            notes.append(
                f"{where}: {twice.height} categories share their name with another and become one, e.g. {first}"
            )
    else:
        table = table.with_columns(pl.col("category").alias(number))
    given = [column for column in table.columns if table[column].null_count() < table.height]
    ranked = [column for column in given if column.startswith("name_") and column != name]
    if "supercategory" in given and not ranked:
        some = ", ".join(map(printable, table["supercategory"].drop_nulls().unique(maintain_order=True).head(3)))
        notes.append(
            f"{where}: categories have no ranks above the species; 'supercategory' ({some}) names groups of different "
            "ranks and is not used"
        )
    links = Links({column: column for column in given}, {})
    table = table.select(given).drop("supercategory", strict=False)
    labels, levels, more = identify(table, links, where, mode, "categories")
    if not levels:
        raise UserError(f"{where}: categories have neither names nor ids that can be used")
    return labels.with_columns(pl.col("^(id|name|common)_L.*$").cast(pl.Categorical)), levels, [*notes, *more]


# ---- images and annotations -----------------------------------------------------------------------------------------


def _said(text: pl.Expr) -> pl.Expr:
    """Text of a detail that holds what the file says, safe to print."""
    return text.map_batches(lambda series: mapped(series, printable), return_dtype=pl.String)


def _annotated(arrays: Mapping[str, pl.DataFrame], known: pl.Series, where: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What annotations say of images, and rows for those of images that have no entry.

    Args:
      arrays: of one file.
      known: ids of the categories.
      where: name of the file.

    Returns:
      `image`, `category`, `wrong` (why the annotations of the image cannot be used), one row per annotated image; rows
      of a source, all rejected.
    """
    annotations, images = arrays["annotations"], arrays["images"].select("image")
    orphans = annotations.join(images, on="image", how="anti", maintain_order="left")
    why = pl.format("annotation {} is of image {}, which has no entry", schema.LINE, "image")
    no_image = pl.format("annotation {} names no image", schema.LINE)
    broken = pl.format("annotation {}: {}", schema.LINE, _FAULT)
    rejected = orphans.select(
        schema.LINE,
        pl.lit(schema.MALFORMED).alias(schema.REASON),
        _said(pl.coalesce(broken, why, no_image)).alias(schema.DETAIL),
    )
    category = pl.col("category")
    wrong = (
        pl.when(pl.col(_FAULT).is_not_null())
        .then(broken)
        .when(category.is_null())
        .then(pl.format("annotation {} names no category", schema.LINE))
        .when(~category.is_in(known.implode()))
        .then(pl.format("annotation {} is of category {}, which has no entry", schema.LINE, category))
    )
    found = annotations.join(images, on="image", how="semi", maintain_order="left").select(
        "image", "category", wrong.alias("wrong")
    )
    each = found.group_by("image").agg(
        category.first(), (category != category.first()).any().alias("several"), pl.col("wrong").drop_nulls().first()
    )
    several = each.filter(pl.col("several") & pl.col("wrong").is_null()).select("image")
    listed = found.join(several, on="image", how="semi").group_by("image")
    both = listed.agg(category.unique().sort().head(3).str.join(", ").alias("both"))
    text = pl.format("annotated as different categories: {}", "both")
    each = each.join(both, on="image", how="left").with_columns(_said(pl.coalesce("wrong", text)).alias("wrong"))
    return each.select("image", "category", "wrong"), rejected


def _rows_of(arrays: Mapping[str, pl.DataFrame], known: pl.Series, where: str) -> pl.DataFrame:
    """Images of one file and annotations of unknown ones: standard columns without labels, `category`, `wrong`."""
    images = arrays["images"]
    labels, rejected = _annotated(arrays, known, where)
    number = pl.col("image")
    twice = number.is_not_null() & (pl.len().over("image") > 1)
    fault = (
        pl.when(pl.col(_FAULT).is_not_null())
        .then(pl.format("image {}: {}", schema.LINE, _FAULT))
        .when(number.is_null())
        .then(pl.format("image {} has no id", schema.LINE))
        .when(twice)
        .then(pl.format("{} images have the id {}", pl.len().over("image"), number))
    )
    images = images.with_columns(_said(fault).alias(schema.DETAIL))
    images = images.with_columns(
        pl.when(pl.col(schema.DETAIL).is_not_null()).then(pl.lit(schema.MALFORMED)).alias(schema.REASON)
    )
    images = images.join(labels, on="image", how="left", maintain_order="left").drop("image", _FAULT)
    if "license" in images.columns:
        terms = arrays["licenses"].select("id", clean_text("name"), clean_text("url"))
        names = {number: name or url or number for number, name, url in reversed(terms.rows())}
        images = images.with_columns(mapped(images["license"], lambda text: names.get(text, text)).cast(pl.Categorical))
    return pl.concat([images, rejected], how="diagonal")


def _image_keys(mapping: Mapping[str, str] | None) -> dict[str, str]:
    """Standard column -> key of the entries of images. Raises UserError for what is no column of images."""
    keys = dict(IMAGE_KEYS)
    known = (schema.PICTURE, schema.OCCURRENCE, *schema.WHERE_AND_WHEN, *schema.RIGHTS)
    for column, key in (mapping or {}).items():
        if column not in known and not column.startswith(schema.SUBSET):
            raise UserError(f"--map {column}: no such column of images; there are {', '.join(known)}, subset_<name>")
        keys[column] = key
    return {column: key for column, key in keys.items() if key}


def _together(frame: pl.DataFrame) -> pl.DataFrame:
    """`occurrence` of pictures that agree in holder of rights, date, place and category, which are all given."""
    if schema.OCCURRENCE in frame.columns or not set(_SAME) <= set(frame.columns):
        return frame
    given = pl.all_horizontal(pl.col(_SAME).is_not_null())
    same = given & (pl.len().over(_SAME) > 1)
    text = pl.concat_str(pl.col(_SAME).cast(pl.String), separator=" ")
    return frame.with_columns(pl.when(same).then(text).alias(schema.OCCURRENCE))


def _without_midnight(frame: pl.DataFrame) -> pl.DataFrame:
    """Dates without a time of day where all of them are midnight: the time was not known when they were written."""
    if "date" not in frame.columns or not frame["date"].drop_nulls().str.contains(_MIDNIGHT).all():
        return frame
    return frame.with_columns(pl.col("date").str.replace(_MIDNIGHT, ""))


def read(
    annotations: Path,
    *,
    validation: Path | None = None,
    categories: Path | None = None,
    **common: Any,
) -> SourceRows:
    """Reads the annotations of a competition: one row per image, and per annotation of an image without entry.

    Args:
      annotations: JSON file with the arrays `images`, `annotations`, `categories` and maybe `licenses`.
      validation: the same of the validation pictures; with it, the rows have a `split`.
      categories: JSON with the entries of `categories`, where the taxonomy was published apart (2018, 2019); what it
        says wins.
      mapping: standard column -> key of the entries of `images`, which wins over the usual one; "" = none.
      common: fields of `source.Common`.

    Raises:
      UserError: no such file, not JSON, no annotations, categories that contradict each other.
    """
    asked = Common(**common)
    paths = [annotations] if validation is None else [annotations, validation]
    if validation is not None and annotations.exists() and validation.exists() and annotations.samefile(validation):
        raise UserError(f"{annotations}: the same file is given for training and for validation")
    root = open_folder(asked.pictures or annotations.parent)
    keys = _image_keys(asked.mapping)
    files = {path: _read_arrays(path, keys, asked.progress) for path in paths}
    where = " and ".join(path.name for path in paths)
    table = _categories(files)
    if categories is not None:
        table = _described_apart(table, categories)
    parts = []
    for path, split in zip(paths, ("train", "val")):
        part = _rows_of(files.pop(path), table["category"], path.name)
        parts.append(part if validation is None else part.with_columns(pl.lit(split).alias(schema.SPLIT)))
    frame = pl.concat(parts, how="diagonal")
    del parts, part
    labels, levels, notes = _labels(table, where, asked.names)
    absent = [name for name in keys if frame[name].null_count() == frame.height and name != schema.PICTURE]
    if lacking := [name for name in absent if name in (asked.mapping or {})]:
        raise UserError(f"--map {lacking[0]}={keys[lacking[0]]}: no image of {where} has a value of that name")
    frame = _without_midnight(_together(frame.drop(absent)))
    listing = None if asked.pictures is None else asked.listing(root)
    named, mapped = relative_to(frame[schema.PICTURE].replace("", None), root)
    notes += mapped
    frame = _judged(
        frame.drop(schema.PICTURE), named, find_files(named, root, listing, follow_links=asked.follow_links)
    )
    if 0 < (frame[schema.REASON] == schema.NO_SUCH_PICTURE).sum() == frame[schema.PICTURE].is_not_null().sum():
        first = printable(named.drop_nulls()[0])
        notes.append(f"{where}: no picture is where it is named ({first}) in {root}; give the folder with --pictures")
    frame = frame.join(labels, on="category", how="left", maintain_order="left")
    frame = asked.finished(frame, levels, listing)
    used = (*paths, *([categories] if categories else []))
    return SourceRows(frame, root, levels, used, _links(frame, keys), tuple(notes))


@source(
    Option("--coco", type=Path, metavar="JSON", help="annotations of an iNaturalist competition"),
    *(PICTURES, MAP),
    Option("--coco-val", type=Path, metavar="JSON", help="annotations of the validation pictures"),
    Option("--coco-categories", type=Path, metavar="JSON", help="categories in a file of their own"),
)
def _read(request: Request) -> SourceRows:
    args = request.args
    files = {"validation": args.coco_val, "categories": args.coco_categories}
    return read(args.coco, pictures=args.pictures, mapping=request.mapping, **files, **request.common)


def _judged(frame: pl.DataFrame, named: pl.Series, found: pl.DataFrame) -> pl.DataFrame:
    """`picture`, and reasons in their order: a faulty entry, its picture, its annotations."""
    frame = frame.hstack(found.rename({schema.REASON: "_reason", schema.DETAIL: "_detail"}))
    frame = records.reject(frame, pl.lit(named.is_null()), schema.NO_PICTURE_NAMED)
    frame = records.reject(frame, pl.col("_reason").is_not_null(), pl.col("_reason"), pl.col("_detail"))
    frame = records.reject(frame, pl.col("wrong").is_not_null(), schema.MALFORMED, pl.col("wrong"))
    return records.reject(frame, pl.col("category").is_null(), schema.NO_LABEL, "the image has no annotation")


def _links(frame: pl.DataFrame, keys: Mapping[str, str]) -> dict[str, str]:
    """Standard column of a frame -> what it is called in the file."""
    names = {column: f"categories.{key}" for column, key in _CATEGORY_KEYS.items()}
    names |= {label_column("id", SPECIES): "categories.id", label_column("common", SPECIES): "categories.common_name"}
    names |= {column: f"images.{key}" for column, key in keys.items()}
    return {column: names[column] for column in frame.columns if column in names}
