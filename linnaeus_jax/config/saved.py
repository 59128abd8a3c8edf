"""A config as `config.json`, without its secrets, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.plugins import import_plugins

_SECRET = r"api_?key|app_?key|access_?key(?:_id)?|pass|passwd|password|secret|token|credentials?"
#: a key whose text is a secret: one of these words, alone or beside others with an underscore between
_SECRET_KEY = re.compile(rf"(?:.*[_-])?(?:{_SECRET})(?:[_-].*)?", re.IGNORECASE)
#: `user:password@` of an address
_LOGIN = re.compile(r"(\w[\w+.-]*://)[^/@\s]+@")
#: a secret among the parameters of an address or of an rclone connection string
_PARAMETER = re.compile(
    rf"([?&;,](?:[\w-]*[_-])?(?:{_SECRET}|key|sig|signature)(?:[_-][\w-]*)?=)(\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|[^,&;:#\s]+)",
    re.IGNORECASE,
)
REDACTED = "<redacted>"
#: keys of configs saved by earlier versions, which had but one value
FORMER_KEYS = ("model.in_chans", "model.img_size")


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


def plain(config: ConfigDict) -> dict[str, Any]:
    """The config as JSON types, secrets hidden."""
    return json.loads(json.dumps(redacted(config.to_dict())))


def redacted(tree: Any, *, secret: bool = False) -> Any:
    """A copy of a plain tree without its secrets: texts under the key of a secret, and passwords and tokens within
    addresses and connection strings. Keys, numbers and the shape of the tree stay as they are.

    Args:
      secret: every text is one.
    """
    if isinstance(tree, dict):
        return {
            key: redacted(value, secret=not isinstance(value, dict) and _SECRET_KEY.fullmatch(str(key)) is not None)
            for key, value in tree.items()
        }
    if isinstance(tree, (list, tuple)):
        return [redacted(item, secret=secret) for item in tree]
    if not isinstance(tree, str) or not tree:
        return tree
    return REDACTED if secret else _PARAMETER.sub(rf"\1{REDACTED}", _LOGIN.sub(rf"\1{REDACTED}@", tree))


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
    missing = "<absent>"
    return [
        (key, before.get(key, missing), after.get(key, missing))
        for key in sorted(before.keys() | after.keys())
        if before.get(key, missing) != after.get(key, missing)
    ]
