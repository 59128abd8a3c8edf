"""The weights of a run, read from its directory alone: neither its data nor its optimizer are looked at."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError, text_of
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.files import RunDirectory, damage_of, read_json
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.names import params_to_torch
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.chosen_checkpoint import read_arrays, read_meta
from linnaeus_jax.run.retention import best_checkpoint
from linnaeus_jax.taxonomy.tree import parents_of
from linnaeus_jax.weights.classes import ids_of_maps
from linnaeus_jax.weights.exporting import facts, own_settings, torch_state
from linnaeus_jax.weights.files import FACTS, IMAGE, StateFile, read_state
from linnaeus_jax.weights.importing import pretrained_is_run
from linnaeus_jax.weights.settings import pretrained_settings
from linnaeus_jax.weights.targets import targets_of

log = logging.getLogger("linnaeus_jax")

#: files of a bundle; `inference/bundle/files.py` writes them
BUNDLE_JSON, BUNDLE_WEIGHTS, BUNDLE_CLASSES = "bundle.json", "weights.safetensors", "class_index_map.json"


@dataclass(frozen=True, eq=False)
class SavedWeights:
    """One checkpoint of a run, as numpy arrays.

    Attributes:
      path: its directory.
      settings: the `model` section of the run.
      model: the model, in float32.
      params: the parameters chosen, `weights` says which: "ema", their moving average, or "last".
      model_state: the other collections by name, {} where there are none.
      classes: task -> taxon id of each class, 0 for null.
      parents: task -> parent's index in the next task of each class, -1 for none; {} of a single rank, None where the
        run left no tree.
      step: updates made.
      preprocessing: of the pictures, as the run had it when the checkpoint was made.
      columns: name of every metadata component -> names of its columns in vector order, "" where none is known.
    """

    path: Path
    settings: Mapping[str, Any]
    model: ModelFamily
    params: Any
    model_state: Any
    weights: str
    classes: dict[str, list[int]]
    parents: dict[str, NDArray[np.int32]] | None
    step: int
    columns: dict[str, tuple[str, ...]]
    preprocessing: Preprocessing

    @property
    def facts(self) -> dict[str, Any]:
        """What an exported file says about its weights."""
        about = self.settings["type"], self.settings["variant"], self.classes
        pictures, own = dataclasses.asdict(self.preprocessing), own_settings(self.settings)
        return facts(self.model, *about, weights=self.weights, step=self.step) | {IMAGE: pictures} | own

    def torch_state(self) -> dict[str, np.ndarray]:
        """All arrays under PyTorch's names, see `weights.exporting`."""
        return torch_state(self.model, self.params, self.model_state, self.step, self.parents)

    def state_file(self) -> StateFile:
        """The same as what reading an exported file gives; its hash is of names and arrays."""
        arrays = self.torch_state()
        digest = hashlib.sha256()
        for name in sorted(arrays):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(arrays[name]).tobytes())
        which = f"{'moving average' if self.weights == 'ema' else 'last parameters'} after {self.step} updates"
        return StateFile(self.path, digest.hexdigest(), arrays, {FACTS: self.facts}, (which,))


def run_directory(run: Path) -> RunDirectory:
    """The directory of a run that saved something.

    Raises:
      UserError: it is none.
    """
    directory = RunDirectory(run)
    if not directory.config_json.is_file() or not directory.checkpoints.is_dir():
        raise UserError(f"{run} holds no config.json and checkpoints; give the directory of a run, its --workdir")
    return directory


def choose_checkpoint(checkpoints: Checkpoints, which: str) -> int:
    """The step of the checkpoint "newest", "best" by the run's own ranking (the newest where none is ranked), or of a
    number.

    Raises:
      UserError: there is none such.
    """
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{checkpoints.directory} holds no complete checkpoint; let the run save one first")
    if which == "newest":
        return steps[-1]
    if which == "best":
        newest = checkpoints.finished_boundary(steps[-1]) or read_meta(checkpoints, steps[-1])["host"]
        best = best_checkpoint({int(step): entry for step, entry in newest["ranking"].items()}, steps)
        if best is None:
            log.warning("no checkpoint in %s was ranked by a validation; the newest is used", checkpoints.directory)
        return steps[-1] if best is None else best
    if not which.isdecimal() or int(which) not in steps:
        raise UserError(
            f"there is no checkpoint {which!r} in {checkpoints.directory}; choose newest, best or one of "
            + ", ".join(map(str, steps))
        )
    return int(which)


