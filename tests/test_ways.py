"""The whole way by the programs that people type: pictures, data set, run, resume, report, bundle, answers, server,
evaluation, export, the next run; for data with one rank, two, seven, twelve, leaves at several ranks, one class and
4,000.
"""

from __future__ import annotations

import csv
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import httpx
import jax
import numpy as np
import polars as pl
import pytest

from linnaeus_jax import main
from linnaeus_jax.inference.model import Model, load
from linnaeus_jax.run.saved_weights import read_run
from linnaeus_jax.tools import (
    build_dataset,
    bundle,
    change_names,
    describe_dataset,
    evaluate,
    export,
    predict,
    report,
    verify_dataset,
)
from linnaeus_jax.weights.files import read_state
from tests.conftest import use_one_device
from tests.inference.serving_helpers import serving
from tests.inference.test_serving import same
from tests.step import toy

#: side of the pictures
SIDE = 32
SHOWN = 9


@dataclass(frozen=True)
class Way:
    """Data of one shape.

    Attributes:
      ranks: their names, finest first, as --ranks takes them; () of class folders.
      classes: of each finest group of pictures its names, finest first; "" where it has none at a rank.
      each: pictures of a group.
      head: of all ranks but the coarsest.
      settings: of the run.
      null: whether "unknown" is a class.
    """

    ranks: tuple[str, ...]
    classes: Sequence[tuple[str, ...]]
    each: int = 8
    head: str = "Linear"
    settings: tuple[str, ...] = ()
    null: bool = True

    @property
    def large(self) -> bool:
        """So large that a few rows stand for all."""
        return len(self.classes) > 1000


TAXONOMY = ("species", "genus", "tribe", "family", "order", "class", "phylum")


def seven(species: int) -> tuple[str, ...]:
    genus = f"Genus{'abcd'[species // 2]}"
    above = [f"{rank.title()}{'ab'[species // 4]}" for rank in TAXONOMY[2:5]]
    return (f"{genus} species{'abcdefgh'[species]}", genus, *above, "Aves", "Chordata")


TWELVE = (
    *("species", "subgenus", "genus", "tribe", "subfamily", "family", "superfamily", "suborder", "order", "class"),
    *("phylum", "kingdom"),
)
#: ranks that each group of pictures lacks, "" where it is identified to the species
LACKING = (
    *("", "subgenus tribe", "subgenus", "species subgenus genus", "tribe superfamily suborder"),
    *("species subgenus genus tribe subfamily family", "subfamily phylum kingdom"),
)


def ragged(group: int) -> tuple[str, ...]:
    """Names of a group: every third one shares all ranks above the genus."""
    names = [
        f"{rank.title()}{'abc'[group % 3] if rank not in ('class', 'phylum', 'kingdom') else ''}" for rank in TWELVE
    ]
    names[0], names[1], names[2] = (
        f"Genus{'gfedcba'[group]} minor",
        f"Sub{'gfedcba'[group]}",
        f"Genus{'gfedcba'[group]}",
    )
    return tuple("" if rank in LACKING[group].split() else name for rank, name in zip(TWELVE, names))


SMOOTHED = tuple(
    f"--config.loss.{key}"
    for key in (
        "task_specific.train.funcs=TaxonomyAwareLabelSmoothing",
        "taxonomy_smoothing.enabled=True",
        "grad_weighting.class_weights.method=logarithmic",
    )
)
GRADNORM = tuple(f"--config.loss.grad_weighting.task.{key}" for key in ("type=gradnorm", "update_interval=2"))
NO_NULL = ("--config.data.partial.levels=False", "--config.train.phase1_mask_null_loss=False")
WAYS = {
    "one rank": Way((), [("Red",), ("Green",), ("Blue",)], each=14, settings=SMOOTHED + GRADNORM),
    "two ranks of any names": Way(
        ("variety", "crop"), [(f"sort-{i}", f"plant {i // 2}") for i in range(5)], head="PathSoftmax"
    ),
    "seven ranks": Way(TAXONOMY, [seven(i) for i in range(8)], 6, "ConditionalClassifier", SMOOTHED),
    "leaves at several ranks": Way(
        ("species", "genus", "family", "order"),
        [
            ("Parus major", "Parus", "Paridae", "Passeriformes"),
            ("Parus minor", "Parus", "Paridae", "Passeriformes"),
            ("", "Poecile", "Paridae", "Passeriformes"),
            ("", "", "Corvidae", "Passeriformes"),
            ("Larus canus", "Larus", "", "Charadriiformes"),
            ("Incerta sedis", "Incerta", "", ""),
        ],
        head="HierarchicalSoftmax",
        settings=SMOOTHED,
    ),
    "twelve ranks, of which branches lack some": Way(TWELVE, [ragged(i) for i in range(7)], 8, "Linear"),
    "one class": Way((), [("Only",)], each=40, settings=SMOOTHED),
    "one class without null": Way(("kind",), [("only",)], each=40, settings=NO_NULL + SMOOTHED + GRADNORM, null=False),
    "4,000 classes": Way(
        ("variety", "crop"),
        [(f"variety {i}", f"crop {i // 7}") for i in range(4_000)],
        each=1,
        settings=("--config.data.batch_size=1024", "--config.debug.loss.taxonomy_smoothing=True", *SMOOTHED[:2]),
    ),
}


