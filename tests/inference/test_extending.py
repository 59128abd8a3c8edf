"""Taxa that are added to a bundle: on features drawn around places, and of pictures by the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.exemplars import Exemplars
from linnaeus_jax.inference.bundle.files import EXEMPLARS, read_bundle, write_bundle
from linnaeus_jax.inference.bundle.grown import grown_taxonomy
from linnaeus_jax.inference.bundle.members import OTHERS
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.forward import BLOCK
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.quality.extending import check_extendable, extended, layers_to_extend, rows_of_other
from linnaeus_jax.learning.growing import KeptRows, grow, too_high
from linnaeus_jax.learning.regression import fit_ranks
from linnaeus_jax.tools import extend
from linnaeus_jax.weights.files import read_state, write_state
from tests.inference.conftest import TAXA, small_bundle, small_taxonomy

WIDTH, NEW = 16, ("Parus novus", "Passer novus", "Corvus corax")
#: ids of the new taxa and those above them: below known genera, and with a genus of a known family
PATHS = np.array([[101, 21, 31], [102, 22, 32], [103, 201, 32]])
NAMES = {
    "taxa_L10": dict(zip((101, 102, 103), ((name, "") for name in NEW), strict=True)),
    "taxa_L20": {21: ("Parus", ""), 22: ("Passer", ""), 201: ("Corvus", "")},
    "taxa_L30": {31: ("Paridae", ""), 32: ("Passeridae", "")},
}
PLACE = 3 * np.random.default_rng(0).normal(size=(7, WIDTH)).astype(np.float32)


def drawn(place, rows, seed):
    noise = np.random.default_rng(seed).normal(size=(rows * len(place), WIDTH)).astype(np.float32)
    return np.repeat(PLACE[place], rows, axis=0) + noise


@pytest.fixture(scope="module")
def kept() -> Bundle:
    """A bundle whose heads were fitted to drawn rows of its four species, of which the last has no genus."""
    bundle, tree = small_bundle(()), small_taxonomy().tree
    (layer,) = layers_to_extend(bundle)
    label = np.where(tree.anc["taxa_L10"][1:] < 0, 0, tree.anc["taxa_L10"][1:]).astype(np.int32)
    x, y = drawn(range(4), 30, 1), np.repeat(label, 30, axis=0)
    fits = fit_ranks(x, np.where(y == 0, -1, y), tree.num_classes, None, [np.ones(len(x), bool)])
    params = dict(bundle.variables["params"])
    params["head"] = {
        task: {"fc": {"kernel": kernel, "bias": np.where(np.arange(len(bias)), bias, -9)}}
        for task, fit in fits.items()
        for kernel, bias in fit.fits
    }
    counts = tree.path_counts(y)
    judging = {layer: drawn(range(4), 20, 2)}, np.repeat(label, 20, axis=0)
    exemplars = Exemplars.of(judging, ({layer: x}, y))
    calibration = dataclasses.replace(bundle.calibration, path_counts=counts)
    return dataclasses.replace(
        bundle, variables={"params": params}, exemplars=exemplars, calibration=calibration, facts={"title": "small"}
    )


def grown(bundle, which, rows=10, seed=3):
    """The bundle with some of the new species."""
    which = list(which)
    taxonomy, label = grown_taxonomy(bundle.taxonomy, bundle.tasks, np.repeat(PATHS[which], rows, axis=0), NAMES)
    x = np.concatenate([drawn([4 + one], rows, seed + one) for one in which])
    return extended(bundle, taxonomy, {layers_to_extend(bundle)[0]: x}, label)[0]


def logits_of(bundle, x):
    return {t: x @ h["fc"]["kernel"] + h["fc"]["bias"] for t, h in bundle.variables["params"]["head"].items()}


def names_of(bundle, x):
    """The answer to every row at the finest rank."""
    answers = Answers(bundle.taxonomy, bundle.calibration)
    best, _ = answers.probabilities(logits_of(bundle, x), answers.options())
    return bundle.taxonomy.names.name["taxa_L10"][best[:, 0]].tolist()


def test_new_species_are_known_and_old_ones_stay(kept, tmp_path):
    new = grown(kept, range(3))
    old_x, new_x = drawn(range(4), 20, 8), drawn([4, 5, 6], 20, 9)
    old = [name for _, name, _ in TAXA["taxa_L10"] for _ in range(20)]
    assert np.mean([a == b for a, b in zip(names_of(new, old_x), old, strict=True)]) > 0.9
    assert np.mean([a == b for a, b in zip(names_of(new, new_x), np.repeat(NEW, 20), strict=True)]) > 0.9
    tree = new.taxonomy.tree
    genus = new.taxonomy.names.name["taxa_L20"].tolist()
    assert [genus[at] for at in tree.parent["taxa_L10"][5:]] == ["Corvus", "Parus", "Passer"]  # by their names
    assert new.facts["added"]["pictures"].keys() == {"Corvus corax [103]", "Parus novus [101]", "Passer novus [102]"}
    assert new.facts["added"]["right"]["species"][1] >= new.facts["added"]["right"]["species"][0] - 0.03
    for task, (kernel, bias) in new.exemplars.heads.items():  # those that were trained, to the last bit
        trained = kept.variables["params"]["head"][task]["fc"]
        np.testing.assert_array_equal(kernel, np.asarray(trained["kernel"]))
        np.testing.assert_array_equal(bias, np.asarray(trained["bias"]))
    assert new.calibration.coverage
    assert new.calibration.novelty
    assert new.calibration.novelty_rows == 4 * 20  # kept to judge; of rows that are fitted to, distances are too small
    assert new.calibration.path_counts["taxa_L10"][5:] == [30, 30, 30]
    assert len(new.statistics.mean) == 7
    write_bundle(new, tmp_path / "b")
    read = read_bundle(tmp_path / "b")
    np.testing.assert_array_equal(names_of(read, new_x), names_of(new, new_x))


def test_a_chain_ends_where_one_extension_does(kept):
    chain = kept
    for one in (2, 0, 1):
        chain = grown(chain, [one])
    whole = grown(kept, range(3))
    x = drawn(range(7), 20, 10)
    assert names_of(chain, x) == names_of(whole, x)
    one, other = (b.variables["params"]["head"]["taxa_L10"]["fc"]["kernel"] for b in (chain, whole))
    order = [b.taxonomy.names.name["taxa_L10"].tolist() for b in (chain, whole)]
    np.testing.assert_allclose(one, other[:, [order[1].index(name) for name in order[0]]], atol=2e-3)


def test_merging_gives_what_the_pictures_would(kept):
    other = grown(kept, [0, 2])
    taxon, names, features = rows_of_other(kept, other)
    assert {layer: of.dtype for layer, of in features.items()} == dict.fromkeys(features, np.float32)
    taxonomy, label = grown_taxonomy(kept.taxonomy, kept.tasks, taxon, names)
    merged = extended(kept, taxonomy, features, label)[0]
    x = drawn(range(7), 20, 10)
    assert names_of(merged, x) == names_of(other, x)
    assert not len(rows_of_other(other, kept)[0])
    head, params = kept.variables["params"]["head"], kept.variables["params"]
    changed = {name: jax.tree.map(lambda leaf: leaf + 1, tree) for name, tree in params.items()} | {"head": head}
    with pytest.raises(UserError, match="not the same trunk"):
        rows_of_other(dataclasses.replace(kept, variables={"params": changed}), other)


def test_without_new_rows_nothing_changes_whatever_was_kept():
    """The old classifier stays, although it is no optimum of the few rows that were kept."""
    x, label = drawn(range(3), 5, 1), np.repeat(np.arange(3), 5)
    base = (np.random.default_rng(2).normal(size=(WIDTH, 3)).astype(np.float32), np.zeros(3, np.float32))
    yes, no = np.ones(15, bool), np.zeros(15, bool)
    rows = KeptRows(x, np.linspace(1, 9, 15, dtype=np.float32), yes, yes, no)
    found = grow(rows, label[:, None], {"a": base}, {"a": x @ base[0] + base[1]}, {"a": 3})["a"]
    np.testing.assert_allclose(found.affine[0], base[0], atol=1e-5)
    np.testing.assert_allclose(found.affine[1], base[1], atol=1e-5)


def test_a_row_judges_by_fits_without_it():
    """Rows of a new class that lie where the old ones do are right only by what has seen them."""
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(60, WIDTH)).astype(np.float32), np.repeat([0, 1, 2], 20)
    base = (rng.normal(size=(WIDTH, 2)).astype(np.float32), np.zeros(2, np.float32))
    rows = KeptRows(x, np.ones(60, np.float32), label < 2, np.ones(60, bool), label == 2)
    found = grow(rows, label[:, None], {"a": base}, {"a": x @ base[0] + base[1]}, {"a": 3})["a"]
    within = x[label == 2] @ found.affine[0] + found.affine[1]
    assert (within.argmax(axis=1) == 2).mean() > (found.logits.argmax(axis=1) == 2).mean() + 0.2


@given(st.integers(0, 60), st.integers(0, 2), st.integers(0, 70), st.integers(0, 9))
def test_new_classes_are_lowered_by_what_is_needed_and_no_more(rows, new, most, seed):
    rng = np.random.default_rng(seed)
    logits, label = rng.normal(size=(rows, 3 + new)).astype(np.float32), rng.integers(0, 3, rows)
    less = float(too_high(logits, label, 3, most))

    def lost(less: float) -> int:
        return int((logits[:, 3:] - less > logits[np.arange(rows), label][:, None]).any(axis=1).sum())

    assert lost(less + 1e-5) <= most
    assert less == 0 or lost(less - 1e-5) > most


def test_old_rows_are_kept_where_a_new_class_lies_on_them():
    """Half of them would be lost to a class that cannot be told from theirs."""
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(400, WIDTH)).astype(np.float32), np.repeat([0, 1, 2], (100, 100, 200))
    x[:200] += PLACE[label[:200]]
    x[200:] += PLACE[0]
    base, judges = (PLACE[:2].T, -0.5 * np.square(PLACE[:2]).sum(axis=1)), np.arange(400) % 2 == 0
    rows = KeptRows(x, np.ones(400, np.float32), label < 2, ~judges | (label == 2), judges)
    found = grow(rows, label[:, None], {"a": base}, {"a": x @ base[0] + base[1]}, {"a": 3})["a"]
    old = label < 2
    assert (found.logits[old[judges]].argmax(axis=1) == 2).sum() in (1, 2, 3)  # of 100
    assert 0.9 < ((x @ found.affine[0] + found.affine[1]).argmax(axis=1) == label)[old].mean() < 1


def test_rows_of_folds_are_kept_with_what_other_heads_say(kept, tmp_path):
    x, label = drawn(range(4), 6, 2), np.repeat(kept.exemplars.label[:120:30], 6, axis=0)
    logits = {task: z.astype(np.float32) - 1 for task, z in logits_of(kept, x).items()}
    few = Exemplars.of(({"x": x}, label), None, logits)
    assert few is not None
    few.write(tmp_path / EXEMPLARS)
    read = Exemplars.read(tmp_path / EXEMPLARS, kept.taxonomy)
    assert read.fits.all()
    assert read.judges.all()
    np.testing.assert_allclose(read.logits["taxa_L10"], logits["taxa_L10"], rtol=1e-3, atol=1e-2)
    new = grown(dataclasses.replace(kept, exemplars=read), [0])
    assert new.calibration.rows == 24 + 10
    assert new.facts["added"]["right"]["species"][0] > 0.8
    assert Exemplars.of(({"x": x * 1e6}, label)) is None
    assert Exemplars.of(({"x": x, "y": x * 1e6}, label)) is None


def test_what_is_outside_follows_in_its_own_layer(kept, tmp_path):
    """Where a layer before the end of the trunk tells it: kept, read again, grown and merged beside the other one."""
    old, (layer,) = kept.exemplars, layers_to_extend(kept)
    rng, layers = np.random.default_rng(0), (layer, f"{BLOCK}1")

    def before(x):
        return np.hstack([x[:, :1], rng.normal(size=(len(x), 2))]).astype(np.float16)

    statistics = FeatureStatistics.of_layers({layer: old.x, layers[1]: before(old.x)}, old.label)
    write_bundle(kept, tmp_path / "before")
    both: Any = dataclasses.replace(
        kept, statistics=statistics, exemplars=dataclasses.replace(old, outside=before(old.x))
    )
    both.exemplars.write(tmp_path / EXEMPLARS)
    with pytest.raises(UserError, match="kept rows have 0 features of what is outside, and its statistics 3; make it"):
        check_extendable(dataclasses.replace(both, exemplars=old))
    read = dataclasses.replace(both, exemplars=Exemplars.read(tmp_path / EXEMPLARS, kept.taxonomy))
    assert layers_to_extend(read) == layers
    taxonomy, label = grown_taxonomy(kept.taxonomy, kept.tasks, np.repeat(PATHS[:1], 30, axis=0), NAMES)
    x = drawn([4], 30, 3)
    new: Any = extended(read, taxonomy, {layer: x, layers[1]: before(x)}, label)[0]
    assert new.statistics.layers == layers
    assert new.statistics.outside.count.tolist() == [120 + 30]
    np.testing.assert_array_equal(new.exemplars.outside[:200], both.exemplars.outside)
    features = rows_of_other(read, new)[2]
    assert {layer: of.shape for layer, of in features.items()} == {layer: (30, WIDTH), layers[1]: (30, 3)}
    np.testing.assert_array_equal(features[layers[1]], new.exemplars.outside[200:])
    with pytest.raises(UserError, match=r"judge what is outside by other features: .* make it again from its run"):
        rows_of_other(kept, new)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("label", np.full((200, 3), 99), "label"),
        ("outside", np.zeros((3, 2), np.float32), "outside"),
        ("x", np.zeros((3, 4), np.float32), "does not fit"),
        ("fits", None, "fits"),
    ],
)
def test_exemplars_of_something_else_are_refused(kept, tmp_path, name, value, said):
    path = tmp_path / EXEMPLARS
    kept.exemplars.write(path)
    arrays = read_state(path).arrays | {name: value}
    write_state(path, {key: each for key, each in arrays.items() if each is not None}, {})
    with pytest.raises(ValueError, match=said):
        Exemplars.read(path, kept.taxonomy)


@pytest.mark.parametrize(
    ("path", "names", "said"),
    [
        ([13, 22, 32], {"taxa_L10": {13: ("Passer domesticus", "")}}, "Passer domesticus is in the model already"),
        ([9, 21, 32], {"taxa_L10": {9: ("X y", "")}}, "Parus lies in family Paridae, and by a picture in family P"),
        ([9, 8, 0], {"taxa_L10": {9: ("X y", "")}, "taxa_L20": {8: ("X", "")}}, "genus X: its family is not told"),
        ([0, 21, 31], {}, "a picture has no species"),
    ],
)
def test_taxa_that_cannot_be_are_refused(path, names, said):
    with pytest.raises(UserError, match=said):
        grown_taxonomy(small_taxonomy(), tuple(TAXA), np.array([path]), {**NAMES, **names})


def test_a_new_taxon_has_one_parent():
    names = {"taxa_L10": {9: ("X y", ""), 10: ("X z", "")}, "taxa_L20": {8: ("X", "")}, "taxa_L30": NAMES["taxa_L30"]}
    with pytest.raises(UserError, match="genus X lies in family Paridae, and by a picture in family Passeridae"):
        grown_taxonomy(small_taxonomy(), tuple(TAXA), np.array([[9, 8, 31], [10, 8, 32]]), names)


def test_an_id_that_another_taxon_has_is_not_taken():
    """The id 21 is Parus in the model and something else in the source."""
    names = {"taxa_L10": {11: ("X y", "")}, "taxa_L20": {21: ("X", "")}, "taxa_L30": {5: ("paridae", "")}}
    taxonomy, label = grown_taxonomy(small_taxonomy(), tuple(TAXA), np.array([[11, 21, 5]]), names)
    assert label.tolist() == [[5, 3, 1]]
    assert len(set(taxonomy.classes["taxa_L10"].tolist())) == 6
    assert len(set(taxonomy.classes["taxa_L20"].tolist())) == 4


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for genus, species, count in (("Parus", "Parus novus", 3), ("Passer", "Passer novus", 1)):
        (folder / genus / species).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / genus / species / f"{number}.png")
    return folder


@pytest.mark.slow
def test_the_command_adds_what_folders_hold(kept, photos, tmp_path, capsys):
    write_bundle(dataclasses.replace(kept, onnx=b"old"), tmp_path / "old")
    given = ["--folders", str(photos), "--folder-ranks", "genus,species", "--out"]
    assert extend.main([str(tmp_path / "old"), *given, str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "2 species added from 4 pictures" in printed
    assert "onnxruntime is left out" in printed
    new = read_bundle(tmp_path / "new")
    assert new.taxonomy.names.name["taxa_L10"][-2:].tolist() == ["Parus novus", "Passer novus"]
    assert new.taxonomy.tree.parent["taxa_L10"][-2:].tolist() == [1, 2]
    assert not new.onnx
    assert "Parus novus" in (tmp_path / "new" / "README.md").read_text()
    picture = photos / "Parus" / "Parus novus" / "0.png"
    said = Model(new, buckets=(2,)).predict(picture, restrict="Parus novus", min_confidence=0)[0]
    assert said.answer is not None
    assert said.answer.name == "Parus novus"
    assert extend.main([str(tmp_path / "old"), *given, str(tmp_path / "new")]) == 2  # it is there
    capsys.readouterr()
    assert extend.main([str(tmp_path / "new"), *given, str(tmp_path / "third")]) == 2
    assert capsys.readouterr().err.count("is in the model already") == 2
    assert not (tmp_path / "third").exists()
    line = [str(tmp_path / "old"), "--merge", str(tmp_path / "new"), "--out", str(tmp_path / "third")]
    assert extend.main(line) == 0
    assert "2 species added from 4 pictures" in capsys.readouterr().out
    assert extend.main([str(tmp_path / "new"), "--merge", str(tmp_path / "old"), "--out", str(tmp_path / "o")]) == 2
    assert "there is nothing to add" in capsys.readouterr().err


def test_what_cannot_be_extended_says_why(kept, trained, photos, tmp_path, capsys):
    write_bundle(dataclasses.replace(kept, exemplars=None), tmp_path / "without")
    rows = dataclasses.replace(kept.exemplars, x=kept.exemplars.x[:, :8])
    write_bundle(dataclasses.replace(kept, exemplars=rows), tmp_path / "narrow")
    write_bundle(kept, tmp_path / "good")
    with pytest.raises(UserError, match="several runs"):
        check_extendable(dataclasses.replace(kept, variables={**kept.variables, OTHERS: [{}]}))
    broken = tmp_path / "broken" / "Parus" / "Parus novus"
    broken.mkdir(parents=True)
    (broken / "0.png").write_bytes(b"nothing")
    for bundle, pictures, said in (
        (tmp_path / "without", photos, "it again from its run with linnaeus bundle"),
        (tmp_path / "narrow", photos, "8 features, and its heads 16: they are of another model"),
        (Path(trained), photos, "it takes metadata"),
        (tmp_path / "good", broken.parent.parent, "0.png"),
        (tmp_path / "good", tmp_path / "none", "none"),
    ):
        out = tmp_path / "o"
        line = [str(bundle), "--folders", str(pictures), "--folder-ranks", "genus,species", "--out", str(out)]
        assert extend.main(line) == 2, bundle
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1, error
        assert not out.exists()
