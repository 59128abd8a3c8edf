"""The lowered text of nine programs, compared with that of another commit: identical, or where they differ.

    python -m benchmarks.lowered [NAME ...] [--baseline COMMIT]

A change that only moves code must leave every program identical; the compiled programs are then the same, too. The
programs are those of a real run over generated labels: the default update (`plain`), everything on, the update that
measures GradNorm, mFormerV0, bfloat16, two devices, FSDP over two devices, the evaluation, and the update of the demo.
Without --baseline the working tree is compared with its own commit. Differences are printed as the first lines of a
unified diff without the numbers of values; --keep DIR keeps the whole texts. The exit status is 1 where a program
differs, and where the demo's update has more operations than `MOST_OPERATIONS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import other_commit
from benchmarks.common import add_names

GRADNORM = {"loss.grad_weighting.task.type": "gradnorm", "loss.grad_weighting.task.gradnorm_enabled": True}
#: program -> (changes of the config, devices)
PROGRAMS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "everything": ({"train.accumulation_steps": 2}, 1),
    "gradnorm": (GRADNORM, 1),
    "mFormerV0": ({}, 1),
    "bfloat16": ({"train.compute_dtype": "bfloat16"}, 1),
    "two_devices": ({}, 2),
    "fsdp": ({"parallel.fsdp": True}, 2),
    "evaluation": ({}, 1),
    "demo": ({}, 1),
}
#: more operations take longer to compile than the first minutes with the demo should
MOST_OPERATIONS = {"demo": 10_000}
SHOWN_LINES = 40


def write(name: str, path: Path) -> None:
    """Lowers one program in this process, whose devices are set by then, and writes its text."""
    import h5py
    import jax
    import numpy as np

    from benchmarks.step_common import EVERYTHING, Case, build, write_labels
    from linnaeus_jax.step.placement import Placement

    changes = {**EVERYTHING, **PROGRAMS[name][0]} if name == "everything" else PROGRAMS[name][0]
    size, pictures = (48, 64) if name == "demo" else (32, 8 * jax.device_count())
    if name == "demo":
        changes = demo_changes()
    case = Case("mFormerV0-tiny" if name == "mFormerV0" else "mFormerV1-tiny", size, pictures, False)
    with tempfile.TemporaryDirectory() as directory:
        labels = write_labels(Path(directory) / "labels.h5")
        with h5py.File(labels, "a") as file:  # the demo has it
            file["elevation_broadrange_2"] = np.ones((len(file["img_identifiers"]), 10), np.float32)
        built = build(case, labels, changes)
    program, placement = built.program, built.placement
    state = jax.eval_shape(program.initial_state)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), built.batches[0])
    if name == "evaluation":
        evaluation = program.evaluation
        rows = {key: jax.ShapeDtypeStruct(value.shape[1:], value.dtype) for key, value in batch.items()}
        numbers = jax.ShapeDtypeStruct((case.batch,), "int32")
        columns = {key: rows.get(key, numbers) for key in evaluation.used}
        weights, mask = state.gradnorm.weights, jax.ShapeDtypeStruct((len(evaluation.component_names),), bool)

        def whole(params: Any, model_state: Any, weights: Any, image: Any, columns: Any, mask: Any) -> Any:
            features = evaluation.features(params, model_state, image)
            return evaluation.phase(params, model_state, weights, features, columns, mask, evaluation.empty_sums())

        arguments = (state.params, state.model_state, weights, rows["image"], columns, mask)
        path.write_text(jax.jit(whole).lower(*arguments).as_text())
        return
    if name == "fsdp":
        placement = Placement(fsdp=True)
        program = dataclasses.replace(
            program, objective=dataclasses.replace(program.objective, gather=placement.gather)
        )
    of_state = placement.of_state(state)
    step = jax.jit(
        program.train_step("gradnorm" if name == "gradnorm" else "plain"),
        in_shardings=(of_state, placement.update),
        out_shardings=(of_state, placement.replicated),
        donate_argnames=("state",),
    )
    path.write_text(step.lower(state, batch).as_text())


def demo_changes() -> dict[str, Any]:
    """What `configs/quickstart.py` changes of the default configuration, but for its data."""
    import runpy

    from linnaeus_jax.config import get_config
    from linnaeus_jax.config.saved import flatten

    made = runpy.run_path("configs/quickstart.py")["get_config"]()
    before, after = flatten(get_config().to_dict()), flatten(made.to_dict())
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    data = ("data.h5.", "data.batch_size")
    return {"debug.jsonl.enabled": True} | {k: value for k, value in changed.items() if not k.startswith(data)}


def operations(lines: Sequence[str]) -> int:
    """How many a lowered text has."""
    return sum(re.match(r"\s+%\S+ = ", line) is not None for line in lines)


def lowered(names: Sequence[str], package: Path, directory: Path) -> None:
    """Writes `<name>.mlir` for each program of the checkout `package`, each in a process of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        env = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(PROGRAMS[name][1])}
        child = other_commit.start("lowered", ["--write", name, str(directory / f"{name}.mlir")], package, env)
        child.communicate()
        if child.returncode:
            raise SystemExit(f"{name} cannot be lowered with the packages of {package}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 1 where a program differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, PROGRAMS)
    parser.add_argument(
        "--baseline", default="HEAD", metavar="COMMIT", help="what to compare with (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the texts of both there")
    options = parser.parse_args(argv)
    differ = []
    with tempfile.TemporaryDirectory() as temporary, other_commit.worktree(options.baseline) as package:
        root = (options.keep or Path(temporary)).resolve()
        lowered(options.names, package, root / "baseline")
        lowered(options.names, other_commit.HERE, root / "here")
        for name in options.names:
            old, new = ((root / side / f"{name}.mlir").read_text().splitlines() for side in ("baseline", "here"))
            count, most = operations(new), MOST_OPERATIONS.get(name)
            if most is not None and count > most:
                print(f"{name}: {count} operations, more than {most}")
                differ.append(name)
            if old == new:
                print(f"{name}: identical, {len(new)} lines, {count} operations")
                continue
            differ.append(name)
            # a new operation renumbers all that follow it
            old, new = ([re.sub(r"%[\w#:]+|(?<=@)\w+", "%", line) for line in lines] for lines in (old, new))
            difference = list(difflib.unified_diff(old, new, options.baseline, "working tree", n=1, lineterm=""))
            changed = sum(line[0] in "+-" for line in difference[2:])
            print(f"{name}: differs in {changed} lines of {len(new)}", *difference[:SHOWN_LINES], sep="\n")
    return 1 if differ else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
