"""A sampler in one file of the user's own: what it draws is planned, counted, resumed and reported like the others."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from linnaeus_jax import registry
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.data.samplers import COUNTED_EPOCHS, Sampler, SamplerSettings, TrainingRows
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.tools import schedule
from tests.extending.common import config_with, train_resume_evaluate

PLUGIN = "sampler_example.py"


@pytest.mark.slow
def test_common_classes_are_capped(tmp_path, monkeypatch, capsys):
    outcome = train_resume_evaluate(
        tmp_path,
        PLUGIN,
        monkeypatch,
        capsys,
        data__sampler__type="capped",
        data__sampler__capped__most=6,
        data__batch_size=16,
        schedule__mixup__prob__enabled=True,
    )
    counts = json.loads((outcome.run / "metadata" / "class_label_counts.json").read_text())["train"]["taxa_L10"]
    drawn = json.loads((outcome.run / "metadata" / "epoch_coverage.json").read_text())["taxa_L10"]["taxa_L10"]
    capped = np.minimum(counts, 6)
    assert sum(drawn) == capped.sum() // 16 * 16
    assert (np.array(drawn) <= capped).all()
    saved = json.loads((outcome.run / "config.json").read_text())["data"]["sampler"]
    assert saved["capped"] == {"most": 6}
    checkpoints = Checkpoints(outcome.run / "checkpoints")
    meta = checkpoints.newest_meta()
    checkpoints.close()
    assert meta is not None
    sampler = meta["plan"]["sampler"]
    assert (sampler["type"], sampler["options"]) == ("capped", {"most": 6})
    assert (
        "capped' forms no groups, so nothing is mixed" in (outcome.run / "assets" / "schedule_summary.txt").read_text()
    )
    assert outcome.evaluated["val"]["loss"] > 0


def test_a_sampler_without_groups_mixes_nothing(capsys):
    config = config_with(PLUGIN, "data.sampler.type=capped", "data.sampler.capped.most=250")
    assert SamplerSettings.from_config(typed(config)).options == {"most": 250}
    config.schedule.mixup.prob.enabled = True
    schedule.run(typed(config), dataset_size=1000)
    assert "forms no groups" in capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class Rising(Sampler):
    """Every second row, in half as many batches as there are."""

    start: int = 0

    def micro_batches(self, rows, settings):
        return len(rows) // (2 * settings.batch_size)

    def draw(self, rows, settings, rng):
        return np.arange(self.start, len(rows), 2)[: self.micro_batches(rows, settings) * settings.batch_size]


def test_an_epoch_may_have_another_length():
    registry.SAMPLERS.register("rising")(Rising)
    rows = TrainingRows(np.zeros((40, 1), np.int32), np.zeros(40, np.int32))
    settings = SamplerSettings(type="rising", batch_size=4, accumulation_steps=3, options={"start": 1})
    plans = PlanSequence({"": rows}, [""] * 2, settings, seed=0)
    assert plans.steps_per_epoch.tolist() == [2, 2]
    assert plans.plan(1).index.ravel().tolist() == [*range(1, 40, 2), *[-1] * 4]
    assert (plans.plan(0).partner == np.arange(4)).all()
    np.testing.assert_array_equal(settings.expected_draws(rows), np.arange(40) % 2)
    assert COUNTED_EPOCHS > 1


@pytest.mark.parametrize("draws", [np.arange(39), np.arange(40.0), np.arange(40) + 1])
def test_wrong_draws_are_refused(draws):
    registry.SAMPLERS.register("wrong")(type("Wrong", (Sampler,), {"draw": lambda self, rows, settings, rng: draws}))
    rows = TrainingRows(np.zeros((40, 1), np.int32), np.zeros(40, np.int32))
    with pytest.raises(ValueError, match=r"data\.sampler\.type = 'wrong' draws .* must give int \(40,\) positions"):
        SamplerSettings(type="wrong", batch_size=4).expected_draws(rows)
