"""The debug flags of a run: at each of its points, what those that are on have to say.

The texts are the rows of `flag_texts.TEXTS`. Numbers from inside the compiled step come through
one probe, `TargetsProbe`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.debugging.flags import DebugFlags, Point, Text
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.step.probes import Probe, ProbeInputs
from linnaeus_jax.step.program import Program


@dataclass(frozen=True, eq=False)
class RunFacts:
    """The parts of a run that its debugging describes.

    Attributes:
      plans: for the place of a step in its epoch.
      pipeline: how batches reach the step, name -> value.
      start: step of the next update.
      config: as `config.json` has it.
    """

    program: Program
    dataset: Dataset
    resolved: ResolvedSchedule
    plans: PlanSequence
    pipeline: Mapping[str, Any]
    start: int
    config: Mapping[str, Any]

    @property
    def training(self) -> dict[str, Any]:
        """Sizes of the training."""
        totals = self.resolved.totals
        return {
            "epochs": totals.epochs,
            "steps_per_epoch": totals.steps_per_epoch[0],
            "total_steps": totals.total_steps,
            "batch_size": totals.batch_size,
            "accumulation": totals.accumulation_steps,
        }

    @functools.cached_property
    def _rates(self) -> Callable[[int], dict[str, np.ndarray]]:
        return on_host(self.program.settings.learning_rates)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Group -> rate of `step`."""
        return {group: rate.item() for group, rate in self._rates(step).items()}


class FlagReports:
    """The lines of one run's debug flags.

    Args:
      tasks: in task order, finest first.
      memory_profiles: directory for the device memory profile of DEBUG.LOSS.GRADNORM_MEMORY.
      texts: what can be said.

    Attributes:
      facts: of the run, from its opening on.
      dumped: what DEBUG.DUMP_METRICS has shown last.
    """

    facts: RunFacts

    def __init__(
        self, config: Config, debug: DebugFlags, tasks: Sequence[str], memory_profiles: Path, texts: Sequence[Text]
    ) -> None:
        self.config, self.debug, self.tasks, self.memory_profiles = config, debug, tuple(tasks), memory_profiles
        self._texts = [text for text in texts if debug.on(text.flag)]
        self.dumped: dict[str, str] = {}

    def probes(self) -> list[Probe]:
        """The probe of the flags that look into the step; none where they are off."""
        if not any(text.point == "targets" for text in self._texts):
            return []
        return [TargetsProbe(name="flags", write=lambda values: self.say("targets", values))]

    def opened(self, facts: RunFacts) -> None:
        """The next update is that of step `facts.start`."""
        self.facts = facts
        self.say("opened")

    def say(self, point: Point, *given: Any) -> None:
        """Prints what the flags that are on say at a point of the run.

        Args:
          given: `restoring`: where the checkpoint lies, name -> shape of what it holds and of what this run needs;
            `compiled`: steps by name; `epoch_start`: epoch, step; `first_batch`: of this process, leading [A, B];
            `before_update`: step, name of the compiled step; `log_point`: row, completed updates; `targets`: of
            `TargetsProbe`; `first_validation_batch`: sums of every phase; `phase`: name, sums, metrics; `saved`:
            completed updates, state; `retained`: steps of the checkpoints that are kept, and dropped; `epoch_end`:
            completed updates, epoch, what was due, row, what is tracked, parameters.
        """
        for text in self._texts:
            if text.point == point:
                said = text.make(self, *given)
                for message in [said] if isinstance(said, str | list | tuple) else said:
                    self.debug.debug_line(text.flag, message, text.sub)


class TargetsProbe(Probe):
    """Targets, predictions and losses of the first micro-batch."""

    write: Callable[[Mapping[str, np.ndarray]], None]

    def measure(self, inputs: ProbeInputs) -> dict[str, jax.Array]:
        return {
            "label": inputs.batch["label"][0],
            "weight": inputs.batch["weight"][0],
            "partner_label": inputs.partner_label[0],
            "lam": inputs.lam[0],
            "task_losses": inputs.task_losses,
            "null": inputs.null[0],
            "loss_mask": inputs.loss_mask[0],
            "sample_losses": inputs.sample_losses,
            "null_probability": inputs.probabilities["null_mask_prob"],
            "preview": inputs.preview,
        }

    def consume(self, step: int, epoch: int, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        self.write(values)
        return {}
