"""What each debug flag says, at its points of a run: named values, shown by `flags.values_text` and `flags.table`.

`TEXTS` at the end has a row for each of them.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.config.derived import architecture
from linnaeus_jax.debugging.flag_reports import FlagReports
from linnaeus_jax.debugging.flags import Text, short, size_text, table, values_text
from linnaeus_jax.schedules.summary import describe_interval, schedule_summary
from linnaeus_jax.schedules.triggers import events
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.input_stages import stage_images
from linnaeus_jax.step.placement import fetch

#: images on which the effect of the augmentation is shown
_IMAGES = 16
_SAMPLES = 5
#: classes whose distances and smoothing to all others are looked at; of all, that is a matrix of classes x classes
_CLASSES = 200
#: longest array that is shown value by value
_SHORT = 12

Lines = list[str]
Values = Mapping[str, np.ndarray]


# ---- processes, model, optimizer, schedule


def _distributed(_: FlagReports) -> Lines:
    return values_text(
        "processes and devices",
        {
            "process": f"{jax.process_index()} of {jax.process_count()}",
            "backend": jax.default_backend(),
            "devices": f"{jax.device_count()} ({jax.local_device_count()} local)",
            "local devices": ", ".join(f"{d.id}:{d.device_kind}" for d in jax.local_devices()),
            "jax": jax.__version__,
        },
    )


@jax.jit
def _sum_of_bits(params: Any) -> jax.Array:
    bits = [jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) for x in jax.tree.leaves(params)]
    return jnp.sum(jnp.stack([jnp.sum(x, dtype=jnp.uint32) for x in bits]), dtype=jnp.uint32)


def parameter_fingerprint(params: Any) -> int:
    """Sum of the bits of this process's copy of replicated parameters: equal parameters have equal ones."""
    return int(fetch(_sum_of_bits(jax.tree.map(lambda x: x.addressable_data(0), params))))


def _fingerprint(_: FlagReports, step: int, *given: Any) -> str:
    params = given[-1]
    if not all(x.is_fully_replicated for x in jax.tree.leaves(params)):
        return f"parameters after step {step} are split over the devices"
    return (
        f"parameters after step {step} have fingerprint {parameter_fingerprint(params):08x} here; it must be the same "
        "in the files of all processes"
    )


def _model(reports: FlagReports) -> Lines:
    """Parameters by component, then one by one."""
    rows, components = reports.facts.program.parameters, collections.defaultdict[str, list[int]](list)
    for row in rows:
        parts = row.name.split(".")
        components[".".join(parts[:2] if len(parts) > 2 else parts[:1])].append(math.prod(row.shape))
    total = sum(map(sum, components.values()))
    counts = [(name, len(sizes), sum(sizes), f"{100 * sum(sizes) / total:.1f}") for name, sizes in components.items()]
    title = f"{architecture(reports.config)}: {total} numbers"
    return [
        *table(title, ("component", "tensors", "numbers", "percent"), counts),
        *table("parameters:", ("name", "shape", "module"), [(r.name, tuple(r.shape), r.layer_type) for r in rows]),
    ]


def _optimizer(reports: FlagReports) -> Lines:
    """Groups, every parameter with what happens to it, and filters that overlap."""
    facts, groups = reports.facts, collections.defaultdict[tuple[str, str], list[Any]](list)
    optimizer, rates = facts.program.settings.optimizer, facts.learning_rates(facts.start)
    for row in optimizer.rows:
        groups[row.group, row.optimizer].append(row)
    summary = []
    for (group, name), rows in groups.items():
        decay = "/".join(f"{value:g}" for value in sorted({row.weight_decay for row in rows}))
        numbers = sum(math.prod(row.shape) for row in rows)
        summary.append((group, name, len(rows), numbers, rates.get(group, 0.0), decay))
    header = ("group", "optimizer", "tensors", "numbers", "learning rate", "weight decay")
    each = ("name", "shape", "group", "optimizer", "weight decay", "rate multiplier")
    cells = [(r.name, r.shape, r.group, r.optimizer, r.weight_decay, r.lr_multiplier) for r in optimizer.rows]
    return [
        *table(f"{len(cells)} parameters in {len(groups)} groups", header, summary),
        *table("parameters:", each, cells),
        *(f"overlap: {text}" for text in optimizer.overlaps),
    ]


