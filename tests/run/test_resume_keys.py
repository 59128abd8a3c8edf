"""Keys that a resume announces as changed act from the next update on, or the line says that they do not."""

from __future__ import annotations

import contextlib
import dataclasses
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.models import initial_variables
from linnaeus_jax.models.names import abstract_variables
from linnaeus_jax.reporting.metrics_log import Row
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.chosen_checkpoint import read_arrays
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.identity import FREE_MODEL_FIELDS, resume_notes, without_effect
from linnaeus_jax.run.ranking import rank_anew
from linnaeus_jax.run.saved_weights import choose_checkpoint
from linnaeus_jax.run.trainer import run
from linnaeus_jax.schedules import early_stop
from tests.config.effects import Home, Site
from tests.config.key_table import TABLE
from tests.config.test_every_key import settings_of
from tests.run.test_trainer import rows_of
from tests.step import toy
from tests.tiny import tiny_config

#: keys of what a checkpoint carries of which a resume takes the new value, see the tests below
RANKING = "schedule.checkpoint.best_metric"
#: also decides in which order parameters are drawn
REMAT = "train.gradient_checkpointing.enabled_normal_steps"


def host_of(site: Site) -> HostState:
    parts: Any = SimpleNamespace(
        config=typed(site.config), resolved=site.resolved, program=site.small_program, inputs=site
    )
    return HostState.of(parts)


def parameters(site: Site) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(initial_variables(site.model, jax.random.key(0)))]


def refuses(one: Site, other: Site) -> bool:
    """Whether a run of the one does not go on as the other, for its model; test_identity.py shows the rest."""
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), abstract_variables(site.model)) for site in (one, other)]
    fields = [field.name for field in dataclasses.fields(one.model) if field.name not in FREE_MODEL_FIELDS]
    same = type(one.model) is type(other.model) and shapes[0] == shapes[1]
    return not same or any(getattr(one.model, name) != getattr(other.model, name) for name in fields)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        yield Home(tmp_path_factory.mktemp("home"))


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key, row in TABLE.items() if row.group != "run"])
def test_what_a_checkpoint_carries_is_no_other_key(home, key):
    """What a run restores holds nothing of a changed key; all else is made from the configuration at every start. Keys
    that decide how parameters begin, and nothing later, are those that are said to have no effect."""
    row = dataclasses.replace(TABLE[key], group="")
    without, changed = (home.site(settings) for settings in settings_of(key, row))
    unusable = [site for site in (without, changed) if isinstance(site.outcome(attrgetter("small_program")), str)]
    if unusable or refuses(without, changed):
        return
    host, fresh = (host_of(changed) for _ in range(2))
    host.load_json(host_of(without).to_json(), changed.resolved)
    assert host.to_json() == fresh.to_json()
    ranked = {early_stop.ranking_key(typed(site.config), ()) for site in (without, changed)}
    assert (len(ranked) == 2) == (key == RANKING)
    if key != REMAT:
        redrawn = without.model != changed.model and parameters(without) != parameters(changed)
        assert redrawn <= bool(without_effect(key, gradnorm=False, kept_schedule=False))


