"""The benchmark programs start, and the one of the step measures real updates."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    attention,
    common,
    durations,
    efficientnet_forward,
    heads_and_losses,
    heads_on_demo,
    input_ratios,
    other_commit,
    pages,
    processes,
    run_before,
    saving,
    start_up,
    step_common,
    step_features,
)
from linnaeus_jax.checks import config_errors
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.reporting import page
from tests.inference.conftest import small_bundle
from tests.step import toy
from tests.test_entry_points import BENCHMARKS

SMALL = step_common.Case("mFormerV1-tiny", 32, 8, False)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        module.main()
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_names_of_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    common.add_names(parser, ("one", "two"))
    assert list(parser.parse_args([]).names) == ["one", "two"]
    assert parser.parse_args(["two"]).names == ["two"]
    with pytest.raises(SystemExit):
        parser.parse_args(["three"])
    assert "'three' is none of one, two" in capsys.readouterr().err


def test_speed_of_processes_is_relative_to_one_alone() -> None:
    row = processes.row("together", [1.0, 2.0, 1.0], [2.0, 2.5, 1.25], updates=2, rows=8)
    assert (row["per_process"], row["low"], row["high"]) == (0.8, 0.65, 0.8)
    assert (row["ms"], row["images_per_s"]) == (1000.0, 8.0)


def test_every_feature_changes_the_bare_config() -> None:
    """No group is a repetition of what is bare or default, so that each row measures something."""
    bare = step_common.case_config(SMALL, Path("labels.h5"), step_common.BARE)
    for name, changes in step_common.FEATURES.items():
        with_feature = step_common.case_config(SMALL, Path("labels.h5"), {**step_common.BARE, **changes})
        assert with_feature != bare, name


def test_generated_data_is_what_a_run_would_see(tmp_path: Path) -> None:
    labels = step_common.write_labels(tmp_path / "labels.h5")
    built = step_common.build(SMALL, labels, {**step_common.BARE, **step_common.EVERYTHING})
    objective, batch = built.program.objective, built.batches[0]
    assert tuple(objective.tasks) == step_common.TASKS
    heads = [(head.task, head.num_classes) for head in built.program.model.head_specs]
    assert heads == [(task, 1 + classes) for task, classes in zip(step_common.TASKS, step_common.CLASSES)]  # and null
    assert batch["image"].shape == (1, 8, 32, 32, 3)
    assert batch["image"].dtype == jnp.uint8
    assert int((batch["partner"] != jnp.arange(8)[None, :]).sum()) > 0  # some rows are mixed
    assert objective.mix is not None
    assert objective.masking is not None
    assert objective.null_masking == "scheduled"
    assert objective.class_weights is not None
    assert built.program.settings.ema_decay is not None
    bare = step_common.build(SMALL, labels, step_common.BARE).program
    assert bare.objective.mix is None
    assert bare.objective.masking is None
    assert bare.objective.class_weights is None
    assert bare.settings.ema_decay is None
    assert bare.settings.clip_limit is None


@pytest.mark.slow
def test_constants_replace_every_schedule(tmp_path: Path) -> None:
    labels = step_common.write_labels(tmp_path / "labels.h5")
    program = step_common.build(SMALL, labels, {**step_common.BARE, **step_common.EVERYTHING}).program
    fixed = step_features.with_constants(program)

    def values(program: step_features.Program, step: int) -> list[float]:
        k = jnp.int32(step)
        found = program.objective.probabilities
        functions: list[Any] = [found.meta_mask, found.partial_mask, found.null_mask]
        functions += program.settings.learning_rates.values()
        return [float(function(k)) for function in functions]

    assert values(fixed, 0) == values(fixed, 100_000)
    assert all(a != b for a, b in zip(values(program, 0), values(program, 100_000)))
    real, constant = (
        jax.eval_shape(
            p.train_step("plain"), jax.eval_shape(p.initial_state), step_common.build(SMALL, labels, {}).batches[0]
        )
        for p in (program, fixed)
    )
    assert jax.tree.map(lambda x: (x.shape, x.dtype), real) == jax.tree.map(lambda x: (x.shape, x.dtype), constant)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "rows"),
    [
        ("schedules", "toy-tiny", 1),
        ("gradnorm", "toy-tiny", 3),
        ("features", "toy-tiny", 2),
        ("depthwise", "mFormerV1-tiny", 2),
    ],
)
def test_step_features_measures(
    name: str, model: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real updates of a model that compiles in a second; that of real models is traced above."""
    toy.register(monkeypatch)
    monkeypatch.setattr(step_features, "MODELS", (*step_features.MODELS, "toy-tiny"))
    groups = ("metadata masking", "null masking", "EMA", "clipping")  # without pictures that are augmented for long
    fewer = functools.reduce(lambda left, group: left | step_common.FEATURES[group], groups, dict[str, Any]())
    monkeypatch.setattr(step_features, "EVERYTHING", fewer)
    if name == "gradnorm":  # without what the other benchmarks switch on and off
        build, bare = step_features.build, step_common.BARE
        monkeypatch.setattr(
            step_features, "build", lambda case, labels, on, **more: build(case, labels, {**bare, **on}, **more)
        )
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    small = ["--model", model, "--img-size", "32", "--batch", "8", "--pairs", "2"]
    step_features.main([name, *small, "--groups", "everything", "flip"])
    report = json.loads((tmp_path / f"step_{name}.json").read_text())
    assert report["command"].startswith(f"python -m benchmarks.step_features {name} --model")
    assert len(report["rows"]) == rows
    for row in report["rows"]:
        times = [row[key] for key in ("ms", "control", "ratio", "images_per_s", "gflop_per_image") if key in row]
        assert min(times) > 0


