"""The embedded default: mFormerV1-tiny on the generated demo set, about 2 minutes on 2 CPU cores.

    linnaeus demo --out data/demo
    linnaeus train --config=configs/quickstart.py --workdir=runs/demo

What to expect stands in README.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config as default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.experiment.group, config.experiment.name = "demo", "quickstart"

    data = config.data
    data.h5.labels_path, data.h5.images_path = "data/demo/labels.h5", "data/demo/images.h5"
    data.h5.train_val_split_ratio = 0.8
    data.img_size = 48
    data.batch_size, data.batch_size_val = 64, 256
    data.partial.levels = True  # rows known only to genus or family train the ranks they have
    data.meta.components.ELEVATION.enabled = True

    config.model.variant = "tiny"
    config.model.convnext_stages.layer_scale_init_value = 0.1  # the run is too short for blocks that start at 1e-6
    config.train.epochs = 24
    config.train.gradient_checkpointing.enabled_normal_steps = False  # memory is no concern here

    config.lr_scheduler.base_lr = 1.6e-2  # at 512 rows: 2e-3 at 64
    config.lr_scheduler.warmup_epochs = 1.0
    config.lr_scheduler.warmup_lr, config.lr_scheduler.min_lr = 1e-5, 1e-5
    config.optimizer.weight_decay = 0.05

    config.loss.grad_weighting.task.type = "static"
    config.loss.grad_weighting.task.init_weights = (1.0, 0.5, 0.25, 0.25)

    config.aug.random_resized_crop.scale = (0.7, 1.0)
    config.aug.color_jitter = 0.2
    config.aug.random_erase.prob = 0.0

    schedule = config.schedule
    schedule.meta_masking.start_prob, schedule.meta_masking.end_prob = 0.5, 0.1
    schedule.meta_masking.end_fraction = 0.5
    schedule.mixup.prob.enabled = False  # siblings look alike here: mixing pictures would only blur them
    schedule.validation.interval_epochs = 4
    schedule.validation.mask_meta_interval_fraction = 1.0  # at the end
    schedule.checkpoint.interval_epochs = 4
    schedule.checkpoint.keep_top_n, schedule.checkpoint.keep_last_n = 1, 1
    schedule.metrics.step_interval = schedule.metrics.console_interval = schedule.metrics.wandb_interval = 20
    schedule.metrics.lr_interval = 20
    config.metrics.track_null_vs_non_null = True
    config.metrics.null_vs_non_null_tasks = tuple(data.task_keys_h5)
    return config
