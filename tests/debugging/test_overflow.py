"""Reports and traces against the printed text of the original detector, and the detector on small modules."""

import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.debugging.frames import Frame, Frames, FrameSpec, Row, measure
from linnaeus_jax.debugging.overflow import (
    BatchLimitReached,
    DebugUnderflowOverflow,
    OverflowDetected,
    OverflowMonitor,
    detect_overflow,
    frame_text,
    row_text,
)
from tests.npz import load_npz

SCENARIOS = (
    "detect_default",
    "detect_window3",
    "detect_second_batch",
    "trace_1_3",
    "trace_abort",
    "shared_module",
)


@pytest.fixture(scope="module")
def events(fixtures):
    return json.loads((fixtures / "observability_overflow.json").read_text())


@pytest.fixture(scope="module")
def arrays(fixtures):
    return load_npz(fixtures / "observability_overflow.npz")


def host_row(label, ref, arrays):
    if "tensor" not in ref:
        return Row(label, note="None" if "none" in ref else "not a tensor")
    value = np.abs(arrays[f"a{ref['tensor']:04d}"])
    return Row(label, float(value.min()), float(value.max()), bool(np.isnan(value).any()), bool(np.isinf(value).any()))


def host_frame(event, arrays):
    labelled = [*event["params"], *((f"input[{i}]", ref) for i, ref in enumerate(event["inputs"]))]
    output = event["output"]
    for i, ref in enumerate(output.get("tuple", ())):
        inner = ref.get("tuple")
        labelled += [(f"output[{i}][{j}]", r) for j, r in enumerate(inner)] if inner else [(f"output[{i}]", ref)]
    if "tuple" not in output:
        labelled.append(("output", output))
    return Frame(event["name"], event["class"], tuple(host_row(label, ref, arrays) for label, ref in labelled))


def frames_of(listing):
    """The recorder's form of host frames."""
    values: list[tuple[float, float, bool]] = []
    table = []
    for frame in listing:
        rows = []
        for row in frame.rows:
            rows.append((row.label, row.note or len(values)))
            if not row.note:
                finite = row._replace(absmin=0.0, absmax=np.inf if row.has_inf else 0.0) if row.has_nan else row
                values.append((-finite.absmin, finite.absmax, row.has_nan))
        table.append(FrameSpec(frame.name, frame.class_name, tuple(rows), frame.backward))
    return Frames(np.array(values, np.float64).reshape(-1, 3), tuple(table))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCENARIOS)
def test_text_equals_the_original(events, arrays, name, capsys):
    scenario = events[name]
    error = scenario["error"]
    monitor = OverflowMonitor(**scenario["options"])
    raised = None
    for number, batch in enumerate(scenario["batches"]):
        try:
            if monitor.looks_at(number):
                monitor.consume(number, frames_of([host_frame(event, arrays) for event in batch]))
            monitor.finished(number)
        except ValueError as found:
            raised = (str(found), number)
            break
    assert capsys.readouterr().out == scenario["stdout"]
    assert raised == (error and (error["message"], error["raised_in_batch_index"]))


def test_units_in_the_graph(events, arrays, capsys):
    """Extremes of single values; empty and boolean ones are named here, where the original fails."""
    for i, unit in enumerate(events["units"]):
        value = arrays[f"unit{i}"]
        with jax.enable_x64(value.dtype.itemsize == 8):
            value = jax.device_put(value)
            found = measure(value, batched=False)
            detected = value.dtype != np.bool_ and detect_overflow(value, "after x")
        assert capsys.readouterr().out == unit["stdout"]
        assert detected == unit["detected"]
        if isinstance(found, str):
            assert (found, unit["row_error"]) in (("empty", "RuntimeError"), ("not a tensor", "NotImplementedError"))
            continue
        (frame,) = Frames(found.T, (FrameSpec("", "", (("ctx", 0),)),)).listing()
        assert row_text(frame.rows[0]) == unit["row"]
        assert frame.bad == unit["detected"]


def frame(name, *values):
    rows = (Row(f"input[{i}]", v, v, bool(np.isnan(v)), bool(np.isinf(v))) for i, v in enumerate(values))
    return Frame(name, "Net" if not name else "Dense", tuple(rows))


GOOD = [frame("a", 1.0), frame("b", 2.0), frame("", 3.0)]


def run(monitor, *batches):
    for number, batch in enumerate(batches):
        monitor.consume(number, frames_of(batch))


def test_overflow_of_the_model_itself_belongs_to_its_own_batch(capsys):
    """The original names the next batch."""
    with pytest.raises(OverflowDetected, match="inf/nan detected, aborting") as caught:
        run(OverflowMonitor(), GOOD, [frame("a", 1.0), frame("", np.inf)])
    assert caught.value.batch_number == 1
    assert caught.value.frame.name == ""
    assert "Detected inf/nan during batch_number=1\nLast 5 forward frames:" in capsys.readouterr().out


