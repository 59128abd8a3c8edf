"""The largest batch that fits: the search over what a model of memory says, and a real compilation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from benchmarks.common import RESULTS
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.debugging import session
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import autobatch, experiment
from linnaeus_jax.run.inputs import build_inputs
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.tools import autobatch as tool
from tests.step import toy
from tests.tiny import tiny_config


def settings(tmp_path: Path, **changes: float) -> ConfigDict:
    return tiny_config(tmp_path, **{f"data__autobatch__{key}": value for key, value in changes.items()})


class Affine:
    """100 bytes and 10 per row, and 7 more beyond `kink` rows."""

    def __init__(self, kink: int = 10**9) -> None:
        self.calls, self.kink = 0, kink

    def __call__(self, config: ConfigDict) -> int:
        self.calls += 1
        rows: int = config.data.batch_size_per_device
        return 100 + 10 * rows + 7 * max(0, rows - self.kink)


@pytest.mark.slow
def test_the_overflow_detector_must_fit_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.register(monkeypatch)
    detector = SimpleNamespace(memory_bytes=10**12)
    monkeypatch.setattr(session, "compile_update_frames", lambda *args, **options: detector)
    config = typed(tiny_config(tmp_path, model__type="toy", debug__underflow_overflow__enabled=True))
    memory = experiment.step_memory(config, RunDirectory(tmp_path / "run"), None)
    assert memory(autobatch.with_rows(config, 8)) == 10**12


@pytest.mark.parametrize(("budget", "rows"), [(1000, 90), (120, 2), (139, 2), (10**6, 512)])
def test_few_compilations_find_the_largest_batch(budget: int, rows: int, tmp_path: Path) -> None:
    memory = Affine()
    fit = autobatch.largest_batch(typed(settings(tmp_path)), 1, budget, memory)
    assert fit.rows == rows
    assert fit.bytes == 100 + 10 * rows
    assert memory.calls <= 4


def test_memory_that_is_no_straight_line(tmp_path: Path) -> None:
    memory = Affine(kink=20)
    fit = autobatch.largest_batch(typed(settings(tmp_path)), 1, 1000, memory)
    assert fit.rows == 60  # 100 + 600 + 280; pairs are even
    assert memory.calls <= 6


def test_the_sampler_decides_which_sizes_are_tried(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, schedule__mixup__mix_block=8)
    fit = autobatch.largest_batch(typed(config), 1, 1000, Affine())
    assert fit.rows == 88
    assert all(rows % 8 == 0 for rows in fit.tried)


def test_what_cannot_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"an update of 4 rows takes .* data.autobatch.target_memory_fraction"):
        autobatch.largest_batch(typed(settings(tmp_path, min_batch_size=4)), 1, 130, Affine())
    with pytest.raises(UserError, match="widen the range"):
        autobatch.largest_batch(typed(settings(tmp_path, min_batch_size=9, max_batch_size=8)), 1, 130, Affine())


def test_the_budget_is_a_share_of_what_is_known(tmp_path: Path) -> None:
    config = settings(tmp_path, device_memory_gb=2.0, target_memory_fraction=0.5)
    assert autobatch.device_budget(typed(config)) == 10**9
    with pytest.raises(UserError, match=r"data.autobatch.device_memory_gb = 0\.0"):
        autobatch.device_budget(typed(settings(tmp_path)))


def test_what_a_gpu_program_takes_is_what_it_was_counted_with() -> None:
    """The memory of `CompiledStep`, which decides, is that of `benchmarks.gpu_program`."""
    programs = json.loads((RESULTS / "gpu_program.json").read_text())["programs"]
    for found in (one for label, one in programs.items() if label.startswith("update, ")):
        names = {"arguments": "arguments", "results": "results", "reused": "aliased", "temporaries": "temporary"}
        memory = {name: round(found[f"{other}_mb"] * 1e6) for name, other in names.items()}
        step = CompiledStep("plain", print, None, 0.0, memory, 0.0)  # type: ignore[arg-type]  # nothing is run
        assert step.memory_bytes == pytest.approx(found["memory_mb"] * 1e6, abs=1e4)


@pytest.mark.parametrize(
    "label", ["ViT-tiny, 224 px, {} rows", "mFormerV1-sm, 384 px, {} rows", "mFormerV0-sm, 384 px, {} rows"]
)
def test_on_a_gpu_memory_grows_by_a_straight_line(label: str) -> None:
    """Compiled for an H100 for 32, 64 and 128 pictures: the line that the search follows is near."""
    programs = json.loads((RESULTS / "gpu_program.json").read_text())["programs"]
    others = ("devices", "remat", "everything", "scan_layers")

    def memory(rows: int) -> float:
        names = [name for name in programs if name.startswith(f"update, {label.format(rows)}, h100")]
        (name,) = (name for name in names if not any(other in name for other in others))
        found: float = programs[name]["memory_mb"]
        return found

    some, more, most = map(memory, (32, 64, 128))
    assert more + 2 * (more - some) == pytest.approx(most, rel=0.05)


def test_a_run_that_goes_on_keeps_its_batch(tmp_path: Path) -> None:
    config = settings(tmp_path, enabled=True, device_memory_gb=1.0)
    directory = RunDirectory(tmp_path / "run")
    assert autobatch.earlier_rows(directory) is None
    never: Any = None
    directory.root.mkdir()
    directory.config_json.write_text(json.dumps({"data": {"batch_size_per_device": 6, "autobatch": {"enabled": True}}}))
    assert autobatch.choose_batch(typed(config), autobatch.earlier_rows(directory), never) == 6
    directory.config_json.write_text(
        json.dumps({"data": {"batch_size_per_device": 6, "autobatch": {"enabled": False}}})
    )
    assert autobatch.earlier_rows(directory) is None, "that size was not found but given"


def test_abstract_updates_are_like_real_ones(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, train__accumulation_steps=2)
    inputs = build_inputs(typed(config), devices=1, output_dir=None)
    with inputs.train_loader(0, 1) as loader:
        _, update = next(loader)
    real = {name: np.asarray(value) for name, value in {**update}.items()}
    wanted = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in real.items()}
    assert inputs.abstract_update() == wanted


@pytest.mark.slow
def test_the_tool_compiles_and_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.py"
    path.write_text(
        "from pathlib import Path\nfrom tests.tiny import tiny_config\n\n\n"
        f"def get_config():\n    return tiny_config(Path({str(tmp_path)!r}), data__autobatch__max_batch_size=2, "
        "loss__grad_weighting__task__type='static')\n"
    )
    assert tool.main([f"--config={path}", "--memory-gb", "8", "--fractions", "0.5,1.0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["rows"] for row in found] == [2, 2]
    assert 0 < found[0]["bytes"] < found[0]["budget"] == 4 * 10**9
