"""Occurrences as a prior of places and dates: counts, smoothing, and what it does to answers."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.demo import as_files
from linnaeus_jax.demo.generate import log_joint, places, simulate, species_counts, validation_rows
from linnaeus_jax.demo.species import RANKS, SPECIES, taxon_names
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.prior import COARSER, PRIOR, SEEN, Grid, Prior, read_prior
from linnaeus_jax.inference.quality.explaining import explain
from linnaeus_jax.inference.quality.prior_fitting import draw_map, prior_of
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.tools import build_dataset
from linnaeus_jax.tools import prior as tool
from tests.building.helpers import write_pictures
from tests.inference.conftest import small_taxonomy
from tests.inference.test_predict_tool import read, run

TITS = [
    ("Parus major", 52.0, 13.0, 5, 30),
    ("Parus major", 52.0, 13.0, 0, 4),
    ("Parus minor", 36.0, 138.0, 5, 30),
    ("Passer domesticus", 52.0, 13.0, 1, 20),
    ("Passer domesticus", 36.0, 138.0, 7, 20),
]


def occurrences(rows: list[tuple[str, float, float, int, int]] = TITS) -> pl.DataFrame:
    """Species, latitude, longitude, month and how often."""
    each = [row[:4] for row in rows for _ in range(row[4])]
    genus = [name.split()[0] for name, *_ in each]
    columns = {"name_L10": [row[0] for row in each], "name_L20": genus}
    columns["name_L30"] = ["Passeridae" if name == "Passer" else "Paridae" for name in genus]
    numbers = {"latitude": [row[1] for row in each], "longitude": [row[2] for row in each]}
    months = [str(row[3]) if row[3] else None for row in each]
    return pl.DataFrame({**columns, **numbers, "month": months})


@pytest.fixture(scope="module")
def tits() -> Prior:
    return prior_of(occurrences(), ("L10", "L20", "L30"), 2.0, 50_000)[0]


def written(folder: Path, frame: pl.DataFrame) -> Path:
    names = {"name_L10": "species", "name_L20": "genus", "name_L30": "family"}
    frame.rename(names).write_csv(folder / "o.csv")
    return folder / "o.csv"


# ---- cells


@given(st.floats(-90, 90), st.floats(-180, 180), st.sampled_from([0.7, 1.0, 2.0, 5.0, 8.0, 30.0]))
@settings(max_examples=200, deadline=None)
def test_a_place_lies_in_its_cell(latitude, longitude, degrees):
    grid = Grid(degrees)
    cell = grid.cells(np.array([latitude]), np.array([longitude]))
    assert 0 <= cell[0] < grid.first[-1]
    west, south, width, height = grid.corners(cell)[0]
    assert south - 1e-9 <= latitude <= south + height + 1e-9
    assert -1e-6 <= (longitude - west) % 360 <= width + 1e-6 or (longitude - west) % 360 > 360 - 1e-6


def test_cells_are_about_equally_large():
    grid = Grid(2.0)
    _, south, width, height = np.deg2rad(grid.corners(np.arange(grid.first[-1])).T)
    area = width * (np.sin(south + height) - np.sin(south))
    assert area.sum() == pytest.approx(4 * np.pi)
    assert np.abs(area / np.median(area) - 1).max() < 0.2


# ---- shares


def smoothed(named: dict[str, np.ndarray], where: np.ndarray, base: dict[str, float], alpha: float) -> dict[str, float]:
    """Shares of taxa with these rows, of the rows of a region."""
    counts = {each: int((mask & where).sum()) for each, mask in named.items()}
    size, total = sum(counts.values()) + alpha, sum(base.values())
    return {each: (counts[each] + alpha * base[each] / total) / size for each in named}


def brute_force(prior: Prior, rows: pl.DataFrame, taxon: str, cell: int, month: int) -> float:
    """The ratio of a species by the definition, counting again and again."""
    large = Grid(prior.degrees * COARSER)
    west, south, width, height = prior.grid.corners(np.array([cell]))[0]
    at = prior.grid.cells(rows["latitude"].to_numpy(), rows["longitude"].to_numpy())
    corners = prior.grid.corners(at)
    of_large = large.cells(corners[:, 1] + corners[:, 3] / 2, corners[:, 0] + corners[:, 2] / 2)
    mine = large.cells(np.array([south + height / 2]), np.array([west + width / 2]))[0]
    months = rows["month"].cast(pl.Int64).fill_null(0).to_numpy()
    every = np.ones(len(at), bool)
    ratio = 1.0
    levels = ["name_L30", "name_L20", "name_L10"]
    lineage = rows.filter(pl.col("name_L10") == taxon).select(levels).row(0)
    within = every
    for level, name in zip(levels, lineage):
        column = rows[level].to_numpy()
        siblings = sorted(set(column[within]))
        named = {each: within & (column == each) for each in siblings}

        count = {each: mask.sum() + SEEN for each, mask in named.items()}
        share = {each: number / sum(count.values()) for each, number in count.items()}
        place, season = share, smoothed(named, months == month, share, prior.alpha)
        for where in (of_large == mine, at == cell):
            finer = smoothed(named, where, place, prior.alpha)
            season = {each: season[each] * finer[each] / place[each] for each in siblings}
            place, season = finer, smoothed(named, where & (months == month), season, prior.alpha)
        ratio *= (season if month else place)[name] / share[name]
        within = named[name]
    return float(np.log(ratio))


def test_shares_are_those_of_the_definition(tits):
    rows = occurrences()
    place = {"here": (52.0, 13.0), "beside": (54.5, 13.0), "far": (-30.0, -60.0)}
    for latitude, longitude in place.values():
        cell = tits.grid.cells(np.array([latitude]), np.array([longitude]))
        for month in (0, 5, 9):
            found = tits.log_ratios(cell, np.array([month]))[0]
            for taxon in ("Parus major", "Parus minor", "Passer domesticus"):
                number = list(tits.names).index(("species", taxon))
                assert found[number] == pytest.approx(brute_force(tits, rows, taxon, int(cell[0]), month), abs=1e-9)


def test_shares_of_species_add_up_to_those_of_their_genus(tits):
    cell = tits.grid.cells(np.array([52.0, 36.0, 80.0]), np.array([13.0, 138.0, 0.0]))
    ratio = np.exp(tits.log_ratios(cell, np.array([5, 5, 0])))
    number = {name: place for place, (_, name) in enumerate(tits.names)}
    counts = np.array([34, 30]) + SEEN
    shares = counts / counts.sum()
    both = ratio[:, [number["Parus major"], number["Parus minor"]]]
    np.testing.assert_allclose(both @ shares, ratio[:, number["Parus"]])


# ---- beside a model


def logits(*rows: tuple[str, float]) -> dict[str, np.ndarray]:
    """Of the small taxonomy; every row knows the genus Parus and leans to a species."""
    taxonomy = small_taxonomy()
    found = {task: np.zeros((len(rows), len(taxonomy.classes[task])), np.float32) for task in taxonomy.tasks}
    for row, (name, size) in enumerate(rows):
        for each, value in ((name, size), ("Parus", 6), ("Paridae", 6)):
            [(task, index)] = taxonomy.find(each)
            found[task][row, index] = value
        found["taxa_L10"][row, [1, 2]] += 4
    return found


BERLIN, TOKYO = Observation(52.1, 13.2, "2024-05-17"), Observation("36", 138, "2023-05")


def test_answers_with_and_without(tits):
    taxonomy = small_taxonomy()
    plain = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    answers = plain.with_prior(tits)
    given = logits(*[("Parus minor", 0.7)] * 4)
    assert answers.prior is not None
    unknown = Observation(91, 13, "2024-05-17")
    ratios = answers.prior.of_observations([BERLIN, TOKYO, unknown, Observation()])
    said = answers({**given, PRIOR: ratios}, answers.options())
    before = plain(given, plain.options())
    assert [each.answer.name for each in before if each.answer] == ["Parus minor"] * 4
    assert [each.answer.name for each in said if each.answer] == ["Parus major", *["Parus minor"] * 3]
    for one, other in zip(said[2:], before[2:]):
        assert dataclasses.replace(one, prior_text=None) == other
        assert one.prior_text == "no place is known: the prior says nothing"
    assert said[0].without_prior == before[0].answer
    words = said[0].prior_text or ""
    assert words.startswith("without place and date species Parus minor (0.")
    times = {name: np.exp(ratios[0, tits.names.index(("species", name))]) for name in ("Parus major", "Parus minor")}
    assert f"Parus major is {times['Parus major']:.2g} times as common there and then as everywhere" in words
    assert f"Parus minor is {times['Parus minor']:.2g} times" in words
    assert said[1].path[-1].probability > before[1].path[-1].probability
    for each in said:
        tops = [sum(taxon.probability for taxon in taxa) for taxa in each.top.values()]
        assert tops == pytest.approx([1.0] * 3)
    # fused by hand: the species of one genus, whose evidence is the same but for the heads of the species
    p = {taxon.name: taxon.probability for taxon in before[0].top["species"]}
    fused = {taxon.name: taxon.probability for taxon in said[0].top["species"]}
    wanted = p["Parus major"] * times["Parus major"] / (p["Parus minor"] * times["Parus minor"])
    assert fused["Parus major"] / fused["Parus minor"] == pytest.approx(wanted)
    none = plain.with_prior(dataclasses.replace(tits, weight=0.0))
    assert none({**given, PRIOR: ratios}, none.options())[0].path == before[0].path


def test_each_row_says_what_it_would_be_without(tits):
    """One is answered by a species, one by its genus alone, and one by nothing."""
    taxonomy = small_taxonomy()
    plain = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    answers = plain.with_prior(tits)
    assert answers.prior is not None
    given = logits(("Parus minor", 0.0), ("Parus minor", 0.7), ("Parus minor", 0.0))
    for z in given.values():
        z[2] = 0
    said = answers({**given, PRIOR: answers.prior.of_observations([BERLIN] * 3)}, answers.options())
    before = plain(given, plain.options())
    assert [each.answer and each.answer.rank for each in before] == ["genus", "species", None]
    assert [each.answer and each.answer.name for each in said[:2]] == ["Parus major"] * 2
    assert [each.without_prior for each in said[:2]] == [each.answer for each in before[:2]]
    assert (said[0].prior_text or "").startswith("without place and date genus Parus (")


def test_a_cut_and_what_is_refused(tits):
    taxonomy = small_taxonomy()
    plain = Answers(taxonomy, Calibration.none(taxonomy.tasks))
    given = logits(("Parus minor", 9.0))
    soft, hard = plain.with_prior(tits), plain.with_prior(tits, cut=0.2)
    for answers, excluded in ((soft, False), (hard, True)):
        assert answers.prior is not None
        [said] = answers({**given, PRIOR: answers.prior.of_observations([BERLIN])}, answers.options(top_k=9))
        minor = next(taxon for taxon in said.top["species"] if taxon.name == "Parus minor")
        assert (minor.probability == 0) is excluded
    for wrong in ({"coverage": 0.9}, {"consistency": "documented"}):
        with pytest.raises(UserError, match="prior"):
            soft.options(**wrong)
    with pytest.raises(UserError, match="none of the model's taxa"):
        plain.with_prior(dataclasses.replace(tits, names=[(rank, "x") for rank, _ in tits.names]))


def test_taxa_that_were_never_seen_are_as_their_genus(tits):
    taxonomy = small_taxonomy()
    few = prior_of(occurrences().filter(pl.col("name_L10") != "Parus minor"), ("L10", "L20", "L30"), 2.0, 1e9)[0]
    answers = Answers(taxonomy, Calibration.none(taxonomy.tasks)).with_prior(few)
    assert answers.prior is not None
    [(task, minor)], [(_, genus)] = taxonomy.find("Parus minor"), taxonomy.find("Parus")
    assert answers.prior.node[task][minor] == answers.prior.node["taxa_L20"][genus] >= 0
    [(_, orphan)] = taxonomy.find("Incertae sedis")
    assert answers.prior.node[task][orphan] == -1
    assert answers.prior.own == {"taxa_L10": 2, "taxa_L20": 2, "taxa_L30": 2}


def test_it_comes_near_the_best_possible_of_the_demo():
    rows = 3000
    seen = simulate(0, rows)
    latitude, longitude = places(seen)
    val = validation_rows(rows)
    train = np.setdiff1d(np.arange(rows), val)
    when, where, _ = seen.valid.T
    names, columns = taxon_names(), {}
    for number, (rank, level) in enumerate(zip(RANKS, ("L10", "L20", "L30", "L40"))):
        columns[f"name_{level}"] = [names[rank][t][0] if t else None for t in seen.taxa[train, number].tolist()]
    for name, values in (("latitude", latitude), ("longitude", longitude)):
        columns[name] = np.where(where, values, np.nan)[train].tolist()
    columns["month"] = [str(m) if ok else None for m, ok in zip(seen.month[train].tolist(), when[train])]
    prior, notes = prior_of(pl.DataFrame(columns), ("L10", "L20", "L30", "L40"), 2.0, 5e4)
    assert any("occurrences have no place and are left out" in text for text in notes)
    judged = val[where[val]]
    looks = [species.look for species in SPECIES]
    same = np.array([[one == other for other in looks] for one in looks])[seen.species[judged]]
    picture = np.where(same, np.log(species_counts(rows)), -np.inf)  # all that a picture can tell
    known = dataclasses.replace(seen, valid=seen.valid & [True, True, False])
    best = np.where(same, log_joint(known)[judged], -np.inf)
    cell = prior.grid.cells(latitude[judged], longitude[judged])
    ratios = prior.log_ratios(cell, np.where(when, seen.month, 0)[judged])
    node = [prior.names.index(("species", names[RANKS[0]][species.taxa[0]][0])) for species in SPECIES]
    right = [
        float((scores.argmax(axis=1) == seen.species[judged]).mean())
        for scores in (picture, picture + ratios[:, node], best)
    ]
    assert right[0] < 0.70
    assert right[2] > 0.85
    assert right[1] > right[2] - 0.04  # 2,000 places are few; 24,000 come within 0.013


# ---- files and the tool


def test_a_file_and_damage(tmp_path, tits):
    tits.save(tmp_path / "p.npz")
    again = read_prior(tmp_path / "p.npz")
    assert list(again.names) == [tuple(name) for name in tits.names]
    cell = np.unique(tits.cell)
    np.testing.assert_array_equal(again.log_ratios(cell, cell * 0 + 5), tits.log_ratios(cell, cell * 0 + 5))
    changes: list[dict[str, Any]] = [
        {"cell": tits.cell - 10**9},
        {"parent": np.arange(len(tits.parent))},
        {"count": tits.count[:-1]},
        {"month": tits.month.astype(np.float64)},
        {"degrees": 1e-9},
        {"names": tits.names[:-1]},
    ]
    for change in changes:
        changed = dataclasses.replace(tits)
        vars(changed).update(change)
        changed.save(tmp_path / "bad.npz")
        with pytest.raises(UserError, match=r"bad\.npz is no prior"):
            read_prior(tmp_path / "bad.npz")
    (tmp_path / "bad.npz").write_bytes((tmp_path / "p.npz").read_bytes()[:200])
    with pytest.raises(UserError, match="is no prior"):
        read_prior(tmp_path / "bad.npz")
    with pytest.raises(UserError, match="does not exist"):
        read_prior(tmp_path / "none.npz")


def test_from_a_table_to_answers(shared, trained, capsys):
    frame = occurrences()
    odd = frame.head(5).with_columns(
        latitude=pl.Series([None, 0.0, 95.0, 52.0, 52.0]), longitude=pl.Series([13.0, 0.0, 13.0, 13.0, 13.0])
    )
    odd = odd.with_columns(name_L10=pl.lit(None), name_L20=pl.lit(None), name_L30=pl.Series(["Paridae"] * 4 + [None]))
    path = written(shared, pl.concat([frame, odd], how="diagonal_relaxed"))
    assert tool.main(["build", "--occurrences", str(path), "--out", "p.npz"]) == 0
    told = capsys.readouterr().out
    assert "105 occurrences of 7 taxa in 2 cells" in told
    assert "1 of 109 occurrences have no taxon" in told
    assert "3 of 109 occurrences have no place" in told
    assert "weight 1, until linnaeus prior fit finds one" in told
    table = "file,latitude,longitude,date\n" + "".join(f"{i}.png,52,13,2024-05-17\n" for i in range(6))
    Path("t.csv").write_text(table)
    options = [trained, "photos", "--meta", "t.csv", "--prior", "p.npz"]
    result = run(capsys, *options, "--out", "a.csv")
    assert result.status == 0
    assert "p.npz: knows 3 of 4 taxa of the rank species; weight 1" in result.out
    assert "so they count twice; linnaeus prior fit finds the right weight" in result.out
    rows = read("a.csv")
    assert all("times as common there and then" in row["prior_text"] for row in rows[:6])
    assert {row["prior_text"] for row in rows[6:]} == {"no place is known: the prior says nothing"}
    assert run(capsys, *options, "--out", "a.jsonl").status == 0
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert [line["prior_text"] for line in lines] == [row["prior_text"] for row in rows]
    run(capsys, trained, "photos", "--meta", "t.csv", "--out", "b.jsonl")
    for line, plain in zip(lines, map(json.loads, Path("b.jsonl").read_text().splitlines())):
        assert "prior_text" not in plain
        if line["file"] < "photos/6":
            assert line["without_prior"] == plain["answer"]
    refused = run(capsys, *options, "--prior-weight", "0.5", "--out", "a.csv")
    assert "a.csv was begun with other inputs: prior was" in refused.err
    for more, message in (
        (["--prior-cut", "2"], "--prior-cut is 2"),
        (["--prior-weight", "-1"], "--prior-weight is -1"),
        (["--prior", "t.csv"], "t.csv is no prior"),
        (["--coverage", "0.9"], "leave out restrict, class_balance, prior"),
    ):
        assert message in run(capsys, *options, *more).err
    assert "give --prior FILE" in run(capsys, trained, "photos", "--prior-cut", "0.1").err
    assert tool.main(["map", "p.npz", "parus major", "--month", "5", "--out", "m.png"]) == 0
    assert Path("m.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UserError, match="has no taxon 'Sus scrofa'"):
        draw_map(read_prior(Path("p.npz")), "Sus scrofa", Path("x.png"))


def test_from_a_download_of_gbif(tmp_path, capsys, monkeypatch):
    archive = as_files.write_demo_files(tmp_path / "gbif", "dwca", rows=150, image_size=8)
    monkeypatch.chdir(tmp_path)
    assert tool.main(["build", "--occurrences", str(archive), "--out", "p.npz", "--cell", "5"]) == 0
    with zipfile.ZipFile(archive) as file:
        name = next(name for name in file.namelist() if name.startswith("occurrence"))
        rows = csv.DictReader(io.StringIO(file.read(name).decode()), delimiter="\t")
        placed = {row["gbifID"] for row in rows if row["decimalLatitude"] and row["decimalLongitude"]}
    prior = read_prior(tmp_path / "p.npz")
    assert abs(int(prior.count.sum()) - len(placed)) <= 3  # a few records cannot be used
    assert {rank for rank, _ in prior.names} >= {"species", "genus", "family"}
    assert "occurrences" in (prior.about or {})


def test_the_model_in_python(model, pictures, tmp_path, tits):
    tits.save(tmp_path / "p.npz")
    given = {"latitude": [52.0, None], "longitude": [13.0, None], "date": "2024-05-17"}
    with_prior = model.predict(list(pictures.pixels[:2]), **given, prior=tmp_path / "p.npz")
    plain = model.predict(list(pictures.pixels[:2]), **given)
    assert [each.prior_text for each in plain] == [None, None]
    assert with_prior[0].without_prior == plain[0].answer
    assert with_prior[1].path == plain[1].path
    assert model.answers.prior is None


def test_a_prior_counts_once_for_an_occurrence(model, pictures, tits):
    located = model.with_prior(tits)
    where: dict[str, Any] = {"latitude": 52.1, "longitude": 13.2, "date": "2024-05-17"}
    pixels = pictures.pixels[:3]
    [alone], [together] = (each.predict(pixels, together=1, **where, top_k=9) for each in (model, located))
    assert located.answers.prior is not None
    ratios = located.answers.prior.of_observations([Observation(*where.values())])
    task = model.bundle.tasks[0]
    (_, major), (_, minor) = model.bundle.taxonomy.find(["Parus major", "Parus minor"])
    times = [located.answers.prior.times(ratios, task, np.array([each]))[0] for each in (major, minor)]
    p, q = ({taxon.name: taxon.probability for taxon in each.top["species"]} for each in (alone, together))
    wanted = p["Parus major"] / p["Parus minor"] * times[0] / times[1]
    assert q["Parus major"] / q["Parus minor"] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("told", [True, False])
def test_the_weight_is_fitted(shared, trained, capsys, tits, told):
    tits.save(Path("p.npz"))
    rng = np.random.default_rng(3)
    names = write_pictures(shared / "set", 60)
    rows = ["picture,species_id,species,genus_id,genus,family_id,family,latitude,longitude,date"]
    for number, name in enumerate(names):
        minor, east = number % 2, (number % 2 if told else rng.integers(2))
        place = ("52,13", "36,138")[east]
        rows.append(
            f"{name},{11 + minor},{('Parus major', 'Parus minor')[minor]},21,Parus,31,Paridae,{place},2024-05-17"
        )
    Path("set.csv").write_text("\n".join(rows))
    built = ["--table", "set.csv", "--pictures", "set", "--out", "built", "--size", "32", "--val", "0.2"]
    assert build_dataset.main(built) == 0
    options = ["--labels", "built/labels.h5", "--images", "built/images.h5"]
    assert tool.main(["fit", "p.npz", trained, *options]) == 0
    assert "by 60 pictures with a place" in capsys.readouterr().out
    found = read_prior(Path("p.npz"))
    assert found.about is not None
    assert found.weight > 0.5 if told else found.weight < 0.3
    assert found.about["nll"] <= found.about["nll_without"]
    assert (found.about["right"] == 1) is told


def test_a_prior_counts_wherever_a_model_is_asked(model, pictures, tits):
    located, pixels = model.with_prior(tits), pictures.pixels[0]
    where: dict[str, Any] = {"latitude": 52.1, "longitude": 13.2, "date": "2024-05-17"}
    options, observation = located.answers.options(), Observation(**where)
    (wanted,) = located.predict(pixels, **where)
    assert wanted.prior_text is not None
    explained = explain(located, pixels, observation, options, grid=2, window=0.6).prediction
    (of_pixels,) = located.predict_pixels(located.read([pixels]), located.bundle.encoder.encode([observation]), options)
    for found in (explained, of_pixels):
        assert found.prior_text == wanted.prior_text
        assert [taxon.probability for taxon in found.path] == pytest.approx(
            [taxon.probability for taxon in wanted.path]
        )
