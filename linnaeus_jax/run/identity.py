"""What a checkpoint belongs to, and what may differ when a run goes on from it.

The identity of a run is its classes, rank order, metadata layout, training rows with their identifiers, metadata and
pictures, model and optimizer structure: a checkpoint is refused where one of them differs. Pictures are compared by a
sample, see `data/image_checks.py`. What decides the rows of an update (batch size, accumulation, sampler,
groups, seed) may differ only where the checkpoint lies at the end of an epoch. Everything else may change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from linnaeus_jax.config.saved import config_difference
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.image_checks import picture_sample, sample_differences
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.data.labels import read_identifiers_digest
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.data.splits import Split
from linnaeus_jax.step.program import Program

#: fields of a model that change how it trains or is computed, but neither its parameters nor what it computes
FREE_MODEL_FIELDS = frozenset(
    "parent name drop_rate attn_drop_rate attn_drop_kind drop_path_rate dtype remat depthwise_impl attn_impl rope_init "
    "layer_scale_init_value weight_init".split()
)
#: section of the identity -> what a checkpoint with another one belongs to
SECTIONS = {
    "ranks": "other ranks",
    "classes": "other classes",
    "metadata": "other metadata",
    "training_rows": "other training rows",
    "identifiers": "other identifiers of training rows",
    "metadata_values": "other metadata of training rows",
    "pictures": "other pictures of training rows",
    "model": "another model or optimizer",
    "optimizer": "another model or optimizer",
}
#: beginnings of keys that act before the first update alone, ends of such keys, and those that do under GradNorm
FIRST_UPDATE = ("model.pretrained", "model.weight_init", "train.fit_heads", "train.fit_rows")
INITIAL_VALUES = (".layer_scale_init_value", ".rope_init")
TASK_WEIGHTS = ("loss.grad_weighting.task.init_weights", "loss.grad_weighting.task.init_strategy")
#: beginnings of keys that a schedule is made from
SCHEDULED = ("lr_scheduler.", "schedule.", "train.epochs", "train.early_stop.", "loss.grad_weighting.task.")
SHOWN = 3
#: sections that checkpoints of earlier versions lack
_LATER = ("identifiers", "metadata_values", "pictures")


def training_rows(train: Split) -> dict[str, Any]:
    """Which rows are trained on, and their labels, as JSON types."""
    rows = hashlib.sha256(train.rows.tobytes())
    rows.update(np.ascontiguousarray(train.table.taxon[train.rows]).tobytes())
    return {"count": len(train), "sha256": rows.hexdigest()}


def run_identity(dataset: Dataset, program: Program, images: ImageSource) -> dict[str, Any]:
    """The identity of a run as JSON types; section names are the keys of `SECTIONS`.

    Args:
      images: of the training rows.
    """
    train = dataset.train
    metadata = hashlib.sha256(np.ascontiguousarray(train.meta).tobytes())
    metadata.update(np.ascontiguousarray(train.meta_valid).tobytes())
    model = {
        field.name: getattr(program.model, field.name)
        for field in dataclasses.fields(program.model)
        if field.name not in FREE_MODEL_FIELDS
    }
    model["head_specs"] = [_head_identity(spec) for spec in program.model.head_specs]
    if model["missing_metadata"] == "zero":  # as in checkpoints from before there was a choice
        del model["missing_metadata"]
    if model["metadata_fusion"] in ("", *program.model.fusions[:1]) or not program.model.fusions:
        del model["metadata_fusion"]
    identity = {
        "ranks": dataset.tasks,
        "classes": {task: ids.tolist() for task, ids in dataset.classes.items()},
        "metadata": {component.name: dataclasses.asdict(component) for component in dataset.components},
        "training_rows": training_rows(train),
        "identifiers": {"sha256": read_identifiers_digest(train.table.path, np.sort(train.rows))},
        "metadata_values": {"sha256": metadata.hexdigest()},
        "pictures": picture_sample(images, train.rows),
        "model": {"type": type(program.model).__name__, **model},
        "optimizer": {row.name: row.optimizer for row in program.settings.optimizer.rows},
    }
    return json.loads(json.dumps(identity, default=dataclasses.asdict))


def _head_identity(spec: Any) -> list[Any]:
    """A head with what it takes from the tree, as a hash."""
    parents = np.asarray(spec.parents, np.int32)
    return [*spec[:4], *([hashlib.sha256(parents.tobytes()).hexdigest()] if spec.parents else [])]


def plan_identity(plans: PlanSequence, epoch: int) -> dict[str, Any]:
    """What the rows of the updates of `epoch` follow from, as JSON types."""
    sampler = dataclasses.asdict(plans.settings)
    del sampler["mix_block"]  # decides partners, not rows
    if not sampler["options"]:  # of a built-in sampler, which has none
        del sampler["options"]
    if not plans.settings.balanced:  # as in checkpoints from before there was a choice
        del sampler["class_balance"], sampler["balanced_rank"]
    groups = hashlib.sha256(np.ascontiguousarray(plans.rows_of_epoch(epoch).group).tobytes()).hexdigest()
    return {"seed": plans.seed, "sampler": sampler, "groups": groups}


def differences(stored: Any, current: Any, name: str = "") -> Iterator[str]:
    """One text for each leaf that differs between two trees of JSON types."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        for key in sorted(stored.keys() | current.keys()):
            missing = "absent"
            yield from differences(stored.get(key, missing), current.get(key, missing), f"{name}.{key}".lstrip("."))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for index, (old, new) in enumerate(zip(stored, current, strict=True)):
            yield from differences(old, new, f"{name}[{index}]")
    elif stored != current:
        if isinstance(stored, list) and isinstance(current, list):
            first = next((i for i, pair in enumerate(zip(stored, current)) if pair[0] != pair[1]), None)
            at = "" if first is None else f", first different at [{first}]: {stored[first]!r} and {current[first]!r}"
            yield f"{name} has {len(stored)} entries in the checkpoint and {len(current)} in this run{at}"
        else:
            yield f"{name} is {stored!r} in the checkpoint and {current!r} in this run"


