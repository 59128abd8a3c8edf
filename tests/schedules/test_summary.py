from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from linnaeus_jax.config import load_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.schedules.plot import _epoch_ticks, plot_schedule
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import _elided, headline, schedule_summary, text_chart, write_summary
from linnaeus_jax.schedules.triggers import firing_epochs
from linnaeus_jax.tools import schedule as tool
from tests.schedules.helpers import make_config, make_schedule

_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "lr_scheduler.name": "wsd",
    "lr_scheduler.warmup_steps": 20,
    "lr_scheduler.stable_duration_fraction": 0.8,
    "lr_scheduler.decay_duration_fraction": 0.2,
    "optimizer.parameter_groups.enabled": True,
    "optimizer.parameter_groups.heads.lr_multiplier": 2.0,
    "optimizer.parameter_groups.stem.frozen": True,
    "lr_scheduler.parameter_groups.enabled": True,
    "lr_scheduler.parameter_groups.heads.name": "step",
    "lr_scheduler.parameter_groups.heads.decay_steps": 30,
    "lr_scheduler.parameter_groups.heads.decay_rate": 0.3,
    "lr_scheduler.parameter_groups.late.delay_epochs": 2.0,
    "optimizer.parameter_groups.late.lr_multiplier": 1.0,
    "train.tune": "last:2",
    "schedule.meta_masking.end_fraction": 0.3,
    "schedule.meta_masking.partial.enabled": True,
    "schedule.meta_masking.partial.whitelist": (("TEMPORAL",), ("SPATIAL",)),
    "schedule.null_masking.enabled": True,
    "schedule.null_masking.end_fraction": 0.5,
    "schedule.mixup.prob.end_fraction": 0.4,
    "schedule.mixup.cutmix.enabled": True,
    "schedule.validation.mask_meta_interval_fraction": 0.3,
    "schedule.validation.final_epoch.exhaustive_partial_meta_validation": True,
    "schedule.validation.final_epoch.exhaustive_meta_components": ("TEMPORAL", "SPATIAL"),
    "schedule.checkpoint.keep_top_n": 3,
    "train.early_stop.active": True,
}


def test_text_says_what_the_loop_does():
    resolved = make_schedule(_SETTINGS, epochs=10)
    text = schedule_summary(resolved)
    assert [int(n) for n in re.findall(r"^(\d+)\. ", text, re.M)] == list(range(1, 11))
    for line in (
        "total_steps             100",
        "warmup   updates 0 .. 19  (20;",
        "stable   updates 20 .. 83  (64; 64 % of the run, 80 % of the time after warmup)",
        "decay    updates 84 .. 99  (16;",
        "decay_rate              0.3",
        "drops at updates 50, 80  (2 in all)",
        "stem: frozen",
        "delay_steps             20 updates (20 %, epoch 2)",
        "delay    updates 0 .. 19  (20; 20 % of the run)",
        "stored: frozen, rate 0",
        "mask-meta validation: every 0.3 of the run = 30 updates, 30 %, 3 epochs",
        "of val_mask_TEMPORAL, val_mask_SPATIAL, val_mask_TEMPORAL_SPATIAL",
        "keep_top_n              3",
        "meta_masking            1 -> 0 at 30 updates (30 %, epoch 3)",
        "whitelist               TEMPORAL, SPATIAL  (2 in all)",
        "null_masking            0 -> 1 at 50 updates",
        "patience_steps          2000 updates",
        "wandb                   50 updates (50 %, epoch 5)",
    ):
        assert line in text, line
    assert all(f"! {warning}" in text for warning in resolved.warnings)
    first, second = headline(resolved).splitlines()
    assert first.startswith(f"schedule: {resolved.epochs} epochs, {resolved.total_steps} updates of ")
    assert "learning rate: " in first
    assert second.startswith("          at ends of epochs: validation ")
    rates = tuple(dataclasses.replace(rate, frozen=rate.group == "default") for rate in resolved.learning_rates)
    assert "all is frozen" not in headline(dataclasses.replace(resolved, learning_rates=rates))
    assert f"after epochs {', '.join(map(str, firing_epochs(resolved)['VALIDATION_MASK_META']))}" in text


