"""Processes that start at once: forks of one that has imported what programs and tests import.

Python has one such process for all contexts, whose modules are those that were named before its first fork. They are
named here, since which test comes first is chance: a module that a fork imports by itself leaves, for instance, the
temporary directories that wandb makes when it is imported.
"""

from __future__ import annotations

import multiprocessing
import pkgutil

import linnaeus_jax.tools

MAIN = "linnaeus_jax.main"
TOOLS = tuple(f"linnaeus_jax.tools.{module.name}" for module in pkgutil.iter_modules(linnaeus_jax.tools.__path__))
#: what programs import only once their arguments are read, and what the runs of a campaign are made of
LATE = ("linnaeus_jax.run.trainer", "linnaeus_jax.inference.model", "linnaeus_jax.inference.serving", "tests.tiny")

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([MAIN, *TOOLS, *LATE, "tests.campaign.kill_child", "tests.campaign.pictures"])
