"""Runs whose trunk does not train: what it makes of the pictures is computed once."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.tree import assign
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data import stored_inputs
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.models import names as model_names
from linnaeus_jax.run import stored, trainer
from linnaeus_jax.run.evaluate import evaluate, load, parse_phases
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.step.placement import Placement
from tests import forks
from tests.tiny import tiny_config, write_tiny_data


def config_of(data, tune="last:1", **overrides):
    config = tiny_config(data, **overrides)
    default = get_config().model
    for section in ("convnext_stages", "rope_stages"):
        config.model[section] = default[section]
    config.model.type, config.model.variant = "EfficientNet", "tiny"
    config.train.tune, config.train.tune_views = tune, 2
    return config


def heads_first(config, delay_steps):
    """The last blocks of the trunk train later than the heads, and more slowly."""
    for key, value in {
        "optimizer.parameter_groups.enabled": True,
        "optimizer.parameter_groups.trunk.filter": {"type": "stage_based", "stages": ("blocks", "features")},
        "optimizer.parameter_groups.trunk.lr_multiplier": 0.5,
        "lr_scheduler.parameter_groups.enabled": True,
        "lr_scheduler.parameter_groups.trunk.delay_steps": delay_steps,
    }.items():
        assign(config, key.split("."), value)
    return config


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ("heads", "train.tune = 'heads' is unknown; use full, head, last:N or auto:N with N from 1 to "),
        ("last:0", "train.tune = 'last:0' is unknown"),
        ("last:99", "train.tune = 'last:99' is unknown"),
        ("last:-1", "train.tune = 'last:-1' is unknown"),
        ("last:", "train.tune = 'last:' is unknown"),
        ("auto:", "train.tune = 'auto:' is unknown"),
        ("last:²", "train.tune = 'last:²' is unknown"),
    ],
)
def test_what_cannot_be_cut_is_said(tmp_path, tune, words):
    assert any(words in error for error in config_errors(config_of(tmp_path, tune)))
    other = tiny_config(tmp_path)
    other.train.tune = "head"
    wanted = "needs a family whose trunk can be cut: ConvNeXt, EfficientNet"
    assert any(wanted in error for error in config_errors(other))
    mixed = config_of(tmp_path, "head", schedule__mixup__prob__enabled=True)
    assert any("set schedule.mixup.prob.enabled=False" in error for error in config_errors(mixed))


def test_only_what_follows_the_cut_trains(tmp_path):
    for tune, trained in (("head", {"heads", "metadata"}), ("last:1", {"heads", "metadata", "features", "blocks"})):
        experiment = preview_experiment(config_of(tmp_path, tune), RunDirectory(tmp_path / "run"))
        rows = experiment.program.settings.optimizer.rows
        stage_of = type(experiment.program.model).stage_of
        assert {stage_of(row.name) for row in rows if row.optimizer != "frozen"} == trained
        last = experiment.program.model.trunk_blocks - 1
        trains = [row.name for row in rows if row.group != "stored"]
        of_blocks = {name.split(".")[1] for name in trains if name.startswith("_blocks.")}
        assert of_blocks == (set() if tune == "head" else {str(last)})
        assert all(row.optimizer == "frozen" for row in rows if row.group == "stored")


def test_what_is_stored_belongs_to_one_preprocessing(tmp_path):
    keys = []
    for change in (
        {},
        {"data__resize_mode": "pad"},
        {"data__interpolation": "bicubic"},
        {"aug__mean": (0.5, 0.5, 0.5)},
    ):
        config = config_of(tmp_path, "head", **change)
        experiment = preview_experiment(config, RunDirectory(tmp_path / "run"))
        keys.append(stored.spec_of(experiment, experiment.inputs.dataset.val, "weights").key)
    narrow = experiment.program.model.clone(dtype=jnp.bfloat16)
    narrow_run = dataclasses.replace(experiment, program=dataclasses.replace(experiment.program, model=narrow))
    keys.append(stored.spec_of(narrow_run, experiment.inputs.dataset.val, "weights").key)
    assert len(set(keys)) == len(keys)


def test_every_view_is_drawn_anew_and_the_first_is_the_picture_itself(monkeypatch):
    monkeypatch.setattr(stored, "augment", lambda image, row, key, how: jax.random.bits(key, image.shape, jnp.uint8))
    unchanged = SimpleNamespace(mean=(0.0,) * 3, std=(1.0,) * 3)
    objective = SimpleNamespace(seed=0, augmentation=None, block=0, preprocessing=unchanged)
    model = SimpleNamespace(apply=lambda variables, pixels, block, method: pixels)
    program = SimpleNamespace(objective=objective, model=model)
    experiment: Any = SimpleNamespace(program=program, placement=Placement())
    view, image = stored.view_function(experiment), np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    plain, *augmented = (np.asarray(view({}, {}, image, np.arange(2), np.int32(n))) for n in range(3))
    np.testing.assert_allclose(plain, image / 255, atol=1e-3)
    assert not (augmented[0] == augmented[1]).all()


def test_what_is_not_finite_is_an_error_and_what_could_not_be_read_is_marked(tmp_path):
    experiment: Any = SimpleNamespace(config=config_of(tmp_path))
    values = np.arange(12, dtype=np.float16).reshape(3, 2, 2)
    batch: Any = {"weight": np.array([1.0, 0.0, 1.0, 0.0]), "row": np.array([5, 6, 7, 0])}
    stored_values = stored._checked(values, batch, experiment)
    assert np.isnan(stored_values[1]).all()
    np.testing.assert_array_equal(stored_values[[0, 2]], values[[0, 2]])
    values[2, 1, 1] = np.inf
    with pytest.raises(UserError, match=r"picture of row 7 is not finite in float16; .* model\.pretrained"):
        stored._checked(values, batch, experiment)


def test_runs_that_share_a_folder_store_once_and_one_at_a_time(tmp_path):
    config = typed(config_of(tmp_path, train__tune_dir=str(tmp_path / "shared")))
    paths = [stored.stored_path(config, RunDirectory(tmp_path / run), "val", key) for run, key in ("aa", "ba", "bb")]
    assert paths[0] == paths[1] != paths[2]
    paths[0].parent.mkdir()
    said = pytest.raises(UserError, match=r"val-a\.bin is being written by another run")
    with stored._alone(paths[0]), said, stored._alone(paths[1]):
        pass
    with stored._alone(paths[1]), stored._alone(paths[2]):
        pass


def moved_of(loaded):
    """Stage -> whether each of its parameters has moved, of those that may."""
    state, first = loaded.state, loaded.experiment.initial_state()
    stages = defaultdict[str, list[bool]](list)
    for row, leaf, start in zip(
        loaded.experiment.program.settings.optimizer.rows,
        jax.tree.leaves(state.params),
        jax.tree.leaves(first.params),
        strict=True,
    ):
        moved = not np.array_equal(leaf, start)
        assert not (moved and row.group == "stored"), row.name
        if row.group != "stored":
            stages[type(loaded.experiment.program.model).stage_of(row.name)].append(moved)
    return stages


def test_several_processes_that_split_the_parameters_are_refused(tmp_path):
    nobody: Any = None
    experiment: Any = SimpleNamespace(
        config=config_of(tmp_path, "head", parallel__fsdp=True),
        program=SimpleNamespace(stored=object()),
        inputs=None,
        placement=SimpleNamespace(process_count=2),
    )
    with pytest.raises(UserError, match=r"train\.tune = 'head' with several processes .* set parallel\.fsdp=False"):
        stored.store_inputs(experiment, nobody, nobody, nobody)


def validated(run):
    """Rows of the metrics log with metrics of validation."""
    rows = map(json.loads, (run / "logs" / "metrics_log.jsonl").read_text().splitlines())
    return [row for row in rows if "val/loss" in row]


@pytest.mark.slow
def test_a_run_that_is_stopped_while_storing_and_training_ends_like_one_that_is_not(tmp_path, one_device, monkeypatch):
    """The last blocks begin to train after the second start. What is learned says the same of pictures as of what was
    stored of them."""
    for place, name in ((model_names, "STORED_DTYPE"), (stored_inputs, "DTYPE"), (stored_inputs.StoredInputs, "dtype")):
        monkeypatch.setattr(place, name, np.dtype(np.float32))  # rounding to float16 would be all that is seen
    monkeypatch.setattr(stored, "DTYPE", np.dtype(np.float32))
    data = tmp_path / "data"
    whole = trainer.run(heads_first(config_of(data), 9), tmp_path / "whole")

    class Stopped(Exception):
        pass

    append, appended = stored.StoredFile.append, []

    def append_twice(self, values):
        append(self, values)
        appended.append(self.path.stem)
        if len(appended) == 2:
            raise Stopped

    monkeypatch.setattr(stored.StoredFile, "append", append_twice)
    with pytest.raises(Stopped):
        trainer.run(heads_first(config_of(data), 9), tmp_path / "parts")
    lines = (tmp_path / "parts" / "stored" / "train.jsonl.partial").read_text().splitlines()
    assert [json.loads(line)["rows"] for line in lines[1:]] == [16, 32]

    limited = heads_first(config_of(data), 9)
    limited.debug.early_exit_after_n_optimizer_steps = 7
    trainer.run(limited, tmp_path / "parts")
    assert appended == ["train"] * 6 + ["val"] * 2  # what was stored before was not computed again
    assert {stage for stage, moved in moved_of(load(tmp_path / "parts")).items() if any(moved)} == {"heads", "metadata"}
    parts = trainer.run(heads_first(config_of(data), 9), tmp_path / "parts")
    assert len(appended) == 8
    timed = ("sec", "seconds")
    assert {k: v for k, v in parts.items() if not k.endswith(timed)} == {
        k: v for k, v in whole.items() if not k.endswith(timed)
    }
    for name in ("train.bin", "val.bin"):
        one, other = (tmp_path / run / "stored" / name for run in ("parts", "whole"))
        assert one.read_bytes() == other.read_bytes()

    shutil.rmtree(tmp_path / "parts" / "stored")  # nothing that is used later needs it
    loaded = load(tmp_path / "parts", "newest")
    result = evaluate(loaded, parse_phases("val", ["TEMPORAL", "SPATIAL"]))
    measured, logged = result.metrics["val"], validated(tmp_path / "whole")[-1]  # not the best, as `final_` is
    assert measured["loss"] == pytest.approx(logged["val/loss"], rel=1e-5)
    assert measured["acc1_taxa_L30"] == logged["val/acc1_taxa_L30"]

    moved = moved_of(loaded)
    assert set(moved) == {"heads", "metadata", "blocks", "features"}
    assert all(map(all, moved.values())), moved


CONFIG = """
from pathlib import Path
from tests.run.test_stored import config_of

