"""How well a model tells species that it has never seen, and pictures of something else, from those that it knows.

    nice python -m benchmarks.novelty --features DIR [--draws 3]

DIR holds what `benchmarks.real` makes with --out: DIR/SET/TRUNK.features and DIR/SET/pixels-*/labels.h5 of each of
`SETS`. A draw hides a fifth of the finest classes; heads are fitted to the features of the other training rows
(`learning.regression`), temperatures, weights and thresholds to the validation rows. Judged are the test rows of
known species, all rows of hidden ones (`near`), and all rows of each other set (`far`). Scores: `maximum softmax` and
`energy` of the finest head alone, uncalibrated; `mahalanobis`, the distance to the nearest mean (what `outside` goes
by, of tuned trunks in the layer `FeatureStatistics.outside`), and `known`, what `new_below` goes by. `parent`: the
share of the rows of hidden species whose deepest known ancestor is the taxon that they are said to be new below;
`flat`: that is the parent of the likeliest species; both over all of them. `said`: shares of each kind of rows by the
thresholds for 5 % of false alarms each. `shrinkage`: `near` of the distance and of `known`, and the worst `far`, for
other shares of the identity in the covariance; `directions`: for fewer of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import write_results
from linnaeus_jax.data.hidden import without_taxa
from linnaeus_jax.data.labels import read_label_tables, with_classes
from linnaeus_jax.data.taxon_names import read_taxon_names
from linnaeus_jax.inference.bundle.statistics import DIRECTIONS as KEPT
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.changed_paths import ChangedPaths
from linnaeus_jax.inference.forward import TRUNK as LAYER
from linnaeus_jax.inference.novelty import SHARE, Novelty
from linnaeus_jax.inference.paths import some
from linnaeus_jax.inference.quality import calibration, measured_novelty
from linnaeus_jax.learning.discriminant import Affine
from linnaeus_jax.learning.regression import fit_ranks
from linnaeus_jax.taxonomy.tree import TaxonomyTree

SETS = {
    "grocery": ("taxa_fine", "taxa_coarse", "taxa_kind"),
    "plants": ("taxa_L10", "taxa_L20", "taxa_L30"),
    "leaf": ("taxa_L10", "taxa_L20"),
}
HIDDEN, TRUNK, UNKNOWN = 0.2, "lite0", -2
SHRINKAGES, DIRECTIONS = (0.05, 0.2, 0.5, 0.8, 0.95), (16, 64, 256, 1280)
Array = NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Hidden:
    """A model that knows nothing of some species.

    Attributes:
      features: layer -> [N, D], that of the heads first; logits: task -> [N, C]; label: [N, T], `UNKNOWN` of taxa that
        it does not know.
      train, val, test, new: bool [N]; rows of hidden species are `new` and nothing else.
      heads: task -> kernel and bias.
    """

    taxonomy: Taxonomy
    features: Mapping[str, Array]
    logits: Mapping[str, Array]
    label: Array
    train: Array
    val: Array
    test: Array
    new: Array
    temperatures: calibration.Calibration
    heads: Mapping[str, Affine]


def hidden_model(folder: Path, tasks: Sequence[str], seed: int, drawn: Sequence[int] | None = None) -> Hidden:
    """Heads on the features of a set, without some of its species, or a share that is drawn."""
    (path,) = folder.glob("pixels-*/labels.h5")
    x = np.load(folder / f"{TRUNK}.features").astype(np.float32)
    (table,), classes = read_label_tables([str(path)], tasks, (), null_possible=True)
    with h5py.File(path) as file:
        side = file["split"][:]
    species = classes[tasks[0]][1:]
    if drawn is None:
        drawn = np.random.default_rng(seed).choice(species, round(HIDDEN * len(species)), replace=False).tolist()
    tables = without_taxa([table], read_taxon_names([str(path)], classes), [str(taxon) for taxon in drawn])
    (kept,), known = with_classes(tables, null_possible=True)
    tree, _ = TaxonomyTree.from_labels(known, [kept.label], null_possible=True)
    taxonomy = Taxonomy(tree, read_taxon_names([str(path)], known))
    new = np.isin(table.taxon[:, 0], drawn)
    train, val, test = (~new & (side == place) for place in range(3))
    label = np.where(kept.label > 0, kept.label, -1)
    for place, task in enumerate(tasks):
        where = np.minimum(np.searchsorted(known[task], table.taxon[:, place]), len(known[task]) - 1)
        here = known[task][where] == table.taxon[:, place]
        label[:, place] = np.where(table.taxon[:, place] == 0, -1, np.where(here, where, UNKNOWN))
    fits = fit_ranks(x[train], label[train], tree.num_classes, None, [np.ones(train.sum(), bool)])
    heads = {task: fits[task].fits[0] for task in tasks}
    logits = {task: x @ kernel + bias for task, (kernel, bias) in heads.items()}
    counts = tree.path_counts(kept.label[train])
    found = calibration.fit(some(logits, val), np.maximum(label[val], 0), taxonomy, counts)
    return Hidden(taxonomy, {LAYER: x}, logits, label, train, val, test, new, found, heads)


def judge_of(model: Hidden, **changed: Any) -> tuple[Novelty, dict[str, Any] | None]:
    """The judge that a bundle of the model would have, and what it would say of itself."""
    directions = changed.pop("directions", KEPT)
    x = next(iter(model.features.values()))
    statistics = FeatureStatistics.of(x[model.train], model.label[model.train], directions=directions)
    every = FeatureStatistics.of_layers(some(model.features, model.train), model.label[model.train])
    assert statistics is not None
    assert every is not None
    statistics = dataclasses.replace(statistics, layer=every.layer, outside=every.outside, **changed)
    rows = some({**model.logits, **model.features}, model.val)
    fitted = measured_novelty.fit(
        rows, np.maximum(model.label[model.val], 0), model.taxonomy, model.temperatures, statistics
    )
    paths = ChangedPaths(model.taxonomy, fitted[0].path_counts)
    return Novelty(paths, fitted[0], statistics), fitted[1]


def area(known: Array, others: Array) -> float:
    """Area under the ROC curve in per cent, of a score that is higher for known rows."""
    return round(100 * float(measured_novelty.told_apart(known, others)["auroc"] or 0), 1)


def row_of(model: Hidden, name: str, seed: int, others: Mapping[str, Mapping[str, Array]]) -> dict[str, Any]:
    """A row of the table; `others` are features of pictures of other things by layer."""
    novelty, left_out = judge_of(model)
    null = model.taxonomy.first
    finest = model.logits[model.taxonomy.tasks[0]][:, null:]
    top = finest.max(axis=1, keepdims=True)
    scores = {
        "maximum softmax": 1 / np.exp(finest - top).sum(axis=1),
        "energy": np.log(np.exp(finest - top).sum(axis=1)) + top[:, 0],
    }
    rows_of = {**model.logits, **model.features}
    novel = novelty(rows_of, SHARE, every=True)
    scores |= {"mahalanobis": -novelty.distances(rows_of)[:, 0], "known": novel["known"]}
    test, new = model.test, model.new
    found = measured_novelty.judged(novel[test | new], model.label[test | new], UNKNOWN)
    ancestor = model.taxonomy.tree.anc[model.taxonomy.tasks[0]][null + finest.argmax(axis=1)]
    rows = np.flatnonzero(new & (model.label >= null).any(axis=1))
    deepest = (model.label[rows] >= null).argmax(axis=1)
    flat = (deepest == 1) & (ancestor[rows, 1] == model.label[rows, 1])
    far = {}
    for other, features in others.items():
        nearest, distance = novelty.distances(features).T
        outside = round(100 * float((distance > novelty.thresholds(SHARE)[0]).mean()), 1)
        far[other] = {"mahalanobis": area(-novel["outside"][test], -distance), "said outside": outside}
        if novelty.statistics.outside is not None:
            far[other]["mahalanobis of the heads' features"] = area(scores["mahalanobis"][test], -nearest)
    said = {kind: {k: round(100 * v, 1) for k, v in found[kind]["said"].items()} for kind in ("known", "new")}
    return {
        "set": name,
        "draw": seed,
        "rows": {"known": int(test.sum()), "hidden": int(new.sum()), "hidden below a known taxon": len(rows)},
        "near": {kind: area(score[test], score[new]) for kind, score in scores.items()},
        "false positives": round(100 * found["new"]["false_positives"], 1),
        "left out": None if left_out is None else round(100 * left_out["auroc"], 1),
        "far": far,
        "parent": round(found["new"]["right_parent"], 3),
        "flat": round(float(flat.mean()), 3),
        "said": said,
        "weights": {name: round(value, 2) for name, value in novelty.calibration.novelty["weights"].items()},
        "layers": list(novelty.statistics.layers),
        "shrinkage": {str(s): _other(model, others, shrinkage=s) for s in SHRINKAGES},
        "directions": {str(d): _other(model, others, directions=d) for d in DIRECTIONS},
    }


def _other(model: Hidden, others: Mapping[str, Mapping[str, Array]], **changed: Any) -> list[float]:
    novelty, _ = judge_of(model, **changed)
    rows = {**model.logits, **model.features}
    novel, nearest = novelty(rows, SHARE), novelty.distances(rows)[:, 0]
    test, new = model.test, model.new
    far = [area(-novel["outside"][test], -novelty.distances(of)[:, 1]) for of in others.values()]
    near = [area(score[test], score[new]) for score in (-nearest, novel["known"])]
    return [*near, min(far)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True, help="--out of benchmarks.real")
    parser.add_argument("--draws", type=int, default=3, help="of hidden species")
    options = parser.parse_args(arguments)
    table = []
    for name, tasks in SETS.items():
        others = {
            other: {LAYER: np.load(options.features / other / f"{TRUNK}.features").astype(np.float32)}
            for other in SETS
            if other != name
        }
        for seed in range(options.draws):
            model = hidden_model(options.features / name, tasks, seed)
            table.append(row_of(model, name, seed, others))
            print(table[-1], flush=True)
    shown = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.novelty", *shown]).replace(str(options.features), "DIR")
    write_results("novelty", table, command)


if __name__ == "__main__":
    main()
