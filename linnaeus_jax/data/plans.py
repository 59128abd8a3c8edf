"""Which rows form which update: index plans as pure functions of (seed, epoch).

A plan covers one epoch. Its unit is one optimizer update of A micro-batches with B rows each, so that shapes never
change; the last update of an epoch is padded with micro-batches of weight 0. Every process computes the same plan and
takes its slice of the B axis, so that processes are disjoint and always agree on the number of updates.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.derived import global_batch_size


@dataclass(frozen=True)
class EpochPlan:
    """Index plan of one epoch, `[U, A, B]` (U updates, A micro-batches, B rows); of one update, `[A, B]`."""

    index: np.ndarray  # int64, position within the split; -1 is padding
    group: np.ndarray  # int32, the rows of one group may be mixed; -1: never mixed
    partner: np.ndarray  # int32, position within the micro-batch of the row to mix with; itself: none
    weight: np.ndarray  # float32, 0 for padding, else 1

    def __getitem__(self, key: Any) -> EpochPlan:
        """The same part of every array."""
        return EpochPlan(self.index[key], self.group[key], self.partner[key], self.weight[key])


@dataclass(frozen=True)
class SamplerSettings:
    """How rows are drawn.

    Attributes:
      type: "grouped" draws rows so that partners share a group; "standard" is a plain permutation without partners.
      grouped_mode: "mixed-pairs" puts two rows of one group at positions (2j, 2j + 1) of a micro-batch with many
        groups; "strict-group" fills a micro-batch from one group.
      leftovers: "keep" also batches the rows that no pair or full batch could take (as group -1), and every row comes
        equally often; "drop" leaves them out of the epoch.
      batch_size: rows of one micro-batch over all devices of all processes (B).
      accumulation_steps: micro-batches per update (A).
      mix_block: partners lie within one block of this many rows; None is the smallest factor of `batch_size` (2 if
        it is even), so that partners do not depend on the number of devices.

    Raises:
      ValueError: an unknown name, or sizes that do not divide each other.
    """

    type: str = "grouped"
    grouped_mode: str = "mixed-pairs"
    leftovers: str = "keep"
    batch_size: int = 64
    accumulation_steps: int = 1
    mix_block: int | None = None

    @classmethod
    def from_config(cls, config: ConfigDict, devices: int = 1) -> SamplerSettings:
        """The sampler of the config; raises ValueError also for sizes that the devices do not divide."""
        sampler = config.data.sampler
        settings = cls(
            type=sampler.type,
            grouped_mode=sampler.grouped_mode,
            leftovers=sampler.leftovers,
            batch_size=global_batch_size(config, devices),
            accumulation_steps=max(1, config.train.accumulation_steps),
            mix_block=config.schedule.mixup.mix_block,
        )
        settings.check_devices(devices)
        return settings

    def __post_init__(self) -> None:
        for key, value, known in (
            ("data.sampler.type", self.type, ("grouped", "standard")),
            ("data.sampler.grouped_mode", self.grouped_mode, ("mixed-pairs", "strict-group")),
            ("data.sampler.leftovers", self.leftovers, ("keep", "drop")),
        ):
            if value not in known:
                raise ValueError(f"{key} is {value!r}; choose one of {', '.join(known)}")
        for key, number in (
            ("data.batch_size", self.batch_size),
            ("train.accumulation_steps", self.accumulation_steps),
            ("schedule.mixup.mix_block", self.block),
        ):
            if number < 1:
                raise ValueError(f"{key} is {number}; it must be at least 1")
        if self.pairs and self.batch_size % 2:
            raise ValueError(
                f"data.batch_size is {self.batch_size}; mixed-pairs sampling fills batches with pairs and needs an "
                "even number (or set data.sampler.grouped_mode to strict-group)"
            )
        if self.batch_size % self.block or (self.pairs and self.block % 2):
            even = "be even and " if self.pairs else ""
            raise ValueError(
                f"schedule.mixup.mix_block is {self.block}; it must {even}divide data.batch_size ({self.batch_size})"
            )

    @property
    def block(self) -> int:
        """Rows per mixing block."""
        if self.mix_block is not None:
            return self.mix_block
        return next((size for size in range(2, self.batch_size + 1) if self.batch_size % size == 0), 1)

    @property
    def pairs(self) -> bool:
        """True where micro-batches consist of pairs."""
        return self.type == "grouped" and self.grouped_mode == "mixed-pairs"

    @property
    def unit(self) -> int:
        """Rows that are drawn together from one group."""
        return 2 if self.pairs else self.batch_size

    @property
    def keeps_leftovers(self) -> bool:
        """True where every row comes equally often."""
        return self.type == "standard" or self.leftovers == "keep"

    def check_devices(self, device_count: int) -> None:
        """Checks that every device gets equal, whole mixing blocks.

        Raises:
          ValueError: the micro-batch or the mixing block does not fit the number of devices.
        """
        if self.batch_size % device_count:
            raise ValueError(f"data.batch_size is {self.batch_size}; it must be a multiple of {device_count} devices")
        per_device = self.batch_size // device_count
        if self.type == "grouped" and per_device % self.block:
            raise ValueError(
                f"schedule.mixup.mix_block is {self.block}; it must divide the {per_device} rows that data.batch_size "
                f"{self.batch_size} gives each of {device_count} devices; change one of the two"
            )


def random_keys(seed: int, epoch: int, stream: str, count: int) -> np.ndarray:
    """uint64[count] of random bits, a pure function of its arguments.

    Raw Philox output (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011) is sorted instead of calling
    `Generator.permutation`, because only the raw bits are guaranteed to be the same in every NumPy release.
    """
    words = np.random.SeedSequence([seed, epoch, zlib.crc32(stream.encode())])
    return np.random.Philox(words).random_raw(count)


def _chunks(group: np.ndarray, size: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cuts each shuffled group into whole chunks: positions (int64[m, size] of one group each, int64[r] the rest)."""
    rows = np.flatnonzero(group >= 0)
    order = rows[np.lexsort((keys[rows], group[rows]))]
    sorted_group = group[order]
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    sizes = np.diff(first, append=len(order))
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    whole = rank < np.repeat(sizes // size * size, sizes)
    return order[whole].reshape(-1, size), np.concatenate([order[~whole], np.flatnonzero(group < 0)])


def micro_batches_per_epoch(group: np.ndarray, settings: SamplerSettings) -> int:
    """Micro-batches of one epoch, from the group sizes alone; the remainder that fills no micro-batch is dropped.

    Args:
      group: int[n], group of each row of the split, -1 for rows that are never mixed.
      settings: the sampler.
    """
    if settings.keeps_leftovers:
        return len(group) // settings.batch_size
    units = np.bincount(group[group >= 0]) // settings.unit
    return int(units.sum()) * settings.unit // settings.batch_size


def updates_per_epoch(group: np.ndarray, settings: SamplerSettings) -> int:
    """Optimizer updates of one epoch: micro-batches over accumulation steps, rounded up."""
    return -(-micro_batches_per_epoch(group, settings) // settings.accumulation_steps)


def expected_draws(group: np.ndarray, settings: SamplerSettings) -> np.ndarray:
    """float64[n]: how often each row comes in one epoch on average over the epochs, between 0 and 1.

    The same for every row where leftovers are kept. Else a row comes where its group's shuffle puts it into a whole
    unit; one of group -1 never does.

    Args:
      group: int[n], group of each row of the split, -1 for rows that are never mixed.
      settings: the sampler.
    """
    group = np.asarray(group)
    drawn = micro_batches_per_epoch(group, settings) * settings.batch_size
    if settings.keeps_leftovers:
        return np.full(len(group), drawn / max(1, len(group)))
    known = group >= 0
    sizes = np.bincount(group[known])
    whole = sizes // settings.unit * settings.unit
    per_group = whole / np.maximum(sizes, 1) * (drawn / max(1, int(whole.sum())))
    draws = np.zeros(len(group))
    draws[known] = per_group[group[known]]
    return draws


def plan_epoch(group: np.ndarray, settings: SamplerSettings, *, seed: int, epoch: int) -> EpochPlan:
    """Draws the rows, groups and mixing partners of one epoch.

    Rows are cut into units (pairs, or batches of one group); what is left forms units of group -1; the units are
    shuffled together, so that rare rows are spread over the epoch. What fills no micro-batch is taken out before that,
    uniformly over all rows, unless leftovers are dropped anyway. In strict-group mode a block's partners are a random
    cyclic shift of the block.

    Args:
      group: int[n], group of each row of the split, -1 for rows that are never mixed.
      settings: the sampler.
      seed: non-negative seed of the run.
      epoch: epoch counted from 0.

    Returns:
      The plan `[U, A, B]`, the same on every process.
    """
    group = np.asarray(group)
    n, batch, unit = len(group), settings.batch_size, settings.unit
    micro = micro_batches_per_epoch(group, settings)
    rows = np.arange(n)
    if settings.keeps_leftovers and micro * batch < n:
        rows = np.sort(np.argsort(random_keys(seed, epoch, "rows", n), kind="stable")[: micro * batch])
    chunkable = group[rows] if settings.type == "grouped" else np.full(len(rows), -1, np.int32)
    whole, rest = (rows[part] for part in _chunks(chunkable, unit, random_keys(seed, epoch, "chunks", len(rows))))
    unit_group = group[whole[:, 0]].astype(np.int32)
    if settings.keeps_leftovers:
        rest = rest[np.argsort(random_keys(seed, epoch, "leftovers", len(rest)), kind="stable")].reshape(-1, unit)
        whole = np.concatenate([whole, rest])
        unit_group = np.concatenate([unit_group, np.full(len(rest), -1, np.int32)])
    order = np.argsort(random_keys(seed, epoch, "order", len(whole)), kind="stable")
    order = order[: micro * (batch // unit)]
    index = whole[order].reshape(micro, batch)
    groups = np.repeat(unit_group[order], unit).reshape(micro, batch)

    position = np.arange(batch, dtype=np.int32)
    if settings.pairs:
        drawn = np.broadcast_to((position ^ 1)[None, :], (micro, batch))
    else:
        block = settings.block
        shift = random_keys(seed, epoch, "shift", micro * (batch // block)) % np.uint64(max(block - 1, 1)) + np.uint64(
            1
        )
        shift = np.repeat(shift.astype(np.int32).reshape(micro, batch // block), block, axis=1)
        inner = position[None, :] % block
        drawn = position[None, :] - inner + (inner + shift) % block
    partner = np.where(groups >= 0, drawn, position[None, :]).astype(np.int32)

    updates = -(-micro // settings.accumulation_steps)
    padding = updates * settings.accumulation_steps - micro
    index = np.concatenate([index, np.full((padding, batch), -1, np.int64)])
    groups = np.concatenate([groups, np.full((padding, batch), -1, np.int32)])
    partner = np.concatenate([partner, np.broadcast_to(position[None, :], (padding, batch))])
    shape = (updates, settings.accumulation_steps, batch)
    weight = (index >= 0).astype(np.float32)
    return EpochPlan(*(np.ascontiguousarray(a).reshape(shape) for a in (index, groups, partner, weight)))


def process_slice(plan: EpochPlan, process_index: int, process_count: int, *, block: int = 1) -> EpochPlan:
    """The contiguous part of the B axis that belongs to one process.

    `partner` keeps counting from the start of the global micro-batch, since the step sees the global array.

    Raises:
      ValueError: B does not split into equal parts of whole mixing blocks.
    """
    batch = plan.index.shape[-1]
    local = batch // process_count
    if batch % process_count or local % block:
        raise ValueError(
            f"data.batch_size is {batch}; {process_count} processes need equal shares of whole mixing blocks of "
            f"{block} rows (schedule.mixup.mix_block)"
        )
    return plan[..., process_index * local : (process_index + 1) * local]


def coverage(draws: np.ndarray, label: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each class in the split, and drawn in an epoch on average: (int64[C], float64[C]).

    Args:
      draws: float64[n], see `expected_draws`.
      label: int[n], class of each row of the split at one rank.
      num_classes: C.
    """
    return np.bincount(label, minlength=num_classes), np.bincount(label, weights=draws, minlength=num_classes)


class PlanSequence:
    """The plans of a whole run: global update k -> rows, with group levels that may change between epochs.

    Plans are built on demand (about 20 bytes per row) and the latest two are kept. Safe to use from several threads.

    Args:
      groups: per group level, int[n] groups of the rows of the split.
      level_of_epoch: position in `groups` for each epoch; its length is the number of epochs.
      settings: the sampler.
      seed: non-negative seed of the run.
      process_index: this process.
      process_count: number of processes that share a micro-batch.
      past_epochs: (updates, micro-batches) of each finished epoch; they may have been made with other settings.

    Raises:
      ValueError: a level without a single micro-batch, or sizes that do not fit the processes.
    """

    def __init__(
        self,
        groups: Sequence[np.ndarray],
        level_of_epoch: Sequence[int],
        settings: SamplerSettings,
        *,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        past_epochs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.settings, self.seed = settings, seed
        self.process_index, self.process_count = process_index, process_count
        self._groups = [np.asarray(group) for group in groups]
        self._levels = np.asarray(level_of_epoch, np.int64)
        per_level = np.array([updates_per_epoch(group, settings) for group in self._groups], np.int64)
        micro = np.array([micro_batches_per_epoch(group, settings) for group in self._groups], np.int64)
        for level in np.unique(self._levels):
            if per_level[level] == 0:
                raise ValueError(
                    f"data.batch_size is {settings.batch_size}, but the {len(self._groups[level])} training rows fill "
                    "no batch with this sampler; lower data.batch_size, set data.sampler.leftovers to keep or add data"
                )
        self.updates_per_epoch = per_level[self._levels]
        self.micro_batches_per_epoch = micro[self._levels]  # without the padding of the last update
        for epoch, counts in enumerate(past_epochs[: self.epochs]):
            self.updates_per_epoch[epoch], self.micro_batches_per_epoch[epoch] = counts
        self.boundaries = np.cumsum(self.updates_per_epoch)
        self._plans: OrderedDict[int, EpochPlan] = OrderedDict()
        self._lock = threading.Lock()
        empty = np.zeros((1, 1, settings.batch_size))
        process_slice(EpochPlan(empty, empty, empty, empty), process_index, process_count, block=self._slice_block)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def _slice_block(self) -> int:
        return self.settings.block if self.settings.type == "grouped" else 1

    def groups_of_epoch(self, epoch: int) -> np.ndarray:
        """int[n], the groups of the rows of the split in one epoch."""
        return self._groups[self._levels[epoch]]

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self._levels)

    @property
    def total(self) -> int:
        """Updates of the whole run."""
        return int(self.boundaries[-1]) if self.epochs else 0

    @property
    def local_batch_size(self) -> int:
        """Rows of a micro-batch on this process."""
        return self.settings.batch_size // self.process_count

    @property
    def local_start(self) -> int:
        """Position of this process's first row within the global micro-batch."""
        return self.process_index * self.local_batch_size

    def locate(self, update: int) -> tuple[int, int]:
        """(epoch, update within the epoch) of global update `update`, counted from 0.

        Raises:
          IndexError: outside the run.
        """
        if not 0 <= update < self.total:
            raise IndexError(f"update {update} lies outside the run of {self.total} updates")
        epoch = int(np.searchsorted(self.boundaries, update, side="right"))
        return epoch, update - int(self.boundaries[epoch] - self.updates_per_epoch[epoch])

    def plan(self, epoch: int) -> EpochPlan:
        """This process's plan `[U, A, B_local]` of one epoch."""
        with self._lock:
            if epoch not in self._plans:
                plan = plan_epoch(self.groups_of_epoch(epoch), self.settings, seed=self.seed, epoch=epoch)
                plan = process_slice(plan, self.process_index, self.process_count, block=self._slice_block)
                self._plans[epoch] = plan
            self._plans.move_to_end(epoch)
            while len(self._plans) > 2:
                self._plans.popitem(last=False)
            return self._plans[epoch]

    def update(self, update: int) -> EpochPlan:
        """This process's part `[A, B_local]` of one global update."""
        epoch, within = self.locate(update)
        return self.plan(epoch)[within]
