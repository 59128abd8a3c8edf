"""Everything about data that a run needs, built from the config: label tables, images, plans, loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.batch_size import global_batch_size
from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.dataset import Dataset, Split, build_dataset, resolve_sources
from linnaeus_jax.data.images import FolderImages, ImageSource, open_images
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.loader import EvalLoader, TrainLoader
from linnaeus_jax.data.plans import PlanSequence, SamplerSettings, updates_per_epoch
from linnaeus_jax.data.verify_images import verify_images
from linnaeus_jax.schedules.level_switching import level_of_epoch
from linnaeus_jax.training.parallel import evaluation_batch


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
    buffer: int
    io_threads: int
    batch_size_val: int

    @property
    def micro_batches_per_epoch(self) -> int:
        """M of the first epoch."""
        return int(self.plans.updates_per_epoch[0]) * self.sampler.accumulation_steps

    def train_loader(self, start_update: int, stop_update: int | None = None) -> TrainLoader:
        split = self.dataset.train
        return TrainLoader(
            self.arrays["train"],
            split.rows,
            self.images["train"],
            self.plans,
            num_threads=self.num_threads,
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
            buffer=self.buffer,
            io_threads=self.io_threads,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )


def sampler_settings(config: ConfigDict, devices: int = 1) -> SamplerSettings:
    """The sampler of the config.

    Raises:
      ValueError: sizes that do not divide each other or the devices, naming the key.
    """
    data, mixup = config.data, config.schedule.mixup
    batch = global_batch_size(config, devices)
    settings = SamplerSettings(
        type=data.sampler.type,
        grouped_mode=data.sampler.grouped_mode,
        leftovers=data.sampler.leftovers,
        batch_size=batch,
        accumulation_steps=max(1, config.train.accumulation_steps),
        mix_block=mixup.mix_block or _mix_block(config, batch // devices),
    )
    settings.check_devices(devices)
    return settings


def _mix_block(config: ConfigDict, share: int) -> int:
    """Pairs need blocks of two, the same for any number of devices; other samplers get a device's share of rows."""
    sampler = config.data.sampler
    pairs = sampler.type == "grouped" and sampler.grouped_mode == "mixed-pairs"
    return 2 if pairs else max(1, share)


def build_inputs(config: ConfigDict, *, devices: int, output_dir: Path) -> Inputs:
    """Reads the labels, opens the images and plans every epoch.

    Raises:
      OSError, ValueError, KeyError, RuntimeError: a file or setting that cannot be used; the message names it.
    """
    data = config.data
    missing = _missing_rows(config, output_dir)
    dataset = build_dataset(config, missing)
    sampler = sampler_settings(config, devices)
    group_levels, groups, _, levels = plan_levels(config, dataset, sampler)
    plans = PlanSequence(
        groups,
        [group_levels.index(level) for level in levels],
        sampler,
        seed=config.train.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
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
        buffer=data.prefetch.max_processed_batches,
        io_threads=data.prefetch.num_io_threads,
        batch_size_val=evaluation_batch(
            data.batch_size_val if data.batch_size_val > 0 else sampler.batch_size, devices
        ),
    )


def plan_levels(
    config: ConfigDict, dataset: Dataset, sampler: SamplerSettings
) -> tuple[tuple[str, ...], list[np.ndarray], dict[str, int], tuple[str, ...]]:
    """The mixing levels of a run and what follows from them, without touching a device.

    Returns:
      (levels that may be used, groups of the training rows per level, updates of one epoch per level, level of every
      epoch).
    """
    mixup = config.schedule.mixup
    group_levels = tuple(mixup.group_levels) or (dataset.tasks[0],)
    groups = [dataset.train.group(level) for level in group_levels]
    updates = {level: updates_per_epoch(group, sampler) for level, group in zip(group_levels, groups, strict=True)}
    levels = level_of_epoch(
        group_levels, mixup.level_switch_steps, mixup.level_switch_epochs, updates, config.train.epochs
    )
    return group_levels, groups, updates, levels


def split_arrays(split: Split) -> dict[str, np.ndarray]:
    """What the batches of a split ship besides the image."""
    return {
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


def _missing_rows(config: ConfigDict, output_dir: Path) -> dict[str, np.ndarray] | None:
    """Rows without an image file, where the config asks to verify them."""
    verify = config.data.hybrid.verify_images
    sources = resolve_sources(config.data)
    if not (sources.hybrid and verify.enabled):
        return None
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
                report_path=report if name == "train" else report.with_stem(f"{report.stem}_val"),
            )
    return found
