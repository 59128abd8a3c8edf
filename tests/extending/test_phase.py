"""A phase of evaluation in one file of the user's own: when it runs, what it is called, and what is refused."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.metrics import MetricsTracker, Phase, register_phase
from linnaeus_jax.metrics.logged import undescribed
from linnaeus_jax.metrics.phases import phase_label, widest_first
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.reporting.chosen import all_groups
from linnaeus_jax.run.evaluate import EvaluateError, parse_phases
from linnaeus_jax.schedules.early_stop import parse_metric_name
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.schedules.triggers import due_at_epoch_end, measured_epochs
from linnaeus_jax.step.program import _check_phases
from tests.extending.common import config_with
from tests.schedules.helpers import make_schedule

COMPONENTS = ("TEMPORAL", "SPATIAL")


@pytest.fixture
def mirrored():
    config_with("phase_example.py")


def test_it_is_due_wherever_validation_is(mirrored):
    resolved = make_schedule({"schedule.validation.interval_epochs": 2, "schedule.validation.at_end": False}, epochs=5)
    due = due_at_epoch_end(resolved, 2, 30, 20)
    [phase] = [phase for phase in due.phases if phase.name == "val_mirrored"]
    pictures = jnp.arange(24).reshape(1, 2, 4, 3)
    assert phase.view is not None
    np.testing.assert_array_equal(phase.view(pictures), pictures[:, :, ::-1])
    assert measured_epochs(resolved, "val_mirrored") == measured_epochs(resolved, "val")
    assert "of val, val_mirrored" in schedule_summary(resolved)
    for names in ("all", "val_mirrored"):
        assert phase in parse_phases(names, COMPONENTS)
    with pytest.raises(EvaluateError, match="val_mask_meta, val_mirrored, all"):
        parse_phases("val_turned", COMPONENTS)


def test_its_names_are_known_everywhere(mirrored):
    monitored = parse_metric_name("val_mirrored/acc1_taxa_L10", tasks=("taxa_L10",), components=COMPONENTS)
    assert (monitored.phase, monitored.metric) == ("val_mirrored", "acc1_taxa_L10")
    assert phase_label("val_mirrored") == "mirrored pictures"
    tracker = MetricsTracker()
    tracker.update("val_mirrored", {"loss": 1.0, "chain_accuracy": 0.5, "acc1_taxa_L10": 50.0}, 0, 1)
    row = tracker.get_wandb_metrics()
    assert row["val_mirrored/loss"] == row["core/val_mirrored_loss"] == 1.0
    assert row["core/val_mirrored_acc1/taxa_L10"] == 50.0
    assert undescribed([*row, *tracker.final_metrics()]) == []
    assert widest_first({"val_mirrored", "val", "val_mask", "val_mask_TEMPORAL", "val_mask_meta"}) == [
        "val",
        "val_mask_meta",
        "val_mirrored",
        "val_mask_TEMPORAL",
    ]
    assert all_groups()["Validation, mirrored pictures"] == "val_mirrored/.*"


@pytest.mark.parametrize("name", ["train", "val", "val_", "val_mask_x", "val_no_mask", "val_a/b", "val_a b"])
def test_other_names_are_refused(name):
    with pytest.raises(InputError, match="call it val_<name>"):
        register_phase(Phase(name))


def test_a_name_is_taken_once(mirrored):
    with pytest.raises(InputError, match="'val_mirrored' is registered twice"):
        register_phase(Phase("val_mirrored"))


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase("val_x", masked=("DEPTH",)), "masks 'DEPTH', which is no active metadata component"),
        (Phase("val_x", view=lambda pictures: pictures["nothing"]), "phase 'val_x' fails with "),
        (Phase("val_x", view=lambda pictures: pictures / 2), r"phase 'val_x' .*it returned float32 \[2, 8, 8, 3\]"),
        (Phase("val_x", view=lambda pictures: pictures[0]), r"phase 'val_x' .*it returned uint8 \[8, 8, 3\]"),
    ],
)
def test_what_cannot_work_is_named_before_anything_runs(phase, message):
    register_phase(phase)
    with pytest.raises(InputError, match=message):
        _check_phases(COMPONENTS, (8, 8))


def test_a_view_has_nothing_to_change_where_no_pictures_are_read(mirrored):
    with pytest.raises(InputError, match=r"'val_mirrored' of a plugin changes the pictures .* train\.tune = 'full'"):
        _check_phases(COMPONENTS, (8, 8), stored=True)


def test_a_view_of_another_size_is_fine(mirrored):
    register_phase(Phase("val_crop", view=lambda pictures: pictures[:, 2:-2, 2:-2], masked=None))
    _check_phases(COMPONENTS, (8, 8))
