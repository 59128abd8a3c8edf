"""A configuration to begin with, written beside a data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from linnaeus_jax.building.steps.machine import has_accelerator, has_weights
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.paths import program
from linnaeus_jax.data.preprocessing import BEST_SIDE, Preprocessing
from linnaeus_jax.files import free_directory

_TEMPLATE = """# Trains on the data set of this folder; change what you like:
#
#     {command}

from pathlib import Path

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config as default_config

HERE = Path(__file__).resolve().parent


def get_config() -> ConfigDict:
    config = default_config()
    config.experiment.name = {name!r}

    data = config.data
    data.dataset.name = {name!r}
    data.task_keys_h5 = {tasks!r}
    {labels}
{images}
    {resizing}
    data.batch_size, data.batch_size_val = {batch_size}, 64
    data.partial.levels = True  # pictures identified only to a coarser rank train the ranks they have
    config.train.phase1_mask_null_loss = True  # and none that is unknown, which else is learned like one more class
{metadata}

    # {remark}
{model}
    config.train.epochs = {epochs}
    config.lr_scheduler.base_lr = {base_lr}  # at 512 rows, scaled to the batch
    config.lr_scheduler.warmup_epochs = 1.0

    config.loss.grad_weighting.task.type = "static"  # or "gradnorm"
    config.loss.grad_weighting.task.init_weights = {weights!r}

    schedule = config.schedule
    schedule.mixup.group_levels = {group_levels!r}
    schedule.mixup.prob.enabled = False  # mixes pictures of one group; try it once everything else works
    schedule.meta_masking.start_prob, schedule.meta_masking.end_prob = 0.5, 0.1  # so that pictures alone suffice, too
    schedule.meta_masking.end_fraction = 0.5
    schedule.validation.interval_epochs = {interval}
    schedule.checkpoint.interval_epochs = {interval}
    schedule.checkpoint.keep_top_n, schedule.checkpoint.keep_last_n = 1, 1
    schedule.metrics.step_interval = schedule.metrics.console_interval = schedule.metrics.wandb_interval = 20
    schedule.metrics.lr_interval = schedule.metrics.pipeline_interval = 20
    config.metrics.track_null_vs_non_null = True
    config.metrics.null_vs_non_null_tasks = data.task_keys_h5
    return config
"""
_SCRATCH = """    config.model.variant = {variant!r}  # tiny | sm | md | lg | xl
    config.model.weight_init = {weight_init!r}  # fan_in: larger random weights, with which narrow models learn faster
    config.train.gradient_checkpointing.enabled_normal_steps = False  # True: less memory, slower"""
_PRETRAINED = """    config.model.type, config.model.variant = "EfficientNet", {variant!r}
    config.model.pretrained = "package:efficientnet-{variant}"  # linnaeus models --pretrained lists what there is
    # auto:N fits heads to the features of the untouched trunk, then trains the last N blocks and the heads, and keeps
    # what is better in validation; last:N does the second alone, head trains the heads alone, both on what is stored of
    # each picture and of tune_views augmented views of it before; full trains everything
    config.train.tune, config.train.tune_views = {tune!r}, {views}"""
#: from how many pixels on published weights are used
SMALLEST = 128


@dataclass(frozen=True)
class _Trunk:
    """Published weights, and what they cost with pictures of `size` pixels on two cores of a CPU.

    Attributes:
      last: blocks that are tuned.
      updates: with which they, or all blocks, have learnt what they can of few rows.
      view, update, fit: seconds of storing a view, of a picture in an update of the last blocks, and of fitting heads
        to the features of a view.
      stored: bytes of a view.
      views: beside the picture itself.
    """

    variant: str
    size: int
    last: int
    view: float
    update: float
    fit: float
    stored: int
    views: int
    updates: int = 600

    @property
    def tune(self) -> str:
        """`train.tune`."""
        return f"auto:{self.last}"


