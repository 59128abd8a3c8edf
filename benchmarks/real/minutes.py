"""CPU-minutes since the process began as a metric of the validation, for curves; a plugin of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from linnaeus_jax.metrics import PhaseMetric, register

NAME = "cpu_minutes"


@register(NAME, unit="min", formula="CPU-minutes of this process so far", higher_is_better=False, phases=("val",))
class CpuMinutes(PhaseMetric):
    """It counts no rows: its value is read when the sums of a phase are."""

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        return {NAME: time.process_time() / 60}
