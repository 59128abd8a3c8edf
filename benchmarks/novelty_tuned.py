"""How well a model whose trunk was trained tells species that it has never seen, and pictures of something else.

    nice python -m benchmarks.novelty_tuned auto5-lite0 plants=DIR leaf=DIR --far cifar=DIR --out DIR [--draws plants=3]

As `benchmarks.novelty`, of runs in place of fitted heads: for each set a fifth of the finest classes is hidden by
`data.hide_taxa`, the row of `benchmarks.real` is trained, bundled, and what the bundle gives of all pictures of the
set, of those of each other set, and of 1,000 of each folder of `--far` is kept: logits and the features of its
statistics.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.common import RESULTS, write_results
from benchmarks.novelty import HIDDEN, UNKNOWN, Array, Hidden, row_of
from benchmarks.real.making import Place, labels, of_tasks, once, pixels, run, settings, tasks_of, train
from benchmarks.real.rows import ROWS, Row
from benchmarks.real.sets import SETS, SPLITS, read
from linnaeus_jax.data.labels import read_label_tables
from linnaeus_jax.files import replaced_file
from linnaeus_jax.inference.bundle.files import read_bundle
from linnaeus_jax.inference.model import load
from linnaeus_jax.inference.quality.evaluating import NO_LABEL, read_labelled

FAR, AT_ONCE = 1000, 256


def bundle_without(place: Place, name: str, row: Row, seed: int) -> tuple[Path, Path, Array]:
    """The labels file of a set, a bundle of a run that knows nothing of some species, and their taxon ids."""
    built, _ = pixels(place, row.side)
    split = labels(place, built, seed)
    tasks = tasks_of(built)
    (table,), classes = read_label_tables([str(split)], tasks, (), null_possible=True)
    species = np.intersect1d(classes[tasks[0]][1:], table.taxon[:, 0])
    drawn = np.random.default_rng(seed).choice(species, round(HIDDEN * len(species)), replace=False)
    work = place.out / place.name / f"hidden-{name}-{seed}"
    given = {"data.h5.labels_path": str(split), "data.hide_taxa": tuple(map(str, drawn.tolist()))}
    flags = settings(place, row.trunks, given | of_tasks(row.settings, tasks))
    once(work, lambda: train(built, work, flags, seed), goes_on=True)
    bundle = work.with_name(f"{work.name}-bundle")
    once(
        bundle,
        lambda: run(["linnaeus_jax.tools.bundle", str(work), str(bundle), "--force"], work.with_suffix(".b.log")),
    )
    return split, bundle, drawn


def pictures_of(place: Place, row: Row) -> h5py.Dataset:
    """uint8 [N, side, side, 3] of a set."""
    return h5py.File(pixels(place, row.side)[0] / "images.h5")["images"]


def said_of(bundle: Path, pictures: Sequence[Any], name: str) -> dict[str, Array]:
    """Task -> logits and layer -> features, float32 [N, D], by a bundle; of paths or pixels."""
    path = bundle.with_name(f"{bundle.name}-{name}.npz")
    if not path.is_file():
        model, parts = load(bundle), list[dict[str, Array]]()
        assert model.answers.novelty is not None
        forward = model.giving(*model.answers.novelty.statistics.layers, logits=True)
        for first in range(0, len(pictures), AT_ONCE):
            pixels = model.read(list(pictures[first : first + AT_ONCE]))
            parts.append(forward(pixels, *forward.zeros(len(pixels))[1:]))
        arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        with replaced_file(path) as unfinished, unfinished.open("xb") as file:
            np.savez(file, **arrays)
    with np.load(path) as arrays:
        return dict(arrays)


def model_of(bundle_path: Path, split: Path, outputs: Mapping[str, Array], drawn: Array) -> Hidden:
    """A bundle beside the rows of its data set."""
    bundle = read_bundle(bundle_path)
    known, (task, *_) = read_labelled(bundle, split), bundle.tasks
    label = np.full((len(outputs[task]), len(bundle.tasks)), NO_LABEL, np.int32)
    label[known.rows] = known.label
    taxon = np.zeros(len(label), np.int64)
    taxon[known.rows] = known.taxon[:, 0]
    with h5py.File(split) as file:
        side = file["split"][:]
    new = np.isin(taxon, drawn)
    train, val, test = (~new & (side == place) for place in range(3))
    logits = {task: outputs[task] for task in bundle.tasks}
    assert bundle.statistics is not None
    features = {layer: outputs[layer] for layer in bundle.statistics.layers}
    return Hidden(bundle.taxonomy, features, logits, label, train, val, test, new, bundle.calibration, {})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=[name for name, row in ROWS.items() if row.how == "pictures" and row.trunks])
    parser.add_argument("sets", nargs="+", metavar="SET=DIR", help=f"of {', '.join(SPLITS)}, and their clones")
    parser.add_argument("--far", nargs="+", default=[], metavar="NAME=DIR", help="folders of pictures of other things")
    parser.add_argument("--out", type=Path, required=True, help="folder of benchmarks.real for what is made")
    parser.add_argument("--draws", nargs="+", default=[], metavar="SET=N", help="of hidden species (1)")
    options = parser.parse_args(arguments)
    row, places, table = ROWS[options.row], {}, list[dict[str, Any]]()
    for text in options.sets:
        name, _, folder = text.partition("=")
        set_name, scheme = SPLITS[name]
        found = read(SETS[set_name], Path(folder))
        places[name] = Place(name, found, scheme, Path(folder), options.out, RESULTS / "real", "")
    draws = {name: int(count) for name, _, count in (text.partition("=") for text in options.draws)}
    folders = {name: Path(folder) for name, _, folder in (text.partition("=") for text in options.far)}
    for name, place in places.items():
        for seed in range(draws.get(name, 1)):
            split, bundle, drawn = bundle_without(place, options.row, row, seed)
            others = {
                other: said_of(bundle, pictures_of(of, row), other) for other, of in places.items() if other != name
            }
            for other, folder in folders.items():
                pictures = sorted(folder.rglob("*.jpg")) + sorted(folder.rglob("*.png"))
                others[other] = said_of(bundle, pictures[:: max(1, len(pictures) // FAR)][:FAR], other)
            model = model_of(bundle, split, said_of(bundle, pictures_of(place, row), name), drawn)
            assert (model.label[model.new, 0] == UNKNOWN).all()
            table.append({"row": options.row} | row_of(model, name, seed, others))
            print(table[-1], flush=True)
    shown = sys.argv[1:] if arguments is None else arguments
    shown = [f"{text.partition('=')[0]}=DIR" if "=" in text and text not in options.draws else text for text in shown]
    command = shlex.join(["python", "-m", "benchmarks.novelty_tuned", *shown])
    write_results("novelty_tuned", table, command.replace(str(options.out), "DIR"))


if __name__ == "__main__":
    main()
