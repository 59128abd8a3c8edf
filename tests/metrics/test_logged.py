"""Every logged name is described: the names that the program composes, and what their patterns leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from linnaeus_jax.data.cache import CacheStats
from linnaeus_jax.data.pipeline_stats import PipelineStats
from linnaeus_jax.metrics import names, register, table
from linnaeus_jax.metrics.extras import META_STATES
from linnaeus_jax.metrics.logged import LOGGED, PARTS, described, undescribed
from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.metrics.tracker import MetricsTracker
from tests.plugins import forget_plugins

TASKS = ("taxa_L10", "taxa_L20")
PHASES = ("train", "val", "val_mask_meta", "val_no_mask", "val_mask_TEMPORAL", "val_mask_TEMPORAL_SPATIAL")


def all_names() -> Iterator[str]:
    """What a run with everything on logs, made by the functions that make the names."""
    tracker = MetricsTracker(TASKS)
    for phase in PHASES:
        values = dict.fromkeys(table.keys("train" if phase == "train" else "val", TASKS), 0.5)
        values |= {
            f"subset/metadata/{state}/{what}": 1.0 for state in META_STATES for what in ("count", "acc1_taxa_L10")
        }
        tracker.update(phase, values | ({"grad_norm": 1.0} if phase == "train" else {}), 0, 1, seconds=1.0, samples=2)
    yield from tracker.get_wandb_metrics(1)
    yield from tracker.final_metrics()
    yield "early_stop/reason"
    per_task = np.ones(len(TASKS))
    numbers = dict.fromkeys(("loss", "norm", "target", "ratio", "weight", "weight_delta"), per_task)
    yield from names.gradnorm({"avg_norm": 1.0} | numbers, TASKS)
    sums: dict[str, Any] = {
        "count": np.int32(2),
        "chain": np.int32(1),
        "partial_chain": np.int32(1),
        "has_label": np.int32(2),
    }
    sums |= {name: np.ones(2, np.int32) for name in ("correct1", "correct3", "non_null", "correct1_non_null")}
    sums |= {name: np.ones(2, np.float32) for name in ("loss", "loss_non_null", "loss_null")}
    sums |= {"loss_weighted": np.float32(1)}
    interval = {
        "sums": sums,
        "updates": 1,
        "grad_norm": 1.0,
        "meta_valid": [1],
        "null_total": [1],
        "null_included": [1],
    }
    logger = StepMetricsLogger(TASKS, {"wandb": 1, "lr": 1}, components=("TEMPORAL",))
    logger.add(interval)
    logger.start_clock(0.0)
    yield from logger.row(
        1,
        logger.due(1),
        interval,
        loss=1.0,
        task_losses=(1.0, 1.0),
        learning_rates={"default": 0.1, "biases": 0.1},
        schedule=dict.fromkeys(("meta_mask_prob", "partial_mask_prob", "mixup_prob", "null_mask_prob"), 0.5),
        gradnorm={},
        mixup_group="taxa_L10",
        seconds_left=1.0,
        now=100.0,
    )
    yield from PipelineStats(cache=CacheStats()).row()


def test_every_name_that_the_program_composes_has_a_pattern() -> None:
    found = list(all_names())
    assert len(found) > 400
    assert not undescribed(found)


def test_every_pattern_is_of_some_name() -> None:
    """But for those that only the loop of a run adds."""
    found = {described(name) for name in all_names()}
    left = {logged.pattern for logged in LOGGED if logged not in found}
    assert left == {
        "train/grad_norm",
        "gradnorm/total_norm_pre_clip",
        "gradnorm/total_norm_post_clip",
        "train/skipped_updates",
        "train/images_per_sec",
        "pipeline/wait_share",
        "probe/<probe>/<value>",
    }


def test_names_of_nobody_have_none() -> None:
    unknown = (
        "val/speed",
        "train/acc2_taxa_L10",
        "validation/loss",
        "core/val_speed",
        "gradnorm/weight",
        "final_loss",
    )
    assert undescribed(unknown) == list(unknown)


def test_metrics_of_plugins_are_described() -> None:
    forget_plugins()
    assert described("val/my_score") is None
    register("my_score", lambda inputs: (0.0, 1.0))
    assert undescribed(["val/my_score", "train/epoch_avg_my_score", "final_val_my_score"]) == []


def test_every_part_is_explained() -> None:
    used = {part for logged in LOGGED for part in logged.pattern.replace(">", "<").split("<")[1::2]}
    assert used == set(PARTS)
