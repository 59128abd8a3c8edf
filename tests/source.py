"""Syntax trees of Python files, each parsed and gone through once for all tests that look at the source."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of the tree of a file."""
    return tuple(ast.walk(tree_of(path)))


def is_named(node: ast.AST, names: set[str]) -> bool:
    """Whether a node is one of some dotted names, as `os.fork`."""
    if not isinstance(node, ast.Attribute) or not any(name.endswith(f".{node.attr}") for name in names):
        return False
    return ast.unparse(node) in names
