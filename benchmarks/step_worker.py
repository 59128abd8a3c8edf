"""Runs steps of the package that PYTHONPATH names, as often as another process says.

A child of `benchmarks.train_step`. It prints one JSON line that describes what it has compiled; then it reads lines
"what times", does so and answers with the seconds and CPU seconds that it took. Of the package under test it uses only
`benchmarks.step_common`, so that it can measure other commits, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import h5py
import jax
import jax.numpy as jnp
import numpy as np

import linnaeus_jax

Run = Callable[[], Any]
Facts = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compiled; see the options of `benchmarks.train_step`."""

    model: str
    img_size: int
    batch: int
    dtype: str
    remat: bool | None  # None: as configured
    everything: bool
    parts: tuple[str, ...]
    keep_freed_memory: bool = True  # as `env.keep_freed_memory` of a run, where the package has it
    hlo: str = ""  # file that gets the text of the compiled training step

    @property
    def changes(self) -> dict[str, Any]:
        """Dotted key -> value over the default configuration."""
        return {"loss.grad_weighting.task.type": "static", "train.compute_dtype": self.dtype}


def matmul(dtype: Any) -> tuple[Run, float]:
    """A chain of large matrix products on one device, and its operations."""
    size, length = (2048, 2) if jax.default_backend() == "cpu" else (8192, 16)
    a = jax.random.normal(jax.random.key(0), (size, size), dtype) / size**0.5

    def chain(a: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, length, lambda _, x: jnp.dot(x, a, preferred_element_type=dtype), a, unroll=True)

    compiled = jax.jit(chain).lower(a).compile()
    return lambda: compiled(a), 2.0 * size**3 * length


def triad() -> tuple[Run, float]:
    """x + 2 y of arrays much larger than any cache on one device, and the bytes it moves (McCalpin's STREAM)."""
    count = 1 << (25 if jax.default_backend() == "cpu" else 28)
    x, y = (jnp.full(count, value, jnp.float32) for value in (1.0, 2.0))
    compiled = jax.jit(lambda x, y: x + 2.0 * y, donate_argnums=0).lower(x, y).compile()
    sums = [x]

    def run() -> jax.Array:
        sums.append(compiled(sums.pop(), y))  # in place, so that no fresh pages are counted
        return sums[0]

    return run, 3.0 * 4 * count


def _compiled_facts(compiled: Any, seconds: float) -> Facts:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    facts: Facts = {"compile_s": round(seconds, 2), "compiled_bytes": float(cost.get("bytes accessed", 0.0))}
    if memory is not None:
        facts["temporaries_mb"] = round(memory.temp_size_in_bytes / 1e6, 1)
        facts["arguments_mb"] = round(memory.argument_size_in_bytes / 1e6, 1)
    return facts


def _set_up(settings: Settings) -> None:
    """What a run sets for its process, but no compilation cache: reading a program from disk is no compilation."""
    jax.config.update("jax_enable_compilation_cache", False)
    process = _process_settings()
    if settings.keep_freed_memory and process is not None:
        process.keep_freed_memory()


def programs(settings: Settings, directory: Path) -> Mapping[str, tuple[Run, Facts]]:
    """What `settings.parts` names: a call that starts it, and its facts."""
    from benchmarks import step_common
    from linnaeus_jax.config import get_config

    remat = settings.remat
    if remat is None:
        remat = get_config().train.gradient_checkpointing.enabled_normal_steps
    case = step_common.Case(settings.model, settings.img_size, settings.batch, remat)
    changes = {**(step_common.EVERYTHING if settings.everything else {}), **settings.changes}
    labels = step_common.write_labels(directory / "labels.h5")
    built = step_common.build(case, labels, changes)
    found: dict[str, tuple[Run, Facts]] = {}
    if "training" in settings.parts:
        started = time.perf_counter()
        stepper = built.stepper()
        compiled, seconds = stepper.compiled.compiled, stepper.compiled.seconds
        if settings.hlo:
            Path(settings.hlo).write_text(compiled.as_text() or "")
        facts = _compiled_facts(compiled, seconds)
        found["training"] = stepper, {**facts, "initial_state_s": round(time.perf_counter() - started - seconds, 2)}
        if "hdf5" in settings.parts:
            found["hdf5"] = from_hdf5(step_common.case_config(case, labels, changes), stepper), {}
    if "evaluation" in settings.parts:
        found["evaluation"] = evaluation(built)
    if "matmul" in settings.parts:
        run, operations = matmul(built.program.model.dtype)
        found["matmul"] = run, {"flops": operations, "devices": jax.device_count()}
    if "bandwidth" in settings.parts:
        run, moved = triad()
        found["bandwidth"] = run, {"bytes": moved, "devices": jax.device_count()}
    process = _process_settings()
    retire = getattr(process, "retire_heap_fragments", getattr(process, "leave_gaps", None))  # earlier: the other, none
    if settings.keep_freed_memory and retire is not None:
        retire()  # as a run does after its compilations
    return found


