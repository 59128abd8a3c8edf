"""The user's own modules, which register metrics and subsets when they are imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import cloudpickle
from ml_collections import ConfigDict

from linnaeus_jax.config.errors import ConfigError, text_of
from linnaeus_jax.config.paths import other_than_file


def import_plugins(config: ConfigDict) -> None:
    """Imports every module of `env.plugins`, each once per process, before anything asks what is registered.

    Paths of files become absolute in the config, so that a saved one finds them from any directory.

    Raises:
      ConfigError: a module does not exist or raises while it is imported.
    """
    for name in config.env.plugins:
        if not isinstance(name, str):
            raise ConfigError(f"env.plugins holds {name!r}; each entry is the name of a module or of a .py file")
    names = tuple(str(Path(name).absolute()) if name.endswith(".py") else name for name in config.env.plugins)
    config.env.plugins = names
    import_named(names)


def import_named(names: Iterable[str]) -> None:
    """Imports modules of plugins, each once per process.

    Raises:
      ConfigError: a module does not exist or raises while it is imported.
    """
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except Exception as error:  # the module is the user's: whatever it raises is reported under its name
            kind = type(error).__name__
            raise ConfigError(f"env.plugins: {name!r} cannot be imported: {kind}: {text_of(error)}") from error
        except (SystemExit, GeneratorExit) as error:
            raise ConfigError(f"env.plugins: {name!r} ends the program while it is imported; take that out") from error


def _import_file(path: Path) -> None:
    name = f"linnaeus_jax_plugin:{path.resolve()}"
    if name in sys.modules:
        return
    if other := other_than_file(path):
        raise ImportError(f"this is {other}, not a Python file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    cloudpickle.register_pickle_by_value(module)  # worker processes cannot import it by this name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