def measured(step: int, **values: float) -> Row:
    return Row("epoch", step, step // 10 - 1, 0.0, {f"val/{name}": value for name, value in values.items()})


ROWS = [
    measured(10, loss=3.0, chain_accuracy=0.5, error=0.1),
    Row("train", 10, 0, 0.0, {"val/loss": 0.0}),
    measured(20, loss=1.0, chain_accuracy=0.2),
    measured(30, loss=float("nan"), chain_accuracy=0.4),
    measured(40, chain_accuracy=0.9),
]


@pytest.mark.parametrize(
    ("before", "configured", "metric", "ranks", "said"),
    [
        ("val/chain_accuracy", "val/loss", "val/loss", {10: -3.0, 20: -1.0, 30: None}, "of updates 40, which"),
        (
            "val/loss",
            "val/chain_accuracy",
            "val/chain_accuracy",
            {10: 0.5, 20: 0.2, 30: 0.4, 40: 0.9},
            "from the metrics log",
        ),
        ("val/acc1_taxa_L10", "", "val/chain_accuracy", {10: 0.5, 20: 0.2, 30: 0.4, 40: 0.9}, "no longer by val/acc1"),
        ("val/loss", "val_mask_meta/loss", "val_mask_meta/loss", {}, "of updates 10, 20, 30, 40, which"),
        ("val/loss", "val/loss", "val/loss", None, ""),
        ("val/loss", "", "val/loss", None, ""),
    ],
)
def test_checkpoints_are_ranked_anew_by_another_metric(before, configured, metric, ranks, said):
    parts: Any = SimpleNamespace()
    index = {step: {"epoch": step // 10 - 1, "metric": 7.0} for step in (10, 20, 30, 40)}
    host = HostState(parts, parts, parts, dict(index), before)
    lines = []
    if before not in early_stop.ranking_candidates(configured):
        lines = [rank_anew(host, configured, ROWS, [10, 20, 30, 40, 45])]
    assert host.ranking_metric == metric
    expected = index if ranks is None else {s: {"epoch": s // 10 - 1, "metric": m} for s, m in ranks.items()}
    assert host.ranking == expected
    assert [said in line for line in lines] == ([True] if said else [])


def test_a_resume_says_which_changed_keys_have_no_effect():
    old = {"model": {"weight_init": "normal"}, "lr_scheduler": {"base_lr": 1.0}, "train": {"x": 1}, "loss": 1}
    meta = {"config": old, "versions": {}}
    new = {**old, "model": {"weight_init": "fan_in"}, "lr_scheduler": {"base_lr": 2.0}}
    for kept, expected in ((False, ""), (True, " (train.preserve_checkpoint_schedule keeps what")):
        now = {**new, "train": {"preserve_checkpoint_schedule": kept}}
        rate, *_, weights = [line for line in resume_notes(5, meta, now, {}) if "train." not in line.split(":")[1]]
        assert rate.startswith(f"config changed: lr_scheduler.base_lr: 1.0 -> 2.0{expected}")
        assert weights.endswith("'fan_in' (no effect: it acts before the first update alone)")
    key = "loss.grad_weighting.task.init_weights"
    assert [bool(without_effect(key, gradnorm=g, kept_schedule=False)) for g in (True, False)] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 3])
def test_a_resumed_run_takes_another_ranking_metric_and_other_task_weights(tmp_path, monkeypatch, epochs):
    """Also where it is finished already: whoever asks for the best checkpoint gets that of the new metric."""
    toy.register(monkeypatch)
    common = {"model__type": "toy", "schedule__checkpoint__keep_top_n": 3, "loss__grad_weighting__task__type": "static"}
    first = {
        "schedule__checkpoint__best_metric": "val/loss",
        "loss__grad_weighting__task__init_weights": (1.0, 1.0, 1.0),
    }
    second = {
        "schedule__checkpoint__best_metric": "val/acc1_taxa_L30",
        "loss__grad_weighting__task__init_weights": (3.0, 2.0, 0.5),
    }
    run(tiny_config(tmp_path / "data", train__epochs=2, **common, **first), tmp_path / "run")
    run(tiny_config(tmp_path / "data", train__epochs=epochs, **common, **second), tmp_path / "run")
    said = (tmp_path / "run" / "logs" / "debug_log_rank0.txt").read_text()
    assert "checkpoints are ranked by val/acc1_taxa_L30 now, no longer by val/loss" in said
    logged = {row["global_step"]: row for row in rows_of(tmp_path / "run") if row["event"] == "epoch"}
    with contextlib.closing(Checkpoints(tmp_path / "run" / "checkpoints", read_only=True)) as checkpoints:
        newest = checkpoints.finished_boundary(checkpoints.steps()[-1])
        assert newest is not None
        assert {int(s): each["metric"] for s, each in newest["ranking"].items()} == {
            step: row["val/acc1_taxa_L30"] for step, row in logged.items()
        }
        best = max(logged, key=lambda step: (logged[step]["val/acc1_taxa_L30"], -step))
        assert choose_checkpoint(checkpoints, "best") == best
        if epochs == 3:
            weights = read_arrays(checkpoints, checkpoints.steps()[-1], ("gradnorm",))["gradnorm"]
            assert [3.0, 2.0, 0.5] in [np.asarray(x).tolist() for x in jax.tree.leaves(weights)]
