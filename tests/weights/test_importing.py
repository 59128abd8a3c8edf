"""Weights of files in a model: identity round trips, heads of other classes, strictness and its messages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights import coverage as cov
from linnaeus_jax.weights.classes import match_rows
from linnaeus_jax.weights.files import read_state
from linnaeus_jax.weights.importing import read_pretrained
from linnaeus_jax.weights.settings import reads_weights, setting_errors
from tests.npz import load_npz
from tests.weights.helpers import CLASSES, SMALL, assert_same, model_of, save_export, save_original, section, trees


@pytest.fixture(scope="module")
def settings():
    return section(**SMALL)


@pytest.fixture(scope="module")
def model(settings):
    return model_of(settings)


@pytest.fixture(scope="module")
def weights(model):
    return trees(model)


@pytest.fixture(scope="module")
def original(tmp_path_factory, model, weights):
    return save_original(tmp_path_factory.mktemp("original") / "x.safetensors", model, *weights)


@pytest.fixture(scope="module")
def export(tmp_path_factory, settings, model, weights):
    return save_export(tmp_path_factory.mktemp("export") / "x.safetensors", settings, model, *weights)


def taken(path, model, classes=CLASSES, run_state=None, **keys):
    """What `model.pretrained` = path imports."""
    return read_pretrained(section(**SMALL, pretrained=str(path), **keys), model, classes, run_state)


def refusal(*arguments, **keys) -> str:
    with pytest.raises(UserError) as caught:
        taken(*arguments, **keys)
    return str(caught.value)


def changed(path, tmp_path, **arrays):
    """A copy of a file with other arrays; None leaves one out."""
    out = tmp_path / "changed.safetensors"
    every = load_file(path) | arrays
    save_file({name: array for name, array in every.items() if array is not None}, out)
    return out


# ---- everything fits


@pytest.mark.parametrize("kind", ["original", "export"])
def test_import_of_the_export_is_the_identity(request, model, weights, kind):
    done = taken(request.getfixturevalue(kind), model)
    assert_same(done.merged(*trees(model, seed=1)), weights)
    counts = done.coverage.counts()
    assert counts[cov.LOADED] == sum(counts.values()) == len(done.arrays)
    assert "(100.0% of" in done.coverage.summary()


def test_a_state_that_was_read_already(export, model, weights):
    done = taken("some/run", model, run_state=read_state(export))
    assert_same(done.merged(*trees(model, seed=1)), weights)
    assert done.files[0].sha256 == read_state(export).sha256


def test_leaves_keep_type_and_dtype(export, model):
    import jax

    params, state = trees(model, seed=1)
    merged, _ = taken(export, model).merged(jax.tree.map(jax.numpy.asarray, params), state)
    for old, new in zip(jax.tree.leaves(params), jax.tree.leaves(merged), strict=True):
        assert type(new) is np.ndarray
        assert (old.dtype, old.shape) == (new.dtype, new.shape)


def test_the_original_had_no_rotation(original, export, model):
    assert "rope_mode = 'cos_only'" in taken(original, model).coverage.table()
    assert "cos_only" not in taken(export, model).coverage.table()
    cosine = model_of(section(**SMALL, rope_stages__rope_mode="cos_only"))
    assert "cos_only" not in taken(original, cosine).coverage.table()


def test_squared_scale_is_folded_into_q(original, model, weights):
    squared = taken(original, model, pretrained_attn_scale="squared")
    plain = taken(original, model)
    name = "stages.3.0.attn.qkv.weight"
    dim, heads = 16, 2
    scaled = plain.arrays[name].copy()
    scaled[:dim] *= (dim / heads) ** -0.5
    np.testing.assert_allclose(squared.arrays[name], scaled, rtol=1e-6)
    changed = [name for name in plain.arrays if not np.array_equal(plain.arrays[name], squared.arrays[name])]
    assert len(changed) == 6
    assert all(".attn.qkv." in name for name in changed)
    assert "folded into q of 3 attention layers" in squared.coverage.table()


def test_squared_scale_of_an_own_file_is_refused(export, model):
    assert "pretrained_attn_scale = 'squared'" in refusal(export, model, pretrained_attn_scale="squared")


@pytest.mark.parametrize(("family", "fixture"), [("mFormerV1", "models_v1_tiny"), ("mFormerV0", "models_v0_tiny")])
def test_weights_of_the_original(fixtures, tmp_path, family, fixture):
    """Every array of the original's own models, none left over."""
    golden = load_npz(fixtures / f"{fixture}.npz")
    cfg = json.loads(str(golden["cfg"]))
    kw = cfg["kw"]
    if family == "mFormerV1":
        sizes = {
            "convnext_stages__dims": tuple(kw["dims"]),
            "convnext_stages__depths": tuple(kw["depths01"]),
            "rope_stages__depths": tuple(kw["rope_depths"]),
            "rope_stages__num_heads": tuple(kw["heads"]),
        }
    else:
        sizes = {
            "conv_stages__embed_dims": tuple(kw["conv_embed"]),
            "conv_stages__out_channels": tuple(kw["out_ch"]),
            "conv_stages__depths": tuple(kw["depths"]),
            "conv_stages__stride_seqs": tuple(map(tuple, kw["strides"])),
            "attention_stages__dims": tuple(kw["attn_dims"]),
            "attention_stages__depths": tuple(kw["attn_depths"]),
            "attention_stages__stride_seqs": tuple(map(tuple, kw["attn_strides"])),
            "attention_stages__num_heads": tuple(kw["heads"]),
        }
    path = tmp_path / "x.safetensors"
    save_file({n.removeprefix("param/"): golden[n] for n in golden if n.startswith("param/")}, path)
    components = [(name, dim) for name, dim, _ in cfg["meta"]]
    settings = section(type=family, pretrained=str(path), **sizes)
    classes = {task: range(count) for task, count in cfg["tasks"].items()}
    model = model_of(settings, classes=classes, components=components, size=kw["img"], parents={})
    done = read_pretrained(settings, model, {})
    assert done.coverage.counts()[cov.LOADED] == len(done.coverage.rows)


