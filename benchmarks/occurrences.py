"""What answering several pictures together is worth.

    nice python -m benchmarks.occurrences --fish DIR --views grocery=DIR plants=DIR --out build/occurrences

`--fish`: crops of fish (Fish4Knowledge) by trajectory, of which none lies on two sides of the split, with heads on
stored features of Lite0. For the test trajectories, errors and NLL at the finest rank of single pictures, of the mean
of the probabilities, and of evidence with several values of `pooling.STRAY` and the dependence that fits the validation
trajectories best. A trajectory counts once; of its single pictures each counts by its share. `--views`: views of each
test picture by heads on Lite0, and what they gain; each view is a forward pass. Results: `occurrences` and `views`.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import write_results
from benchmarks.real import making
from benchmarks.real.making import Place
from benchmarks.real.rows import ROWS
from benchmarks.real.sets import SETS, SPLITS, read
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.data.labels import OCCURRENCE, occurrence_numbers
from linnaeus_jax.files import read_json
from linnaeus_jax.inference import pooling
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import DEPENDENCE, bundle_of_run
from linnaeus_jax.inference.bundle.files import read_bundle
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.model import load
from linnaeus_jax.inference.paths import EVIDENCE, Logits
from linnaeus_jax.inference.pictures import VIEWS, read_views
from linnaeus_jax.inference.pooling import MEAN, Pooling, fitted_dependence
from linnaeus_jax.inference.quality.calibration import judge
from linnaeus_jax.inference.quality.measuring import read_rows
from linnaeus_jax.inference.quality.occurrences import agreed
from linnaeus_jax.inference.running import by_number, run_rows
from linnaeus_jax.metrics.judged import TINY, Judged
from linnaeus_jax.metrics.phases import MAIN
from linnaeus_jax.reading.metadata import Encoded, Observation
from linnaeus_jax.run import evaluate as runs

COMMAND, ROW = ("python", "-m", "benchmarks.occurrences"), "head-lite0"
#: what `pooling.STRAY` is, and what it is tried as
USED = pooling.STRAY
STRAYS = (1e-12, 0.01, 0.02, USED, 0.1, 0.2)


def place_of(name: str, data: Path, out: Path) -> Place:
    """Where a split is made."""
    set_name, scheme = SPLITS[name]
    return Place(name, read(SETS[set_name], data), scheme, data, out, out / "results", "")


def bundle_of(place: Place, seed: int) -> tuple[Path, Path]:
    """A run with heads on stored features, whose labels file names the occurrences, and its bundle."""
    row, work = ROWS[ROW], place.out / place.name / f"occurrences-{seed}"
    bundle = work.with_name(f"{work.name}-bundle")
    built, _ = making.pixels(place, row.side)
    stored, _ = making.features(place, row.trunks[0])
    labels = work.with_name(f"{work.name}.h5")
    if not labels.is_file():
        part = labels.with_suffix(".part")
        shutil.copyfile(making.labels(place, built, seed), part)
        group = {Path(path).as_posix(): text for path, text in zip(place.rows.paths, place.rows.groups, strict=True)}
        with h5py.File(part, "r+") as file:
            names = [name.decode() for name in file["img_identifiers"][:]]
            file.create_dataset(OCCURRENCE, data=[group[name] for name in names], dtype=h5py.string_dtype())
        part.rename(labels)
    given = {"data.h5.labels_path": str(labels), "data.h5.images_path": str(stored), "env.plugins": str(making.PLUGIN)}
    flags = making.settings(place, row.trunks, making.of_tasks(row.settings, making.tasks_of(built)) | given)
    making.once(work, lambda: making.train(built, work, flags, seed), goes_on=True)
    command = ["linnaeus_jax.tools.bundle", str(work), str(bundle)]
    making.once(bundle, lambda: making.run(command, work.with_suffix(".bundle.log")))
    return work, bundle


def nll(judged: Judged) -> NDArray[np.float64]:
    """Of every row at the finest rank."""
    return -np.log(np.maximum(judged.of_label[:, 0], TINY))


class Side:
    """Rows of one side of a split, and the sums of their evidence by trajectory."""

    def __init__(self, answers: Answers, logits: Logits, label: NDArray[np.int32], group: NDArray[np.int64]) -> None:
        self.answers, self.logits = answers, logits
        _, self.group, self.counts = np.unique(group, return_inverse=True, return_counts=True)
        self.single = judge(logits, label, answers)
        self.label = agreed(label, self.group, 0)

    def together(self, how: str) -> Callable[[float], Judged]:
        """Dependence -> answers."""
        way = Pooling(self.answers, how)
        terms = way.terms(self.logits)
        sums = np.zeros((len(self.counts), *terms.shape[1:]))
        np.add.at(sums, self.group, terms)
        return lambda value: judge(way.pooled(sums, self.counts, value), self.label, self.answers)

    def fitted(self) -> float:
        """The dependence under which the labels of the trajectories of several pictures are most probable."""
        answered = self.together(EVIDENCE)

        def loss(value: float) -> float:
            return float(-np.log(np.maximum(answered(value).of_label, TINY))[self.counts > 1].sum())

        return fitted_dependence(self.counts, loss)[0]


def measured(name: str, judged: Judged, weight: NDArray[np.float64] | None = None, **more: Any) -> dict[str, Any]:
    """A line of the table: errors in percent and NLL at the finest rank over known labels, each by its weight."""
    known = judged.known[:, 0]
    weight = np.ones(len(known)) if weight is None else weight
    wrong = 100 * np.average(~judged.right[known, 0], weights=weight[known])
    loss = np.average(nll(judged)[known], weights=weight[known])
    return {
        "how": name,
        "rows": int(known.sum()),
        "wrong_pct": round(float(wrong), 2),
        "nll": round(float(loss), 4),
        **more,
    }


def fish(data: Path, out: Path, seed: int) -> list[dict[str, Any]]:
    """By trajectory."""

    place = place_of("fish", data, out)
    sides: dict[str, set[str]] = {}
    for group, side in zip(place.rows.groups, place.rows.sides(place.scheme, seed), strict=True):
        sides.setdefault(group, set()).add(side)
    torn = sum(len(each) > 1 for each in sides.values())
    work, path = bundle_of(place, seed)
    calibration = read_bundle(path).calibration
    import_plugins(config_from_json(read_json(work / "config.json")))
    bundle = bundle_of_run(work)
    answers = Answers(bundle.taxonomy, calibration)
    rows = read_rows(bundle)
    assert rows.group is not None
    val = Side(answers, rows.logits[MAIN.name], rows.labels, rows.group)
    loaded = runs.load(work, str(bundle.facts["step"]))
    split = runs.test_split(loaded)
    found = runs.evaluate(loaded, (MAIN,), split, logits=True).predictions[MAIN.name]
    number = occurrence_numbers([(split.table, found.row.astype(np.int64))])
    test = Side(answers, found.logits, found.label, number)
    share = (1 / test.counts)[test.group]
    ways = [("mean", 0.0, 0.0, test.together(MEAN)(1.0))]
    for stray in STRAYS:
        pooling.STRAY = stray
        answered, dependence = test.together(EVIDENCE), val.fitted()
        ways.append(("evidence", stray, dependence, answered(dependence)))
        if stray == USED:
            ways += [("evidence, not fitted", stray, value, answered(value)) for value in (0.0, DEPENDENCE, 1.0)]
    pooling.STRAY = USED
    common: dict[str, Any] = {"seed": seed, "trajectories": len(sides), "on_two_sides": torn}
    table = []
    for what, chosen in (("all", test.counts > 0), ("of several", test.counts > 1)):
        common["test"] = f"{what}: {int(chosen.sum())}"
        single = chosen[test.group]
        table.append({"set": "fish", **common, **measured("single pictures", test.single.take(single), share[single])})
        for name, stray, value, judged in ways:
            line = measured(name, judged.take(chosen), stray=stray, dependence=round(value, 3))
            table.append({"set": "fish", **common, **line})
    return table


def of_views(name: str, data: Path, out: Path, seed: int, most: int) -> list[dict[str, Any]]:
    """Views of test pictures, at most so many, pooled as of one picture, and as if they were pictures of their own."""
    place = place_of(name, data, out)
    _, path = bundle_of(place, seed)
    model = load(path)
    rows = [row for row, side in enumerate(place.rows.sides(place.scheme, seed)) if side == "test"]
    rows = sorted(np.random.default_rng(seed).permutation(rows)[:most].tolist())
    encoded = model.bundle.encoder.encode([Observation()] * len(rows))

    def pixels(number: int) -> tuple[int, NDArray[np.uint8]]:
        picture = data / place.rows.paths[rows[number]]
        return number, read_views(picture, model.bundle.preprocessing, len(VIEWS))

    def kept(numbers: list[int], _: Sequence[Encoded], found: list[Logits]) -> list[Logits]:
        return found

    done = out / place.name / f"views-{seed}-{most}.npz"
    if not done.is_file():
        parts = list(run_rows(model.forward, range(len(rows)), pixels, by_number(encoded), kept))
        views = range(len(VIEWS))
        arrays = {
            f"{n}/{task}": np.concatenate([part[n][task] for part in parts]) for n in views for task in parts[0][0]
        }
        np.savez(done.with_suffix(".part.npz"), allow_pickle=False, **arrays)
        done.with_suffix(".part.npz").rename(done)
    with np.load(done) as found:
        seen = [{task: found[f"{n}/{task}"] for task in model.bundle.tasks} for n in range(len(VIEWS))]
    label = labels_of(model.bundle.taxonomy, [place.rows.names[row] for row in rows])
    table = []
    for count in (1, 2, 3, 7, 12):
        for how in (EVIDENCE, MEAN):
            way = Pooling(model.answers, how, count)
            pooled = way.pooled(way.terms(*seen[:count]), np.ones(len(rows), int))
            line = measured(how, judge(pooled, label, model.answers))
            table.append({"set": name, "views": count, "seed": seed, **line})
        way = Pooling(model.answers)
        sums = np.sum([way.terms(one) for one in seen[:count]], axis=0)
        for value in (0.5, 0.8, 1.0) if count > 1 else ():  # as if they were pictures of their own
            pooled = way.pooled(sums, np.full(len(rows), count), value)
            line = measured("as pictures", judge(pooled, label, model.answers), dependence=value)
            table.append({"set": name, "views": count, "seed": seed, **line})
    return table


def labels_of(taxonomy: Taxonomy, names: Sequence[tuple[str, ...]]) -> NDArray[np.int32]:
    """Classes [N, T] of names at each rank, finest first; null of none."""
    known = [{str(name): at for at, name in enumerate(taxonomy.names.name[task])} for task in taxonomy.tasks]
    return np.array([[of.get(name, 0) if name else 0 for of, name in zip(known, each)] for each in names], np.int32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fish", type=Path, help="clone of the set")
    parser.add_argument("--views", nargs="+", default=[], metavar="SET=DIR", help="sets, and their clones")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is made; the same one goes on")
    parser.add_argument("--seeds", default="0,1,2", help="of the split and of training (0,1,2); the first for views")
    parser.add_argument("--pictures", type=int, default=800, help="test pictures whose views are taken, at most (800)")
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    last = ["--out", "DIR", "--seeds", options.seeds]
    if options.fish is not None:
        table = [row for seed in seeds for row in fish(options.fish, options.out, seed)]
        write_results("occurrences", table, shlex.join([*COMMAND, "--fish", "DIR", *last]))
    if options.views:
        sets = [text.partition("=") for text in options.views]
        table = [
            row
            for name, _, folder in sets
            for row in of_views(name, Path(folder), options.out, seeds[0], options.pictures)
        ]
        given = ["--views", *(f"{name}=DIR" for name, *_ in sets)]
        write_results("views", table, shlex.join([*COMMAND, *given, *last]))


if __name__ == "__main__":
    main()
