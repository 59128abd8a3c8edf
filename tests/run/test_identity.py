"""What may change when a run goes on, and what ends in an error that names the difference."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.debugging.session import DebugSession
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.metrics import register
from linnaeus_jax.reporting.metrics_log import read_rows
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run import experiment, trainer
from linnaeus_jax.run.checkpoint_trees import leaf_shapes
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.identity import differences, identity_error
from linnaeus_jax.run.interruption import Interruption
from linnaeus_jax.run.resume import refusal
from linnaeus_jax.run.trainer import UserError, run
from linnaeus_jax.step.placement import Placement
from tests.conftest import use_one_device
from tests.plugins import forget_plugins
from tests.step import toy
from tests.tiny import tiny_config

IDENTITY: dict[str, Any] = {
    "ranks": ["taxa_L10", "taxa_L20"],
    "classes": {"taxa_L10": [0, 7, 8, 9], "taxa_L20": [0, 2]},
    "metadata": {"TEMPORAL": {"start": 0, "stop": 2, "columns": ["month_sin", "month_cos"]}},
    "training_rows": {"count": 5, "sha256": "a"},
    "identifiers": {"sha256": "b"},
    "metadata_values": {"sha256": "c"},
    "pictures": {"stored": "pixels", "shape": [8, 8, 3], "dtype": "uint8", "rows": [0, 4], "digests": ["d", "e"]},
    "model": {"type": "MFormerV1", "dims": [8, 8]},
    "optimizer": {"stem.weight": "adamw", "head.weight": "adamw"},
}


TOY = {"model__type": "toy", "debug__jsonl__enabled": False}


@pytest.fixture(autouse=True, scope="module")
def toy_model():
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        use_one_device(patch)
        yield


def changed(*path, to):
    """A copy of `IDENTITY` with another leaf."""
    found = copy.deepcopy(IDENTITY)
    node = found
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = to
    return found


def test_equal_identities_agree():
    assert identity_error(IDENTITY, copy.deepcopy(IDENTITY)) is None


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (
            changed("classes", "taxa_L10", 2, to=80),
            r"other classes: classes.taxa_L10\[2\] is 8 in the checkpoint and 80",
        ),
        (changed("classes", "taxa_L20", to=[0, 2, 3]), r"classes.taxa_L20 has 2 entries in the checkpoint and 3"),
        (changed("ranks", to=["taxa_L20", "taxa_L10"]), r"other ranks: ranks\[0\] is 'taxa_L10'"),
        (changed("metadata", to={}), r"other metadata: metadata.TEMPORAL is .* 'absent'"),
        (changed("metadata", "TEMPORAL", "columns", 0, to="day_sin"), r"TEMPORAL.columns\[0\] is 'month_sin'"),
        (changed("training_rows", "sha256", to="b"), "other training rows"),
        (changed("model", "dims", 1, to=16), r"another model or optimizer: model.dims\[1\] is 8"),
        (changed("optimizer", "head.weight", to="lion"), "optimizer.head.weight is 'adamw'.* 'lion'"),
    ],
)
def test_each_section_is_named(now, text):
    assert re.search(text, identity_error(IDENTITY, now) or "")


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (
            changed("identifiers", "sha256", to="x"),
            "other identifiers of training rows: the identifiers of training rows",
        ),
        (changed("metadata_values", "sha256", to="x"), "other metadata of training rows: "),
        (changed("pictures", "digests", 1, to="x"), "1 of 2 pictures that were compared are others .* in row 4"),
        (changed("pictures", "digests", to=["x", ""]), "1 of 1 pictures that were compared .* in row 0"),
        (changed("pictures", "shape", to=[9, 8, 3]), r"their shape was \[8, 8, 3\] and is \[9, 8, 3\]"),
        (changed("pictures", "stored", to="encoded files"), "pixels when it was made and encoded files now"),
    ],
)
def test_other_data_are_named(now, text):
    assert re.search(f"^belongs to .*{text}", identity_error(IDENTITY, now) or "")


def test_a_picture_that_cannot_be_read_now_is_not_compared():
    assert identity_error(IDENTITY, changed("pictures", "digests", to=["d", ""])) is None


def test_the_first_three_differences_are_named():
    now = changed("classes", "taxa_L10", to=[0, 70, 80, 90])
    now["classes"]["taxa_L20"] = [0, 20]
    text = identity_error(IDENTITY, now) or ""
    assert text.count("in the checkpoint") == 3
    assert text.endswith("(and 1 more differences)")


def test_another_optimizer_is_accepted_where_it_starts_anew():
    assert identity_error(IDENTITY, changed("optimizer", "head.weight", to="lion"), optimizer=False) is None


def test_lists_of_other_length_name_their_first_difference():
    (text,) = differences([1, 2, 3], [1, 5], "x")
    assert text == "x has 3 entries in the checkpoint and 2 in this run, first different at [1]: 2 and 5"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of one epoch."""
    directory = tmp_path_factory.mktemp("identity")
    config = tiny_config(directory / "data", train__epochs=1, **TOY)
    run(config, directory / "run")
    return directory, config


