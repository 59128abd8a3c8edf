"""Exports: the same numbers as here, without this package, for any number of pictures and on several platforms."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from datetime import date

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export as jax_export
from PIL import Image

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.files import exporting
from linnaeus_jax.inference.files.exporting import (
    ANSWERS,
    CLASSES,
    EXAMPLE,
    PIXELS,
    PROGRAM,
    README,
    WEIGHTS,
    answer_settings,
    exported_program,
    readable_until,
    write_export,
)
from linnaeus_jax.inference.portable_answers import best_classes
from linnaeus_jax.models.names import params_from_torch
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.tools import export
from linnaeus_jax.weights.files import read_state
from tests.inference.trees import cases
from tests.npz import load_npz

KNOWN = (Observation(), Observation(date="2024-05-17"), Observation(52.5, 13.4, "2024-05-17T12:00", 34))


@pytest.fixture(scope="module")
def inputs(model, bundle, pictures):
    """Pixels, metadata and validity of 5 pictures: of none, one and all components."""
    encoded = bundle.encoder.encode([KNOWN[row % 3] for row in range(5)])
    return model.read(list(pictures.pixels[:5])), encoded.meta, encoded.valid


def test_the_program_gives_the_same_logits(model, bundle, inputs):
    program = exported_program(bundle)
    assert program.platforms == ("cpu", "cuda")
    assert [str(aval.shape[0]) for aval in program.in_avals] == ["b", "b", "b"]
    logits = jax_export.deserialize(program.serialize()).call(*inputs)
    expected = model.forward(*inputs)
    assert list(expected) == list(logits)
    for task, z in expected.items():
        np.testing.assert_allclose(logits[task], z, rtol=0, atol=1e-5)


#: runs example.py where this package cannot be imported, then its program on other rows, and saves all logits
WITHOUT_THE_PACKAGE = """
import runpy, sys
sys.modules["linnaeus_jax"] = None
folder, inputs, out, *pictures = sys.argv[1:]
sys.argv = ["example.py", *pictures]
sys.path.insert(0, folder)
space = runpy.run_path(folder + "/example.py")
np, model = space["np"], space["model"]
given = np.load(inputs)
results = {"pixels": space["image"]} | {f"example/{task}": z for task, z in space["logits"].items()}
for rows in (5, 1):
    logits = model.call(*(given[name][:rows] for name in ("image", "meta", "valid")))
    results |= {f"{rows}/{task}": z for task, z in logits.items()}
