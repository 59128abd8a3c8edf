"""Files of predictions: what they hold, and what happens after an interruption."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.predicting import Result
from linnaeus_jax.inference.prediction_files import (
    FORMATS,
    Summary,
    always_names,
    check_format,
    finish,
    finished,
    model_digest,
    remove,
    row_of,
    unfinished,
)
from linnaeus_jax.inference.results import Prediction, Taxon

FAMILY = Taxon("family", 31, "Paridae", "tits", 0.9)
SPECIES = Taxon("species", 11, 'Parus, "major"', "", 0.123456789)
NULL = Taxon("species", 0, "", "", 0.6)
RANKS = ("family", "species")
ABOUT: dict[str, Any] = {"model": "abc", "top_k": 5, "restrict": None}
COLUMNS = (
    "file answer_rank answer_taxon_id answer_name answer_probability family_taxon_id family_name family_probability "
    "species_taxon_id species_name species_probability always_31 inputs metadata_from notes top"
).split()


def prediction(finest: Taxon, answer: Taxon | None) -> Prediction:
    always = (Taxon("family", 31, "", "", 0.9),)
    return Prediction(
        (FAMILY, finest), {"family": (FAMILY,), "species": (NULL, SPECIES)}, answer, always, ("A",), ("é;",)
    )


RESULTS = [
    Result("a.jpg", prediction(SPECIES, FAMILY), "", "exif"),
    Result("bad.jpg", None, "empty file"),
    Result("b.jpg", prediction(NULL, None)),
]


def write(out: Path, results: list[Result], about: dict[str, Any] = ABOUT) -> int:
    """Adds lines as one interrupted process does; returns how many were there."""
    with unfinished(out.with_name(f"{out.name}.unfinished"), out, about) as work:
        before = work.done
        work.add(results)
    return before


def complete(out: Path) -> Summary:
    with unfinished(out.with_name(f"{out.name}.unfinished"), out, ABOUT) as work:
        summary = finish(work, out, ABOUT, RANKS)
    remove(out, finished=False)
    return summary


def check_table(rows: list[dict[str, Any]]) -> None:
    assert [list(row) for row in rows] == [COLUMNS] * 2
    first, second = rows
    assert [first[name] for name in COLUMNS[:4]] == ["a.jpg", "family", 31, "Paridae"]
    assert [first[name] for name in COLUMNS[8:12]] == [11, 'Parus, "major"', 0.123457, 0.9]
    assert [second[name] for name in COLUMNS[:4]] == ["b.jpg", "", 0, "unknown"]
    assert [second[name] for name in COLUMNS[8:11]] == [0, "unknown", 0.6]
    assert (first["inputs"], first["metadata_from"], first["notes"]) == ("A", "exif", "é;")
    top = {"family": [[31, "Paridae", 0.9]], "species": [[0, "unknown", 0.6], [11, 'Parus, "major"', 0.123457]]}
    assert json.loads(first["top"]) == top


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_file_at_the_end(tmp_path, suffix):
    out = tmp_path / "new" / f"p{suffix}"
    assert write(out, RESULTS[:2]) == 0
    assert write(out, RESULTS[2:]) == 2
    summary = complete(out)
    assert (summary.pictures, summary.unreadable, summary.answers) == (3, 1, {"family": 1, "": 1})
    assert (summary.inputs, summary.metadata_from, summary.notes) == ({"A": 2}, {"exif": 1, "": 1}, 2)
    assert finished(out, ABOUT) == summary
    assert (tmp_path / "new" / f"p{suffix}.unreadable.csv").read_text() == "file,reason\nbad.jpg,empty file\n"
    assert sorted(path.name for path in out.parent.iterdir()) == [
        f"p{suffix}",
        f"p{suffix}.about.json",
        f"p{suffix}.unreadable.csv",
    ]
    if suffix == ".parquet":
        check_table(pl.read_parquet(out).fill_null("").to_dicts())
        assert pl.read_parquet_schema(out)["species_taxon_id"] == pl.Int64
    elif suffix == ".csv":
        with out.open(newline="", encoding="utf-8") as file:
            rows = [
                {
                    k: (float(v) if "prob" in k or k == "always_31" else int(v) if k.endswith("_id") else v) if v else v
                    for k, v in row.items()
                }
                for row in csv.DictReader(file)
            ]
        check_table(rows)
    else:
        assert [json.loads(line) for line in out.read_text("utf-8").splitlines()] == [
            json.loads(json.dumps(row_of(result))) for result in (RESULTS[0], RESULTS[2])
        ]


def test_a_line_that_was_cut_is_written_again(tmp_path):
    out = tmp_path / "p.jsonl"
    write(out, RESULTS)
    path = tmp_path / "p.jsonl.unfinished" / "rows.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert write(out, RESULTS[2:]) == 2
    assert path.read_bytes() == whole
    path.write_bytes(whole[:3])
    assert write(out, RESULTS) == 0
    assert path.read_bytes() == whole


def test_other_inputs_are_refused(tmp_path):
    out = tmp_path / "p.csv"
    write(out, RESULTS[:1])
    message = r"p.csv was begun with other inputs: top_k was 5, now 3; give the same command .* --force"
    with pytest.raises(UserError, match=message):
        write(out, RESULTS, ABOUT | {"top_k": 3})
    write(out, RESULTS[1:])
    complete(out)
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


def test_two_processes_do_not_write_one_file(tmp_path):
    out = tmp_path / "p.csv"
    with unfinished(tmp_path / "u", out, ABOUT), pytest.raises(UserError, match="another process is writing"):
        with unfinished(tmp_path / "u", out, ABOUT):
            pass


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_readable_picture_at_all(tmp_path, suffix):
    out = tmp_path / f"p{suffix}"
    write(out, RESULTS[1:2])
    assert complete(out).unreadable == 1
    assert out.exists()


def test_names_of_the_taxa_that_are_always_reported():
    def taxon(rank: str, name: str) -> dict[str, Any]:
        return {"rank": rank, "taxon_id": 7, "name": name}

    assert always_names({"always": [taxon("genus", "Bufo"), taxon("species", "Bufo"), taxon("species", "")]}) == [
        "Bufo_genus",
        "Bufo_species",
        "7",
    ]


def test_formats():
    assert check_format(Path("x.CSV")) == ".csv"
    with pytest.raises(UserError, match=r"x.xlsx must end in one of .csv, .jsonl, .parquet"):
        check_format(Path("x.xlsx"))


def test_digest_of_a_model(bundle, tmp_path):
    import dataclasses

    def of(text: str, **changes: Any) -> str:
        (tmp_path / "bundle.json").write_text(text)
        return model_digest(dataclasses.replace(bundle, source=tmp_path, **changes))

    assert of("a") == of("a") != of("b")
    assert of("a") != of("a", facts={"step": 8})
