"""The published sizes of the model families as configurations; `configs/mformer_*.py` has one file for each."""

from __future__ import annotations

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config


def sized(family: str, variant: str, *, batch_size_per_device: int) -> ConfigDict:
    """The default tree with a variant at its published settings, to be trained from random weights.

    Depths, widths and drop rates are those of the variant. Pictures have 384 px; the computation is bfloat16 on
    accelerators and recomputes activations only where the memory would not do otherwise; parameters are not averaged.
    The best and the last checkpoint are kept.

    Args:
      batch_size_per_device: rows of a micro-batch on each device; the learning rate follows the whole batch.
    """
    config = get_config()
    config.experiment.name = f"{family}_{variant}"
    config.model.type, config.model.variant = family, variant

    data = config.data
    data.h5.labels_path, data.h5.images_path = "data/labels.h5", "data/images.h5"
    data.img_size = 384
    data.batch_size_per_device = batch_size_per_device
    data.meta.components.ELEVATION.enabled = True

    config.train.compute_dtype = "auto"
    config.train.ema.enabled = False

    config.lr_scheduler.base_lr = 5e-4  # at 512 rows; a single device with few rows still starts well above min_lr
    config.lr_scheduler.min_lr, config.lr_scheduler.warmup_lr = 1e-6, 1e-7

    schedule = config.schedule
    schedule.meta_masking.end_prob, schedule.meta_masking.end_fraction = 0.05, 0.3  # pictures first, then metadata
    schedule.mixup.prob.end_fraction = 0.4
    schedule.checkpoint.keep_top_n, schedule.checkpoint.keep_last_n = 1, 1
    return config
