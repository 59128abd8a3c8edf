"""Their JSON in, ours out, read again by our reader and by the published rules of the form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from linnaeus_jax.inference.files.megadetector import BoxSource, MegaDetectorLines
from linnaeus_jax.reading.boxes import BoxFile, read_boxes
from tests.inference.conftest import small_taxonomy
from tests.inference.test_boxes import PLACE, detection, entry, write
from tests.inference.test_predict_tool import run


def check_rules(document: dict[str, Any]) -> None:
    """The rules of https://lila.science/megadetector-output-format for version 1.4."""
    assert document["info"]["format_version"] == "1.4"
    for key in ("detection_categories", "classification_categories", "classification_category_descriptions"):
        assert all(re.fullmatch(r"\d+", number) and isinstance(name, str) for number, name in document[key].items())
    assert document["classification_categories"].keys() == document["classification_category_descriptions"].keys()
    assert all(document["classification_categories"].values())
    for image in document["images"]:
        assert isinstance(image["file"], str)
        if image.get("failure") is not None:
            assert isinstance(image["failure"], str)
            assert image["detections"] is None
            continue
        for each in image["detections"]:
            assert each["category"] in document["detection_categories"]
            assert type(each["conf"]) is float
            assert len(each["bbox"]) == 4
            listed = each.get("classifications", [])
            assert all(kind in document["classification_categories"] and 0 < p <= 1 for kind, p in listed)
            assert [p for _, p in listed] == sorted((p for _, p in listed), reverse=True)


def test_a_round_trip(shared, trained, capsys):
    old = {"classifications": [["3", 0.8]], "note": [1, {"a": "ü"}]}
    video = {"file": "v.mp4", "frame_rate": 20, "detections": [{**detection(), "frame_number": 5}]}
    images = [
        entry(0, {**detection(), **old}, {**detection(0, 0, 0.3, 0.3, conf=0.1), **old}),
        {**entry(1, detection(category="2")), "max_detection_conf": 0.9, "exif": {"Make": "Reconyx"}},
        entry(2),
        {"file": "3.png", "failure": "Failure image access"},
        {"file": "sub\\gone.jpg", "detections": [{**detection(), "conf": 1}]},
        video,
    ]
    write(*images, classification_categories={"3": "deer"}, comment="kept")
    given = json.loads(Path("b.json").read_text())
    arguments = ["--boxes", "b.json", "--box-categories", "animal", "--min-confidence", "0.6", "--top-k", "2"]
    result = run(capsys, trained, "photos", *arguments, "--out", "r.json")
    assert result.status == 0
    assert "1 boxes of 1 pictures; 8 pictures without a box are left out" in result.out
    found = json.loads(Path("r.json").read_text())
    check_rules(found)
    [before, answered], [_, kept] = given["images"][0]["detections"], found["images"][0]["detections"]
    assert kept == answered  # below the least confidence: as it was
    new = found["images"][0]["detections"][0].pop("classifications")
    assert before.pop("classifications") == [["3", 0.8]]
    run(capsys, trained, "photos", *arguments, "--without-box", "skip", "--out", "p.jsonl")
    said = json.loads(Path("p.jsonl").read_text())
    wanted = {taxon["name"]: round(taxon["probability"], 4) for taxon in said["top"]["species"] if taxon["taxon_id"]}
    wanted |= {said["answer"]["name"]: round(said["answer"]["probability"], 4)} if said["answer"] else {}
    assert {found["classification_categories"][kind]: p for kind, p in new} == {k: p for k, p in wanted.items() if p}
    given["images"][3]["detections"] = None
    assert found["images"] == given["images"]  # 1 == 1.0
    assert found["comment"] == "kept"
    assert found["info"].pop("classification_completion_time")[:2] == "20"
    assert found["info"] == {
        "format_version": "1.4",
        "detector": "md_v5a.0.0.pt",
        "classifier": "small",
        "classifier_metadata": {"typical_classification_threshold": 0.6},
    }
    assert found["classification_categories"]["3"] == found["classification_category_descriptions"]["3"] == "deer"
    again = read_boxes(Path("r.json"))
    assert again.boxes == read_boxes(Path("b.json")).boxes
    assert not again.faults
    assert sorted(path.name for path in shared.glob("r.json*")) == ["r.json", "r.json.about.json"]


