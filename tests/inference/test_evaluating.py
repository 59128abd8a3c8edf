"""A model against records whose classes partly differ: matched by taxon id, the unknown ones counted apart."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.taxon_names import write_taxon_names
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.quality.evaluating import (
    NO_LABEL,
    PATH,
    RANKS,
    UNKNOWN,
    WITHOUT_METADATA,
    Pictures,
    evaluate_labelled,
    read_labelled,
)
from linnaeus_jax.inference.quality.evaluation_page import coverage_rows, evaluation_page, summary
from linnaeus_jax.metrics.judged import haurc
from linnaeus_jax.tools import evaluate

#: a species that the model does not know, of a genus that it knows; no int32
UNKNOWN_ID = 4_000_000_099
SPECIES = [11, 12, 13, UNKNOWN_ID, 0, UNKNOWN_ID, 13, 0]
GENUS = [21, 21, 22, 22, 22, 77, 22, 0]


@pytest.fixture
def data(tmp_path, pictures) -> SimpleNamespace:
    """`labels` and `images`: 8 rows, the last one without a taxon, no family, no elevation."""
    labels, images = tmp_path / "labels.h5", tmp_path / "images.h5"
    with h5py.File(labels, "w") as file:
        file["img_identifiers"] = [f"{row}.png" for row in range(8)]
        file["taxa_L10"], file["taxa_L20"] = np.array(SPECIES, np.uint32), np.array(GENUS, np.uint32)
        angle = np.linspace(0, 1, 8)[:, None]
        temporal = np.hstack([np.cos(angle), np.sin(angle)]).astype(np.float32)  # the other way round than the model
        temporal[1] = 0  # unknown
        file["time"] = temporal
        file["time"].attrs["column_names"] = ["month_cos", "month_sin"]
        file["split"] = np.array([0, 1, 1, 1, 1, 1, 2, 2], np.uint8)
    with h5py.File(images, "w") as file:
        file["images"] = pictures.pixels[:8]
    return SimpleNamespace(labels=labels, images=images, pixels=pictures.pixels[:8])


def test_labels_are_matched_by_taxon_id(bundle, data):
    labelled = read_labelled(bundle, data.labels)
    assert labelled.rows.tolist() == list(range(7))
    assert labelled.taxon[:, 0].tolist() == SPECIES[:7]
    assert labelled.label[:, 0].tolist() == [1, 2, 3, UNKNOWN, NO_LABEL, UNKNOWN, 3]
    assert labelled.label[:, 1].tolist() == [1, 1, 2, 2, 2, UNKNOWN, 2]
    assert (labelled.label[:, 2] == NO_LABEL).all()
    assert labelled.valid[:, 0].tolist() == [True, False, *[True] * 5]
    assert not labelled.valid[:, 1:].any()
    np.testing.assert_allclose(labelled.meta[6, :2], [np.sin(6 / 7), np.cos(6 / 7)], rtol=0, atol=1e-6)
    assert not labelled.meta[:, 2:].any()
    assert labelled.notes == (
        "family is not labelled in the file",
        "SPATIAL is in no dataset of the file: it is unknown for every row",
        "ELEVATION is in no dataset of the file: it is unknown for every row",
    )
    assert read_labelled(bundle, data.labels, "val").rows.tolist() == [1, 2, 3, 4, 5]


def test_answers_are_those_of_predictions(model, bundle, data):
    labelled = read_labelled(bundle, data.labels)
    evaluated = evaluate_labelled(model, labelled, Pictures.of(bundle, data.images, data.labels))
    assert list(evaluated.judged) == [RANKS, PATH, WITHOUT_METADATA]
    components = [{"TEMPORAL": row[:2].tolist()} if on else {} for row, on in zip(labelled.meta, labelled.valid[:, 0])]
    for kind, given in ((PATH, components), (WITHOUT_METADATA, None)):
        judged = evaluated.judged[kind]
        for row, prediction in enumerate(model.predict(list(data.pixels[:7]), components=given)):
            for place, taxon in enumerate(reversed(prediction.path)):
                index = int(judged.predicted[row, place])
                assert int(bundle.taxonomy.classes[bundle.tasks[place]][index]) == taxon.taxon_id
                assert judged.probability[row, place] == pytest.approx(taxon.probability, abs=1e-5)
    assert evaluated.occurrences is None  # each row is one
    path = evaluated.judged[PATH]
    assert path.row.tolist() == labelled.rows.tolist()
    assert path.known[:, 0].tolist() == [True, True, True, False, False, False, True]
    strict = evaluated.strict
    assert strict.known[:, 0].tolist() == [True, True, True, True, False, True, True]
    assert not strict.right[[3, 5], 0].any()


def evaluated_by(model, bundle, data, silent=()):
    """Rows are answered by species 13 of genus 22, rows 3 and 4 by the genus alone, and those of `silent` by none."""
    labelled = read_labelled(bundle, data.labels)

    def forward(image, meta, valid):
        z = {task: np.zeros((len(image), n), np.float32) for task, n in bundle.taxonomy.tree.num_classes.items()}
        for task, taxon in zip(bundle.tasks, (3, 2, 2)):
            z[task][~np.isin(labelled.rows, silent), taxon] = 60
        z["taxa_L10"][np.isin(labelled.rows, (3, 4)), 0] = 90
        return SimpleNamespace(result=lambda: z)

    passes = SimpleNamespace(buckets=(64,), dispatch=forward)
    stub: Any = SimpleNamespace(
        bundle=bundle, answers=model.answers, forward=passes, forward_for=lambda options: passes
    )
    return evaluate_labelled(stub, labelled, Pictures.of(bundle, data.images, data.labels))


@pytest.mark.parametrize("family", [31, 32])
def test_a_row_without_an_answer_is_not_answered_at_a_coarser_rank(model, bundle, data, family):
    """Whatever its most likely family is; row 5 is one of two of an unknown species, row 3 has an answer."""
    with h5py.File(data.labels, "r+") as file:
        file["taxa_L30"] = np.array([31, 31, 32, 32, 32, family, 32, 0], np.uint32)
    answered = summary(bundle, evaluated_by(model, bundle, data, silent=(5,)))["unknown_taxa_answered"]
    assert answered["species"] == {"named": 0.0, "coarser": 0.5, "coarser_wrong": 0.0, "none": 0.5}


def test_what_becomes_of_unknown_taxa(model, bundle, data):
    evaluated = evaluated_by(model, bundle, data)
    numbers = summary(bundle, evaluated)
    assert json.loads(json.dumps(numbers)) == numbers
    species, genus = numbers["ranks"]["species"], numbers["ranks"]["genus"]
    assert (species["rows"], species["unknown_rows"], species["unknown_taxa"]) == (4, 2, 1)
    assert (genus["rows"], genus["unknown_rows"], genus["unknown_taxa"]) == (6, 1, 1)
    assert species["accuracy"][PATH] == pytest.approx(2 / 4)  # rows 2 and 6
    assert genus["accuracy"][PATH] == pytest.approx(4 / 6)
    assert numbers["ranks"]["family"]["accuracy"][PATH] is None
    # of the rows 3 and 5 of the unknown species, row 3 is answered by its genus, row 5 by a species
    expected = {"named": 0.5, "coarser": 0.5, "coarser_wrong": 0.0, "none": 0.0}
    assert numbers["unknown_taxa_answered"]["species"] == expected
    assert numbers["unknown_taxa_answered"]["genus"]["named"] == 1.0, "row 5 by a species of another genus"
    assert numbers["metadata"]["TEMPORAL"] == pytest.approx(6 / 7)  # not in row 1
    [at_half] = [each for each in numbers["roll_up"] if each["min_confidence"] == 0.5]
    assert at_half["answered"] == {"family": 0.0, "genus": pytest.approx(2 / 7), "species": pytest.approx(5 / 7)}
    assert at_half["error"] == pytest.approx(3 / 7)  # rows 0, 1 and 5
    below = [np.array(counts) for counts in ([0, 1, 1, 1, 1], [0, 2, 1], [0, 2, 1])]
    assert numbers["haurc"] == pytest.approx(haurc(evaluated.strict, below, first=1))
    assert numbers["haurc"] > 0.2  # rows 0, 1 and 5 of six are wrong at the genus already


def test_occurrences_are_answered_as_predict_does(model, bundle, data):
    """Of rows 0 and 2, 1, 3 and 6, and two alone; the labels of the first two agree at no rank."""
    with h5py.File(data.labels, "r+") as file:
        file["occurrence_id"] = ["a", "b", "a", "b", "", "", "b", "c"]
        file["taxa_L20"][1] = 22
    labelled = read_labelled(bundle, data.labels)
    evaluated = evaluate_labelled(model, labelled, Pictures.of(bundle, data.images, data.labels))
    numbers, found = summary(bundle, evaluated), evaluated.occurrences
    assert numbers["occurrences"] == 4
    assert found is not None
    order = np.argsort([labelled.group.tolist().index(group) for group in found.row])
    assert found.label[order].tolist() == [[-1, -1, -1], [-1, 2, -1], [-1, 2, -1], [-1, -1, -1]]
    assert numbers["ranks"]["species"]["occurrence_accuracy"] is None
    assert numbers["ranks"]["genus"]["occurrence_accuracy"] == found.right[:, 1].sum() / 2
    names = ["TEMPORAL"] if labelled.valid.any() else []
    given = [
        {name: labelled.meta[row, :2].tolist() for name in names if labelled.valid[row, 0]}
        for row in range(len(labelled.rows))
    ]
    ids = ["a", "b", "a", "b", None, None, "b"]
    expected = model.predict(data.pixels[:7], together=ids, components=given)
    taxa = [[bundle.taxonomy.names.classes[task][i] for task, i in zip(bundle.tasks, row)] for row in found.predicted]
    assert [taxa[place] for place in order] == [[t.taxon_id for t in each.path[::-1]] for each in expected]
    probability = [[t.probability for t in each.path[::-1]] for each in expected]
    np.testing.assert_allclose(found.probability[order], probability, atol=1e-5)
    assert "occurrences right %" in evaluation_page(bundle, evaluated, Pictures.of(bundle, data.images, data.labels))


def test_the_tool_and_its_page(bundle, data, tmp_path, capsys):
    write_bundle(bundle, tmp_path / "bundle")
    out = tmp_path / "out" / "report.html"
    given = [str(tmp_path / "bundle"), f"--labels={data.labels}", f"--images={data.images}", "--batch-size=8"]
    assert evaluate.main([*given, "--json", f"--report={out}"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["rows"], numbers["split"]) == (7, "all rows")
    page = out.read_text()
    assert re.search(r"row \d<br>\d\.png", page)
    assert "Of the path, over the rows whose taxon the model knows." in page
    for words in ("Taxa that the model does not know", "Parus major [11]", "data:image/jpeg", "most often taken for"):
        assert words in page
    for forbidden in ("http://", "https://", str(tmp_path)):
        assert forbidden not in page
    assert evaluate.main([*given, "--split=val", f"--report={out}"]) == 0
    assert '<td class="left">val</td>' in out.read_text()
    said = capsys.readouterr().out
    assert "bundle on labels.h5, 5 rows" in said
    assert "SPATIAL is in no dataset of the file" in said


def test_answers_and_sets_for_a_coverage(bundle, data, tmp_path, capsys):
    """By thresholds of no probability and of all taxa: answers are species, sets hold all four."""
    counts = {task: [7] * size for task, size in bundle.taxonomy.tree.num_classes.items()}
    thresholds = {"coverage": {"90": 0.0}, "coverage_rows": 9, "sets": {"90": 0.0}, "set_rows": 9}
    known = dataclasses.replace(bundle.calibration, **thresholds, path_counts=counts)
    write_bundle(dataclasses.replace(bundle, calibration=known), tmp_path / "bundle")
    out = tmp_path / "report.html"
    given = [str(tmp_path / "bundle"), f"--labels={data.labels}", f"--images={data.images}", "--batch-size=8"]
    assert evaluate.main([*given, "--json", f"--report={out}"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["coverage"]
    assert found["answers"]["unanswered"] <= 1
    group = {
        "from": 5,
        "to": 9,
        "rows": 4,
        "held": 1.0,
        "mean_size": 4.0,
    }  # rows 3 and 5 are of a species unknown to it
    assert found["sets"] == {
        "coverage": 0.9,
        "held": 1.0,
        "mean_size": 4.0,
        "mean_taxa": 3.0,  # a genus of two, and two species
        "single": 0.0,
        "by_training_rows": [group],
    }
    assert "training rows of the taxon" in out.read_text()
    assert evaluate.main(given) == 0
    assert "answers and sets by --coverage" in capsys.readouterr().out
    nothing = {"answers": found["answers"], "sets": found["sets"] | {"mean_size": None}}
    rows = coverage_rows({"coverage": [found, nothing]}, str)
    assert [row[0] for row in rows] == ["0.9", "0.9"]
    assert [row[-2:] for row in rows] == [["4.0", "3.0"], ["-", "3.0"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--phases=val"], "--phases is for runs without --report"),
        (["--logits"], "--logits is for runs"),
        (["--images="], "give the records to evaluate on: --labels"),
        (["--batch-size=-1"], "--batch-size is -1"),
        (["--split=test"], "labels.h5 has no row of split test with a taxon"),
        (["--labels=nowhere.h5"], "nowhere.h5"),
    ],
)
def test_what_cannot_be_evaluated(change, message, bundle, data, tmp_path, capsys):
    write_bundle(bundle, tmp_path / "bundle")
    with h5py.File(data.labels, "r+") as file:
        file["taxa_L10"][6] = file["taxa_L20"][6] = 0
    arguments = [str(tmp_path / "bundle"), f"--labels={data.labels}", f"--images={data.images}", *change]
    assert evaluate.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_data_without_a_known_taxon_say_so(bundle, data, tmp_path, capsys):
    write_bundle(bundle, tmp_path / "bundle")
    with h5py.File(data.labels, "r+") as file:
        for task in ("taxa_L10", "taxa_L20"):
            file[task][:] = np.where(file[task][:] == 0, 0, file[task][:] + 1000)
        write_taxon_names(file, "taxa_L10", [1011], ["Parus major"], [""])
    given = [str(tmp_path / "bundle"), f"--labels={data.labels}", f"--images={data.images}", "--batch-size=8"]
    assert evaluate.main(given) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "none of the 7 rows of labels.h5 names a taxon that the model knows" in said
    assert "1 of its taxa have names that the model knows by other taxon ids" in said


def test_files_that_do_not_fit(bundle, data, tmp_path):
    with h5py.File(tmp_path / "more.h5", "w") as file:
        file["images"] = np.repeat(data.pixels[:1], 9, axis=0)
    with pytest.raises(UserError, match=r"more\.h5 holds 9 pictures, but .*labels\.h5 has 8 rows"):
        Pictures.of(bundle, tmp_path / "more.h5", data.labels)
    with h5py.File(data.labels, "r+") as file:
        for task in ("taxa_L10", "taxa_L20"):
            file.move(task, f"other_{task}")
    with pytest.raises(UserError, match=r"labels none of the model's ranks \(taxa_L10, taxa_L20, taxa_L30\)"):
        read_labelled(bundle, data.labels)


def test_raw_pictures_of_the_models_size_are_seen_as_in_training(bundle, data, tmp_path, caplog):
    """Nothing is cut out of them a second time; where they were made in another way, that is said."""
    how = Preprocessing((32, 32), "center_crop", "bicubic", crop_fraction=0.75)
    stored = data.pixels[:, :32, :32]
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["images"] = stored
    with h5py.File(data.labels, "r+") as file:
        file.create_group("metadata/image_processing").attrs.update({"form": "raw", "size": 32, "resize_mode": "pad"})
    pictures = Pictures.of(dataclasses.replace(bundle, preprocessing=how), tmp_path / "raw.h5", data.labels)
    for row in (5, 0):
        np.testing.assert_array_equal(pictures.read(row), stored[row])
    assert "made square by pad, but the model is to see pictures by center_crop, bicubic, crop" in caplog.text


def test_a_folder_of_pictures(bundle, model, data, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for row, pixels in enumerate(data.pixels[:7]):
        Image.fromarray(pixels).save(folder / f"{row}.png")
    pictures = Pictures.of(bundle, Path(folder), data.labels)
    for row in (5, 0):
        np.testing.assert_array_equal(pictures.read(row), model.read([data.pixels[row]])[0])
    with pytest.raises(UserError, match=r"picture of row 7 cannot be read: .*No such file.*; restore it"):
        pictures.read(7)
    labelled = read_labelled(bundle, data.labels)
    page = evaluation_page(bundle, evaluate_labelled(model, labelled, pictures), pictures)
    assert page.count("<figure>") >= 3
