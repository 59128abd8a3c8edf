"""Minutes since the process began as a metric of the validation, for curves; a plugin of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from linnaeus_jax.metrics import PhaseMetric, register

NAME = "minutes"
#: as good as the start of the process: plugins are imported before anything is read or compiled
BEGAN = time.perf_counter()


@register(NAME, unit="min", formula="minutes of this process so far", higher_is_better=False, phases=("val",))
class Minutes(PhaseMetric):
    """It counts no rows: its value is read when the sums of a phase are. On a CPU they are CPU-minutes."""

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        seconds = time.process_time() if jax.default_backend() == "cpu" else time.perf_counter() - BEGAN
        return {NAME: seconds / 60}
