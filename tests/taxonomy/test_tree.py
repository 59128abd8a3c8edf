"""The tree against golden numbers and against brute force on random forests."""

from __future__ import annotations

import json
import logging
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.taxonomy.tree import TaxonomyTree

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40")
LEVELS = {"S0": TASKS, "S1": TASKS, "S7": (TASKS[0], *TASKS[2:]), "twofile": TASKS}


def golden_tree(fixtures, name):
    data = np.load(fixtures / f"data_{name}.npz")
    tasks = LEVELS[name]
    sizes = {task: len(data[f"classes_{task}"]) for task in tasks}
    links = {task: dict(data[f"parent_{task}"].tolist()) for task in tasks[:-1]}
    tree = TaxonomyTree.from_hierarchy_map(tasks, sizes, links, null_possible=name != "S1")
    return tree, np.load(fixtures / f"data_tree_{name}.npz")


@pytest.mark.parametrize("name", LEVELS)
def test_golden_tree(fixtures, name):
    tree, want = golden_tree(fixtures, name)
    tasks = tree.task_keys

    def node(pair):
        return tasks[pair[0]], int(pair[1])

    assert tree.get_root_nodes() == [node(pair) for pair in want["roots"]]
    assert tree.get_leaf_nodes() == [node(pair) for pair in want["leaves"]]
    for task in tasks:
        got = tree.build_distance_matrix(task)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want[f"dist_{task}"])
    matrices = tree.build_hierarchy_matrices()
    assert {f"hmat_{key}" for key in matrices} == {key for key in want if key.startswith("hmat_")}
    for key, matrix in matrices.items():
        assert matrix.dtype == np.float32
        np.testing.assert_array_equal(matrix, want[f"hmat_{key}"])
    for a, b, distance, common in zip(want["pair_a"], want["pair_b"], want["pair_dist"], want["pair_lca"]):
        assert tree.taxonomic_distance(node(a), node(b)) == distance
        assert tree.lowest_common_ancestor(node(a), node(b)) == (None if common[0] < 0 else node(common))
    for pair, below, above in zip(want["node"], want["node_n_desc"], want["node_n_anc"]):
        assert len(tree.get_descendants(node(pair))) == below
        assert len(tree.get_ancestors(node(pair))) == above


def test_golden_file_format(fixtures, tmp_path):
    want = json.loads((fixtures / "data_taxonomy_tree.json").read_text())
    loaded = TaxonomyTree.load(fixtures / "data_taxonomy_tree.json")
    tree, _ = golden_tree(fixtures, "S0")
    for task in TASKS:
        np.testing.assert_array_equal(loaded.anc[task], tree.anc[task])
    loaded.save(tmp_path / "new" / "tree.json")
    got = json.loads((tmp_path / "new" / "tree.json").read_text())
    assert set(got["metadata"]) == {"creation_time"}
    assert got | {"metadata": 0} == want | {"metadata": 0}


