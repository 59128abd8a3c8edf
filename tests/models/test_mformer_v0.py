"""mFormerV0 against golden numbers and at other sizes; forms and devices are compared in test_contract.py."""

import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models import MFormerV0, names
from linnaeus_jax.models.layers import drop_path_rates
from linnaeus_jax.models.mformer_v0 import STAGES
from linnaeus_jax.models.names import initial_variables, named_leaves
from linnaeus_jax.models.relative import gathered_bias, relative_position_index, resize_table
from tests.models.builds import build
from tests.models.golden import (
    check_gradient_norms,
    count,
    golden_inputs,
    golden_variables,
    shapes,
    value_and_grad,
    watched,
)
from tests.models.test_contract import random_variables
from tests.npz import load_npz

COMPONENTS = (("TEMPORAL", 2), ("SPATIAL", 3))
TASKS = {"taxa_L10": 5, "taxa_L20": 3}
#: 0 in exact arithmetic: what a LayerNorm or a BatchNorm takes away again; and in the last block the class token alone
#: is read, which has the same bias to all patches
DEAD = {"aggregate.bias", "stage_1.0._bn2.bias", "stage_1.1._bn2.bias", "stage_4.0.attn.relative_position_bias_table"}


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "models_v0_tiny.npz")


@pytest.fixture(scope="module")
def cfg(golden):
    return json.loads(str(golden["cfg"]))


def golden_model(cfg, **settings):
    kw = cfg["kw"]
    return build(
        type="mFormerV0",
        components=[(name, dim) for name, dim, _ in cfg["meta"]],
        num_classes=cfg["tasks"],
        img_size=kw["img"],
        conv_stages__embed_dims=kw["conv_embed"],
        conv_stages__out_channels=kw["out_ch"],
        conv_stages__depths=kw["depths"],
        conv_stages__stride_seqs=kw["strides"],
        attention_stages__dims=kw["attn_dims"],
        attention_stages__depths=kw["attn_depths"],
        attention_stages__stride_seqs=kw["attn_strides"],
        attention_stages__num_heads=kw["heads"],
        **settings,
    )


def tiny(**settings):
    return build(**{"type": "mFormerV0", "components": COMPONENTS, "num_classes": TASKS, "img_size": 64, **settings})


@pytest.fixture(scope="module")
def variables(golden, cfg):
    return golden_variables(golden, golden_model(cfg))


@pytest.fixture(scope="module")
def inputs(golden):
    return golden_inputs(golden)


@pytest.fixture(scope="module")
def evaluated(cfg, variables, inputs):
    """Module inputs and outputs of an evaluation."""
    run = jax.jit(lambda variables, inputs: watched(lambda: golden_model(cfg).apply(variables, *inputs)))
    return jax.device_get(run(variables, inputs))


@pytest.fixture(scope="module")
def trained(cfg, variables, inputs):
    """((loss, (logits, new state)), gradients) of a training step without random parts."""
    return value_and_grad(golden_model(cfg), variables, inputs, train=True, mutable=["batch_stats"])


def test_golden_numbers_of_an_evaluation(golden, cfg, variables, evaluated):
    seen = evaluated
    table = variables["params"]["stage_3"]["0"]["attn"]["relative_position_bias_table"]
    outputs = {
        "mid/stage0_conv": seen["stage_0"][1][:1, ..., :2].transpose(0, 3, 1, 2),
        "mid/stem": seen["maxpool"][1][:1].transpose(0, 3, 1, 2),
        "mid/stage1_block0": seen["stage_1.0"][1][:1].transpose(0, 3, 1, 2),
        "mid/stage1": seen["stage_1"][1][:1].transpose(0, 3, 1, 2),
        "mid/stage2": seen["stage_2"][1][:1].transpose(0, 3, 1, 2),
        "mid/stage3_patch_embed_norm": seen["stage_3.0.patch_embed.norm"][1].reshape(2, 16, 16),
        "mid/stage3_block0": seen["stage_3.0"][1],
        "mid/stage3_block0_rel_bias": jax.jit(gathered_bias, static_argnums=(1, 2))(table, (4, 4), 3),
        "mid/stage3": seen["stage_3"][1],
        "mid/norm_1": seen["norm_1"][1],
        "mid/cl_1_fc": seen["cl_1_fc"][1],
        "mid/stage4": seen["stage_4"][1],
        "mid/norm_2": seen["norm_2"][1],
        "mid/aggregate": seen["aggregate"][1],
        "mid/feats": seen["head"][0],
    }
    assert set(outputs) == {name for name in golden if name.startswith("mid/")}
    outputs |= {f"logits/linear/{task}": logits for task, logits in seen["head"][1].items()}
    for name, value in outputs.items():
        np.testing.assert_allclose(value, golden[name], atol=1e-5, rtol=0, err_msg=name)
    for stage, grid in zip((3, 4), golden_model(cfg).grids((64, 64))):
        expected = golden[f"index/stage_{stage}.0.attn.relative_position_index"]
        np.testing.assert_array_equal(relative_position_index(grid, 3), expected)


