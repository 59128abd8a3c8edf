"""What a trained model needs to be used, in memory; `files` keeps it in a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.data.dataset import BOXES, PATH_COUNTS
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.files import RunDirectory, read_json
from linnaeus_jax.inference.bundle.exemplars import Exemplars
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.reading.metadata import Component, MetadataEncoder
from linnaeus_jax.run.pretrained import initial_weights
from linnaeus_jax.run.saved_weights import SavedWeights, read_run, run_directory
from linnaeus_jax.taxonomy.tree import TaxonomyTree

#: temperature of ranks above the finest one before any is fitted: most of what they say the finest one has said
COARSER = 4.0
#: of the pictures of one occurrence, where it is not known: measured in benchmarks/occurrences.py
DEPENDENCE = 0.5


@dataclass(frozen=True)
class Calibration:
    """Temperatures by task, by which what a rank says is divided; fitted on validation rows.

    Attributes:
      ranks: of every rank by itself.
      paths: of every rank in the product over a path, see `paths`.
      rows: rows that they were fitted on; 0: they were not, and are 1.
      coverage: of answers, in per cent -> threshold of their probability, see `conformal`.
      coverage_rows: rows that the thresholds were measured on; 0: they were not.
      path_counts: of the training rows, see `TaxonomyTree.path_counts`; empty where they are not known.
      sets: of sets of taxa, in per cent -> threshold of the share of a taxon, or a list of one for each of
        `set_groups`, see `inference.sets`.
      set_rows: rows that these were measured on; 0: they were not.
      set_groups: see `sets.groups`; none: one threshold for all taxa.
      dependence: of the pictures of one occurrence, from 0 to 1, see `inference.pooling`.
      dependence_groups: occurrences of several pictures that it was fitted on; 0: it was not.
      novelty: `weights` of `Novelty.known`, and thresholds of `outside` and `new` as of coverage.
      novelty_rows: rows that these were measured on; 0: they were not.
    """

    ranks: Mapping[str, float]
    paths: Mapping[str, float]
    rows: int = 0
    coverage: Mapping[str, float] = field(default_factory=dict)
    coverage_rows: int = 0
    path_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    sets: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    set_rows: int = 0
    set_groups: Sequence[int] = field(default_factory=list)
    dependence: float = DEPENDENCE
    dependence_groups: int = 0
    novelty: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    novelty_rows: int = 0

    @classmethod
    def none(cls, tasks: tuple[str, ...], path_counts: Mapping[str, Sequence[int]] | None = None) -> Calibration:
        """No calibration. Paths then trust the finest rank, and the others for a quarter, or where the training rows
        are not known weigh every rank alike, by the geometric mean of what the ranks say."""
        paths = dict.fromkeys(tasks, float(len(tasks)))
        if path_counts:
            paths = dict.fromkeys(tasks, COARSER) | {tasks[0]: 1.0}
        return cls(dict.fromkeys(tasks, 1.0), paths, path_counts=path_counts or {})


@dataclass(frozen=True, eq=False)
class Bundle:
    """A trained model with everything that its use needs.

    Attributes:
      source: the directory that it was read from, for messages.
      settings: the `model` section of its configuration.
      model: the model, in float32.
      variables: `params` and the other collections, numpy.
      preprocessing: of pictures.
      encoder: of metadata.
      taxonomy: of the classes.
      calibration: of probabilities.
      facts: what else is known, as JSON types: `title`, `step`, `weights` ("ema" or "last"), `licence`,
        `boxes` (how they were cut from the pictures for training).
      plugins: names of `env.plugins` that the model may need, without their directories.
      onnx: the forward pass for onnxruntime, see `inference.onnx_program`; empty: none.
      statistics: of the features of its training rows, where they were made.
      exemplars: rows by which classes can be added, where they were kept.
    """

    source: Path
    settings: Mapping[str, Any]
    model: ModelFamily
    variables: Mapping[str, Any]
    preprocessing: Preprocessing
    encoder: MetadataEncoder
    taxonomy: Taxonomy
    calibration: Calibration
    facts: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    onnx: bytes = b""
    statistics: FeatureStatistics | None = None
    exemplars: Exemplars | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Finest rank first."""
        return self.taxonomy.tasks


def model_of(
    settings: Mapping[str, Any], preprocessing: Preprocessing, encoder: MetadataEncoder, taxonomy: Taxonomy
) -> ModelFamily:
    """The model that takes these pictures and metadata and knows these classes."""
    return build_model(
        settings,
        components=[(component.name, len(component.columns)) for component in encoder.components],
        num_classes=taxonomy.of_heads.tree.num_classes,
        img_size=preprocessing.size[0],
        parents=taxonomy.of_heads.tree.parent,
    )


def bundle_of_run(run: Path, checkpoint: str | int = "best", weights: str = "ema") -> Bundle:
    """A run as it stands, not calibrated; its data are not needed.

    Args:
      checkpoint: "best", "newest" or a step.
      weights: "ema", the moving average where one was kept, or "last".

    Raises:
      UserError: no run, no such checkpoint, or one that cannot be read.
    """
    run = Path(run).expanduser()
    saved = read_run(run, checkpoint, weights)
    directory = run_directory(run)
    config = config_from_json(directory.read_json(directory.config_json))
    taxonomy = _taxonomy(saved, directory)
    data = config.data
    name = config.experiment.name
    title = " ".join(filter(None, (data.dataset.name, data.dataset.version, data.dataset.clade))) or name
    facts = {"title": title, "step": saved.step, "weights": saved.weights}
    if initial := initial_weights(directory):
        facts["initial weights"] = initial
    directory.check(directory.assets / BOXES)
    if (directory.assets / BOXES).is_file():
        facts["boxes"] = read_json(directory.assets / BOXES)
    return Bundle(
        run,
        saved.settings,
        saved.model,
        {"params": saved.params, **saved.model_state},
        saved.preprocessing,
        MetadataEncoder(tuple(Component(name, columns) for name, columns in saved.columns.items())),
        taxonomy,
        Calibration.none(taxonomy.tasks, _path_counts(directory)),
        facts,
        tuple(Path(name).name for name in config.env.plugins),
    )


def _path_counts(directory: RunDirectory) -> dict[str, list[int]]:
    """Of the training rows; empty for runs of earlier versions."""
    path = directory.assets / PATH_COUNTS
    directory.check(path)
    return read_json(path) if path.is_file() else {}


def _taxonomy(saved: SavedWeights, directory: RunDirectory) -> Taxonomy:
    """Tree and names that the run left in its assets."""
    tasks = tuple(saved.classes)
    classes = {task: np.asarray(ids, np.int64) for task, ids in saved.classes.items()}
    null_possible = bool(len(classes[tasks[0]])) and int(classes[tasks[0]][0]) == 0
    sizes = {task: len(ids) for task, ids in classes.items()}
    if saved.parents is None:
        raise UserError(
            f"{directory.assets} holds no taxonomy_tree.json; the run was made by an earlier version: train it again"
        )
    tree = TaxonomyTree(tasks, sizes, saved.parents, null_possible=null_possible)
    path = directory.assets / "taxon_names.json"
    directory.check(path)
    known = read_json(path) if path.is_file() else {}
    return Taxonomy(tree, TaxonNames.from_json(classes, known))
