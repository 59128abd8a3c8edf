"""One small run with everything on: every documented name in every sink, no secret, numbers from logits, few reads.

That the log of a resumed run equals that of an uninterrupted one row for row is shown in `test_kill.py`.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import orbax.checkpoint as ocp
import pytest

from linnaeus_jax.main import main as run_main
from linnaeus_jax.metrics import MetricInputs, register
from linnaeus_jax.metrics.logged import undescribed
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.wandb_sink import WandbSink
from linnaeus_jax.run import evaluate as evaluation_of_runs
from linnaeus_jax.run import experiment, trainer
from linnaeus_jax.run.train_log import TrainLog
from linnaeus_jax.step.evaluation import Evaluation
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.tools import evaluate
from tests.plugins import forget_plugins, plugins_kept
from tests.reporting.wandb_file import contents
from tests.run.test_trainer import rows_of
from tests.step import toy
from tests.tiny import TASKS, tiny_config, write_tiny_data
from tests.undrawn import drawing

#: each builds several runs with almost everything on
pytestmark = pytest.mark.slow

SECRET = "5ecre7" * 6 + "abcd"
PHASES = ("val", "val_mask_meta", "val_mask_TEMPORAL", "val_mask_SPATIAL", "val_mask_TEMPORAL_SPATIAL")

#: every metric name that the documents print or describe, by the kind of row that holds it
DOCUMENTED = {
    "train": """
        core/train_loss core/train_chain_acc core/train_partial_chain_acc core/global_step core/null_inclusion_pct
        train/loss train/step_avg_loss train/chain_accuracy train/partial_chain_accuracy train/step_avg_chain_accuracy
        train/acc1_taxa_L10 train/acc3_taxa_L10 train/step_avg_acc1_taxa_L10 train/loss/taxa_L20 train/lr
        train/lr/default
        schedule/meta_mask_prob schedule/mixup_prob schedule/null_mask_prob_pct
        schedule/null_masking/null_samples_total schedule/null_masking/inclusion_percentage
        meta_masking/actual_valid_pct/TEMPORAL/train loss/total/value loss/tasks/taxa_L30
        pipeline/cache/size pipeline/cache/hits pipeline/cache/misses pipeline/cache/evictions
        pipeline/queue_depths/batch_index_q pipeline/queue_depths/preprocess_q pipeline/queue_depths/processed_batch_q
        pipeline/throughput/prefetch pipeline/throughput/preprocess
        pipeline/timing/prefetch_times pipeline/timing/preprocess_times
        gradnorm/avg_norm gradnorm/weight/taxa_L10 gradnorm/norm/taxa_L10 gradnorm/weight_delta/taxa_L10
        gradnorm/total_norm_pre_clip task_weights/task_taxa_L10
        train/coarse_confidence
    """,
    "epoch": """
        core/val_loss core/val_chain_acc core/val_partial_chain_acc core/val_chain_acc_pct core/val_acc1/taxa_L10
        core/val_acc1/taxa_L20 core/valMask_loss core/valMask_acc1/taxa_L10 core/valMask_TEMPORAL_chain_acc
        core/train_epoch_avg_loss core/train_epoch_avg_chain_acc core/train_epoch_avg_loss_unweighted
        core/val_loss_unweighted train/epoch_avg_loss train/epoch_avg_acc1_taxa_L10 train/epoch_avg_acc3_taxa_L10
        train/epoch_avg_loss_taxa_L30 train/avg_samples_per_sec train/epoch_avg_grad_norm
        val/loss val/chain_accuracy val/partial_chain_accuracy val/acc1_taxa_L10 val/acc3_taxa_L10 val/loss_taxa_L10
        val/epoch_duration_sec val/avg_samples_per_sec val/loss_weighted
        val/null/acc1_taxa_L10 val/non_null/acc1_taxa_L10 val/null/loss_taxa_L10 core/val_non_null_acc1/taxa_L10
        val_mask/loss val_mask/chain_accuracy val_mask/acc1_taxa_L10 val_mask_meta/loss
        val_mask_TEMPORAL/loss val_mask_SPATIAL/acc1_taxa_L10 val_mask_TEMPORAL_SPATIAL/loss
        val/subset/taxa/left/acc1_taxa_L10 val/subset/taxa/left/count train/subset/metadata/masked/count
        train/epoch_avg_subset/metadata/unmasked/acc1_taxa_L10
        val/ece_taxa_L10 val/aurc_taxa_L10 val/taxonomic_distance_taxa_L10 val/consistency_rate
        val/coverage_at_risk_5_taxa_L30 val/coarse_confidence
    """,
    "final": """
        final_train_loss final_val_loss final_train_chain_accuracy final_val_chain_accuracy
        final_train_partial_chain_accuracy final_val_partial_chain_accuracy final_val_acc1_taxa_L10
        final_val_mask_meta_loss final_val_coarse_confidence
    """,
}


#: a name of each stream -> steps of the rows of W&B that hold it, in a run of 12 updates
DOCUMENTED_ROWS = {
    "train/loss": [4, 8, 12],
    "train/step_avg_loss": [4, 8, 12],
    "train/lr/default": [4, 8, 12],
    "pipeline/throughput/prefetch": [8],
    "gradnorm/weight/taxa_L10": [1, 6, 11],
    "train/epoch_avg_loss": [6, 12],
    "val/loss": [6, 12],
}


def coarse_confidence(inputs: MetricInputs) -> tuple[Any, Any]:
    """A metric of a user's own."""
    best = inputs.probabilities["taxa_L30"].max(axis=1)
    return (inputs.weight * best).sum(), inputs.weight.sum()


