"""Everything about data that a run needs, built from the config: label tables, images, plans, loaders."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from linnaeus_jax.config.derived import global_batch_size
from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.coverage import CoverageReport, coverage_report
from linnaeus_jax.data.dataset import Dataset, build_dataset, resolve_sources
from linnaeus_jax.data.image_sources import open_split, other_resizing
from linnaeus_jax.data.images import ImageSource, input_dtype
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.loader import EvalLoader, ReadSettings, TrainLoader
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows
from linnaeus_jax.data.splits import Split
from linnaeus_jax.data.verify_images import verify_images
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.run.read_errors import with_retry
from linnaeus_jax.schedules.level_switching import configured_levels, level_of_epoch
from linnaeus_jax.schedules.resolved import ResolvedSchedule

log = logging.getLogger("linnaeus_jax.data")


@dataclass(frozen=True)
class Inputs:
    """The data of one run. Plans are made and images opened at their first use: an evaluation needs no training images.

    Attributes:
      schedule: a stored schedule whose epochs and mixing levels count in place of the configuration's.
      past_epochs: (updates, micro-batches) of each finished epoch, whatever the configuration says now.
      positions: rows of a batch -> which of them this process reads, see `Placement.positions`.
      stored: by split name, what `run/stored.py` has stored of the pictures; training and validation then read it.
    """

    config: Config
    dataset: Dataset
    devices: int
    schedule: ResolvedSchedule | None = None
    past_epochs: Sequence[tuple[int, int]] = ()
    positions: Callable[[int], np.ndarray] = np.arange
    stored: dict[str, ImageSource] = field(default_factory=dict)

    @functools.cached_property
    def sampler(self) -> SamplerSettings:
        return SamplerSettings.from_config(self.config, self.devices)

    @functools.cached_property
    def levels(self) -> Levels:
        """Mixing level of every epoch; InputError where a stored schedule counts other updates than the data make."""
        mixup, past, label = self.config.schedule.mixup, self.past_epochs, self.dataset.train.labels
        names = configured_levels(self.config) if self.schedule is None else self.schedule.mixing.group_levels
        has_null = self.config.data.partial.levels
        rows = {level: TrainingRows(label, self.dataset.train.group(level), has_null) for level in names}
        steps = {level: self.sampler.steps_per_epoch(at_level) for level, at_level in rows.items()}
        if self.schedule is not None:
            check_preserved(self.schedule, steps)
            return Levels(rows, self.schedule.mixing.level_of_epoch)
        of_epoch = level_of_epoch(
            names,
            mixup.level_switch_steps,
            mixup.level_switch_epochs,
            self.config.train.epochs,
            lambda epoch, level: past[epoch][0] if epoch < len(past) else steps[level],
        )
        return Levels(rows, of_epoch)

    @functools.cached_property
    def plans(self) -> PlanSequence:
        return PlanSequence(
            self.levels.rows,
            self.levels.of_epoch,
            self.sampler,
            seed=self.config.train.seed,
            positions=self.positions(self.sampler.batch_size),
            past_epochs=self.past_epochs,
        )

    @functools.cached_property
    def coverage(self) -> CoverageReport:
        rows = {level: self.levels.rows[level] for level in self.levels.of_epoch}
        return coverage_report(self.dataset, self.sampler, rows)

    @functools.cached_property
    def images(self) -> dict[str, ImageSource]:
        """By split name, of the splits that have rows."""
        cache = ImageCache(self.config.data.prefetch.mem_cache_size)
        splits = [split for split in (self.dataset.train, self.dataset.val) if len(split)]
        images = {split.name: open_split(self.config, split, cache) for split in splits}
        how = Preprocessing.from_config(self.config)
        for said in dict.fromkeys(other_resizing(split.table.path, images[split.name], how) for split in splits):
            if said:
                log.warning("%s", said)
        return images

    def open_for_training(self) -> None:
        """Opens the images and plans every epoch, so that all that can fail has been tried before the first update."""
        _ = self.images, self.coverage, self.plans

    @functools.cached_property
    def reading(self) -> ReadSettings:
        return ReadSettings.from_config(self.config.data)

    def abstract_update(self, stored: jax.ShapeDtypeStruct | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes [A, B, ...] of what an update trains on, see `data.batch.Batch`.

        Args:
          stored: what stands for a picture, see `Program.stored`.
        """
        sampler, side = self.sampler, self.config.data.img_size
        leading = (sampler.accumulation_steps, sampler.batch_size)
        columns = {name: (values.shape[1:], values.dtype) for name, values in split_arrays(self.dataset.train).items()}
        columns["image"] = ((side, side, 3), np.dtype(np.uint8)) if stored is None else (stored.shape[1:], stored.dtype)
        columns |= {name: ((), np.dtype(np.int32)) for name in ("group", "partner", "row")}
        columns["weight"] = (), np.dtype(np.float32)
        return {name: jax.ShapeDtypeStruct(leading + shape, dtype) for name, (shape, dtype) in columns.items()}

    def source(self, split: Split) -> ImageSource:
        """What training and validation read of a split: its pictures, or what is stored of them."""
        return self.stored.get(split.name) or self.images[split.name]

    def train_loader(self, start_step: int, stop_step: int | None = None) -> TrainLoader:
        split = self.dataset.train
        return TrainLoader(
            split_arrays(split),
            split.rows,
            self.source(split),
            self.plans,
            self.reading,
            start_step=start_step,
            stop_step=stop_step,
        )

    def eval_loader(self, split: Split, images: ImageSource, batch_size: int = 0, first: int = 0) -> EvalLoader:
        """Batches of a split in its own order.

        Args:
          first: row of the split to begin at.
          batch_size: rows over all devices; 0: `data.batch_size_val`, or the micro-batch where that is off.
            The last batch is padded, and what is evaluated does not depend on it, so it is rounded up to the devices.
        """
        rows = batch_size or self.config.data.batch_size_val or global_batch_size(self.config, self.devices)
        rows = evaluation_batch(rows, self.devices)
        positions = self.positions(rows)
        arrays = {name: values[first:] for name, values in split_arrays(split).items()}
        return EvalLoader(arrays, split.rows[first:], images, rows, self.reading, positions=positions, retry=with_retry)


