"""The resolved schedule: immutable values in optimizer updates, written once at start-up and read by everything else.

`k` is a 0-based step, `S_e` the updates of epoch `e`, `T` all updates of the run.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from linnaeus_jax.registry import SCHEDULES


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sizes of the run. Batch sizes count rows over all devices of all processes."""

    dataset_size: int
    steps_per_epoch: tuple[int, ...]  # optimizer updates of each epoch
    micro_batches_per_epoch: tuple[int, ...]
    accumulation_steps: int
    batch_size: int  # one micro-batch
    devices: int
    reference_bs: int
    scaling: str
    lr_factor: float

    @property
    def epochs(self) -> int:
        return len(self.steps_per_epoch)

    @property
    def total_steps(self) -> int:
        return sum(self.steps_per_epoch)

    @property
    def effective_batch_size(self) -> int:
        return self.batch_size * self.accumulation_steps

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Completed updates at the end of each epoch."""
        return tuple(accumulate(self.steps_per_epoch))

    def epoch_at(self, step: int) -> float:
        """Completed epochs, with the fraction of the current one, after `step` updates."""
        start = 0
        for epoch, end in enumerate(self.boundaries):
            if step <= end:
                return epoch + (step - start) / (end - start)
            start = end
        return self.epochs + (step - start) / self.steps_per_epoch[-1]


@dataclass(frozen=True, kw_only=True)
class LearningRateSpec:
    """Learning-rate curve of one parameter group; all durations in updates, all rates after scaling and clamping."""

    group: str
    name: str  # of a kind in registry.SCHEDULES
    base_lr: float
    multiplier: float
    peak: float
    min_lr: float
    warmup_lr: float
    warmup_steps: int
    total_steps: int
    delay_steps: int = 0  # before warmup, at rate 0
    decay_steps: int = 0  # step: updates between drops, 0 = no drop; wsd: length of the decay
    decay_rate: float = 1.0  # step: factor of one drop
    stable_steps: int = 0  # wsd: length of the stable phase
    decay_type: str = "cosine"  # wsd: shape of the decay
    frozen: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # of the kind

    @property
    def decay_span(self) -> int:
        """Updates between the end of warmup and the end of training, at least 1."""
        return max(1, self.total_steps - self.delay_steps - self.warmup_steps)

    @property
    def warm_step(self) -> int:
        """The first update after warmup."""
        return self.delay_steps + self.warmup_steps

    @property
    def kind(self) -> Any:
        """The `ScheduleKind` with its options.

        Raises:
          ValueError: `name` is not registered, as where a plugin of the run is not imported.
        """
        return SCHEDULES[self.name](**self.options)

    def phases(self) -> tuple[tuple[str, int, int], ...]:
        """(name, first step, last step) of each phase that has updates; together they cover 0 .. T-1."""
        result, start = [], 0
        before = ("delay", self.delay_steps), ("warmup", self.warmup_steps)
        for name, length in (*before, *self.kind.phases(self)):
            end = min(start + length, self.total_steps)
            if end > start:
                result.append((name, start, end - 1))
                start = end
        return tuple(result)

    def drops(self) -> tuple[int, ...]:
        """Steps at which a stepwise schedule lowers the rate."""
        if not self.kind.stepwise or not self.decay_steps:
            return ()
        return tuple(range(self.warm_step + self.decay_steps, self.total_steps, self.decay_steps))


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Linear ramp from `start` at update 0 to `end` at update `end_steps`; `disabled_value` where not enabled."""

    enabled: bool
    start: float
    end: float
    end_steps: int
    disabled_value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PartialMasking:
    """Masking of metadata combinations while `start_steps <= k < end_steps` (None: no end)."""

    enabled: bool
    start_steps: int
    end_steps: int | None
    prob: Ramp
    whitelist: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixup and cutmix: probability, settings of the mixing ratio, and the group level of each epoch."""

    prob: Ramp
    level_of_epoch: tuple[str, ...]
    group_levels: tuple[str, ...]
    min_group_size: int
    exclude_null_samples: bool
    mixup_enabled: bool
    mixup_alpha: float
    cutmix_enabled: bool
    cutmix_alpha: float
    cutmix_minmax: tuple[float, ...]
    switch_prob: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """How often an event fires at the ends of epochs."""

    unit: str = "off"  # off | epochs | steps | fraction
    value: float = 0
    steps: int = 0  # updates between multiples of the interval; 0 where the unit is epochs or off
    explicit: bool = False  # chosen by the user, not a default


@dataclass(frozen=True, kw_only=True)
class Validation:
    normal: Interval
    mask_meta: Interval
    partial: Interval  # off where partial validation is disabled
    at_end: bool
    has_metadata: bool  # without metadata there is nothing to mask
    partial_enabled: bool
    whitelist: tuple[tuple[str, ...], ...]
    exhaustive: tuple[str, ...]  # components of the exhaustive final validation; empty = disabled


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    interval: Interval
    at_end: bool
    keep_top_n: int
    keep_last_n: int


@dataclass(frozen=True, kw_only=True)
class EarlyStopSpec:
    """Early-stop conditions; None disables a condition. `metric` is a key below `phase`, e.g. `acc1_taxa_L10`."""

    active: bool
    metric: str = "loss"
    phase: str = "val"
    higher_is_better: bool = False
    is_loss: bool = True
    patience_steps: int | None = None
    min_delta: float = 0.0
    max_steps: int | None = None
    max_loss: float | None = None
    min_lr: float | None = None
    max_grad_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class GradNormTrigger:
    enabled: bool
    warmup_steps: int
    interval: int


@dataclass(frozen=True, kw_only=True)
class ResolvedSchedule:
    """Everything the run does on a clock. Build it with `resolve_all_schedule_params`."""

    totals: Totals
    learning_rates: tuple[LearningRateSpec, ...]
    meta_masking: Ramp
    partial_masking: PartialMasking
    null_masking: Ramp
    mixing: Mixing
    validation: Validation
    checkpoint: Checkpointing
    early_stop: EarlyStopSpec
    gradnorm: GradNormTrigger
    logging: dict[str, int]  # step, console, wandb, lr, pipeline -> updates between records, 0 = off
    step_trigger_mode: str  # crossing | exact
    notes: tuple[str, ...] = ()  # what the resolver had to decide for the user
    warnings: tuple[str, ...] = ()  # notes and every finding of validate_schedule_sanity

    @property
    def total_steps(self) -> int:
        return self.totals.total_steps

    @property
    def epochs(self) -> int:
        return self.totals.epochs

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ResolvedSchedule:
        """Rebuilds a stored schedule.

        Raises:
          KeyError: a field is missing.
        """
        return _build(cls, data)


#: fields that schedules stored by earlier versions lack
_ADDED = {"options", "delay_steps"}


def _build(kind: Any, data: Any) -> Any:
    """Rebuilds a value of the annotated type `kind` from JSON data."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = [f.name for f in dataclasses.fields(kind) if f.name in data or f.name not in _ADDED]
        return typing.cast(Any, kind)(**{name: _build(hints[name], data[name]) for name in fields})
    if origin is tuple:
        return tuple(_build(arguments[0], item) for item in data)
    if origin is types.UnionType:
        return None if data is None else _build(arguments[0], data)
    return dict(data) if origin is dict else data
