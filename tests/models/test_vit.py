"""What ViT adds to the contract: metadata as tokens or late, where it is cut, and settings that do not fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.factory import split_block
from linnaeus_jax.models.names import abstract_variables, initial_variables, named_leaves, trained_from
from tests.models.builds import build
from tests.models.test_contract import COMPONENTS, SIZE, TASKS, jit, random_variables

GIVEN: dict[str, Any] = {"components": COMPONENTS, "num_classes": TASKS, "img_size": SIZE}
#: one block at patches of 32, whatever else is set
SMALL: dict[str, Any] = {"type": "ViT", "vit__patch_size": 32, "vit__depth": 2, "vit__dim": 24, **GIVEN}
#: forms of which each has everything that the others lack
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"rope": "bfloat16", "positions": "", "placed_tokens": 0, "registers": 3, "layer_scale": 0.1, "pool": "avg"},
    {"class_token": False, "placed_tokens": 0, "pool": "map", "pre_norm": True, "norm": "features", "projection": 7},
    {
        "activation": "swiglu",
        "qkv_bias": False,
        "patch_bias": False,
        "norm": "none",
        "registers": 1,
        "rope": "grid",
        "sub_norm": "both",
    },
)


def form(index: int, **more: Any) -> Any:
    return build(**SMALL, **{f"vit__{field}": value for field, value in FORMS[index].items()}, **more)


def names_of(model: Any) -> set[str]:
    return {name for name, _, _ in named_leaves(abstract_variables(model)["params"])}


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in ((4, SIZE, SIZE, 3), (4, 5)))  # type: ignore[return-value]


@pytest.mark.parametrize("index", range(len(FORMS)))
def test_a_trunk_that_is_cut_gives_the_same(index):
    model = form(index)
    variables, (image, _) = random_variables(model), batch()

    @jit
    def cut(image: jax.Array) -> Any:
        whole = model.apply(variables, image, method="encode_image")
        parts = []
        for block in range(model.trunk_blocks + 1):
            entered = model.apply(variables, image, block, method="forward_prefix")
            parts.append(model.apply(variables, entered, block, method="forward_suffix"))
        return whole, parts

    whole, parts = cut(image)
    for part in parts:
        np.testing.assert_allclose(part, whole, rtol=1e-5, atol=1e-5)


def test_a_cut_trunk_trains_what_follows():
    last = trained_from(form(2), 1)
    assert {name.partition(".")[0] for name in last} == {"blocks", "attn_pool", "fc_norm", "proj", "fusion", "head"}
    assert not any(name.startswith("blocks.0.") for name in last)


@pytest.mark.parametrize("index", range(len(FORMS)))
def test_tokens_of_metadata_stand_beside_the_patches(index):
    model = form(index, metadata_fusion="tokens", missing_metadata="mask")
    variables, (image, meta) = random_variables(model), batch()
    assert {"meta_temporal_head.0.weight", "meta_spatial_head.0.weight"} < names_of(model)
    assert not any(name.startswith("fusion.") for name in names_of(model))
    without = build(**{**SMALL, "components": ()}, **{f"vit__{k}": v for k, v in FORMS[index].items()})
    params = {name: tree for name, tree in variables["params"].items() if not name.startswith("meta_")}
    valid = np.array([[True, True], [False, True], [True, False], [False, False]])
    run = jit(lambda meta, valid: model.apply(variables, image, meta, meta_valid_BK=valid)["species"])
    seen, plain = run(meta, valid), jit(without.apply)({"params": params}, image)["species"]
    other = run(meta + np.repeat(~valid, [2, 3], axis=1), valid)
    np.testing.assert_allclose(other, seen, atol=1e-5)  # nothing looks at a token that is masked
    np.testing.assert_allclose(seen[3], plain[3], atol=1e-5)
    assert np.abs(seen - plain)[:3].max(axis=1).min() > 1e-3


def test_late_fusion_leaves_the_features_as_they_are_at_first():
    model = form(0)
    variables, (image, meta) = initial_variables(model, jax.random.key(0)), batch()
    plain, seen = jit(
        lambda: (
            model.apply(variables, image, method="encode_image"),
            model.apply(variables, image, meta, method="embed"),
        )
    )()
    np.testing.assert_array_equal(seen, plain)


@pytest.mark.parametrize("family", ["mFormerV1", "mFormerV0"])
def test_hybrids_take_metadata_late_too(family):
    tokens, late = (build(type=family, **GIVEN, metadata_fusion=way) for way in ("", "late"))
    assert tokens.metadata_fusion == "tokens"
    gone, new = names_of(tokens) - names_of(late), names_of(late) - names_of(tokens)
    assert {name.partition("_head_")[0] for name in gone if not name.endswith("table")} == {
        "meta_temporal",
        "meta_spatial",
    }
    assert {name.partition(".")[0] for name in new} == {"fusion"}
    assert {late.stage_of(name) for name in new} == {"heads.meta_heads"}
    assert late.layer_index("fusion.fc1.weight") == late.layer_index("head.species.fc.weight")
    image, meta = (jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in batch())
    logits = jax.eval_shape(late.apply, abstract_variables(late), image, meta)
    assert {task: x.shape for task, x in logits.items()} == {task: (4, count) for task, count in TASKS.items()}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"type": "EfficientNet", "metadata_fusion": "tokens"},
            "model.metadata_fusion = 'tokens' is not for model.type",
        ),
        ({"metadata_fusion": "beside"}, "'beside' is not for model.type = 'ViT'; choose one of late, tokens"),
        ({"vit__num_heads": 5}, "model.vit.num_heads = 5 must divide dim = 48"),
        ({"vit__num_heads": 8, "vit__rope": "float32"}, "into heads of a multiple of 4"),
        ({"vit__depth": 10**9}, "model.vit.depth = 1000000000 must be 1000 or less"),
        ({"vit__patch_size": 0}, "model.vit.patch_size = 0 must be 1 or more"),
        ({"vit__rope_grid": 0}, "model.vit.rope_grid = 0 must be 1 or more"),
        ({"vit__sub_norm": "all"}, "model.vit.sub_norm = 'all' is unknown; choose one of '', mlp, attention, both"),
        ({"vit__registers": -1}, "model.vit.registers = -1 must be 0 or more"),
        ({"vit__placed_tokens": 2}, "model.vit.placed_tokens = 2 must be 0 to 1"),
        ({"vit__class_token": False, "vit__placed_tokens": 0}, "model.vit.pool = 'token' needs model.vit.class_token"),
        ({"vit__activation": "relu"}, "choose one of gelu, quick_gelu, gelu_tanh, swiglu"),
        ({"vit__epsilon": 0.0}, "model.vit.epsilon = 0.0 must be above 0"),
        ({"vit__layer_scale": -0.5}, "model.vit.layer_scale = -0.5 must be 0 or more"),
        ({"vit__patch_size": 128}, "data.img_size = 64 is out of range; it must be 128 or more"),
        ({"drop_path_rate": 1.5}, "model.drop_path_rate = 1.5 is out of range"),
    ],
)
def test_settings_that_cannot_work_say_so(keys, message):
    with pytest.raises(InputError) as caught:
        build(**{"type": "ViT", **GIVEN, **keys})
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_trunk_with_metadata_as_tokens_cannot_be_cut():
    with pytest.raises(InputError, match=r"model\.metadata_fusion='late', or train\.tune='full'"):
        split_block(form(0, metadata_fusion="tokens"), "head")
    assert split_block(form(0), "last:1") == 1
