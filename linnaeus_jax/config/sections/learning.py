"""Losses and augmentation."""

from __future__ import annotations

from linnaeus_jax.config.keys import key

LOSS = dict(
    task_specific=dict(
        train=dict(
            funcs=key(
                ("CrossEntropyLoss",),
                "training loss: one, or one per task",
                items=str,
                per_task=True,
                choices="linnaeus_jax.learning.losses:LOSSES",
            ),
        ),
        val=dict(
            funcs=key(
                ("CrossEntropyLoss",),
                "validation loss: one, or one per task",
                items=str,
                per_task=True,
                choices="linnaeus_jax.learning.losses:LOSSES",
            ),
        ),
    ),
    taxonomy_smoothing=dict(
        enabled=key(
            (),
            "which tasks have the smoothing of TaxonomyAwareLabelSmoothing: one value or one per task; empty: none",
            items=bool,
            per_task=True,
            optional=True,
        ),
        alpha=key(0.1, "probability moved from the true class to related ones", within="[0, 1]"),
        beta=key(1.0, "how fast it falls with distance in the tree: exp(-beta * edges)", within="[0, inf)"),
        fallback_to_uniform=key(
            True, "where no class of a rank has a parent, spread alpha evenly; False: that is an error"
        ),
    ),
    grad_weighting=dict(
        class_weights=dict(
            train=key(True, "weight the training loss by class"),
            val=key(False, "weight the validation loss by class"),
            method=key(
                ("none",),
                "how weights follow from the training rows n of a class among all N; one value, or one per task",
                items=str,
                per_task=True,
                choices="linnaeus_jax.learning.class_weights:METHODS",
            ),
            smoothing_factor=key(
                (0.1,), "of smoothing: N / (n + smoothing_factor)", items=float, within="(0, inf)", per_task=True
            ),
            cap=key((20.0,), "of capping: the smaller of N / n and cap", items=float, within="(0, inf)", per_task=True),
            base=key((2.0,), "of exponential: base ** (N / n)", items=float, within="(0, inf)", per_task=True),
            log_base=key(
                (10.0,),
                "of logarithmic: 1 / (1 + log_b(n / N * (b - 1) + 1))",
                items=float,
                within="(1, inf)",
                per_task=True,
            ),
            normalize=key(False, "rescale so that the mean weight over the training rows is 1"),
        ),
        task=dict(
            type=key(
                "gradnorm",
                "gradnorm moves the task weights while training, static keeps the initial ones",
                choices=("gradnorm", "static"),
            ),
            gradnorm_enabled=key(True, "False: the weights stay, as with type = static"),
            init_weights=key(
                (),
                "initial weights, one per task; empty: by init_strategy",
                items=float,
                within="[0, inf)",
                optional=True,
            ),
            init_strategy=key(
                "inverse_density",
                "inverse_density: 1 / share of labelled rows; class_complexity: also by the logarithm of the classes",
                choices="linnaeus_jax.learning.task_weights:STRATEGIES",
            ),
            alpha=key(
                1.5,
                "of GradNorm: strength of the pull on tasks that learn slowly; 0: equal gradient norms",
                within="[0, inf)",
            ),
            update_interval=key(100, "updates between two measurements of GradNorm", within="[1, inf)"),
            gradnorm_warmup_steps=key(0, "updates before the first measurement of GradNorm", within="[0, inf)"),
            gradnorm_rule=key(
                "mult",
                "mult: damped fixed point; paper: gradient step of the publication",
                choices="linnaeus_jax.learning.gradnorm:RULES",
            ),
            gradnorm_kappa=key(0.5, "of the rule mult: damping; 1 equalises in one update", within="(0, 1]"),
            gradnorm_lr=key(0.025, "of the rule paper: size of a step", within="(0, inf)"),
            zero_aux_info=key(True, "measure without metadata"),
            use_linear_heads_for_gradnorm_reforward=key(True, "measure without the refinement of hierarchical heads"),
            exclude_config=dict(
                type=key(
                    "name",
                    "kind of the parameter filter that selects what GradNorm leaves out; other kinds have other keys",
                ),
                patterns=key(("head", "meta_"), "patterns of the filter"),
                match_type=key("contains", "how a pattern matches a name: contains, startswith, endswith, regex"),
            ),
        ),
    ),
)

AUG = dict(
    mean=key(
        (0.485, 0.456, 0.406),
        "subtracted from red, green and blue, of values in [0, 1]",
        items=float,
        lengths=(3,),
        within="[0, 1]",
    ),
    std=key((0.229, 0.224, 0.225), "divides what mean leaves", items=float, lengths=(3,), within="[1e-6, 1]"),
    hflip_prob=key(0.5, "probability of a mirror image, left to right", within="[0, 1]"),
    vflip_prob=key(0.0, "probability of a mirror image, top to bottom", within="[0, 1]"),
    random_resized_crop=dict(
        enabled=key(True, "cut out a random part and resize it to img_size"),
        scale=key(
            (0.6, 1.0),
            "least and largest area of the part, as a share of the picture, in (0, 1]",
            items=float,
            lengths=(2,),
            within="(0, 1]",
        ),
        ratio=key(
            (0.75, 1.3333333333333333),
            "least and largest width / height of the part",
            items=float,
            lengths=(2,),
            within="(0, inf)",
        ),
    ),
    color_jitter=key(0.4, "strength of random brightness, contrast and saturation; 0: off", within="[0, inf)"),
    autoaug=dict(
        policy=key(
            "",
            "table of random operations (AutoAugment) or randaugment; empty: off",
            choices="linnaeus_jax.learning.policies:POLICY_NAMES",
            refused_elsewhere=True,
        ),
        num_ops=key(2, "of randaugment: operations per picture", within="[1, 1000]"),
        magnitude=key(9.0, "of randaugment: strength", within="[0, 10]"),
    ),
    random_erase=dict(
        prob=key(0.25, "probability that rectangles of a picture are erased", within="[0, 1]"),
        mode=key(
            "pixel",
            "what fills them: noise like the picture (pixel), one grey (const), uniform noise (rand)",
            choices="linnaeus_jax.learning.augmentation:ERASE_MODES",
            refused_elsewhere=True,
        ),
        count=key(1, "number of rectangles", within="[1, 1000]"),
        area_range=key(
            (0.02, 0.4),
            "least and largest area erased, as a share of the picture",
            items=float,
            lengths=(2,),
            within="(0, 1]",
        ),
        aspect_ratio=key(
            (0.3, 3.3),
            "least and largest height / width of a rectangle",
            items=float,
            lengths=(2,),
            within="(0, inf)",
        ),
    ),
)
