"""An experiment of the size of iNaturalist: millions of pictures at 384 px, four ranks, place, date and elevation.

    linnaeus schedule --config=configs/inaturalist.py --dataset-size=2700000 --devices=8
    linnaeus train --config=configs/inaturalist.py --workdir=runs/inaturalist

The first command shows what the second will do. The data are one labels file and one images file, or the joined parts
of one, as `linnaeus build` makes them; rows may be known to a coarser rank only, and may
lack any part of their metadata.
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    config = sized("mFormerV1", "md", batch_size_per_device=64)
    config.experiment.project, config.experiment.name = "inaturalist", "mFormerV1_md"

    # ---- data
    data = config.data
    data.dataset.name = "inaturalist"
    data.h5.labels_path = "data/inaturalist/labels.h5"
    data.h5.images_path = "data/inaturalist/images.h5"
    data.h5.train_val_split_ratio = 0.95
    data.task_keys_h5 = ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40")  # species, genus, family, order
    data.partial.levels = True
    data.batch_size_val = 512
    data.num_workers = 8

    # ---- 40 epochs: warmup, a constant rate, and a last quarter that decays
    config.train.epochs = 40
    config.train.ema.enabled = True
    config.lr_scheduler.name = "wsd"
    config.lr_scheduler.base_lr = 5e-4  # at 512 rows, scaled to the batch
    config.lr_scheduler.warmup_fraction = 0.03
    config.lr_scheduler.stable_duration_fraction = 0.75  # of the time after warmup
    config.lr_scheduler.decay_duration_fraction = 0.25
    config.lr_scheduler.min_lr = 1e-6

    with config.unlocked():  # learned positions and tokens are no maps whose norm should shrink
        groups = config.optimizer.parameter_groups
        groups.enabled = True
        names = {"type": "name", "patterns": ("attn.freqs", "cls_token")}
        groups.not_decayed = {"filter": names, "weight_decay": 0.0}

    # ---- what is shown and hidden while training
    schedule = config.schedule
    schedule.null_masking.enabled = True  # first only ranks that are known count, at the end every rank
    schedule.null_masking.start_prob, schedule.null_masking.end_prob = 0.0, 1.0
    schedule.null_masking.end_fraction = 0.5
    schedule.mixup.cutmix.enabled = True
    schedule.mixup.switch_prob = 0.5
    schedule.mixup.prob.start_prob, schedule.mixup.prob.end_prob = 1.0, 0.1
    schedule.mixup.prob.end_fraction = 0.75  # little mixing while the rate decays
    schedule.meta_masking.start_prob, schedule.meta_masking.end_prob = 1.0, 0.1  # pictures first, then metadata
    schedule.meta_masking.end_fraction = 0.3
    partial = schedule.meta_masking.partial
    partial.enabled = True
    partial.start_fraction, partial.end_fraction, partial.prob_end_fraction = 0.1, 1.0, 0.5
    partial.start_prob, partial.end_prob = 0.01, 0.5
    partial.whitelist = (("TEMPORAL",), ("SPATIAL",), ("SPATIAL", "ELEVATION"))

    # ---- what is measured and kept
    validation = schedule.validation
    validation.interval_epochs = 1
    validation.mask_meta_interval_epochs = 2  # with pictures alone
    validation.partial_mask_meta.enabled = True
    validation.partial_mask_meta.interval_epochs = 5
    validation.partial_mask_meta.whitelist = (("TEMPORAL",), ("SPATIAL", "ELEVATION"))
    validation.final_epoch.exhaustive_partial_meta_validation = True
    validation.final_epoch.exhaustive_meta_components = ("TEMPORAL", "SPATIAL", "ELEVATION")
    schedule.checkpoint.interval_epochs = 1
    schedule.checkpoint.keep_top_n, schedule.checkpoint.keep_last_n = 2, 2
    config.metrics.track_null_vs_non_null = True
    config.metrics.null_vs_non_null_tasks = data.task_keys_h5
    return complete_open_nodes(config)
