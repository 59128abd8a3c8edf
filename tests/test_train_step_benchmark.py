"""The benchmark of whole steps: its children, the text of compiled programs, ratios to another commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import common, step_worker, train_step
from benchmarks.compiled_traffic import instructions, shape_bytes


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[8,3]{1,0}", 96),
        ("bf16[2,2]", 8),
        ("pred[]", 1),
        ("(s32[], f32[4]{0}, u8[3]{0})", 23),
        ("f8e4m3fn[5]", 5),
        ("token[]", 0),
    ],
)
def test_bytes_of_a_shape(shape: str, size: int) -> None:
    assert shape_bytes(shape) == size


def test_instructions_of_a_compiled_program() -> None:
    def function(x: jax.Array) -> jax.Array:
        with jax.named_scope("inner"):
            return jax.lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y @ x), x)

    text = jax.jit(function).lower(jnp.zeros((64, 64))).compile().as_text()
    assert text is not None
    found = list(instructions(text))
    products = [one for one in found if "dot_general" in one.scope]
    assert sum(one.bytes for one in products) >= 5 * 3 * 4 * 64 * 64
    assert sum(one.bytes for one in found) < 100 * 4 * 64 * 64
    assert all("inner" in one.scope for one in products)


def test_needed_operations_are_those_of_the_tables() -> None:
    """2 x 4.5 G multiply-adds of mFormerV1-sm at 224 pixels."""
    assert train_step.flops_per_image("mFormerV1-sm", 224) == pytest.approx(9e9, rel=0.15)


def test_seconds_of_a_run() -> None:
    calls: list[int] = []
    assert set(step_worker.seconds_of(lambda: calls.append(1), 3)) == {"seconds", "cpu_seconds"}
    assert len(calls) == 3


def report_of(directory: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(common, "RESULTS", directory)
    train_step.main(["--model", "mFormerV1-tiny", "--img-size", "32", "--batch", "4", "--pairs", "2", *arguments])
    report: dict[str, Any] = json.loads((directory / "train_step.json").read_text())
    return report


@pytest.mark.slow
def test_a_step_is_compared_with_another_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(tmp_path, monkeypatch, "evaluation", "--baseline", "HEAD")
    (row,) = report["rows"]
    assert row["step"] == "evaluation"
    assert row["speedup"] > 0
    assert report["baseline"]["commit"] == "HEAD"


@pytest.mark.slow
def test_bytes_of_the_compiled_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(tmp_path, monkeypatch, "training", "--hdf5")
    assert report["rows"][1]["of_synthetic"] > 0
    assert report["rows"][0]["images_per_s"] > 0
    assert report["compiled_mb_by_part"]["normalisation"] > 0
