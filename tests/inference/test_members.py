"""Bundles of several runs: what they say together, what is kept and computed once, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import sealed, sha256_of
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.bundle.members import OTHERS, bundle_of_members, described, each_run, with_own_features
from linnaeus_jax.inference.files.exporting import write_export
from linnaeus_jax.inference.files.vector_files import about_vectors, digest_of_weights
from linnaeus_jax.inference.forward import BEHIND, FUSED, TRUNK, Forward
from linnaeus_jax.inference.model import Model, load
from linnaeus_jax.inference.onnx_program import onnx_program
from linnaeus_jax.inference.paths import log_softmax
from linnaeus_jax.inference.quality import measuring
from linnaeus_jax.inference.quality.card import write_card
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.names import initial_variables
from linnaeus_jax.run.saved_weights import run_state_of
from linnaeus_jax.weights.files import read_state, write_state

BLOCK = "blocks.1"


def run_of(bundle: Bundle, seed: int, *modules: str) -> Bundle:
    """As if these modules had been trained with another seed."""
    rng = np.random.default_rng(seed)

    def trained(path: Any, leaf: np.ndarray) -> np.ndarray:
        moved = ".".join(key.key for key in path[1:]).startswith(modules)
        return (leaf + rng.normal(0, 0.1, leaf.shape)).astype(leaf.dtype) if moved else leaf.copy()

    variables = jax.tree_util.tree_map_with_path(trained, bundle.variables)
    return dataclasses.replace(
        bundle, source=Path(f"run{seed}"), variables=variables, facts={**bundle.facts, "step": seed}
    )


@pytest.fixture(scope="module")
def bundle(bundle) -> Bundle:
    """Of the smallest vision transformer, which compiles faster."""
    config = get_config()
    config.model.type, config.model.variant = "ViT", "tiny"
    given = {"components": bundle.model.components, "num_classes": bundle.taxonomy.tree.num_classes, "img_size": 32}
    model = build_model(config.model, **given, parents=bundle.taxonomy.tree.parent)
    variables = jax.device_get(initial_variables(model, jax.random.key(0)))
    return dataclasses.replace(bundle, settings=config.model, model=model, variables=variables)


@pytest.fixture(scope="module")
def runs(bundle) -> list[Bundle]:
    """The heads of the second run differ from those of the first, and of the third one block, too."""
    return [bundle, run_of(bundle, 1, "head"), run_of(bundle, 2, "head", BLOCK)]


@pytest.fixture(scope="module")
def joined(runs) -> Bundle:
    return bundle_of_members(runs)


@pytest.fixture(scope="module")
def together(joined) -> Model:
    return Model(joined, buckets=(2,))


def outputs(model: Model, pixels: np.ndarray) -> dict[str, np.ndarray]:
    size = model.bundle.preprocessing.size
    _, meta, valid = model.forward.zeros(len(pixels))
    return model.giving(FUSED, logits=True)(pixels[:, : size[0], : size[1]], meta, valid)


def test_the_mean_of_log_probabilities_and_the_different_features(runs, together, pictures):
    pixels = pictures.pixels[:2]
    found, of_runs = outputs(together, pixels), [outputs(Model(run, buckets=(2,)), pixels) for run in runs]
    for task in together.bundle.tasks:
        expected = np.mean([log_softmax(each[task]) for each in of_runs], axis=0)
        np.testing.assert_allclose(found[task], expected, atol=1e-5)
        assert np.abs(of_runs[0][task] - of_runs[1][task]).max() > 0.05
    vectors = np.concatenate([of_runs[0][FUSED], of_runs[2][FUSED]], axis=1)
    np.testing.assert_allclose(found[FUSED], vectors, atol=1e-5)
    about = about_vectors(together, FUSED, "float32", normalize=False)
    assert (about["runs"], about["width"]) == (2, vectors.shape[1])
    assert "runs" not in about_vectors(Model(runs[0], buckets=(2,)), FUSED, "float32", normalize=False)


def compiled(bundle: Bundle) -> tuple[float, int]:
    """Floating-point operations and convolutions of the compiled program."""
    forward = Forward(bundle.model, bundle.variables, bundle.preprocessing, (2,))
    program = forward._jitted.lower(forward._variables, *forward.zeros(2)).compile()
    costs: Any = program.cost_analysis()
    return costs["flops"], str(program.as_text()).count(" convolution(")


def test_what_runs_share_is_computed_once(bundle, joined):
    """As the card says it."""
    (one, convolutions), (several, of_all) = compiled(bundle), compiled(joined)
    cost = float(dict(described(joined))["cost"].split()[0])
    assert of_all == convolutions > 0
    assert several / one == pytest.approx(cost, abs=0.03)
    assert 1.3 < cost < 1.6  # one run has one of the two blocks for itself


def test_parameters_are_counted(bundle, runs, joined):
    sizes = {path: leaf.size for path, leaf in flatten_dict(bundle.variables).items()}
    heads = sum(size for path, size in sizes.items() if path[1] == "head")
    block = sum(size for path, size in sizes.items() if ".".join(path[1:3]) == BLOCK)
    every, one = sum(sizes.values()) + 2 * heads + block, sum(sizes.values())
    assert dict(described(joined))["parameters"] == f"{every:,}, of which the runs share {one - heads - block:,}"
    for run, found in zip(runs, each_run(joined.variables), strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, run.variables)
    fused = bundle_of_members([bundle, run_of(bundle, 3, "fusion")]).variables
    assert [with_own_features(fused, BEHIND[layer]) for layer in (TRUNK, FUSED)] == [[0], [0, 1]]
    alone, behind_heads = digest_of_weights(bundle, FUSED), bundle_of_members(runs[:2])
    assert digest_of_weights(behind_heads, FUSED) == alone != digest_of_weights(joined, FUSED)


def test_written_and_read(joined, together, pictures, tmp_path):
    write_bundle(joined, tmp_path / "b", lambda directory: write_card(joined, None, directory))
    read = read_bundle(tmp_path / "b")
    jax.tree.map(np.testing.assert_array_equal, read.variables, joined.variables)
    assert read.facts["steps"] == [7, 1, 2]
    card = (tmp_path / "b" / "README.md").read_text()
    assert "after 7, 1, 2 updates" in card
    assert described(joined)[1][1] in card
    stored = read_state(tmp_path / "b" / "weights.safetensors").arrays
    assert {name.split("/")[0] for name in stored if "/" in name} == {"2", "3"}
    assert not any(name.startswith("2/blocks") for name in stored)
    one, other = (each.predict(list(pictures.pixels[:2])) for each in (together, load(tmp_path / "b", buckets=(2,))))
    assert [each.to_json() for each in one] == [each.to_json() for each in other]
    with pytest.raises(UserError, match="holds the weights of 3 runs; name one of the runs"):
        run_state_of({"pretrained": str(tmp_path / "b")})


@pytest.mark.parametrize(
    ("declared", "renamed", "said"),
    [
        (2, {}, "number of runs that is declared, 2"),
        (4, {}, "number of runs that is declared, 4"),
        (1 << 40, {}, "runs is 1099511627776; a number of runs from 2 to 16 is needed"),
        (None, {}, "number of runs that is declared, 1"),
        (3, {"2": "7"}, "number of runs that is declared, 3"),
        (3, {"2/head": "2/neck"}, "which the model does not have"),
    ],
)
def test_a_bundle_of_a_stranger(joined, tmp_path, declared, renamed, said):
    write_bundle(joined, tmp_path / "b")
    weights, about = tmp_path / "b" / "weights.safetensors", json.loads((tmp_path / "b" / "bundle.json").read_text())
    arrays = read_state(weights).arrays
    for old, new in renamed.items():
        arrays = {name.replace(old, new, 1) if name.startswith(old) else name: each for name, each in arrays.items()}
    write_state(weights, arrays, {})
    about["runs"], about["files"][weights.name] = declared, sha256_of(weights)
    if declared is None:
        del about["runs"]
    del about["sha256"]
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(sealed(about)))
    with pytest.raises(UserError, match=said):
        read_bundle(tmp_path / "b")


def test_runs_that_do_not_fit(bundle, runs):
    smaller = dataclasses.replace(bundle.preprocessing, mean=(0.5, 0.5, 0.4))
    for other, said in (
        (
            dataclasses.replace(runs[1], preprocessing=smaller),
            r"image\.mean is \(0\.485, 0\.456, 0\.406\) in small, but \(0\.5, 0\.5, 0\.4\) in run1",
        ),
        (dataclasses.replace(runs[1], facts={**runs[1].facts, "weights": "ema"}), "weights is last in small, but ema"),
        (dataclasses.replace(bundle, source=Path("copy")), "small and copy have the same weights"),
    ):
        with pytest.raises(UserError, match=said):
            bundle_of_members([bundle, other])
    with pytest.raises(UserError, match="17 runs are too many for one bundle; give at most 16"):
        bundle_of_members([bundle] * 17)
    assert bundle_of_members([bundle]) is bundle
    assert OTHERS not in bundle.variables


def test_exported(joined, runs, tmp_path):
    write_export(joined, tmp_path / "out", ("cpu",))
    for number, run in enumerate(runs, start=1):
        name = "weights.safetensors" if number == 1 else f"weights_{number}.safetensors"
        kernel = run.variables["params"]["head"]["taxa_L10"]["fc"]["kernel"]
        stored = [array for name, array in read_state(tmp_path / "out" / name).arrays.items() if "head" in name]
        assert any(array.shape == kernel.T.shape and (array == kernel.T).all() for array in stored)


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_in_onnxruntime(joined, together, pictures):
    """Where it is refused if other logits or vectors come of it."""
    program = onnx_program(joined, "", (FUSED,))
    other = Model(dataclasses.replace(joined, onnx=program), buckets=(2,), runtime="onnx")
    found, ours = (outputs(each, pictures.pixels[:2]) for each in (other, together))
    for name, expected in ours.items():
        np.testing.assert_allclose(found[name], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("folds", "rows", "said"),
    [
        (True, "a", r"heads of second \(step 0\) are fitted to its validation rows, too, those of first are not"),
        (False, "b", "second was trained on or validated by other rows than first"),
        (False, "a", ""),
    ],
)
def test_runs_are_calibrated_on_rows_that_none_was_trained_on(folds, rows, said):
    first, second = (cast(Bundle, SimpleNamespace(source=Path(name))) for name in ("first", "second"))
    of_each = ({"folds": False, "rows": "a"}, {"folds": folds, "rows": rows})
    outputs = [cast(measuring._Outputs, SimpleNamespace(**each)) for each in of_each]
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        measuring._check_rows(first, outputs[0], second, outputs[1])
