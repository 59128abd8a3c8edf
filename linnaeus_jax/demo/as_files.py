"""The demo set in the forms that people have: class folders, a table beside a folder of photos, a download of GBIF.

For trying `linnaeus build` on real files. The archive and the table hold what real ones do: pictures identified
only to a genus, missing metadata, several pictures of one occurrence, and a few records that cannot be used.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from linnaeus_jax.demo.drawing import draw
from linnaeus_jax.demo.generate import Observations, places, simulate
from linnaeus_jax.demo.species import RANKS, SPECIES, taxon_names

FORMS = ("folders", "table", "dwca")
DOI = "10.15468/dl.demo42"
_TERMS = {
    "gbifID": "http://rs.gbif.org/terms/1.0/gbifID",
    "license": "http://purl.org/dc/terms/license",
    "rightsHolder": "http://purl.org/dc/terms/rightsHolder",
    "type": "http://purl.org/dc/terms/type",
    "format": "http://purl.org/dc/terms/format",
    "identifier": "http://purl.org/dc/terms/identifier",
}
_FILE = (
    '<{kind} encoding="UTF-8" fieldsTerminatedBy="\\t" linesTerminatedBy="\\n" fieldsEnclosedBy="" '
    'ignoreHeaderLines="1" rowType="{type}"><files><location>{name}</location></files><{key} index="0"/>{fields}'
    "</{kind}>"
)
Progress = Callable[[int, int], None]


def write_demo_files(
    directory: str | os.PathLike[str],
    form: str,
    *,
    seed: int = 0,
    image_size: int = 96,
    rows: int = 600,
    progress: Progress = lambda *_: None,
) -> Path:
    """Writes pictures and what is known of them.

    Args:
      directory: made if needed; it must be empty.
      form: "folders": Family/Genus/Species/*.jpg; "table": records.csv and photos/; "dwca": gbif.zip and photos/.
      seed, rows: as of `write_demo`.
      image_size: side of the pictures in pixels.
      progress: called with (pictures written, pictures).

    Returns:
      What `linnaeus build` reads: the folder, the table or the archive.

    Raises:
      ValueError: too few rows or an unknown form.
      FileExistsError: the directory holds something.
    """
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown; choose one of {', '.join(FORMS)}")
    directory = Path(directory)
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; give another folder")
    observations = simulate(seed, rows)
    records = list(_records(observations))
    for row, record in enumerate(records):
        path = directory / (_class_folder(record) if form == "folders" else "photos") / f"{record['id']}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = draw(np.random.default_rng([seed, 1, row]), SPECIES[observations.species[row]].look, image_size)
        # imwrite says nothing of a full disk
        path.write_bytes(cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes())
        progress(row + 1, rows)
    if form == "folders":
        return directory
    if form == "table":
        return _write_table(directory / "records.csv", records)
    return _write_archive(directory / "gbif.zip", records)


def _records(observations: Observations) -> Iterator[dict[str, Any]]:
    """What is known of each picture, text as a source has it."""
    names = taxon_names()
    latitude, longitude = places(observations)
    for row, taxa in enumerate(observations.taxa.tolist()):
        when, where, high = observations.valid[row].tolist()
        species, genus, family, order = (names[rank].get(taxon, ("", ""))[0] for rank, taxon in zip(RANKS, taxa))
        yield {
            "id": f"{4_000_000 + row}",
            "species": species,
            "genus": genus,
            "family": family,
            "order": order,
            "latitude": f"{latitude[row]:.4f}" if where else "",
            "longitude": f"{longitude[row]:.4f}" if where else "",
            "date": f"2023-{observations.month[row]:02d}-{observations.day[row]:02d}" if when else "",
            "elevation": f"{observations.elevation[row]:.0f}" if high else "",
            "observer": f"observer {observations.observer[row]}",
            "license": "CC-BY 4.0",
        }


def _class_folder(record: dict[str, Any]) -> Path:
    return Path(*(record[rank] for rank in ("family", "genus", "species") if record[rank]))


def _write_table(path: Path, records: list[dict[str, Any]]) -> Path:
    """With three rows as one finds them: no such file, a latitude that cannot be, no label."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["picture", *list(records[0])[1:]])
        for row, record in enumerate(records):
            values = dict(record)
            if row == 10:
                values |= {"latitude": "91", "longitude": "8.5"}
            elif row == 11:
                values |= dict.fromkeys(("species", "genus", "family", "order"), "")
            table.writerow([f"{record['id']}.jpg", *list(values.values())[1:]])
        table.writerow(["no_such_picture.jpg", *list(records[0].values())[1:]])
    return path


def _write_archive(path: Path, records: list[dict[str, Any]]) -> Path:
    """Of occurrences with one or two pictures each; one occurrence has none, one date is a range of a year."""
    core = ["gbifID", "scientificName", "taxonRank", "order", "family", "genus", "decimalLatitude", "decimalLongitude"]
    core += ["eventDate", "minimumElevationInMeters", "recordedBy", "license", "locality"]
    media = ["gbifID", "type", "format", "identifier", "rightsHolder", "license"]
    rows, pictures = [core], [media]
    latest: dict[str, str] = {}  # species -> its latest occurrence
    for number, record in enumerate(records):
        name = record["species"] or record["genus"] or record["family"]
        rank = "SPECIES" if record["species"] else "GENUS" if record["genus"] else "FAMILY"
        date = "2021-01-01/2021-12-31" if number == 10 else record["date"]
        occurrence = latest.get(record["species"], "") if number % 10 == 1 else ""  # a second picture of an earlier one
        if not occurrence:
            occurrence = record["id"]
            latest |= {record["species"]: occurrence} if record["species"] else {}
            known = [record[key] for key in ("order", "family", "genus", "latitude", "longitude")]
            rest = [record["elevation"], record["observer"], record["license"], "the \"old mill, 3' N"]
            rows.append([record["id"], name, rank, *known, date, *rest])
        address = f"https://example.org/photos/{record['id']}.jpg"
        pictures.append([occurrence, "StillImage", "image/jpeg", address, record["observer"], record["license"]])
    rows.append(["5000000", "Rutilala orientalis", "SPECIES", *[""] * (len(core) - 3)])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        parts = [_described("core", "occurrence.txt", core), _described("extension", "multimedia.txt", media)]
        joined = "".join(parts)
        _add(
            archive,
            "meta.xml",
            f'<archive xmlns="http://rs.tdwg.org/dwc/text/" metadata="metadata.xml">{joined}</archive>',
        )
        _add(archive, "metadata.xml", f"<eml><dataset><alternateIdentifier>{DOI}</alternateIdentifier></dataset></eml>")
        for name, lines in (("occurrence.txt", rows), ("multimedia.txt", pictures)):
            text = io.StringIO()
            text.writelines("\t".join(line) + "\n" for line in lines)
            _add(archive, name, text.getvalue())
    return path


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    """The same bytes every time: no date of today."""
    archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)


def _described(kind: str, name: str, columns: list[str]) -> str:
    """The element of meta.xml that describes one file."""
    terms = [_TERMS.get(column, f"http://rs.tdwg.org/dwc/terms/{column}") for column in columns]
    fields = "".join(f'<field index="{i}" term="{term}"/>' for i, term in enumerate(terms))
    types = {"core": "http://rs.tdwg.org/dwc/terms/Occurrence", "extension": "http://rs.gbif.org/terms/1.0/Multimedia"}
    key = {"core": "id", "extension": "coreid"}[kind]
    return _FILE.format(kind=kind, type=types[kind], name=name, key=key, fields=fields)
