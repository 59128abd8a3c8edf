"""How the rows of an epoch are drawn.

A sampler is a subclass of `Sampler` that `SAMPLERS.register` makes available by name; the built-in `grouped` and
`standard` are registered in the same way. What is drawn depends on the training rows, the settings, the seed of the run
and the epoch alone, so that every process draws the same.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.derived import forms_groups, global_batch_size
from linnaeus_jax.config.typed import Config
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import SAMPLERS

# ---- How often each class and each row come in an epoch whose sampler balances classes
#
# With n_c rows of class c, its share of the labelled draws is proportional to n_c ("none"), sqrt(n_c) ("sqrt") or 1
# ("equal"). Rows without a label keep the share that they have without balancing. Whole numbers are drawn by systematic
# sampling (Madow, On the theory of systematic sampling II, 1949), so that a class is at most one draw away from its
# share, and a row at most one draw away from the other rows of its class.


#: what the weight of a class is made from its number of rows
CLASS_BALANCE = ("none", "sqrt", "equal")
_POWER = dict(zip(CLASS_BALANCE, (1.0, 0.5, 0.0)))


def class_shares(label: NDArray[np.integer], balance: str, total: int, *, has_null: bool) -> NDArray[np.float64]:
    """float64 [C]: draws of each class in an epoch on average; they add up to `total`.

    Args:
      label: int [n], class index of each row.
      balance: one of `CLASS_BALANCE`.
      total: draws of an epoch.
      has_null: class 0 stands for "no label".
    """
    count = np.bincount(label).astype(np.float64)
    weight = np.where(count > 0, count ** _POWER[balance], 0.0)
    if has_null and weight[0] < weight.sum():
        labelled = len(label) - count[0]
        weight[1:] *= labelled / weight[1:].sum()
        weight[0] = count[0]
    return weight * (total / max(weight.sum(), 1.0))


def draw_rows(
    label: NDArray[np.integer], shares: NDArray[np.float64], total: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Positions of the rows of one epoch, int64 [total], ascending; a row may come several times or not at all.

    Args:
      label: int [n], class index of each row.
      shares: see `class_shares`.
      keys: uint64 [n + 1] of random bits; which rows of a class come once more than the others follows from them.
    """
    offset = float(keys[-1] >> np.uint64(11)) * 2.0**-53
    ends = np.floor(np.cumsum(shares) + offset)
    ends[-1] = total  # rounding must not lose a draw
    draws = np.diff(np.minimum(ends, total), prepend=0.0).astype(np.int64)

    count = np.bincount(label)
    order = np.lexsort((keys[:-1], label))
    first = np.cumsum(count) - count
    rank = np.arange(len(label)) - first[label[order]]
    often, more = np.divmod(draws, np.maximum(count, 1))
    times = np.empty(len(label), np.int64)
    times[order] = often[label[order]] + (rank < more[label[order]])
    return np.repeat(np.arange(len(label)), times)