#: the one with the largest pictures that are not larger than those of the data set is used, or the first
_TRUNKS = (
    _Trunk("lite0", 224, 5, 0.009, 0.008, 0.005, 43_904, 4),
    _Trunk("lite2", 260, 6, 0.023, 0.016, 0.008, 69_360, 3),
)
#: seconds of a picture in an update of heads alone, updates, rows of an update
_HEAD_SECONDS, _HEAD_UPDATES, _HEAD_BATCH = 0.0006, 3000, 256
#: most bytes of what is stored
_MOST_STORED = 4 * 2**30
#: seconds per picture of training the smallest model on two cores of a CPU at 224 pixels; they grow with the area
_SECONDS = 0.011
#: updates after which a small model has learnt what it can from few pictures, and more of it on a GPU
_UPDATES = {"tiny": 3000, "sm": 10_000, "md": 20_000}
#: `lr_scheduler.base_lr` of a model that begins from random weights; more and "sm" learns next to nothing with AdamW
_RATES = {"tiny": 1.6e-2, "sm": 2e-3, "md": 2e-3}
#: the same where weights are there: of their last blocks and heads, and of all of them
_TUNED_RATE, _WHOLE_RATE = 1.6e-2, 5e-3
#: side in pixels below which a model, which divides it by 32, learns less of a picture than of the same one enlarged
_LEAST_SIDE = 64
#: training rows from which random weights of a large model are taken in place of published ones of a small one
_MANY_ROWS = 500_000
#: epochs of all of a pretrained model, and updates beyond which fewer do
_WHOLE_EPOCHS, _WHOLE_MOST = (20, 60), 30_000
#: seconds of compiling, validating and saving that come to storing and training
_BESIDE = 120
#: `train.tune` -> fewest epochs that are worth while, and fewest and most that are wanted: with more, few rows would be
#: seen so often that they are learned by heart
_EPOCHS = {"auto": (5, 7, 60), "last": (5, 7, 60), "head": (10, 10, 60), "full": (5, 20, 150)}
#: component -> its position in the metadata vector
_COMPONENTS = {"TEMPORAL": 0, "SPATIAL": 1, "ELEVATION": 2}


@dataclass(frozen=True)
class Size:
    """How large a model and how long a training are a good beginning.

    Attributes:
      seconds: of storing and training on a CPU; None where it is for an accelerator.
      remark: of how they were chosen, one line.
      base_lr: of 512 rows.
      tune, views: `train.tune` and `train.tune_views`.
      pretrained: whether published weights are the beginning.
    """

    variant: str
    epochs: int
    batch_size: int
    seconds: float | None
    remark: str
    base_lr: float
    tune: str = "full"
    views: int = 0
    pretrained: bool = False

    @property
    def model(self) -> str:
        """In words."""
        if not self.pretrained:
            return self.variant
        how = "all of it tuned" if self.tune == "full" else f"{self.tune} tuned on {self.views} views of each picture"
        return f"EfficientNet {self.variant}, pretrained, {how}"


@dataclass(frozen=True)
class Budget:
    """How long storing and training may take.

    Attributes:
      minutes: all of it.
      speed: of this machine, in units of the two cores of a CPU for which the times are known.
    """

    minutes: float = 30
    speed: float = 1.0

    @property
    def seconds(self) -> float:
        """On those two cores."""
        return 60 * self.minutes * self.speed


