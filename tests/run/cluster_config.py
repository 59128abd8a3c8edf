"""The smallest run there is, for tests that start `linnaeus_jax.main`.

--config=tests/run/cluster_config.py:DATA[,stop=N][,split]
"""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from linnaeus_jax.registry import MODELS
from linnaeus_jax.step import placement
from tests.step.toy import Toy
from tests.tiny import tiny_config
from tests.undrawn import undrawn


def get_config(argument: str) -> ConfigDict:
    """Three epochs of the toy model on the data in a directory, which are written if absent; or N updates of them.

    Runs end without pictures. `split`: its small arrays, too, are split over the devices.
    """
    MODELS.entries.setdefault("toy", Toy)
    undrawn().__enter__()  # to the end of the process
    data, *options = argument.split(",")
    given = dict(option.split("=") for option in options if "=" in option)
    split = "split" in options
    if split:
        placement.SPLIT_FROM = 8
    return tiny_config(
        Path(data),
        model__type="toy",
        parallel__fsdp=split,
        train__ema__enabled=True,
        debug__early_exit_after_n_optimizer_steps=int(given.get("stop", 0)),
    )
