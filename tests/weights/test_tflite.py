"""Files of TensorFlow Lite: what is read, what is refused, and a MobileNetV2 of them.

Published files are compared where LINNAEUS_WEIGHTS names the directory that holds them; see `make_references`.
"""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.weights.adopting import known_as, needs_of
from linnaeus_jax.weights.files import GRAPH, StateFile, read_state
from linnaeus_jax.weights.formats.base import format_of
from linnaeus_jax.weights.formats.mobilenet_v2_tflite import layers
from linnaeus_jax.weights.importing import read_pretrained
from linnaeus_jax.weights.targets import targets_of
from linnaeus_jax.weights.tflite_files import Graph, Operation
from tests import needs
from tests.weights.helpers import CLASSES, model_of, section, trees
from tests.weights.make_references import EVERY, drawn_pictures, real_pictures
from tests.weights.tflite_maker import write_tflite

RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
BIAS = RNG.integers(-99, 99, 4).astype(np.int32)
KEYS = {"type": "EfficientNet", "variant": "mobilenet_v2"}


def refusal(path) -> str:
    with pytest.raises(UserError) as caught:
        read_state(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


# ---- the file


def test_arrays_are_dequantised(tmp_path):
    file = read_state(write_tflite(tmp_path / "x.tflite", WEIGHTS, BIAS))
    assert list(file.arrays) == ["0/CONV_2D/weights", "0/CONV_2D/biases"]
    weights = file.arrays["0/CONV_2D/weights"]
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, (WEIGHTS.transpose(0, 3, 1, 2).astype(float) - 3) * 0.5)
    np.testing.assert_array_equal(file.arrays["0/CONV_2D/biases"], BIAS * 0.5)
    assert file.metadata[GRAPH] == Graph((Operation("CONV_2D", (2, 2), "same", "relu6"),), (8, 8), 2**-7, 128)
    file = read_state(write_tflite(tmp_path / "y.tflite", WEIGHTS, BIAS, scales=[0.5, 1.0, 2.0], input_kind=9))
    along = (WEIGHTS.astype(float) - 3) * [0.5, 1.0, 2.0]
    np.testing.assert_array_equal(file.arrays["0/CONV_2D/weights"], along.transpose(0, 3, 1, 2))
    assert file.metadata[GRAPH].zero_point == 256, "of signed pixels"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"shape": (4, 3, 3, 4)}, "has 108 bytes instead of 144"),
        ({"shape": (2**30, 2**30, 2**30, 3)}, "has 108 bytes"),
        ({"shape": (-4, 3, 3, -3)}, "has the shape"),
        ({"shape": (108,)}, "weights of operation 0 have the shape"),
        ({"kind": 5}, "is of type 5"),
        ({"kind": 2}, "has 108 bytes instead of 432"),
        ({"graphs": 2}, "has 2 graphs"),
    ],
)
def test_what_cannot_be_is_named(tmp_path, changed, words):
    assert words in refusal(write_tflite(tmp_path / "x.tflite", WEIGHTS, BIAS, **changed))


def test_values_that_are_not_finite_are_refused(tmp_path):
    assert "NaN or infinity" in refusal(write_tflite(tmp_path / "x.tflite", WEIGHTS, BIAS, scale=float("nan")))