def _training_loop(reports: FlagReports) -> Lines:
    facts, remat = reports.facts, reports.config.train.gradient_checkpointing
    loop = {
        "next update": facts.start,
        **facts.training,
        "gradient checkpointing": f"normal steps {remat.enabled_normal_steps}, "
        f"GradNorm steps {remat.enabled_gradnorm_steps}",
        "GradNorm": facts.resolved.gradnorm,
        "compute dtype": np.dtype(facts.program.model.dtype).name,
    }
    return values_text("training loop", loop)


def _compiled(_: FlagReports, steps: Mapping[str, CompiledStep]) -> Iterator[Lines]:
    for step in steps.values():
        memory = {kind: size_text(size) for kind, size in step.memory.items()}
        values = {"seconds": step.seconds, "flops": step.flops, **memory}
        yield values_text(f"compiled {step.name} step, per device", values)


def _scheduling(reports: FlagReports, step: int, epoch: int, due: Any, row: Mapping[str, Any], *_: Any) -> Lines:
    """What could be due at the end of an epoch and when it is next, and the schedule's values there."""
    facts, schedule = reports.facts, reports.facts.resolved
    stop, stopped, validates = schedule.early_stop, row.get("early_stop/reason"), len(facts.dataset.val) > 0
    rows = []
    for event in events(schedule):
        setting = describe_interval(schedule, event.interval) if event.interval else "the last epoch"
        is_due = due.save if event.stage == "CHECKPOINT" else event.stage in due.stages and validates
        following = next((str(later) for later in event.epochs if later > epoch), "never")
        rows.append((str(event.stage), setting, is_due, following))
    last = schedule.epochs - 1
    rows += [
        ("early stop", f"{stop.phase}/{stop.metric}" if stop.active else "off", stopped is not None, stopped or ""),
        ("end of the run", f"{schedule.total_steps} updates", stopped is not None or epoch >= last, str(last)),
    ]
    shown = [(name, setting, "DUE" if is_due else "no", following) for name, setting, is_due, following in rows]
    probabilities = on_host(facts.program.objective.probabilities.by_name())(step - 1)
    totals, levels = schedule.totals, schedule.mixing.level_of_epoch
    values = {
        **{f"learning rate of {group}": rate for group, rate in facts.learning_rates(step - 1).items()},
        **{name: float(probability) for name, probability in probabilities.items()},
        "mixing groups": levels[min(int(totals.epoch_at(step - 1)), totals.epochs - 1)],
        "validation rows": len(facts.dataset.val),
    }
    return [
        *table(f"after {step} updates, epoch {epoch}:", ("event", "setting", "due", "next epoch"), shown),
        *values_text(f"values of update {step - 1}, the last one made:", values),
    ]


def _due(_: FlagReports, step: int, epoch: int, due: Any, *__: Any) -> str:
    names = [*(phase.name for phase in due.phases), *(["checkpoint"] if due.save else [])]
    return f"epoch {epoch} ends after {step} updates; due: {', '.join(names) or 'nothing'}"


# ---- checkpoints, input, metrics


def _checkpoint_fit(
    _: FlagReports, source: str, saved: Mapping[str, tuple[int, ...]], needed: Mapping[str, tuple[int, ...]]
) -> Lines:
    """How a checkpoint fits: missing and unexpected names, different shapes (array of the state -> shape)."""
    both = [name for name in needed if name in saved]
    problems: dict[str, dict[str, Any]] = {
        "missing": {name: needed[name] for name in sorted(needed.keys() - saved.keys())},
        "unexpected": {name: saved[name] for name in sorted(saved.keys() - needed.keys())},
        "of another shape": {
            name: f"checkpoint {tuple(saved[name])}, model {tuple(needed[name])}"
            for name in both
            if tuple(saved[name]) != tuple(needed[name])
        },
    }
    fitting = len(both) - len(problems["of another shape"])
    title = ", ".join(f"{len(names)} {kind}" for kind, names in problems.items())
    return [
        f"{source}: {fitting} of {len(needed)} arrays fit, {title}",
        *(line for kind, names in problems.items() if names for line in values_text(f"{kind}:", names)),
    ]


