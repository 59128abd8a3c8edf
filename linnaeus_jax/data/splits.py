"""Which rows take part, in which split, and what each of them belongs to: groups, rarity bins, taxa subsets."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.typed import DataConfig, DataH5Config
from linnaeus_jax.data.labels import OCCURRENCE, SPLIT, SPLITS, LabelTable, read_split_column, text_hashes
from linnaeus_jax.data.metadata import ComponentSettings
from linnaeus_jax.mistakes import InputError

log = logging.getLogger(__name__)

#: fields of `Split` that have a line for each row
_COLUMNS = ("rows", "rarity", "taxa_subset", "subsets")


@dataclass(frozen=True)
class Split:
    """The rows of one split, in split order, and what is known about each.

    Letters: n rows of the split, T tasks (finest first), D metadata columns, K components, S taxa subsets. The
    properties that gather from the table copy: read them once, not per batch.
    """

    name: str
    table: LabelTable
    rows: NDArray[np.int64]  # [n], rows of the labels file
    images: str  # HDF5 file or directory
    rarity: NDArray[np.int32]  # [n], bin of the row's class at the finest rank
    taxa_subset: NDArray[np.bool_]  # [n, S]
    subsets: NDArray[np.int32]  # [n, kinds of `Dataset.subset_names`], position of the row's subset, -1 for none
    min_group_size: int
    null_columns: tuple[int, ...] | None  # tasks whose null rows are never mixed; None: nulls may be mixed

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, count: int, seed: int) -> Split:
        """At most `count` of the rows, drawn at random, in their order."""
        if len(self) <= count:
            return self
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False)))

    def take(self, chosen: NDArray[np.integer]) -> Split:
        """The rows at these places of the split."""
        return dataclasses.replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def with_rows_of(self, other: Split) -> Split:
        """These rows and then those of another split of the same labels file."""
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _COLUMNS
        }
        return dataclasses.replace(self, **joined)

    @property
    def labels(self) -> NDArray[np.int32]:
        """int32 [n, T]: class indices."""
        return self.table.label[self.rows]

    @property
    def taxa(self) -> NDArray[np.int64]:
        """int64 [n, T]: taxon ids, 0 for null."""
        return self.table.taxon[self.rows]

    @property
    def identifiers(self) -> NDArray[Any]:
        """StringDType [n]: file name or relative path of each image."""
        return self.table.identifiers[self.rows]

    @property
    def meta(self) -> NDArray[np.float32]:
        """float32 [n, D]: metadata vectors, zero where a component is invalid."""
        return self.table.meta[self.rows]

    @property
    def meta_valid(self) -> NDArray[np.bool_]:
        """bool [n, K]: which components are known."""
        return self.table.meta_valid[self.rows]

    @property
    def taxa_subset_id(self) -> NDArray[np.int32]:
        """int32 [n]: position of the last taxa subset the row belongs to, -1 for none."""
        return last_subset(self.taxa_subset)

    def group(self, level: str) -> NDArray[np.int32]:
        """int32 [n]: rows with the same value >= 0 may be mixed; it is the class index at `level`, -1 means never.

        Raises:
          ValueError: `level` is none of the tasks.
        """
        if level not in self.table.tasks:
            raise InputError(f"group level {level!r} is none of the tasks {self.table.tasks}")
        column = self.table.tasks.index(level)
        excluded = None
        if self.null_columns is not None:
            columns = sorted({column, *self.null_columns})
            excluded = (self.table.taxon[self.rows][:, columns] == 0).any(axis=1)
        return group_ids(self.labels[:, column], self.min_group_size, excluded)


@dataclass(frozen=True)
class FilterReport:
    """How many rows of a file each rule rejects. A row may be rejected by several rules."""

    path: str
    total: int
    kept: int
    removed: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kept} of {self.total} rows kept"]
        return "\n".join(lines + [f"  {count:>10}  {rule}" for rule, count in self.removed.items()])


def filter_rows(
    table: LabelTable,
    data: DataConfig,
    components: Sequence[ComponentSettings],
    missing_rows: NDArray[np.int64] | Sequence[int] = (),
) -> tuple[NDArray[np.int64], FilterReport]:
    """Rows that may be used, ascending, and the table rule -> rejected rows.

    Args:
      table: rows of one labels file.
      data: the section of the config with the conditions; all of them have to hold.
      components: those with allow_missing=False must be valid.
      missing_rows: rows without an image.

    Raises:
      ValueError: no row is left; the message names the rule that rejects most.
    """
    removed: dict[str, int] = {}
    keep = np.ones(len(table), bool)

    def reject(rule: str, rows: NDArray[np.bool_]) -> None:
        removed[rule] = int(rows.sum())
        keep[rows] = False

    if len(missing_rows):
        reject("image missing", np.isin(np.arange(len(table)), missing_rows))
    if not data.out_of_region.include:
        if table.in_region is None:
            log.warning("%s has no dataset in_region: data.out_of_region.include has no effect", table.path)
        else:
            reject("out of region (data.out_of_region.include=False)", ~table.in_region)
    for position, item in enumerate(components):
        if not item.allow_missing:
            reject(f"{item.name} unknown ({item.key}.allow_missing=False)", ~table.meta_valid[:, position])
    labelled = table.taxon != 0
    reject("null at every rank", ~labelled.any(axis=1))
    if not data.partial.levels:
        reject("null at some rank (data.partial.levels=False)", ~labelled.all(axis=1))
    finer, coarser = labelled[:, :-1], labelled[:, 1:]
    upward_major = data.upward_major_mode if data.upward_major_check else ""
    if upward_major == "all-finer":
        broken = (~finer & coarser).any(axis=1)
        reject("null below a labelled rank (data.upward_major_check, all-finer)", broken)
    elif upward_major == "no-gaps":
        reject("null above a labelled rank (data.upward_major_check, no-gaps)", (finer & ~coarser).any(axis=1))

    kept = np.flatnonzero(keep)
    report = FilterReport(table.path, len(table), len(kept), removed)
    if not len(kept):
        if not len(table):
            raise InputError(f"{table.path} has no rows")
        worst = max(removed, key=lambda rule: removed[rule])
        raise InputError(f"no row is left; the rule that removed most is {worst!r}, relax it or the data\n{report}")
    return kept, report


@dataclass(frozen=True)
class SplitRows:
    """The rows of each split, in split order, and one sentence that says how they were told apart."""

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]
    rule: str = ""


#: training rows of which validation rows are drawn where the file names test rows alone
FEWEST_ROWS = 10


def split_file(table: LabelTable, kept: NDArray[np.int64], h5: DataH5Config) -> SplitRows:
    """The splits of a single file: those that its dataset `split` says, or random ones.

    Rows of a split that the file says keep the order of the file. A random split draws rows; where the file says
    which rows are pictures of one occurrence, whole occurrences. Of a file that says which rows are for training and
    for a test, but of none that it is for validation, these are drawn from the training rows, if there are 10.

    Args:
      kept: usable rows, ascending.
      h5: the section `data.h5`.

    Raises:
      ValueError: a split without rows, or a malformed dataset.
    """
    if SPLIT in table.offered and h5.use_split_column:
        column = read_split_column(table.path)
        parts = [kept[column[kept] == number] for number in range(3)]
        if len(parts[0]) >= FEWEST_ROWS and len(parts[2]) and not (column == SPLITS.index("val")).any():
            train, val, how = _random(table, parts[0], h5)
            rule = (
                f"by the dataset {SPLIT!r} of the file, which names {len(parts[2])} test rows and none for validation: "
                f"these are drawn from its {len(parts[0])} training rows {how or 'at random'}, by "
                "data.h5.train_val_split_ratio"
            )
            return SplitRows(train, val, parts[2], rule)
        for name, rows, advice in zip(
            SPLITS, parts, ("", " or name the file as data.h5.train_labels_path to train without validation")
        ):
            if not len(rows):
                raise InputError(
                    f"{table.path}: dataset {SPLIT!r} leaves no usable row in {name!r}, of "
                    f"{int((column == SPLITS.index(name)).sum())} rows of that split; correct it, set "
                    f"data.h5.use_split_column = False to split at random{advice}"
                )
        counts = ", ".join(f"{len(rows)} {name}" for name, rows in zip(SPLITS, parts))
        rule = (
            f"by the dataset {SPLIT!r} of the file: {counts} rows; data.h5.train_val_split_ratio and "
            "train_val_split_seed are not used"
        )
        train, val, test = parts
        return SplitRows(train, val, test, rule)
    train, val, rule = _random(table, kept, h5)
    return SplitRows(train, val, np.empty(0, np.int64), rule)


def _random(
    table: LabelTable, kept: NDArray[np.int64], h5: DataH5Config
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Training and validation rows drawn from `kept`, and how where not row by row."""
    ratio, seed = h5.train_val_split_ratio, h5.train_val_split_seed
    if OCCURRENCE not in table.offered:
        return *split_rows(kept, ratio, seed), ""
    train, val = split_occurrences(kept, text_hashes(table.path, OCCURRENCE)[kept], ratio, seed)
    rule = f"at random by whole occurrences (dataset {OCCURRENCE!r} of the file), so that none is on both sides"
    return train, val, rule


