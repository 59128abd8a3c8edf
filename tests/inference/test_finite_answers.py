"""Outputs that are not finite are counted and said, and are never an answer."""

from __future__ import annotations

import copy
import csv
import dataclasses
import json
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.inference import model as models
from linnaeus_jax.inference.answers import AnswerOptions, Answers
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.files.exporting import EXAMPLE, PROGRAM, write_export
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import NotFiniteError, finite_rows
from linnaeus_jax.inference.quality.calibration import fit, judge
from linnaeus_jax.inference.quality.explaining import explain
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.tools import evaluate, predict
from tests.inference.serving_helpers import encoded, serving
from tests.inference.test_evaluating import data  # noqa: F401  the fixture

#: finite, and too large for the model
LARGE = {"TEMPORAL": [3e38, 3e38]}


def no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=no_constant)


@pytest.fixture
def poisoned(model, monkeypatch, pictures):
    """Makes the outputs for some of the pictures not finite, in whatever model is loaded; gives a function of their
    numbers."""
    bad: list[np.ndarray] = []
    value = iter([np.nan, np.inf, -np.inf] * 9)

    def dispatch(image, meta, valid):
        pending = model.forward.dispatch(image, meta, valid)

        def result():
            logits = {task: z.copy() for task, z in pending.result().items()}
            for row, pixels in enumerate(image):
                if any(np.array_equal(pixels, each) for each in bad):
                    logits["taxa_L20"][row, 1] = next(value)
            return logits

        return SimpleNamespace(result=result)

    def one(bundle, buckets, runtime="auto"):
        same = copy.copy(model)
        same.bundle, same.answers = bundle, Answers(bundle.taxonomy, bundle.calibration)
        same.forward = SimpleNamespace(buckets=model.forward.buckets, dispatch=dispatch)
        return same

    monkeypatch.setattr(models, "Model", one)
    return lambda *numbers: bad.extend(model.read([pictures.pixels[number]])[0] for number in numbers)


@pytest.fixture
def folder(bundle, tmp_path, pictures, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_bundle(bundle, tmp_path / "bundle")
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(pictures.pixels[:4]):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "broken.png").write_text("no picture")
    return tmp_path


def test_python_names_the_image(model, pictures):
    with pytest.raises(NotFiniteError, match=r"^picture 1, picture 3: the outputs of the model are not finite"):
        model.predict(pictures.pixels[:4], components=[{}, LARGE, {}, LARGE])
    assert len(model.predict(pictures.pixels[:1], components=[{}])) == 1
    (said,) = model.predict(pictures.pixels[:1], components=[{"TEMPORAL": [1e308, 0]}])  # infinite as float32
    assert said.inputs == ()
    assert said.notes == ("TEMPORAL holds values that are no finite float32 numbers: it is not used",)
    with pytest.raises(NotFiniteError):
        explain(model, pictures.pixels[0], Observation(components=LARGE))


@pytest.mark.parametrize("scale", [3e38, 1e30])
def test_weights_that_are_too_large(bundle, pictures, scale):
    params = bundle.variables["params"]
    head = jax.tree.map(lambda leaf: np.clip(leaf, -1, 1) * np.float32(scale), params["head"])
    large = dataclasses.replace(bundle, variables={"params": {**params, "head": head}})
    model = Model(large, buckets=(2,))
    if scale < 1e38:  # finite, and certain
        assert model.predict(pictures.pixels[0])[0].path[-1].probability == pytest.approx(1)
        return
    with pytest.raises(NotFiniteError):
        model.predict(pictures.pixels[0])


def test_the_exported_example_leaves_them_out(bundle, folder, monkeypatch, capsys):
    write_export(bundle, folder / "out", ["cpu"])
    call = jax.export.deserialize(bytearray((folder / "out" / PROGRAM).read_bytes())).call

    def poisoned_call(image, meta, known):
        return {
            task: z.at[1, 1].set(jnp.inf) if task == "taxa_L20" else z for task, z in call(image, meta, known).items()
        }

    monkeypatch.setattr(jax.export, "deserialize", lambda _: SimpleNamespace(call=poisoned_call))
    monkeypatch.syspath_prepend(str(folder / "out"))  # as Python has it for a script
    for name in ("pixels", "answers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "argv", ["example.py", *(f"photos/{number}.png" for number in range(3))])
    with pytest.raises(SystemExit, match=r"^the outputs of the model are not finite for photos/1\.png$"):
        runpy.run_path(str(folder / "out" / EXAMPLE))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in lines] == ["photos/0.png", "photos/2.png"] * 3