@pytest.fixture(autouse=True, scope="module")
def toy_model() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        yield


@dataclass(frozen=True)
class Finished:
    """The run, what it wrote, and what was read from the device meanwhile."""

    root: Path
    rows: list[dict[str, Any]]
    wandb: dict[str, Any]
    reads: int
    held: list[int]

    def last(self, event: str) -> dict[str, Any]:
        return [row for row in self.rows if row["event"] == event][-1]

    def merged(self, event: str) -> dict[str, Any]:
        """The last value of every name in rows of one kind."""
        found: dict[str, Any] = {}
        for row in self.rows:
            if row["event"] == event:
                found |= row
        return found


def everything_on(directory: Path) -> Any:
    """Images in a folder behind a cache too small for them, GradNorm, masking, subsets, all phases, W&B offline."""
    labels, images = write_tiny_data(directory / "data")
    folder = directory / "folder"
    folder.mkdir()
    with h5py.File(images) as file:
        for number, image in enumerate(file["images"][...]):
            cv2.imwrite(str(folder / f"image_{number}.png"), image[..., ::-1])
    with h5py.File(labels, "a") as file:
        del file["img_identifiers"]
        file["img_identifiers"] = [f"image_{number}.png" for number in range(120)]
    config = tiny_config(
        directory / "data",
        data__hybrid__use_hybrid=True,
        data__hybrid__images_dir=str(folder),
        data__hybrid__file_extension=".png",
        data__h5__images_path="",
        data__prefetch__mem_cache_size=40 * 32 * 32 * 3,
        model__type="toy",
        train__epochs=2,
        train__ema__enabled=True,
        train__ema__decay=0.5,
        loss__grad_weighting__task__type="gradnorm",
        loss__grad_weighting__task__gradnorm_enabled=True,
        loss__grad_weighting__task__update_interval=5,
        metrics__track_null_vs_non_null=True,
        metrics__taxa_subsets=(("left", "taxa_L30", 30), ("right", "taxa_L30", 31)),
        schedule__meta_masking__start_prob=0.5,
        schedule__meta_masking__partial__enabled=True,
        schedule__meta_masking__partial__whitelist=(("TEMPORAL",), ("SPATIAL",)),
        schedule__validation__partial_mask_meta__enabled=True,
        schedule__validation__partial_mask_meta__interval_epochs=1,
        schedule__validation__partial_mask_meta__whitelist=(("TEMPORAL",), ("SPATIAL",)),
        schedule__validation__mask_meta_interval_epochs=1,
        schedule__validation__final_epoch__exhaustive_partial_meta_validation=True,
        schedule__validation__final_epoch__exhaustive_meta_components=("TEMPORAL", "SPATIAL"),
        schedule__null_masking__enabled=True,
        schedule__null_masking__start_prob=0.5,
        debug__jsonl__enabled=False,  # its probes read on a rhythm of their own
        experiment__wandb__enabled=True,
        experiment__wandb__mode="offline",
        env__output__bucket__remote=f"https://user:{SECRET}@example.org/x",
    )
    for kind, every in (("step", 4), ("console", 4), ("wandb", 4), ("lr", 4), ("pipeline", 8)):
        config.schedule.metrics[f"{kind}_interval"] = every
    with config.unlocked():
        config.env.output.bucket.app_key = SECRET
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    directory = tmp_path_factory.mktemp("everything")
    held: list[int] = []
    with pytest.MonkeyPatch.context() as patch, plugins_kept():
        patch.setenv("WANDB_API_KEY", SECRET)
        patch.setenv("LINNAEUS_APP_KEY", SECRET)
        defer = TrainLog.defer

        def noted(self: TrainLog, completed: int, *arguments: Any, at_end: bool) -> bool:
            is_log_point = defer(self, completed, *arguments, at_end=at_end)
            held.extend([completed] if is_log_point else [])
            return is_log_point

        patch.setattr(TrainLog, "defer", noted)
        forget_plugins()
        register("coarse_confidence", coarse_confidence)
        before = fetch.calls
        with drawing():
            trainer.run(everything_on(directory), directory / "run")
        reads = fetch.calls - before
        root = directory / "run"
        yield Finished(root, rows_of(root), contents(root / "logs"), reads, held)


