"""How good the classification heads are on the demo data, and what an update with each of them takes.

    python -m benchmarks.heads_on_demo [quality] [time] [--heads Linear PathSoftmax] [--seeds 0 1 2] [--epochs 24]

Every model has one type of head for all ranks and is trained as `configs/quickstart.py` says, with the same number of
updates; only `train.seed` differs between the runs of one model, and with it the initial values, the order of the rows
and what is masked and augmented. mFormerV0 of the variant `tiny` stands beside mFormerV1-tiny.

`quality`: real runs (an unfinished one goes on), their newest checkpoint evaluated on the validation rows with all
metadata. In percent: `top-1`, right among the rows labelled at the rank; `chain`, rows right at every rank, null
included; `agree`, rows whose predicted classes are one branch of the tree (a class without a parent, such as null,
contradicts nothing); `ECE`, the calibration error in 15 bins. Mean and standard deviation over the seeds.

`time`: `ms`, the median time of an update on batches of the run, all models in interleaved rounds of one process, and
`to_linear`, the median over the rounds of the ratio to mFormerV1 with Linear, which is in every round twice: the ratio
of these two is `control`.

What has been measured is kept in `results/heads_on_demo.json` and replaced where the same is measured again, so that
the parts, the models and the seeds may be measured one after the other.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common
from benchmarks.step_common import Built, Stepper, repeated
from linnaeus_jax.config import complete_open_nodes, get_config, load_config
from linnaeus_jax.demo.generate import write_demo
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import evaluate, trainer
from linnaeus_jax.run.experiment import preview_experiment

Row = dict[str, Any]
ROOT = Path(__file__).parent.parent
NAME = "heads_on_demo"
BASELINE = "Linear"
#: name -> model family, head of every rank
MODELS: dict[str, tuple[str, str]] = {
    BASELINE: ("mFormerV1", "Linear"),
    "ConditionalClassifier": ("mFormerV1", "ConditionalClassifier"),
    "HierarchicalSoftmax": ("mFormerV1", "HierarchicalSoftmax"),
    "PathSoftmax": ("mFormerV1", "PathSoftmax"),
    "V0-Linear": ("mFormerV0", "Linear"),
}


def run_config(name: str, data: Path, *, epochs: int, seed: int) -> ConfigDict:
    """The quickstart with another model, heads and seed."""
    family, head = MODELS[name]
    config, _ = load_config([f"--config={ROOT / 'configs' / 'quickstart.py'}"])
    settings = {
        "data.h5.labels_path": str(data / "labels.h5"),
        "data.h5.images_path": str(data / "images.h5"),
        "experiment.name": f"{NAME}-{name}",
        "model.type": family,
        "train.epochs": epochs,
        "train.seed": seed,
    }
    config.update_from_flattened_dict(settings)
    if family == "mFormerV0":  # which has no such blocks
        config.model.convnext_stages.update(get_config().model.convnext_stages)
    with config.unlocked():
        config.model.classification.heads = {task: {"type": head} for task in config.data.task_keys_h5}
    return complete_open_nodes(config)


# ---- quality -------------------------------------------------------------------------------------------------------


def trained(name: str, options: argparse.Namespace, seed: int) -> Row:
    """Trains one model, or takes the finished run, and returns what its newest checkpoint reaches."""
    workdir = options.runs / f"{name}_{options.epochs}_epochs_seed_{seed}"
    trainer.run(run_config(name, options.data, epochs=options.epochs, seed=seed), workdir)
    loaded = evaluate.load(workdir)
    phases = evaluate.parse_phases("val", loaded.experiment.program.evaluation.component_names)
    evaluation = evaluate.evaluate(loaded, phases)
    metrics = evaluation.metrics["val"]
    parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(loaded.experiment.abstract_state.params))
    row: Row = {"model": name, "epochs": options.epochs, "seed": seed, "updates": loaded.step, "parameters": parameters}
    row["rows"] = int(evaluation.sums["val"]["count"])
    for task in loaded.dataset.tasks:
        rank = task.removeprefix("taxa_")
        row[f"top-1 {rank}"] = metrics[f"non_null/acc1_{task}"]
        row[f"ECE {rank}"] = 100 * metrics[f"ece_{task}"]
    row |= {"chain": 100 * metrics["chain_accuracy"], "agree": 100 * metrics["consistency_rate"]}
    return row


def quality(options: argparse.Namespace, details: dict[str, Any]) -> None:
    """Adds a row to `details["runs"]` for every model and seed."""
    keys = ("model", "epochs", "seed")
    for seed in options.seeds:  # a program that ends early has all models of the seeds before
        for name in options.heads:
            row = trained(name, options, seed)
            others = [old for old in details["runs"] if any(old[key] != row[key] for key in keys)]
            details["runs"] = [*others, row]
            save(options, details)


# ---- time ----------------------------------------------------------------------------------------------------------


def stepper(name: str, options: argparse.Namespace) -> Stepper:
    """The compiled update of a model, with two batches of its run."""
    config = run_config(name, options.data, epochs=options.epochs, seed=0)
    experiment = preview_experiment(config, RunDirectory(options.runs / "timing"))
    placement = experiment.placement
    with experiment.inputs.train_loader(0, 2) as loader:
        batches = [{key: np.asarray(value) for key, value in batch.items()} for _, batch in islice(loader, 2)]
    placed = [placement.to_device(batch, placement.update) for batch in batches]
    return Stepper(Built(experiment.program, placement, placed, experiment.debug), name)


def time_updates(options: argparse.Namespace, details: dict[str, Any]) -> None:
    """Puts the times of the models into `details["times"]`."""
    names = [BASELINE, *(name for name in options.heads if name != BASELINE)]
    runs: list[Callable[[], None]] = [repeated(stepper(name, options), options.updates) for name in names]
    runs.append(runs[0])  # the control
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(options.rounds + 1):
        for turn in range(len(runs)):
            which = (turn + number) % len(runs)
            started = time.perf_counter()
            runs[which]()
            if number:  # the first round warms up
                seconds[which].append((time.perf_counter() - started) / options.updates)

    def ratio(which: int) -> float:
        return statistics.median(b / a for a, b in zip(seconds[0], seconds[which], strict=True))

    for which, name in enumerate(names):
        row = {"ms": 1e3 * statistics.median(seconds[which]), "to_linear": ratio(which), "control": ratio(len(names))}
        details["times"][name] = {**row, "rounds": options.rounds, "updates": options.updates}
    save(options, details)


# ---- results -------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> str:
    """Mean and, of several values, standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def summary(details: dict[str, Any]) -> list[Row]:
    """One row for each model and number of epochs, in the order of `MODELS`."""
    rows: list[Row] = []
    for name in MODELS:
        own = [run for run in details["runs"] if run["model"] == name]
        for epochs in sorted({run["epochs"] for run in own}) or [None]:
            runs = [run for run in own if run["epochs"] == epochs]
            row: Row = {"model": name}
            if runs:
                row |= {"epochs": epochs, "updates": runs[0]["updates"], "seeds": len(runs)}
                measured = [key for key in runs[0] if key.startswith(("top-1", "ECE")) or key in ("chain", "agree")]
                row |= {key: spread([run[key] for run in runs]) for key in sorted(measured, key=_column)}
            times = details["times"].get(name, {})
            row |= {key: round(times[key], 3) for key in ("ms", "to_linear", "control") if key in times}
            if len(row) > 1:
                rows.append(row)
    return rows


def _column(key: str) -> int:
    """Position in the table: accuracies of all ranks, then all calibration errors."""
    return ["top", "cha", "agr", "ECE"].index(key[:3])


def stored() -> dict[str, Any]:
    """What has been measured so far."""
    path = common.RESULTS / f"{NAME}.json"
    held = json.loads(path.read_text()) if path.exists() else {}
    return {"runs": held.get("runs", []), "times": held.get("times", {})}


def save(options: argparse.Namespace, details: dict[str, Any]) -> None:
    command = shlex.join(["python", "-m", f"benchmarks.{NAME}", *options.typed])
    print(common.write_results(NAME, summary(details), command, details))


MEASURES = {"quality": quality, "time": time_updates}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_names(parser, MEASURES)
    parser.add_argument("--heads", nargs="+", choices=MODELS, default=list(MODELS), help="which models (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=24, help="of the runs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="of time (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=4, help="of a model in a round of time (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=Path("data/demo"), help="the demo data; made where it is missing")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs") / NAME, help="folder of the runs (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    options.typed = sys.argv[1:] if argv is None else argv
    write_demo(options.data)
    details = stored()
    for name in options.names:
        MEASURES[name](options, details)


if __name__ == "__main__":
    main()
