"""Whole runs on tiny data, in process: logs, phases, resume, compilation count, errors."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import h5py
import jax
import numpy as np
import pytest

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.metrics.logged import undescribed
from linnaeus_jax.reporting.verdicts import TRAINING_ROWS_FILE
from linnaeus_jax.run.epoch_end import EpochEnd
from linnaeus_jax.run.trainer import UserError, run
from tests.step import toy
from tests.tiny import tiny_config, write_tiny_data
from tests.undrawn import drawing


def rows_of(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "logs" / "metrics_log.jsonl").read_text().splitlines()]


def comparable(rows: list[dict]) -> list[dict]:
    """Rows without what depends on the clock."""

    def timed(name: str) -> bool:
        return name == "timestamp" or name.endswith(("_sec", "_per_sec", "eta")) or name.startswith("pipeline/")

    return [{name: value for name, value in row.items() if not timed(name)} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run."""
    directory = tmp_path_factory.mktemp("finished")
    config = tiny_config(directory / "data", aug__hflip_prob=0.0, model__depthwise_impl="lax")
    with drawing():
        final = run(config, directory / "run")
    return directory, config, final


def test_a_run_leaves_what_it_promises(finished):
    directory, _, final = finished
    root = directory / "run"
    for name in (
        "config.json",
        "report.html",
        "progress.json",
        "assets/schedule_summary.txt",
        "assets/schedule_summary.json",
        "assets/schedule.png",
        "assets/taxonomy_tree.json",
        "assets/class_to_idx.json",
        "assets/versions.json",
        "metadata/class_label_counts.json",
        "logs/debug_log_rank0.txt",
    ):
        assert (root / name).stat().st_size > 0, name
    devices = jax.device_count()
    said = (root / "logs" / "debug_log_rank0.txt").read_text()
    summary = (root / "assets" / "schedule_summary.txt").read_text()
    assert re.search(rf"batch_size +16\n +devices +{devices}\n", summary)
    assert summary in said
    rows = rows_of(root)
    assert [row["event"] for row in rows].count("epoch") == 3
    assert rows[-1]["event"] == "final"
    epoch = [row for row in rows if row["event"] == "epoch"][-1]
    for name in ("train/epoch_avg_loss", "val/loss", "val/acc1_taxa_L10", "val_mask_meta/loss", "core/val_chain_acc"):
        assert np.isfinite(epoch[name]), name
    assert final["final_val_loss"] <= epoch["val/loss"]
    assert json.loads((root / "config.json").read_text())["train"]["epochs"] == 3


def test_every_logged_name_is_described(finished):
    directory, _, _ = finished
    found = dict.fromkeys(name for row in rows_of(directory / "run") for name in row)
    assert not undescribed([name for name in found if name not in ("event", "global_step", "epoch", "timestamp")])


def test_a_finished_run_does_nothing_more(finished):
    directory, config, final = finished
    before = comparable(rows_of(directory / "run"))
    assert run(config, directory / "run") == final
    assert comparable(rows_of(directory / "run")) == before


