"""What correcting the running moments of batch norm for their start gains, from random weights.

    nice python -m benchmarks.running_moments [--updates 75 150 300] [--rows 64]

EfficientNet-Lite0, whose momentum is 0.01, is trained on the demo data; gradients do not depend on running moments, so
that one run is evaluated with each kind of them: `torch`, which begin with 0 and 1; `adam`, with the correction of
Adam's moments; `ramp`, as the program keeps them; `anew`, of 20 batches under the weights that are evaluated. Accuracy
of each in percent of the validation rows labelled at the finest rank, and the loss.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import write_results
from benchmarks.heads_on_demo import ROOT
from linnaeus_jax.config import load_config
from linnaeus_jax.demo.generate import write_demo
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.metrics.phases import MAIN
from linnaeus_jax.models.batch_norm import with_moment_counts
from linnaeus_jax.models.efficientnet import MOMENTUM
from linnaeus_jax.run.experiment import Experiment, preview_experiment
from linnaeus_jax.step.evaluation import Evaluator
from linnaeus_jax.step.train_step import grad_sums

#: batches of which moments are measured anew
ANEW = 20
#: rule -> share of the batch of update k, from 1, in the running moments
SHARES: dict[str, Callable[[int], float]] = {
    "torch": lambda k: MOMENTUM,
    "adam": lambda k: MOMENTUM / (1 - (1 - MOMENTUM) ** k),
    "ramp": lambda k: max(MOMENTUM, 10 / (k + 9)),
}
SHARES["program"] = SHARES["ramp"]


def experiment_on_demo(folder: Path, rows: int) -> Experiment:
    """The quickstart with EfficientNet-Lite0 from the seed."""
    write_demo(folder / "demo")
    paths = {name: folder / "demo" / f"{name}.h5" for name in ("labels", "images")}
    keys = {
        **{f"data.h5.{name}_path": path for name, path in paths.items()},
        "data.batch_size": rows,
        "model.type": "EfficientNet",
        "model.variant": "lite0",
        "model.convnext_stages.layer_scale_init_value": 1e-6,
        "lr_scheduler.base_lr": 1e-2,
        "lr_scheduler.warmup_epochs": 0.2,
        "train.epochs": 8,
    }
    arguments = [f"--config={ROOT / 'configs' / 'quickstart.py'}", *(f"--config.{key}={v}" for key, v in keys.items())]
    return preview_experiment(load_config(arguments)[0], RunDirectory(folder / "run"))


class Rules:
    """Running moments by each rule from the moments of the same batches; trees of numpy arrays."""

    def __init__(self, start: Any) -> None:
        self._kept = start
        self.moments = dict.fromkeys(SHARES, start)

    def add(self, updates: int, kept: Any) -> None:
        """Takes the moments that the program keeps after so many updates."""

        def moved(share: float, old: Any, batch: Any) -> Any:
            return jax.tree.map(lambda x, y: (1 - share) * x + share * y, old, batch)

        share = SHARES["program"](updates)
        batch = jax.tree.map(lambda new, old: old + (new - old) / share, kept, self._kept)
        self.moments = {name: moved(rule(updates), self.moments[name], batch) for name, rule in SHARES.items()}
        self._kept = kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, evaluates, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, nargs="+", default=[75, 150, 300], help="after which it is evaluated")
    parser.add_argument("--rows", type=int, default=64, help="of an update")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        experiment = experiment_on_demo(Path(folder), options.rows)
        program, placement, inputs = experiment.program, experiment.placement, experiment.inputs
        state = experiment.initial_state()
        fresh = {"batch_stats": jax.tree.map(np.asarray, state.model_state["batch_stats"])}
        step = jax.jit(program.train_step("plain"), donate_argnums=0)
        evaluator, task = Evaluator(program.evaluation, placement), inputs.dataset.tasks[0]

        @jax.jit
        def moments(state: Any, model_state: Any, batch: Any) -> Any:
            targets, counts = program.objective.build_targets(batch, state.step)
            given = state.replace(model_state=model_state)
            return grad_sums(program.objective, program.settings, given, batch, targets, counts).model_state

        def evaluated(name: str, model_state: Any) -> dict[str, Any]:
            val = inputs.dataset.val
            loader = inputs.eval_loader(val, inputs.source(val))
            found = evaluator.run(state.params, model_state, state.gradnorm.weights, loader, (MAIN,)).metrics[MAIN.name]
            loader.close()
            return {f"{name}_acc1": found[f"non_null/acc1_{task}"], f"{name}_loss": found["loss"]}

        rows: list[dict[str, Any]] = []
        latest: list[Any] = []
        rules = Rules(fresh["batch_stats"])
        with inputs.train_loader(0, max(options.updates)) as loader:
            for number, arrays in loader:
                batch = placement.to_device(arrays, placement.update)
                latest = [*latest[1 - ANEW :], batch]
                state, outputs = step(state, batch)
                rules.add(number + 1, jax.tree.map(np.asarray, state.model_state["batch_stats"]))
                if number + 1 not in options.updates:
                    continue
                anew = with_moment_counts(fresh)
                for each in latest:
                    anew = moments(state, anew, each)
                row = {"updates": number + 1, "train_loss": round(float(outputs.loss), 3)}
                of = {name: {"batch_stats": tree} for name, tree in rules.moments.items() if name != "program"}
                of["anew"] = {"batch_stats": anew["batch_stats"]}
                for name, model_state in of.items():
                    row |= {key: round(value, 2) for key, value in evaluated(name, model_state).items()}
                rows.append(row)
                print(row, f"{time.process_time():.0f} CPU-s", flush=True)
    command = shlex.join(
        ["python", "-m", "benchmarks.running_moments", *(sys.argv[1:] if arguments is None else arguments)]
    )
    write_results("running_moments", rows, command, {"momentum": MOMENTUM, "validation_rows": len(inputs.dataset.val)})


if __name__ == "__main__":
    main()
