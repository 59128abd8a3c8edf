"""Several pictures, one answer: against Bayes' rule written out, in Python, by `predict`, in files and sequences."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.files import occurrences, predicting
from linnaeus_jax.inference.files.occurrences import by_column, by_time
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job
from linnaeus_jax.inference.paths import NotFiniteError, log_softmax
from linnaeus_jax.inference.pictures import VIEWS, read_views
from linnaeus_jax.inference.pooling import MEAN, STRAY, Pooling, Sums, fitted_dependence, united
from linnaeus_jax.reading.dates import instant
from linnaeus_jax.reading.metadata import Observation
from tests.inference.test_predict_tool import read, run
from tests.inference.trees import cases


@settings(max_examples=40, deadline=None)
@given(cases(), st.booleans(), st.floats(0, 1), st.sampled_from(["evidence", MEAN]), st.data())
def test_against_every_path_written_out(case, counted, dependence, how, data):
    tree = case.taxonomy.tree
    counts = {task: np.full(size, 3).tolist() for task, size in tree.num_classes.items()} if counted else {}
    temperature = {task: float(case.temperature[task]) for task in tree.task_keys}
    answers = Answers(case.taxonomy, Calibration(temperature, temperature, path_counts=counts, dependence=dependence))
    rows = len(next(iter(case.logits.values())))
    group = data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    pooling, sums = Pooling(answers, how), Sums(group)
    whole = sums.add(group, pooling.terms(case.logits))
    assert set(whole) == set(group)
    pooled = pooling.pooled(*sums.take(whole))
    prior = answers.paths.log_prior
    prior = prior - np.log(np.exp(prior).sum())
    posterior = log_softmax(answers.paths.scores(case.logits, temperature))
    best, by_task = answers.probabilities(pooled, answers.options())
    for place, name in enumerate(whole):
        of = posterior[np.array(group) == name]
        weight = 1 / (1 + (len(of) - 1) * dependence)
        expected = prior + weight * np.log(STRAY + (1 - STRAY) * np.exp(of - prior)).sum(axis=0)
        if len(of) == 1:
            (expected,) = of
        if how == MEAN:
            expected = np.log(np.exp(of).mean(axis=0))
        (probability,) = np.exp(log_softmax(expected[None]))
        finest = tree.task_keys[0]
        for taxon in range(case.taxonomy.first, tree.num_classes[finest]):
            inside = probability[answers.paths.classes[:, 0] == taxon].sum()
            assert by_task[finest][place, taxon] == pytest.approx(inside, abs=1e-9)
        assert probability.max() == pytest.approx(
            probability[(answers.paths.classes == best[place]).all(axis=1)].max(), abs=1e-9
        )


def test_the_same_picture_again_is_no_news_where_all_depends_and_all_news_where_nothing_does(bundle):
    rng = np.random.default_rng(0)
    one = {task: rng.normal(size=(1, size)) for task, size in bundle.taxonomy.tree.num_classes.items()}
    for dependence, count in ((1.0, 10_000), (0.0, 2), (0.25, 10_000)):
        answers = Answers(bundle.taxonomy, dataclasses.replace(bundle.calibration, dependence=dependence))
        pooling = Pooling(answers)
        terms = pooling.terms(one)
        pooled = pooling.pooled(count * terms, np.array([count]))["evidence"]
        worth = count / (1 + (count - 1) * dependence)
        np.testing.assert_allclose(pooled[0], worth * terms[0, 0])
    assert worth < 4


def test_what_metadata_say_counts_once(bundle):
    rng = np.random.default_rng(0)
    sizes = bundle.taxonomy.tree.num_classes
    alone = {task: rng.normal(size=(1, size)) for task, size in sizes.items()}
    known = {task: z + rng.normal(size=z.shape) for task, z in alone.items()}
    pooling = Pooling(Answers(bundle.taxonomy, dataclasses.replace(bundle.calibration, dependence=0.0)))
    (term,) = pooling.terms(known, alone)
    np.testing.assert_allclose(term.sum(axis=0), pooling.terms(known)[0, 0])
    np.testing.assert_array_equal(term[0], pooling.terms(alone)[0, 0])
    pooled = pooling.pooled(3 * term[None], np.array([3]))["evidence"]
    np.testing.assert_allclose(pooled[0], 3 * term[0] + term[1])


def test_one_picture_that_misleads_rules_nothing_out(bundle):
    sure = {task: np.zeros((3, size)) for task, size in bundle.taxonomy.tree.num_classes.items()}
    for task, taxa in zip(bundle.tasks, ([1, 1, 3], [1, 1, 2], [1, 1, 2])):
        sure[task][np.arange(3), taxa] = [8, 8, 400]
    answers = Answers(bundle.taxonomy, dataclasses.replace(bundle.calibration, dependence=0.5))
    pooling = Pooling(answers)
    pooled = pooling.pooled(pooling.terms(sure).sum(axis=0)[None], np.array([3]))
    best, by_task = answers.probabilities(pooled, answers.options())
    assert best.tolist() == [[1, 1, 1]]
    assert 0.6 < by_task[bundle.tasks[0]][0, 1] < 0.99


def test_sums_leave_out_what_is_not_finite_and_tell_what_is_whole():
    sums, term = Sums("aabc"), np.ones((1, 2, 3))
    assert sums.add("a", term) == []
    assert sums.add("b", np.nan * term) == []
    assert sums.add("ca", np.concatenate([term, 2 * term])) == ["c", "a"]
    total, counts = sums.take(["a", "c"])
    assert counts.tolist() == [2, 1]
    np.testing.assert_array_equal(total[:, 0, 0], [3, 1])
    assert united("aba", [("x",), (), ("y", "x")]) == {"a": ("x", "y"), "b": ()}


def test_a_dependence_is_found_again():
    found, groups = fitted_dependence(np.full(40, 3), lambda value: (value - 0.37) ** 2)
    assert (found, groups) == (pytest.approx(0.37, abs=2e-3), 40)
    assert fitted_dependence(np.array([5] * 29 + [1] * 100), lambda value: value)[1] == 0


def test_views_show_what_they_say():
    picture = np.arange(10 * 20 * 3, dtype=np.uint8).reshape(10, 20, 3)
    seen = read_views(picture, Preprocessing((10, 20)), len(VIEWS))
    np.testing.assert_array_equal(seen[0], picture)
    np.testing.assert_array_equal(seen[1], picture[:, ::-1])
    small = read_views(picture, Preprocessing((8, 16)), len(VIEWS))
    np.testing.assert_array_equal(small[2], picture[1:9, 2:18])
    np.testing.assert_array_equal(small[3], picture[:8, :16])
    np.testing.assert_array_equal(small[6], picture[2:, 4:])
    np.testing.assert_array_equal(small[7:], small[2:7, :, ::-1])


# ---- in Python


def test_python_answers_occurrences(model, pictures):
    pixels, ids = pictures.pixels[:5], ["a", "b", "a", None, float("nan")]
    alone = model.predict(pixels, date="2024-05-05")
    found = model.predict(pixels, together=ids, date="2024-05-05")
    assert len(found) == 4
    for one, place in zip(found[1:], (1, 3, 4), strict=True):
        assert [t.taxon_id for t in one.path] == [t.taxon_id for t in alone[place].path]
        assert one.path[-1].probability == pytest.approx(alone[place].path[-1].probability, abs=1e-5)
    both = [[t.probability for t in each.path] for each in model.predict(pixels[[0, 2]], together=1, date="2024-05-05")]
    assert both == [pytest.approx([t.probability for t in found[0].path], abs=1e-5)]
    assert {each.inputs for each in found} == {("TEMPORAL",)}
    mean = model.predict(pixels[[0, 2]], together="x", pool=MEAN)[0]
    by_hand = [{t.taxon_id: t.probability for t in each.top["family"]} for each in model.predict(pixels[[0, 2]])]
    for taxon in mean.top["family"]:
        assert taxon.probability == pytest.approx(np.mean([each[taxon.taxon_id] for each in by_hand]), abs=1e-5)
    assert model.predict([], together="x") == []


def test_python_pools_views(model, pictures):
    several = model.predict(pictures.pixels[:3], views=2)
    whole, mirrored = (model.predict(each) for each in (pictures.pixels[:3], pictures.pixels[:3, :, ::-1]))
    again = [model.predict(pair, together=1) for pair in zip(pictures.pixels[:3], pictures.pixels[:3, :, ::-1])]
    assert len(several) == len(whole) == len(mirrored) == len(again) == 3
    assert [p.path[-1].probability for p in several] != [p.path[-1].probability for p in whole]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"together": ["a"]}, "together holds 1 values for 2 pictures"),
        ({"together": 1, "pool": "max"}, "pool is 'max'; choose one of evidence, mean"),
        ({"views": 13}, "views is 13; give a number from 1 to 12"),
        ({"views": 0}, "views is 0"),
        ({"views": 2, "consistency": "documented"}, "leave out 'documented'"),
    ],
)
def test_python_refuses(model, pictures, options, said):
    with pytest.raises((UserError, ValueError), match=said):
        model.predict(pictures.pixels[:2], **options)


def test_python_names_what_is_not_finite(model, pictures, monkeypatch):
    monkeypatch.setattr(Pooling, "terms", lambda *_: np.full((2, 2, 3), np.nan))
    with pytest.raises(NotFiniteError, match="picture 0, picture 1"):
        model.predict(pictures.pixels[:2], together=1)


# ---- which pictures belong together


def job(name: str, group: str | None = None, date: str | None = None) -> Job:
    return Job(PictureFile(Path(name), name, name), Observation(date=date), group=group)


def test_a_column_names_occurrences():
    found = by_column([job("1", "x"), job("2"), job("3", "y"), job("4", "x"), job("5", "2")], "id")
    assert [each.picture.name for each in found.jobs] == ["1", "4", "2", "3", "5"]
    assert found.names == ["x", "x", "2", "y", "2"]  # a picture alone has its own name
    assert found.ends == [2, 3, 4, 5]
    assert found.line.endswith("4 occurrences, at most 2 of one; 1 pictures without id are answered by themselves")
    with pytest.raises(UserError, match="--together id: the column is empty"):
        by_column([job("1")], "id")


def times(*seconds: float | None, camera: str | None = None) -> list[Job]:
    start = datetime(2024, 5, 5, 10)
    return [
        job(f"{camera}{n}.jpg", camera, None if s is None else (start + timedelta(seconds=s)).isoformat())
        for n, s in enumerate(seconds)
    ]


def test_a_sequence_ends_at_a_gap_at_another_camera_and_where_the_clock_goes_back():
    found = by_time(times(0, 60, 121, None, 130, 90, 150), 60, exif=False)
    assert found.ends == [2, 4, 5, 7]  # the picture without a time does not end one
    assert found.names[:2] == ["None0.jpg"] * 2
    assert "1 pictures without a time are answered by themselves" in found.line
    assert "clocks go back 1 times, where a new one begins" in found.line
    two = [each for pair in zip(times(0, 5, camera="a"), times(1, 6, camera="b")) for each in pair]
    assert [each.picture.name for each in by_time(two, 60, exif=False).jobs] == ["a0.jpg", "a1.jpg", "b0.jpg", "b1.jpg"]
    assert "2 pictures without a time or camera" in by_time([*two, *times(3, 4)], 60, exif=False).line
    long = by_time(times(*range(10_000)), 1, exif=False)
    assert long.ends == [10_000]
    assert "at most 10,000 of one" in long.line
    assert by_time(times(0, 0, 0.0), 0, exif=False).ends == [3]
    for gap in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="--sequence-gap is"):
            by_time(times(0), gap, exif=False)
    with pytest.raises(UserError, match="no picture has a time"):
        by_time([job("1", date="2024-05-05"), job("2", date="yesterday")], 60, exif=False)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 300)), min_size=1), st.integers(0, 100))
def test_no_sequence_has_a_gap_or_two_cameras(drawn, gap):
    jobs = [
        job(f"{n}", camera, None if s is None else f"2024-05-05T10:{s // 60:02}:{s % 60:02}")
        for n, (camera, s) in enumerate(drawn)
    ]
    if all(s is None for _, s in drawn):
        return
    found = by_time(jobs, gap, exif=False)
    assert sorted(each.picture.name for each in found.jobs) == sorted(each.picture.name for each in jobs)
    for start, end in zip([0, *found.ends], found.ends):
        some = [drawn[int(each.picture.name)] for each in found.jobs[start:end]]
        assert len({camera for camera, _ in some}) == 1
        if len(some) > 1:
            assert all(0 <= b - a <= gap for (_, a), (_, b) in itertools.pairwise(some))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-05T10:20:30", datetime(2024, 5, 5, 10, 20, 30)),
        ("2024:05:05 10:20:30+02:00", datetime(2024, 5, 5, 8, 20, 30)),
        ("2024-05-05T10:20:30/2024-05-05T10:21:00", datetime(2024, 5, 5, 10, 20, 30)),
        ("5 May 2024 2:20 PM", datetime(2024, 5, 5, 14, 20)),
        ("2024-05-05", None),
        ("2024-05", None),
        ("soon", None),
    ],
)
def test_moments(text, expected):
    assert instant(text) == expected


# ---- the command line


def table(*rows: str) -> str:
    Path("t.csv").write_text("\n".join(("file,id,date", *rows)) + "\n")
    return "t.csv"


def rounded(row: dict[str, str]) -> dict[str, str]:
    return {key: re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.3f}", text) for key, text in row.items()}


def test_predict_answers_occurrences_and_pictures(shared, trained, model, capsys):
    meta = table("0.png,a,2024-05-05", "1.png,b,", "3.png,a,2024-05-05", "broken.jpg,b,", "4.png,c,")
    options = [trained, "photos", "--meta", meta, "--together", "id", "--min-confidence", "0"]
    result = run(capsys, *options, "--out", "p.csv", "--gallery", "g.html")
    assert result.status == 0
    assert "9 pictures or boxes of 7 occurrences, at most 2 of one; 4 pictures without id" in result.out
    assert "7 occurrences answered together: 7 to species; pictures are in p.csv.pictures.csv" in result.out
    rows, of_pictures = read("p.csv"), read("p.csv.pictures.csv")
    assert [(row["file"][7:], row["occurrence"], row["pictures"]) for row in rows[:3]] == [
        ("0.png", "a", "2"),
        ("1.png", "b", "1"),  # the other cannot be read
        ("2.png", "photos/2.png", "1"),
    ]
    assert [row["file"][7:] for row in of_pictures[:3]] == ["0.png", "3.png", "1.png"]
    assert len(of_pictures) == 8
    whole = run(capsys, trained, "photos", "--meta", meta, "--min-confidence", "0", "--out", "single.csv")
    assert whole.status == 0
    single = {row["file"]: row for row in read("single.csv")}
    for row in of_pictures:
        alone = {**single[row["file"]], "occurrence": row["occurrence"], "pictures": row["pictures"]}
        assert rounded(alone) == rounded(row)  # batches differ in the last digit
    paths = ["photos/0.png", "photos/3.png"]
    expected = model.predict(paths, together="a", date="2024-05-05", min_confidence=0)[0]
    assert rows[0]["answer_name"] == expected.answer.name
    assert float(rows[0]["answer_probability"]) == pytest.approx(expected.answer.probability, abs=1e-4)
    assert "2 pictures of a" in Path("g.html").read_text()
    again = run(capsys, *options, "--out", "p.csv", "--gallery", "g.html")
    assert "is complete" in again.out
    assert run(capsys, *options, "--pool", "mean", "--out", "p.csv").status == 2
    for name in ("p.jsonl", "p.parquet"):
        assert run(capsys, *options, "--pool", "mean", "--views", "2", "--out", name).status == 0
    lines = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    assert [(line["occurrence"], line["pictures"]) for line in lines[:2]] == [("a", 2), ("b", 1)]
    frame = pl.read_parquet("p.parquet")
    assert frame["pictures"].to_list()[:2] == [2, 1]
    assert frame["answer_probability"][0] == pytest.approx(lines[0]["answer"]["probability"], abs=1e-5)
    assert pl.read_parquet("p.parquet.pictures.parquet").height == 8
    printed = run(capsys, *options)
    assert "0.png and 1 more" in printed.out


def test_predict_goes_on_at_the_end_of_an_occurrence(shared, trained, capsys, monkeypatch):
    monkeypatch.setattr(occurrences, "BATCHES", 0)
    meta = table(*(f"{number}.png,{number // 3}," for number in range(8)))
    options = [trained, "photos", "--meta", meta, "--together", "id", "--out"]
    assert run(capsys, *options, "whole.csv").status == 0
    through, calls = predicting.over_files, list[int]()

    def stopped(model, forward, jobs, *others, **more):
        calls.append(len(jobs))
        yield from through(model, forward, jobs, *others, **more)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(occurrences, "over_files", stopped)
    assert run(capsys, *options, "p.csv").status == 130
    assert calls == [3, 3]
    result = run(capsys, *options, "p.csv")
    assert "going on after 3 of 9 pictures" in result.out
    for name in ("", ".pictures.csv", ".unreadable.csv"):
        assert Path(f"p.csv{name}").read_bytes() == Path(f"whole.csv{name}").read_bytes()


def test_sequences_by_the_times_of_cameras(shared, trained, capsys):
    for number, second in enumerate((0, 20, 100)):
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = (
            f"2024:05:05 10:{second // 60:02}:{second % 60:02}"
        )
        Image.open(f"photos/{number}.png").save(f"photos/a{number}.jpg", exif=exif)
        os.remove(f"photos/{number}.png")
    result = run(capsys, trained, "photos", "--sequence-gap", "30", "--out", "p.csv")
    assert "9 pictures or boxes of 8 sequences, at most 2 of one; 6 pictures without a time" in result.out
    assert sorted(row["pictures"] for row in read("p.csv")) == [*["1"] * 6, "2"]
    none = run(capsys, trained, "photos", "--sequence-gap", "30", "--no-exif")
    assert none.status == 2
    assert "no picture has a time" in none.err


def test_boxes_of_an_occurrence_are_pooled(shared, trained, capsys):
    entries = [
        {"file": f"{n}.png", "detections": [{"category": "1", "conf": 0.9, "bbox": [0.1, 0.1, 0.5, 0.5]}] * 2}
        for n in range(3)
    ]
    Path("b.json").write_text(json.dumps({"detection_categories": {"1": "animal"}, "images": entries}))
    meta = table("0.png,a,", "1.png,a,", "2.png,b,")
    options = [trained, "photos", "--meta", meta, "--together", "id", "--boxes", "b.json"]
    assert "give --without-box skip" in run(capsys, *options).err
    result = run(capsys, *options, "--without-box", "skip", "--out", "p.csv")
    assert result.status == 0
    assert [(row["occurrence"], row["pictures"], row["box"]) for row in read("p.csv")] == [
        ("a", "4", ""),
        ("b", "2", ""),
    ]
    assert [row["box"] for row in read("p.csv.pictures.csv")] == ["1", "2"] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--together", "id"], "--together names a column of the table --meta; give both"),
        (["--sequence-gap", "5", "--camera", "c"], "--camera names a column of the table --meta"),
        (["--camera", "c", "--meta", "t.csv"], "--camera is for --sequence-gap"),
        (
            ["--sequence-gap", "5", "--shard", "1/2"],
            "--shard takes pictures one by one; leave it or --sequence-gap out",
        ),
        (["--views", "2", "--queue", "3"], "--queue is of single pictures or boxes; leave it or --views out"),
        (["--views", "2", "--coverage", "0.9"], "needs thresholds"),
        (["--pool", "mean"], "--pool is for --together, --sequence-gap and --views; give one of them"),
        (["--views", "99"], "views is 99; give a number from 1 to 12"),
        (["--together", "none", "--meta", "t.csv"], "none"),
    ],
)
def test_predict_refuses(shared, trained, capsys, options, said):
    table("0.png,a,")
    result = run(capsys, trained, "photos", *options)
    assert result.status == 2
    assert said in result.err
    assert result.err.count("\n") == 1
