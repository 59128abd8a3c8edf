"""Several trunks beside each other: each sees the same picture, and what they make of it is concatenated.

What one trunk has learned the other may lack, so that heads on both are often better than on the better one. Pictures
come as values from 0 to 1, and every trunk gets them with its own mean and deviation. Metadata join late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.layers import Dropout
from linnaeus_jax.registry import MODELS

FAMILY = "Joined"
#: most trunks of a model
MOST = 8
#: settings that all trunks share where their families have them
SHARED = ("drop_path_rate", "depthwise_impl")


class Trunk(NamedTuple):
    """One trunk, as an item of `model.trunks`.

    Attributes:
      family, variant: its `model.type` and `model.variant`.
      settings: (key within the `model` section, value) of what differs from the variant: numbers, texts, truth values,
        and tuples of numbers.
      mean, std: per channel, of values in [0, 1], that its pictures are normalised with.
    """

    family: str
    variant: str
    settings: tuple[tuple[str, Any], ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _of(family: str, variant: str) -> Trunk:
    return Trunk(family, variant, (), (127 / 255,) * 3, (128 / 255,) * 3)


def can_be_joined(family: Any) -> bool:
    """Whether the trunk of a family gives features [B, D] that no metadata have entered, and can be cut off."""
    late = family.encode_tokens is ModelFamily.encode_tokens
    return late and family.forward_prefix is not ModelFamily.forward_prefix and not issubclass(family, Joined)


def joinable() -> str:
    """The families whose trunks can be joined, for messages."""
    return ", ".join(name for name, family in MODELS.entries.items() if can_be_joined(family))


def trunk_errors(trunks: Any) -> Iterator[str]:
    """What is wrong with the form of `model.trunks`, one line each."""
    if not 2 <= len(trunks) <= MOST:
        yield f"model.trunks has {len(trunks)} items; 2 to {MOST} are needed"
        return
    for place, trunk in enumerate(trunks):
        if reason := trunk_reason(trunk):
            yield f"model.trunks[{place}] = {trunk!r:.200}: {reason}"


#: what a setting must be, by the type of its usual value
_KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("True or False", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    tuple: ("a tuple of numbers", (tuple,)),
}


def _setting_reason(key: str, value: Any, usual: Any) -> str:
    """Why a setting has not the type of its usual value, None standing for a number; "" where it has."""
    words, types = _KINDS[float if usual is None else type(usual)]
    fits = isinstance(value, types) and isinstance(value, bool) == isinstance(usual, bool)
    if fits and (not isinstance(value, tuple) or all(isinstance(each, int | float) for each in value)):
        return ""
    return f"{key} = {value!r} must be {words}"


def trunk_reason(trunk: Any) -> str:
    """Why this is no `Trunk`; "" for one."""
    if not isinstance(trunk, tuple) or len(trunk) != len(Trunk._fields):
        return f"({', '.join(Trunk._fields)}) is needed"
    family, variant, settings, *moments = trunk
    known = MODELS.entries.get(family) if isinstance(family, str) else None
    if known is None or not can_be_joined(known):
        return f"{family!r} is no family whose trunk can be joined; choose one of {joinable()}"
    if known.variants and variant not in known.variants:
        return f"{variant!r} is no variant of {family}; choose one of {', '.join(known.variants)}"
    if not isinstance(settings, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and pair[0] in known.keys.values() for pair in settings
    ):
        return f"its settings must be pairs of a key and its value, of the keys {', '.join(known.keys.values())}"
    usual = {**known.defaults, **known.variants.get(variant, {})}
    usual = {known.keys[field]: value for field, value in usual.items() if field in known.keys}
    for key, value in settings:
        if key in usual and (reason := _setting_reason(key, value, usual[key])):
            return reason
    for name, values in zip(("mean", "std"), moments, strict=True):
        numbers = isinstance(values, tuple) and len(values) == 3
        numbers = numbers and all(isinstance(value, int | float) and abs(value) < 1e3 for value in values)
        if not numbers or (name == "std" and min(values) <= 0):
            return f"its {name} must be three numbers{' above 0' if name == 'std' else ''}"
    return ""


def build_trunk(trunk: Trunk, **given: Any) -> ModelFamily:
    """The model of one trunk, without heads and metadata; `given`: further fields of it."""
    family = MODELS[trunk.family]
    section: dict[str, Any] = {"type": trunk.family, "variant": trunk.variant}
    own = dict.fromkeys(family.keys.values()) | {"depthwise_impl": "auto"}
    own |= {"drop_rate": 0.0, **dict(trunk.settings)}  # features are dropped when they are joined
    for key in family.keys.values():
        *parts, last = key.split(".")
        node = section
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = own[key]
    made: ModelFamily = family.build(section, components=(), head_specs=(), **given)
    return made


@MODELS.register(FAMILY)
class Joined(ModelFamily):
    """Trunks, and the concatenation of their features. It is cut before or behind all of them.

    `drop_rate` is that of the features before the heads; `drop_path_rate` of None is each trunk's own.
    """

    trunks: tuple[Trunk, ...]
    drop_rate: float
    drop_path_rate: float | None
    depthwise_impl: str

    variants: ClassVar = {
        "tiny": {"trunks": (_of("EfficientNet", "tiny"),) * 2, "drop_rate": 0.1, "drop_path_rate": None},
        "sources": {
            "trunks": (_of("EfficientNet", "lite0"), _of("EfficientNet", "lite2")),
            "drop_rate": 0.2,
            "drop_path_rate": None,
        },
    }
    keys: ClassVar = {field: field for field in ("trunks", "drop_rate", *SHARED)}

    choices: ClassVar = {"depthwise_impl": DEPTHWISE_IMPLS}

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """See `ModelFamily.completed`."""
        if errors := list(trunk_errors(fields["trunks"])):
            raise InputError("\n".join(errors))
        rate = fields["drop_rate"]
        rate = rate[0] if isinstance(rate, tuple | list) else rate
        return {**fields, "trunks": tuple(Trunk(*trunk) for trunk in fields["trunks"]), "drop_rate": rate}

    @nn.nowrap
    def errors(self) -> Iterator[str]:
        """See `ModelFamily.errors`."""
        if own := list(super().errors()):  # which the trunks share
            yield from own
            return
        for place, trunk in enumerate(self.trunks):
            try:
                self.trunk(place)
            except InputError as error:
                yield f"model.trunks[{place}] = {tuple(trunk)!r:.200}: {error}"

    @nn.nowrap
    def trunk(self, place: int) -> ModelFamily:
        """The model of one trunk by itself."""
        fields = ("img_size", "dtype", "remat", "missing_metadata")
        made = build_trunk(self.trunks[place], parent=None, **{name: getattr(self, name) for name in fields})
        shared = {name: getattr(self, name) for name in SHARED if hasattr(made, name)}
        return made.clone(**{name: value for name, value in shared.items() if value is not None})

    def setup(self) -> None:
        members = enumerate(map(self.trunk, range(len(self.trunks))))
        self.members = [trunk.clone(parent=self, name=self.trunk_name(place)) for place, trunk in members]
        self.drop = Dropout(self.drop_rate, name="drop")
        self.setup_classifier()

    @staticmethod
    def trunk_name(place: int) -> str:
        """Module of a trunk: the first part of the canonical names of its parameters."""
        return f"trunks_{place}"

    @property
    def trunk_blocks(self) -> int:
        """See `ModelFamily.trunk_blocks`: all trunks are one block."""
        return 1

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """Features [B, D] of all trunks, of the compute dtype."""
        features = [
            trunk.encode_image(self._seen_by(place, image_BHWC), row_weight_B=row_weight_B, train=train)
            for place, trunk in enumerate(self.members)
        ]
        return self._dropped(jnp.concatenate(features, axis=1), train)

    def forward_prefix(self, image_BHWC: jax.Array, block: int) -> jax.Array:
        """See `ModelFamily.forward_prefix`."""
        return image_BHWC if block < self.trunk_blocks else self.encode_image(image_BHWC)

    def forward_suffix(
        self, x: jax.Array, block: int, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """See `ModelFamily.forward_suffix`."""
        if block < self.trunk_blocks:
            return self.encode_image(x.astype(jnp.float32), row_weight_B=row_weight_B, train=train)
        return self._dropped(x.astype(self.dtype), train)

    def _seen_by(self, place: int, image_BHWC: jax.Array) -> jax.Array:
        """The picture as a trunk wants it, float32."""
        mean, std = (jnp.asarray(moment, jnp.float32)[None, None, None] for moment in self.trunks[place][-2:])
        return (image_BHWC.astype(jnp.float32) - mean) / std

    def _dropped(self, features_BD: jax.Array, train: bool) -> jax.Array:
        key = self.make_rng("dropout") if train and self.drop_rate > 0 else None
        dropped: jax.Array = self.drop(features_BD, key)
        return dropped

    @staticmethod
    def stage_of(name: str) -> str:
        """Group of a parameter: `trunks_0`, `trunks_1`, ..., `metadata` or `heads`."""
        first = name.partition(".")[0]
        return {"fusion": "metadata", "head": "heads"}.get(first, first)

    def layer_index(self, name: str) -> int:
        """0 the trunks, 1 what follows them: trunks of unlike depths have no common numbers."""
        return 0 if name.startswith("trunks_") else 1