def _saved(_: FlagReports, step: int, state: Any) -> str:
    leaves = jax.tree.leaves(state)
    size = size_text(sum(leaf.nbytes for leaf in leaves))
    return f"checkpoint of step {step}: {len(leaves)} arrays, {size}, written in the background"


def _augmentation(reports: FlagReports, batch: Mapping[str, Any]) -> Lines:
    """Order of the augmentations, where they run, and what they do to the first images."""
    objective = reports.facts.program.objective
    if objective.block is not None:
        return [f"what was stored of the pictures enters block {objective.block}; nothing is augmented any more"]
    stages, notes = stage_images(objective, batch, reports.facts.start, _IMAGES)
    rows, before = [], next(iter(stages.values()))
    for name, image in stages.items():
        change = np.abs(image - before)
        changed = int((change.max(axis=(1, 2, 3)) > 1e-3).sum())
        rows.append((name, f"{changed} of {len(image)}", change.mean(), image.mean(), image.std()))
        before = image
    header = ("stage", "images changed", "mean change", "mean", "standard deviation")
    settings = {
        "settings": objective.augmentation,
        "mixing": objective.mix or "off",
        "device": f"{jax.default_backend()}, inside the compiled step",
    }
    return [
        *table("in this order:", header, rows),
        *(f"{name}, image {i}: {note}" for name, texts in notes.items() for i, note in enumerate(texts)),
        *values_text("augmentation", settings),
    ]


def _part(title: str, row: Mapping[str, Any], *prefixes: str, least: int = 0) -> Iterator[Lines]:
    """The part of a row of the training log whose names begin so, where it has more than `least` values."""
    part = {name: value for name, value in row.items() if name.startswith(prefixes)}
    if len(part) > least:
        yield values_text(title, part)


def _sums(title: str, sums: Mapping[str, Any]) -> Lines:
    """One line per sum; only short ones value by value."""
    arrays = {name: np.asarray(value) for name, value in sums.items()}
    return values_text(title, {name: x.tolist() if x.size <= _SHORT else x for name, x in arrays.items()})


def _dump(
    reports: FlagReports, step: int, epoch: int, due: Any, row: Mapping[str, Any], tracked: Mapping[str, Any], *_: Any
) -> Lines:
    """Values of a `MetricsTracker.state_dict` that are new or others than before."""
    now = {name: short(value) for name, value in tracked["latest"].items()}
    for name, metric in tracked["metrics"].items():
        best = f" (best {short(metric['best'])} at epoch {metric['best_epoch']})"
        now[name] = short(metric["value"]) + ("" if metric["best_epoch"] is None else best)
    changed = {name: value for name, value in now.items() if reports.dumped.get(name) != value}
    reports.dumped = now
    return values_text(f"metrics after step {step}: {len(changed)} of {len(now)} values changed", changed)


# ---- losses and targets of the first micro-batch; their arrays are those of `flag_reports.TargetsProbe`


def _real(values: Values, *names: str) -> list[np.ndarray]:
    """Without padding."""
    return [values[name][values["weight"] > 0] for name in names]


def _losses(reports: FlagReports) -> Lines:
    objective = reports.facts.program.objective
    weighted = objective.class_weights is not None
    names = {task: f"{criterion.name}, class weights {weighted}" for task, criterion in objective.criteria.items()}
    return values_text("losses", names)