@pytest.mark.slow
def test_a_longer_run_goes_on_where_the_first_stopped(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    for epochs in (1, 2):
        run(tiny_config(tmp_path / "data", train__epochs=epochs, model__type="toy"), tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    steps = [row["global_step"] for row in rows if row["event"] == "train"]
    assert steps == sorted(set(steps))
    assert [row["epoch"] for row in rows if row["event"] == "epoch"] == [0, 1]


@pytest.mark.slow
def test_training_rows_are_evaluated_as_validation_is_at_the_end(tmp_path, monkeypatch):
    """By the trained model, without what training does to pictures and metadata; few rows are not measured."""
    toy.register(monkeypatch)
    monkeypatch.setattr("linnaeus_jax.run.training_rows.FEWEST", 5)
    config = tiny_config(tmp_path / "data", model__type="toy", data__h5__train_val_split_ratio=0.5)
    run(config, tmp_path / "run")
    found = json.loads((tmp_path / "run" / TRAINING_ROWS_FILE).read_text())
    progress = json.loads((tmp_path / "run" / "progress.json").read_text())
    trained = progress["samples_seen"] // 20
    assert (found["step"], found["rows"], found["of"]) == (progress["global_step"], trained, 60)
    last = rows_of(tmp_path / "run")[-2]
    assert found["percent"]["val"] == {task: last[f"val/non_null/acc1_{task}"] for task in found["percent"]["val"]}


def test_checkpoint_of_another_model_is_refused(finished):
    directory, config, _ = finished
    config = config.copy_and_resolve_references()
    config.model.rope_stages.depths = (2, 1)
    with pytest.raises(UserError, match=r"another model or optimizer.*config\.json"):
        run(config, directory / "run")


@pytest.mark.slow
def test_run_without_metadata_saves_its_checkpoints(tmp_path, one_device, monkeypatch):
    """Orbax cannot save arrays without elements, such as statistics of no component at all."""
    toy.register(monkeypatch)
    settings = {"data__meta__active": False, "train__epochs": 1, "model__type": "toy", "aug__hflip_prob": 0.0}
    config = tiny_config(tmp_path / "data", **settings)
    run(config, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "ckpt_step_6").is_dir()
    assert json.loads((tmp_path / "run" / "progress.json").read_text())["global_step"] == 6


def test_counts_of_validation_are_exact(finished):
    """24 validation rows in batches of 16: the padded rows count nowhere."""
    directory, _, _ = finished
    from linnaeus_jax.run.inputs import build_inputs

    inputs = build_inputs(typed(finished[1]), devices=1, output_dir=directory)
    weights = np.concatenate(
        [batch["weight"] for batch in inputs.eval_loader(inputs.dataset.val, inputs.images["val"])]
    )
    assert weights.sum() == len(inputs.dataset.val) == 24
    assert len(weights) == 32


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def wrong_dtype(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["taxa_L10"]
        file["taxa_L10"] = np.zeros(120, np.float32)


def short_column(path: Path) -> None:
    with h5py.File(path, "a") as file:
        ids = file["taxa_L20"][:100]
        del file["taxa_L20"]
        file["taxa_L20"] = ids


@pytest.mark.parametrize(
    ("damage", "overrides", "message"),
    [
        (lambda labels, images: labels.unlink(), {}, r"labels\.h5"),
        (lambda labels, images: images.unlink(), {}, r"images\.h5"),
        (lambda labels, images: truncated(labels), {}, r"labels\.h5"),
        (lambda labels, images: truncated(images), {}, r"images\.h5"),
        (lambda labels, images: wrong_dtype(labels), {}, "taxa_L10"),
        (lambda labels, images: short_column(labels), {}, "taxa_L20"),
        (None, {"data__meta__components__TEMPORAL__dim": 4}, "TEMPORAL"),
        (None, {"data__h5__train_val_split_ratio": 0.0}, "split"),
        (None, {"data__batch_size": 15}, r"data\.batch_size"),
    ],
)
def test_bad_data_is_one_clear_error(tmp_path, damage, overrides, message):
    labels, images = write_tiny_data(tmp_path / "data")
    if damage is not None:
        damage(labels, images)
        config = tiny_config_of(tmp_path / "data", labels, images)
    else:
        config = tiny_config(tmp_path / "data", **overrides)
    with pytest.raises((ConfigError, UserError), match=message) as caught:
        run(config, tmp_path / "run")
    assert len(str(caught.value).splitlines()) <= 3
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_validation_batches_are_made_to_fit_the_devices(tmp_path, monkeypatch):
    """Its size changes no result; one that the devices cannot share ended a run after its first epoch."""
    assert 15 % jax.device_count()
    toy.register(monkeypatch)
    settings = {"data__batch_size_val": 15, "train__epochs": 1, "model__type": "toy", "aug__hflip_prob": 0.0}
    config = tiny_config(tmp_path / "data", **settings)
    run(config, tmp_path / "run")
    (row,) = [row for row in rows_of(tmp_path / "run") if row["event"] == "epoch"]
    assert row["val/loss"] > 0


def test_an_error_of_a_user_shows_no_calls(tmp_path, monkeypatch, capfd):
    """A full disk, say, that is found once the run has begun."""
    toy.register(monkeypatch)

    def full(*_: object) -> None:
        raise UserError("x.bin: 9.0 MB are to be stored and 1.0 MB are free")

    monkeypatch.setattr("linnaeus_jax.run.trainer.write_baselines", full)
    with pytest.raises(UserError, match=r"x\.bin"):
        run(tiny_config(tmp_path / "data", model__type="toy"), tmp_path / "run")
    assert "Traceback" not in "".join(capfd.readouterr())
    assert "x.bin: 9.0 MB" in (tmp_path / "run" / "logs" / "debug_log_rank0.txt").read_text()


def tiny_config_of(directory, labels, images):
    """The tiny config without writing the data anew."""
    present = labels.exists()
    if not present:
        labels.touch()
    config = tiny_config(directory)
    if not present:
        labels.unlink()
    return config


def test_all_config_errors_at_once(tmp_path):
    config = tiny_config(
        tmp_path / "data",
        train__epochs=0,
        model__variant="huge",
        aug__hflip_prob=2.0,
        lr_scheduler__name="sawtooth",
        experiment__log_level_main="LOUD",
    )
    with pytest.raises(ConfigError) as caught:
        run(config, tmp_path / "run")
    text = str(caught.value)
    for key in (
        "train.epochs",
        "model.variant",
        "aug.hflip_prob",
        "lr_scheduler.name",
        "experiment.log_level_main",
    ):
        assert key in text, key
    assert not (tmp_path / "run").exists()


def test_every_variant_is_compiled_once(tmp_path, monkeypatch):
    """Over three epochs with GradNorm and validation; nothing at all is compiled after the first epoch."""
    toy.register(monkeypatch)
    config = tiny_config(
        tmp_path / "data",
        model__type="toy",
        loss__grad_weighting__task__type="gradnorm",
        loss__grad_weighting__task__update_interval=3,
        aug__hflip_prob=0.0,
        debug__jsonl__enabled=False,
    )
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    end = EpochEnd.run

    def marked(self, state, **options):
        result = end(self, state, **options)
        seen.append("end of epoch")
        return result

    monkeypatch.setattr(EpochEnd, "run", marked)
    logging.getLogger("jax").addHandler(handler)
    try:
        with jax.log_compiles():
            run(config, tmp_path / "run")
    finally:
        logging.getLogger("jax").removeHandler(handler)
    finished = "Finished XLA compilation of "
    for name in ("train_step_plain", "train_step_gradnorm", "features"):
        assert sum(text.startswith(finished) and name in text for text in seen) == 1, name
    first = seen.index("end of epoch")
    last = len(seen) - 1 - seen[::-1].index("end of epoch")
    assert [text for text in seen[first:last] if text.startswith(finished)] == []


TEXT_PROGRAM = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
if sys.argv[3] == "with":
    import linnaeus_jax.debugging.session
import jax
from tests.tiny import tiny_config
from tests.step.programs import build
program, inputs, _ = build(tiny_config(Path(sys.argv[2])), Path(sys.argv[2]))
with inputs.train_loader(0, 1) as loader:
    _, batch = next(loader)
text = jax.jit(program.train_step("plain")).lower(jax.eval_shape(program.initial_state), dict(batch)).as_text()
assert ("linnaeus_jax.debugging.session" in sys.modules) == (sys.argv[3] == "with")
print(hashlib.sha256(text.encode()).hexdigest(), "callback" in text)
"""


@pytest.mark.slow
def test_step_is_the_same_without_the_debugging_package(tmp_path):
    write_tiny_data(tmp_path)
    root = str(Path(__file__).parents[2])
    texts = [
        subprocess.run(
            [sys.executable, "-c", TEXT_PROGRAM, root, str(tmp_path), how],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for how in ("with", "without")
    ]
    assert texts[0] == texts[1]
    assert texts[0].split()[1] == "False"
