"""A small Camtrap DP package, and the rules of its published table schemas (1.0.2) that rows must keep."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

VERSION = "1.0.2"
COLUMNS = {
    "deployments": (
        "deploymentID locationID locationName latitude longitude coordinateUncertainty deploymentStart deploymentEnd "
        "setupBy cameraID cameraModel cameraDelay cameraHeight cameraDepth cameraTilt cameraHeading detectionDistance "
        "timestampIssues baitUse featureType habitat deploymentGroups deploymentTags deploymentComments"
    ).split(),
    "media": (
        "mediaID deploymentID captureMethod timestamp filePath filePublic fileName fileMediatype exifData favorite "
        "mediaComments"
    ).split(),
    "observations": (
        "observationID deploymentID mediaID eventID eventStart eventEnd observationLevel observationType "
        "cameraSetupType scientificName count lifeStage sex behavior individualID individualPositionRadius "
        "individualPositionAngle individualSpeed bboxX bboxY bboxWidth bboxHeight classificationMethod classifiedBy "
        "classificationTimestamp classificationProbability observationTags observationComments"
    ).split(),
}
_REQUIRED = ("observationID", "deploymentID", "eventStart", "eventEnd", "observationLevel", "observationType")
_ONE_OF = {
    "observationLevel": ("media", "event"),
    "observationType": ("animal", "human", "vehicle", "blank", "unknown", "unclassified"),
    "classificationMethod": ("human", "machine"),
}
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)"
DAY = "2024-05-17T"


def medium(number: int, path: str | None = None, camera: str = "d1", **more: str) -> dict[str, str]:
    """One of a series, a second apart."""
    return {
        "mediaID": f"m{number}",
        "deploymentID": camera,
        "timestamp": f"{DAY}10:00:{number:02}+02:00",
        "filePath": path or f"photos/{number}.png",
        "filePublic": "true",
        "fileMediatype": "image/png",
        **more,
    }


def seen(number: int, of: int | None = None, name: str = "", kind: str = "animal", **more: Any) -> dict[str, str]:
    """An observation of a medium, or without one of the event of a camera."""
    level = {"observationLevel": "event"} if of is None else {"observationLevel": "media", "mediaID": f"m{of}"}
    box = dict(zip(("bboxX", "bboxY", "bboxWidth", "bboxHeight"), map(str, more.pop("box", ()))))
    span = {"eventStart": f"{DAY}08:00:00Z", "eventEnd": f"{DAY}08:00:03Z"}
    known = {"observationID": f"o{number}", "deploymentID": "d1", "observationType": kind, "scientificName": name}
    return {**known, **level, **span, "classificationMethod": "human", **box, **more}


TAXA: list[dict[str, Any]] = [
    {
        "scientificName": "Parus major",
        "taxonRank": "species",
        "family": "Paridae",
        "genus": "Parus",
        "vernacularNames": {"nld": "koolmees", "eng": "great tit"},
    },
    {"scientificName": "Aves", "taxonRank": "class"},
]


def write_package(
    root: Path,
    media: Iterable[Mapping[str, str]],
    observations: Iterable[Mapping[str, str]],
    version: str = VERSION,
    **descriptor: Any,
) -> Path:
    """Writes a package with the cameras d1 and d2; `descriptor` are keys of datapackage.json."""
    root.mkdir(parents=True, exist_ok=True)
    cameras = [
        {"deploymentID": f"d{number}", "locationID": f"l{number}", "latitude": f"5{number}.5", "longitude": "13.25"}
        | {"deploymentStart": f"{DAY}00:00:00Z", "deploymentEnd": f"{DAY}23:00:00Z"}
        for number in (1, 2)
    ]
    address = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{version}"
    resources: list[dict[str, Any]] = []
    for name, rows in (("deployments", cameras), ("media", media), ("observations", observations)):
        with (root / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS[name], lineterminator="\r\n")
            writer.writeheader()
            writer.writerows(rows)
        schema = f"{address}/{name}-table-schema.json"
        resources.append({"name": name, "path": f"{name}.csv", "profile": "tabular-data-resource", "schema": schema})
    resources.append({"name": "individuals", "data": [{"id": 1, "individualName": "Ü"}]})
    document = {
        "profile": f"{address}/camtrap-dp-profile.json",
        "created": f"{DAY}12:00:00Z",
        "licenses": [{"name": "CC0-1.0", "scope": "data"}, {"path": "https://example.org/by", "scope": "media"}],
        "taxonomic": TAXA,
        **descriptor,
        "resources": resources,
    }
    (root / "datapackage.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return root


def check_observations(root: Path) -> list[dict[str, str]]:
    """The observations of a package, which keep the rules of its table schema."""
    with (root / "observations.csv").open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS["observations"]
    with (root / "media.csv").open(newline="", encoding="utf-8") as file:
        media = {row["mediaID"] for row in csv.DictReader(file)}
    assert len({row["observationID"] for row in rows}) == len(rows)
    for row in rows:
        assert None not in row.values()
        assert all(row[name] for name in _REQUIRED)
        assert all(row[name] in ("", *known) for name, known in _ONE_OF.items())
        assert row["mediaID"] in ("", *media)
        times = (row["eventStart"], row["eventEnd"], row["classificationTimestamp"])
        assert all(re.fullmatch(_TIME, text) for text in times if text)
        shares = [row[name] for name in ("bboxX", "bboxY", "bboxWidth", "bboxHeight", "classificationProbability")]
        assert all(0 <= float(share) <= 1 for share in shares if share)
    return rows
