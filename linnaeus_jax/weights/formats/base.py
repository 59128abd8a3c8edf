"""What a kind of weight files is; each kind is a class in a file of its own, registered with `WEIGHT_FORMATS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from linnaeus_jax.config.keys import value_of
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import CONTAINERS, StateFile
from linnaeus_jax.weights.hub_settings import hub_settings
from linnaeus_jax.weights.targets import Target

#: the kind of everything that no other kind claims: files of this program and of the original
DEFAULT_FORMAT = "linnaeus"
#: architectures that no kind reads -> a name that only their files have
FOREIGN = {
    "Swin Transformer": re.compile(r"layers\.0\.blocks\.0\.attn\.qkv\.weight"),
    "ResNet": re.compile(r"layer1\.0\.conv1\.weight"),
    "a text tower without its picture tower": re.compile(
        r"(?:text\.)?(?:transformer\.resblocks\.0\.attn\.in_proj_weight|token_embedding\.weight)"
        r"|text_model\.embeddings\.token_embedding\.weight"
    ),
}
#: canonical name -> leaf of the model
Targets = dict[str, Target]
#: keys of the `model` section
Given = Mapping[str, Any]


def _never(name: str) -> str:
    return ""


@dataclass
class Mapped:
    """The arrays of one or more files under canonical names.

    Attributes:
      arrays: canonical name -> array in PyTorch's layout.
      origin: canonical name -> name in the file, where it is another.
      skipped: name in the file -> why it is not used, of arrays that the kind of file is known to have.
      stays: canonical name -> why it may stay at its initial value; "" where it must be in the file.
      needed: canonical names that the rest is of no use without, whatever `model.pretrained_strict` says.
      notes: remarks for people about the weights, whatever model they go into.
      remarks: others, about these weights in this model.
      original: whether they were trained by the original, not by this program.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stays: Callable[[str], str] = _never
    needed: re.Pattern[str] | None = None
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    original: bool = False

    def put(self, name: str, array: np.ndarray, origin: str) -> None:
        """One array under its canonical name."""
        self.arrays[name] = array
        if origin != name:
            self.origin[name] = origin

    def drop(self, name: str, reason: str) -> None:
        """Takes back an array that this model has no place for."""
        del self.arrays[name]
        self.skipped[self.origin.pop(name, name)] = reason


class Known(NamedTuple):
    """Weights of a kind that can be had.

    Attributes:
      name: what they are called; with `package`, `model.pretrained=package:<name>` takes them.
      source: who trained them, on what.
      megabytes: size of the file.
      licence: of the weights, an SPDX identifier.
      preprocessing: of the pictures that they were trained on.
      get: how they are had: a command, or the address of a file.
      package: the Python distribution that ships them, if one does.
      sha256: of the file, in hexadecimal.
      type, variant: of the model that they are of, as `model.type` and `model.variant` call it.
      purpose: what they are good for, a few words.
    """

    name: str
    source: str
    megabytes: float
    licence: str
    preprocessing: Preprocessing
    get: str
    package: str = ""
    sha256: str = ""
    type: str = ""
    variant: str = ""
    purpose: str = ""