@pytest.mark.slow
def test_golden_numbers_of_a_training_step(golden, cfg, trained):
    (loss, (logits, state)), grads = trained
    np.testing.assert_allclose(loss, golden["train/grad/loss"], atol=1e-5)
    for task, value in logits.items():
        np.testing.assert_allclose(value, golden[f"train/logits/{task}"], atol=1e-5, err_msg=task)
    moments = {name: leaf for name, _, leaf in named_leaves(state["batch_stats"])}
    assert {f"train/stats/{name}" for name in moments} == {name for name in golden if name.startswith("train/stats/")}
    for name, value in moments.items():
        np.testing.assert_allclose(value, golden[f"train/stats/{name}"], atol=1e-5, rtol=0, err_msg=name)
    order, norms = cfg["param_order"], golden["train/grad/l2"]
    check_gradient_norms(grads, order, norms, tolerance=2e-3, zero=frozenset(DEAD))


@pytest.mark.slow
def test_another_size_is_a_model_of_that_size_with_resized_tables(cfg, variables):
    model, size = golden_model(cfg), (80, 50)
    image = jax.random.normal(jax.random.key(0), (2, *size, 3))
    other = model.clone(img_size=size)
    params = jax.tree.map(lambda x: x, variables["params"])
    for name, old, new in zip(("stage_3", "stage_4"), model.grids((64, 64)), other.grids(size)):
        assert old != new
        for block in params[name].values():
            attn = block["attn"]
            attn["relative_position_bias_table"] = resize_table(attn["relative_position_bias_table"], old, new)
    apply = jax.jit(lambda model, variables: model.apply(variables, image), static_argnums=0)
    found, expected = apply(model, variables), apply(other, {**variables, "params": params})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.slow
