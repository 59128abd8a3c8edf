"""A metric in one file of the user's own stops a run early, ranks its checkpoints, and stands in log, report and
evaluation."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.metrics import MetricInputs, custom, register
from linnaeus_jax.metrics.extras import PhaseExtras
from linnaeus_jax.reporting.report import write_report
from linnaeus_jax.run import trainer
from linnaeus_jax.tools import evaluate
from tests.extending.common import config_with, train_resume_evaluate
from tests.plugins import forget_plugins
from tests.tiny import TASKS


@pytest.mark.slow
def test_a_metric_drives_a_run_and_is_reported(tmp_path, monkeypatch, capsys):
    outcome = train_resume_evaluate(
        tmp_path,
        ("metric_example.py", "task_metric_example.py", "phase_example.py", "model_example.py"),
        monkeypatch,
        capsys,
        model__type="SmallNet",  # which tells a mirrored picture from one that is not
        model__variant="narrow",
        metrics__top_k__k=100,  # all classes: 100 %, which never improves
        train__early_stop__active=True,
        train__early_stop__metric="val/top_k",
        train__early_stop__patience_steps=3,
        schedule__checkpoint__best_metric="val/top_k",
        schedule__checkpoint__interval_epochs=1,
        schedule__validation__interval_epochs=1,
    )
    first, last = (row for row in outcome.rows if row["event"] == "epoch")
    assert first["val/top_k"] == last["val/top_k"] == last["train/epoch_avg_top_k"] == pytest.approx(100)
    assert (first.get("early_stop/reason"), last["early_stop/reason"]) == (None, "patience")
    [final] = [row for row in outcome.rows if row["event"] == "final"][-1:]
    assert final["final_val_top_k"] == pytest.approx(100)
    host = json.loads((outcome.run / "checkpoints" / "boundary_6.json").read_text())
    assert host["ranking_metric"] == "val/top_k"
    assert host["ranking"]["6"]["metric"] == pytest.approx(100)
    assert json.loads((outcome.run / "config.json").read_text())["metrics"]["top_k"] == {"k": 100, "task": "taxa_L10"}
    for values in outcome.evaluated.values():
        assert values["top_k"] == pytest.approx(100)
    # ---- metrics of every rank
    for task in TASKS:
        mean, median = f"mean_place_{task}", f"median_place_{task}"
        assert {f"train/epoch_avg_{mean}", f"train/epoch_avg_{median}", f"val/{mean}", f"val/{median}"} <= last.keys()
        assert outcome.evaluated["val"][mean] == pytest.approx(last[f"val/{mean}"], rel=1e-5)
        assert final[f"final_val_{median}"] == min(first[f"val/{median}"], last[f"val/{median}"])

    # ---- a phase of their own
    assert outcome.evaluated.keys() == {"val", "val_mask_meta"}
    mirrored, plain = (np.array([row[f"{phase}/loss"] for row in (first, last)]) for phase in ("val_mirrored", "val"))
    assert (mirrored != plain).all()
    np.testing.assert_allclose(mirrored, plain, rtol=0.5)

    # ---- another process, without and with the plugin
    forget_plugins()
    page = write_report([outcome.run], tmp_path / "report.html").read_text()
    assert "<td>top_k [%]</td>" in page
    assert "rows whose label is among the k best classes / rows with a label" in page
    assert "<td>mean_place, species</td>" in page
    assert "mirrored" in page
    assert "median place of the label, 1 is best" in page
    assert evaluate.main([str(outcome.run)]) == 0
    shown = capsys.readouterr().out
    assert "top_k [%]" in shown
    assert "mean_place, genus" in shown


def inputs() -> MetricInputs:
    label = jnp.asarray([[1], [2], [3], [0], [1]], jnp.int32)
    logits = {"taxa_L10": jnp.tile(jnp.asarray([0.0, 3.0, 2.0, 1.0]), (5, 1))}  # best first: 1, 2, 3, 0
    others: dict[str, Any] = dict.fromkeys(("row", "group", "meta", "meta_valid", "subsets"))
    return MetricInputs(logits=logits, label=label, weight=jnp.asarray([1.0, 1, 1, 1, 0]), **others)


@pytest.mark.parametrize(("k", "right"), [(1, 1), (2, 2), (3, 3)])
def test_options_come_from_the_configuration(k, right):
    config = config_with("metric_example.py", f"metrics.top_k.k={k}")
    [metric] = custom.registered("val", config.metrics)
    assert isinstance(metric, custom.CustomMetric)
    total, rows = metric.update_fn(inputs())
    assert (float(total) / 100, int(rows)) == (pytest.approx(right), 3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("k=0", "custom metric 'top_k' fails with ValueError: metrics.top_k.k = 0 must be 1 or more"),
        ("task=taxa_L99", "custom metric 'top_k' fails with ValueError: 'taxa_L99' is not in list"),
    ],
)
def test_bad_values_are_named_before_anything_runs(option, message):
    config = config_with("metric_example.py", f"metrics.top_k.{option}")
    extras = PhaseExtras(custom=custom.registered("val", config.metrics))
    with pytest.raises(ValueError, match=message):
        extras.check(dict.fromkeys(TASKS, 5), 5, 2)


def test_a_result_of_another_shape_and_a_taken_name_are_errors():
    register("whole_batch", lambda inputs: (inputs.weight, inputs.weight))
    with pytest.raises(ValueError, match=r"'whole_batch' fails with TypeError.*two scalars"):
        PhaseExtras(custom=custom.registered("val", {})).check(dict.fromkeys(TASKS, 5), 5, 2)
    config_with("metric_example.py")
    for name, message in (("top_k", "registered twice"), ("acc1_taxa_L10", "name of a built-in one")):
        with pytest.raises(ValueError, match=message):
            register(name, lambda inputs: (0, 0))
    with pytest.raises(ValueError, match="its name must be one word"):
        register("top.k", lambda inputs, *, k=1: (0, k))


def test_an_error_stops_the_run_at_its_start(tmp_path, monkeypatch, capsys):
    with pytest.raises(trainer.UserError, match=r"custom metric 'top_k' fails with ValueError: metrics.top_k.k = 0"):
        train_resume_evaluate(tmp_path, "metric_example.py", monkeypatch, capsys, metrics__top_k__k=0)
    assert not (tmp_path / "run").exists()
