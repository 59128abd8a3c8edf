"""Arrays that functions of the package are given and return have the type that their annotations promise.

mypy believes `NDArray[np.int64]`, whatever is returned, and a narrower type does as well until there are many rows or
large ids. `install` lets beartype look at the arrays that tests hand on: at arguments, results and fields of
dataclasses. What else annotations say is left to mypy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from beartype import beartype
from beartype.roar import BeartypeException
from numpy.typing import NDArray

PACKAGE = "linnaeus_jax."


class _Meaning(dict[str, Any]):
    """What names in annotations stand for; anything where they are of no array."""

    def __missing__(self, name: str) -> Any:
        return Any


_NAMES = _Meaning(
    {of.__name__: of for of in (dict, tuple, list, Mapping, Sequence)} | {"None": None, "np": np, "NDArray": NDArray}
)


def _of_arrays(annotation: object) -> Any:
    """What an annotation says about arrays; Any where it says nothing."""
    text = str(annotation).replace("np.void", "Any")  # records, each of columns of its own
    try:
        return eval(text, {"__builtins__": {}}, _NAMES) if "NDArray[" in text else Any
    except (AttributeError, TypeError):  # with something else, such as a frame or a callable
        return Any


def _checked(function: FunctionType) -> FunctionType:
    given = function.__annotations__
    function.__annotations__ = {name: _of_arrays(annotation) for name, annotation in given.items()}
    try:
        if hasattr(function, "__wrapped__") or all(found is Any for found in function.__annotations__.values()):
            return function  # the annotations of a context manager are those of its generator
        return beartype(function)
    except BeartypeException:  # a generator, whose result is none of arrays
        return function
    finally:
        function.__annotations__ = given


def _check(module: ModuleType) -> None:
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    for owner in (module, *(value for value in own if isinstance(value, type) and not issubclass(value, tuple))):
        for name, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                setattr(owner, name, _checked(value))
            elif isinstance(value, classmethod | staticmethod) and isinstance(value.__func__, FunctionType):
                setattr(owner, name, type(value)(_checked(value.__func__)))
            elif isinstance(value, property) and isinstance(value.fget, FunctionType):
                setattr(owner, name, value.getter(_checked(value.fget)))


class _Checking(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _check(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith(PACKAGE) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Checking(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Modules of the package that are imported from now on are checked."""
    sys.meta_path.insert(0, _Finder())
