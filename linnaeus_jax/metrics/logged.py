"""Every name under which a run logs a value: what it is, in which unit, in which rows, and when it is not there.

The metrics themselves stand in `metrics.table`; here is how their names are composed, and everything else. TensorBoard
shows these texts beside its curves, and `docs/reference/metrics.md` is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from linnaeus_jax.metrics import phases, table
from linnaeus_jax.taxonomy.ranks import TASK_PATTERN

#: what a part in angle brackets stands for, and what it may be
PARTS = {
    "task": "a rank of `data.task_keys_h5`, such as `taxa_L10`",
    "phase": "a validation phase: `val`, `val_mask_meta`, `val_no_mask`, `val_mask_` and the masked components, or "
    "one of a plugin",
    "core phase": "`val`; `valMask` for `val_mask_meta`; `valMask_TEMPORAL` for `val_mask_TEMPORAL`",
    "metric": "a metric of the first table, with `_<task>` where it is one of a rank",
    "core metric": "`loss`, `loss_unweighted`, `chain_acc`, `partial_chain_acc`",
    "chain": "`chain_accuracy` or `partial_chain_accuracy`",
    "component": "a metadata component of `data.meta.components`, such as `TEMPORAL`",
    "group": "a parameter group; `default` where there are none",
    "kind": "a kind of subsets: `taxa`, `rarity`, `metadata`, or one of your own",
    "subset": "a subset of that kind",
    "ramp": "`meta_mask_prob`, `partial_mask_prob`, `mixup_prob`, `null_mask_prob`",
    "probe": "a probe that a plugin registered",
    "value": "what the probe names its values",
}
_PHASE = r"val(?:_no_mask|_mask(?:_[A-Za-z0-9_.\-]+)?)?"
_PATTERNS = {
    "task": TASK_PATTERN,
    "phase": _PHASE,
    "core phase": r"(?:val(?:_no_mask)?|valMask(?:_[A-Za-z0-9_.\-]+)?)",
    "core metric": r"(?:loss|loss_unweighted|chain_acc|partial_chain_acc)(?:_pct)?",
    "chain": r"(?:partial_)?chain_accuracy",
    "component": r"[^/]+",
    "group": r"[^/]+",
    "kind": r"[^/]+",
    "subset": r".+?",
    "ramp": r"(?:meta_mask|partial_mask|mixup|null_mask)_prob",
    "probe": r"[^/]+",
    "value": r".*",
}


@dataclass(frozen=True)
class Logged:
    """The names of one pattern.

    Attributes:
      pattern: the name, with parts of `PARTS` in angle brackets.
      meaning: for people.
      unit: as of `table.MetricInfo`.
      rows: the kinds of rows that hold it.
      absent: when it is not there, or not a number; empty: every such row has it.
      shown: where people see it besides: the console, sections of the report.
    """

    pattern: str
    meaning: str
    unit: str = ""
    rows: tuple[str, ...] = ("train",)
    absent: str = ""
    shown: str = ""

    @property
    def description(self) -> str:
        """Meaning and unit."""
        return f"{self.meaning} [{self.unit}]" if self.unit else self.meaning

    def names(self) -> re.Pattern[str]:
        """Which names are of the pattern, those of plugins included."""
        parts = re.split(r"<([a-z ]+)>", self.pattern)
        return re.compile("".join(_part(text) if i % 2 else re.escape(text) for i, text in enumerate(parts)))


def _part(name: str) -> str:
    if name in ("phase", "core phase"):
        cores = [phase.core or phase.name for phase in phases.REGISTERED.values()]
        return f"({'|'.join([_PATTERNS[name], *map(re.escape, cores if name == 'core phase' else phases.REGISTERED)])})"
    if name != "metric":
        return f"({_PATTERNS[name]})"
    known = sorted(table.TABLE, key=len, reverse=True)
    return f"({'|'.join(map(re.escape, known))})(?:_{TASK_PATTERN})?"


_EPOCH = ("epoch",)
_NO_METADATA = "without metadata"
_NO_CACHE = "where no decoded pictures are kept"
_NOT_MEASURED = "at updates in which GradNorm does not measure"
_OTHER_PROCESSES = "with data.worker_processes"


def _null_and_other(pattern: str, full: str) -> tuple[Logged, ...]:
    """Other names of what is measured of null labels and of others, apart."""
    return tuple(
        Logged(
            pattern.format(group=group, metric=metric),
            f"the same as `{full}{group}/{metric}_<task>`",
            unit,
            _EPOCH,
            "without metrics.track_null_vs_non_null, or without such rows",
        )
        for group in ("null", "non_null")
        for metric, unit in (("acc1", "%"), ("loss", "nats"))
    )


#: in the order of the reference; the first that fits a name counts
LOGGED: tuple[Logged, ...] = (
    # ---- one update
    Logged("core/global_step", "optimizer updates completed", "updates", ("train", "epoch")),
    Logged(
        "train/loss",
        "what the last update minimised: Σ_t weight_t · loss_t over the labels that count",
        "nats",
        shown="console",
    ),
    Logged("train/loss/<task>", "loss of a rank in the last update, mean over the labels that count", "nats"),
    Logged("loss/total/value", "the same as `train/loss`", "nats"),
    Logged("loss/tasks/<task>", "the same as `train/loss/<task>`", "nats"),
    Logged(
        "train/grad_norm",
        "L2 norm of the gradient before clipping, frozen parameters left out",
        shown="report: Gradients",
    ),
    Logged("gradnorm/total_norm_pre_clip", "the same as `train/grad_norm`"),
    Logged("gradnorm/total_norm_post_clip", "L2 norm of the gradient after clipping"),
    Logged(
        "train/skipped_updates",
        "updates with NaN or infinite values so far, which changed nothing",
        "updates",
        shown="report: Warnings",
    ),
    Logged("train/lr", "largest learning rate of the parameter groups in the last update", shown="console"),
    Logged(
        "train/lr/<group>",
        "learning rate of a parameter group in the last update",
        absent="for frozen groups",
        shown="report: Schedules",
    ),
    Logged(
        "train/images_per_sec",
        "pictures trained on per second, averaged over the last updates",
        "1/s",
        shown="report: Overview, Speed",
    ),
    Logged(
        "train/eta_sec",
        "estimated time to the end of the epoch",
        "s",
        absent="in most rows: it is logged every 30 seconds at most",
    ),
    Logged("train/<chain>_pct", "the chain accuracy of the last update", "%"),
    Logged(
        "train/step_avg_loss/<task>",
        "loss of a rank, mean over the rows since the last row of W&B, null labels included",
        "nats",
        ("train", "epoch"),
    ),
    Logged(
        "train/step_avg_<metric>",
        "mean over the rows since the last row of W&B; `loss` is that of `train/loss_weighted`",
        "of the metric",
        ("train", "epoch"),
        "in rows of stream `step`; an epoch has it at the end of the run alone",
    ),
    Logged("core/train_epoch_avg_<core metric>", "the mean over the epoch, `_pct` in percent", rows=_EPOCH),
    *_null_and_other("core/train_epoch_avg_{group}_{metric}/<task>", "train/epoch_avg_"),
    *_null_and_other("core/train_{group}_{metric}/<task>", "train/epoch_avg_"),
    *_null_and_other("train/{group}/{metric}_<task>", "train/epoch_avg_"),
    Logged("core/train_<core metric>", "the same as `train/<metric>`; `_pct` in percent"),
    # ---- schedules
    Logged("schedule/<ramp>", "probability that the schedule gave to the last update", shown="report: Schedules"),
    Logged("schedule/<ramp>_pct", "the same in percent", "%"),
    Logged("schedule/mixup_group_str", "rank whose classes are mixed, a text"),
    Logged("schedule/null_masking/null_samples_total", "null labels of all ranks in the last update", "labels"),
    Logged("schedule/null_masking/null_samples_included", "how many of them counted in the loss", "labels"),
    Logged(
        "schedule/null_masking/inclusion_percentage",
        "the share that counted",
        "%",
        absent="in an update without null labels",
    ),
    Logged(
        "core/null_inclusion_pct",
        "the same as `schedule/null_masking/inclusion_percentage`",
        "%",
        absent="in an update without null labels",
    ),
    Logged(
        "meta_masking/actual_valid_pct/<component>/train",
        "rows of the last update whose component was known and not masked",
        "%",
        absent=_NO_METADATA,
    ),
    # ---- GradNorm
    Logged("gradnorm/avg_norm", "mean over the ranks of weight · gradient norm", absent=_NOT_MEASURED),
    Logged("gradnorm/loss/<task>", "loss of a rank as GradNorm measured it", "nats", absent=_NOT_MEASURED),
    Logged("gradnorm/norm/<task>", "norm of the gradient of a rank's loss, unweighted", absent=_NOT_MEASURED),
    Logged("gradnorm/target/<task>", "norm that GradNorm aims at", absent=_NOT_MEASURED),
    Logged(
        "gradnorm/ratio/<task>",
        "loss relative to the first one, relative to the mean of the ranks; above 1 learns slowly",
        absent=_NOT_MEASURED,
    ),
    Logged(
        "gradnorm/weight/<task>",
        "weight of a rank from the next update on",
        absent=_NOT_MEASURED,
        shown="report: Gradients",
    ),
    Logged("gradnorm/weight_delta/<task>", "change of that weight", absent=_NOT_MEASURED),
    Logged("task_weights/task_<task>", "the same as `gradnorm/weight/<task>`", absent=_NOT_MEASURED),
    # ---- input pipeline
    Logged(
        "pipeline/wait_share",
        "share of the time spent waiting for data, averaged over the last updates",
        "fraction",
        shown="report: Overview, Speed, Warnings",
    ),
    Logged("pipeline/wait_frac", "share of the time since the last such row spent waiting for data", "fraction"),
    Logged("pipeline/throughput/prefetch", "pictures read per second", "1/s"),
    Logged("pipeline/throughput/preprocess", "pictures decoded per second and thread", "1/s"),
    Logged("pipeline/timing/prefetch_times", "time to put a batch together", "s"),
    Logged("pipeline/timing/preprocess_times", "time to decode a batch, summed over threads", "s"),
    Logged("pipeline/queue_depths/batch_index_q", "batches that wait to be read", "batches", absent=_OTHER_PROCESSES),
    Logged("pipeline/queue_depths/preprocess_q", "batches that are being read", "batches", absent=_OTHER_PROCESSES),
    Logged(
        "pipeline/queue_depths/processed_batch_q",
        "batches that wait for the device",
        "batches",
        absent=_OTHER_PROCESSES,
    ),
    Logged("pipeline/cache/size", "share of data.prefetch.mem_cache_size in use", "%", absent=_NO_CACHE),
    Logged("pipeline/cache/hits", "pictures found in the cache so far", "pictures", absent=_NO_CACHE),
    Logged("pipeline/cache/misses", "pictures not found in the cache so far", "pictures", absent=_NO_CACHE),
    Logged("pipeline/cache/evictions", "pictures dropped from the cache so far", "pictures", absent=_NO_CACHE),
    # ---- plugins
    Logged("probe/<probe>/<value>", "what a probe of a plugin measured", "of the probe", ("probe",)),
    # ---- an epoch of training
    Logged("train/epoch_avg_grad_norm", "mean of `train/grad_norm` over the epoch", rows=_EPOCH),
    Logged("train/epoch_duration_sec", "time that the epoch's updates took since the run's last start", "s", _EPOCH),
    Logged("train/avg_samples_per_sec", "rows of the epoch / that time", "1/s", _EPOCH),
    Logged(
        "train/epoch_avg_subset/<kind>/<subset>/acc1_<task>",
        "top-1 accuracy in a subset over the epoch",
        "%",
        _EPOCH,
        "in subsets without rows",
    ),
    Logged("train/subset/<kind>/<subset>/count", "rows of a subset in the epoch", "rows", _EPOCH),
    Logged("train/epoch_avg_<chain>_pct", "the chain accuracy over the epoch", "%", _EPOCH),
    Logged(
        "train/epoch_avg_<metric>", "the metric over the epoch, with augmentation and mixing", "of the metric", _EPOCH
    ),
    Logged("train/<metric>", "the metric over the rows of the last update alone", "of the metric"),
    # ---- a validation
    Logged("<phase>/epoch_duration_sec", "time that all phases of this end of an epoch took together", "s", _EPOCH),
    Logged("<phase>/avg_samples_per_sec", "validation rows / that time", "1/s", _EPOCH),
    Logged(
        "<phase>/subset/<kind>/<subset>/acc1_<task>",
        "top-1 accuracy in a subset of the validation rows",
        "%",
        _EPOCH,
        "in subsets without rows",
    ),
    Logged("<phase>/subset/<kind>/<subset>/count", "rows of a subset", "rows", _EPOCH),
    Logged("<phase>/<chain>_pct", "the chain accuracy in percent", "%", _EPOCH),
    Logged(
        "<phase>/<metric>",
        "the metric over the validation rows; `val_mask/...` is another name of `val_mask_meta/...`",
        "of the metric",
        _EPOCH,
        "where the phase did not run at this end of an epoch",
    ),
    Logged("core/<core phase>_acc1/<task>", "the same as `<phase>/acc1_<task>`", "%", _EPOCH),
    Logged("core/<core phase>_<core metric>", "the same as `<phase>/<metric>`; `_pct` in percent", rows=_EPOCH),
    *_null_and_other("core/<phase>_{group}_{metric}/<task>", "<phase>/"),
    Logged(
        "early_stop/reason",
        "condition that ended the run, a text: max_steps, patience, max_loss, min_lr or max_grad_norm",
        rows=_EPOCH,
        absent="unless the run ends early",
    ),
    # ---- the end of a run
    Logged("final_train_grad_norm", "the smallest mean over an epoch", rows=("final",)),
    Logged(
        "final_train_subset/<kind>/<subset>/acc1_<task>",
        "the best of the run",
        "%",
        ("final",),
        "in subsets without rows",
    ),
    Logged(
        "final_train_<metric>", "the best value of `train/epoch_avg_<metric>` in the run", "of the metric", ("final",)
    ),
    Logged(
        "final_<phase>_subset/<kind>/<subset>/acc1_<task>",
        "the best of the run",
        "%",
        ("final",),
        "in subsets without rows",
    ),
    Logged(
        "final_<phase>_<metric>",
        "the best value of `<phase>/<metric>` in the run, each metric by itself",
        "of the metric",
        ("final",),
        "where the metric was never a number",
    ),
)


def described(name: str) -> Logged | None:
    """The pattern of a logged name; None: a run logs no such name."""
    return next((logged for logged in LOGGED if logged.names().fullmatch(name)), None)


def undescribed(names: Sequence[str]) -> list[str]:
    """Those of some names that no pattern covers."""
    compiled = [logged.names() for logged in LOGGED]
    return [name for name in names if not any(pattern.fullmatch(name) for pattern in compiled)]