def test_any_damage_is_a_message(tmp_path):
    """Cuts and wrong bytes, big offsets and lengths among them: a line each, at once, in little memory."""
    path = write_tflite(tmp_path / "x.tflite", WEIGHTS, BIAS)
    whole, rng = path.read_bytes(), np.random.default_rng(1)
    damaged = [whole[:length] for length in range(0, len(whole) - 1, 29)]
    values = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x00\x00\x01\x00")
    for at in range(0, len(whole) - 4, 8):
        damaged.append(whole[:at] + values[at // 8 % 4] + whole[at + 4 :])
    for _ in range(40):
        changed = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            changed[at] = rng.integers(256)
        damaged.append(bytes(changed))
    tracemalloc.start()
    refusals = []
    for content in damaged:
        path.write_bytes(content)
        try:
            read_state(path)
        except UserError as error:
            refusals.append(str(error))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(refusals) > len(damaged) // 3
    assert all(len(text) < 400 and "\n" not in text for text in refusals)
    assert peak < 20e6


@pytest.mark.parametrize(
    "content", [b"", b"TFL3", b"\0" * 4 + b"TFL3", b"\x1c\0\0\0TFL3" + b"\xff" * 100, b"PK\3\4" * 30]
)
def test_what_is_no_such_file(tmp_path, content):
    path = tmp_path / "x.tflite"
    path.write_bytes(content)
    assert "cannot be read as .tflite" in refusal(path)


# ---- MobileNetV2


@pytest.fixture(scope="module")
def model():
    return model_of(section(**KEYS), size=64)


def file_of(model, *, size=224, classes=5, **changed) -> StateFile:
    """What reading a MobileNetV2 gives; `changed`: place -> another operation."""
    targets, arrays, operations = targets_of(model), {}, []
    rng = np.random.default_rng(0)
    for place, (convolution, norm, operation) in enumerate(layers()):
        operations.append(operation)
        arrays[f"{place}/{operation.kind}/weights"] = rng.normal(size=targets[f"{convolution}.weight"].shape)
        arrays[f"{place}/{operation.kind}/biases"] = rng.normal(size=targets[f"{norm}.bias"].shape)
    last = len(operations)
    arrays |= {
        f"{last}/FULLY_CONNECTED/weights": np.ones((classes, 1280)),
        f"{last}/FULLY_CONNECTED/biases": np.ones(classes),
    }
    operations += [Operation("FULLY_CONNECTED"), Operation("SOFTMAX")]
    for key, operation in changed.items():
        operations[int(key.removeprefix("at"))] = operation
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return StateFile(Path("x.tflite"), "0" * 64, arrays, {GRAPH: Graph(tuple(operations), (size, size), 2**-7, 128)})


def taken(file, model, **keys):
    return read_pretrained(section(**{**KEYS, "pretrained": str(file.path), **keys}), model, CLASSES, file)


def test_folded_norms_become_biases(model):
    file = file_of(model)
    done = taken(file, model)
    assert not done.problems
    np.testing.assert_array_equal(done.arrays["_conv_stem.weight"], file.arrays["0/CONV_2D/weights"])
    np.testing.assert_array_equal(done.arrays["_blocks.0._bn1.bias"], file.arrays["1/DEPTHWISE_CONV_2D/biases"])
    variance = done.arrays["_bn0.running_var"] + np.float32(1e-3)
    np.testing.assert_allclose(done.arrays["_bn0.weight"] / np.sqrt(variance), 1, rtol=1e-6)
    assert not done.arrays["_bn0.running_mean"].any()
    skipped = [row.name for row in done.coverage.rows if row.status == "skipped"]
    assert [name.split("/")[1] for name in skipped] == ["FULLY_CONNECTED"] * 2
    wanted = done.needs
    assert (wanted["model.variant"], wanted["data.img_size"], wanted["aug.mean"]) == (
        "mobilenet_v2",
        224,
        (128 / 255,) * 3,
    )
    assert wanted["aug.std"] == pytest.approx((128 / 255,) * 3)
    assert "model.efficientnet.nominal_size" not in wanted


def test_another_size_of_pictures_needs_its_padding(model):
    file = file_of(model, size=192)
    assert needs_of(file)["model.efficientnet.nominal_size"] == 192
    with pytest.raises(UserError, match=r"nominal_size = None .*: set model.efficientnet.nominal_size = 192"):
        taken(file, model)
    with pytest.raises(UserError, match=r"nominal_size = 192 does not fit .* for 224 px"):
        taken(file_of(model), model, efficientnet__nominal_size=192)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"at1": Operation("DEPTHWISE_CONV_2D", (2, 2), "same", "relu6")},
            "operation 1 is DEPTHWISE_CONV_2D",
        ),
        ({"at0": Operation("CONV_2D", (2, 2), "valid", "relu6")}, "operation 0 is CONV_2D (stride 2x2, padding valid"),
        ({"at2": Operation("CONV_2D", (1, 1), "same", "another")}, "activation another"),
        ({"at53": Operation("LSTM")}, "it has the operation LSTM"),
    ],
)
def test_another_network_is_refused(model, changed, words):
    with pytest.raises(UserError, match="is no MobileNetV2 of width 1") as caught:
        taken(file_of(model, **changed), model)
    assert words in str(caught.value)


# ---- published files

#: photographs that are compared
ROWS = 48


def published() -> list[Path]:
    return needs.published("LINNAEUS_WEIGHTS", "mobilenet_v2_*.tflite")


@pytest.mark.slow
@pytest.mark.needs("weights")
@pytest.mark.parametrize("name", ["inat_bird_quant", "inat_insect_quant", "quant"])
def test_features_and_best_class_are_those_of_the_reference(fixtures, name):
    with np.load(fixtures / f"reference_mobilenet_v2_1.0_224_{name}.npz") as file_of_reference:
        reference = dict(file_of_reference)
    path = next(path for path in published() if path.stem == f"mobilenet_v2_1.0_224_{name}")
    file = read_state(path)
    assert getattr(known_as(file.sha256), "name", "") == path.name
    kind: Any = format_of(file)
    pictures, (weight, bias) = kind.preprocessing(file), kind.classifier(file)
    assert pictures is not None
    model = model_of(section(**KEYS), size=pictures.size[0], components=())
    params, state = taken(file, model).merged(*trees(model))
    variables = {"params": params, **state}

    @jax.jit
    def run(x):
        return model.apply(variables, normalize(x, pictures.mean, pictures.std), method="encode_image")

    given = {"drawn": drawn_pictures(pictures.size[0])}
    if directory := os.environ.get("LINNAEUS_PICTURES"):
        given["real"] = real_pictures(Path(directory), pictures.size[0])[:ROWS]
    for drawn, pixels in given.items():
        wanted = {name.removeprefix(f"{drawn}_"): rows[: len(pixels)] for name, rows in reference.items()}
        features = np.concatenate([run(pixels[start : start + 8]) for start in range(0, len(pixels), 8)])
        scale = wanted["largest"][:, None]
        assert np.abs(features[:, ::EVERY] - wanted["features"]).max() <= 1e-4 * scale.min()
        logits = features @ weight.T + bias
        np.testing.assert_array_equal(logits.argmax(axis=1), wanted["best"])
        np.testing.assert_allclose(logits.max(axis=1), wanted["logit"], rtol=1e-4)
