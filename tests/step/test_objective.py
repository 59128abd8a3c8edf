"""What an update draws, what it counts and what it leaves alone, each asked of the parts of the step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.step.train_step import apply, grad_sums
from tests.step import toy
from tests.step.programs import build, initial_state
from tests.tiny import tiny_config

TOY = {"model__type": "toy", "data__batch_size": 8, "aug__hflip_prob": 0.0}
GRADNORM = {"loss__grad_weighting__task__type": "gradnorm", "loss__grad_weighting__task__gradnorm_enabled": True}
NULLS = {"schedule__null_masking__enabled": True, "schedule__null_masking__start_prob": 1.0}


def made(directory, monkeypatch, **overrides):
    """Program and first update of the toy model: (program, batch [A, B], initial state)."""
    toy.register(monkeypatch)
    program, inputs, _ = build(tiny_config(directory, **(TOY | overrides)), directory)
    with inputs.train_loader(0, 1) as loader:
        batch = {name: np.array(x) for name, x in next(loader)[1].items()}
    return program, batch, initial_state(program)


def at(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


def test_images_masks_mixing_and_null_labels_are_drawn_anew_at_each_step(tmp_path, monkeypatch):
    overrides = {
        "aug__color_jitter": 0.4,
        "aug__hflip_prob": 0.5,
        "schedule__mixup__prob__enabled": True,
        "schedule__mixup__prob__start_prob": 1.0,
    }
    overrides |= {"schedule__meta_masking__start_prob": 0.5, "schedule__meta_masking__end_prob": 0.5}
    overrides |= {"schedule__null_masking__enabled": True, "schedule__null_masking__start_prob": 0.5}
    overrides |= {"train__accumulation_steps": 2, "schedule__null_masking__end_prob": 0.5}
    program, batch, _ = made(tmp_path, monkeypatch, **overrides)
    objective = program.objective
    batch["label"][..., 0] = 0  # every species is unknown

    @jax.jit
    def drawn(step):
        targets, _ = objective.build_targets(batch, step)
        parts = [objective.inputs(at(batch, index), at(targets, index), step) for index in range(2)]
        return targets.draws.lam, targets.loss_mask, [part[0] for part in parts], [part[3] for part in parts]

    first, again, second = (jax.device_get(drawn(np.int32(step))) for step in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    lam, loss_mask, images, masked = first
    assert np.unique([*lam, *second[0]]).size == 4  # of each micro-batch of each update
    assert (loss_mask != second[1]).any()
    for index in range(2):
        assert (np.abs(images[index] - second[2][index]).max(axis=(1, 2, 3)) > 1e-3).all()
        assert (masked[index] != second[3][index]).any()


def test_dropout_is_drawn_anew_for_each_step_and_micro_batch(tmp_path, monkeypatch):
    program, batch, state = made(tmp_path, monkeypatch, model__variant="dropout")

    @jax.jit
    def loss(step, index):
        targets, counts = program.objective.build_targets(batch, state.step)
        micro, target = at(batch, 0), at(targets, 0)
        return program.objective.task_losses(state.params, {}, micro, target, counts, step, index)[0][0]

    found = {(step, index): float(loss(np.int32(step), np.int32(index))) for step in (0, 1) for index in (0, 1)}
    assert len(set(found.values())) == 4
    assert float(loss(np.int32(1), np.int32(0))) == found[1, 0]


def test_a_loss_that_is_not_finite_is_skipped_even_with_finite_gradients(tmp_path, monkeypatch):
    program, batch, state = made(tmp_path, monkeypatch)

    @jax.jit
    def updated(bad):
        targets, counts = program.objective.build_targets(batch, state.step)
        sums = grad_sums(program.objective, program.settings, state, batch, targets, counts)
        sums = sums.replace(task_losses=sums.task_losses.at[1].add(bad))
        return apply(program.objective, program.settings, state, sums, targets, batch)

    good, outputs = updated(0.0)
    assert outputs.finite
    moved, start = (jax.tree.leaves(jax.device_get(x.params)) for x in (good, state))
    assert any((a != b).any() for a, b in zip(moved, start, strict=True))
    for bad in (np.nan, np.inf):
        after, outputs = updated(bad)
        assert np.isfinite(outputs.grad_norm)
        assert not outputs.finite
        assert int(after.skipped) == 1
        jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
        jax.tree.map(np.testing.assert_array_equal, after.opt_state, state.opt_state)


def test_a_skipped_update_moves_no_task_weight(tmp_path, monkeypatch):
    """The measurement without metadata is finite, the update, whose metadata are not, is skipped."""
    program, batch, state = made(tmp_path, monkeypatch, **GRADNORM, schedule__meta_masking__enabled=False)
    assert program.settings.gradnorm.zero_metadata
    step = jax.jit(program.train_step("gradnorm"))
    moved, outputs = step(state, batch)
    assert np.abs(np.asarray(moved.gradnorm.weights) - np.asarray(state.gradnorm.weights)).max() > 1e-3
    after, outputs = step(state, batch | {"meta": np.full_like(batch["meta"], np.nan)})
    assert not outputs.finite
    assert np.isfinite(outputs.gradnorm["loss"]).all()
    jax.tree.map(np.testing.assert_array_equal, after.gradnorm, state.gradnorm)
    again, outputs = step(after, batch)
    assert (int(outputs.skipped), int(again.skipped_in_a_row)) == (1, 0)  # a good one ends the row


def test_the_state_of_the_model_moves_but_not_in_a_skipped_update(tmp_path, monkeypatch):
    overrides = {"model__variant": "statistics", "schedule__meta_masking__enabled": False}
    program, batch, state = made(tmp_path, monkeypatch, **overrides)
    step = jax.jit(program.train_step("plain"))
    moved, _ = step(state, batch)
    before, after = (np.asarray(x.model_state["batch_stats"]["final_norm"]["mean"]) for x in (state, moved))
    assert np.abs(after - before).max() > 1e-3
    kept, outputs = step(moved, batch | {"meta": np.full_like(batch["meta"], np.nan)})
    assert not outputs.finite
    jax.tree.map(np.testing.assert_array_equal, kept.model_state, moved.model_state)


def test_gradnorm_measures_the_mean_over_the_labelled_rows(tmp_path, monkeypatch):
    """Null labels train here, so that the labels that count are more than those that are measured."""
    program, batch, state = made(tmp_path, monkeypatch, **GRADNORM, **NULLS)
    batch["label"][0, :3, 0] = 0
    labelled = batch["label"][0] != 0
    objective, params = program.objective, state.params
    targets, counts = jax.jit(objective.build_targets)(batch, state.step)
    assert counts[0] > labelled[:, 0].sum()

    @jax.jit
    def measured():
        return grad_sums(objective, program.settings, state, batch, targets, counts, measure=True).gradnorm

    @jax.jit
    def losses_of_rows():
        image, meta, valid, _ = objective.inputs(at(batch, 0), at(targets, 0), state.step)
        nothing = jnp.zeros_like(meta), jnp.zeros_like(valid)
        logits = program.model.apply({"params": params}, image, nothing[0], meta_valid_BK=nothing[1])
        return [objective.criteria[task](z, batch["label"][0][:, t]) for t, (task, z) in enumerate(logits.items())]

    for t, (found, per_row) in enumerate(zip(measured().losses, losses_of_rows(), strict=True)):
        assert found == pytest.approx(np.asarray(per_row)[labelled[:, t]].mean(), rel=1e-5), objective.tasks[t]