def test_tiny_trains_at_any_size():
    model = tiny(drop_path_rate=0.1, drop_rate=0.1, missing_metadata="mask")
    image = jax.random.normal(jax.random.key(1), (2, 45, 38, 3))
    variables = random_variables(model)
    keys = {"drop_path": jax.random.key(2), "dropout": jax.random.key(3)}
    (loss, (logits, _)), grads = value_and_grad(
        model, variables, (image,), train=True, rngs=keys, mutable=["batch_stats"]
    )
    assert {task: x.shape for task, x in logits.items()} == {task: (2, n) for task, n in TASKS.items()}
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        *((size, {}) for size in (32, 33, 64, 68, 72, 96, 100)),
        *((size, {"compat": "metafg"}) for size in (45, 64)),
        (68, {"conv_stages__stride_seqs": ((1,), (2,))}),
    ],
)
def test_grids_are_what_the_convolutions_give(size, settings):
    model = tiny(img_size=size, **settings)
    image = jax.ShapeDtypeStruct((1, size, size, 3), np.float32)
    seen = jax.eval_shape(lambda key, x: watched(lambda: model.init(key, x)), jax.random.key(0), image)
    grids = tuple(seen[f"stage_{stage}.0.patch_embed"][1].shape[1:3] for stage in (3, 4))
    assert model.grids((size, size)) == grids
    if size in (64, 68, 96, 100):  # sizes at which published models work
        assert grids == ((size // 16, size // 16), (size // 32, size // 32))


@pytest.mark.slow
def test_weights_of_metaformer_are_computed_as_they_were_trained(cfg, variables, inputs, evaluated):
    model = golden_model(cfg, compat="metafg")
    seen = jax.jit(lambda v: watched(lambda: model.apply(v, *inputs)))(variables)
    tokens = seen["stage_3"][1]
    np.testing.assert_array_equal(seen["norm_1"][0], tokens[:, :1])
    np.testing.assert_array_equal(seen["stage_4.0.patch_embed"][0].reshape(2, 16, -1), tokens[:, 3:])
    kernel = np.asarray(variables["params"]["stage_1"]["0"]["_depthwise_conv"]["kernel"])
    for own, sides in ((evaluated, (0, 1)), (seen, (1, 1))):
        x, y = (np.asarray(value) for value in own["stage_1.0._depthwise_conv"])
        padded = np.pad(x, ((0, 0), sides, sides, (0, 0)))
        taps = [padded[:, i : i + 15 : 2, j : j + 15 : 2] * kernel[i, j, 0] for i in range(3) for j in range(3)]
        np.testing.assert_allclose(y, sum(taps), atol=1e-5)


@pytest.mark.slow
def test_bfloat16_is_finite_and_close_and_keeps_its_statistics_in_float32(cfg, variables, inputs, evaluated):
    model = golden_model(cfg, dtype=jnp.bfloat16)
    logits = jax.jit(lambda v: model.apply(v, *inputs))(variables)
    for task, expected in evaluated["head"][1].items():
        assert logits[task].dtype == jnp.float32
        np.testing.assert_allclose(logits[task], expected, atol=0.05 * np.abs(expected).max())
    _, state = jax.eval_shape(lambda v: model.apply(v, *inputs, train=True, mutable=["batch_stats"]), variables)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("variant", ["sm", "md", "lg"])
def test_drop_path_rates(fixtures, variant):
    sizes = json.loads((fixtures / "models_counts.json").read_text())["variants"][f"mFormerV0_{variant}"]
    model = tiny(variant=variant)
    stages = drop_path_rates(model.attention_depths, model.drop_path_rate, endpoint=False)
    ours = [(f"stage_{3 + s}.{b}", rate) for s, rates in enumerate(stages) for b, rate in enumerate(rates)]
    assert [name for name, _ in ours] == [name for name, _ in sizes["drop_path"]]
    np.testing.assert_allclose([r for _, r in ours], [r for _, r in sizes["drop_path"]], atol=1e-7)


def test_every_parameter_has_one_stage_and_one_layer():
    model = tiny(conv_stages__depths=(2, 1))
    table = names.parameter_table(model)
    found = Counter(MFormerV0.stage_of(info.name) for info in table)
    assert set(found) == set(STAGES)
    assert found["norm_layers"] == 4
    assert MFormerV0.stage_of("bn1.bias") == MFormerV0.stage_of("stage_0.6.weight") == "stages.conv_stages"
    assert MFormerV0.stage_of("stage_3.0.patch_embed.proj.weight") == "stages.transformer_stages"
    assert MFormerV0.stage_of("norm.bias") == "aggregation"
    with pytest.raises(ValueError, match=r"'stem.weight' belongs to none of the stages stages.conv_stages, "):
        MFormerV0.stage_of("stem.weight")
    index = {info.name: model.layer_index(info.name) for info in table}
    assert set(index.values()) == set(range(8))
    assert index["stage_0.0.weight"] == index["bn1.bias"] == 0
    assert index["stage_1.1._bn0.bias"] == 2
    assert index["stage_2.0._se_reduce.weight"] == 3
    entry = {"cls_token_1", "meta_temporal_head_1.0.bias", "stage_3.0.patch_embed.norm.bias", "stage_3.0.norm1.bias"}
    assert {index[name] for name in entry} == {4}
    assert index["norm_1.bias"] == index["cls_token_2"] == index["stage_4.0.patch_embed.proj.bias"] == 6
    assert index["norm.bias"] == index["norm_2.bias"] == index["head.taxa_L20.fc.bias"] == 7
    with pytest.raises(ValueError, match=r"'stage_1.2._bn0.bias' belongs to no layer"):
        model.layer_index("stage_1.2._bn0.bias")


@pytest.mark.slow
def test_initial_values():
    model = tiny()
    variables = initial_variables(model, jax.random.key(0))
    assert 4e5 < count(variables["params"]) < 1e6
    for name, _, leaf in named_leaves(variables["params"]):
        value = np.asarray(leaf)
        assert value.dtype == np.float32, name
        if name.endswith("bias"):
            assert not value.any(), name
        elif name.endswith("weight") and value.ndim == 1:
            np.testing.assert_array_equal(value, 1.0, err_msg=name)
        elif value.ndim == 4 and value.size > 500:  # a kernel [k, k, in, out]
            std = (2 / (value.shape[-1] * value.shape[0] ** 2)) ** 0.5
            assert abs(value.std() / std - 1) < 0.1, name
        elif value.ndim < 4 and value.size > 2000:
            assert abs(value.std() - 0.02) < 2e-3, name
    for name, _, leaf in named_leaves(variables["batch_stats"]):
        np.testing.assert_array_equal(leaf, float(name.endswith("running_var")))


def test_optional_parts_leave_out_their_parameters():
    model = tiny(only_last_cls=True, components=())
    tree = shapes(model)["params"]
    assert not [name for name in tree if name in ("norm", "cl_1_fc", "aggregate") or name.startswith("meta_")]
    seen = jax.eval_shape(
        lambda key, x: watched(lambda: model.init(key, x)), jax.random.key(0), jnp.ones((1, 64, 64, 3))
    )
    assert seen["head"][0].shape == (1, 128)


def test_rates_and_ratios_are_one_number_or_one_per_stage():
    model = tiny(variant="sm", drop_rate=(0.3, 0.0), attn_drop_rate=(0.2,), attention_stages__mlp_ratio=(2.0, 3.0))
    assert (model.drop_rate, model.attn_drop_rate, model.mlp_ratio) == ((0.3, 0.0), (0.2, 0.2), (2.0, 3.0))
    assert tiny(variant="sm").drop_rate == (0.1, 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "xl"}, "model.variant = 'xl' is unknown for mFormerV0; choose one of tiny, sm, md, lg"),
        ({"conv_stages__embed_dims": (3,)}, r"model.conv_stages.embed_dims = \(3,\) must be integers of at least 4"),
        ({"conv_stages__depths": (2,)}, r"model.conv_stages.depths = \(2,\) must be 2 integers"),
        (
            {"conv_stages__stride_seqs": ((2,), (1, 1))},
            r"stride_seqs = \(\(2,\), \(1, 1\)\) must be a stride of 1 or 2",
        ),
        ({"conv_stages__stride_seqs": ((2,), (3,))}, "must be a stride of 1 or 2 for every block"),
        ({"conv_stages__stride_seqs": (2, 1)}, "must be a stride of 1 or 2 for every block"),
        (
            {"attention_stages__stride_seqs": ((1, 1), (2,))},
            "must be 2 for the first block of each stage, where patches",
        ),
        ({"attention_stages__num_heads": (5, 4)}, r"model.attention_stages.num_heads = \(5, 4\) must divide dims"),
        ({"compat": "torch"}, "model.compat = 'torch' is unknown; choose one of '', metafg"),
        ({"missing_metadata": "drop"}, "model.missing_metadata = 'drop' is unknown; choose one of zero, mask"),
        ({"drop_rate": (0.1, 0.2, 0.3)}, r"model.drop_rate = \(0.1, 0.2, 0.3\) must be one number within \[0, 1\)"),
        ({"img_size": 31}, "data.img_size = 31 is out of range; it must be 32 or more"),
        (
            {"img_size": 32, "conv_stages__depths": (4, 1), "conv_stages__stride_seqs": ((2, 2, 2, 2), (1,))},
            "leave no patch of images of 32 pixels",
        ),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(ValueError, match=message):
        tiny(**settings)
