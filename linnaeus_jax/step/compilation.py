"""Ahead-of-time compilation of train steps, with their time, memory and operations."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from linnaeus_jax.step.placement import Placement
from linnaeus_jax.step.process import compiler_options, retire_heap_fragments
from linnaeus_jax.step.program import Program

log = logging.getLogger("linnaeus_jax")


@dataclass(frozen=True, eq=False)
class CompiledStep:
    """A compiled train step: callable, and a description."""

    name: str
    function: Callable[..., Any]  # what was compiled
    compiled: jax.stages.Compiled
    seconds: float
    memory: dict[str, int]  # bytes of one device: arguments, results, reused for both, temporaries
    flops: float

    @property
    def memory_bytes(self) -> int:
        """What one device must have in all."""
        return sum(self.memory.values()) - 2 * self.memory.get("reused", 0)

    def __call__(self, state: Any, batch: Any) -> Any:
        return self.compiled(state, batch)


def compile_steps(
    program: Program, state: Any, batch: Any, placement: Placement, *, donate: bool
) -> dict[str, CompiledStep]:
    """Every step that a run of `program` can need, by name; with recomputation where it may and must."""
    steps = {}
    for name in program.step_names:
        make, recomputes = functools.partial(program.train_step, name), name in program.may_recompute
        steps[name] = compile_fitting(make, state, batch, placement, name, recomputes=recomputes, donate=donate)
    retire_heap_fragments()
    return steps


def compile_fitting(
    make: Callable[..., Callable[..., Any]],
    state: Any,
    batch: Any,
    placement: Placement,
    name: str,
    *,
    recomputes: bool,
    **options: Any,
) -> CompiledStep:
    """`make()` compiled by `compile_step`; with `recomputes`, `make(recompute=True)` where the memory is too small."""
    compiled, limit = compile_step(make(), state, batch, placement, name, **options), device_memory()
    if recomputes and limit is not None and compiled.memory_bytes > limit:
        log.info("that is more than the %.0f MB of a device: activations are recomputed", limit / 1e6)
        compiled = compile_step(make(recompute=True), state, batch, placement, name, **options)
    return compiled


def device_memory() -> int | None:
    """Bytes that XLA may use of each local device, the smallest one's; None where it does not say, as on CPU."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [each["bytes_limit"] for each in stats if "bytes_limit" in each]
    return min(limits) if limits else None


def compile_step(
    step: Callable[..., Any],
    state: Any,
    batch: Any,
    placement: Placement,
    name: str,
    *,
    donate: bool = True,
    results: Any = None,
) -> CompiledStep:
    """Compiles a function of a state and the batch of an update, for their shapes.

    No later call can trigger another compilation: other shapes are an error.

    Args:
      donate: of a train step, the new state is written over the old one.
      results: shardings of what it returns; None: those of a train step.
    """
    started = time.perf_counter()
    step.__name__ = f"train_step_{name}" if results is None else name
    jitted = jax.jit(
        step,
        in_shardings=(placement.of_state(state), placement.update),
        out_shardings=(placement.of_state(state), placement.replicated) if results is None else results,
        donate_argnames=("state",) if donate and results is None else (),
    )
    compiled = jitted.lower(state, batch).compile(compiler_options(training=True))
    analysis, memory = compiled.memory_analysis(), {}
    if analysis is not None:
        memory = {
            "arguments": analysis.argument_size_in_bytes,
            "results": analysis.output_size_in_bytes,
            "reused": analysis.alias_size_in_bytes,
            "temporaries": analysis.temp_size_in_bytes,
        }
    cost = compiled.cost_analysis() or {}
    result = CompiledStep(name, step, compiled, time.perf_counter() - started, memory, float(cost.get("flops", 0.0)))
    log.info("compiled %s step in %.1f s, %.0f MB per device", name, result.seconds, result.memory_bytes / 1e6)
    return result
