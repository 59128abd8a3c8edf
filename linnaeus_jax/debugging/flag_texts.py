"""What each debug flag says, at its points of a run; those of losses and targets stand in `loss_texts`.

`TEXTS` at the end has a row for each of them. The functions `*_lines` make texts from plain host values.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.config.derived import architecture
from linnaeus_jax.debugging import due_reasons
from linnaeus_jax.debugging.flag_reports import FlagReports
from linnaeus_jax.debugging.flags import Text, fact_lines, short, size_text, table
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.input_stages import stage_images
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.program import Program

#: images on which the effect of the augmentation is shown
SHOWN_IMAGES = 16
#: longest array that is shown value by value
_SHORT = 12


def tracked_values(tracked: Mapping[str, Any]) -> dict[str, str]:
    """One text per metric and per other value of a `MetricsTracker.state_dict`."""
    texts = {}
    for name, metric in tracked["metrics"].items():
        best = f" (best {short(metric['best'])} at epoch {metric['best_epoch']})"
        texts[name] = short(metric["value"]) + ("" if metric["best_epoch"] is None else best)
    return {**{name: short(value) for name, value in tracked["latest"].items()}, **texts}


def changed_lines(title: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A title and one line per value that is new or another one than before."""
    changed = {name: value for name, value in now.items() if before.get(name) != value}
    return fact_lines(f"{title}: {len(changed)} of {len(now)} values changed", changed)


def checkpoint_diff_lines(
    saved: Mapping[str, tuple[int, ...]], model: Mapping[str, tuple[int, ...]], source: str
) -> list[str]:
    """How a checkpoint fits: missing and unexpected names, different shapes.

    Args:
      saved, model: array of the state -> shape.
      source: where the checkpoint lies.
    """
    missing, unexpected = sorted(model.keys() - saved.keys()), sorted(saved.keys() - model.keys())
    differ = [name for name in model if name in saved and tuple(saved[name]) != tuple(model[name])]
    fitting = len(model) - len(missing) - len(differ)
    return [
        f"{source}: {fitting} of {len(model)} arrays fit, {len(missing)} missing, "
        f"{len(unexpected)} unexpected, {len(differ)} of another shape",
        *(f"  missing    {name} {tuple(model[name])}" for name in missing),
        *(f"  unexpected {name} {tuple(saved[name])}" for name in unexpected),
        *(f"  shape      {name} checkpoint {tuple(saved[name])}, model {tuple(model[name])}" for name in differ),
    ]


def augmentation_lines(stages: Sequence[tuple[str, np.ndarray]]) -> list[str]:
    """The order of the augmentations and the effect of each on some images.

    Args:
      stages: name and result, float [B, H, W, 3] in 0 ... 1, of the input and of every stage after those before it.
    """
    rows, before = [], stages[0][1]
    for name, image in stages:
        change = np.abs(image - before)
        changed = int((change.max(axis=(1, 2, 3)) > 1e-3).sum())
        rows.append((name, f"{changed} of {len(image)}", change.mean(), image.mean(), image.std()))
        before = image
    header = ("stage", "images changed", "mean change", "mean", "standard deviation")
    return table("in this order:" if len(stages) > 1 else "no augmentation is on", header, rows)


def optimizer_lines(rows: Sequence[Any], learning_rates: Mapping[str, float], overlaps: Sequence[str]) -> list[str]:
    """Groups, then every parameter with what happens to it.

    Args:
      rows: `learning.optimizers.ParameterRow`s.
      learning_rates: group -> current rate.
      overlaps: `Optimizer.overlaps`.
    """
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row.group, row.optimizer].append(row)
    summary = [
        (
            group,
            optimizer,
            len(members),
            sum(math.prod(row.shape) for row in members),
            learning_rates.get(group, 0.0),
            "/".join(f"{value:g}" for value in sorted({row.weight_decay for row in members})),
        )
        for (group, optimizer), members in groups.items()
    ]
    header = ("group", "optimizer", "tensors", "numbers", "learning rate", "weight decay")
    each = ("name", "shape", "group", "optimizer", "weight decay", "rate multiplier")
    cells = [(row.name, row.shape, row.group, row.optimizer, row.weight_decay, row.lr_multiplier) for row in rows]
    return [
        *table(f"{len(rows)} parameters in {len(groups)} groups", header, summary),
        *table("parameters:", each, cells),
        *(f"overlap: {text}" for text in overlaps),
    ]


