"""`tools.predict` with boxes: each is answered as its part of the picture is, saved by itself."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
from PIL import Image

from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.files import predicting
from linnaeus_jax.inference.model import load
from linnaeus_jax.inference.quality.evaluating import read_labelled
from linnaeus_jax.reading.box_cuts import Cut
from linnaeus_jax.tools import embed
from tests.inference.test_predict_tool import read, run

PLACE = (0.2, 0.1, 0.4, 0.5)


def embedded(argv: list[str], capsys) -> str:
    assert embed.main(argv) == 0
    return capsys.readouterr().out


def detection(*place: float, conf: float = 0.9, category: str = "1") -> dict[str, Any]:
    return {"category": category, "conf": conf, "bbox": list(place or PLACE)}


def write(*images: dict[str, Any], **more: Any) -> None:
    content = {
        "info": {"format_version": "1.3", "detector": "md_v5a.0.0.pt"},
        "detection_categories": {"1": "animal", "2": "person"},
        "images": list(images),
    }
    Path("b.json").write_text(json.dumps(content | more))


def entry(number: int, *detections: dict[str, Any]) -> dict[str, Any]:
    return {"file": f"{number}.png", "detections": list(detections)}


def test_a_row_for_each_box_and_one_for_each_picture(shared, trained, capsys):
    write(
        entry(0, detection(), detection(0, 0, 0.3, 0.3, conf=0.5), detection(0, 0, 1, 1, conf=0.1)),
        entry(1, detection(0, 0, 1, 1, category="2")),
        entry(2, detection(3, 3, 1, 1)),
        {"file": "3.png", "failure": "Failure image access", "detections": None},
        {"file": "broken.jpg", "detections": [detection()]},
        {"file": "gone.jpg", "detections": [detection()]},
    )
    options = ["--box-categories", "animal", "--min-confidence", "0", "--no-exif"]
    result = run(capsys, trained, "photos", "--boxes", "b.json", *options, "--out", "p.csv")
    assert result.status == 0
    for line in (
        "b.json: boxes of MegaDetector 1.3",
        "b.json: the detector failed on 1 pictures, which have no boxes",
        "b.json: 1 boxes are left out: 1, since they lie outside of the picture",
        "b.json: 2 boxes are not taken: 1, since their confidence is below 0.2; 1, since they are of other categories",
        "4 of 9 pictures are not in b.json: photos/4.png, photos/5.png, photos/6.png ...",
        "b.json names 1 pictures that are not given: gone.jpg",
        "3 boxes of 2 pictures; 7 pictures without a box are answered whole",
        "9 boxes and whole pictures predicted",
        "1 of 10 boxes and whole pictures cannot be read, listed in p.csv.unreadable.csv",
    ):
        assert line in result.out
    rows = read("p.csv")
    assert [(row["file"], row["box"], row["box_confidence"], row["box_category"]) for row in rows] == [
        ("photos/0.png", "1", "0.9", "animal"),
        ("photos/0.png", "2", "0.5", "animal"),
        *((f"photos/{number}.png", "", "", "") for number in range(1, 8)),
    ]
    assert [float(rows[0][f"box_{name}"]) for name in ("x", "y", "width", "height")] == list(PLACE)
    assert read("p.csv.unreadable.csv") == [
        {"file": "photos/broken.jpg", "reason": "box 1: 10 bytes that no image decoder understands"}
    ]
    picture = np.array(Image.open("photos/0.png").convert("RGB"))
    height, width = picture.shape[:2]
    left, top, wide, high = PLACE * np.array([width, height] * 2)
    margin = 0.1 * max(wide, high)
    edges = [left - margin, left + wide + margin, top - margin, top + high + margin]
    a, b, c, d = (int(np.floor(max(edge, 0) + 0.5)) for edge in edges)
    expected = load(trained).predict(picture[c:d, a:b], min_confidence=0)[0]
    assert expected.answer is not None
    assert rows[0]["answer_name"] == expected.answer.name
    assert float(rows[0]["species_probability"]) == pytest.approx(expected.path[-1].probability, abs=1e-4)
    assert float(rows[2]["species_probability"]) == pytest.approx(
        load(trained).predict("photos/1.png", min_confidence=0)[0].path[-1].probability, abs=1e-4
    )
    best = read("p.csv.pictures.csv")
    scores = [float(row["box_confidence"]) * float(row["species_probability"]) for row in rows[:2]]
    assert best == [rows[int(np.argmax(scores))], *rows[2:]]
    again = run(capsys, trained, "photos", "--boxes", "b.json", *options, "--out", "p.csv")
    assert "p.csv is complete" in again.out
    other = run(capsys, trained, "photos", "--boxes", "b.json", *options, "--box-margin", "0.2", "--out", "p.csv")
    assert other.status == 2
    assert "p.csv was begun with other inputs: boxes was" in other.err
    forced = run(capsys, trained, "photos", "--out", "p.csv", "--force")
    assert forced.status == 0
    assert "box" not in read("p.csv")[0]
    assert not Path("p.csv.pictures.csv").exists()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_other_forms(shared, trained, capsys, form):
    write(entry(0, detection(), detection(0, 0, 0.3, 0.3, conf=0.5)), entry(1, detection(conf=0.3)))
    arguments = ["--boxes", "b.json", "--without-box", "skip", "--out"]
    assert run(capsys, trained, "photos", *arguments, f"p.{form}").status == 0
    assert run(capsys, trained, "photos", *arguments, "p.csv").status == 0
    for end in ("", f".pictures.{form}"):
        rows = read(f"p.csv{end and '.pictures.csv'}")
        if form == "jsonl":
            found = [json.loads(line) for line in Path(f"p.jsonl{end}").read_text().splitlines()]
            assert found[0]["box"] == {"number": 1, "confidence": 0.9, "category": "animal", "bbox": list(PLACE)}
            assert [str(row["box"]["number"]) for row in found] == [row["box"] for row in rows]
            assert [row["path"][-1]["name"] for row in found] == [row["species_name"] for row in rows]
        else:
            frame = pl.read_parquet(f"p.parquet{end}")
            assert frame.schema["box"] == pl.Int64
            assert frame["box_width"].to_list() == [float(row["box_width"]) for row in rows]
            assert frame["top"].to_list() == [row["top"] for row in rows]


def test_printed_and_left_out(shared, trained, capsys):
    write(entry(0, detection(), detection(0, 0, 0.05, 0.05)), entry(1), entry(2, detection(0.5, 0.5, 0.9, 0.9)))
    options = ["--without-box", "skip", "--box-min-side", "4", "--box-square"]
    result = run(capsys, trained, "photos", "--boxes", "b.json", *options)
    assert result.status == 0
    assert "0.png box 1" in result.out
    assert "7 pictures without a box are left out" in result.out
    assert "1 of 3 boxes and whole pictures cannot be read" in result.out
    assert run(capsys, trained, "photos", "--boxes", "b.json", *options, "--out", "p.csv").status == 0
    reason = "box 2: its shorter side is 2 pixels, less than 4"
    assert read("p.csv.unreadable.csv") == [{"file": "photos/0.png", "reason": reason}]
    assert [row["notes"] for row in read("p.csv")] == ["", "the box reaches beyond the picture and was clipped"]
    assert "1 picture has notes on what was given and not used" in result.out  # the box that is clipped


def test_boxes_that_cannot_be_used_are_one_line(shared, trained, capsys):
    write(entry(0, detection()))
    Path("cut.json").write_text(Path("b.json").read_text()[:-20])
    Path("none.json").write_bytes(b"")
    for arguments, said in (
        (["--boxes", "cut.json"], "cut.json is no JSON, cut off"),
        (["--boxes", "none.json"], "none.json is empty"),
        (["--boxes", "b.json", "--box-margin", "-1"], "--box-margin is -1; give a share"),
        (["--boxes", "b.json", "--box-categories", "fox"], "names no such category; it has animal, person"),
        (["--boxes", "b.json", "--box-confidence", "1", "--without-box", "skip"], "b.json has no box that is taken"),
        (["--box-square"], "options of boxes need the file that has them: --boxes FILE"),
        (["--boxes", "b.json", "--gallery", "g.html"], "--gallery is of whole pictures; leave it or --boxes out"),
    ):
        result = run(capsys, trained, "photos", *arguments, "--out", "p.csv")
        assert result.status == 2
        assert said in result.err
        assert len(result.err.strip().splitlines()) == 1
        assert not Path("p.csv").exists()


def test_a_model_that_was_trained_on_boxes_takes_them_so(shared, trained, bundle, capsys, caplog):
    stored = Cut(margin=0.3, confidence=0.4, square=True, categories=("animal",), without="skip")
    write_bundle(dataclasses.replace(bundle, facts={**bundle.facts, "boxes": stored.to_json()}), shared / "cut")
    write(entry(0, detection(), detection(conf=0.3)), entry(1, detection(category="2")))
    remark = "the model was trained on boxes cut from pictures, and whole ones look different to it; give --boxes"
    assert remark in run(capsys, "cut", "photos").out
    shown = remark.replace("give --boxes", "give pictures cut out")
    assert shown in embedded(["cut", "photos", "--out", "v.npz"], capsys)
    assert shown not in embedded([trained, "photos", "--out", "w.npz"], capsys)
    with h5py.File("labels.h5", "w") as file:
        file["img_identifiers"], file["taxa_L10"] = ["0.png"], np.array([11], np.uint32)
    (note,) = [each for each in read_labelled(load("cut").bundle, Path("labels.h5")).notes if "boxes" in each]
    assert note == remark.replace("give --boxes", "build the data set with --boxes")
    assert remark.replace("give --boxes", "give it what is in the boxes") in caplog.text
    same = run(capsys, "cut", "photos", "--boxes", "b.json", "--out", "a.csv")
    assert "1 boxes of 1 pictures; 8 pictures without a box are answered whole" in same.out
    assert "otherwise" not in same.out
    options = ["--box-margin", "0.3", "--box-confidence", "0.4", "--box-square", "--box-categories", "animal"]
    assert run(capsys, trained, "photos", "--boxes", "b.json", *options, "--out", "b.csv").status == 0
    assert read("a.csv") == read("b.csv")
    other = run(capsys, "cut", "photos", "--boxes", "b.json", "--no-box-square", "--box-margin", "0")
    said = "boxes are taken otherwise than for the training of the model: margin 0.0, not 0.3; square False, not True"
    assert said in other.out
    damaged = {**bundle.facts, "boxes": {"margin": "wide"}}
    write_bundle(dataclasses.replace(bundle, facts=damaged), shared / "damaged")
    result = run(capsys, "damaged", "photos")
    assert result.status == 2
    assert "are no settings of boxes" in result.err


@pytest.mark.parametrize("form", ["csv", "json"])
def test_goes_on_in_the_middle_of_a_picture(shared, trained, capsys, monkeypatch, form):
    write(
        *(entry(number, detection(), detection(0, 0, 0.5, 0.5), detection(0.3, 0.3, 0.6, 0.6)) for number in range(3))
    )
    arguments = [trained, "photos", "--boxes", "b.json", "--without-box", "skip", "--out"]
    run(capsys, *arguments, f"whole.{form}")
    through, asked = predicting.predict_files, list[int]()

    def stopped(model: Any, jobs: Any, *others: Any, **options: Any) -> Any:
        asked.append(len(jobs))
        yield from list(through(model, jobs[:4], *others, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(predicting, "predict_files", stopped)
    assert run(capsys, *arguments, f"p.{form}").status == 130
    monkeypatch.setattr(predicting, "predict_files", through)
    result = run(capsys, *arguments, f"p.{form}")
    assert "going on after 4 of 9 pictures" in result.out
    texts = [re.sub(r"completion_time[^,]*", "", Path(f"{name}.{form}").read_text()) for name in ("p", "whole")]
    numbers = [[float(text) for text in re.findall(r"\d+\.\d+", each)] for each in texts]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-4)
    words = [re.sub(r"\d+\.\d+", "", each) for each in texts]
    assert words[0] == words[1]


def test_names_that_no_file_can_have(shared, trained, capsys):
    gone = {"file": "\x1b[2J\ud800.jpg", "detections": []}
    write(entry(0, detection()), gone, detection_categories={"1": "a\ud800"})
    result = run(capsys, trained, "photos", "--boxes", "b.json", "--out", "p.csv")
    assert r"names 1 pictures that are not given: \x1b[2J\ud800.jpg" in result.out
    assert read("p.csv")[0]["box_category"] == "a?"


def test_boxes_are_of_the_upright_picture(shared, trained, capsys):
    picture = Image.open("photos/0.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Path("turned").mkdir()
    picture.transpose(Image.Transpose.ROTATE_90).save("turned/0.png", exif=exif)
    write(entry(0, detection()))
    for folder in ("photos/0.png", "turned"):
        run(capsys, trained, folder, "--boxes", "b.json", "--no-exif", "--out", f"{folder[:4]}.csv")
    turned, upright = (read(f"{name}.csv")[0] for name in ("turn", "phot"))
    assert turned.pop("file") != upright.pop("file")
    assert turned == upright


def test_a_picture_with_ten_thousand_boxes_is_decoded_once(shared, trained, capsys, monkeypatch):
    write(entry(0, *(detection(0, 0, 0.3, 0.3) for _ in range(10_000))))
    decoded: list[int] = []
    taken: list[tuple[int, ...]] = []
    through = predicting.read_image

    def counted(data: bytes) -> Any:
        decoded.append(len(data))
        return through(data)

    def only_read(forward: Any, jobs: Any, reading: Any, *others: Any, **more: Any) -> Any:
        taken.extend(reading(job)[1].shape for job in jobs)
        return iter(())

    monkeypatch.setattr(predicting, "read_image", counted)
    monkeypatch.setattr(predicting, "run_rows", only_read)
    result = run(capsys, trained, "photos", "--boxes", "b.json", "--without-box", "skip")
    assert "10,000 boxes of 1 pictures" in result.out
    assert taken == [(32, 32, 3)] * 10_000
    assert len(decoded) == 1