class WeightFormat:
    """Base of the kinds of weight files, each registered with `@WEIGHT_FORMATS.register("name")`.

    A kind recognises files by their names, maps these to canonical ones, and says what a model needs to use them.

    Attributes:
      files: key of the `model` section that names a file -> keys under which its arrays may lie, see `read_state`.
      signs: architecture, as `model.type` calls it where it is one -> a name that only its files have.
      family: the only `model.type` that these weights fit; empty: any.
      by_name: whether `model.pretrained_source` must name it; else its files are recognised by `signs`.
      mark, title: of a kind that must be named: a name that its files have beside those of `family`, and what it is.
      hint: what to do with a file of one of `signs` that was given for another model.
      described: whether the arrays do not say how pictures were prepared, but descriptions beside the file do, see
        `hub_settings`; without them it is asked for.
      heads: whether it takes heads, whose classes `model.pretrained_classes` can name.
      known: weights of this kind that can be had.
    """

    files: ClassVar[Mapping[str, Sequence[str]]] = {"pretrained": CONTAINERS}
    signs: ClassVar[Mapping[str, re.Pattern[str]]] = {}
    family: ClassVar[str] = ""
    by_name: ClassVar[bool] = False
    mark: ClassVar[re.Pattern[str] | None] = None
    title: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    described: ClassVar[bool] = False
    heads: ClassVar[bool] = False
    known: ClassVar[tuple[Known, ...]] = ()

    def setting_errors(self, given: Mapping[str, Any], family: str) -> list[str]:
        """What in the keys `pretrained*` does not suit this kind, one line each."""
        if given["pretrained_attn_scale"] == "squared":
            return [
                "model.pretrained_attn_scale = 'squared' is for checkpoints of the original's mFormerV1 alone; use "
                "'standard'"
            ]
        return []

    def settings(self, file: StateFile) -> dict[str, Any]:
        """Key within the `model` section -> the value that this file needs; keys that may have any are left out."""
        return {}

    def problems(self, file: StateFile, settings: Mapping[str, Any]) -> list[str]:
        """What in a `model` section does not suit this file, one line each with key, value and fix."""
        needed = {key: (value_of(settings, key), value) for key, value in self.settings(file).items()}
        return [
            f"model.{key} = {mine!r} does not fit {file.path}: set model.{key} = {value!r}"
            for key, (mine, value) in needed.items()
            if mine != value
        ]

    def preprocessing(self, file: StateFile) -> Preprocessing | None:
        """How pictures were prepared for these weights; None: unknown."""
        return hub_settings(file.path).pictures if self.described else None

    def classifier(self, file: StateFile) -> tuple[np.ndarray, np.ndarray] | None:
        """Weights [C, D] and biases [C] of the classifier that the source was trained with; None: it has none."""
        return None

    def names(self, file: StateFile) -> dict[str, str]:
        """Name in the file -> canonical name of the trunk's arrays; others may be left out."""
        return {name: name for name in file.arrays}

    def restored(self, file: StateFile, model: ModelFamily, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of a model under the names and in the shapes that a file of this kind has them.

        Args:
          file: whose names are taken; what it has beside the model's arrays is left out.
          arrays: canonical name -> array in PyTorch's layout.
        """
        found = {}
        for name, ours in self.names(file).items():
            if ours in arrays:
                like, array = file.arrays[name], arrays[ours]
                found[name] = array.reshape(like.shape) if array.size == like.size else array
        return found

    def map(self, files: Sequence[StateFile], model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """The arrays of the files, one for each key of `files`, under canonical names.

        Args:
          targets: the leaves of the model.
          given: the keys `pretrained*` of the `model` section.

        Raises:
          UserError: a file is not what it should be.
        """
        (file,) = files
        return self.map_file(file, model, targets, given)

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """As `map`, of a kind whose weights are one file."""
        raise NotImplementedError


def format_named(name: str) -> WeightFormat:
    """The kind of that name; the default one for ""."""
    found: WeightFormat = WEIGHT_FORMATS[name or DEFAULT_FORMAT]()
    return found


def format_of(file: StateFile, source: str = "") -> WeightFormat:
    """The kind of a file: what `source`, the key model.pretrained_source, names, else what its names are like."""
    if not source and not file.facts:
        name, _ = _signed(file.arrays)
        if name and not WEIGHT_FORMATS[name].by_name:
            return format_named(name)
    return format_named(source)


def architecture_of(names: Iterable[str]) -> str:
    """What the names of a file look like, "" for nothing that is known; the first sign that fits counts."""
    return _signed(names)[1]


def _signed(names: Iterable[str]) -> tuple[str, str]:
    """(kind, architecture) of the first sign that fits; "" where there is none."""
    tables = [*((name, kind.signs) for name, kind in WEIGHT_FORMATS.entries.items()), ("", FOREIGN)]
    for kind, signs in tables:
        for architecture, pattern in signs.items():
            if any(map(pattern.fullmatch, names)):
                return kind, architecture
    return "", ""


def known_weights() -> tuple[Known, ...]:
    """Weights of every kind that can be had."""
    return tuple(known for kind in WEIGHT_FORMATS.entries.values() for known in kind.known)
