"""How Polli Linnaeus and its documents spell what stands in the default tree, and what has no counterpart in it."""

from __future__ import annotations

#: documented spelling -> key of the tree; the longest match counts
ALIASES = {
    **{
        f"METRICS.{kind}_{unit}": f"schedule.metrics.{kind}_{unit}".lower()
        for kind in ("STEP", "CONSOLE", "WANDB", "LR", "PIPELINE")
        for unit in ("INTERVAL", "FRACTION")
    },
    "SCHEDULE.MIX": "schedule.mixup",
    "SCHEDULE.MIX.MIXUP": "schedule.mixup",
    "LOSS.GRAD_WEIGHTING.CLASS": "loss.grad_weighting.class_weights",
    "CHECKPOINT.KEEP_TOP_N": "schedule.checkpoint.keep_top_n",
    "CHECKPOINT.KEEP_LAST_N": "schedule.checkpoint.keep_last_n",
    "CHECKPOINT.SAVE_FREQ": "schedule.checkpoint.interval_epochs",
    "TRAIN.AMP_OPT_LEVEL": "train.compute_dtype",
    "DATA.BATCH_SIZE": "data.batch_size_per_device",
    "EXPERIMENT.TAGS": "experiment.wandb.tags",
    "EXPERIMENT.NOTES": "experiment.wandb.notes",
    "AUG.AUTOAUG.COLOR_JITTER": "aug.color_jitter",
    "MISC.SEED": "train.seed",
    "MODEL.ATTENTION_STAGES.EMBED_DIMS": "model.attention_stages.dims",
    "META.MASK_MODE": "model.missing_metadata",
    "DATA.META.MASK_MODE": "model.missing_metadata",
}

#: families and their sizes, as MODEL.NAME has them: FAMILY_SIZE
VARIANTS = {"mFormerV0": ("sm", "md", "lg"), "mFormerV1": ("sm", "md", "lg", "xl")}

#: options of a head that has one way to route
ROUTING = ("routing_strategy", "temperature")

