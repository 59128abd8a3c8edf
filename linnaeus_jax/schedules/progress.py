"""Where a run stands, small enough to be written at every change of stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.triggers import Due, Stage

SCHEMA_VERSION = 1
_PARTIAL = Stage.VALIDATION_PARTIAL_MASK_META
#: fields of earlier versions, read and ignored
_RETIRED = {"consistency_warnings_given"}


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
    epoch_complete: bool = False  # the last update of current_epoch is made
    last_boundary_step: int = 0  # completed updates at the end of the epoch before current_epoch
    micro_step: int = 0  # micro-batches consumed
    samples_seen: int = 0  # rows consumed, over all processes
    stop_reason: str | None = None  # why early stopping ended the run
    schema_version: int = SCHEMA_VERSION

    def start_training_epoch(self, epoch: int) -> None:
        """Enters `epoch` (0-based); the end of the epoch before counts as completed from here on."""
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

    def schedule_validation(self, stage: str, index: int | None = None) -> None:
        """Adds a validation once; for the partial stage also the index of a whitelist entry."""
        if Stage(stage) is Stage.TRAINING:
            return
        if stage not in self.pending_validations:
            self.pending_validations.append(Stage(stage).value)
        if stage == _PARTIAL and index is not None and index not in self.partial_validation_indices:
            self.partial_validation_indices.append(index)

    def schedule_due(self, due: Due) -> None:
        """Adds every validation that is due at the end of an epoch."""
        for phase in due.phases:
            self.schedule_validation(phase.stage, phase.index)

    def start_validation(self, stage: str) -> None:
        self.current_stage = Stage(stage).value

    def complete_validation(self, stage: str, index: int | None = None) -> None:
        """Marks a validation as completed.

        The partial stage is completed once no index remains; without `index` all of them are. When nothing is pending
        any more, the stage is TRAINING again.
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
        """Marks every pending validation as completed, after one pass that ran all of them."""
        for stage in list(self.pending_validations):
            self.complete_validation(stage)

    def drop_validations(self) -> None:
        """Forgets what is pending, for a resume that skips validations."""
        self.pending_validations, self.partial_validation_indices = [], []
        self.current_stage = Stage.TRAINING.value

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
        state = {name: value for name, value in state.items() if name not in _RETIRED}
        if names != set(state):
            raise ValueError(f"progress fields differ from this program's: {sorted(names ^ set(state))}")
        for stage in (state["current_stage"], *state["pending_validations"], *state["completed_validations"]):
            Stage(stage)
        for name, value in state.items():
            setattr(self, name, list(value) if isinstance(value, list | tuple) else value)