@dataclass(frozen=True)
class Place:
    """Where a way goes, and the run that everything is made from."""

    root: Path
    way: Way
    capsys: pytest.CaptureFixture[str]

    def call(self, program: Callable[..., int], *arguments: object) -> str:
        """What a program prints; it must succeed."""
        self.capsys.readouterr()
        status = program([str(argument) for argument in arguments])
        said = self.capsys.readouterr()
        assert status == 0, said.err
        return said.out

    def train(self, name: str, *settings: str) -> Path:
        heads = [f"--config.model.classification.heads.{task}.type={self.way.head}" for task in self.tasks[:-1]]
        every = ("--config.schedule.validation.interval_epochs=1", "--config.schedule.checkpoint.interval_epochs=1")
        model = ("--config.model.type=toy", "--config.model.variant=tiny", "--config.train.tune=full")
        short = (
            "--config.train.epochs=2",
            "--config.lr_scheduler.warmup_epochs=0",
            "--config.schedule.metrics.step_interval=1",
        )
        given = (*model, *short, *every, *heads, *self.way.settings, *settings)
        run = self.root / name
        if not any(text.startswith("--config.model.pretrained") for text in given):
            given += ("--config.model.pretrained=",)
        self.call(main.main, f"--config={self.data / 'config.py'}", *given, f"--workdir={run}")
        return run

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def tasks(self) -> list[str]:
        """Finest rank first."""
        space: dict[str, Any] = runpy.run_path(str(self.data / "config.py"))
        return list(space["get_config"]().data.task_keys_h5)


def write_pictures(root: Path, way: Way) -> list[Path]:
    """One picture of each class after the other, told apart by colour; class folders where there are no ranks."""
    rng, paths = np.random.default_rng(0), []
    for number in range(len(way.classes) * way.each):
        index = number % len(way.classes)
        folder = root if way.ranks else root / way.classes[index][0]
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{number:05d}.png")
        colour = np.array([37 * index % 200, 91 * index % 200, 151 * index % 200])
        pixels = np.clip(colour + rng.integers(0, 50, (4, 4, 3)), 0, 255).astype(np.uint8)
        assert cv2.imwrite(str(paths[-1]), pixels)
    return paths


def build(place: Place) -> None:
    """Pictures -> labels.h5 and images.h5 with all classes, which the tools find to be in order."""
    way, photos = place.way, place.root / "photos"
    paths = write_pictures(photos, way)
    source: tuple[object, ...] = ("--folders", photos)
    if way.ranks:
        table = place.root / "records.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["picture", *way.ranks])
            writer.writerows([path.name, *way.classes[i % len(way.classes)]] for i, path in enumerate(paths))
        source = ("--table", table, "--pictures", photos, "--ranks", ",".join(way.ranks))
    split = ("--split", "random", "--val", "0.01") if way.large else ("--val", "0.25")
    place.call(build_dataset.main, *source, "--out", place.data, "--size", SIDE, *split)
    files = (place.data / "labels.h5", "--images", place.data / "images.h5")
    place.call(verify_dataset.main, *files)
    place.call(describe_dataset.main, *files, "--out", place.root / "described")
    totals = json.loads((place.data / "build.json").read_text())["totals"]
    assert totals["used"] == len(paths)
    for column, rank in enumerate(totals["ranks"].values()):
        names = {names[column] for names in way.classes} - {""}
        assert (rank["classes"], rank["rank"]) == (len(names), way.ranks[column] if way.ranks else "species")


