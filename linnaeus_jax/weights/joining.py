"""Weights of several sources for the trunks of one `Joined` model, see `model.features`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.section import nested
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.joined import FAMILY, Joined, Trunk, can_be_joined, joinable, trunk_reason
from linnaeus_jax.registry import MODELS
from linnaeus_jax.weights import coverage as cov
from linnaeus_jax.weights.adopting import PICTURE_KEYS, known_as
from linnaeus_jax.weights.coverage import Coverage, Row, group_of
from linnaeus_jax.weights.files import SETTINGS, StateFile
from linnaeus_jax.weights.formats.base import architecture_of, format_of
from linnaeus_jax.weights.importing import Import, read_pretrained
from linnaeus_jax.weights.settings import DEFAULTS, features_of
from linnaeus_jax.weights.targets import targets_of

#: variant of a `Joined` model whose trunks are those of its sources
VARIANT = "sources"
#: keys whose values follow from the sources alone, whatever a configuration file says
FORCED = ("model.type", "model.variant", "model.trunks", "aug.mean", "aug.std")
#: what of a trained model is not its trunk
BESIDE = ("head.", "fusion.")


def joined_state(parts: Sequence[StateFile]) -> StateFile:
    """One state for several files, whose digest is of all of theirs.

    Raises:
      UserError: two of them are the same.
    """
    for place, part in enumerate(parts):
        if part.sha256 in [other.sha256 for other in parts[:place]]:
            raise UserError(f"model.features names {part.path} twice; leave one out")
    digest = hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()
    return StateFile(Path(" + ".join(str(part.path) for part in parts)), digest, {}, parts=tuple(parts))


def trunk_of(file: StateFile) -> Trunk:
    """What the trunk of a file is and how its pictures were normalised.

    Raises:
      UserError: it has no trunk that can stand beside others.
    """
    kind = format_of(file)
    family = str(file.facts.get("model", "")) or architecture_of(file.arrays)
    if family == FAMILY:
        raise UserError(
            f"model.features: {file.path} is of several trunks itself; name its sources, or it alone in "
            "model.pretrained"
        )
    settings = kind.settings(file)
    if file.facts:
        settings = {"type": family, "variant": file.facts.get("variant", "")} | file.facts.get(SETTINGS, {})
    pictures = kind.preprocessing(file)
    pairs = tuple((key, _fixed(value)) for key, value in settings.items() if key not in ("type", "variant"))
    variant = settings.get("variant", "")
    trunk = Trunk(family, variant, pairs, *((pictures.mean, pictures.std) if pictures else ((0.0,) * 3, (1.0,) * 3)))
    if family not in MODELS:
        raise UserError(
            f"model.features: {file.path} {f'looks like {family}' if family else 'holds no trunk that is known'}; "
            f"trunks of these families can be joined: {joinable()}"
        )
    if not variant and can_be_joined(MODELS[family]) and MODELS[family].variants:
        raise UserError(
            f"model.features: the blocks of {file.path} are those of no variant of {family}; it may be incomplete, or "
            "made otherwise"
        )
    if reason := trunk_reason(trunk):
        raise UserError(f"model.features: {file.path} cannot be joined: {reason}")
    if pictures is None:
        raise UserError(
            f"model.features: {file.path} does not say how its pictures were normalised; give the run, or export it "
            "again"
        )
    return trunk


def _fixed(value: Any) -> Any:
    """A value of JSON as one of `Trunk.settings`."""
    return tuple(value) if isinstance(value, list) else value


def joined_needs(parts: Sequence[StateFile]) -> dict[str, Any]:
    """Config key -> value that the sources need together: all trunks, and the pictures of the source with the largest.

    The normalisation is that of values from 0 to 1, since every trunk applies its own.
    """
    trunks = tuple(tuple(trunk_of(part)) for part in parts)
    pictures: list[Preprocessing] = [p for part in parts if (p := format_of(part).preprocessing(part)) is not None]
    largest = dataclasses.replace(max(pictures, key=lambda each: each.size), mean=(0.0,) * 3, std=(1.0,) * 3)
    model = {"model.type": FAMILY, "model.variant": VARIANT, "model.trunks": trunks}
    return model | {key: of(largest) for key, of in PICTURE_KEYS.items()}


def read_weights(
    settings: Mapping[str, Any],
    model: ModelFamily,
    classes: Mapping[str, Sequence[int]],
    source: StateFile | None = None,
) -> Import:
    """The weights that a `model` section names, of one source or several; arguments and errors as of `read_pretrained`.

    Args:
      source: what was read of them already; needed for several.
    """
    if not features_of(settings):
        return read_pretrained(settings, model, classes, source)
    assert source is not None
    parts = source.parts
    trunks = tuple(trunk_of(part) for part in parts)
    if not isinstance(model, Joined):
        raise UserError(
            f"model.features needs model.type = {FAMILY!r}, but it is {settings['type']!r}; leave model.type out, or "
            "name one source in model.pretrained"
        )
    if model.trunks != trunks:
        raise UserError("model.trunks is not what the sources in model.features say; leave it out")
    done = [
        read_pretrained(_section(settings, trunk), model.trunk(place), {}, _trunk_alone(part))
        for place, (trunk, part) in enumerate(zip(trunks, parts, strict=True))
    ]
    return _merged(model, parts, done)


def _section(settings: Mapping[str, Any], trunk: Trunk) -> dict[str, Any]:
    """The `model` section of one trunk by itself."""
    section = nested(settings)
    given = {**DEFAULTS, "pretrained_strict": settings["pretrained_strict"], "trunks": (), **dict(trunk.settings)}
    given |= {"type": trunk.family, "variant": trunk.variant, "pretrained": "a source of model.features"}
    for key, value in given.items():
        *parts, last = key.split(".")
        functools.reduce(operator.getitem, parts, section)[last] = value
    return section


def _trunk_alone(file: StateFile) -> StateFile:
    """A file of this program without heads and what metadata enter; other files are known to have none of ours."""
    arrays = {name: array for name, array in file.arrays.items() if not file.facts or not name.startswith(BESIDE)}
    return dataclasses.replace(file, arrays=arrays)


def _merged(model: Joined, parts: Sequence[StateFile], done: Sequence[Import]) -> Import:
    """What was read for the trunks, under the names of the whole model."""
    rows, notes = list[Row](), list[str]()
    arrays, masks = dict[str, np.ndarray](), dict[str, NDArray[np.bool_]]()
    for place, (part, each) in enumerate(zip(parts, done, strict=True)):
        prefix = f"{model.trunk_name(place)}."
        arrays |= {prefix + name: array for name, array in each.arrays.items()}
        masks |= {prefix + name: mask for name, mask in each.rows.items()}
        rows += [row._replace(name=prefix + row.name, group=prefix + row.group) for row in each.coverage.rows]
        notes.append(f"{prefix[:-1]} from {part.path}: {each.coverage.summary()}.")
        notes += [f"{prefix[:-1]}: {note}" for note in each.coverage.notes]
        beside = [name for name in part.arrays if part.facts and name.startswith(BESIDE)]
        reason = "of the classes and metadata of the source"
        rows += [Row(prefix + name, prefix + group_of(name), cov.SKIPPED, reason) for name in beside]
    for name, target in targets_of(model).items():
        if name.startswith(BESIDE):
            rows.append(Row(name, group_of(name), cov.INITIAL, "the sources have none", target.parameters))
    known = [known_as(part.sha256) for part in parts]
    names = [each.name if each else part.path.name for each, part in zip(known, parts, strict=True)]
    licences = dict.fromkeys(each.licence if each else "licence unknown" for each in known)
    return Import(
        tuple(file for each in done for file in each.files),
        Coverage(tuple(rows), tuple(notes)),
        arrays,
        masks,
        "\n".join(filter(None, (each.problems for each in done))),
        tuple(note for each in done for note in each.notes),
        needs=joined_needs(parts),
        name=" + ".join(names),
        licence=" + ".join(licences),
    )
