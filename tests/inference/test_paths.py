"""Probabilities over the paths of a taxonomy, against every combination of classes written out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.inference.paths import (
    ENDED,
    EVEN_SHARE,
    NONE,
    SEEN,
    TaxonomyPaths,
    documented_consistency,
    log_softmax,
)
from linnaeus_jax.taxonomy.tree import TaxonomyTree
from tests.inference.trees import Case, cases


def is_path(tree: TaxonomyTree, combination: tuple[int, ...]) -> bool:
    """Whether classes, finest first and NONE for unknown, are a taxon with its ancestors and nothing below."""
    place = next((place for place, index in enumerate(combination) if index != NONE), None)
    if place is None:
        return tree.null_possible
    index = combination[place]
    if not tree.null_possible and place and index in tree.parent[tree.task_keys[place - 1]]:
        return False
    for above in range(place + 1, len(combination)):
        index = int(tree.parent[tree.task_keys[above - 1]][index]) if index != NONE else NONE
        if combination[above] != index:
            return False
    return True


def by_hand(case: Case) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """All paths and the probabilities [N, P] of their products."""
    tree = case.taxonomy.tree
    ranges = [[NONE, *range(case.taxonomy.first, tree.num_classes[task])] for task in tree.task_keys]
    found = [combination for combination in itertools.product(*ranges) if is_path(tree, combination)]
    product = np.ones((len(next(iter(case.logits.values()))), len(found)))
    for place, task in enumerate(tree.task_keys):
        probability = np.exp(log_softmax(case.logits[task], case.temperature[task]))
        unknown = probability[:, 0] if tree.null_possible else np.full(len(product), 1 / probability.shape[1])
        for number, path in enumerate(found):
            product[:, number] *= unknown if path[place] == NONE else probability[:, path[place]]
            above = next((coarser for coarser in range(place, len(path)) if path[coarser] != NONE), place)
            if above > place and tree.null_possible:
                product[:, number] *= share(tree, place, probability, above, path[above])
    return found, product / product.sum(axis=1, keepdims=True)


def share(tree: TaxonomyTree, place: int, probability: np.ndarray, above: int, taxon: int) -> np.ndarray:
    """[N], the share of a taxon's descendants in what a finer rank says of taxa; a little of it is spread evenly."""
    descendants = tree.anc[tree.task_keys[place]][:, above - place] == taxon
    of_taxa = probability[:, 1:]
    part = of_taxa @ descendants[1:] / of_taxa.sum(axis=1)
    return (1 - EVEN_SHARE) * part + EVEN_SHARE / (tree.num_classes[tree.task_keys[above]] - 1)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_against_all_combinations(case):
    tree = case.taxonomy.tree
    found, expected = by_hand(case)
    paths = TaxonomyPaths(tree)
    unknown = 0 if tree.null_possible else NONE
    assert sorted(map(tuple, paths.classes.tolist())) == sorted(
        tuple(unknown if index == NONE else index for index in path) for path in found
    )
    result = paths(case.logits, case.temperature)
    for place, task in enumerate(tree.task_keys):
        marginal = np.zeros(case.logits[task].shape)
        for number, path in enumerate(found):
            if path[place] != NONE or tree.null_possible:
                marginal[:, max(path[place], 0)] += expected[:, number]
        np.testing.assert_allclose(result.by_task[task], marginal, rtol=0, atol=1e-9)
    for row, best in enumerate(result.best.tolist()):
        path = tuple(NONE if index == unknown else index for index in best)
        assert expected[row, found.index(path)] == pytest.approx(expected[row].max(), rel=1e-9)


def posterior_by_hand(
    case: Case, counts: dict[str, list[int]], class_balance: float
) -> dict[tuple[int, ...], np.ndarray]:
    """Path, NONE for unknown -> its probability [N]: the share of its training rows times likelihood ratios."""
    tree, first = case.taxonomy.tree, case.taxonomy.first
    rows: dict[tuple[int, ...], float] = {}
    for place, task in enumerate(tree.task_keys):
        for index in range(first, tree.num_classes[task]):
            children = place and index in tree.parent[tree.task_keys[place - 1]]
            if children and not tree.null_possible:
                continue
            chain, at = [NONE] * place + [index], index
            for finer in tree.task_keys[place:-1]:
                at = int(tree.parent[finer][at]) if at != NONE else NONE
                chain.append(at)
            rows[tuple(chain)] = counts[task][index] + (ENDED if children else SEEN)
    if tree.null_possible:
        rows[(NONE,) * len(tree.task_keys)] = counts[tree.task_keys[0]][0] + ENDED
    images, total = len(case.logits[tree.task_keys[0]]), sum(rows.values())
    found = {path: np.full(images, (number / total) ** (1 - class_balance)) for path, number in rows.items()}
    ratios: list[dict[int, np.ndarray]] = []
    for place, task in enumerate(tree.task_keys):
        named = sum(number for path, number in rows.items() if path[place] != NONE)
        taxa = np.exp(case.logits[task][:, first:].astype(np.float64))
        ratios.append({})
        for index in range(first, tree.num_classes[task]):
            share = sum(number for path, number in rows.items() if path[place] == index) / named
            ratios[place][index] = taxa[:, index - first] / taxa.sum(axis=1) / share
    for path in found:
        end = next((place for place, index in enumerate(path) if index != NONE), None)
        children = end is None or (end and path[end] in tree.parent[tree.task_keys[end - 1]])
        for place, task in enumerate(tree.task_keys):
            speaks = place
            if end is not None and place < end and not children:  # no child of it was ever seen
                speaks = end
            if path[speaks] != NONE:
                found[path] = found[path] * ratios[speaks][path[speaks]] ** (1 / case.temperature[task])
    everything = sum(found.values())
    return {path: probability / everything for path, probability in found.items()}