@pytest.fixture(scope="module")
def evaluated(finished: Finished) -> tuple[evaluation_of_runs.Loaded, Evaluation]:
    """All phases again, from the checkpoint alone, with logits."""
    loaded = evaluation_of_runs.load(finished.root, "newest")
    names = evaluation_of_runs.parse_phases(",".join(PHASES), loaded.experiment.program.evaluation.component_names)
    return loaded, evaluation_of_runs.evaluate(loaded, names, predictions=True, logits=True)


@pytest.mark.parametrize("event", DOCUMENTED)
def test_every_documented_name_has_a_value_in_the_metrics_log(finished: Finished, event: str) -> None:
    found = finished.merged(event)
    missing = [name for name in DOCUMENTED[event].split() if name not in found]
    assert not missing
    for name in DOCUMENTED[event].split():
        assert math.isfinite(found[name]), name


def test_every_logged_name_is_described(finished: Finished) -> None:
    found = dict.fromkeys(name for row in finished.rows for name in row)
    assert not undescribed([name for name in found if name not in ("event", "global_step", "epoch", "timestamp")])


def test_every_documented_name_is_in_the_offline_wandb_file(finished: Finished) -> None:
    found = {name: value for row in finished.wandb["history"] for name, value in row.items()}
    for name in (DOCUMENTED["train"] + DOCUMENTED["epoch"]).split():
        assert name in found, name
        assert math.isfinite(found[name]), name
    for name in DOCUMENTED["final"].split():
        assert finished.wandb["summary"][name] == finished.last("final")[name], name
    steps = [row["global_step"] for row in finished.wandb["history"]]
    assert steps == sorted(set(steps))
    epoch = finished.last("epoch")
    sent = next(row for row in finished.wandb["history"] if row["global_step"] == epoch["global_step"])
    assert {name: sent[name] for name in DOCUMENTED["epoch"].split()} == {
        name: epoch[name] for name in DOCUMENTED["epoch"].split()
    }


def test_wandb_gets_what_is_due(finished: Finished) -> None:
    """W&B and rates every 4 updates, the pipeline every 8, GradNorm at updates 0, 5, 10, epochs of 6 updates."""
    steps = {name: [row["_step"] for row in finished.wandb["history"] if name in row] for name in DOCUMENTED_ROWS}
    assert steps == DOCUMENTED_ROWS
    assert [row["_step"] for row in finished.wandb["history"]] == [1, 4, 6, 8, 11, 12]


def test_values_are_real(finished: Finished) -> None:
    row = finished.merged("train")
    assert 0 < row["pipeline/cache/size"] <= 100
    assert row["pipeline/cache/evictions"] > 0
    assert row["pipeline/throughput/prefetch"] > 0
    assert row["pipeline/timing/prefetch_times"] > 0
    weights = [row[f"gradnorm/weight/{task}"] for task in TASKS]
    assert sum(weights) == pytest.approx(len(TASKS), rel=1e-3)
    assert all(row[f"gradnorm/norm/{task}"] > 0 for task in TASKS)
    assert finished.last("epoch")["val/subset/taxa/left/count"] > 0