def from_hdf5(config: Any, stepper: Any) -> Run:
    """Updates by the step of `stepper` on batches that a run's loader reads from an HDF5 file of random pictures."""
    from benchmarks.common import as_read
    from linnaeus_jax.run.inputs import build_inputs
    from linnaeus_jax.step.placement import Placement

    labels = Path(config.data.h5.train_labels_path)
    with h5py.File(labels) as file:
        rows = len(file["img_identifiers"])
    images, side = labels.with_name("images.h5"), config.data.img_size
    block = np.random.default_rng(0).integers(0, 256, (64, side, side, 3), np.uint8)
    with h5py.File(images, "w") as file:
        pictures = file.create_dataset("images", (rows, side, side, 3), np.uint8)
        for start in range(0, rows, len(block)):
            pictures[start : start + len(block)] = block[: rows - start]
    config.data.h5.train_images_path = str(images)
    placement = Placement()
    loader = build_inputs(as_read(config), devices=placement.device_count, output_dir=None).train_loader(0)

    def run() -> Any:
        _, update = next(loader)
        stepper.state, outputs = stepper.compiled(stepper.state, placement.to_device(update, placement.update))
        return stepper.state, outputs

    run()  # the reading threads run from here on
    return run


def _process_settings() -> Any:
    """`linnaeus_jax.step.process` of the package under test; None where that has none.

    An import alone may find the module of another checkout, which is installed as editable.
    """
    if not (Path(linnaeus_jax.__file__).parent / "step" / "process.py").exists():
        return None
    from linnaeus_jax.step import process

    return process


def evaluation(built: Any) -> tuple[Run, Facts]:
    """From uint8 pictures to the logits of every task, by the model in evaluation mode."""
    placement, model = built.placement, built.program.model
    batch = {name: jax.device_put(built.batches[0][name][0], placement.batch) for name in ("image", "meta")}

    def logits(variables: Any, image: jax.Array, meta: jax.Array) -> Any:
        pixels = (image.astype(jnp.float32) - 128.0) * (1.0 / 64.0)
        return model.apply(variables, pixels, meta)

    rng = np.random.default_rng(0)
    pixels, meta = (jnp.zeros(batch[name].shape, jnp.float32) for name in ("image", "meta"))
    shapes = jax.eval_shape(model.init, jax.random.key(0), pixels, meta)
    # drawn on the host: compiling the real initial values takes long and changes no time
    variables = jax.tree.map(lambda x: np.abs(rng.normal(scale=0.02, size=x.shape)).astype(x.dtype), shapes)
    variables = jax.device_put(variables, placement.replicated)
    process = _process_settings()
    options = process.compiler_options(training=False) if process is not None else {}
    started = time.perf_counter()
    compiled = jax.jit(logits).lower(variables, **batch).compile(compiler_options=options)
    return lambda: compiled(variables, **batch), _compiled_facts(compiled, time.perf_counter() - started)


def seconds_of(run: Run, times: int) -> Facts:
    """Seconds and CPU seconds of some repetitions, the last one's results waited for."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        result = run()
    jax.block_until_ready(result)
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def peak_memory() -> Facts:
    """Megabytes that this process and the device had at most."""
    facts: Facts = {"peak_resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        facts["peak_device_mb"] = round(stats["peak_bytes_in_use"] / 1e6)
    return facts


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", help="fields of `Settings` as JSON")
    settings = Settings(**json.loads(parser.parse_args(argv).settings))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints does not answer
    _set_up(settings)
    with tempfile.TemporaryDirectory() as directory:
        _serve(programs(settings, Path(directory)), answers)


def _serve(found: Mapping[str, tuple[Run, Facts]], answers: TextIO) -> None:
    """Says what there is, then does what the lines of the standard input say."""
    device = jax.devices()[0].device_kind
    print(json.dumps({"device": device, **{name: facts for name, (_, facts) in found.items()}}), file=answers)
    for line in sys.stdin:
        what, times = line.split()
        answer = peak_memory() if what == "memory" else seconds_of(found[what][0], int(times))
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