@pytest.mark.slow
def test_input_pipeline_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    small = ["--images", "32", "--size", "32", "--batch", "8", "--updates", "4", "--pairs", "2"]
    monkeypatch.setattr(sys, "argv", ["input_pipeline", *small])
    importlib.import_module("benchmarks.input_pipeline").main()
    rows = json.loads((tmp_path / "input_pipeline.json").read_text())["rows"]
    assert [row.get("worker_processes") for row in rows] == [None] * 5 + [0, 0, 1, 2]
    for row in rows:
        assert row["images_per_s"] > 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


@pytest.mark.slow
def test_reading_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.register(monkeypatch)
    module = importlib.import_module("benchmarks.reading")
    monkeypatch.setattr(module, "default_cases", lambda: [step_common.Case("toy-tiny", 224, 64, None)])
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    small = ["--images", "32", "--size", "32", "--side", "300", "--batch", "8", "--updates", "4", "--pairs", "2"]
    monkeypatch.setattr(sys, "argv", ["reading", *small, "--rows", "400", "--train-updates", "3", "--img-size", "32"])
    module.main()
    rows = json.loads((tmp_path / "reading.json").read_text())["rows"]
    assert [row.get("limit") for row in rows] == [2.0, None, 1.0, 1.0, *[0.5, 0.5, None] * 2, *[None, None, 1.02] * 2]
    for row in rows:
        assert row["ratio"] > 0
        assert row["control"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", saving.PARTS)
def test_saving_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """A state of few arrays: the time of saving goes with their number."""
    toy.register(monkeypatch)
    monkeypatch.setattr(saving, "MODELS", (*saving.MODELS, "toy-tiny"))
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    saving.main(["--model", "toy-tiny", "--pairs", "2", "--directory", str(tmp_path), "--without", part])
    name = {"digests": "saving.json"}.get(part, f"saving_{part}.json")
    rows = json.loads((tmp_path / name).read_text())["rows"]
    assert [row["measure"] for row in rows] == list(saving.MEASURES)
    for row in rows:
        assert min(row["seconds"], row["seconds_without"], row["ratio"]) > 0


@pytest.mark.slow
def test_starts_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    make = start_up.make_demo.main
    monkeypatch.setattr(start_up.make_demo, "main", lambda arguments: make([*arguments, "--rows", "600"]))
    example = other_commit.HERE / "tests" / "extending" / "model_example.py"  # compiled in a third of the time
    model = [f"--config.env.plugins={example}", "--config.model.type=SmallNet", "--config.model.variant=narrow"]
    start_up.main(["--pairs", "1", "--config.data.batch_size=16", *model])
    rows = json.loads((tmp_path / "start_up.json").read_text())["rows"]
    assert [row["start"] for row in rows] == list(start_up.STARTS)
    assert all(0 < row["step_cpu"] + row["initial_state_cpu"] < row["first_update_cpu"] for row in rows)
    assert 0 < rows[1]["ratio"] < 1


@pytest.mark.slow
def test_runs_are_compared_with_another_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    run_before.main(["--pairs", "2", "--model", "mFormerV1-tiny", "--baseline", "HEAD", "checkpoints"])
    report = json.loads((tmp_path / "run_before.json").read_text())
    assert [row["measure"] for row in report["rows"]] == ["wait", "background", "restore"]
    assert all(row["ratio"] > 0 and row["limit"] == 0.97 for row in report["rows"])
    assert report["baseline"] == "HEAD"


@pytest.mark.slow
def test_input_is_compared_with_another_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    small = ["--images", "8", "--size", "32", "--side", "96", "--batch", "4", "--updates", "2", "--pairs", "2"]
    input_ratios.main([*small, "--baseline", "HEAD"])
    rows = json.loads((tmp_path / "input_ratios.json").read_text())["rows"]
    assert [row.get("limit") for row in rows] == [1.6, None, None, None, 1.0, None]
    assert all(row["ratio"] > 0 and row["cpu_ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_heads_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    small = ["--head-classes", "10", "50", "--features", "4", "--batch", "2", "--pairs", "2"]
    heads_and_losses.main(["heads", *small])
    rows = json.loads((tmp_path / "heads_by_classes.json").read_text())["rows"]
    assert [(row["head"], row["classes"]) for row in rows] == [
        (head, classes) for classes in (10, 50) for head in heads_and_losses.HEADS
    ]
    for row in rows:
        assert ("time_growth" in row) == ("memory_growth" in row) == (row["classes"] == 50)
        assert min(row["ms"], row["temp_mib"], row["ratio_to_linear"]) > 0


@pytest.mark.slow
def test_speed_of_efficientnet_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(efficientnet_forward, "keep_freed_memory", lambda: None)  # it is for the whole process
    cores = os.sched_getaffinity(0)
    efficientnet_forward.main(["--variant", "tiny", "--img-size", "32", "--batches", "2", "--pairs", "2"])
    assert os.sched_getaffinity(0) == cores
    rows = json.loads((tmp_path / "efficientnet_forward.json").read_text())["rows"]
    against_torch = [("forward", "torch")] if importlib.util.find_spec("torch") else []
    assert [(row["part"], row["against"]) for row in rows] == [
        *against_torch,
        ("forward", "lax"),
        ("last_blocks", "lax"),
    ]
    for row in rows:
        assert min(row["pictures_per_cpu_s"], row["other"], row["ratio"], row["control"]) > 0


@pytest.mark.parametrize("name", heads_on_demo.MODELS)
def test_models_on_the_demo_differ_in_nothing_else(name: str, tmp_path: Path) -> None:
    config = heads_on_demo.run_config(name, tmp_path, epochs=24, seed=7)
    assert [error for error in config_errors(config) if "labels.h5" not in error and "images.h5" not in error] == []
    family, head = heads_on_demo.MODELS[name]
    base = heads_on_demo.run_config(heads_on_demo.BASELINE, tmp_path, epochs=24, seed=7)
    changed = [
        key
        for (key, value), (_, other) in zip(flat(config.to_dict()), flat(base.to_dict()), strict=True)
        if value != other
    ]
    assert set(changed) == {
        *(["experiment.name"] if name != heads_on_demo.BASELINE else []),
        *(["model.classification.heads"] if head != "Linear" else []),
        *(["model.type", "model.convnext_stages.layer_scale_init_value"] if family != "mFormerV1" else []),
    }


def flat(section: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Keys with dots and values; the heads are one value."""
    found: list[tuple[str, Any]] = []
    for key, value in section.items():
        inner = isinstance(value, dict) and key != "heads"
        found += flat(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return found


def test_results_on_the_demo_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    options = argparse.Namespace(typed=[], epochs=2, heads=["PathSoftmax"], seeds=[0, 1])
    chains = iter((10.0, 20.0, 31.0, 33.0))

    def trained(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
        row = {"model": name, "epochs": options.epochs, "seed": seed, "updates": 5}
        return {**row, "ECE L10": 1.0, "top-1 L10": 50.0, "chain": next(chains)}

    monkeypatch.setattr(heads_on_demo, "trained", trained)
    heads_on_demo.quality(options, heads_on_demo.stored())
    options.heads = ["Linear"]
    details = heads_on_demo.stored()
    details["times"]["Linear"] = {"ms": 2.0, "to_linear": 1.0, "control": 1.0, "rounds": 1, "updates": 1}
    heads_on_demo.quality(options, details)
    report = json.loads((tmp_path / "heads_on_demo.json").read_text())
    assert [(run["model"], run["seed"]) for run in report["runs"]] == [
        ("PathSoftmax", 0),
        ("PathSoftmax", 1),
        ("Linear", 0),
        ("Linear", 1),
    ]
    linear, path = report["rows"]
    assert list(path) == ["model", "epochs", "updates", "seeds", "top-1 L10", "chain", "ECE L10"]
    assert list(linear) == [*path, "ms", "to_linear", "control"]
    assert linear["chain"] == "32.0 ± 1.4"
    assert path["chain"] == "15.0 ± 7.1"


def test_durations_are_those_of_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    cases = "".join(
        f'<testcase classname="tests.{file}" name="{name}" time="{seconds}" />'
        for file, name, seconds in (("a", "one", 0.25), ("run.b", "two[x]", 1.5), ("run.b", "three", 2.0))
    )
    (tmp_path / "slow.xml").write_text(f'<testsuites><testsuite time="3.1">{cases}</testsuite></testsuites>')
    durations.main([str(tmp_path / "slow.xml")])
    found = json.loads((tmp_path / "test_durations.json").read_text())
    assert found["rows"] == [
        {"suite": "slow", "file": "tests/run/b.py", "tests": 2, "seconds": 3.5, "longest": 2.0},
        {"suite": "slow", "file": "tests/a.py", "tests": 1, "seconds": 0.25, "longest": 0.25},
    ]
    assert found["tests"] == {"slow": {"tests/run/b.py::three": 2.0, "tests/run/b.py::two[x]": 1.5}}
    assert found["wall"] == {"slow": 3.1}


@pytest.mark.slow
def test_serving_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    write_bundle(small_bundle(), tmp_path / "bundle")
    small = ["--pictures=24", "--size", "60", "48", "--pairs=2", "--clients=2", "--together=4", "--seconds=0.2"]
    monkeypatch.setattr(sys, "argv", ["serving", str(tmp_path / "bundle"), *small])
    importlib.import_module("benchmarks.serving").main()
    rows = json.loads((tmp_path / "serving.json").read_text())["rows"]
    assert [row.get("pictures_per_request") for row in rows[:2]] == [1, 4]
    assert [row["load"] for row in rows[2:]] == ["1 clients", "4 clients", "16 clients", "64 clients", "50%", "80%"]
    for row in rows:
        assert row["pictures_per_s"] > 0
    for row in rows[2:]:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]


@pytest.mark.slow
def test_pages_are_compared_by_their_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"Same": "<p>as it was</p>", "Other": '<div style="height:9000px">tall</div>'}
    versions = {"before": {"Gone": "x", **same}, "after": {"New": "<p>moves the others</p>", **same, "Other": "short"}}
    for version, sections in versions.items():
        (tmp_path / version).mkdir()
        (tmp_path / version / "report.html").write_text(page.page("Run", sections))
    folders = [str(tmp_path / version) for version in versions]
    monkeypatch.setattr(sys, "argv", ["pages", *folders, "--out", str(tmp_path / "out")])
    pages.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines] == [["report.html", "1280"], ["report.html", "390"]]
    assert all("Other 9" in line and "gone: Gone; new: New" in line and "Same" not in line for line in lines)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"report-{width}-{place}.png" for width in (1280, 390) for place in (0, 2)
    }


def test_attention_is_that_of_jax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = attention.arrays(2, 5, 3, 8)
    mine = attention.jax_run(attention.ours, given, "forward", 2)()
    np.testing.assert_allclose(mine, jax.nn.dot_product_attention(*map(jnp.asarray, given)), rtol=1e-5, atol=1e-6)
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(attention, "write_results", lambda name, found, command: rows.extend(found))
    attention.main(["--tokens", "5", "--heads", "2", "--head-dim", "8", "--batch", "1", "--pairs", "2"])
    rivals = {"jax.nn.dot_product_attention"} | ({"torch"} if importlib.util.find_spec("torch") else set())
    assert {(row["step"], row["rival"]) for row in rows} == {(s, r) for s in attention.STEPS for r in rivals}
    assert all(row["ratio"] > 0 for row in rows)
