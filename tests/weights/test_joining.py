"""Several trunks in one model, from several files of weights, see `model.features`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.models.joined import Trunk, build_trunk, can_be_joined
from linnaeus_jax.models.names import params_to_torch
from linnaeus_jax.registry import MODELS
from linnaeus_jax.run.pretrained import adopt_source, set_needs
from linnaeus_jax.weights.exporting import facts, own_settings, torch_state, write_state
from linnaeus_jax.weights.files import IMAGE, SETTINGS, read_state
from linnaeus_jax.weights.joining import joined_needs, joined_state, read_weights, trunk_of
from tests.weights.helpers import CLASSES, model_of, section, trees

TINY = {"type": "EfficientNet", "variant": "tiny"}
CONVNEXT = {"family": "ConvNeXt", "variant": "test"}
PICTURES = {"size": [96, 96], "resize_mode": "squash", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}


def positive(tree):
    """With variances above 0."""
    return jax.tree.map(lambda leaf: np.abs(leaf) + 0.5, tree)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A file as others publish it, and one that this program exported from a run with metadata."""
    directory = tmp_path_factory.mktemp("sources")
    for seed, name in enumerate(("published", "exported")):
        settings = section(**TINY, **({"efficientnet__nominal_size": 0} if seed else {}))
        model = model_of(settings)
        params, state = trees(model, seed)
        arrays = torch_state(model, params, positive(state))
        path = directory / f"{name}.safetensors"
        if name == "published":
            arrays = {key: array for key, array in arrays.items() if not key.startswith(("head.", "fusion."))}
            save_file(arrays | {"_fc.weight": np.ones((7, 1280), np.float32), "_fc.bias": np.ones(7, np.float32)}, path)
        else:
            about = facts(model, settings.type, settings.variant, CLASSES, weights="last", step=3)
            write_state(path, arrays, about | {IMAGE: PICTURES} | own_settings(settings))
    return directory / "published.safetensors", directory / "exported.safetensors"


def configured(sources, **keys):
    config = get_config()
    config.model.features = tuple(map(str, sources))
    for key, value in keys.items():
        config.update_from_flattened_dict({key.replace("__", "."): value})
    return config


def settled(config):
    """The sources that a configuration names, after it has taken over what they need."""
    state, _ = adopt_source(config)
    assert state is not None
    return state


def test_trunks_and_pictures_become_the_configuration(sources):
    config = configured(sources, model__type="EfficientNet", model__variant="lite0", aug__mean=(0.1, 0.1, 0.1))
    state, (taken, replaced) = adopt_source(config)
    assert state is not None
    assert "defaults: model.trunks = ((EfficientNet, tiny, ()" in taken
    assert "whatever the configuration file says: model.type = Joined, model.variant = sources, aug.mean" in replaced
    assert (config.model.type, config.model.variant, config.data.img_size) == ("Joined", "sources", 96)
    assert (tuple(config.aug.mean), tuple(config.aug.std)) == ((0, 0, 0), (1, 1, 1))  # each trunk has its own
    lite = ("EfficientNet", "tiny", (), (127 / 255,) * 3, (128 / 255,) * 3)
    own = ("EfficientNet", "tiny", (("efficientnet.nominal_size", 0),), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert config.model.trunks == (lite, own)
    assert not [error for error in config_errors(config) if error.startswith("model")]
    assert [part.path for part in state.parts] == list(sources)
    again = configured(sources)
    set_needs(again, json.loads(json.dumps(joined_needs(state.parts))), ("aug.mean",))  # as a run that goes on reads it
    assert again.model.trunks == config.model.trunks


def test_every_trunk_gives_what_it_gives_alone(sources):
    config = configured(sources)
    state = settled(config)
    model = model_of(config.model, size=64)
    done = read_weights(config.model, model, CLASSES, state)
    params, statistics = done.merged(*trees(model, seed=9))
    variables = {"params": params, **statistics}
    picture = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8))

    def encoded(network, variables, moments):
        encode = jax.jit(partial(network.apply, method="encode_image"))
        return encode(variables, normalize(picture, *moments))

    found = encoded(model, variables, (config.aug.mean, config.aug.std))
    assert found.shape == (2, 2560)
    for place, trunk in enumerate(map(trunk_of, state.parts)):
        name = f"trunks_{place}"
        alone = model.trunk(place)
        assert alone.nominal_size == (0 if place else 64)
        own = {collection: tree[name] for collection, tree in variables.items()}
        expected = encoded(alone, own, (trunk.mean, trunk.std))
        assert np.abs(expected).max() > 1e-3
        part = found[:, place * 1280 : (place + 1) * 1280]
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
        arrays = params_to_torch(own["params"])
        loaded = load_file(sources[place])
        assert all(np.array_equal(array, loaded[leaf]) for leaf, array in arrays.items())


