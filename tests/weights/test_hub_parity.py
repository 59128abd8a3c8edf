"""Networks of timm, transformers, torchvision and OpenCLIP compute here what they compute there.

Small networks with drawn weights were recorded by `make_hub_fixtures`; each file is read as a user's: recognised by its
names, its needs taken over into a default configuration.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from linnaeus_jax.config import get_config
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.weights.adopting import adopt, needs_of
from linnaeus_jax.weights.files import StateFile, read_state
from linnaeus_jax.weights.formats.base import format_of
from linnaeus_jax.weights.hub_settings import DESCRIPTIONS
from linnaeus_jax.weights.importing import Import, read_pretrained
from tests.weights.helpers import CLASSES, trees
from tests.weights.make_hub_fixtures import SIZES, draw, pictures

#: the others are slow to compile
FAST_ONES = ("timm", "authors", "torchvision", "transformers_dinov3", "timm_v2", "authors_v2", "open_clip")
SLOW_ONES = (
    *("timm_conv_mlp", "timm_hnf", "timm_mlp", "timm_ols", "timm_overlap", "timm_overlap_act", "timm_trial"),
    *("transformers", "transformers_v2"),
)
KINDS = [*FAST_ONES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ONES)]
FAST: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Recorded(NamedTuple):
    arrays: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    descriptions: dict[str, str]

    def write(self, directory: Path, **changed: Any) -> Path:
        """The file with its descriptions beside it; `changed` replaces arrays (None leaves one out)."""
        for name, text in self.descriptions.items():
            (directory / name).write_text(text)
        arrays = {name: array for name, array in (self.arrays | changed).items() if array is not None}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, directory / "w.safetensors")
        return directory / "w.safetensors"


def recorded(fixtures: Path, name: str) -> Recorded:
    with np.load(fixtures / f"hub_{name}.npz") as file:
        found = {key: file[key] for key in file}
    if "shapes" in found:
        arrays = draw({key: tuple(shape) for key, shape in json.loads(str(found["shapes"])).items()})
    else:
        weights = {key.removeprefix("weights/"): value for key, value in found.items() if key.startswith("weights/")}
        arrays = {key: value.astype(np.float32) if value.dtype.kind == "f" else value for key, value in weights.items()}
    texts = {key: str(found[key]) for key in DESCRIPTIONS if key in found}
    return Recorded(arrays, {key: value for key, value in found.items() if "its_" in key or "ures_" in key}, texts)


def read(path: Path, size: int = 64, **keys: Any) -> tuple[StateFile, ModelFamily, Import]:
    """The file, the model that it makes of a default configuration, and what is taken; `keys` of the section."""
    file, config = read_state(path), get_config()
    adopted = adopt(config, needs_of(file))
    assert not adopted.kept
    config.model.pretrained, config.model.depthwise_impl = str(path), "lax"
    for key, value in keys.items():
        config.model[key] = value
    model = build_model(
        config.model, components=(), num_classes={task: len(ids) for task, ids in CLASSES.items()}, img_size=size
    )
    return file, model, read_pretrained(config.model, model, CLASSES, file)


@functools.lru_cache
def compiled(model: ModelFamily) -> Any:
    """(variables, pictures) -> features; files of one network share it."""
    return jax.jit(lambda variables, x: model.apply(variables, x, method="encode_image"), compiler_options=FAST)


def check(path: Path, outputs: dict[str, np.ndarray], **keys: Any) -> float:
    """Compares features and logits; returns the largest relative difference."""
    worst = 0.0
    for size in SIZES:
        file, model, done = read(path, size, **keys)
        assert not done.problems
        params, state = done.merged(*trees(model))
        features = np.asarray(compiled(model)({"params": params, **state}, pictures(size)))
        classifier = format_of(file).classifier(file)
        pairs = [(features, outputs[f"features_{size}"])]
        if classifier is not None:
            pairs.append((features @ classifier[0].T + classifier[1], outputs[f"logits_{size}"]))
        for mine, theirs in pairs:
            theirs = theirs.reshape(mine.shape)
            worst = max(worst, float(np.abs(mine - theirs).max() / np.abs(theirs).max()))
    assert worst <= 1e-5
    return worst


@pytest.mark.parametrize("name", KINDS)
def test_convnext_computes_what_its_source_computes(fixtures, tmp_path, name):
    source = recorded(fixtures, name)
    print(f"{name}: {check(source.write(tmp_path), source.outputs):.1e}")


@pytest.mark.parametrize(
    "name",
    [
        "efficientnet_tf_lite",
        *(pytest.param(f"efficientnet_{name}", marks=pytest.mark.slow) for name in ("lite", "tf_b0")),
    ],
)
def test_efficientnet_computes_what_timm_computes(fixtures, tmp_path, name):
    source = recorded(fixtures, name)
    print(f"{name}: {check(source.write(tmp_path), source.outputs):.1e}")
