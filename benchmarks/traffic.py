"""Bytes that the products, convolutions and reductions of a traced function move, by part of the model.

Run as a program, it counts the train step of the package that PYTHONPATH names and prints one JSON object: so
`benchmarks.bytes_moved` counts another commit by the same rule. It uses of the package under test only
`benchmarks.step_common` and the default configuration. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from jax.extend import core
from jax.interpreters import partial_eval

KINDS = {
    "product": re.compile(r"dot_general|ragged_dot"),
    "convolution": re.compile(r"conv_general_dilated"),
    "reduction": re.compile(r"reduce|reduce_(sum|max|min|prod|and|or|xor|window.*)|arg(max|min)|cum(sum|prod|max|min)"),
    "kernel": re.compile(r"dot_product_attention_.*|pallas_call|ffi_call"),  # one operation, whatever it does inside
}

#: part -> pattern of the scopes and modules around an operation; the first one found counts
PARTS = {
    "augmentation": re.compile(r"augment|/mix\b|mask_metadata"),
    "losses and metrics": re.compile(r"losses|metrics"),
    "attention itself": re.compile(r"attend|softmax|bhnm"),
    "linear layers of attention": re.compile(r"/(qkv|proj)(/|$)"),
    "positions of attention": re.compile(r"/attn(\.\w+)*/*$"),
    "normalisation": re.compile(r"/(norm\w*|stem/1|final_norm|bn\d?|\w+_bn|\w+_norm)(/|$)"),
    "linear layers of MLPs": re.compile(r"/(fc1|fc2|pwconv1|pwconv2)(/|$)"),
    "depthwise convolution": re.compile(r"dwconv|depthwise"),
    "stem and downsampling": re.compile(r"stem|downsample"),
    "metadata, aggregation, heads": re.compile(r"meta_|cl_1_fc|aggregate|head"),
    "rest of the blocks": re.compile(r"stages"),
    "rest of the model": re.compile(r"Former"),
    "optimizer and clipping": re.compile(r""),
}


def part_of(scope: str) -> str:
    """Which of `PARTS` the names of scopes and modules say."""
    return next(part for part, pattern in PARTS.items() if pattern.search(scope))


@dataclass(frozen=True)
class Operation:
    """One product, convolution, reduction or kernel of a program."""

    kind: str
    where: str  # scopes and modules around it
    bytes: int  # of operands and results, times the rounds of the loops around it

    @property
    def part(self) -> str:
        """Which of `PARTS` it belongs to."""
        return part_of(self.where)

    @property
    def phase(self) -> str:
        """`forward`, `recomputed` or `backward`."""
        if "rematted_computation" in self.where:
            return "recomputed"
        return "backward" if "transpose(" in self.where else "forward"


def operations(jaxpr: core.Jaxpr, where: str = "") -> Iterator[Operation]:
    """What is counted of a traced function, at any depth: each operation's operands and results once.

    Element-wise operations are free, as if each were computed together with what reads it; so are copies, gathers and
    scatters. The body of a loop of unknown length counts once, of a conditional the dearest branch.
    """
    for equation in jaxpr.eqns:
        name, scope = equation.primitive.name, f"{where}/{equation.source_info.name_stack}"
        if kind := next((kind for kind, pattern in KINDS.items() if pattern.fullmatch(name)), None):
            values: list[Any] = [value.aval for value in (*equation.invars, *equation.outvars)]
            yield Operation(kind, scope, sum(aval.size * aval.dtype.itemsize for aval in values))
            continue
        inner = [list(operations(sub, scope)) for sub in _inner(equation)]
        if name == "cond":
            inner = [max(inner, key=total)]
        rounds = equation.params["length"] if name == "scan" else 1
        for operation in (operation for found in inner for operation in found):
            yield replace(operation, bytes=operation.bytes * rounds)


def conditionals(jaxpr: core.Jaxpr, where: str = "") -> Iterator[str]:
    """Scopes of branches, and of loops of unknown length: before each a GPU's host waits for what decides."""
    for equation in jaxpr.eqns:
        scope = f"{where}/{equation.source_info.name_stack}"
        inner = _inner(equation)
        if equation.primitive.name == "while" or (equation.primitive.name == "cond" and len(inner) > 1):
            yield f"{scope} ({equation.primitive.name})"
        for jaxpr_inside in inner:
            yield from conditionals(jaxpr_inside, scope)


def _inner(equation: core.JaxprEqn) -> list[core.Jaxpr]:
    """The functions that an equation holds; of a choice by platform, which is made at lowering, that of a GPU alone."""
    found = list(core.jaxprs_in_params(equation.params))
    platforms = equation.params.get("branches_platforms")
    if not platforms:
        return found
    return found[next(i for i, names in enumerate(platforms) if names is None or "cuda" in names) :][:1]


def total(found: list[Operation]) -> int:
    """Bytes of all of them."""
    return sum(operation.bytes for operation in found)


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """Settings `auto` are resolved as on a GPU with cuDNN; what is built within can be traced, but not run."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn  # no public way says which cuDNN to trace for

    with (
        mock.patch.object(jax, "default_backend", return_value="gpu"),
        mock.patch.object(cudnn, "check_cudnn_version", return_value=91300),
        mock.patch.object(cudnn, "check_compute_capability", return_value=True),
    ):
        yield


def traced_step(model: str, img_size: int, batch: int, remat: bool | None, changes: dict[str, Any]) -> core.Jaxpr:
    """The train step of the default configuration with static task weights in bfloat16, without dead code.

    Args:
      remat: gradient checkpointing; None takes the default of the configuration.
      changes: further settings, dotted key -> value.
    """
    from benchmarks.step_common import Case, build, write_labels
    from linnaeus_jax.config import get_config

    if remat is None:
        remat = get_config().train.gradient_checkpointing.enabled_normal_steps
    settings = {"loss.grad_weighting.task.type": "static", "train.compute_dtype": "bfloat16", **changes}
    with tempfile.TemporaryDirectory() as directory, as_on_gpu():
        built = build(Case(model, img_size, batch, remat), write_labels(Path(directory) / "labels.h5"), settings)
        state = jax.eval_shape(built.program.initial_state)
        jaxpr = jax.make_jaxpr(built.program.train_step("plain"))(state, built.batches[0]).jaxpr
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def main(argv: list[str] | None = None) -> None:
    """Prints {"bytes": part -> "kind, phase" -> bytes of one picture, "conditionals": scopes of them}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", help="arguments of `traced_step` as JSON")
    settings = json.loads(parser.parse_args(argv).settings)
    totals: dict[str, dict[str, float]] = {}
    step = traced_step(**settings)
    for operation in operations(step):
        row = totals.setdefault(operation.part, {})
        key = f"{operation.kind}, {operation.phase}"
        row[key] = row.get(key, 0.0) + operation.bytes / settings["batch"]
    json.dump({"bytes": totals, "conditionals": list(conditionals(step))}, sys.stdout)


if __name__ == "__main__":
    main()
