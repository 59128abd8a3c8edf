"""The analyser: golden statistics, every documented sign, damaged logs, the documented one-liners."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tracemalloc
from contextlib import closing

import matplotlib.image
import numpy as np
import pytest

from linnaeus_jax.debugging.analysis import analyse, plot, report
from linnaeus_jax.debugging.event_log import DebugEventLog, event_line, supersede
from linnaeus_jax.debugging.event_reader import log_files
from linnaeus_jax.debugging.log_statistics import NO_GRADIENT, LogStatistics, changes
from linnaeus_jax.tools import analyze_debug_logs

STEPS = 60  # logged steps of the constructed logs


def healthy() -> list[dict]:
    """Events of a run in which everything goes well: 600 updates in 3 epochs."""

    def event(kind, step, **data):
        return {"event_type": kind, "step": step, "epoch": step // 200, "timestamp": 1.7e9 + step, "data": data}

    rows = [
        event("fit_start", 0, trainable_params=100, frozen_params=0, total_params=100),
        event("data_sanity_check", 0, label_min=0, label_max=9, expected_max=9, labels_valid=True),
    ]
    for i in range(STEPS):
        step = 10 * i
        if step % 200 == 0:
            rows.append(event("epoch_start", step, optimizer_state=[]))
        rate = 1e-3 * min(1.0, (step + 1) / 100)
        rows.append(event("training_step", step, loss=5.0 - i / 20, accuracy=i / 100, learning_rate=rate))
        norm = 1.0 + i % 3
        rows.append(event("gradient_stats", step, total_norm=norm, top_10_grad_norms={"a.weight": norm, "b.bias": 0.1}))
        if step and step % 50 == 0:
            rows.append(event("param_updates", step, num_params_updated=8, num_params_total=8, no_updates=False))
    return rows


def test_a_cause_counts_whichever_event_comes_first():
    log = LogStatistics()
    still, zero = ("param_updates", {"no_updates": True}), ("gradient_stats", {"total_norm": 0.0})
    for step, (kind, data) in ((50, still), (100, still), (100, zero)):
        log.add({"event_type": kind, "step": step, "epoch": 0, "data": data})
    assert list(log.causes()) == [NO_GRADIENT]


def test_a_value_that_falls_to_zero_dropped():
    rises, drops = changes(np.array([1.0, 1.0, 1.0, 0.0]), factor=10.0, needed=3)
    assert (rises.any(), drops.tolist()) == (False, [False, False, False, True])


def changed(kind: str, **values) -> list[dict]:
    """The healthy log with other values in the last half of the events of one kind; callables get the old value."""
    events = healthy()
    of_kind = [event for event in events if event["event_type"] == kind]
    for event in of_kind[len(of_kind) // 2 :]:
        for key, value in values.items():
            event["data"][key] = value(event["data"].get(key)) if callable(value) else value
    return events


def flat() -> list[dict]:
    events = healthy()
    for i, event in enumerate(events):
        if event["event_type"] == "training_step":
            event["data"].update(loss=5.0 + 0.01 * (i % 2), accuracy=0.1)
    return events


def late() -> list[dict]:
    """Nothing happens in the first 100 logged steps, then all is well."""
    events = [event for event in healthy() if event["event_type"] == "training_step"]
    first = [
        {**events[0], "step": 10 * i, "data": {"loss": 5.0 + 0.02 * (i % 2), "accuracy": 0.0, "learning_rate": 1e-3}}
        for i in range(100)
    ]
    return first + [{**event, "step": event["step"] + 1000} for event in events]


def rising() -> list[dict]:
    events = healthy()
    for event in events:
        if event["event_type"] == "training_step":
            event["data"].update(loss=2.0 + event["step"] / 300, accuracy=0.1)
    return events


def no_rate() -> list[dict]:
    events = changed("param_updates", num_params_updated=0, no_updates=True)
    for event in events:
        if event["event_type"] == "training_step":
            event["data"].update(learning_rate=0.0)
    return events


def frozen() -> list[dict]:
    events = changed("param_updates", num_params_updated=0, no_updates=True)
    events[0]["data"]["trainable_params"] = 0
    return events


def write(path, events) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def analysed(tmp_path, events) -> dict:
    path = tmp_path / "debug_log_1.jsonl"
    write(path, events)
    return analyse([path])


def test_golden_statistics(fixtures):
    found = analyse([fixtures / "observability_debuglog.jsonl"])
    expected = json.loads((fixtures / "observability_debuglog_expected.json").read_text())

    def close(got, want, where=""):
        if isinstance(want, dict):
            assert want.keys() <= got.keys(), where
            for key in want:
                close(got[key], want[key], f"{where}.{key}")
        elif isinstance(want, list):
            assert len(got) == len(want), where
            for i, (g, w) in enumerate(zip(got, want, strict=True)):
                close(g, w, f"{where}[{i}]")
        else:
            assert got == (pytest.approx(want, rel=1e-12) if isinstance(want, float) else want), where

    close(found, expected)


def test_a_healthy_run_has_only_good_signs(tmp_path, capsys):
    found = analysed(tmp_path, healthy())
    assert {sign["level"] for sign in found["findings"]} == {"good"}
    assert {sign["sign"] for sign in found["findings"]} == {
        "labels_valid", "gradients_flow", "healthy_gradients", "parameters_update", "warmup", "loss_falls",
        "accuracy_rises",
    }  # fmt: skip
    assert analyze_debug_logs.main([str(tmp_path), "--strict"]) == 0
    out = capsys.readouterr().out
    assert "OK: 0 steps with near-zero gradients" in out
    assert "WARNING" not in out


@pytest.mark.parametrize(
    ("events", "level", "sign", "words"),
    [
        (flat(), "warning", "flat", ["flat", "Optimizer not updating weights", "learning rate schedule"]),
        (rising(), "warning", "rising_loss", ["rising", "Reduce the learning rate"]),
        (
            changed("gradient_stats", total_norm=1e-9),
            "warning",
            "zero_gradients",
            ["30 steps with near-zero gradients", "No gradient flow", "detached"],
        ),
        (
            changed("param_updates", num_params_updated=0, no_updates=True),
            "warning",
            "no_updates",
            ["6 measurements with NO parameter updates", "Optimizer might not be stepping"],
        ),
        (no_rate(), "warning", "no_updates", ["CAUSE: the learning rate is 0"]),
        (no_rate(), "warning", "zero_learning_rate", ["0 at every logged step", "base_lr"]),
        (frozen(), "warning", "no_updates", ["CAUSE: every parameter is frozen"]),
        (
            changed("data_sanity_check", label_max=11, labels_valid=False),
            "error",
            "labels_out_of_range",
            ["labels are out of range: 0 to 11, expected 0 to 9", "Data preprocessing issue"],
        ),
        (
            changed("data_sanity_check", tasks={"taxa_L20": {"label_min": -1, "labels_valid": False}}),
            "error",
            "labels_out_of_range",
            ["labels of taxa_L20"],
        ),
        (
            changed("gradient_stats", total_norm=4000.0),
            "warning",
            "exploding_gradients",
            ["exploding", "clipping", "Reduce the learning rate"],
        ),
        (changed("gradient_stats", total_norm="NaN"), "error", "nonfinite_gradients", ["skipped"]),
        (changed("training_step", loss="Infinity"), "error", "nonfinite_loss", ["30 steps with a non-finite loss"]),
        (changed("param_updates", num_params_updated=3), "note", "some_parameters_update", ["only 3 of 8"]),
        (changed("training_step", loss=lambda x: x * (5 if x == 3.0 else 1)), "note", "loss_spikes", ["sudden"]),
        (
            changed("gradient_stats", total_norm=lambda x: 500.0 if x == 3.0 else 1.0),
            "warning",
            "gradient_jumps",
            ["sudden rises of the gradient norm"],
        ),
        (changed("gradient_stats", total_norm=0.01), "note", "gradient_drops", ["sudden drops"]),
        (late(), "warning", "flat_start", ["nothing improves in the first 100 updates"]),
        (healthy()[:20], "note", "too_short", ["too few"]),
        ([], "warning", "empty", ["no events"]),
    ],
)
def test_every_bad_sign_is_diagnosed(tmp_path, capsys, events, level, sign, words):
    found = {s["sign"]: s for s in analysed(tmp_path, events)["findings"]}
    assert found[sign]["level"] == level
    text = " ".join([found[sign]["message"], *found[sign]["advice"]])
    for word in words:
        assert word in text
    assert analyze_debug_logs.main([str(tmp_path), "--strict"]) == (0 if level == "note" else 2)
    assert analyze_debug_logs.main([str(tmp_path)]) == 0
    assert found[sign]["message"] in capsys.readouterr().out


def test_damaged_lines_are_counted(tmp_path, capsys):
    path = tmp_path / "debug_log_1.jsonl"
    write(path, healthy())
    whole = analyse([path])
    with path.open("a") as file:
        file.write('\n\n{"event_type": "training_step", "ste\n[1, 2]\n{"event_type": "unknown", "step": 1}\n\xff\n')
    found = analyse([path])
    assert found["total_events"] == whole["total_events"]
    assert found["malformed_lines"] == 4
    assert analyze_debug_logs.main([str(path), "--strict"]) == 0
    assert "4 lines are no events" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"garbage\n", bytes(range(256)), b"[1, 2]\n"])
def test_a_file_without_any_event_is_no_log(tmp_path, capsys, content):
    (tmp_path / "debug_log_1.jsonl").write_bytes(content)
    assert analyze_debug_logs.main([str(tmp_path)]) == 2
    assert "debug_log_1.jsonl: none of" in capsys.readouterr().err


def line(kind: str = "training_step", step: str = "10", epoch: str = "0", data: str = "{}") -> str:
    return f'{{"event_type": "{kind}", "step": {step}, "epoch": {epoch}, "timestamp": 0, "data": {data}}}'


#: (line, whether it is an event)
ODD_LINES = {
    "infinite step": (line(step="1e400"), False),
    "infinite epoch": (line(epoch="-1e400"), False),
    "NaN step": (line(step="NaN"), False),
    "half a step": (line(step="1.5"), False),
    "step in words": (line(step='"ten"'), False),
    "huge step": (line(step="9" * 4000), False),
    "step of 5000 digits": (line(step="9" * 5000), False),
    "100000 brackets": ("[" * 100_000, False),
    "100000 brackets inside": (line(data='{"loss": ' + "[" * 100_000 + "]" * 100_000 + "}"), False),
    "brackets just deep enough": (line("data_sanity_check", data='{"tasks": ' + "[" * 700 + "]" * 700 + "}"), True),
    "3 MiB": (line(data='{"x": "' + "x" * (3 << 20) + '"}'), False),
    "no utf-8": ('{"event_type": "\udc80\udcff"', False),
    "half a surrogate": (line(kind="\\ud800"), True),
    "norms that are a number": (line("gradient_stats", data='{"top_10_grad_norms": 3, "total_norm": 1}'), True),
    "norms that are a list": (line("gradient_stats", data='{"top_10_grad_norms": [1], "total_norm": [2]}'), True),
    "norm without end": (line("gradient_stats", data='{"total_norm": 1e400, "top_10_grad_norms": {"a": 1e400}}'), True),
    "loss of 400 digits": (line(data='{"loss": ' + "9" * 400 + ', "learning_rate": "x", "accuracy": true}'), True),
    "tasks that are a number": (line("data_sanity_check", data='{"tasks": 3, "labels_valid": false}'), True),
    "a task that is a number": (line("data_sanity_check", data='{"tasks": {"a": 3, "b": {"label_min": {}}}}'), True),
    "counts in words": (line("param_updates", data='{"num_params_updated": "x", "no_updates": "yes"}'), True),
    "an empty fit_start": (line("fit_start"), True),
    "an unknown event": (line("[red]unknown[/red]"), True),
}


@pytest.mark.parametrize("odd", ODD_LINES)
def test_an_odd_line_breaks_nothing(tmp_path, capsys, odd):
    """Neither the analyser, in any of its forms, nor the end of a run whose log holds such a line."""
    text, is_event = ODD_LINES[odd]
    path = tmp_path / "debug_log_1.jsonl"
    write(path, healthy())
    events = len(healthy())
    with path.open("a", errors="surrogateescape") as file:
        file.write(text + "\n")
    write(tmp_path / "debug_log_2.jsonl", healthy()[:1])
    found = analyse([path])
    assert (found["total_events"], found["malformed_lines"]) == (events + is_event, 1 - is_event)
    assert analyze_debug_logs.main([str(path)]) == 0
    assert analyze_debug_logs.main([str(path), "--json"]) == 0
    out = capsys.readouterr().out
    out.encode()  # can be printed anywhere
    with closing(DebugEventLog(tmp_path, 3)) as log:
        log.event("fit_start", 0, 0, {})
    assert json.loads(log.summary_path.read_text())["malformed_lines"] == 1 - is_event
    supersede(tmp_path, 10_000)
    assert analyse([path])["malformed_lines"] == 0


def test_odd_lines_are_drawn(tmp_path):
    path = tmp_path / "debug_log_1.jsonl"
    path.write_text("\n".join(text for text, _ in ODD_LINES.values()), errors="replace")
    plot([path], tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path):
    """Also with an epoch every other event and something wrong at every step."""

    def peak(events: int) -> tuple[int, int]:
        path = tmp_path / f"{events}.jsonl"
        with path.open("w") as file:
            for i in range(events):
                at = {"step": 10 * i, "epoch": i // 2, "timestamp": 0.0}
                step = {
                    "loss": None if i % 2 else 1.0 + 5 * (i % 7),
                    "accuracy": 0.1,
                    "learning_rate": 0.0,
                    "pad": "x" * 2000,
                }
                norms = {f"module_{k}": float(i) for k in range(10)}
                rows = {
                    "training_step": step,
                    "gradient_stats": {"total_norm": [0.0, 5000.0, 1.0][i % 3], "top_10_grad_norms": norms},
                    "param_updates": {"num_params_updated": i, "num_params_total": events, "no_updates": True},
                }
                file.writelines(
                    json.dumps({"event_type": kind, **at, "data": data}) + "\n" for kind, data in rows.items()
                )
        tracemalloc.start()
        found = analyse([path])
        assert found["training"]["logged"] == events
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top, path.stat().st_size

    (small, size), (large, larger) = peak(2500), peak(7500)
    assert larger > 2.9 * size > 15e6
    assert large < 1.3 * small
    assert large < 4e6


def test_improvement_windows_never_overlap(tmp_path):
    """A loss that falls over a dozen logged steps has improved."""
    events = [event for event in healthy() if event["event_type"] == "training_step"][:12]
    found = analysed(tmp_path, events)["improvement"]
    assert found["window"] == 6
    assert found["loss"]["first10"] == pytest.approx(4.875)
    assert found["loss"]["last10"] == pytest.approx(4.575)
    assert found["loss"]["status"] == found["accuracy"]["status"] == "IMPROVED"
    assert analysed(tmp_path, events[:1])["improvement"]["loss"]["change"] is None
    lines = [text for text, _ in report(analysed(tmp_path, events[:1]))]
    assert "First 0 steps:   Loss=none, Acc=none" in lines


def test_a_flat_start_is_a_note_while_the_rate_is_low(tmp_path):
    def found(rate: float) -> str:
        events = healthy()
        for event in events:
            if event["event_type"] == "training_step" and event["step"] <= 100:
                event["data"].update(loss=5.0, accuracy=0.1, learning_rate=rate)
        return {sign["sign"]: sign["level"] for sign in analysed(tmp_path, events)["findings"]}["flat_start"]

    assert (found(1e-3), found(1e-5)) == ("warning", "note")


def test_a_long_log_is_listed_in_part(tmp_path):
    events = [{"event_type": "training_step", "step": i, "epoch": i, "data": {"loss": None}} for i in range(1300)]
    found = analysed(tmp_path, events)
    assert list(found["training"]["per_epoch"]) == [str(i) for i in (*range(500), *range(800, 1300))]
    assert found["training"]["epochs"] == [0, 1299]
    sign = next(sign for sign in found["findings"] if sign["sign"] == "nonfinite_loss")
    assert (sign["count"], len(sign["steps"])) == (1300, 1000)
    text = "\n".join(text for text, _ in report(found))
    assert "300 epochs in the middle are left out" in text
    assert "and 1295 more" in text


def test_bare_nan_is_read(tmp_path):
    path = tmp_path / "debug_log_1.jsonl"
    path.write_text('{"event_type": "training_step", "step": 0, "epoch": 0, "timestamp": 0, "data": {"loss": NaN}}\n')
    assert analyse([path])["training"]["per_epoch"]["0"]["nonfinite_loss"] == 1


def test_a_resumed_run_is_one_run(tmp_path):
    events = healthy()
    whole = analysed(tmp_path, events)
    write(tmp_path / "debug_log_9.jsonl", [e for e in events if e["step"] < 250])
    write(tmp_path / "debug_log_10.jsonl", [e for e in events if e["step"] >= 250])
    (tmp_path / "debug_log_1.jsonl").unlink()
    (tmp_path / "events.superseded.jsonl").write_text(json.dumps(events[-1]) + "\n")
    parts = log_files([tmp_path])
    assert [path.name for path in parts] == ["debug_log_9.jsonl", "debug_log_10.jsonl"]
    resumed = analyse(parts)
    resumed["files"] = whole["files"]
    assert resumed == whole


def test_command_line(fixtures, tmp_path, capsys):
    log = str(fixtures / "observability_debuglog.jsonl")
    assert analyze_debug_logs.main([log]) == 0
    out = capsys.readouterr().out
    for line in (
        "Total training steps logged: 24",
        "Epochs covered: 0 to 2",
        "  Loss:  6.0126 -> 5.5156 (avg: 5.7162)",
        "  LR:    4.166667e-06 -> 2.958333e-04",
        "First 10 steps:  Loss=5.6408, Acc=0.1126",
        "Loss change:     -1.2674 (IMPROVED)",
        "Acc change:      +0.2911 (IMPROVED)",
        "Parameters updated per measurement: 12/12",
    ):
        assert line in out.splitlines()
    titles = [line.strip("= ") for line in out.splitlines() if line.startswith("===")]
    assert titles == [
        "EVENTS", "DATA SANITY CHECK", "TRAINING PROGRESSION", "IMPROVEMENT CHECK", "GRADIENT ANALYSIS",
        "PARAMETER UPDATES", "SIGNS",
    ]  # fmt: skip
    assert analyze_debug_logs.main([log, "--json", "--plot", str(tmp_path / "out.png")]) == 0
    assert json.loads(capsys.readouterr().out)["total_events"] == 57
    assert matplotlib.image.imread(tmp_path / "out.png").shape[:2] == (1000, 1200)
    for missing in (tmp_path / "no.jsonl", tmp_path):
        for strict in ((), ("--strict",), ("--json",)):
            assert analyze_debug_logs.main([str(missing), *strict]) == 1
        assert str(missing) in capsys.readouterr().err


DOCUMENTED = """
import json

