"""A model against records of known taxa whose classes need not be its own: classes are matched by taxon id, ranks by
their name, metadata by the names of their columns. Taxa that the model does not know are counted apart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.hdf5 import members
from linnaeus_jax.data.image_sources import other_resizing
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.data.labels import SPLITS, LabelTable, occurrence_numbers, read_label_tables, read_split_column
from linnaeus_jax.data.labels_file import IDENTIFIERS, box_settings, column_names, open_labels, text_dataset
from linnaeus_jax.data.metadata import ComponentSettings
from linnaeus_jax.data.taxon_names import TaxonNames, read_taxon_names
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import NOT_FINITE, Logits, NotFiniteError, finite_rows, some
from linnaeus_jax.inference.pictures import PictureError, read_picture
from linnaeus_jax.inference.pooling import Pooling, Sums
from linnaeus_jax.inference.quality.calibration import judge
from linnaeus_jax.inference.quality.measured_sets import MeasuredSets
from linnaeus_jax.inference.quality.occurrences import agreed
from linnaeus_jax.inference.running import by_number, run_rows
from linnaeus_jax.metrics.judged import Judged, joined
from linnaeus_jax.reading.box_cuts import Cut, from_training, of_facts
from linnaeus_jax.reading.labelled_pictures import open_pictures, stored_picture
from linnaeus_jax.reading.metadata import Component, Encoded
from linnaeus_jax.reporting.mistakes import thumbnail

#: class indices of `Labelled.label`: no label at that rank, and a taxon that the model has no class for
NO_LABEL, UNKNOWN = -1, -2
#: keys of `Evaluated.judged`: the most probable path with all metadata and without any; every rank by itself
PATH, WITHOUT_METADATA, RANKS = "path", "path, no metadata", "separate ranks"
#: those with all metadata -> `AnswerOptions.consistency`
ALL_METADATA = {RANKS: "documented", PATH: "path"}

log = logging.getLogger("linnaeus_jax")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows of a labels file that name a taxon at one of the model's ranks.

    Letters: N rows, T tasks of the model (finest first), D metadata columns and K components of the model.

    Attributes:
      path: the labels file.
      rows: int64 [N], rows of the file.
      taxon: int64 [N, T], taxon ids, 0 where none is given.
      label: int32 [N, T], classes of the model, `NO_LABEL` or `UNKNOWN`.
      meta: float32 [N, D]; valid: bool [N, K], as the model takes them.
      names: of the taxa in the file.
      notes: what of the model the file does not have.
      split: whose rows these are; "": all of the file.
      group: int64 [N], the same number for rows of one occurrence.
    """

    path: Path
    rows: NDArray[np.int64]
    taxon: NDArray[np.int64]
    label: NDArray[np.int32]
    meta: NDArray[np.float32]
    valid: NDArray[np.bool_]
    names: TaxonNames
    notes: tuple[str, ...]
    split: str = ""
    group: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def take(self, rows: NDArray[np.integer]) -> Labelled:
        """Some of the rows."""
        of_rows = ("rows", "taxon", "label", "meta", "valid", "group")
        return replace(self, **{name: getattr(self, name)[rows] for name in of_rows})

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """bool [N, T]: the row names a taxon that the model does not know."""
        return self.label == UNKNOWN


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Answers for all rows, by kind: `PATH`, `RANKS`, and `WITHOUT_METADATA` where rows have metadata.

    Attributes:
      labelled: the rows for which the outputs of the model are finite.
      sets: of the rows, with all metadata.
      novelty: records of `novelty.FIELDS` [N], where the model can say it.
      not_finite: how many others there are.
      occurrences: what was said of each together, where some have several rows.
    """

    labelled: Labelled
    judged: dict[str, Judged]
    sets: MeasuredSets
    not_finite: int = 0
    occurrences: Judged | None = None
    novelty: NDArray[np.void] | None = None

    @property
    def strict(self) -> Judged:
        """The path's answers, where each is wrong that is given at the rank of an unknown taxon."""
        judged = self.judged[PATH]
        return replace(judged, label=self.labelled.label, known=judged.known | self.labelled.unknown)


def read_labelled(bundle: Bundle, labels: Path, split: str = "") -> Labelled:
    """The rows of a labels file.

    Args:
      split: "train", "val" or "test": only rows that the file's dataset `split` sets aside so.

    Raises:
      UserError: the file cannot be read, or has no row with a taxon at one of the model's ranks.
    """
    try:
        return _read_labelled(bundle, labels, split)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(str(error.args[0] if isinstance(error, KeyError) else error)) from error