def _smoothing(reports: FlagReports) -> Iterator[Lines]:
    """Roots, distances and smoothing rows of every smoothed task."""
    dataset, top = reports.facts.dataset, reports.facts.dataset.tasks[-1]
    roots = [f"{top} {dataset.class_name(top, index)}" for index in dataset.tree.top_classes()]
    for task, criterion in reports.facts.program.objective.criteria.items():
        if criterion.smoothing is None:
            continue
        name = functools.partial(dataset.class_name, task)
        distance, rows = criterion.smoothing.distance_matrix(_CLASSES), criterion.smoothing.dense_matrix(_CLASSES)
        kinds, counts = np.unique(distance[np.isfinite(distance) & (distance > 0)], return_counts=True)
        total = rows.sum(axis=1)
        best = [np.argsort(-row, kind="stable")[:_SAMPLES].tolist() for row in rows[:_SAMPLES]]
        yield [
            f"{task}: {len(roots)} roots: {', '.join(roots[:20])}{' …' if len(roots) > 20 else ''}",
            f"{task}: of {len(distance)} of {distance.shape[1]} classes, distances (edges: pairs) "
            f"{', '.join(f'{kind:g}: {count}' for kind, count in zip(kinds, counts, strict=True)) or 'none'}; "
            f"unrelated pairs {int(np.isinf(distance).sum())}",
            f"{task}: {len(rows)} rows sum to {total.min():.6f} … {total.max():.6f}"
            + ("" if np.allclose(total, 1.0, atol=1e-4) else "  PROBLEM: rows must sum to 1"),
            *(f"  {name(i)}: " + ", ".join(f"{name(c)}={rows[i, c]:.4g}" for c in each) for i, each in enumerate(best)),
        ]


def _sample_losses(reports: FlagReports, values: Values) -> Lines:
    """Label, prediction and loss of the first samples."""
    name, preview = functools.partial(reports.facts.dataset.class_name, reports.tasks[0]), values["preview"]
    predicted = preview[(values["weight"] > 0)[: len(preview)], 0].tolist()
    label, losses = (array[: len(predicted), 0] for array in _real(values, "label", "sample_losses"))
    rows = [(name(a), name(b), loss) for a, b, loss in zip(label.tolist(), predicted, losses.tolist(), strict=True)]
    title = f"{reports.tasks[0]}: mean loss {losses.mean():.4f}"
    return table(title, ("label", "prediction", "loss"), rows)


def _issues(issues: Sequence[str]) -> Iterator[str]:
    return (f"suspected issue: {issue}" for issue in issues or ["none"])


def _null_data(reports: FlagReports) -> Lines:
    """Null labels of the data, and what is suspicious about them."""
    percent = reports.facts.dataset.task_nulls_density["train"]
    empty = [task for task, value in percent.items() if value == 100]
    issues = [f"{task}: every label is null; the task learns nothing but null" for task in empty]
    if not any(percent.values()):
        issues.append("no null label at all: is class 0 the null class of these data?")
    shown = {task: f"{value:.2f} %" for task, value in percent.items()}
    return [*values_text("null labels of the training rows:", shown), *_issues(issues)]


def _null_input(reports: FlagReports, values: Values) -> Lines:
    """Labels as they enter the masking."""
    (labels,) = _real(values, "label")
    rows = [
        (task, int(column.min()), int(column.max()), len(np.unique(column)), int((column == 0).sum()))
        for task, column in zip(reports.tasks, labels.T, strict=True)
    ]
    title = f"targets {labels.dtype}{list(labels.shape)}, class index, 0 = null"
    return table(title, ("task", "lowest", "highest", "distinct", "nulls"), rows)


def _null_internal(reports: FlagReports, values: Values) -> Lines:
    """Null detection and mask, per task and for the first samples."""
    null, loss_mask = _real(values, "null", "loss_mask")
    kept, tasks = (null & loss_mask).sum(axis=0), reports.tasks
    totals = [f"{task}: {null[:, t].sum()} null of {len(null)}, {kept[t]} of them kept" for t, task in enumerate(tasks)]
    masked = np.where(null, "null masked", "PROBLEM: label masked")
    marks = np.where(loss_mask, np.where(null, "null kept", "label"), masked)[:_SAMPLES]
    return [*totals, *table("first samples:", ("sample", *tasks), [(i, *row) for i, row in enumerate(marks)])]


