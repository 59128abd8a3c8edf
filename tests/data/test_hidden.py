"""`data.hide_taxa`: rows of some taxa, and the taxa, are no part of a run."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.mistakes import InputError
from tests.tiny import tiny_config


def built(folder, *hide):
    return build_dataset(typed(tiny_config(folder, data__hide_taxa=hide)))


@pytest.mark.parametrize(("hide", "lost"), [(("1003", "1004"), (1003, 1004)), (("201",), (1002, 1003))])
def test_hidden_taxa_are_neither_classes_nor_rows(tmp_path, hide, lost):
    whole, dataset = built(tmp_path), built(tmp_path, *hide)
    left = [taxon for taxon in whole.classes["taxa_L10"].tolist() if taxon not in lost]
    assert dataset.classes["taxa_L10"].tolist() == left == dataset.names.classes["taxa_L10"].tolist()
    used, taxon = np.concatenate([dataset.train.rows, dataset.val.rows]), whole.train.table.taxon
    every = np.concatenate([whole.train.rows, whole.val.rows])
    gone = np.asarray(np.isin(taxon, [*lost, *map(int, hide)]).any(axis=1))
    assert sorted(used) == sorted(every[~gone[every]])
    labels = np.concatenate([dataset.train.labels, dataset.val.labels])
    for place, task in enumerate(dataset.tasks):
        np.testing.assert_array_equal(dataset.classes[task][labels[:, place]], taxon[used, place])
    assert dataset.tree.num_classes == {task: len(ids) for task, ids in dataset.classes.items()}


def test_taxa_that_no_row_has_and_all_taxa_are_refused_in_a_line(tmp_path):
    with pytest.raises(
        InputError, match=r"^data\.hide_taxa names '9', of which .*labels\.h5 has no row; give sci[^\n]*$"
    ):
        built(tmp_path, "1003", "9")
    with pytest.raises(InputError, match=r"^data\.hide_taxa hides every row of .*; hide fewer taxa$"):
        built(tmp_path, "30", "31")
