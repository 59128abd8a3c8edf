"""What a run chooses by name, and where a user's own module adds to it.

A registry decorates a function or a class:

    from linnaeus_jax.registry import LOSSES

    @LOSSES.register("FocalLoss")
    def focal_loss(logits, label, *, gamma: float = 2.0): ...

Keyword-only arguments with a default value (of a Flax module or dataclass: fields with one) are its options. They stand
in the configuration as `<section>.<name>.<option>`, here `loss.FocalLoss.gamma`, with the default's type, and are
saved, compared and reported like every other key. `env.plugins = ("my_package.losses",)` imports the module before the
configuration is completed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from linnaeus_jax.mistakes import InputError

T = TypeVar("T")
Item = TypeVar("Item", bound=Callable[..., Any])


class RegistrationError(InputError):
    """A name is registered twice; a plugin may have taken that of a built-in thing."""


class Registry(Generic[T]):
    """Things of one kind by name.

    Args:
      kind: what they are, for messages.
      key: the config key that names one.
      section: the config section that holds `<name>.<option>`; empty: options stand beside `key`.
    """

    def __init__(self, kind: str, key: str, section: str = "") -> None:
        self.kind, self.key, self.section = kind, key, section
        self.entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Item], Item]:
        """Decorator: makes a thing available as `name`.

        Raises:
          ValueError: the name is taken. A module that is imported again may register the same thing anew.
        """

        def add(item: Item) -> Item:
            if name in self.entries and _origin(self.entries[name]) != _origin(item):
                raise RegistrationError(f"{self.kind} {name!r} is registered twice; choose another name")
            self.entries[name] = item  # type: ignore[assignment]
            return item

        return add

    def __getitem__(self, name: str) -> T:
        """The thing of that name.

        Raises:
          InputError: there is none; the message names the key and what there is.
        """
        if name not in self.entries:
            raise InputError(f"{self.key} = {name!r} is unknown; choose one of {', '.join(self)}")
        return self.entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def options(self, name: str) -> dict[str, Any]:
        """Default of every option of an entry; empty for an unknown name."""
        return options_of(self.entries[name]) if name in self.entries else {}

    def bind(self, name: str, options: Mapping[str, Any], given: Mapping[str, Any]) -> functools.partial[Any]:
        """The entry with its options filled in, and with what it asks for of `given`, see `required_kwargs`."""
        item: Any = self[name]
        return functools.partial(
            item, **{key: given[key] for key in required_kwargs(item) if key in given} | dict(options)
        )

    @contextlib.contextmanager
    def wrap_errors(self, name: str) -> Iterator[None]:
        """Within it, every exception of a plugin's entry, and every ValueError of a built-in one, is raised as an
        InputError that begins with the entry's config section."""
        try:
            yield
        except Exception as error:
            if not self.from_plugin(name) and not isinstance(error, ValueError):
                raise
            raise InputError(f"{self.section}.{name}: {' '.join(str(error).split())}") from error

    @contextlib.contextmanager
    def plugin_errors(self, name: str) -> Iterator[None]:
        """Within it, every exception of a plugin's entry but OSError is raised as an InputError; the text of a
        ValueError stands alone. What built-in entries raise passes."""
        try:
            yield
        except Exception as error:
            if isinstance(error, OSError | InputError) or not self.from_plugin(name):
                raise
            text = " ".join(str(error).split())
            raise InputError(text if isinstance(error, ValueError) else f"{self.section}.{name}: {text}") from error

    def from_plugin(self, name: str) -> bool:
        """Whether code of a user registered this entry."""
        return not self.entries[name].__module__.startswith(f"{__package__}.")  # type: ignore[attr-defined]


def options_of(item: Any) -> dict[str, Any]:
    """Keyword-only arguments of a function, or fields of a dataclass, that have a default value; but for fields whose
    metadata say that they are `given`, which other keys of the configuration decide."""
    if dataclasses.is_dataclass(item):
        fields = [field for field in dataclasses.fields(item) if field.init and field.name not in ("parent", "name")]
        fields = [field for field in fields if not field.metadata.get("given")]
        return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    parameters = inspect.signature(item).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def required_kwargs(item: Any) -> frozenset[str]:
    """Keyword-only arguments of a function without a default value: what the program gives it by name."""
    parameters = inspect.signature(item).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)


def _origin(item: Any) -> tuple[str, str]:
    return inspect.getfile(item), item.__qualname__


HEADS: Registry[Any] = Registry("head", "model.classification.heads.*.type")
MODELS: Registry[Any] = Registry("model family", "model.type", "model")
LOSSES: Registry[Any] = Registry("loss", "loss.task_specific.*.funcs", "loss")
OPTIMIZERS: Registry[Any] = Registry("optimizer", "optimizer.name", "optimizer")
SCHEDULES: Registry[Any] = Registry("learning-rate schedule", "lr_scheduler.name", "lr_scheduler")
SAMPLERS: Registry[Any] = Registry("sampler", "data.sampler.type", "data.sampler")
IMAGE_SOURCES: Registry[Any] = Registry("image source", "data.h5.images_path", "data.image_sources")
PROBES: Registry[Any] = Registry("probe", "debug.probes", "debug.probes")
METRICS: Registry[Any] = Registry("metric", "env.plugins", "metrics")
WEIGHT_FORMATS: Registry[Any] = Registry("kind of weight files", "model.pretrained_source")
#: what other programs wrote, and who reads it; filled by `linnaeus_jax.migration`, chosen by no key
CONFIG_FORMATS: Registry[Any] = Registry("format of configuration files", "--config")  # (path, inside) -> ConfigDict
COMMAND_OPTIONS: Registry[Any] = Registry("option of another program", "--")  # (argv) -> this program's command
BUNDLE_LAYOUTS: Registry[Any] = Registry("file of another program's bundles", "")  # (directory) -> Bundle
#: all that a run chooses from, in the order of the way of the data
ALL = (IMAGE_SOURCES, SAMPLERS, MODELS, WEIGHT_FORMATS, HEADS, LOSSES, OPTIMIZERS, SCHEDULES, PROBES, METRICS)