def fitted(
    budget: float, *, storing: float, of_epoch: float, views: int, wanted: int, least: int, beside: float = _BESIDE
) -> tuple[int, int] | None:
    """Views and epochs that fit into a budget: as many views as leave time for `least` epochs, then as many epochs as
    fit, at most `wanted`; None where nothing does.

    Args:
      budget, storing, of_epoch, beside: seconds; `storing` of one view of every row, `beside` of all else.
    """
    fewer = [views]
    while fewer[-1]:
        fewer.append(fewer[-1] // 2)
    for some in fewer:
        left = budget - beside - storing * (1 + some) * bool(storing)
        if (epochs := min(wanted, int(left / of_epoch))) >= least:
            return some, epochs
    return None


def least_epochs(tune: str) -> int:
    """Fewest epochs that are worth while with this `train.tune`, within a budget."""
    return _EPOCHS[tune.partition(":")[0]][0]


def choose_size(
    rows: int, img_size: int, *, accelerated: bool, pretrained: bool = False, budget: Budget | None = None
) -> Size:
    """Model, epochs and batch for a number of training rows and a side of pictures in pixels.

    With pretrained weights and no accelerator, the last five blocks of Lite0, or from 260 pixels on the last six of
    Lite2, train on stored inputs, or the heads alone where these would fill the disk; on an accelerator all of either
    trains. Without weights, on a CPU the smallest model, for about 3,000 updates; on an accelerator a model that grows
    with the rows and the pictures. A budget, by default half an hour on two cores of a CPU, may lead to fewer views and
    epochs, or to the heads alone; without one that is given, the least that is worth while may take longer.

    Raises:
      UserError: nothing that is worth while fits the budget.
    """
    size = _chosen(max(rows, 1), img_size, accelerated=accelerated, pretrained=pretrained, budget=budget)
    return replace(size, remark=size.remark + _larger(img_size, size.pretrained))


def _chosen(rows: int, img_size: int, *, accelerated: bool, pretrained: bool, budget: Budget | None) -> Size:
    batch_size = 32 if rows >= 320 else 16 if rows >= 64 else 8
    if pretrained and img_size >= SMALLEST and (rows < _MANY_ROWS or not accelerated):
        if accelerated:
            return _whole_size(rows, img_size, batch_size)
        return _within(budget, rows, img_size, _pretrained_ways(rows, img_size, batch_size))
    variant = "tiny"
    if accelerated and rows >= 2000 and img_size > 96:
        variant = "sm" if rows < _MANY_ROWS else "md"
    of_epoch = rows * _SECONDS * (img_size / 224) ** 2
    way = _Way("full", _UPDATES[variant], 0, of_epoch, 0, variant, batch_size)
    if not accelerated:
        return _within(budget, rows, img_size, [way])
    epochs, per_epoch = way.wanted(rows), max(rows // batch_size, 1)
    return Size(variant, epochs, batch_size, None, _on_accelerator(rows, img_size, epochs, per_epoch), _RATES[variant])


def _whole_size(rows: int, img_size: int, batch_size: int) -> Size:
    trunk, per_epoch, (least, most) = _trunk(img_size), max(rows // batch_size, 1), _WHOLE_EPOCHS
    epochs = min(max(round(trunk.updates / per_epoch), least), most)
    epochs = max(min(epochs, round(_WHOLE_MOST / per_epoch)), least // 2)
    remark = _on_accelerator(rows, img_size, epochs, per_epoch)
    return Size(trunk.variant, epochs, batch_size, None, remark, _WHOLE_RATE, pretrained=True)


def _on_accelerator(rows: int, img_size: int, epochs: int, per_epoch: int) -> str:
    return _remark(rows, img_size, f"on a GPU or TPU: about {epochs * per_epoch:,} updates")


def _trunk(img_size: int) -> _Trunk:
    return [trunk for trunk in _TRUNKS if trunk.size <= max(img_size, _TRUNKS[0].size)][-1]


@dataclass(frozen=True)
class _Way:
    """A way to train: `train.tune`, updates that it wants, seconds of what is done before the first update with a view
    of every row and of an epoch, most views, the variant, rows of an update."""

    tune: str
    updates: int
    storing: float
    of_epoch: float
    views: int
    variant: str
    batch_size: int

    def wanted(self, rows: int) -> int:
        """Epochs, where there is time."""
        _, fewest, most = _EPOCHS[self.tune.partition(":")[0]]
        return min(max(round(self.updates / max(rows // self.batch_size, 1)), fewest), most)

    def seconds(self, views: int, epochs: int) -> float:
        """Of storing that many views beside the pictures themselves, and of training."""
        return self.storing * (1 + views) + epochs * self.of_epoch + _BESIDE


def _pretrained_ways(rows: int, img_size: int, batch_size: int) -> list[_Way]:
    trunk = _trunk(img_size)
    area = (img_size / trunk.size) ** 2
    storing = rows * trunk.view * area
    # with few rows an update the optimizer takes most of the time
    of_heads = _HEAD_BATCH if rows >= 16 * _HEAD_BATCH else batch_size
    of_epoch = rows * _HEAD_SECONDS * area
    ways = [_Way("head", _HEAD_UPDATES, storing, of_epoch, trunk.views, trunk.variant, of_heads)]
    views = min(trunk.views, int(_MOST_STORED / (rows * trunk.stored * area)) - 1)
    if views >= 0:
        before, of_epoch = storing + rows * trunk.fit, rows * trunk.update * area
        ways.insert(0, _Way(trunk.tune, trunk.updates, before, of_epoch, views, trunk.variant, batch_size))
    return ways


def _within(given: Budget | None, rows: int, img_size: int, ways: Sequence[_Way]) -> Size:
    """The first way that fits the budget; where none does and none is given, the cheapest."""
    budget = given or Budget()
    for way in ways:
        times = {"storing": way.storing, "of_epoch": way.of_epoch}
        least = least_epochs(way.tune)
        found = fitted(budget.seconds, **times, views=way.views, wanted=way.wanted(rows), least=least)
        if found is not None:
            break
    else:
        needed = {one.seconds(0, least_epochs(one.tune)): one for one in ways}
        if given is not None:
            raise UserError(
                f"--minutes {budget.minutes:g} is too little for {rows:,} training rows of {img_size} px on this "
                f"machine: the least that is worth while takes about {_minutes((1 + min(needed)) / budget.speed)} "
                "minutes; give as many, or use fewer or smaller pictures"
            )
        way = needed[min(needed)]
    views, epochs = found or (0, least_epochs(way.tune))
    seconds = way.seconds(views, epochs) / budget.speed
    time = f"{_minutes(seconds)} of {budget.minutes:g}" if found else f"{_minutes(seconds)}"
    before = f", {_minutes(way.storing * (1 + views) / budget.speed)} of them before the first update"
    where = "on this CPU: about {} minutes" if given else "on a CPU: about {} minutes on 2 cores"
    where = where.format(time) + before * bool(way.storing)
    rate, how = (_TUNED_RATE if way.storing else _RATES[way.variant]), (way.tune, views, bool(way.storing))
    return Size(way.variant, epochs, way.batch_size, seconds, _remark(rows, img_size, where), rate, *how)


def _minutes(seconds: float) -> int:
    return max(1, math.ceil(seconds / 60))


def _remark(rows: int, img_size: int, where: str) -> str:
    return f"chosen for {rows:,} training rows of {img_size} px {where}"


def _larger(img_size: int, pretrained: bool) -> str:
    """What larger pictures gain, to be added to a remark."""
    if img_size < _LEAST_SIDE:
        return f"; pictures of less than {_LEAST_SIDE} px are learned better with --size {_LEAST_SIDE}"
    if pretrained and img_size < BEST_SIDE:
        return f"; where there is time, --size {BEST_SIDE} is learned better"
    return ""


def training_command(folder: str | Path) -> str:
    """The command that trains on the data set in a folder, in a directory that is free."""
    return program("train", f"--config={folder}/config.py", f"--workdir={free_directory('runs/mine')}")


def starter_config(
    folder: str,
    name: str,
    tasks: Sequence[str],
    sources: Mapping[str, tuple[str, int]],
    *,
    preprocessing: Preprocessing,
    picture_folder: str,
    split: str,
    rows: int = 1000,
    accelerated: bool | None = None,
    pretrained: bool | None = None,
    budget: Budget | None = None,
) -> str:
    """The text of a config file in Python.

    Args:
      folder: where it will lie, for its first line.
      name: of the data set.
      tasks: label columns, finest first.
      sources: component -> (data set of the labels file, its width); components that are missing are switched off.
      preprocessing: how pictures were, or will be, made square.
      picture_folder: where the pictures lie; empty: in images.h5 beside it.
      split: "file" where the labels file says which rows are for training, "random" where a run draws them, "train"
        where there is nothing but training rows.
      rows: for training.
      accelerated: whether it is for a GPU or TPU; None: what this machine has.
      pretrained: whether there are pretrained weights; None: if their packages are installed.
      budget: how long storing and training may take, see `choose_size`.
    """
    prefix = "train_" if split == "train" else ""
    remark = "  # says itself which rows are for training" if split == "file" else ""
    img_size = preprocessing.size[0]
    size = choose_size(
        rows,
        img_size,
        accelerated=has_accelerator() if accelerated is None else accelerated,
        pretrained=has_weights() if pretrained is None else pretrained,
        budget=budget,
    )
    model = _PRETRAINED if size.pretrained else _SCRATCH
    labels = f'data.h5.{prefix}labels_path = str(HERE / "labels.h5"){remark}'
    images = f'    data.h5.{prefix}images_path = str(HERE / "images.h5")'
    if picture_folder:
        images = (
            f"    data.hybrid.use_hybrid, data.hybrid.images_dir = True, {picture_folder!r}\n"
            '    data.hybrid.file_extension = ""  # identifiers are whole file names'
        )
    lines = []
    for component, index in _COMPONENTS.items():
        node = f"data.meta.components.{component}"
        if component in sources:
            source, width = sources[component]
            lines.append(f"    {node}.enabled, {node}.idx = True, {index}")
            lines.append(f"    {node}.source, {node}.dim = {source!r}, {width}")
        else:
            lines.append(f"    {node}.enabled = False")
    if not sources:
        lines = ["    data.meta.active = False  # no place, date or elevation is known"]
    return _TEMPLATE.format(
        command=" ".join(training_command(folder).splitlines()),
        name=name,
        tasks=tuple(tasks),
        images=images,
        labels=labels,
        metadata="\n".join(lines),
        resizing="\n    ".join(_resizing(preprocessing)),
        remark=size.remark,
        model=model.format(
            variant=size.variant,
            weight_init="fan_in" if size.variant == "tiny" else "normal",
            tune=size.tune,
            views=size.views,
        ),
        epochs=size.epochs,
        batch_size=size.batch_size,
        interval=max(1, size.epochs // 30),
        base_lr=size.base_lr,
        weights=tuple(0.5**position for position in range(len(tasks))),
        group_levels=(tasks[0],),
    )


def _resizing(preprocessing: Preprocessing) -> Iterator[str]:
    """Lines that set the keys of how pictures become square; those of the default are left out."""
    default = Preprocessing(preprocessing.size)
    yield f"data.img_size = {preprocessing.size[0]}"
    for key in ("resize_mode", "interpolation", "crop_fraction"):
        value = getattr(preprocessing, key)
        if value != getattr(default, key):
            yield f"data.{key} = {value!r}"