def read_run(run: Path, which: str | int = "best", weights: str = "ema") -> SavedWeights:
    """The weights of a checkpoint.

    Args:
      run: the run directory.
      which: "newest", "best" by the run's own ranking, or a step.
      weights: "last", or "ema" for the moving average of the parameters, where the run kept one.

    Raises:
      UserError: no run, no such checkpoint, or one that cannot be read.
    """
    directory = run_directory(Path(run).expanduser())
    with contextlib.closing(Checkpoints(directory.checkpoints, read_only=True)) as checkpoints:
        step = choose_checkpoint(checkpoints, str(which))
        meta = read_meta(checkpoints, step)
        trees = read_arrays(checkpoints, step, ("params", "model_state", "ema"))
        path = checkpoints.path(step)
    identity, config = meta["identity"], typed(config_from_json(meta["config"]))
    if config.model.attn_impl == "cudnn":  # it needs a GPU and bfloat16; here weights are of float32, for any device
        config = config.replaced({"model.attn_impl": "auto"})
    classes = {task: identity["classes"][task] for task in identity["ranks"]}
    components = sorted(identity["metadata"].values(), key=lambda component: component["start"])
    widths = {component["name"]: component["stop"] - component["start"] for component in components}
    parents = _parents(directory, classes)
    try:
        model = build_model(
            config.model,
            components=list(widths.items()),
            num_classes={task: len(ids) for task, ids in classes.items()},
            img_size=config.data.img_size,
            parents=parents,
        )
    except ValueError as error:
        raise UserError(f"the model of {run} cannot be built by this version: {error}") from error
    averaged = weights == "ema" and bool(trees["ema"])
    params, model_state = trees["ema"] if averaged else trees["params"], trees["model_state"] or {}
    _check_shapes(path, model, params, model_state)
    return SavedWeights(
        path=path,
        settings=config.model,
        model=model,
        params=params,
        model_state=model_state,
        weights="ema" if averaged else "last",
        classes=classes,
        parents=parents,
        step=step,
        preprocessing=Preprocessing.from_config(config),
        columns={c["name"]: tuple(c["columns"]) or ("",) * widths[c["name"]] for c in components},
    )


def run_state_of(model: Mapping[str, Any], key: str = "model.pretrained") -> StateFile | None:
    """The weights of the run or bundle that `model.pretrained` of a `model` section names; None: it is no directory.

    Of a run its best checkpoint counts, and the moving average where it kept one; another is exported to a file first.

    Args:
      key: what names it, for messages.

    Raises:
      UserError: as of `read_run`.
    """
    if not pretrained_is_run(model):
        return None
    path = Path(pretrained_settings(model)["pretrained"]).expanduser()
    if (path / BUNDLE_JSON).is_file():
        return _bundle_state(path)
    try:
        return read_run(path).state_file()
    except UserError as error:
        raise UserError(
            f"{key}: {error}. Another checkpoint than the best is exported to a file with "
            "linnaeus export-weights RUN out.safetensors --checkpoint=newest"
        ) from error


def _bundle_state(path: Path) -> StateFile:
    """The weights of a bundle with their classes, as of an exported file.

    Raises:
      UserError: a file is missing, damaged or not what was written.
    """
    try:
        about = read_json(path / BUNDLE_JSON)
        for name in (BUNDLE_WEIGHTS, BUNDLE_CLASSES):
            if damage_of(path / name, str(about["files"][name])):
                raise UserError(f"{path / name} is not the file that was written into the bundle; copy it again")
        if (runs := about.get("runs", 1)) != 1:
            raise UserError(f"{path} holds the weights of {runs} runs; name one of the runs, or a bundle of one")
        state = read_state(path / BUNDLE_WEIGHTS)
        classes = ids_of_maps(read_json(path / BUNDLE_CLASSES), BUNDLE_CLASSES)
        known = {
            "model": str(about["model"]["type"]),
            "variant": str(about["model"]["variant"]),
            "img_size": list(about["image"]["size"]),
            "tasks": list(classes),
            "classes": classes,
            IMAGE: about["image"],
        } | own_settings(about["model"])
    except (OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is no bundle that can be read ({text_of(error)}); make it again") from error
    return StateFile(path, state.sha256, state.arrays, {FACTS: known}, ("weights of a bundle",))


def _parents(directory: RunDirectory, classes: Mapping[str, list[int]]) -> dict[str, NDArray[np.int32]] | None:
    """Parents of every rank but the coarsest from the tree that the run left; None without one."""
    path = directory.assets / "taxonomy_tree.json"
    directory.check(path)
    if not path.is_file():
        return None
    try:
        links = read_json(path)["hierarchy_map_raw"]
        return parents_of(links, {task: len(ids) for task, ids in classes.items()}, path.name)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not the tree of the run's classes ({error}); restore it from a copy") from error


def _check_shapes(path: Path, model: ModelFamily, params: Any, model_state: Any) -> None:
    """Raises UserError where a checkpoint holds other arrays than its model."""
    stored = params_to_torch(params)
    for tree in model_state.values():
        stored |= params_to_torch(tree)
    have = {name: array.shape for name, array in stored.items()}
    want = {name: target.shape for name, target in targets_of(model).items()}
    if have != want:
        name = next(name for name in sorted(have.keys() | want.keys()) if have.get(name) != want.get(name))
        raise UserError(
            f"{path} does not hold the model of its configuration: {name} is {have.get(name, 'absent')}, but "
            f"{want.get(name, 'absent')} there; was it saved by another version?"
        )
