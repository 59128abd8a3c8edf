"""The settings of a model family: where they stand in the `model` section, and what they may be."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Self

from linnaeus_jax.mistakes import InputError

MISSING_METADATA = ("zero", "mask")


class Settings:
    """Base of `models.family.ModelFamily`.

    Attributes:
      img_size: height and width of a picture in pixels.
      variants: `model.variant` -> values of fields; empty: the family has no variants and ignores the key. One that
        suits tests on a CPU is called `test` or `tiny`, or comes first.
      keys: field -> its key in the `model` section, of a family whose settings stand there; a setting of one such
        family that is given for another is an error.
      defaults: values of fields for which neither the section nor the variant has one.
      choices: words that a field may have.
      smallest: side of the smallest picture in pixels.
    """

    img_size: tuple[int, int]

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    keys: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    choices: ClassVar[Mapping[str, Collection[str]]] = {}
    smallest: ClassVar[int] = 1

    @classmethod
    def build(cls, model: Mapping[str, Any], **given: Any) -> Self:
        """The model that a `model` section describes; a setting that is None or empty takes the variant's value.

        Args:
          model: the `model` section.
          given: `components`, `head_specs`, `img_size`, `dtype`, `remat`, `missing_metadata`, `metadata_fusion` and
            `weight_init`.

        Raises:
          ValueError: settings that do not fit, one line each with key, value and fix.
        """
        built = cls(**cls.completed(cls.settings(model)), **given)
        if errors := list(built.errors()):
            raise InputError("\n".join(errors))
        return built

    @classmethod
    def settings(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        """Field -> value: `defaults`, over them those of the variant, and over these those of the section, under `keys`
        and `model.<Name>`."""
        found = {field: functools.reduce(operator.getitem, key.split("."), model) for field, key in cls.keys.items()}
        found |= model.get(model["type"], {})
        given = {field: value for field, value in found.items() if value is not None and value != ()}
        return {**cls.defaults, **cls.variants.get(model["variant"], {}), **given}

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields as the model has them, of those of `settings`: with others that follow from these."""
        return fields

    def errors(self) -> Iterator[str]:
        """What cannot work, one line each with key, value and fix."""
        for field, text in self.wrong_settings().items():
            yield f"model.{self.keys.get(field, field)} = {getattr(self, field)!r} {text}"
        if min(self.img_size) < self.smallest:
            yield f"data.img_size = {self.img_size[0]} is out of range; it must be {self.smallest} or more"

    def wrong_settings(self) -> dict[str, str]:
        """Field -> what must be otherwise."""
        wrong = {
            field: f"is unknown; choose one of {', '.join(word or repr(word) for word in words)}"
            for field, words in {**self.choices, "missing_metadata": MISSING_METADATA}.items()
            if getattr(self, field) not in words
        }
        for field in ("drop_rate", "attn_drop_rate", "drop_path_rate"):
            rate = getattr(self, field, None)
            if isinstance(rate, int | float) and not 0.0 <= rate < 1.0:
                wrong[field] = "is out of range; it must be within [0, 1)"
        return wrong
