"""Fine-tuning with one learning-rate curve per part of the network.

    linnaeus train --config=configs/finetune_groups.py --config.model.pretrained=weights.safetensors

Name your data in data.h5.labels_path and data.h5.images_path, as quickstart.py does.
New heads learn fast on a short linear schedule, the metadata branch warms up longer, attention follows the global
warmup-stable-decay curve, and the convolutional stages, which hold the most general features, move least.
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.defaults import get_config as default_config


def get_config() -> ConfigDict:
    config = default_config()
    with config.unlocked():
        config.experiment.name = "finetune_groups"
        config.train.epochs = 30
        config.train.ema.enabled = True

        config.lr_scheduler.name = "wsd"
        config.lr_scheduler.base_lr = 5e-5
        config.lr_scheduler.min_lr = 1e-6
        config.lr_scheduler.warmup_fraction = 0.05
        config.lr_scheduler.stable_duration_fraction = 0.6
        config.lr_scheduler.decay_duration_fraction = 0.4

        # the filters select disjoint parameters; "default" (the rest) is attention and norms
        groups = config.optimizer.parameter_groups
        groups.enabled = True
        heads = {"type": "name", "patterns": ("head.",), "match_type": "startswith"}
        metadata = {"type": "name", "patterns": ("meta_",), "match_type": "startswith"}
        groups.heads = {"filter": heads, "lr_multiplier": 10.0}
        groups.metadata = {"filter": metadata, "lr_multiplier": 2.0}
        groups.convolutions = {"filter": {"type": "dimension", "dimensions": (4,)}, "lr_multiplier": 0.1}

        curves = config.lr_scheduler.parameter_groups
        curves.enabled = True
        curves.heads = {"name": "linear", "warmup_steps": 100, "min_lr": 5e-6}
        curves.metadata = {"warmup_fraction": 0.1}
        curves.convolutions = {"min_lr": 1e-8, "warmup_lr": 1e-8}  # their peak is below lr_scheduler.min_lr

        config.schedule.validation.mask_meta_interval_epochs = 5
        config.schedule.checkpoint.keep_top_n = 2
        config.schedule.checkpoint.keep_last_n = 1
        config.schedule.meta_masking.end_fraction = 0.3
        config.schedule.mixup.prob.end_fraction = 0.4

        config.train.early_stop.active = True
        config.train.early_stop.metric = "val_chain_accuracy"
        config.train.early_stop.patience_epochs = 8
    return complete_open_nodes(config)
