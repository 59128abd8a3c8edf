"""What changes or happens in the course of a run, and what is measured."""

from __future__ import annotations

from linnaeus_jax.config.keys import Section, duration, key, quantity, unset


def log_interval(stream: str, meaning: str, default: int | None = None, like: str = "") -> Section:
    """The distance between two log points of a stream, in updates or as a fraction of all updates."""
    names = {"steps": (f"{stream}_interval", int), "fraction": (f"{stream}_fraction", float)}
    counts = None if default is None else ("steps", default)
    return quantity(stream, names, meaning, counts, {"steps": "(-inf, 0]"}, like=like)


SCHEDULE = dict(
    step_trigger_mode=key(
        "crossing",
        "crossing: an interval in steps fires at the first end of an epoch from each multiple on; exact: only at one",
        choices=("crossing", "exact"),
        any_case=True,
    ),
    validation=dict(
        **duration(
            "interval",
            "how often the validation with all metadata runs, at ends of epochs; default every epoch, 0: never",
            epochs=int,
            default=("epochs", 1),
        ),
        **duration(
            "mask_meta_interval",
            "how often the validation without metadata runs; default every epoch, 0: never",
            epochs=int,
            default=("epochs", 1),
        ),
        at_end=key(True, "validate at the end of the run in any case"),
        partial_mask_meta=dict(
            enabled=key(False, "validate with some metadata components masked"),
            **duration("interval", "how often these validations run; default never", epochs=int),
            whitelist=key((), 'combinations of components that are masked, such as (("TEMPORAL",), ("SPATIAL",))'),
        ),
        final_epoch=dict(
            exhaustive_partial_meta_validation=key(
                False, "at the end of the run, mask every combination of the components below"
            ),
            exhaustive_meta_components=key(
                (), "components of these combinations: n of them make 2^n - 1 phases", items=str
            ),
        ),
    ),
    checkpoint=dict(
        **duration(
            "interval",
            "how often a checkpoint is saved, at ends of epochs; also before every validation; default every epoch",
            epochs=int,
            default=("epochs", 1),
        ),
        at_end=key(True, "save one at the end of the run in any case"),
        keep_top_n=key(0, "best checkpoints that are kept; 0 here and in keep_last_n: all are kept", within="[0, inf)"),
        keep_last_n=key(
            0, "newest checkpoints that are kept; 0 here and in keep_top_n: all are kept", within="[0, inf)"
        ),
        best_metric=key(
            "",
            "metric that ranks checkpoints; empty: val/partial_chain_accuracy, else val/chain_accuracy, else val/loss",
        ),
    ),
    meta_masking=dict(
        enabled=key(True, "hide all metadata of random rows while training, with a probability that changes linearly"),
        start_prob=key(1.0, "probability at the first update", within="[0, 1]"),
        end_prob=key(0.0, "probability from the end on", within="[0, 1]"),
        **duration("end", "end of the change; unset or 0: 5000 updates"),
        partial=dict(
            enabled=key(False, "hide one combination of components of random rows that are not hidden altogether"),
            **duration("start", "first update; unset or 0: the beginning"),
            **duration(
                "end", "update from which on nothing is hidden in part any more; unset or 0: the end of the run"
            ),
            start_prob=key(0.01, "probability at the first update of the run", within="[0, 1]"),
            end_prob=key(0.7, "probability from the end of its change on", within="[0, 1]"),
            **duration(
                "prob_end",
                "end of the change of the probability; 0: that of the masking of all metadata",
                default=("fraction", 0.5),
            ),
            whitelist=key((), "combinations of components to hide; needed where partial masking is enabled"),
            weights=key(
                (),
                "how often each combination is drawn, in their order; empty: equally often",
                items=float,
                within="[0, inf)",
            ),
        ),
    ),
    null_masking=dict(
        enabled=key(
            False,
            "let null labels count in the training loss with a probability that changes linearly; False: they count",
        ),
        start_prob=key(0.0, "probability that a null label counts, at the first update", within="[0, 1]"),
        end_prob=key(1.0, "probability from the end on", within="[0, 1]"),
        **duration("end", "end of the change; default 15000 updates", default=("steps", 15000)),
    ),
    mixup=dict(
        enabled=key(True, "mix pictures of one group: lam of one plus 1 - lam of its partner"),
        alpha=key(1.0, "lam is drawn from Beta(alpha, alpha); 0: nothing is mixed", within="[0, inf)"),
        cutmix=dict(
            enabled=key(False, "paste a rectangle of the partner instead"),
            alpha=key(
                1.0,
                "share of the own picture is drawn from Beta(alpha, alpha); 0: nothing is pasted",
                within="[0, inf)",
            ),
            minmax=key(
                (),
                "least and largest share that is pasted; empty: as drawn",
                items=float,
                lengths=(2,),
                within="[0, 1]",
                optional=True,
            ),
        ),
        switch_prob=key(0.5, "probability of cutmix where both are enabled", within="[0, 1]"),
        group_levels=key(
            ("taxa_L10",), "ranks whose classes are the groups, one after the other in the course of the run", items=str
        ),
        level_switch_steps=key(
            (), "updates at which the next rank of group_levels begins, at the next epoch", items=int, within="[1, inf)"
        ),
        level_switch_epochs=key(
            (), "epochs at which the next rank of group_levels begins", items=int, within="[1, inf)"
        ),
        prob=dict(
            enabled=key(True, "False: nothing is ever mixed"),
            start_prob=key(1.0, "probability that a micro-batch is mixed, at the first update", within="[0, 1]"),
            end_prob=key(0.2, "probability from the end on", within="[0, 1]"),
            **duration("end", "end of the linear change; unset or 0: end_prob holds from the start"),
        ),
        min_group_size=key(4, "rows of smaller groups are never mixed", within="[1, inf)"),
        exclude_null_samples=key(True, "rows with a null label are never mixed"),
        null_task_keys=key((), "ranks whose null labels exclude_null_samples looks at; empty: all", items=str),
        mix_block=unset(
            int,
            "consecutive rows of a batch among which partners are drawn; None: the smallest factor of the batch size",
            within="[1, inf)",
        ),
    ),
    metrics=dict(
        **log_interval("step", "updates between rows that only the metrics log gets; default 50, 0 or less: none", 50),
        **log_interval("console", "updates between lines on the console; default 100, 0 or less: none", 100),
        **log_interval(
            "wandb",
            "updates between rows for W&B and TensorBoard; default that of step_interval, 0 or less: none",
            like="step",
        ),
        **log_interval(
            "lr", "updates between values of the learning rate of each group; default 100, 0 or less: none", 100
        ),
        **log_interval("pipeline", "updates between values of the input pipeline; default 250, 0 or less: none", 250),
    ),
)

METRICS = dict(
    taxa_subsets=key(
        (),
        "subsets of the validation rows below a taxon, each (name, task, taxon id), measured one by one",
        items=tuple,
    ),
    rarity_percentiles=key(
        (1, 5, 25, 50, 75, 90, 95, 99),
        "percentiles of the rows per class that divide the classes into subsets, from rare to common; empty: none",
        items=float,
        within="[0, 100]",
    ),
    track_null_vs_non_null=key(False, "show accuracy and loss apart for rows with and without a label"),
    null_vs_non_null_tasks=key(("taxa_L10",), "ranks of which track_null_vs_non_null shows them", items=str),
    baselines=key(
        True,
        "before the first update compute what simple models reach in validation: the commonest class, "
        "the colours of the pictures, the features that train.tune has stored; a run that ends below "
        "says so",
    ),
)