def test_no_secret_is_written(finished: Finished) -> None:
    files = [path for path in finished.root.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    assert "<redacted>" in (finished.root / "config.json").read_text()


def test_the_device_is_read_at_log_points_alone(finished: Finished) -> None:
    """Streams are due at 4, 8, 12, GradNorm moves at updates 0, 5, 10, epochs end at 6 and 12; two validations."""
    assert finished.held == [1, 4, 6, 8, 11, 12]
    assert finished.reads == len(finished.held) + 2


# ---- the numbers themselves


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def recomputed(logits: dict[str, np.ndarray], label: np.ndarray, loaded: evaluation_of_runs.Loaded) -> dict[str, float]:
    """The metrics of one phase from its logits, row by row in numpy, class 0 being null."""
    known, hits, losses = label != 0, [], []
    found: dict[str, float] = {}
    parents = {task: loaded.dataset.tree.parent[task] for task in TASKS}
    for t, task in enumerate(TASKS):
        z, y = logits[task], label[:, t]
        order = np.argsort(-z, axis=1, kind="stable")
        hit = order[:, 0] == y
        loss = -np.log(softmax(z)[np.arange(len(y)), y])
        hits.append(hit)
        losses.append(loss)
        found |= {f"acc1_{task}": 100 * hit.mean(), f"loss_{task}": loss.mean()}
        found[f"acc3_{task}"] = 100 * (order[:, :3] == y[:, None]).any(axis=1).mean()
        for kind, rows in (("non_null", y != 0), ("null", y == 0)):
            if rows.any():
                found |= {f"{kind}/acc1_{task}": 100 * hit[rows].mean(), f"{kind}/loss_{task}": loss[rows].mean()}
        rows = y != 0
        confidence, right = softmax(z).max(axis=1)[rows], hit[rows]
        bins = np.ceil(confidence * 15).astype(int)
        gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in np.unique(bins)]
        found[f"ece_{task}"] = sum(gaps) / rows.sum()
        found[f"nll_{task}"] = loss[rows].mean()
        found[f"brier_{task}"] = ((softmax(z)[rows] - np.eye(z.shape[1])[y[rows]]) ** 2).sum(axis=1).mean()
        distances = [tree_distance(parents, t, p, q) for p, q in zip(order[rows, 0], y[rows], strict=True) if p != q]
        if distances:
            found[f"taxonomic_distance_{task}"] = float(np.mean(distances))
    right = np.stack(hits, axis=1)
    found["loss"] = float(np.mean([loss.mean() for loss in losses]))
    found["chain_accuracy"] = right.all(axis=1).mean()
    found["partial_chain_accuracy"] = (right | ~known).all(axis=1)[known.any(axis=1)].mean()
    predicted = [logits[task].argmax(axis=1) for task in TASKS]
    agree = [
        (parents[fine][p] < 0) | (parents[fine][p] == q)
        for fine, p, q in zip(TASKS, predicted, predicted[1:], strict=False)
    ]
    found["consistency_rate"] = np.all(agree, axis=0).mean()
    return found


def tree_distance(parents: dict[str, np.ndarray], t: int, one: int, other: int) -> int:
    """Edges between two classes of a rank; beyond the coarsest rank everything meets."""
    for up, task in enumerate(TASKS[t:]):
        if one == other and one >= 0:
            return 2 * up
        one, other = (-1 if x < 0 else int(parents[task][x]) for x in (one, other))
    return 2 * (len(TASKS) - t)


@pytest.mark.parametrize("phase", PHASES)
def test_numbers_equal_a_recomputation_from_logits(finished, evaluated, phase) -> None:
    loaded, found = evaluated
    predictions = found.predictions[phase]
    assert sorted(predictions.row) == sorted(loaded.dataset.val.rows)
    expected = recomputed(dict(predictions.logits), predictions.label, loaded)
    row = finished.last("epoch")
    for name, value in expected.items():
        if "null/" in name and not name.endswith("taxa_L10"):
            continue  # shown apart for the tasks of metrics.null_vs_non_null_tasks alone
        assert row[f"{phase}/{name}"] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert len(expected) > 25


def test_subsets_equal_a_recomputation(finished, evaluated) -> None:
    loaded, found = evaluated
    predictions, row = found.predictions["val"], finished.last("epoch")
    family = loaded.dataset.classes["taxa_L30"][predictions.label[:, 2]]
    for name, taxon in (("left", 30), ("right", 31)):
        member = family == taxon
        assert row[f"val/subset/taxa/{name}/count"] == member.sum()
        hits = (predictions.predicted == predictions.label)[member]
        for t, task in enumerate(TASKS):
            assert row[f"val/subset/taxa/{name}/acc1_{task}"] == pytest.approx(100 * hits[:, t].mean())


