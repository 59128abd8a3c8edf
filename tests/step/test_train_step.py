"""The update: sharded == accumulated == one big batch == pmap; applied rate == planned rate; bad steps are skipped."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.step.train_step import apply, grad_sums
from tests.compiling import LIKE_USERS
from tests.forks import call
from tests.step import toy
from tests.step.programs import build, initial_state, largest_update, relative_difference, run_updates
from tests.tiny import TASKS, tiny_config

#: plain SGD with a large rate, so that differences between gradients show and are not divided away
SGD = {
    "optimizer__name": "sgd",
    "optimizer__momentum": 0.0,
    "optimizer__weight_decay": 0.0,
    "train__clip_grad": 0.0,
    "lr_scheduler__base_lr": 1.0,
    "lr_scheduler__warmup_steps": 0,
    "lr_scheduler__warmup_epochs": 0.0,
}
BOUND = 2e-5


#: an mFormerV0 as small as it can be
V0 = {
    "model__type": "mFormerV0",
    "model__conv_stages__embed_dims": (8, 8),
    "model__conv_stages__out_channels": (8, 16),
    "model__conv_stages__depths": (1, 1),
    "model__attention_stages__dims": (16, 16),
    "model__attention_stages__depths": (1, 1),
    "model__attention_stages__num_heads": (2, 2),
    **{f"model__convnext_stages__{key}": () for key in ("dims", "depths")},
    **{f"model__rope_stages__{key}": () for key in ("depths", "num_heads")},
}
TOY = {"model__type": "toy"}
UNFLIPPED = {**TOY, "aug__hflip_prob": 0.0}


def sgd_config(directory: Path, **overrides):
    return tiny_config(directory, **{**SGD, **overrides})


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """State of the toy at the start and after three updates, and the outputs of each."""
    directory = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        program, inputs, placement = build(sgd_config(directory, **TOY), directory)
        start = jax.device_get(initial_state(program))
        after, outputs = run_updates(program, inputs, placement, 3)
    return start, jax.device_get(after), outputs


def test_two_devices_make_the_same_updates(on_one_device, tmp_path, monkeypatch):
    """Real models are tried on 1 and 8 devices below, on 2 in test_two_processes.py."""
    toy.register(monkeypatch)
    start, alone, _ = on_one_device
    both = jax.device_get(run_updates(*build(sgd_config(tmp_path, **TOY), tmp_path, devices=2), 3)[0])
    assert largest_update(alone.params, start.params) >= 0.1
    assert relative_difference(both.params, alone.params, start.params) <= BOUND


def test_accumulation_is_one_big_batch(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    program, inputs, _ = build(sgd_config(tmp_path, **TOY, data__sampler__type="standard"), tmp_path)
    state = initial_state(program)
    with inputs.train_loader(0, 1) as loader:
        _, update = next(loader)

    @jax.jit
    def sums(batch):
        targets, counts = program.objective.build_targets(batch, state.step)
        return grad_sums(program.objective, program.settings, state, batch, targets, counts)

    gradients = []
    for micro_batches in (1, 2):
        batch = {
            name: np.asarray(x).reshape(micro_batches, 16 // micro_batches, *np.asarray(x).shape[2:])
            for name, x in update.items()
        }
        batch["partner"] = np.broadcast_to(np.arange(16 // micro_batches, dtype=np.int32), batch["partner"].shape)
        gradients.append(jax.device_get(sums(batch)))
    zero = jax.tree.map(np.zeros_like, gradients[0].grads)
    assert relative_difference(gradients[1].grads, gradients[0].grads, zero) <= BOUND
    np.testing.assert_allclose(gradients[1].task_losses, gradients[0].task_losses, rtol=1e-5)
    for name, value in gradients[0].statistics.sums.items():
        np.testing.assert_allclose(gradients[1].statistics.sums[name], value, rtol=1e-5)


def test_model_state_goes_through_the_micro_batches_and_not_through_padding(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    toy_model = {"model__type": "toy", "model__variant": "statistics", "aug__hflip_prob": 0.0}
    toy_model |= {"data__batch_size": 8, "train__accumulation_steps": 2}
    program, inputs, _ = build(sgd_config(tmp_path, **toy_model), tmp_path)
    state = initial_state(program)
    with inputs.train_loader(0, 1) as loader:
        update = {name: np.asarray(x) for name, x in next(loader)[1].items()}
    padding = jax.tree.map(lambda x: np.zeros_like(x[:1]), update)
    padded = jax.tree.map(lambda x, zero: np.concatenate([x, zero]), update, padding)

    @functools.partial(jax.jit, compiler_options=LIKE_USERS)
    def sums(batch, model_state):
        targets, counts = program.objective.build_targets(batch, state.step)
        given = state.replace(model_state=model_state)
        found = grad_sums(program.objective, program.settings, given, batch, targets, counts)
        return found.model_state, found.grads

    found, expected = sums(padded, state.model_state), sums(update, state.model_state)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    nothing = sums(jax.tree.map(lambda x: np.concatenate([x, x]), padding), state.model_state)
    jax.tree.map(np.testing.assert_array_equal, nothing[0], state.model_state)
    # BatchNorm with momentum 0.5: the batch's statistics weigh a half each time
    micro = [jax.tree.map(lambda x, i=i: x[i : i + 1], update) for i in range(2)]
    alone = [jax.tree.map(lambda *parts: np.concatenate(parts), one, padding) for one in micro]
    only = [sums(batch, state.model_state) for batch in alone]
    states = state.model_state, *(moved for moved, _ in (*only, expected))
    start, first, second, both = (x["batch_stats"]["final_norm"] for x in jax.device_get(states))
    for name in ("mean", "var"):
        np.testing.assert_allclose(
            both[name], 0.5 * first[name] + second[name] - 0.5 * start[name], rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_update_under_pmap_is_the_update_over_the_mesh(tmp_path, monkeypatch):
    """Gradient, clipping, optimizer with momentum, average and statistics, over two updates of two micro-batches."""
    toy.register(monkeypatch)
    overrides = {"model__type": "toy", "data__batch_size": 8, "train__accumulation_steps": 2}
    overrides |= {"optimizer__momentum": 0.9, "train__clip_grad": 0.5, "train__ema__enabled": True}
    program, inputs, placement = build(sgd_config(tmp_path, **overrides), tmp_path, devices=2)
    objective = program.objective
    start = initial_state(program, placement.replicated)
    expected, outputs = run_updates(program, inputs, placement, 2, state=start)
    assert all(out.grad_norm > 0.5 for out in outputs)  # clipped

    def update(state, local, split, counts, batch, targets):
        sums = grad_sums(objective, program.settings, state, local, split, counts)
        return apply(objective, program.settings, state, jax.lax.psum(sums, "devices"), targets, batch)[0]

    step = jax.pmap(update, axis_name="devices", in_axes=(None, 0, 0, None, None, None), out_axes=None)

    def shards(tree):
        return jax.tree.map(lambda x: jnp.stack(jnp.split(x, 2, axis=1)), tree)

    state = initial_state(program)
    with inputs.train_loader(0, 2) as loader:
        for _, arrays in loader:
            batch = {name: jnp.asarray(x) for name, x in arrays.items()}
            targets, counts = jax.jit(objective.build_targets)(batch, state.step)
            assert targets.draws is None  # nothing is mixed: shards need no partner from elsewhere
            state = step(state, shards(batch), shards(targets), counts, batch, targets)
    found, expected, start = jax.device_get((state, expected, start))
    assert largest_update(found.params, start.params) >= 0.05
    for part in ("params", "ema", "opt_state"):
        assert relative_difference(*(getattr(x, part) for x in (found, expected, start))) <= BOUND, part
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found.interval, expected.interval)
    assert int(found.step) == 2


def test_scanned_layers_are_apart_for_optimizer_and_clipping(tmp_path):
    """They are stacked inside the model alone: parameters, and with them every unit that is clipped, are the same."""
    found = []
    for scan in (False, True):
        config = tiny_config(tmp_path, model__rope_stages__depths=(2, 1), model__scan_layers=scan)
        program, _, _ = build(config, tmp_path)
        params = jax.eval_shape(program.initial_state).params
        assert program.settings.optimizer.ndim == jax.tree.map(lambda leaf: leaf.ndim, params)
        found.append(params)
    assert found[0] == found[1]


def test_applied_learning_rate_is_the_planned_one(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    settings = {"lr_scheduler__name": "wsd", "lr_scheduler__warmup_steps": 3, "train__epochs": 2}
    config = tiny_config(tmp_path, **UNFLIPPED, **settings)
    program, inputs, placement = build(config, tmp_path)
    schedule = jax.jit(program.settings.learning_rates["default"])
    _, outputs = run_updates(program, inputs, placement, 8)
    planned = [float(schedule(k)) for k in range(8)]
    np.testing.assert_allclose([o.learning_rates["default"] for o in outputs], planned, atol=1e-6 * max(planned))


def test_non_finite_update_is_skipped_and_counted(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    program, inputs, placement = build(tiny_config(tmp_path, **UNFLIPPED), tmp_path)
    state = initial_state(program, placement.replicated)
    bad = dict(state.params)
    bad["aggregate"] = jax.tree.map(lambda x: np.full_like(x, np.nan), bad["aggregate"])
    state = state.replace(params=bad)
    after, outputs = run_updates(program, inputs, placement, 2, state=state)
    assert not outputs[0].finite
    assert [int(o.skipped_in_a_row) for o in outputs] == [1, 2]
    assert int(after.step) == 2
    kept = jax.device_get((after.params["stem"], state.params["stem"]))
    jax.tree.map(np.testing.assert_array_equal, *kept)
    averaged = after.interval.replace(null_total=None, null_included=None)
    assert not any(x.any() for x in jax.tree.leaves(jax.device_get(averaged)))  # no mean counts their samples


def test_lowered_text_holds_no_callback(tmp_path):
    program, inputs, _ = build(tiny_config(tmp_path), tmp_path)
    state = jax.eval_shape(program.initial_state)
    with inputs.train_loader(0, 1) as loader:
        _, batch = next(loader)
    text = jax.jit(program.train_step("plain")).lower(state, dict(batch)).as_text()
    assert "callback" not in text


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mFormerV1", "mFormerV0"])
def test_one_and_eight_devices(tmp_path, family):
    """In a process of its own with 8 virtual devices; the running statistics of mFormerV0 agree, too."""
    environment = {"JAX_NUM_CPU_DEVICES": "8"}
    done = call("tests.step.device_counts", [str(tmp_path), family], tmp_path, seconds=900, environment=environment)
    assert done.status == 0, done.error[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["largest"] >= 0.1
    assert found["8"] <= BOUND
    assert found["same_counts"]
    assert found["state"] <= BOUND
    if family == "mFormerV1":  # parameters and optimizer state split over the devices
        assert found["split"] <= BOUND
        assert found["share"] <= 0.25


def test_the_names_of_ranks_and_their_order_change_nothing(on_one_device, tmp_path, monkeypatch):
    """JAX sorts the keys of a dict; the columns of labels, losses and metrics stay those of their ranks."""
    toy.register(monkeypatch)
    start, _, (levels, *_) = on_one_device
    config, tasks = sgd_config(tmp_path, **TOY), ("taxa_fine", "taxa_coarse", "taxa_a-kind")
    of = dict(zip(TASKS, tasks, strict=True))
    with h5py.File(config.data.h5.labels_path, "r+") as file, config.unlocked():
        for old, new in of.items():
            file.move(old, new)
        config.data.task_keys_h5 = tasks
        config.schedule.mixup.group_levels = tuple(of[task] for task in config.schedule.mixup.group_levels)
        config.metrics.null_vs_non_null_tasks = tasks
    program, inputs, placement = build(config, tmp_path)
    params = {head_of(key, of): value for key, value in start.params.items()}
    state = initial_state(program).replace(params=params)
    own = run_updates(program, inputs, placement, 1, state=state)[1][0]
    assert (own.task_losses == levels.task_losses).all()
    leaves = jax.tree.leaves(own.statistics), jax.tree.leaves(levels.statistics)
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)


def head_of(name: str, tasks: dict[str, str]) -> str:
    first, _, task = name.partition(".")
    return f"{first}.{tasks[task]}" if first == "head" else name