events = []
with open('debug_log_1234567890.jsonl', 'r') as f:
    for line in f:
        events.append(json.loads(line))

# Filter specific event types
training_steps = [e for e in events if e['event_type'] == 'training_step']
losses = [e['data']['loss'] for e in training_steps]

import matplotlib.pyplot as plt
plt.plot(losses)
plt.show()
"""


def test_documented_python_runs_as_printed(fixtures, tmp_path):
    shutil.copy(fixtures / "observability_debuglog.jsonl", tmp_path / "debug_log_1234567890.jsonl")
    code = DOCUMENTED + "print(len(losses))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"MPLBACKEND": "agg"}, capture_output=True, text=True
    )
    assert done.stdout == "24\n", done.stderr


def test_documented_python_draws_a_log_with_losses_that_are_not_finite(tmp_path):
    """On an axis of numbers, with gaps: text would make it one of categories."""
    losses = [3.0, math.nan, 2.0, math.inf, 1.0]
    with closing(DebugEventLog(tmp_path, 1234567890)) as log:
        for step, loss in enumerate(losses):
            log.event("training_step", step, 0, {"loss": loss})
    code = DOCUMENTED.replace("plt.show()", "print(list(plt.gca().lines[0].get_ydata(orig=False)))")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"MPLBACKEND": "agg"}, capture_output=True, text=True
    )
    drawn = done.stdout.replace("np.float64(", "").replace(")", "")
    assert drawn == "[3.0, nan, 2.0, inf, 1.0]\n", done.stderr


@pytest.mark.needs("jq")
def test_documented_jq_runs_as_printed(tmp_path):
    events = changed("gradient_stats", total_norm=1e-9)
    next(e for e in events if e["event_type"] == "gradient_stats")["data"]["total_norm"] = math.inf
    (tmp_path / "debug_log_1.jsonl").write_text("".join(event_line(event) + "\n" for event in events))
    (tmp_path / "events.superseded.jsonl").write_text(json.dumps(events[-1]) + "\n")  # not matched by the documents

    def jq(query: str) -> str:
        command = f"cat debug_log_*.jsonl | jq '{query}'"
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert len(jq('select(.event_type=="training_step") | .data.loss').splitlines()) == STEPS
    zero = jq('select(.event_type=="gradient_stats" and .data.total_norm < 0.001)')
    assert zero.count('"gradient_stats"') == STEPS // 2  # those of gradients that are not finite are not among them
    rates = jq('select(.event_type=="training_step") | {step: .step, lr: .data.learning_rate}')
    assert rates.count('"lr"') == STEPS
