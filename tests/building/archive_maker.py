"""A Darwin Core archive as people download it, with faults whose outcome is known."""

from __future__ import annotations

import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

META = """<archive xmlns="http://rs.tdwg.org/dwc/text/" metadata="metadata.xml">
  <core encoding="UTF-8" fieldsTerminatedBy="\\t" linesTerminatedBy="\\n" fieldsEnclosedBy="" ignoreHeaderLines="1"
        rowType="http://rs.tdwg.org/dwc/terms/Occurrence">
    <files><location>occurrence.txt</location></files>
    <id index="0" />
{core}
  </core>
  <extension encoding="UTF-8" fieldsTerminatedBy="\\t" linesTerminatedBy="\\n" fieldsEnclosedBy="" ignoreHeaderLines="1"
        rowType="http://rs.gbif.org/terms/1.0/Multimedia">
    <files><location>multimedia.txt</location></files>
    <coreid index="0" />
{media}
  </extension>
</archive>
"""
DWC, DC = "http://rs.tdwg.org/dwc/terms/", "http://purl.org/dc/terms/"
CORE = {
    "gbifID": "http://rs.gbif.org/terms/1.0/",
    **dict.fromkeys(
        "occurrenceID scientificName taxonRank taxonomicStatus acceptedNameUsage kingdom order family genus "
        "decimalLatitude decimalLongitude coordinateUncertaintyInMeters eventDate minimumElevationInMeters recordedBy "
        "locality".split(),
        DWC,
    ),
    "license": DC,
    "rightsHolder": DC,
}
MEDIA = {"gbifID": "http://rs.gbif.org/terms/1.0/", "type": DC, "format": DC, "identifier": DC, "rightsHolder": DC}
#: fault -> reason in rejected.csv
REASONS = {
    "no media": "no picture named",
    "no file": "no such picture",
    "cut file": "unreadable picture",
    "second copy": "duplicate picture",
    "kingdom only": "no usable label",
    "other family": "taxon with two parents",
    "lost synonym": "unresolvable synonym",
    "extra field": "malformed record",
}
#: fault -> (component, values of the fields)
BLANKS = {
    "latitude 91": ("SPATIAL", {"decimalLatitude": "91"}),
    "null island": ("SPATIAL", {"decimalLatitude": "0", "decimalLongitude": "0.0"}),
    "uncertain": ("SPATIAL", {"coordinateUncertaintyInMeters": "120000"}),
    "bad day": ("TEMPORAL", {"eventDate": "2021-02-30"}),
    "long range": ("TEMPORAL", {"eventDate": "2021-01-01/2021-12-31"}),
    "too high": ("ELEVATION", {"minimumElevationInMeters": "88480"}),
}
#: not faults: what real archives hold
VARIANTS = {
    "day range": {"eventDate": "2021-05-01/2021-05-09"},
    "time": {"eventDate": "2021-05-01T23:30:00-02:00"},
    "no place": {"decimalLatitude": "", "decimalLongitude": ""},
    "no date": {"eventDate": ""},
    "quotes": {"locality": "the \"old mill, 3' N of'\"", "recordedBy": '"Ann" O\'Neill'},
    "unicode": {"locality": "Übersee, 長野県, \u202eabc", "recordedBy": "Zoë Ñandú"},
}


@dataclass
class Archive:
    """What was planted: outcome of every picture (its file, or the id of a record without one), and blanked parts."""

    path: Path
    pictures: Path
    rejected: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    blanked: Counter[tuple[str, str]] = field(default_factory=Counter)  # (file, component)
    genus_only: set[str] = field(default_factory=set)
    synonyms: int = 0
    malformed: int = 0  # records of the core that are no line of a picture


