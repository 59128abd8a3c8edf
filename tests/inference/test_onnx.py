"""ONNX programs: the logits of this program in another runtime, or a refusal."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from PIL import Image

import linnaeus_jax.inference.model
from linnaeus_jax.config import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference import onnx_program
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.files import onnx_int8
from linnaeus_jax.inference.files.exporting import CLASSES, EXAMPLE, ONNX, ONNX_EXAMPLE, ONNX_INT8
from linnaeus_jax.inference.forward import BLOCK, FUSED, TRUNK, Forward, layers_of
from linnaeus_jax.inference.model import load
from linnaeus_jax.inference.onnx_forward import OnnxForward, in_onnxruntime
from linnaeus_jax.inference.quality.features import outside_block
from linnaeus_jax.models.names import initial_variables
from linnaeus_jax.registry import MODELS
from linnaeus_jax.tools import export
from tests.models.builds import build


@settings(max_examples=30)
@given(st.integers(3, 9), st.integers(3, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.data())
def test_maxima_over_windows(height, width, window, stride, border, data):
    x = np.asarray(data.draw(st.randoms()).choices(range(-9, 9), k=2 * height * width), np.float32)
    shape: dict[str, Any] = {"window_dimensions": (1, window, window, 1), "window_strides": (1, stride, stride, 1)}
    border = min(border, window - 1)
    shape["padding"] = ((0, 0), (border, border), (border, 0), (0, 0))
    array = jnp.asarray(x.reshape(2, height, width, 1))
    found = onnx_program._largest_of_windows(array, **shape)
    np.testing.assert_array_equal(found, lax.reduce_window(array, -np.inf, lax.max, *shape.values()))


def test_what_is_missing_is_said_before_anything_is_read(tmp_path, monkeypatch, capsys):
    def without(name: str) -> object:
        raise ModuleNotFoundError("no", name=name)

    monkeypatch.setattr(importlib, "import_module", without)
    assert export.main([str(tmp_path / "gone"), str(tmp_path / "out"), "--onnx"]) == 2
    said = capsys.readouterr().err
    assert said == f"ONNX needs onnxruntime: {onnx_program.INSTALL}\n"
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def program(bundle) -> bytes:
    return onnx_program.onnx_program(bundle, '{"a": 1}', (FUSED,))


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_it_gives_our_logits_for_any_number_of_rows(program, bundle, model, pictures):
    there = onnx_program.session(program)
    assert there.get_modelmeta().custom_metadata_map["linnaeus_jax"] == '{"a": 1}'
    assert [each.name for each in there.get_inputs()] == ["image", "meta", "meta_valid"]
    rng = np.random.default_rng(0)
    for rows in (1, 7):
        image = model.read(list(pictures.pixels[:rows]))
        meta = rng.uniform(-1, 1, (rows, bundle.encoder.width)).astype(np.float32)
        valid = rng.random((rows, len(bundle.encoder.components))) < 0.5
        found = there.run(list(bundle.tasks), {"image": image, "meta": meta, "meta_valid": valid})
        for task, logits in zip(bundle.tasks, found, strict=True):
            np.testing.assert_allclose(logits, model.forward(image, meta, valid)[task], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_wrong_translation_is_refused(program, bundle):
    params = jax.tree.map(np.copy, bundle.variables["params"])
    params["head"][bundle.tasks[0]]["fc"]["kernel"][0, 1] += 1e-2
    other = dataclasses.replace(bundle, variables={"params": params})
    assert onnx_program.check(program, bundle, (FUSED,)) < 1e-5
    with pytest.raises(UserError, match=f"differs by .* at {bundle.tasks[0]}, more than 1e-04"):
        onnx_program.check(program, other)
    params["head"][bundle.tasks[0]]["fc"]["kernel"][0, 1] = np.nan
    with pytest.raises(UserError, match="differs by nan"):
        onnx_program.check(program, other)


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_bundle_with_a_program_answers_by_it(program, bundle, model, pictures, tmp_path):
    """Metadata of some pictures, more pictures than are computed at once, and vectors, also those that it lacks."""
    write_bundle(dataclasses.replace(bundle, onnx=program), tmp_path / "bundle")
    other = load(tmp_path / "bundle", buckets=(4,), runtime="onnx")
    assert isinstance(other.forward, OnnxForward)
    assert type(load(tmp_path / "bundle", runtime="xla").forward) is Forward
    assert type(load(tmp_path / "bundle").forward) is Forward  # which is faster with this family
    known: dict[str, Any] = {"latitude": [48.2, None] * 5, "longitude": [16.4, None] * 5}
    found, expected = (each.predict(list(pictures.pixels[:10]), **known) for each in (other, model))
    for one, two in zip(found, expected, strict=True):
        assert [step.taxon_id for step in one.path] == [step.taxon_id for step in two.path]
        probabilities = np.array([[step.probability for step in each.path] for each in (one, two)])
        np.testing.assert_allclose(probabilities[0], probabilities[1], rtol=0, atol=1e-4)
    for chosen in (True, False):
        vectors, wanted = (
            each.embed(list(pictures.pixels[:10]), with_metadata=chosen, **known) for each in (other, model)
        )
        np.testing.assert_allclose(vectors, wanted, rtol=0, atol=1e-4)
    with_vectors = other.giving(FUSED, logits=True)
    assert isinstance(with_vectors, OnnxForward)
    assert {*with_vectors(*with_vectors.zeros(3))} == {*bundle.tasks, FUSED}
    assert with_vectors.width(FUSED) == 16
    assert type(other.giving(TRUNK)) is Forward
    assert other.predict([]) == []


def test_a_runtime_that_cannot_be_is_one_line(bundle, monkeypatch):
    with pytest.raises(UserError, match=r"--runtime tensorrt is unknown; choose one of auto, xla, onnx"):
        in_onnxruntime(bundle, "tensorrt")
    with pytest.raises(UserError, match=r"--runtime onnx: small holds no ONNX program; make .* with --onnx"):
        in_onnxruntime(bundle, "onnx")
    assert not in_onnxruntime(bundle, "auto")
    holding = dataclasses.replace(bundle, onnx=b"x", settings={"type": "EfficientNet"})
    for found in (None, "onnxruntime"):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        assert in_onnxruntime(holding, "auto") == (found is not None)
        assert not in_onnxruntime(dataclasses.replace(holding, settings={"type": "ViT"}), "auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--runtime onnx: onnxruntime is not installed; pip install"):
        in_onnxruntime(holding, "onnx")
    assert not in_onnxruntime(holding, "auto")


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_strange_program_is_one_line(bundle):
    fewer: Any = SimpleNamespace(tasks=bundle.tasks[1:])
    less = onnx_program.onnx_program(dataclasses.replace(bundle, taxonomy=fewer), "")
    for content, says in ((b"x", "cannot be used: .*"), (less, f"does not give {bundle.tasks[0]}")):
        with pytest.raises(UserError, match=f"small: its ONNX program {says}; make .* again, or use --runtime xla"):
            OnnxForward(bundle, content, (4,))


@pytest.mark.slow
@pytest.mark.needs("onnx")
@pytest.mark.parametrize("family", [*MODELS])
@pytest.mark.parametrize("components", [(), (("TEMPORAL", 2), ("SPATIAL", 3))], ids=["alone", "with metadata"])
def test_every_family(bundle, family, components):
    """With the layers that a bundle of a run has; `onnx_program` compares them itself."""
    classes = {task: len(ids) for task, ids in bundle.taxonomy.classes.items()}
    model = build(type=family, components=components, num_classes=classes, img_size=32, **ALSO.get(family, {}))
    other = dataclasses.replace(bundle, model=model, variables=initial_variables(model, jax.random.key(0)))
    block = outside_block(model, "full")
    layers = [*layers_of(model), *([] if block is None else [f"{BLOCK}{block}"])]
    there = onnx_program.session(onnx_program.onnx_program(other, "", layers))
    assert len(there.get_inputs()) == (3 if components else 1)
    assert [output.name for output in there.get_outputs()] == [*other.tasks, *layers]


#: scanned layers, which are translated one by one
ALSO: dict[str, dict[str, Any]] = {"ConvNeXt": {"variant": "test"}, "mFormerV1": {"scan_layers": True}}


def test_what_cannot_be_quantized_is_one_line(bundle, tmp_path, pictures, capsys):
    write_bundle(bundle, tmp_path / "bundle")
    Image.fromarray(pictures.pixels[0]).save(tmp_path / "one.png")
    with pytest.raises(UserError, match=r"--int8 .*one.png: 1 images can be read; .* at least 20"):
        onnx_int8.read_images([str(tmp_path / "one.png")], bundle.preprocessing)
    given = [str(tmp_path / "bundle"), str(tmp_path / "out"), "--int8", str(tmp_path / "one.png")]
    assert export.main(given) == 2
    assert capsys.readouterr().err == "--int8 is another form of the ONNX program; give --onnx, too\n"


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_quantized_convolutions_answer_alike_in_a_quarter_of_the_bytes(bundle, tmp_path, pictures, monkeypatch, capsys):
    classes = {task: len(ids) for task, ids in bundle.taxonomy.classes.items()}
    components = tuple((each.name, len(each.columns)) for each in bundle.encoder.components)
    model = build(type="EfficientNet", variant="lite0", components=components, num_classes=classes, img_size=32)
    settings = get_config().model
    settings.type, settings.variant = "EfficientNet", "lite0"
    variables = initial_variables(model, jax.random.key(0))
    other = dataclasses.replace(bundle, model=model, variables=variables, settings=settings)
    monkeypatch.setattr(linnaeus_jax.inference.model, "read_bundle_or_run", lambda *_: other)
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / f"{number}.png")
    out = tmp_path / "out"
    assert export.main(["-", str(out), "--onnx", "--int8", str(tmp_path), "--platforms", "cpu"]) == 0
    agreement = [float(share) for share in re.findall(r"([\d.]+) % of the", capsys.readouterr().out)]
    assert len(agreement) == len(classes)
    assert min(agreement) >= 60  # of random weights, whose best classes are close to each other
    whole, small = ((out / name).read_bytes() for name in (ONNX, ONNX_INT8))
    assert len(small) < 0.35 * len(whole)
    image = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    known = {"meta": np.zeros((3, model.meta_dim), np.float32), "meta_valid": np.zeros((3, len(components)), bool)}
    logits = (onnx_program.session(each).run(list(classes), {"image": image, **known}) for each in (whole, small))
    for one, two in zip(*logits, strict=True):
        assert 0 < np.abs(one - two).max() < 0.3 * np.abs(one).max()


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_the_example_answers_as_that_of_jax_does(bundle, tmp_path, pictures):
    """Where neither this package nor jax can be imported."""
    write_bundle(bundle, tmp_path / "bundle")
    out = tmp_path / "out"
    assert export.main([str(tmp_path / "bundle"), str(out), "--onnx"]) == 0
    about = onnx_program.session((out / ONNX).read_bytes()).get_modelmeta().custom_metadata_map["linnaeus_jax"]
    assert json.loads(about) == json.loads((out / CLASSES).read_text())
    paths = [str(tmp_path / f"{number}.png") for number in range(5)]
    for path, pixels in zip(paths, pictures.pixels):
        Image.fromarray(pixels).save(path)
    answers = []
    for example, hidden in ((ONNX_EXAMPLE, ("linnaeus_jax", "jax")), (EXAMPLE, ("linnaeus_jax",))):
        program = (
            f"import runpy, sys; sys.modules.update(dict.fromkeys({hidden})); sys.argv = sys.argv[1:]; "
            f"sys.path.insert(0, {str(out)!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        command = [sys.executable, "-c", program, str(out / example), *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        answers.append(([line[:4] for line in lines], [float(line[4]) for line in lines]))
    (names, probabilities), (expected, wanted) = answers
    assert names == expected
    assert len(names) == 15
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=1e-3)
