"""The programs that a GPU would run, compiled without a GPU, and what they would do there.

    python -m benchmarks.gpu_program [update] [gradnorm] [evaluation] [predict] [--model mFormerV1-sm] [--img-size 384]
        [--rows 64] [--target h100] [--devices 8 --fsdp] [--baseline COMMIT] [--add]
    python -m benchmarks.gpu_program --compare OLD.json NEW.json

XLA's compiler for GPUs gets a description of the device (`gpu_targets/`) in place of one, so that neither a GPU nor a
driver is needed: `pip install -c constraints.txt '.[gpu-program]'`. Fusions, layouts and the memory are those of a GPU,
up to what is chosen there by trying: without a device a matrix product gets fixed tiles of Triton, see --xla. The
figures compare programs. They are no times: `roof_ms` is the sum over kernels of the longer of bytes / bandwidth and
FLOPs / peak. A baseline is compiled by the same rule; --compare prints ratios of two files of results. Writes
results/gpu_program.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, write_results
from benchmarks.gpu_kernels import Listing, figures, listing
from benchmarks.other_commit import HERE, here, start, worktree

PROGRAMS = ("update", "gradnorm", "evaluation", "predict")
CONFIGS = ("default", "bare", "everything")
#: the compiler; its version is that of jaxlib
COMPILER = "jax-cuda13-pjrt"


@dataclass(frozen=True)
class Target:
    """A GPU that programs can be compiled for: its description's file, and dense peaks in FLOP/s."""

    name: str
    bfloat16: float
    tensorfloat32: float

    @property
    def file(self) -> Path:
        """A `GpuTargetConfigProto` as text."""
        return HERE / "benchmarks" / "gpu_targets" / f"{self.name}.txtpb"

    @property
    def bandwidth(self) -> float:
        """Bytes per second of its memory."""
        found = re.search(r"memory_bandwidth: (\d+)", self.file.read_text())
        assert found is not None
        return float(found[1])


TARGETS = {
    target.name: target
    for target in (Target("h100", 990e12, 495e12), Target("a100", 312e12, 156e12), Target("l4", 121e12, 60e12))
}


def missing() -> str:
    """Why nothing can be compiled here, and what to do; empty if it can."""
    how = "install it with: pip install -c constraints.txt '.[gpu-program]'"
    try:
        found = metadata.version(COMPILER)
    except metadata.PackageNotFoundError:
        return f"XLA's compiler for GPUs ({COMPILER}) is not installed; {how}"
    wanted = metadata.version("jaxlib")
    return "" if found == wanted else f"{COMPILER} {found} does not suit jaxlib {wanted}; {how}"


@dataclass(frozen=True)
class Options:
    """What is compiled, besides which program."""

    model: str = "mFormerV1-sm"
    img_size: int = 384
    rows: int = 64  # pictures of an update, over all devices
    config: str = "default"
    target: str = "h100"
    devices: int = 1
    fsdp: bool = False
    remat: bool = False
    changes: tuple[tuple[str, Any], ...] = ()
    xla: tuple[tuple[str, Any], ...] = ()

    def label(self, program: str) -> str:
        """What a row of a table is called."""
        parts = [program, self.model, f"{self.img_size} px", f"{self.rows} rows", self.target]
        parts += [self.config] if self.config != "default" else []
        parts += [f"{self.devices} devices"] if self.devices > 1 else []
        parts += [name for name in ("fsdp", "remat") if getattr(self, name)]
        return ", ".join(parts + [f"{key}={value}" for key, value in (*self.changes, *self.xla)])

    def settings(self, program: str) -> str:
        """For the child that compiles."""
        target = str(TARGETS[self.target].file)
        pairs = {"changes": dict(self.changes), "xla": dict(self.xla)}
        return json.dumps({**vars(self), **pairs, "program": program, "target_file": target})


