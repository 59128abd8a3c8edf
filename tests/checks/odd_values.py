"""Odd values for every key, and what each program that loads a configuration does with them, up to its check."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from ml_collections import ConfigDict

from linnaeus_jax.config.exit_status import exit_status
from linnaeus_jax.config.tree import assign
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import experiment, trainer
from linnaeus_jax.tools import autobatch, check, import_weights, model_info, schedule, show_augmentations
from tests.config.effects import ENTRIES

HUGE, LONG = 10**30, "x" * 10_000
ODD: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    float("-inf"),
    -1,
    0,
    HUGE,
    -HUGE,
    "",
    LONG,
    "a\0b",
    None,
    True,
    (),
    (float("nan"),),
    (10**9, 1),
    ((float("nan"), HUGE),),
    {"type": float("nan")},
)
#: what a program does with a value
REFUSED, FAULT, TAKEN = 2, 70, "taken"


class Checked(BaseException):
    """A program has got past its checks."""


def stop(*args: Any, **options: Any) -> Any:
    """Stands for what a program does first once it has checked its configuration."""
    raise Checked


def _ended(call: Callable[[], object]) -> int:
    """Status of a program that stops, or fails, within this call."""

    def run() -> int:
        call()
        return 0

    return exit_status(run)


def _evaluate(tree: ConfigDict, home: Path) -> int:
    return _ended(lambda: experiment.evaluation_experiment(tree, RunDirectory(home / "run"), mock.Mock()))


def _replay(tree: ConfigDict, home: Path) -> int:
    return _ended(lambda: experiment.preview_experiment(tree, RunDirectory(home / "run")))


def _main(tree: ConfigDict, home: Path) -> int:
    return _ended(lambda: trainer.run(tree, home / "run"))


def _tool(tool: Any, *arguments: str) -> Callable[[ConfigDict, Path], int]:
    def run(tree: ConfigDict, home: Path) -> int:
        given = [argument.format(home=home) for argument in arguments]
        with mock.patch.object(tool, "load_config", return_value=(tree, None)):
            return tool.main(given)

    return run


#: program -> what it does with a loaded tree; the first is the one whose verdict counts
PROGRAMS: Mapping[str, Callable[[ConfigDict, Path], int]] = {
    "main": _main,
    "check": _tool(check, "--out={home}/check.png"),
    "show_augmentations": _tool(show_augmentations, "--out={home}/shown.png"),
    "autobatch": _tool(autobatch),
    "schedule": _tool(schedule, "--steps-per-epoch=10"),
    "model_info": _tool(model_info),
    "evaluate": _evaluate,
    "replay": _replay,
    "import_weights": _tool(import_weights, "{home}/weights.safetensors"),  # the last: it changes the tree
}


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Within it every program stops where its configuration is checked."""
    with contextlib.ExitStack() as stack:
        for place, name in (
            (experiment, "_planned"),
            (experiment, "build_inputs"),
            (autobatch, "step_memory"),
            (schedule, "run"),
            (model_info, "sizes_of"),
            (import_weights, "model_for"),
        ):
            stack.enter_context(mock.patch.object(place, name, stop))
        for place in (experiment, autobatch):
            stack.enter_context(mock.patch.object(place, "set_up_jax", return_value=""))
        yield


def verdict(program: str, tree: ConfigDict, home: Path) -> tuple[Any, str]:
    """(status, or `TAKEN`; what it printed to stderr) of a program for a tree, which it may change."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            return PROGRAMS[program](tree, home), said.getvalue()
        except Checked:
            return TAKEN, said.getvalue()


def with_value(config: ConfigDict, key: str, value: Any) -> ConfigDict | None:
    """A copy with that value of a declared key; None where the tree itself does not take it."""
    node, starred, rest = key.partition(".*.")
    path = tuple(f"{node}.{ENTRIES[node]}.{rest}".split(".")) if starred else tuple(key.split("."))
    tree = copy.deepcopy(config).lock()
    try:
        if starred and node == "model.classification.heads" and rest in ("routing_strategy", "temperature"):
            assign(tree, (*path[:-1], "type"), "ConditionalClassifier")
        elif starred and rest == "orphan_prior":
            assign(tree, (*path[:-1], "type"), "HierarchicalSoftmax")
        assign(tree, path, value)
    except TypeError:
        return None
    return tree
