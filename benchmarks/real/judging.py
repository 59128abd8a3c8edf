"""Bundles a run and judges its test rows: a process of its own, whose time and memory count for the row.

python -m benchmarks.real.judging RUN BUNDLE OUT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real import figures
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.files import read_json
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import read_bundle
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.paths import Logits, log_softmax
from linnaeus_jax.inference.quality.calibration import judge
from linnaeus_jax.inference.quality.measured_sets import MeasuredSets
from linnaeus_jax.metrics.phases import MAIN, WITHOUT_METADATA
from linnaeus_jax.run.evaluate import evaluate, load, test_split
from linnaeus_jax.tools import bundle as bundle_tool


def summed(logits: Logits, taxonomy: Taxonomy, temperature: float) -> NDArray[np.int16]:
    """Best class of every rank, [N, T], by sums of the probabilities of the finest head."""
    tree, tasks = taxonomy.tree, taxonomy.tasks
    probability = np.exp(log_softmax(logits[tasks[0]], temperature))
    best = []
    for place, task in enumerate(tasks):
        ancestor = tree.anc[tasks[0]][:, place]
        total = np.zeros((len(probability), tree.num_classes[task]))
        for column in np.flatnonzero(ancestor >= 0):
            total[:, ancestor[column]] += probability[:, column]
        best.append(total.argmax(axis=1))
    return np.stack(best, axis=1).astype(np.int16)


def adjusted(logits: Logits, taxonomy: Taxonomy, arrays: dict[str, Any], ranks: list[str]) -> NDArray[np.int16]:
    """Best class of every rank, [N, T], by logits less the logarithm of the classes' shares of the training rows."""
    best = []
    for task, rank in zip(taxonomy.tasks, ranks, strict=True):
        share = np.maximum(arrays[f"count/{rank}"], 0.5)  # a class without a row cannot be rarer than any
        values = logits[task] - np.log(share / share.sum())
        best.append(values[:, taxonomy.first :].argmax(axis=1) + taxonomy.first)
    return np.stack(best, axis=1).astype(np.int16)


def counts(labels: NDArray[np.integer], tasks: tuple[str, ...], ranks: list[str], taxonomy: Taxonomy) -> dict[str, Any]:
    """`count/RANK` of training labels [N, T]; null is none."""
    return {
        f"count/{rank}": np.bincount(
            labels[labels[:, place] >= taxonomy.first, place], minlength=len(taxonomy.classes[task])
        )
        for place, (task, rank) in enumerate(zip(tasks, ranks, strict=True))
    }


def of_sets(measured: MeasuredSets) -> dict[str, Any]:
    """`sets/...` at `figures.CONFORMAL`; nothing where the calibration does not have it."""
    level = round(100 * figures.CONFORMAL)
    if level not in measured.levels:
        return {}
    place = measured.levels.index(level)
    sizes = {name: getattr(measured, name)[:, place].astype(np.int16) for name in ("size", "taxa")}
    return {f"sets/{name}": each for name, each in sizes.items()} | {"sets/held": measured.held[:, place]}


def main(argv: list[str]) -> int:
    """Writes the bundle and the arrays of `figures`."""
    run, out, path = map(Path, argv)
    config = config_from_json(read_json(run / "config.json"))
    import_plugins(config)
    if status := bundle_tool.main([str(run), str(out), "--force"]):
        return status
    bundle = read_bundle(out)
    loaded = load(run, str(bundle.facts["step"]))
    with_metadata = bool(loaded.experiment.program.evaluation.component_names)
    phases = (MAIN, WITHOUT_METADATA) if with_metadata else (MAIN,)
    found = evaluate(loaded, phases, test_split(loaded), predictions=True, logits=True).predictions
    rows = found[MAIN.name]
    taxonomy = bundle.taxonomy
    ranks = [taxonomy.ranks[task] for task in taxonomy.tasks]
    raw, answers = Answers(taxonomy, Calibration.none(taxonomy.tasks)), Answers(taxonomy, bundle.calibration)
    label = np.where(rows.label >= taxonomy.first, rows.label, -1)
    arrays: dict[str, Any] = {"label": label.astype(np.int16), "ranks": np.array(ranks)}
    arrays |= figures.packed(judge(rows.logits, rows.label, raw, "documented"), "raw")
    arrays |= figures.packed(judge(rows.logits, rows.label, answers, "documented"), "ranks")
    arrays |= figures.packed(judge(rows.logits, rows.label, answers, "path"), "paths")
    finest = bundle.calibration.ranks[taxonomy.tasks[0]]
    arrays["summed/predicted"] = summed(rows.logits, taxonomy, finest)
    if with_metadata:
        hidden = found[WITHOUT_METADATA.name]
        arrays |= figures.packed(judge(hidden.logits, hidden.label, raw, "documented"), "unseen")
    arrays |= counts(loaded.dataset.train.labels, taxonomy.tasks, ranks, taxonomy)
    arrays |= {f"below/{rank}": below for rank, below in zip(ranks, taxonomy.tree.finest_below(), strict=True)}
    arrays[f"names/{ranks[-1]}"] = np.array(list(map(str, taxonomy.names.name[taxonomy.tasks[-1]])))
    arrays["adjusted/predicted"] = adjusted(rows.logits, taxonomy, arrays, ranks)
    answered = answers.answered(rows.logits, answers.options(coverage=figures.CONFORMAL))
    given, every = answered.answer, np.arange(len(label))
    at = np.maximum(given, 0)
    arrays["conformal/rank"] = np.where(given < 0, len(ranks), given).astype(np.int8)
    arrays["conformal/right"] = (given < 0) | (answered.best[every, at] == label[every, at])
    arrays |= of_sets(MeasuredSets.of(rows.logits, rows.label, answers))
    np.savez_compressed(path, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
