"""Why an answer ends above the finest rank: each code by an example, and in every output."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.inference import conformal, reasons, sets
from linnaeus_jax.inference.answers import CONSISTENCY, Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import NOT_FINITE, NotFiniteError
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.tools import predict
from tests.inference.conftest import small_taxonomy
from tests.inference.serving_helpers import encoded, serving
from tests.inference.test_sets import five
from tests.inference.trees import Case, cases

#: null and four species, null and two genera, null and two families
TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")
SURE = {"taxa_L10": [0, 9, 0, 0, 0], "taxa_L20": [0, 9, 0], "taxa_L30": [0, 9, 0]}
#: which of two species of one genus
UNDECIDED = {"taxa_L10": [0, 9, 9, 0, 0], "taxa_L20": [0, 9, 0], "taxa_L30": [0, 9, 0]}
NOTHING = {"taxa_L10": [-9, 0, 0, 1, -9], "taxa_L20": [-9, 0, 0], "taxa_L30": [-9, 0, 0]}
#: a genus whose species is null; ranks that contradict each other; null at every rank
ENDS = {"taxa_L10": [30, 0, 0, 0, 0], "taxa_L20": [0, 60, 0], "taxa_L30": [0, 60, 0]}
APART = {"taxa_L10": [0, 0, 0, 9, 0], "taxa_L20": [0, 9, 0], "taxa_L30": [0, 9, 0]}
UNKNOWN = {"taxa_L10": [30, 0, 0, 0, 0], "taxa_L20": [30, 0, 0], "taxa_L30": [30, 0, 0]}


def answered(logits: dict[str, Any], known: Calibration | None = None, **options) -> Prediction:
    taxonomy = small_taxonomy()
    answers = Answers(taxonomy, known or Calibration(dict.fromkeys(TASKS, 1.0), dict.fromkeys(TASKS, 1.0)))
    (one,) = answers({task: np.array([z], np.float32) for task, z in logits.items()}, answers.options(**options))
    return one


def told(one: Prediction) -> tuple[str, str, str]:
    return one.answer.rank if one.answer else "", one.reason, one.reason_text


def test_the_finest_rank_has_none():
    assert told(answered(SURE)) == ("species", "", "")


def test_below_the_least_probability():
    expected = "no taxon below this genus is at least 0.8 probable"
    assert told(answered(UNDECIDED, min_confidence=0.8)) == ("genus", "low_probability", expected)
    assert told(answered(NOTHING, min_confidence=0.7)) == ("", "low_probability", "no taxon is at least 0.7 probable")


def test_below_what_a_coverage_needs():
    ones = dict.fromkeys(TASKS, 1.0)
    known = Calibration(ones, ones, coverage={"90": 0.8}, coverage_rows=99)
    expected = "no taxon below this genus is probable enough for a coverage of 0.9"
    assert told(answered(UNDECIDED, known, coverage=0.9)) == ("genus", "coverage", expected)


@pytest.mark.parametrize("consistency", CONSISTENCY)
def test_what_it_looks_like_is_not_in_the_list(consistency):
    """Within a genus of which two other species are as probable, and none of the list."""
    logits = {"taxa_L10": [0, 0, 0, 9, 0], "taxa_L20": [0, 5, 5], "taxa_L30": [0, 5, 5]}
    assert answered(logits, min_confidence=0.45).reason == ""
    given = {"restrict": ["Parus"], "min_confidence": 0.6, "consistency": consistency}
    expected = "what it looks most like is not among the taxa that answers are restricted to"
    assert told(answered(logits, **given)) == ("genus", "restricted", expected)
    assert told(answered(UNDECIDED, **given))[1] == "low_probability"  # what it looks like is in the list
    assert told(answered(SURE, **given)) == ("species", "", "")


def test_ranks_that_contradict_each_other():
    expected = "what finer ranks say contradicts the coarser ones"
    assert told(answered(APART, consistency="documented")) == ("genus", "contradiction", expected)


def test_no_class_below():
    """Genus 23 has no species."""
    taxonomy = five()
    tasks = taxonomy.tasks
    answers = Answers(taxonomy, Calibration(dict.fromkeys(tasks, 1.0), dict.fromkeys(tasks, 1.0)))
    logits = {tasks[0]: [0] * 5, tasks[1]: [0, 0, 20], tasks[2]: [0, 20]}
    (one,) = answers({task: np.array([z], np.float32) for task, z in logits.items()}, answers.options())
    assert told(one) == ("genus", "no_class_below", "the model has no class below this genus")


def test_it_looks_like_what_is_identified_no_further():
    expected = "it looks most like training pictures that are identified no further"
    for consistency in CONSISTENCY:
        assert told(answered(ENDS, consistency=consistency)) == ("genus", "unidentified", expected)
    expected = "it looks most like training pictures that are not identified"
    assert told(answered(UNKNOWN)) == ("", "unidentified", expected)


def test_outputs_that_are_not_finite():
    with pytest.raises(NotFiniteError) as error:
        answered({**SURE, "taxa_L20": [0, np.nan, 0]})
    assert error.value.reason == "not_finite"
    assert reasons.text("not_finite") == NOT_FINITE


@given(case=cases(rows=6), consistency=st.sampled_from(CONSISTENCY), least=st.floats(0, 1), listed=st.booleans())
@settings(max_examples=80, deadline=None)
def test_exactly_the_answers_above_the_finest_rank_have_one(case: Case, consistency: str, least: float, listed: bool):
    taxonomy = case.taxonomy
    answers = Answers(taxonomy, Calibration(case.temperature, case.temperature))
    restrict = int(taxonomy.classes[taxonomy.tasks[0]][-1]) if listed else None
    options = answers.options(consistency=consistency, min_confidence=least, restrict=restrict)
    for one in answers(case.logits, options):
        finest = one.answer is not None and one.answer == one.path[-1]
        assert (one.reason == "") == (one.reason_text == "") == finest
        assert one.reason in reasons.CODES
        assert (one.reason == "restricted") <= listed
        assert "{" not in one.reason_text


# ---- in every output


@pytest.fixture
def measured(bundle, tmp_path) -> str:
    """A bundle whose sets hold all taxa that have a share of a tenth."""
    levels = {str(level): 0.9998 for level in conformal.LEVELS}
    known = dataclasses.replace(
        bundle.calibration, coverage=levels, coverage_rows=99, sets=dict.fromkeys(levels, 0.1), set_rows=99
    )
    write_bundle(dataclasses.replace(bundle, calibration=known), tmp_path / "measured")
    return str(tmp_path / "measured")


def rows_of(out: Path) -> list[dict]:
    if out.suffix == ".parquet":
        return pl.read_parquet(out).to_dicts()
    if out.suffix == ".jsonl":
        return [json.loads(line) for line in out.read_text().splitlines()]
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_files_hold_sets_and_reasons(shared, measured, model, capsys, suffix):
    out = shared / f"p.{suffix}"
    asked = [measured, "photos", "--out", str(out), "--coverage", "0.9"]
    assert predict.main([*asked, "--as", "sets", "--gallery", "look.html"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "above the finest rank or unknown: 8 coverage" in said
    rows = rows_of(out)
    answers = Answers(model.bundle.taxonomy, dataclasses.replace(model.bundle.calibration))
    leaves = answers.leaves
    sizes = []
    for row in rows:
        assert row["reason"] == "coverage"
        assert row["reason_text"] == "no taxon is probable enough for a coverage of 0.9"
        taxa = row["set"] if suffix == "jsonl" else json.loads(row["set"])
        listed = [(taxon["taxon_id"], taxon["probability"]) if suffix == "jsonl" else taxon[1::2] for taxon in taxa]
        places = [answers.taxonomy.find([number])[0] for number, _ in listed]
        start = dict(zip(answers.taxonomy.tasks, leaves._start))
        sizes.append(sum(int(leaves.below[start[task] + index]) for task, index in places))
        assert int(row["set_size"]) == sizes[-1] >= 1
        assert [p for _, p in listed] == sorted((p for _, p in listed), reverse=True)
    assert max(sizes) > 1
    assert f"sets for a coverage of 0.9 hold {sum(sizes) / 8:.1f} taxa on average" in said
    page = Path("look.html").read_text()
    assert page.count('<p class="set">set: ') == 8
    assert page.count("no taxon is probable enough for a coverage of 0.9") == 8
    assert predict.main([*asked, "--as", "sets", "--gallery", "look.html"]) == 0
    assert "is complete" in capsys.readouterr().out
    assert predict.main(asked) == 2
    assert 'as was "sets", now null' in capsys.readouterr().err


def test_answers_without_sets_have_no_such_columns(shared, measured):
    assert predict.main([measured, "photos", "--out", "p.csv", "--coverage", "0.9"]) == 0
    assert predict.main([measured, "photos", "--out", "q.csv", "--coverage", "0.9", "--as", "answers"]) == 0
    assert Path("p.csv").read_bytes() == Path("q.csv").read_bytes()
    assert not {"set", "set_size"} & rows_of(Path("p.csv"))[0].keys()


def test_lines_of_earlier_versions_are_not_gone_on_with(shared, trained, capsys):
    assert predict.main([trained, "photos", "--out", "p.csv"]) == 0
    about = json.loads(Path("p.csv.about.json").read_text())
    del about["made_with"]["reasons"]
    Path("p.csv.about.json").write_text(json.dumps(about))
    capsys.readouterr()
    assert predict.main([trained, "photos", "--out", "p.csv"]) == 2
    assert "reasons was null, now true" in capsys.readouterr().err


def test_sets_are_printed(shared, measured, trained, capsys):
    assert predict.main([measured, "photos", "--coverage", "0.9", "--as", "sets"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("set: ") == 8
    assert predict.main([trained, "photos", "--as", "sets"]) == 2
    assert (
        capsys.readouterr().err.strip().endswith("--as sets needs --coverage, such as 0.9; give it, or leave out --as")
    )
    for coverage in ("0", "1", "1.5", "nan"):
        assert predict.main([measured, "photos", "--as", "sets", "--coverage", coverage]) == 2
        assert "give a share from 0.5 to 0.99 in steps of 0.01" in capsys.readouterr().err


@pytest.mark.slow
def test_the_server_gives_sets_and_reasons(model, bundle, pictures):
    known = dataclasses.replace(
        bundle.calibration, coverage={"90": 0.9998}, coverage_rows=9, sets={"90": 0.1}, set_rows=9
    )
    fitted = Model(dataclasses.replace(bundle, calibration=known), buckets=(2, 8))
    content = encoded(pictures.pixels[0])
    with serving(fitted) as url, httpx.Client(base_url=url, timeout=60) as client:

        def ask(**data: str) -> httpx.Response:
            return client.post("/predict", files=[("images", ("a.png", content))], data=data)

        (one,) = ask(coverage="0.9", as_sets="true").json()["predictions"]
        expected = fitted.predict(pictures.pixels[0], coverage=0.9, as_sets=True)[0]
        assert (one["reason"], one["reason_text"]) == (expected.reason, expected.reason_text)
        assert [taxon["taxon_id"] for taxon in one["set"]] == [taxon.taxon_id for taxon in expected.set or ()]
        assert one["set_size"] == expected.set_size
        (plain,) = ask(coverage="0.9").json()["predictions"]
        assert "set" not in plain
        assert plain["reason"] == "coverage"
        refused = ask(as_sets="true")
        assert refused.status_code == 422
        assert "sets of taxa are made for a coverage" in refused.json()["detail"]
        large = client.post(
            "/predict", files=[("images", ("a.png", content))], data={"components": '{"TEMPORAL": [3e38, 3e38]}'}
        )
        assert (large.status_code, large.json()["reason"]) == (422, "not_finite")


def test_sets_of_the_api_are_taxa(model, bundle, pictures):
    known = dataclasses.replace(
        bundle.calibration, coverage={"90": 0.9998}, coverage_rows=9, sets={"90": 0.0}, set_rows=9
    )
    answers = Answers(bundle.taxonomy, known)
    logits = {task: np.zeros((1, size), np.float32) for task, size in bundle.taxonomy.tree.num_classes.items()}
    (one,) = answers(logits, answers.options(coverage=0.9, as_sets=True))
    # all four species: the genus of two, the species of a genus of one, and the one without a genus
    assert [(taxon.rank, taxon.name) for taxon in one.set or ()] == [
        ("genus", "Parus"),
        ("species", "Incertae sedis"),
        ("species", "Passer domesticus"),
    ]
    assert one.set_size == 4
    assert sets.Leaves(bundle.taxonomy).below.max() == 2