np.savez(out, **results)
"""


@pytest.mark.slow
def test_the_example_runs_without_this_package(model, bundle, inputs, tmp_path):
    write_export(bundle, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "moved")
    assert len((tmp_path / "moved" / EXAMPLE).read_text().splitlines()) <= 20
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path, pixels in zip(paths, inputs[0], strict=True):
        Image.fromarray(pixels).save(path)
    np.savez(tmp_path / "given.npz", image=inputs[0], meta=inputs[1], valid=inputs[2])
    arguments = [tmp_path / "moved", tmp_path / "given.npz", tmp_path / "out.npz", *paths]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JAX_NUM_CPU_DEVICES")
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, *map(str, arguments)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [rank for _, rank, *_ in lines[::5]] == ["family", "genus", "species"]
    result = load_npz(tmp_path / "out.npz")
    np.testing.assert_array_equal(result["pixels"], inputs[0])
    without = model.forward(inputs[0], np.zeros_like(inputs[1]), np.zeros_like(inputs[2]))
    with_some = model.forward(*inputs)
    for task in bundle.tasks:
        np.testing.assert_allclose(result[f"example/{task}"], without[task], rtol=0, atol=1e-5)
        np.testing.assert_allclose(result[f"5/{task}"], with_some[task], rtol=0, atol=1e-5)
        np.testing.assert_allclose(result[f"1/{task}"], with_some[task][:1], rtol=0, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(cases(), st.booleans())
def test_answers_are_those_of_the_bundle(case, counted):
    """Of the most probable path, or of a model whose training rows are not known at each rank."""
    taxonomy, tasks = case.taxonomy, case.taxonomy.tasks
    counts = {task: [3] * size for task, size in taxonomy.tree.num_classes.items()} if counted else {}
    calibration = Calibration(case.temperature, case.temperature, path_counts=counts)
    answers = Answers(taxonomy, calibration)
    options = answers.options(consistency="path" if counted else "documented", top_k=1)
    best, by_task = answers.probabilities(case.logits, options)
    found = best_classes(answer_settings(taxonomy, calibration), case.logits)
    for place, task in enumerate(tasks):
        classes, probability = found[taxonomy.ranks[task]]
        np.testing.assert_array_equal(classes, best[:, place])
        some = classes >= 0
        rows = np.flatnonzero(some)
        np.testing.assert_allclose(probability[some], by_task[task][rows, classes[some]], rtol=0, atol=1e-9)


def test_the_other_files(bundle, tmp_path, capsys):
    write_bundle(bundle, tmp_path / "bundle")
    out = tmp_path / "out"
    assert export.main([str(tmp_path / "bundle"), str(out), "--platforms", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "for cpu" in printed
    readable = readable_until(date.today())
    assert readable in printed
    assert readable in (out / README).read_text("utf-8")
    assert {path.name for path in out.iterdir()} == {PROGRAM, CLASSES, EXAMPLE, PIXELS, ANSWERS, README, WEIGHTS}
    about = json.loads((out / CLASSES).read_text())
    assert [rank["rank"] for rank in about["ranks"]] == ["family", "genus", "species"]
    assert about["ranks"][2]["classes"][3] == {
        "taxon_id": 13,
        "name": "Passer domesticus",
        "common_name": "",
        "parent": 2,
    }
    assert about["metadata"][0] == {"name": "TEMPORAL", "columns": ["month_sin", "month_cos"]}
    state = read_state(out / WEIGHTS)
    assert state.facts["step"] == 7
    assert state.facts["image"]["size"] == [*bundle.preprocessing.size]
    params = params_from_torch(state.arrays, bundle.variables["params"])
    np.testing.assert_array_equal(
        params["head"]["taxa_L10"]["fc"]["kernel"], bundle.variables["params"]["head"]["taxa_L10"]["fc"]["kernel"]
    )
    assert export.main([str(tmp_path / "bundle"), str(out)]) == 2
    assert "holds an export; replace it with --force" in capsys.readouterr().err
    assert export.main([str(tmp_path / "bundle"), str(tmp_path / "bundle"), "--force"]) == 2
    assert "exists and is no export" in capsys.readouterr().err
    assert export.main([str(tmp_path / "bundle"), str(tmp_path / "b"), "--platforms", "cpu,npu"]) == 2
    assert "platforms npu: choose among cpu, cuda" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_it_is_said_until_when_a_program_is_read():
    text = readable_until(date(2026, 9, 30))
    assert f"made by jax {jax.__version__}, which reads it for good" in text
    assert "before 2027-03-31." in text
    assert text.endswith("weights.safetensors does not expire")


def test_a_program_that_has_expired_is_one_line(bundle, tmp_path, monkeypatch, capsys):
    """As jax from 0.11.1 on says it."""

    def expired(_: bytearray) -> None:
        raise ValueError("Exported being deserialized seems to be older than the 6-month\nwindow.")

    (tmp_path / EXAMPLE).write_text(exporting._example(bundle, exporting._BY_JAX), encoding="utf-8")
    (tmp_path / PROGRAM).write_bytes(b"program")
    (tmp_path / PIXELS).write_text("read_all = None")
    (tmp_path / ANSWERS).write_text("best_classes = None")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jax_export, "deserialize", expired)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / EXAMPLE))
    line = str(ended.value)
    assert "\n" not in line
    assert "6-month window." in line
    assert f"pip install jax=={jax.__version__}, or export the model again" in line


def test_what_cannot_be_exported(bundle, tmp_path):
    with pytest.raises(UserError, match=r"platforms \(none\): choose among"):
        exported_program(bundle, ())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="exists and is no export"):
        write_export(bundle, tmp_path / "file", force=True)
    assert (tmp_path / "file").read_text() == "mine"
