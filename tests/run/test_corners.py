"""Whole runs in the corners that the demo does not have, some in pairs: trained, killed, resumed, evaluated, reported.

Each case trains once without interruption and once with a kill in its last epoch; both must end with the same bits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.registry import OPTIMIZERS
from linnaeus_jax.run import trainer
from linnaeus_jax.step.compilation import CompiledStep, compile_steps
from linnaeus_jax.step.program import Program
from linnaeus_jax.tools import evaluate, report
from tests.run.test_kill import assert_same_rows, final_parameters, kept
from tests.step import toy
from tests.step.test_train_step import V0 as SMALL_V0
from tests.tiny import tiny_config, write_tiny_data

COARSEST, FINEST = "taxa_L30", "taxa_L10"


def constant(name: str, value: int) -> Callable[[Path], None]:
    """Every row of a rank has this taxon."""

    def edit(directory: Path) -> None:
        with h5py.File(directory / "labels.h5", "a") as file:
            file[name][...] = value

    return edit


def all_known(directory: Path) -> None:
    with h5py.File(directory / "labels.h5", "a") as file:
        ids = file[FINEST][:]
        file[FINEST][...] = np.where(ids == 0, 1000 + 2 * (file["taxa_L20"][:] - 200), ids)


def one_class_and_oblong(directory: Path) -> None:
    constant(COARSEST, 30)(directory)
    images = np.random.default_rng(0).integers(0, 255, (120, 40, 24, 3), np.uint8)
    with h5py.File(directory / "images.h5", "w") as file:
        file["images"] = images


@dataclasses.dataclass(frozen=True)
class Corner:
    """One kind of run: keys of the config, what is changed in the data, the optimizer, rows, the model's variant."""

    overrides: dict[str, Any]
    edit: Callable[[Path], None] | None = None
    optimizer: str = "adamw"
    rows: int = 120
    toy: str = "tiny"  # empty: the real model, where the corner changes it


NO_MIXING = {"schedule__mixup__enabled": False, "schedule__mixup__cutmix__enabled": False}
ONE_TASK_GRADNORM = {
    "data__task_keys_h5": (FINEST,),
    "loss__grad_weighting__task__type": "gradnorm",
    "loss__grad_weighting__task__update_interval": 2,
}
ONE_BY_ONE = {"data__batch_size": 1, "data__batch_size_val": 1, "data__sampler__type": "standard"}
DETECTED = {"debug__underflow_overflow__enabled": True, "debug__underflow_overflow__gradients": True}
DROPS = {"model__drop_rate": (0.1,), "model__drop_path_rate": 0.2}


def heads(kind: str, **options: Any) -> dict[str, Any]:
    tasks = ("taxa_L10", "taxa_L20", "taxa_L30")
    return {"model__classification__heads": ConfigDict({task: {"type": kind, **options} for task in tasks})}


V0_CONDITIONAL = (
    SMALL_V0
    | DROPS
    | heads("ConditionalClassifier", routing_strategy="gumbel", temperature=0.5)
    | {"loss__grad_weighting__task__type": "gradnorm", "loss__grad_weighting__task__update_interval": 1}
)
MASKED = (
    DROPS
    | heads("PathSoftmax")
    | {
        "data__meta__components__SPATIAL__enabled": False,
        "model__missing_metadata": "mask",
        "train__accumulation_steps": 2,
        "train__gradient_checkpointing__enabled_normal_steps": True,
        "train__ema__enabled": True,
    }
)
#: each corner with another optimizer, so that both are covered by one compilation
CORNERS = {
    "no metadata": Corner({"data__meta__active": False}, toy=""),
    "one component, path heads, masked tokens, accumulation, remat": Corner(MASKED, None, "sgd", toy=""),
    "one class at the coarsest rank, oblong pictures, moving average": Corner(
        {"train__ema__enabled": True}, one_class_and_oblong, "lamb"
    ),
    "no nulls, no mixing, model with a state": Corner(
        NO_MIXING | {"data__partial__levels": False}, all_known, "lion", toy="statistics"
    ),
    "finest rank all null, detector": Corner(DETECTED, constant(FINEST, 0), "muon"),
    "no validation rows, one rank, GradNorm": Corner(ONE_TASK_GRADNORM, None, "ademamix"),
    "batch 1, standard sampler": Corner(ONE_BY_ONE, None, "adam", 15),
    "mFormerV0, conditional heads, GradNorm in every update": Corner(V0_CONDITIONAL, toy=""),
}


