"""Which operation makes the first NaN or infinity: `debug.nans`, `debug.infs`, JAX_DEBUG_NANS and JAX_DEBUG_INFS.

JAX looks at the results of functions that `jax.jit` compiles when they are called, and repeats such a function without
`jit`. It does not repeat one that was compiled ahead of time, and a scan is one operation to it. So the step runs
compiled and unchecked here, its results are looked at as a whole, and a step with a bad one is made again from the same
state with `jax.disable_jit`, where scans are loops and JAX checks every operation.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from linnaeus_jax.config.errors import TrainingError
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.step.placement import fetch

log = logging.getLogger("linnaeus_jax")

_NAMES = {"nan": "NaN", "inf": "infinity"}
_ENCOUNTERED = re.compile(r"invalid value \((nan|inf)\) encountered in ([\w.\[\]-]+)")
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (jax, flax, optax))
_ADVICE = (
    "Keep what goes into it in range there (for a gradient: by jnp.where on the input of the operation, not on its "
    "result), lower lr_scheduler.base_lr or train.clip_grad, or compute in float32; --debug underflow_overflow shows "
    "the layers before it"
)


class InvalidOperation(TrainingError, FloatingPointError):
    """An operation made a NaN or an infinity; the message names it, its line, the update and what to do."""

    alert = "Non-finite values"


def kinds() -> tuple[str, ...]:
    """What is looked for in this process: "nan", "inf", both or nothing."""
    return tuple(kind for kind in _NAMES if getattr(jax.config, f"jax_debug_{kind}s"))


@contextlib.contextmanager
def switched_on(*, nans: bool, infs: bool) -> Iterator[None]:
    """Switches JAX's checks on where asked for; what the environment switched on stays on."""
    with contextlib.ExitStack() as stack:
        if nans:
            stack.enter_context(jax.debug_nans(True))
        if infs:
            stack.enter_context(jax.debug_infs(True))
        yield


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without JAX's checks, for what is looked at as a whole."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def examined(step: int, function: Callable[..., Any], state: Any, batch: Any, result: Any) -> InvalidOperation | None:
    """What is wrong with an update, an error to raise; None where nothing is.

    Args:
      step: that of the update.
      function: the train step, to be called again.
      state, batch: what it was made from.
      result: what the compiled step returned.
    """
    searched = kinds()
    bad = invalid(result, searched)
    if not bad:
        return None
    log.warning(
        "update %d: %s and %d other results are not finite; it is made again operation by operation, which is slow",
        step,
        bad[0],
        len(bad) - 1,
    )
    given = invalid({"state": state, "batch": batch}, searched)
    error = locate(function, state, batch)
    where = f"update {step}"
    if error is None:
        text = (
            f"{where}: {', '.join(bad[:3])} not finite, but no single operation is at fault when they run one by "
            "one: the compiled step rounds differently; look for large values with --debug underflow_overflow"
        )
        return InvalidOperation(text)
    return explained(error, where, before=given)


def invalid(tree: Any, searched: tuple[str, ...]) -> list[str]:
    """Names of the leaves of `tree` that hold a value of the `searched` kinds; waits for them."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    floats = [(path, x) for path, x in paths if jnp.issubdtype(x.dtype, jnp.inexact)]
    with unchecked():
        bad = fetch(_holds([x for _, x in floats], searched)) if floats else ()
    return [jax.tree_util.keystr(path) for (path, _), is_bad in zip(floats, np.asarray(bad), strict=True) if is_bad]


@functools.partial(jax.jit, static_argnums=1)
def _holds(leaves: list[jax.Array], searched: tuple[str, ...]) -> jax.Array:
    """bool [leaves]."""
    tests = {"nan": jnp.isnan, "inf": jnp.isinf}
    return jnp.stack([functools.reduce(jnp.logical_or, [tests[kind](x).any() for kind in searched]) for x in leaves])


def locate(function: Callable[..., Any], *args: Any) -> FloatingPointError | None:
    """JAX's error at the first operation of `function` with a result that the switches forbid; None: there is none.

    Every operation is run by itself, and the values of all of them are read.
    """
    settings: Any = jax.config
    filtering = settings.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")  # the frames tell a backward pass from a forward pass
    try:
        with jax.disable_jit():
            jax.block_until_ready(function(*args))
    except FloatingPointError as error:
        return error
    finally:
        jax.config.update("jax_traceback_filtering", filtering)
    return None


def explained(error: FloatingPointError, where: str, *, before: list[str] | None = None) -> InvalidOperation:
    """JAX's error in words.

    Args:
      where: the update, or what else was computed.
      before: names of what was not finite before the computation.
    """
    if isinstance(error, InvalidOperation):
        return error
    match = _ENCOUNTERED.search(str(error))
    if match is None:
        return InvalidOperation(f"{where}: {error}")
    kind, operation = match.groups()
    cause = error.__cause__
    traced = cause is not None and cause.__traceback__ is not None
    place = _line(cause.__traceback__ if cause is not None and traced else error.__traceback__)
    backward = any(frame.name.startswith("backward_pass") for frame in traceback.extract_tb(error.__traceback__))
    text = (
        f"{where}: `{operation}` makes the first {_NAMES[kind]}, {'in the gradient of' if backward else 'at'} {place}. "
    )
    if before:
        text += f"Its inputs are bad already: {shortened(before)} before the computation. "
    return InvalidOperation(f"{text}Nothing of it was kept. {_ADVICE}")


def _line(trace: TracebackType | None) -> str:
    """The innermost line that belongs to no library."""
    frames = traceback.extract_tb(trace)
    outside = [frame for frame in frames if not _of_library(frame.filename)] or list(frames)
    if not outside:
        return "an unknown line"
    frame = outside[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}, `{frame.line}`"


def _of_library(filename: str) -> bool:
    standard = filename.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in filename
    return standard or filename.startswith(("<", *_LIBRARIES)) or filename == __file__
