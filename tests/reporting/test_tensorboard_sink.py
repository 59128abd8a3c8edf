from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.metrics.logged import described
from linnaeus_jax.reporting.class_tables import Table
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.sinks import Sinks, open_sinks
from linnaeus_jax.reporting.tensorboard_sink import TensorBoardSink
from linnaeus_jax.tools import replay_metrics
from tests.reporting.helpers import make_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_scalars_texts_and_alerts(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, config={"train": {"epochs": 3}})
    sink.write("train", 5, 0, {"train/loss": 2.5, "note": "hello"}, timestamp=100.0)
    sink.tables({"worst": Table(("class", "rows"), [["Parus|major [4]", 3], ["b", None]])})
    sink.alert("Early stop", "patience")
    sink.close()
    found = read(tmp_path)
    (point,) = found.Scalars("train/loss")
    assert (point.step, point.value, point.wall_time) == (5, 2.5, 100.0)
    assert found.Tensors("note")[0].tensor_proto.string_val[0] == b"hello"
    text = found.Tensors("classes/worst")[0].tensor_proto.string_val[0].decode()
    assert text == "| class | rows |\n| --- | --- |\n| Parus\\|major [4] | 3 |\n| b | None |"
    assert found.Tensors("alerts/Early stop")[0].step == 5
    assert b'"epochs": 3' in found.Tensors("config")[0].tensor_proto.string_val[0]


def test_custom_scalars_begin_with_the_chosen_curves(tmp_path: Path) -> None:
    """Every name that is logged has its place: the chosen ones in an open group, all of them in one closed group."""
    TensorBoardSink(tmp_path, config={"data": {"task_keys_h5": ["taxa_L10", "taxa_L20"]}}).close()
    found = read(tmp_path).Tensors(CONFIG_SUMMARY_TAG)[0].tensor_proto.string_val[0]
    overview, *groups = layout_pb2.Layout.FromString(found).category
    assert not overview.closed
    chosen = [tag for chart in overview.chart for tag in chart.multiline.tag]
    assert len(chosen) == 12
    assert any(re.match(tag, "val/non_null/acc1_taxa_L10") for tag in chosen)
    assert all(described(re.sub(r"[\\^$]", "", tag)) for tag in chosen), "they are logged under these names"
    assert all(group.closed for group in groups)
    patterns = [group.chart[0].multiline.tag[0] for group in groups]
    for name in (
        *("train/loss", "train/epoch_avg_loss", "train/step_avg_loss", "val/loss", "val_mask_meta/loss"),
        *("val_mask/loss", "val_mask_TEMPORAL/loss", "core/val_loss", "gradnorm/x", "pipeline/wait_share"),
    ):
        assert sum(bool(re.match(pattern, name)) for pattern in patterns) == 1, name


def test_a_curve_says_what_it_shows(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write("train", 1, 0, {"val/nll": 1.0, "train/images_per_sec": 2.0, "mine": 3.0})
    sink.close()
    found = read(tmp_path)
    texts = {tag: found.SummaryMetadata(tag).summary_description for tag in ("val/nll", "train/images_per_sec")}
    assert texts["val/nll"].endswith("mean over tasks [nats]")
    assert texts["train/images_per_sec"] == "pictures trained on per second, averaged over the last updates [1/s]"
    assert [point.value for point in found.Scalars("mine")] == [3.0]


def points(directory: Path) -> list[tuple[int, str, float]]:
    """Every scalar that stands in the event files, as it is written."""
    return [
        (event.step, value.tag, value.simple_value)
        for path in sorted(directory.glob("*tfevents*"))
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


@pytest.mark.parametrize("resumed_step", [-1, 1, 2], ids=["from the start", "within an epoch", "at the boundary"])
def test_each_step_is_once_in_the_event_files_after_a_kill(tmp_path: Path, resumed_step: int) -> None:
    """The first start was killed after step 3, and lost its last point; the second goes on from a checkpoint."""
    experiment = typed(get_config()).experiment.replaced({"tensorboard.enabled": True})
    log = MetricsLog(tmp_path / "metrics_log.jsonl")

    def write(sinks: Sinks, steps: tuple[int, ...]) -> None:
        for step in steps:
            sinks.write("train", step, step // 3, {"train/loss": float(step), "core/global_step": step})
            if step == 2:
                sinks.write("epoch", step, step // 3, {"val/loss": 0.5, "core/global_step": step})

    write(open_sinks(Sinks(), log, experiment, config={"a": 1}, facts={}, run_id="x"), (1, 2))  # never closed: the kill
    log.write("train", 3, 1, {"train/loss": 3.0, "core/global_step": 3})
    log.supersede(resumed_step, frozenset({"epoch", "final"}))
    sinks = open_sinks(Sinks(), log, experiment, config={"a": 1}, facts={}, run_id="x")
    if resumed_step == 2:
        sinks.write("epoch", 2, 0, {"val/loss": 0.5, "core/global_step": 2})
    write(sinks, tuple(step for step in (1, 2, 3, 4) if step > resumed_step))
    sinks.close()
    found = [(step, tag) for step, tag, _ in points(tmp_path / "tensorboard")]
    assert len(found) == len(set(found))
    assert [step for step, tag in found if tag == "train/loss"] == [1, 2, 3, 4]
    assert [step for step, tag in found if tag == "val/loss"] == [2]
    assert [(p.step, p.value) for p in read(tmp_path / "tensorboard").Scalars("train/loss")][2:] == [(3, 3), (4, 4)]


def test_replay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert replay_metrics.main([str(run), "--to=tensorboard", f"--out={tmp_path / 'out'}"]) == 0
    found, record = read(tmp_path / "out"), RunRecord.load(run)
    assert set(record.names) <= set(found.Tags()["scalars"])
    steps, values = record.series("val_mask_TEMPORAL/loss")
    points = found.Scalars("val_mask_TEMPORAL/loss")
    assert [point.step for point in points] == steps.tolist()
    assert [point.value for point in points] == pytest.approx(values.tolist())