def test_the_window_reaches_back_into_earlier_batches(capsys):
    with pytest.raises(OverflowDetected):
        run(OverflowMonitor(4), GOOD, GOOD, GOOD, [frame("a", np.nan)])
    alarm, report = capsys.readouterr().out.split("input[0] has nans\n")
    assert alarm == ""
    assert "Last 4 forward frames" in report
    assert report.count("input[0]") == 4


def test_traces_turn_detection_off(capsys):
    bad = [frame("a", np.nan), frame("b", np.inf), frame("", 1.0)]
    run(OverflowMonitor(trace_batch_nums=[1]), GOOD, bad, bad)
    out = capsys.readouterr().out
    assert "has" not in out
    assert out.count("Starting batch number=1") == 1


def test_stops_after_a_batch():
    monitor = OverflowMonitor(abort_after_batch_num=1)
    monitor.finished(0)
    with pytest.raises(BatchLimitReached, match=r"^DebugUnderflowOverflow: aborting after 2 batches due to `abort_"):
        monitor.finished(1)


def test_notes_and_heading():
    text = frame_text(Frame("b.wi", "Dense", (Row("input[1]", note="None"), Row("output", note="empty"))), 3)
    assert text.splitlines() == [
        "",
        "",
        "                  *** Starting batch number=3 ***",
        "abs min  abs max  metadata",
        "                  b.wi Dense",
        "             None input[1]",
        "            empty output",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_frames_to_save": 0}, "max_frames_to_save is 0"),
        ({"trace_batch_nums": [-1]}, "cannot be negative"),
        ({"abort_after_batch_num": -2}, "abort_after_batch_num -2"),
    ],
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        OverflowMonitor(**options)


class Half(nn.Module):
    """Two float16 layers; values above 65504 overflow."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, dtype=jnp.float16, name="wi")(x)
        return nn.relu(nn.Dense(4, dtype=jnp.float16, name="wo")(x))


ONES = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def half():
    variables = jax.jit(Half().init)(jax.random.key(0), ONES)
    return variables, jax.tree.map(lambda x: np.full(x.shape, 1e3 if x.ndim == 2 else 0, np.float32), variables)


@pytest.mark.parametrize("compiled", [False, True])
def test_detector_outside_the_trainer(half, compiled, capsys):
    good, large = half
    debug = DebugUnderflowOverflow(Half(), max_frames_to_save=2)
    step = jax.jit(debug.record)

    def forward(variables):
        if not compiled:
            return debug.apply(variables, ONES)
        out, frames = step(variables, ONES)
        debug.check(frames)
        return out

    expected: Any = jax.jit(Half().apply)(good, ONES)
    np.testing.assert_allclose(forward(good), expected, rtol=1e-2)
    with pytest.raises(OverflowDetected, match="Please scroll up above this traceback") as caught:
        forward(large)
    assert caught.value.frame.name == "wo"
    assert capsys.readouterr().out == (
        "output has infs\n\nDetected inf/nan during batch_number=1\nLast 2 forward frames:\n"
        "abs min  abs max  metadata\n\n\n                  *** Starting batch number=1 ***\n"
        "abs min  abs max  metadata\n                  wi Dense\n1.00e+03 1.00e+03 weight\n0.00e+00 0.00e+00 bias\n"
        "1.00e+00 1.00e+00 input[0]\n4.00e+03 4.00e+03 output\n                  wo Dense\n"
        "1.00e+03 1.00e+03 weight\n0.00e+00 0.00e+00 bias\n4.00e+03 4.00e+03 input[0]\n     inf      inf output\n\n\n\n"
    )


def test_apply_under_a_transform_says_what_to_do(half):
    debug = DebugUnderflowOverflow(Half())
    with pytest.raises(ValueError, match=r"use `out, frames = debug.record"):
        jax.eval_shape(debug.apply, half[0], ONES)


@pytest.mark.parametrize("devices", [1, 2])
def test_detect_overflow_inside_compiled_code(devices, capsys):
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    @jax.jit
    def f(x):
        y = jnp.log(x)
        return y, detect_overflow(y, "after log")

    for x, found, text in (
        ([1.0, 2.0], False, ""),
        ([1.0, 0.0], True, "after log has infs\n"),
        ([-1.0, 0.0], True, "after log has nans\nafter log has infs\n"),
    ):
        assert bool(f(jax.device_put(np.array(x, np.float32), rows))[1]) == found
        jax.effects_barrier()
        assert capsys.readouterr().out == text


def test_detect_overflow_needs_numbers():
    with pytest.raises(TypeError, match=r"detect_overflow\('flag'\) got bool"):
        detect_overflow(np.array([True]), "flag")
    with pytest.raises(TypeError, match=r"detect_overflow\('nothing'\) got NoneType"):
        detect_overflow(None, "nothing")
    assert not detect_overflow(jnp.arange(3), "integers")