def distributed_facts() -> dict[str, Any]:
    """What jax knows of processes and devices, for `fact_lines`."""
    return {
        "process": f"{jax.process_index()} of {jax.process_count()}",
        "backend": jax.default_backend(),
        "devices": f"{jax.device_count()} ({jax.local_device_count()} local)",
        "local devices": ", ".join(f"{d.id}:{d.device_kind}" for d in jax.local_devices()),
        "jax": jax.__version__,
    }


def model_lines(architecture: str, rows: Sequence[Any]) -> list[str]:
    """Parameters by component, then one by one.

    Args:
      rows: objects with `name`, `shape` and `layer_type`, e.g. `models.names.ParameterInfo`.
    """
    components: dict[str, list[int]] = collections.defaultdict(list)
    for row in rows:
        parts = row.name.split(".")
        components[".".join(parts[:2] if len(parts) > 2 else parts[:1])].append(math.prod(row.shape))
    total = sum(sum(sizes) for sizes in components.values())
    counts = [(name, len(sizes), sum(sizes), f"{100 * sum(sizes) / total:.1f}") for name, sizes in components.items()]
    return [
        *table(f"{architecture}: {total} numbers", ("component", "tensors", "numbers", "percent"), counts),
        *table("parameters:", ("name", "shape", "module"), [(r.name, tuple(r.shape), r.layer_type) for r in rows]),
    ]


