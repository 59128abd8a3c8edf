"""The event log: fields, buffering, kills, resume, and what the probes measure in the graph."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from linnaeus_jax.debugging import event_log as el
from linnaeus_jax.debugging.analysis import analyse
from linnaeus_jax.debugging.event_log import DebugEventLog, EventFacts, event_log_probes
from linnaeus_jax.learning.update import ParameterRow
from linnaeus_jax.step.probes import ProbeInputs, due, measure

TASKS = ("taxa_L10", "taxa_L20")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_strict_json_and_envelope(tmp_path):
    with closing(DebugEventLog(tmp_path / "deep" / "debug", 1700000000)) as log:
        log.event("training_step", 3, 1, {"loss": float("nan"), "x": [float("inf"), -np.inf], "n": None, "s": "a"})
    assert log.path.name == "debug_log_1700000000.jsonl"
    text = log.path.read_text()
    [row] = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in text.splitlines()]
    assert list(row) == ["event_type", "step", "epoch", "timestamp", "data"]
    assert row["data"] == {"loss": None, "x": [np.inf, -np.inf], "n": None, "s": "a"}
    assert '"x":[1e999,-1e999]' in text
    assert abs(row["timestamp"] - time.time()) < 60
    summary = json.loads((log.directory / "debug_summary_1700000000.json").read_text())
    assert summary == analyse([log.path])


def test_batches_of_100_flush_and_close(tmp_path):
    log = DebugEventLog(tmp_path, 1)
    for step in range(99):
        log.event("training_step", step, 0, {})
    assert log.path.read_text() == ""
    log.event("training_step", 99, 0, {})
    assert len(lines(log.path)) == 100
    log.event("training_step", 100, 0, {})
    log.flush()
    assert len(lines(log.path)) == 101
    log.event("training_step", 101, 0, {})
    log.close()
    log.close()
    assert len(lines(log.path)) == 102


def test_a_hanging_run_shows_what_came_before(tmp_path):
    log = DebugEventLog(tmp_path, 1, flush_seconds=0.05)
    log.event("training_step", 0, 0, {})
    for _ in range(100):
        if log.path.read_text():
            break
        time.sleep(0.05)
    assert len(lines(log.path)) == 1
    log.close()


def test_an_exception_flushes(tmp_path):
    log = DebugEventLog(tmp_path, 1)

    def fail() -> None:
        with closing(log):
            log.event("training_step", 0, 0, {})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(lines(log.path)) == 1


def test_a_start_in_the_same_second_gets_its_own_file(tmp_path):
    for _ in range(2):
        with closing(DebugEventLog(tmp_path, 5)) as log:
            log.event("fit_start", 0, 0, {})
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["debug_log_5.jsonl", "debug_log_6.jsonl"]
    assert json.loads(log.summary_path.read_text())["total_events"] == 2  # of the run, not of its last start


def test_a_full_disk_is_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("linnaeus_jax"), "propagate", True)
    (tmp_path / "file").write_text("")
    log = DebugEventLog(tmp_path / "file" / "debug", 1)
    for step in range(250):
        log.event("training_step", step, 0, {})
    log.close()
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text


def test_sigkill_loses_at_most_the_buffer(tmp_path):
    code = f"""
