"""What each debug flag says at each point of a run; the texts themselves are made in `flags`.

Every method takes what is known at its point and does nothing where its flags are off. Numbers from inside the compiled
step come through one probe, `TargetsProbe`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.config.derived import architecture
from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.debugging import due_reasons, flags
from linnaeus_jax.debugging.flags import DebugFlags
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.input_stages import stage_images
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.probes import Probe, ProbeInputs
from linnaeus_jax.step.program import Program

#: images on which the effect of the augmentation is shown
SHOWN_IMAGES = 16
#: flags whose numbers are measured inside the step
LOOKING_INSIDE = ("loss.null_masking", "loss.class_weighting", "loss.taxonomy_smoothing")


@dataclass(frozen=True, eq=False)
class RunFacts:
    """The parts of a run that its debugging describes.

    Attributes:
      plans: for the place of a step in its epoch.
      pipeline: how batches reach the step, name -> value.
      start: step of the next update.
    """

    program: Program
    dataset: Dataset
    resolved: ResolvedSchedule
    plans: PlanSequence
    pipeline: Mapping[str, Any]
    start: int

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
    """

    def __init__(self, config: Config, debug: DebugFlags, tasks: Sequence[str], memory_profiles: Path) -> None:
        self.config = config
        self.debug = debug
        self.tasks = tuple(tasks)
        self.memory_profiles = memory_profiles
        self._dumped: dict[str, str] = {}

    def probes(self) -> list[Probe]:
        """The probe of the flags that look into the step; none where they are off."""
        if not any(self.debug.on(flag) for flag in LOOKING_INSIDE):
            return []
        return [TargetsProbe(name="flags", write=self._write_targets)]

    # ---- start of a run

    def opened(self, facts: RunFacts) -> None:
        """The next update is that of step `facts.start`."""
        line = self.debug.debug_line
        self._facts, program = facts, facts.program
        self._class_weights = program.objective.class_weights or {}
        optimizer, rates = program.settings.optimizer, facts.learning_rates(facts.start)
        nulls = {task: percent / 100 for task, percent in facts.dataset.task_nulls_density["train"].items()}
        line("distributed", lambda: flags.fact_lines("processes and devices", flags.distributed_facts()))
        line("model_build", lambda: flags.model_lines(architecture(self.config), program.parameters))
        line("optimizer", lambda: flags.optimizer_lines(optimizer.rows, rates, optimizer.overlaps))
        line("dataloader", lambda: flags.fact_lines("input pipeline", facts.pipeline))
        line("scheduling", lambda: schedule_summary(facts.resolved))
        line("loss.null_masking", lambda: flags.null_data_lines(nulls), "SUMMARY")
        line("training_loop", lambda: flags.fact_lines("training loop", self._loop_facts(facts)))
        line("verbose_debug", lambda: flags.dump_lines("losses", _loss_facts(program)))
        if self.debug.on("loss.taxonomy_smoothing"):
            for lines in _taxonomy_lines(program, facts.dataset):
                line("loss.taxonomy_smoothing", lines)

    def _loop_facts(self, facts: RunFacts) -> dict[str, Any]:
        remat = self.config.train.gradient_checkpointing
        return {
            "next update": facts.start,
            **facts.training,
            "gradient checkpointing": f"normal steps {remat.enabled_normal_steps}, "
            f"GradNorm steps {remat.enabled_gradnorm_steps}",
            "GradNorm": facts.resolved.gradnorm,
            "compute dtype": np.dtype(facts.program.model.dtype).name,
        }

    def restoring(self, source: str, saved: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
        """A checkpoint is about to be read; name -> shape of what it holds and of what this run needs."""
        self.debug.debug_line("checkpoint", lambda: flags.checkpoint_diff_lines(saved, needed, source))

    def compiled(self, steps: Mapping[str, CompiledStep]) -> None:
        """The steps are compiled."""
        for step in steps.values():
            self.debug.debug_line("training_loop", functools.partial(_compiled_lines, step))
            if "gradnorm" in steps:
                self.debug.debug_line("loss.gradnorm_memory", functools.partial(_compiled_lines, step))

    def first_batch(self, batch: Mapping[str, Any]) -> None:
        """The first batch of this process, before its update; leading [A, B]."""
        program, step = self._facts.program, self._facts.start
        self.debug.debug_line("dataloader", lambda: flags.fact_lines("first batch", dict(batch)))
        self.debug.debug_line("augmentation", lambda: _augmentation_lines(program, batch, step))

    # ---- updates

    def before_update(self, step: int, step_name: str) -> None:
        """The compiled step `step_name` is dispatched next."""
        if step_name == "gradnorm":
            self._memory(f"before GradNorm update {step}")

    def log_point(self, row: Mapping[str, Any], step: int) -> None:
        """A row of the training log was written."""
        if not self.debug.enabled:
            return
        line = self.debug.debug_line

        def part(*prefixes: str) -> dict[str, Any]:
            return {name: value for name, value in row.items() if name.startswith(prefixes)}

        line("train_metrics", lambda: flags.fact_lines(f"training row of step {step}", dict(row)))
        inner = part("train/lr/", "train/grad_norm", "train/skipped", "gradnorm/total_norm")
        line("optimizer", lambda: flags.fact_lines(f"update {step - 1}", inner))
        pipeline = part("pipeline/")
        if len(pipeline) > 1:
            line("dataloader", lambda: flags.fact_lines(f"input pipeline at step {step}", pipeline))
        if not part("gradnorm/weight/"):
            return
        kinds = [name.split("/")[1] for name in row if name.startswith("gradnorm/") and name.count("/") == 2]
        table = {kind: [row[f"gradnorm/{kind}/{task}"] for task in self.tasks] for kind in dict.fromkeys(kinds)}
        line("loss.gradnorm_metrics", lambda: [f"step {step}", *flags.gradnorm_lines(self.tasks, table)])
        line("loss.verbose_gradnorm_logging", lambda: flags.dump_lines(f"row of step {step}", dict(row)))
        self._memory(f"after GradNorm update {step - 1}")
        self._memory_profile(step)

    def _memory(self, stage: str) -> None:
        self.debug.debug_line("loss.gradnorm_memory", lambda: flags.memory_lines(stage, flags.device_memory()))

    def _memory_profile(self, step: int) -> None:
        """What of the device's memory belongs to what, once per run."""
        path = self.memory_profiles / f"gradnorm_memory_{step}.prof"
        if self.debug.on("loss.gradnorm_memory") and not any(self.memory_profiles.glob("gradnorm_memory_*.prof")):
            path.parent.mkdir(parents=True, exist_ok=True)
            jax.profiler.save_device_memory_profile(str(path))
            self.debug.debug_line("loss.gradnorm_memory", f"device memory profile for pprof: {path}")

    # ---- end of an epoch

    def first_validation_batch(self, sums: Mapping[str, Any]) -> None:
        """The sums of every phase after one batch."""
        for phase, phase_sums in sums.items():
            self.debug.debug_line(
                "dump_metrics", functools.partial(flags.sums_lines, f"{phase}: sums after the first batch", phase_sums)
            )

    def phase(self, name: str, sums: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """A validation phase was evaluated."""
        self.debug.debug_line("validation_metrics", lambda: flags.validation_lines(name, sums, values))

    def saved(self, step: int, state: Any) -> None:
        """A checkpoint of `state` is being written in the background."""

        def lines() -> list[str]:
            leaves = jax.tree.leaves(state)
            size = flags.size_text(sum(leaf.nbytes for leaf in leaves))
            return [f"checkpoint of step {step}: {len(leaves)} arrays, {size}, written in the background"]

        self.debug.debug_line("checkpoint", lines)

    def retained(self, kept: Sequence[int], dropped: Sequence[int]) -> None:
        """The retention of checkpoints acted."""
        self.debug.debug_line("checkpoint", lambda: f"retention keeps {list(kept)} and removes {list(dropped)}")

    def epoch_end(
        self, step: int, epoch: int, due: Any, row: Mapping[str, Any], tracked: Mapping[str, Any], params: Any
    ) -> None:
        """The end-of-epoch hooks are done, after `step` updates."""
        line = self.debug.debug_line
        line("scheduling", lambda: self._scheduling(step, epoch, due, row.get("early_stop/reason")))
        names = [*(phase.name for phase in due.phases), *(["checkpoint"] if due.save else [])]
        line("training_loop", lambda: f"epoch {epoch} ends after {step} updates; due: {', '.join(names) or 'nothing'}")
        line("dump_metrics", lambda: self._dump(step, tracked))
        line(
            "distributed",
            lambda: (
                f"parameters after step {step} have fingerprint {parameter_fingerprint(params):08x} here; it must be "
                "the same in the files of all processes"
                if all(x.is_fully_replicated for x in jax.tree.leaves(params))
                else f"parameters after step {step} are split over the devices"
            ),
        )

    def _scheduling(self, step: int, epoch: int, due: Any, stopped: str | None) -> list[str]:
        facts = self._facts
        totals, levels = facts.resolved.totals, facts.resolved.mixing.level_of_epoch
        rows = len(facts.dataset.val)
        events = due_reasons.epoch_end_events(facts.resolved, due, epoch, step, validation_rows=rows, stopped=stopped)
        probabilities = on_host(facts.program.objective.probabilities.by_name())(step - 1)
        values = {
            **{f"learning rate of {group}": rate for group, rate in facts.learning_rates(step - 1).items()},
            **{name: float(probability) for name, probability in probabilities.items()},
            "mixing groups": levels[min(int(totals.epoch_at(step - 1)), totals.epochs - 1)],
        }
        return due_reasons.scheduling_lines(step, epoch, events, values)

    def _dump(self, step: int, tracked: Mapping[str, Any]) -> list[str]:
        before, self._dumped = self._dumped, flags.tracked_values(tracked)
        return flags.changed_lines(f"metrics after step {step}", before, self._dumped)

    # ---- targets and losses

    def _write_targets(self, values: Mapping[str, np.ndarray]) -> None:
        line, real = self.debug.debug_line, values["weight"] > 0  # without padding
        class_name = self._facts.dataset.class_name
        names = ("label", "partner_label", "lam", "null", "loss_mask", "sample_losses")
        label, partner_label, lam, null, loss_mask, sample_losses = (values[name][real] for name in names)
        line("loss.null_masking", lambda: flags.null_input_lines(label, self.tasks), "INPUT")
        line("loss.null_masking", lambda: flags.null_internal_lines(null, loss_mask, self.tasks), "INTERNAL")
        line(
            "loss.null_masking",
            lambda: flags.null_summary_lines(
                null.sum(0).tolist(),
                (null & loss_mask).sum(0).tolist(),
                len(label),
                self.tasks,
                probability=float(values["null_probability"]),
                phase1=self.config.train.phase1_mask_null_loss,
            ),
            "SUMMARY",
        )
        for t, task in enumerate(self.tasks):
            if not self.debug.on("loss.class_weighting"):
                break
            num_classes = int(max(label[:, t].max(), partner_label[:, t].max())) + 1
            weights = self._class_weights.get(task, np.ones(num_classes, np.float32))
            arrays = (label[:, t], partner_label[:, t], lam, weights, sample_losses[:, t], loss_mask[:, t])
            trained = float(values["task_losses"][t])
            line(
                "loss.class_weighting",
                flags.class_weight_lines(task, *arrays, trained, functools.partial(class_name, task)),
            )
        shown = values["preview"][real[: len(values["preview"])], 0]
        line(
            "loss.taxonomy_smoothing",
            lambda: flags.sample_loss_lines(
                self.tasks[0],
                label[: len(shown), 0],
                shown,
                sample_losses[: len(shown), 0],
                functools.partial(class_name, self.tasks[0]),
            ),
            "FORWARD",
        )


def _loss_facts(program: Program) -> dict[str, Any]:
    weighted = program.objective.class_weights is not None
    criteria = program.objective.criteria.items()
    return {task: {"criterion": criterion.name, "class weights": weighted} for task, criterion in criteria}


def _taxonomy_lines(program: Program, dataset: Dataset) -> Iterator[list[str]]:
    """Of every smoothed task."""
    top = dataset.tasks[-1]
    roots = [f"{top} {dataset.class_name(top, index)}" for index in dataset.tree.top_classes()]
    for task, criterion in program.objective.criteria.items():
        if criterion.smoothing is not None:
            name = functools.partial(dataset.class_name, task)
            distance, matrix = criterion.smoothing.distance_matrix(), criterion.smoothing.dense_matrix()
            yield [f"{task}:", *flags.taxonomy_lines(task, distance, matrix, roots, name)]


def _compiled_lines(step: CompiledStep) -> list[str]:
    memory = {kind: flags.size_text(size) for kind, size in step.memory.items()}
    facts = {"seconds": step.seconds, "flops": step.flops, **memory}
    return flags.fact_lines(f"compiled {step.name} step, per device", facts)


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


def _augmentation_lines(program: Program, batch: Mapping[str, Any], step: int) -> list[str]:
    """Order of the augmentations, where they run, and what they do to the first images."""
    objective = program.objective
    if objective.block is not None:
        return [f"what was stored of the pictures enters block {objective.block}; nothing is augmented any more"]
    stages, notes = stage_images(objective, batch, step, SHOWN_IMAGES)
    return [
        *flags.augmentation_lines(list(stages.items())),
        *(f"{name}, image {i}: {note}" for name, texts in notes.items() for i, note in enumerate(texts)),
        f"settings: {objective.augmentation}",
        f"mixing: {objective.mix or 'off'}",
        f"all of it inside the compiled step, on {jax.default_backend()}",
    ]


@jax.jit
def _fingerprint(params: Any) -> jax.Array:
    bits = [jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) for x in jax.tree.leaves(params)]
    return jnp.sum(jnp.stack([jnp.sum(x, dtype=jnp.uint32) for x in bits]), dtype=jnp.uint32)


def parameter_fingerprint(params: Any) -> int:
    """Sum of the bits of this process's copy of replicated parameters: equal parameters have equal ones."""
    return int(fetch(_fingerprint(jax.tree.map(lambda x: x.addressable_data(0), params))))
