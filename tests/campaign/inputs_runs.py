"""Finished runs and crash bundles of which a file is not what it was."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from tests.campaign.case import Ended
from tests.campaign.inputs_given import Given, Made
from tests.forks import MAIN


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _directory(path: Path) -> None:
    _remove(path)
    path.mkdir()


def _garbage(path: Path) -> None:
    _remove(path)
    path.write_bytes(b"garbage")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("garbage\n"),
    "binary": lambda path: path.write_bytes(random.Random(1).randbytes(3000)),
    "binary tail": lambda path: path.write_bytes(path.read_bytes() + random.Random(2).randbytes(300)),
    "empty": lambda path: path.write_bytes(b""),
    "cut": _cut,
    "directory": _directory,
    "JSON list": lambda path: path.write_text("[1, 2]\n"),
    "JSON of another": lambda path: path.write_text('{"a": null}\n'),
    "numbers": lambda path: path.write_text('{"val": 7, "classes": [1e999]}\n'),
}
FILES = (
    "config.json",
    "progress.json",
    "run_id.txt",
    "assets/class_to_idx.json",
    "assets/validation_curves.json",
    "assets/validation_mistakes.json",
    "assets/taxonomy_tree.json",
    "assets/path_counts.json",
    "assets/schedule_summary.json",
    "assets/taxon_names.json",
    "assets/subset_maps.json",
    "logs/metrics_log.jsonl",
    "checkpoints/boundary_12.json",
    "checkpoints/ckpt_step_12/meta/metadata",
    "checkpoints/ckpt_step_12/digests.json",
    "checkpoints/ckpt_step_12/state/manifest.ocdbt",
    "checkpoints/ckpt_step_12/_CHECKPOINT_METADATA",
)
_CHECKPOINT = ("checkpoints/boundary_12.json", "checkpoints/ckpt_step_12")
_TAXONOMY = ("assets/taxon_names.json", "assets/taxonomy_tree.json", "assets/path_counts.json")
#: program -> what it reads of a run; damage to anything else cannot change what it does
READS = {
    MAIN: ("",),
    "linnaeus_jax.tools.report": ("config.json", "logs/metrics_log.jsonl", "assets/"),
    "linnaeus_jax.tools.replay_metrics": ("config.json", "logs/metrics_log.jsonl", "assets/"),
    "linnaeus_jax.tools.evaluate": ("config.json", "assets/class_to_idx.json", *_CHECKPOINT),
    "linnaeus_jax.tools.bundle": (*_TAXONOMY, *_CHECKPOINT),
    "linnaeus_jax.tools.predict": (*_TAXONOMY, *_CHECKPOINT),
    "linnaeus_jax.tools.export_weights": ("assets/taxonomy_tree.json", *_CHECKPOINT),
    "linnaeus_jax.tools.import_weights": ("assets/taxonomy_tree.json", *_CHECKPOINT),
}
#: files of a run -> why damage to them changes nothing that a program reads
UNUSED = {
    "checkpoints/ckpt_step_12/_CHECKPOINT_METADATA": "notes of Orbax about times, not used",
    "assets/taxonomy_tree.json of report": "the report draws no tree",
    "assets/taxonomy_tree.json of replay_metrics": "the sinks get no tree",
    "assets/path_counts.json of report": "the report names no prior",
    "assets/path_counts.json of replay_metrics": "the sinks get no prior",
    "assets/subset_maps.json of report": "the report does not read it",
    "assets/subset_maps.json of replay_metrics": "the sinks do not get it",
    "assets/subset_maps.json of main": "made anew of the data at every start",
    "assets/taxon_names.json of main": "made anew of the data at every start",
    "assets/taxonomy_tree.json of main": "made anew of the data at every start",
    "assets/path_counts.json of main": "made anew of the data at every start",
    "assets/class_to_idx.json of main": "made anew of the data at every start",
    "assets/schedule_summary.json of main": "made anew at every start",
    "config.json of main": "the config is given again, and replaces it",
    "progress.json of main": "restored from the checkpoint",
    "run_id.txt of main": "restored from the checkpoint",
}
#: program -> arguments; the damaged run is `run`
PROGRAMS: dict[str, tuple[str, ...]] = {
    MAIN: ("--config=CONFIG", "--workdir=run"),
    "linnaeus_jax.tools.evaluate": ("run", "--json"),
    "linnaeus_jax.tools.bundle": ("run", "out", "--without-data"),
    "linnaeus_jax.tools.report": ("run", "--out=out.html"),
    "linnaeus_jax.tools.replay_metrics": ("run", "--to=tensorboard", "--out=out"),
    "linnaeus_jax.tools.export_weights": ("run", "out.safetensors"),
    "linnaeus_jax.tools.predict": ("run", "picture.png"),
    "linnaeus_jax.tools.import_weights": ("run", "--config=CONFIG"),
}


def _run(file: str, damage: str, made: Made, directory: Path) -> None:
    shutil.copytree(made.run, directory / "run")
    _picture(directory / "picture.png")
    if (directory / "run" / file).exists():
        DAMAGE[damage](directory / "run" / file)


def _picture(path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((48, 48, 3), np.uint8)).save(path)


def _named(program: str, file: str, ended: Ended) -> str:
    """Accepted where the program does not read the file, or says that it could not use it."""
    if not file.startswith(READS[program]):
        return "does not read this file"
    short = program.rpartition(".")[2]
    if reason := UNUSED.get(file) or UNUSED.get(f"{file} of {short}"):
        return reason
    name = "ckpt_step_12" if "ckpt_step" in file else file.rpartition("/")[2]
    said = ended.out + ended.error
    return "says which file it cannot use and goes on" if name in said or "checkpoint of step 12" in said else ""


def damaged(made: Made, rng: random.Random, count: int) -> list[Given]:
    """Programs on finished runs of which one file is damaged."""
    given = []
    for program, arguments in PROGRAMS.items():
        for file in FILES:
            for damage in DAMAGE:
                given.append(
                    Given(
                        "damaged run",
                        f"{program.rpartition('.')[2]}: {file}: {damage}",
                        program,
                        tuple(text.replace("CONFIG", str(made.config)) for text in arguments),
                        partial(_run, file, damage, made),
                        partial(_named, program, file),
                        ("run/", "out"),
                        trained=True,
                    )
                )
    return rng.sample(given, count)


# ---- crash bundles


def _edited(edit: Callable[[dict[str, object]], object], path: Path) -> None:
    about = json.loads((path / "bundle.json").read_text())
    about.pop("sha256", None)
    (path / "bundle.json").write_text(json.dumps(edit(about)))


def _arrays(path: Path, **changes: object) -> None:
    with np.load(path / "batch_0.npz") as arrays:
        kept = dict(arrays)
    for name, value in changes.items():
        kept.pop(name) if value is None else kept.update({name: value})
    np.savez(path / "batch_0.npz", **kept)
    (path / "digests.json").unlink(missing_ok=True)


def _pickled(path: Path) -> None:
    _arrays(path, label=np.array([{"a": 1}], dtype=object))


def _without_digests(change: Callable[[Path], None], path: Path) -> None:
    (path / "digests.json").unlink(missing_ok=True)
    change(path)


CRASHES: dict[str, Callable[[Path], object]] = {
    "is a list": partial(_edited, lambda about: [about]),
    "config is a list": partial(_edited, lambda about: {**about, "config": [1]}),
    "config is empty": partial(_edited, lambda about: {**about, "config": {}}),
    "config of another": partial(_edited, lambda about: {**about, "config": {"a": 1}}),
    "section is a list": partial(_edited, lambda about: {**about, "config": {"train": [1]}}),
    "value of another kind": partial(_edited, lambda about: {**about, "config": {"train": {"epochs": "many"}}}),
    "update is a text": partial(_edited, lambda about: {**about, "update": "last"}),
    "update is negative": partial(_edited, lambda about: {**about, "update": -3}),
    "update is huge": partial(_edited, lambda about: {**about, "update": 10**40}),
    "no update": partial(_edited, lambda about: {"config": about["config"]}),
    "no config": partial(_edited, lambda about: {"update": 1}),
    "garbage": lambda path: (path / "bundle.json").write_text("garbage"),
    "no batch": lambda path: _remove(path / "batch_0.npz"),
    "batch is garbage": lambda path: (path / "batch_0.npz").write_bytes(b"garbage"),
    "batch is empty": lambda path: (path / "batch_0.npz").write_bytes(b""),
    "batch is a directory": lambda path: _directory(path / "batch_0.npz"),
    "batch is garbage without digests": partial(_without_digests, lambda path: _garbage(path / "batch_0.npz")),
    "pickled arrays": _pickled,
    "an array is missing": partial(_arrays, image=None),
    "an array has another shape": partial(_arrays, image=np.zeros((1, 2, 3), np.uint8)),
    "an array has another type": partial(_arrays, image=np.array([["a"]])),
    "an array more": partial(_arrays, more=np.zeros(3)),
    "no state": lambda path: _remove(path / "state"),
    "state is empty": partial(_without_digests, lambda path: _directory(path / "state")),
    "state is a file": lambda path: _garbage(path / "state"),
}


def _crash(change: Callable[[Path], object], made: Made, directory: Path) -> None:
    shutil.copytree(made.crash_bundle(), directory / "crash")
    change(directory / "crash")


def crash_bundles(made: Made) -> Iterator[Given]:
    """Crash bundles that lack parts or hold other things."""
    for name, change in CRASHES.items():
        prepare = partial(_crash, change, made)
        yield Given("crash bundle", name, "linnaeus_jax.tools.replay", ("crash",), prepare, trained=True)
