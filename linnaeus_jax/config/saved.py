"""A config as `config.json`, without its secrets, and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.redaction import redacted
from linnaeus_jax.config.tree import assign

log = logging.getLogger("linnaeus_jax")

#: keys of configs saved by earlier versions, which had but one value
FORMER_KEYS = ("model.in_chans", "model.img_size")
#: the value of a key in a config that lacks it
MISSING = "<absent>"


def config_from_json(tree: Mapping[str, Any]) -> ConfigDict:
    """The locked config that a saved one describes, with tuples again where JSON had lists; imports its plugins.

    Raises:
      ConfigError: a plugin cannot be imported.
      KeyError: the saved config has a key that this version does not know.
    """

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    def fill(node: ConfigDict, saved: Mapping[str, Any], prefix: str = "") -> None:
        for key, value in saved.items():
            if isinstance(value, Mapping):
                if key not in node:
                    node[key] = ConfigDict()
                fill(node[key], value, f"{prefix}{key}.")
            elif f"{prefix}{key}" not in FORMER_KEYS:
                node[key] = tuples(value)

    config = get_config()
    with config.unlocked():
        fill(config, tree)
    import_plugins(config)
    return complete_open_nodes(config)


def keep(config: ConfigDict, saved: ConfigDict, keys: Iterable[str], whose: str) -> None:
    """Sets some keys of a configuration as a saved one has them, that of `whose`, and says what that changes."""
    for key in keys:
        now, then = value_of(config, key), value_of(saved, key)
        if now != then:
            log.warning("%s is now %r; %s was trained with %r, which is used", key, now, whose, then)
            assign(config, key.split("."), then)


def plain(config: ConfigDict) -> dict[str, Any]:
    """The config as JSON types, secrets hidden; what is of no such type, which no check lets pass, as text."""
    return json.loads(json.dumps(redacted(config.to_dict()), default=str))


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> leaf of a nested dict."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def config_difference(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every leaf that differs between two plain config trees."""
    before, after = flatten(old), flatten(new)
    return [
        (key, before.get(key, MISSING), after.get(key, MISSING))
        for key in sorted(before.keys() | after.keys())
        if before.get(key, MISSING) != after.get(key, MISSING)
    ]