# ---- other classes


def head(merged, task="taxa_L10"):
    fc = merged[0]["head"][task]["fc"]
    return fc["kernel"].T, fc["bias"]


def test_rows_are_matched_by_taxon_id(export, model, weights):
    classes = {"taxa_L10": [0, 15, 99, 11], "taxa_L20": CLASSES["taxa_L20"]}
    other = model_of(section(**SMALL), classes=classes)
    initial = trees(other, seed=1)
    done = taken(export, other, classes)
    (kernel, bias), (old_kernel, old_bias) = head(done.merged(*initial)), head(weights)
    new_kernel, new_bias = head(initial)
    for row, source in enumerate([0, 5, None, 1]):
        expected = (new_kernel[row], new_bias[row]) if source is None else (old_kernel[source], old_bias[source])
        np.testing.assert_array_equal(kernel[row], expected[0])
        np.testing.assert_array_equal(bias[row], expected[1])
    rows = {row.name: row for row in done.coverage.rows}
    assert rows["head.taxa_L10.fc.weight"].status == cov.MATCHED
    assert rows["head.taxa_L10.fc.weight"].note == "3 of 4 rows by taxon id"
    assert rows["head.taxa_L20.fc.weight"].status == cov.LOADED
    assert rows["head.taxa_L20.fc.weight"].note == ""
    assert "head.taxa_L10.fc.bias, head.taxa_L10.fc.weight: 3 of 4 rows by taxon id" in done.coverage.table()
    assert (rows["head.taxa_L10.fc.weight"].parameters, rows["head.taxa_L10.fc.weight"].taken) == (64, 48)


