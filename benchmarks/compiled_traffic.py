"""The instructions of a compiled program, from the text of its HLO, and the bytes that they read and write.

What a fusion computes inside stays in registers; its operands and its result go through memory. The sum is what the
compiled program moves at most: what two instructions share in a cache is counted for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BITS = {"pred": 8, "bf16": 16, "s4": 4, "u4": 4, "token": 0, "opaque": 0}
_FREE = frozenset("parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id".split())
_CONTROL = frozenset("while call conditional async-start async-done".split())
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(([^)]*)\)(.*)$")
_CALLED = re.compile(r"(?:body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ROUNDS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SCOPE = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class Instruction:
    """One instruction that moves data."""

    opcode: str
    scope: str  # of the traced operation that it computes, or the last of those it fuses
    bytes: int  # of operands and result, times the rounds of the loops around it


@dataclass(frozen=True)
class Parsed:
    """One line of the text."""

    opcode: str
    shape: str
    operands: tuple[str, ...]  # names; of a parameter its number
    rest: str  # what stands behind the operands
    root: bool  # whether its result is that of the computation

    @property
    def size(self) -> int:
        """Bytes of the result."""
        return shape_bytes(self.shape)

    @property
    def scope(self) -> str:
        """Scopes and name of the traced operation."""
        found = _SCOPE.search(self.rest)
        return found[1] if found else ""


Computations = dict[str, dict[str, Parsed]]  # computation -> name -> instruction


def instructions(text: str) -> Iterator[Instruction]:
    """What the program that `Compiled.as_text` shows executes; loops of unknown length count as one round."""
    computations, entry = parse(text)
    yield from _executed(computations, entry, 1)


def _executed(computations: Computations, name: str, rounds: int) -> Iterator[Instruction]:
    here = computations.get(name, {})
    for instruction in here.values():
        if instruction.opcode in _FREE:
            continue
        if instruction.opcode in _CONTROL:
            found = _ROUNDS.search(instruction.rest)
            inner = rounds * (int(found[1]) if found and instruction.opcode == "while" else 1)
            names = _CALLED.findall(instruction.rest)
            for branches in _BRANCHES.findall(instruction.rest):
                names += [branch.strip().lstrip("%") for branch in branches.split(",")]
            for called in names:
                yield from _executed(computations, called, inner)
            continue
        size = instruction.size + sum(here[operand].size for operand in instruction.operands if operand in here)
        yield Instruction(instruction.opcode, instruction.scope, size * rounds)


def parse(text: str) -> tuple[Computations, str]:
    """(computation -> name -> instruction, name of the entry)."""
    computations: Computations = {}
    entry, current = "", dict[str, Parsed]()
    for line in map(_without_comments, text.splitlines()):
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif found := _LINE.match(line):
            root, name, shape, opcode, operands, rest = found.groups()
            names = tuple(operand.split()[-1].lstrip("%") for operand in operands.split(",") if operand.strip())
            current[name] = Parsed(opcode, shape, names, rest, bool(root))
    return computations, entry


def _without_comments(line: str) -> str:
    """Without the numbers that stand before every fifth operand."""
    return re.sub(r"/\*.*?\*/", "", line)


def shape_bytes(shape: str) -> int:
    """Bytes of an HLO shape like `f32[8,3]{1,0}`, or of all that a tuple of them has."""
    total = 0
    for kind, dimensions in _SHAPE.findall(shape.partition("{")[0] if not shape.startswith("(") else shape):
        width = _BITS.get(kind) if kind in _BITS else int(re.sub(r"^[a-z]+", "", kind).partition("e")[0] or 0)
        count = 1
        for dimension in filter(None, dimensions.split(",")):
            count *= int(dimension)
        total += count * (width or 0) // 8
    return total