def parameters(run: Path) -> Any:
    return jax.tree.map(np.asarray, read_run(run, "newest", "last").params)


def trained(place: Place) -> Path:
    """A run that was ended in its second epoch and resumed has the parameters of one that was not ended."""
    whole = place.train("whole")
    rows = [json.loads(line) for line in (whole / "logs" / "metrics_log.jsonl").read_text().splitlines()]
    numbers = {key: value for row in rows for key, value in row.items() if key.startswith(("train/", "val/"))}
    wrong = {key: x for key, x in numbers.items() if not isinstance(x, (int, float)) or not np.isfinite(x)}
    assert not wrong
    steps = json.loads((whole / "progress.json").read_text())["global_step"]
    place.train("run", f"--config.debug.early_exit_after_n_optimizer_steps={steps // 2 + 1}")
    run = place.train("run", "--config.debug.early_exit_after_n_optimizer_steps=0")
    jax.tree.map(np.testing.assert_array_equal, parameters(run), parameters(whole))
    place.call(report.main, run)
    page = (run / "report.html").read_text()
    assert len(page) < 2_000_000
    if len(place.way.classes) == 1:
        assert "nothing learned" not in page
    return run


def check_answers(model: Model, pictures: Sequence[Path], way: Way) -> None:
    """Probabilities of each rank sum to 1, and a path names a taxon, those above it, and nothing else."""
    taxonomy = model.bundle.taxonomy
    known = {rank: set(taxonomy.names.name[task].tolist()) for task, rank in taxonomy.ranks.items()}
    lines = {tuple(names[place:]) for names in way.classes for place in range(len(names))}
    everything = max(map(len, taxonomy.classes.values()))
    for consistency in ("path", "documented"):
        for said in model.predict(pictures, consistency=consistency, top_k=everything, min_confidence=0.0):
            for rank, taxa in said.top.items():
                if consistency == "path" or len(taxa) > 1:
                    assert sum(taxon.probability for taxon in taxa) == pytest.approx(1.0, abs=1e-5)
                assert {taxon.name for taxon in taxa} <= known[rank] | {""}
            path = [taxon.name for taxon in said.path[::-1]]
            while path and not path[0]:
                del path[0]
            assert not path or tuple(path) in lines
            assert said.answer is None or said.answer.known


def used(place: Place, run: Path) -> tuple[Model, list[Path]]:
    """A bundle answers, in Python, in files and for a coverage, as its run does."""
    out, photos = place.root / "bundle", place.root / "photos"
    assert "calibrated on" in place.call(bundle.main, run, out)
    pictures = sorted(photos.rglob("*.png"))[:SHOWN]
    model, of_run = load(out), load(run, buckets=(8,))
    assert model.bundle.calibration.rows > 0
    jax.tree.map(np.testing.assert_array_equal, dict(model.bundle.variables), dict(of_run.bundle.variables))
    check_answers(model, pictures, place.way)
    expected = model.predict(pictures)
    written = place.root / "answers.jsonl"
    place.call(predict.main, out, *pictures, "--out", written, "--gallery", place.root / "gallery.html")
    for line, said in zip(written.read_text().splitlines(), expected, strict=True):
        same({key: value for key, value in json.loads(line).items() if key not in ("file", "metadata_from")}, said)
    place.call(predict.main, run, pictures[0], "--explain", place.root / "why")
    place.call(predict.main, out, *pictures, "--coverage", "0.6", "--out", place.root / "covered.csv")
    name = next(names[0] for names in place.way.classes if names[0])
    (place.root / "restricted.txt").write_text(f"{name}\n")
    place.call(predict.main, out, *pictures, "--restrict", place.root / "restricted.txt", "--out", place.root / "r.csv")
    tables = [list(csv.DictReader((place.root / file).read_text().splitlines())) for file in ("covered.csv", "r.csv")]
    finest = model.bundle.taxonomy.ranks[model.bundle.tasks[0]]
    assert {row["answer_rank"] for row in tables[0]} <= {"", *model.bundle.taxonomy.ranks.values()}
    assert {row[f"{finest}_name"] for row in tables[1]} <= {name, "unknown"}
    return model, pictures


