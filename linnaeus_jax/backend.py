"""Which kind of device a program is traced for.

Some computations have one form for CPUs and another for accelerators. They ask here instead of `jax.default_backend`,
so that a program for another device can be traced on this one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

_CHOSEN: ContextVar[str | None] = ContextVar("_CHOSEN", default=None)


def target() -> str:
    """`cpu`, `gpu` or `tpu`: that of `tracing_for`, else the backend of this process."""
    return _CHOSEN.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(name: str) -> Iterator[None]:
    """What is traced within is for `name`, one of `cpu`, `gpu`, `tpu`; it cannot be run on another kind of device."""
    token = _CHOSEN.set(name)
    try:
        yield
    finally:
        _CHOSEN.reset(token)