def identity_error(stored: Mapping[str, Any], current: Mapping[str, Any], *, optimizer: bool = True) -> str | None:
    """Why a checkpoint does not belong to this run, with the first differences; None where it does.

    Args:
      optimizer: False for a run that starts its optimizer anew.
    """
    unknown = {section for section in _LATER if section not in stored or section not in current}
    sections = [s for s in SECTIONS if s not in unknown and (optimizer or s != "optimizer")]
    texts_of = {s: list(differences(stored.get(s), current.get(s), s)) for s in sections if s not in _LATER}
    if not texts_of["training_rows"]:  # of other rows everything is other
        texts_of |= _other_contents(stored, current, unknown | ({"metadata_values"} if texts_of["metadata"] else set()))
    sections = [section for section in sections if section in texts_of]
    texts = [text for section in sections for text in texts_of[section]]
    if not texts:
        return None
    what = list(dict.fromkeys(SECTIONS[section] for section in sections if texts_of[section]))
    more = f" (and {len(texts) - SHOWN} more differences)" if len(texts) > SHOWN else ""
    return f"belongs to {', '.join(what)}: {'; '.join(texts[:SHOWN])}{more}"


def _other_contents(
    stored: Mapping[str, Any], current: Mapping[str, Any], unknown: Collection[str]
) -> dict[str, list[str]]:
    """Section -> what changed of the contents of the same rows, for the sections of which both say something."""
    texts = {}
    for section in _LATER:
        if section in unknown:
            continue
        if section == "pictures":
            texts[section] = list(sample_differences(stored[section], current[section]))
        else:
            what = SECTIONS[section].removeprefix("other ")
            same = stored[section] == current[section]
            texts[section] = [] if same else [f"the {what} changed since, or stand in another order"]
    return texts


def unchecked(stored: Mapping[str, Any]) -> str:
    """A sentence on what the identity in a checkpoint of an earlier version does not say, "" for nothing."""
    absent = [SECTIONS[section].removeprefix("other ") for section in _LATER if section not in stored]
    if not absent:
        return ""
    return (
        f"the checkpoint is of an earlier version and says nothing of {', '.join(absent)}: that these are still the "
        "same is not checked"
    )


def finished_epochs(meta: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """(updates, micro-batches) of each epoch that a checkpoint with this meta has finished."""
    count, totals = meta["host"]["progress"]["current_epoch"] + int(meta["at_boundary"]), meta["schedule"]["totals"]
    return tuple(zip(totals["steps_per_epoch"][:count], totals["micro_batches_per_epoch"]))


def plan_error(step: int, meta: Mapping[str, Any], plans: PlanSequence) -> str | None:
    """Why a run cannot go on with these plans from a checkpoint after `step` updates; None where it can."""
    past = [updates for updates, _ in finished_epochs(meta)]
    epoch = len(past)
    if epoch >= plans.epochs:
        return None
    planned = plans.steps_per_epoch[:epoch].tolist()
    if past != planned:
        return f"finished epochs of {past} updates, but a newer one, whose arrays cannot be read, of {planned}"
    texts = list(differences(meta["plan"], plan_identity(plans, epoch))) if step > sum(past) else []
    if not texts:
        return None
    return (
        f"lies within epoch {epoch}: {'; '.join(texts[:SHOWN])}; what decides the rows of an epoch may change only "
        "between epochs: go on with the old values to the end of this one"
    )


def without_effect(key: str, *, gradnorm: bool, kept_schedule: bool) -> str:
    """Why a key that differs from the checkpoint's does not act from the next update on; "" where it does."""
    if key.startswith(FIRST_UPDATE) or key.endswith(INITIAL_VALUES) or (gradnorm and key.startswith(TASK_WEIGHTS)):
        return "no effect: it acts before the first update alone"
    if kept_schedule and key.startswith(SCHEDULED):
        return "train.preserve_checkpoint_schedule keeps what the stored schedule says of it"
    return ""


def resume_notes(
    step: int, meta: dict[str, Any], config: dict[str, Any], versions: dict[str, Any], *, gradnorm: bool = False
) -> list[str]:
    """What to know when a run continues at `step`: how config and versions differ from those in the saved `meta`.

    Args:
      gradnorm: whether it moves the task weights now.
    """
    kept_schedule = config["train"]["preserve_checkpoint_schedule"]
    notes = []
    for key, old, new in config_difference(meta["config"], config):
        reason = without_effect(key, gradnorm=gradnorm, kept_schedule=kept_schedule)
        notes.append(f"config changed: {key}: {old!r} -> {new!r}{reason and f' ({reason})'}")
    notes += [
        f"version changed: {name}: {old} -> {versions.get(name)}"
        for name, old in meta["versions"].items()
        if versions.get(name) != old
    ]
    return notes or [f"resuming at update {step} with the same configuration and versions"]