def _null_summary(reports: FlagReports, values: Values) -> Lines:
    """Totals per task, the scheduled share of null labels that are kept, and suspected issues."""
    null, loss_mask = _real(values, "null", "loss_mask")
    probability, never = float(values["null_probability"]), reports.facts.program.objective.null_masking == "always"
    rows, issues = [], []
    for task, nulls, kept in zip(reports.tasks, null.sum(0).tolist(), (null & loss_mask).sum(0).tolist(), strict=True):
        rows.append((task, nulls, kept, f"{100 * kept / nulls:.1f}" if nulls else "-"))
        if kept and (never or probability == 0):
            issues.append(f"{task}: {kept} null labels kept although none should be")
        if kept < nulls and probability >= 1 and not never:
            issues.append(f"{task}: {nulls - kept} null labels masked although all should be kept")
    title = f"probability {probability:.4f}, phase 1 {'on' if never else 'off'}, {len(null)} samples"
    return [*table(title, ("task", "nulls", "kept", "percent"), rows), *_issues(issues)]


def _class_weights(reports: FlagReports, values: Values) -> Iterator[Lines]:
    """Weights of the classes in the micro-batch, and the loss without and with them; a mixed row has two classes."""
    names = ("label", "partner_label", "lam", "sample_losses", "loss_mask")
    label, partner, lam, losses, counts = _real(values, *names)
    known = reports.facts.program.objective.class_weights or {}
    for t, task in enumerate(reports.tasks):
        weights = known.get(task, np.ones(int(max(label[:, t].max(), partner[:, t].max())) + 1, np.float32))
        counted, number = counts[:, t], max(int(counts[:, t].sum()), 1)
        factor = lam * weights[label[:, t]] + (1 - lam) * weights[partner[:, t]]
        before, after = (losses[counted, t].sum() / number, (losses[:, t] * factor)[counted].sum() / number)
        title = (
            f"{task}: the update trains {float(values['task_losses'][t]):.4f}; first micro-batch, {counted.sum()} of "
            f"{len(label)} rows count: mean loss {before:.4f}, weighted {after:.4f}"
        )
        present, rows_of = np.unique(label[counted, t], return_counts=True)
        name = functools.partial(reports.facts.dataset.class_name, task)
        rows = [(name(int(c)), int(n), float(weights[c])) for c, n in zip(present, rows_of, strict=True)]
        yield table(title, ("class", "samples", "weight"), rows)


# ---- GradNorm


def _measured(row: Mapping[str, Any]) -> bool:
    """Whether GradNorm has measured in the update of a row of the training log."""
    return any(name.startswith("gradnorm/weight/") for name in row)


def _gradnorm(reports: FlagReports, row: Mapping[str, Any], step: int) -> Iterator[Lines]:
    """Losses, norms, targets, ratios and weights of every task."""
    if _measured(row):
        names = [name.split("/") for name in row if name.startswith("gradnorm/")]
        kinds = dict.fromkeys(parts[1] for parts in names if len(parts) == 3)
        rows = [(task, *(float(row[f"gradnorm/{kind}/{task}"]) for kind in kinds)) for task in reports.tasks]
        yield table(f"GradNorm, step {step}:", ("task", *kinds), rows)


def _gradnorm_row(_: FlagReports, row: Mapping[str, Any], step: int) -> Iterator[Lines]:
    if _measured(row):
        yield values_text(f"row of step {step}", row)


def memory_text(title: str, top: int = _SAMPLES) -> Lines:
    """Memory of the first local device, and the kinds of arrays that take most of it."""
    groups = collections.defaultdict[tuple[str, tuple[int, ...]], list[int]](list)
    for array in jax.live_arrays():
        groups[str(array.dtype), tuple(array.shape)].append(array.nbytes)
    kinds = sorted(((sum(sizes), len(sizes), *key) for key, sizes in groups.items()), key=lambda kind: -kind[0])
    stats = jax.local_devices()[0].memory_stats()
    keys = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size")
    return [
        f"{title}: live arrays {size_text(sum(kind[0] for kind in kinds))}",
        "the backend reports no allocator statistics (CPU)"
        if stats is None
        else ", ".join(f"{key} {size_text(stats[key])}" for key in keys if key in stats),
        *table("largest:", ("bytes", "arrays", "dtype", "shape"), [(size_text(n), *kind) for n, *kind in kinds[:top]]),
    ]


