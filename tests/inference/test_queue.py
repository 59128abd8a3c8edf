"""What to label next: the least sure, of different kinds, rare taxa first."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from linnaeus_jax.inference.files.predicting import predict_files
from linnaeus_jax.inference.files.queue import KEPT, Unsure, chosen, to_label, unsure
from linnaeus_jax.inference.model import Model
from linnaeus_jax.tools import predict


def test_margin_and_rarity_by_hand():
    probability = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    found = unsure(probability, np.array([99.0, 24, 0]), np.array([[3.0, 4.0], [0.0, 2.0]]))
    np.testing.assert_allclose(found.uncertainty, [0.8, 0.3])
    np.testing.assert_allclose(found.rarity, [0.05 + 0.06 + 0.2, 0.01 + 0.02 + 0.8])
    assert found.vector.tolist() == [pytest.approx([0.6, 0.8]), [0, 1]]
    alone = unsure(np.ones((2, 1)), np.array([3.0]), np.ones((2, 2)))
    np.testing.assert_allclose(alone.uncertainty, 0)


def test_of_pictures_that_are_alike_the_least_sure_is_taken():
    """Four kinds of five pictures that are nearly the same, the first one of each the least sure."""
    rng = np.random.default_rng(0)
    vector = np.repeat(np.eye(4, 8), 5, axis=0) + 0.01 * rng.normal(size=(20, 8))
    uncertainty = np.tile([0.9, 0.8, 0.7, 0.6, 0.5], 4) + np.repeat([0.0, 0.01, 0.02, 0.03], 5)
    rarity = np.repeat([0.2, 0.4, 0.1, 0.3], 5)
    found = chosen(Unsure(uncertainty, rarity, vector.astype(np.float32)), 4)
    assert sorted(found.tolist()) == [0, 5, 10, 15]
    assert rarity[found].tolist() == sorted(rarity, reverse=True)[::5]
    assert sorted(chosen(Unsure(uncertainty, rarity, vector.astype(np.float32)), 30).tolist()) == list(range(20))


@pytest.mark.parametrize("count", [1, 3, 7, 19])
def test_as_many_as_are_wanted_and_none_twice(count):
    rng = np.random.default_rng(count)
    same = np.ones((20, 4), np.float32)
    for vector in (same, rng.normal(size=(20, 4)).astype(np.float32)):
        found = chosen(Unsure(rng.random(20), rng.random(20), vector), count)
        assert len(found) == len(set(found.tolist())) == count


@pytest.mark.slow
def test_pictures_through_a_model(shared, bundle):
    """Those that are kept are the least sure by the answers of `predict`, in any order of the folder."""
    from linnaeus_jax.inference.files.picture_list import list_pictures
    from linnaeus_jax.inference.files.predicting import Job

    model = Model(bundle)
    jobs = [Job(picture) for picture in list_pictures(["photos"])]
    options = model.answers.options()
    parts = list(predict_files(model, jobs, model.answers.options(top_k=4)))
    margin = {}
    for part in parts:
        for row in part.rows(model.answers, model.answers.options(top_k=4)):
            if "no_answer" not in row:
                first, second = [taxon["probability"] for taxon in row["top"]["species"] if taxon["taxon_id"]][:2]
                margin[row["file"]] = first - second
    least = sorted(margin, key=margin.__getitem__)
    done = []
    found = to_label(model, jobs, options, 2, progress=lambda *where: done.append(where))
    assert {job.picture.name for job in found} <= set(least[: 2 * KEPT])
    assert least[0] in {job.picture.name for job in found}
    assert done[-1] == (len(jobs), len(jobs))
    again = to_label(model, jobs[::-1], options, 2)
    assert {job.picture.name for job in again} == {job.picture.name for job in found}
    every = to_label(model, jobs, options, len(jobs))
    assert {job.picture.name for job in every} == set(margin)  # not the broken one


def test_the_tool_writes_the_batch(shared, trained, capsys):
    status = predict.main([trained, "photos", "--queue", "3", "--out", "batch.csv", "--gallery", "batch.html"])
    assert status == 0
    with open("batch.csv", newline="") as file:
        names = [row["file"] for row in csv.DictReader(file)]
    assert len(names) == 3
    assert Path("batch.csv.txt").read_text().split() == names
    assert Path("batch.html").read_text().count("<article") == 3
    said = capsys.readouterr().out
    assert "batch.csv.txt: the 3 pictures to label next" in " ".join(said.split())
    assert predict.main([trained, "photos", "--queue", "3", "--out", "batch.csv"]) == 2  # without the page
    assert predict.main([trained, "photos", "--queue", "3", "--out", "again.csv"]) == 0
    assert Path("again.csv.txt").read_text().split() == names
    for wrong, message in (("10", "--queue 10: there are 9 pictures; give fewer"), ("-1", "--queue is -1")):
        capsys.readouterr()
        assert predict.main([trained, "photos", "--queue", wrong, "--out", "x.csv"]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert predict.main([trained, "photos/broken.jpg", "--queue", "1"]) == 2
    assert "none of the pictures can be read" in " ".join(capsys.readouterr().err.split())
    assert not Path("x.csv.txt").exists()
