"""Which rows form which update: index plans as pure functions of (seed, epoch).

A plan covers one epoch. Its unit is one optimizer update of A micro-batches with B rows each, so that shapes never
change; the last update of an epoch is padded with micro-batches of weight 0. Every process computes the same plan and
takes its rows of the B axis, so that processes are disjoint and always agree on the number of updates.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows
from linnaeus_jax.mistakes import InputError


@dataclass(frozen=True)
class EpochPlan:
    """Index plan of one epoch, `[U, A, B]` (U updates, A micro-batches, B rows); of one update, `[A, B]`."""

    index: NDArray[np.int64]  # position within the split; -1 is padding
    group: NDArray[np.int32]  # the rows of one group may be mixed; -1: never mixed
    partner: NDArray[np.int32]  # position within the micro-batch of the row to mix with; itself: none
    weight: NDArray[np.float32]  # 0 for padding, else 1
    epoch: int | None = 0  # None: of an evaluation

    def __getitem__(self, key: Any) -> EpochPlan:
        """The same part of every array."""
        return EpochPlan(self.index[key], self.group[key], self.partner[key], self.weight[key], self.epoch)


def plan_epoch(rows: TrainingRows, settings: SamplerSettings, *, seed: int, epoch: int) -> EpochPlan:
    """Draws the rows, groups and mixing partners of one epoch and pads the last update.

    Args:
      rows: the training rows, with their groups.
      settings: the sampler.
      seed: non-negative seed of the run.
      epoch: epoch counted from 0.

    Returns:
      The plan `[U, A, B]`, the same on every process.
    """
    drawn = settings.sampler.plan(rows, settings, seed=seed, epoch=epoch)
    micro, batch = drawn.index.shape
    updates = settings.steps_per_epoch(rows)
    padding = updates * settings.accumulation_steps - micro
    position = np.arange(batch, dtype=np.int32)
    index = np.concatenate([drawn.index, np.full((padding, batch), -1, np.int64)])
    group = np.concatenate([drawn.group, np.full((padding, batch), -1, np.int32)])
    partner = np.concatenate([drawn.partner, np.broadcast_to(position[None, :], (padding, batch))])
    shape = (updates, settings.accumulation_steps, batch)
    weight = (index >= 0).astype(np.float32)
    index, group, partner, weight = (np.ascontiguousarray(a).reshape(shape) for a in (index, group, partner, weight))
    return EpochPlan(index, group, partner, weight, epoch)


class PlanSequence:
    """The plans of a whole run: step -> rows, with group levels that may change between epochs.

    Plans are built on demand (about 20 bytes per row) and the latest two are kept. Safe to use from several threads.

    Args:
      rows: the training rows with the groups of each level.
      level_of_epoch: level of each epoch; its length is the number of epochs.
      settings: the sampler.
      seed: non-negative seed of the run.
      positions: int [B_local], ascending: this process's rows of each micro-batch, see `Placement.positions`; whole
        mixing blocks, see `SamplerSettings.check_devices`. None: all.
      past_epochs: (updates, micro-batches) of each finished epoch; they may have been made with other settings.

    Raises:
      ValueError: a level without a single micro-batch.
    """

    def __init__(
        self,
        rows: Mapping[str, TrainingRows],
        level_of_epoch: Sequence[str],
        settings: SamplerSettings,
        *,
        seed: int,
        positions: np.ndarray | None = None,
        past_epochs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.settings, self.seed = settings, seed
        self.positions = np.arange(settings.batch_size) if positions is None else positions
        self._rows, self._levels = rows, tuple(level_of_epoch)
        steps = {level: settings.steps_per_epoch(rows[level]) for level in dict.fromkeys(self._levels)}
        micro = {level: settings.micro_batches(rows[level]) for level in steps}
        for level, count in steps.items():
            if count == 0:
                raise InputError(
                    f"data.batch_size is {settings.batch_size}, but the {len(rows[level])} training rows fill "
                    "no batch with this sampler; lower data.batch_size, set data.sampler.leftovers to keep or add data"
                )
        self.steps_per_epoch = np.array([steps[level] for level in self._levels], np.int64)
        #: without the padding of the last update
        self.micro_batches_per_epoch = np.array([micro[level] for level in self._levels], np.int64)
        for epoch, counts in enumerate(past_epochs[: self.epochs]):
            self.steps_per_epoch[epoch], self.micro_batches_per_epoch[epoch] = counts
        self.boundaries = np.cumsum(self.steps_per_epoch)
        self._plans: OrderedDict[int, EpochPlan] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def rows_of_epoch(self, epoch: int) -> TrainingRows:
        """The training rows with their groups in one epoch."""
        return self._rows[self._levels[epoch]]

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self._levels)

    @property
    def total(self) -> int:
        """Updates of the whole run."""
        return int(self.boundaries[-1]) if self.epochs else 0

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, step within the epoch) of a step of the run.

        Raises:
          IndexError: outside the run.
        """
        if not 0 <= step < self.total:
            raise IndexError(f"step {step} lies outside the run of {self.total} updates")
        epoch = int(np.searchsorted(self.boundaries, step, side="right"))
        return epoch, step - int(self.boundaries[epoch] - self.steps_per_epoch[epoch])

    def plan(self, epoch: int) -> EpochPlan:
        """This process's part `[U, A, B_local]` of the plan of one epoch.

        `partner` counts from the start of the global micro-batch, since the step sees the global array.
        """
        with self._lock:
            if epoch not in self._plans:
                plan = plan_epoch(self.rows_of_epoch(epoch), self.settings, seed=self.seed, epoch=epoch)
                whole = len(self.positions) == self.settings.batch_size
                self._plans[epoch] = plan if whole else plan[..., self.positions]
            self._plans.move_to_end(epoch)
            while len(self._plans) > 2:
                self._plans.popitem(last=False)
            return self._plans[epoch]

    def plan_of_step(self, step: int) -> EpochPlan:
        """This process's part `[A, B_local]` of one update."""
        epoch, within = self.locate(step)
        return self.plan(epoch)[within]