def test_save_to_bare_name_and_keep_null_possible(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = TaxonomyTree(("taxa_L10", "taxa_L20"), {"taxa_L10": 3, "taxa_L20": 1}, {"taxa_L10": np.zeros(3, int)},
                        null_possible=False)  # fmt: skip
    tree.save("tree.json")
    loaded = TaxonomyTree.load("tree.json")
    assert loaded.top_roots() == [("taxa_L20", 0)]
    assert not loaded.null_possible
    np.testing.assert_array_equal(loaded.parent("taxa_L10"), [0, 0, 0])


def test_navigation(fixtures):
    tree, _ = golden_tree(fixtures, "S0")
    assert tree.get_parent(("taxa_L10", 1)) == ("taxa_L20", 8)
    assert tree.get_ancestors(("taxa_L10", 1)) == [
        ("taxa_L10", 1), ("taxa_L20", 8), ("taxa_L30", 1), ("taxa_L40", 2)
    ]  # fmt: skip
    assert tree.get_children(("taxa_L20", 8)) == [("taxa_L10", 1), ("taxa_L10", 2), ("taxa_L10", 28)]
    assert tree.get_children(("taxa_L10", 1)) == []
    # breadth first, children of an earlier node first
    assert tree.get_descendants(("taxa_L30", 2)) == [
        ("taxa_L30", 2), ("taxa_L20", 9), ("taxa_L20", 15), ("taxa_L10", 14), ("taxa_L10", 16), ("taxa_L10", 25),
        ("taxa_L10", 5), ("taxa_L10", 12),
    ]  # fmt: skip
    assert tree.get_nodes_at_level("taxa_L40") == [("taxa_L40", index) for index in range(4)]
    assert tree.top_roots() == [("taxa_L40", 1), ("taxa_L40", 2), ("taxa_L40", 3)]
    assert tree.get_parent(("taxa_L40", 1)) is None
    assert tree.get_parent(("taxa_L10", 0)) is None
    for unknown in (("taxa_L10", 31), ("taxa_L10", -1), ("taxa_L99", 0)):
        assert tree.get_parent(unknown) is None
        assert tree.get_children(unknown) == tree.get_ancestors(unknown) == tree.get_descendants(unknown) == []
        assert tree.taxonomic_distance(unknown, ("taxa_L10", 1)) == float("inf")
    assert tree.get_nodes_at_level("taxa_L99") == []


@st.composite
def forests(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    parents = {
        f"taxa_L{10 * i + 10}": np.array(draw(st.lists(st.integers(-1, up - 1), min_size=own, max_size=own)))
        for i, (own, up) in enumerate(pairwise(sizes))
    }
    tasks = tuple(f"taxa_L{10 * i + 10}" for i in range(len(sizes)))
    return TaxonomyTree(tasks, dict(zip(tasks, sizes)), parents)


@settings(max_examples=60, deadline=None)
@given(forests())
def test_random_forest_against_brute_force(tree):
    nodes = [node for task in tree.task_keys for node in tree.get_nodes_at_level(task)]
    links = {
        (task, child): (tree.task_keys[i + 1], int(parent))
        for i, task in enumerate(tree.task_keys)
        for child, parent in enumerate(tree.parent(task))
        if parent >= 0
    }
    edges = np.full((len(nodes), len(nodes)), np.inf)  # all pairs shortest paths over undirected edges
    np.fill_diagonal(edges, 0)
    for child, parent in links.items():
        i, j = nodes.index(child), nodes.index(parent)
        edges[i, j] = edges[j, i] = 1
    for k in range(len(nodes)):
        edges = np.minimum(edges, edges[:, k : k + 1] + edges[k : k + 1, :])

    def chain(node):
        found = [node]
        while found[-1] in links:
            found.append(links[found[-1]])
        return found

    for i, a in enumerate(nodes):
        assert tree.get_ancestors(a) == chain(a)
        assert set(tree.get_descendants(a)) == {node for node in nodes if a in chain(node)}
        assert tree.get_children(a) == [node for node in nodes if links.get(node) == a]
        for j, b in enumerate(nodes):
            assert tree.taxonomic_distance(a, b) == edges[i, j]
            common = [node for node in chain(a) if node in chain(b)]
            assert tree.lowest_common_ancestor(a, b) == (common[0] if common else None)
    for task in tree.task_keys:
        own = [i for i, node in enumerate(nodes) if node[0] == task]
        np.testing.assert_array_equal(tree.build_distance_matrix(task), edges[np.ix_(own, own)])
    assert tree.get_root_nodes() == [node for node in nodes if node not in links]
    assert tree.get_leaf_nodes() == [node for node in nodes if node not in links.values()]


CLASSES = {"taxa_L10": np.array([0, 50, 60]), "taxa_L20": np.array([0, 7, 8])}


def test_majority_parent_and_tie_to_smaller_id():
    rows = [(1, 2)] * 3 + [(1, 1)] * 2 + [(2, 2), (2, 1)] + [(0, 2), (1, 0), (0, 0)]  # null rows do not count
    label = np.array(rows, np.int32)
    tree, conflicts = TaxonomyTree.from_labels(CLASSES, [label[:4], label[4:]], null_possible=True, conflict_limit=0.5)
    assert tree.parent("taxa_L10").tolist() == [-1, 2, 1]
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
    assert tree.parent("taxa_L10").tolist() == [0, -1]
    assert conflicts == []
    assert tree.top_roots() == [("taxa_L20", 0)]


def test_construction_errors(caplog):
    with pytest.raises(KeyError, match="task 'taxa_L20' has no entry"):
        TaxonomyTree.from_hierarchy_map(("taxa_L10", "taxa_L20"), {"taxa_L10": 2}, {})
    with pytest.raises(ValueError, match="hierarchy of 'taxa_L20'"):
        TaxonomyTree.from_hierarchy_map(("taxa_L10", "taxa_L20"), {"taxa_L10": 2, "taxa_L20": 2}, {"taxa_L20": {}})
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(2,\)"):
        TaxonomyTree(("taxa_L10", "taxa_L20"), {"taxa_L10": 2, "taxa_L20": 2}, {"taxa_L10": np.zeros(3, int)})
    with pytest.raises(ValueError, match=r"must lie in -1\.\.1"):
        TaxonomyTree(("taxa_L10", "taxa_L20"), {"taxa_L10": 2, "taxa_L20": 2}, {"taxa_L10": np.array([0, 2])})
    with caplog.at_level(logging.WARNING):
        tree = TaxonomyTree.from_hierarchy_map(
            ("taxa_L10", "taxa_L20"), {"taxa_L10": 2, "taxa_L20": 2}, {"taxa_L10": {1: 1, 5: 1, 0: 9}}
        )
    assert tree.parent("taxa_L10").tolist() == [-1, 1]
    assert caplog.text.count("out of range") == 2


GOOD = {"__taxonomy_tree_version__": "1.0", "task_keys": ["a"], "num_classes": {"a": 1}, "hierarchy_map_raw": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "lacks __taxonomy_tree_version__"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "num_classes"}), "lacks num_classes"),
        (json.dumps(GOOD | {"hierarchy_map_raw": {"a": {"0": 0}}}), "malformed: hierarchy of 'a'"),
        (json.dumps(GOOD | {"num_classes": {}}), "malformed"),
        (json.dumps(GOOD | {"hierarchy_map_raw": []}), "malformed"),
    ],
)
def test_load_errors(tmp_path, text, message):
    (tmp_path / "tree.json").write_text(text)
    with pytest.raises(ValueError, match=f"tree.json.*{message}"):
        TaxonomyTree.load(tmp_path / "tree.json")


def test_load_missing_file_and_other_version(tmp_path, caplog):
    with pytest.raises(FileNotFoundError, match=r"no\.json does not exist"):
        TaxonomyTree.load(tmp_path / "no.json")
    (tmp_path / "tree.json").write_text(json.dumps(GOOD | {"__taxonomy_tree_version__": "2.0"}))
    assert TaxonomyTree.load(tmp_path / "tree.json").num_classes == {"a": 1}
    assert "has version 2.0, expected 1.0" in caplog.text


def test_large_tree_is_fast():
    rng = np.random.default_rng(0)
    parents = {"taxa_L10": rng.integers(0, 500, 2000), "taxa_L20": rng.integers(0, 40, 500)}
    tree = TaxonomyTree(("taxa_L10", "taxa_L20", "taxa_L30"), dict(zip(TASKS, (2000, 500, 40))), parents)
    distance = tree.build_distance_matrix("taxa_L10")
    np.testing.assert_array_equal(distance, distance.T)
    a, b = rng.integers(0, 2000, (2, 50))
    assert [tree.taxonomic_distance(("taxa_L10", int(i)), ("taxa_L10", int(j))) for i, j in zip(a, b)] == distance[
        a, b
    ].tolist()