def compiled(program: str, options: Options, package: Path = HERE, keep: Path | None = None) -> dict[str, Any]:
    """Figures of a program of the checkout `package`, see `described`.

    Args:
      keep: a directory for the compiled programs' texts.

    Raises:
      SystemExit: it cannot be compiled; messages of the compiler stand above.
    """
    env = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(options.devices), "XLA_FLAGS": ""}
    env |= {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    with tempfile.TemporaryDirectory() as temporary:
        directory = (keep or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        child = start("gpu_worker", [options.settings(program), str(directory)], package, env)
        child.communicate()
        if child.returncode:
            raise SystemExit(f"{options.label(program)} cannot be compiled with the packages of {package}")
        return described(directory, options)


def described(directory: Path, options: Options) -> dict[str, Any]:
    """Figures of what was compiled into a directory: those of `gpu_kernels.figures`, and memory of one device in MB.

    Kernels of several programs count together; the memory is that of the largest.
    """
    memory: dict[str, dict[str, int]] = json.loads((directory / "memory.json").read_text())
    parts = [listing((directory / f"{name}.txt").read_text()) for name in memory]
    whole = Listing(
        [kernel for part in parts for kernel in part.kernels],
        [loop for part in parts for loop in part.loops],
        [scope for part in parts for scope in part.conditionals],
    )
    target, pictures = TARGETS[options.target], options.rows // options.devices
    found = figures(whole, pictures, target.bandwidth, {"bf16": target.bfloat16, "f32": target.tensorfloat32})
    for name in ("donated", "arguments", "results", "aliased", "temporary"):
        found[f"{name}_mb"] = round(max(part[name] for part in memory.values()) / 1e6, 3)
    total = max(part["arguments"] + part["results"] - part["aliased"] + part["temporary"] for part in memory.values())
    return found | {"memory_mb": round(total / 1e6, 3)}


def row(label: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a table; lists and groups by their number."""
    single = {key: value for key, value in found.items() if isinstance(value, int | float)}
    convolutions = ", ".join(f"{count} {kind}" for kind, count in found["convolutions"].items())
    lists = {key: len(found[key]) for key in ("unknown_loops", "conditionals")}
    collectives = ", ".join(
        f"{sums['kernels']} {kind} ({sums['beside_ms']:.2f} ms beside)" for kind, sums in found["collectives"].items()
    )
    return {"program": label, **single, **lists, "convolutions": convolutions, "collectives": collectives}


def table(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each figure, with a column for each program."""
    lines = {label: row(label, one) for label, one in found.items()}
    names = [name for name in next(iter(lines.values())) if name != "program"]
    return [{"figure": name} | {label: line[name] for label, line in lines.items()} for name in names]


def ratios(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each program that both have, and each figure that differs: before, after, after / before."""
    lines: list[dict[str, Any]] = []
    for label in (label for label in new if label in old):
        before, after = row(label, old[label]), row(label, new[label])
        for key in after:
            if after[key] != before.get(key):
                line = {"program": label, "figure": key, "before": before.get(key, ""), "after": after[key]}
                both = (line["before"], line["after"])
                if all(isinstance(value, int | float) for value in both) and both[0]:
                    line["ratio"] = round(both[1] / both[0], 3)
                lines.append(line)
    return lines


def _pair(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = Options()
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"{', '.join(PROGRAMS)} (default: update)")
    parser.add_argument("--model", default=given.model, help="family-variant (default: %(default)s)")
    parser.add_argument("--img-size", type=int, default=given.img_size, help="side of the pictures in pixels")
    parser.add_argument("--rows", type=int, default=given.rows, help="over all devices (default: %(default)s)")
    parser.add_argument("--config", choices=CONFIGS, default=given.config, help="what a step does besides the model")
    parser.add_argument("--target", choices=tuple(TARGETS), default=given.target, help="GPU (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=given.devices, help="GPUs of one host (default: %(default)s)")
    parser.add_argument("--fsdp", action="store_true", help="parameters and optimizer are split over the devices")
    parser.add_argument("--remat", action="store_true", help="gradient checkpointing")
    parser.add_argument("--set", type=_pair, nargs="*", default=(), metavar="KEY=VALUE", help="changes of the config")
    parser.add_argument(
        "--xla",
        type=_pair,
        nargs="*",
        default=(),
        metavar="OPTION=VALUE",
        help="options of the compiler; xla_gpu_enable_triton_gemm=False takes cuBLAS for all products",
    )
    parser.add_argument("--baseline", metavar="COMMIT", help="another commit to compare with")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="JSON", help="only print ratios of two results")
    parser.add_argument("--add", action="store_true", help="programs of the file of results that are not compiled stay")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the texts of the compiled programs there")
    parser.add_argument("--name", default="gpu_program", help="of the file of results (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.compare:
        old, new = (json.loads(path.read_text())["programs"] for path in args.compare)
        _print(ratios(old, new))
        return
    programs = args.programs or ["update"]
    if unknown := set(programs) - set(PROGRAMS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PROGRAMS)}")
    if reason := missing():
        raise SystemExit(reason)
    given = {name: value for name, value in vars(args).items() if name in Options.__dataclass_fields__}
    options = Options(**{**given, "changes": tuple(args.set), "xla": tuple(args.xla)})
    keep, commit = args.keep, here()

    def all_of(package: Path, side: str) -> dict[str, dict[str, Any]]:
        return {
            options.label(name): compiled(name, options, package, keep / side / name if keep else None)
            for name in programs
        }

    found, before = all_of(HERE, "here"), None
    if args.baseline:
        with worktree(args.baseline) as package:
            before = all_of(package, "baseline")
        _print(ratios(before, found))
    command = shlex.join(["python", "-m", "benchmarks.gpu_program", *(sys.argv[1:] if argv is None else argv)])
    command = re.sub(r" --keep[ =](\S+)", "", command)  # a place of this machine, without influence
    details = {"programs": {label: {"command": command, "commit": commit} | one for label, one in found.items()}}
    if before:
        details["baseline"] = {label: {"commit": args.baseline} | one for label, one in before.items()}
    if args.add and (RESULTS / f"{args.name}.json").is_file():
        earlier = json.loads((RESULTS / f"{args.name}.json").read_text())
        details = {key: earlier.get(key, {}) | details.get(key, {}) for key in ("programs", "baseline")}
    print(write_results(args.name, table(found), command, details))


def _print(lines: Sequence[Mapping[str, Any]]) -> None:
    for line in lines:
        ratio = f"  x {line['ratio']}" if "ratio" in line else ""
        print(f"{line['program']}: {line['figure']} {line['before']} -> {line['after']}{ratio}")


if __name__ == "__main__":
    main()
