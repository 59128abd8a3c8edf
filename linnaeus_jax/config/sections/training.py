"""The run, learning rates and optimizers."""

from __future__ import annotations

from linnaeus_jax.config.keys import InOrder, duration, key, unset

TRAIN = dict(
    epochs=key(300, "passes over the training rows", within="[1, 100000]"),
    seed=key(
        0, "seed of everything random: initial weights, order of rows, augmentation, dropout", within="[0, 4294967295]"
    ),
    accumulation_steps=key(0, "micro-batches of one update; 0 means 1", within="[0, 65536]"),
    clip_grad=key(
        5.0,
        "limit of the gradient: its global norm, or with clip_mode = adaptive its ratio to the weights; 0 or less: off",
        within="(-inf, inf)",
        off="(-inf, 0]",
    ),
    clip_mode=key(
        "norm",
        "norm scales the whole gradient down to the limit; adaptive limits each output unit relative to its weights",
        choices=("norm", "adaptive"),
    ),
    compute_dtype=key(
        "auto",
        "precision of the model; auto: bfloat16 on accelerators, float32 on CPU",
        choices=("auto", "float32", "bfloat16"),
    ),
    matmul_precision=key(
        "auto",
        "precision of float32 products on GPUs; auto: TensorFloat-32",
        choices=("auto", "tensorfloat32", "float32"),
    ),
    deterministic=key(
        False, "GPU: take kernels that add in a fixed order, so that a run can be repeated bit for bit; slower"
    ),
    auto_resume=key(True, "go on from the newest checkpoint of the run directory; False: an error if it has one"),
    tune=key(
        "full",
        "what trains: full, everything; head, what follows the trunk; last:N, that and the last N "
        "blocks of the trunk; auto:N, as last:N, and the untouched trunk with heads fitted to its "
        "features is one more candidate for the best checkpoint, that of step 0. What the other "
        "blocks make of each picture is then computed once, before the first update",
    ),
    tune_views=key(
        4, "augmented views of each training picture that are stored beside the picture itself", within="[0, 1000]"
    ),
    fit_heads=key(
        True,
        "tune head: linear heads begin at the linear discriminants of the stored features, and fitted heads are a "
        "candidate as with auto:N; False: heads begin as they are drawn",
    ),
    fit_rows=key(
        "auto",
        "tune auto:N and head: rows that the heads of step 0 are fitted to, once measured as fitted to those of "
        "training: train; all, those of validation too; or auto, all where a class of the finest rank has "
        "fewer than 20 training rows",
        choices=("auto", "train", "all"),
    ),
    tune_dir=key("", "folder of what is stored, which runs may share; empty: stored/ of the run directory"),
    resume_skip_optimizer=key(
        False, "on resume, start the optimizer state anew and keep parameters, step and schedule"
    ),
    preserve_checkpoint_schedule=key(False, "on resume, keep the number of epochs that the checkpoint was made with"),
    skip_validation=key(False, "on resume, leave out validations that were still to be made at the checkpoint"),
    phase1_mask_null_loss=key(False, "null labels never count in the training loss, whatever null_masking says"),
    nonfinite_limit=key(
        10,
        "updates in a row with NaN or infinite values, all skipped, that end the run; 0: no limit",
        within="[0, inf)",
        off="[0, 0]",
    ),
    gradient_checkpointing=dict(
        enabled_normal_steps=unset(
            bool,
            "compute activations again in the backward pass to save memory; None: where a device "
            "lacks it, never on CPU",
        ),
        enabled_gradnorm_steps=unset(
            bool, "the same for updates in which GradNorm measures; None: where a device lacks memory, never on CPU"
        ),
    ),
    ema=dict(
        enabled=key(False, "keep a moving average of the parameters, which is evaluated, bundled and exported instead"),
        decay=key(0.9999, "weight of the old average at every update; smaller in the first updates", within="[0, 1)"),
    ),
    early_stop=dict(
        active=key(False, "end training early by the conditions below, checked at the end of every epoch"),
        metric=key("val_loss", "metric whose improvement patience waits for: <phase>_<metric>"),
        **duration(
            "patience",
            "how long the metric may go without improvement; default 2000 updates, 0: no such condition",
            epochs=float,
            default=("steps", 2000),
        ),
        min_delta=unset(float, "least gain that counts as improvement; None: any", within="[0, inf)"),
        max_steps=unset(
            int, "end after so many updates; None or 0: no such condition", within="[0, inf)", off="[0, 0]"
        ),
        max_loss=unset(
            float, "end where the metric is a loss and exceeds this; None: no such condition", within="(-inf, inf)"
        ),
        min_lr=unset(
            float, "end where the highest learning rate falls below this after warmup; None: not", within="(-inf, inf)"
        ),
        max_grad_norm=unset(
            float, "end where the last gradient norm exceeds this; None: no such condition", within="(-inf, inf)"
        ),
    ),
)

