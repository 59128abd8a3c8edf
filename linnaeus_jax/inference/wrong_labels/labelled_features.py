"""Rows with labels and with features of their pictures, of a run or of a data set, and which of them are alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import resolve_sources
from linnaeus_jax.data.labels import LabelTable, occurrence_numbers, read_label_tables
from linnaeus_jax.data.taxon_names import TaxonNames, read_taxon_names
from linnaeus_jax.files import RunDirectory, read_json
from linnaeus_jax.inference.files.nearest import Nearest
from linnaeus_jax.inference.model import unit
from linnaeus_jax.run.frozen_trunk import MOST_VALUES, out_of_fold_logits
from linnaeus_jax.run.saved_weights import run_directory
from linnaeus_jax.run.stored import stored_features
from linnaeus_jax.taxonomy.tree import TaxonomyTree

#: rows whose neighbours are looked for between two signs of life
BLOCK = 512


@dataclass(frozen=True, eq=False)
class Side:
    """Rows int64 [n] of one labels file, and where their pictures are."""

    table: LabelTable
    rows: NDArray[np.int64]
    images: Path | None = None
    extension: str | None = None


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """N rows with a label at one rank at least. Letters: T ranks, finest first, D features, C classes of a rank.

    Attributes:
      sides: whose rows they are, in order.
      ids: of the pictures.
      label: int64 [N, T], classes; -1 where there is none.
      features: float32 [N, D].
      group: int64 [N], the same number for pictures of one occurrence.
      notes: what was left out.
      logits: rank -> float32 [N, C] by heads that had not seen the row, of a run that has them.
    """

    sides: tuple[Side, ...]
    ids: tuple[str, ...]
    label: NDArray[np.int64]
    features: NDArray[np.float32]
    group: NDArray[np.int64]
    names: TaxonNames
    tree: TaxonomyTree
    notes: tuple[str, ...] = ()
    logits: Mapping[str, NDArray[np.float32]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ranks."""
        return self.tree.task_keys

    @functools.cached_property
    def directions(self) -> NDArray[np.float32]:
        """The features as vectors of length 1, float32 [N, D]."""
        return unit(self.features)

    def nearest(
        self, count: int, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Of each row the most similar ones, and the cosines of their angles, [N, count] or as many as there are; -2 of
        rows of the same occurrence.

        Args:
          progress: told (rows done, all rows).
        """
        search, rows, cosines = Nearest(self.features), [], []
        for start in range(0, len(self), BLOCK):
            own = np.arange(start, min(start + BLOCK, len(self)))
            found = search(self.features[own], count, own)
            same = self.group[found.row] == self.group[own, None]
            rows.append(found.row)
            cosines.append(np.where(same, -2.0, 1 - found.distance))
            progress(own[-1] + 1, len(self))
        return np.concatenate(rows), np.concatenate(cosines)

    def most_similar(self, row: int, place: int, index: int, count: int) -> list[int]:
        """The rows of a class of rank number `place` that are most similar to a row, itself apart."""
        there = np.flatnonzero(self.label[:, place] == index)
        there = there[there != row]
        order = np.argsort(-(self.directions[there] @ self.directions[row]), kind="stable")
        return [int(each) for each in there[order[:count]]]


def of_data_set(
    labels: Path,
    tasks: Sequence[str],
    vectors: tuple[Sequence[str], NDArray[np.floating]],
    images: Path | None = None,
    extension: str | None = None,
) -> LabelledFeatures:
    """The rows of a labels file that have a vector.

    Args:
      tasks: its label columns, finest rank first.
      vectors: ids of pictures, and of each a vector [n, D].
      images, extension: of its pictures, see `open_pictures`.

    Raises:
      UserError: the file cannot be read, the ids are others, or there is nothing to compare.
    """
    ids, values = vectors
    (table,), classes = _tables([labels], tasks, null_possible=True)
    place = {name: row for row, name in enumerate(table.identifiers.tolist())}
    row = np.array([place.get(name, -1) for name in ids], np.int64)
    known = np.flatnonzero(row >= 0)
    if not len(known):
        example = f", such as {ids[0]!r}" if len(ids) else ""
        raise UserError(f"the ids of the vectors{example}, are none of {labels}; embed the pictures of this data set")
    if len(np.unique(row[known])) < len(known):
        raise UserError("the vectors have an id twice; embed the pictures of this data set anew")
    notes = []
    if lacking := len(table) - len(known):
        notes.append(f"{lacking:,} of {len(table):,} rows have no vector")
    if others := len(ids) - len(known):
        notes.append(f"{others:,} vectors are of no row")
    order = known[np.argsort(row[known])]
    return _gathered([Side(table, row[order], images, extension)], classes, values[order], True, notes)


def of_run(run: Path) -> LabelledFeatures:
    """The training and validation rows of a run, with the features that it stored and the labels that its files have
    now.

    Raises:
      UserError: no run, nothing stored, files with fewer rows than they had, or nothing to compare.
    """
    directory = run_directory(run)
    config = typed(config_from_json(directory.read_json(directory.config_json)))
    found = stored_features(directory)
    if not found:
        raise UserError(
            f"{run} has stored no features of its own (train.tune = {config.train.tune!r}, train.tune_dir = "
            f"{config.train.tune_dir!r}); run linnaeus embed {run} DATASET --out vectors.npz, and give DATASET "
            "--features vectors.npz"
        )
    sources, nulls = resolve_sources(config.data), bool(config.data.partial.levels)
    paths = [Path(path) for path in (sources.train_labels, sources.val_labels) if path]
    tables, classes = _tables(paths, tuple(config.data.task_keys_h5), null_possible=nulls)
    of_split = {
        "train": (tables[0], Path(sources.train_images)),
        "val": (tables[-1], Path(sources.val_images or sources.train_images)),
    }
    extension = config.data.hybrid.file_extension if sources.hybrid else None
    sides = [Side(of_split[name][0], rows, of_split[name][1], extension) for name, (rows, _) in found.items()]
    for side in sides:
        if len(side.rows) and side.rows.max() >= len(side.table):
            raise UserError(f"{side.table.path} has fewer rows than {run} was trained on; restore it")
    logits = _logits(directory, dict(zip(found, sides)), classes)
    return _gathered(sides, classes, np.concatenate([x for _, x in found.values()]), nulls, [], logits)


def _logits(
    directory: RunDirectory, sides: Mapping[str, Side], classes: Mapping[str, NDArray[np.int64]]
) -> dict[str, NDArray[np.float32]] | None:
    """Those that the run has kept of heads fitted to other folds; None where a label is another one by now."""
    path = directory.metadata / "class_label_counts.json"
    if not path.is_file() or len(sides) < 2:
        return None
    counts = read_json(path)
    for name, side in sides.items():
        label = side.table.label[side.rows]
        if (label < 0).any():
            return None
        now = {task: np.bincount(of, minlength=len(classes[task])) for task, of in zip(classes, label.T, strict=True)}
        if {task: of.tolist() for task, of in now.items()} != counts.get(name):
            return None
    return out_of_fold_logits(directory, [side.rows for side in sides.values()])


def _tables(
    paths: Sequence[Path], tasks: Sequence[str], *, null_possible: bool
) -> tuple[list[LabelTable], dict[str, NDArray[np.int64]]]:
    try:
        return read_label_tables([str(path) for path in paths], tasks, (), null_possible=null_possible)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


def _gathered(
    sides: Sequence[Side],
    classes: Mapping[str, NDArray[np.int64]],
    features: NDArray[np.floating],
    nulls: bool,
    notes: Sequence[str],
    logits: Mapping[str, NDArray[np.float32]] | None = None,
) -> LabelledFeatures:
    """The rows that have a label and finite features.

    Raises:
      UserError: there is nothing to compare.
    """
    label = np.concatenate([side.table.label[side.rows] for side in sides]).astype(np.int64)
    label = np.where(label < int(nulls), -1, label)
    labelled, finite = (label >= 0).any(axis=1), np.isfinite(features).all(axis=1)
    keep, paths = labelled & finite, sorted({side.table.path for side in sides})
    files, values = " and ".join(paths), max(features.shape[1], sum(map(len, classes.values())))
    if not keep.any():
        raise UserError(f"no row of {files} has both a label and a vector: there is nothing to compare")
    if all(len(np.unique(column[column >= 0])) < 2 for column in label[keep].T):
        raise UserError(f"all labelled rows of {files} are of one taxon: there is nothing to take them for")
    if keep.sum() * values > MOST_VALUES:
        raise UserError(
            f"{keep.sum():,} rows of {values:,} numbers each are more than {MOST_VALUES:,} numbers, too many to hold "
            "in memory; give the vectors of a part of them"
        )
    left_out = {"have no label": ~labelled, "have a picture that could not be read": labelled & ~finite}
    starts = np.cumsum([len(side.rows) for side in sides])[:-1]
    kept = [replace(side, rows=side.rows[chosen]) for side, chosen in zip(sides, np.split(keep, starts), strict=True)]
    try:
        tree, _ = TaxonomyTree.from_labels(classes, [side.table.label for side in sides], null_possible=nulls)
        names = read_taxon_names(paths, classes)
        group = occurrence_numbers([(side.table, side.rows) for side in kept])
        ids = tuple(text for side in kept for text in side.table.identifiers[side.rows].tolist())
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return LabelledFeatures(
        tuple(kept),
        ids,
        label[keep],
        np.asarray(features[keep], np.float32),
        group,
        names,
        tree,
        (*notes, *(f"{int(rows.sum()):,} rows {what}" for what, rows in left_out.items() if rows.any())),
        None if logits is None else {task: of_rank[keep] for task, of_rank in logits.items()},
    )
