"""Frames of module calls: values, names and order under jit, grad, remat, scans, accumulation and 2 devices."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.debugging.frame_recorder import COLLECTION, FrameRecorder
from linnaeus_jax.debugging.frames import Frame, Row, merge
from tests.models.builds import build


def tiny(**settings):
    return build(
        components=(("TEMPORAL", 2),),
        num_classes={"taxa_L10": 5, "taxa_L20": 3},
        img_size=32,
        convnext_stages__dims=(8, 8, 16, 16),
        rope_stages__num_heads=(2, 2),
        only_last_cls=True,
        depthwise_impl="lax",  # one operation to compile
        **settings,
    )


#: half the compile time; the graph and its fusions stay the same
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture(scope="module")
def params():
    shapes = jax.eval_shape(tiny().init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    random = np.random.default_rng(0)
    return jax.device_put(jax.tree.map(lambda leaf: np.float32(0.2 * random.standard_normal(leaf.shape)), shapes))


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(1)
    image, meta = random.standard_normal((4, 32, 32, 3), np.float32), random.standard_normal((4, 2), np.float32)
    return jax.device_put((image, meta))


def first_bad(frames):
    return next((frame.name for frame in frames.listing() if frame.bad), None)


def poisoned(params, *path):
    """The parameters with one NaN in the leaf at `path`."""
    leaf = params
    for name in path:
        leaf = leaf[name]
    leaf = np.array(leaf)
    leaf.flat[0] = np.nan
    return jax.tree_util.tree_map_with_path(lambda keys, x: leaf if tuple(k.key for k in keys) == path else x, params)


def assert_close(ours, theirs):
    """Same calls and rows; magnitudes within 1e-6 * max(1, absmax)."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a.name, a.class_name) == (b.name, b.class_name)
        for row, expected in zip(a.rows, b.rows, strict=True):
            assert (row.label, row.note, row.has_nan, row.has_inf) == (
                expected.label,
                expected.note,
                expected.has_nan,
                expected.has_inf,
            )
            tolerance = 1e-6 * max(1.0, expected.absmax)
            np.testing.assert_allclose(
                (row.absmin, row.absmax), (expected.absmin, expected.absmax), rtol=0, atol=tolerance, err_msg=a.name
            )


@pytest.fixture(scope="module")
def forward():
    recorder = FrameRecorder(tiny())
    return jax.jit(lambda params, *inputs: recorder.apply({"params": params}, *inputs), compiler_options=QUICK)


def host_row(label, value):
    if not isinstance(value, jax.Array):
        return Row(label, note="None" if value is None else "not a tensor")
    value = np.abs(np.asarray(value))
    return Row(label, float(value.min()), float(value.max()), bool(np.isnan(value).any()), bool(np.isinf(value).any()))


@pytest.fixture(scope="module")
def expected(params, inputs):
    """Frames from values that an interceptor of the test's own takes out, measured by numpy."""
    calls = []

    @functools.partial(jax.jit, compiler_options=QUICK)
    def values(params, *inputs):
        found = []

        def watch(next_fun, args, kwargs, context):
            out = next_fun(*args, **kwargs)
            if context.method_name == "__call__":
                own = {k: v for k, v in context.module.variables.get("params", {}).items() if isinstance(v, jax.Array)}
                calls.append((".".join(context.module.path), type(context.module).__name__))
                found.append((own, args, out))
            return out

        with nn.intercept_methods(watch):
            tiny().apply({"params": params}, *inputs)
        return found

    order = ["kernel", "scale", "bias", "gamma", "freqs", "cls_token_1", "cls_token_2"]
    shown = {"kernel": "weight", "scale": "weight"}
    found, frames = values(params, *inputs), []
    for (name, cls), (own, args, out) in zip(calls, found, strict=True):
        rows = [host_row(shown.get(k, k), own[k]) for k in sorted(own, key=order.index)]
        rows += [host_row(f"input[{i}]", value) for i, value in enumerate(args)]
        frames.append(Frame(name, cls, (*rows, host_row("output", out))))
    return frames


