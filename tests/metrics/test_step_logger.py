"""Cadence, averages, names and lines of the training log against the golden runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linnaeus_jax.metrics.console_lines import clock, pipeline_lines, progress_line, schedule_line
from linnaeus_jax.metrics.step_logger import StepMetricsLogger, due_part

#: facts of a row where no schedule and no GradNorm is at work
NO_SCHEDULE = {"schedule": {}, "gradnorm": {}, "mixup_group": "taxa_L10"}


@pytest.fixture(scope="module")
def runs(fixtures):
    return json.loads((fixtures / "observability_misc.json").read_text())["step_logger"]


def interval(total, task_losses, count=1):
    """Host sums of `count` rows, all wrong."""
    tasks = len(task_losses)
    ints, losses = np.zeros(tasks, np.int32), np.asarray(task_losses, np.float32)
    return {
        "sums": {
            **{name: np.int32(count) for name in ("count", "has_label")},
            **{name: np.int32(0) for name in ("chain", "partial_chain")},
            **dict.fromkeys(("correct1", "correct3", "correct1_non_null"), ints),
            "non_null": ints + count,
            "loss": losses * count,
            "loss_non_null": losses * count,
            "loss_null": 0 * losses,
            "loss_weighted": np.float32(total * count),
        },
        "grad_norm": np.float32(2.0),
        "updates": np.int32(1),
        "meta_valid": np.array([count], np.int32),
        "null_total": ints + 2,
        "null_included": ints + 1,
    }


def make(run, **intervals):
    names = ("console", "wandb", "lr")
    given = {name: run[f"{name}_interval"] for name in names} | {"step": 0, "pipeline": 0} | intervals
    return StepMetricsLogger(run["tasks"], given, components=("TEMPORAL",))


def play(logger, run, inputs=None):
    """Feeds a run; returns {step: row} of the wandb stream and the console lines."""
    rows, lines, total = {}, [], len(run["inputs"])
    for x in run["inputs"] if inputs is None else inputs:
        losses = [x["tasks"][task] for task in run["tasks"]]
        current = interval(x["total"], losses)
        logger.add(current)
        streams, done = logger.due(x["global_step"]), x["step_idx"] + 1
        left = (x["time"] - run["epoch_start_time"]) / done * (total - done)
        facts = {"learning_rates": {"default": x["lr"]}, **NO_SCHEDULE, "seconds_left": left, "now": x["time"]}
        row = logger.row(x["global_step"], streams, current, loss=x["total"], task_losses=losses, **facts)
        if "wandb" in streams:
            rows[x["global_step"]] = row
        place = {"epoch": 0, "index": x["step_idx"], "total": total, "seconds_left": left}
        lines.append(progress_line(streams, row, accumulation_steps=run["accum_steps"], **place))
    return rows, [line for line in lines if line is not None]


def test_golden_console_lines(runs):
    for run in runs:
        assert play(make(run), run)[1] == run["console_lines"]


def test_golden_rows_with_current_values_and_interval_means_under_their_own_names(runs):
    for run in runs:
        logger = make(run)
        logger.start_clock(run["epoch_start_time"])
        rows, _ = play(logger, run)
        assert list(rows) == [step for _, step, _ in run["wandb_calls"]]
        for _, step, want in run["wandb_calls"]:
            row, now = rows[step], run["inputs"][step - 1]
            # the reference averages under plain names; here those are the current values
            assert row["train/loss"] == row["core/train_loss"] == now["total"]
            assert row["train/step_avg_loss"] == pytest.approx(want["train/loss"], rel=1e-6)
            for task in run["tasks"]:
                mean = want.get(f"train/step_avg_loss/{task}", want.get(f"train/loss/{task}"))
                assert row[f"train/step_avg_loss/{task}"] == pytest.approx(mean, rel=1e-6)
                assert row[f"train/loss/{task}"] == now["tasks"][task]
            assert row["train/lr"] == now["lr"]
            assert ("train/lr/default" in row) == (step % run["lr_interval"] == 0)
            assert row["train/step_avg_chain_accuracy"] == row["train/chain_accuracy"] == 0.0
            assert row.get("train/eta_sec") == want.get("train/eta_sec")
            assert not set(want) - set(row)
            assert row["meta_masking/actual_valid_pct/TEMPORAL/train"] == 100.0
            assert row["schedule/null_masking/inclusion_percentage"] == 50.0


def test_a_stream_with_interval_zero_is_off(runs):
    logger = make(runs[0], wandb=0, console=0, lr=0)
    assert not any(logger.due(step) for step in range(200))
    assert make(runs[0], pipeline=7).due(70) == {"console", "wandb", "lr", "pipeline"}


def test_a_log_point_holds_what_is_due():
    names = """train/loss core/train_loss schedule/mixup_prob train/grad_norm gradnorm/total_norm_pre_clip train/lr
        train/lr/default train/step_avg_loss pipeline/wait_share pipeline/cache/hits gradnorm/weight/taxa_L10
        task_weights/task_taxa_L10"""
    row = dict.fromkeys(names.split(), 1.0)

    def due(*streams):
        return set(due_part(row, frozenset(streams)))

    assert due() == due("console") == set()
    assert due("lr") == {"train/lr", "train/lr/default"}
    assert due("pipeline") == {"pipeline/wait_share", "pipeline/cache/hits"}
    assert due("gradnorm") == {"gradnorm/weight/taxa_L10", "task_weights/task_taxa_L10"}
    assert due("wandb") == set(row) - due("gradnorm") - {"pipeline/cache/hits", "train/lr/default"}
    assert due("step") == due("wandb") - {"train/step_avg_loss"}
    assert due("wandb", "lr", "pipeline", "gradnorm") == set(row)


def test_the_last_partial_interval_is_flushed(runs):
    run = runs[0]
    logger = make(run)
    play(logger, run, run["inputs"][:23])  # rows at 5, 10, 15, 20
    mean = np.mean([x["total"] for x in run["inputs"][20:23]])
    flushed = logger.flush()
    assert flushed["train/step_avg_loss"] == pytest.approx(mean, rel=1e-6)
    assert all(name.startswith("train/step_avg_") for name in flushed)
    assert logger.flush() == {}


def test_means_are_over_samples_not_batches(runs):
    logger = make(runs[1])
    for total, count in ((1.0, 1), (4.0, 3)):
        logger.add(interval(total, [total], count))
    epoch = logger.finish_epoch()
    assert epoch["loss"] == pytest.approx((1 + 12) / 4)
    assert epoch["acc1_taxa_L10"] == 0.0
    assert epoch["grad_norm"] == 2.0
    assert logger.finish_epoch() == {}


def test_resumed_log_equals_the_uninterrupted_one(runs):
    run = runs[0]
    whole, cut = make(run), make(run)
    want, _ = play(whole, run)
    first, _ = play(cut, run, run["inputs"][:13])
    resumed = make(run)
    resumed.load_state_dict(json.loads(json.dumps(cut.state_dict())))
    second, _ = play(resumed, run, run["inputs"][13:])
    timing = "train/eta_sec"
    assert {s: r | {timing: 0} for s, r in (first | second).items()} == {s: r | {timing: 0} for s, r in want.items()}
    assert resumed.finish_epoch() == whole.finish_epoch()


def test_a_sum_that_the_checkpoint_lacks_starts_anew_with_a_warning(runs, caplog):
    logger = make(runs[1])
    logger.add(interval(1.0, [1.0]))
    more = interval(3.0, [3.0])
    more["sums"]["custom/new"] = np.array([4.0, 2.0], np.float32)
    logger.add(more)
    assert "custom/new" in caplog.text
    assert logger.windows["epoch"]["sums"]["custom/new"].tolist() == [4.0, 2.0]
    assert logger.windows["epoch"]["sums"]["count"] == 2


def test_gradnorm_names(runs):
    run = runs[0]
    logger = make(run)
    values = {"avg_norm": np.float32(3.0), "weight": np.array([1.5, 0.5]), "weight_delta": np.array([0.5, -0.5])}
    current = interval(1.0, [1.0, 1.0])
    facts = NO_SCHEDULE | {"learning_rates": {}, "gradnorm": values, "seconds_left": 1.0, "now": 0.0}
    row = logger.row(1, frozenset(), current, loss=1.0, task_losses=[1.0, 1.0], **facts)
    assert row["gradnorm/avg_norm"] == 3.0
    assert row["gradnorm/weight_delta/taxa_L20"] == -0.5
    assert row["task_weights/task_taxa_L10"] == 1.5
    streams = frozenset({"console", "gradnorm"})
    line = progress_line(streams, row, epoch=2, index=7, total=9, seconds_left=3700, accumulation_steps=1)
    assert line == "Train Epoch=2 [7/9], loss=1.0000, chain_acc=0.000, part_chain_acc=0.000, GradNorm=TRUE, ETA=1:01:40"


def test_other_lines():
    values = {"meta_mask_prob": 0.25, "mixup_prob": 0.5, "null_mask_prob": 1.0}
    assert schedule_line(100, values, "taxa_L10") == (
        "Schedule values @ step 100: meta_mask_prob=0.2500, mixup_prob=0.5000, mixup_group=taxa_L10, "
        "null_mask_prob=1.0000"
    )
    row: dict[str, float] = {
        f"pipeline/queue_depths/{q}_q": n for n, q in enumerate(("batch_index", "preprocess", "processed_batch"))
    }
    row["pipeline/throughput/prefetch"] = 8.0
    capacity = {"batch_index_q": 4, "preprocess_q": 2, "processed_batch_q": 4}
    depths = "[Monitor] QDepth => batch_index=0/4, preproc=1/2, processed=2/4"
    assert pipeline_lines(row, capacity) == [depths, "[Monitor] Cache => none, prefetch_rate=8.00/s"]
    row |= {"pipeline/cache/size": 12.34, "pipeline/cache/hits": 7, "pipeline/cache/misses": 0}
    assert pipeline_lines(row, capacity) == [
        depths,
        "[Monitor] Cache => 12.3% usage, hits=7, misses=0, prefetch_rate=8.00/s",
    ]
    assert pipeline_lines({}, capacity) == ["[Monitor] QDepth => none", "[Monitor] Cache => none"]
    assert (clock(0), clock(float("nan")), clock(86400)) == ("0:00:00", "?", "1 day, 0:00:00")
