"""Makes a few updates on one batch and a trial checkpoint, and says what training would cost; leaves no run directory.

linnaeus check --config=configs/x.py [--out=check.png] [--all] [--minutes=10] [--config.a.b=c ...]

With --minutes it says which number of views and epochs fits that time on this machine.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from linnaeus_jax import tools
from linnaeus_jax.building.steps.starter_config import fitted, least_epochs
from linnaeus_jax.config import load_config
from linnaeus_jax.config.derived import default_workdir
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import Config
from linnaeus_jax.reporting.display import eta
from linnaeus_jax.reporting.logs import console
from linnaeus_jax.reporting.tables import table

if TYPE_CHECKING:
    from linnaeus_jax.learning.update import ParameterRow
    from linnaeus_jax.run.experiment import Experiment
    from linnaeus_jax.step.state import TrainState

TIMED_UPDATES = 5
#: seconds of starting, validating, saving and reporting that come to what is measured
BESIDE = 60.0


def save_images(path: Path, images: np.ndarray, titles: Sequence[str]) -> None:
    """Writes a contact sheet of uint8 images [n, H, W, 3]."""
    from matplotlib.figure import Figure

    columns = min(6, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(2 * columns, 2.3 * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, image, title in zip(axes.flat, images, titles, strict=False):
        axis.imshow(image)
        axis.set_title(textwrap.fill(title, 32), fontsize=7, parse_math=False)  # names may hold a dollar sign
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def parameter_table(rows: Sequence[ParameterRow], *, every: bool) -> Table:
    """What happens to each parameter, or to those of each module together."""
    if every:
        columns = ["name", "shape", "group", "optimizer", "weight decay", "LR factor"]
        cells = [
            [row.name, "x".join(map(str, row.shape)), row.group, row.optimizer, row.weight_decay, row.lr_multiplier]
            for row in rows
        ]
        return table("parameters", columns, cells)
    modules: dict[str, list[ParameterRow]] = {}
    for row in rows:
        first, *rest = row.name.split(".")
        modules.setdefault(f"{first}.{rest[0]}" if first == "stages" else first, []).append(row)

    def span(values: Iterable[float]) -> str:
        low, *_, high = sorted({*values}) * 2
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    cells = [
        [
            module,
            len(members),
            f"{sum(int(np.prod(row.shape)) for row in members):,}",
            ", ".join(dict.fromkeys(row.group for row in members)),
            ", ".join(dict.fromkeys(row.optimizer for row in members)),
            span(row.weight_decay for row in members),
            span(row.lr_multiplier for row in members),
        ]
        for module, members in modules.items()
    ]
    columns = ["module", "tensors", "parameters", "group", "optimizer", "weight decay", "LR factor"]
    return table("parameters by module (--all: every one)", columns, cells)


def trial_checkpoint(experiment: Experiment, state: TrainState) -> str:
    """Saves a checkpoint beside where the run directory would lie, reads it back and removes it; a line about it.

    Raises:
      UserError: it cannot be written, or what is read differs from what was saved.
    """
    import jax

    from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
    from linnaeus_jax.run.host_state import HostState
    from linnaeus_jax.run.resume import checkpoint_meta

    root = experiment.directory.root.resolve()
    place = next(path for path in (root, *root.parents) if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix="trial_checkpoint_", dir=place) as folder:
            with contextlib.closing(Checkpoints(Path(folder))) as checkpoints:
                started = time.perf_counter()
                meta = checkpoint_meta(experiment, HostState.of(experiment), state, at_end=False)
                checkpoints.save(0, state.arrays, meta)
                checkpoints.wait()
                saved = time.perf_counter()
                newest = checkpoints.restore_newest(experiment.abstract_state.arrays)
                restored = time.perf_counter()
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    except (OSError, CheckpointError) as error:
        raise UserError(f"a trial checkpoint in {place} failed: {error}") from error
    same = newest is not None and jax.tree.all(jax.tree.map(_identical, state.arrays, newest[1]))
    if not same:
        raise UserError(f"a trial checkpoint in {place} was not read back as it was saved; is this disk sound?")
    return f"checkpoint: {size / 1e6:.1f} MB, written in {saved - started:.1f} s, read back in {restored - saved:.1f} s"


def stored_like(experiment: Experiment, state: TrainState, batch: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """What is stored of the pictures uint8 [A, B, H, W, 3] of a batch, and the seconds that one picture takes."""

    from linnaeus_jax.run.stored import view_function

    view, placement = view_function(experiment), experiment.placement

    def made(image: np.ndarray, row: np.ndarray) -> np.ndarray:
        placed = placement.to_device({"image": image, "row": row}, placement.batch)
        return np.asarray(view(state.params, state.model_state, placed["image"], placed["row"], np.int32(1)))

    made(batch["image"][0], batch["row"][0])  # compiles
    started = time.perf_counter()
    stored = np.stack([made(image, row) for image, row in zip(batch["image"], batch["row"], strict=True)])
    return stored, (time.perf_counter() - started) / batch["row"].size


def within(minutes: float, config: Config, *, beside: float, storing: float, of_epoch: float, stored: bool) -> str:
    """What of a configuration fits a budget, in a line.

    Args:
      beside, storing, of_epoch: seconds that were measured: of all else, of storing a view of every training row, of an
        epoch.
      stored: whether anything is stored.

    Raises:
      UserError: nothing that is worth while.
    """
    train = config.train
    views, wanted = train.tune_views if stored else 0, train.epochs
    least = min(wanted, least_epochs(train.tune))
    times = {"storing": storing, "of_epoch": of_epoch, "beside": beside}
    found = fitted(60 * minutes, **times, views=views, wanted=wanted, least=least)
    if found is None:
        needed = (beside + storing + least * of_epoch) / 60
        fix = "heads alone (--config.train.tune=head), " if train.tune.startswith(("last:", "auto:")) else ""
        raise UserError(
            f"--minutes {minutes:g} is too little: storing and {least} epochs take {needed:.1f} minutes on this "
            f"machine; give more, or take {fix}fewer rows, a smaller picture or a smaller model"
        )
    seconds = beside + storing * (1 + found[0]) * stored + found[1] * of_epoch
    settings = {"train.tune_views": (views, found[0]), "train.epochs": (wanted, found[1])}
    changed = " ".join(f"--config.{key}={new}" for key, (old, new) in settings.items() if new != old)
    return f"in {minutes:g} minutes: {f'give {changed}; it takes' if changed else 'it fits as it is:'} {eta(seconds)}"


def _identical(left: Any, right: Any) -> bool:
    """Whether two arrays hold the same bits."""
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Builds everything that a run builds, makes a few updates on one batch and prints what it measured."""
    import jax

    from linnaeus_jax.files import RunDirectory
    from linnaeus_jax.run.experiment import preview_experiment
    from linnaeus_jax.run.pretrained import read_initial_weights
    from linnaeus_jax.step.compilation import compile_steps

    parser = tools.parser("check", __doc__)
    parser.add_argument("--out", type=tools.picture, default="check.png", help="picture of the first images")
    parser.add_argument("--all", action="store_true", help="a row for every parameter instead of every module")
    parser.add_argument("--minutes", type=tools.minutes, metavar="N", help="what fits this time on this machine")
    options, rest = parser.parse_known_args(argv)
    config, _ = load_config(rest)
    directory = RunDirectory(default_workdir(config))
    experiment = preview_experiment(config, directory, initial_weights=read_initial_weights)
    if experiment.weights is not None:
        console.print(experiment.weights.coverage.table(), soft_wrap=True)
    dataset = experiment.inputs.dataset
    console.print(dataset.report(), soft_wrap=True)

    # ---- what is trained how
    groups: dict[tuple[str, str, float], list[int]] = {}
    for row in experiment.program.settings.optimizer.rows:
        key = (row.group, row.optimizer, row.weight_decay)
        groups.setdefault(key, []).append(int(np.prod(row.shape)))
    console.print(
        table(
            "parameter groups",
            ["group", "optimizer", "weight decay", "tensors", "parameters"],
            [[*key, len(sizes), f"{sum(sizes):,}"] for key, sizes in groups.items()],
        )
    )
    console.print(parameter_table(experiment.program.settings.optimizer.rows, every=options.all))

    # ---- one batch, one update and a few more for the clock
    with experiment.inputs.train_loader(0) as loader:
        _, batch = next(loader)
    pictures, view_seconds = batch["image"], 0.0
    state = experiment.initial_state()
    if experiment.program.stored is not None:
        batch["image"], view_seconds = stored_like(experiment, state, batch)
    placed = experiment.placement.to_device(batch, experiment.placement.update)
    rows = []
    steps = compile_steps(experiment.program, state, placed, experiment.placement, donate=experiment.debug.donates)
    for name, step in steps.items():
        state, outputs = jax.block_until_ready(step(state, placed))
        started = time.perf_counter()
        for _ in range(TIMED_UPDATES):
            state, outputs = step(state, placed)
        jax.block_until_ready(outputs.loss)
        seconds = (time.perf_counter() - started) / TIMED_UPDATES
        rows.append([name, f"{step.seconds:.1f} s", f"{step.memory_bytes / 1e6:.0f} MB", f"{seconds:.3f} s"])
    plain = float(rows[0][3].split()[0])
    updates = int(experiment.inputs.plans.steps_per_epoch[0])
    console.print(table("compiled steps", ["step", "compile", "memory per device", "time per update"], rows))
    console.print(f"loss after {1 + TIMED_UPDATES} updates on one batch: {float(outputs.loss):.4f}")
    console.print(
        f"{batch['weight'].size / plain:.0f} images/s on {experiment.placement.device_count} device(s); "
        f"an epoch of {updates} updates takes {eta(updates * plain)} "
        f"and all {experiment.resolved.epochs} epochs {eta(experiment.resolved.total_steps * plain)}"
    )
    if experiment.program.stored is not None:
        made = experiment.program.views * len(dataset.train) + len(dataset.val)
        size = made * int(np.prod(experiment.program.stored.shape)) * experiment.program.stored.dtype.itemsize
        console.print(
            f"before them {made:,} views of pictures are stored, at {1 / view_seconds:.0f} a second: "
            f"{eta(made * view_seconds)}, {size / 1e6:,.1f} MB"
        )
    if options.minutes is not None:
        compiling, of_epoch = sum(step.seconds for step in steps.values()), updates * plain
        times = {
            "beside": compiling + view_seconds * len(dataset.val) + BESIDE,
            # with auto:N the last blocks read every view once more, and heads are fitted to what they make of it
            "storing": view_seconds * len(dataset.train) + of_epoch * config.train.tune.startswith("auto:") / 2,
            "of_epoch": of_epoch,
        }
        stored = experiment.program.stored is not None
        console.print(within(options.minutes, experiment.config, **times, stored=stored), soft_wrap=True)
    console.print(trial_checkpoint(experiment, state))
    images = pictures[0][:24]
    finest, dataset = experiment.inputs.dataset.tasks[0], experiment.inputs.dataset
    names = [
        f"row {row}: {dataset.class_name(finest, label[0])}"
        for row, label in zip(batch["row"][0], batch["label"][0], strict=True)
    ]
    save_images(options.out, images, names)
    console.print(f"first images: {options.out}")


if __name__ == "__main__":
    sys.exit(main())
