"""What `--help KEY` prints: default, values and meaning of a key, or of all keys of a section."""

from __future__ import annotations

import textwrap

from linnaeus_jax.config.defaults import declared, get_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.keys import Key
from linnaeus_jax.config.tree import nearest_key

_WIDTH = 100


def key_help(name: str) -> str:
    """The keys that a name stands for: that of a key, of a section, or the last part of one.

    Raises:
      ConfigError: it is none of them.
    """
    asked = name.removeprefix("--").removeprefix("config.").rstrip(".")
    keys = declared()
    found = [path for path in keys if f"{path}.".startswith(f"{asked}.")]
    found = found or [path for path in keys if path.endswith(f".{asked}")]
    if not found:
        near = nearest_key(get_config(), asked.lower())
        raise ConfigError(f"--help {name}: there is no such key" + (f"; did you mean {near}?" if near else ""))
    return "\n".join(_described(path, keys[path]) for path in found)


def _described(path: str, key: Key) -> str:
    rivals = f"; give this or {' or '.join(key.rivals)}" if key.rivals else ""
    counts = f" (counts as {key.counts:g})" if key.counts is not None else ""
    meaning = textwrap.fill(f"{key.meaning}{rivals}", _WIDTH, initial_indent="    ", subsequent_indent="    ")
    values = textwrap.fill(key.values(), _WIDTH, initial_indent="    ", subsequent_indent="      ")
    return f"{path} = {key.default!r}{counts}\n{values}\n{meaning}"
