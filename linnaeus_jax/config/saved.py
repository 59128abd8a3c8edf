"""Back from `config.json` to a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.plugins import import_plugins


def config_from_json(tree: Mapping[str, Any]) -> ConfigDict:
    """The locked config that a saved one describes, with tuples again where JSON had lists; imports its plugins.

    Raises:
      ConfigError: a plugin cannot be imported.
      KeyError: the saved config has a key that this version does not know.
    """

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    def fill(node: ConfigDict, saved: Mapping[str, Any]) -> None:
        for key, value in saved.items():
            if isinstance(value, Mapping):
                if key not in node:
                    node[key] = ConfigDict()
                fill(node[key], value)
            else:
                node[key] = tuples(value)

    config = get_config()
    with config.unlocked():
        fill(config, tree)
    import_plugins(config)
    return complete_open_nodes(config)