def table_of(recorder, variables, *args, **kwargs):
    """The table of frames from one abstract trace."""
    return jax.eval_shape(lambda v, a: recorder.apply(v, *a, **kwargs)[1], variables, args).table


@pytest.mark.slow
def test_compiled_frames_equal_numpy(forward, params, inputs, expected):
    logits, frames = forward(params, *inputs)
    assert_close(frames.listing(), expected)
    assert not frames.bad
    assert frames.table == table_of(FrameRecorder(tiny()), {"params": params}, *inputs)
    assert logits["taxa_L20"].shape == (4, 3)


def test_order_labels_and_notes(forward, params, inputs):
    frames = {frame.name: frame for frame in forward(params, *inputs)[1].listing()}
    names = list(frames)
    assert names[:2] == ["stem.0", "stem.1"]
    assert names.index("stages.2.0.attn.qkv") < names.index("stages.2.0.attn.softmax") < names.index("stages.2.0.attn")
    assert names.index("stages.2.0") < names.index("stages.2.1.norm1") < names.index("stages.2")
    assert [row.label for row in frames["stem.0"].rows] == ["weight", "bias", "input[0]", "output"]
    attention = [(row.label, row.note) for row in frames["stages.2.0.attn"].rows]
    assert attention == [
        ("freqs", ""),
        ("input[0]", ""),
        ("input[1]", "not a tensor"),
        ("input[2]", "None"),
        ("output", ""),
    ]
    assert [row.label for row in frames[""].rows][:2] == ["cls_token_1", "cls_token_2"]


@pytest.fixture(scope="module")
def accumulated():
    """Gradient and merged frames of micro-batches under remat, scanned layers and a scan over micro-batches."""
    recorder = FrameRecorder(tiny(remat=True, scan_layers=True))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def step(params, image, meta):
        def one(params, image, meta):
            logits, frames = recorder.apply({"params": params}, image, meta)
            return sum(jnp.sum(x**2) for x in logits.values()), frames

        def body(total, micro):
            grads, frames = jax.grad(one, has_aux=True)(params, *micro)
            return jax.tree.map(jnp.add, total, grads), frames

        grads, frames = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), (image, meta))
        return grads, functools.reduce(merge, [jax.tree.map(lambda x: x[i], frames) for i in range(2)])  # noqa: B023

    return step


@pytest.fixture(scope="module")
def places():
    """Shardings over 2 devices: everything everywhere, micro-batches [A, B, ...] and batches [B, ...] by rows."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    return [jax.sharding.NamedSharding(mesh, s) for s in (spec(), spec(None, "data"), spec("data"))]


@pytest.mark.slow
def test_poisoned_weights_are_named(accumulated, places, expected, params, inputs):
    micro = [jax.device_put(x.reshape(2, 2, *x.shape[1:]), places[1]) for x in inputs]
    params = jax.device_put(params, places[0])
    step = accumulated.lower(params, *micro).compile()
    grads, frames = step(params, *micro)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    # merged micro-batches: exact minima and maxima over all rows, as of the whole batch at once
    assert_close(frames.listing(), expected)
    for path, name in (
        (("stages.0", "0", "pwconv1", "kernel"), "stages.0.0.pwconv1"),
        (("stages.2", "1", "mlp", "fc1", "kernel"), "stages.2.1.mlp.fc1"),
        (("head", "taxa_L20", "fc", "bias"), "head.taxa_L20.fc"),
    ):
        frames = step(poisoned(params, *path), *micro)[1]
        assert first_bad(frames) == name
        bad = next(frame for frame in frames.listing() if frame.bad)
        assert [row.has_nan for row in bad.rows if row.label.startswith("input")] == [False]
    # rows are reduced over the devices together, not one by one
    collectives = {name: step.as_text().count(f" {name}(") for name in ("all-reduce", "all-gather", "all-to-all")}
    assert sum(collectives.values()) <= 30, collectives


class Block(nn.Module):
    """Returns nested tuples, None and an int."""

    @nn.compact
    def __call__(self, x, mask=None, *, scale=1.0):
        y = nn.Dense(x.shape[-1], name="wi")(x) * scale
        return y, None, (x, 3)


class Net(nn.Module):
    """One layer called twice, a dict of outputs, a parameter of the model's own."""

    @nn.compact
    def __call__(self, x, empty, flags):
        shared = nn.Dense(4, name="shared")
        gain = self.param("gain", nn.initializers.ones, ())
        y = shared(shared(x))
        return {"y": Block(name="block")(y, None, scale=2.0)[0] * gain}


