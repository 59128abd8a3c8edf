"""Answers for boxes in the JSON of MegaDetector (https://lila.science/megadetector-output-format), for Timelapse,
AddaxAI and the other programs that read it. What the file of boxes says besides is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.files.prediction_lines import WholeLines
from linnaeus_jax.reading.boxes import VERSION, BoxFile, finite, path_of

#: ranks of the taxonomy string of SpeciesNet, between an identifier and the common name
RANKS = ("class", "order", "family", "genus", "species")
#: of a box without a category, which the form does not know
OBJECT = "object"
#: decimals of confidences; what is 0 then is left out
DECIMALS = 4


@dataclass(frozen=True)
class BoxSource:
    """Where answers for boxes belong.

    Attributes:
      found: the file of boxes.
      names: what a picture is called in results -> what the file calls it.
      title: of the model.
    """

    found: BoxFile
    names: Mapping[str, str] = field(default_factory=dict)
    title: str = ""


def check_relative(found: BoxFile, out: Path) -> None:
    """Raises UserError for boxes in pixels of pictures whose size the file does not say."""
    if any(box.scale is None for boxes in found.boxes.values() for box in boxes):
        raise UserError(f"{out} needs boxes that are shares of the picture, and {found.path} gives pixels; write .csv")


class MegaDetectorLines(WholeLines):
    """What is kept of every row while the work lasts: picture, box, and (task, class, probability), the best first.

    Args:
      source: see `BoxSource`.
    """

    def __init__(self, source: BoxSource, taxonomy: Taxonomy, options: AnswerOptions) -> None:
        super().__init__(taxonomy, options)
        self.source = source

    def lines(self, part: Part[Answered]) -> list[str]:
        """One line for each box that has an answer."""
        found = []
        last = len(self.tasks) - 1
        for row, (path, place, tops, *_) in enumerate(part.answered.rows(self.tasks) if part.answered else ()):
            box = part.boxes[row]
            if box is None:
                continue
            taxa = {(place, path[place][0]): path[place][1]} if place < len(path) else {}
            taxa |= {(last, index): p for index, p in zip(*tops[-1]) if index >= self.taxonomy.first}
            listed = sorted(((*taxon, round(p, DECIMALS)) for taxon, p in taxa.items()), key=lambda each: -each[2])
            kept = [each for each in listed if each[2] > 0]
            line = {"file": part.names[row], "box": box.number, "taxa": kept}
            found.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE).decode())
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        """Rank -> its place among the tasks of the taxonomy, the finest first."""
        return {self.taxonomy.ranks[task]: place for place, task in enumerate(self.taxonomy.tasks)}

    def described(self, place: int, index: int) -> tuple[str, str]:
        """Name of a class, and its taxonomy in the words of SpeciesNet: identifier, class, order, family, genus,
        epithet and common name with ";" between them. Of a model that has none of these ranks: its own, coarsest first.

        Args:
          place: of its rank among `tasks`.
        """
        tasks = self.taxonomy.tasks
        finest = len(tasks) - 1 - place
        ancestors = self.taxonomy.tree.anc[tasks[finest]][index].tolist()
        names = {
            rank: self.taxonomy.described[tasks[at]][above][2]
            for rank, at in self._places.items()
            if at >= finest and (above := ancestors[at - finest]) >= self.taxonomy.first
        }
        _, number, name, common = self.taxonomy.described[tasks[finest]][index]
        if not any(rank in self._places for rank in RANKS):
            return name or str(number), ";".join(filter(None, reversed(names.values()))).lower()
        if " " in names.get("species", ""):
            genus, _, names["species"] = names["species"].partition(" ")
            names.setdefault("genus", genus)
        fields = [str(number), *(names.get(rank, "") for rank in RANKS), common]
        return name or str(number), ";".join(text.replace(";", ",") for text in fields).lower()

    def write(self, rows: Path, out: Path) -> None:
        """Writes what the file of boxes holds, with the answers of `rows`."""
        document, detections = _document(self.source.found)
        kinds: dict[tuple[int, int], str] = {}
        names = _texts(document.get("classification_categories"))
        texts = names | _texts(document.get("classification_category_descriptions"))
        first = 1 + max((int(key) for key in names if re.fullmatch(r"\d{1,9}", key)), default=-1)
        with rows.open("rb") as lines:
            for line in map(orjson.loads, lines):
                found = []
                for place, index, probability in line["taxa"]:
                    kind = kinds.setdefault((place, index), str(first + len(kinds)))
                    found.append([kind, probability])
                detections[self.source.names[line["file"]], line["box"]]["classifications"] = found
        for (place, index), kind in kinds.items():
            names[kind], texts[kind] = self.described(place, index)
        info = document["info"]
        version = str(info.get("format_version", "1.0")).partition(".")[2]
        if int(version) <= VERSION[1]:
            info["format_version"] = "1.4"
        info["classifier"] = self.source.title
        info["classification_completion_time"] = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        info["classifier_metadata"] = {"typical_classification_threshold": self.options.min_confidence}
        document["classification_categories"] = names
        document["classification_category_descriptions"] = {key: texts[key] for key in names}
        with out.open("w", encoding="ascii", newline="\n") as file:
            file.writelines(_text(document))


def _text(document: Mapping[str, Any]) -> Iterator[str]:
    """JSON, a line for each picture."""
    images = document["images"]
    for key, value in document.items():
        yield f"{',' if key != next(iter(document)) else '{'}\n{json.dumps(key)}: "
        if value is images:
            yield "[\n" + ",\n".join(json.dumps(image, allow_nan=False) for image in images) + "\n]"
        else:
            yield json.dumps(value, allow_nan=False)
    yield "\n}\n"


def _texts(value: Any) -> dict[str, str]:
    """An object whose values are text; others are left out."""
    return {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}


def _document(found: BoxFile) -> tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]:
    """The JSON to be written, by the rules of its form, and the detection of each (picture, number of its box)."""
    if found.document is None:
        return _made(found)
    document = {**found.document}
    document["info"] = dict(document["info"]) if isinstance(document.get("info"), dict) else {}
    document["images"] = []
    detections: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in found.document["images"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("file"), str) or not entry["file"]:
            continue
        image = {**entry}
        document["images"].append(image)
        if entry.get("failure") is not None:
            image["detections"] = None
            continue
        image["detections"] = []
        listed = entry.get("detections")
        for number, each in enumerate(listed if isinstance(listed, list) else [], 1):
            if isinstance(each, dict) and finite(each.get("bbox")) and (conf := finite([each.get("conf")], 1)):
                detection = {**each, "conf": conf[0]}
                image["detections"].append(detection)
                detections[path_of(entry["file"]), number] = detection
    return document, detections


def _made(found: BoxFile) -> tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]:
    """The same of a file of another form."""
    kinds: dict[str, str] = {}
    images = []
    detections: dict[tuple[str, int], dict[str, Any]] = {}
    for name, boxes in found.boxes.items():
        image: dict[str, Any] = {"file": name, "detections": []}
        for box in boxes:
            assert box.scale is not None  # see check_relative
            place = [number / side for number, side in zip(box.place, box.scale * 2)]
            kind = kinds.setdefault(box.category or OBJECT, str(len(kinds) + 1))
            conf = 1.0 if box.confidence is None else box.confidence
            detections[name, box.number] = detection = {"category": kind, "conf": conf, "bbox": place}
            image["detections"].append(detection)
        images.append(image)
    categories = {kind: name for name, kind in kinds.items()}
    info: dict[str, Any] = {"detector": f"boxes of {found.path.name}"}
    return {"info": info, "detection_categories": categories, "images": images}, detections
