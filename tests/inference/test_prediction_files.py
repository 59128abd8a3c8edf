"""Files of predictions: what they hold, and what happens after an interruption."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.answers import Answered, Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.files.prediction_files import FORMATS, check_format, model_digest, unfinished
from linnaeus_jax.inference.files.prediction_lines import JsonLines, lines_for
from linnaeus_jax.inference.files.unfinished import UNFINISHED, UNREADABLE, Summary, finished, remove, sidecar_path
from tests.inference.conftest import small_taxonomy

RANKS = ("family", "genus", "species")
ABOUT: dict[str, Any] = {"model": "abc", "top_k": 5, "restrict": None}
COLUMNS = (
    "file answer_rank answer_taxon_id answer_name answer_probability family_taxon_id family_name family_probability "
    "genus_taxon_id genus_name genus_probability species_taxon_id species_name species_probability always_22_species "
    "always_22_genus reason reason_text inputs metadata_from notes top"
).split()


@pytest.fixture(scope="module")
def case() -> SimpleNamespace:
    """Three pictures, the second of which cannot be read, and names that are hard to write."""
    plain = small_taxonomy()
    known = plain.names.to_json()
    known["taxa_L10"]["11"] = {"name": 'Parus, "major"', "common_name": "é\n"}
    del known["taxa_L20"]["22"]
    classes = {**plain.classes, "taxa_L10": np.array([0, 11, 12, 13, 22])}
    del known["taxa_L10"]["14"]
    taxonomy = Taxonomy(plain.tree, TaxonNames.from_json(classes, known))
    answers = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    options = answers.options(top_k=2, always_report=["22"])
    logits = {
        "taxa_L10": np.array([[0, 9, 0, 0, 0], [9, 0, 0, 0, 0]], np.float32),
        "taxa_L20": np.array([[0, 9, 0], [9, 0, 0]], np.float32),
        "taxa_L30": np.array([[0, 9, 0], [9, 0, 0]], np.float32),
    }
    answered = answers.answered(logits, options)
    reasons = ["", "empty, file", ""]
    part = Part(["a,.jpg", "bad.jpg", "b.jpg"], reasons, answered, [("A", "B"), ()], [("é;", '"'), ()], ["exif", ""])
    return SimpleNamespace(answers=answers, options=options, part=part, taxonomy=taxonomy)


def only(part: Part, first: int) -> Part:
    """One picture of the case."""
    rows = slice(first // 2, first // 2 + 1)
    if part.reasons[first]:
        return Part(part.pictures[first : first + 1], part.reasons[first : first + 1])
    one = part.answered
    assert one is not None
    top = {task: (index[rows], p[rows]) for task, (index, p) in one.top.items()}
    names = ("best", "probability", "given_up", "answer", "always", "reason", "sets", "set_size")
    answered = Answered(top=top, **{name: getattr(one, name)[rows] for name in names})
    lists = (part.inputs[rows], part.notes[rows], part.metadata_from[rows])
    return Part(part.pictures[first : first + 1], [""], answered, *lists)


def write(case: SimpleNamespace, out: Path, *pictures: int, about: dict[str, Any] = ABOUT) -> int:
    """Adds pictures as one interrupted process does; returns how many were there."""
    lines = lines_for(out.suffix, case.taxonomy, case.options)
    with unfinished(sidecar_path(out, UNFINISHED), out, about, lines) as work:
        before = work.summary.pictures
        for picture in pictures:
            work.add(only(case.part, picture))
    return before


def complete(case: SimpleNamespace, out: Path) -> Summary:
    with unfinished(
        sidecar_path(out, UNFINISHED), out, ABOUT, lines_for(out.suffix, case.taxonomy, case.options)
    ) as work:
        work.finish(out, ABOUT)
    remove(out, finished=False)
    return work.summary


def check_table(rows: list[dict[str, Any]], case: SimpleNamespace) -> None:
    assert [list(row) for row in rows] == [COLUMNS] * 2
    first, second = rows
    species = case.part.predictions(case.answers, case.options)[0].path[-1]
    assert [first[name] for name in COLUMNS[:4]] == ["a,.jpg", "species", 11, 'Parus, "major"']
    assert [first[name] for name in COLUMNS[8:10]] == [21, "Parus"]
    assert first["species_probability"] == pytest.approx(species.probability, rel=1e-5)
    assert [second[name] for name in COLUMNS[:4]] == ["b.jpg", "", 0, "unknown"]
    assert [second[name] for name in COLUMNS[11:13]] == [0, "unknown"]
    assert second["answer_probability"] in (None, "")
    assert (first["reason"], first["reason_text"]) == ("", "")
    reason = "unidentified", "it looks most like training pictures that are not identified"
    assert (second["reason"], second["reason_text"]) == reason
    assert (first["inputs"], first["metadata_from"], first["notes"]) == ("A B", "exif", 'é;; "')
    assert 0 < first["always_22_genus"] < 0.1
    top = json.loads(first["top"])
    assert list(top) == list(RANKS)
    assert top["species"][0][:2] == [11, 'Parus, "major"']
    assert [len(taxa) for taxa in top.values()] == [2, 2, 2]


def number(name: str, text: str) -> Any:
    """A cell of CSV as Parquet has it."""
    if "prob" in name or name.startswith("always"):
        return float(text) if text else None
    return int(text) if name.endswith("_id") else text


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_file_at_the_end(tmp_path, suffix, case):
    out = tmp_path / "new" / f"p{suffix}"
    assert write(case, out, 0, 1) == 0
    assert write(case, out, 2) == 2
    summary = complete(case, out)
    assert (summary.pictures, summary.unreadable, summary.answers) == (3, 1, {"species": 1, "": 1})
    assert (summary.inputs, summary.metadata_from, summary.notes) == ({"A": 1, "B": 1}, {"exif": 1, "": 1}, 1)
    assert finished(out, ABOUT) == summary
    assert sidecar_path(out, UNREADABLE).read_text() == 'file,reason\nbad.jpg,"empty, file"\n'
    assert sorted(path.name for path in out.parent.iterdir()) == [
        f"p{suffix}",
        f"p{suffix}.about.json",
        f"p{suffix}.unreadable.csv",
    ]
    if suffix == ".parquet":
        check_table(pl.read_parquet(out).to_dicts(), case)
        assert pl.read_parquet_schema(out)["species_taxon_id"] == pl.Int64
    elif suffix == ".csv":
        with out.open(newline="", encoding="utf-8") as file:
            check_table(
                [{name: number(name, text) for name, text in row.items()} for row in csv.DictReader(file)], case
            )
    else:
        rows = [row for row in case.part.rows(case.answers, case.options) if "no_answer" not in row]
        assert [json.loads(line) for line in out.read_text("utf-8").splitlines()] == rows


@pytest.mark.parametrize("consistency", ["path", "documented"])
def test_lines_of_json_are_the_predictions(consistency, bundle):
    answers = Answers(bundle.taxonomy, bundle.calibration)
    restrict = ["Parus minor", "Passer"] if consistency == "documented" else None
    options = answers.options(top_k=3, consistency=consistency, restrict=restrict, always_report=[12, 32])
    rng = np.random.default_rng(3)
    logits = {
        task: rng.normal(0, 2, (40, len(ids))).astype(np.float32) for task, ids in bundle.taxonomy.classes.items()
    }
    empty: list[tuple[str, ...]] = [()] * 40
    names = [f"{number}.jpg" for number in range(40)]
    part = Part(names, [""] * 40, answers.answered(logits, options), empty, empty, [""] * 40)
    lines = JsonLines(bundle.taxonomy, options).lines(part)
    expected = [
        {"file": name, "metadata_from": "", **prediction.to_json()}
        for name, prediction in zip(names, answers(logits, options, empty, empty), strict=True)
    ]
    assert [json.loads(line) for line in lines] == expected


def test_what_was_cut_is_written_again(tmp_path, case):
    out = tmp_path / "p.jsonl"
    write(case, out, 0, 1, 2)
    rows, log = (sidecar_path(out, UNFINISHED) / name for name in ("rows", "progress.jsonl"))
    whole, known = rows.read_bytes(), log.read_bytes()
    for cut in (-7, -1):  # killed while it was written
        log.write_bytes(known[:cut])
        assert write(case, out, 2) == 2
        assert (rows.read_bytes(), log.read_bytes()) == (whole, known)
    rows.write_bytes(whole[:-7])  # the machine lost power, the disk what was written last
    assert write(case, out, 2) == 2
    assert (rows.read_bytes(), log.read_bytes()) == (whole, known)
    rows.write_bytes(b"")
    assert write(case, out, 0, 1, 2) == 0
    assert (rows.read_bytes(), log.read_bytes()) == (whole, known)


def test_pictures_of_all_processes_are_remembered(tmp_path, case):
    found = set()
    for name, sessions in (("whole", [(0, 1, 2)]), ("parts", [(0, 1), (2,)])):
        out = tmp_path / f"{name}.jsonl"
        for pictures in sessions:
            with unfinished(tmp_path / name, out, ABOUT, lines_for(".jsonl", case.taxonomy, case.options)) as work:
                for picture in pictures:
                    work.add(dataclasses.replace(only(case.part, picture), stamps=[f"of {picture}"]))
                work.finish(out, ABOUT)
        found.add(json.loads(sidecar_path(out, "about.json").read_text())["stamps"])
    assert len(found) == 1


def test_other_inputs_are_refused(tmp_path, case):
    out = tmp_path / "p.csv"
    write(case, out, 0)
    message = r"p.csv was begun with other inputs: top_k was 5, now 3; rerun the command to resume.* --force"
    with pytest.raises(UserError, match=message):
        write(case, out, 1, about=ABOUT | {"top_k": 3})
    write(case, out, 2)
    complete(case, out)
    with pytest.raises(UserError, match=r"model was \"abc\", now \"x+\.\.\.;"):
        finished(out, ABOUT | {"model": "x" * 99})
    remove(out, finished=True)
    assert list(tmp_path.iterdir()) == []
    assert finished(out, ABOUT) is None


def test_a_foreign_file_is_not_touched(tmp_path):
    out = tmp_path / "p.csv"
    out.write_text("mine\n")
    with pytest.raises(UserError, match=r"p.csv exists already; choose another --out, or replace it with --force"):
        finished(out, ABOUT)
    (tmp_path / "p.csv.about.json").write_text("{")
    with pytest.raises(UserError, match=r"p.csv.about.json is damaged"):
        finished(out, ABOUT)
    assert out.read_text() == "mine\n"


def test_two_processes_do_not_write_one_file(tmp_path, case):
    out = tmp_path / "p.csv"
    lines = lines_for(".csv", case.taxonomy, case.options)
    with unfinished(tmp_path / "u", out, ABOUT, lines), pytest.raises(UserError, match="another process is writing"):
        with unfinished(tmp_path / "u", out, ABOUT, lines):
            pass
    folder = sidecar_path(out, "unfinished")
    with unfinished(folder, out, ABOUT, lines), pytest.raises(UserError, match="another process is writing"):
        remove(out, finished=True)  # --force
    assert folder.exists()
    remove(out, finished=True)
    assert not folder.exists()


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_readable_picture_at_all(tmp_path, suffix, case):
    out = tmp_path / f"p{suffix}"
    write(case, out, 1)
    assert complete(case, out).unreadable == 1
    assert out.exists()
    if suffix == ".parquet":
        assert pl.read_parquet(out).height == 0


def test_formats():
    assert check_format(Path("x.CSV")) == ".csv"
    with pytest.raises(UserError, match=r"x.xlsx must end in one of .csv, .jsonl, .parquet"):
        check_format(Path("x.xlsx"))


def test_digest_of_a_model(bundle, tmp_path):
    def of(text: str, **changes: Any) -> str:
        (tmp_path / "bundle.json").write_text(text)
        return model_digest(dataclasses.replace(bundle, source=tmp_path, **changes))

    assert of("a") == of("a") != of("b")
    assert of("a") != of("a", facts={"step": 8}) != of("a", facts={"step": 8, "weights": "ema"})


@pytest.mark.parametrize("name", ["rows", UNREADABLE])
def test_what_a_power_failure_took_is_written_again(tmp_path, case, name):
    """Files have their length, but the disk holds zeros."""
    out = tmp_path / "p.jsonl"
    write(case, out, 0, 1, 2)
    folder = sidecar_path(out, UNFINISHED)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / name).write_bytes(whole[name][:-5] + bytes(5))
    known = write(case, out)
    assert known < 3
    write(case, out, *range(known, 3))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_unfinished_predictions_of_an_earlier_version_go_on(tmp_path, case):
    out = tmp_path / "p.jsonl"
    write(case, out, 0, 1)
    log = sidecar_path(out, UNFINISHED) / "progress.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        del entry["sha256"]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert write(case, out, 2) == 2