ONES = np.ones((2, 4), np.float32)


def toy(module, *args):
    variables = jax.jit(module.init)(jax.random.key(0), *args)
    return variables, FrameRecorder(module)


def test_shared_modules_tuples_and_notes():
    args = (ONES, np.zeros((0, 3), np.float32), np.array([True]))
    variables, recorder = toy(Net(), *args)
    out, frames = jax.jit(recorder.apply)(variables, *args)
    plain: Any = jax.jit(Net().apply)(variables, *args)
    np.testing.assert_allclose(out["y"], plain["y"], rtol=1e-6)
    listing = frames.listing()
    assert [frame.name for frame in listing] == ["shared", "shared", "block.wi", "block", ""]
    assert listing[0].rows[3][1:3] == listing[1].rows[2][1:3]  # the first call's output enters the second
    assert [(row.label, row.note) for row in listing[3].rows] == [
        ("input[0]", ""),
        ("input[1]", "None"),
        ("output[0]", ""),
        ("output[1]", "None"),
        ("output[2][0]", ""),
        ("output[2][1]", "not a tensor"),
    ]
    assert [(row.label, row.note) for row in listing[4].rows] == [
        ("gain", ""),
        ("input[0]", ""),
        ("input[1]", "empty"),
        ("input[2]", "not a tensor"),
        ("output", "not a tensor"),
    ]


class Layer(nn.Module):
    """One scanned layer."""

    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(4, name="wi")(x)), None


class Stack(nn.Module):
    """Layers scanned inside layers."""

    axes: tuple = (("params", 0), (COLLECTION, 0))

    @nn.compact
    def __call__(self, x):
        scan: Any = dict(variable_axes=dict(self.axes), split_rngs={"params": True})
        inner = nn.scan(Layer, length=2, **scan)
        x, _ = inner(name="inner")(x, None)
        outer = nn.scan(lambda block, x, _: block(x, None), length=3, **scan)
        return outer(nn.scan(nn.remat(Layer), length=2, **scan)(name="outer"), x, None)[0]


def test_scans_inside_scans():
    variables, recorder = toy(Stack(), ONES)
    inner = ["inner.0.wi", "inner.0", "inner.1.wi", "inner.1"]
    outer = [f"outer.{i}.{j}{part}" for i in range(3) for j in range(2) for part in (".wi", "")]
    record = jax.jit(recorder.apply)
    frames = record(variables, ONES)[1]
    assert [frame.name for frame in frames.listing()] == [*inner, *outer, ""]
    listing = frames.listing()[4:-1]
    for before, after in zip(listing[:-2:2], listing[2::2]):  # what one layer returns enters the next
        np.testing.assert_allclose(np.tanh(before.rows[-1].absmax), after.rows[2].absmax, rtol=1e-6)
    kernel = np.array(variables["params"]["outer"]["wi"]["kernel"])
    kernel[1, 1, 0, 0] = np.inf
    bad = {"params": dict(variables["params"])}
    bad["params"]["outer"] = {"wi": {**variables["params"]["outer"]["wi"], "kernel": kernel}}
    assert first_bad(record(bad, ONES)[1]) == "outer.1.1.wi"


