from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="the extra `profile` is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from linnaeus_jax.reporting.replay import RunRecord
from linnaeus_jax.reporting.tensorboard_sink import TensorBoardSink
from linnaeus_jax.tools import replay_metrics
from tests.reporting.helpers import make_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_scalars_texts_and_alerts(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, config={"train": {"epochs": 3}})
    sink.write("train", 5, 0, {"train/loss": 2.5, "note": "hello"}, timestamp=100.0)
    sink.alert("Early stop", "patience")
    sink.close()
    found = read(tmp_path)
    (point,) = found.Scalars("train/loss")
    assert (point.step, point.value, point.wall_time) == (5, 2.5, 100.0)
    assert found.Tensors("note")[0].tensor_proto.string_val[0] == b"hello"
    assert found.Tensors("alerts/Early stop")[0].step == 5
    assert b'"epochs": 3' in found.Tensors("config")[0].tensor_proto.string_val[0]


def test_a_resume_hides_the_points_beyond_it(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for step in (1, 2, 3):
        first.write("train", step, 0, {"train/loss": float(step)})
    first.close()
    second = TensorBoardSink(tmp_path, resumed_step=1)
    second.write("train", 2, 0, {"train/loss": 20.0})
    second.close()
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 2
    assert [(p.step, p.value) for p in read(tmp_path).Scalars("train/loss")] == [(1, 1.0), (2, 20.0)]


def test_replay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert replay_metrics.main([str(run), "--to=tensorboard", f"--out={tmp_path / 'out'}"]) == 0
    found, record = read(tmp_path / "out"), RunRecord.load(run)
    assert set(record.names) <= set(found.Tags()["scalars"])
    steps, values = record.series("val_mask_TEMPORAL/loss")
    points = found.Scalars("val_mask_TEMPORAL/loss")
    assert [point.step for point in points] == steps.tolist()
    assert [point.value for point in points] == pytest.approx(values.tolist())
