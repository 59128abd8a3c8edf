"""One program of the package that PYTHONPATH names, compiled for a GPU that is not there, by XLA's compiler for GPUs.

A child of `benchmarks.gpu_program`. Of the package under test it uses `step_common` and `traffic` of its benchmarks and
what they import, so that programs of another commit are compiled by the same rule. No GPU, no driver and no cuDNN is
needed: the compiler gets a description of the device. Writes the text of each compiled program into a directory, and
`memory.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from benchmarks.step_common import BARE, EVERYTHING, Built, Case, build, write_labels
from benchmarks.traffic import as_on_gpu
from linnaeus_jax.inference.forward import forward_pass
from linnaeus_jax.step.placement import Placement

#: what is compiled: an update, one that measures GradNorm, both programs of an evaluation, answers for pictures
PROGRAMS = ("update", "gradnorm", "evaluation", "predict")
#: named configurations, as changes of the default one
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"loss.grad_weighting.task.type": "static"},
    "bare": BARE,
    "everything": {**BARE, **EVERYTHING},
}
#: machine code that is never run need not be good: half the time, and nothing that is counted depends on it
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_gpu_disable_gpuasm_optimizations": True}
_GRADNORM = {"loss.grad_weighting.task.type": "gradnorm", "loss.grad_weighting.task.gradnorm_enabled": True}


def gpus(description: str, count: int) -> list[jax.Device]:
    """Devices of one host that programs can be compiled for, of the kind that a `GpuTargetConfigProto` describes."""
    topology = topologies.get_topology_desc(platform="cuda", target_config=description, topology=f"1x1x{count}")
    return list(topology.devices)


def lowered(settings: dict[str, Any], built: Built, placement: Placement) -> Iterator[tuple[str, Any, int]]:
    """(name, lowered program, bytes of donated arguments) of the programs that are run for `settings`."""
    program, name, rows = built.program, settings["program"], settings["rows"]
    state = jax.eval_shape(program.initial_state)
    batch = {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in built.batches[0].items()}
    whole, by_row = placement.replicated, placement.batch
    if name in ("update", "gradnorm"):
        if placement.fsdp:
            objective = dataclasses.replace(program.objective, gather=placement.gather)
            program = dataclasses.replace(program, objective=objective)
        of_state = placement.of_state(state)
        step = jax.jit(
            program.train_step("gradnorm" if name == "gradnorm" else "plain"),
            in_shardings=(of_state, placement.update),
            out_shardings=(of_state, whole),
            donate_argnames=("state",),
        )
        arrays = (x for x in jax.tree.leaves(state) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended))
        size = sum(x.size * x.dtype.itemsize for x in arrays)
        yield name, step.lower(state, batch), size
        return
    evaluation = program.evaluation
    columns = {key: jax.ShapeDtypeStruct((rows, *value.shape[2:]), value.dtype) for key, value in batch.items()}
    image = columns["image"]
    if name == "predict":
        model: Any = evaluation.model
        logits = forward_pass(model, evaluation.preprocessing)
        variables = {"params": state.params, **state.model_state}
        jitted = jax.jit(logits, in_shardings=(whole, by_row, by_row, by_row), out_shardings=by_row)
        yield name, jitted.lower(variables, image, columns["meta"], columns["meta_valid"]), 0
        return
    jitted = jax.jit(evaluation.features, in_shardings=(whole, whole, by_row), out_shardings=by_row)
    yield "features", jitted.lower(state.params, state.model_state, image), 0
    features = jax.eval_shape(evaluation.features, state.params, state.model_state, image)
    numbers = jax.ShapeDtypeStruct((rows,), "int32")
    rest = {key: columns.get(key, numbers) for key in evaluation.used}
    mask = jax.ShapeDtypeStruct((len(evaluation.component_names),), bool)
    sums = jax.eval_shape(evaluation.empty_sums)
    jitted = jax.jit(evaluation.phase, in_shardings=(whole, whole, whole, by_row, by_row, whole, whole))
    yield (
        "phase",
        jitted.lower(state.params, state.model_state, state.gradnorm.weights, features, rest, mask, sums),
        0,
    )


def compile_all(settings: dict[str, Any], directory: Path) -> None:
    """Writes `<name>.txt` for each program, and memory.json: name -> bytes of one device."""
    devices = gpus(Path(settings["target_file"]).read_text(), settings["devices"])
    changes = {**CONFIGS[settings["config"]], "train.compute_dtype": "bfloat16", **settings["changes"]}
    if settings["program"] == "gradnorm":
        changes |= _GRADNORM
    memory: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as temporary, as_on_gpu():
        trains = settings["program"] in ("update", "gradnorm")
        rows = settings["rows"] if trains else settings["rows"] + settings["rows"] % 2  # an update's rows are pairs
        case = Case(settings["model"], settings["img_size"], rows, settings["remat"])
        built = build(case, write_labels(Path(temporary) / "labels.h5"), changes)
        placement = Placement(devices, fsdp=settings["fsdp"])
        for name, program, donated in lowered(settings, built, placement):
            compiled = program.compile({**_QUICKLY, **settings["xla"]})
            (directory / f"{name}.txt").write_text(compiled.as_text())
            analysis = compiled.memory_analysis()
            memory[name] = {
                "donated": donated,
                "arguments": analysis.argument_size_in_bytes,
                "results": analysis.output_size_in_bytes,
                "aliased": analysis.alias_size_in_bytes,
                "temporary": analysis.temp_size_in_bytes,
                "peak": analysis.peak_memory_in_bytes,
            }
    (directory / "memory.json").write_text(json.dumps(memory))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", help="JSON, as `benchmarks.gpu_program.settings` makes it")
    parser.add_argument("directory", type=Path, help="where the texts go")
    args = parser.parse_args(argv)
    compile_all(json.loads(args.settings), args.directory)


if __name__ == "__main__":
    main()
