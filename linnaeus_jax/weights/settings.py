"""Which keys of the `model` section say where weights come from, and which of them exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from linnaeus_jax.config.outgoing import redacted

METAFORMER, STITCHED = "metaformer", "stitched_convnext_ropevit"
#: values of model.pretrained_source; "" is a full model, of this program or of the original
SOURCES = ("", METAFORMER, STITCHED)
ATTN_SCALES = ("standard", "squared")
#: source -> the only family that it fits
FAMILIES = {METAFORMER: "mFormerV0", STITCHED: "mFormerV1"}
#: the keys that begin with this word, and their values where no weights are read
DEFAULTS: dict[str, Any] = {
    "pretrained": "",
    "pretrained_source": "",
    "pretrained_convnext": "",
    "pretrained_ropevit": "",
    "pretrained_strict": True,
    "pretrained_classes": "",
    "pretrained_attn_scale": "standard",
}


#: those that name files
FILES = ("pretrained", "pretrained_convnext", "pretrained_ropevit", "pretrained_classes")
#: how an address begins, whether or not it passed as a path, which has single slashes
ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")


def pretrained_settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keys `pretrained*` of a `model` section, with None as their default."""
    given = {key: model.get(key, default) for key, default in DEFAULTS.items()}
    return {key: DEFAULTS[key] if value is None else value for key, value in given.items()}


def reads_weights(model: Mapping[str, Any]) -> bool:
    """Whether a `model` section names a file of weights."""
    given = pretrained_settings(model)
    return any(given[key] for key in ("pretrained", "pretrained_convnext", "pretrained_ropevit"))


def setting_errors(model: Mapping[str, Any]) -> list[str]:
    """What contradicts itself in the keys `pretrained*` of a `model` section: one line each with key, value and fix."""
    given, family = pretrained_settings(model), model["type"]
    source = given["pretrained_source"]
    stitched = {key: given[key] for key in ("pretrained_convnext", "pretrained_ropevit")}
    errors = []
    if addresses := {key: str(given[key]) for key in FILES if ADDRESS.match(str(given[key]))}:
        return [
            f"model.{key} = {redacted(path)!r} is an address; files are read from this machine alone: download it, and "
            "give the path"
            for key, path in addresses.items()
        ]
    if source not in SOURCES:
        choices = ", ".join(map(repr, SOURCES))
        return [f"model.pretrained_source = {source!r} is unknown; choose one of {choices}"]
    if given["pretrained_attn_scale"] not in ATTN_SCALES:
        errors.append(
            f"model.pretrained_attn_scale = {given['pretrained_attn_scale']!r} is unknown; choose one of "
            + ", ".join(ATTN_SCALES)
        )
    if source in FAMILIES and family != FAMILIES[source]:
        errors.append(
            f"model.pretrained_source = {source!r} fits {FAMILIES[source]} only, but model.type is {family!r}; change "
            "one of the two"
        )
    if source == STITCHED:
        missing = [f"model.{key}" for key, path in stitched.items() if not path]
        if missing:
            errors.append(f"model.pretrained_source = {source!r} needs two files; set {' and '.join(missing)}")
        if given["pretrained"]:
            errors.append(
                f"model.pretrained = {given['pretrained']!r} and model.pretrained_source = {source!r}, which reads two "
                "other files, exclude each other; empty one of the two"
            )
    else:
        errors += [
            f"model.{key} = {path!r} is read with model.pretrained_source = {STITCHED!r} alone; set that, or empty it"
            for key, path in stitched.items()
            if path
        ]
        if not given["pretrained"]:
            changed = [key for key in DEFAULTS if given[key] != DEFAULTS[key] and key not in stitched]
            changed = [key for key in changed if key != "pretrained_strict"]
            errors += [f"model.{key} = {given[key]!r} without model.pretrained; name the file there" for key in changed]
    if given["pretrained_attn_scale"] == "squared" and (source or family != "mFormerV1"):
        errors.append(
            "model.pretrained_attn_scale = 'squared' is for checkpoints of the original's mFormerV1 alone; use "
            "'standard'"
        )
    if given["pretrained_classes"] and source:
        errors.append(
            f"model.pretrained_classes = {given['pretrained_classes']!r} is without effect with "
            f"model.pretrained_source = {source!r}, which takes no heads; empty it"
        )
    return errors
