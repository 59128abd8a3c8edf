"""Labels of other data under the classes of a run."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.data import splits
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.labels import read_label_tables
from linnaeus_jax.data.metadata import component_settings
from linnaeus_jax.data.subsets import with_known_subsets

log = logging.getLogger("linnaeus_jax.data")


def read_other_labels(config: ConfigDict, dataset: Dataset, labels: str, images: str) -> splits.Split:
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
        raise ValueError(f"{labels}: every row has a taxon that the run does not know; give data of the same taxa")
    size = dataset.class_counts["train"][dataset.tasks[0]][label[kept, 0]]
    subsets = splits.parse_taxa_subsets(config.metrics.taxa_subsets, dataset.classes)
    split = replace(
        dataset.val,
        table=replace(table, label=label),
        rows=kept,
        images=images,
        rarity=splits.rarity_bins(size, dataset.rarity_thresholds.get(dataset.tasks[0], np.empty(0, np.int64))),
        taxa_subset=splits.taxa_subset_matrix(subsets, dataset.tasks, table.taxon[kept]),
    )
    return with_known_subsets(split, dataset.subset_names)