def test_curves_are_kept_for_the_report(finished, evaluated) -> None:
    curves = json.loads((finished.root / "assets" / "validation_curves.json").read_text())
    assert set(curves) == set(PHASES)
    predictions = evaluated[1].predictions["val"]
    for t, task in enumerate(TASKS):
        assert {"reliability", "risk_coverage", "distance", "class_counts"} <= curves["val"][task].keys()
        label, hit = predictions.label[:, t], predictions.predicted[:, t] == predictions.label[:, t]
        for index, (rows, right) in enumerate(zip(*curves["val"][task]["class_counts"], strict=True)):
            assert (rows, right) == ((label == index).sum(), hit[label == index].sum())
    report = (finished.root / "report.html").read_text()
    for heading in ("Mistakes and confidence", "Worst classes", "What each metadata component is worth"):
        assert f"<h2>{heading}</h2>" in report


# ---- the program tools.evaluate


def test_evaluate_prints_what_the_run_logged(finished, tmp_path, capsys) -> None:
    out = tmp_path / "out.npz"
    arguments = [str(finished.root), "--checkpoint=newest", "--phases=all", f"--predictions={out}", "--json"]
    arguments.append("--batch-size=10")
    assert evaluate.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["phases"]) == {"val", "val_mask_meta", "val_mask_TEMPORAL", "val_mask_SPATIAL"}
    row = finished.last("epoch")
    for phase, values in printed["phases"].items():
        for name in ("loss", "chain_accuracy", "acc1_taxa_L10", "ece_taxa_L10", "loss_weighted"):
            assert values[name] == pytest.approx(row[f"{phase}/{name}"], rel=1e-4), (phase, name)
    with np.load(out) as file:
        hits = file["val/predicted"] == file["label"]
        assert 100 * hits[:, 0].mean() == pytest.approx(row["val/acc1_taxa_L10"])
        assert set(np.unique(file["row"])) == set(file["row"])
        assert (file["val/probability"] > 0).all()