#: keys without a counterpart (patterns) -> why they may be left out
COMPATIBILITY = {
    "SCHEDULE.MIX*.USE_GPU": "mixing always runs inside the compiled step, on the device",
    "SCHEDULE.MIX*.CHUNK_BOUNDS": "the bounds follow from the metadata components",
    "*.FROM": "it never had an effect; name the file in BASE",
    "EXPERIMENT.CODE_VERSION": "every run writes the versions of its code to assets/versions.json",
    "EXPERIMENT.WANDB.KEY": "the environment variable WANDB_API_KEY or `wandb login` holds it",
    "LOADING_FROM_CHECKPOINT": "a resumed run knows that it is one",
    "METRICS.USE_GPU": "metrics are sums of the compiled step, on the device",
    "METRICS.DEBUG_COMPARE": "it never had an effect",
    "METRICS.TAXALIGN*": "it never had an effect",
    "TRAIN.ALLOW_WANDB_VAL_CHANGE": "a resumed run may always update its configuration in W&B",
    "VAL.*": "schedule.validation says what is validated, and when",
    "LR_SCHEDULER.REFERENCE_LR": "the peak is base_lr, scaled by the batch size over reference_bs",
    "LR_SCHEDULER.TOTAL_STEPS": "the number of steps follows from the data and train.epochs",
    "TRAIN.START_EPOCH": "a resumed run takes its position from the checkpoint",
    "MISC.OUTPUT": "--workdir, or env.output.base_dir and the names of the experiment, say where a run lies",
    "MISC.SAVE_FREQ": "schedule.checkpoint says when checkpoints are written",
    "MISC.*": "logging is scheduled by schedule.metrics",
    "AUG.SINGLE_AUG_DEVICE": "augmentation runs inside the compiled step",
    "AUG.USE_OPENCV": "augmentation runs inside the compiled step",
    "DATA.PIN_MEMORY": "JAX manages the transfer buffers",
    "DATA.USE_VECTORIZED_PROCESSOR": "labels are always processed as whole columns",
    "DATA.SIMULATE_HPC": "there is no artificial delay",
    "DATA.IO_DELAY": "there is no artificial delay",
    "DATA.PREFETCH.BATCH_CONCURRENCY": "data.num_workers sets the reading threads",
    "DATA.PREFETCH.NUM_PREPROCESS_THREADS": "preprocessing runs inside the compiled step",
    "DATA.PREFETCH.SLEEP_TIME": "the loader waits without polling",
    "DATA.DATASET_META*": "read from the labels file",
    "DATA.AUTOBATCH.*": "memory is read from the compiled step: no trial is run, and validation has a size of its own",
    "ENV.INPUT.*": "paths are read as given",
    "ENV.TACC": "paths are read as given",
    "ENV.SCRATCH": "paths are read as given",
    "ENV.OUTPUT.BUCKET.BUCKET": "env.output.bucket.remote names remote and bucket together, as remote:bucket",
    **dict.fromkeys(
        ("ENV.OUTPUT.BUCKET.APP_KEY_ID", "ENV.OUTPUT.BUCKET.APP_KEY"),
        "rclone keeps its own credentials, see `rclone config`",
    ),
    "ENV.OUTPUT.DIRS.*": "the layout of the run directory is fixed",
    "OPTIMIZER.MUON.USE_DISTRIBUTED": "the compiler distributes the work",
    "OPTIMIZER.MUON.STRICT": "Muon takes matrices and convolution kernels only, the rest gets AdamW",
    "OPTIMIZER.MUON.APPLY_SCALING": "updates are always scaled by sqrt(max(1, out / in))",
    "LOSS.TAXONOMY_SMOOTHING.UNIFORM_ROOTS": "a class without a parent has no relative, so its row is always uniform",
    "LOSS.TAXONOMY_SMOOTHING.PARTIAL_SUBTREE_WEIGHTING": "it never had an effect",
    "LOSS.GRAD_WEIGHTING.SUBSET*": "it never had an effect",
    "LOSS.GRAD_WEIGHTING.TAXALIGN*": "it never had an effect",
    "LOSS.GRAD_WEIGHTING.TASK.EXCLUDE_PATTERNS": "exclude_config chooses the parameters",
    "LOSS.GRAD_WEIGHTING.TASK.GRADNORM_ACCUM_STEPS": "task norms are measured on the whole update",
    "DEBUG.METRICS.*": "validation_metrics and dump_metrics cover it",
    "DEBUG.DATASET.*": "the flag dataloader covers it",
    "MODEL.NAME": "type, variant and the stages describe the model; experiment.name names the run",
    "MODEL.NUM_CLASSES": "class counts come from the labels",
    "MODEL.IN_CHANS": "images always have three channels",
    "MODEL.IMG_SIZE": "the model takes images of data.img_size",
    "MODEL.EXTRA_TOKEN_NUM": "it follows from the enabled metadata components",
    "MODEL.USE_FLASH_ATTN": "attn_impl chooses the attention kernel",
    "MODEL.*.USE_FLASH_ATTN": "attn_impl chooses the attention kernel",
    "MODEL.FIND_UNUSED_PARAMETERS": "unused parameters need no search: their gradients are zero",
    "MODEL.META_DIMS": "widths come from data.meta.components",
    "MODEL.ROPE_STAGES.DIMS": "they are the last two of convnext_stages.dims",
    "MODEL.CONV_STAGES.STEM_OUT": "the stem's width is the first of conv_stages.embed_dims",
    "MODEL.ATTENTION_STAGES.ATTENTION_TYPE": "mFormerV0 always has relative attention",
    "MODEL.CLASSIFICATION.HEADS.*.IN_FEATURES": "it follows from the model's width",
    "MODEL.CLASSIFICATION.HEADS.*.OUT_FEATURES": "class counts come from the labels",
    **{
        f"MODEL.CLASSIFICATION.HEADS.*.{option.upper()}": "HierarchicalSoftmax always routes softly, at temperature 1"
        for option in ROUTING
    },
    **{
        f"MODEL.{section}*": "it never had an effect on the model"
        for section in ("AGGREGATION", "NORMALIZATION", "FEATURE_RESOLVER", "ATTENTION_MECHANISM", "OTHER_COMPONENTS")
    },
}

#: keys that are harmless only with these values -> what to do about others
HARMLESS = {
    "MODEL.IN_CHANS": ((3, None), "only images with three channels are offered; set it to 3"),
    "MODEL.RESUME": ((None, "", False), "a run resumes from its own --workdir; remove the key"),
    "TRAIN.RESUME": ((None, "", False), "a run resumes from its own --workdir; remove the key"),
}
