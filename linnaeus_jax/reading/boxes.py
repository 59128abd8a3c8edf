"""Boxes around what is seen on pictures, as detectors and people write them.

Read are the JSON of MegaDetector (https://lila.science/megadetector-output-format), the predictions of SpeciesNet,
annotations in the form of COCO, and tables with a row for each box. A box that cannot be used is counted by its reason.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.box_cuts import RELATIVE, Box, Cut, some_names
from linnaeus_jax.reading.columns import USUAL_NAMES, Links, plain
from linnaeus_jax.reading.metadata import with_decimal_point
from linnaeus_jax.reading.table import TextOptions, read_linked
from linnaeus_jax.reading.text import printable

#: newest published version of MegaDetector's form that is written; those before it are read, and later ones of 1.x
VERSION = (1, 4)
UNITS = ("relative", "pixel")
#: of MegaDetector, for files that name none
CATEGORIES = {"1": "animal", "2": "person", "3": "vehicle"}
# why a box is not used
NO_PLACE = "their place is not four finite numbers"
NO_AREA = "their width or height is not above 0"
OUTSIDE = "they lie outside of the picture"
NO_CONFIDENCE = "their confidence is no number from 0 to 1"
NO_CATEGORY = "the file does not name their category"
#: column of a table -> usual names, see `columns.plain`
_COLUMNS = {
    "file": " ".join((schema.PICTURE, *USUAL_NAMES[schema.PICTURE])),
    "x": "x x_min bbox_x box_x left",
    "y": "y y_min bbox_y box_y top",
    "width": "width w bbox_width box_width bbox_w",
    "height": "height h bbox_height box_height bbox_h",
    "confidence": "confidence conf score detection_confidence box_confidence",
    "category": "category label class box_category",
}
_PLACE = ("x", "y", "width", "height")


@dataclass
class BoxFile:
    """What a file says of boxes.

    Attributes:
      path: the file.
      form: what it is, for people.
      boxes: path of each picture that it names, with "/" -> the boxes that can be used, perhaps none.
      categories: their names that the file may use.
      faults: why boxes cannot be used -> how many.
      warnings: what a person should know, one line each.
      document: of MegaDetector, the whole JSON, whose numbers are all finite; of others None.
    """

    path: Path
    form: str
    boxes: dict[str, list[Box]] = field(default_factory=dict)
    categories: dict[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    document: dict[str, Any] | None = None

    def picture(self, name: str) -> list[Box]:
        """The boxes of a picture that is named now. Raises UserError for one that was named before."""
        key = path_of(name)
        if key in self.boxes:
            raise UserError(f"{self.path}: {printable(name)} stands there twice; keep one of them")
        return self.boxes.setdefault(key, [])

    def add(
        self,
        boxes: list[Box],
        number: int,
        place: Any,
        confidence: Any,
        category: str | None,
        scale: tuple[float, float] | None = RELATIVE,
    ) -> None:
        """Appends a box to those of its picture, or counts why it cannot be used; a `category` of None is unknown."""
        box = _box(number, place, confidence, category, scale)
        if isinstance(box, Box):
            boxes.append(box)
        else:
            self.faults[box] += 1

    def taken(self, cut: Cut) -> tuple[dict[str, list[Box]], Counter[str]]:
        """The boxes that are taken of every picture that the file names, and why others are not -> how many.

        Raises:
          UserError: categories that the file does not name.
        """
        names = set(self.categories.values())
        if unknown := [name for name in cut.categories if name not in names]:
            known = f"it has {printable(', '.join(sorted(names)))}" if names else "it names none"
            raise UserError(f"--box-categories {unknown[0]}: {self.path} names no such category; {known}")
        left = Counter(why for boxes in self.boxes.values() for box in boxes if (why := cut.leaves_out(box)))
        return {name: [box for box in boxes if not cut.leaves_out(box)] for name, boxes in self.boxes.items()}, left

    def said(self, left: Mapping[str, int] | None = None, absent: Sequence[str] = ()) -> list[str]:
        """The warnings, and what the file holds that is not used, one line each.

        Args:
          left: of `taken`.
          absent: names of pictures that are not there.
        """
        lines = [*self.warnings]
        for what, why in (("left out", dict(self.faults.most_common())), ("not taken", left or {})):
            if why:
                reasons = "; ".join(f"{count:,}, since {reason}" for reason, count in why.items())
                lines.append(f"{self.path.name}: {sum(why.values()):,} boxes are {what}: {reasons}")
        if absent:
            lines.append(f"{self.path} names {len(absent):,} pictures that are not given: {some_names(absent)}")
        return lines

    def match(self, pictures: Sequence[tuple[str, str]]) -> list[str | None]:
        """The key in `boxes` of each picture; None where the file does not name it.

        A name fits the picture whose path ends in it, or that lies there from the file's own folder on. One that fits
        none so, such as a path of another machine, fits the picture whose path below the given folder it ends in.

        Args:
          pictures: absolute path, and path below the folder that was given, with "/".

        Raises:
          UserError: two names for one picture, or two pictures for one name.
        """
        by_name: dict[str, list[str]] = {}
        for key in self.boxes:
            by_name.setdefault(key.rpartition("/")[2], []).append(key)
        folder = os.path.dirname(os.path.abspath(self.path)).replace(os.sep, "/")
        found: list[str | None] = []
        first: dict[str, str] = {}
        for place, below in pictures:
            near = by_name.get(place.rpartition("/")[2], [])
            fitting = [key for key in near if f"/{place}".endswith(f"/{key}")]
            fitting = fitting or [key for key in near if os.path.normpath(f"{folder}/{key}") == os.path.normpath(place)]
            fitting = [max(fitting, key=len)] if fitting else [key for key in near if key.endswith(f"/{below}")]
            if len(fitting) > 1:
                names = " and ".join(printable(key) for key in fitting[:2])
                raise UserError(f"{self.path}: {names} may both be {printable(below)}; give the folder above it")
            found.append(fitting[0] if fitting else None)
            if fitting and first.setdefault(fitting[0], place) != place:
                both = f"{printable(first[fitting[0]])} or {printable(place)}"
                raise UserError(f"{self.path}: {printable(fitting[0])} may be {both}; write the folder before the name")
        return found


def _box(
    number: int, place: Any, confidence: Any, category: Any, scale: tuple[float, float] | None = RELATIVE
) -> Box | str:
    """A box, or why it cannot be used."""
    numbers = finite(place)
    if numbers is None:
        return NO_PLACE
    left, top, width, height = numbers
    if not (width > 0 and height > 0):
        return NO_AREA
    edges = zip((left, top), (width, height), scale or ())
    if not all(start < most and start + length > 0 for start, length, most in edges):
        return OUTSIDE
    if confidence is not None and not (finite([confidence], 1) and 0 <= confidence <= 1):
        return NO_CONFIDENCE
    if not isinstance(category, str):
        return NO_CATEGORY
    known = None if confidence is None else float(confidence)
    text = category.encode("utf-8", "replace").decode()  # JSON may hold half a character, which no table can
    return Box(number, (left, top, width, height), known, text, scale)


def given_boxes(given: Sequence[Any], cut: Cut) -> list[Box]:
    """The boxes that are given with one picture, numbered from 1.

    Args:
      given: of each its left, top, width and height as shares of the upright picture; a detection of MegaDetector or
        SpeciesNet, which holds them as "bbox", perhaps with "conf" and "category" or "label"; or a `Box`.
      cut: how they will be taken.

    Raises:
      UserError: one that cannot be used, by its number and value.
    """
    found = []
    for number, one in enumerate(given, 1):
        said = one if isinstance(one, Mapping) else {"bbox": one}
        place, name = said.get("bbox"), said.get("label", said.get("category", ""))
        place = place.tolist() if isinstance(place, np.ndarray) else place
        box = one if isinstance(one, Box) else _box(number, place, said.get("conf"), name)
        box = "their category is no text" if box == NO_CATEGORY else box
        if unknown := said.keys() - {"bbox", "conf", "category", "label", "classifications"}:
            box = f"they have other keys than bbox, conf, category and label, such as {min(map(str, unknown))[:100]}"
        if isinstance(box, Box):
            box = replace(box, category=CATEGORIES.get(box.category, box.category))
            if not box.category and cut.categories:
                box = f"they have no category, and only {', '.join(cut.categories)} is taken"
        if not isinstance(box, Box):
            raise UserError(f"box {number} is {printable(repr(one)[:100])}; boxes are refused where {box}")
        found.append(box)
    return found


def path_of(name: str) -> str:
    """A path as the file has it, with "/" between folders."""
    return re.sub(r"^(\./)+", "", name.replace("\\", "/"))


def finite(values: Any, count: int = 4) -> list[float] | None:
    """Four numbers, or as many as are asked for, as floats; None where one is no finite number."""
    if not isinstance(values, (list, tuple)) or len(values) != count:
        return None
    if any(not isinstance(value, Real) or isinstance(value, bool) for value in values):
        return None
    try:
        numbers = [float(value) for value in values]
    except OverflowError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def read_boxes(path: Path, columns: Mapping[str, str] | None = None, units: str | None = None) -> BoxFile:
    """Reads a file of boxes.

    Args:
      path: JSON of MegaDetector or SpeciesNet, or in the form of COCO; else CSV or TSV (either may be gzipped), or
        Parquet.
      columns: of a table, "file", "x", "y", "width", "height", "confidence" or "category" -> its column, for names
        that are not usual.
      units: of a table, "relative" (shares of the picture) or "pixel"; None: seen from the numbers.

    Raises:
      UserError: no such file, empty, cut off, of no known form or version, or names that do not fit.
    """
    if not path.is_file():
        raise UserError(f"--boxes {path} {'is not a file' if path.exists() else 'does not exist'}")
    try:
        with path.open("rb") as file:
            start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise UserError(f"--boxes {path} cannot be read: {error.strerror}") from None
    if not start:
        raise UserError(f"--boxes {path} is empty")
    if start[:1] not in (b"{", b"["):
        if path.suffix.lower() == ".json":
            raise UserError(f"--boxes {path} is no JSON: it begins with {printable(start[:10])}")
        return _of_table(path, columns or {}, units)
    if columns or units:
        raise UserError(f"--box-columns and --box-units are of tables, but {path} is JSON; leave them out")
    content = _read_json(path)
    for sign, read in (("images", _of_megadetector), ("predictions", _of_speciesnet)):
        if isinstance(content, dict) and isinstance(content.get(sign), list):
            return _of_coco(path, content) if "annotations" in content else read(path, content)
    raise UserError(
        f"--boxes {path} is JSON of no known form; give results of MegaDetector (with the list 'images'), predictions "
        "of SpeciesNet ('predictions'), or annotations as COCO has them ('images', 'annotations')"
    )


def _read_json(path: Path) -> Any:
    """The content; numbers that are not finite are None."""

    def number(text: str) -> float | None:
        value = float(text)
        return value if math.isfinite(value) else None

    try:
        return json.loads(path.read_bytes(), parse_float=number, parse_constant=lambda _: None)
    except RecursionError:
        raise UserError(f"--boxes {path} is nested too deeply") from None
    except ValueError as error:
        where = getattr(error, "pos", None)
        ends = where is not None and where >= len(error.doc.rstrip())  # type: ignore[attr-defined]
        cut = "cut off: " if ends or "Unterminated" in str(error) else ""
        raise UserError(f"--boxes {path} is no JSON, {cut}{error}; write it again") from None


# ---- each form


def _entries(found: BoxFile, values: Iterable[Any], key: str) -> Iterable[dict[str, Any]]:
    """Those that name a picture; the others are counted in a warning."""
    bad = 0
    for entry in values:
        if isinstance(entry, dict) and isinstance(entry.get(key), str) and entry[key]:
            yield entry
        else:
            bad += 1
    if bad:
        found.warnings.append(f"{found.path.name}: {bad:,} entries name no picture ({key!r}) and are left out")


def _of_megadetector(path: Path, content: dict[str, Any]) -> BoxFile:
    info = content.get("info")
    version = info.get("format_version") if isinstance(info, dict) else None
    found = BoxFile(path, f"MegaDetector {version or 'of no version'}", document=content)
    if version is None:
        found.warnings.append(f"{path.name} says no format_version; it is read as MegaDetector's 1.0")
    elif not (numbers := re.fullmatch(r"1\.(\d{1,3})", str(version))):
        raise UserError(
            f"--boxes {path}: format_version is {printable(str(version))}; versions 1.0 to 1.4 of MegaDetector are read"
        )
    elif (1, int(numbers[1])) > VERSION:
        found.warnings.append(f"{path.name}: format_version {version} is newer than 1.4, as which it is read")
    categories = content.get("detection_categories")
    if not isinstance(categories, dict):
        categories = content["detection_categories"] = dict(CATEGORIES)
        found.warnings.append(f"{path.name} names no detection_categories; 1 is read as animal, 2 person, 3 vehicle")
    found.categories = {key: name for key, name in categories.items() if isinstance(name, str)}
    failed = videos = 0
    for entry in _entries(found, content["images"], "file"):
        boxes = found.picture(entry["file"])
        failed += entry.get("failure") is not None
        if "frame_rate" in entry or "frames_processed" in entry:
            videos += 1
            continue
        _add_detections(found, boxes, entry.get("detections"), "category")
    if failed:
        found.warnings.append(f"{path.name}: the detector failed on {failed:,} pictures, which have no boxes")
    if videos:
        found.warnings.append(f"{path.name}: {videos:,} videos are left aside")
    return found


def _add_detections(found: BoxFile, boxes: list[Box], detections: Any, key: str) -> None:
    """Adds what MegaDetector and SpeciesNet call detections; `key` says what is in the box, by id or by name."""
    for number, detection in enumerate(detections if isinstance(detections, list) else [], 1):
        said = detection if isinstance(detection, dict) else {}
        category = said.get(key)
        name = found.categories.get(category) if isinstance(category, str) else None
        confidence = said.get("conf")
        found.add(boxes, number, said.get("bbox"), math.nan if confidence is None else confidence, name)


def _of_speciesnet(path: Path, content: dict[str, Any]) -> BoxFile:
    found = BoxFile(path, "SpeciesNet")
    for entry in _entries(found, content["predictions"], "filepath"):
        detections = entry.get("detections")
        for detection in detections if isinstance(detections, list) else []:
            if isinstance(detection, dict) and isinstance(detection.get("label"), str):
                found.categories[detection["label"]] = detection["label"]
        _add_detections(found, found.picture(entry["filepath"]), detections, "label")
    return found


def _of_coco(path: Path, content: dict[str, Any]) -> BoxFile:
    found = BoxFile(path, "COCO")
    listed = content.get("categories")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            found.categories[str(entry.get("id"))] = entry["name"]
    images: dict[str, tuple[list[Box], tuple[float, float] | None]] = {}
    for entry in _entries(found, content["images"], "file_name"):
        size = finite([entry.get("width"), entry.get("height"), 1, 1])
        scale = (size[0], size[1]) if size and size[0] > 0 and size[1] > 0 else None
        images[str(entry.get("id"))] = (found.picture(entry["file_name"]), scale)
    counts: Counter[str] = Counter()
    lost = 0
    annotations = content["annotations"]
    for entry in annotations if isinstance(annotations, list) else []:
        said = entry if isinstance(entry, dict) else {}
        image = str(said.get("image_id"))
        if image not in images:
            lost += 1
            continue
        counts[image] += 1
        category = "" if "category_id" not in said else found.categories.get(str(said["category_id"]))
        boxes, scale = images[image]
        score = math.nan if "score" in said and said["score"] is None else said.get("score")
        found.add(boxes, counts[image], said.get("bbox"), score, category, scale)
    if lost:
        found.warnings.append(f"{path.name}: {lost:,} annotations are of no image that it has, and are left out")
    return found


def _of_table(path: Path, columns: Mapping[str, str], units: str | None) -> BoxFile:
    if unknown := sorted(columns.keys() - _COLUMNS.keys()):
        raise UserError(f"--box-columns {unknown[0]}: choose one of {', '.join(_COLUMNS)}")

    def link(header: Sequence[str]) -> Links:
        names: dict[str, str] = {}
        for what, usual in _COLUMNS.items():
            known = [*map(plain, usual.split())]
            fitting = sorted((known.index(plain(name)), name) for name in header if plain(name) in known)
            if what in columns and columns[what] not in header:
                raise UserError(f"--box-columns {what}={columns[what]}: {path.name} has {printable(', '.join(header))}")
            if what in columns or fitting:
                names[what] = columns.get(what) or fitting[0][1]
        if missing := [what for what in ("file", *_PLACE) if what not in names]:
            raise UserError(
                f"--boxes {path} has no column for {', '.join(missing)}; say which it is with --box-columns "
                f"{missing[0]}=COLUMN. Its columns are {printable(', '.join(header))}"
            )
        return Links(names, {what: list(header).index(name) for what, name in names.items()})

    frame, links, warnings = read_linked(path, TextOptions(), link)
    found = BoxFile(path, "a table", warnings=warnings)
    whole = frame.filter(pl.col(schema.REASON).is_null() & pl.col("file").is_not_null())
    if whole.height < frame.height:
        found.warnings.append(f"{path.name}: {frame.height - whole.height:,} records are malformed or name no picture")
    numbers = [name for name in (*_PLACE, "confidence") if name in links.names]
    texts = [name for name in ("file", "category") if name in links.names]
    number = [with_decimal_point(pl.col(name).cast(pl.String)).cast(pl.Float64, strict=False) for name in numbers]
    whole = whole.select(*(pl.col(name).cast(pl.String) for name in texts), *number)
    if units is None:
        ends = whole.select(pl.max_horizontal(pl.col("x") + pl.col("width"), pl.col("y") + pl.col("height")))
        units = UNITS[float(ends.to_series().median() or 0) > 1.5]  # type: ignore[arg-type]  # of floats
        found.warnings.append(f"{path.name}: by its numbers the unit of its boxes is {units}; --box-units says another")
    elif units not in UNITS:
        raise UserError(f"--box-units is {units!r}; choose one of {', '.join(UNITS)}")
    scale = RELATIVE if units == UNITS[0] else None
    counts: Counter[str] = Counter()
    for row in whole.iter_rows(named=True):
        key = path_of(row["file"])
        boxes = found.boxes.setdefault(key, [])
        if all(row[name] is None for name in _PLACE):  # a picture without a box
            continue
        counts[key] += 1
        category = row.get("category") or ""
        confidence = math.nan if "confidence" in numbers and row["confidence"] is None else row.get("confidence")
        found.add(boxes, counts[key], [row[name] for name in _PLACE], confidence, category, scale)
        found.categories[category] = category
    found.categories.pop("", None)
    return found
