"""Measuring a model and the card that says it, on logits that stand for a run's validation rows."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from types import SimpleNamespace
from typing import cast

import h5py
import jax
import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.data.credits import license_counts
from linnaeus_jax.data.splits import Split
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.bundle.bundle import DEPENDENCE, Calibration
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.quality.card import one_cell, summary, table, write_card
from linnaeus_jax.inference.quality.measuring import WITH, WITHOUT, Rows, _subsets, calibrated, measure
from linnaeus_jax.metrics.extras import PhaseExtras
from linnaeus_jax.metrics.judged import accuracy, accuracy_by_rows, macro_accuracy, nll
from linnaeus_jax.run.evaluate import Loaded
from linnaeus_jax.taxonomy.tree import TaxonomyTree
from tests.inference.test_calibration import overconfident


@pytest.fixture(scope="module")
def rows() -> Rows:
    logits, labels = overconfident(200)
    known = labels[:, 0] > 0
    return Rows(
        {WITH: logits, WITHOUT: {task: (z / 3).astype(np.float32) for task, z in logits.items()}},
        labels,
        (("rarity", "lt_p50", known & (labels[:, 0] < 3)), ("habitat", "a|b", np.arange(200) < 50)),
        1000,
        {"CC BY 4.0": 700, "": 3},
    )


def test_rows_without_a_species_are_of_no_rarity():
    names = {"rarity": ("rare", "common"), "habitat": ("wood", "sea"), "taxa": ("birds",), "metadata": ("none",)}
    loaded = SimpleNamespace(
        experiment=SimpleNamespace(
            program=SimpleNamespace(evaluation=SimpleNamespace(extras=PhaseExtras(names, kinds=("habitat",))))
        ),
        dataset=SimpleNamespace(null_possible=True),
    )
    split = SimpleNamespace(
        subsets=np.array([[0], [1], [-1], [0]]),
        labels=np.array([[0], [1], [2], [0]]),
        rarity=np.array([0, 0, 1, 1]),
        taxa_subset=np.array([[True], [False], [True], [False]]),
    )
    found = {(kind, name): rows.tolist() for kind, name, rows in _subsets(cast(Loaded, loaded), cast(Split, split))}
    assert found == {
        ("rarity", "rare"): [False, True, False, False],
        ("rarity", "common"): [False, False, True, False],
        ("habitat", "wood"): [True, False, False, True],
        ("habitat", "sea"): [False, True, False, False],
        ("taxa", "birds"): [True, False, True, False],
    }


def test_every_row_is_judged_by_temperatures_of_others(bundle, rows):
    measured = measure(rows, bundle)
    assert set(measured.judged) == {(phase, name) for phase in (WITH, WITHOUT) for name in ("ranks", "paths")}
    for judged in measured.judged.values():
        np.testing.assert_array_equal(judged.label, rows.labels)
    ranks = measured.judged[WITH, "ranks"]
    np.testing.assert_array_equal(ranks.predicted, measured.raw.predicted)  # no temperature changes it
    assert (nll(ranks) < nll(measured.raw)).all()
    numbers = summary(measured)
    assert (numbers["rows"], numbers["of"]) == (200, 1000)
    np.testing.assert_allclose(numbers["paths"]["accuracy"], accuracy(measured.judged[WITH, "paths"]), atol=1e-6)
    assert len(numbers["ranks without metadata"]["ece"]) == 3
    of_class = [ranks.right[ranks.label[:, 0] == label, 0].mean() for label in set(ranks.label[ranks.known[:, 0], 0])]
    assert macro_accuracy(ranks)[0] == pytest.approx(np.mean(of_class))


def test_occurrences_get_a_dependence_and_a_section(bundle, rows, tmp_path):
    """Of 90 pairs; the two pictures of a pair say nearly the same."""
    rng, twice = np.random.default_rng(0), np.repeat(np.arange(90), 2)
    noisy = {
        phase: {task: (z[twice] + rng.normal(0, 0.3, (180, z.shape[1]))).astype(np.float32) for task, z in of.items()}
        for phase, of in rows.logits.items()
    }
    pairs = dataclasses.replace(rows, logits=noisy, labels=rows.labels[twice], subsets=(), group=twice)
    measured = measure(pairs, bundle)
    found = measured.together
    assert found is not None
    assert (found.groups, len(found.single.label), len(found.judged["evidence"].label)) == (90, 180, 90)
    np.testing.assert_array_equal(found.judged["evidence"].label, rows.labels[:90])
    assert found.dependence > 0.5
    assert nll(found.judged["evidence"])[0] <= nll(found.judged["mean"])[0] + 0.01
    made = calibrated(bundle, measured)
    assert (made.calibration.dependence, made.calibration.dependence_groups) == (found.dependence, 90)
    assert set(summary(measured)) >= {"paths", "occurrence"}
    write_bundle(made, tmp_path / "b", lambda path: write_card(made, measured, path))
    assert read_bundle(tmp_path / "b").calibration.dependence == found.dependence
    assert "90 occurrences with 180 pictures: each picture *alone*" in (tmp_path / "b" / "README.md").read_text()
    few = measure(dataclasses.replace(pairs, group=np.where(twice < 20, twice, 1000 + np.arange(180))), bundle)
    assert (few.together, few.calibration.dependence, few.calibration.dependence_groups) == (None, DEPENDENCE, 0)


def test_a_card_names_the_plugins(bundle, tmp_path):
    write_card(dataclasses.replace(bundle, plugins=("/home/me/my_heads.py",)), None, tmp_path)
    assert "not part of the bundle: my_heads.py. Where its model" in (tmp_path / "README.md").read_text()


def test_a_card_says_what_the_model_looks_at(bundle, tmp_path):
    write_card(bundle, None, tmp_path)
    text = (tmp_path / "README.md").read_text()
    names = ", ".join(component.name for component in bundle.encoder.components)
    assert f"Metadata of the pictures ({names}) make the answers better" in text
    assert text.split("## What it is")[1].split("\n\n")[1].splitlines()[2:] == [
        "| model | mFormerV1-tiny |",
        f"| parameters | {sum(np.size(leaf) for leaf in jax.tree.leaves(bundle.variables['params'])):,} |",
        "| weights | last parameters after 7 updates |",
        "| picture | 32 x 32 pixels, squash |",
        "| metadata | TEMPORAL (date, 2 numbers); SPATIAL (place, 3 numbers); ELEVATION (elevation, 4 numbers) |",
        "| taxa | family 2, genus 2, species 4 |",
        "| unknown | can be answered at any rank |",
        "| format | linnaeus_jax bundle, version 1 |",
    ]
    alone = dataclasses.replace(bundle, encoder=dataclasses.replace(bundle.encoder, components=()))
    write_card(alone, None, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "looks at the picture alone: place, date and elevation change nothing" in text
    assert "| metadata | none |" in text
    assert "better" not in text


def test_a_card_of_one_rank(bundle, tmp_path):
    write_card(bundle, None, tmp_path)
    assert "at 3 ranks that agree with each other: family, genus, species." in (tmp_path / "README.md").read_text()
    tree, names = bundle.taxonomy.tree, bundle.taxonomy.names
    classes = {"taxa_crop": names.classes["taxa_L30"]}
    one = Taxonomy(
        TaxonomyTree(["taxa_crop"], {"taxa_crop": tree.num_classes["taxa_L30"]}, {}), TaxonNames.from_json(classes, {})
    )
    write_card(dataclasses.replace(bundle, taxonomy=one), None, tmp_path)
    assert "names the taxon in a picture at one rank: crop." in (tmp_path / "README.md").read_text()


def test_texts_of_data_are_no_markup():
    text = "<img src=x onerror=alert(1)> [a](javascript:b) `c` *d* | &lt;"
    assert one_cell(text) == r"\<img src=x onerror=alert(1)\> \[a\](javascript:b) \`c\` \*d\* \| \&lt;"


def test_card(bundle, rows, tmp_path):
    counts = {task: [7] * size for task, size in bundle.taxonomy.tree.num_classes.items()}
    bundle = dataclasses.replace(bundle, calibration=Calibration.none(bundle.tasks, counts))
    test = ({task: z[:40] for task, z in rows.logits[WITH].items()}, rows.labels[:40])
    measured = measure(dataclasses.replace(rows, test=test), bundle)
    fitted = calibrated(bundle, measured)
    assert measured.test is not None
    right = (measured.test.predicted == rows.labels[:40])[rows.labels[:40, 0] > 0, 0]
    assert accuracy_by_rows(measured.test, counts["taxa_L10"]) == [(5, 9, len(right), right.mean())]
    fitted = dataclasses.replace(fitted, facts={**bundle.facts, "licence": "CC BY 4.0", "measured": summary(measured)})
    write_bundle(fitted, tmp_path / "b", lambda directory: write_card(fitted, measured, directory))
    read = read_bundle(tmp_path / "b")
    assert read.calibration == fitted.calibration
    assert read.calibration.rows > 0
    assert read.facts == fitted.facts
    text = (tmp_path / "b" / "README.md").read_text()
    for words in (
        "# small",
        "200, drawn at random, of 1,000 validation rows",
        "Weights: CC BY 4.0",
        "| CC BY 4.0 | 700 |",
        "| not stated | 3 |",
        "| habitat | a\\|b | 50 |",
        "the path, without metadata, %",
        "last parameters after 7 updates",
        "### On test rows\n\n40 rows that were set aside",
        f"| 5 to 9 | {len(right)} | {100 * right.mean():.1f} |",
        f"species {bundle.taxonomy.tree.num_classes['taxa_L10'] - 1} |",  # "unknown" is no taxon
    ):
        assert words in text
    coarse_first = " | ".join(f"{rank}, %" for rank in reversed(bundle.taxonomy.ranks.values()))
    assert f"| --coverage | least probability | {coarse_first} | no answer, % | hold it, % |" in text
    promises = text.split("### Answers that hold the truth")[1].split("With `--as sets`")
    for promised in (dict(re.findall(r"^\| (0\.\d+) \|.*\| ([\d.]+) \|$", each, re.M)) for each in promises):
        assert list(promised) == ["0.8", "0.9", "0.95"]
        for level, held in promised.items():
            assert float(held) == pytest.approx(100 * float(level), abs=6)
    assert re.search(r"^\| 5 to 9 \| \d+ \| [\d.]+ \| [\d.]+ \|$", promises[1], re.MULTILINE)
    for rows_of in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        _, rules, *cells = (re.split(r"(?<!\\)\|", line)[1:-1] for line in rows_of.splitlines())
        for rule, column in zip(rules, zip(*cells, strict=True), strict=True):
            assert rule.strip() == ":--" or not re.search("[a-z]{4}", " ".join(column)), column  # texts begin alike
        assert len(Counter(len(re.findall(r"(?<!\\)\|", line)) for line in rows_of.splitlines())) == 1
    assert str(tmp_path) not in text
    assert not re.search(r"\bnan\b", text)
    for link in re.findall(r"!\[.*?\]\((.*?)\)", text):
        with Image.open(tmp_path / "b" / link) as image:
            assert image.width > 1000


def test_card_without_data(bundle, tmp_path):
    write_bundle(bundle, tmp_path / "b", lambda directory: write_card(bundle, None, directory))
    text = (tmp_path / "b" / "README.md").read_text()
    assert "nothing was measured" in text
    assert "not stated; ask whoever gave you this bundle" in text
    assert not (tmp_path / "b" / "images").exists()
    assert read_bundle(tmp_path / "b").calibration.rows == 0


def test_table():
    assert table(("a", "b"), [("x\ny|z", "1")]) == "| a | b |\n| :-- | --: |\n| x y\\|z | 1 |"


def test_licences_are_counted_by_name(tmp_path):
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        by = "http://creativecommons.org/licenses/by/4.0/legalcode"
        file["license"] = [by, "CC_BY_4_0", "", "all rights\nreserved", by]
    counts = license_counts(str(tmp_path / "labels.h5"), np.arange(5))
    assert counts == {"CC BY 4.0": 3, "": 1, "all rights reserved": 1}
    assert license_counts(str(tmp_path / "labels.h5"), np.array([2])) == {"": 1}