def test_a_trunk_of_another_family_brings_all_its_settings(sources, tmp_path):
    """Numbers, texts, truth values and tuples of numbers."""
    own = {"stem": "overlap", "act": "silu", "use_grn": True, "norm_eps": 1e-5, "kernel_sizes": (3,)}
    settings = section(type="ConvNeXt", variant="test", **{f"convnext__{key}": value for key, value in own.items()})
    network, path = model_of(settings), tmp_path / "other.safetensors"
    about = facts(network, "ConvNeXt", "test", CLASSES, weights="last", step=1) | {IMAGE: PICTURES}
    write_state(path, torch_state(network, *trees(network)), about | own_settings(settings))
    config = configured((sources[0], path))
    state = settled(config)
    model = model_of(config.model, size=64)
    trunk = model.trunk(1)
    assert {key: getattr(trunk, key) for key in own} == own
    assert all(getattr(trunk, key) == getattr(network, key) for key in trunk.keys if key != "drop_rate")
    done = read_weights(config.model, model, CLASSES, state)
    assert not done.problems
    assert {row.name.split(".")[0] for row in done.coverage.of("initial")} == {"head", "fusion"}


@pytest.mark.parametrize("family", [name for name, family in MODELS.entries.items() if can_be_joined(family)])
def test_a_trunk_without_settings_is_that_of_the_default_configuration(family):
    for variant in MODELS[family].variants:
        whole = model_of(section(type=family, variant=variant), size=64)
        given = {name: getattr(whole, name) for name in ("img_size", "dtype", "remat", "missing_metadata")}
        alone = build_trunk(Trunk(family, variant, (), (0.0,) * 3, (1.0,) * 3), **given)
        assert alone.drop_rate == 0.0
        assert all(getattr(alone, key) == getattr(whole, key) for key in alone.keys if key != "drop_rate"), variant


def test_what_became_of_every_array_is_told_for_each_trunk(sources):
    config = configured(sources)
    state = settled(config)
    model = model_of(config.model, size=64)
    done = read_weights(config.model, model, CLASSES, state)
    coverage = done.coverage
    assert {row.name.split(".")[0] for row in coverage.of("initial")} == {"head", "fusion"}
    assert not done.problems
    table = coverage.table()
    for place, source in enumerate(sources):
        assert f"trunks_{place} from {source}: " in table
    skipped = {row.name for row in coverage.of("skipped")}
    assert {"trunks_0._fc.weight", "trunks_1.head.taxa_L10.fc.weight"} <= skipped
    record = done.to_json()
    assert [file["path"] for file in record["files"]] == list(map(str, sources))
    assert record["name"] == "published.safetensors + exported.safetensors"
    assert record["licence"] == "licence unknown"
    assert record["needs"]["model.type"] == "Joined"


def test_the_joined_model_as_a_file_can_be_taken_whole(sources, tmp_path):
    """And what stands beside family and variant in it is enough to build the trunks again."""
    config = configured(sources)
    adopt_source(config)
    model = model_of(config.model, size=64)
    params, state = trees(model, 5)
    path = tmp_path / "joined.safetensors"
    about = facts(model, "Joined", "sources", CLASSES, weights="last", step=1) | own_settings(config.model)
    pictures = PICTURES | {"size": [64, 64], "mean": [0.0] * 3, "std": [1.0] * 3}
    write_state(path, torch_state(model, params, positive(state)), json.loads(json.dumps(about | {IMAGE: pictures})))
    assert list(read_state(path).facts[SETTINGS]) == ["trunks"]

    other = get_config()
    other.model.pretrained = str(path)
    source, _ = adopt_source(other)
    assert (other.model.type, other.model.trunks) == ("Joined", config.model.trunks)
    done = read_weights(other.model, model_of(other.model, size=64), CLASSES, source)
    assert {row.name for row in done.coverage.of("initial", "other shape")} == set()
    with pytest.raises(UserError, match="is of several trunks itself"):
        adopt_source(configured((sources[0], path)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("a.pth",), "names one source; two or more are needed"),
        (("a.pth", "a.pth"), "names 'a.pth' twice"),
        (("a.pth", ""), "has an empty name"),
        (("a.pth", "package:"), "model.features = 'package:' is incomplete"),
        (("a.pth", "https://example.org/b.pth"), "is an address"),
    ],
)
def test_names_that_cannot_be_are_config_errors(given, words):
    errors = config_errors(configured(given))
    assert any("model.features" in error and words in error for error in errors), errors


def test_what_excludes_several_sources_is_a_config_error():
    for key, value in {
        "pretrained": "c.pth",
        "pretrained_source": "metaformer",
        "pretrained_classes": "c.json",
    }.items():
        config = configured(("a.pth", "b.pth"), **{f"model__{key}": value})
        assert adopt_source(config) == (None, [])
        (error,) = [error for error in config_errors(config) if "exclude each other" in error]
        assert error.startswith(f"model.{key} = {value!r} and model.features")
        assert f"--config.model.{key}=" in error


