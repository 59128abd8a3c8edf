"""What the parts of a training update cost: each against the same update without it, in one run.

    python -m benchmarks.step_features [schedules] [gradnorm] [features] [depthwise]

  schedules    traced schedules of the learning rates and probabilities against constants, everything else the same
  gradnorm     an update that measures GradNorm against a plain one, four tasks; and four separate gradients
  features     augmentation, mixing, masking, smoothing, weights, EMA and clipping against none of them; then each alone
  depthwise    the depthwise 7x7 convolution and its gradient by implementation, in the shapes of the model

Without a name, all of them run. `ratio` = time over the baseline's, median over interleaved rounds with quartiles;
`control` = the baseline against itself, whose distance from 1 is the noise. Images are random, labels generated; the
update is the compiled one of a real run. Without --model, mFormerV1-tiny at 64 pixels and mFormerV1-sm at 224 are
measured (schedules: the former, depthwise: the latter). The sm model needs a minute or two per compilation on a small
CPU; `--groups everything` leaves the single features out. Each benchmark writes results/step_<name>.json. Whole steps
are measured by `benchmarks.train_step`.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.common import Ratios, add_names, interleaved, write_results
from benchmarks.step_common import (
    BARE,
    EVERYTHING,
    FEATURES,
    MODELS,
    Built,
    Case,
    build,
    default_cases,
    ratio_row,
    repeated,
    write_labels,
)
from linnaeus_jax.config import get_config
from linnaeus_jax.models import build_model
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS, depthwise_conv
from linnaeus_jax.schedules.probabilities import Probabilities
from linnaeus_jax.step.program import Program

Row = dict[str, Any]
EVERYTHING_LIMIT = 1.15
GRADNORM = {"loss.grad_weighting.task.type": "gradnorm", "loss.grad_weighting.task.gradnorm_enabled": True}
GRADNORM_SAME_LOSS = {"data.partial.levels": False, "loss.grad_weighting.task.zero_aux_info": False}


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line."""

    cases: tuple[Case, ...]  # the small one first
    pairs: int
    updates: int
    groups: tuple[str, ...]
    labels: Path


# ---------------------------------------------------------------------------------------------------- schedules
def with_constants(program: Program) -> Program:
    """The same program with learning rates and probabilities that do not depend on the step."""

    rates = {name: optax.constant_schedule(1e-4) for name in program.settings.learning_rates}
    fixed = Probabilities(
        meta_mask=optax.constant_schedule(0.5),
        partial_active=optax.constant_schedule(True),
        partial_mask=optax.constant_schedule(0.5),
        null_mask=optax.constant_schedule(0.5),
        mix=optax.constant_schedule(0.5),
    )
    return dataclasses.replace(
        program,
        objective=dataclasses.replace(program.objective, probabilities=fixed),
        settings=dataclasses.replace(program.settings, learning_rates=rates),
    )


def schedules(options: Options) -> list[Row]:
    """Scheduled against constant."""
    case = options.cases[0]
    built = build(case, options.labels, {**BARE, **EVERYTHING})
    fixed = dataclasses.replace(built, program=with_constants(built.program))
    times = compare(fixed.stepper("constants"), built.stepper("schedules"), options)
    return [{**case.row(), **ratio_row("schedules / constants", times, options.updates)}]


def compare(baseline: Callable[[], object], rival: Callable[[], object], options: Options) -> Ratios:
    """Interleaved rounds of `options.updates` calls."""
    return interleaved(repeated(baseline, options.updates), repeated(rival, options.updates), options.pairs)


# ----------------------------------------------------------------------------------------------------- GradNorm
def separate_gradients(built: Built, state: Any) -> Callable[[], object]:
    """One compiled program per task that computes the gradient of its loss alone, run one after the other."""
    objective, batch = built.program.objective, built.batches[0]

    def gradient(task: int) -> jax.stages.Compiled:
        def loss(params: Any, batch: dict[str, jax.Array], step: jax.Array) -> tuple[jax.Array, Any]:
            targets, counts = objective.build_targets(batch, step)
            micro, target = jax.tree.map(lambda x: x[0], (batch, targets))
            losses, aux = objective.task_losses(params, model_state, micro, target, counts, step, jnp.int32(0))
            return losses[task], aux

        placement = built.placement
        function = jax.jit(
            jax.value_and_grad(loss, has_aux=True),
            in_shardings=(placement.replicated, placement.update, placement.replicated),
            out_shardings=placement.replicated,
        )
        return function.lower(params, batch, step).compile()

    # copies: the state of a stepper is given away with each update
    params, model_state, step = jax.tree.map(jnp.array, (state.params, state.model_state, state.step))
    programs = [gradient(task) for task in range(len(objective.tasks))]
    return lambda: [program(params, batch, step) for program in programs]


