"""Labels that are probably wrong: confident learning, its list and page, accuracies over folds."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.wrong_labels import label_issues
from linnaeus_jax.inference.wrong_labels.folds import fold_accuracies
from linnaeus_jax.inference.wrong_labels.label_issues import confident_learning, find_label_issues, votes
from linnaeus_jax.inference.wrong_labels.labelled_features import LabelledFeatures, of_data_set
from linnaeus_jax.tools import folds as folds_tool
from linnaeus_jax.tools import label_issues as tool
from tests.building.samples import ROWS, TASKS, identifiers, pixels, write_clean
from tests.inference.chromium import browser
from tests.inference.test_similar_tool import BEYOND

#: rows with a wrong label and what it says: a sister of species 0, and a species of another family for species 2
SISTER, FAR = 12, 17


def features(rows: int = ROWS, width: int = 16) -> np.ndarray:
    """Vectors that tell the six species of `write_clean` apart, and sisters less."""
    rng = np.random.default_rng(0)
    species = np.arange(rows) // 2 % 6
    centre = 4 * np.eye(width)[6 + species // 2] + 3 * np.eye(width)[species]
    return (centre + rng.normal(size=(rows, width))).astype(np.float32)


def write_vectors(folder: Path, ids: list[str], vectors: np.ndarray) -> None:
    """A file as `linnaeus embed` writes it."""
    about = np.array(json.dumps({"width": vectors.shape[1]}))
    taxa: dict[str, Any] = {"ranks": np.zeros(0, "U1"), "taxa": np.zeros((len(ids), 0), "U1")}
    np.savez(folder / "vectors.npz", vectors=vectors, ids=np.array(ids), about=about, **taxa)


@pytest.fixture(scope="module")
def data_set(tmp_path_factory) -> Path:
    """A folder with labels, two of them wrong, pictures, and vectors."""
    folder = tmp_path_factory.mktemp("set")
    write_clean(folder / "labels.h5")
    with h5py.File(folder / "labels.h5", "r+") as file:
        for row, species in ((SISTER, 1), (FAR, 5)):
            for task, first, size in zip(TASKS, (101, 21, 3), (1, 2, 4), strict=True):
                file[task][row] = first + species // size
        del file["occurrence_id"]
    with h5py.File(folder / "images.h5", "w") as file:
        file["images"] = pixels()[:, :, :24]
    write_vectors(folder, identifiers(), features().astype(np.float16))
    return folder


@pytest.fixture(scope="module")
def rows(data_set) -> LabelledFeatures:
    return of_data_set(data_set / "labels.h5", TASKS, (identifiers(), features()))


@pytest.fixture(scope="module")
def found(rows) -> label_issues.LabelIssues:
    return find_label_issues(rows)


def test_wrong_labels_come_first_and_another_family_before_a_sister(rows, found):
    assert found.order[:2].tolist() == [FAR, SISTER]
    assert np.flatnonzero(found.at_issue).tolist() == [SISTER, FAR]
    species, genus, family = (found.ranks[task] for task in TASKS)
    assert rows.names.label(TASKS[0], species.other[SISTER]) == "species 0 [101]"
    assert rows.names.label(TASKS[0], species.other[FAR]) == "species 2 [103]"
    assert np.flatnonzero(genus.issue).tolist() == np.flatnonzero(family.issue).tolist() == [FAR]
    assert found.score[FAR] == species.margin[FAR] - 2 * label_issues.COARSER
    assert found.score[SISTER] == species.margin[SISTER]
    assert genus.joint == [(3, 2, 1)]
    assert species.shares(SISTER).sum() == pytest.approx(1)
    assert species.shares(SISTER).argmax() == 1


def test_a_known_genus_with_an_unknown_species_is_no_issue_and_a_wrong_genus_is(data_set, tmp_path):
    labels = Path(shutil.copy(data_set / "labels.h5", tmp_path / "labels.h5"))
    with h5py.File(labels, "r+") as file:
        file[TASKS[0]][[SISTER, FAR, 20]] = 0
        file[TASKS[1]][30] = 0  # of no genus: its species is judged all the same
    known = of_data_set(labels, TASKS, (identifiers(), features()))
    found = find_label_issues(known)
    assert np.flatnonzero(found.at_issue).tolist() == [FAR]
    assert found.place[[SISTER, FAR, 20, 30]].tolist() == [1, 1, 1, 0]


def test_the_only_picture_of_a_taxon_is_not_judged_there(data_set, tmp_path):
    labels = Path(shutil.copy(data_set / "labels.h5", tmp_path / "labels.h5"))
    with h5py.File(labels, "r+") as file:
        file[TASKS[0]][0] = 999
        file[TASKS[0]][24:26] = 998
        file.create_dataset("occurrence_id", data=[f"o{row // 2}" for row in range(ROWS)], dtype=h5py.string_dtype())
    known = of_data_set(labels, TASKS, (identifiers(), features()))
    assert known.group[24] == known.group[25] != known.group[26]
    found = find_label_issues(known)
    assert found.place[[0, 24, 25, 1]].tolist() == [1, 1, 1, 0]
    assert np.isnan(found.ranks[TASKS[0]].margin[[0, 24, 25]]).all()
    near, cosine = known.nearest(ROWS)
    assert near.shape == (ROWS, ROWS - 1)  # without itself
    np.testing.assert_array_equal(cosine == -2, known.group[near] == known.group[:, None])
    assert (cosine == -2).sum(axis=1).tolist() == [1] * ROWS


def test_doubted_labels_are_left_out_the_second_time(rows, monkeypatch):
    given: list[np.ndarray] = []
    fit = label_issues.fit_ranks

    def recorded(x, label, *args, **options):
        given.append(label)
        return fit(x, label, *args, **options)

    monkeypatch.setattr(label_issues, "fit_ranks", recorded)
    label_issues.probabilities(rows)
    first, second = given
    assert (first >= 0).all()
    assert second[SISTER].tolist() == [-1, *first[SISTER, 1:]]
    assert second[FAR].tolist() == [-1, -1, -1]
    assert (second < 0).sum() < 10


def test_logits_of_a_run_count_the_first_time(rows, monkeypatch):
    logits = {task: np.zeros((ROWS, rows.tree.num_classes[task]), np.float32) for task in TASKS}
    calls: list[int] = []
    fit = label_issues.fit_ranks

    def counted(*args, **options):
        calls.append(1)
        return fit(*args, **options)

    monkeypatch.setattr(label_issues, "fit_ranks", counted)
    label_issues.probabilities(dataclasses.replace(rows, logits=logits))
    assert len(calls) == 1


def test_neighbours_vote_by_how_near_they_are():
    near = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    cosine = np.array([[0.9, 0.85, 0.2], [0.9, 0.9, -2], [0, 0, 0], [-2, -2, -2]])
    label = np.array([0, 1, 0, -1])
    share = votes(near, cosine, label, 2, 2)
    assert share[0, 1] == pytest.approx(1 / (1 + np.exp(-0.05 / label_issues.SHARPNESS)))
    assert share[1].tolist() == [1.0, 0.0]
    assert share[2].tolist() == [0.5, 0.5]
    assert share[3].tolist() == [0.5, 0.5]  # nobody votes


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_the_confident_joint_is_that_of_the_paper(classes, seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.2), 30)
    label = rng.integers(-1, classes, 30)
    found = confident_learning(p, label)
    joint: dict[tuple[int, int], int] = {}
    for row, own in enumerate(label.tolist()):
        if own < 0:
            assert np.isnan(found.margin[row])
            continue
        threshold = {c: np.mean([p[i, c] for i in range(30) if label[i] == c]) for c in set(label.tolist()) - {-1}}
        above = {c: p[row, c] for c, t in threshold.items() if p[row, c] >= t - 1e-12}
        best = max(above, key=above.__getitem__, default=own)
        share = (p[row] - p[row].min()) / (p[row] - p[row].min()).sum()
        issue = best != own and share[best] > label_issues.LIKELY
        assert found.issue[row] == issue
        if issue:
            joint[own, best] = joint.get((own, best), 0) + 1
        assert found.other[row] != own
    assert {(a, b): n for a, b, n in found.joint} == joint
    assert [n for *_, n in found.joint] == sorted(joint.values(), reverse=True)


def run_tool(data_set: Path, out: Path, *more: str) -> int:
    return tool.main([str(data_set), "--features", str(data_set / "vectors.npz"), "--out", str(out), *more])


def test_the_tool_writes_list_json_and_page(data_set, tmp_path, capsys):
    out = tmp_path / "issues"
    assert run_tool(data_set, out, "--most", "1") == 0
    assert "2 at issue" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"label_issues.csv", "label_issues.json", "label_issues.html"}
    with (out / "label_issues.csv").open(newline="") as file:
        far, sister = csv.DictReader(file)
    assert (far["id"], far["given"], far["suggested"]) == (identifiers()[FAR], "species 5 [106]", "species 2 [103]")
    assert (far["differs_at"], sister["differs_at"], sister["correct"]) == ("family", "species", "")
    content = json.loads((out / "label_issues.json").read_text())
    assert content["ranks"]["genus"] == {"judged": ROWS, "at_issue": 1}
    pair = {"rank": "species", "given": "species 1 [102]", "suggested": "species 0 [101]", "rows": 1}
    assert pair in content["pairs"]
    similar = content["issues"][0]["similar"]
    species = {name: row // 2 % 6 for row, name in enumerate(identifiers())}
    assert [species[name] for name in similar["suggested"]] == [2, 2, 2]
    assert identifiers()[FAR] not in similar["given"]
    page = (out / "label_issues.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 7  # of one row, itself and three of each taxon
    assert "the worst 1 of 2" in page
    assert "another family?" in page
    assert 'tabindex="0"' in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_a_list_that_people_have_written_into_is_kept(data_set, tmp_path, capsys):
    out = tmp_path / "issues"
    assert run_tool(data_set, out) == 0
    assert run_tool(data_set, out) == 0  # nothing is in it
    path = out / "label_issues.csv"
    path.write_text(path.read_text().replace(",,", ",exclude,", 1))
    kept = path.read_text()
    capsys.readouterr()
    assert run_tool(data_set, out) == 2
    assert capsys.readouterr().err.strip() == f"{path} has corrections; give another --out, or --force to replace it"
    assert path.read_text() == kept
    assert run_tool(data_set, out, "--force") == 0
    assert path.read_text() != kept


def test_pages_of_pictures_that_cannot_be_read_say_so(data_set, tmp_path):
    assert run_tool(data_set, tmp_path, "--images", str(tmp_path / "gone.h5")) == 0
    assert "no picture: " in (tmp_path / "label_issues.html").read_text()


def test_names_of_strangers_are_escaped(data_set, tmp_path):
    folder = Path(shutil.copytree(data_set, tmp_path / "set"))
    with h5py.File(folder / "labels.h5", "r+") as file:
        file["taxon_names/taxa_L10/name"][5] = "<script>alert(1)</script>"
    assert run_tool(folder, tmp_path / "out") == 0
    page = (tmp_path / "out" / "label_issues.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_page_in_a_browser(data_set, tmp_path, width, height):
    folder = Path(shutil.copytree(data_set, tmp_path / "set"))
    with h5py.File(folder / "labels.h5", "r+") as file:
        file["taxon_names/taxa_L10/name"][5] = "Rubrisagitta" * 9
    assert run_tool(folder, tmp_path / "out") == 0
    with browser(tmp_path / "profile") as page:
        page.open((tmp_path / "out" / "label_issues.html").as_uri(), width, height, mobile=width < 500)
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value(BEYOND) == []
        page.wait("document.querySelector('.card img').naturalWidth > 0")  # decoded lazily
        while page.value("document.activeElement.className") != "card":
            page.press("Tab")
        page.press("Tab")
        assert page.value("document.activeElement === document.querySelectorAll('.card')[1]")
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def test_folds_say_how_far_accuracy_spreads(data_set, rows, tmp_path, capsys):
    found = fold_accuracies(rows, 3)
    species = found["ranks"]["species"]
    assert species["rows"] == ROWS
    assert len(species["of_folds"]) == 3
    assert species["spread"] == pytest.approx(np.std(species["of_folds"], ddof=1))
    assert (species["least"], species["most"]) == (min(species["of_folds"]), max(species["of_folds"]))
    assert 0.8 < species["accuracy"] <= found["ranks"]["genus"]["accuracy"] < 1
    out = tmp_path / "folds.json"
    argv = [str(data_set), "--features", str(data_set / "vectors.npz"), "--folds", "3", "--out", str(out)]
    assert folds_tool.main(argv) == 0
    assert "60 pictures in 3 folds" in capsys.readouterr().out
    # float16 vectors, so not equal to the digit
    assert json.loads(out.read_text())["ranks"]["species"]["accuracy"] == pytest.approx(species["accuracy"], abs=0.05)


def test_ten_pictures_are_enough(tmp_path):
    write_clean(tmp_path / "labels.h5", 10)
    few = of_data_set(tmp_path / "labels.h5", TASKS, (identifiers(10), features(10)))
    assert len(find_label_issues(few).order) == 10
    assert set(fold_accuracies(few, 2)["ranks"]) == {"species", "genus", "family"}
    with pytest.raises(UserError, match="--folds is 6, but there are 5 pictures or occurrences; give fewer folds"):
        fold_accuracies(few, 6)


def blank(folder: Path) -> None:
    with h5py.File(folder / "labels.h5", "r+") as file:
        for task in TASKS:
            file[task][:] = 0


def one_class(folder: Path) -> None:
    with h5py.File(folder / "labels.h5", "r+") as file:
        for task in TASKS:
            file[task][:] = 7


def other_ids(folder: Path) -> None:
    write_vectors(folder, ["a", "b"], np.zeros((2, 4), np.float16))


def twice(folder: Path) -> None:
    write_vectors(folder, identifiers()[:1] * 2, np.zeros((2, 4), np.float16))


def no_vectors(folder: Path) -> None:
    (folder / "vectors.npz").write_bytes(b"no zip")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (blank, "has both a label and a vector"),
        (one_class, "are of one taxon"),
        (other_ids, "the ids of the vectors, such as 'a', are none of"),
        (twice, "have an id twice"),
        (no_vectors, "was not written by linnaeus embed"),
    ],
)
def test_what_cannot_be_judged_is_said_in_a_line_and_nothing_is_written(spoil, said, data_set, tmp_path, capsys):
    folder = Path(shutil.copytree(data_set, tmp_path / "set"))
    spoil(folder)
    assert run_tool(folder, tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_data_set_without_features_says_the_command_that_makes_them(data_set, tmp_path, capsys):
    assert tool.main([str(data_set), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert f"linnaeus embed BUNDLE {data_set} --out vectors.npz" in message
    assert tool.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no run, and no data set" in capsys.readouterr().err


def test_rows_without_vector_label_or_picture_are_counted(data_set, tmp_path):
    labels = Path(shutil.copy(data_set / "labels.h5", tmp_path / "labels.h5"))
    with h5py.File(labels, "r+") as file:
        for task in TASKS:
            file[task][3] = 0
    values = features()
    values[5] = np.nan
    order = np.random.default_rng(1).permutation(ROWS)[:50]
    order = np.union1d(order, [3, 5])[::-1]
    ids = [identifiers()[row] for row in order]
    known = of_data_set(labels, TASKS, ([*ids, "other"], np.vstack([values[order], values[:1]])))
    assert known.notes == (
        f"{ROWS - len(order)} of {ROWS} rows have no vector",
        "1 vectors are of no row",
        "1 rows have no label",
        "1 rows have a picture that could not be read",
    )
    rows = [int(name[6:10]) for name in known.ids]
    assert rows == sorted(set(order.tolist()) - {3, 5}) == known.sides[0].rows.tolist()
    np.testing.assert_array_equal(known.features, values[rows])