def served(model: Model, pictures: Sequence[Path]) -> None:
    """One request gets what Python gives; the server describes the model."""
    with serving(model) as url, httpx.Client(base_url=url, timeout=60) as client:
        answer = client.post("/predict", files=[("images", (path.name, path.read_bytes())) for path in pictures[:2]])
        assert answer.status_code == 200, answer.text
        for one, said in zip(answer.json()["predictions"], model.predict(pictures[:2]), strict=True):
            same(one, said)
        about = client.get("/info").json()
        assert about["num_classes_per_rank"] == model.bundle.taxonomy.tree.num_classes
        assert len(client.get("/").content) < 100_000


def evaluated(place: Place, run: Path, model: Model) -> None:
    """The evaluation of a bundle counts what its answers are."""
    files = ("--labels", place.data / "labels.h5", "--images", place.data / "images.h5", "--split", "val")
    text = place.call(evaluate.main, place.root / "bundle", *files, "--json", "--report", place.root / "page.html")
    numbers = json.loads(text)
    with h5py.File(place.data / "labels.h5") as labels, h5py.File(place.data / "images.h5") as images:
        rows = np.flatnonzero(labels["split"][:] == 1)
        pixels = [images["images"][row] for row in rows]
        taxa = {task: labels[task][:][rows] for task in place.tasks}
    said = model.predict(pixels)
    for place_of, (task, rank) in enumerate(model.bundle.taxonomy.ranks.items()):
        answers = np.array([each.path[-1 - place_of].taxon_id for each in said])
        labelled = taxa[task] > 0
        right = (answers == taxa[task])[labelled]
        assert numbers["ranks"][rank]["rows"] == labelled.sum()
        assert numbers["ranks"][rank]["accuracy"]["path"] == (pytest.approx(right.mean()) if right.size else None)
    for each in numbers["roll_up"]:
        assert sum(each["answered"].values()) + each["unanswered"] == pytest.approx(1.0)
    phases = json.loads(place.call(evaluate.main, run, "--json"))["phases"]
    assert all(np.isfinite(value) for value in phases["val"].values())


def exported(place: Place, model: Model, pictures: Sequence[Path]) -> None:
    """The example names the path that the bundle names, with its probabilities."""
    out = place.root / "export"
    place.call(export.main, place.root / "bundle", out, "--platforms", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["example.py", *map(str, pictures)])
        patch.syspath_prepend(str(out))  # as for a script, which finds what lies beside it
        for module in ("answers", "pixels"):
            patch.delitem(sys.modules, module, raising=False)
        place.capsys.readouterr()
        runpy.run_path(str(out / "example.py"))
    lines = [line.split("\t") for line in place.capsys.readouterr().out.splitlines()]
    assert len(lines) == len(pictures) * len(model.bundle.tasks)
    logits = model.forward(model.read(pictures), *(np.zeros((len(pictures), 0), kind) for kind in (np.float32, bool)))
    options = model.answers.options()
    best, by_task = model.answers.probabilities(logits, options)
    for number, (path, rank, taxon, _, probability) in enumerate(lines):
        place_of = len(model.bundle.tasks) - 1 - number // len(pictures)
        task, row = model.bundle.tasks[place_of], number % len(pictures)
        index = best[row, place_of]
        assert (path, rank) == (str(pictures[row]), model.bundle.taxonomy.ranks[task])
        assert int(taxon) == (model.bundle.taxonomy.classes[task][index] if index >= 0 else 0)
        left = 1 - by_task[task][row].sum()  # of no class
        assert float(probability) == pytest.approx(by_task[task][row, index] if index >= 0 else left, abs=1e-3)


def continued(place: Place, run: Path) -> None:
    """The next run begins with exactly the weights of the run, of its bundle and of its export."""
    best = read_run(run)
    state = best.state_file()
    exported_state = read_state(place.root / "export" / "weights.safetensors")
    assert exported_state.facts["classes"] == state.facts["classes"]
    jax.tree.map(np.testing.assert_array_equal, exported_state.arrays, state.arrays)
    still = [f"--config.lr_scheduler.{key}=0" for key in ("base_lr", "min_lr", "warmup_lr")]
    for source in (
        (run, place.root / "bundle") if len(place.tasks) == 1 and place.way.null else (place.root / "bundle",)
    ):
        next_run = place.train(f"after_{source.name}", f"--config.model.pretrained={source}", *still)
        jax.tree.map(np.testing.assert_array_equal, parameters(next_run), jax.tree.map(np.asarray, best.params))


