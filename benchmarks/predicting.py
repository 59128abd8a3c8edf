"""How fast a folder of pictures is predicted, next to the evaluation of the same folder.

    python -m benchmarks.predicting [folder] [classes] [costs] [--run runs/demo] [--pictures 10000] [--pairs 5]

  folder     JPEGs made of the validation pictures of a run, predicted to a file in each form, against the evaluation
             program on the same folder (one phase, all metadata); both programs are compiled before, read with as many
             threads, and see the same metadata: predict from a table, the evaluation from its labels file
  classes    what the host does for the answers, by the number of classes of the finest rank, without a model
  costs      CPU time, page faults and memory of predict and of a server, see `benchmarks.predicting_costs`

`ratio` is how many times as fast predicting is as evaluating, the median over alternating rounds with quartiles;
`control` is that of predicting against itself, whose distance from 1 is the noise. The limit is 0.9. Files are made in
a temporary directory and read once before, so that the page cache is warm. The data of the run must be where its config
says.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

from benchmarks.common import add_names, interleaved, write_results
from benchmarks.predicting_costs import costs
from linnaeus_jax.data.image_sources import open_split
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.picture_list import list_pictures
from linnaeus_jax.inference.files.predicting import Job, predict_files
from linnaeus_jax.inference.files.prediction_files import FORMATS, unfinished
from linnaeus_jax.inference.files.prediction_lines import lines_for
from linnaeus_jax.inference.forward import BUCKETS
from linnaeus_jax.inference.model import load
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.run import evaluate
from linnaeus_jax.step.evaluation import Evaluator
from linnaeus_jax.taxonomy.tree import TaxonomyTree

Row = dict[str, Any]
LIMIT = 0.9
#: finest rank, genus, family
CLASSES = ((1_000, 250, 50), (10_000, 2_500, 300), (50_000, 10_000, 1_000))


def make_folder(loaded: evaluate.Loaded, count: int, folder: Path) -> tuple[Path, Path]:
    """A folder of `count` JPEGs of validation pictures, taken again and again, and a labels file for them."""
    val = loaded.dataset.val
    rows = np.resize(np.asarray(val.rows), count)
    images = open_split(loaded.experiment.config, val)
    pictures = folder / "pictures"
    pictures.mkdir()
    pixels = np.empty((1, *images.image_shape), np.uint8)
    for number, row in enumerate(rows.tolist()):
        images.read(np.array([row]), pixels)
        cv2.imwrite(str(pictures / name_of(number)), pixels[0, ..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
    labels = folder / "labels.h5"
    known = len(val.table)
    with h5py.File(val.table.path) as source, h5py.File(labels, "w") as file:
        for name, item in source.items():
            if isinstance(item, h5py.Dataset) and item.shape[:1] == (known,) and name != "img_identifiers":
                copied = file.create_dataset(name, data=item[:][rows])
                copied.attrs.update(item.attrs)
            elif name != "img_identifiers":
                source.copy(item, file, name)
        file["img_identifiers"] = [name_of(number) for number in range(count)]
    return pictures, labels


def name_of(number: int) -> str:
    return f"{number:06d}.jpg"


def known_of(labels: Path) -> list[Observation]:
    """What a table would say of the pictures; an elevation of 0 is unknown in a labels file."""
    with h5py.File(labels) as file:
        if "raw_lat" not in file:
            return [Observation()] * len(file["img_identifiers"])
        columns = [file[name][:].tolist() for name in ("raw_lat", "raw_lon", "raw_date_observed", "raw_elevation")]
    return [
        Observation(lat, lon, date.decode(), metres or None) for lat, lon, date, metres in zip(*columns, strict=True)
    ]


def folder(options: argparse.Namespace, place: Path) -> list[Row]:
    """Predicting against evaluating."""
    loaded = evaluate.load(options.run, "best")
    pictures, labels = make_folder(loaded, options.pictures, place)
    model = load(options.run, buckets=(options.batch,))
    jobs = [Job(*each) for each in zip(list_pictures([str(pictures)]), known_of(labels), strict=True)]
    split = evaluate.other_split(loaded, str(labels), str(pictures))
    if len(split.rows) != len(jobs):
        raise SystemExit(f"the evaluation takes {len(split.rows)} of {len(jobs)} pictures; use a run that filters none")
    inputs, state = loaded.experiment.inputs, loaded.state
    evaluator = Evaluator(loaded.experiment.program.evaluation, loaded.experiment.placement)
    phases = evaluate.parse_phases("val", loaded.experiment.program.evaluation.component_names)

    def evaluated() -> None:
        loader = inputs.eval_loader(split, open_split(inputs.config, split), options.batch)
        with contextlib.closing(loader):
            weights = state.gradnorm.weights
            evaluator.run(state.eval_params, state.model_state, weights, loader, phases)

    def predicted(suffix: str) -> None:
        out = place / "out" / f"predictions{suffix}"
        lines = lines_for(suffix, model.bundle.taxonomy, model.answers.options())
        with unfinished(place / "unfinished", out, {}, lines) as work:
            for part in predict_files(model, jobs, model.answers.options(), threads=options.threads):
                work.add(part)
            work.finish(out, {})
        shutil.rmtree(place / "unfinished")
        shutil.rmtree(place / "out")

    lines: list[Row] = []
    for suffix in FORMATS:
        times = interleaved(lambda form=suffix: predicted(form), evaluated, options.pairs)  # type: ignore[misc]
        what = f"{options.pictures} JPEGs of {model.bundle.preprocessing.size[0]} px to {suffix}: predict / evaluate"
        rate = {name: round(options.pictures / seconds) for name, seconds in rates_of(times.f_seconds, times.g_seconds)}
        lines.append({"what": what, **rate, **times.row(), "limit": LIMIT, "within": times.ratio >= LIMIT})
    return lines


def rates_of(predicting: float, evaluating: float) -> tuple[tuple[str, float], ...]:
    return ("predicted_per_s", predicting), ("evaluated_per_s", evaluating)


def tree_of(sizes: tuple[int, ...]) -> Taxonomy:
    """A balanced tree with null and with names."""
    tasks = ("taxa_L10", "taxa_L20", "taxa_L30")
    counts = {task: 1 + size for task, size in zip(tasks, sizes, strict=True)}
    parents = {}
    for task, size, above in itertools.zip_longest(tasks, sizes, sizes[1:]):
        up = np.full(size, -1) if above is None else 1 + np.arange(size) * above // size
        parents[task] = np.concatenate([[-1], up])
    ids = {task: np.concatenate([[0], 100_000 * (t + 1) + np.arange(sizes[t])]) for t, task in enumerate(tasks)}
    saved = {
        task: {str(taxon): {"name": f"Genus species {taxon}", "common_name": ""} for taxon in ids[task][1:]}
        for task in tasks
    }
    return Taxonomy(TaxonomyTree(tasks, counts, parents), TaxonNames.from_json(ids, saved))


def classes(options: argparse.Namespace, place: Path) -> list[Row]:
    """Milliseconds per picture, on one thread."""
    lines: list[Row] = []
    rng = np.random.default_rng(0)
    for sizes in CLASSES:
        taxonomy = tree_of(sizes)
        answers = Answers(taxonomy, Calibration.none(taxonomy.tasks))
        logits = {
            task: rng.normal(0, 3, (options.batch, len(taxonomy.classes[task]))).astype(np.float32)
            for task in taxonomy.tasks
        }
        for consistency in ("path", "documented"):
            chosen = answers.options(consistency=consistency)
            seconds = fastest(lambda: answers(logits, chosen), options.pairs)  # noqa: B023  # called at once
            milliseconds = round(1e3 * seconds / options.batch, 4)
            what = f"answers for {sizes[0]} species, {consistency}, batches of {options.batch}"
            lines.append({"what": what, "ms_per_picture": milliseconds})
    return lines


def fastest(f: Callable[[], object], rounds: int) -> float:
    """The shortest time of some calls after a first one."""
    f()
    times = []
    for _ in range(max(rounds, 2)):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


PARTS: dict[str, Callable[[argparse.Namespace, Path], list[Row]]] = {
    "folder": folder,
    "classes": classes,
    "costs": costs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, PARTS)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="a run directory (runs/demo)")
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=512, help="of the costs")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BUCKETS[-1], help="pictures computed at once")
    parser.add_argument("--threads", type=int, default=0, help="of predict that read (one for each core)")
    options = parser.parse_args()
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            lines = PARTS[name](options, Path(place))
        command = f"python -m benchmarks.predicting {shlex.join(sys.argv[1:])}".strip()
        write_results({"folder": "predicting"}.get(name, f"predicting_{name}"), lines, command)


if __name__ == "__main__":
    main()