def gradnorm(options: Options) -> list[Row]:
    """Measuring against plain updates; remat as in the case (the rivals of a row have the same)."""
    rows = []
    for case in options.cases:
        for what, limit, changes in (
            ("training loss measured", 3.0, {**GRADNORM, **GRADNORM_SAME_LOSS}),
            ("default keys (without metadata)", 3.8, GRADNORM),
        ):
            measuring = build(case, options.labels, changes, variant="gradnorm")
            plain = dataclasses.replace(measuring, variant="plain").stepper()
            step = measuring.stepper()
            times = compare(plain, step, options)
            flops = step.compiled.flops / max(plain.compiled.flops, 1.0)
            rows.append({**case.row(), **ratio_row(what, times, options.updates, limit), "flops_ratio": flops})
            del step
            if changes == GRADNORM:
                continue
            times = compare(plain, separate_gradients(measuring, plain.state), options)
            rows.append({**case.row(), **ratio_row("4 separate gradients, no update", times, options.updates)})
    return rows


# ----------------------------------------------------------------------------------------------------- features
def features(options: Options) -> list[Row]:
    """Everything against nothing, then the groups one at a time."""
    rows = []
    for case in options.cases:
        bare = build(case, options.labels, BARE).stepper("bare")
        for name in options.groups:
            changes = EVERYTHING if name == "everything" else FEATURES[name]
            step = build(case, options.labels, {**BARE, **changes}).stepper(name)
            times = compare(bare, step, options)
            limit = EVERYTHING_LIMIT if name == "everything" else None
            rows.append({**case.row(), **ratio_row(name, times, options.updates, limit)})
            del step  # two states at a time are enough
    return rows


# ---------------------------------------------------------------------------------------------------- depthwise
def depthwise(options: Options) -> list[Row]:
    """Value and both gradients of the convolution, in the shapes of the two convolutional stages."""
    case = options.cases[-1]
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    section = get_config().model
    section.type, section.variant = case.model.rsplit("-", 1)
    model = build_model(section, components=(), num_classes={"task": 2}, img_size=case.img_size)
    baseline, *others = (impl for impl in DEPTHWISE_IMPLS if impl != "auto")
    rows = []
    for stage, channels in enumerate(model.dims[:2]):
        side = case.img_size // (4 << stage)
        shape = (case.batch, side, side, channels)
        kernel_key, *keys = jax.random.split(jax.random.key(0), 3)
        x, cotangent = (jax.random.normal(key, shape, dtype) for key in keys)
        kernel = jax.random.normal(kernel_key, (7, 7, 1, channels), dtype)
        first = depthwise_training(baseline, x, kernel, cotangent)
        for impl in others:
            times = compare(first, depthwise_training(impl, x, kernel, cotangent), options)
            about = {"shape": "x".join(map(str, shape)), "dtype": jnp.dtype(dtype).name}
            rows.append({**about, **ratio_row(f"{impl} / {baseline}", times, options.updates)})
    return rows


def depthwise_training(impl: str, *arguments: jax.Array) -> Callable[[], object]:
    """A call that computes value and gradients of one implementation; arguments are x, kernel and y's cotangent."""

    def run(x: jax.Array, kernel: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, Any]:
        y, pullback = jax.vjp(lambda x, kernel: depthwise_conv(x, kernel, impl=impl), x, kernel)
        return y, pullback(cotangent)

    compiled = jax.jit(run).lower(*arguments).compile()
    return lambda: compiled(*arguments)


# ------------------------------------------------------------------------------------------------- command line
BENCHMARKS: dict[str, Callable[[Options], list[Row]]] = {
    "schedules": schedules,
    "gradnorm": gradnorm,
    "features": features,
    "depthwise": depthwise,
}


def cases_of(args: argparse.Namespace) -> tuple[Case, ...]:
    """The default cases, or the one that --model names, with the other options in place."""
    cases: tuple[Case, ...] = default_cases()
    if args.model is not None:
        known = {case.model: case for case in cases}
        cases = (known.get(args.model, dataclasses.replace(cases[-1], model=args.model)),)
    changes = {key: getattr(args, key) for key in ("img_size", "batch", "remat") if getattr(args, key) is not None}
    return tuple(dataclasses.replace(case, **changes) for case in cases)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, BENCHMARKS)
    parser.add_argument("--pairs", type=int, default=12, help="interleaved rounds, at least 2 (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1, help="updates of one measurement (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, help="only this model")
    parser.add_argument("--img-size", type=int, help="side of the images in pixels")
    parser.add_argument("--batch", type=int, help="rows of an update")
    parser.add_argument(
        "--remat", action=argparse.BooleanOptionalAction, help="gradient checkpointing (default: tiny no, others yes)"
    )
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=("everything", *FEATURES),
        default=("everything", *FEATURES),
        help="features: which comparisons to make (default: all)",
    )
    args = parser.parse_args(argv)
    typed = sys.argv[1:] if argv is None else argv
    with tempfile.TemporaryDirectory() as directory:
        labels = write_labels(Path(directory) / "labels.h5")
        options = Options(cases_of(args), args.pairs, args.updates, tuple(args.groups), labels)
        for name in args.names:
            command = shlex.join(["python", "-m", "benchmarks.step_features", *typed])
            print(write_results(f"step_{name}", BENCHMARKS[name](options), command))


if __name__ == "__main__":
    main()
