"""Rows for all devices, or for each: one function decides, and everything that counts rows asks it."""

from __future__ import annotations

import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config import get_config, load_yaml
from linnaeus_jax.config.derived import global_batch_size
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.samplers import SamplerSettings
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.tools import schedule as tool
from tests.tiny import tiny_config


@pytest.mark.parametrize(
    ("whole", "share", "devices", "rows"),
    [(None, None, 1, 64), (None, None, 4, 64), (24, None, 4, 24), (None, 6, 1, 6), (None, 6, 4, 24)],
)
def test_rows_of_a_micro_batch(whole, share, devices, rows):
    config = get_config()
    config.data.batch_size, config.data.batch_size_per_device = whole, share
    assert global_batch_size(typed(config), devices) == rows


def test_one_of_the_two_keys(tmp_path):
    config = tiny_config(tmp_path, data__batch_size_per_device=8)
    wanted = "data.batch_size = 16 (rows over all devices) and data.batch_size_per_device = 8 are both given; set one"
    assert [error for error in config_errors(config) if error.startswith(wanted)]
    with pytest.raises(ValueError, match="are both given"):
        tool.run(typed(config), (3,))


def test_batches_schedule_and_peak_follow(tmp_path, capsys):
    config = tiny_config(tmp_path, data__batch_size=None, data__batch_size_per_device=8, train__accumulation_steps=2)
    assert config_errors(config) == []
    assert [SamplerSettings.from_config(typed(config), devices).batch_size for devices in (1, 4)] == [8, 32]
    config.data.sampler.type = "standard"
    assert [SamplerSettings.from_config(typed(config), devices).block for devices in (1, 4)] == [2, 2]
    found = [
        resolve_all_schedule_params(
            typed(config), steps_per_epoch=5, dataset_size=320, micro_batches_per_epoch=10, devices=devices
        )
        for devices in (1, 4)
    ]
    assert [resolved.totals.lr_factor for resolved in found] == [1.0, 4.0]  # of 16 rows
    assert [resolved.learning_rates[0].peak for resolved in found] == pytest.approx([3e-3, 12e-3])
    assert tool.run(typed(config), dataset_size=320, devices=4).totals.steps_per_epoch == (5, 5, 5)
    said = capsys.readouterr().out
    assert "batch_size              32\n" in said
    assert "devices                 4\n" in said
    assert "effective_batch_size    64\n" in said


def test_the_original_counts_rows_of_one_device(tmp_path, caplog):
    path = tmp_path / "experiment.yaml"
    path.write_text("DATA: {BATCH_SIZE: 96, BATCH_SIZE_VAL: 768}\nLR_SCHEDULER: {REFERENCE_BS: 96}")
    config = load_yaml(path)
    assert (config.data.batch_size, config.data.batch_size_per_device) == (None, 96)
    assert global_batch_size(typed(config), 4) == 384
    assert config.data.batch_size_val == 768
    assert "DATA.BATCH_SIZE_VAL counts rows over all devices; what validation finds" in caplog.text