def test_the_same_classes_in_another_order(export, model, weights):
    classes = {task: ids[::-1] for task, ids in CLASSES.items()}
    done = taken(export, model, classes)
    np.testing.assert_array_equal(head(done.merged(*trees(model, seed=1)))[0], head(weights)[0][::-1])
    assert done.coverage.counts()[cov.MATCHED] == 0
    assert "6 of 6 rows by taxon id" in done.coverage.table()
    more = {"species": {7: 0, 8: 1, 9: 2}}
    assert match_rows("species", more, 3, [7, 8, 9], 3).note == ""
    assert match_rows("species", more, 3, [7, 8], 2).note == "2 of 2 rows by taxon id"


def test_classes_of_the_original_from_its_json(original, tmp_path):
    classes = {"taxa_L10": [0, 13], "taxa_L20": [0, 23]}
    other = model_of(section(**SMALL), classes=classes)
    path = tmp_path / "class_to_idx.json"
    path.write_text(
        json.dumps({t: {str(i) if i else "null": n for n, i in enumerate(ids)} for t, ids in CLASSES.items()})
    )
    done = taken(original, other, classes, pretrained_classes=str(path))
    np.testing.assert_array_equal(
        done.arrays["head.taxa_L10.fc.weight"], load_file(original)["head.taxa_L10.fc.weight"][[0, 3]]
    )
    path.write_text(json.dumps({"taxa_L10": {"13": 6}}))
    assert "indices up to 6, but the head in the file has 6 rows" in refusal(
        original, other, classes, pretrained_classes=str(path)
    )
    path.write_text("[1]")
    assert "is no class_to_idx.json" in refusal(original, other, classes, pretrained_classes=str(path))
    assert "cannot be read" in refusal(original, other, classes, pretrained_classes=str(tmp_path / "no.json"))


def test_unknown_classes_are_loaded_in_order_or_not_at_all(original, model):
    assert (
        "rows in the order of the file: the classes of the file are unknown" in taken(original, model).coverage.table()
    )
    classes = {"taxa_L10": [0, 11, 12], "taxa_L20": CLASSES["taxa_L20"]}
    done = taken(original, model_of(section(**SMALL), classes=classes), classes)
    assert [row.name for row in done.coverage.of(cov.INITIAL)] == ["head.taxa_L10.fc.bias", "head.taxa_L10.fc.weight"]
    assert "the file has 6 classes, the model 3" in done.coverage.table()


def test_other_ranks(export, model, weights):
    classes = {"taxa_L20": CLASSES["taxa_L20"], "taxa_L30": [0, 31]}
    done = taken(export, model_of(section(**SMALL), classes=classes), classes)
    assert {row.name: row.note for row in done.coverage.of(cov.INITIAL)} == {
        "head.taxa_L30.fc.bias": "the file has no head of this rank",
        "head.taxa_L30.fc.weight": "the file has no head of this rank",
    }
    assert {row.name: row.note for row in done.coverage.of(cov.SKIPPED)} == {
        "head.taxa_L10.fc.bias": "the model has no head of this rank",
        "head.taxa_L10.fc.weight": "the model has no head of this rank",
    }


@pytest.mark.parametrize("kind", ["level_classifiers", "task_classifiers"])
def test_hierarchical_heads_of_the_original(tmp_path, original, model, weights, kind):
    arrays = {}
    for owner in CLASSES:
        for level in CLASSES:
            for leaf in ("weight", "bias"):
                arrays[f"head.{owner}.{kind}.{level}.{leaf}"] = load_file(original)[f"head.{level}.fc.{leaf}"]
        arrays[f"head.{owner}.hmatrix_taxa_L20_taxa_L10"] = np.zeros((4, 6), np.float32)
    plain = {f"head.{task}.fc.{leaf}": None for task in CLASSES for leaf in ("weight", "bias")}
    path = changed(original, tmp_path, **arrays, **plain)
    done = taken(path, model)
    assert_same(done.merged(*trees(model, seed=1)), weights)
    assert len(done.coverage.of(cov.SKIPPED)) == 6
    assert "follows from the taxonomy" in done.coverage.table()
    # the coarse rank has a Linear head of its own, which is the one that was trained
    own = np.full((4, 16), 7, np.float32)
    path = changed(path, tmp_path, **{"head.taxa_L20.fc.weight": own})
    np.testing.assert_array_equal(taken(path, model).arrays["head.taxa_L20.fc.weight"], own)
    path = changed(path, tmp_path, **{f"head.taxa_L20.{kind}.taxa_L10.bias": np.ones(6, np.float32)})
    assert "should be copies of one parameter, but differ" in refusal(path, model)