#: a section `optimizer.parameter_groups` that freezes a part of the model
FREEZING = get_config().optimizer.parameter_groups
with FREEZING.unlocked():
    FREEZING.update(enabled=True, stem={"filter": toy.starting("stem"), "frozen": True})


def renamed_species(labels):
    with h5py.File(labels, "a") as file:
        file["taxa_L10"][...] = np.where(file["taxa_L10"][:] == 1003, 1999, file["taxa_L10"][:])


def other_columns(labels):
    with h5py.File(labels, "a") as file:
        file["temporal"].attrs["column_names"] = ["day_sin", "day_cos"]


def split_column(labels):
    with h5py.File(labels, "a") as file:
        file["split"] = np.repeat(np.array([0, 1], np.uint8), (96, 24))


def one_label(labels):
    """Of a row whose class has others."""
    with h5py.File(labels, "a") as file:
        species = file["taxa_L10"][:]
        row = np.flatnonzero(species == 1003)[0]
        file["taxa_L10"][row] = 1002


def renamed_identifiers(labels):
    with h5py.File(labels, "a") as file:
        file["img_identifiers"][...] = [f"{name.decode()}.old" for name in file["img_identifiers"][:]]


def reversed_metadata(labels):
    with h5py.File(labels, "a") as file:
        file["spatial"][...] = file["spatial"][:][::-1]


def pictures(change):
    """Other pictures in place of the images uint8 [N, H, W, 3]."""

    def edit(labels):
        with h5py.File(labels.parent / "images.h5", "a") as file:
            images = file["images"][:]
            del file["images"]
            file["images"] = change(images)

    return edit


def one_changed(images):
    """One pixel of the first training row by its number, and all validation rows."""
    images[:2, 5, 6, 1] ^= 1
    return images


