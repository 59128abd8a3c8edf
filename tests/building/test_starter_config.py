"""The configuration that is written beside a data set can be used as it is."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from linnaeus_jax.building.steps import machine
from linnaeus_jax.building.steps import starter_config as starter
from linnaeus_jax.building.steps.machine import has_accelerator
from linnaeus_jax.building.steps.starter_config import choose_size, starter_config
from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import load_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import resolve_sources
from linnaeus_jax.data.preprocessing import Preprocessing

TASKS = ("taxa_L10", "taxa_L20", "taxa_L33_5", "taxa_L40")
SOURCES = {"SPATIAL": ("spatial", 3), "TEMPORAL": ("temporal", 4), "ELEVATION": ("elevation_scales_100", 2)}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("known", [0, 1, 3])
@pytest.mark.parametrize("folder", ["", "/photos of 'mine'"])
@pytest.mark.parametrize("split", ["file", "train"])
def test_it_is_right_for_every_data_set(tmp_path, ranks, known, folder, split):
    sources = dict(list(SOURCES.items())[:known])
    how = Preprocessing((48, 48))
    text = starter_config(
        "data/mine", "mine", TASKS[:ranks], sources, preprocessing=how, picture_folder=folder, split=split
    )
    path = tmp_path / "config.py"
    path.write_text(text)
    config, _ = load_config([f"--config={path}"])
    assert config_errors(config) == []
    assert config.data.task_keys_h5 == TASKS[:ranks]
    assert config.data.partial.levels
    assert config.train.phase1_mask_null_loss
    part = "train_" if split == "train" else ""
    assert config.data.h5[f"{part}labels_path"] == str(tmp_path / "labels.h5")
    assert resolve_sources(typed(config).data).train_images == (folder or str(tmp_path / "images.h5"))
    enabled = {name for name, node in config.data.meta.components.items() if node.enabled} if known else set()
    assert enabled == set(sources)
    assert config.data.meta.active == bool(known)
    assert all(config.data.meta.components[name].dim == width for name, (_, width) in sources.items())


@pytest.mark.parametrize("rows", [40, 2640, 200_000])
@pytest.mark.parametrize(("side", "variant", "last"), [(224, "lite0", "auto:5"), (260, "lite2", "auto:6")])
@pytest.mark.parametrize("tune", ["", "head"])
def test_pretrained_weights_are_used_where_they_are_and_there_is_no_accelerator(
    tmp_path, rows, side, variant, last, tune
):
    how = Preprocessing((side, side))
    options: Any = {"preprocessing": how, "picture_folder": "", "split": "file", "rows": rows, "accelerated": False}
    (tmp_path / "config.py").write_text(starter_config("mine", "mine", TASKS, {}, pretrained=True, **options))
    config, _ = load_config([f"--config={tmp_path}/config.py", *[f"--config.train.tune={tune}"] * bool(tune)])
    assert config_errors(config) == []
    assert (config.model.variant, config.model.pretrained) == (variant, f"package:efficientnet-{variant}")
    size = choose_size(rows, side, accelerated=False, pretrained=True)
    assert (size.variant, size.tune) == (variant, last if rows < 10_000 else "head")
    assert config.train.tune == (tune or size.tune)
    assert size.seconds is not None
    assert size.seconds <= 1800 or (size.epochs, size.views) == (starter.least_epochs(size.tune), 0)
    assert size.remark.endswith("; where there is time, --size 320 is learned better")
    without = choose_size(rows, 64, accelerated=False)
    assert choose_size(rows, 64, accelerated=False, pretrained=True) == without
    assert "learned better" not in without.remark


@pytest.mark.parametrize(
    ("rows", "side", "wanted"),
    [
        (40, 224, ("lite0", 60, 8)),
        (640, 224, ("lite0", 30, 32)),
        (2640, 260, ("lite2", 20, 32)),
        (64_000, 320, ("lite2", 15, 32)),
        (499_999, 260, ("lite2", 10, 32)),
    ],
)
def test_all_of_pretrained_weights_trains_on_an_accelerator(tmp_path, rows, side, wanted):
    size = choose_size(rows, side, accelerated=True, pretrained=True)
    assert (size.variant, size.epochs, size.batch_size) == wanted
    assert size.seconds is None
    assert ("--size 320 is learned better" in size.remark) == (side < 320)
    assert size.model == f"EfficientNet {wanted[0]}, pretrained, all of it tuned"
    how: Any = {"preprocessing": Preprocessing((side, side)), "picture_folder": "", "split": "file", "rows": rows}
    (tmp_path / "config.py").write_text(starter_config("a", "a", TASKS, {}, accelerated=True, pretrained=True, **how))
    config, _ = load_config([f"--config={tmp_path}/config.py"])
    assert config_errors(config) == []
    assert (config.model.variant, config.model.pretrained) == (wanted[0], f"package:efficientnet-{wanted[0]}")
    assert (config.train.tune, config.train.epochs, config.lr_scheduler.base_lr) == ("full", wanted[1], 0.005)
    assert choose_size(500_000, side, accelerated=True, pretrained=True).variant == "md"
    assert not choose_size(rows, 96, accelerated=True, pretrained=True).pretrained


def test_whether_weights_are_there_is_whether_their_package_is_installed(monkeypatch):
    monkeypatch.setattr(machine, "PACKAGES", ("pytest",))
    assert machine.has_weights()
    monkeypatch.setattr(machine, "PACKAGES", ("pytest", "no-such-package-of-weights"))
    assert not machine.has_weights()


@pytest.mark.parametrize("family", ["mFormerV0", "mFormerV1"])
@pytest.mark.parametrize("img_size", [48, 224])
@pytest.mark.parametrize("accelerated", [False, True])
def test_it_is_right_for_every_family(tmp_path, family, img_size, accelerated):
    options: Any = {"preprocessing": Preprocessing((img_size, img_size)), "picture_folder": "", "split": "file"}
    text = starter_config("mine", "mine", TASKS, {}, rows=9000, accelerated=accelerated, pretrained=False, **options)
    (tmp_path / "config.py").write_text(text)
    config, _ = load_config([f"--config={tmp_path}/config.py", f"--config.model.type={family}"])
    assert config_errors(config) == []
    assert (config.model.weight_init == "fan_in") == (config.model.variant == "tiny")


def test_a_setting_of_another_family_is_mended_by_the_argument_that_the_message_names(tmp_path):
    given = ["--config=quickstart", "--config.model.type=mFormerV0", "--config.model.rope_stages.depths=(1, 1)"]
    (message,) = config_errors(load_config(given)[0])
    arguments = shlex.split(message.partition("on the command line add ")[2].removesuffix("), or change model.type"))
    assert sorted(argument.partition("=")[0] for argument in arguments) == [
        "--config.model.convnext_stages.layer_scale_init_value",
        "--config.model.rope_stages.depths",
    ]
    assert config_errors(load_config([*given, *arguments])[0]) == []


@pytest.mark.parametrize(
    ("rows", "img_size", "accelerated", "wanted"),
    [
        (529, 224, False, ("tiny", 150, 32)),
        (2640, 224, False, ("tiny", 37, 32)),
        (300, 64, False, ("tiny", 150, 16)),
        (100_000, 224, False, ("tiny", 5, 32)),
        (100_000, 64, False, ("tiny", 18, 32)),
        (1, 4096, False, ("tiny", 150, 8)),
        (500, 224, True, ("tiny", 150, 32)),
        (20_000, 224, True, ("sm", 20, 32)),
        (20_000, 64, True, ("tiny", 20, 32)),
        (2_000_000, 224, True, ("md", 20, 32)),
    ],
)
def test_the_size_follows_rows_pictures_and_backend(rows, img_size, accelerated, wanted):
    size = choose_size(rows, img_size, accelerated=accelerated)
    assert (size.variant, size.epochs, size.batch_size) == wanted
    assert size.base_lr == {"tiny": 0.016}.get(size.variant, 0.002)
    assert size.remark.startswith(f"chosen for {rows:,} training rows of {img_size} px on ")
    if accelerated:
        assert size.seconds is None
    else:
        assert size.seconds is not None
        assert size.seconds <= 1800 or size.epochs == 5
        assert "on 2 cores" in size.remark


@pytest.mark.parametrize(("rows", "epochs", "interval"), [(300, 150, 5), (100_000, 18, 1)])
def test_how_often_it_validates_and_saves(tmp_path, rows, epochs, interval):
    options: Any = {"preprocessing": Preprocessing((64, 64)), "picture_folder": "", "split": "file", "rows": rows}
    (tmp_path / "config.py").write_text(starter_config("mine", "mine", TASKS, {}, accelerated=False, **options))
    config, _ = load_config([f"--config={tmp_path}/config.py"])
    assert config.train.epochs == epochs
    assert config.schedule.validation.interval_epochs == config.schedule.checkpoint.interval_epochs == interval


def test_where_sizes_change():
    batches = [choose_size(rows, 224, accelerated=False).batch_size for rows in (63, 64, 319, 320)]
    assert batches == [8, 16, 16, 32]
    given = [(1999, 97), (2000, 97), (2000, 96), (499_999, 97), (500_000, 97)]
    variants = [choose_size(*each, accelerated=True).variant for each in given]
    assert variants == ["tiny", "sm", "tiny", "sm", "md"]
    sizes = [choose_size(100, side, accelerated=False, pretrained=True) for side in (63, 64, 127, 128, 319, 320)]
    assert [size.pretrained for size in sizes] == [False] * 3 + [True] * 3
    assert ["learned better" in size.remark for size in sizes] == [True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("minutes", "speed", "wanted"),
    [
        (30, 1, ("auto:5", 4, 7)),
        (8, 1, ("auto:5", 4, 7)),
        (7, 1, ("auto:5", 4, 5)),
        (6, 1, ("auto:5", 2, 6)),
        (4, 1, ("head", 2, 30)),
        (4, 8, ("auto:5", 4, 7)),
        (40, 0.1, ("head", 2, 30)),
        (600, 1, ("auto:5", 4, 7)),
    ],
)
def test_a_budget_chooses_what_is_trained_and_how_long(tmp_path, minutes, speed, wanted):
    """And the time that is told keeps within it."""
    budget = starter.Budget(minutes, speed)
    size = choose_size(2640, 224, accelerated=False, pretrained=True, budget=budget)
    assert (size.tune, size.views, size.epochs) == wanted
    assert size.seconds is not None
    assert size.seconds <= 60 * minutes
    assert f"of {minutes:g} minutes" in size.remark
    assert f"{size.views} views" in size.model
    how = Preprocessing((224, 224))
    options: Any = {"preprocessing": how, "picture_folder": "", "split": "file", "rows": 2640, "accelerated": False}
    text = starter_config("mine", "mine", TASKS, {}, pretrained=True, budget=budget, **options)
    (tmp_path / "config.py").write_text(text)
    config, _ = load_config([f"--config={tmp_path}/config.py"])
    assert config_errors(config) == []
    assert (config.train.tune, config.train.tune_views, config.train.epochs) == wanted


def test_a_budget_without_weights_shortens_the_training():
    sizes = [
        choose_size(2640, 224, accelerated=False, budget=starter.Budget(minutes)).epochs for minutes in (6, 12, 600)
    ]
    assert sizes == [8, 20, 37]


@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize("rows", [1, 100, 10**6])
def test_a_budget_that_nothing_fits_says_what_would(rows, pretrained):
    options: Any = {"accelerated": False, "pretrained": pretrained}
    with pytest.raises(UserError, match=r"--minutes 1 is too little for .* takes about \d+ minutes") as caught:
        choose_size(rows, 224, budget=starter.Budget(1), **options)
    enough = int(str(caught.value).partition("takes about ")[2].split()[0])
    assert choose_size(rows, 224, budget=starter.Budget(enough), **options).epochs >= 5


def test_an_accelerator_is_not_judged_by_the_times_of_a_cpu():
    size = choose_size(20_000, 224, accelerated=True, budget=starter.Budget(1))
    assert size == choose_size(20_000, 224, accelerated=True)


def test_the_speed_of_a_machine_is_looked_at_in_a_moment(monkeypatch):
    monkeypatch.setattr(machine, "_LOOK", 0.01)
    assert machine.machine_speed() > 0


@pytest.mark.parametrize(("platforms", "wanted"), [("cpu", False), ("cuda,cpu", True), ("tpu", True)])
def test_the_backend_is_that_which_is_asked_for(monkeypatch, platforms, wanted):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert has_accelerator() is wanted


def test_pictures_of_twice_the_side_take_four_times_as_long():
    """But for the fit of the heads, which sees features alone."""
    of_side = [{way.tune: way for way in starter._pretrained_ways(200, side, 32)} for side in (640, 1280)]
    assert len(of_side[0]) == 2
    for tune, way in of_side[0].items():
        assert of_side[1][tune].of_epoch == pytest.approx(4 * way.of_epoch)
    assert of_side[1]["head"].storing == pytest.approx(4 * of_side[0]["head"].storing)
    shares = [starter._pretrained_ways(rows, 224, 32)[-1].of_epoch / rows for rows in (500, 2640)]
    assert shares[0] == pytest.approx(shares[1])
