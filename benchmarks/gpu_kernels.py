"""What a program that XLA compiled for a GPU consists of: its kernels with their bytes and operations, from its text.

A kernel reads each of its operands once, of an operand that it only slices or gathers from the parts, and writes its
results; what is computed inside of a fusion stays in registers. Scratch memory of libraries does not count. The body of
a loop counts once for each round, or once where the number of rounds is unknown; of a conditional the branch that moves
most counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.compiled_traffic import Computations, Parsed, parse, shape_bytes

SMALL = 1e6  # bytes below which a kernel takes hardly longer than its start
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier".split()
)
_SLICES = frozenset("slice dynamic-slice gather".split())
_COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?$")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
#: what a fusion is called: the first of these operations that it holds
_HEROES = ("scatter", "sort", "reduce-window", "reduce", "gather", "dynamic-update-slice", "concatenate", "pad")


@dataclass(frozen=True)
class Kernel:
    """One start of a program on the device, or a copy, or a call of a library."""

    kind: str  # product, convolution, attention forward, attention backward, copy, a collective, or of `_HEROES`
    scope: str  # of the traced operation
    bytes: int  # read and written, once
    flops: int  # of products, convolutions and attention
    dtypes: tuple[str, ...]  # of both operands and the result of a product or convolution, else ()
    rounds: int = 1  # how often it is started
    shape: str = ""  # of its result
    beside: int = 0  # kernels that follow in the listing before a collective must have ended

    def seconds(self, bandwidth: float, peaks: dict[str, float]) -> float:
        """At least that long takes one start: bytes / s, and FLOPs / s by dtype of the operands."""
        peak = peaks["bf16" if set(self.dtypes[:2]) == {"bf16"} else "f32"]
        return max(self.bytes / bandwidth, self.flops / peak)


@dataclass(frozen=True)
class Listing:
    """Everything that a program does."""

    kernels: list[Kernel]
    loops: list[tuple[str, int | None]]  # (scope, rounds; None: unknown)
    conditionals: list[str]  # scopes


def listing(text: str) -> Listing:
    """What the program does whose `Compiled.as_text()` is given."""
    computations, entry = parse(text)
    found = Listing([], [], [])
    found.kernels.extend(_walk(computations, entry, 1, found))
    return found


def _walk(computations: Computations, name: str, rounds: int, found: Listing) -> list[Kernel]:
    here, kernels, started = computations[name], list[Kernel](), dict[str, int]()
    for key, instruction in here.items():
        opcode, rest = instruction.opcode, instruction.rest
        if opcode.endswith("-done") and (start := started.get(instruction.operands[0])) is not None:
            kernels[start] = replace(kernels[start], beside=len(kernels) - start - 1)
        if opcode in _FREE or opcode.endswith("-done"):
            continue
        if opcode.endswith("-start"):
            started[key] = len(kernels)
        if opcode == "while":
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', rest)
            found.loops.append((instruction.scope, int(known[1]) if known else None))
            body = re.search(r"body=%?([\w.\-]+)", rest)
            assert body is not None
            kernels += _walk(computations, body[1], rounds * (int(known[1]) if known else 1), found)
        elif opcode == "conditional":
            found.conditionals.append(instruction.scope)
            names = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", rest)
            for branches in re.findall(r"branch_computations=\{([^}]*)\}", rest):
                names += [branch.strip().lstrip("%") for branch in branches.split(",")]
            kernels += max((_walk(computations, branch, rounds, found) for branch in names), key=moved)
        elif opcode in ("call", "async-start"):
            called = re.search(r"(?:to_apply|calls)=%?([\w.\-]+)", rest)
            assert called is not None
            kernels += _walk(computations, called[1], rounds, found)
        else:
            kernels.append(replace(_kernel(instruction, here, computations), rounds=rounds))
    return kernels


def moved(kernels: Iterable[Kernel]) -> int:
    """Bytes of all starts."""
    return sum(kernel.bytes * kernel.rounds for kernel in kernels)


def _kernel(instruction: Parsed, here: dict[str, Parsed], computations: Computations) -> Kernel:
    inside = list(_inside(instruction, here, computations))
    kind, flops, dtypes = "", 0, tuple[str, ...]()
    for one, around in inside:
        operands = [_arrays(around[name].shape)[0] for name in one.operands if name in around and around[name].size]
        target = _target(one)
        if one.opcode == "dot" or "cublas" in target:
            kind, flops, dtypes = "product", flops + _product_flops(one, operands), _dtypes(one, operands)
        elif one.opcode == "convolution" or "cudnn$conv" in target:
            kind, flops, dtypes = "convolution", flops + _convolution_flops(one, operands), _dtypes(one, operands)
        elif "fmha" in target:
            backward = "Backward" in target
            kind = f"attention {'backward' if backward else 'forward'}"
            flops, dtypes = _attention_flops(one, operands, 5 if backward else 2), _dtypes(one, operands)
    opcodes = {one.opcode for one, _ in inside}
    if not kind and (collective := _COLLECTIVE.match(instruction.opcode)):
        kind = collective[1]
    if not kind and instruction.opcode in ("copy", "copy-start"):
        kind = "copy"
    if not kind and instruction.opcode == "custom-call":
        kind = _target(instruction)
    if not kind:
        kind = next((hero for hero in _HEROES if hero in opcodes), "element-wise")
    size = _read(instruction, here, computations) + _written(instruction, here, computations)
    return Kernel(kind, instruction.scope, size, flops, dtypes, 1, instruction.shape)


def _target(instruction: Parsed) -> str:
    found = _TARGET.search(instruction.rest) if instruction.opcode == "custom-call" else None
    return found[1] if found else ""


def _inside(
    instruction: Parsed, here: dict[str, Parsed], computations: Computations
) -> Iterator[tuple[Parsed, dict[str, Parsed]]]:
    """What a fusion computes at any depth, each with the computation around it; else the instruction itself."""
    called = _CALLS.search(instruction.rest) if instruction.opcode == "fusion" else None
    if called is None:
        yield instruction, here
        return
    body = computations[called[1]]
    for one in body.values():
        yield from _inside(one, body, computations)


def _read(instruction: Parsed, here: dict[str, Parsed], computations: Computations) -> int:
    operands = instruction.operands
    called = _CALLS.search(instruction.rest) if instruction.opcode == "fusion" else None
    if called is None:
        if instruction.opcode in _SLICES:
            return instruction.size
        if instruction.opcode == "dynamic-update-slice":
            return here[operands[1]].size
        return sum(here[name].size for name in dict.fromkeys(operands) if name in here)
    body = computations[called[1]]
    users = defaultdict[str, list[tuple[str, Parsed]]](list)
    for name, one in body.items():
        if one.opcode not in ("parameter", "constant"):
            for operand in dict.fromkeys(one.operands):
                users[operand].append((name, one))
    parts: dict[str, int] = {}
    for name, one in body.items():
        if one.opcode == "parameter":
            source = operands[int(one.operands[0])]
            parts[source] = min(parts.get(source, 0) + _part_read(name, users, one.size), one.size)
    return sum(parts.values())


def _part_read(name: str, users: dict[str, list[tuple[str, Parsed]]], whole: int) -> int:
    """Bytes that a fusion reads of a parameter: of one that is only sliced the slices."""
    part, names, waiting = 0, {name}, list(users[name])
    while waiting:
        user, one = waiting.pop()
        if one.opcode == "bitcast":
            names.add(user)
            waiting += users[user]
        elif one.opcode in _SLICES and one.operands[0] in names:
            part += one.size
        elif not (one.opcode == "dynamic-update-slice" and one.operands[0] in names):
            return whole
    return min(part, whole)


def _written(instruction: Parsed, here: dict[str, Parsed], computations: Computations) -> int:
    called = _CALLS.search(instruction.rest) if instruction.opcode == "fusion" else None
    if called is not None:
        body = computations[called[1]]
        root = next(one for one in body.values() if one.root)
        if root.opcode == "tuple":
            return sum(_result(body[name], body) for name in root.operands)
        return _result(root, body)
    if instruction.opcode == "custom-call":  # the last result of a library's call is its scratch memory
        arrays = _arrays(instruction.shape)
        scratch = len(arrays) > 1 and arrays[-1][0] in ("u8", "s8")
        used = arrays[:-1] if scratch else arrays
        return sum(shape_bytes(f"{dtype}[]") * math.prod(axes) for dtype, axes in used)
    if instruction.opcode == "copy-start":
        return here[instruction.operands[0]].size
    sent = _COLLECTIVE.match(instruction.opcode)
    if sent and sent[2] and sent[1] != "all-reduce":  # those have their operands beside their results
        return max(instruction.size - sum(here[name].size for name in instruction.operands if name in here), 0)
    return _result(instruction, here)


def _result(instruction: Parsed, here: dict[str, Parsed]) -> int:
    while instruction.opcode == "bitcast":
        instruction = here[instruction.operands[0]]
    return here[instruction.operands[1]].size if instruction.opcode == "dynamic-update-slice" else instruction.size


# ---- operations


def _arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(dtype, tuple(int(n) for n in axes.split(",") if n)) for dtype, axes in _ARRAY.findall(shape)]


Arrays = list[tuple[str, tuple[int, ...]]]


def _dtypes(instruction: Parsed, operands: Arrays) -> tuple[str, ...]:
    return (*(dtype for dtype, _ in operands[:2]), _arrays(instruction.shape)[0][0])


def _product_flops(instruction: Parsed, operands: Arrays) -> int:
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest) or re.search(
        r'"lhs_contracting_dimensions":\["?([\d",]*)"?\]', instruction.rest
    )
    assert found is not None
    contracted = [int(axis) for axis in re.findall(r"\d+", found[1])]
    shape = operands[0][1]
    return 2 * math.prod(_arrays(instruction.shape)[0][1]) * math.prod(shape[axis] for axis in contracted)


def _convolution_flops(instruction: Parsed, operands: Arrays) -> int:
    """2 x places and channels of the output x the numbers of a kernel that make one."""
    labels = re.search(r"dim_labels=\w+_(\w+)->(\w+)", instruction.rest)
    assert labels is not None
    target, result = _target(instruction), _arrays(instruction.shape)[0][1]
    kernel, output = operands[1][1], result
    if "BackwardInput" in target:
        output = operands[0][1]
    elif "BackwardFilter" in target:
        kernel, output = result, operands[1][1]
    one = math.prod(length for axis, length in zip(labels[1], kernel, strict=True) if axis != "o")
    return 2 * math.prod(output) * one


def _attention_flops(instruction: Parsed, operands: Arrays, products: int) -> int:
    found = re.search(r'"intermediate_tensor_shape":\s*\{[^}]*?"dimensions":\s*\[([^\]]*)\]', instruction.rest)
    assert found is not None
    return 2 * products * math.prod(int(n) for n in re.findall(r"\d+", found[1])) * operands[0][1][-1]


# ---- figures


def figures(found: Listing, pictures: int, bandwidth: float, peaks: dict[str, float]) -> dict[str, Any]:
    """What `benchmarks.gpu_program` prints of a program for `pictures`, and `kinds`: kind -> the same sums."""
    kernels = found.kernels
    wide = [kernel for kernel in kernels if "f32" in kernel.dtypes[:2]]
    of_products = [kernel.flops / pictures / 1e6 for kernel in wide if kernel.kind == "product"]
    convolutions = (kernel for kernel in kernels if kernel.kind == "convolution")
    return {
        **_sums(kernels, pictures, bandwidth, peaks),
        "small_kernels": sum(kernel.rounds for kernel in kernels if kernel.bytes < SMALL),
        "attention_forward": _count(kernels, "attention forward"),
        "attention_backward": _count(kernels, "attention backward"),
        "convolutions": dict(Counter(" x ".join(kernel.dtypes[:2]) for kernel in convolutions)),
        "float32_convolutions": sum(kernel.kind == "convolution" for kernel in wide),
        "float32_products": len(of_products),
        "largest_float32_product_mflop": round(max(of_products, default=0.0), 3),
        "copies": _count(kernels, "copy"),
        "copied_mb": round(moved([kernel for kernel in kernels if kernel.kind == "copy"]) / 2e6, 2),
        "unknown_loops": sorted(scope for scope, rounds in found.loops if rounds is None),
        "conditionals": sorted(found.conditionals),
        "collectives": _collectives(kernels, pictures, bandwidth, peaks),
        "kinds": {kind: _sums(same, pictures, bandwidth, peaks) for kind, same in _by_kind(kernels)},
    }


def _collectives(
    kernels: Sequence[Kernel], pictures: int, bandwidth: float, peaks: dict[str, float]
) -> dict[str, dict[str, int | float]]:
    """Sums of each kind, and `beside_ms`: the roof of what may run while those do that are not `SMALL`."""
    groups: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        if _COLLECTIVE.match(kernel.kind):
            groups.setdefault(kernel.kind, []).append(place)
    found = {}
    for kind, places in groups.items():
        large = [place for place in places if kernels[place].bytes >= SMALL]
        beside = [one for place in large for one in kernels[place + 1 : place + 1 + kernels[place].beside]]
        found[kind] = _sums([kernels[place] for place in places], pictures, bandwidth, peaks)
        found[kind]["beside_ms"] = _sums(beside, pictures, bandwidth, peaks)["roof_ms"]
    return found


def _count(kernels: Sequence[Kernel], kind: str) -> int:
    return sum(kernel.rounds for kernel in kernels if kernel.kind == kind)


def _by_kind(kernels: Sequence[Kernel]) -> list[tuple[str, list[Kernel]]]:
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        name = f"{kernel.kind} {' x '.join(kernel.dtypes[:2])}".rstrip()
        groups.setdefault(name, []).append(kernel)
    return sorted(groups.items(), key=lambda group: -moved(group[1]))


def _sums(
    kernels: Sequence[Kernel], pictures: int, bandwidth: float, peaks: dict[str, float]
) -> dict[str, int | float]:
    return {
        "kernels": sum(kernel.rounds for kernel in kernels),
        "mb_per_picture": round(moved(kernels) / pictures / 1e6, 3),
        "gflop_per_picture": round(sum(kernel.flops * kernel.rounds for kernel in kernels) / pictures / 1e9, 3),
        "roof_ms": round(1e3 * sum(kernel.seconds(bandwidth, peaks) * kernel.rounds for kernel in kernels), 3),
    }
