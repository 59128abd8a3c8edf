"""Frozen parameters count nowhere and cost nothing: no gradient, no norm, no change; the rest trains as if alone."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.debugging.event_log import EventFacts, event_log_probes
from linnaeus_jax.debugging.update_frames import make_update_frames
from linnaeus_jax.learning.update import Optimizer, ParameterRow, merge_params
from linnaeus_jax.run.trainer import run
from linnaeus_jax.step.train_step import grad_sums
from tests.step import toy
from tests.step.programs import build, initial_state, run_updates
from tests.tiny import tiny_config

SGD = {
    "model__type": "toy",
    "optimizer__name": "sgd",
    "optimizer__momentum": 0.0,
    "optimizer__weight_decay": 0.0,
    "lr_scheduler__base_lr": 1.0,
    "lr_scheduler__warmup_steps": 0,
    "lr_scheduler__warmup_epochs": 0.0,
    "schedule__validation__interval_epochs": 1,
    "aug__hflip_prob": 0.0,
}
TRUNK = toy.starting("stem", "aggregate")


@pytest.fixture(autouse=True)
def toy_model(monkeypatch):
    toy.register(monkeypatch)


def first_update(program, inputs):
    """State, batch, targets and counts of update 0."""
    state = initial_state(program)
    with inputs.train_loader(0, 1) as loader:
        batch = {name: np.asarray(x) for name, x in next(loader)[1].items()}
    return state, batch, *jax.jit(program.objective.build_targets)(batch, state.step)


def heads_of(tree):
    return {name: part for name, part in tree.items() if name.startswith("head.")}


def norm_of(tree):
    return np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(tree)))


class Events:
    """Collects the rows of the event log."""

    def __init__(self):
        self.rows = {}

    def event(self, kind, step, epoch, data):
        self.rows[kind] = data


def log_probes(events, rows):
    return event_log_probes(events.event, EventFacts(("a", "b", "c"), rows, learning_rate=lambda _: 1.0))


def test_only_what_trains_counts(tmp_path):
    limit = 0.01
    overrides = {**SGD, "train__accumulation_steps": 2, "data__batch_size": 8}
    overrides |= {"train__clip_grad": limit, "train__ema__enabled": True}
    whole, inputs, _ = build(tiny_config(tmp_path, **overrides), tmp_path)
    state, batch, targets, counts = first_update(whole, inputs)
    grads = jax.jit(lambda s: grad_sums(whole.objective, whole.settings, s, batch, targets, counts).grads)(state)

    config = toy.with_group(tiny_config(tmp_path, **overrides), TRUNK, frozen=True)
    rows: list[ParameterRow] = []
    events = Events()
    probes = log_probes(events, rows)
    program, inputs, placement = build(config, tmp_path, probes=probes)
    rows += program.settings.optimizer.rows
    names = [row.name for row in rows if row.name.startswith("head.")]
    after, (out,) = run_updates(program, inputs, placement, 1)

    after, state, grads = jax.device_get((after, state, grads))
    norm = norm_of(heads_of(grads))
    assert norm < 0.9 * norm_of(grads)
    np.testing.assert_allclose(out.grad_norm, norm, rtol=1e-5)
    np.testing.assert_allclose(out.statistics.grad_norm, norm, rtol=1e-5)
    np.testing.assert_allclose(out.clipped_norm, limit, rtol=1e-3)
    rate = float(out.learning_rates["default"])
    for name, start in state.params.items():
        if name.startswith("head."):
            moved = jax.tree.map(lambda p, g: p - rate * limit / (norm + 1e-6) * g, start, grads[name])
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), after.params[name], moved)
            assert np.any(after.ema[name]["kernel"] != start["kernel"])
        else:
            jax.tree.map(np.testing.assert_array_equal, after.params[name], start)
            jax.tree.map(np.testing.assert_array_equal, after.ema[name], start)

    for probe in probes:
        probe.consume(50, 0, out.probes[probe.name])
    assert events.rows["gradient_stats"]["total_norm"] == float(out.grad_norm)  # the number of the metrics log
    assert set(events.rows["gradient_stats"]["top_10_grad_norms"]) == set(names)
    assert events.rows["param_updates"]["num_params_updated"] == len(names)
    assert events.rows["param_updates"]["num_params_total"] == len(rows)
    json.dumps(events.rows, allow_nan=False)


def test_no_gradient_of_a_frozen_trunk_is_computed(tmp_path):
    """Also under rematerialisation and scanned layers: convolutions and products are those of the forward pass."""
    overrides: dict[str, Any] = {"train__gradient_checkpointing__enabled_normal_steps": True}
    overrides |= {"model__scan_layers": True, "model__rope_stages__depths": (2, 1)}
    config = tiny_config(tmp_path, **overrides)
    config = toy.with_group(config, {"type": "not", "filter": toy.starting("head.")}, frozen=True)
    program, inputs, _ = build(config, tmp_path)
    with inputs.train_loader(0, 1) as loader:
        batch = dict(next(loader)[1])
    state = jax.eval_shape(program.initial_state)
    targets, counts = jax.eval_shape(program.objective.build_targets, batch, state.step)
    trained, _ = program.settings.optimizer.split_frozen(state.params)
    assert set(trained) == set(state.params)
    assert len(jax.tree.leaves(trained)) == 6

    def backward(state, batch, targets, counts):
        return grad_sums(program.objective, program.settings, state, batch, targets, counts).grads

    def forward(params, batch, targets, counts):
        micro, target = jax.tree.map(lambda x: x[0], (batch, targets))
        return program.objective.task_losses(params, {}, micro, target, counts, jnp.int32(0), jnp.int32(0))[0]

    def operations(function, *args):
        text = jax.jit(function).lower(*args).as_text()
        return {name: len(re.findall(rf"stablehlo\.{name}\b", text)) for name in ("convolution", "dot_general")}

    found = operations(backward, state, batch, targets, counts)
    expected = operations(forward, state.params, batch, targets, counts)
    assert expected["convolution"] > 0
    assert found["convolution"] == expected["convolution"]
    # more are the weighted sum of the losses, and per head the gradient of its kernel
    assert found["dot_general"] == expected["dot_general"] + 1 + len(program.objective.tasks)


@pytest.mark.parametrize("folded", [True, False])
def test_gradnorm_measures_what_trains(tmp_path, folded):
    """A frozen stem counts as little as one that is excluded."""
    gradnorm = {
        "loss__grad_weighting__task__type": "gradnorm",
        "loss__grad_weighting__task__zero_aux_info": not folded,
        "train__phase1_mask_null_loss": folded,
    }
    found = {}
    for how in ("frozen", "excluded"):
        config = tiny_config(tmp_path, **SGD, **gradnorm)
        if how == "frozen":
            config = toy.with_group(config, toy.starting("stem"), frozen=True)
        if how == "excluded":
            config.loss.grad_weighting.task.exclude_config.patterns = ("head", "meta_", "stem")
        program, inputs, placement = build(config, tmp_path)
        settings = program.settings.gradnorm
        assert settings is not None
        assert settings.folded == folded
        _, (out,) = run_updates(program, inputs, placement, 1, variant="gradnorm")
        found[how] = out.gradnorm
    np.testing.assert_allclose(found["frozen"]["norm"], found["excluded"]["norm"], rtol=1e-5)
    np.testing.assert_allclose(found["frozen"]["weight"], found["excluded"]["weight"], rtol=1e-5)


def test_gradnorm_without_a_trunk_to_measure_is_refused(tmp_path):
    config = tiny_config(tmp_path, **SGD, loss__grad_weighting__task__type="gradnorm")
    with pytest.raises(ValueError, match=r"nothing to measure.*parameter_groups.*exclude_config.*'static'"):
        build(toy.with_group(config, TRUNK, frozen=True), tmp_path)


def test_a_learning_rate_of_zero_is_no_freeze(tmp_path):
    config = toy.with_group(tiny_config(tmp_path, **SGD), TRUNK, lr_multiplier=0.0)
    program, _, _ = build(config, tmp_path)
    trained, frozen = program.settings.optimizer.split_frozen(jax.eval_shape(program.initial_state).params)
    assert "stem" in trained
    assert not jax.tree.leaves(frozen)
    assert program.settings.learning_rates["chosen"](3) == 0.0


def test_everything_frozen(tmp_path):
    overrides = SGD | {"model__variant": "statistics", "train__ema__enabled": True, "train__clip_grad": 1.0}
    config = toy.with_group(tiny_config(tmp_path, **overrides), toy.starting(""), frozen=True)
    events = Events()
    probes = log_probes(events, [])
    program, inputs, placement = build(config, tmp_path, probes=probes)
    start = jax.device_get(initial_state(program))
    after, outs = run_updates(program, inputs, placement, 2)
    assert [float(out.grad_norm) for out in outs] == [0.0, 0.0]
    assert all(out.finite and out.loss > 0 for out in outs)
    jax.tree.map(np.testing.assert_array_equal, (after.params, after.ema), (start.params, start.ema))
    for probe in probes:
        probe.consume(50, 0, outs[0].probes[probe.name])
    assert events.rows["gradient_stats"]["total_norm"] == 0.0
    assert events.rows["gradient_stats"]["num_params_with_grad"] == 0
    assert events.rows["param_updates"]["no_updates"]


def test_gradient_frames_show_the_parameters_that_train(tmp_path):
    config = toy.with_group(tiny_config(tmp_path, **SGD), TRUNK, frozen=True)
    program, inputs, _ = build(config, tmp_path)
    with inputs.train_loader(0, 1) as loader:
        batch = dict(next(loader)[1])
    observe = make_update_frames(program.objective, program.settings.optimizer, gradients=True)
    frames = jax.eval_shape(observe, jax.eval_shape(program.initial_state), batch)
    shown = {frame.name for frame in frames.table for label, _ in frame.rows if label == "grad weight"}
    assert shown == {f"head.{task}" for task in program.objective.tasks}


@pytest.mark.parametrize("variant", ["plain", "gradnorm"])
def test_without_frozen_groups_nothing_is_traced_for_them(tmp_path, monkeypatch, variant):
    texts = []
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(Optimizer, "split_frozen", lambda self, tree: (tree, None))
        config = tiny_config(tmp_path, **SGD, loss__grad_weighting__task__type="gradnorm", train__ema__enabled=True)
        program, inputs, _ = build(config, tmp_path)
        with inputs.train_loader(0, 1) as loader:
            batch = dict(next(loader)[1])
        step = jax.jit(program.train_step(variant))
        texts.append(step.lower(jax.eval_shape(program.initial_state), batch).as_text())
    assert texts[0] == texts[1]


def test_split_and_join_are_inverse(tmp_path: Path):
    program, _, _ = build(toy.with_group(tiny_config(tmp_path, **SGD), TRUNK, frozen=True), tmp_path)
    params = jax.eval_shape(program.initial_state).params
    trained, frozen = program.settings.optimizer.split_frozen(params)
    assert jax.tree.leaves(trained["stem"]) == jax.tree.leaves(frozen["head.taxa_L10"]) == []
    assert merge_params(trained, frozen) == params
    assert merge_params(params, None) is params


@pytest.mark.slow
def test_a_run_logs_the_norm_of_what_trains(tmp_path):
    """Metrics log, event log and the limit that stops a run (here just above the heads' norm) speak of one norm."""
    settings = SGD | {"train__epochs": 2, "train__early_stop__active": True, "lr_scheduler__base_lr": 1e-3}
    config = toy.with_group(tiny_config(tmp_path / "data", **settings), TRUNK, frozen=True)
    program, inputs, placement = build(config, tmp_path / "alone")
    _, outputs = run_updates(program, inputs, placement, inputs.plans.total)
    norms = [float(out.grad_norm) for out in outputs]
    config.train.early_stop.max_grad_norm = 1.01 * norms[int(inputs.plans.boundaries[0]) - 1]
    run(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "logs" / "metrics_log.jsonl").read_text().splitlines()]
    logged = {row["global_step"]: row["train/grad_norm"] for row in rows if "train/grad_norm" in row}
    assert len(logged) > 2
    np.testing.assert_allclose(list(logged.values()), [norms[step - 1] for step in logged], rtol=1e-4)
    (log,) = (tmp_path / "run" / "logs" / "debug").glob("debug_log_*.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    found = {e["step"]: e["data"]["total_norm"] for e in events if e["event_type"] == "gradient_stats"}
    np.testing.assert_allclose(list(found.values()), [norms[step] for step in found], rtol=1e-4)
    progress = json.loads((tmp_path / "run" / "progress.json").read_text())
    assert progress["global_step"] == inputs.plans.total  # the whole gradient would have stopped it after an epoch