LR_SCHEDULER = dict(
    name=key(
        "cosine",
        "course of the learning rate after warmup",
        choices="linnaeus_jax.schedules.kinds:SCHEDULES",
        any_case=True,
    ),
    base_lr=key(
        1e-4, "peak learning rate at an effective batch (rows of one update) of reference_bs", within="[0, inf)"
    ),
    reference_bs=key(512, "effective batch for which base_lr holds as it is", within="(0, inf)"),
    scaling=key(
        "linear",
        "the peak grows with effective batch / reference_bs (linear) or its square root (sqrt)",
        choices=("linear", "sqrt"),
        any_case=True,
    ),
    **duration(
        "warmup", "length of the rise from warmup_lr to the peak; 0: none", epochs=float, default=("epochs", 5.0)
    ),
    warmup_lr=key(
        5e-7,
        "learning rate of the first update; not scaled, lowered to the peak where it is above it",
        within="[0, inf)",
    ),
    min_lr=key(
        1e-5, "learning rate at the end; not scaled, lowered to the peak where it is above it", within="[0, inf)"
    ),
    **duration("decay", "of `step`: updates between two drops", default=("steps", 5000)),
    decay_rate=key(0.1, "of `step`: factor of each drop", within="(0, inf)"),
    stable_duration_fraction=key(0.8, "of `wsd`: share of the updates after warmup at the peak", within="[0, 1]"),
    decay_duration_fraction=key(
        0.1, "of `wsd`: share of the updates after warmup that fall to min_lr", within="[0, 1]"
    ),
    decay_type=key("cosine", "of `wsd`: shape of the fall", choices=("cosine", "linear"), any_case=True),
    parameter_groups=InOrder(
        enabled=key(False, "use the overrides of single parameter groups"),
    ),
)

OPTIMIZER = dict(
    name=key(
        "adamw",
        "optimizer of all parameters whose group names no other",
        choices="linnaeus_jax.learning.transforms:OPTIMIZERS",
        any_case=True,
    ),
    eps=key(1e-8, "added to the denominator of Adam and its relatives", within="(0, inf)"),
    betas=key(
        (0.9, 0.999, 0.9999),
        "decay of the running moments of Adam and its relatives; ademamix needs three, the others take the first two",
        items=float,
        lengths=(2, 3),
        within="[0, 1)",
    ),
    momentum=key(0.9, "of sgd", within="[0, 1)"),
    weight_decay=key(0.05, "of parameters with two or more axes; biases and norms have none", within="[0, inf)"),
    alpha=key(5.0, "of ademamix: weight of the slow average", within="[0, inf)"),
    t_alpha_beta3=unset(
        int,
        "of ademamix: updates in which alpha and the third beta rise; None: at once",
        within="[0, inf)",
        off="[0, 0]",
    ),
    muon=dict(
        momentum=key(0.95, "of muon", within="[0, 1)"),
        nesterov=key(True, "Nesterov momentum in muon"),
        ns_steps=key(5, "Newton-Schulz steps that make a matrix orthogonal in muon", within="[1, inf)"),
    ),
    layer_decay=key(1.0, "factor of the learning rate for each layer further below the heads; 1: off", within="(0, 1]"),
    # + one node per group, see open_nodes.optimizer_group; the first match wins
    parameter_groups=InOrder(
        enabled=key(False, "use the parameter groups; a parameter is of the first group whose filter selects it"),
        default=dict(
            optimizer=key("", "optimizer of the parameters of no other group; empty: optimizer.name"),
            weight_decay=unset(
                float, "weight decay of these parameters; None: optimizer.weight_decay", within="[0, inf)"
            ),
            lr_multiplier=key(1.0, "factor of the learning rate of these parameters", within="[0, inf)"),
        ),
    ),
)

#: An entry of `lr_scheduler.parameter_groups`, named as the optimizer group; None inherits the global value.
LR_GROUP = dict(
    name=unset(
        str, "course of the learning rate after warmup", choices="linnaeus_jax.schedules.kinds:SCHEDULES", any_case=True
    ),
    min_lr=unset(float, "learning rate at the end", within="[0, inf)"),
    warmup_lr=unset(float, "learning rate of the first update", within="[0, inf)"),
    **duration(
        "delay", "how long the parameters stay as they are before their course begins; 0: not at all", epochs=float
    ),
    **duration("warmup", "length of the rise from warmup_lr to the peak", epochs=float),
    **duration("decay", "of `step`: updates between two drops"),
    decay_rate=unset(float, "of `step`: factor of each drop", within="(0, inf)"),
)

#: An entry of `optimizer.parameter_groups`.
OPTIMIZER_GROUP = dict(
    filter=key({}, "parameter filter that selects the group's parameters, a mapping with `type`"),
    optimizer=key(
        "",
        "optimizer of the group; empty: optimizer.name",
        choices="linnaeus_jax.learning.transforms:OPTIMIZERS",
        any_case=True,
    ),
    weight_decay=unset(float, "weight decay of the group; None: optimizer.weight_decay", within="[0, inf)"),
    lr_multiplier=key(
        1.0, "factor of the learning rate; 0 does not save the gradient, `frozen` does", within="[0, inf)"
    ),
    frozen=key(False, "the parameters keep their initial values, have no gradient and count in no norm"),
)
