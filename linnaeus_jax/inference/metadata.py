"""The documented place of `Observation`."""

from __future__ import annotations

from linnaeus_jax.reading.metadata import Observation

__all__ = ["Observation"]