def test_merging_in_the_carry_of_a_scan_and_on_the_host():
    variables, recorder = toy(Stack(), ONES)
    batches = np.random.default_rng(5).standard_normal((3, 2, 4), np.float32)

    @jax.jit
    def total(batches):
        first = recorder.apply(variables, batches[0])[1]
        return jax.lax.scan(lambda t, x: (merge(t, recorder.apply(variables, x)[1]), None), first, batches[1:])[0]

    record = jax.jit(recorder.apply)
    parts = [record(variables, x)[1] for x in batches]
    assert_close(total(batches).listing(), functools.reduce(merge, jax.device_get(parts)).listing())


def test_scans_that_hold_frames_back_are_errors():
    module = Stack(axes=(("params", 0),))
    variables, recorder = toy(module, ONES)
    with pytest.raises(
        ValueError, match=r"frames of module 'inner.wi' \(Dense\) cannot leave .* give the collection 'fra"
    ):
        table_of(recorder, variables, ONES)


def test_calls_hidden_by_jit_inside_the_model_are_errors():
    module = nn.jit(Layer)()
    variables, recorder = toy(module, ONES, None)
    assert [spec.name for spec in table_of(recorder, variables, ONES, None)] == ["wi", ""]
    with pytest.raises(
        ValueError, match=r"calls of wi were compiled earlier by nn.jit .* build the model without nn.jit"
    ):
        table_of(recorder, variables, ONES, None)


class Normed(nn.Module):
    """Batch statistics and two methods."""

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False, name="norm")(x)

    def twice(self, x):
        return 2 * self(x)


def test_state_and_other_methods():
    x = ONES
    variables, recorder = toy(Normed(), x)
    (_, state), frames = jax.jit(recorder.apply, static_argnames="mutable")(variables, x, mutable=("batch_stats",))
    assert set(state) == {"batch_stats"}
    assert [frame.name for frame in frames.listing()] == ["norm", ""]
    table = table_of(recorder, variables, x, mutable=["batch_stats"], method="twice")
    assert [spec.name for spec in table] == ["norm", ""]


class Identity(nn.Module):
    """Returns its input."""

    def __call__(self, x):
        return x


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.int32])
def test_extremes_of_every_type(dtype):
    values = np.array([[-3, 2], [1, 7]], dtype)
    row = jax.jit(FrameRecorder(Identity()).apply)({}, values)[1].listing()[0].rows[0]
    assert row[1:] == (1.0, 7.0, False, False, "")


def test_nan_and_infinity_are_told_apart():
    recorder = FrameRecorder(Identity())
    record = jax.jit(recorder.apply)
    for values, nan, inf in (([1, np.nan], True, False), ([np.inf, 2], False, True), ([-np.inf, np.nan], True, True)):
        row = record({}, np.array(values, np.float32))[1].listing()[0].rows[0]
        assert (row.has_nan, row.has_inf) == (nan, inf)
        assert np.isnan(row.absmax) == nan


def test_float16_overflow_inside_a_fusion_is_seen():
    """Compiled code may keep the product in float32; the row reports the float16 value."""

    class Scale(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Identity(name="inner")(x * jnp.float16(300)) / jnp.float16(1000)

    frames = jax.jit(FrameRecorder(Scale()).apply)({}, np.full((2, 2), 300, np.float16))[1]
    assert first_bad(frames) == "inner"


def test_merging():
    recorder = FrameRecorder(Identity())
    record, merged = jax.jit(recorder.apply), jax.jit(merge)
    values = np.array([[1, 5], [2, np.nan], [0.5, np.inf]], np.float32)
    a, b, c = (record({}, value)[1] for value in values)
    np.testing.assert_array_equal(merged(a, merged(b, c)).rows, merged(merged(c, b), a).rows)
    assert merged(a, c).listing()[0].rows[0][1:] == (0.5, np.inf, False, True, "")
    np.testing.assert_array_equal(merged(a, b).listing()[0].rows[0][1:5], (np.nan, np.nan, True, False))
    with pytest.raises(ValueError, match="cannot be merged: 1 and 1 frames"):
        merge(a, record({}, None)[1])
