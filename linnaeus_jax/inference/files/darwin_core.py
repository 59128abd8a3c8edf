"""Answers as occurrences of a Darwin Core archive (https://dwc.tdwg.org/text/), as GBIF reads it."""

from __future__ import annotations

import mimetypes
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import quoteattr

import orjson

from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.files.prediction_lines import WholeLines, csv_line
from linnaeus_jax.reading.metadata import Observation, known_of

_DWC, _DC = "http://rs.tdwg.org/dwc/terms/", "http://purl.org/dc/terms/"
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
OCCURRENCE = (
    *("occurrenceID", "basisOfRecord", "eventDate", "decimalLatitude", "decimalLongitude", "scientificName"),
    *("taxonRank", *RANKS, "vernacularName", "identifiedBy", "dateIdentified", "identificationReferences"),
    *("identificationRemarks", "identificationVerificationStatus", "associatedMedia"),
)
_MEDIA = ("type", "format", "identifier")


class DarwinCoreLines(WholeLines):
    """What is kept of every row while the work lasts: cells of the occurrence, and of its picture.

    Args:
      model: its title and its digest.
    """

    def __init__(self, taxonomy: Taxonomy, options: AnswerOptions, model: tuple[str, str]) -> None:
        super().__init__(taxonomy, options)
        self.title, self.digest = model

    def lines(self, part: Part[Answered]) -> list[str]:
        """One line for each row that has an answer."""
        found = []
        for row, (path, place, tops, _, code, _) in enumerate(part.answered.rows(self.tasks) if part.answered else ()):
            file, box = part.names[row], part.boxes[row]
            names = self.named(path, place)
            rank, name = list(names.items())[-1] if names else ("", "")
            common = self.taxonomy.described[self.tasks[place]][path[place][0]][3] if names else ""
            number = "" if box is None else str(box.number)
            probability = f"probability {path[place][1]:.6g}" if names else "unknown"
            seen = "" if box is None else f"of box {number} ({', '.join(f'{side:g}' for side in box.place)})"
            remarks = "; ".join(filter(None, (probability, seen, self.remarks(path, place, tops, code))))
            latitude, longitude, date = known_of(part.observations[row] if part.observations else Observation())
            cells = {
                "occurrenceID": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{self.digest} {file} {number}')}",
                "basisOfRecord": "MachineObservation",
                "eventDate": date,
                "decimalLatitude": latitude,
                "decimalLongitude": longitude,
                "scientificName": name,
                "taxonRank": rank,
                **{key: names.get(key, "") for key in RANKS},
                "vernacularName": common,
                "identifiedBy": self.title,
                "identificationReferences": f"sha256:{self.digest}",
                "identificationRemarks": remarks,
                "identificationVerificationStatus": "unverified",
                "associatedMedia": file,
            }
            found.append(orjson.dumps(cells, option=orjson.OPT_APPEND_NEWLINE).decode())
        return found

    def write(self, rows: Path, out: Path) -> None:
        """Writes the archive: occurrences, their pictures, and what describes both."""
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        tables = {
            "occurrence.csv": (f"{_DWC}Occurrence", _DWC, OCCURRENCE),
            "multimedia.csv": ("http://rs.gbif.org/terms/1.0/Multimedia", _DC, _MEDIA),
        }
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("meta.xml", _meta(tables))
            for name, (_, _, columns) in tables.items():
                header = columns if name == "occurrence.csv" else ("coreid", *columns)
                with archive.open(name, "w") as member, rows.open("rb") as lines:
                    member.write(csv_line(header).encode())
                    for cells in map(orjson.loads, lines):
                        file = cells["associatedMedia"]
                        cells |= {"dateIdentified": now, "coreid": cells["occurrenceID"], "identifier": file}
                        cells |= {"type": "StillImage", "format": mimetypes.guess_type(file)[0] or "image"}
                        member.write(csv_line(cells[key] for key in header).encode())


def _meta(tables: dict[str, tuple[str, str, tuple[str, ...]]]) -> str:
    """The description of the tables, the core first."""
    parts: list[str] = []
    for name, (kind, terms, columns) in tables.items():
        core = not parts
        first = 0 if core else 1
        fields = "".join(
            f'<field index="{place}" term={quoteattr(terms + column)}/>' for place, column in enumerate(columns, first)
        )
        tag, key = ("core", "id") if core else ("extension", "coreid")
        parts.append(
            f'<{tag} rowType={quoteattr(kind)} encoding="UTF-8" fieldsTerminatedBy="," fieldsEnclosedBy="&quot;" '
            f'linesTerminatedBy="\\n" ignoreHeaderLines="1"><files><location>{name}</location></files>'
            f'<{key} index="0"/>{fields}</{tag}>\n'
        )
    return f'<archive xmlns="http://rs.tdwg.org/dwc/text/">\n{"".join(parts)}</archive>\n'
