"""A Camtrap DP package in, with answers out, read again; and occurrences of Darwin Core."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import polars as pl
import pytest

from linnaeus_jax.building.sources import camtrap_dp, darwin_core
from linnaeus_jax.inference.files import predicting
from linnaeus_jax.reading.camtrap_dp import read_package
from tests.building.packages import TAXA, check_observations, medium, seen, write_package
from tests.inference.test_predict_tool import run

KEPT = ("deployments.csv", "media.csv")


def survey(root: Path) -> Path:
    """A package of five of the photos, one of them with two boxes."""
    boxes = {"classificationMethod": "machine", "classificationProbability": "0.9"}
    said = [
        seen(0, 0, "Parus major", eventID="e1"),
        seen(1, 1, box=(0.2, 0.1, 0.4, 0.5), **boxes),
        seen(2, 1, box=(0.5, 0.5, 0.5, 0.5), **boxes),
    ]
    return write_package(root / "survey", map(medium, range(5)), said, project={"title": "ü", "x": [1.50, {}]})


def unpacked(path: str, folder: Path) -> Path:
    with zipfile.ZipFile(path) as file:
        file.extractall(folder)
    return folder


def test_a_round_trip(shared, trained, capsys):
    package = survey(shared)
    options = ["--camtrap-dp", "survey", "--out", "a.camtrap.zip", "--min-confidence", "0.6"]
    result = run(capsys, trained, "photos", *options)
    assert result.status == 0
    assert "4 of 9 pictures have no row in survey" in result.out
    assert "survey: 5 of the pictures are its media and get observations; no picture is copied" in result.out
    assert "metadata from the table survey: TEMPORAL for 5, SPATIAL for 5" in result.out
    out = unpacked("a.camtrap.zip", shared / "a")
    assert sorted(path.name for path in out.iterdir()) == ["datapackage.json", *sorted((*KEPT, "observations.csv"))]
    for name in KEPT:
        assert (out / name).read_bytes() == (package / name).read_bytes()
    before = (package / "observations.csv").read_bytes()
    assert (out / "observations.csv").read_bytes().startswith(before)
    rows = check_observations(out)[3:]
    assert [row["mediaID"] for row in rows] == ["m0", "m1", "m2", "m3", "m4"]
    assert {row["classificationMethod"] for row in rows} == {"machine"}
    assert rows[0]["eventID"] == "e1"
    run(capsys, trained, "photos", "--meta", "survey", "--min-confidence", "0.6", "--out", "p.jsonl")
    said = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    for row, answer in zip(rows, said):
        taxon = answer["answer"] or {"name": "", "probability": 0}
        assert row["scientificName"] == taxon["name"]
        assert row["observationType"] == ("animal" if answer["answer"] else "unknown")
        assert float(row["classificationProbability"] or 0) == pytest.approx(taxon["probability"], rel=1e-5)
        assert row["observationComments"].startswith(answer["reason_text"])
        assert row["observationTags"] == (f"reason:{answer['reason']}" if answer["reason"] else "")
        assert ("likeliest species: P" in row["observationComments"]) == bool(answer["reason"])
    old, new = (json.loads((each / "datapackage.json").read_text("utf-8")) for each in (package, out))
    added = new.pop("taxonomic")[len(TAXA) :]
    assert old.pop("taxonomic") == TAXA
    assert new == old
    names = {row["scientificName"] for row in rows} - {"", "Parus major", "Aves"}
    assert sorted(taxon["scientificName"] for taxon in added) == sorted(names)
    assert all(taxon["family"] for taxon in added)
    again = read_package(Path("a.camtrap.zip"))
    assert not again.warnings
    assert again.observations.height == 8
    media = camtrap_dp.read(Path("a.camtrap.zip"), pictures=shared, machine_labels=True).frame
    found = dict(media.select("picture", pl.coalesce("name_L10", "name_L20", "name_L30").cast(pl.String)).iter_rows())
    for answer in said[1:5]:  # of the first one a person has said what it is
        assert found[answer["file"]] == (answer["answer"] or {"name": None})["name"]
    assert (
        "has answers of this model already"
        in run(capsys, trained, "photos", "--camtrap-dp", "a.camtrap.zip", "--out", "b.camtrap.zip").err
    )


def test_observations_of_boxes(shared, trained, capsys):
    package = survey(shared)
    options = ["--camtrap-dp", "survey", "--boxes", "survey/datapackage.json", "--out", "a.camtrap.zip"]
    assert run(capsys, trained, "photos", *options, "--without-box", "skip").status == 0
    rows = check_observations(unpacked("a.camtrap.zip", shared / "a"))[3:]
    assert [(row["mediaID"], float(row["bboxX"]), float(row["bboxHeight"])) for row in rows] == [
        ("m1", 0.2, 0.5),
        ("m1", 0.5, 0.5),
    ]
    assert package.is_dir()


def test_goes_on_after_an_interruption_and_is_refused_otherwise(shared, trained, capsys, monkeypatch):
    survey(shared)
    options = [trained, "photos", "--camtrap-dp", "survey", "--out"]
    assert run(capsys, *options, "whole.camtrap.zip").status == 0
    through = predicting.predict_files

    def stopped(model, jobs, *others, **more):
        yield from list(through(model, jobs[:3], *others, **more))
        raise KeyboardInterrupt

    monkeypatch.setattr(predicting, "predict_files", stopped)
    assert run(capsys, *options, "a.camtrap.zip").status == 130
    assert not Path("a.camtrap.zip").exists()
    monkeypatch.setattr(predicting, "predict_files", through)
    assert "going on after 3 of 9 pictures" in run(capsys, *options, "a.camtrap.zip").out
    both = [
        [{**row, "classificationTimestamp": ""} for row in check_observations(unpacked(name, shared / name[:1]))]
        for name in ("whole.camtrap.zip", "a.camtrap.zip")
    ]
    assert both[0] == both[1]
    with Path("survey/observations.csv").open("a") as file:
        file.write("\n")
    assert "was begun with other inputs: package was" in run(capsys, *options, "a.camtrap.zip").err
    assert "give the package that the pictures are of" in run(capsys, *options[:2], "--out", "b.camtrap.zip").err
    Path("survey/observations.csv").write_text("observationID,observationType\n")
    assert "have no column deploymentID" in run(capsys, *options, "c.camtrap.zip").err


def test_occurrences_of_darwin_core(shared, trained, capsys):
    rows = [f"{number}.png,5{number}.25,-3.5,2024-05-1{number}T10:00+02:00\n" for number in range(6)]
    Path("t.csv").write_text("file,latitude,longitude,date\n" + "".join(rows) + "6.png,99,0,never\n")
    options = ["--meta", "t.csv", "--out", "a.dwca.zip", "--min-confidence", "0.5"]
    assert run(capsys, trained, "photos", *options).status == 0
    run(capsys, trained, "photos", "--meta", "t.csv", "--min-confidence", "0.5", "--out", "p.jsonl")
    said = {row["file"]: row for row in map(json.loads, Path("p.jsonl").read_text().splitlines())}
    with zipfile.ZipFile("a.dwca.zip") as archive:
        found = list(csv.DictReader(io.StringIO(archive.read("occurrence.csv").decode())))
    assert len(found) == len({row["occurrenceID"] for row in found}) == 8
    for row in found:
        answer = said[row["associatedMedia"]]
        assert (row["basisOfRecord"], row["identificationVerificationStatus"]) == ("MachineObservation", "unverified")
        assert (row["identifiedBy"], row["identificationReferences"][:7]) == ("small", "sha256:")
        assert answer["reason_text"] in row["identificationRemarks"]
        if answer["answer"]:
            assert f"probability {answer['answer']['probability']:.6g}" in row["identificationRemarks"]
    again = darwin_core.read(Path("a.dwca.zip"))
    assert not again.warnings
    assert not again.frame["reason"].count()
    for row in again.frame.with_columns(pl.all().cast(pl.String)).iter_rows(named=True):
        answer, number = said[row["picture"]], int(row["picture"][7])
        ranks = {"species": row.get("name_L10"), "genus": row.get("name_L20"), "family": row.get("name_L30")}
        for taxon in answer["path"]:
            known = answer["answer"] and [each["rank"] for each in answer["path"]].index(answer["answer"]["rank"])
            within = known is not None and answer["path"].index(taxon) <= known
            assert ranks[taxon["rank"]] == (taxon["name"] if within and taxon["name"] else None)
        place = (f"5{number}.25", "-3.5", f"2024-05-1{number}T10:00+02:00") if number < 6 else (None,) * 3
        assert (row["latitude"], row["longitude"], row["date"]) == place
