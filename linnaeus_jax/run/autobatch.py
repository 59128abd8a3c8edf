"""The largest batch that fits into the memory of a device, from what the compiler says of abstract shapes.

Nothing is run and no array is made: every step that a run needs is compiled for a number of rows, and its arguments,
results and temporary values are added up. Memory grows almost in proportion to the rows, so that a few compilations
are enough. See `data.autobatch` in `config/defaults.py`.
"""

from __future__ import annotations

import bisect
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import multihost_utils

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.samplers import SamplerSettings
from linnaeus_jax.files import RunDirectory

log = logging.getLogger("linnaeus_jax")

#: a configuration -> bytes that one device needs for its updates
StepMemory = Callable[[Config], int]


@dataclass(frozen=True)
class Fit:
    """What was found.

    Attributes:
      rows: of a micro-batch on each device.
      budget: bytes of each device that an update may take.
      tried: rows -> bytes, of every compilation.
    """

    rows: int
    budget: int
    tried: dict[int, int]

    @property
    def bytes(self) -> int:
        """What an update of `rows` takes on each device."""
        return self.tried[self.rows]


def with_rows(config: Config, rows: int) -> Config:
    """The configuration with that many rows of a micro-batch on each device."""
    return config.replaced({"data.batch_size": None, "data.batch_size_per_device": rows})


def device_budget(config: Config) -> int:
    """Bytes of the smallest device of all processes that an update may take.

    Raises:
      UserError: the devices do not say how much memory they have, and neither does the configuration.
    """
    settings = config.data.autobatch
    limit = (settings.device_memory_gb or 0.0) * 1e9
    if not limit:
        found = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
        limit = float(multihost_utils.process_allgather(np.float64(min(found))).min())
    if not limit:
        raise UserError(
            "data.autobatch.device_memory_gb = 0.0, and devices of kind "
            f"{jax.devices()[0].device_kind!r} do not say how much memory they have; give the gigabytes of one device"
        )
    return int(limit * settings.target_memory_fraction)


def choose_batch(config: Config, earlier: int | None, step_memory: Callable[[], StepMemory]) -> int:
    """Rows on each device of a configuration with `data.autobatch.enabled`.

    Args:
      earlier: those of the run that goes on, which are kept; None: the most that fit are taken.
      step_memory: called where they are to be found.

    Raises:
      UserError: none fit, or nobody knows how much memory there is.
    """
    rows = earlier
    if rows is None:
        budget = device_budget(config)
        rows = largest_batch(config, jax.device_count(), budget, step_memory()).rows
    log.info("autobatch: data.batch_size_per_device = %d", rows)
    return rows


def largest_batch(config: Config, devices: int, budget: int, memory: StepMemory) -> Fit:
    """The most rows within `data.autobatch.min_batch_size` and `max_batch_size` that the sampler allows and that fit.

    Args:
      budget: bytes of one device.
      memory: compiles; called a few times.

    Raises:
      UserError: not even the fewest rows fit.
    """
    settings = config.data.autobatch
    choices = [n for n in range(settings.min_batch_size, settings.max_batch_size + 1) if _allowed(config, n, devices)]
    if not choices:
        raise UserError(
            f"no number of rows from data.autobatch.min_batch_size = {settings.min_batch_size} to max_batch_size = "
            f"{settings.max_batch_size} suits the sampler on {devices} device(s); widen the range"
        )
    tried: dict[int, int] = {}

    def fits(rows: int) -> bool:
        tried[rows] = memory(with_rows(config, rows))
        log.info("autobatch: %d rows on each device take %.2f of %.2f GB", rows, tried[rows] / 1e9, budget / 1e9)
        return tried[rows] <= budget

    if not fits(choices[0]):
        raise UserError(
            f"an update of {choices[0]} rows takes {tried[choices[0]] / 1e9:.2f} GB of each device, "
            f"{budget / 1e9:.2f} GB may be used; take smaller pictures (data.img_size) or a smaller model, recompute "
            "(train.gradient_checkpointing), or raise data.autobatch.target_memory_fraction"
        )
    low, high = 0, len(choices)  # positions: `low` fits, `high` does not
    guess = min(bisect.bisect_left(choices, 4 * choices[0]), high - 1)
    while low < guess < high:
        low, high = (guess, high) if fits(choices[guess]) else (low, guess)
        guess = _predicted(choices, tried, budget, low, high)
    return Fit(choices[low], budget, tried)


def _predicted(choices: Sequence[int], tried: dict[int, int], budget: int, low: int, high: int) -> int:
    """Position of the most rows that the line through the two largest numbers tried lets fit, below `high`."""
    first, second = sorted(tried)[-2:]
    slope = (tried[second] - tried[first]) / (second - first)
    if slope <= 0:
        return (low + high) // 2
    rows = first + (budget - tried[first]) / slope
    return min(bisect.bisect_right(choices, rows) - 1, high - 1)


def _allowed(config: Config, rows: int, devices: int) -> bool:
    try:
        SamplerSettings.from_config(with_rows(config, rows), devices)
    except ValueError:
        return False
    return True


def earlier_rows(directory: RunDirectory) -> int | None:
    """Rows on each device that the earlier run of a directory found; None: there is none, or it did not ask."""
    if not directory.config_json.is_file():
        return None
    data = json.loads(directory.config_json.read_text(encoding="utf-8"))["data"]
    rows: int | None = data["batch_size_per_device"] if data.get("autobatch", {}).get("enabled") else None
    return rows
