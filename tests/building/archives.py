"""Darwin Core archives as GBIF and iNaturalist export them, made by hand."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DWC, DC, GBIF = "http://rs.tdwg.org/dwc/terms/", "http://purl.org/dc/terms/", "http://rs.gbif.org/terms/1.0/"
#: terms of a part of GBIF's occurrence.txt
OCCURRENCE = [
    GBIF + "gbifID",
    DC + "license",
    DC + "rightsHolder",
    DWC + "occurrenceID",
    DWC + "catalogNumber",
    DWC + "recordedBy",
    DWC + "occurrenceStatus",
    DWC + "eventDate",
    DWC + "decimalLatitude",
    DWC + "decimalLongitude",
    DWC + "scientificName",
    DWC + "taxonRank",
    DWC + "genus",
    GBIF + "species",
    GBIF + "speciesKey",
    DWC + "occurrenceRemarks",
]
MEDIA = [
    GBIF + "gbifID",
    DC + "type",
    DC + "format",
    DC + "identifier",
    DC + "creator",
    DC + "license",
    DC + "rightsHolder",
]
DOI = "10.15468/dl.abc123"


def element(
    tag: str,
    name: str,
    row_type: str,
    terms: Sequence[str],
    *,
    separator: str = "\\t",
    quote: str = "",
    header: int = 1,
    extra: str = "",
    encoding: str = "UTF-8",
) -> str:
    """One file of meta.xml; `extra` are more fields."""
    fields = "".join(f'<field index="{place}" term="{term}"/>' for place, term in enumerate(terms))
    key = "id" if tag == "core" else "coreid"
    return (
        f'<{tag} encoding="{encoding}" fieldsTerminatedBy="{separator}" linesTerminatedBy="\\n" '
        f'fieldsEnclosedBy="{quote}" ignoreHeaderLines="{header}" rowType="{row_type}">'
        f'<files><location>{name}</location></files><{key} index="0"/>{fields}{extra}</{tag}>'
    )


def meta(*elements: str) -> str:
    return f'<archive xmlns="http://rs.tdwg.org/dwc/text/" metadata="metadata.xml">{"".join(elements)}</archive>'


GBIF_META = meta(
    element("core", "occurrence.txt", DWC + "Occurrence", OCCURRENCE),
    element("extension", "multimedia.txt", GBIF + "Multimedia", MEDIA),
    element("extension", "verbatim.txt", DWC + "Occurrence", OCCURRENCE),
)


def table(terms: Sequence[str], records: Sequence[Sequence[str]], separator: str = "\t", end: str = "\n") -> str:
    header = [term.rpartition("/")[2] for term in terms]
    return "".join(separator.join(record) + end for record in [header, *records])


def occurrence(gbif_id: str, **values: str) -> list[str]:
    """A line of occurrence.txt, great tit where nothing is given."""
    given = dict(
        gbifID=gbif_id,
        license="CC_BY_4_0",
        rightsHolder="anna",
        recordedBy="anna",
        occurrenceStatus="PRESENT",
        scientificName="Parus major Linnaeus, 1758",
        taxonRank="SPECIES",
        genus="Parus",
        species="Parus major",
        speciesKey="9705453",
    )
    return [{**given, **values}.get(term.rpartition("/")[2], "") for term in OCCURRENCE]


def medium(gbif_id: str, identifier: str = "", **values: str) -> list[str]:
    """A line of multimedia.txt."""
    given = dict(gbifID=gbif_id, type="StillImage", format="image/jpeg", identifier=identifier)
    return [{**given, **values}.get(term.rpartition("/")[2], "") for term in MEDIA]


def gbif(occurrences: Sequence[Sequence[str]], media: Sequence[Sequence[str]] = ()) -> dict[str, str]:
    """Members of a full download of GBIF."""
    return {
        "meta.xml": GBIF_META,
        "occurrence.txt": table(OCCURRENCE, occurrences),
        "multimedia.txt": table(MEDIA, media),
        "verbatim.txt": "ignored\n",
        "metadata.xml": f"<eml><dataset><alternateIdentifier>https://doi.org/{DOI}</alternateIdentifier></dataset></eml>",
        "citations.txt": "Some data set https://doi.org/10.9999/other",
        "rights.txt": "",
    }


def write_zip(path: Path, members: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def write_folder(path: Path, members: Mapping[str, str]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in members.items():
        (path / name).write_text(text, newline="")
    return path


def touch(root: Path, *paths: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root
