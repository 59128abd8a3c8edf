"""YAML files that may come from anywhere, within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.paths import other_than_file
from linnaeus_jax.config.yaml_values import MAX_DEPTH, check_size

#: of a file; an experiment has some thousand
MAX_BYTES = 1 << 18


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
      ConfigError: it is no file, too long to be an experiment, or no text.
      OSError: it cannot be read.
    """
    if other := other_than_file(path):
        raise ConfigError(f"{path}: this is {other}; give a file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES} bytes are no experiment; is this the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error}") from None


def read_documents(path: Path) -> list[Any]:
    """The documents of a file that may come from anywhere, as plain values.

    Raises:
      ConfigError: it is too large or too deep.
      OSError: it cannot be read.
      ValueError, yaml.YAMLError: it is no YAML of plain values.
    """
    loader, documents = yaml.SafeLoader(read_text(path)), []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # there is one, says check_node
            check_size(node, path.name)
            documents.append(loader.construct_document(node))
    except RecursionError:
        raise ConfigError(f"{path.name}: nested more than {MAX_DEPTH} times") from None
    finally:
        loader.dispose()
    return documents
