"""Which keys of the `model` section say where weights come from, and which of them exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from linnaeus_jax.config.redaction import redacted
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights import formats  # noqa: F401  # which registers them
from linnaeus_jax.weights.formats.base import WeightFormat, format_named
from linnaeus_jax.weights.locating import name_errors

ATTN_SCALES = ("standard", "squared")
#: the keys that say where weights come from, and their values where none are read
DEFAULTS: dict[str, Any] = {
    "pretrained": "",
    "features": (),
    "pretrained_source": "",
    "pretrained_convnext": "",
    "pretrained_ropevit": "",
    "pretrained_strict": True,
    "pretrained_classes": "",
    "pretrained_attn_scale": "standard",
}


#: those that name files of weights
SOURCE_FILES = ("pretrained", "pretrained_convnext", "pretrained_ropevit")
#: those that name any files
FILES = (*SOURCE_FILES, "pretrained_classes")
#: how an address begins, whether or not it passed as a path, which has single slashes
ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")


def pretrained_settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keys `pretrained*` of a `model` section, with None as their default."""
    given = {key: model.get(key, default) for key, default in DEFAULTS.items()}
    return {key: DEFAULTS[key] if value is None else value for key, value in given.items()}


def reads_weights(model: Mapping[str, Any]) -> bool:
    """Whether a `model` section names a file of weights."""
    given = pretrained_settings(model)
    return bool(given["features"]) or any(given[key] for key in SOURCE_FILES)


def features_of(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Sources of the trunks of a `model` section that names several, see `model.features`."""
    return tuple(map(str, pretrained_settings(model)["features"]))


def sources_in_words(model: Mapping[str, Any]) -> str:
    """The key that names weights with its value, for messages."""
    key = "features" if features_of(model) else "pretrained"
    return f"model.{key} = {pretrained_settings(model)[key]!r}"


def sources() -> tuple[str, ...]:
    """Values of model.pretrained_source; "": the kind that the names in the file are of."""
    return ("", *WEIGHT_FORMATS)


def setting_errors(model: Mapping[str, Any]) -> list[str]:
    """What contradicts itself in the keys `pretrained*` of a `model` section: one line each with key, value and fix."""
    given, family = pretrained_settings(model), model["type"]
    source = given["pretrained_source"]
    named = [(key, str(given[key])) for key in FILES] + [("features", name) for name in features_of(model)]
    if addresses := [(key, path) for key, path in named if ADDRESS.match(path)]:
        return [
            f"model.{key} = {redacted(path)!r} is an address; files are read from this machine alone: download it, and "
            "give the path"
            for key, path in addresses
        ]
    if given["features"]:
        return list(_features_errors(given))
    if source not in sources():
        choices = ", ".join(map(repr, sources()))
        return [f"model.pretrained_source = {source!r} is unknown; choose one of {choices}"]
    kind, errors = format_named(source), []
    for key in FILES:
        errors += name_errors(str(given[key]), f"model.{key}")
    if given["pretrained_attn_scale"] not in ATTN_SCALES:
        errors.append(
            f"model.pretrained_attn_scale = {given['pretrained_attn_scale']!r} is unknown; choose one of "
            + ", ".join(ATTN_SCALES)
        )
    if kind.family and family != kind.family:
        errors.append(
            f"model.pretrained_source = {source!r} fits {kind.family} only, but model.type is {family!r}; change "
            "one of the two"
        )
    errors += _file_errors(given, kind)
    errors += kind.setting_errors(given, family)
    if given["pretrained_classes"] and not kind.heads:
        errors.append(
            f"model.pretrained_classes = {given['pretrained_classes']!r} is without effect with "
            f"model.pretrained_source = {source!r}, which takes no heads; empty it"
        )
    return errors


def _features_errors(given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the names of several sources, and which keys exclude them."""
    names = [str(name) for name in given["features"]]
    if len(names) < 2:
        yield (
            f"model.features = {tuple(names)!r} names one source; two or more are needed: name one alone in "
            "model.pretrained"
        )
    if not all(names):
        yield f"model.features = {tuple(names)!r} has an empty name; leave it out"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"model.features names {name!r} twice; leave one out"
    for name in names:
        yield from name_errors(name, "model.features")
    for key in DEFAULTS:
        if given[key] != DEFAULTS[key] and key not in ("features", "pretrained_strict"):
            yield (
                f"model.{key} = {given[key]!r} and model.features exclude each other; leave one of the two out, on the "
                f"command line with --config.model.{key}={DEFAULTS[key]}"
            )


def _file_errors(given: Mapping[str, Any], kind: WeightFormat) -> Iterator[str]:
    """Files that the kind needs and that are not named, and those that it does not read."""
    source = given["pretrained_source"]
    missing = [f"model.{key}" for key in kind.files if not given[key]]
    if "pretrained" not in kind.files:
        if missing:
            yield f"model.pretrained_source = {source!r} needs two files; set {' and '.join(missing)}"
        if given["pretrained"]:
            yield (
                f"model.pretrained = {given['pretrained']!r} and model.pretrained_source = {source!r}, which reads two "
                "other files, exclude each other; empty one of the two"
            )
        return
    readers = {key: name for name, other in WEIGHT_FORMATS.entries.items() for key in other.files}
    others = {key: given[key] for key in SOURCE_FILES if key not in kind.files}
    for key, path in others.items():
        if path:
            yield (
                f"model.{key} = {path!r} is read with model.pretrained_source = {readers[key]!r} alone; set that, or "
                "empty it"
            )
    if missing:
        for key in DEFAULTS:
            if given[key] != DEFAULTS[key] and key not in (*others, "pretrained_strict"):
                yield f"model.{key} = {given[key]!r} without model.pretrained; name the file there"