import os, signal, pathlib
from linnaeus_jax.debugging.event_log import DebugEventLog
log = DebugEventLog(pathlib.Path({str(tmp_path)!r}), 1)
for step in range(300):
    log.event("training_step", step, 0, {{"loss": 1.0}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    found = analyse([tmp_path / "debug_log_1.jsonl"])
    assert found["total_events"] >= 200
    assert found["malformed_lines"] == 0


def test_resume_sets_rows_aside(tmp_path):
    log = DebugEventLog(tmp_path, 1)
    for step in range(0, 50, 10):
        log.event("training_step", step, step // 30, {"loss": 1.0})
    log.flush()
    with log.path.open("a") as file:
        file.write('{"event_type": "trai')  # cut off by the kill
    assert el.supersede(tmp_path, 30) == 3  # updates 30 and 40, which are made again, and the rest of a line
    assert [row["step"] for row in lines(log.path)] == [0, 10, 20]
    assert len((tmp_path / "events.superseded.jsonl").read_text().splitlines()) == 3
    with closing(DebugEventLog(tmp_path, 2)) as resumed:
        resumed.event("fit_start", 30, 1, {})
        for step in range(30, 60, 10):
            resumed.event("training_step", step, 1, {"loss": 0.5})
    found = json.loads(resumed.summary_path.read_text())
    assert found["training"]["logged"] == 6
    assert found["malformed_lines"] == 0
    assert el.supersede(tmp_path, 100) == 0
    assert el.supersede(tmp_path / "new", 0) == 0
    log.close()


def test_runs_that_share_a_directory_keep_to_their_own(tmp_path):
    """What one run sets aside and sums up are its own logs."""
    shared, runs = tmp_path / "shared", [tmp_path / "one", tmp_path / "two"]
    for number, root in enumerate(runs):
        with closing(DebugEventLog(shared, 5, run=root)) as log:
            data = el.fit_start_data((), run=root, total_examples=1, training={}, optimizer={})
            log.event("fit_start", 0, 0, data)
            for step in (0, 10, 20)[: 2 + number]:
                log.event("training_step", step, 0, {"loss": 1.0})
        assert json.loads(log.summary_path.read_text())["total_events"] == 3 + number
    assert el.supersede(shared, 10, run=runs[0]) == 1
    assert [len(lines(shared / f"debug_log_{second}.jsonl")) for second in (5, 6)] == [2, 4]
    inside = runs[0] / "logs"
    with closing(DebugEventLog(inside, 1, run=runs[0])) as log:
        log.event("training_step", 30, 0, {})
    assert el.logs_of(runs[0], inside) == [log.path]


ROWS = (
    ParameterRow("stem.0.weight", (3, 3, 3, 8), "default", "adamw", 0.05, 1.0),
    ParameterRow("stem.0.bias", (8,), "default", "adamw", 0.0, 1.0),
    ParameterRow("body.weight", (8, 8), "default", "muon", 0.05, 1.0),
    ParameterRow("head.weight", (8, 5), "heads", "frozen", 0.0, 0.0),
)


def test_fit_start(tmp_path):
    data = el.fit_start_data(ROWS, run=tmp_path, total_examples=10, training={"epochs": 3}, optimizer={"name": "muon"})
    assert (data["trainable_params"], data["frozen_params"], data["total_params"]) == (288, 40, 328)
    assert data["frozen_modules"] == ["head"]
    assert data["run"] == str(tmp_path)


def test_epoch_start():
    state = el.epoch_start_data(ROWS, {"default": 1e-3}, (0.9, 0.999))["optimizer_state"]
    assert [(s["optimizer_idx"], s["group_idx"], s["optimizer"], s["weight_decay"]) for s in state] == [
        (0, 0, "adamw", 0.05),
        (1, 0, "muon", 0.05),
    ]
    assert state[0]["lr"] == 1e-3
    assert state[0]["betas"] == [0.9, 0.999]


def test_data_sanity_check():
    labels = np.array([[[0, 11]], [[4, 2]]], np.int32)  # [A, B, T]
    data = el.data_sanity_data(labels, {"taxa_L10": 5, "taxa_L20": 10})
    assert (data["label_min"], data["label_max"], data["expected_max"], data["labels_valid"]) == (2, 11, 9, False)
    assert data["tasks"]["taxa_L10"] == {"label_min": 0, "label_max": 4, "expected_max": 4, "labels_valid": True}
    assert not el.data_sanity_data(labels - 1, {"taxa_L10": 5, "taxa_L20": 11})["labels_valid"]


NAMES = ("a.weight", "b.bias", "c.weight")
TRAINED = tuple(ParameterRow(name, (3, 4), "default", "adamw", 0.0, 1.0) for name in NAMES)


def inputs(step=0, grads=None, updates=None, micro=2, rows=12) -> ProbeInputs:
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=(3, 4)), jnp.float32) for name in NAMES}
    label = jnp.asarray(rng.integers(0, 5, (micro, rows, len(TASKS))), jnp.int32)
    grads = params if grads is None else grads
    return ProbeInputs(
        step=jnp.int32(step),
        params=params,
        grads=grads,
        grad_norm=optax.tree.norm(grads),
        updates=lambda: jax.tree.map(lambda p: -1e-3 * p, params) if updates is None else updates,
        loss=jnp.float32(2.5),
        task_losses=jnp.asarray([2.0, 3.0], jnp.float32),
        task_weights=jnp.ones(2),
        counts=jnp.asarray([20.0, 24.0], jnp.float32),
        sums={"count": jnp.int32(24), "correct1": jnp.asarray([6, 12], jnp.int32)},
        batch={"label": label},
        null=label == 0,
        loss_mask=label != 0,
        partner_label=label,
        lam=jnp.ones((micro, rows)),
        probabilities={},
        preview=label[0] + 1,
        sample_losses=jnp.ones((rows, len(TASKS))),
    )


def run(log, given: ProbeInputs, epoch=2) -> list[dict]:
    """Measures in a compiled program, consumes on the host, as the trainer does."""
    facts = EventFacts(TASKS, TRAINED, learning_rate=lambda k: 1e-3, batch_index=lambda k: k % 40)
    probes = event_log_probes(log.event, facts)
    found = jax.device_get(jax.jit(lambda x: measure(probes, x))(given))
    step = int(given.step)
    for probe in due(probes, step):
        probe.consume(step, epoch, found[probe.name])
    log.flush()
    return lines(log.path)