PICTURES = "belongs to other pictures of training rows: "
REFUSED: dict[str, tuple[dict[str, Any], Callable[[Path], None] | None, str]] = {
    "classes": ({}, renamed_species, r"other classes.*: classes\.taxa_L10\[\d\] is 100\d in the checkpoint"),
    "encodings": ({}, other_columns, r"other metadata: metadata\.TEMPORAL\.columns\[0\] is 'month_sin'"),
    "layout": ({"data__meta__components__TEMPORAL__idx": 9}, None, r"metadata\.SPATIAL\.start"),
    "ranks": ({"data__task_keys_h5": ("taxa_L10", "taxa_L20")}, None, r"other ranks"),
    "label": ({}, one_label, r"other training rows: training_rows\.sha256"),
    "identifiers": (
        {},
        renamed_identifiers,
        "the identifiers of training rows changed since, or stand in",
    ),
    "metadata": ({}, reversed_metadata, "the metadata of training rows changed since, or stand in another order"),
    "pictures": (
        {},
        pictures(lambda images: 255 - images),
        f"{PICTURES}96 of 96 pictures that were compared are others",
    ),
    "picture order": ({}, pictures(lambda images: images[::-1]), f"{PICTURES}96 of 96 .* or in another order"),
    "one picture": ({}, pictures(one_changed), f"{PICTURES}[12] of 96 .*, the first in row [01]"),
    "enlarged": (
        {},
        pictures(lambda images: np.repeat(images, 2, axis=1)),
        rf"{PICTURES}their shape was \[32, 32, 3\] and is \[64, 32, 3\]",
    ),
    "split": ({"data__h5__train_val_split_seed": 7}, None, r"other training rows"),
    "split column": ({}, split_column, r"other training rows: training_rows\.sha256"),
    "model": ({"model__variant": "statistics"}, None, r"model\.statistics is False .* True"),
    "moving average": ({"train__ema__enabled": True}, None, r"another model or optimizer: ema\.\S+ is in this run"),
    "missing metadata": ({"model__missing_metadata": "mask"}, None, r"model\.missing_metadata is 'absent' .* 'mask'"),
    "frozen group": ({"optimizer__parameter_groups": FREEZING}, None, r"optimizer\.stem\S+ is 'adamw' .* 'frozen'"),
    "optimizer": ({"optimizer__name": "lion"}, None, r"optimizer\.\S+ is 'adamw' .* 'lion'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_resume_is_refused_and_leaves_the_run_as_it_was(finished, tmp_path, case):
    overrides, edit, message = REFUSED[case]
    directory, _ = finished
    shutil.copytree(directory, tmp_path / "copy")
    labels = tmp_path / "copy" / "data" / "labels.h5"
    if edit is not None:
        edit(labels)
    config = tiny_config(labels.parent, train__epochs=2, **{**TOY, **overrides})
    before = {path: path.read_bytes() for path in (tmp_path / "copy" / "run" / "assets").glob("*.json")}
    with pytest.raises(UserError, match=message):
        run(config, tmp_path / "copy" / "run")
    assert {path: path.read_bytes() for path in before} == before
    assert json.loads((tmp_path / "copy" / "run" / "config.json").read_text())["train"]["epochs"] == 1


WANDB_OFFLINE = {"experiment__wandb__mode": "offline"}
CONDITIONAL = ConfigDict({f"taxa_L{rank}": {"type": "ConditionalClassifier"} for rank in (10, 20, 30)})
#: what docs/checkpoints.md says may change whenever a run goes on
FREE: dict[str, dict[str, Any]] = {
    "epochs": {"train__epochs": 5},
    "fewer epochs": {"train__epochs": 1},
    "learning rate": {"lr_scheduler__base_lr": 1e-3, "lr_scheduler__name": "wsd"},
    "masking schedule": {"schedule__meta_masking__enabled": False},
    "mixing": {"schedule__mixup__prob__enabled": True},
    "logging": {"schedule__metrics__step_interval": 3, "debug__jsonl__enabled": True},
    "early stop and retention": {"train__early_stop__active": True, "schedule__checkpoint__keep_last_n": 1},
    "validation": {"data__batch_size_val": 8, "schedule__validation__interval_epochs": 2},
    "augmentation": {"aug__color_jitter": 0.3, "aug__hflip_prob": 0.1},
    "loss": {"loss__taxonomy_smoothing__enabled": (True,), "loss__grad_weighting__task__type": "gradnorm"},
    "weight decay and betas": {"optimizer__weight_decay": 0.3, "optimizer__betas": (0.8, 0.9)},
    "clipping": {"train__clip_grad": 0.5, "train__clip_mode": "adaptive"},
    "regularisation": {"model__drop_rate": (0.2,), "model__drop_path_rate": 0.1},
    "computation": {"train__gradient_checkpointing__enabled_normal_steps": True, "train__compute_dtype": "bfloat16"},
    "reading": {"data__num_workers": 1, "data__prefetch__max_processed_batches": 1},
    "reading in processes": {"data__worker_processes": 1},
    "pictures": {
        "data__resize_mode": "center_crop",
        "data__interpolation": "bicubic",
        "data__crop_fraction": 0.875,
        "data__reduced_decode": False,
        "aug__mean": (0.5, 0.5, 0.5),
    },
    "null masking": {"schedule__null_masking__enabled": True},
    "partial masking": {
        "schedule__meta_masking__partial__enabled": True,
        "schedule__meta_masking__partial__whitelist": (("TEMPORAL",),),
    },
    "class weights": {"loss__grad_weighting__class_weights__method": ("smoothing",)},
    "trackers": {"experiment__tensorboard__enabled": True, "experiment__wandb__enabled": True, **WANDB_OFFLINE},
    "debugging": {"debug__crash_bundle": True, "debug__underflow_overflow__enabled": True},
    "implementations": {"model__depthwise_impl": "shift", "model__attn_impl": "xla"},
    "initial weights": {"model__weight_init": "fan_in"},
}
#: ... and the state is placed, read or made in another way
RESTORED: dict[str, dict[str, Any]] = {
    "weights read before the first update": {"model__pretrained": "gone.safetensors"},
    "split state": {"parallel__fsdp": True},
    "another optimizer, started anew": {"optimizer__name": "lion", "train__resume_skip_optimizer": True},
}
#: what of a model may never change
MODEL: dict[str, tuple[dict[str, Any], str]] = {
    "depths": ({"model__convnext_stages__depths": (1, 2)}, r"depths"),
    "widths": ({"model__convnext_stages__dims": (8, 8, 16, 32)}, r"dims"),
    "attention heads": ({"model__rope_stages__num_heads": (2, 1)}, r"num_heads"),
    "picture size": ({"data__img_size": 64}, r"img_size"),
    "heads": ({"model__classification__heads": CONDITIONAL}, r"head_specs"),
}
#: what may change only between epochs
BETWEEN_EPOCHS: dict[str, tuple[dict[str, Any], str]] = {
    "batch size": ({"data__batch_size": 8}, "sampler.batch_size is 16 in the checkpoint and 8"),
    "accumulation": ({"train__accumulation_steps": 2}, "sampler.accumulation_steps is 1"),
    "seed": ({"train__seed": 5}, "seed is 0"),
    "sampler": ({"data__sampler__type": "standard"}, "sampler.type is 'grouped'"),
    "class balance": ({"data__sampler__class_balance": "sqrt"}, "sampler.class_balance is 'absent'"),
    "groups": ({"schedule__mixup__group_levels": ("taxa_L20",)}, "groups is"),
}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run of two epochs that a signal ended within the second."""
    directory = tmp_path_factory.mktemp("interrupted")
    config = tiny_config(directory / "data", train__epochs=2, debug__jsonl__enabled=False)
    updates = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interruption, "requested", lambda self: next(updates) == 9)
        with pytest.raises(SystemExit):
            run(config, directory / "run")
    return directory


def resumed(directory, target, edit=None, **overrides):
    """The progress with which a copy of the run goes on; nothing is trained."""
    shutil.copytree(directory / "run", target)
    if edit is not None:
        edit(target)
    overrides = {"train__epochs": 2, "debug__jsonl__enabled": False} | overrides
    config = tiny_config(directory / "data", **overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train", lambda *args, **options: None)
        patch.setattr(trainer, "finish", lambda experiment, host, *others: host.progress)
        return run(config, target)


def refused(directory, **overrides) -> str | None:
    """Why the run would not go on with other settings, asked of what would be trained; its arrays fit if it would."""
    config = tiny_config(directory / "data", **{"train__epochs": 2, "debug__jsonl__enabled": False} | overrides)
    root = RunDirectory(directory / "run")
    with contextlib.closing(Checkpoints(root.checkpoints)) as checkpoints:
        experiment = preview_experiment(config, root, checkpoints)
        step = checkpoints.steps()[-1]
        why = refusal(experiment, step, checkpoints.meta(step))
        if why is None:
            assert leaf_shapes(experiment.abstract_state.arrays) == checkpoints.shapes(step)
        return why


@pytest.mark.slow
@pytest.mark.parametrize("case", FREE)
def test_these_may_change_within_an_epoch(interrupted, case):
    assert refused(interrupted, **FREE[case]) is None


@pytest.mark.slow
@pytest.mark.parametrize("case", RESTORED)
def test_these_may_change_and_the_state_is_another(interrupted, tmp_path, case):
    assert resumed(interrupted, tmp_path / "run", **RESTORED[case]).global_step == 9


@pytest.mark.slow
@pytest.mark.parametrize("case", MODEL)
def test_a_model_may_not_change(interrupted, case):
    overrides, message = MODEL[case]
    assert re.search(rf"another model or optimizer: .*{message}", refused(interrupted, **overrides) or "")


@pytest.mark.slow
@pytest.mark.parametrize("case", BETWEEN_EPOCHS)
def test_these_may_change_only_between_epochs(interrupted, finished, case):
    overrides, message = BETWEEN_EPOCHS[case]
    within = refused(interrupted, **overrides) or ""
    assert re.search(rf"lies within epoch 1: .*{message}.*between epochs", within)
    assert refused(finished[0], **{**TOY, **overrides}) is None


@pytest.mark.slow
def test_a_metric_may_be_added(interrupted, tmp_path, monkeypatch):
    forget_plugins()
    register("confidence", lambda inputs: (inputs.weight.sum(), inputs.weight.sum()))
    assert resumed(interrupted, tmp_path / "run").global_step == 9


@pytest.mark.slow
def test_the_number_of_devices_may_change(interrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "Placement", lambda **_: Placement(jax.devices()[:2]))
    assert resumed(interrupted, tmp_path / "run").global_step == 9


def test_what_is_not_trained_on_may_change(finished, tmp_path):
    """Pictures of the validation rows, and how pictures are stored."""
    shutil.copytree(finished[0], tmp_path / "copy")
    with np.load(finished[0] / "run/assets/subset_ids.npz") as subsets:
        rows = subsets["rows_train"]
    with h5py.File(tmp_path / "copy/data/images.h5", "a") as file:
        images = file["images"][:]
        images[np.setdiff1d(np.arange(len(images)), rows)] = 7
        del file["images"]
        file.create_dataset("images", data=images, chunks=(7, 32, 32, 3), compression="gzip")
    assert resumed(tmp_path / "copy", tmp_path / "run", **TOY).global_step == 6


def test_a_checkpoint_of_an_earlier_version_goes_on_and_it_is_said(finished, tmp_path, monkeypatch):
    stored = Checkpoints.meta

    def meta(self, step):
        found = stored(self, step)
        for section in ("identifiers", "metadata_values", "pictures"):
            del found["identity"][section]
        return found

    monkeypatch.setattr(Checkpoints, "meta", meta)
    assert resumed(finished[0], tmp_path / "run", **TOY).global_step == 6
    logged = (tmp_path / "run/logs/debug_log_rank0.txt").read_text()
    assert (
        "the checkpoint is of an earlier version and says nothing of identifiers of training rows, metadata of "
        "training rows, pictures of training rows: that these are still the same is not checked"
    ) in " ".join(logged.split())


def test_data_may_lie_elsewhere(finished, tmp_path):
    """And where the end of the epoch was cut off, its rows are set aside, since they are written again."""

    def cut_off(run_directory):
        (run_directory / "checkpoints" / "boundary_6.json").unlink()

    directory, _ = finished
    shutil.copytree(directory, tmp_path / "moved")
    assert resumed(tmp_path / "moved", tmp_path / "run", cut_off, **TOY).global_step == 6
    before, after = (read_rows(run / "logs" / "metrics_log.jsonl") for run in (directory / "run", tmp_path / "run"))
    assert [row for row in before if row.event not in ("epoch", "final")] == after
    assert len(after) < len(before)


def test_a_run_that_stopped_early_goes_on_without_early_stopping(finished, tmp_path):
    def stopped(run_directory):
        path = run_directory / "checkpoints" / "boundary_6.json"
        state = json.loads(path.read_text())
        del state["sha256"]  # as an earlier version wrote it
        state["progress"]["stop_reason"] = "patience"
        path.write_text(json.dumps(state))
        path.with_name("boundary_99.json").write_text("{}")  # of a checkpoint that somebody removed

    assert resumed(finished[0], tmp_path / "off", stopped, **TOY).stop_reason is None
    assert not (tmp_path / "off" / "checkpoints" / "boundary_99.json").exists()
    on = {**TOY, "train__early_stop__active": True}
    assert resumed(finished[0], tmp_path / "on", stopped, **on).stop_reason == "patience"


def test_a_refusal_is_printed_once_and_logged(finished, tmp_path, capsys):
    shutil.copytree(finished[0] / "run", tmp_path / "run")
    with pytest.raises(UserError, match="another model or optimizer"):
        run(tiny_config(finished[0] / "data", train__epochs=2, optimizer__name="lion", **TOY), tmp_path / "run")
    assert "another model or optimizer" not in capsys.readouterr().out  # the command line prints the exception
    assert "another model or optimizer" in (tmp_path / "run" / "logs" / "debug_log_rank0.txt").read_text()


def test_everything_is_closed_whatever_else_fails(finished, tmp_path, monkeypatch):
    closed = []

    def fails(name):
        def close(self, *args, **options):
            closed.append(name)
            raise OSError(name)

        return close

    def fault(*args):
        raise RuntimeError("the first fault")

    for owner in (Checkpoints, DebugSession):
        monkeypatch.setattr(owner, "close", fails(owner.__name__))
    monkeypatch.setattr(Sinks, "close", lambda self, *args, **options: closed.append("Sinks"))
    monkeypatch.setattr(trainer, "restore", fault)
    with pytest.raises(OSError, match="Checkpoints") as caught:
        run(finished[1], tmp_path / "run")
    assert {"Checkpoints", "DebugSession", "Sinks"} <= set(closed)
    chain: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(str(error))
        error = error.__context__
    assert "the first fault" in chain


def test_another_batch_size_counts_from_the_epoch_on_where_it_starts(finished, tmp_path):
    """Six updates of 16 rows are done; the second epoch has twelve updates of 8 rows, and every row is seen once."""
    directory, _ = finished
    shutil.copytree(directory, tmp_path / "copy")
    config = tiny_config(directory / "data", train__epochs=2, data__batch_size=8, **TOY)
    run(config, tmp_path / "copy" / "run")
    progress = json.loads((tmp_path / "copy" / "run" / "progress.json").read_text())
    assert progress["global_step"] == progress["expected_total_steps"] == 6 + 12
    assert progress["samples_seen"] == 2 * 96