def _memory_before(_: FlagReports, step: int, step_name: str) -> Iterator[Lines]:
    if step_name == "gradnorm":
        yield memory_text(f"before GradNorm update {step}")


def _memory_after(reports: FlagReports, row: Mapping[str, Any], step: int) -> Iterator[Lines | str]:
    """And once per run, what of the device's memory belongs to what."""
    if _measured(row):
        yield memory_text(f"after GradNorm update {step - 1}")
        path = reports.memory_profiles / f"gradnorm_memory_{step}.prof"
        if not any(reports.memory_profiles.glob("gradnorm_memory_*.prof")):
            path.parent.mkdir(parents=True, exist_ok=True)
            jax.profiler.save_device_memory_profile(str(path))
            yield f"device memory profile for pprof: {path}"


TEXTS = (
    Text("opened", "distributed", _distributed),
    Text("opened", "model_build", _model),
    Text("opened", "optimizer", _optimizer),
    Text("opened", "dataloader", lambda it: values_text("input pipeline", it.facts.pipeline)),
    Text("opened", "scheduling", lambda it: schedule_summary(it.facts.resolved)),
    Text("opened", "training_loop", _training_loop),
    Text("opened", "verbose_debug", _losses),
    Text("opened", "loss.null_masking", _null_data, "SUMMARY"),
    Text("opened", "loss.taxonomy_smoothing", _smoothing),
    Text("restoring", "checkpoint", _checkpoint_fit),
    Text("compiled", "training_loop", _compiled),
    Text("compiled", "loss.gradnorm_memory", lambda it, steps: _compiled(it, steps if "gradnorm" in steps else {})),
    Text("epoch_start", "training_loop", lambda _, epoch, step: f"epoch {epoch} starts at update {step}"),
    Text("first_batch", "dataloader", lambda _, batch: values_text("first batch", batch)),
    Text("first_batch", "augmentation", _augmentation),
    Text("before_update", "loss.gradnorm_memory", _memory_before),
    Text("log_point", "train_metrics", lambda _, row, step: values_text(f"training row of step {step}", row)),
    Text("log_point", "optimizer", lambda _, row, step: _part(f"update {step - 1}", row, "train/lr/", "train/grad_norm",
         "train/skipped", "gradnorm/total_norm", least=-1)),
    Text("log_point", "dataloader", lambda _, row, step: _part(f"input pipeline at step {step}", row, "pipeline/",
         least=1)),
    Text("log_point", "loss.gradnorm_metrics", _gradnorm),
    Text("log_point", "loss.verbose_gradnorm_logging", _gradnorm_row),
    Text("log_point", "loss.gradnorm_memory", _memory_after),
    Text("targets", "loss.null_masking", _null_input, "INPUT"),
    Text("targets", "loss.null_masking", _null_internal, "INTERNAL"),
    Text("targets", "loss.null_masking", _null_summary, "SUMMARY"),
    Text("targets", "loss.class_weighting", _class_weights),
    Text("targets", "loss.taxonomy_smoothing", _sample_losses, "FORWARD"),
    Text("first_validation_batch", "dump_metrics", lambda _, sums: (
         _sums(f"{phase}: sums after the first batch", found) for phase, found in sums.items())),
    Text("phase", "validation_metrics", lambda _, name, sums, values: [
         *_sums(f"{name}: sums", sums), *values_text(f"{name}: metrics", values)]),
    Text("saved", "checkpoint", _saved),
    Text("retained", "checkpoint", lambda _, kept, gone: f"retention keeps {list(kept)} and removes {list(gone)}"),
    Text("epoch_end", "scheduling", _scheduling),
    Text("epoch_end", "training_loop", _due),
    Text("epoch_end", "dump_metrics", _dump),
    Text("epoch_end", "distributed", _fingerprint),
)  # fmt: skip