def test_a_long_list_is_shortened():
    assert _elided(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11  (12 in all)"
    assert _elided(range(13)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..., 12  (13 in all)"


def test_chart_has_fixed_width():
    for epochs, steps in ((10, 10), (1, 3), (40, 7)):
        lines = text_chart(make_schedule(_SETTINGS, epochs=epochs, steps_per_epoch=steps))
        rows = [line for line in lines if "|" in line]
        assert {line.index("|") for line in rows} == {24}
        assert {line.rindex("|") for line in rows} == {97}
        assert sum(line.startswith("p ") for line in rows) == 4
        assert any(line.startswith("exhaustive validation") and line.rstrip().endswith("^|") for line in rows)


def test_a_rate_of_zero_has_no_curve():
    none = {"lr_scheduler.base_lr": 0.0, "lr_scheduler.warmup_lr": 0.0, "lr_scheduler.min_lr": 0.0}
    assert not any(line.startswith("lr ") for line in text_chart(make_schedule(none)))
    assert any(line.startswith("lr ") for line in text_chart(make_schedule()))


def test_json_holds_everything(tmp_path):
    resolved = make_schedule(_SETTINGS, epochs=10)
    text, data = write_summary(resolved, tmp_path / "assets")
    assert text.read_text() == schedule_summary(resolved)
    stored = json.loads(data.read_text())
    assert ResolvedSchedule.from_dict(stored["resolved"]) == resolved
    assert stored["firing_epochs"]["VALIDATION_MASK_META"] == [2, 5, 8]
    assert stored["firing_epochs"]["VALIDATION_EXHAUSTIVE"] == [9]
    assert stored["warnings"] == list(resolved.warnings)
    assert stored["learning_rate_phases"]["default"] == [["warmup", 0, 19], ["stable", 20, 83], ["decay", 84, 99]]


def test_plot(tmp_path):
    resolved = make_schedule(_SETTINGS, epochs=10)
    applied = {"heads": ([0, 10], [1e-6, 1e-5]), "stem": ([0], [0.0])}  # a frozen group is not drawn
    path = plot_schedule(resolved, tmp_path / "schedule.png", applied=applied)
    image = cv2.imread(str(path))
    assert image is not None
    assert image.shape[1] == 1200
    assert image.std() > 10


def test_a_plot_of_a_group_that_stands_still(tmp_path):
    """A rate of zero is no end of a scale of logarithms."""
    still = {"optimizer.parameter_groups.heads.lr_multiplier": 0.0, "lr_scheduler.min_lr": 1e-5}
    assert plot_schedule(make_schedule(_SETTINGS | still, epochs=10), tmp_path / "schedule.png").is_file()


def test_tool_resolves_levels(tmp_path, capsys):
    config = make_config(
        {
            "train.epochs": 4,
            "schedule.mixup.group_levels": ("taxa_L20", "taxa_L10"),
            "schedule.mixup.level_switch_epochs": (2,),
        }
    )
    resolved = tool.run(typed(config), (10, 7))
    assert resolved.totals.steps_per_epoch == (10, 10, 7, 7)
    assert "taxa_L10 from epoch 2" in capsys.readouterr().out
    with pytest.raises(ValueError, match="one for each"):
        tool.run(typed(config), (10, 7, 5))
    with pytest.raises(ValueError, match="steps_per_epoch or dataset_size"):
        tool.run(typed(config))
    both = ("--config.lr_scheduler.warmup_steps=3", "--config.lr_scheduler.warmup_fraction=0.5")
    assert tool.main([f"--config={_ROOT}/configs/quickstart.py", *both, "--steps-per-epoch=3"])
    assert "exclude each other" in capsys.readouterr().err


def test_tool_counts_updates_from_rows(capsys):
    config = make_config({"train.epochs": 2, "train.accumulation_steps": 4, "data.batch_size": 32})
    resolved = tool.run(typed(config), dataset_size=330)
    assert resolved.totals.micro_batches_per_epoch == (10, 10)  # a run drops the rows that fill no micro-batch
    assert resolved.totals.steps_per_epoch == (3, 3)
    assert "dataset_size            330" in capsys.readouterr().out
    config = make_config({"train.epochs": 3, "data.batch_size": 14})
    assert tool.run(typed(config), dataset_size=96).total_steps == 18
    config.data.sampler.leftovers = "drop"
    assert tool.run(typed(config), dataset_size=96).total_steps == 18
    assert "the most updates there can be" in capsys.readouterr().out
    with pytest.raises(ValueError, match="smaller than one batch"):
        tool.run(typed(config), dataset_size=13)


def test_command_line_starts_no_accelerator(tmp_path):
    """The example of grouped fine-tuning, as a user would run it."""
    code = (
        "import jax, sys; from linnaeus_jax.tools.schedule import main; status = main(sys.argv[1:]);"
        "from jax._src import xla_bridge; assert [*xla_bridge._backends] == [jax.config.jax_platforms] == ['cpu'];"
        "sys.exit(status)"
    )
    arguments = ["--config=configs/finetune_groups.py", "--dataset_size=5000", f"--out={tmp_path}"]
    command = [sys.executable, "-c", code, *arguments, "--config.train.epochs=4"]
    env = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert "heads: linear" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        "schedule_summary.txt",
        "schedule_summary.json",
        "schedule.png",
    }


def test_command_line_errors_are_one_text(capsys):
    config = f"--config={_ROOT / 'configs' / 'finetune_groups.py'}"
    assert tool.main([config, "--steps_per_epoch=5", "--config.lr_scheduler.name=foo"]) == 2
    assert "lr_scheduler.name = 'foo'" in capsys.readouterr().err
    assert tool.main([config, "--steps_per_epoch=5", "--config.train.epoch=3"]) == 2
    assert "train.epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("epochs", "ticks"), [(1, [0, 1]), (24, [0, 3, 6, 9, 12, 15, 18, 21, 24]), (26, [0, 4, 8, 12, 16, 20, 24])]
)
def test_no_epoch_is_marked_behind_the_last(epochs, ticks):
    assert _epoch_ticks(epochs) == ticks


def test_without_metadata_nothing_is_masked():
    off = {f"data.meta.components.{name}.enabled": False for name in ("TEMPORAL", "SPATIAL", "ELEVATION")}
    resolved = make_schedule({**off, "schedule.meta_masking.partial.enabled": False}, epochs=3)
    text = schedule_summary(resolved)
    assert "meta_masking            none, since no metadata component is in use" in text
    assert "meta mask" not in text


def test_the_shipped_quickstart_warns_of_nothing():
    config, _ = load_config([f"--config={_ROOT}/configs/quickstart.py"])
    assert tool.run(typed(config), dataset_size=4800).warnings == ()
