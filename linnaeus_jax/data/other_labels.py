"""Rows that a run neither trained nor validated on, as a validation split under its classes."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.typed import Config
from linnaeus_jax.data import splits
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.labels import SPLIT, LabelTable, read_label_tables
from linnaeus_jax.data.metadata import component_settings
from linnaeus_jax.data.subsets import with_known_subsets
from linnaeus_jax.mistakes import InputError

log = logging.getLogger("linnaeus_jax.data")


def read_other_labels(config: Config, dataset: Dataset, labels: str, images: str) -> splits.Split:
    """Another labels file as a validation split under the classes of the run.

    Rows with a taxon that the run does not know are left out with a warning, because no prediction could be right.

    Raises:
      OSError, ValueError: a file that cannot be read or does not fit, or no row left.
    """
    settings = component_settings(config.data.meta)
    (table,), _ = read_label_tables([labels], dataset.tasks, settings, null_possible=dataset.null_possible)
    rows, report = splits.filter_rows(table, config.data, settings)
    log.info("%s", report)
    label = np.empty(table.taxon.shape, np.int32)
    is_known = np.ones(len(table), bool)
    for t, task in enumerate(dataset.tasks):
        classes, taxon = dataset.classes[task], table.taxon[:, t]
        label[:, t] = np.minimum(np.searchsorted(classes, taxon), len(classes) - 1)
        is_known &= (classes[label[:, t]] == taxon) | (taxon == 0)
        log.info("%s: %d taxa that the run does not know", task, len(np.setdiff1d(taxon[taxon != 0], classes)))
    kept = rows[is_known[rows]]
    if len(kept) < len(rows):
        log.warning(
            "%s: %d rows have a taxon that the run does not know and are left out", labels, len(rows) - len(kept)
        )
    if not len(kept):
        raise InputError(f"{labels}: every row has a taxon that the run does not know; give data of the same taxa")
    return _as_validation(config, dataset, replace(table, label=label), kept, images)


def held_out_split(config: Config, dataset: Dataset) -> splits.Split:
    """The test rows of the run's own labels file, see `Dataset.test_rows`.

    Raises:
      ValueError: the file sets no usable row aside, or the run did not use its dataset `split`.
    """
    table = dataset.train.table
    if not len(dataset.test_rows):
        if not (dataset.sources.split and config.data.h5.use_split_column):
            why = "the run did not use the dataset 'split' of its labels file, so that no row was set aside"
        elif SPLIT not in table.offered:
            why = "it has no dataset 'split'"
        else:
            why = "no usable row of it is in split 2 (test)"
        raise InputError(f"{table.path} has no test rows: {why}; give other data with --labels and --images")
    return _as_validation(config, dataset, table, dataset.test_rows, dataset.train.images)


def _as_validation(
    config: Config, dataset: Dataset, table: LabelTable, rows: NDArray[np.int64], images: str
) -> splits.Split:
    """Some rows of a table whose labels are classes of the run."""
    finest = dataset.tasks[0]
    size = dataset.class_counts["train"][finest][table.label[rows, 0]]
    subsets = splits.parse_taxa_subsets(config.metrics.taxa_subsets, dataset.classes)
    split = replace(
        dataset.val,
        table=table,
        rows=rows,
        images=images,
        rarity=splits.rarity_bins(size, dataset.rarity_thresholds.get(finest, np.empty(0, np.int64))),
        taxa_subset=splits.taxa_subset_matrix(subsets, dataset.tasks, table.taxon[rows]),
    )
    return with_known_subsets(split, dataset.subset_names)
