"""Runs one training in a process of its own, so that a test can kill it at chosen moments.

    python -m tests.run.kill_driver CONFIG_JSON WORKDIR [MOMENT:N]

MOMENT:N sends SIGKILL to itself at the N-th time the moment comes: `step` (an update was just dispatched), `save` (a
checkpoint is being written in the background), `validate` (a validation pass is under way), `row` (an epoch's row was
just logged), `rank` (retention is about to act), `term` (SIGTERM instead, after an update).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.run import trainer
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.evaluation import Evaluator
from tests.step import toy
from tests.tiny import tiny_config
from tests.undrawn import undrawn


def arm(moment: str, count: int) -> None:
    """Wraps the function that marks `moment`."""
    seen = 0

    def strike() -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGTERM if moment == "term" else signal.SIGKILL)

    def around(owner: Any, name: str, *, before: bool = False) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                strike()
            result = original(*args, **kwargs)
            if not before:
                strike()
            return result

        setattr(owner, name, wrapped)

    if moment in ("step", "term"):
        around(CompiledStep, "__call__")
    elif moment == "save":
        around(Checkpoints, "save")  # returns while the write goes on
    elif moment == "validate":
        around(Evaluator, "_add_batch")
    elif moment == "rank":
        around(Checkpoints, "retain", before=True)
    elif moment == "row":
        around(MetricsLog, "write")
    else:
        raise SystemExit(f"unknown moment {moment}")


def add_group(config: ConfigDict) -> None:
    """The heads learn at half the rate, on a schedule of their own."""
    with config.unlocked():
        heads = {"type": "name", "patterns": ("head.",), "match_type": "startswith"}
        config.optimizer.parameter_groups.enabled = True
        config.optimizer.parameter_groups.heads = ConfigDict({"filter": heads, "lr_multiplier": 0.5})
        config.lr_scheduler.parameter_groups.enabled = True
        config.lr_scheduler.parameter_groups.heads = ConfigDict({"name": "linear", "warmup_steps": 4})
    complete_open_nodes(config)


def main() -> None:
    overrides = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(overrides.pop("directory"))
    if len(sys.argv) > 3:
        moment, count = sys.argv[3].split(":")
        arm(moment, int(count))

    toy.register(pytest.MonkeyPatch())

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    two_groups = overrides.pop("two_groups", False)
    config = tiny_config(directory, **{key: tuples(value) for key, value in overrides.items()})
    if two_groups:
        add_group(config)
    with undrawn():
        trainer.run(config, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
