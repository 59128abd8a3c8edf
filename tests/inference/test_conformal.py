"""Answers for a coverage hold the truth as often as asked for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference import conformal
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.quality.calibration import judge
from tests.inference.conftest import small_taxonomy


def drawn(taxonomy, count, rng, sharpness):
    """Logits of every rank and labels that follow from them, but not as sharply as the logits say."""
    tree, finest = taxonomy.tree, taxonomy.tasks[0]
    logits = {task: rng.normal(0, 2, (count, tree.num_classes[task])).astype(np.float32) for task in taxonomy.tasks}
    of_taxa = logits[finest][:, taxonomy.first :] * sharpness
    label = (of_taxa + rng.gumbel(size=of_taxa.shape)).argmax(axis=1) + taxonomy.first
    labels = tree.anc[finest][label]
    for place, task in enumerate(taxonomy.tasks[1:], 1):  # coarser heads see the truth, with errors
        held = labels[:, place] >= 0
        logits[task][np.flatnonzero(held), labels[held, place]] += 2 * sharpness
    return logits, labels


def measured(taxonomy, logits, labels):
    answers = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    score = conformal.scores(judge(logits, labels, answers), taxonomy.first)
    found = dataclasses.replace(
        answers.calibration, coverage=conformal.thresholds(score), coverage_rows=len(score), rows=len(score)
    )
    return Answers(taxonomy, found)


def holds(answers, logits, labels, level):
    """bool [N]: the answer for a coverage is above or at the truth; none is above everything."""
    answered = answers.answered(logits, answers.options(coverage=level))
    at = np.maximum(answered.answer, 0)
    rows = np.arange(len(labels))
    return (answered.answer < 0) | (answered.best[rows, at] == labels[rows, at])


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("rows", [19, 200])
def test_coverage_of_exchangeable_rows(sharpness, rows):
    taxonomy, rng = small_taxonomy(), np.random.default_rng(7)
    for level in (0.5, 0.8, 0.9, 0.95):
        shares = []
        for _ in range(60):
            logits, labels = drawn(taxonomy, rows + 100, rng, sharpness)
            answers = measured(taxonomy, {task: z[:rows] for task, z in logits.items()}, labels[:rows])
            shares.append(holds(answers, {task: z[rows:] for task, z in logits.items()}, labels[rows:], level).mean())
        error = np.std(shares) / len(shares) ** 0.5
        assert np.mean(shares) >= level - 3 * error - 1e-9
        # an answer is never coarser than it must be: without ties no more than one row in n + 1 too many
        if sharpness < 1 and level >= 0.8:
            assert np.mean(shares) <= level + 1 / (rows + 1) + 3 * error


def test_higher_levels_answer_coarser():
    taxonomy, rng = small_taxonomy(), np.random.default_rng(0)
    logits, labels = drawn(taxonomy, 300, rng, 1.0)
    answers = measured(taxonomy, logits, labels)
    depth = [answers.answered(logits, answers.options(coverage=level)).answer for level in (0.6, 0.8, 0.95)]
    rank = [np.where(each < 0, len(taxonomy.tasks), each) for each in depth]
    assert (np.diff(rank, axis=0) >= 0).all()
    assert (rank[0] < rank[2]).any()


def test_score_is_of_the_coarsest_wrong_taxon():
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 50, np.random.default_rng(1), 1.0)
    judged = judge(logits, labels, Answers(taxonomy, Calibration.none(taxonomy.tasks)))
    score = conformal.scores(judged, taxonomy.first)
    for row in range(50):
        wrong = [
            judged.probability[row, place]
            for place in range(len(taxonomy.tasks))
            if judged.predicted[row, place] >= taxonomy.first and not judged.right[row, place]
        ]
        assert score[row] == (wrong[-1] if wrong else 0.0)


def test_rows_without_a_finest_label_do_not_count():
    taxonomy = small_taxonomy()
    logits, labels = drawn(taxonomy, 50, np.random.default_rng(1), 1.0)
    labels[:20, 0] = 0 if taxonomy.first else -1
    judged = judge(logits, labels, Answers(taxonomy, Calibration.none(taxonomy.tasks)))
    assert len(conformal.scores(judged, taxonomy.first)) == 30


@pytest.mark.parametrize(("rows", "highest"), [(0, None), (1, "50"), (8, "88"), (9, "90"), (19, "95"), (99, "99")])
def test_levels_that_rows_allow(rows, highest):
    found = conformal.thresholds(np.linspace(0, 1, rows))
    assert max(found, key=int, default=None) == highest
    assert list(found.values()) == sorted(found.values())


@pytest.mark.parametrize("level", [0.0, 0.49, 1.0, 0.905, 90.0, -0.9, float("nan"), float("inf")])
def test_levels_that_cannot_be(level):
    found = conformal.thresholds(np.linspace(0, 1, 500))
    with pytest.raises(UserError, match=r"from 0\.5 to 0\.99 in steps of 0.01"):
        conformal.least_confidence(found, 500, level)


def test_refused_without_a_measurement_or_with_too_few_rows():
    with pytest.raises(UserError, match="this model has none: make its bundle anew from its run"):
        conformal.least_confidence({}, 0, 0.9)
    with pytest.raises(UserError, match=r"at least 19 validation rows .* were measured on 18"):
        conformal.least_confidence(conformal.thresholds(np.zeros(18)), 18, 0.95)
    assert conformal.least_confidence(conformal.thresholds(np.zeros(19)), 19, 0.95) > 0


def test_not_with_other_answers():
    taxonomy = small_taxonomy()
    answers = measured(taxonomy, *drawn(taxonomy, 100, np.random.default_rng(0), 1.0))
    name = taxonomy.described[taxonomy.tasks[0]][taxonomy.first][0]
    for more in ({"consistency": "documented"}, {"restrict": [name]}):
        with pytest.raises(UserError, match="leave out restrict"):
            answers.options(coverage=0.9, **more)


def test_bundles_keep_thresholds(bundle, tmp_path):
    found = conformal.thresholds(np.linspace(0, 1, 99))
    calibration = dataclasses.replace(bundle.calibration, coverage=found, coverage_rows=99)
    write_bundle(dataclasses.replace(bundle, calibration=calibration), tmp_path / "b")
    assert read_bundle(tmp_path / "b").calibration == calibration


def test_what_half_of_the_rows_promise_the_others():
    score = np.random.default_rng(1).random(2000)
    assert conformal.held(score, 90) == pytest.approx(0.9, abs=0.02)
    assert conformal.held(score, 90) == conformal.held(score, 90)
    assert np.isnan(conformal.held(score[:10], 90))  # five rows allow no more than 80 %
    assert conformal.held(np.zeros(40), 90) == 1.0
