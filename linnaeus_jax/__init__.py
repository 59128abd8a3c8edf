"""Hierarchical, multi-task image classification with metadata, as one compiled JAX program."""

__version__ = "0.1.0"

import sys
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"]:  # a program of this package begins, and its imports take seconds
    from linnaeus_jax.interrupts import one_line_for_interrupts

    one_line_for_interrupts()

from linnaeus_jax import migration

if TYPE_CHECKING:
    from linnaeus_jax.inference.model import Model, load

__all__ = ["Model", "__version__", "load"]

migration.register()


def __getattr__(name: str) -> Any:
    """`load` and `Model`, at their first use: importing the package alone does not import JAX."""
    if name in ("Model", "load"):
        from linnaeus_jax.inference import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
