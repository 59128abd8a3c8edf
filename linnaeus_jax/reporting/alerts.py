"""What a person should be told about while a run goes on, from its rows of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from linnaeus_jax.metrics.phases import phase_label
from linnaeus_jax.reporting.verdicts import LOSSES, has_risen

WAIT_SHARE = "pipeline/wait_share"
#: of a run directory: a JSON object per stall: timestamp, last (what finished), seconds, waiting
STALLS_FILE = "logs/stalls.jsonl"
#: share of the time spent waiting for data that counts as starving, and below which the alarm is armed again
STARVING, FED = 0.5, 0.25
#: rows in a row that must starve before anybody is told
STARVING_ROWS = 3


class Watch:
    """Finds what a person should be told about in the rows themselves; each finding is reported when it begins."""

    def __init__(self) -> None:
        self._skipped = 0
        self._growing = False
        self._starving = 0
        self._lowest, self._rising = dict.fromkeys(LOSSES, math.inf), dict.fromkeys(LOSSES, False)

    def findings(self, step: int, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(title, text) of each alert that the row gives rise to."""
        alerts = []
        if "train/skipped_updates" in values:
            skipped = int(values["train/skipped_updates"])
            grew = skipped > self._skipped
            if grew and not self._growing:
                text = f"{skipped} updates with non-finite values skipped up to step {step}"
                alerts.append(("Non-finite updates", text))
            self._skipped, self._growing = skipped, grew
        if "early_stop/reason" in values:
            alerts.append(("Early stop", f"training ends after {step} updates: {values['early_stop/reason']}"))
        for phase, name in LOSSES.items():
            loss = values.get(name, math.nan) if step else math.nan  # before the first update it is of other heads
            risen = has_risen(loss, self._lowest[phase])
            if risen and not self._rising[phase]:
                text = (
                    f"the mean {phase_label(phase)} loss is {loss:.3g} after {step} updates, and was "
                    f"{self._lowest[phase]:.3g}; lower lr_scheduler.base_lr, or stop if only validation rises"
                )
                alerts.append(("Loss rises", text))
            if not math.isnan(loss):
                self._rising[phase], self._lowest[phase] = risen, min(loss, self._lowest[phase])
        share = values.get(WAIT_SHARE, FED)
        if share > STARVING:
            self._starving += 1
            if self._starving == STARVING_ROWS:
                text = (
                    f"{100 * share:.0f} % of the time up to step {step} was spent waiting for data; raise the threads "
                    "(data.num_workers, data.prefetch.num_io_threads) or, for decoders that hold the GIL, "
                    "data.worker_processes, or store the images at the training size"
                )
                alerts.append(("Starved of data", text))
        elif share < FED:
            self._starving = 0
        return alerts
