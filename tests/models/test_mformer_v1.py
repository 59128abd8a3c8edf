"""mFormerV1 against golden numbers and in low precision; test_contract.py compares its forms, and devices."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax import backend
from linnaeus_jax.models.heads import head_specs
from linnaeus_jax.models.layers import drop_path_rates, drop_path_scales
from linnaeus_jax.models.names import initial_variables, named_leaves
from tests.models import golden as golden_numbers
from tests.models.builds import build
from tests.models.golden import check_gradient_norms, cosine_loss, count, watched
from tests.npz import load_npz

COMPONENTS = (("TEMPORAL", 2), ("SPATIAL", 3))
TASKS = {"taxa_L10": 5, "taxa_L20": 3}


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "models_v1_tiny.npz")


@pytest.fixture(scope="module")
def cfg(golden):
    return json.loads(str(golden["cfg"]))


def golden_model(cfg, **settings):
    kw = cfg["kw"]
    return build(
        components=[(name, dim) for name, dim, _ in cfg["meta"]],
        num_classes=cfg["tasks"],
        img_size=kw["img"],
        convnext_stages__dims=kw["dims"],
        convnext_stages__depths=kw["depths01"],
        rope_stages__depths=kw["rope_depths"],
        rope_stages__num_heads=kw["heads"],
        **settings,
    )


def shapes(model):
    return golden_numbers.shapes(model)["params"]


@pytest.fixture(scope="module")
def params(golden, cfg):
    return golden_numbers.golden_variables(golden, golden_model(cfg))["params"]


@pytest.fixture(scope="module")
def inputs(golden):
    return golden_numbers.golden_inputs(golden)


def value_and_grad(model, params, inputs, **kwargs):
    (loss, (logits, _)), grads = golden_numbers.value_and_grad(model, {"params": params}, inputs, **kwargs)
    return (loss, logits), grads


def watched_gradients(model, params, inputs, options=None):
    """Loss, gradients and all module inputs and outputs by path, from one compiled call."""

    def loss(params):
        seen = watched(lambda: model.apply({"params": params}, *inputs))
        return cosine_loss(seen["head"][1]), seen

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=options)(params))


@pytest.fixture(scope="module")
def rotary_run(cfg, params, inputs):
    return watched_gradients(golden_model(cfg), params, inputs)


def check_golden(golden, cfg, run, prefix):
    (loss, seen), grads = run
    outputs = {
        "mid/stem": seen["stem"][1][:1].transpose(0, 3, 1, 2),
        "mid/stage1": seen["stages.1"][1][:1].transpose(0, 3, 1, 2),
        "mid/down1": seen["downsample_layers.1"][1].transpose(0, 3, 1, 2),
        "mid/stage2_in": seen["stages.2"][0],
        f"{prefix}/stage2_block0": seen["stages.2.0"][1],
        f"{prefix}/stage2": seen["stages.2"][1],
        f"{prefix}/norm_1": seen["norm_1"][1],
        f"{prefix}/cl_1_fc": seen["cl_1_fc"][1],
        f"{prefix}/down2": seen["downsample_layers.2"][1].transpose(0, 3, 1, 2),
        f"{prefix}/stage3_in": seen["stages.3"][0],
        f"{prefix}/stage3": seen["stages.3"][1],
        f"{prefix}/norm_2": seen["norm_2"][1],
        f"{prefix}/aggregate": seen["aggregate"][1],
        f"{prefix}/feats": seen["head"][0],
    }
    outputs.update({f"{prefix}/logits/linear/{task}": logits for task, logits in seen["head"][1].items()})
    for name, value in outputs.items():
        np.testing.assert_allclose(value, golden[name], atol=1e-5, rtol=0, err_msg=name)
    np.testing.assert_allclose(loss, golden[f"{prefix}/grad/loss"], atol=1e-5, rtol=1e-5)

    order, norms = cfg["param_order"], golden[f"{prefix}/grad/l2"]
    grads = check_gradient_norms(grads, order, norms, tolerance=5e-4, zero=frozenset({"aggregate.bias"}))
    full = [name for name in grads if f"{prefix}/grad/{name}" in golden]
    assert len(full) == 8
    for name in full:
        np.testing.assert_allclose(grads[name], golden[f"{prefix}/grad/{name}"], atol=1e-5, rtol=1e-5, err_msg=name)


def test_golden_numbers_rotary(golden, cfg, rotary_run):
    check_golden(golden, cfg, rotary_run, "rot")


@pytest.mark.slow
def test_golden_numbers_cos_only(golden, cfg, params, inputs):
    model = golden_model(cfg, rope_stages__rope_mode="cos_only")
    # as outside of tests: without any optimization of the compiler one value differs by 1.5e-5
    optimized = {"xla_backend_optimization_level": "2"}
    check_golden(golden, cfg, watched_gradients(model, params, inputs, optimized), "cos")


@pytest.mark.slow
def test_statistics_can_be_sown_under_jit_grad_remat_and_scan(cfg, params, inputs):
    model = golden_model(cfg, remat=True, scan_layers=True)

    def sow_max(next_fun, args, kwargs, context):
        out = next_fun(*args, **kwargs)
        if context.method_name == "__call__" and isinstance(out, jax.Array):
            context.module.sow("frames", "frame", jnp.max(jnp.abs(out)))
        return out

    def loss(params):
        with nn.intercept_methods(sow_max):
            logits, state = model.apply({"params": params}, *inputs, mutable=["frames"])
        return cosine_loss(logits), state["frames"]

    frames = jax.jit(jax.grad(loss, has_aux=True))(params)[1]
    names = {name.removesuffix(".frame"): leaf for name, leaf in flat(frames).items()}
    assert names["stages.2.layer.attn.softmax"].shape == (2,)  # one value per scanned block
    assert {"stages.0.1.act", "stages.3.0.residual1", "meta_spatial_head_2.3.norm_fn2", "head.taxa_L10.fc"} <= set(
        names
    )
    owners = {".".join(path[:-1]) for _, path, _ in named_leaves(params) if not path[0].startswith("cls_token")}
    assert {owner for owner in owners if not owner.startswith("stages.2")} <= set(names)


def flat(tree):
    return {
        ".".join(str(key.key) for key in keys if hasattr(key, "key")): leaf
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


@pytest.fixture(scope="module")
def parts(cfg, params):
    """The three parts composed by hand, compiled once for two rows."""
    model = golden_model(cfg)

    @jax.jit
    def run(image, meta):
        features = model.apply({"params": params}, image, method="encode_image")
        feats = model.apply({"params": params}, features, meta, method="encode_tokens")
        return model.apply({"params": params}, feats, method="classify")

    return run


def test_parts_compose(parts, inputs, rotary_run):
    logits = parts(*inputs)
    # of another program, whose sums may be ordered otherwise
    for task, expected in rotary_run[0][1]["head"][1].items():
        np.testing.assert_allclose(logits[task], expected, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_is_finite_and_close(cfg, params, inputs, rotary_run):
    model = golden_model(cfg, dtype=jnp.bfloat16)
    logits = jax.jit(lambda params: model.apply({"params": params}, *inputs))(params)
    for task, expected in rotary_run[0][1]["head"][1].items():
        assert logits[task].dtype == jnp.float32
        np.testing.assert_allclose(logits[task], expected, atol=0.05 * np.abs(expected).max())


def tiny(**settings):
    defaults = {"components": COMPONENTS, "num_classes": TASKS, "img_size": 64}
    return build(**{**defaults, **settings})


@pytest.mark.parametrize(("ratio", "widths"), [(2.0, (192, 256)), ((0.5,), (48, 64)), ((2, 3.0), (192, 384))])
def test_mlp_ratio_is_one_number_or_one_per_stage(ratio, widths):
    tree = {name: leaf.shape for name, _, leaf in named_leaves(shapes(tiny(rope_stages__mlp_ratio=ratio)))}
    assert tree["stages.2.0.mlp.fc1.weight"] == tree["stages.2.1.mlp.fc1.weight"] == (96, widths[0])
    assert tree["stages.3.0.mlp.fc1.weight"] == (128, widths[1])


def test_dropout_rates_are_one_number_or_one_per_stage():
    model = tiny(drop_rate=(0.3, 0.0), attn_drop_rate=(0.2,))
    assert (model.drop_rate, model.attn_drop_rate) == ((0.3, 0.0), (0.2, 0.2))
    assert tiny().drop_rate == (0.0, 0.0)


@pytest.mark.parametrize("variant", ["sm", "md", "lg", "xl"])
def test_drop_path_rates_rise_linearly(fixtures, variant):
    expected = json.loads((fixtures / "models_counts.json").read_text())["variants"][f"mFormerV1_{variant}"]
    model = tiny(variant=variant)
    stages = drop_path_rates(model.block_depths, model.drop_path_rate)
    ours = [(f"stages.{s}.{b}", rate) for s, rates in enumerate(stages) for b, rate in enumerate(rates)]
    assert [name for name, _ in ours] == [name for name, _ in expected["drop_path"]]
    np.testing.assert_allclose([r for _, r in ours], [r for _, r in expected["drop_path"]], atol=1e-7)


def test_drop_path_keeps_the_expectation():
    scales = np.asarray(drop_path_scales(jax.random.key(0), (0.0, 0.25, 0.5), 2, 4000))
    np.testing.assert_array_equal(scales[0], 1.0)
    np.testing.assert_allclose(scales.mean(axis=2), 1.0, atol=0.06)
    np.testing.assert_allclose((scales == 0).mean(axis=2)[:, 0], [0.0, 0.25, 0.5], atol=0.03)
    assert not np.array_equal(scales[1, 0], scales[1, 1])


@pytest.mark.slow
def test_initial_values():
    assert 4e5 < count(shapes(tiny())) < 1e6
    params = initial_variables(tiny(), jax.random.key(0))["params"]
    for name, _, leaf in named_leaves(params):
        value = np.asarray(leaf)
        assert value.dtype == np.float32, name
        if name.endswith("bias"):
            assert not value.any(), name
        elif name.endswith("gamma"):
            np.testing.assert_allclose(value, 1e-6)
        elif name.startswith("aggregate"):
            assert np.abs(value).max() <= 0.5**0.5
        elif name.endswith("weight") and value.ndim == 1:
            np.testing.assert_array_equal(value, 1.0)
        elif value.size > 2000:
            assert abs(value.std() - 0.02) < 2e-3, name


def test_optional_parts_leave_out_their_parameters():
    names = [
        name
        for name, _, _ in named_leaves(shapes(tiny(only_last_cls=True, convnext_stages__layer_scale_init_value=0.0)))
    ]
    assert not [name for name in names if name.startswith(("cl_1_fc", "aggregate")) or name.endswith("gamma")]
    plain = [name for name, _, _ in named_leaves(shapes(tiny(components=(), rope_stages__rope_mixed=False)))]
    assert not [name for name in plain if name.startswith("meta_") or name.endswith("freqs")]
    bare = [
        name
        for name, _, _ in named_leaves(shapes(tiny(classification__heads__taxa_L10__use_bias=False)))
        if name.startswith("head.")
    ]
    assert bare == ["head.taxa_L10.fc.weight", "head.taxa_L20.fc.bias", "head.taxa_L20.fc.weight"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "huge"}, "model.variant = 'huge' is unknown for mFormerV1; choose one of tiny, sm, md, lg, xl"),
        ({"convnext_stages__dims": (8, 16, 32)}, r"model.convnext_stages.dims = \(8, 16, 32\) must be 4 integers"),
        ({"convnext_stages__dims": (8, 16, 32.5, 64)}, "must be 4 integers"),
        ({"rope_stages__depths": (2, 0)}, r"model.rope_stages.depths = \(2, 0\) must be 2 integers of at least 1"),
        ({"convnext_stages__depths": (1, 1, 1)}, r"model.convnext_stages.depths = \(1, 1, 1\) must be 2"),
        ({"rope_stages__num_heads": (5, 4)}, r"model.rope_stages.num_heads = \(5, 4\) must divide dims"),
        ({"rope_stages__num_heads": (16, 4), "rope_stages__rope_init": "rope_vit"}, "multiple of 4"),
        ({"rope_stages__rope_mode": "sine"}, "rope_mode = 'sine' is unknown; choose one of rotary, cos_only"),
        ({"rope_stages__rope_init": "x"}, "rope_init = 'x'"),
        ({"rope_stages__rope_theta": 0.0}, "rope_theta = 0.0 is out of range; it must be above 0"),
        ({"attn_impl": "flash"}, "attn_impl = 'flash'"),
        ({"attn_drop_kind": "rows"}, "attn_drop_kind = 'rows' is unknown; choose one of weights, keys"),
        ({"depthwise_impl": "x"}, "depthwise_impl = 'x'"),
        ({"drop_path_rate": 1.0}, r"drop_path_rate = 1.0 is out of range; it must be within \[0, 1\)"),
        ({"convnext_stages__layer_scale_init_value": -1.0}, "layer_scale_init_value = -1.0 is out of range"),
        ({"drop_rate": (0.1, 1.0)}, r"model.drop_rate = \(0.1, 1.0\) must be one number within \[0, 1\), or one per"),
        ({"missing_metadata": "drop"}, "model.missing_metadata = 'drop' is unknown; choose one of zero, mask"),
        ({"img_size": 16}, "data.img_size = 16 is out of range"),
        ({"rope_stages__mlp_ratio": 0.0}, r"mlp_ratio = \(0.0, 0.0\)"),
        ({"rope_stages__mlp_ratio": (4.0, 4.0, 4.0)}, "one per transformer stage"),
        ({"components": (("A", 2), ("a", 3))}, "used once"),
        ({"components": (("A", 0),)}, "at least one column"),
        ({"classification__heads__nope__type": "Linear"}, "model.classification.heads names 'nope', which is no task"),
        ({"classification__heads__taxa_L10__type": "Deep"}, "taxa_L10.type = 'Deep' is unknown; choose one of Linear"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(ValueError, match=message):
        tiny(**settings)


def test_options_of_heads():
    with pytest.raises(ValueError, match=r"taxa_L10.temperature = 2 is no option of Linear; its options: use_bias"):
        head_specs(TASKS, {"taxa_L10": {"temperature": 2}})


def test_fused_attention_needs_a_gpu():
    with pytest.raises(ValueError, match=r"attn_impl = 'cudnn' needs a GPU"):
        shapes(tiny(attn_impl="cudnn"))
    with backend.tracing_for("gpu"):
        with pytest.raises(ValueError, match=r"attn_drop_kind 'keys' \(here: gpu, bfloat16, 0.1, 'weights'\)"):
            shapes(tiny(attn_impl="cudnn", attn_drop_rate=0.1, dtype=jnp.bfloat16))


def test_unknown_type():
    with pytest.raises(ValueError, match=r"model.type = 'resnet' is unknown; choose one of .*mFormerV1"):
        tiny(type="resnet")


@pytest.mark.parametrize(
    ("image", "meta", "message"),
    [
        ((2, 64, 64, 4), None, "image has shape"),
        ((2, 16, 64, 3), None, "W >= 32"),
        ((2, 64, 64, 3), (2, 4), r"meta has shape \(2, 4\); \[2, 5\] is needed \(TEMPORAL 2 \+ SPATIAL 3\)"),
        ((2, 64, 64, 3), (1, 5), r"meta has shape \(1, 5\)"),
    ],
)
def test_inputs_of_the_wrong_shape(image, meta, message):
    args = [None if shape is None else jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (image, meta)]
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(tiny().init, jax.random.key(0), *args)
