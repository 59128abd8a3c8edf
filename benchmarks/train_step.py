"""Training and evaluation steps of one model: pictures per second, operations per second, memory traffic and memory.

    python -m benchmarks.train_step [--model mFormerV1-sm --img-size 224 --batch 8] [--baseline [COMMIT]] [--torch]

Every program runs in a child process and is told to make its repetitions, in rounds that alternate between all of
them. In the same rounds a chain of large matrix products and a sum of large arrays say what the machine can do, and
`matmul_share` and `bandwidth_share` are relative to them. `tflop_per_s` counts what the model needs, not what an
implementation spends: 2 operations per multiply-add of the forward pass, and three forward passes for training.
`compiled_mb` are the bytes that the instructions of the compiled program read and write for one picture, by part in
the JSON file; `temporaries_mb` and `arguments_mb` are the compiler's figures for the whole batch.

--baseline measures the steps of another commit (default 574d9d1), too: `speedup` is its time over that of the working
tree, median over the rounds with quartiles, and `control` the working tree against itself, whose distance from 1 is
the noise; `cpu_speedup` is the ratio of CPU seconds, which says more on a busy machine. --torch compares with timm
models (pip install -e '.[bench]'), those that are named, else ConvNeXt-T, on a GPU with ViT-S; compiled on a GPU, else
eager, channels last: `picture_speed` is the working tree's pictures per second relative to theirs, with quartiles,
`flop_speed` the same of operations. --torch-python is the interpreter that has timm, if this one has not. --hdf5 also
reads the pictures from a file: `of_synthetic` is its speed relative to pictures that wait on the device; give --updates
20 or more, so that the loader has to keep up.
Writes results/train_step.json (--name).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from benchmarks import other_commit, traffic
from benchmarks.common import compared, machine_info, write_results
from benchmarks.compiled_traffic import instructions
from benchmarks.step_common import CLASSES, MODELS, TASKS
from benchmarks.step_worker import Settings
from linnaeus_jax.config import get_config
from linnaeus_jax.models import build_model
from linnaeus_jax.models.cost import forward_multiply_adds

Row = dict[str, Any]
STEPS = ("training", "evaluation")
PASSES = {"training": 3.0, "evaluation": 1.0}  # forward passes' worth of operations
#: metadata columns of the generated labels
COMPONENTS = (("TEMPORAL", 2), ("SPATIAL", 3))


class Worker:
    """A child process that answers how long what it was told to do took."""

    def __init__(self, process: subprocess.Popen[str], who: str) -> None:
        self._process, self._who = process, who
        self.facts: dict[str, Any] = self.answer()
        self.cpu_seconds: dict[str, list[float]] = {}

    def answer(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the process of {self._who} ended; its own messages stand above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __call__(self, what: str, times: int = 1) -> float:
        """Seconds of `times` repetitions."""
        answer = self.ask(what, times)
        self.cpu_seconds.setdefault(what, []).append(answer["cpu_seconds"] / times)
        return float(answer["seconds"])

    def ask(self, what: str, times: int = 1) -> dict[str, Any]:
        """What it answers to one line."""
        self.tell(what, times)
        return self.answer()

    def tell(self, what: str, times: int = 1) -> None:
        """Lets it begin; `answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {times}\n")
        self._process.stdin.flush()

    def cpu(self, what: str) -> float:
        """Median CPU seconds of one repetition, without the first."""
        return statistics.median(self.cpu_seconds[what][1:])


@contextlib.contextmanager
def worker(
    program: str, settings: Any, package: Path = other_commit.HERE, python: str = sys.executable
) -> Iterator[Worker]:
    """`benchmarks/<program>.py` with the packages of a checkout, ended after the `with`."""
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # several processes use the memory of one GPU
    with other_commit.start(program, [json.dumps(settings)], package, shared, python) as process:
        try:
            yield Worker(process, f"benchmarks/{program}.py with the packages of {package}")
        finally:
            assert process.stdin is not None
            process.stdin.close()  # which ends it, after it has removed its files
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def flops_per_image(model: str, img_size: int) -> float:
    """Operations of one picture's forward pass, metadata and heads of the generated labels included."""
    section = get_config().model
    section.type, section.variant = model.rsplit("-", 1)
    classes = {task: 1 + count for task, count in zip(TASKS, CLASSES, strict=True)}
    built = build_model(section, components=COMPONENTS, num_classes=classes, img_size=img_size)
    return 2.0 * forward_multiply_adds(built)


def traffic_by_part(text: str, batch: int) -> dict[str, float]:
    """Megabytes per picture of the instructions of a compiled program, by part of the model."""
    parts: dict[str, float] = {}
    for instruction in instructions(text):
        scope = instruction.scope.rpartition("/")[0]  # the last name is that of the operation
        part = traffic.part_of(scope) if scope else "without a name"
        parts[part] = parts.get(part, 0.0) + instruction.bytes / batch / 1e6
    return {part: round(size, 2) for part, size in sorted(parts.items(), key=lambda item: -item[1])}


def measure(args: argparse.Namespace, settings: Settings) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and what else is worth keeping."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hlo = directory / "hlo.txt"
        parts = (*settings.parts, "matmul", "bandwidth", *(("hdf5",) if args.hdf5 else ()))
        own_settings = dataclasses.replace(settings, parts=parts, hlo=str(hlo))
        own = stack.enter_context(worker("step_worker", dataclasses.asdict(own_settings)))
        base = None
        if args.baseline:
            checkout = stack.enter_context(other_commit.worktree(args.baseline))
            base = stack.enter_context(worker("step_worker", dataclasses.asdict(settings), checkout))
        ceilings = _ceilings(own, args.pairs)
        rows = [_step_row(args, step, own, base, ceilings) for step in settings.parts]
        details: dict[str, Any] = {"ceilings": ceilings, "device": own.facts["device"], "working_tree": own.facts}
        details["working_tree"] |= own.ask("memory")
        if base is not None:
            details["baseline"] = {"commit": args.baseline, **base.facts, **base.ask("memory")}
        if "training" in settings.parts:
            details["compiled_mb_by_part"] = traffic_by_part(hlo.read_text(), settings.batch)
            details["compiled_mb_by_compiler"] = round(
                own.facts["training"]["compiled_bytes"] / settings.batch / 1e6, 1
            )
            rows[0]["compiled_mb"] = round(sum(details["compiled_mb_by_part"].values()), 1)
        if args.hdf5:
            rows.append(_hdf5_row(args, own))
        if args.torch is not None:
            rows += _torch_rows(args, settings, own, stack)
        return rows, details


def _ceilings(own: Worker, pairs: int) -> dict[str, float]:
    """Operations and bytes per second of all devices, medians."""
    seconds = {what: [own(what) for _ in range(pairs + 1)][1:] for what in ("matmul", "bandwidth")}
    products, sums = own.facts["matmul"], own.facts["bandwidth"]
    return {
        "flop_per_s": products["flops"] * products["devices"] / statistics.median(seconds["matmul"]),
        "bytes_per_s": sums["bytes"] * sums["devices"] / statistics.median(seconds["bandwidth"]),
    }


def _step_row(args: argparse.Namespace, step: str, own: Worker, base: Worker | None, ceilings: dict[str, float]) -> Row:
    rival = own if base is None else base
    times = compared(lambda: own(step, args.updates), lambda: rival(step, args.updates), args.pairs)
    seconds, facts = times.f_seconds / args.updates, own.facts[step]
    operations = PASSES[step] * flops_per_image(args.model, args.img_size) * args.batch
    row: Row = {
        "step": step,
        "images_per_s": round(args.batch / seconds, 2),
        "ms": round(seconds * 1e3, 2),
        "cpu_s": round(own.cpu(step), 3),
        "tflop_per_s": round(operations / seconds / 1e12, 4),
        "matmul_share": round(operations / seconds / ceilings["flop_per_s"], 3),
        "bandwidth_share": round(facts["compiled_bytes"] / seconds / ceilings["bytes_per_s"], 3),
        **{name: facts[name] for name in ("temporaries_mb", "arguments_mb", "compile_s") if name in facts},
        "control": round(times.control, 3),
    }
    if base is not None:
        row |= {
            "baseline_ms": round(times.g_seconds / args.updates * 1e3, 2),
            "baseline_temporaries_mb": base.facts[step].get("temporaries_mb"),
            "speedup": round(times.ratio, 3),
            "speedup_low": round(times.ratio_low, 3),
            "speedup_high": round(times.ratio_high, 3),
            "cpu_speedup": round(base.cpu(step) / own.cpu(step), 3),
        }
    return row


def _hdf5_row(args: argparse.Namespace, own: Worker) -> Row:
    """Updates on pictures that are read from a file, next to those on pictures that are on the device."""
    times = compared(lambda: own("training", args.updates), lambda: own("hdf5", args.updates), args.pairs)
    return {
        "step": "training from HDF5",
        "images_per_s": round(args.batch * args.updates / times.g_seconds, 2),
        "ms": round(times.g_seconds / args.updates * 1e3, 2),
        "cpu_s": round(own.cpu("hdf5"), 3),
        "of_synthetic": round(1 / times.ratio, 3),
        "control": round(times.control, 3),
    }


def _torch_rows(
    args: argparse.Namespace, settings: Settings, own: Worker, stack: contextlib.ExitStack
) -> Iterator[Row]:
    """The steps of timm models in the same rounds as ours, compared by operations per second."""
    usual = ("convnext_tiny", "vit_small_patch16_224") if "NVIDIA" in own.facts["device"] else ("convnext_tiny",)
    models = args.torch or usual
    ours = flops_per_image(args.model, args.img_size)
    for name in models:
        asked = {"model": name, "img_size": args.img_size, "batch": args.batch, "dtype": args.dtype}
        rival = stack.enter_context(worker("torch_worker", asked, python=args.torch_python))
        theirs = rival.facts["flops_per_image"]
        for step in settings.parts:
            times = compared(
                lambda step=step: own(step, args.updates),  # type: ignore[misc]
                lambda step=step, rival=rival: rival(step, args.updates),  # type: ignore[misc]
                args.pairs,
            )
            speeds = ours / times.f_seconds, theirs / times.g_seconds
            yield {
                "step": f"{step}: timm {name}, {rival.facts['how']}",
                "images_per_s": round(args.batch * args.updates / times.g_seconds, 2),
                "ms": round(times.g_seconds / args.updates * 1e3, 2),
                "tflop_per_s": round(PASSES[step] * speeds[1] * args.batch * args.updates / 1e12, 4),
                "picture_speed": round(times.ratio, 3),
                "picture_speed_low": round(times.ratio_low, 3),
                "picture_speed_high": round(times.ratio_high, 3),
                "flop_speed": round(speeds[0] / speeds[1], 3),
                "control": round(times.control, 3),
            }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help=f"which of {', '.join(STEPS)} (default: both)")
    parser.add_argument("--model", choices=MODELS, default="mFormerV1-sm", help="family-variant (default: %(default)s)")
    parser.add_argument("--img-size", type=int, default=224, help="side of the pictures (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="rows over all devices (default: %(default)s)")
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="to compute in (default: %(default)s)"
    )
    parser.add_argument(
        "--remat", action=argparse.BooleanOptionalAction, help="gradient checkpointing (default: as configured)"
    )
    parser.add_argument(
        "--keep-freed-memory", action=argparse.BooleanOptionalAction, default=True, help="as a run does (default: yes)"
    )
    parser.add_argument("--everything", action="store_true", help="with every feature of the step on")
    parser.add_argument("--baseline", nargs="?", const=other_commit.BASELINE, help="measure this commit, too")
    parser.add_argument("--hdf5", action="store_true", help="measure training with pictures read from a file, too")
    parser.add_argument("--torch", nargs="*", metavar="NAME", help="measure timm models, too (extra `bench`)")
    parser.add_argument("--torch-python", default=sys.executable, help="that has timm (default: this one)")
    parser.add_argument("--pairs", type=int, default=12, help="rounds, at least 2 (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1, help="repetitions in a round (default: %(default)s)")
    parser.add_argument("--name", default="train_step", help="of the file in results/ (default: %(default)s)")
    args = parser.parse_args(argv)
    for step in args.steps:
        if step not in STEPS:
            parser.error(f"{step!r} is none of {', '.join(STEPS)}")
    here = args.torch_python == sys.executable
    if args.torch is not None and here and not all(importlib.util.find_spec(name) for name in ("torch", "timm")):
        parser.error("--torch needs torch and timm: pip install -e '.[bench]'")
    if args.hdf5 and "training" not in (args.steps or STEPS):
        parser.error("--hdf5 needs the step training")
    settings = Settings(
        model=args.model,
        img_size=args.img_size,
        batch=args.batch,
        dtype=args.dtype,
        remat=args.remat,
        everything=args.everything,
        keep_freed_memory=args.keep_freed_memory,
        parts=tuple(step for step in STEPS if step in (args.steps or STEPS)),
    )
    jax.config.update("jax_platforms", "cpu")  # of this process, which only counts; its children find the devices
    rows, details = measure(args, settings)
    typed = sys.argv[1:] if argv is None else argv
    named = [word.replace(args.torch_python, "PYTHON") for word in typed]  # where it lies is of one machine
    command = shlex.join(["python", "-m", "benchmarks.train_step", *named])
    details["machine"] = machine_info() | {"devices": [details["device"]]}
    print(write_results(args.name, rows, command, {"settings": dataclasses.asdict(settings), **details}))


if __name__ == "__main__":
    main()
