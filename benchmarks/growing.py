"""How well taxa are added to a model from few pictures, and what the old ones lose.

    nice python -m benchmarks.growing --features DIR [--draws 3]

DIR holds what `benchmarks.real` makes with --out, as for `benchmarks.novelty`. A draw hides ten of the finest classes
with at least 20 training rows; heads are fitted to the features of the other training rows (`learning.regression`), of
which at most 100 of a class are kept, beside the validation rows, as `linnaeus bundle` does. Then the ten are added
from 1, 5 and 20 of their training rows by `inference.quality.extending`. Judged are test rows by the finest rank of the
most probable path: `old`, of the old classes, right before and after in per cent; `new`, of the added ones; `seconds`
of the CPU for heads, calibration and novelty, to which the forward pass of the pictures is to be added. `chain`: the
share of the test rows with another answer where the ten are added one by one (the first draw, 5 rows). The answers to
every test row after 20 stand in growing.npz: row of the labels file, draw, taxon ids of truth and answer.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.common import RESULTS, write_results
from benchmarks.novelty import Array, Hidden, hidden_model
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.tree import assign
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.labels import read_label_tables
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.taxon_names import read_taxon_names
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Bundle, model_of
from linnaeus_jax.inference.bundle.exemplars import Exemplars
from linnaeus_jax.inference.bundle.grown import grown_taxonomy
from linnaeus_jax.inference.paths import some
from linnaeus_jax.inference.quality.extending import extended
from linnaeus_jax.inference.quality.features import OF_CLASS
from linnaeus_jax.learning.growing import places_within
from linnaeus_jax.reading.metadata import MetadataEncoder

SETS = {"grocery": ("taxa_fine", "taxa_coarse", "taxa_kind"), "plants": ("taxa_L10", "taxa_L20", "taxa_L30")}
ADDED, PICTURES, CHAIN = 10, (20, 5, 1), 5


def bundle_of(model: Hidden) -> Bundle:
    """Heads and kept rows as a bundle without a trunk."""
    config = get_config()
    for key, value in (("type", "EfficientNet"), ("variant", "lite0")):
        assign(config, ("model", key), value)
    settings, preprocessing, encoder = typed(config).model, Preprocessing((224, 224)), MetadataEncoder(())
    label = np.maximum(model.label, 0).astype(np.int32)
    trained = np.flatnonzero(model.train)
    trained = trained[places_within(label[trained]) < OF_CLASS]
    heads = {task: {"fc": {"kernel": kernel, "bias": bias}} for task, (kernel, bias) in model.heads.items()}
    return Bundle(
        Path("features"),
        settings,
        model_of(settings, preprocessing, encoder, model.taxonomy),
        {"params": {"head": heads}},
        preprocessing,
        encoder,
        model.taxonomy,
        model.temperatures,
        exemplars=Exemplars.of(
            (some(model.features, model.val), label[model.val]), (some(model.features, trained), label[trained])
        ),
    )


def answered(bundle: Bundle, x: Array) -> Array:
    """Taxon ids of the answers of the finest rank."""
    heads = bundle.variables["params"]["head"]
    logits = {task: x @ heads[task]["fc"]["kernel"] + heads[task]["fc"]["bias"] for task in bundle.tasks}
    answers = Answers(bundle.taxonomy, bundle.calibration)
    best, _ = answers.probabilities(logits, answers.options())
    return np.asarray(bundle.taxonomy.classes[bundle.tasks[0]][best[:, 0]])


def draw(
    folder: Path, name: str, tasks: Sequence[str], seed: int, *, chain: bool
) -> tuple[list[dict[str, Any]], Array]:
    """Rows of the table of one draw, and the answers to its test rows."""
    (path,) = folder.glob("pixels-*/labels.h5")
    (table,), classes = read_label_tables([str(path)], tasks, (), null_possible=True)
    with h5py.File(path) as file:
        side = file["split"][:]
    taxa, count = np.unique(table.taxon[side == 0, 0], return_counts=True)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(taxa[(count >= max(PICTURES)) & (taxa > 0)], ADDED, replace=False)
    order = rng.permutation(len(side))
    pictures = order[np.isin(table.taxon[order, 0], drawn) & (side[order] == 0)]
    names = read_taxon_names([str(path)], classes)
    text = {t: dict(zip(ids.tolist(), names.name[t].tolist(), strict=True)) for t, ids in classes.items()}
    said = {task: {taxon: (name, "") for taxon, name in each.items()} for task, each in text.items()}
    model = hidden_model(folder, tasks, seed, drawn.tolist())
    old = bundle_of(model)
    test = np.flatnonzero((side == 2) & (table.taxon[:, 0] > 0))
    truth, (x,) = table.taxon[test, 0], some(model.features, test).values()
    new, before, found = np.isin(truth, drawn), answered(old, x), []

    def grown(bundle: Bundle, rows: Array) -> Bundle:
        taxonomy, label = grown_taxonomy(bundle.taxonomy, tasks, table.taxon[rows], said)
        return extended(bundle, taxonomy, some(model.features, rows), label)[0]

    for most in PICTURES:
        rows = pictures[places_within(table.taxon[pictures, 0]) < most]
        started = time.process_time()
        bundle = grown(old, rows)
        seconds, after = time.process_time() - started, answered(bundle, x)
        share = {"before": before == truth, "after": after == truth}
        row: dict[str, Any] = {"set": name, "draw": seed, "pictures": most, "seconds": round(seconds, 1)}
        row |= {f"old {when}": round(100 * float(right[~new].mean()), 2) for when, right in share.items()}
        row |= {"old change": round(row["old after"] - row["old before"], 2)}
        row |= {"new": round(100 * float((after == truth)[new].mean()), 2), "right": bundle.facts["added"]["right"]}
        found.append(row)
        print(row, flush=True)
        if most == PICTURES[0]:
            said_of_rows = after
        if chain and most == CHAIN:
            step = old
            for taxon in drawn:
                step = grown(step, rows[table.taxon[rows, 0] == taxon])
            row["chain"] = round(float((answered(step, x) != after).mean()), 4)
            print(row["chain"], flush=True)
    return found, np.stack([test, np.full(len(test), seed), truth, said_of_rows], axis=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True, help="--out of benchmarks.real")
    parser.add_argument("--draws", type=int, default=3, help="of added species")
    options = parser.parse_args(arguments)
    table: list[Mapping[str, Any]] = []
    answers: dict[str, list[Array]] = {}
    for name, tasks in SETS.items():
        for seed in range(options.draws):
            rows, said = draw(options.features / name, name, tasks, seed, chain=not seed)
            table += rows
            answers.setdefault(name, []).append(said)
    shown = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.growing", *shown]).replace(str(options.features), "DIR")
    write_results("growing", table, command)
    arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in answers.items()}
    np.savez_compressed(RESULTS / "growing.npz", **arrays)


if __name__ == "__main__":
    main()