def get_config():
    config = config_of(Path({data!r}), "head")
    config.train.epochs, config.train.tune_dir = 1, {shared!r}
    return config
"""


@pytest.mark.slow
@pytest.mark.parametrize("same", ["workdir", "tune_dir"])
def test_two_starts_at_once_are_both_right_or_one_is_refused_with_one_line(tmp_path, same):
    write_tiny_data(tmp_path / "data")
    shared = tmp_path / "shared" if same == "tune_dir" else ""
    (tmp_path / "config.py").write_text(CONFIG.format(data=str(tmp_path / "data"), shared=str(shared)))
    names = ("run", "run" if same == "workdir" else "other")
    begun = [
        forks.begin(
            forks.MAIN,
            [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / name}"],
            tmp_path / f"said_{number}",
            environment={"JAX_NUM_CPU_DEVICES": "1"},
        )
        for number, name in enumerate(names)
    ]
    ended = [each.ended(400) for each in begun]
    refused = [each for each in ended if each.status != 0]
    assert len(refused) <= 1, ended
    # it may read the lock before the other has written its number
    words = r"is in use by (process \d+|another process)" if same == "workdir" else "is being written by another run"
    for each in refused:
        assert each.status == 2, each
        assert not each.has_traceback
        assert sum(bool(re.search(words, line)) for line in each.error.splitlines()) == 1
    for name in {name for name, each in zip(names, ended) if each.status == 0}:
        assert load(tmp_path / name).state.step > 0
    files = sorted(Path(shared or tmp_path / "run" / "stored").glob("*.bin"))
    assert [file.name[:3] for file in files] == ["tra", "val"]
    again = forks.call(
        forks.MAIN,
        [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'third'}"],
        tmp_path / "said_3",
        seconds=400,
        environment={"JAX_NUM_CPU_DEVICES": "1"},
    )
    assert again.status == 0, again
    assert ("stored train in" in again.out + again.error) == (same == "workdir")


def test_corrected_labels_store_nothing_anew(tmp_path):
    """What is stored belongs to weights, pictures, preprocessing, augmentation and seed."""
    experiment = preview_experiment(config_of(tmp_path, "head"), RunDirectory(tmp_path / "run"))
    split = experiment.inputs.dataset.train
    key = stored.spec_of(experiment, split, "weights").key
    taxon = split.table.taxon.copy()
    taxon[split.rows[:5]] = 0
    corrected = dataclasses.replace(split, table=dataclasses.replace(split.table, taxon=taxon))
    assert stored.spec_of(experiment, corrected, "weights").key == key
    fewer = dataclasses.replace(split, rows=split.rows[1:])
    assert stored.spec_of(experiment, fewer, "weights").key != key
