"""Which prior of a temperature gives the best probabilities on rows that it was not fitted on.

    nice python -m benchmarks.temperature_prior [--repeats 12]

Labels are drawn from `softmax(z)` and the model says `T z`, so that T is the temperature that is right. Fitted is what
minimises -log p of the rows with the prior of `inference/quality/calibration.py`: log T normal around 0, with each of
the spreads below (`none`: without a prior). Over true temperatures of 0.25 to 5, 2 to 1,000 classes, models that are
right in 60, 90 and 98 % of the rows, and 50 to 5,000 rows. In the table, means over all of them: `nll`, by how much
-log p of a row (expected, on 2,000 others) is above that of the true temperature, `worst` the mean of the temperature
for which that is most, and `ece`, the calibration error in 15 bins. -log p is a function of fitted / true temperature
alone, computed once for each draw on a grid.

`--paths` fits the temperatures of paths as well, by the package, with each spread, on a tree of three ranks.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import write_results

Array = NDArray[np.floating[Any]]
SPREADS = (0.06, 0.12, 0.25, 0.5, 1.0, 2.0, np.inf)
TEMPERATURES = (0.25, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0)
CLASSES, ACCURACIES, ROWS = (2, 10, 100, 1000), (0.6, 0.9, 0.98), (50, 100, 300, 1000, 5000)
TEST_ROWS, BINS = 2000, 15
#: log(fitted / true temperature)
GRID = np.linspace(-3.6, 3.6, 145)


def log_softmax(z: Array) -> Array:
    """Over the last axis."""
    z = z - z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def drawn(rng: np.random.Generator, rows: int, classes: int, accuracy: float) -> Array:
    """Logits [rows, classes] whose most probable class is right with about this probability."""
    sample = rng.normal(size=(500, classes))
    low, high = 0.0, 1000.0
    for _ in range(30):
        middle = (low + high) / 2
        sure = np.exp(log_softmax(middle * sample).max(axis=1)).mean()
        low, high = (middle, high) if sure < accuracy else (low, middle)
    return np.asarray(low * rng.normal(size=(rows, classes)), np.float32)


def labels_of(rng: np.random.Generator, z: Array) -> NDArray[np.int64]:
    return np.asarray((z + rng.gumbel(size=z.shape)).argmax(axis=1))


def losses(z: Array, labels: NDArray[np.int64]) -> Array:
    """-log p of the labels, summed, at every place of the grid; float64 [G, rows]."""
    at = np.arange(len(z)), labels
    return np.stack([-log_softmax(z * np.float32(np.exp(-u)))[at] for u in GRID])


def on_others(z: Array) -> tuple[Array, Array]:
    """Expected -log p of a row, and calibration error, at every place of the grid."""
    p, best = np.exp(log_softmax(z)), z.argmax(axis=1)
    right, nll, ece = p[np.arange(len(z)), best], [], []
    for u in GRID:
        log_q = log_softmax(z * np.float32(np.exp(-u)))
        nll.append(-(p * log_q).sum(axis=1).mean())
        sure = np.exp(log_q[np.arange(len(z)), best])
        bins = np.minimum((sure * BINS).astype(int), BINS - 1)
        gaps = np.bincount(bins, sure - right, BINS)
        ece.append(np.abs(gaps).sum() / len(z))
    return np.array(nll), np.array(ece)


def of_case(seed: int, classes: int, accuracy: float, repeats: int) -> list[dict[str, Any]]:
    """A row for every number of rows, true temperature and spread."""
    rng = np.random.default_rng(seed)
    nll, ece = on_others(drawn(rng, TEST_ROWS, classes, accuracy))
    sums: dict[tuple[int, float, float], list[tuple[float, float, float]]] = {}
    for rows in ROWS:
        for _ in range(max(2, repeats * 300 // max(rows, 300))):
            z = drawn(rng, rows, classes, accuracy)
            curve = losses(z, labels_of(rng, z)).sum(axis=1)
            for temperature, spread in itertools.product(TEMPERATURES, SPREADS):
                log_fitted = GRID + np.log(temperature)
                place = int((curve + 0.5 * log_fitted**2 / spread**2).argmin())
                found = float(np.exp(log_fitted[place])), float(nll[place] - nll[len(GRID) // 2]), float(ece[place])
                sums.setdefault((rows, temperature, spread), []).append(found)
    case = {"classes": classes, "accuracy": accuracy}
    names = "rows", "temperature", "spread", "fitted", "nll", "ece"
    return [{**case, **dict(zip(names, (*key, *np.mean(each, axis=0)), strict=True))} for key, each in sums.items()]


def table(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the cases, for every spread and number of rows."""
    rows = []
    for spread, count in itertools.product(SPREADS, (*ROWS, "all")):
        chosen = [each for each in cases if each["spread"] == spread and count in (each["rows"], "all")]
        of_t = [np.mean([each["nll"] for each in chosen if each["temperature"] == t]) for t in TEMPERATURES]
        ece = float(np.mean([each["ece"] for each in chosen]))
        row: dict[str, Any] = {"spread": "none" if np.isinf(spread) else spread, "rows": count}
        rows.append(
            row | {"nll": round(float(np.mean(of_t)), 4), "worst": round(float(max(of_t)), 4), "ece": round(ece, 4)}
        )
    return rows


