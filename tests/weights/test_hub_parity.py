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
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.names import params_to_torch
from linnaeus_jax.run.pretrained import set_needs
from linnaeus_jax.weights.adopting import needs_of
from linnaeus_jax.weights.files import StateFile, read_state
from linnaeus_jax.weights.formats.base import format_of
from linnaeus_jax.weights.hub_settings import DESCRIPTIONS
from linnaeus_jax.weights.importing import Import, read_pretrained
from tests.weights.helpers import CLASSES, trees
from tests.weights.make_hub_fixtures import SIZES, draw, pictures

#: the others are slow to compile
FAST_ONES = ("timm", "authors", "torchvision", "transformers_dinov3", "timm_v2", "authors_v2")
SLOW_ONES = (
    *("timm_conv_mlp", "timm_hnf", "timm_mlp", "timm_ols", "timm_overlap", "timm_overlap_act", "timm_trial"),
    *("transformers", "transformers_v2", "open_clip"),
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
    adopted = set_needs(config, needs_of(file))
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
        check_way_back(file, model, done, params_to_torch(params) | params_to_torch(state.get("batch_stats", {})))
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


def check_way_back(file: StateFile, model: ModelFamily, done: Import, arrays: dict[str, Any]) -> None:
    """An export has the names and shapes of the source, and all of what was taken."""
    back = format_of(file).restored(file, model, arrays)
    assert {*file.arrays} - {*back} == {row.name for row in done.coverage.of("skipped")}
    for name, array in back.items():
        np.testing.assert_array_equal(array, file.arrays[name], err_msg=name)


@pytest.mark.parametrize("name", KINDS)
def test_convnext_computes_what_its_source_computes(fixtures, tmp_path, name):
    source = recorded(fixtures, name)
    print(f"{name}: {check(source.write(tmp_path), source.outputs):.1e}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet_tf_lite", "efficientnet_lite", "efficientnet_tf_b0"])
def test_efficientnet_computes_what_timm_computes(fixtures, tmp_path, name):
    source = recorded(fixtures, name)
    print(f"{name}: {check(source.write(tmp_path), source.outputs):.1e}")


# ---- files that do not fit


def refusal(path: Path, **keys: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **keys)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 800
    assert str(path.parent) in text
    return text


@pytest.mark.needs("torch")
def test_a_file_is_recognised_with_the_wrapper_of_its_authors(fixtures, tmp_path):
    import torch

    arrays = recorded(fixtures, "authors_v2").arrays
    path = tmp_path / "x.pth"
    torch.save({"model": {name: torch.from_numpy(array) for name, array in arrays.items()}, "epoch": 3}, path)
    _, _, done = read(path)
    assert not done.problems
    assert any("the authors" in note for note in done.notes)
    assert {row.name for row in done.coverage.of("skipped")} == {"head.weight", "head.bias"}
    assert done.coverage.summary().startswith(f"{len(arrays) - 2} of {len(arrays) - 2 + 4} arrays")


def test_names_licence_and_what_is_left_out_are_recorded(fixtures, tmp_path):
    source = recorded(fixtures, "open_clip")
    _, _, done = read(source.write(tmp_path, **{"text.more.weight": np.ones(2, np.float32)}))
    notes = {row.note for row in done.coverage.of("skipped")}
    assert notes == {"of the text tower, a projection or another network beside it"}
    assert not done.problems
    (tmp_path / "open_clip_config.json").unlink()
    _, _, done = read(recorded(fixtures, "timm").write(tmp_path))
    assert (done.name, done.licence) == ("convnext_tiny", "mit")


def test_a_file_without_the_norm_after_the_last_stage(fixtures, tmp_path):
    """Such are those of masked pretraining."""
    names = ("norm.weight", "norm.bias", "head.weight", "head.bias")
    path = recorded(fixtures, "authors_v2").write(tmp_path, **dict.fromkeys(names))
    _, _, done = read(path)
    assert not done.problems
    assert {row.name for row in done.coverage.of("initial") if not row.name.startswith("head.")} == {*names[:2]}
    assert format_of(read_state(path)).classifier(read_state(path)) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stages.3.blocks.0.mlp.fc1.bias": None}, "missing in the file: stages.3.0.pwconv1.bias"),
        (
            {"stem.0.bias": np.ones(3, np.float32)},
            "of another shape: downsample_layers.0.0.bias (from stem.0.bias; (3,) in the file, (8,)",
        ),
        ({"stages.2.blocks.1.conv_dw.weight": np.ones((), np.float32)}, "of another shape: stages.2.1.dwconv.weight"),
        (
            {"stages.0.blocks.0.attn.qkv.weight": np.ones(3, np.float32)},
            "unknown to the model: stages.0.blocks.0.attn.qkv",
        ),
        ({"norm.weight": np.ones(24, np.float32)}, "unknown to the model: norm.weight"),
        ({"stages.0.blocks.0.norm.bias": None, "stem.1.bias": None}, "missing in the file: downsample_layers.0.1.bias"),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(fixtures, tmp_path, changed, words):
    assert words in refusal(recorded(fixtures, "timm").write(tmp_path, **changed))


def test_a_truncated_file(fixtures, tmp_path):
    path = recorded(fixtures, "timm").write(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    assert "truncated" in refusal(path)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"variant": "atto"}, "model.convnext_stages.dims"),
        ({"type": "mFormerV1", "variant": "tiny"}, "looks like ConvNeXt, but model.type is 'mFormerV1'"),
    ],
)
def test_another_model_is_told(fixtures, tmp_path, keys, words):
    file, model, _ = read(recorded(fixtures, "timm").write(tmp_path))
    config = get_config()
    for key, value in {"type": "ConvNeXt", "pretrained": str(file.path), **keys}.items():
        config.model[key] = value
    with pytest.raises(UserError) as caught:
        read_pretrained(config.model, model, CLASSES, file)
    assert words in str(caught.value)
    assert "pretrained_source = 'stitched" in str(caught.value) or "set model." in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"architecture": "vit_base_patch16_224"}, "describes 'vit_base_patch16_224', but"),
        ({"num_classes": 1000}, "speaks of 1000 classes, but the classifier of"),
        ({"model_args": {"dims": [96, 192, 384, 768]}}, "dims = (96, 192, 384, 768), but the arrays of"),
        ({"model_args": {"depths": [3, 3, 9, 3]}}, "depths = (3, 3, 9, 3), but the arrays of"),
        ({"model_args": {"use_grn": True}}, "use_grn = True, but the arrays of"),
        ({"model_args": {"norm_eps": "small"}}, "norm_eps = 'small' is not a number above 0"),
        ({"model_args": {"act_layer": "relu"}}, "the activation 'relu' is none of gelu"),
        ({"model_args": {"output_stride": 16}}, "output_stride = 16 is not computed here, 32 alone is"),
    ],
)
def test_a_description_of_something_else(fixtures, tmp_path, changed, words):
    path = recorded(fixtures, "timm").write(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    assert words in refusal(path)


def test_an_efficientnet_of_timm_alone_asks_for_its_padding(fixtures, tmp_path):
    source = recorded(fixtures, "efficientnet_lite")
    path = source.write(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "set model.efficientnet.padding, to 'same' where its name begins with tf_" in refusal(path)
    config = get_config()
    config.model.efficientnet.padding = "symmetric"
    _, model, done = read(path, efficientnet=config.model.efficientnet)
    assert not done.problems
    assert model.conv_padding == "symmetric"
    (tmp_path / "config.json").write_text('{"architecture": "convnext_tiny"}')
    assert "describes 'convnext_tiny', but" in refusal(path)
