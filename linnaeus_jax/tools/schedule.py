"""Dry run of the schedule: checks, resolves, prints and draws it without building a model or starting an accelerator.

    linnaeus schedule --config=configs/x.py [--out=DIR] [--config.train.epochs=3]

The length of an epoch comes from the labels file that the config names, or, without any data, from --steps-per-epoch or
--dataset-size.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from linnaeus_jax import tools
from linnaeus_jax.checks import checked
from linnaeus_jax.config import load_config
from linnaeus_jax.config.derived import global_batch_size
from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.coverage import coverage_report
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.schedules.level_switching import configured_levels, level_of_epoch
from linnaeus_jax.schedules.plot import plot_schedule
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import schedule_summary, write_summary


def run(
    config: Config,
    steps_per_epoch: Sequence[int] | None = None,
    *,
    dataset_size: int | None = None,
    devices: int = 1,
    out: str | Path | None = None,
) -> ResolvedSchedule:
    """Resolves the schedule, prints it, and writes it where a directory is given.

    Args:
      config: without errors, see `checks.checked`.
      steps_per_epoch: optimizer updates of one epoch; where the mixing level switches, one number per entry of
        schedule.mixup.group_levels. None: what the sampler makes of `dataset_size` rows or of the labels file.
      dataset_size: training rows; None: as many as the updates hold, or, without either, what the labels file holds.
      devices: data-parallel devices.
      out: directory for schedule_summary.txt, schedule_summary.json and schedule.png.

    Raises:
      InputError: the counts are invalid.
    """
    mixup, accumulation = config.schedule.mixup, max(1, config.train.accumulation_steps)
    levels, notes = configured_levels(config), list[str]()
    if steps_per_epoch is not None:
        given = tuple(steps_per_epoch) * (len(levels) if len(steps_per_epoch) == 1 else 1)
        if len(given) != len(levels) or min(given) <= 0:
            raise InputError(f"steps_per_epoch = {given}: give one positive number, or one for each of {levels}")
        updates, micro = list(given), [count * accumulation for count in given]
        dataset_size = micro[0] * global_batch_size(config, devices) if dataset_size is None else dataset_size
    else:
        sampler = SamplerSettings.from_config(config, devices)
        if dataset_size is None:
            try:
                dataset = build_dataset(config)
            except InputError as error:
                raise InputError(f"{error}; or give steps_per_epoch or dataset_size") from error
            label, dataset_size = dataset.train.labels, len(dataset.train)
            rows = {
                level: TrainingRows(label, dataset.train.group(level), config.data.partial.levels) for level in levels
            }
            report = coverage_report(dataset, sampler, rows)
            notes = [*report.lines, *(f"! {warning}" for warning in report.warnings)]
        else:
            if sampler.drops_leftovers:
                notes = ["! data.sampler.leftovers = 'drop': without labels, these are the most updates there can be"]
                sampler = dataclasses.replace(sampler, leftovers="keep")
            label = np.zeros((dataset_size, len(config.data.task_keys_h5)), np.int32)
            rows = dict.fromkeys(levels, TrainingRows(label, label[:, 0]))
        updates = [sampler.steps_per_epoch(rows[level]) for level in levels]
        micro = [sampler.micro_batches(rows[level]) for level in levels]
    by_level, micro_by_level = dict(zip(levels, updates)), dict(zip(levels, micro))
    used = level_of_epoch(
        levels,
        mixup.level_switch_steps,
        mixup.level_switch_epochs,
        config.train.epochs,
        lambda epoch, level: by_level[level],
    )
    resolved = resolve_all_schedule_params(
        config,
        steps_per_epoch=[by_level[level] for level in used],
        dataset_size=dataset_size,
        micro_batches_per_epoch=[micro_by_level[level] for level in used],
        devices=devices,
    )
    print("\n".join([schedule_summary(resolved), *notes]))
    if out is not None:
        text, data = write_summary(resolved, out)
        picture = plot_schedule(resolved, Path(out) / "schedule.png")
        print(f"written: {text}, {data}, {picture}")
    return resolved


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line; `--config=FILE` and `--config.a.b=value` are those of training."""
    parser = tools.parser("schedule", __doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--dataset-size", "--dataset_size", type=int, help="training rows")
    length.add_argument(
        "--steps-per-epoch",
        "--steps_per_epoch",
        type=lambda text: tuple(int(count) for count in text.split(",")),
        help="optimizer updates of one epoch; comma-separated, one per mixing level, where it switches",
    )
    parser.add_argument("--devices", type=int, default=1, help="data-parallel devices")
    parser.add_argument(
        "--out", type=Path, help="directory for schedule_summary.txt, schedule_summary.json and schedule.png"
    )
    options, rest = parser.parse_known_args(argv)
    jax.config.update("jax_platforms", "cpu")
    tree, _ = load_config(rest)
    run(checked(tree, needs_data=False), **vars(options))


if __name__ == "__main__":
    sys.exit(main())