# ---- what does not fit


def test_strict_names_what_does_not_fit(original, tmp_path, model):
    path = changed(
        original,
        tmp_path,
        **{"norm_1.weight": None, "stem.0.bias": np.zeros(9, np.float32), "surplus.weight": np.zeros(1, np.float32)},
    )
    text = refusal(path, model)
    for part in (
        "missing in the file: norm_1.weight;",
        "of another shape: stem.0.bias ((9,) in the file, (4,) here)",
        "unknown to the model: surplus.weight",
        "model.pretrained_strict=False",
    ):
        assert part in text
    done = taken(path, model, pretrained_strict=False)
    assert {row.name: row.status for row in done.coverage.rows if row.status != cov.LOADED} == {
        "norm_1.weight": cov.INITIAL,
        "stem.0.bias": cov.OTHER_SHAPE,
        "surplus.weight": cov.SKIPPED,
    }
    merged, initial = done.merged(*trees(model, seed=1)), trees(model, seed=1)
    np.testing.assert_array_equal(merged[0]["stem"]["0"]["bias"], initial[0]["stem"]["0"]["bias"])
    np.testing.assert_array_equal(merged[0]["norm_1"]["scale"], initial[0]["norm_1"]["scale"])


def test_other_sizes_are_one_message(export):
    other = model_of(section(variant="tiny"))
    text = refusal(export, other)
    assert "the file says model mFormerV1, variant tiny" in text
    assert "and 1" in text
    assert len(text) < 1500


def test_other_metadata_components(export):
    other = model_of(section(**SMALL), components=(("TEMPORAL", 2), ("ELEVATION", 10)))
    text = refusal(export, other)
    assert "missing in the file: meta_elevation_head_1" in text
    assert "unknown to the model: meta_spatial_head_1" in text
    assert "metadata components" in text


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["stage_3.0.attn.relative_position_bias_table"], ["looks like mFormerV0", "model.type is 'mFormerV1'"]),
        (["downsample_layers.0.0.weight"], ["looks like ConvNeXt", "stitched_convnext_ropevit"]),
        (["blocks.0.attn.qkv.weight"], ["looks like ViT", "stitched_convnext_ropevit"]),
        (["layer1.0.conv1.weight"], ["looks like ResNet", "no source"]),
        (["encoder.x", "encoder.y"], ["holds nothing of a mFormerV1; its names: encoder.x, encoder.y"]),
    ],
)
def test_another_architecture_is_one_message(tmp_path, model, names, words):
    path = tmp_path / "x.safetensors"
    save_file({name: np.zeros(2, np.float32) for name in names}, path)
    for strict in (True, False):
        text = refusal(path, model, pretrained_strict=strict)
        for word in words:
            assert word in text


def test_a_file_of_which_nothing_fits(tmp_path, model):
    path = tmp_path / "x.safetensors"
    save_file({"norm_1.weight": np.zeros(3, np.float32)}, path)
    assert "nothing in" in refusal(path, model, pretrained_strict=False)


# ---- coverage


def test_table_and_json(original, tmp_path, model):
    surplus = {f"surplus_{i}.weight": np.zeros(i, np.float32) for i in range(1, 20)}
    path = changed(original, tmp_path, **surplus, **{"norm_2.bias": None})
    coverage = taken(path, model, pretrained_strict=False).coverage
    text = coverage.table()
    for part in ("stages.2", "head.taxa_L10", "meta_temporal_head_1", "not in the file", "and 16 more: unknown"):
        assert part in text, text
    assert all(len(line) <= 200 for line in text.splitlines())
    tree = json.loads(json.dumps(coverage.to_json()))
    names = [row["name"] for row in tree["rows"]]
    assert len(names) == len(set(names))
    assert set(surplus) < set(names)
    assert tree["counts"]["skipped"] == 19
    assert sum(row["parameters"] for row in tree["rows"]) == sum(x.size for x in load_file(original).values())