def _read_labelled(bundle: Bundle, labels: Path, split: str) -> Labelled:
    offered = _offered(labels)
    tasks = [task for task in bundle.tasks if task in offered]
    ranks = bundle.taxonomy.ranks
    if not tasks:
        raise UserError(
            f"{labels} labels none of the model's ranks ({', '.join(bundle.tasks)}); its datasets are "
            + ", ".join(sorted(offered))
        )
    absent = [ranks[task] for task in bundle.tasks if task not in tasks]
    notes = [f"{rank} is not labelled in the file" for rank in absent]
    settings = _components(bundle, offered)
    for name in [each.name for each in bundle.encoder.components if each.name not in {one.name for one in settings}]:
        notes.append(f"{name} is in no dataset of the file: it is unknown for every row")
    (table,), classes = read_label_tables([str(labels)], tasks, settings, null_possible=True)
    keep = (table.taxon != 0).any(axis=1)
    if split:
        keep &= read_split_column(str(labels)) == SPLITS.index(split)
    rows = np.flatnonzero(keep)
    if not len(rows):
        raise UserError(f"{labels} has no row{f' of split {split}' if split else ''} with a taxon")
    taxon = np.zeros((len(rows), len(bundle.tasks)), np.int64)
    label = np.full(taxon.shape, NO_LABEL, np.int32)
    for column, task in enumerate(tasks):
        place = bundle.tasks.index(task)
        taxon[:, place] = table.taxon[rows, column]
        label[:, place] = _matched(bundle.taxonomy.classes[task][bundle.taxonomy.first :], taxon[:, place])
        label[label[:, place] >= 0, place] += bundle.taxonomy.first
    names = read_taxon_names([str(labels)], classes)
    if (label < 0).all():
        notes.insert(0, _nothing_known(bundle, names, tasks, labels, len(rows)))
    cut = box_settings(str(labels))
    advice = "build the data set with --boxes"
    if remark := from_training(Cut.from_json(cut) if cut else None, of_facts(bundle.facts), advice):
        notes.append(remark)
    meta, valid = _metadata(bundle, table, rows)
    group = np.unique(occurrence_numbers([(table, rows)]), return_inverse=True)[1]
    return Labelled(labels, rows, taxon, label, meta, valid, names, tuple(notes), split, group)


def _nothing_known(bundle: Bundle, names: TaxonNames, tasks: Sequence[str], labels: Path, rows: int) -> str:
    """A sentence on rows that name no taxon of the model, and whether they do by the names of the taxa."""
    known = bundle.taxonomy.names
    same = sum(len(({*names.name[task].tolist()} & {*known.name[task].tolist()}) - {""}) for task in tasks)
    other = f"; {same} of its taxa have names that the model knows by other taxon ids" * bool(same)
    return (
        f"none of the {rows} rows of {labels.name} names a taxon that the model knows, at any rank: no answer can be "
        f"right, and there is no accuracy to measure{other}"
    )


