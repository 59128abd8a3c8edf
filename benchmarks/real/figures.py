"""What is kept of every test row, and the figures that follow from it alone.

A result has `NAME.npz` beside its `NAME.json`; arrays are [N, T], ranks finest first, where nothing else is said:

label, int16, -1 where there is none; `KIND/predicted`, int16, and `KIND/probability` and `KIND/of_label`, float16, the
probability of the answer and the logarithm of that of the label, 0 where there is none, where KIND is "raw" (each rank
by itself, not calibrated), "ranks" (each rank by itself, calibrated), "paths" (the most probable path, calibrated) or
"unseen" (raw, with all metadata hidden);
`summed/predicted`, the best coarser classes by sums of the probabilities of the finest head; `adjusted/predicted`, the
best classes by logits less the logarithm of the classes' shares of the training rows; `conformal/rank`, int8 [N], the
rank of the answer at `CONFORMAL`, T for none, and `conformal/right`, bool [N]; `sets/size` and `sets/taxa`, int16 [N],
classes of the set of that coverage and the taxa that it is written as, and `sets/held`, bool [N]; `count/RANK`,
int32 [C], training rows of each class; `below/RANK`, int [C], classes of the finest rank below each class, null apart;
`names/RANK`, str [C], of the coarsest rank. Every figure is of the rows that are labelled at its rank; the conformal
coverage, as its threshold, of those that are at the finest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.metrics.judged import MEASURES, Judged, coverage_and_risk, haurc

KINDS = ("raw", "ranks", "paths", "unseen")
#: answers without probabilities
OTHERS = ("summed", "adjusted")
#: coverage of the conformal answers
CONFORMAL = 0.9
#: classes are told apart by how many training rows they have: from each of these on
COUNTS = (0, 10, 20, 50, 100, 200)

Arrays = Mapping[str, NDArray[Any]]


def packed(judged: Judged, kind: str) -> dict[str, NDArray[Any]]:
    """Judged rows as they are kept."""
    return {
        f"{kind}/predicted": judged.predicted.astype(np.int16),
        f"{kind}/probability": judged.probability.astype(np.float16),
        f"{kind}/of_label": np.log(np.maximum(judged.of_label, 1e-12)).astype(np.float16),
    }


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of a file."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def unpacked(arrays: Arrays, kind: str) -> Judged:
    """The judged rows that were kept."""
    label = arrays["label"].astype(np.int32)
    predicted = arrays[f"{kind}/predicted"].astype(np.int32)
    probability = arrays[f"{kind}/probability"].astype(np.float64)
    of_label = np.exp(arrays[f"{kind}/of_label"].astype(np.float64))
    return Judged(np.arange(len(label)), label, label >= 0, predicted, probability, of_label)


def figures(arrays: Arrays) -> dict[str, Any]:
    """All figures of a result, by rank, as JSON types: shares, not per cent; 5 digits."""
    ranks = [str(rank) for rank in arrays["ranks"]]
    found: dict[str, Any] = {"rows": len(arrays["label"])}
    for kind in KINDS:
        if f"{kind}/predicted" not in arrays:
            continue
        judged = unpacked(arrays, kind)
        values = {name: measure(judged) for name, measure in MEASURES.items()}
        values["risk_coverage_area"] = np.array([_area(judged, place) for place in range(len(ranks))])
        found[kind] = {
            rank: {name: _digits(value[place]) for name, value in values.items()} for place, rank in enumerate(ranks)
        }
    label = arrays["label"]
    for kind in OTHERS:
        if f"{kind}/predicted" in arrays:
            predicted = arrays[f"{kind}/predicted"]
            found[kind] = {
                rank: {
                    "accuracy": _accuracy(label[:, place], predicted[:, place]),
                    "macro_accuracy": _digits(_mean_of_classes(label[:, place], predicted[:, place])),
                }
                for place, rank in enumerate(ranks)
            }
    if f"below/{ranks[0]}" in arrays:
        below = [arrays[f"below/{rank}"] for rank in ranks]
        found["haurc"] = _digits(haurc(unpacked(arrays, "paths"), below, int(below[0][0] == 0)))
    found["by_count"] = _by_count(arrays, ranks[0])
    finest = label[:, 0] >= 0
    answers = {kind: arrays[f"{kind}/predicted"] for kind in (*KINDS, *OTHERS) if f"{kind}/predicted" in arrays}
    if not finest.all():
        found["without_finest"] = {"rows": int((~finest).sum())} | {
            kind: {
                rank: _accuracy(label[~finest, place], predicted[~finest, place])
                for place, rank in enumerate(ranks)
                if (label[~finest, place] >= 0).any()
            }
            for kind, predicted in answers.items()
        }
    if f"names/{ranks[-1]}" in arrays:
        inside = {
            str(name): rows
            for place, name in enumerate(arrays[f"names/{ranks[-1]}"])
            if (rows := finest & (label[:, -1] == place)).any()
        }
        found["by_coarsest"] = {
            name: {"rows": int(rows.sum())}
            | {kind: _accuracy(label[rows, 0], predicted[rows, 0]) for kind, predicted in answers.items()}
            for name, rows in inside.items()
        }
    if "conformal/rank" in arrays:
        answered = arrays["conformal/rank"]
        shares = np.bincount(answered, minlength=len(ranks) + 1) / len(answered)
        found["conformal"] = {
            "level": CONFORMAL,
            "coverage": _digits(arrays["conformal/right"][finest].mean()),
            "answered": dict(zip([*ranks, "none"], map(_digits, shares), strict=True)),
        }
    if "sets/size" in arrays:
        found["sets"] = {"level": CONFORMAL, **_of_sets(arrays, finest)} | {
            "by_count": [{"from": low, **_of_sets(arrays, of)} for low, of in _groups(arrays, ranks[0]) if of.any()]
        }
    return found


def _of_sets(arrays: Arrays, rows: NDArray[np.bool_]) -> dict[str, Any]:
    size, taxa, held = (arrays[f"sets/{name}"][rows] for name in ("size", "taxa", "held"))
    means = {"coverage": held, "mean_size": size, "mean_taxa": taxa, "single": size == 1}
    return {"rows": int(rows.sum())} | {name: _digits(values.mean()) for name, values in means.items()}


def _groups(arrays: Arrays, rank: str) -> list[tuple[int, NDArray[np.bool_]]]:
    """From so many training rows of the class on, bool [N]: labelled rows of such classes."""
    label, count = arrays["label"][:, 0], arrays[f"count/{rank}"]
    group = np.where(label >= 0, np.digitize(count[np.maximum(label, 0)], COUNTS[1:]), -1)
    return [(low, group == place) for place, low in enumerate(COUNTS)]


def _area(judged: Judged, place: int) -> float:
    """Mean risk over all coverages."""
    return float(np.mean(coverage_and_risk(judged, place)[1]))


def _mean_of_classes(label: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """Accuracy of each class, averaged over the classes that have test rows."""
    known = label >= 0
    rows, right = np.bincount(label[known]), np.bincount(label[known], (predicted == label)[known])
    return float(np.mean((right / np.maximum(rows, 1))[rows > 0]))


def _accuracy(label: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """Of the labelled rows."""
    return _digits((predicted == label)[label >= 0].mean())


def _by_count(arrays: Arrays, rank: str) -> list[dict[str, Any]]:
    """Accuracy at the finest rank by how many training rows the class has."""
    count = arrays[f"count/{rank}"]
    right = arrays["raw/predicted"][:, 0] == arrays["label"][:, 0]
    return [
        {
            "from": low,
            "classes": int(((np.digitize(count, COUNTS[1:]) == place) & (count > 0)).sum()),
            "rows": int(of.sum()),
            "accuracy": _digits(right[of].mean()),
        }
        for place, (low, of) in enumerate(_groups(arrays, rank))
        if of.any()
    ]


def _digits(value: float) -> float:
    return round(float(value), 5)
