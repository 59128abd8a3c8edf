"""What is said of a picture: paths, roll-up, restrictions, taxa that are always reported."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference import answers
from linnaeus_jax.inference.answers import CONSISTENCY, FEW, Answers, best_first
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.results import Prediction, Taxon
from tests.inference.conftest import small_taxonomy
from tests.inference.trees import cases, random_taxonomy

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")


def small_answers() -> Answers:
    return Answers(small_taxonomy(), Calibration.none(TASKS))


def logits(**probabilities: list[float]) -> dict[str, np.ndarray]:
    """One row with the probabilities of every rank, to the third power, which the mean over three ranks takes back."""
    return {
        task: 3 * np.log(np.array([probabilities[rank]], np.float32))
        for task, rank in zip(TASKS, ("species", "genus", "family"))
    }


#: the species are undecided, both of one genus
UNDECIDED = {
    "species": [0.02, 0.45, 0.45, 0.04, 0.04],
    "genus": [0.02, 0.96, 0.02],
    "family": [0.02, 0.96, 0.02],
}


def test_the_answer_is_the_deepest_rank_that_is_sure_enough():
    answers = small_answers()

    def answer(confidence: float) -> str:
        [prediction] = answers(logits(**UNDECIDED), answers.options(min_confidence=confidence))
        assert [taxon.rank for taxon in prediction.path] == ["family", "genus", "species"]
        assert [taxon.name for taxon in prediction.path] == ["Paridae", "Parus", "Parus major"]
        probabilities = [taxon.probability for taxon in prediction.path]
        assert probabilities == sorted(probabilities, reverse=True)
        return prediction.answer.label if prediction.answer else "unknown"

    assert answer(0.4) == "Parus major [11]"
    assert answer(0.5) == "Parus [21]"
    assert answer(1.0) == "unknown"


@pytest.mark.parametrize("null", [True, False])
def test_an_answer_is_a_taxon_that_just_reaches_the_threshold(null):
    """Ranks by themselves, with probabilities of exactly 1/2 and 1: every class but null may be it."""
    taxonomy = random_taxonomy([3, 1], null, np.random.default_rng(0))
    answers, (species, family) = Answers(taxonomy, Calibration.none(taxonomy.tasks)), taxonomy.tasks
    count = len(taxonomy.classes[species])
    for index in range(count - 1):
        z = {task: np.full((1, len(ids)), -1000, np.float32) for task, ids in taxonomy.classes.items()}
        z[family][0, -1] = 0  # the only family
        z[species][0, [index, count - 1]] = 0  # one half each; the first one is answered
        for confidence, enough in ((0.5, True), (float(np.nextafter(0.5, 1)), False)):
            found = answers.answered(z, answers.options(min_confidence=confidence, consistency="documented"))
            taxon = not null or index > 0
            assert found.best[0, 0] == index
            assert found.answer[0] == (0 if taxon and enough else 1)


def test_unknown_stays_visible():
    answers = small_answers()
    sure_of_the_family = {
        "species": [0.9, 0.03, 0.03, 0.02, 0.02],
        "genus": [0.9, 0.05, 0.05],
        "family": [0.01, 0.01, 0.98],
    }
    for consistency in CONSISTENCY:
        [prediction] = answers(logits(**sure_of_the_family), answers.options(consistency=consistency))
        family, genus, species = prediction.path
        assert (family.label, genus.label, species.label) == ("Passeridae [32]", "unknown", "unknown")
        assert not species.known
        assert (species.taxon_id, species.name) == (0, "")
        assert prediction.answer == family
        assert prediction.top["species"][0].label == "unknown"
        assert json.loads(json.dumps(prediction.to_json()))["path"][2]["taxon_id"] == 0


def test_ranks_by_themselves_give_up_what_contradicts():
    answers = small_answers()
    contradicting = {
        "species": [0.02, 0.02, 0.02, 0.9, 0.04],
        "genus": [0.1, 0.7, 0.2],
        "family": [0.1, 0.7, 0.2],
    }
    given = {task: (z / 3).astype(np.float32) for task, z in logits(**contradicting).items()}
    [documented] = answers(given, answers.options(consistency="documented", always_report=["Passer domesticus"]))
    assert [(taxon.name, taxon.probability) for taxon in documented.path] == [
        ("Paridae", pytest.approx(0.7)),
        ("Parus", pytest.approx(0.7)),
        ("", 1.0),
    ]
    assert documented.top["species"] == (documented.path[2],)
    assert documented.answer == documented.path[1]
    assert documented.always[0].probability == pytest.approx(0.9)


def test_ties_are_decided_the_same_way_every_time():
    probability = np.array([[0.2, 0.3, 0.3, 0.2, 0.0], [0.5, 0.1, 0.1, 0.1, 0.2]])
    assert best_first(probability, 3).tolist() == [[1, 2, 0], [0, 4, 1]]
    many = np.random.default_rng(0).integers(0, 9, (4, 40)) / 9
    for count in (1, FEW, FEW + 1, 40):
        assert best_first(many, count).tolist() == np.argsort(-many, axis=1, kind="stable")[:, :count].tolist()
    assert best_first(probability, 99).tolist() == [[1, 2, 0, 3, 4], [0, 4, 1, 2, 3]]


def test_taxa_that_are_always_reported():
    answers = small_answers()
    options = answers.options(top_k=1, always_report=["Passer", 12, "passer"])
    [prediction] = answers(logits(**UNDECIDED), options, [("TEMPORAL",)], [("said",)])
    assert [taxon.name for taxon in prediction.always] == ["Passer", "Parus minor"]
    assert all(len(taxa) == 1 for taxa in prediction.top.values())
    assert (prediction.inputs, prediction.notes) == (("TEMPORAL",), ("said",))
    [restricted] = answers(logits(**UNDECIDED), answers.options(restrict="Paridae", always_report=["Passer"]))
    assert restricted.always[0].probability == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_k": 0}, "top_k is 0; give at least 1"),
        ({"min_confidence": 1.5}, "min_confidence is 1.5; give a probability"),
        ({"consistency": "none"}, "consistency is 'none'; choose one of path, documented"),
        ({"restrict": ["Corvus"]}, "does not know 1 of 1 taxa: Corvus"),
        ({"restrict": []}, "the list of taxa to restrict to is empty"),
        ({"always_report": ["Corvus"]}, "does not know 1 of 1 taxa: Corvus"),
        ({"class_balance": 1.5}, "class_balance is 1.5; give a number between 0 and 1"),
        ({"class_balance": 0.5, "consistency": "documented"}, "leave out consistency 'documented'"),
        ({"class_balance": 0.5}, "which this model does not know; bundle its run again"),
    ],
)
def test_options_that_cannot_be(given, message):
    with pytest.raises(UserError, match=message):
        small_answers().options(**given)


def test_class_balance_gives_rare_taxa_more_answers():
    counts = {"taxa_L10": [0, 90, 10, 1, 1], "taxa_L20": [0, 0, 0], "taxa_L30": [0, 0, 0]}
    ones = dict.fromkeys(TASKS, 1.0)
    answers = Answers(
        small_taxonomy(), Calibration(ones, ones, path_counts=counts, coverage={"90": 0.5}, coverage_rows=99)
    )
    seen = {task: np.log(np.array([UNDECIDED[rank]])) for task, rank in zip(TASKS, ("species", "genus", "family"))}
    shares = []
    for class_balance in (0.0, 0.5, 1.0):
        [prediction] = answers(seen, answers.options(class_balance=class_balance))
        top = {taxon.name: taxon.probability for taxon in prediction.top["species"]}
        shares.append(top["Parus minor"] / top["Parus major"])
    ratio = 90.5 / 10.5  # of their training rows
    assert shares == pytest.approx([1.0, ratio**0.5, ratio])  # the head itself says that both are as likely
    with pytest.raises(UserError, match="as common as in training; leave out restrict, class_balance"):
        answers.options(class_balance=0.5, coverage=0.9)


@settings(max_examples=60, deadline=None)
@given(cases(), st.data())
def test_a_restriction_never_leaks(case, data):
    taxonomy = case.taxonomy
    answers = Answers(taxonomy, Calibration(case.temperature, case.temperature))
    taxa = [int(i) for task in taxonomy.tasks for i in taxonomy.classes[task] if i]
    listed = data.draw(st.lists(st.sampled_from(taxa), min_size=1, max_size=4))
    consistency = data.draw(st.sampled_from(CONSISTENCY))
    options = answers.options(restrict=listed, consistency=consistency, min_confidence=0.0, top_k=99)
    allowed = taxonomy.allowed(listed)
    known = {0} | {int(i) for task in taxonomy.tasks for i in taxonomy.classes[task][allowed[task]]}
    _, by_task = answers.probabilities(case.logits, options)
    for task in taxonomy.tasks:
        assert not by_task[task][:, ~allowed[task]].any()
        total = by_task[task].sum(axis=1)
        if taxonomy.tree.null_possible or (consistency == "documented" and allowed[task].any()):
            np.testing.assert_allclose(total, 1, rtol=0, atol=1e-9)
    for prediction in answers(case.logits, options):
        assert {taxon.taxon_id for taxon in prediction.path} <= known
        assert {taxon.taxon_id for taxa in prediction.top.values() for taxon in taxa} <= known
        if consistency == "path":
            places = [(taxon.rank, taxon.taxon_id) for taxon in prediction.path if taxon.known]
            index = dict(taxonomy.find([taxon_id for _, taxon_id in places]))
            tasks = [task for task in taxonomy.tasks if task in index]  # finest first
            for task, coarser in itertools.pairwise(tasks):
                above = taxonomy.tasks.index(coarser) - taxonomy.tasks.index(task)
                assert taxonomy.tree.anc[task][index[task], above] == index[coarser]


def test_only_orphans_are_allowed_where_there_is_no_null():
    taxonomy = random_taxonomy([3, 2], False, np.random.default_rng(0))
    taxonomy.tree.parent["taxa_L10"][:] = taxonomy.tree.anc["taxa_L10"][:, 1] = -1
    answers = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    given = {"taxa_L10": np.zeros((1, 3), np.float32), "taxa_L20": np.zeros((1, 2), np.float32)}
    for consistency in CONSISTENCY:
        [prediction] = answers(given, answers.options(restrict=[101, 102], consistency=consistency))
        genus, species = prediction.path
        assert (genus.label, genus.probability) == ("unknown", pytest.approx(1.0))
        assert species.taxon_id == 101
        assert species.probability == pytest.approx(0.5)
        assert prediction.top[genus.rank] == ()


@pytest.mark.parametrize("consistency", CONSISTENCY)
def test_rows_in_blocks(consistency, monkeypatch):
    taxonomy = random_taxonomy([9, 4, 2], True, np.random.default_rng(0))
    answers_of = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    rng = np.random.default_rng(1)
    logits = {task: rng.normal(0, 2, (11, len(ids))).astype(np.float32) for task, ids in taxonomy.classes.items()}
    options = answers_of.options(consistency=consistency, top_k=3)
    whole = answers_of(logits, options)
    monkeypatch.setattr(answers, "BLOCK", 4 * sum(map(len, taxonomy.classes.values())))
    assert answers_of(logits, options) == whole
    nothing = {task: z[:0] for task, z in logits.items()}
    assert answers_of(nothing, options) == []


def test_a_prediction_is_printed_as_a_line_of_a_table():
    genus, species = Taxon("genus", 7, "Passer", "", 0.995), Taxon("species", 13858, "Passer domesticus", "house", 0.42)
    paths = (((genus, species), species), ((genus, species), genus), ((genus,), None))
    assert [str(Prediction(path, {}, answer)) for path, answer in paths] == [
        "species     42%  Passer domesticus (house) [13858]",
        "genus      100%  Passer [7]; species Passer domesticus (house) [13858] 42%",
        "unknown; genus Passer [7] 100%",
    ]