def in_every_format(place: Place, model: Model, pictures: Sequence[Path]) -> None:
    """Files of every format say the same of every rank; those of boxes are read by Timelapse and MegaDetector."""
    out, expected = place.root / "formats", model.predict(pictures)
    out.mkdir()
    bundle_, photos, ranks = place.root / "bundle", place.root / "photos", list(model.bundle.taxonomy.ranks.values())
    tables = []
    for name in ("answers.csv", "answers.parquet", "answers.jsonl"):
        place.call(predict.main, bundle_, *pictures, "--out", out / name)
        tables.append(out / name)
    csv_, parquet = pl.read_csv(tables[0], infer_schema=False), pl.read_parquet(tables[1])
    lines = [json.loads(line) for line in tables[2].read_text().splitlines()]
    for row, said in enumerate(expected):
        for rank, taxon in zip(ranks[::-1], said.path, strict=True):
            name = taxon.name or "unknown"
            (of_line,) = [one for one in lines[row]["path"] if one["rank"] == rank]
            names = {csv_[f"{rank}_name"][row], parquet[f"{rank}_name"][row] or "unknown", of_line["name"] or "unknown"}
            assert names == {name}
            assert float(csv_[f"{rank}_probability"][row]) == pytest.approx(taxon.probability, abs=1e-3)
    boxes = [
        {"file": path.name, "detections": [{"category": "1", "conf": 0.9, "bbox": [0.0, 0.0, 1.0, 1.0]}]}
        for path in pictures
    ]
    content = {"info": {"format_version": "1.4"}, "detection_categories": {"1": "animal"}, "images": boxes}
    (photos / "boxes.json").write_text(json.dumps(content))
    place.call(predict.main, bundle_, *pictures, "--boxes", photos / "boxes.json", "--out", photos / "answers.json")
    written = json.loads((photos / "answers.json").read_text())
    assert len(written["images"]) == len(pictures)
    categories = written["classification_categories"]
    for one, said in zip(written["images"], expected, strict=True):
        (detection,) = one["detections"]
        if said.answer is not None:
            assert categories[detection["classifications"][0][0]] == said.answer.name


def with_names_of_today(place: Place, run: Path, model: Model, pictures: Sequence[Path]) -> None:
    """Two genera of a run become one in a bundle of it, with the sum of their probabilities."""
    genus, both = TWELVE.index("genus"), ("Genusg", "Genusf")
    changes = place.root / "changes.csv"
    changes.write_text(f"change,taxon,rank,to\nmerge,{both[0]},genus,{both[1]}\nrename,GENUSc minor,,Pica pica\n")
    assert "1 renamed, 1 merged" in place.call(change_names.main, changes, run, "--out", place.root / "today")
    now = load(place.root / "today")
    for said, before in zip(*(each.predict(pictures, top_k=99) for each in (now, model)), strict=True):
        p, old = ({taxon.name: taxon.probability for taxon in one.top[TWELVE[genus]]} for one in (said, before))
        assert p[both[1]] == pytest.approx(old[both[0]] + old[both[1]], abs=1e-6)
        assert both[0] not in p
        species = {taxon.name for taxon in said.top["species"]}
        assert "Pica pica" in species
        assert "Genusc minor" not in species


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_the_whole_way(name, tmp_path, monkeypatch, capsys):
    toy.register(monkeypatch, toy.ToyWithHeads)
    use_one_device(monkeypatch)
    place = Place(tmp_path, WAYS[name], capsys)
    build(place)
    run = trained(place)
    model, pictures = used(place, run)
    assert bool(model.bundle.taxonomy.first) == WAYS[name].null
    if len(place.tasks) == len(TWELVE):
        in_every_format(place, model, pictures)
        with_names_of_today(place, run, model, pictures)
    served(model, pictures)
    evaluated(place, run, model)
    exported(place, model, pictures)
    continued(place, run)
