"""Entries of sections that are keyed by names of data: which keys an entry has, and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections.config_dict import ConfigDict, placeholder

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.keys import InOrder, Key, Section, value_of
from linnaeus_jax.config.sections.data import COMPONENT
from linnaeus_jax.config.sections.model import HEAD, HEAD_OPTIONS
from linnaeus_jax.config.sections.training import LR_GROUP, OPTIMIZER_GROUP
from linnaeus_jax.registry import ALL, HEADS

#: open node -> declarations of an entry
ENTRIES: dict[str, Section] = {
    "data.meta.components": COMPONENT,
    "lr_scheduler.parameter_groups": LR_GROUP,
    "optimizer.parameter_groups": OPTIMIZER_GROUP,
    "model.classification.heads": HEAD,
}


def initial_tree(section: Mapping[str, Any]) -> Section | ConfigDict:
    """The default values of a section."""
    tree = {
        name: found.initial() if isinstance(found, Key) else initial_tree(found) if isinstance(found, dict) else found
        for name, found in section.items()
    }
    return ConfigDict(tree, sort_keys=False) if isinstance(section, InOrder) else tree


def entry(node: str) -> ConfigDict:
    """An entry of an open node with its defaults, but for heads, see `head`."""
    return ConfigDict(initial_tree(ENTRIES[node]))


def head(given: ConfigDict) -> ConfigDict:
    """A head of the type that `given` names, with the options of that type.

    A type that is still unknown, because a plugin may bring it, keeps what is given and has the option of Linear; once
    it is known, that option is taken out of `given` where nobody has set it.
    """
    kind, linear = given.get("type", "Linear"), initial_tree(HEAD_OPTIONS["Linear"])
    if kind in HEAD_OPTIONS:
        return ConfigDict({"type": kind, **initial_tree(HEAD_OPTIONS[kind])})
    if kind not in HEADS:
        return ConfigDict({**linear, **given})
    options = HEADS.options(kind)
    for option in linear.keys() - options.keys():
        if given.get(option) == linear[option]:
            del given[option]
    return ConfigDict({"type": kind, **{option: _typed(default) for option, default in options.items()}})


#: open node -> (defaults of an entry from what is given of it, keys of the node itself)
OPEN_NODES: dict[str, tuple[Callable[[ConfigDict], ConfigDict], tuple[str, ...]]] = {
    "data.meta.components": (lambda given: entry("data.meta.components"), ()),
    "lr_scheduler.parameter_groups": (lambda given: entry("lr_scheduler.parameter_groups"), ("enabled",)),
    "optimizer.parameter_groups": (lambda given: entry("optimizer.parameter_groups"), ("enabled", "default")),
    "model.classification.heads": (head, ()),
}


def complete_open_nodes(config: ConfigDict) -> ConfigDict:
    """Fills the entries of the open nodes with the defaults of their kind and adds the options of what plugins
    registered, in place; returns `config`.

    Raises:
      ConfigError: an entry is no section.
      KeyError: an entry holds a key that its kind does not have.
    """
    with config.unlocked():
        for path, (make_default, reserved) in OPEN_NODES.items():
            node = value_of(config, path)
            for name in [key for key in node if key not in reserved]:
                if not isinstance(node[name], ConfigDict):
                    raise ConfigError(f"{path}.{name} = {node[name]!r} must be a section with keys")
                node[name] = _filled(make_default(node[name]), node[name], f"{path}.{name}")
        for registry in ALL:
            for name in registry if registry.section else ():
                defaults = registry.options(name)
                if defaults:
                    node = config
                    for part in registry.section.split("."):
                        if part not in node:
                            node[part] = ConfigDict()
                        node = node[part]
                    complete = ConfigDict({key: _typed(value) for key, value in defaults.items()})
                    node[name] = _filled(complete, node.get(name, ConfigDict()), f"{registry.section}.{name}")
    return config


def _typed(value: Any) -> Any:
    return placeholder(float) if value is None else value


def _filled(complete: ConfigDict, given: ConfigDict, path: str) -> ConfigDict:
    unknown = sorted(set(given) - set(complete))
    if unknown:
        raise KeyError(f"{path}.{unknown[0]}")
    with complete.unlocked():
        for key in given:
            complete[key] = given[key]
    return complete
