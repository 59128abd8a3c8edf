"""Which conformal sets of classes are smallest at the coverage that is asked for.

    nice python -m benchmarks.prediction_sets [--repeats 10]

Forms, each with a threshold of 500 rows, measured on 2,000 others: `lac`, the classes whose probability reaches the
threshold, and the most probable one (Sadinle et al. 2019; what `inference/sets.py` does); `aps`, the most probable
classes up to a sum of probabilities (Romano et al. 2020), whole, and `aps drawn` with the last class drawn; `raps` and
`raps drawn`, the same with `PENALTIES` for every class beyond the k-th, k being the rank of the label that is reached
by the wanted share of the rows (Angelopoulos et al. 2021); the penalty is the one with the smallest sets on the rows.

Posteriors are drawn: `calibrated`, from which labels are drawn; `overconfident`, whose logits are 2.5 times as large;
and `uneven`, where that factor differs from row to row, so that no temperature mends it. Frequencies of classes fall as
1 / place. `digits` are those of scikit-learn, a logistic regression on 100 of them. In the table: the share of sets
that hold the label, over all rows, the rows of the rarest half of the classes (`rare`) and the worst group of rows by
size of their set (1, 2 to 5, more; of at least 100 rows); mean size; the share of the sets with one class.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import write_results

Array = NDArray[np.floating[Any]]
LEVEL, ROWS, TEST_ROWS = 0.9, 500, 2000
PENALTIES = (0.001, 0.01, 0.1, 1.0)
#: standard deviation of the logarithm of an uneven factor
SPREAD = 0.5
#: classes and size of the logits, from which follows how often the first answer is right
CASES = ((50, 12.0), (50, 5.0), (50, 2.0), (1000, 12.0), (1000, 6.0))


def softmax(z: Array) -> Array:
    """Over the last axis."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def drawn(rng: np.random.Generator, rows: int, classes: int, scale: float, kind: str) -> tuple[Array, Array]:
    """What a model says, [rows, classes], and labels [rows]."""
    z = scale * rng.normal(size=(rows, classes)) - np.log(np.arange(1, classes + 1))
    label = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    factor = {
        "calibrated": np.ones(rows),
        "overconfident": np.full(rows, 2.5),
        "uneven": np.exp(SPREAD * rng.normal(size=rows)),
    }
    return softmax(factor[kind][:, None] * z), label


def digits(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """The same of handwritten digits."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    data = load_digits()
    order = rng.permutation(len(data.target))
    train, rest = order[:100], order[100 : 100 + rows]
    fitted = LogisticRegression(C=100.0, max_iter=2000).fit(data.data[train, ::4] / 16, data.target[train])
    return fitted.predict_proba(data.data[rest, ::4] / 16), data.target[rest]


def threshold(score: Array) -> float:
    """Of n scores, that in place ceil((n + 1) level)."""
    return float(np.sort(score)[int(np.ceil((len(score) + 1) * LEVEL - 1e-9)) - 1])


def lac(p: Array, _: Array) -> Array:
    """Scores [N, C]: a class is in the set where its score is at most the threshold."""
    score = -p
    score[np.arange(len(p)), p.argmax(axis=1)] = -1.0
    return score


def aps(p: Array, u: Array, penalty: float = 0.0, free: int = 0) -> Array:
    """The same of sums of probabilities, with penalties; u [N, 1]: share of the class itself that counts."""
    order = np.argsort(-p, axis=1, kind="stable")
    sorted_p = np.take_along_axis(p, order, axis=1)
    place = np.arange(1, p.shape[1] + 1)
    score = np.cumsum(sorted_p, axis=1) - (1 - u) * sorted_p + penalty * np.maximum(place - free, 0)
    score[:, 0] = np.where(u[:, 0] < 1, score[:, 0], -1.0)  # whole sets are never empty, as those of lac
    out = np.empty_like(score)
    np.put_along_axis(out, order, score, axis=1)
    return out


def raps(p: Array, u: Array, label: Array) -> Callable[[Array, Array], Array]:
    """`aps` with the penalty whose sets of these rows are smallest."""
    rank = np.sort((p > p[np.arange(len(p)), label][:, None]).sum(axis=1) + 1)
    free = int(rank[int(np.ceil(len(rank) * LEVEL)) - 1])

    def size(penalty: float) -> float:
        score = aps(p, u, penalty, free)
        return float((score <= threshold(score[np.arange(len(p)), label])).sum(axis=1).mean())

    best = min(PENALTIES, key=size)
    return lambda q, v: aps(q, v, best, free)


def measured(p: Array, label: Array, rows: int, rng: np.random.Generator) -> dict[str, list[float]]:
    """Form -> coverage, of rare classes, of the worst group by size, mean size, share of one class."""
    found, whole = {}, np.ones((len(p), 1))
    random = rng.random((len(p), 1))
    rare = label >= p.shape[1] // 2
    forms: dict[str, tuple[Callable[[Array, Array], Array], Array]] = {"lac": (lac, whole), "aps": (aps, whole)}
    forms |= {"aps drawn": (aps, random), "raps": (raps(p[:rows], whole[:rows], label[:rows]), whole)}
    forms["raps drawn"] = raps(p[:rows], random[:rows], label[:rows]), random
    for name, (form, u) in forms.items():
        score = form(p, u)
        inside = score <= threshold(score[np.arange(rows), label[:rows]])
        held, size = inside[np.arange(len(p)), label][rows:], inside.sum(axis=1)[rows:]
        groups = [held[group] for group in (size <= 1, (size > 1) & (size <= 5), size > 5) if group.sum() >= 100]
        worst = min(each.mean() for each in groups)
        found[name] = [held.mean(), held[rare[rows:]].mean(), worst, size.mean(), (size == 1).mean()]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="draws of each case")
    options = parser.parse_args(arguments)
    table = []
    cases = [(kind, *case) for kind in ("calibrated", "overconfident", "uneven") for case in CASES]
    for kind, classes, scale in [*cases, ("digits", 10, 0.0)]:
        draws: dict[str, list[list[float]]] = {}
        accuracy = []
        for seed in range(options.repeats):
            rng = np.random.default_rng(seed)
            p, label = digits(rng, 1600) if not scale else drawn(rng, ROWS + TEST_ROWS, classes, scale, kind)
            accuracy.append((p.argmax(axis=1) == label).mean())
            for name, values in measured(p, label, ROWS, rng).items():
                draws.setdefault(name, []).append(values)
        for name, each in draws.items():
            numbers = [round(float(np.nanmean(values)), 3) for values in zip(*each, strict=True)]
            columns = dict(zip(("held", "rare", "worst", "size", "one"), numbers, strict=True))
            right = round(float(np.mean(accuracy)), 3)
            table.append({"case": kind, "classes": classes, "right": right, "form": name, **columns})
    command = shlex.join(
        ["python", "-m", "benchmarks.prediction_sets", *(sys.argv[1:] if arguments is None else arguments)]
    )
    write_results("prediction_sets", table, command)


if __name__ == "__main__":
    main()