def test_every_optimizer_has_a_corner():
    assert {corner.optimizer for corner in CORNERS.values()} == set(OPTIMIZERS)


class Killed(BaseException):
    """Nothing in a run catches it."""


def configured(directory: Path, corner: Corner, name: str) -> Any:
    if not directory.exists():
        write_tiny_data(directory, rows=corner.rows)
        if corner.edit is not None:
            corner.edit(directory)
    config = tiny_config(directory, train__epochs=2, optimizer__name=corner.optimizer, **corner.overrides)
    if corner.optimizer == "ademamix":
        config.optimizer.betas = (0.9, 0.95, 0.99)
    if corner.toy:
        config.model.type, config.model.variant = "toy", corner.toy
    if "no validation rows" in name:
        h5 = config.data.h5
        h5.train_labels_path, h5.train_images_path, h5.labels_path, h5.images_path = (
            h5.labels_path,
            h5.images_path,
            "",
            "",
        )
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", CORNERS)
def test_a_run_is_killed_resumed_evaluated_and_reported(tmp_path, monkeypatch, one_device, capsys, name):
    corner = CORNERS[name]
    config = configured(tmp_path / "data", corner, name)
    toy.register(monkeypatch)
    compiled: dict[str, CompiledStep] = {}
    if corner.overrides.get("loss__grad_weighting__task__update_interval") == 1:  # `plain` is never needed
        monkeypatch.setattr(Program, "step_names", ("gradnorm",))

    def compile_once(*args: Any, **kwargs: Any) -> dict[str, CompiledStep]:
        """That each start compiles the same is seen in test_kill.py."""
        if not compiled:
            compiled.update(compile_steps(*args, **kwargs))
        return compiled

    monkeypatch.setattr(trainer, "compile_steps", compile_once)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trainer.run(config, whole)
    progress = json.loads((whole / "progress.json").read_text())
    updates = progress["global_step"]
    assert updates == progress["expected_total_steps"] > 0

    # ---- a kill after the first epoch, then the rest
    dispatch, made = CompiledStep.__call__, []

    def counted(self: CompiledStep, state: Any, batch: Any) -> Any:
        made.append(0)
        if len(made) == updates // 2 + 2:
            raise Killed
        return dispatch(self, state, batch)

    monkeypatch.setattr(CompiledStep, "__call__", counted)
    with pytest.raises(Killed):
        trainer.run(config, killed)
    monkeypatch.setattr(CompiledStep, "__call__", dispatch)
    trainer.run(config, killed)
    expected, found = final_parameters(whole), final_parameters(killed)
    assert expected.keys() == found.keys()
    for leaf, value in expected.items():
        np.testing.assert_array_equal(found[leaf], value, err_msg=leaf)
        assert np.isfinite(value).all(), leaf
    assert_same_rows(killed, whole)
    assert kept(killed) == kept(whole)

    # ---- evaluate and report
    capsys.readouterr()
    status = evaluate.main([str(killed), "--json"])
    shown = capsys.readouterr()
    if "no validation rows" in name:
        assert status == 2
        assert "no validation rows" in shown.err
    else:
        assert status == 0, shown.err
        phases = json.loads(shown.out)["phases"]
        assert ("val_mask_meta" in phases) == ("no metadata" not in name)
        assert np.isfinite(phases["val"]["loss"])
    assert report.main([str(killed), "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").stat().st_size > 1000
