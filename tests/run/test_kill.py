"""A run killed at any moment ends as the uninterrupted one does: parameters bit for bit, log rows, checkpoints."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from linnaeus_jax.data.baselines import BASELINES_FILE
from linnaeus_jax.run.checkpoints import Checkpoints
from tests.campaign.case import Ended
from tests.forks import call
from tests.run.test_trainer import comparable, rows_of
from tests.tiny import write_tiny_data

#: everything on that depends on time
EVERYTHING = {
    "two_groups": True,
    "lr_scheduler__name": "wsd",
    "lr_scheduler__stable_duration_fraction": 0.5,
    "lr_scheduler__decay_duration_fraction": 0.4,
    "train__epochs": 6,
    "train__ema__enabled": True,
    "train__early_stop__active": True,
    "train__early_stop__patience_steps": 1000,
    "schedule__meta_masking__partial__enabled": True,
    "schedule__meta_masking__partial__whitelist": [["TEMPORAL"], ["SPATIAL"]],
    "schedule__validation__partial_mask_meta__enabled": True,
    "schedule__validation__partial_mask_meta__interval_epochs": 1,
    "schedule__validation__partial_mask_meta__whitelist": [["TEMPORAL"], ["SPATIAL"]],
    "schedule__mixup__prob__enabled": True,
    "schedule__mixup__group_levels": ["taxa_L10", "taxa_L20"],
    "schedule__mixup__level_switch_epochs": [3],
    "schedule__null_masking__enabled": True,
    "schedule__checkpoint__keep_top_n": 2,
    "schedule__checkpoint__keep_last_n": 2,
}
#: compiles in seconds and draws in every update; models of the program go on after a kill in test_corners.py
MODEL = {"model__type": "toy", "model__variant": "dropout"}


def start(arguments: list[str], said: Path) -> Ended:
    environment = {"JAX_NUM_CPU_DEVICES": "1"}
    return call("tests.run.kill_driver", arguments, said, seconds=600, environment=environment)


def final_parameters(workdir: Path) -> dict[str, np.ndarray]:
    with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
        path = checkpoints.directory / f"ckpt_step_{checkpoints.steps()[-1]}" / "state"
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with ocp.StandardCheckpointer() as checkpointer:
        stored = checkpointer.metadata(path).item_metadata.tree
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), stored)
        state = checkpointer.restore(path, like)
    learned = {name: state[name] for name in ("params", "model_state") if state.get(name)}
    leaves = jax.tree_util.tree_flatten_with_path(learned)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def kept(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


def assert_same_rows(interrupted: Path, whole: Path) -> None:
    found, expected = comparable(rows_of(interrupted)), comparable(rows_of(whole))
    for index, (a, b) in enumerate(zip(found, expected, strict=False)):
        different = {name: (a.get(name), b.get(name)) for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
        assert not different, f"row {index}"
    assert len(found) == len(expected)


def events_of(workdir: Path) -> list[dict[str, Any]]:
    """The event log of all starts without times and without what every start says of itself."""
    paths = sorted((workdir / "logs" / "debug").glob("debug_log_*.jsonl"))
    events = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [{**event, "timestamp": 0} for event in events if event["event_type"] != "fit_start"]


def assert_same_end(interrupted: Path, whole: Path) -> None:
    expected, found = final_parameters(whole), final_parameters(interrupted)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert_same_rows(interrupted, whole)
    assert events_of(interrupted) == events_of(whole)
    assert kept(interrupted) == kept(whole)
    assert (interrupted / BASELINES_FILE).read_bytes() == (whole / BASELINES_FILE).read_bytes()
    states = [json.loads((path / "progress.json").read_text()) for path in (interrupted, whole)]
    assert states[0] == states[1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The run with everything on, never killed."""
    directory = tmp_path_factory.mktemp("kill")
    write_tiny_data(directory / "data")
    config = directory / "config.json"
    config.write_text(json.dumps({"directory": str(directory / "data"), **MODEL, **EVERYTHING}))
    done = start([str(config), str(directory / "whole")], directory / "said")
    assert done.status == 0, done.error[-3000:]
    return directory, config


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        ("step:5", "step:9", "validate:7", "save:2"),
        ("row:12", "rank:3"),
    ],
    ids=lambda moments: "+".join(moments),
)
def test_killed_run_ends_like_the_uninterrupted_one(uninterrupted, tmp_path, moments):
    directory, config = uninterrupted
    ids = set()
    for moment in moments:
        done = start([str(config), str(tmp_path / "run"), moment], tmp_path / "said")
        assert done.status == -signal.SIGKILL, f"{moment}: {done.status} {done.error[-2000:]}"
        ids.add((tmp_path / "run" / "run_id.txt").read_text().strip())
    done = start([str(config), str(tmp_path / "run")], tmp_path / "said")
    assert done.status == 0, done.error[-3000:]
    assert_same_end(tmp_path / "run", directory / "whole")
    boundaries = (tmp_path / "run" / "checkpoints").glob("boundary_*.json")
    assert ids == {json.loads(path.read_text())["run_id"] for path in boundaries}


@pytest.mark.slow
def test_sigterm_saves_and_leaves_with_143(uninterrupted, tmp_path):
    directory, config = uninterrupted
    done = start([str(config), str(tmp_path / "run"), "term:8"], tmp_path / "said")
    assert done.status == 128 + signal.SIGTERM, done.error[-2000:]
    steps = sorted(int(name.removeprefix("ckpt_step_")) for name in kept(tmp_path / "run") if name.startswith("ckpt"))
    assert steps[-1] == 8
    done = start([str(config), str(tmp_path / "run")], tmp_path / "said")
    assert done.status == 0, done.error[-3000:]
    expected, found = final_parameters(directory / "whole"), final_parameters(tmp_path / "run")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert_same_rows(tmp_path / "run", directory / "whole")