def split_rows(kept: NDArray[np.int64], ratio: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random train and validation rows: the first int(K * ratio) of a legacy MT19937 permutation, and the others.

    Raises:
      ValueError: `ratio` is so small that no row falls to training.
    """
    shuffled = kept[np.random.RandomState(seed).permutation(len(kept))]
    count = _training_rows(len(kept), ratio)
    return shuffled[:count], shuffled[count:]


def split_occurrences(
    kept: NDArray[np.int64], occurrence: NDArray[np.int64], ratio: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random train and validation rows with all rows of an occurrence on one side.

    The occurrences, in order of their first rows, are permuted as `split_rows` permutes rows; training gets so many of
    them that it has at least int(K * ratio) rows, validation the others. Where every occurrence has one row, the rows
    are those of `split_rows`.

    Args:
      occurrence: int64 [K], rows with the same value are one occurrence; 0: a row is its own.

    Raises:
      ValueError: as `split_rows`.
    """
    count = _training_rows(len(kept), ratio)
    distinct, code = np.unique(occurrence, return_inverse=True)
    alone = occurrence == 0
    code[alone] = len(distinct) + np.arange(int(alone.sum()))
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    drawn = np.argsort(first)[np.random.RandomState(seed).permutation(len(first))]
    place = np.empty(len(first), np.int64)  # of each code in the order in which occurrences are drawn
    place[drawn] = np.arange(len(first))
    shuffled = kept[np.argsort(place[code], kind="stable")]
    ends = np.cumsum(np.bincount(place[code]))
    cut = ends[np.searchsorted(ends, count)]
    return shuffled[:cut], shuffled[cut:]


def _training_rows(rows: int, ratio: float) -> int:
    """Rows that fall to training; ValueError where that is none."""
    count = int(rows * ratio)
    if count == 0:
        raise InputError(
            f"data.h5.train_val_split_ratio = {ratio} leaves no training row of the {rows} usable ones; raise it"
        )
    return count


def group_ids(label: NDArray[np.int32], min_size: int, excluded: NDArray[np.bool_] | None = None) -> NDArray[np.int32]:
    """int32 [n]: the class index of each row, or -1 (not mixable) if excluded or in a group of under `min_size` rows.

    Args:
      label: int32 [n], class indices at the grouping rank, of the rows of one split.
      min_size: fewest rows of a group; excluded rows do not count.
      excluded: bool [n], rows never mixed.
    """
    group = label.copy()
    if excluded is not None:
        group[excluded] = -1
    count = np.bincount(group[group >= 0], minlength=1)
    group[(group >= 0) & (count[group] < min_size)] = -1
    return group


def class_counts(label: NDArray[np.int32], classes: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """{task: int64 [C]}: rows per class, classes without rows included. `label` is int32 [n, T]."""
    return {
        task: np.bincount(label[:, column], minlength=len(ids)).astype(np.int64)
        for column, (task, ids) in enumerate(classes.items())
    }


def percent(flags: NDArray[np.bool_], names: Iterable[str]) -> dict[str, float]:
    """{name: percent of rows in which its column of `flags` bool [n, len(names)] is true}; 0 without rows."""
    share = 100.0 * flags.sum(axis=0) / max(len(flags), 1)
    return dict(zip(names, share.tolist()))


# ---- rarity ---------------------------------------------------------------------------------------------------------


def check_percentiles(percentiles: Sequence[float]) -> None:
    """Raises ValueError unless percentiles rise strictly."""
    if any(high <= low for low, high in pairwise(percentiles)):
        raise InputError(f"metrics.rarity_percentiles = {tuple(percentiles)} must rise strictly within 0..100")


def rarity_thresholds(
    counts: Mapping[str, NDArray[np.int64]], percentiles: Sequence[float]
) -> dict[str, NDArray[np.int64]]:
    """{task: int64 [P]}: class size at each percentile of the sorted class sizes; tasks with < 2 classes have none.

    The null class and classes without rows take part. The position is rounded half to even.
    """
    return {
        task: np.sort(count)[[round(value / 100 * (len(count) - 1)) for value in percentiles]]
        for task, count in counts.items()
        if len(count) > 1
    }


def rarity_bins(size: NDArray[np.int64], thresholds: NDArray[np.int64]) -> NDArray[np.int32]:
    """int32 [n] in 0..P: how many thresholds do not exceed the training size of the row's class."""
    return np.searchsorted(thresholds, size, side="right").astype(np.int32)


def rarity_bin_names(percentiles: Sequence[float]) -> tuple[str, ...]:
    """The P+1 names of the bins: "lt_p1", "p1_p5", ..., "ge_p99"."""
    if not percentiles:
        return ()
    marks = [f"p{value:g}" for value in percentiles]
    return (f"lt_{marks[0]}", *(f"{low}_{high}" for low, high in pairwise(marks)), f"ge_{marks[-1]}")


# ---- taxa subsets ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaxaSubset:
    """The rows below one taxon: those with `taxon_id` in label column `task`."""

    name: str
    task: str
    taxon_id: int


def parse_taxa_subsets(
    entries: Iterable[tuple[str, str, int]], classes: Mapping[str, NDArray[np.int64]]
) -> tuple[TaxaSubset, ...]:
    """Subsets from `metrics.taxa_subsets`, a sequence of (name, task, taxon id).

    One of a taxon that no row has stays in the list, empty, with a warning: other data may have it.

    Raises:
      ValueError: one of them names an unknown task.
    """
    subsets = tuple(TaxaSubset(*entry) for entry in entries)
    for subset in subsets:
        if subset.task not in classes:
            raise InputError(
                f"metrics.taxa_subsets: {subset.name!r} names the task {subset.task!r}, which is none of "
                f"{', '.join(classes)}; correct or remove the entry"
            )
        if subset.taxon_id == 0 or subset.taxon_id not in classes[subset.task]:
            log.warning("taxa subset %r is empty: no row has taxon %d in %s", subset.name, subset.taxon_id, subset.task)
    return subsets


def taxa_subset_matrix(
    subsets: Sequence[TaxaSubset], tasks: Sequence[str], taxon: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """bool [n, S]: membership of each row; `taxon` is int64 [n, T]. A row may belong to several subsets."""
    matrix = np.zeros((len(taxon), len(subsets)), bool)
    for position, subset in enumerate(subsets):
        if subset.task in tasks and subset.taxon_id != 0:
            matrix[:, position] = taxon[:, tasks.index(subset.task)] == subset.taxon_id
    return matrix


def last_subset(matrix: NDArray[np.bool_]) -> NDArray[np.int32]:
    """int32 [n]: position of the last subset a row belongs to, -1 for none."""
    position = np.arange(1, matrix.shape[1] + 1, dtype=np.int32)
    return (matrix * position[None, :]).max(axis=1, initial=0).astype(np.int32) - 1