def of_paths(repeats: int) -> list[dict[str, Any]]:
    """-log p of the labels of 2,000 other rows by the paths of a tree of three ranks, above that of no prior's best."""
    from linnaeus_jax.inference.answers import Answers
    from linnaeus_jax.inference.bundle.bundle import Calibration
    from linnaeus_jax.inference.paths import TaxonomyPaths
    from linnaeus_jax.inference.quality import calibration
    from linnaeus_jax.metrics.judged import nll
    from tests.inference.trees import random_taxonomy

    taxonomy = random_taxonomy([40, 12, 4], False, np.random.default_rng(0))
    tasks, paths, rows = taxonomy.tasks, TaxonomyPaths(taxonomy.tree), []
    start = np.full(len(tasks), float(len(tasks)))
    for count, temperature, spread in itertools.product((50, 300, 1000), (0.5, 1.0, 2.5), (0.06, 0.25, 0.5, 1.0, 2.0)):
        found = []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            shapes = {task: (count + 2000, taxonomy.tree.num_classes[task]) for task in tasks}
            z = {task: rng.normal(0, 2, shape).astype(np.float32) for task, shape in shapes.items()}
            scores = paths.scores(z, dict.fromkeys(tasks, 3.0 / 2))
            labels = paths.classes[(scores + rng.gumbel(size=scores.shape)).argmax(axis=1)]
            said = {task: np.asarray(temperature * each, np.float32) for task, each in z.items()}
            few = {task: each[:count] for task, each in said.items()}
            fitted = calibration._minimised(calibration._path_objective(few, labels[:count], taxonomy), start, spread)
            by_task = Calibration(dict.fromkeys(tasks, 1.0), dict(zip(tasks, fitted.tolist(), strict=True)))
            others = {task: each[count:] for task, each in said.items()}
            found.append(float(nll(calibration.judge(others, labels[count:], Answers(taxonomy, by_task))).mean()))
        rows.append(
            {"paths": count, "temperature": temperature, "spread": spread, "nll": round(float(np.mean(found)), 4)}
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12, help="draws of up to 300 rows; fewer of more rows")
    parser.add_argument("--paths", action="store_true", help="the temperatures of paths, too")
    options = parser.parse_args(arguments)
    cases = []
    for seed, (classes, accuracy) in enumerate(itertools.product(CLASSES, ACCURACIES)):
        cases += of_case(seed, classes, accuracy, options.repeats)
        print(f"{classes} classes, {accuracy:.0%} right", flush=True)
    chosen = [each for each in cases if each["temperature"] in (1.0, 2.5) and each["rows"] <= 1000]
    examples = [{**each, "spread": str(each["spread"])} for each in chosen if each["classes"] == 10]
    details = {"examples": examples, "paths": of_paths(4) if options.paths else []}
    command = shlex.join(
        ["python", "-m", "benchmarks.temperature_prior", *(sys.argv[1:] if arguments is None else arguments)]
    )
    write_results("temperature_prior", table(cases), command, details)


if __name__ == "__main__":
    main()