def validation_lines(phase: str, sums: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
    """The sums over a phase and the metrics made of them.

    Args:
      sums: `metrics.phase` sums as numpy arrays.
      metrics: name -> value.
    """
    return [*sums_lines(f"{phase}: sums", sums), *fact_lines(f"{phase}: metrics", metrics)]


def sums_lines(title: str, sums: Mapping[str, Any]) -> list[str]:
    """One line per sum; only short ones value by value."""
    arrays = {name: np.asarray(value) for name, value in sums.items()}
    return fact_lines(title, {name: x.tolist() if x.size <= _SHORT else x for name, x in arrays.items()})


def compiled_lines(step: CompiledStep) -> list[str]:
    memory = {kind: size_text(size) for kind, size in step.memory.items()}
    facts = {"seconds": step.seconds, "flops": step.flops, **memory}
    return fact_lines(f"compiled {step.name} step, per device", facts)


def _augmentation_lines(program: Program, batch: Mapping[str, Any], step: int) -> list[str]:
    """Order of the augmentations, where they run, and what they do to the first images."""
    objective = program.objective
    if objective.block is not None:
        return [f"what was stored of the pictures enters block {objective.block}; nothing is augmented any more"]
    stages, notes = stage_images(objective, batch, step, SHOWN_IMAGES)
    return [
        *augmentation_lines(list(stages.items())),
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


def _optimizer(reports: FlagReports) -> list[str]:
    facts = reports.facts
    optimizer = facts.program.settings.optimizer
    return optimizer_lines(optimizer.rows, facts.learning_rates(facts.start), optimizer.overlaps)


def _training_loop(reports: FlagReports) -> list[str]:
    facts, remat = reports.facts, reports.config.train.gradient_checkpointing
    loop = {
        "next update": facts.start,
        **facts.training,
        "gradient checkpointing": f"normal steps {remat.enabled_normal_steps}, "
        f"GradNorm steps {remat.enabled_gradnorm_steps}",
        "GradNorm": facts.resolved.gradnorm,
        "compute dtype": np.dtype(facts.program.model.dtype).name,
    }
    return fact_lines("training loop", loop)


def _part(title: str, row: Mapping[str, Any], *prefixes: str, least: int = 0) -> Iterator[list[str]]:
    """The part of a row of the training log whose names begin so, where it has more than `least` values."""
    part = {name: value for name, value in row.items() if name.startswith(prefixes)}
    if len(part) > least:
        yield fact_lines(title, part)


def _saved(_: FlagReports, step: int, state: Any) -> str:
    leaves = jax.tree.leaves(state)
    size = size_text(sum(leaf.nbytes for leaf in leaves))
    return f"checkpoint of step {step}: {len(leaves)} arrays, {size}, written in the background"


def _scheduling(reports: FlagReports, step: int, epoch: int, due: Any, row: Mapping[str, Any], *_: Any) -> list[str]:
    facts, stopped = reports.facts, row.get("early_stop/reason")
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


def _due(_: FlagReports, step: int, epoch: int, due: Any, *__: Any) -> str:
    names = [*(phase.name for phase in due.phases), *(["checkpoint"] if due.save else [])]
    return f"epoch {epoch} ends after {step} updates; due: {', '.join(names) or 'nothing'}"


def _dump(
    reports: FlagReports, step: int, epoch: int, due: Any, row: Mapping[str, Any], tracked: Mapping[str, Any], *_: Any
) -> list[str]:
    before, reports.dumped = reports.dumped, tracked_values(tracked)
    return changed_lines(f"metrics after step {step}", before, reports.dumped)


def _fingerprint_line(_: FlagReports, step: int, *given: Any) -> str:
    params = given[-1]
    if not all(x.is_fully_replicated for x in jax.tree.leaves(params)):
        return f"parameters after step {step} are split over the devices"
    return (
        f"parameters after step {step} have fingerprint {parameter_fingerprint(params):08x} here; it must be the same "
        "in the files of all processes"
    )


TEXTS = (
    Text("opened", "distributed", lambda _: fact_lines("processes and devices", distributed_facts())),
    Text("opened", "model_build", lambda it: model_lines(architecture(it.config), it.facts.program.parameters)),
    Text("opened", "optimizer", _optimizer),
    Text("opened", "dataloader", lambda it: fact_lines("input pipeline", it.facts.pipeline)),
    Text("opened", "scheduling", lambda it: schedule_summary(it.facts.resolved)),
    Text("opened", "training_loop", _training_loop),
    Text("restoring", "checkpoint", lambda _, source, saved, needed: checkpoint_diff_lines(saved, needed, source)),
    Text("compiled", "training_loop", lambda _, steps: map(compiled_lines, steps.values())),
    Text("epoch_start", "training_loop", lambda _, epoch, step: f"epoch {epoch} starts at update {step}"),
    Text("first_batch", "dataloader", lambda _, batch: fact_lines("first batch", dict(batch))),
    Text("first_batch", "augmentation", lambda it, batch: _augmentation_lines(it.facts.program, batch, it.facts.start)),
    Text("log_point", "train_metrics", lambda _, row, step: fact_lines(f"training row of step {step}", dict(row))),
    Text("log_point", "optimizer", lambda _, row, step: _part(f"update {step - 1}", row, "train/lr/", "train/grad_norm",
         "train/skipped", "gradnorm/total_norm", least=-1)),
    Text("log_point", "dataloader", lambda _, row, step: _part(f"input pipeline at step {step}", row, "pipeline/",
         least=1)),
    Text("first_validation_batch", "dump_metrics", lambda _, sums: (
         sums_lines(f"{phase}: sums after the first batch", found) for phase, found in sums.items())),
    Text("phase", "validation_metrics", lambda _, name, sums, values: validation_lines(name, sums, values)),
    Text("saved", "checkpoint", _saved),
    Text("retained", "checkpoint", lambda _, kept, gone: f"retention keeps {list(kept)} and removes {list(gone)}"),
    Text("epoch_end", "scheduling", _scheduling),
    Text("epoch_end", "training_loop", _due),
    Text("epoch_end", "dump_metrics", _dump),
    Text("epoch_end", "distributed", _fingerprint_line),
)  # fmt: skip
