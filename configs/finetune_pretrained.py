"""Fine-tuning from pretrained weights, on other classes and data of your own.

    linnaeus train --config=configs/finetune_pretrained.py --config.model.pretrained=weights.safetensors

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
`model.pretrained` names a file (.safetensors or .pth) or the directory of a run, whose model must be of the same family
and variant. Rows of the heads are matched by taxon id, which the run or the export of one knows; for other files,
`model.pretrained_classes` names their class_to_idx.json. `linnaeus import-weights` shows beforehand
what fits. Weights are read once, before the first update; a resumed run goes on with its own.
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    config = sized("mFormerV1", "sm", batch_size_per_device=64)
    config.experiment.name = "finetune_pretrained"
    config.model.pretrained = "weights.safetensors"
    config.model.drop_path_rate = 0.1

    config.train.epochs = 15
    config.train.ema.enabled = True
    config.train.ema.decay = 0.999
    config.lr_scheduler.base_lr = 2e-4  # of the heads, at 512 rows; each layer below learns at 0.75 of the next one
    config.optimizer.layer_decay = 0.75
    config.lr_scheduler.warmup_epochs = 1.0
    config.lr_scheduler.warmup_lr = config.lr_scheduler.min_lr = 1e-7
    config.optimizer.weight_decay = 0.05

    schedule = config.schedule
    schedule.meta_masking.start_prob, schedule.meta_masking.end_prob = 0.3, 0.1  # the weights know both by now
    schedule.meta_masking.end_fraction = 0.5
    schedule.mixup.prob.start_prob, schedule.mixup.prob.end_prob = 0.5, 0.0
    schedule.mixup.prob.end_fraction = 0.8
    schedule.checkpoint.keep_top_n, schedule.checkpoint.keep_last_n = 1, 1
    return config
