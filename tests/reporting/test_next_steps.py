"""What to try next, judged by the numbers of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.saved import plain
from linnaeus_jax.config.tree import assign
from linnaeus_jax.data.baselines import BASELINES_FILE
from linnaeus_jax.files import write_json
from linnaeus_jax.reporting.metrics_log import Row
from linnaeus_jax.reporting.next_steps import MOST, suggestion_lines, suggestions
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.verdicts import TRAINING_ROWS_FILE, verdicts

ACCURACY = "val/non_null/acc1_taxa_L10"


def write_known(root: Path, step: int, training: float, validation: float) -> None:
    """What the end of a run measures of 900 training rows and of the validation rows."""
    percent = {"train": {"taxa_L10": training}, "val": {"taxa_L10": validation}}
    write_json(root / TRAINING_ROWS_FILE, {"step": step, "rows": 900, "of": 5000, "percent": percent})


def record(root: Path, *epochs: dict[str, Any], known: tuple[float, float] | None = None, **settings: Any) -> RunRecord:
    """A run of the quickstart with these settings (`__` for dots) and a row for each epoch.

    Args:
      known: accuracy on training and on validation rows, where the end of the run measured it.
    """
    config = load_config(["--config=quickstart"])[0]
    for key, value in settings.items():
        assign(config, tuple(key.split("__")), value)
    if config.model.type == "EfficientNet":
        config.model.convnext_stages = get_config().model.convnext_stages
    write_json(root / "config.json", plain(config))
    rows = [Row("epoch", 10 * n + 10, n, 0.0, values) for n, values in enumerate(epochs)]
    if known is not None:
        write_known(root, rows[-1].step, *known)
    return RunRecord(root, tuple(rows))


LITE0: dict[str, Any] = {
    "model__type": "EfficientNet",
    "model__variant": "lite0",
    "model__pretrained": "package:efficientnet-lite0",
}
LITE2 = {key: value.replace("0", "2") for key, value in LITE0.items()} | {"data__img_size": 260}
LITE0 |= {"data__img_size": 224}


@pytest.mark.parametrize(
    ("settings", "epochs", "words"),
    [
        ({"data__img_size": 224}, [{}], ["--config.model.pretrained=package:efficientnet-lite0", "train.tune=auto:5"]),
        ({"data__img_size": 48}, [{}], []),
        ({"data__img_size": 224, "model__features": ("package:efficientnet-lite0",)}, [{}], []),
        ({**LITE0, "train__tune": "head"}, [{}], ["--config.train.tune=auto:5", "--config.model.variant=lite2"]),
        ({**LITE0, "train__tune": "last:5"}, [{}], ["--size 320", "--config.model.variant=lite2", "img_size=320"]),
        ({**LITE2, "train__tune": "last:6"}, [{}], ["1.5 times the time", "--size 320", "--config.data.img_size=320"]),
        ({**LITE2, "train__tune": "last:6", "data__img_size": 320}, [{}], []),
        ({"data__img_size": 48, "train__epochs": 6}, [{ACCURACY: 10.0 + n} for n in range(6)], ["train.epochs=12"]),
        (
            {"data__img_size": 48, "train__epochs": 6},  # of which every second one was measured
            [{}, {ACCURACY: 10.0}, {}, {ACCURACY: 11.5}, {}, {ACCURACY: 12.2}],
            ["2.2 points in the last third", "train.epochs=12"],
        ),
        ({"data__img_size": 48, "train__epochs": 6}, [{ACCURACY: 50.0}] * 6, []),
        (
            {"data__img_size": 48, "lr_scheduler__base_lr": 3e-3},
            [{"val/loss_unweighted": 1.0}, {"val/loss_unweighted": 2.0}],
            ["--config.lr_scheduler.base_lr=0.001"],
        ),
        (
            {"data__img_size": 48, "known": (90.0, 60.0)},
            [{ACCURACY: 60.0}],
            ["it knows the training pictures 30 points better", "--config.optimizer.weight_decay=0.15"],
        ),
        (
            {**LITE2, "train__tune": "last:6", "data__img_size": 320, "train__tune_views": 3, "known": (90.0, 60.0)},
            [{ACCURACY: 60.0}],
            ["--config.train.tune_views=6"],
        ),
        ({"data__img_size": 48}, [{"train/epoch_avg_non_null/acc1_taxa_L10": 90.0, ACCURACY: 60.0}], []),
        ({"data__img_size": 48}, [{ACCURACY: 60.0, "val/ece_taxa_L10": 0.2}], ["probabilities are 20 points from"]),
    ],
)
def test_what_is_tried_next_follows_the_numbers_and_can_be_typed(tmp_path, settings, epochs, words):
    run = record(tmp_path / "a run", *epochs, **settings)
    found = suggestions(run)
    said = suggestion_lines(run)
    assert all(word in said for word in words), said
    assert bool(found) == bool(words), said
    assert len(found) <= MOST
    for one in found:
        program, *arguments = shlex.split(one.command)[1:]
        if program == "train":
            config, workdir = load_config(arguments)
            assert Path(workdir or "").parent == tmp_path
            assert config_errors(config) == []


FEATURES = {"percent": {"features": {"taxa_L10": 61.0}}}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"train__tune": "last:5"}, ["train.tune=auto:5"]),
        ({"train__tune": "auto:5"}, []),  # fitted heads were a candidate
        ({"train__tune": "head", "train__fit_heads": False}, ["train.fit_heads=True"]),
        ({"train__tune": "head", "lr_scheduler__base_lr": 0.016}, ["lr_scheduler.base_lr=0.0016"]),
    ],
)
def test_a_run_below_its_own_frozen_features_is_brought_back_to_them(tmp_path, settings, wanted):
    """Whatever else speaks for longer or shorter training, or for more blocks."""
    epochs = [{ACCURACY: 50.0 + n} for n in range(6)]
    run = record(tmp_path, *epochs, known=(90.0, 55.0), **{**LITE0, "train__epochs": 6, **settings})
    write_json(tmp_path / BASELINES_FILE, {"percent": {"features": {"taxa_L10": 54.0}}})
    assert "regularised" in suggestion_lines(run)
    write_json(tmp_path / BASELINES_FILE, FEATURES)
    found = [each for each in suggestions(run) if "simple classifier" in each.why]
    assert len(found) == bool(wanted)
    for one in found:
        assert one.command.split("--workdir=")[1].split()[1:] == [f"--config.{key}" for key in wanted]
        assert not any(word in suggestion_lines(run) for word in ("twice", "regularised", "train the last"))
        assert config_errors(load_config(shlex.split(one.command)[2:])[0]) == []


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("known", [None, (60.0, 55.0), (90.0, 55.0)])
def test_advice_on_one_screen_does_not_contradict_itself(tmp_path, growing, known):
    epochs = [{ACCURACY: 50.0 + n, "train/epoch_avg_non_null/acc1_taxa_L10": 95.0} for n in range(6)]
    run = record(tmp_path, *(epochs if growing else [epochs[-1]] * 6), known=known, data__img_size=48, train__epochs=6)
    said = " ".join(verdicts(run)) + suggestion_lines(run)
    overfits = known == (90.0, 55.0)
    assert ("overfitting: species 90.0 % of 900 training rows" in said) == overfits
    assert ("fewer epochs" in said) == (overfits and not growing)
    assert ("twice as many" in said) == (growing and not overfits)
    assert ("weight_decay=" in said) == overfits


def test_a_run_that_has_gone_on_since_is_not_judged_by_what_was_measured(tmp_path):
    run = record(tmp_path, {ACCURACY: 60.0}, known=(90.0, 60.0), data__img_size=48)
    write_known(tmp_path, 30, 90.0, 60.0)
    assert suggestions(run) == []


def test_small_classes_that_are_badly_known_are_named(tmp_path):
    run = record(tmp_path, {}, data__img_size=48)
    write_json(tmp_path / "assets" / "class_to_idx.json", {"taxa_L10": {"null": 0, "7": 1, "8": 2, "9": 3}})
    write_json(tmp_path / "metadata" / "class_label_counts.json", {"train": {"taxa_L10": [0, 5, 7, 500]}})
    curves = {"val": {"taxa_L10": {"class_counts": [[0, 10, 10, 10], [0, 1, 9, 1]]}}}
    write_json(tmp_path / "assets" / "validation_curves.json", curves)
    (one,) = suggestions(run)
    assert one.why == "more pictures of what there are few of (species): 7 (5 for training, 10 % right)"
    assert one.command == ""
    classes = {str(number): number for number in range(8)}
    write_json(tmp_path / "assets" / "class_to_idx.json", {"taxa_L10": classes})
    write_json(tmp_path / "metadata" / "class_label_counts.json", {"train": {"taxa_L10": [0, *[5] * 7]}})
    curves = {"val": {"taxa_L10": {"class_counts": [[0, *[10] * 7], [0] * 8]}}}
    write_json(tmp_path / "assets" / "validation_curves.json", curves)
    assert suggestions(RunRecord(tmp_path, run.rows))[0].why.endswith("% right) and 2 more")


def test_a_run_is_trained_once_more_from_its_own_configuration(tmp_path):
    record(tmp_path, {}, train__epochs=7, data__task_keys_h5=("taxa_L10", "taxa_L20"))
    config, _ = load_config([f"--config={tmp_path}/config.json", "--config.train.seed=9"])
    assert (config.train.epochs, config.train.seed) == (7, 9)
    assert config.data.task_keys_h5 == ("taxa_L10", "taxa_L20")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"train": {"no_such": 1}}', '{"train": 3}'])
def test_another_json_file_is_one_line(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json"):
        load_config([f"--config={tmp_path}/other.json"])