def test_evaluate_on_other_data(evaluated, finished, tmp_path) -> None:
    """The validation rows as a file of their own, with three rows of a taxon that the run never saw."""
    loaded, found = evaluated
    rows = np.sort(loaded.dataset.val.rows)
    source = Path(loaded.experiment.config.data.h5.labels_path)
    with h5py.File(source) as old, h5py.File(tmp_path / "labels.h5", "w") as new:
        for name in ("img_identifiers", "in_region", *TASKS):
            new[name] = old[name][...][rows]
        for name in ("temporal", "spatial"):
            new[name] = old[name][...][rows]
            new[name].attrs.update(old[name].attrs)
        new.create_group("metadata").attrs["config_json"] = "{}"
        new["taxa_L20"][:3] = 999
    split = evaluation_of_runs.other_split(loaded, str(tmp_path / "labels.h5"), str(finished.root.parent / "folder"))
    assert len(split) == len(rows) - 3
    masks = evaluation_of_runs.parse_phases("val", ("TEMPORAL", "SPATIAL"))
    again = evaluation_of_runs.evaluate(loaded, masks, split, predictions=True)
    both = dict(zip(found.predictions["val"].row, found.predictions["val"].predicted, strict=True))
    for row, predicted in zip(again.predictions["val"].row, again.predictions["val"].predicted, strict=True):
        np.testing.assert_array_equal(predicted, both[rows[row]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint=7"], "no checkpoint '7'.*6, 12"),
        (["--phases=val_mask_DEPTH"], "val_mask_DEPTH.*TEMPORAL, SPATIAL"),
        (["--labels=x.h5"], "--labels and --images belong together"),
        (["--logits"], "--predictions"),
    ],
)
def test_evaluate_refuses_in_one_line(finished, capsys, arguments, message) -> None:
    assert evaluate.main([str(finished.root), *arguments]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(message, error), error


def test_evaluate_needs_a_run(tmp_path, capsys) -> None:
    assert evaluate.main([str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


# ---- 32 rows by heart


@pytest.mark.slow
def test_train_accuracy_is_that_of_the_predictions(tmp_path) -> None:
    """One update an epoch, so the last epoch was measured with the parameters of the checkpoint before it."""
    labels, images = write_tiny_data(tmp_path / "data", rows=32)
    species = np.arange(32) % 8
    with h5py.File(labels, "a") as file:
        for task, ids in zip(TASKS, (1000 + species, 200 + species // 2, 30 + species // 4), strict=True):
            file[task][...] = ids
    with h5py.File(images, "a") as file:
        colour = np.stack([species & 1, species >> 1 & 1, species >> 2], axis=1) * 150 + 50
        file["images"][...] = colour[:, None, None, :]
    epochs = 120
    config = tiny_config(
        tmp_path / "data",
        data__partial__levels=False,
        data__h5__train_labels_path=str(labels),
        data__h5__train_images_path=str(tmp_path / "data" / "images.h5"),
        data__h5__labels_path="",
        data__h5__images_path="",
        data__batch_size=32,
        data__sampler__type="standard",
        train__epochs=epochs,
        model__drop_path_rate=0.0,
        model__drop_rate=(0.0,),
        model__attn_drop_rate=(0.0,),
        aug__hflip_prob=0.0,
        schedule__meta_masking__enabled=False,
        schedule__checkpoint__interval_steps=epochs - 1,
        schedule__validation__interval_epochs=0,
        schedule__validation__mask_meta_interval_epochs=0,
        schedule__validation__at_end=False,
        optimizer__weight_decay=0.0,
        lr_scheduler__base_lr=3e-3,
    )
    for kind in ("step", "console", "wandb", "lr", "pipeline"):
        config.schedule.metrics[f"{kind}_interval"] = epochs
    trainer.run(config, tmp_path / "run")
    row = [row for row in rows_of(tmp_path / "run") if row["event"] == "epoch"][-1]
    loaded = evaluation_of_runs.load(tmp_path / "run", str(epochs - 1))
    phases = evaluation_of_runs.parse_phases("val", loaded.experiment.program.evaluation.component_names)
    found = evaluation_of_runs.evaluate(loaded, phases, loaded.dataset.train, predictions=True)
    predictions = found.predictions["val"]
    right = predictions.predicted == predictions.label
    assert len(right) == 32
    for t, task in enumerate(TASKS):
        assert row[f"train/epoch_avg_acc1_{task}"] > 90
        assert row[f"train/epoch_avg_acc1_{task}"] == pytest.approx(100 * right[:, t].mean())
    assert row["train/epoch_avg_chain_accuracy"] == pytest.approx(right.all(axis=1).mean())
    # without mixing, masking and dropout, the comparable pair of losses is one number
    assert row["train/epoch_avg_loss_unweighted"] == pytest.approx(found.metrics["val"]["loss_unweighted"], rel=1e-3)


# ---- what fails


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_wandb_may_fail_and_a_full_disk_ends_the_run(tmp_path, monkeypatch) -> None:
    """A sink that raises is dropped with one warning; the metrics log must be written."""
    wandb = {"experiment__wandb__enabled": True, "experiment__wandb__mode": "disabled"}
    config = tiny_config(tmp_path / "data", model__type="toy", **wandb)
    written: list[int] = []

    def broken(*_: Any, **__: Any) -> None:
        raise ConnectionError("network is unreachable")

    def write(self: MetricsLog, event: str, step: int, epoch: int, values: dict[str, Any]) -> None:
        written.append(step)
        if step == 6:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "open", no_space)
                original(self, event, step, epoch, values)
        original(self, event, step, epoch, values)

    original = MetricsLog.write
    monkeypatch.setattr(MetricsLog, "write", write)
    monkeypatch.setattr(WandbSink, "write", broken)
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    monkeypatch.setattr(handler, "emit", records.append)
    setup = experiment.setup_logging

    def setup_and_listen(*args: Any, **kwargs: Any) -> None:
        setup(*args, **kwargs)
        logging.getLogger("linnaeus_jax").addHandler(handler)

    monkeypatch.setattr(experiment, "setup_logging", setup_and_listen)
    try:
        with pytest.raises(trainer.UserError, match=r"cannot write .*metrics_log\.jsonl.*No space left"):
            trainer.run(config, tmp_path / "run")
    finally:
        logging.getLogger("linnaeus_jax").removeHandler(handler)
    assert written == [2, 4, 6]
    about = [record.getMessage() for record in records if "W&B" in record.getMessage()]
    assert len(about) == 1
    assert "network is unreachable" in about[0]
    assert "debug replay-metrics" in about[0]


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch, capsys) -> None:
    """In the foreground or in the background; the program leaves with a status other than 0."""
    config = tiny_config(tmp_path / "data", model__type="toy")
    from linnaeus_jax import config as config_module

    monkeypatch.setattr(config_module, "load_config", lambda argv: (config, tmp_path / argv[0]))
    for where in ("save", "wait_until_finished"):
        with monkeypatch.context() as patch:
            patch.setattr(ocp.CheckpointManager, where, no_space)
            assert run_main([where]) != 0
        assert "No space left on device" in capsys.readouterr().err
