"""A published classifier of scientific names as a bundle, without training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import linnaeus_jax
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle import from_weights
from linnaeus_jax.inference.bundle.coarser_ranks import RankTable
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.bundle.from_weights import GENUS, SPECIES, bundle_from_weights, read_labels
from linnaeus_jax.inference.paths import TaxonomyPaths, log_softmax
from linnaeus_jax.inference.quality.card import write_card
from linnaeus_jax.run.saved_weights import run_state_of
from linnaeus_jax.tools import bundle as bundle_tool
from linnaeus_jax.weights.importing import read_pretrained
from tests.weights.helpers import model_of, section
from tests.weights.hub_vit import SIZES
from tests.weights.make_references import drawn_pictures
from tests.weights.test_hub_parity import recorded
from tests.weights.test_hub_vit import Published, computed, off
from tests.weights.test_tflite import KEYS, file_of, published

LABELS = "Parus major (Great Tit)\nPoecile montanus\nParus minor (Japanese Tit)\nTurdus merula\nbackground\n"


def labels(tmp_path, text=LABELS, encoding="utf-8") -> Path:
    path = tmp_path / "labels.txt"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.fixture
def source(monkeypatch):
    """A MobileNetV2 of five classes, whose file is not written."""
    file = file_of(model_of(section(**KEYS), size=64))
    monkeypatch.setattr(from_weights, "read_state", lambda path: file)
    return file


def test_labels(tmp_path):
    tit, *_, background = read_labels(labels(tmp_path, LABELS + "\n\n"))
    assert tit == ("Parus major", "Great Tit", "Parus", {})
    assert background == ("", "", "", {})
    (hybrid,) = read_labels(labels(tmp_path, "Anas superciliosa × platyrhynchos (Mallard × Pacific)\n", "latin-1"))
    assert hybrid == ("Anas superciliosa × platyrhynchos", "Mallard × Pacific", "Anas", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 lines"),
        ("Parus major\ntench, Tinca tinca\n", ":2: 'tench, Tinca tinca' is no scientific name"),
        ("Parus major\nParus\n", ":2: 'Parus' is no scientific name"),
        ("Parus major\n\nTurdus merula\n", "labels.txt:2"),
        ("Parus major\nParus major (Tit)\n", ":2: 'Parus major' stands in line 1 already"),
        ("background\nnull\n", "the background stands in line 1 already"),
    ],
)
def test_labels_that_cannot_be_used(tmp_path, text, words):
    with pytest.raises(UserError) as caught:
        read_labels(labels(tmp_path, text))
    assert words in str(caught.value)


def test_classes_heads_and_names(tmp_path, source):
    weight = source.arrays["52/FULLY_CONNECTED/weights"]
    weight[:] = np.arange(5)[:, None]
    made = bundle_from_weights("x.tflite", labels(tmp_path))
    taxonomy = made.taxonomy
    assert taxonomy.ranks == {SPECIES: "species", GENUS: "genus"}
    assert taxonomy.names.name[SPECIES].tolist() == [
        "",
        "Parus major",
        "Poecile montanus",
        "Parus minor",
        "Turdus merula",
    ]
    assert taxonomy.names.name[GENUS].tolist() == ["", "Parus", "Poecile", "Turdus"]
    assert taxonomy.tree.parent[SPECIES].tolist() == [-1, 1, 2, 1, 3]
    assert len({*taxonomy.classes[SPECIES].tolist(), *taxonomy.classes[GENUS].tolist()}) == 5 + 3
    head = made.variables["params"]["head"]
    assert head[SPECIES]["fc"]["kernel"][0].tolist() == [4, 0, 1, 2, 3]  # the background first
    assert not head[GENUS]["fc"]["kernel"].any()
    assert made.preprocessing.interpolation == "lanczos"
    assert made.calibration.rows == 0
    write_bundle(made, tmp_path / "bundle", lambda out: write_card(made, None, out))
    again = read_bundle(tmp_path / "bundle")
    assert again.taxonomy.tree.to_json() == taxonomy.tree.to_json()
    assert not again.taxonomy.tree.null_below
    # ---- which gives its weights to another model
    state = run_state_of(section(**KEYS, pretrained=str(tmp_path / "bundle")))
    assert state is not None
    assert state.facts["classes"] == {task: ids.tolist() for task, ids in taxonomy.classes.items()}
    other = {SPECIES: [0, 3, 77], GENUS: [0, 7]}
    parents = {SPECIES: [-1, 1, 1]}
    model = model_of(section(**KEYS), size=64, classes=other, parents=parents, components=())
    done = read_pretrained(section(**KEYS, pretrained="bundle"), model, other, state)
    assert done.rows[f"head.{SPECIES}.fc.weight"].tolist() == [True, True, False]
    assert done.arrays[f"head.{SPECIES}.fc.weight"][:2, 0].tolist() == [4, 2]
    assert (done.needs["data.img_size"], done.needs["data.interpolation"]) == (224, "lanczos")
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "as published, not trained further" in card
    assert "nothing was measured" in card
    damaged = tmp_path / "bundle" / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"weights\.safetensors is not the file that was written"):
        run_state_of(section(**KEYS, pretrained=str(tmp_path / "bundle")))


RANKS = (
    "genus,family,order\nParus,Paridae,Passeriformes\nPoecile,Paridae,Passeriformes\nTurdus,Turdidae,Passeriformes\n"
)
BOTH = "Species;Family;Genus\nParus major;Paridae;Parus\nPoecile montanus;Paridae;\nParus minor;;Parus\n"


def table(tmp_path, text=RANKS) -> Path:
    path = tmp_path / "ranks.csv"
    path.write_text(text)
    return path


def names_of_parents(taxonomy) -> dict[str, list[str]]:
    """Of every class below the coarsest rank the name of what it lies in, "" of null."""
    named = {}
    for finer, task in zip(taxonomy.tasks, taxonomy.tasks[1:], strict=False):
        parents = taxonomy.tree.parent[finer].tolist()
        named[finer] = ["" if parent < 0 else taxonomy.names.name[task][parent] for parent in parents]
    return named


@pytest.mark.parametrize("text", [RANKS, BOTH + "Turdus merula L.;Turdidae;Turdus\n"])
def test_coarser_ranks_from_a_table(tmp_path, source, text):
    made = bundle_from_weights("x.tflite", labels(tmp_path), table(tmp_path, text))
    taxonomy = made.taxonomy
    coarser = ["family", "order"] if text == RANKS else ["family"]
    assert list(taxonomy.ranks.values()) == ["species", "genus", *coarser]
    named = names_of_parents(taxonomy)
    assert named[SPECIES] == ["", "Parus", "Poecile", "Parus", "Turdus"]
    assert named[GENUS] == ["", "Paridae", "Paridae", "Turdidae"]
    assert len({taxon for task in taxonomy.tasks for taxon in taxonomy.classes[task].tolist()}) == 1 + sum(
        taxonomy.tree.num_classes[task] - 1 for task in taxonomy.tasks
    )
    logits = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32) * 3
    given = {task: np.zeros((20, taxonomy.tree.num_classes[task]), np.float32) for task in taxonomy.tasks}
    found = TaxonomyPaths(taxonomy.tree)(given | {SPECIES: logits}, made.calibration.paths)
    wanted = np.exp(log_softmax(logits))
    np.testing.assert_allclose(found.by_task["taxa_L30"][:, 1], wanted[:, 1:4].sum(axis=1), atol=1e-9)
    write_bundle(made, tmp_path / "bundle", lambda out: write_card(made, None, out))
    assert read_bundle(tmp_path / "bundle").taxonomy.tree.to_json() == taxonomy.tree.to_json()


def test_of_a_genus_in_two_families_the_species_tell(tmp_path):
    text = "species,family\nMorus alba,Moraceae\nMorus bassanus,Sulidae\n"
    found = RankTable(table(tmp_path, text))
    assert found.above("Morus bassanus", "Morus") == {"L30": "Sulidae"}
    assert found.above("Morus nigra", "Morus") == {}


def test_coarser_ranks_from_names_of_inaturalist(tmp_path, source):
    birds = "Animalia_Chordata_Aves_Passeriformes"
    lines = [f"00{i}_{birds}_{name}" for i, name in enumerate(("Paridae_Parus_major", "Paridae_Parus_minor"))]
    lines += [f"003_{birds}_Corvidae_Corvus_corax", "004_Plantae_Tracheophyta_Liliopsida_Poales_Poaceae_Poa_annua"]
    made = bundle_from_weights("x.tflite", labels(tmp_path, "\n".join([*lines, "background"])))
    ranks = ["species", "genus", "family", "order", "class", "phylum", "kingdom"]
    assert list(made.taxonomy.ranks.values()) == ranks
    named = names_of_parents(made.taxonomy)
    assert named[GENUS] == ["", "Corvidae", "Paridae", "Poaceae"]
    assert named["taxa_L60"] == ["", "Animalia", "Plantae"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not exist"),
        ("genus,family\n", "has a header and no records"),
        ("genus\nParus\n", "columns with the names of a species or genus and of at least one coarser rank are needed"),
        ("family,order\nParidae,Passeriformes\n", "of a species or genus and of at least one coarser rank are needed"),
        (
            "genus,family\nParus,Paridae\n",
            "the family of 2 of 4 classes: Poecile montanus, Turdus merula",
        ),
        ("species,family\nParus major,A-idae\nParus major,B-idae\n", "the family of 'Parus major' is 'A-idae' in one"),
        (RANKS.replace("Poecile,Paridae,P", "Poecile,Paridae,Other p"), "the family 'Paridae' lies in"),
        (RANKS + "Parus,Other,Passeriformes\n", "does not tell the family of 2 of 4 classes: Parus major"),
    ],
)
def test_tables_of_ranks_that_cannot_be_used(tmp_path, source, text, words):
    path = tmp_path / "none.csv" if text is None else table(tmp_path, text)
    with pytest.raises(UserError) as caught:
        bundle_from_weights("x.tflite", labels(tmp_path), path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_has_its_ranks(capsys):
    assert bundle_tool.main(["run", "out", "--taxonomy=ranks.csv"]) == 2
    assert "--taxonomy ranks.csv is for --from-weights" in capsys.readouterr().err


def test_a_path_is_as_probable_as_its_class(tmp_path, source):
    made = bundle_from_weights("x.tflite", labels(tmp_path))
    logits = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32) * 3
    given = {SPECIES: logits, GENUS: np.zeros((50, 4), np.float32)}
    found = TaxonomyPaths(made.taxonomy.tree)(given, made.calibration.paths)
    wanted = np.exp(log_softmax(logits))
    np.testing.assert_allclose(found.by_task[SPECIES], wanted, atol=1e-9)
    np.testing.assert_allclose(found.by_task[GENUS][:, 1], wanted[:, 1] + wanted[:, 3], atol=1e-9)
    np.testing.assert_array_equal(found.best[:, 0], logits.argmax(axis=1))


def test_another_number_of_labels(tmp_path, source):
    with pytest.raises(UserError, match=r"x.tflite has 5 classes, but .*labels.txt has 4 lines"):
        bundle_from_weights("x.tflite", labels(tmp_path, LABELS.replace("Turdus merula\n", "")))
    del source.arrays["52/FULLY_CONNECTED/biases"]
    assert bundle_from_weights("x.tflite", labels(tmp_path)).tasks == (SPECIES, GENUS)


@pytest.mark.parametrize(
    "arguments",
    [["out"], ["run", "out", "--from-weights=x"], ["out", "--from-weights=x"], ["run", "out", "--labels=x"]],
)
def test_the_tool_wants_a_run_or_weights_with_labels(arguments, capsys):
    assert bundle_tool.main(arguments) == 2
    assert "give either a run directory, or --from-weights FILE with --labels FILE" in capsys.readouterr().err


# ---- classifiers of hubs

SEVEN = [
    *("Parus major", "Parus minor", "Pica pica (Magpie)", "background"),
    "02653_Animalia_Chordata_Aves_Passeriformes_Turdidae_Turdus_merula",
    "00001_Plantae_Tracheophyta_Liliopsida_Poales_Poaceae_Poa_annua_var",
    "Turdus pilaris",
]


def of_hub(fixtures, tmp_path, name="timm", **changed) -> Path:
    """A classifier of seven classes with the description of its source, changed."""
    path = recorded(fixtures, name).write(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    return path


def test_a_description_that_names_the_classes_stands_for_labels(fixtures, tmp_path):
    path = of_hub(fixtures, tmp_path, label_names=SEVEN)
    out = tmp_path / "bundle"
    assert bundle_tool.main([str(out), f"--from-weights={path}"]) == 0
    made = read_bundle(out)
    names = made.taxonomy.names.name
    assert names[SPECIES].tolist()[:4] == ["", "Parus major", "Parus minor", "Pica pica"]
    assert names[SPECIES].tolist()[4:] == ["Turdus merula", "Poa annua var", "Turdus pilaris"]
    assert made.facts["licence"] == "mit"
    assert made.preprocessing.crop_fraction == 0.95
    source = recorded(fixtures, "timm").arrays
    kernel = made.variables["params"]["head"][SPECIES]["fc"]["kernel"]
    np.testing.assert_array_equal(kernel[:, 0], source["head.fc.weight"][3])
    np.testing.assert_array_equal(made.variables["params"]["stages.2.1"]["gamma"], source["stages.2.blocks.1.gamma"])


@pytest.mark.parametrize("case", ["timm_augreg", "timm_eva02_tiny", "timm_siglip"])
def test_a_vision_transformer_of_timm_answers_as_its_source(tmp_path, case):
    source = Published(case, tmp_path)
    config = tmp_path / "config.json"
    cfg = {"input_size": [3, 32, 32], "license": "cc-by-nc-4.0", "mean": [0.5] * 3, "std": [0.25] * 3}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"pretrained_cfg": cfg, "num_classes": 3}))
    names, out = labels(tmp_path, "Parus major\nbackground\nTurdus merula\n"), tmp_path / "bundle"
    assert bundle_tool.main([str(out), f"--from-weights={source.path}", f"--labels={names}"]) == 0
    made = read_bundle(out)
    assert made.facts["licence"] == "cc-by-nc-4.0"
    assert made.preprocessing.size == (32, 32)
    head = made.variables["params"]["head"][SPECIES]["fc"]
    logits = computed(made.model, made.variables["params"], SIZES[0]) @ head["kernel"] + head["bias"]
    assert made.taxonomy.names.name[SPECIES].tolist() == ["", "Parus major", "Turdus merula"]
    assert off(logits, source.wanted(SIZES[0], "logits")[:, [1, 0, 2]]) <= 1e-5


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("timm", {"label_names": SEVEN[:6]}, "w.safetensors has 7 classes, but"),
        ("timm", {"label_names": [*SEVEN[:6], "dog"]}, "config.json:7: 'dog' is no scientific name"),
        ("timm", {}, "--labels FILE"),
        ("timm", {"label_names": SEVEN, "pretrained_cfg": {}}, "is not known: "),
        ("transformers_dinov3", {}, "holds no classifier"),
    ],
)
def test_classifiers_of_hubs_that_cannot_be_used(fixtures, tmp_path, name, changed, words):
    with pytest.raises(UserError) as caught:
        bundle_from_weights(str(of_hub(fixtures, tmp_path, name, **changed)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.needs("weights")
@pytest.mark.parametrize("which", ["bird", "insect"])
def test_published_bundles_answer_as_the_reference(tmp_path, fixtures, which):
    path = next(path for path in published() if f"inat_{which}" in path.name)
    out, names = tmp_path / "bundle", path.with_name(f"inat_{which}.txt")
    assert bundle_tool.main([str(out), f"--from-weights={path}", f"--labels={names}"]) == 0
    assert "Apache-2.0" in (out / "README.md").read_text()
    lines = read_labels(names)
    model = linnaeus_jax.load(out)
    species = model.bundle.taxonomy.names.name[SPECIES]
    predictions = model.predict(drawn_pictures(224), min_confidence=0.0)
    paths = TaxonomyPaths(model.bundle.taxonomy.tree)
    logits = model.forward(drawn_pictures(224), np.zeros((24, 0), np.float32), np.zeros((24, 0), bool))
    best = paths(logits, model.bundle.calibration.paths).best[:, 0]
    with np.load(fixtures / f"reference_{path.stem}.npz") as reference:
        assert [str(species[each]) for each in best] == [lines[row].name for row in reference["drawn_best"]]
    assert len(predictions) == 24
    if directory := os.environ.get("LINNAEUS_PICTURES"):
        assert model.predict(sorted(Path(directory).rglob("*.jpg"))[:4])
