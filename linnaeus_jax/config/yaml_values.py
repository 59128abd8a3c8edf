"""YAML: the loader, its bounds against what aliases make of a text, lists of one line, and the way to experiments."""

from __future__ import annotations

import ast
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from ml_collections import ConfigDict

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.registry import CONFIG_FORMATS

#: of a document: values with all that its aliases stand for, and sections within sections
MAX_VALUES, MAX_DEPTH = 20_000, 40
#: lists within lists within a value
MAX_NESTING = 20
#: characters of a number; YAML 1.1 reads 1:30 to the base of 60, in time that grows with the square of the digits
MAX_DIGITS = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class Loader(yaml.SafeLoader):
    """YAML 1.1 plus what people write: 1e-6 is a number and None is null."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
)
Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^None$"), ["N"])


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


def parse_list(text: str) -> list[Any]:
    """Parses `(1, 2)`, `[a, b]`, `1,2`, `a` or nothing into a list; items are numbers, booleans, None, texts or lists.

    Raises:
      ValueError: the text is not a list.
    """
    if max(accumulate((char in "([{") - (char in ")]}") for char in text), default=0) > MAX_NESTING:
        raise ValueError(f"{text[:40]}... is nested more than {MAX_NESTING} times")
    try:
        value = ast.literal_eval(text)
        return list(value) if isinstance(value, list | tuple) else [value]
    except (ValueError, SyntaxError):
        flow = text.strip().replace("(", "[").replace(")", "]")
    loader = Loader(flow if flow.startswith("[") and flow.endswith("]") else f"[{flow}]")
    try:
        node = loader.get_single_node()
        assert node is not None  # it is a list
        check_size(node, "list")
        value = loader.construct_document(node)
    except (yaml.YAMLError, ConfigError) as error:
        raise ValueError(text) from error
    if any(isinstance(item, dict) for item in value):
        raise ValueError(text)
    return value


def load_yaml(path: str | Path, inside: Path | None = None) -> ConfigDict:
    """Loads a YAML experiment over the default tree.

    In a document, a zero beside a set rival (e.g. `STEP_INTERVAL: 100` and `STEP_FRACTION: 0.0`) means "not given".
    Keys without a counterpart are logged once with the reason.

    Args:
      path: file with one or more documents. Files that it names in `BASE` or `MODEL.BASE` are read first; they are
        looked for in its folder, in $CONFIG_DIR and in the folders above its own.
      inside: the folder of a file that is not trusted: it may name no plugins, and no files outside of the folder.

    Returns:
      The locked, completed tree.

    Raises:
      ConfigError: all unknown keys, wrong types, duplicate keys and contradictions at once, with file and line.
    """
    config: ConfigDict = CONFIG_FORMATS["yaml"](path, inside)
    return config
