"""The tree against golden numbers and against brute force on random forests."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.taxonomy.tree import TaxonomyTree
from tests.npz import load_npz
from tests.taxonomy.helpers import distances, leaves, roots

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40")
LEVELS = {"S0": TASKS, "S1": TASKS, "S7": (TASKS[0], *TASKS[2:]), "twofile": TASKS}


def golden_tree(fixtures, name):
    data = load_npz(fixtures / f"data_{name}.npz")
    tasks = LEVELS[name]
    sizes = {task: len(data[f"classes_{task}"]) for task in tasks}
    parents = {task: np.full(sizes[task], -1) for task in tasks[:-1]}
    for task, parent in parents.items():
        child, above = data[f"parent_{task}"].T
        parent[child] = above
    tree = TaxonomyTree(tasks, sizes, parents, null_possible=name != "S1")
    return tree, load_npz(fixtures / f"data_tree_{name}.npz")


@pytest.mark.parametrize("name", LEVELS)
def test_golden_tree(fixtures, name):
    tree, want = golden_tree(fixtures, name)
    tasks = tree.task_keys
    np.testing.assert_array_equal(roots(tree), want["roots"])
    np.testing.assert_array_equal(leaves(tree), want["leaves"])
    for task, coarser in pairwise(tasks):
        matrix = np.arange(tree.num_classes[coarser])[:, None] == tree.parent[task][None, :]
        np.testing.assert_array_equal(matrix, want[f"hmat_{coarser}_{task}"])
    for task in tasks:
        np.testing.assert_array_equal(distances(tree, task), want[f"dist_{task}"])
    for (t, c), below, above in zip(want["node"].tolist(), want["node_n_desc"], want["node_n_anc"]):
        assert (tree.anc[tasks[t]][c] >= 0).sum() == above
        assert sum((tree.anc[task][:, t - i] == c).sum() for i, task in enumerate(tasks[: t + 1])) == below


def test_golden_file_format(fixtures):
    want = json.loads((fixtures / "data_taxonomy_tree.json").read_text())
    tree, _ = golden_tree(fixtures, "S0")
    got = json.loads(json.dumps(tree.to_json()))
    assert set(got["metadata"]) == {"creation_time"}
    assert got | {"metadata": 0} == want | {"metadata": 0}


def test_a_tree_without_null_says_so():
    tree = TaxonomyTree(("taxa_L10", "taxa_L20"), {"taxa_L10": 3, "taxa_L20": 1}, {"taxa_L10": np.zeros(3, int)},
                        null_possible=False)  # fmt: skip
    assert list(tree.top_classes()) == [0]
    assert tree.to_json()["metadata"]["null_possible"] is False
    assert tree.to_json()["hierarchy_map_raw"] == {"taxa_L10": {0: 0, 1: 0, 2: 0}}


@st.composite
def forests(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    parents = {
        f"taxa_L{10 * i + 10}": np.array(draw(st.lists(st.integers(-1, up - 1), min_size=size, max_size=size)))
        for i, (size, up) in enumerate(pairwise(sizes))
    }
    tasks = tuple(f"taxa_L{10 * i + 10}" for i in range(len(sizes)))
    return TaxonomyTree(tasks, dict(zip(tasks, sizes)), parents)


@settings(max_examples=60, deadline=None)
@given(forests())
def test_ancestors_against_brute_force(tree):
    for position, task in enumerate(tree.task_keys):
        for index in range(tree.num_classes[task]):
            chain = [index]
            for above in tree.task_keys[position:-1]:
                chain.append(int(tree.parent[above][chain[-1]]) if chain[-1] >= 0 else -1)
            assert tree.anc[task][index].tolist() == chain
    assert list(tree.top_classes()) == list(range(1, tree.num_classes[tree.task_keys[-1]]))


CLASSES = {"taxa_L10": np.array([0, 50, 60]), "taxa_L20": np.array([0, 7, 8])}


def test_majority_parent_and_tie_to_smaller_id():
    rows = [(1, 2)] * 3 + [(1, 1)] * 2 + [(2, 2), (2, 1)] + [(0, 2), (1, 0), (0, 0)]  # null rows do not count
    label = np.array(rows, np.int32)
    tree, conflicts = TaxonomyTree.from_labels(CLASSES, [label[:4], label[4:]], null_possible=True, conflict_limit=0.5)
    assert tree.parent["taxa_L10"].tolist() == [-1, 2, 1]
    assert [of.tolist() for of in tree.finest_below()] == [[0, 1, 1], [0, 1, 1]]
    assert [(c.child, c.parents, c.counts) for c in conflicts] == [(1, (2, 1), (3, 2)), (2, (1, 2), (1, 1))]
    assert conflicts[0].minority_share == pytest.approx(0.4)


def test_conflict_above_limit_names_taxa():
    label = np.array([(1, 2)] * 3 + [(1, 1)] * 2, np.int32)
    with pytest.raises(ValueError, match=r"parent_conflict_limit = 0.2 .*\ntaxa_L10 50: parents 8 \(3 rows\), 7 \(2 r"):
        TaxonomyTree.from_labels(CLASSES, [label], null_possible=True, conflict_limit=0.2)


def test_labels_without_null_class():
    classes = {"taxa_L10": np.array([50, 60]), "taxa_L20": np.array([7])}
    tree, conflicts = TaxonomyTree.from_labels(
        classes, [np.array([(0, 0), (1, -1), (-1, 0)], np.int32)], null_possible=False
    )
    assert tree.parent["taxa_L10"].tolist() == [0, -1]
    assert conflicts == []
    assert list(tree.top_classes()) == [0]
    assert [of.tolist() for of in tree.finest_below()] == [[1, 1], [1]]
    more = classes | {"taxa_L20": np.array([7, 8])}
    tree, _ = TaxonomyTree.from_labels(more, [np.array([(0, 0)], np.int32)], null_possible=False)
    assert [of.tolist() for of in tree.finest_below()] == [[1, 1], [1, 0]], "a class above none"


def test_more_classes_than_two_bytes_count():
    every = np.arange(40_000)
    label = np.stack([every, every], axis=1).astype(np.int32)
    tree, _ = TaxonomyTree.from_labels({"taxa_L10": every, "taxa_L20": every}, [label], null_possible=False)
    np.testing.assert_array_equal(tree.parent["taxa_L10"], every)
    np.testing.assert_array_equal(tree.anc["taxa_L10"], label)
