"""The analyser: golden statistics, every documented sign, damaged logs, the documented one-liners."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import matplotlib.image
import pytest

from linnaeus_jax.debugging.analysis import analyse, read_events
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
    return analyse(read_events([path]))


def test_golden_statistics(fixtures):
    found = analyse(read_events([fixtures / "observability_debuglog.jsonl"]))
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
    whole = read_events([path])
    with path.open("a") as file:
        file.write('\n\n{"event_type": "training_step", "ste\n[1, 2]\n{"event_type": "unknown", "step": 1}\n\xff\n')
    log = read_events([path])
    assert len(log.events) == len(whole.events)
    assert log.malformed == 4
    assert analyze_debug_logs.main([str(path), "--strict"]) == 0
    assert "4 lines are no events" in capsys.readouterr().out


def test_bare_nan_is_read(tmp_path):
    path = tmp_path / "debug_log_1.jsonl"
    path.write_text('{"event_type": "training_step", "step": 0, "epoch": 0, "timestamp": 0, "data": {"loss": NaN}}\n')
    assert analyse(read_events([path]))["training"]["per_epoch"]["0"]["nonfinite_loss"] == 1


def test_a_resumed_run_is_one_run(tmp_path):
    events = healthy()
    whole = analysed(tmp_path, events)
    write(tmp_path / "debug_log_9.jsonl", [e for e in events if e["step"] < 250])
    write(tmp_path / "debug_log_10.jsonl", [e for e in events if e["step"] >= 250])
    (tmp_path / "debug_log_1.jsonl").unlink()
    (tmp_path / "events.superseded.jsonl").write_text(json.dumps(events[-1]) + "\n")
    parts = analyze_debug_logs.log_files([tmp_path])
    assert [path.name for path in parts] == ["debug_log_9.jsonl", "debug_log_10.jsonl"]
    resumed = analyse(read_events(parts))
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
        assert analyze_debug_logs.main([str(missing)]) == 1
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


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_documented_jq_runs_as_printed(tmp_path):
    events = changed("gradient_stats", total_norm=1e-9)
    next(e for e in events if e["event_type"] == "gradient_stats")["data"]["total_norm"] = "NaN"
    write(tmp_path / "debug_log_1.jsonl", events)
    (tmp_path / "events.superseded.jsonl").write_text(json.dumps(events[-1]) + "\n")  # not matched by the documents

    def jq(query: str) -> str:
        command = f"cat debug_log_*.jsonl | jq '{query}'"
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert len(jq('select(.event_type=="training_step") | .data.loss').splitlines()) == STEPS
    zero = jq('select(.event_type=="gradient_stats" and .data.total_norm < 0.001)')
    assert zero.count('"gradient_stats"') == STEPS // 2  # the string NaN is not among them
    rates = jq('select(.event_type=="training_step") | {step: .step, lr: .data.learning_rate}')
    assert rates.count('"lr"') == STEPS
