"""The server's endpoints, over loopback."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.forward import FUSED, TRUNK
from linnaeus_jax.inference.model import Model, unit
from linnaeus_jax.inference.server.information import ModelInformation
from linnaeus_jax.inference.server.requests import Limits
from linnaeus_jax.inference.server.schemas import EmbedResponse, PredictResponse
from linnaeus_jax.reading.box_cuts import CLIPPED, Box, Cut
from linnaeus_jax.tools import predict
from tests.campaign.pictures_made import jpeg_of_scans, tiff, tile_of
from tests.inference.late import late_bundle
from tests.inference.serving_helpers import bomb, encoded, serving

ANSWERS = ("p.jsonl", "p.jsonl.pictures.jsonl")
LIMITS = Limits(body_bytes=200_000, pictures=8)


CUT = Cut(margin=0.05, confidence=0.3, min_side=8, square=True, categories=("animal",))


@pytest.fixture(scope="module")
def on_boxes(model):
    """The small model as if it had been trained on boxes that were cut by `CUT`."""
    same = copy.copy(model)
    same.bundle = dataclasses.replace(model.bundle, facts={**model.bundle.facts, "boxes": CUT.to_json()})
    return same


@pytest.fixture(scope="module")
def client(on_boxes):
    with serving(on_boxes, LIMITS) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def files(pictures) -> list[bytes]:
    return [encoded(pixels) for pixels in pictures.pixels]


def same(answer: dict, prediction) -> None:
    """The JSON of a picture is a prediction, up to rounding."""
    expected = prediction.to_json()
    answer = {key: value for key, value in answer.items() if key in expected}
    assert set(answer) == set(expected)
    flat, other = numbers(answer), numbers(expected)
    assert [each for each in flat if not isinstance(each, float)] == [
        each for each in other if not isinstance(each, float)
    ]
    np.testing.assert_allclose(
        [each for each in flat if isinstance(each, float)],
        [each for each in other if isinstance(each, float)],
        atol=1e-5,
    )


def numbers(value) -> list:
    """The leaves of JSON, with keys."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in (key, *numbers(value[key]))]
    return [leaf for each in value for leaf in numbers(each)] if isinstance(value, list) else [value]


def form(*contents: bytes) -> list:
    return [("images", (f"{number}.png", content)) for number, content in enumerate(contents)]