def spread_chunks(
    group: NDArray[np.integer], row: NDArray[np.int64], size: int, block: int, keys: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cuts each group of drawn rows into whole chunks, with the draws of one row in different blocks of a chunk.

    The draws of a group are sorted by row, rows in random order, and dealt out to its blocks in turn: one row is in one
    block twice only where it has more draws than its group has blocks. What fills no chunk is taken from the row with
    the most draws first.

    Args:
      group: int [m], group of each draw; -1: none.
      row: int64 [m], row of each draw.
      size: draws of a chunk.
      block: draws within which partners are chosen; divides `size`.
      keys: uint64 of random bits for each row.

    Returns:
      int64 [c, size] indices of draws, of one group each; int64 [r] all others.
    """
    drawn = np.flatnonzero(group >= 0)
    of_group, at, key = group[drawn], row[drawn], keys[row[drawn]]
    by_times = np.lexsort((key, np.bincount(at)[at], of_group))
    most = at[by_times[np.flatnonzero(np.diff(of_group[by_times], append=-1))]]  # row of each group
    order = drawn[np.lexsort((at, key, np.isin(at, most), of_group))]
    sorted_group = group[order]
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    sizes = np.diff(first, append=len(order))
    chunks = sizes // size
    of_draw = np.repeat(np.arange(len(first)), sizes)
    rank = np.arange(len(order)) - first[of_draw]
    whole = rank < (chunks * size)[of_draw]
    rank, of_draw, rest = rank[whole], of_draw[whole], order[~whole]
    blocks = (chunks * (size // block))[of_draw]
    number, slot = rank % np.maximum(blocks, 1), rank // np.maximum(blocks, 1)
    chunk, within = number % chunks[of_draw], number // chunks[of_draw]
    place = ((np.cumsum(chunks) - chunks)[of_draw] + chunk) * size + within * block + slot
    dealt = np.empty(len(place), np.int64)
    dealt[place] = order[whole]
    return dealt.reshape(-1, size), np.concatenate([rest, np.flatnonzero(group < 0)])


# ----------------------------------------------------------------------------------------------------------------------


#: epochs over which the draws of a sampler are counted that does not state them
COUNTED_EPOCHS = 8


@dataclass(frozen=True)
class TrainingRows:
    """What a sampler knows of the training rows, in the order of the split."""

    label: NDArray[np.int32]  # [n, T], class index at each rank, finest first
    group: NDArray[np.int32]  # [n], rows of one group may be mixed; -1: never mixed
    has_null: bool = False  # class 0 of every rank stands for "no label"

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True)
class EpochIndex:
    """Which rows the M micro-batches of an epoch hold, `[M, B]`."""

    index: NDArray[np.int64]  # position within the split
    group: NDArray[np.int32]  # the rows of one group may be mixed; -1: never mixed
    partner: NDArray[np.int32]  # position within the micro-batch of the row to mix with; itself: none


class Sampler:
    """One way to draw the rows of an epoch.

    A sampler of the user's own is a dataclass that implements `draw`; the fields are its options,
    `data.sampler.<name>.<field>`. Its rows have no partners, so that nothing is mixed.
    """

    #: whether it draws by `data.sampler.class_balance`
    balances: ClassVar[bool] = False

    def micro_batches(self, rows: TrainingRows, settings: SamplerSettings) -> int:
        """Micro-batches of every epoch; the schedule counts with them before the first row is drawn."""
        return len(rows) // settings.batch_size

    def draw(self, rows: TrainingRows, settings: SamplerSettings, rng: np.random.Generator) -> NDArray[np.integer]:
        """Positions of the rows of one epoch, int [micro_batches * batch_size], in the order of the batches.

        Args:
          rng: follows from the seed of the run and the epoch.
        """
        raise NotImplementedError

    def plan(self, rows: TrainingRows, settings: SamplerSettings, *, seed: int, epoch: int) -> EpochIndex:
        """The micro-batches of one epoch.

        Raises:
          ValueError: `draw` gives another number of rows, or positions outside of the split.
        """
        shape = self.micro_batches(rows, settings), settings.batch_size
        rng = np.random.Generator(np.random.Philox(_seed_sequence(seed, epoch, "sampler")))
        index = np.asarray(self.draw(rows, settings, rng))
        count = shape[0] * shape[1]
        inside = index.dtype.kind in "iu" and (not index.size or (index.min() >= 0 and index.max() < len(rows)))
        if index.shape != (count,) or not inside:
            raise InputError(
                f"data.sampler.type = {settings.type!r} draws {index.dtype} {index.shape}; it must give int ({count},) "
                f"positions between 0 and {len(rows) - 1}"
            )
        position = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
        return EpochIndex(index.astype(np.int64).reshape(shape), np.full(shape, -1, np.int32), position)

    def expected_draws(self, rows: TrainingRows, settings: SamplerSettings) -> NDArray[np.float64]:
        """float64 [n]: how often each row comes in one epoch on average; here counted over a few epochs."""
        epochs = [self.plan(rows, settings, seed=0, epoch=epoch).index.ravel() for epoch in range(COUNTED_EPOCHS)]
        return np.bincount(np.concatenate(epochs), minlength=len(rows)) / COUNTED_EPOCHS


@dataclass(frozen=True)
class SamplerSettings:
    """How rows are drawn.

    Attributes:
      type: name of the sampler. "grouped" draws rows so that partners share a group; "standard" is a plain permutation
        without partners.
      grouped_mode: "mixed-pairs" puts two rows of one group at positions (2j, 2j + 1) of a micro-batch with many
        groups; "strict-group" fills a micro-batch from one group.
      leftovers: "keep" also batches the rows that no pair or full batch could take (as group -1), and every row comes
        equally often; "drop" leaves them out of the epoch.
      batch_size: rows of one micro-batch over all devices of all processes (B).
      accumulation_steps: micro-batches per update (A).
      mix_block: partners lie within one block of this many rows; None is the smallest factor of `batch_size` (2 if
        it is even), so that partners do not depend on the number of devices.
      class_balance: "none", every row comes equally often; "sqrt" and "equal", see `data.class_balance`.
      balanced_rank: position of the rank whose classes are balanced, from the finest one.
      options: options of the sampler, where it has any.

    Raises:
      ValueError: an unknown name, or sizes that do not divide each other.
    """

    type: str = "grouped"
    grouped_mode: str = "mixed-pairs"
    leftovers: str = "keep"
    batch_size: int = 64
    accumulation_steps: int = 1
    mix_block: int | None = None
    class_balance: str = "none"
    balanced_rank: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Config, devices: int = 1) -> SamplerSettings:
        """The sampler of the config; raises ValueError also for sizes that the devices do not divide."""
        sampler, tasks = config.data.sampler, config.data.task_keys_h5
        if sampler.class_balance_task and sampler.class_balance_task not in tasks:
            raise InputError(
                f"data.sampler.class_balance_task = {sampler.class_balance_task!r} is none of data.task_keys_h5 "
                f"({', '.join(tasks)})"
            )
        settings = cls(
            type=sampler.type,
            grouped_mode=sampler.grouped_mode,
            leftovers=sampler.leftovers,
            batch_size=global_batch_size(config, devices),
            accumulation_steps=max(1, config.train.accumulation_steps),
            mix_block=config.schedule.mixup.mix_block,
            class_balance=sampler.class_balance,
            balanced_rank=tasks.index(sampler.class_balance_task) if sampler.class_balance_task else 0,
            options={name: sampler[sampler.type][name] for name in SAMPLERS.options(sampler.type)},
        )
        settings.check_devices(devices)
        return settings

    def __post_init__(self) -> None:
        _ = self.sampler  # reports an unknown name and options that the sampler refuses
        if self.class_balance not in CLASS_BALANCE:
            raise InputError(
                f"data.sampler.class_balance = {self.class_balance!r} is none of {', '.join(CLASS_BALANCE)}"
            )
        if self.balanced and not self.sampler.balances:
            raise InputError(
                f"data.sampler.class_balance = {self.class_balance!r} has no effect on data.sampler.type = "
                f"{self.type!r}; choose grouped or standard, or set it to 'none'"
            )
        if self.balanced and self.drops_leftovers:
            raise InputError(
                f"data.sampler.class_balance = {self.class_balance!r} draws every class, and data.sampler.leftovers = "
                "'drop' leaves out those that fill no pair or batch; set leftovers to 'keep'"
            )
        if self.pairs and self.batch_size % 2:
            raise InputError(
                f"data.batch_size is {self.batch_size}; mixed-pairs sampling fills batches with pairs and needs an "
                "even number (or set data.sampler.grouped_mode to strict-group)"
            )
        if self.batch_size % self.block or (self.pairs and self.block % 2):
            even = "be even and " if self.pairs else ""
            raise InputError(
                f"schedule.mixup.mix_block is {self.block}; it must {even}divide data.batch_size ({self.batch_size})"
            )

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler with its options."""
        make = SAMPLERS[self.type]
        with SAMPLERS.plugin_errors(self.type):
            sampler: Sampler = make(**self.options)
        return sampler

    @property
    def block(self) -> int:
        """Rows per mixing block."""
        if self.mix_block is not None:
            return self.mix_block
        return next((size for size in range(2, self.batch_size + 1) if self.batch_size % size == 0), 1)

    @property
    def groups(self) -> bool:
        """True where rows have partners of their group."""
        return forms_groups(self.type)

    @property
    def pairs(self) -> bool:
        """True where micro-batches consist of pairs."""
        return self.groups and self.grouped_mode == "mixed-pairs"

    @property
    def balanced(self) -> bool:
        """True where some classes come more often than their number of rows says."""
        return self.class_balance != "none"

    @property
    def unit(self) -> int:
        """Rows that are drawn together from one group."""
        return 2 if self.pairs else self.batch_size

    @property
    def drops_leftovers(self) -> bool:
        """True where a row comes only if its group's shuffle puts it into a whole unit."""
        return self.groups and self.leftovers == "drop"

    def check_devices(self, device_count: int) -> None:
        """Checks that every device gets equal, whole mixing blocks.

        Raises:
          ValueError: the micro-batch or the mixing block does not fit the number of devices.
        """
        if self.batch_size % device_count:
            raise InputError(f"data.batch_size is {self.batch_size}; it must be a multiple of {device_count} devices")
        per_device = self.batch_size // device_count
        if self.groups and per_device % self.block:
            raise InputError(
                f"schedule.mixup.mix_block is {self.block}; it must divide the {per_device} rows that data.batch_size "
                f"{self.batch_size} gives each of {device_count} devices; change one of the two"
            )

    def micro_batches(self, rows: TrainingRows) -> int:
        """Micro-batches of one epoch; the remainder that fills no micro-batch is dropped."""
        return self.sampler.micro_batches(rows, self)

    def steps_per_epoch(self, rows: TrainingRows) -> int:
        """Optimizer updates of one epoch: micro-batches over accumulation steps, rounded up."""
        return -(-self.micro_batches(rows) // self.accumulation_steps)

    def expected_draws(self, rows: TrainingRows) -> NDArray[np.float64]:
        """float64 [n]: how often each row comes in one epoch on average over the epochs."""
        return self.sampler.expected_draws(rows, self)


def _seed_sequence(seed: int, epoch: int, stream: str) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, epoch, zlib.crc32(stream.encode())])