def use_precomputed_features(inputs: Inputs, stored: jax.ShapeDtypeStruct | None) -> None:
    """Lets training and validation read sources that give no pictures but what a trunk makes of them, as they are.

    Args:
      stored: see `Program.stored`.

    Raises:
      InputError: the model takes nothing of that shape and dtype.
    """
    for name, source in inputs.images.items():
        dtype, shape = input_dtype(source), tuple(source.image_shape)
        if dtype == np.uint8:
            continue
        given = f"{dtype} {list(shape)}"
        if stored is None or (shape, dtype) != (stored.shape[1:], stored.dtype):
            tune = inputs.config.train.tune
            fix = "set train.tune='head' and a model.type whose trunk gives such features"
            if stored is not None:
                fix = f"train.tune = {tune} stores {stored.dtype} {list(stored.shape[1:])}; give that, or {fix}"
            split = inputs.dataset.train if name == inputs.dataset.train.name else inputs.dataset.val
            raise InputError(f"{split.images}: {given} of each row, which are no pictures; {fix}")
        inputs.stored[name] = source


def evaluation_batch(batch_size: int, devices: int) -> int:
    """The next multiple of the devices."""
    return -(-batch_size // devices) * devices


def build_inputs(
    config: Config,
    *,
    devices: int,
    output_dir: Path | None,
    schedule: ResolvedSchedule | None = None,
    past_epochs: Sequence[tuple[int, int]] = (),
    positions: Callable[[int], np.ndarray] = np.arange,
) -> Inputs:
    """Reads the labels.

    Args:
      config: the whole tree.
      devices: data-parallel devices.
      output_dir: the run directory, for reports about missing images; None: no report.
      schedule, past_epochs, positions: see `Inputs`.

    Raises:
      OSError, InputError: a file or setting that cannot be used; the message names it.
    """
    dataset = build_dataset(config, _missing_rows(config, output_dir))
    return Inputs(config, dataset, devices, schedule, past_epochs, positions)


@dataclass(frozen=True)
class Levels:
    """The mixing levels that a run may use, and what follows from them."""

    rows: dict[str, TrainingRows]  # level -> training rows with their groups
    of_epoch: tuple[str, ...]


def check_preserved(schedule: ResolvedSchedule, steps: Mapping[str, int]) -> None:
    """Checks that a stored schedule still counts the updates that the data make.

    Raises:
      InputError: an epoch of the stored schedule has another number of updates.
    """
    stored = schedule.totals.steps_per_epoch
    made = tuple(steps[level] for level in schedule.mixing.level_of_epoch)
    for epoch, (old, new) in enumerate(zip(stored, made, strict=True)):
        if old != new:
            raise InputError(
                f"train.preserve_checkpoint_schedule = True, but epoch {epoch} of the stored schedule has {old} "
                f"updates and data, data.batch_size and train.accumulation_steps now make {new}; restore them or set "
                f"the key to False"
            )


def split_arrays(split: Split) -> dict[str, np.ndarray]:
    """What the batches of a split ship besides the image."""
    subsets = {"subsets": split.subsets} if split.subsets.shape[1] else {}
    return subsets | {
        "label": split.labels,
        "meta": split.meta,
        "meta_valid": split.meta_valid,
        "rarity": split.rarity,
        "taxa_subset": split.taxa_subset,
    }


def _missing_rows(config: Config, output_dir: Path | None) -> dict[str, np.ndarray] | None:
    """Rows without an image file, where the config asks to verify them."""
    verify = config.data.hybrid.verify_images
    sources = resolve_sources(config.data)
    if not (sources.hybrid and verify.enabled):
        return None
    report = None
    if output_dir is not None:
        report = output_dir / verify.report_path.replace("{output_dir}", str(output_dir))
    missing_rows = {}
    for name, labels, folder in (
        ("train", sources.train_labels, sources.train_images),
        ("val", sources.val_labels, sources.val_images),
    ):
        if labels:
            missing_rows[name] = verify_images(
                read_identifiers(labels),
                folder,
                config.data.hybrid.file_extension,
                verify,
                report if report is None or name == "train" else report.with_stem(f"{report.stem}_val"),
            )
    return missing_rows