def test_form(client, model, pictures, files):
    fields = {"latitude": "48.2", "longitude": "16.4", "date": "2024-05-17T10:20+02:00", "elevation": "171"}
    answer = client.post("/predict", files=form(*files[:3]), data={**fields, "top_k": "2", "compare": "true"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert PredictResponse.model_validate(body).model == "small"
    known: dict[str, Any] = {"latitude": 48.2, "longitude": 16.4, "date": "2024-05-17T10:20+02:00", "elevation": 171}
    with_metadata = model.predict(pictures.pixels[:3], **known, top_k=2)
    alone = model.predict(pictures.pixels[:3], top_k=2)
    assert [picture["image"] for picture in body["predictions"]] == ["0.png", "1.png", "2.png"]
    for picture, prediction, other in zip(body["predictions"], with_metadata, alone, strict=True):
        same(picture, prediction)
        same(picture["without_metadata"], other)
    assert with_metadata[0].inputs == ("TEMPORAL", "SPATIAL", "ELEVATION")
    assert alone[0].path[-1].probability != with_metadata[0].path[-1].probability


def test_one_answer_for_all_pictures(client, model, pictures, files):
    fields = {"date": "2024-05-17", "compare": "true", "together": "true", "top_k": "2"}
    answer = client.post("/predict", files=form(*files[:3]), data=fields)
    assert answer.status_code == 200, answer.text
    [picture] = PredictResponse.model_validate(answer.json()).model_dump()["predictions"]
    assert (picture["image"], picture["pictures"]) == ("0.png", 3)
    [expected] = model.predict(pictures.pixels[:3], together="one", date="2024-05-17", top_k=2)
    [alone] = model.predict(pictures.pixels[:3], together="one", top_k=2)
    [body] = answer.json()["predictions"]
    same(body, expected)
    same(body["without_metadata"], alone)
    texts = [base64.b64encode(content).decode() for content in files[:2]]
    metadata: list[dict[str, Any]] = [{"date": "2024-05-17"}, {}]
    several = client.post("/predict", json={"images": texts, "metadata": metadata, "together": True}).json()
    same(several["predictions"][0], *model.predict(pictures.pixels[:2], together=1, date=["2024-05-17", None]))
    refused = client.post("/predict", json={"images": texts, "together": True, "consistency": "documented"})
    assert (refused.status_code, "leave out 'documented'" in refused.json()["detail"]) == (422, True)


def test_json_is_as_the_form(client, model, pictures, files):
    texts = [base64.b64encode(content).decode() for content in files[:2]]
    metadata: list[dict[str, Any]] = [
        {"latitude": 48.2, "longitude": 16.4},
        {"date": "2024-02-29", "latitude": 91, "longitude": 0},
    ]
    options = {"min_confidence": 0.2, "consistency": "documented", "always_report": [13], "restrict": ["Passer", 11]}
    images = [{"name": "a", "data": f"data:image/png;base64,{texts[0]}"}, texts[1]]
    as_json = client.post("/predict", json={"images": images, "metadata": metadata, **options})
    assert as_json.status_code == 200, as_json.text
    columns = {name: [each.get(name) for each in metadata] for name in ("latitude", "longitude", "date")}
    expected = model.predict(pictures.pixels[:2], **columns, **options)
    assert expected[1].notes
    for picture, prediction in zip(as_json.json()["predictions"], expected, strict=True):
        same(picture, prediction)
    lists = {"always_report": "13", "restrict": ["Passer, 11"], "metadata": json.dumps(metadata)}
    fields = {"min_confidence": "0.2", "consistency": "documented", **lists}
    as_form = client.post("/predict", files=form(*files[:2]), data=fields)
    assert as_form.status_code == 200, as_form.text
    for one, other in zip(as_form.json()["predictions"], as_json.json()["predictions"], strict=True):
        assert {**one, "image": ""} == {**other, "image": ""}


ANIMAL = {"category": "1", "conf": 0.9}
BOXES: list[list[Any]] = [
    [
        {**ANIMAL, "bbox": [0.2, 0.1, 0.4, 0.5]},
        {**ANIMAL, "conf": 0.31, "bbox": [0.5, 0.5, 0.9, 0.5]},  # reaches beyond the picture
        {**ANIMAL, "conf": 0.1, "bbox": [0.0, 0.0, 0.5, 0.5]},
        {"category": "person", "conf": 0.9, "bbox": [0.0, 0.0, 0.5, 0.5]},
        {**ANIMAL, "bbox": [0.0, 0.0, 0.1, 0.1]},  # smaller than 8 pixels
    ],
    [],
    [{"label": "animal", "bbox": [0.3, 0.3, 0.5, 0.5]}],
]


def test_boxes_are_answered_as_predict_does(client, on_boxes, shared, pictures, files, capsys):
    """The rows of boxes and of pictures, over HTTP, in Python, and by the command line."""
    write_bundle(on_boxes.bundle, Path("on_boxes"))
    images = [{"file": f"{number}.png", "detections": boxes} for number, boxes in enumerate(BOXES)]
    images[2]["detections"] = [{**ANIMAL, "conf": 1, "bbox": BOXES[2][0]["bbox"]}]
    Path("b.json").write_text(json.dumps({"info": {"format_version": "1.4"}, "images": images}))
    paths = [f"photos/{number}.png" for number in range(3)]
    assert predict.main(["on_boxes", *paths, "--boxes", "b.json", "--out", "p.jsonl"]) == 0
    rows, best = ([json.loads(line) for line in Path(name).read_text().splitlines()] for name in ANSWERS)
    answer = client.post("/predict", files=form(*files[:3]), data={"boxes": json.dumps(BOXES)})
    assert answer.status_code == 200, answer.text
    assert PredictResponse.model_validate(answer.json())
    found, said = answer.json()["predictions"], on_boxes.predict(paths, boxes=BOXES)
    assert [(row["file"], row["box"] and row["box"]["number"]) for row in rows] == [
        (paths[0], 1), (paths[0], 2), (paths[1], None), (paths[2], 1)
    ]  # fmt: skip
    of_boxes = [box for one in found for box in (one["boxes"] or [one]) if box["path"]]
    for picture, one, row in zip(found, said, best, strict=True):
        same(picture, dataclasses.replace(one, boxes=None))
        for a, b in zip(picture["boxes"], one.boxes or (), strict=True):
            same(a, b)
        assert {**picture["box"], "confidence": 0} == {**row["box"], "confidence": 0} if row["box"] else not one.box
        assert picture["path"][-1]["probability"] == pytest.approx(row["path"][-1]["probability"], abs=1e-5)
    for one, row in zip(of_boxes, rows, strict=True):
        assert (one["notes"], one["answer"] is None) == (row["notes"], row["answer"] is None)
        for a, b in zip(one["path"], row["path"], strict=True):
            assert (a["name"], a["probability"]) == (b["name"], pytest.approx(b["probability"], abs=1e-5))
    left = {box["box"]["number"]: box["reason_text"] for box in found[0]["boxes"] if box["reason"] == "box_left_out"}
    assert left == {
        3: "boxes are left out where their confidence is below 0.3",
        4: "boxes are left out where they are of other categories",
        5: "its shorter side is 4 pixels, less than 8",
    }
    assert found[0]["boxes"][1]["notes"] == [CLIPPED]
    seen, _ = CUT.pixels(pictures.pixels[0], Box(1, (0.2, 0.1, 0.4, 0.5)))
    assert of_boxes[0]["path"][-1]["probability"] == pytest.approx(
        on_boxes.predict(seen)[0].path[-1].probability, abs=1e-5
    )


def test_boxes_of_vectors_and_of_what_is_answered_together(client, on_boxes, pictures, files):
    fields = {"boxes": json.dumps(BOXES), "date": "2024-05-17"}
    vectors = EmbedResponse.model_validate(client.post("/embed", files=form(*files[:3]), data=fields).json()).vectors
    numbers = [(one.image, one.box and one.box.number, one.vector is None) for one in vectors]
    assert numbers == [*(("0.png", n, n > 2) for n in range(1, 6)), ("1.png", None, False), ("2.png", 1, False)]
    seen, _ = CUT.pixels(pictures.pixels[2], Box(1, (0.3, 0.3, 0.5, 0.5)))
    np.testing.assert_allclose(vectors[-1].vector or [], on_boxes.embed(seen)[0], atol=1e-5)
    answer = client.post("/predict", files=form(*files[:3]), data={**fields, "together": "true"}).json()
    [one] = answer["predictions"]
    [expected] = on_boxes.predict(list(pictures.pixels[:3]), boxes=BOXES, date="2024-05-17", together="all")
    same(one, expected)
    assert (one["pictures"], [box["box"]["number"] for box in one["boxes"]]) == (4, [3, 4, 5])
    small = {"boxes": json.dumps([[{**ANIMAL, "bbox": [0, 0, 0.1, 0.1]}]])}
    for together in ("true", "false"):
        [one] = client.post("/predict", files=form(files[0]), data={**small, "together": together}).json()[
            "predictions"
        ]
        assert (one["answer"], one["reason"], one["box"]["number"]) == (None, "box_left_out", 1)
    assert client.get("/info").json()["box_cut"] == CUT.to_json()


JPEG = encoded(np.random.default_rng(2).integers(0, 256, (60, 60, 3), dtype=np.uint8), "JPEG")


AT: dict[str, Any] = {"bbox": [0.1, 0.1, 0.5, 0.5], "label": "animal"}


def boxes(*given: Any) -> dict[str, Any]:
    return {"files": form(JPEG), "data": {"boxes": json.dumps(given)}}


@pytest.mark.parametrize(
    ("status", "words", "request_"),
    [
        (422, "picture 0 (0.png): truncated", {"files": form(JPEG[:-500])}),
        (422, "picture 1 (1.png): empty", {"files": form(JPEG, b"")}),
        (415, "no image decoder", {"files": form(b"#!/bin/sh\nrm\n")}),
        (413, "10000 x 10000 pixels", {"files": form(bomb())}),
        (413, "or more scans, which would take too long", {"files": form(jpeg_of_scans(1000, 1000, 5000))}),
        (413, "pixels in tiles of 60000 x 11008", {"files": form(tile_of(60000, 11008))}),
        (413, "1200 tags", {"files": form(tiff([(40000 + i, 3, 1, i) for i in range(1200)]))}),
        (413, "9 pictures", {"files": form(*[JPEG] * 9)}),
        (400, "Too many files. Maximum number of files is 1000", {"files": form(*[b"x"] * 1001)}),
        (400, "ends early", {"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}),
        (413, "200000 bytes", {"files": form(b"x" * 300_000)}),
        (422, "must be files", {"data": {"images": "../../etc/passwd"}, "files": {"y": (None, b"")}}),
        (422, "no file named images", {"files": {"image": ("a.png", JPEG)}}),
        (422, "picture: Extra inputs", {"files": form(JPEG), "data": {"picture": "/etc/passwd"}}),
        (422, "latitude", {"files": form(JPEG), "data": {"latitude": "north"}}),
        (422, "min_confidence", {"files": form(JPEG), "data": {"min_confidence": "2"}}),
        (422, "measured on validation rows", {"files": form(JPEG), "data": {"coverage": "0.9"}}),
        (422, "does not know 1 of 2 taxa", {"files": form(JPEG), "data": {"restrict": "Parus, Ursus"}}),
        (422, "metadata is no JSON", {"files": form(JPEG), "data": {"metadata": "{"}}),
        (422, "2 observations for 1", {"files": form(JPEG), "data": {"metadata": "[{}, {}]"}}),
        (422, "exclude each other", {"files": form(JPEG), "data": {"metadata": "[{}]", "latitude": "1"}}),
        (422, "picture 0 (0.png): box 1 is [0, 0, -1, 1]; boxes are refused where their width", boxes([[0, 0, -1, 1]])),
        (422, "box 2 is [0, 0, 1]; boxes are refused where their place is not", boxes([AT, [0, 0, 1]])),
        (422, "box 1 is {'bbox': [0.1, 0.1, nan, 0.1]}; boxes", boxes([{"bbox": [0.1, 0.1, float("nan"), 0.1]}])),
        (422, "box 1 is [1.0, 0, 0.1, 0.1]; boxes are refused where they lie outside", boxes([[1.0, 0, 0.1, 0.1]])),
        (422, "where their confidence is no number from 0 to 1", boxes([{**AT, "conf": 1.1}])),
        (422, "where they have no category, and only animal is taken", boxes([AT["bbox"]])),
        (422, "where their category is no text", boxes([{"bbox": AT["bbox"], "category": 1}])),
        (422, "other keys than bbox, conf, category and label, such as confidence", boxes([{**AT, "confidence": 1}])),
        (422, "boxes holds lists of 2 pictures for 1 pictures", boxes([AT], [AT])),
        (422, "boxes.0: Input should be a valid list", boxes(3)),
        (413, "1001 boxes in one request; send at most 1000", boxes([AT["bbox"]] * 1001)),
        (413, "boxes holds more than 29000 values", boxes([[0, 0, 1, 1]] * 10_000)),
        (413, "9 boxes and whole pictures in one request; send at most 8", boxes([AT] * 9)),
        (422, "no metadata component", {"files": form(JPEG), "data": {"components": '{"X": [1]}'}}),
        (422, "given 2 times", {"files": form(JPEG), "data": {"latitude": ["1", "2"]}}),
        (422, "JSON", {"content": b'{"images": [', "headers": {"content-type": "application/json"}}),
        (422, "images", {"json": {}}),
        (422, "images", {"json": {"images": []}}),
        (422, "path: Extra inputs", {"json": {"images": ["aGk="], "path": "/etc/passwd"}}),
        (422, "not base64", {"json": {"images": ["../../etc/passwd"]}}),
        (415, "text/plain", {"content": JPEG, "headers": {"content-type": "text/plain"}}),
        (400, "multipart", {"content": JPEG, "headers": {"content-type": "multipart/form-data; boundary=x"}}),
    ],
)
def test_refused(client, status, words, request_):
    answer = client.post("/predict", **request_)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    "path", ["/nothing", "/page/../../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/world.svg", "/docs"]
)
def test_unknown_paths(client, path):
    assert client.get(path).status_code == 404


def test_other_methods(client):
    assert client.get("/predict").status_code == 405


def test_vectors(client, model, pictures, files):
    expected = model.embed(list(pictures.pixels[:3]))
    given, names = form(*files[:3]), [f"{number}.png" for number in range(3)]
    answer = client.post("/embed", files=given, data={"latitude": "52.5", "longitude": "13.4"})
    assert answer.status_code == 200, answer.text
    found = EmbedResponse.model_validate(answer.json())
    assert (found.model, found.layer, [one.image for one in found.vectors]) == ("small", TRUNK, names)
    np.testing.assert_allclose(np.array([one.vector for one in found.vectors]), expected, atol=1e-5)
    images = [base64.b64encode(content).decode() for content in files[:3]]
    metadata = [{"latitude": 52.5, "longitude": 13.4}, {}, {"date": "2024-05-17"}]
    body = {"images": images, "metadata": metadata, "with_metadata": True, "normalize": True}
    found = EmbedResponse.model_validate(client.post("/embed", json=body).json())
    assert found.layer == FUSED
    columns = {"latitude": [52.5, None, None], "longitude": [13.4, None, None], "date": [None, None, "2024-05-17"]}
    fused = model.embed(list(pictures.pixels[:3]), with_metadata=True, normalize=True, **columns)
    np.testing.assert_allclose(np.array([one.vector for one in found.vectors]), fused, atol=1e-6)
    assert np.abs(fused[0] - unit(expected)[0]).max() > 1e-3


def test_vectors_that_cannot_be_had(client, files):
    refused = client.post("/embed", files=form(files[0]), data={"top_k": "2"})
    assert (refused.status_code, refused.json()["detail"]) == (422, "top_k: Extra inputs are not permitted")
    assert client.post("/embed", files=form(*files[:1] * 9)).status_code == 413
    assert client.get("/embed").status_code == 405
    assert 'path="/embed",status="413"' in client.get("/metrics").text


def test_vectors_of_a_trunk_that_metadata_join_late(bundle, pictures, files):
    model = Model(late_bundle(bundle), buckets=(2,))
    with serving(model) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert client.post("/predict", files=form(files[0]), data={"date": "2024-05-17"}).status_code == 200
        for value in ("true", "false"):
            fields = {"latitude": "52.5", "longitude": "13.4", "with_metadata": value}
            answer = client.post("/embed", files=form(files[0]), data=fields).json()
            known: dict[str, Any] = {"latitude": 52.5, "longitude": 13.4, "with_metadata": value == "true"}
            expected = model.embed(pictures.pixels[0], **known)
            np.testing.assert_allclose([answer["vectors"][0]["vector"]], expected, atol=1e-5)


def test_what_it_says_of_itself(client, model):
    info = ModelInformation.model_validate(client.get("/info").json())
    assert info.predicted_rank_levels == ["taxa_L30", "taxa_L20", "taxa_L10"]
    assert info.num_classes_per_rank == {"taxa_L30": 3, "taxa_L20": 3, "taxa_L10": 5}
    assert info.image_size == [3, 32, 32]
    assert info.metadata_components_enabled == ["TEMPORAL", "SPATIAL", "ELEVATION"]
    assert info.aux_vector_length == 9
    assert "/" not in info.model_dump_json().replace("data:", "")  # no path of this machine
    buckets = list(model.forward.buckets)
    assert client.get("/health").json() == {
        "status": "ok",
        "reason": "",
        "batch_sizes": buckets,
        "compilations": len(buckets),
        "waiting_pictures": 0,
    }
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert f"linnaeus_compilations {float(len(buckets))}" in metrics.text
    assert 'linnaeus_requests_total{path="/info",status="200"}' in metrics.text


def test_openapi_describes_both_bodies(client):
    description = client.get("/openapi.json").json()
    for path in ("/predict", "/embed"):
        operation = description["paths"][path]["post"]
        assert set(operation["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
        assert {"200", "400", "408", "413", "415", "422", "503", "504"} <= set(operation["responses"])
    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    text = json.dumps(description)
    assert {part.split('"')[0] for part in text.split('"$ref": "')[1:]} <= known


def test_page_holds_everything_and_asks_nobody_else(client):
    page = client.get("/")
    assert "<svg" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path in ("/", "/page.js", "/page.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