@settings(max_examples=60, deadline=None)
@given(cases(ranks=7, sharpest=4.0), st.randoms(use_true_random=False), st.sampled_from((0.0, 0.5, 1.0)))
def test_the_posterior_against_every_path(case, random, class_balance):
    tree = case.taxonomy.tree
    counts = {t: [random.choice((0, 0, 1, 3, 40)) for _ in range(n)] for t, n in tree.num_classes.items()}
    expected = posterior_by_hand(case, counts, class_balance)
    result = TaxonomyPaths(tree, counts)(case.logits, case.temperature, class_balance=class_balance)
    unknown = 0 if tree.null_possible else NONE
    for place, task in enumerate(tree.task_keys):
        for index in range(tree.num_classes[task]):
            wanted = NONE if tree.null_possible and index == 0 else index
            through = [probability for path, probability in expected.items() if path[place] == wanted]
            np.testing.assert_allclose(result.by_task[task][:, index], sum(through, np.zeros(3)), rtol=0, atol=1e-9)
    for row, best in enumerate(result.best.tolist()):
        answer = expected[tuple(NONE if index == unknown else index for index in best)]
        assert answer[row] == pytest.approx(max(each[row] for each in expected.values()), rel=1e-9)


def test_a_family_without_species_is_answered():
    """Where its images have no species: two species of one family, and another family with none."""
    tree = TaxonomyTree(("species", "family"), {"species": 3, "family": 3}, {"species": np.array([-1, 1, 1])})
    labels = np.array([[1, 1]] * 10 + [[2, 1]] * 10 + [[0, 2]] * 10 + [[0, 0]])
    counts = tree.path_counts(labels)
    assert counts == {"species": [1, 10, 10], "family": [0, 0, 10]}
    logits = {"species": np.array([[9.0, 6.0, 0.0]]), "family": np.array([[0.0, -2.0, 4.0]])}
    found = TaxonomyPaths(tree, counts)(logits, {"species": 1.0, "family": 2.0})
    assert found.best.tolist() == [[0, 2]]
    assert found.by_task["family"][0, 2] > 0.9
    assert found.by_task["species"][0, 0] > 0.9


@settings(max_examples=60, deadline=None)
@given(cases(ranks=7), st.booleans())
def test_probabilities_agree_along_the_tree(case, counted):
    tree = case.taxonomy.tree
    counts = {task: [2] * size for task, size in tree.num_classes.items()} if counted else {}
    result = TaxonomyPaths(tree, counts)(case.logits, case.temperature)
    for task, coarser in itertools.pairwise(tree.task_keys):
        has = tree.parent[task] >= 0
        assert (result.by_task[task][:, has] <= result.by_task[coarser][:, tree.parent[task][has]]).all()
    for task in tree.task_keys:
        assert (result.by_task[task] >= 0).all()
        total = result.by_task[task].sum(axis=1)
        if tree.null_possible:
            np.testing.assert_allclose(total, 1, rtol=0, atol=1e-9)
        else:
            assert (total <= 1 + 1e-9).all()


def test_documented_consistency(fixtures):
    golden = json.loads((fixtures / "observability_misc.json").read_text())["consistency"]
    tasks = tuple(golden["task_keys"])
    parents = {
        task: np.array([golden["hierarchy_map"][task].get(str(i), -1) for i in range(golden["num_classes"][task])])
        for task in tasks[:-1]
    }
    tree = TaxonomyTree(tasks, golden["num_classes"], parents)
    for case in golden["cases"]:
        best = np.array([[case["input_class_idx_prob"][task][0][0] for task in tasks]])
        given_up = documented_consistency(tree, best)[0]
        assert case["output_order"] == list(tasks[::-1])
        for place, task in enumerate(tasks):
            expected = case["output"][task]
            assert expected == ([[0, 1.0]] if given_up[place] else case["input_class_idx_prob"][task]), task


def test_a_rank_that_was_left_out_is_passed_over():
    tree = TaxonomyTree(
        ("taxa_L10", "taxa_L20", "taxa_L30"),
        {"taxa_L10": 4, "taxa_L20": 3, "taxa_L30": 3},
        {"taxa_L10": np.array([-1, 1, 2, -1]), "taxa_L20": np.array([-1, 1, 2])},
    )
    best = np.array([[1, 1], [1, 2], [2, 2], [3, 1], [0, 1], [1, 0]])
    given_up = documented_consistency(tree, best, ("taxa_L10", "taxa_L30"))
    assert given_up[:, 0].tolist() == [False, True, False, True, True, True]
    assert not given_up[:, 1].any()
