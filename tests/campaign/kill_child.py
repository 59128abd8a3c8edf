"""A run in a process of its own that says where it is, so that it can be killed there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import pytest
import tensorboard.summary.writer.event_file_writer  # noqa: F401  # loaded once, by the process that forks, as is wandb
import wandb  # noqa: F401

from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run import finish, trainer
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.evaluation import Evaluator
from tests.run.kill_driver import add_group
from tests.step import toy
from tests.tiny import tiny_config

#: what a run begins, and the function that does it
MOMENTS: dict[str, tuple[Any, str]] = {
    "sink": (Sinks, "open"),
    "update": (CompiledStep, "__call__"),
    "save": (Checkpoints, "save"),
    "validation": (Evaluator, "_add_batch"),
    "row": (MetricsLog, "write"),
    "end of epoch": (Checkpoints, "retain"),
    "tables": (Sinks, "tables"),
    "report": (finish, "write_report"),
}


def train(overrides: dict[str, Any], data: Path, workdir: Path, output: Path, moments: Connection) -> None:
    """Trains to the end and sends the name of every moment; what is printed goes to the file `output`."""
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    jax.config.update("jax_num_cpu_devices", 1)  # half of the time of compiling
    toy.register(pytest.MonkeyPatch())
    for name, (owner, function) in MOMENTS.items():
        setattr(owner, function, _told(getattr(owner, function), name, moments))
    moments.send("start")
    config = tiny_config(data, **overrides)
    add_group(config)
    trainer.run(config, workdir)


def _told(function: Callable[..., Any], name: str, moments: Connection) -> Callable[..., Any]:
    @functools.wraps(function)
    def telling(*args: Any, **kwargs: Any) -> Any:
        moments.send(name)
        return function(*args, **kwargs)

    return telling