def read_metadata(bundle: Bundle, labels: Path) -> Encoded:
    """Metadata of all rows of a labels file, as the model takes them; what the file does not have is unknown.

    Raises:
      UserError: the file cannot be read.
    """
    try:
        settings = _components(bundle, _offered(labels))
        (table,), _ = read_label_tables([str(labels)], (), settings, null_possible=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(str(error.args[0] if isinstance(error, KeyError) else error)) from error
    meta, valid = _metadata(bundle, table, np.arange(len(table)))
    return Encoded(meta, valid, [()] * len(table))


def _components(bundle: Bundle, offered: dict[str, tuple[str, ...]]) -> list[ComponentSettings]:
    """Those components of the model that a file has."""
    found = [(component, _source_of(component, offered)) for component in bundle.encoder.components]
    return [
        ComponentSettings(one.name, source, one.columns if all(one.columns) else (), len(one.columns))
        for one, source in found
        if source is not None
    ]


def _offered(labels: Path) -> dict[str, tuple[str, ...]]:
    """Dataset -> names of its columns, () without."""
    with open_labels(str(labels)) as file:
        return {name: column_names(item) for name, item in members(file).items() if isinstance(item, h5py.Dataset)}


def _source_of(component: Component, offered: dict[str, tuple[str, ...]]) -> str | None:
    """The dataset with all columns of a component; where these have no names, that of the component's name."""
    if all(component.columns):
        return next((name for name, columns in offered.items() if set(component.columns) <= set(columns)), None)
    return next((name for name in offered if name.casefold() == component.name.casefold()), None)


def _matched(classes: NDArray[np.int64], taxon: NDArray[np.int64]) -> NDArray[np.int32]:
    """Position [N] of taxon ids [N] among classes [C] in any order, `NO_LABEL` or `UNKNOWN`."""
    order = np.argsort(classes, kind="stable")
    place = np.minimum(np.searchsorted(classes[order], taxon), max(len(classes) - 1, 0))
    found = order[place] if len(classes) else place
    known = np.isin(taxon, classes)
    return np.where(taxon == 0, NO_LABEL, np.where(known, found, UNKNOWN)).astype(np.int32)


def _metadata(
    bundle: Bundle, table: LabelTable, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Metadata of the model from those components that the file has."""
    meta = np.zeros((len(rows), bundle.encoder.width), np.float32)
    valid = np.zeros((len(rows), len(bundle.encoder.components)), bool)
    position = {component.name: number for number, component in enumerate(bundle.encoder.components)}
    for column, of_file in enumerate(table.components):
        number = position[of_file.name]
        start, stop = bundle.encoder.bounds[number]
        meta[:, start:stop] = table.meta[rows, of_file.start : of_file.stop]
        valid[:, number] = table.meta_valid[rows, column]
    return meta, valid


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures of a labels file, as a model sees them."""

    bundle: Bundle
    source: ImageSource

    @classmethod
    def of(cls, bundle: Bundle, images: Path, labels: Path, extension: str | None = None) -> Pictures:
        """Opens an HDF5 file or a folder; raises UserError where that cannot be done."""
        source = open_pictures(images, labels, extension)
        with open_labels(str(labels)) as file:
            rows = len(text_dataset(file, str(labels), IDENTIFIERS))
        if len(source) != rows:
            raise UserError(f"{images} holds {len(source)} pictures, but {labels} has {rows} rows; both must agree")
        if said := other_resizing(str(labels), source, bundle.preprocessing):
            log.warning("%s", said)
        return cls(bundle, source)

    def read(self, row: int) -> NDArray[np.uint8]:
        """uint8 [H, W, 3]; raises UserError for a picture that cannot be read."""
        try:
            stored = stored_picture(self.source, row)
            if not isinstance(stored, bytes) and stored.shape == (*self.bundle.preprocessing.size, 3):  # as in training
                return stored
            return read_picture(stored, self.bundle.preprocessing)
        except (OSError, PictureError) as error:
            raise UserError(
                f"the picture of row {row} cannot be read: {error}; restore it, or leave the row out"
            ) from error

    def thumbnails(self, rows: NDArray[np.int64]) -> list[str]:
        """Base64 of small JPEGs of pictures that can be read."""
        stored = (stored_picture(self.source, row) for row in rows.tolist())
        return [thumbnail(read_image(one) if isinstance(one, bytes) else one) for one in stored]


def evaluate_labelled(
    model: Model, labelled: Labelled, pictures: Pictures, progress: Callable[[int, int], None] | None = None
) -> Evaluated:
    """Answers for all rows; memory is bounded by a few batches, and by the occurrences of which rows are still to come.

    Raises:
      NotFiniteError: the outputs of the model are finite for none of them.
    """
    known = Encoded(labelled.meta, labelled.valid, [()] * len(labelled.rows))
    given = by_number(known, known.without()) if labelled.valid.any() else by_number(known)

    options, judge_novelty = model.answers.options(), model.answers.novelty

    def read(number: int) -> tuple[int, NDArray[np.uint8]]:
        return number, pictures.read(int(labelled.rows[number]))

    pooling, groups = Pooling(model.answers), labelled.group.tolist()
    sums = Sums(groups) if len(labelled.group) > labelled.group.max() + 1 else None
    of_group = agreed(np.maximum(labelled.label, NO_LABEL), labelled.group, NO_LABEL)

    def judged(
        numbers: list[int], _: Sequence[Encoded], logits: list[Logits]
    ) -> tuple[NDArray[np.int64], dict[str, Judged], MeasuredSets, NDArray[np.float64] | None, NDArray[np.void] | None]:
        terms = None if sums is None else pooling.terms(*logits)
        finite = np.logical_and.reduce([finite_rows(each) for each in logits])
        kept, logits = np.array(numbers)[finite], [some(each, finite) for each in logits]
        row, label = labelled.rows[kept], np.maximum(labelled.label[kept], NO_LABEL)
        found = {kind: judge(logits[0], label, model.answers, how, row) for kind, how in ALL_METADATA.items()}
        if len(logits) > 1:
            found[WITHOUT_METADATA] = judge(logits[1], label, model.answers, row=row)
        novel = judge_novelty(logits[0], options.novelty, every=True) if judge_novelty and options.novelty else None
        return kept, found, MeasuredSets.of(logits[0], label, model.answers), terms, novel

    parts: list[dict[str, Judged]] = []
    kept: list[NDArray[np.int64]] = []
    of_sets: list[MeasuredSets] = []
    novel: list[NDArray[np.void]] = []
    together: list[Judged] = []
    total, done = len(labelled.rows), 0
    for numbers, part, measured, terms, new in run_rows(
        model.forward_for(options), range(total), read, given, judged, finishers=2
    ):
        if sums is not None and terms is not None:
            whole = sums.add(groups[done : done + len(terms)], terms)
            done += len(terms)
            if whole:
                pooled = pooling.pooled(*sums.take(whole))
                together.append(judge(pooled, of_group[np.array(whole)], model.answers, row=np.array(whole)))
        parts.append(part)
        kept.append(numbers)
        of_sets.append(measured)
        novel += [] if new is None else [new]
        if progress:
            progress(min(total, len(parts) * model.forward.buckets[-1]), total)
    rows = np.concatenate(kept)
    if not len(rows):
        raise NotFiniteError(f"none of {total} rows of {labelled.path} has an answer: {NOT_FINITE}")
    found = {kind: joined([part[kind] for part in parts]) for kind in parts[0]}
    records = np.concatenate(novel) if novel else None
    pooled_answers = joined(together) if together else None
    return Evaluated(
        labelled.take(rows), found, MeasuredSets.joined(of_sets), total - len(rows), pooled_answers, records
    )