def test_what_is_not_kept_is_what_the_form_does_not_allow(shared, trained, capsys):
    bad: list[Any] = [detection(conf=float("nan")), detection(0, 0, 1), "x", detection(0, 0, 1, 10**400)]
    outside = [detection(2, 2, 1, 1), detection(0, 0, -1, 1)]
    strange: Any = 5
    write({"detections": []}, entry(0, *bad, *outside, detection()), {"file": "1.png", "detections": 3}, strange)
    assert run(capsys, trained, "photos", "--boxes", "b.json", "--out", "r.json").status == 0
    found = json.loads(Path("r.json").read_text())
    check_rules(found)
    first, second = found["images"]
    assert [each["bbox"] for each in first["detections"]] == [[2, 2, 1, 1], [0, 0, -1, 1], list(PLACE)]
    assert ["classifications" in each for each in first["detections"]] == [False, False, True]
    assert second == {"file": "1.png", "detections": []}


def test_a_newer_version_stays(shared, trained, capsys):
    write(entry(0, detection()), info={"format_version": "1.6"})
    assert run(capsys, trained, "photos", "--boxes", "b.json", "--out", "r.json").status == 0
    assert json.loads(Path("r.json").read_text())["info"]["format_version"] == "1.6"


def test_boxes_of_other_forms(shared, trained, capsys):
    animal = {"category": "1", "label": "animal", "conf": 0.8, "bbox": list(PLACE)}
    Path("s.json").write_text(json.dumps({"predictions": [{"filepath": "/x/photos/0.png", "detections": [animal]}]}))
    Path("t.csv").write_text("file,x,y,width,height\n0.png,0.2,0.1,0.4,0.5\n1.png,0.2,0.1,0.4,\n")
    image = {"id": 1, "file_name": "0.png", "width": 50, "height": 40}
    Path("c.json").write_text(
        json.dumps({"images": [image], "annotations": [{"image_id": 1, "bbox": [10, 4, 20, 20]}]})
    )
    answers = []
    for name, file, category in (
        ("s.json", "/x/photos/0.png", "animal"),
        ("t.csv", "0.png", "object"),
        ("c.json", "0.png", "object"),
    ):
        assert run(capsys, trained, "photos", "--boxes", name, "--out", "r.json", "--force").status == 0
        found = json.loads(Path("r.json").read_text())
        check_rules(found)
        assert found["images"][0]["file"] == file
        assert found["detection_categories"] == {"1": category}
        answers.append(found["images"][0]["detections"][0]["classifications"])
    assert answers[0] == answers[1] == answers[2]
    result = run(capsys, trained, "photos", "--boxes", "t.csv", "--box-units", "pixel", "--out", "q.json")
    assert "q.json needs boxes that are shares of the picture, and t.csv gives pixels" in result.err


def test_goes_on_and_is_refused_where_it_does_not_fit(shared, trained, capsys):
    write(entry(0, detection()))
    options = ["--boxes", "b.json", "--out", "r.json"]
    for more in (["--out", "r.json"], [*options, "--without-box", "whole"]):
        result = run(capsys, trained, "photos", *more)
        assert result.status == 2
        assert "r.json is JSON of MegaDetector, which has answers for boxes alone" in result.err
    assert run(capsys, trained, "photos", *options).status == 0
    assert "r.json is complete" in run(capsys, trained, "photos", *options).out
    write(entry(0, detection()), comment="new")
    assert "r.json was begun with other inputs: boxes was" in run(capsys, trained, "photos", *options).err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Parus major", "11;;;paridae;parus;major;"),
        ("Incertae sedis", "14;;;;incertae;sedis;"),
        ("Passer", "22;;;passeridae;passer;;"),
        ("Paridae", "31;;;paridae;;;"),
    ],
)
def test_the_taxonomy_in_words(name, text, model):
    taxonomy = small_taxonomy()
    lines = MegaDetectorLines(BoxSource(BoxFile(Path("b.json"), "")), taxonomy, model.answers.options())
    [(task, index)] = taxonomy.find(name)
    assert lines.described(lines.tasks.index(task), index) == (name, text)