# ---- settings


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({}, []),
        ({"pretrained": "x.pth"}, []),
        ({"pretrained_source": "metafromer", "pretrained": "x"}, ["pretrained_source = 'metafromer' is unknown"]),
        ({"pretrained_source": "metaformer", "pretrained": "x"}, ["fits mFormerV0 only"]),
        ({"type": "mFormerV0", "pretrained_source": "metaformer", "pretrained": "x"}, []),
        ({"type": "mFormerV0", "pretrained_source": "metaformer"}, ["without model.pretrained"]),
        ({"pretrained_convnext": "x"}, ["model.pretrained_convnext = 'x' is read with"]),
        (
            {"pretrained_source": "stitched_convnext_ropevit", "pretrained_convnext": "x"},
            ["set model.pretrained_ropevit"],
        ),
        (
            {
                "type": "mFormerV0",
                "pretrained_source": "stitched_convnext_ropevit",
                "pretrained_convnext": "x",
                "pretrained_ropevit": "y",
                "pretrained": "z",
            },
            ["fits mFormerV1 only", "exclude each other"],
        ),
        ({"pretrained_attn_scale": "cubed", "pretrained": "x"}, ["pretrained_attn_scale = 'cubed' is unknown"]),
        ({"pretrained_attn_scale": "squared"}, ["without model.pretrained"]),
        ({"type": "mFormerV0", "pretrained_attn_scale": "squared", "pretrained": "x"}, ["mFormerV1 alone"]),
        ({"pretrained_classes": "c.json"}, ["without model.pretrained"]),
        (
            {"type": "mFormerV0", "pretrained_classes": "c", "pretrained_source": "metaformer", "pretrained": "x"},
            ["without effect"],
        ),
        ({"pretrained": None, "pretrained_source": None}, []),
    ],
)
def test_settings_that_contradict_each_other(keys, parts):
    settings = {"type": "mFormerV1", **keys}
    errors = setting_errors(settings)
    assert len(errors) == len(parts), errors
    for error, part in zip(errors, parts):
        assert part in error
    assert reads_weights(settings) == any(
        settings.get(key) for key in ("pretrained", "pretrained_convnext", "pretrained_ropevit")
    )


@pytest.mark.parametrize("key", ["pretrained", "pretrained_convnext", "pretrained_ropevit", "pretrained_classes"])
@pytest.mark.parametrize(
    "address",
    [
        "https://user:secret@host/w.pth",
        "https:/user:secret@host/w.pth",
        "s3://user:secret@bucket/w",
        "hf://a/b",
        "file:///w",
    ],
)
def test_an_address_is_refused_as_one(key, address):
    (error,) = setting_errors(section(**{key: address}))
    assert f"model.{key} = '{address.partition('/')[0]}" in error
    assert "is an address" in error
    assert "secret" not in error


@pytest.mark.parametrize("path", ["w:/x.pth", "runs/a:b/c", "a@b:c.pth", "./https:/x"])
def test_a_path_with_a_colon_is_none(path):
    assert not [error for error in setting_errors(section(pretrained=path)) if "address" in error]


def test_what_is_whole_is_all_of_the_file():
    rows = [cov.Row(name, "g", status, "", 4, taken) for name, status, taken in (
        ("a", cov.LOADED, 4), ("b", cov.MATCHED, 2), ("c", cov.MATCHED, 4), ("d", cov.RESIZED, 4),
    )]  # fmt: skip
    assert cov.Coverage(tuple(rows)).whole() == {"a", "c"}
    many = [cov.Row(f"{note}.{part}", "g", cov.SKIPPED, f"note {note}") for note in range(14) for part in "ab"]
    assert cov.Coverage(tuple(many)).table().endswith("  11.a, 11.b: note 11\n  and 4 more")
