"""Answers as observations of the Camtrap DP package that the pictures are of (https://camtrap-dp.tdwg.org).

The package is copied as it is, with its tables byte for byte, but for the rows that are added to the observations and
the taxa that they name in its descriptor. Media lie where they lay.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import json_text
from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.observation_table import table_of_package
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.files.prediction_lines import WholeLines
from linnaeus_jax.reading.archive import Archive
from linnaeus_jax.reading.box_cuts import Box
from linnaeus_jax.reading.camtrap_dp import DESCRIPTOR, MACHINE, paths_of, read_package

#: ranks that a described taxon may have
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species", "subspecies")
#: rank of a model that tells blank pictures, people and cars from animals, and what it may say
TYPE, TYPES = "observation_type", ("animal", "human", "vehicle", "blank", "unknown", "unclassified")
#: columns that are written, and must be there
COLUMNS = (
    *("observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd", "observationLevel"),
    *("observationType", "scientificName", "bboxX", "bboxY", "bboxWidth", "bboxHeight", "classificationMethod"),
    *("classifiedBy", "classificationTimestamp", "classificationProbability", "observationTags"),
    "observationComments",
)


class CamtrapLines(WholeLines):
    """What is kept of every row while the work lasts: the observation, and how its taxon is described.

    Args:
      source: the package.
      pictures: all that are predicted; those that are no media of the package get no observation.
      model: its title and its digest.

    Raises:
      UserError: what is no package, cannot be written, or has answers of this model already.
    """

    def __init__(
        self,
        source: Path,
        pictures: Sequence[PictureFile],
        taxonomy: Taxonomy,
        options: AnswerOptions,
        model: tuple[str, str],
    ) -> None:
        super().__init__(taxonomy, options)
        self.package = package = read_package(source)
        table = package.tables.get("observations")
        if table is None:
            raise UserError(f"{source} is Camtrap DP {package.version}, which is read only; convert it to 1.0")
        if table.dialect.encoding is not None:
            raise UserError(f"{source}: its observations are {table.dialect.encoding}; write them as UTF-8")
        if missing := [name for name in COLUMNS if name not in table.header]:
            raise UserError(f"{source}: its observations have no column {missing[0]}; add it, as Camtrap DP 1.0 has it")
        self.table, (title, digest) = table, model
        self.classifier, self._mark = f"{title} ({digest[:12]})", digest[:8]
        known = table_of_package(package)
        events = package.observations.filter(pl.col("mediaID").is_not_null() & pl.col("eventID").is_not_null())
        event = dict(events.select("mediaID", "eventID").iter_rows())
        rows = package.named.filter(pl.col("reason").is_null()).rows(named=True)
        self._media = {
            picture.name: {**rows[row], "eventID": event.get(rows[row]["mediaID"]) or ""}
            for picture, row in zip(pictures, known.match(pictures))
            if row is not None
        }
        ours = (f"{media['mediaID']}_{self._mark}" for media in self._media.values())
        begun = set(
            package.observations.select(pl.col("observationID").str.replace(r"(_[0-9a-f]{8})_\d+$", "$1"))[
                "observationID"
            ]
        )
        if again := next((each for each in ours if each in begun), None):
            raise UserError(
                f"{source} has answers of this model already, such as {again}; give the package without them"
            )
        self.said = (
            f"{source}: {len(self._media):,} of the pictures are its media and get observations; no picture is copied: "
            "unpack the result over the package",
        )

    def lines(self, part: Part[Answered]) -> list[str]:
        """One line for each row of a medium."""
        found = []
        for row, (path, place, tops, _, code, _) in enumerate(part.answered.rows(self.tasks) if part.answered else ()):
            if (media := self._media.get(part.names[row])) is None:
                continue
            names = self.named(path, place)
            kind = names.pop(TYPE, "") or ("animal" if names else "unknown")
            rank, name = list(names.items())[-1] if names else ("", "")
            kind = "human" if name == "Homo sapiens" else kind if kind in TYPES else "unclassified"
            box = part.boxes[row]
            number = "" if box is None else f"_{box.number}"
            values = {
                "observationID": f"{media['mediaID']}_{self._mark}{number}",
                **{key: media[key] or "" for key in ("deploymentID", "mediaID", "eventID")},
                "eventStart": media["timestamp"],
                "eventEnd": media["timestamp"],
                "observationLevel": "media",
                "observationType": kind,
                "scientificName": name,
                **_place(box),
                "classificationMethod": MACHINE,
                "classifiedBy": self.classifier,
                "classificationProbability": f"{path[place][1]:.6g}" if place < len(path) else "",
                "observationTags": f"reason:{code}" if code else "",
                "observationComments": self.remarks(path, place, tops, code),
            }
            line = {"values": values, "taxon": self._described(names, rank, name) if name else None}
            found.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE).decode())
        return found

    def _described(self, names: dict[str, str], rank: str, name: str) -> dict[str, str]:
        """A taxon as `taxonomic` lists it."""
        coarser = {key: names[key] for key in RANKS[:6] if key in names}
        return {"scientificName": name, **({"taxonRank": rank} if rank in RANKS else {}), **coarser}

    def write(self, rows: Path, out: Path) -> None:
        """Writes the package as a zip, with the observations of `rows`."""
        text, taxa = io.StringIO(), dict[str, dict[str, str]]()
        dialect = self.table.dialect
        writer = csv.DictWriter(text, self.table.header, delimiter=dialect.separator, lineterminator="\n")
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        with rows.open("rb") as lines:
            for line in map(orjson.loads, lines):
                writer.writerow({"classificationTimestamp": now, **line["values"]})
                if line["taxon"]:
                    taxa.setdefault(line["taxon"]["scientificName"], line["taxon"])
        path = self.table.paths[-1]
        with (
            Archive(self.package.path, DESCRIPTOR) as opened,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr(DESCRIPTOR, json_text(self._descriptor(taxa), ensure_ascii=False, indent=2) + "\n")
            named = [path for resource in self.package.descriptor["resources"] for path in paths_of(resource)]
            for name in dict.fromkeys(each for each in named if "://" not in each):
                last = b"\n"
                with opened.open(name) as source, archive.open(name, "w") as member:
                    while block := source.stream.read(1 << 20):
                        member.write(block)
                        last = block[-1:]
                    if name == path:
                        member.write(b"" if last == b"\n" else b"\n")
                        member.write(text.getvalue().encode())

    def _descriptor(self, taxa: dict[str, dict[str, str]]) -> dict[str, Any]:
        """The descriptor with the taxa that are new, and without sums of the table that has grown."""
        old = self.package.descriptor
        known = {each["scientificName"] for each in self.package.taxonomic}
        listed = old.get("taxonomic")
        resources = [
            {key: value for key, value in each.items() if key not in ("bytes", "hash")}
            if isinstance(each, dict) and each.get("name") == "observations"
            else each
            for each in old["resources"]
        ]
        new = [taxon for name, taxon in taxa.items() if name not in known]
        return {**old, "resources": resources, "taxonomic": [*(listed if isinstance(listed, list) else []), *new]}


def _place(box: Box | None) -> dict[str, str]:
    """A box as shares of the picture, as far as it lies inside; nothing of one in pixels of unknown pictures."""
    if box is None or box.scale is None:
        return {}
    left, top, width, height = (number / side for number, side in zip(box.place, box.scale * 2))
    x, y = max(left, 0.0), max(top, 0.0)
    place = (x, y, min(left + width, 1.0) - x, min(top + height, 1.0) - y)
    return {key: f"{value:.6g}" for key, value in zip(("bboxX", "bboxY", "bboxWidth", "bboxHeight"), place)}
