"""Where a run stands, small enough to be written at every change of stage, and what a resumed run has to do."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus_jax.files import write_json
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.triggers import VALIDATION_STAGES, Due, Stage, due_at_boundary

SCHEMA_VERSION = 1
_PARTIAL = Stage.VALIDATION_PARTIAL_MASK_META
_MAX_CONSISTENCY_WARNINGS = 3


@dataclass
class TrainingProgress:
    """Mutable progress of a run; `global_step` (completed optimizer updates) is the only clock of the schedules."""

    current_stage: str = Stage.TRAINING.value
    current_epoch: int = 0
    global_step: int = 0
    expected_total_steps: int = 0
    expected_epochs: int = 0
    pending_validations: list[str] = field(default_factory=list)
    completed_validations: list[str] = field(default_factory=list)
    partial_validation_indices: list[int] = field(default_factory=list)  # whitelist entries still to run
    epoch_complete: bool = False  # the last update of current_epoch is done
    last_boundary_step: int = 0  # updates at the boundary before the one of current_epoch
    micro_step: int = 0  # micro-batches seen
    samples_seen: int = 0  # rows seen, over all processes
    stop_reason: str | None = None  # why early stopping ended the run
    consistency_warnings_given: int = 0
    schema_version: int = SCHEMA_VERSION

    @property
    def progress_fraction(self) -> float:
        """Share of the planned updates that is completed, at most 1; of the epochs while the updates are unknown."""
        if self.expected_total_steps:
            return min(1.0, self.global_step / self.expected_total_steps)
        return min(1.0, self.current_epoch / self.expected_epochs) if self.expected_epochs else 0.0

    def start_training_epoch(self, epoch: int) -> None:
        """Enters `epoch` (0-based); the boundary of a completed epoch counts as served from here on."""
        if self.epoch_complete:
            self.last_boundary_step = self.global_step
        self.current_stage, self.current_epoch, self.epoch_complete = Stage.TRAINING.value, epoch, False
        self.pending_validations, self.completed_validations, self.partial_validation_indices = [], [], []

    def enter_epoch(self, epoch: int) -> bool:
        """Enters the epoch of the next update where training is not in it yet; returns whether it did.

        A resumed run may find itself in another epoch than it was saved in, if epochs have other lengths now.
        """
        if self.global_step and not self.epoch_complete and epoch == self.current_epoch:
            return False
        self.start_training_epoch(epoch)
        return True

    def replan(self, resolved: ResolvedSchedule) -> list[str]:
        """Takes over the length of a run that may be planned anew; returns warnings."""
        before = self.expected_total_steps
        self.expected_total_steps, self.expected_epochs = resolved.total_steps, resolved.epochs
        if before in (0, resolved.total_steps):
            return []
        return [
            f"the run was planned for {before} updates and now for {resolved.total_steps}; the current configuration "
            f"counts"
        ]

    def advance(self, updates: int = 1, *, micro_batches: int = 0, samples: int = 0) -> None:
        """Counts completed updates, and the micro-batches and rows they consumed."""
        self.global_step += updates
        self.micro_step += micro_batches
        self.samples_seen += samples

    def finish_training_epoch(self) -> None:
        self.epoch_complete = True

    def schedule_validation(self, stage: str, index: int | None = None) -> None:
        """Adds a validation once; for the partial stage also the index of a whitelist entry."""
        if Stage(stage) is Stage.TRAINING:
            return
        if stage not in self.pending_validations:
            self.pending_validations.append(Stage(stage).value)
        if stage == _PARTIAL and index is not None and index not in self.partial_validation_indices:
            self.partial_validation_indices.append(index)

    def schedule_due(self, due: Due) -> None:
        """Adds every validation of a boundary."""
        for phase in due.phases:
            self.schedule_validation(phase.stage, phase.index)

    def start_validation(self, stage: str) -> None:
        self.current_stage = Stage(stage).value

    def complete_validation(self, stage: str, index: int | None = None) -> None:
        """Marks a validation as done.

        The partial stage is done once no index remains; without `index` all of them are. When nothing is pending any
        more, the stage is TRAINING again.
        """
        stage = Stage(stage).value
        if stage == _PARTIAL:
            remaining = [] if index is None else [i for i in self.partial_validation_indices if i != index]
            self.partial_validation_indices = remaining
            if remaining:
                return
        self.pending_validations = [pending for pending in self.pending_validations if pending != stage]
        if stage not in self.completed_validations:
            self.completed_validations.append(stage)
        if not self.pending_validations:
            self.current_stage = Stage.TRAINING.value

    def complete_all(self) -> None:
        """Marks every pending validation as done, for one pass that ran all of them."""
        for stage in list(self.pending_validations):
            self.complete_validation(stage)

    def drop_validations(self) -> None:
        """Forgets what is pending, for a resume that skips validations."""
        self.pending_validations, self.partial_validation_indices = [], []
        self.current_stage = Stage.TRAINING.value

    def consistency_warnings(self, resolved: ResolvedSchedule, updates_in_epoch: int) -> list[str]:
        """Deviations from the plan at the end of an epoch; at most three texts over the whole run."""
        totals, epoch = resolved.totals, self.current_epoch
        planned = totals.steps_per_epoch[min(epoch, totals.epochs - 1)]
        expected = totals.boundaries[min(epoch, totals.epochs - 1)]
        found = []
        if abs(updates_in_epoch - planned) > 0.1 * planned:
            found.append(f"epoch {epoch} took {updates_in_epoch} updates instead of {planned}")
        if abs(self.global_step - expected) > 0.2 * expected:
            found.append(f"{self.global_step} updates are completed after epoch {epoch} instead of {expected}")
        if self.global_step > 1.1 * totals.total_steps:
            found.append(
                f"{self.global_step} updates are completed, more than 1.1 times the {totals.total_steps} planned"
            )
        found = found[: _MAX_CONSISTENCY_WARNINGS - self.consistency_warnings_given]
        self.consistency_warnings_given += len(found)
        return found

    def state_dict(self) -> dict[str, Any]:
        """JSON-able copy."""
        return dataclasses.asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a copy of `state`.

        Raises:
          ValueError: another schema version, missing or unknown fields, or an unknown stage.
        """
        if state.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(
                f"progress has schema_version {state.get('schema_version')!r}, this program reads {SCHEMA_VERSION}; "
                f"resume with the program that wrote it"
            )
        names = {f.name for f in dataclasses.fields(self)}
        if names != set(state):
            raise ValueError(f"progress fields differ from this program's: {sorted(names ^ set(state))}")
        for stage in (state["current_stage"], *state["pending_validations"], *state["completed_validations"]):
            Stage(stage)
        for name, value in state.items():
            setattr(self, name, list(value) if isinstance(value, list | tuple) else value)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON so that a reader finds the old or the new state, never a part."""
        write_json(Path(path), self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingProgress:
        """Reads what `save` wrote.

        Raises:
          FileNotFoundError: no such file.
          ValueError: not the progress of this program; the text names the file.
        """
        progress = cls()
        try:
            progress.load_state_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return progress


class ResumePlan(NamedTuple):
    run: tuple[Stage, ...]  # validations to run first, in canonical order
    partial_indices: tuple[int, ...]  # whitelist entries of the partial stage
    next_epoch: int  # 0-based; the current epoch where it is not complete
    training_finished: bool
    warnings: tuple[str, ...]


def plan_resume(progress: TrainingProgress, resolved: ResolvedSchedule, *, skip_validation: bool = False) -> ResumePlan:
    """What a restarted run does before it trains on.

    Pending and interrupted validations run again from their beginning (the partial stage: its remaining entries), and
    so does what was due at a completed boundary but is neither pending nor completed.
    """
    warnings = dataclasses.replace(progress).replan(resolved)
    stopped = progress.stop_reason is not None and resolved.early_stop.active
    wanted = {Stage(stage) for stage in (*progress.pending_validations, progress.current_stage)}
    if progress.epoch_complete:
        is_last = True if stopped else None
        boundary = (progress.current_epoch, progress.global_step, progress.last_boundary_step)
        wanted |= set(due_at_boundary(resolved, *boundary, is_last).stages)
    # between two validations the stage still names the one just completed
    wanted -= {Stage(stage) for stage in progress.completed_validations}
    if skip_validation:
        wanted = set()
    indices: tuple[int, ...] = ()
    if _PARTIAL in wanted:
        entries = range(len(resolved.validation.whitelist))
        indices = tuple(sorted(progress.partial_validation_indices)) or tuple(entries)
        unknown = [index for index in indices if index not in entries]
        if unknown:
            warnings.append(f"pending partial validations {unknown} are no longer in the whitelist and are dropped")
            indices = tuple(index for index in indices if index in entries)
    return ResumePlan(
        run=tuple(stage for stage in VALIDATION_STAGES if stage in wanted),
        partial_indices=indices,
        next_epoch=progress.current_epoch + int(progress.epoch_complete),
        training_finished=stopped or progress.global_step >= resolved.total_steps,
        warnings=tuple(warnings),
    )
