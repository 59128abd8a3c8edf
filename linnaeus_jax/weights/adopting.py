"""Settings that pretrained weights need, taken over where the user has not set them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.config.tree import frozen
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Known, format_of, known_weights
from linnaeus_jax.weights.hub_settings import ASKED, asked, hub_settings

#: key of the configuration -> its value of a preprocessing
PICTURE_KEYS: dict[str, Callable[[Preprocessing], Any]] = {
    "data.img_size": lambda pictures: pictures.size[0],
    "data.resize_mode": lambda pictures: pictures.resize_mode,
    "data.interpolation": lambda pictures: pictures.interpolation,
    "data.crop_fraction": lambda pictures: pictures.crop_fraction,
    "aug.mean": lambda pictures: tuple(pictures.mean),
    "aug.std": lambda pictures: tuple(pictures.std),
}


class Adopted(NamedTuple):
    """What became of the settings that weights need: config key -> value.

    Attributes:
      taken: the value that the weights need, where the configuration has its default.
      kept: as the user set them, though the weights need another value: (the user's, the weights').
      replaced: the value that the weights need, though a configuration file has another.
    """

    taken: dict[str, Any]
    kept: dict[str, tuple[Any, Any]]
    replaced: dict[str, Any]

    def lines(self) -> list[str]:
        """One line for people about each of the two, where there is anything to say."""
        lines = []
        for values, why in (
            (self.taken, "because the configuration leaves them at their defaults"),
            (self.replaced, "whatever the configuration file says"),
        ):
            if values:
                shown = ", ".join(f"{key} = {_shown(value)}" for key, value in values.items())
                lines.append(f"of the weights, {why}: {shown}")
        if self.kept:
            shown = ", ".join(f"{key} = {_shown(mine)}" for key, (mine, _) in self.kept.items())
            flags = " ".join(f"--config.{key}={_flag(theirs)}" for key, (_, theirs) in self.kept.items())
            lines.append(f"as configured, though the weights were made with other values: {shown}; theirs: {flags}")
        return lines


def needs_of(file: StateFile, source: str = "") -> dict[str, Any]:
    """Config key -> the value that a file of weights was made with; keys about which nothing is known are left out."""
    kind = format_of(file, source)
    needs = {f"model.{key}": value for key, value in kind.settings(file).items()}
    pictures = kind.preprocessing(file)
    return needs | ({} if pictures is None else {key: of(pictures) for key, of in PICTURE_KEYS.items()})


def check_pictures(file: StateFile, source: str, config: Config, given: Collection[str]) -> None:
    """Raises UserError where neither the weights nor the configuration say how pictures were prepared."""
    kind = format_of(file, source)
    if not kind.described or kind.preprocessing(file) is not None:
        return
    default = typed(get_config())
    missing = [key for key in ASKED if key not in given and value_of(config, key) == value_of(default, key)]
    if missing:
        raise UserError(asked(hub_settings(file.path), file.path, missing))


def adopt(config: Config, given: Collection[str], needs: Mapping[str, Any], forced: Collection[str] = ()) -> Adopted:
    """What weights need where the configuration has its defaults and nobody gave the key.

    A variant that a configuration sets is one of its family, so it goes with the family. Of weights of another family
    than the user set, none of the family's keys is taken; `read_pretrained` then says what to do.

    Args:
      given: keys that the user gave on the command line.
      forced: keys that take the weights' value even where a configuration file has another.
    """
    default = typed(get_config())
    adopted = Adopted({}, {}, {})
    for key, value in needs.items():
        value = frozen(value)
        mine = value_of(config, key)
        if mine == value or (key.startswith("model.") and "model.type" in adopted.kept):
            continue  # the keys of a family say nothing of another
        of_family = key == "model.variant" and "model.type" in adopted.taken
        own = mine != value_of(default, key) and not of_family
        if key in given or (own and key not in forced):
            adopted.kept[key] = mine, value
            continue
        (adopted.replaced if own else adopted.taken)[key] = value
    return adopted


def name_and_licence(file: StateFile, source: str = "") -> tuple[str, str]:
    """Those of published weights, by their digest or what lies beside them; "" where they are unknown."""
    if known := known_as(file.sha256):
        return known.name, known.licence
    if not format_of(file, source).described:
        return "", ""
    settings = hub_settings(file.path)
    return settings.architecture, settings.licence


def known_as(sha256: str) -> Known | None:
    """The published weights that a file is."""
    return next((known for known in known_weights() if known.sha256 and known.sha256 == sha256), None)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _flag(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