def test_sources_that_are_no_trunks_are_named(sources, tmp_path):
    first = sources[0]
    resnet, nothing, fusing, copy = (
        tmp_path / f"{name}.safetensors" for name in ("resnet", "nothing", "fusing", "copy")
    )
    save_file({"layer1.0.conv1.weight": np.ones((2, 2), np.float32)}, resnet)
    save_file({"x": np.ones(2, np.float32)}, nothing)
    save_file({"stages.2.0.attn.qkv.weight": np.ones((2, 2), np.float32)}, fusing)
    copy.write_bytes(first.read_bytes())
    silent = tmp_path / "silent.safetensors"
    model = model_of(section(**TINY))
    write_state(
        silent,
        torch_state(model, *trees(model)),
        facts(model, "EfficientNet", "tiny", CLASSES, weights="last", step=1),
    )
    for path, words in (
        (resnet, "looks like ResNet; trunks of these families can be joined: ConvNeXt, EfficientNet"),
        (nothing, "holds no trunk that is known"),
        (fusing, "'mFormerV1' is no family whose trunk can be joined; choose one of ConvNeXt, EfficientNet"),
        (copy, f"names {copy} twice"),
        (silent, "does not say how its pictures were normalised"),
        (tmp_path / "gone.pth", "gone.pth does not exist"),
    ):
        with pytest.raises(UserError) as caught:
            adopt_source(configured((first, path)))
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
    with pytest.raises(UserError, match=r"model\.features = 'package:nobody-has-this'"):
        adopt_source(configured((first, "package:nobody-has-this")))


def test_a_family_that_the_user_insists_on_is_an_error(sources):
    config, _ = load_config(["--config=mformer_v1_sm", "--config.model.type=EfficientNet"])
    config.model.features = tuple(map(str, sources))
    state = settled(config)
    model = model_of(section(**TINY))
    with pytest.raises(UserError, match=r"model\.features needs model\.type = 'Joined', but it is 'EfficientNet'"):
        read_weights(config.model, model, CLASSES, state)


def test_a_file_that_lacks_an_array_is_named_with_its_own_names(sources, tmp_path):
    arrays, path = load_file(sources[0]), tmp_path / "less.safetensors"
    save_file({name: array for name, array in arrays.items() if "_blocks.3." not in name}, path)
    config = configured((path, sources[1]))
    with pytest.raises(UserError, match=r"the blocks of .*less.safetensors are those of no variant of EfficientNet"):
        adopt_source(config)
    save_file({name: array for name, array in arrays.items() if "_blocks.3._depthwise" not in name}, path)
    state = settled(config)
    with pytest.raises(UserError, match=r"less.safetensors .*missing in the file: _blocks.3._depthwise"):
        read_weights(config.model, model_of(config.model, size=64), CLASSES, state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"family": "mFormerV0"}, "is no family whose trunk can be joined"),
        ({"family": "Joined"}, "is no family whose trunk can be joined"),
        ({"variant": "b9"}, "'b9' is no variant of EfficientNet"),
        ({"settings": (("x", 1),)}, "pairs of a key and its value"),
        (
            {"settings": (("efficientnet.nominal_size", "64"),)},
            "nominal_size = '64' must be a whole number",
        ),
        ({"settings": (("efficientnet.norm_eps", True),)}, "efficientnet.norm_eps = True must be a number"),
        ({"settings": (("efficientnet.padding", "odd"),)}, "model.efficientnet.padding = 'odd' is unknown"),
        ({"std": (0.0, 1.0, 1.0)}, "its std must be three numbers above 0"),
        ({"mean": (0.0,)}, "its mean must be three numbers"),
        ({"settings": (("efficientnet.nominal_size", 5),)}, "model.efficientnet.nominal_size = 5"),
        (CONVNEXT | {"settings": (("convnext.kernel_sizes", (3, "3")),)}, "must be a tuple of numbers"),
        (CONVNEXT | {"settings": (("convnext.use_grn", 1),)}, "convnext.use_grn = 1 must be True or False"),
    ],
)
def test_trunks_that_cannot_be_are_config_errors(sources, change, words):
    trunk = trunk_of(read_state(sources[0]))
    config = get_config()
    config.model.type, config.model.variant = "Joined", "sources"
    config.model.trunks = (tuple(trunk), tuple(trunk._replace(**change)))
    assert any(words in error for error in config_errors(config)), config_errors(config)
    config.model.trunks = (tuple(trunk),)
    assert any("model.trunks has 1 items; 2 to 8 are needed" in error for error in config_errors(config))


def test_a_state_of_several_has_the_digest_of_all(sources):
    parts = [read_state(path) for path in sources]
    one = joined_state(parts).sha256
    other = joined_state([parts[0], replace(parts[1], sha256="0" * 64)]).sha256
    assert len({one, other, parts[0].sha256}) == 3
