"""Bounds of YAML: of its text, and of what its aliases make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.paths import other_than_file

#: of a file; an experiment has some thousand
MAX_BYTES = 1 << 18
#: of a document: values with all that its aliases stand for, and sections within sections
MAX_VALUES, MAX_DEPTH = 20_000, 40
#: characters of a number; YAML 1.1 reads 1:30 to the base of 60, in time that grows with the square of the digits
MAX_DIGITS = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


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


def check_size(document: yaml.Node, file: str) -> None:
    """Refuses a document that its aliases make endless or much larger than its text, that is nested too deeply, or that
    holds a number without end.

    Args:
      document: the composed node; nothing of it is expanded yet.
      file: its name, for messages.

    Raises:
      ConfigError: with file and line.
    """
    measured: dict[int, tuple[int, int]] = {}  # node -> values, depth
    entered: set[int] = set()

    def measure(node: yaml.Node) -> tuple[int, int]:
        if id(node) in measured:
            return measured[id(node)]
        where = f"{file}:{node.start_mark.line + 1}"
        if id(node) in entered:
            raise ConfigError(f"{where}: an alias stands for something that holds the alias itself")
        entered.add(id(node))
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise ConfigError(f"{where}: a number of {len(node.value)} characters; numbers have at most {MAX_DIGITS}")
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        if len(entered) - len(measured) > MAX_DEPTH:
            raise ConfigError(f"{where}: nested more than {MAX_DEPTH} times")
        below = [measure(child) for child in children]
        values, depth = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
        if values > MAX_VALUES or depth > MAX_DEPTH:
            raise ConfigError(f"{where}: more than {MAX_VALUES} values, counting what aliases stand for, or too deep")
        measured[id(node)] = values, depth
        return values, depth

    measure(document)
