"""Entries of sections that are keyed by names of data: which keys an entry has, and their defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ml_collections.config_dict import ConfigDict, placeholder

from linnaeus_jax.config.derived import value_of
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.registry import ALL, HEADS

#: nested defaults by key
Section = dict[str, Any]


def alternatives(prefix: str, epochs: type | None = None) -> Section:
    """Unset keys of a quantity given in steps, as a fraction or, where `epochs` is their type, in epochs."""
    kinds = {"steps": int, "fraction": float} | ({"epochs": epochs} if epochs else {})
    return {f"{prefix}_{unit}": placeholder(kind) for unit, kind in kinds.items()}


def meta_component() -> ConfigDict:
    """One entry of `data.meta.components`."""
    return ConfigDict(
        dict(
            enabled=True,  # use the component
            source="",  # dataset of the labels file that holds its columns
            columns=(),  # names of the columns to take, in this order; empty: all of them, in the file's order
            dim=0,  # number of columns
            idx=0,  # place in the metadata vector, ascending; below 0: the component is not used
            allow_missing=True,  # False: leave out rows in which the component is not known
            oor_mask=False,  # the component counts as missing in rows outside the region (`in_region` = 0)
        )
    )


def lr_group() -> ConfigDict:
    """One entry of `lr_scheduler.parameter_groups`, named as the optimizer group; None inherits the global value."""
    return ConfigDict(
        dict(
            name=placeholder(str),  # course of the learning rate after warmup
            min_lr=placeholder(float),  # learning rate at the end
            warmup_lr=placeholder(float),  # learning rate of the first update
            # how long the parameters stay as they are before their course begins; 0: not at all
            **alternatives("delay", float),
            # length of the rise from warmup_lr to the peak
            **alternatives("warmup", float),
            # of `step`: updates between two drops
            **alternatives("decay"),
            decay_rate=placeholder(float),  # of `step`: factor of each drop
        )
    )


def optimizer_group() -> ConfigDict:
    """One entry of `optimizer.parameter_groups`."""
    return ConfigDict(
        dict(
            filter=ConfigDict(),  # parameter filter that selects the group's parameters, a mapping with `type`
            optimizer="",  # optimizer of the group; empty: optimizer.name
            weight_decay=placeholder(float),  # weight decay of the group; None: optimizer.weight_decay
            lr_multiplier=1.0,  # factor of the learning rate; 0 does not save the gradient, `frozen` does
            frozen=False,  # the parameters keep their initial values, have no gradient and count in no norm
        )
    )


#: built-in head -> its options
HEAD_OPTIONS: dict[str, Section] = {
    "Linear": {"use_bias": True},
    "ConditionalClassifier": {
        "use_bias": True,  # add a learned bias to every class
        # how the next coarser rank enters: by its probabilities (soft); by its best class, but while training (hard);
        # by probabilities with random noise while training (gumbel)
        "routing_strategy": "soft",
        "temperature": 1.0,  # divides the logits of the coarser rank
        # what a class without a parent gets: a prior of 1 (neutral), or nearly 0 (epsilon)
        "orphan_prior": "neutral",
    },
    "HierarchicalSoftmax": {"use_bias": True, "orphan_prior": "neutral"},
    "PathSoftmax": {"use_bias": True},
}


def head(given: ConfigDict) -> ConfigDict:
    """A head of the type that `given` names, with the options of that type.

    A type that is still unknown, because a plugin may bring it, keeps what is given and has the option of Linear; once
    it is known, that option is taken out of `given` where nobody has set it.
    """
    kind, linear = given.get("type", "Linear"), HEAD_OPTIONS["Linear"]
    if kind in HEAD_OPTIONS:
        return ConfigDict({"type": kind, **HEAD_OPTIONS[kind]})
    if kind not in HEADS:
        return ConfigDict({**linear, **given})
    options = HEADS.options(kind)
    for option in linear.keys() - options.keys():
        if given.get(option) == linear[option]:
            del given[option]
    return ConfigDict({"type": kind, **{option: _typed(default) for option, default in options.items()}})


#: open node -> (defaults of an entry from what is given of it, keys of the node itself)
OPEN_NODES: dict[str, tuple[Callable[[ConfigDict], ConfigDict], tuple[str, ...]]] = {
    "data.meta.components": (lambda given: meta_component(), ()),
    "lr_scheduler.parameter_groups": (lambda given: lr_group(), ("enabled",)),
    "optimizer.parameter_groups": (lambda given: optimizer_group(), ("enabled", "default")),
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
