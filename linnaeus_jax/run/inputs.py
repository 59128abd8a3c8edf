"""Everything about data that a run needs, built from the config: label tables, images, plans, loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.dataset import Dataset, build_dataset, resolve_sources
from linnaeus_jax.data.images import FolderImages, ImageSource, open_images
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.loader import EvalLoader, TrainLoader
from linnaeus_jax.data.plans import (
    PlanSequence,
    SamplerSettings,
    coverage,
    expected_draws,
    micro_batches_per_epoch,
    updates_per_epoch,
)
from linnaeus_jax.data.splits import Split
from linnaeus_jax.data.verify_images import verify_images
from linnaeus_jax.schedules.level_switching import configured_levels, level_of_epoch
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.step.placement import evaluation_batch

#: classes named in a line about coverage
_SHOWN = 8


@dataclass(frozen=True)
class Inputs:
    """The data of one run."""

    dataset: Dataset
    images: Mapping[str, ImageSource]  # by split name
    arrays: Mapping[str, Mapping[str, np.ndarray]]  # by split name: what batches ship besides the image
    sampler: SamplerSettings
    plans: PlanSequence
    levels: tuple[str, ...]  # mix level of every epoch
    num_threads: int
    worker_processes: int
    buffer: int
    io_threads: int
    batch_size_val: int
    coverage: CoverageReport

    @property
    def micro_batches_per_epoch(self) -> tuple[int, ...]:
        """Micro-batches of each epoch, without the padding of the last update."""
        return tuple(self.plans.micro_batches_per_epoch.tolist())

    def train_loader(self, start_update: int, stop_update: int | None = None) -> TrainLoader:
        split = self.dataset.train
        return TrainLoader(
            self.arrays["train"],
            split.rows,
            self.images["train"],
            self.plans,
            num_threads=self.num_threads,
            worker_processes=self.worker_processes,
            buffer=self.buffer,
            io_threads=self.io_threads,
            start_update=start_update,
            stop_update=stop_update,
        )

    def val_loader(self) -> EvalLoader:
        return self.eval_loader(self.dataset.val)

    def eval_loader(self, split: Split) -> EvalLoader:
        """Batches of a split in its own order, padded to `data.batch_size_val`."""
        return EvalLoader(
            self.arrays[split.name],
            split.rows,
            self.images[split.name],
            self.batch_size_val,
            num_threads=self.num_threads,
            worker_processes=self.worker_processes,
            buffer=self.buffer,
            io_threads=self.io_threads,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )


def build_inputs(
    config: ConfigDict,
    *,
    devices: int,
    output_dir: Path | None,
    schedule: ResolvedSchedule | None = None,
    past_epochs: Sequence[tuple[int, int]] = (),
) -> Inputs:
    """Reads the labels, opens the images and plans every epoch.

    Args:
      config: the whole tree.
      devices: data-parallel devices.
      output_dir: the run directory, for reports about missing images; None: no report.
      schedule: a stored schedule whose epochs and mixing levels count in place of the configuration's.
      past_epochs: (updates, micro-batches) of each finished epoch, whatever the configuration says now.

    Raises:
      OSError, ValueError, KeyError, RuntimeError: a file or setting that cannot be used; the message names it.
    """
    data = config.data
    missing = _missing_rows(config, output_dir)
    dataset = build_dataset(config, missing)
    sampler = SamplerSettings.from_config(config, devices)
    names, groups, updates, levels = plan_levels(config, dataset, sampler, schedule, past_epochs)
    if schedule is not None:
        check_preserved(schedule, updates)
    plans = PlanSequence(
        groups,
        [names.index(level) for level in levels],
        sampler,
        seed=config.train.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        past_epochs=past_epochs,
    )
    cache = ImageCache(data.prefetch.mem_cache_size) if dataset.sources.hybrid else None
    images = {split.name: _open(config, dataset, split, cache) for split in (dataset.train, dataset.val) if len(split)}
    return Inputs(
        dataset=dataset,
        images=images,
        arrays={split.name: split_arrays(split) for split in (dataset.train, dataset.val)},
        sampler=sampler,
        plans=plans,
        levels=levels,
        num_threads=data.num_workers,
        worker_processes=data.worker_processes,
        buffer=data.prefetch.max_processed_batches,
        io_threads=data.prefetch.num_io_threads,
        batch_size_val=evaluation_batch(
            data.batch_size_val if data.batch_size_val > 0 else sampler.batch_size, devices
        ),
        coverage=coverage_report(dataset, sampler, {name: groups[names.index(name)] for name in dict.fromkeys(levels)}),
    )


def plan_levels(
    config: ConfigDict,
    dataset: Dataset,
    sampler: SamplerSettings,
    schedule: ResolvedSchedule | None = None,
    past_epochs: Sequence[tuple[int, int]] = (),
) -> tuple[tuple[str, ...], list[np.ndarray], dict[str, int], tuple[str, ...]]:
    """The mixing levels of a run and what follows from them, without touching a device.

    Args:
      schedule: a stored schedule whose epochs and levels count in place of the configuration's.
      past_epochs: see `build_inputs`.

    Returns:
      (levels that may be used, groups of the training rows per level, updates of one epoch per level, level of every
      epoch).
    """
    mixup = config.schedule.mixup
    names = configured_levels(config) if schedule is None else schedule.mixing.group_levels
    groups = [dataset.train.group(level) for level in names]
    updates = {level: updates_per_epoch(group, sampler) for level, group in zip(names, groups, strict=True)}
    if schedule is not None:
        return names, groups, updates, schedule.mixing.level_of_epoch
    past_updates = [count for count, _ in past_epochs]
    levels = level_of_epoch(
        names, mixup.level_switch_steps, mixup.level_switch_epochs, updates, config.train.epochs, past_updates
    )
    return names, groups, updates, levels


def check_preserved(schedule: ResolvedSchedule, updates: Mapping[str, int]) -> None:
    """Checks that a stored schedule still counts the updates that the data make.

    Raises:
      ValueError: an epoch of the stored schedule has another number of updates.
    """
    stored = schedule.totals.steps_per_epoch
    made = tuple(updates[level] for level in schedule.mixing.level_of_epoch)
    for epoch, (old, new) in enumerate(zip(stored, made, strict=True)):
        if old != new:
            raise ValueError(
                f"train.preserve_checkpoint_schedule = True, but epoch {epoch} of the stored schedule has {old} "
                f"updates and data, data.batch_size and train.accumulation_steps now make {new}; restore them or set "
                f"the key to False"
            )


@dataclass(frozen=True)
class CoverageReport:
    """What part of the training rows an epoch draws, on average over the epochs, per mixing level in use.

    `lines` and `warnings` are for people; `drawn` is {level: {task: float64[C], rows of each class drawn}}.
    """

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    drawn: Mapping[str, Mapping[str, np.ndarray]]

    def to_json(self) -> dict[str, dict[str, list[float]]]:
        """`drawn` as lists; the rows that there are stand in class_label_counts.json."""
        return {level: {task: rows.tolist() for task, rows in of.items()} for level, of in self.drawn.items()}


def coverage_report(dataset: Dataset, sampler: SamplerSettings, groups: Mapping[str, np.ndarray]) -> CoverageReport:
    """Counts what the sampler draws and what it never draws.

    Args:
      groups: groups of the training rows for each level in use.
    """
    labels, lines, warnings = dataset.train.labels, [], []
    drawn: dict[str, dict[str, np.ndarray]] = {}
    for level, group in groups.items():
        draws = expected_draws(group, sampler)
        lines.append(
            f"coverage: grouped by {level}, {micro_batches_per_epoch(group, sampler)} micro-batches of "
            f"{sampler.batch_size} draw {draws.sum():.0f} of {len(group)} training rows in an epoch"
        )
        drawn[level] = {}
        for column, task in enumerate(dataset.tasks):
            rows, drawn[level][task] = coverage(draws, labels[:, column], dataset.num_classes[task])
            seen = np.flatnonzero(rows)
            share = drawn[level][task][seen] / rows[seen]
            if np.ptp(share) < 1e-9:
                lines.append(f"  {task}: {share[0]:.1%} of every class")
                continue
            least = seen[np.argsort(share, kind="stable")][:_SHOWN]
            found = (f"{_class_name(dataset, task, k)} {drawn[level][task][k]:.4g} of {rows[k]}" for k in least)
            lines.append(f"  {task}: {share.min():.1%} to {share.max():.1%} of a class; least {', '.join(found)}")
    for column, task in enumerate(dataset.tasks):
        rows = np.bincount(labels[:, column], minlength=dataset.num_classes[task])
        most = np.max([found[task] for found in drawn.values()], axis=0)
        never = np.flatnonzero((rows > 0) & (most == 0))
        if len(never):
            names = ", ".join(f"{_class_name(dataset, task, k)} ({rows[k]} rows)" for k in never[:_SHOWN])
            warnings.append(
                f"{len(never)} of {np.count_nonzero(rows)} classes of {task} are never drawn: {names}"
                f"{', ...' if len(never) > _SHOWN else ''}; set data.sampler.leftovers = 'keep' to train them"
            )
    return CoverageReport(tuple(lines), tuple(warnings), drawn)


def _class_name(dataset: Dataset, task: str, index: int) -> str:
    return str(dataset.classes[task][index] or "null")


def split_arrays(split: Split) -> dict[str, np.ndarray]:
    """What the batches of a split ship besides the image."""
    own = {"subsets": split.subsets} if split.subsets.shape[1] else {}
    return own | {
        "label": split.labels,
        "meta": split.meta,
        "meta_valid": split.meta_valid,
        "rarity": split.rarity,
        "taxa_subset": split.taxa_subset,
    }


def _open(config: ConfigDict, dataset: Dataset, split: Split, cache: ImageCache | None) -> ImageSource:
    data = config.data
    if dataset.sources.hybrid:
        return FolderImages(
            split.images,
            split.table.identifiers,
            data.hybrid.file_extension,
            data.img_size,
            cache=cache,
            allow_missing=data.hybrid.allow_missing_images,
        )
    return open_images(split.images, data.img_size, count=len(split.table), cache=cache)


def _missing_rows(config: ConfigDict, output_dir: Path | None) -> dict[str, np.ndarray] | None:
    """Rows without an image file, where the config asks to verify them."""
    verify = config.data.hybrid.verify_images
    sources = resolve_sources(config.data)
    if not (sources.hybrid and verify.enabled):
        return None
    report = None
    if output_dir is not None:
        report = output_dir / verify.report_path.replace("{output_dir}", str(output_dir))
    found = {}
    for name, labels, folder in (
        ("train", sources.train_labels, sources.train_images),
        ("val", sources.val_labels, sources.val_images),
    ):
        if labels:
            found[name] = verify_images(
                read_identifiers(labels),
                folder,
                config.data.hybrid.file_extension,
                max_missing_ratio=verify.max_missing_ratio,
                max_missing_count=verify.max_missing_count,
                num_workers=verify.num_workers,
                chunk_size=verify.chunk_size,
                log_missing=verify.log_missing,
                report_path=report if report is None or name == "train" else report.with_stem(f"{report.stem}_val"),
            )
    return found
