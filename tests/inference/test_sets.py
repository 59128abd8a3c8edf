"""Sets of taxa: against a count by hand, what they promise, and how they are written."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom

from benchmarks import prediction_sets
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.files import read_sealed, sealed
from linnaeus_jax.inference import answers as blocks
from linnaeus_jax.inference import conformal, sets
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.quality.measured_sets import MeasuredSets, set_scores, span
from linnaeus_jax.inference.quality.measuring import with_sets
from linnaeus_jax.taxonomy.tree import TaxonomyTree
from tests.inference.conftest import small_taxonomy
from tests.inference.test_conformal import drawn
from tests.inference.trees import Case, cases, random_taxonomy


def five() -> Taxonomy:
    """Five species of the genera 21 (three) and 22 (two), both of family 31, and the genus 23 without any species."""
    ids = {"taxa_L10": [11, 12, 13, 14, 15], "taxa_L20": [21, 22, 23], "taxa_L30": [31, 32]}
    parents = {"taxa_L10": np.array([0, 0, 0, 1, 1]), "taxa_L20": np.array([0, 0, 1])}
    tree = TaxonomyTree(tuple(ids), {task: len(each) for task, each in ids.items()}, parents, null_possible=False)
    return Taxonomy(tree, TaxonNames.from_json({task: np.array(each) for task, each in ids.items()}, {}))


def by_task(taxonomy: Taxonomy, p: list[list[float]]) -> dict[str, np.ndarray]:
    """Probabilities of the five species and genus 23, as all ranks have them."""
    each = np.array(p)
    genera = np.stack([each[:, :3].sum(axis=1), each[:, 3:5].sum(axis=1), each[:, 5]], axis=1)
    families = np.stack([genera[:, :2].sum(axis=1), genera[:, 2]], axis=1)
    return dict(zip(taxonomy.tasks, (each[:, :5], genera, families), strict=True))


def ids(taxonomy: Taxonomy, entries: list[sets.Entry]) -> list[int]:
    return [int(taxonomy.classes[taxonomy.tasks[place]][index]) for place, index, _ in entries]


@pytest.mark.parametrize(
    ("least", "size", "written"),
    [
        (0.9, 1, [12]),  # none reaches it: the most probable one
        (0.25, 1, [12]),
        (0.15, 2, [12, 11]),
        (0.10, 3, [21]),  # the whole genus
        (0.07, 4, [21, 14]),
        (0.06, 5, [31]),  # the whole family
        (0.05, 6, [31, 32]),  # of 32 and its only genus, which are one leaf: that leaf, a genus
    ],
)
def test_five_species_by_hand(least, size, written):
    taxonomy = five()
    leaves, p = sets.Leaves(taxonomy), by_task(taxonomy, [[0.2, 0.4, 0.14, 0.08, 0.06, 0.05]])
    shares = leaves.shares(p)
    np.testing.assert_allclose(shares[0], np.array([0.2, 0.4, 0.14, 0.08, 0.06, 0.05]) / 0.93)
    inside = sets.inside(shares, least / 0.93 - 1e-9)
    (entries,) = leaves.written(inside, p)
    assert inside.sum() == size
    assert ids(taxonomy, entries) == (written if 32 not in written else [31, 23])
    assert [probability for *_, probability in entries] == sorted((each[2] for each in entries), reverse=True)


def test_scores_and_thresholds_by_hand():
    shares = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    np.testing.assert_array_equal(sets.scores(shares, np.array([0, 1, 0, 0])), [1.0, 0.3, 0.1, 1.0])
    found = sets.thresholds(np.array([1.0, 0.3, 0.1, 1.0, 0.2]))
    assert found["50"] == 0.3  # the third of five, ceil(6 * 0.5)
    assert found["83"] == 0.1
    assert "84" not in found


def test_the_benchmark_measures_these_sets():
    """Its form `lac` and this package, of probabilities alone."""
    rng = np.random.default_rng(0)
    drawn_p, drawn_label = prediction_sets.drawn(rng, 500, 12, 2.0, "overconfident")
    p, label = np.asarray(drawn_p, np.float64), np.asarray(drawn_label, np.int64)
    score = prediction_sets.lac(p, p)
    inside = score <= prediction_sets.threshold(score[np.arange(200), label[:200]])
    least = sets.thresholds(sets.scores(p[:200], label[:200]))["90"]
    np.testing.assert_array_equal(inside, sets.inside(p, least))
    assert inside[np.arange(500), label][200:].mean() == pytest.approx(0.9, abs=0.05)
    whole = np.ones((500, 1))
    plain = prediction_sets.aps(p, whole)  # against a loop: a sum of probabilities down to the class, never empty
    for row in range(5):
        order = np.argsort(-p[row], kind="stable")
        expected = np.cumsum(p[row][order])
        np.testing.assert_allclose(plain[row][order], [-1.0, *expected[1:]])


def test_leaves_of_labels():
    leaves = sets.Leaves(five())
    labels = np.array([[2, 0, 0], [-1, 2, 1], [-1, 0, 0], [-1, -1, -1]])
    assert leaves.of(labels).tolist() == [2, 5, -1, -1]  # genus 21 has species, so that it is no leaf
    null = sets.Leaves(small_taxonomy())
    assert null.of(np.array([[4, 0, 0], [0, 2, 2], [0, 0, 0]])).tolist() == [3, -1, -1]


def brute_force(taxonomy: Taxonomy, entries: list[sets.Entry]) -> list[tuple[int, int]]:
    """Leaves below some taxa, by walking from each taxon to its parents."""
    tree, inner, found = taxonomy.tree, set(), []
    for place, task in enumerate(taxonomy.tasks[:-1]):
        inner |= {(place + 1, int(tree.parent[task][index])) for index in range(taxonomy.first, tree.num_classes[task])}
    for place, task in enumerate(taxonomy.tasks):
        for index in range(taxonomy.first, tree.num_classes[task]):
            if (place, index) in inner:
                continue
            at = (place, index)
            while at[1] >= taxonomy.first:
                found += [(place, index)] * (at in {(where, which) for where, which, _ in entries})
                up = tree.parent[taxonomy.tasks[at[0]]][at[1]] if at[0] + 1 < len(taxonomy.tasks) else -1
                at = (at[0] + 1, int(up))
    return sorted(found)


@given(case=cases(rows=4), seed=st.integers(0, 1000), share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_the_set_and_never_longer(case: Case, seed: int, share: float):
    taxonomy = case.taxonomy
    answers = Answers(taxonomy, Calibration(case.temperature, case.temperature))
    _, p = answers.probabilities(case.logits, answers.options())
    leaves = answers.leaves
    inside = np.random.default_rng(seed).random((4, len(leaves.itself))) < share
    for row, entries in zip(inside, leaves.written(inside, p), strict=True):
        members = leaves.itself[row]
        place = np.searchsorted(leaves._start, members, side="right") - 1
        expected = sorted(zip(place.tolist(), (members - leaves._start[place]).tolist()))
        assert brute_force(taxonomy, entries) == expected  # each leaf once
        assert len(entries) <= row.sum()


def fitted(taxonomy: Taxonomy, logits, labels) -> Answers:
    answers = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    score = set_scores(logits, labels, answers)
    score = score[~np.isnan(score)]
    levels = {str(level): 0.0 for level in conformal.LEVELS}  # of answers, which are not tested here
    known = dataclasses.replace(
        answers.calibration,
        sets=sets.thresholds(score),
        set_rows=len(score),
        coverage=levels,
        coverage_rows=len(score),
    )
    return Answers(taxonomy, known)


def part(logits, rows):
    return {task: z[rows] for task, z in logits.items()}


@given(
    seed=st.integers(0, 10_000),
    sharpness=st.sampled_from([0.3, 1.0, 3.0]),
    rows=st.sampled_from([99, 400]),
    level=st.sampled_from([0.5, 0.8, 0.9, 0.95]),
)
@settings(max_examples=40, deadline=None)
def test_coverage_of_exchangeable_rows(seed, sharpness, rows, level):
    """Within bounds that one draw in a million leaves: coverage given the threshold is Beta, the held rows binomial."""
    taxonomy, rng = small_taxonomy(), np.random.default_rng(seed)
    logits, labels = drawn(taxonomy, rows + 400, rng, sharpness)
    answers = fitted(taxonomy, part(logits, slice(0, rows)), labels[:rows])
    answered = answers.answered(part(logits, slice(rows, None)), answers.options(coverage=level, as_sets=True))
    leaf = answers.leaves.of(labels[rows:])
    shares = answers.leaves.shares(answers.probabilities(part(logits, slice(rows, None)), answers.options())[1])
    held = sets.inside(shares, answers.least_shares(answers.calibration.sets[str(round(100 * level))]))[
        np.arange(400), leaf
    ].sum()
    place = int(np.ceil((rows + 1) * level - 1e-9))
    assert held >= betabinom.ppf(1e-6, 400, place, rows + 1 - place)
    assert (answered.set_size >= 1).all()
    assert all(entries for entries in answered.sets)


def test_ninety_per_cent_within_two_also_by_training_rows():
    """Of 40 species with frequencies that fall as 1 / place, calibrated: 2,000 rows to fit, 8,000 to test."""
    rng = np.random.default_rng(3)
    taxonomy = random_taxonomy([40, 12, 4], False, np.random.default_rng(0))
    frequency = 1 / np.arange(1, 41)
    share = frequency / frequency.sum()
    label = rng.choice(40, 10_000, p=share)
    z = rng.normal(size=(10_000, 40)) + np.log(share)
    z[np.arange(10_000), label] += 3.0
    labels = taxonomy.tree.anc[taxonomy.tasks[0]][label]
    flat = {task: np.zeros((10_000, taxonomy.tree.num_classes[task]), np.float32) for task in taxonomy.tasks[1:]}
    logits = {taxonomy.tasks[0]: z.astype(np.float32), **flat}
    answers = fitted(taxonomy, part(logits, slice(0, 2000)), labels[:2000])
    counts = {task: [0] * size for task, size in taxonomy.tree.num_classes.items()}
    counts[taxonomy.tasks[0]] = np.round(300 * share).astype(int).tolist()
    measured = MeasuredSets.of(part(logits, slice(2000, None)), labels[2000:], answers)
    trained = np.array(counts[taxonomy.tasks[0]])[label[2000:]]
    found = {each["coverage"]: each for each in dataclasses.replace(measured, trained=trained).numbers()}
    assert set(found) == {0.8, 0.9, 0.95}
    assert found[0.9]["held"] == pytest.approx(0.9, abs=0.02)
    assert 1 < found[0.9]["mean_taxa"] <= found[0.9]["mean_size"] < 40
    groups = found[0.9]["by_training_rows"]
    assert sum(group["rows"] for group in groups) == 8000
    assert [span(group) for group in groups][:2] == ["0 to 4", "5 to 9"]
    held = sum(group["rows"] * group["held"] for group in groups)
    assert held == pytest.approx(8000 * found[0.9]["held"])
    for each in dataclasses.replace(measured, known=np.zeros(8000, bool)).numbers():
        assert each["held"] is None
        assert each["mean_size"] is not None
    columns = ("trained", "known", "held", "size", "taxa")
    nothing = dataclasses.replace(measured, **{name: getattr(measured, name)[:0] for name in columns}).numbers()
    assert {each[name] for each in nothing for name in ("held", "mean_size", "mean_taxa", "single")} == {None}


def test_each_group_of_taxa_is_held_as_often_as_asked_for():
    """A model that says less of rare species than it knows: one threshold holds fewer than 3 of 4 of some group."""
    rng = np.random.default_rng(5)
    taxonomy = random_taxonomy([40, 12, 4], False, np.random.default_rng(0))
    share = (1 / np.arange(1, 41)) / (1 / np.arange(1, 41)).sum()
    label = rng.choice(40, 10_000, p=share)
    z = rng.normal(size=(10_000, 40)) + 2.5 * np.log(share)
    z[np.arange(10_000), label] += 3.0
    labels = taxonomy.tree.anc[taxonomy.tasks[0]][label]
    flat = {task: np.zeros((10_000, taxonomy.tree.num_classes[task]), np.float32) for task in taxonomy.tasks[1:]}
    logits = {taxonomy.tasks[0]: z.astype(np.float32), **flat}
    counts = {task: [0] * size for task, size in taxonomy.tree.num_classes.items()}
    counts[taxonomy.tasks[0]] = np.round(300 * share).astype(int).tolist()
    plain = Answers(taxonomy, Calibration.none(taxonomy.tasks, counts))
    score = set_scores(part(logits, slice(0, 2000)), labels[:2000], plain)
    known = with_sets(plain.calibration, taxonomy, score, labels[:2000])
    assert len(known.set_groups) == 3
    assert np.array([*known.sets.values()]).shape == (50, 3)
    one = dataclasses.replace(known, sets=sets.thresholds(score), set_groups=[])
    trained, spread = np.array(counts[taxonomy.tasks[0]])[label[2000:]], []
    for calibration in (one, known):
        measured = MeasuredSets.of(part(logits, slice(2000, None)), labels[2000:], Answers(taxonomy, calibration))
        held, group = measured.held[:, 1], sets.group_of(trained, known.set_groups)
        spread.append([held[group == number].mean() for number in range(3)])
    assert min(spread[0]) < 0.75
    fitted_to = sets.group_of(np.array(counts[taxonomy.tasks[0]]), known.set_groups)[label[:2000]]
    for number in range(3):  # within bounds that one draw in 10,000 leaves at either side
        n, of = (fitted_to == number).sum(), (group == number).sum()
        place = int(np.ceil((n + 1) * 0.9))
        low, high = betabinom.ppf([1e-4, 1 - 1e-4], of, place, n + 1 - place)
        assert low <= held[group == number].sum() <= high
    answers = Answers(taxonomy, dataclasses.replace(known, coverage={"90": 0.5}, coverage_rows=2000))
    answered = answers.answered(part(logits, slice(2000, 2400)), answers.options(coverage=0.9, as_sets=True))
    np.testing.assert_array_equal(answered.set_size, measured.size[:400, 1])


@given(
    trained=st.lists(st.integers(0, 9), min_size=1, max_size=30).map(np.array),
    rows=st.integers(0, 3000),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_groups_are_of_enough_rows_and_apart_in_training_rows(trained, rows, seed):
    label = np.random.default_rng(seed).integers(0, len(trained), rows)
    found = sets.groups(trained, label)
    group = sets.group_of(trained, found)
    assert found[0] == 0
    assert len(found) <= sets.MOST_GROUPS
    assert set(group.tolist()) <= set(range(len(found)))
    for a, b in itertools.combinations(range(len(trained)), 2):
        assert (group[a] <= group[b]) if trained[a] <= trained[b] else (group[a] >= group[b])
    if len(found) > 1:
        assert np.bincount(group[label], minlength=len(found)).min() >= sets.LEAST_ROWS


@given(case=cases(rows=5), least=st.lists(st.floats(0, 1), min_size=2, max_size=2))
@settings(max_examples=60, deadline=None)
def test_a_lower_threshold_gives_a_superset(case: Case, least: list[float]):
    answers = Answers(case.taxonomy, Calibration(case.temperature, case.temperature))
    shares = answers.leaves.shares(answers.probabilities(case.logits, answers.options())[1])
    small, large = (sets.inside(shares, one) for one in sorted(least, reverse=True))
    assert (small <= large).all()
    assert small.any(axis=1).all()


def test_a_larger_coverage_gives_a_superset():
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 500, np.random.default_rng(0), 0.5)
    found = sets.thresholds(set_scores(logits, labels, fitted(taxonomy, logits, labels)))
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found["50"] > found["99"]


def test_one_taxon_where_it_is_certain():
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 200, np.random.default_rng(0), 1.0)
    answers = fitted(taxonomy, logits, labels)
    sure = {task: np.full((1, z.shape[1]), -50, np.float32) for task, z in logits.items()}
    for task in taxonomy.tasks:
        sure[task][0, 1] = 50
    (one,) = answers(sure, answers.options(coverage=0.99, as_sets=True))
    assert [taxon.name for taxon in one.set or ()] == ["Parus major"]
    assert one.set_size == 1
    assert (one.set or ())[0] == one.answer


def test_equal_outputs_give_equal_sets_whatever_stands_beside_them(monkeypatch):
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 200, np.random.default_rng(0), 0.5)
    logits = {task: np.round(z) for task, z in logits.items()}  # many ties
    answers = fitted(taxonomy, logits, labels)
    options = answers.options(coverage=0.8, as_sets=True)
    whole = answers(logits, options)
    for row in range(0, 200, 17):
        (alone,) = answers(part(logits, slice(row, row + 1)), options)
        assert (alone.set, alone.set_size) == (whole[row].set, whole[row].set_size)
    monkeypatch.setattr(blocks, "BLOCK", 40)  # a few rows at a time
    assert answers(logits, options) == whole


def test_answers_stay_what_they_are():
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 100, np.random.default_rng(1), 0.5)
    answers = fitted(taxonomy, logits, labels)
    plain = answers(logits, answers.options(coverage=0.9))
    beside = answers(logits, answers.options(coverage=0.9, as_sets=True))
    assert [dataclasses.replace(each, set=None, set_size=0) for each in beside] == plain
    assert "set" not in plain[0].to_json()
    assert beside[0].to_json()["set_size"] == beside[0].set_size


def test_refused_in_one_line():
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 18, np.random.default_rng(1), 0.5)
    answers = fitted(taxonomy, logits, labels)
    with pytest.raises(UserError, match=r"sets of taxa are made for a coverage; give one, such as 0\.9"):
        answers.options(as_sets=True)
    with pytest.raises(UserError, match=r"a set for coverage 0\.95 needs at least 19 validation rows .* on 18"):
        answers.options(as_sets=True, coverage=0.95)
    for level in (0.0, 1.0, -0.1, 2.0, float("nan")):
        with pytest.raises(UserError, match=r"coverage is .* give a share from 0\.5 to 0\.99"):
            answers.options(as_sets=True, coverage=level)
    older = Answers(taxonomy, dataclasses.replace(answers.calibration, sets={}, set_rows=0))
    assert older.options(coverage=0.9).least_share is None
    with pytest.raises(
        UserError, match=r"a set for coverage 0\.9 needs thresholds .* make its bundle anew from its run"
    ):
        older.options(as_sets=True, coverage=0.9)


def test_bundles_keep_thresholds(bundle, tmp_path):
    found = sets.thresholds(np.linspace(0, 1, 99))
    calibration = dataclasses.replace(bundle.calibration, sets=found, set_rows=99)
    write_bundle(dataclasses.replace(bundle, calibration=calibration), tmp_path / "b")
    assert read_bundle(tmp_path / "b").calibration == calibration
    about = read_sealed(tmp_path / "b" / "bundle.json")
    for key in ("sets", "set_rows", "set_groups"):
        del about["calibration"][key]  # as earlier versions wrote it
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(sealed(about)))
    assert read_bundle(tmp_path / "b").calibration == bundle.calibration