def test_nothing_is_made_of_what_is_not_finite(bundle, model, pictures):
    logits = {task: np.zeros((3, n), np.float32) for task, n in bundle.taxonomy.tree.num_classes.items()}
    labels = np.ones((3, 3), np.int32)
    for value in (np.nan, np.inf, -np.inf):
        logits["taxa_L30"][1, 2] = value
        assert finite_rows(logits).tolist() == [True, False, True]
        for consistency in ("path", "documented"):
            with pytest.raises(NotFiniteError, match="1 of 3 rows"):
                model.answers(logits, AnswerOptions(consistency=consistency))
        with pytest.raises(NotFiniteError):
            fit(logits, labels, bundle.taxonomy)
        with pytest.raises(NotFiniteError):
            judge(logits, labels, model.answers)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_predict_answers_the_others_and_fails(folder, poisoned, capsys, suffix):
    poisoned(1, 2)
    arguments = ["bundle", "photos", "--out", f"p.{suffix}", "--gallery", "g.html", "--explain", "why"]
    for _ in range(2):  # also where the file is complete
        assert predict.main(arguments) == 2
        said = " ".join(capsys.readouterr().out.split())
        assert f"p.{suffix}: 2 pictures predicted" in said
        assert "1 of 5 pictures cannot be read, listed in" in said
        assert "2 of 5 pictures have no answer, listed in" in said
    with open(f"p.{suffix}.unreadable.csv", newline="") as file:
        reasons = {row["file"]: row["reason"] for row in csv.DictReader(file)}
    assert set(reasons) == {"photos/1.png", "photos/2.png", "photos/broken.png"}
    assert reasons["photos/2.png"].startswith("the outputs of the model are not finite")
    if suffix != "parquet":
        text = Path(f"p.{suffix}").read_text()
        assert [name in text for name in ("0.png", "1.png", "2.png", "3.png")] == [True, False, False, True]
        assert "nan" not in text.lower()
    for path in (*folder.glob("*.json"), *folder.glob("p.jsonl")):
        for line in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            strict(line)
    assert "1.png" not in Path("g.html").read_text()
    assert len(list(Path("why").rglob("*.png"))) == 2


def test_predict_prints_why(folder, poisoned, capsys):
    poisoned(0)
    assert predict.main(["bundle", "photos/0.png"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "no answer: the outputs of the model are" in said
    assert "1 of 1 pictures have no answer" in said


def test_evaluate_leaves_them_out_and_fails(folder, poisoned, data, capsys):  # noqa: F811
    arguments = ["bundle", "--labels", str(data.labels), "--images", str(data.images), "--json"]
    assert evaluate.main(arguments) == 0
    whole = strict(capsys.readouterr().out)
    assert (whole["rows"], whole["not_finite"]) == (7, 0)
    poisoned(2, 5)
    assert evaluate.main([*arguments, "--report", "r.html"]) == 2
    numbers = strict(capsys.readouterr().out)
    assert (numbers["rows"], numbers["not_finite"]) == (5, 2)
    assert "2 of 7 rows are left out: the outputs of the model are not finite" in numbers["notes"][-1]
    assert "2 of 7 rows are left out" in Path("r.html").read_text()
    poisoned(*range(8))
    assert evaluate.main(arguments) == 2
    assert "none of 7 rows of" in capsys.readouterr().err


def test_a_server_answers_everybody_else(model, pictures):
    files = [encoded(pixels) for pixels in pictures.pixels[:3]]
    metadata = json.dumps([{}, {"components": LARGE}, {}])

    def ask(client, number):
        if number % 2:
            return client.post("/predict", files=[("images", ("a.png", files[0]))])
        several = [("images", (f"{i}.png", content)) for i, content in enumerate(files)]
        return client.post("/predict", files=several, data={"metadata": metadata, "compare": "true"})

    with serving(model) as url, httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(client, number), range(16)))
        assert [answer.status_code for answer in answers] == [422, 200] * 8
        refused = strict(answers[0].text)
        assert refused["detail"].startswith("picture 1 (1.png): the outputs of the model are not finite")
        assert [each and each["image"] for each in refused["predictions"]] == ["0.png", None, "2.png"]
        several = [("images", (f"{i}.png", content)) for i, content in enumerate(files)]
        together = client.post("/predict", files=several, data={"metadata": metadata, "together": "true"})
        assert together.status_code == 422
        assert [each["pictures"] for each in strict(together.text)["predictions"]] == [2]
        none = client.post("/predict", files=several[1:2], data={"metadata": f"[{metadata[5:-5]}]", "together": "true"})
        assert strict(none.text)["predictions"] == [None]
        alone = strict(answers[1].text)["predictions"][0]
        assert refused["predictions"][0]["path"][0]["taxon_id"] == alone["path"][0]["taxon_id"]
        for given in ('{"TEMPORAL": [1e308, 0]}', '{"TEMPORAL": [1e999, 0]}', '{"TEMPORAL": [NaN, 0]}'):
            one = [("images", ("a.png", files[0]))]
            answer = client.post("/predict", files=one, data={"components": given})
            assert answer.status_code == 422
            assert "components" in strict(answer.text)["detail"]
        for name in ("latitude", "longitude", "elevation"):
            for value in ("1e999", "nan", "-inf"):
                answer = client.post("/predict", files=[("images", ("a.png", files[0]))], data={name: value})
                assert (answer.status_code, name in strict(answer.text)["detail"]) == (422, True)
