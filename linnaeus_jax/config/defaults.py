"""The whole default configuration tree, put together from the declarations of its keys.

Names are the documented upper-case names in lower case. Four conventions hold everywhere:

* A quantity that may be given in steps, as a fraction or in epochs has one key per unit, all unset (``None``) here;
  what counts then is declared with it. ``0`` means "off".
* Sequences are tuples, so that flags can override them.
* Open nodes (keyed by names of data: metadata components, heads, parameter groups) hold user-chosen keys;
  every entry is filled up with the defaults of its kind by ``complete_open_nodes``.
* A key is declared once, in ``config/sections``: default, meaning, type, and what it may be.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from ml_collections.config_dict import ConfigDict

from linnaeus_jax.config.keys import Key, Section, walk
from linnaeus_jax.config.open_nodes import ENTRIES, complete_open_nodes, initial_tree
from linnaeus_jax.config.sections import data, debug, learning, model, project, schedule, training

__all__ = ["SECTIONS", "complete_open_nodes", "declared", "get_config"]

#: the sections, in the order of their declaration
SECTIONS: Section = dict(
    experiment=project.EXPERIMENT,
    env=project.ENV,
    parallel=project.PARALLEL,
    data=data.DATA,
    model=model.MODEL,
    train=training.TRAIN,
    lr_scheduler=training.LR_SCHEDULER,
    optimizer=training.OPTIMIZER,
    loss=learning.LOSS,
    aug=learning.AUG,
    schedule=schedule.SCHEDULE,
    metrics=schedule.METRICS,
    debug=debug.DEBUG,
)


def get_config() -> ConfigDict:
    """Returns the locked default tree. Every key has an effect or stands in the importer's compatibility table."""
    return complete_open_nodes(ConfigDict(initial_tree(SECTIONS))).lock()


def declared() -> Mapping[str, Key]:
    """Every key of the program by its dotted path, in order; `*` stands for an entry of an open node.

    Options that plugins bring are none of them.
    """
    return _declared()


@functools.cache
def _declared() -> Mapping[str, Key]:
    return MappingProxyType(dict(walk(SECTIONS, "", ENTRIES)))
