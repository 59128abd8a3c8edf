"""What part of the training rows an epoch draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.samplers import COUNTED_EPOCHS, SamplerSettings, TrainingRows

#: classes named in a line
_NAMED = 8


@dataclass(frozen=True)
class CoverageReport:
    """What part of the training rows an epoch draws, on average over the epochs, per mixing level in use.

    `lines` and `warnings` are for people; `drawn` is {level: {task: float64[C], rows of each class drawn}}.
    """

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    drawn: Mapping[str, Mapping[str, NDArray[Any]]]

    def to_json(self) -> dict[str, dict[str, list[float]]]:
        """`drawn` as lists; the rows that there are stand in class_label_counts.json."""
        return {level: {task: rows.tolist() for task, rows in of.items()} for level, of in self.drawn.items()}


def coverage_report(dataset: Dataset, sampler: SamplerSettings, rows: Mapping[str, TrainingRows]) -> CoverageReport:
    """Counts what the sampler draws and what it never draws.

    Args:
      rows: the training rows with their groups, for each level in use.
    """
    lines: list[str] = []
    drawn: dict[str, dict[str, NDArray[Any]]] = {}
    for level, at_level in rows.items():
        draws = sampler.expected_draws(at_level)
        batches = f"grouped by {level}, {sampler.micro_batches(at_level)} micro-batches of {sampler.batch_size}"
        lines.append(f"coverage: {batches} {_drawn_rows(dataset, sampler, draws)} in an epoch")
        drawn[level] = {
            task: np.bincount(at_level.label[:, column], weights=draws, minlength=dataset.num_classes[task])
            for column, task in enumerate(dataset.tasks)
        }
        for task, drawn_rows in drawn[level].items():
            count = dataset.class_counts["train"][task]
            filled = np.flatnonzero(count)
            share = drawn_rows[filled] / count[filled]
            if np.ptp(share) < 1e-9:
                lines.append(f"  {task}: {share[0]:.1%} of every class")
                continue
            least = filled[np.argsort(share, kind="stable")][:_NAMED]
            named = ", ".join(f"{dataset.class_name(task, k)} {drawn_rows[k]:.4g} of {count[k]}" for k in least)
            lines.append(f"  {task}: {share.min():.1%} to {share.max():.1%} of a class; least {named}")
    return CoverageReport(tuple(lines), tuple(_never_drawn(dataset, sampler, drawn)), drawn)


def _drawn_rows(dataset: Dataset, sampler: SamplerSettings, draws: NDArray[np.float64]) -> str:
    """What an epoch draws; a row of expected draws d < 1 comes with probability d, others come every time."""
    if not sampler.balanced:
        return f"draw {draws.sum():.0f} of {len(draws)} training rows"
    return (
        f"make {draws.sum():.0f} draws with data.sampler.class_balance = {sampler.class_balance!r} of "
        f"{dataset.tasks[sampler.balanced_rank]}: {np.minimum(draws, 1).sum():.0f} of {len(draws)} training rows, "
        f"a row {draws.min():.3g} to {draws.max():.3g} times"
    )


def _never_drawn(
    dataset: Dataset, sampler: SamplerSettings, drawn: Mapping[str, Mapping[str, NDArray[Any]]]
) -> list[str]:
    """A sentence for each task with classes that no level draws."""
    advice = (
        "set data.sampler.leftovers = 'keep' to train them"
        if sampler.drops_leftovers
        else f"counted over {COUNTED_EPOCHS} epochs of data.sampler.type = {sampler.type!r}"
    )
    warnings = []
    for task in dataset.tasks:
        count = dataset.class_counts["train"][task]
        most = np.max([of[task] for of in drawn.values()], axis=0)
        never = np.flatnonzero((count > 0) & (most == 0))
        if len(never):
            names = ", ".join(f"{dataset.class_name(task, k)} ({count[k]} rows)" for k in never[:_NAMED])
            warnings.append(
                f"{len(never)} of {np.count_nonzero(count)} classes of {task} are never drawn: {names}"
                f"{', ...' if len(never) > _NAMED else ''}; {advice}"
            )
    return warnings