def make_archive(directory: Path, occurrences: int, seed: int = 0) -> Archive:
    """Writes archive.zip and the folder photos; 60 species in 20 genera, 5 families and 2 orders."""
    rng = np.random.default_rng(seed)
    archive = Archive(directory / "archive.zip", directory / "photos")
    archive.pictures.mkdir(parents=True)
    jpeg = cv2.imencode(".jpg", rng.integers(0, 255, (16, 20, 3), np.uint8))[1].tobytes()
    core, media, copies = ["\t".join(CORE)], ["\t".join(MEDIA)], []
    kinds = [*["plain"] * 30, *REASONS, *BLANKS, *VARIANTS, "genus only", "synonym", "synonym"]
    for number in range(occurrences):
        gbif_id = str(1_000_000 + number)
        kind = kinds[number % len(kinds)]
        species = int(rng.integers(60)) if kind != "other family" else 7
        genus = species // 3
        row = dict.fromkeys(CORE, "") | {
            "gbifID": gbif_id,
            "occurrenceID": f"https://example.org/{gbif_id}",
            "scientificName": f"Génus{genus} species{species} (L., 1758)",
            "taxonRank": "SPECIES",
            "taxonomicStatus": "ACCEPTED",
            "kingdom": "Animalia",
            "order": f"Order{genus // 12}",
            "family": f"Family{genus // 4}",
            "genus": f"Génus{genus}",
            "decimalLatitude": f"{rng.uniform(-80, 80):.4f}",
            "decimalLongitude": f"{rng.uniform(-180, 180):.4f}",
            "coordinateUncertaintyInMeters": "30",
            "eventDate": f"20{number % 20:02d}-{number % 12 + 1:02d}-{number % 28 + 1:02d}",
            "minimumElevationInMeters": str(number % 3000),
            "recordedBy": f"observer {number % 97}",
            "license": "CC-BY-NC 4.0",
            "rightsHolder": f"holder {number % 97}",
        }
        row |= VARIANTS.get(kind, {}) | (BLANKS[kind][1] if kind in BLANKS else {})
        if kind == "genus only":
            row |= {"scientificName": f"Génus{genus} Smith, 1900", "taxonRank": "GENUS"}
        elif kind == "kingdom only":
            row |= {"scientificName": "Animalia", "taxonRank": "KINGDOM", "order": "", "family": "", "genus": ""}
        elif kind == "other family":
            row["family"] = "Family4"  # most rows of the genus are in Family0
        elif kind == "synonym":
            row |= {"scientificName": f"Oldus name{species}", "genus": "Oldus", "taxonomicStatus": "SYNONYM"}
            row["acceptedNameUsage"] = f"Génus{genus} species{species} (L., 1758)"
        elif kind == "lost synonym":
            row |= {"scientificName": "Lostus lostus", "genus": "Lostus", "taxonomicStatus": "HETEROTYPIC_SYNONYM"}
        if kind != "extra field":
            core.append("\t".join(row.values()))
        else:
            core.append("\t".join(row.values()) + "\tone more")
            archive.malformed += 1
        count = 0 if kind == "no media" else int(rng.integers(1, 4))
        if kind == "no media":
            archive.rejected[gbif_id] = REASONS[kind]
        for k in range(count):
            name = f"{gbif_id}_{k + 1}.jpg"
            media.append(f"{gbif_id}\tStillImage\timage/jpeg\thttps://example.org/{gbif_id}/{k + 1}\tphotographer {k}")
            data = jpeg + f"{gbif_id}/{k}".encode()  # other bytes, the same picture
            if kind == "cut file":
                data = jpeg[: len(jpeg) // 2] + gbif_id.encode()
            if kind == "second copy":
                copies.append(name)
            elif kind != "no file":
                (archive.pictures / name).write_bytes(data)
            if kind in REASONS:
                archive.rejected[name] = REASONS[kind]
            else:
                archive.used.add(name)
                archive.synonyms += kind == "synonym"
                if kind in BLANKS:
                    archive.blanked[name, BLANKS[kind][0]] += 1
                if kind == "genus only":
                    archive.genus_only.add(name)
    first = min(archive.used)
    for name in copies:  # written last, so that the first one is the one that is used
        (archive.pictures / name).write_bytes((archive.pictures / first).read_bytes())
    (archive.pictures / "stray.jpg").write_bytes(jpeg)
    archive.rejected["stray.jpg"] = "no record names it"
    fields = [
        "\n".join(f'    <field index="{i}" term="{prefix}{name}"/>' for i, (name, prefix) in enumerate(terms.items()))
        for terms in (CORE, MEDIA)
    ]
    with zipfile.ZipFile(archive.path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("meta.xml", META.format(core=fields[0], media=fields[1]))
        file.writestr("occurrence.txt", "\n".join(core) + "\n")
        file.writestr("multimedia.txt", "\n".join(media) + "\n")
        file.writestr(
            "metadata.xml",
            "<eml><dataset><alternateIdentifier>10.15468/dl.abcdef</alternateIdentifier></dataset></eml>",
        )
    return archive
