"""A configuration to begin with, written beside a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_TEMPLATE = '''"""Trains on the data set of this folder; change what you like.

    python -m linnaeus_jax.main --config={folder}/config.py --workdir=runs/mine
"""

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
    data.img_size = {img_size}
    data.batch_size, data.batch_size_val = 32, 64
    data.partial.levels = True  # pictures identified only to a coarser rank train the ranks they have
{metadata}

    config.model.variant = {variant!r}  # tiny | sm | md | lg | xl
    config.model.convnext_stages.layer_scale_init_value = 0.1  # blocks count from the first update, for short runs
    config.train.epochs = 20
    config.train.gradient_checkpointing.enabled_normal_steps = False  # True: less memory, slower
    config.lr_scheduler.base_lr = {base_lr}  # at 512 rows, scaled to the batch
    config.lr_scheduler.warmup_epochs = 1.0

    config.loss.grad_weighting.task.type = "static"  # or "gradnorm"
    config.loss.grad_weighting.task.init_weights = {weights!r}

    schedule = config.schedule
    schedule.mixup.group_levels = {group_levels!r}
    schedule.mixup.prob.enabled = False  # mixes pictures of one group; try it once everything else works
    schedule.meta_masking.start_prob, schedule.meta_masking.end_prob = 0.5, 0.1  # so that pictures alone suffice, too
    schedule.meta_masking.end_fraction = 0.5
    schedule.validation.interval_epochs = 1
    schedule.checkpoint.interval_epochs = 1
    schedule.checkpoint.keep_top_n, schedule.checkpoint.keep_last_n = 1, 1
    schedule.metrics.step_interval = schedule.metrics.console_interval = schedule.metrics.wandb_interval = 20
    schedule.metrics.lr_interval = schedule.metrics.pipeline_interval = 20
    config.metrics.track_null_vs_non_null = True
    config.metrics.null_vs_non_null_tasks = data.task_keys_h5
    return config
'''
#: component -> its position in the metadata vector
_COMPONENTS = {"TEMPORAL": 0, "SPATIAL": 1, "ELEVATION": 2}


def starter_config(
    folder: str,
    name: str,
    tasks: Sequence[str],
    sources: Mapping[str, tuple[str, int]],
    *,
    img_size: int,
    picture_folder: str,
    sides: str,
) -> str:
    """The text of a config file in Python.

    Args:
      folder: where it will lie, for its first line.
      name: of the data set.
      tasks: label columns, finest first.
      sources: component -> (data set of the labels file, its width); components that are missing are switched off.
      picture_folder: where the pictures lie; empty: in images.h5 beside it.
      sides: "file" where the labels file says which rows are for training, "random" where a run draws them, "train"
        where there is nothing but training rows.
    """
    prefix = "train_" if sides == "train" else ""
    remark = "  # says itself which rows are for training" if sides == "file" else ""
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
        folder=folder,
        name=name,
        tasks=tuple(tasks),
        images=images,
        labels=labels,
        metadata="\n".join(lines),
        img_size=img_size,
        variant="tiny" if img_size <= 96 else "sm",
        base_lr=1.6e-2 if img_size <= 96 else 8e-3,
        weights=tuple(0.5**position for position in range(len(tasks))),
        group_levels=(tasks[0],),
    )