def test_measurements(tmp_path):
    with closing(DebugEventLog(tmp_path, 1)) as log:
        given = inputs(step=50)
        by_type = {row["event_type"]: row for row in run(log, given)}
    assert {row["step"] for row in by_type.values()} == {50}
    assert {row["epoch"] for row in by_type.values()} == {2}
    data = by_type["training_step"]["data"]
    assert (data["loss"], data["accuracy"], data["learning_rate"]) == (2.5, 0.25, 1e-3)
    assert data["sample_labels"] == given.batch["label"][0, :10, 0].tolist()
    assert data["sample_predictions"] == (given.batch["label"][0, :10, 0] + 1).tolist()
    assert (data["target_shape"], data["labels_shape"]) == ([2, 12, 2], [2, 12, 2])
    assert (data["num_valid"], data["batch_idx"]) == (20, 10)
    assert data["tasks"] == {"taxa_L10": {"loss": 2.0, "accuracy": 0.25}, "taxa_L20": {"loss": 3.0, "accuracy": 0.5}}

    leaves = {name: np.asarray(given.params[name], np.float64) for name in NAMES}
    data = by_type["gradient_stats"]["data"]
    norms = {name: float(np.linalg.norm(leaf)) for name, leaf in leaves.items()}
    assert data["total_norm"] == pytest.approx(np.sqrt(sum(norm**2 for norm in norms.values())), rel=1e-6)
    assert data["max_grad"] == pytest.approx(max(np.abs(leaf).max() for leaf in leaves.values()), rel=1e-6)
    assert data["min_grad"] == pytest.approx(min(np.abs(leaf).min() for leaf in leaves.values()), rel=1e-6)
    assert (data["num_params_with_grad"], data["num_params_total"], data["nonfinite_params"]) == (3, 3, 0)
    assert data["top_10_grad_norms"] == pytest.approx(norms, rel=1e-6)
    assert list(data["top_10_grad_norms"].values()) == sorted(data["top_10_grad_norms"].values(), reverse=True)

    data = by_type["param_updates"]["data"]
    assert (data["num_params_updated"], data["num_params_total"], data["no_updates"]) == (3, 3, False)
    assert data["top_10_param_changes"] == pytest.approx(
        {name: 1e-3 * float(np.abs(leaf).mean()) for name, leaf in leaves.items()}, rel=1e-5
    )


def test_step_0_has_no_parameter_updates_and_other_steps_nothing(tmp_path):
    with closing(DebugEventLog(tmp_path, 1)) as log:
        assert {row["event_type"] for row in run(log, inputs(step=0))} == {"training_step", "gradient_stats"}
        assert len(run(log, inputs(step=7))) == 2
        assert len(run(log, inputs(step=10))) == 4


def test_zero_and_non_finite(tmp_path):
    zero = {name: jnp.zeros((3, 4)) for name in NAMES}
    broken = {**zero, "b.bias": jnp.full((3, 4), jnp.nan)}
    with closing(DebugEventLog(tmp_path, 1)) as log:
        rows = {row["event_type"]: row["data"] for row in run(log, inputs(step=50, grads=broken, updates=zero))}
    assert rows["param_updates"]["no_updates"] is True
    assert rows["param_updates"]["num_params_updated"] == 0
    stats = rows["gradient_stats"]
    assert (stats["total_norm"], stats["max_grad"], stats["nonfinite_params"]) == (np.inf, None, 1)
    assert list(stats["top_10_grad_norms"].items())[0] == ("b.bias", None)
    found = {sign["sign"] for sign in json.loads(log.summary_path.read_text())["findings"]}
    assert {"no_updates", "nonfinite_gradients"} <= found


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_entry_is_found(tmp_path, value):
    grads = {name: jnp.ones((3, 4)) for name in NAMES}
    grads["c.weight"] = grads["c.weight"].at[1, 2].set(value)
    with closing(DebugEventLog(tmp_path, 1)) as log:
        rows = {row["event_type"]: row["data"] for row in run(log, inputs(step=0, grads=grads))}
    assert rows["gradient_stats"]["nonfinite_params"] == 1
    assert rows["gradient_stats"]["num_params_with_grad"] == 3


def test_sharded_rows_give_the_same(tmp_path):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    given = inputs(step=50)
    sharding = jax.sharding.NamedSharding(mesh, jax.P(None, "data"))
    rows = {name: jax.device_put(getattr(given, name), sharding) for name in ("null", "loss_mask", "batch")}
    with closing(DebugEventLog(tmp_path / "a", 1)) as log:
        plain = run(log, given)
    with closing(DebugEventLog(tmp_path / "b", 1)) as log:
        sharded = run(log, given.replace(**rows))
    for left, right in zip(plain, sharded, strict=True):
        assert left["data"] == right["data"]