def random_keys(seed: int, epoch: int, stream: str, count: int) -> NDArray[np.uint64]:
    """uint64[count] of random bits, a pure function of its arguments.

    Raw Philox output (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011) is sorted instead of calling
    `Generator.permutation`, because only the raw bits are guaranteed to be the same in every NumPy release.
    """
    return np.random.Philox(_seed_sequence(seed, epoch, stream)).random_raw(count)


def _chunks(group: np.ndarray, size: int, keys: np.ndarray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cuts each shuffled group into whole chunks: positions (int64[m, size] of one group each, int64[r] the rest)."""
    rows = np.flatnonzero(group >= 0)
    order = rows[np.lexsort((keys[rows], group[rows]))]
    sorted_group = group[order]
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    sizes = np.diff(first, append=len(order))
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    whole = rank < np.repeat(sizes // size * size, sizes)
    return order[whole].reshape(-1, size), np.concatenate([order[~whole], np.flatnonzero(group < 0)])


@SAMPLERS.register("grouped")
class Grouped(Sampler):
    """Rows of one group together.

    Rows are cut into units (pairs, or batches of one group); what is left forms units of group -1; the units are
    shuffled together, so that rare rows are spread over the epoch. What fills no micro-batch is taken out before that,
    uniformly over all rows, unless leftovers are dropped anyway. In strict-group mode a block's partners are a random
    cyclic shift of the block. With balanced classes a row may come several times; it is not its own partner where its
    group has enough others.
    """

    balances = True

    def micro_batches(self, rows: TrainingRows, settings: SamplerSettings) -> int:
        if not settings.drops_leftovers:
            return super().micro_batches(rows, settings)
        units = np.bincount(rows.group[rows.group >= 0]) // settings.unit
        return int(units.sum()) * settings.unit // settings.batch_size

    def expected_draws(self, rows: TrainingRows, settings: SamplerSettings) -> NDArray[np.float64]:
        """The same for every row, or every row of a class, where leftovers are kept; where they are dropped, a row of
        group -1 never comes."""
        drawn = self.micro_batches(rows, settings) * settings.batch_size
        if settings.balanced and len(rows):
            label, shares = _shares(rows, settings, drawn)
            return (shares / np.maximum(np.bincount(label), 1))[label]
        if not settings.drops_leftovers:
            return np.full(len(rows), drawn / max(1, len(rows)))
        grouped = rows.group >= 0
        sizes = np.bincount(rows.group[grouped])
        whole = sizes // settings.unit * settings.unit
        per_group = whole / np.maximum(sizes, 1) * (drawn / max(1, int(whole.sum())))
        draws = np.zeros(len(rows))
        draws[grouped] = per_group[rows.group[grouped]]
        return draws

    def plan(self, rows: TrainingRows, settings: SamplerSettings, *, seed: int, epoch: int) -> EpochIndex:
        group, batch, unit = rows.group, settings.batch_size, settings.unit
        micro = self.micro_batches(rows, settings)
        whole, rest = _units(rows, settings, micro * batch, seed, epoch)
        unit_group = group[whole[:, 0]].astype(np.int32)
        if not settings.drops_leftovers:
            rest = rest[np.argsort(random_keys(seed, epoch, "leftovers", len(rest)), kind="stable")].reshape(-1, unit)
            whole = np.concatenate([whole, rest])
            unit_group = np.concatenate([unit_group, np.full(len(rest), -1, np.int32)])
        order = np.argsort(random_keys(seed, epoch, "order", len(whole)), kind="stable")
        order = order[: micro * (batch // unit)]
        index = whole[order].reshape(micro, batch)
        groups = np.repeat(unit_group[order], unit).reshape(micro, batch)
        position = np.arange(batch, dtype=np.int32)
        partner = np.where(groups >= 0, self._partners(settings, micro, seed, epoch), position[None, :])
        if settings.balanced:
            alone = np.take_along_axis(index, partner, axis=1) == index
            groups, partner = np.where(alone, -1, groups), np.where(alone, position[None, :], partner)
        return EpochIndex(index, groups.astype(np.int32), partner.astype(np.int32))

    @staticmethod
    def _partners(settings: SamplerSettings, micro: int, seed: int, epoch: int) -> NDArray[np.int32]:
        """Position within the micro-batch of each row's partner, int32 [micro, B]."""
        batch, block = settings.batch_size, settings.block
        position = np.arange(batch, dtype=np.int32)
        if settings.pairs:
            return np.broadcast_to((position ^ 1)[None, :], (micro, batch))
        keys = random_keys(seed, epoch, "shift", micro * (batch // block))
        shift = keys % np.uint64(max(block - 1, 1)) + np.uint64(1)
        shift = np.repeat(shift.astype(np.int32).reshape(micro, batch // block), block, axis=1)
        inner = position[None, :] % block
        return position[None, :] - inner + (inner + shift) % block


def _shares(rows: TrainingRows, settings: SamplerSettings, total: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """(class of each row, draws of each class on average) of an epoch of `total` draws with balanced classes."""
    label = rows.label[:, settings.balanced_rank]
    return label, class_shares(label, settings.class_balance, total, has_null=rows.has_null)


def _units(
    rows: TrainingRows, settings: SamplerSettings, total: int, seed: int, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of an epoch of `total` draws: int64 [u, unit] units of one group each, and int64 [r] all others."""
    group, n, unit = rows.group, len(rows), settings.unit
    if settings.balanced:
        kept = draw_rows(*_shares(rows, settings, total), total, random_keys(seed, epoch, "balance", n + 1))
        block = 2 if settings.pairs else settings.block
        chunks = spread_chunks(group[kept], kept, unit, block, random_keys(seed, epoch, "chunks", n))
    else:
        kept = np.arange(n)
        if not settings.drops_leftovers and total < n:
            kept = np.sort(np.argsort(random_keys(seed, epoch, "rows", n), kind="stable")[:total])
        chunks = _chunks(group[kept], unit, random_keys(seed, epoch, "chunks", len(kept)))
    return kept[chunks[0]], kept[chunks[1]]


@SAMPLERS.register("standard")
class Standard(Grouped):
    """A plain permutation: no row belongs to a group."""

    def plan(self, rows: TrainingRows, settings: SamplerSettings, *, seed: int, epoch: int) -> EpochIndex:
        alone = dataclasses.replace(rows, group=np.full(len(rows), -1, np.int32))
        return super().plan(alone, settings, seed=seed, epoch=epoch)
