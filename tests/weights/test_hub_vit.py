"""Vision transformers of hubs: outputs as the sources' programs give them, what is taken, and the way back.

The outputs were recorded by `make_hub_fixtures_vit` from networks of two or three blocks with drawn weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.tree import assign
from linnaeus_jax.models.names import params_to_torch
from linnaeus_jax.run.pretrained import set_needs
from linnaeus_jax.weights.adopting import needs_of
from linnaeus_jax.weights.exporting import restored_state
from linnaeus_jax.weights.files import read_state, write_state
from linnaeus_jax.weights.formats import vit
from linnaeus_jax.weights.formats.base import format_of
from linnaeus_jax.weights.formats.vit import fields_of, usual_heads
from linnaeus_jax.weights.hub_settings import HubSettings
from linnaeus_jax.weights.importing import read_pretrained
from tests.weights.helpers import CLASSES, model_of, save_export, trees
from tests.weights.hub_vit import ROWS, SIZES, drawn_state, pictures

FIXTURE = Path(__file__).parents[1] / "fixtures" / "hub_vit.npz"
with np.load(FIXTURE) as _all:
    RECORDED = dict(_all)
CASES = sorted({key.partition("/")[0] for key in RECORDED})


class Published:
    """A file as its source has it, with its description beside it."""

    def __init__(self, case: str, directory: Path, **changed: Any) -> None:
        about = json.loads(str(RECORDED[f"{case}/about"]))
        self.case, self.keys, self.path = case, about["keys"], directory / "model.safetensors"
        self.arrays = drawn_state(about["names"]) | changed
        save_file({k: np.ascontiguousarray(v) for k, v in self.arrays.items() if v is not None}, self.path)
        for name, tree in about["description"].items():
            (directory / name).write_text(json.dumps(tree))
        self.file = read_state(self.path)

    def section(self, **keys: Any) -> Any:
        """The `model` section that a run with these weights has."""
        config = get_config()
        for key, value in {**self.keys, **keys, "pretrained": str(self.path)}.items():
            assign(config, ("model", *key.split(".")), value)
        set_needs(config, {key: value for key, value in needs_of(self.file).items() if key.startswith("model.")})
        for key, value in {**self.keys, **keys}.items():  # given by the user
            assign(config, ("model", *key.split(".")), value)
        return config.model

    def taken(self, size: int = 32, **keys: Any) -> tuple[Any, Any, Any]:
        """(model, import, parameters)."""
        section = self.section(**keys)
        model = model_of(section, size=size, components=())
        done = read_pretrained(section, model, CLASSES, self.file)
        return model, done, done.merged(*trees(model))[0]

    @property
    def classes(self) -> bool:
        """Whether a classifier was recorded, not a projection."""
        return {"head.weight", "classifier.weight"} & {*self.arrays} != set()

    def wanted(self, size: tuple[int, int], what: str = "features") -> Any:
        return RECORDED.get(f"{self.case}/{size[0]}x{size[1]}/{what}")


def off(found: Any, wanted: np.ndarray) -> float:
    return float(np.abs(np.asarray(found) - wanted).max() / np.abs(wanted).max())


def computed(model: Any, params: Any, *sizes: tuple[int, int]) -> list[np.ndarray]:
    """Features of the pictures of each size; one program, for what every program costs."""
    options: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    encode_all = jax.jit(
        lambda params, images: [model.apply({"params": params}, image, method="encode_image") for image in images],
        compiler_options=options,
    )
    return jax.device_get(encode_all(params, [pictures(size) for size in sizes]))


@pytest.mark.parametrize(("index", "case"), list(enumerate(CASES)), ids=CASES)
def test_outputs_are_those_of_the_source(tmp_path, index, case):
    """At one of three sizes in turn, the first of which is that which the networks were made for."""
    published = Published(case, tmp_path)
    model, done, params = published.taken()
    assert not done.problems
    classifier = format_of(published.file).classifier(published.file)
    size = SIZES[index % 3]
    (features,) = computed(model, params, size)
    assert features.shape[0] == ROWS
    assert off(features, published.wanted(size)) <= 1e-5
    if classifier is not None:
        logits = features @ classifier[0].T + classifier[1]
        assert off(logits, published.wanted(size, "logits")) <= 1e-5
    assert classifier is not None or not published.classes
    # nothing is lost on the way back
    restored = format_of(published.file).restored(published.file, model, params_to_torch(params))
    left = {row.name for row in done.coverage.of("skipped")}
    for name, array in restored.items():
        mask = published.arrays.get(f"{name}_mask", 1)
        np.testing.assert_array_equal(array, published.file.arrays[name] * mask, err_msg=name)
    masks = {name for name in published.arrays if name.endswith("bias_mask")}
    assert {*published.file.arrays} - {*restored} <= left | masks


@pytest.mark.parametrize("case", ["timm_augreg", "hf_clip", "meta_dinov2", "timm_registers_placed", "timm_dinov3"])
def test_a_model_of_another_picture_size_has_the_table_resized(tmp_path, case):
    published = Published(case, tmp_path)
    model, done, params = published.taken(size=24)
    assert off(computed(model, params, SIZES[2])[0], published.wanted(SIZES[2])) <= 1e-5
    (row,) = done.coverage.of("resized") or [None]
    assert (row is None) == (case == "timm_dinov3")
    if row is not None:
        assert row.name == "patch_embed.pos_embed"
        assert "4x4 to 3x3 positions" in row.note


@pytest.mark.parametrize("case", ["open_clip", "hf_clip"])
def test_the_projection_is_kept_where_the_model_has_one(tmp_path, case):
    published = Published(case, tmp_path)
    model, done, params = published.taken(**{"vit.projection": 24})
    assert off(computed(model, params, SIZES[0])[0], published.wanted(SIZES[0], "logits")) <= 1e-5
    skipped = {row.note for row in done.coverage.of("skipped")}
    assert skipped == {"of the text tower", "compares pictures with texts"}


def test_an_export_of_another_picture_size_is_resized_too(tmp_path):
    """By the names of this program."""
    section = Published("timm_augreg", tmp_path).section()
    model = model_of(section, components=())
    path = save_export(tmp_path / "own.safetensors", section, model, *trees(model))
    section.pretrained = str(path)
    larger = model_of(section, size=48, components=())
    done = read_pretrained(section, larger, CLASSES)
    assert [row.name for row in done.coverage.of("resized")] == ["patch_embed.pos_embed"]
    assert done.arrays["patch_embed.pos_embed"].shape == (1, 37, 32)


def test_an_export_can_have_the_names_of_its_source(tmp_path):
    published = Published("hf_siglip", tmp_path)
    model, _, params = published.taken()
    arrays = restored_state(model, "ViT", params_to_torch(params), str(published.path))
    assert {name for name in published.arrays if name.startswith("vision_model.")} == {*arrays}
    out = tmp_path / "out.safetensors"
    write_state(out, arrays, {})
    again = read_state(out)
    assert {name: array.shape for name, array in again.arrays.items()} == {n: arrays[n].shape for n in arrays}
    assert type(format_of(again)) is type(format_of(published.file))
    with pytest.raises(UserError, match=r"--like: .* is no file of a source of a EfficientNet"):
        restored_state(model, "EfficientNet", {}, str(published.path))


# ---- what arrays do not show


def test_what_nothing_says_is_asked_for(tmp_path):
    published = Published("open_clip_tower", tmp_path)
    published.keys = {}
    heads, activation = format_of(published.file).problems(published.file, published.section())
    assert "how many attention heads there are; set model.vit.num_heads (a divisor of 32)" in heads
    assert "model.vit.activation='quick_gelu'" in activation
    with pytest.raises(UserError, match=r"model\.vit\.activation='quick_gelu'"):
        published.taken(**{"vit.num_heads": 4})


def test_a_usual_number_of_heads_is_said_to_be_taken():
    arrays = {"patch_embed.pos_embed": np.zeros(1)}
    known = {384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 192: 3, 100: 0}
    assert {dim: usual_heads(arrays, dim) for dim in known} == known
    assert usual_heads({}, 1280) == 20  # DINOv3's


@pytest.mark.parametrize(
    ("case", "keys", "words"),
    [
        ("timm_augreg", {"vit.depth": 3}, ["model.vit.depth = 3 does not fit", "set model.vit.depth = 2"]),
        ("timm_augreg", {"vit.patch_size": 16}, ["set model.vit.patch_size = 8"]),
        ("timm_augreg", {"vit.registers": 1}, ["set model.vit.registers = 0"]),
        ("timm_dinov2_reg", {"vit.layer_scale": 0.0}, ["set model.vit.layer_scale = 1e-05"]),
        ("timm_dinov2_swiglu", {"vit.activation": "gelu"}, ["set model.vit.activation = 'swiglu'"]),
        ("timm_dinov3", {"vit.rope": ""}, ["set model.vit.rope = 'float32'"]),
        ("hf_clip", {"vit.pre_norm": False}, ["set model.vit.pre_norm = True"]),
    ],
)
def test_settings_that_do_not_fit_say_what_to_set(tmp_path, case, keys, words):
    with pytest.raises(UserError) as caught:
        Published(case, tmp_path).taken(**keys)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("case", ["timm_augreg", "hf_dinov2", "open_clip", "birder", "meta_dinov3_bfloat16"])
def test_unknown_arrays_are_an_error(tmp_path, case):
    with pytest.raises(UserError, match=r"unknown to the model: blocks\.0\.attn\.surprise"):
        Published(case, tmp_path, **{"blocks.0.attn.surprise": np.ones(3, np.float32)}).taken()


@pytest.mark.parametrize("shape", [(), (3,), (32, 31), (2, 32, 32)])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("hf_dinov2", "encoder.layer.1.attention.attention.key.weight"),
        ("meta_dinov3_bfloat16", "blocks.1.attn.qkv.bias"),
        ("timm_dinov2_reg", "reg_token"),
        ("timm_augreg", "pos_embed"),
        ("open_clip", "visual.proj"),
        ("hf_siglip", "vision_model.head.attention.in_proj_weight"),
        ("timm_dinov2_swiglu", "blocks.0.mlp.fc1.weight"),
        ("timm_augreg", "head.weight"),
    ],
)
def test_arrays_of_wrong_shapes_are_one_error_or_left_out(tmp_path, case, name, shape):
    published = Published(case, tmp_path, **{name: np.ones(shape, np.float32)})
    if name in ("head.weight", "visual.proj"):
        assert format_of(published.file).classifier(published.file) is None
        published.taken()
        return
    with pytest.raises(UserError):
        published.taken()


def test_a_missing_array_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"missing in the file: blocks\.1\.norm2\.weight"):
        Published("hf_dinov2", tmp_path, **{"encoder.layer.1.norm2.weight": None}).taken()


def test_a_text_tower_alone_is_refused_by_one_line(tmp_path):
    whole = Published("open_clip", tmp_path)
    for name in whole.file.arrays:
        if name.startswith("visual."):
            whole.arrays[name] = None
    save_file({k: v for k, v in whole.arrays.items() if v is not None}, whole.path)
    section = get_config().model
    section.type, section.variant, section.pretrained = "ViT", "tiny", str(whole.path)
    with pytest.raises(UserError, match="looks like a text tower") as caught:
        read_pretrained(section, model_of(section, components=()), CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "changed", "words"),
    [
        ("timm_augreg", {"pos_embed": None}, "a RoPE-ViT"),
        ("timm_eva", {"blocks.0.gamma_1": np.ones(32, np.float32)}, "a RoPE-ViT or BEiT"),
        ("timm_eva", {"blocks.0.attn.relative_position_bias_table": np.ones((52, 4), np.float32)}, "a BEiT"),
        ("timm_clip", {"norm.weight": None, "norm.bias": None}, "a Perception Encoder"),
        ("timm_siglip", {f"norm_pre.{leaf}": np.ones(32, np.float32) for leaf in ("weight", "bias")}, "a Perception"),
    ],
)
def test_what_no_array_shows_is_no_guess(tmp_path, case, changed, words):
    with pytest.raises(UserError, match=f"looks like {words}"):
        Published(case, tmp_path, **changed).taken()


@pytest.mark.parametrize(
    ("case", "said", "words"),
    [
        ("timm_augreg", {"architecture": "beitv2_base_patch16_224"}, "looks like a BEiT"),
        ("timm_augreg", {"architecture": "vit_small_patch16_rope_ape_224"}, "looks like a RoPE-ViT"),
        ("timm_augreg", {"architecture": "vit_base_patch16_rpn_224"}, "norms behind its branches"),
        ("timm_eva", {"architecture": "eva02_enormous_patch14_clip_224"}, "norms behind its branches"),
        ("timm_clip", {"architecture": "vit_pe_spatial_base_patch16_512"}, "looks like a Perception Encoder"),
        ("timm_registers_placed", {"architecture": "test_vit3"}, "pooling reads the registers"),
        ("timm_augreg", {"model_args": {"img_size": [32, 64]}}, r"img_size = \[32, 64\] is no square"),
        ("timm_dinov3", {"model_args": {"rope_type": "dinov3", "rope_temperature": 50}}, "rope_temperature = 50"),
        ("timm_rope_gap", {"model_args": {"rope_temperature": 100}}, "rope_temperature = 100 is not computed here"),
        ("timm_rope_gap", {"model_args": {"use_rot_pos_emb": True, "rope_type": "mixed"}}, "rope_type = 'mixed'"),
        ("timm_eva02_tiny", {"model_args": {"ref_feat_shape": [16, 8]}}, r"ref_feat_shape = \[16, 8\] is no square"),
        ("hf_dinov3", {"rope_theta": 50.0}, "rope_theta = 50.0 is not computed here, 100 is"),
    ],
)
def test_a_description_of_what_is_not_computed_here_is_refused(tmp_path, case, said, words):
    published = Published(case, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | said))
    with pytest.raises(UserError, match=words):
        published.taken()


@pytest.mark.parametrize(
    ("case", "architecture", "heads", "activation"),
    [
        ("timm_clip", "vit_base_patch16_clip_quickgelu_224", None, "quick_gelu"),
        ("timm_clip", "vit_base_patch16_clip_224", None, "gelu"),
        ("timm_siglip", "vit_base_patch16_siglip_224", None, "gelu"),
        ("timm_siglip", "vit_large_patch16_siglip_512", None, "gelu_tanh"),
        ("timm_siglip", "vit_giantopt_patch16_siglip_gap_256", 16, "gelu_tanh"),
        ("timm_augreg", "vit_base_patch16_gap_224", 16, "gelu"),
        ("timm_augreg", "test_vit2", 2, "gelu"),
    ],
)
def test_a_name_of_timm_says_what_its_arrays_do_not(tmp_path, case, architecture, heads, activation):
    published = Published(case, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": architecture}))
    fields = fields_of(published.file)
    assert (fields.get("num_heads"), fields["activation"]) == (heads, activation)


@pytest.mark.parametrize("case", ["timm_clip", "timm_siglip"])
def test_an_activation_that_nothing_says_is_asked_for(tmp_path, case):
    published = Published(case, tmp_path)
    (tmp_path / "config.json").unlink()
    assert "activation" not in fields_of(published.file)
    published.keys = {"vit.num_heads": 4}
    with pytest.raises(UserError, match=r"does not say whether GELU is plain .*set model\.vit\.activation"):
        published.taken()


def test_the_classifier_of_another_pooling_is_not_taken(tmp_path):
    published = Published("hf_vit", tmp_path)
    assert format_of(published.file).classifier(published.file) is not None
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["CLIPForImageClassification"]}))
    assert format_of(published.file).classifier(published.file) is None


def test_a_description_with_a_pooling_that_is_not_here_is_refused(tmp_path):
    published = Published("timm_augreg", tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(description | {"global_pool": "avgmax"}))
    with pytest.raises(UserError, match=r"config.json: features are pooled by 'avgmax'; this program has token, avg"):
        published.taken()


def test_tokens_without_places_are_what_the_description_says():
    """25 places may be of 5 x 5 patches, or of 4 x 4 and 9 tokens."""
    said = HubSettings(model={"no_embed_class": True})
    assert [vit._placed(np.zeros((1, 25, 8)), True, 8, each) for each in (HubSettings(), said)] == [9, 0]
