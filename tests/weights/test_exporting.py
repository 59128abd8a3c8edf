"""Weights out: the original's names, shapes, layouts and buffers; what is exported is imported unchanged."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models.heads import HeadSpec
from linnaeus_jax.weights import coverage as cov
from linnaeus_jax.weights.exporting import torch_state
from linnaeus_jax.weights.files import read_state
from linnaeus_jax.weights.formats.linnaeus import _with_copied_heads
from linnaeus_jax.weights.importing import read_pretrained
from tests.weights.helpers import (
    CLASSES,
    PARENTS,
    SMALL,
    SMALL_V0,
    assert_same,
    heads,
    model_of,
    save_export,
    save_original,
    section,
    trees,
)

KINDS = ("Linear", "ConditionalClassifier", "HierarchicalSoftmax", "PathSoftmax")
FAMILIES: dict[str, dict[str, Any]] = {"mFormerV0": SMALL_V0, "mFormerV1": SMALL}


@pytest.mark.parametrize("family", ["mFormerV0", "mFormerV1"])
def test_names_shapes_and_layouts_are_those_of_the_original(fixtures, family):
    golden = json.loads((fixtures / "models_torch_names.json").read_text())
    components = [(name, dim) for name, dim, _ in golden["meta"]]
    classes = {task: range(count) for task, count in golden["num_classes"].items()}
    model = model_of(
        section(type=family, variant="sm"), classes=classes, components=components, size=golden["img_size"], parents={}
    )
    image = jax.ShapeDtypeStruct((1, *model.img_size, 3), jnp.float32)
    shapes = dict(jax.eval_shape(lambda key, image: model.init(key, image), jax.random.key(0), image))
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes)
    state = torch_state(model, zeros.pop("params"), zeros)
    assert {name: list(array.shape) for name, array in state.items()} == golden[f"{family}_sm"]
    kinds = {name: str(array.dtype) for name, array in state.items() if array.dtype != np.float32}
    assert set(kinds.values()) <= {"int64"}
    assert all(name.endswith(("num_batches_tracked", "relative_position_index")) for name in kinds)


def test_matrices_between_ranks_are_made_for_heads_that_have_them():
    """Of 60,000 classes in as many genera they would take 14 GB."""
    parents = {"taxa_L10": np.arange(60_000)}
    specs = [HeadSpec(task, 60_000, "PathSoftmax", ()) for task in ("taxa_L10", "taxa_L20")]
    assert _with_copied_heads({}, specs, parents) == {}


def test_buffers_of_the_original():
    settings = section(**SMALL_V0)
    model = model_of(settings, size=64)
    params, state = trees(model)
    arrays = torch_state(model, params, state, step=7)
    assert arrays["bn1.num_batches_tracked"] == np.int64(7)
    index = arrays["stage_3.0.attn.relative_position_index"]
    extra, patches = 3, 16
    assert index.shape == (extra + patches,) * 2
    rows = len(arrays["stage_3.0.attn.relative_position_bias_table"])
    assert index[0].tolist() == [rows - 1] * (extra + patches)
    assert index[-1, -1] == (rows - 1) // 2  # offset (0, 0) lies in the middle of the grid
    np.testing.assert_array_equal(
        arrays["stage_1.0._bn1.running_var"], state["batch_stats"]["stage_1"]["0"]["_bn1"]["running_var"]
    )
    kernel = params["stage_1"]["0"]["_depthwise_conv"]["kernel"]
    np.testing.assert_array_equal(arrays["stage_1.0._depthwise_conv.weight"], kernel.transpose(3, 2, 0, 1))


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("mFormerV0", ("ConditionalClassifier", "Linear")),
        *(("mFormerV1", (kind, "Linear")) for kind in KINDS),
        ("mFormerV1", ("ConditionalClassifier", "HierarchicalSoftmax")),
    ],
)
def test_import_of_the_export_is_the_identity(tmp_path, family, kinds):
    keys = {**FAMILIES[family], **heads(taxa_L10=kinds[0], taxa_L20=kinds[1])}
    settings = section(**keys)
    model = model_of(settings)
    weights = trees(model)
    export = save_export(tmp_path / "export.safetensors", settings, model, *weights, parents=PARENTS)
    for path in (export, save_original(tmp_path / "original.safetensors", model, *weights)):
        done = read_pretrained(section(**keys, pretrained=str(path)), model, CLASSES)
        assert_same(done.merged(*trees(model, seed=1)), weights)
        assert not [row for row in done.coverage.rows if row.status not in (cov.LOADED, cov.SKIPPED)]
    assert read_state(export).facts["head types"] == dict(zip(CLASSES, kinds))


def test_another_type_of_head_is_remarked(tmp_path):
    settings = section(**SMALL, **heads(taxa_L10="ConditionalClassifier"))
    model = model_of(settings)
    path = save_export(tmp_path / "x.safetensors", settings, model, *trees(model))
    keys = {**SMALL, **heads(taxa_L10="PathSoftmax")}
    done = read_pretrained(section(**keys, pretrained=str(path)), model_of(section(**keys)), CLASSES)
    assert done.coverage.notes == (
        "The head of taxa_L10 was trained as ConditionalClassifier and goes on as PathSoftmax.",
    )


@pytest.mark.parametrize(
    ("kind", "levels"), [("ConditionalClassifier", "level_classifiers"), ("HierarchicalSoftmax", "task_classifiers")]
)
def test_hierarchical_heads_have_the_names_of_the_original(kind, levels):
    model = model_of(section(**SMALL, **heads(taxa_L10=kind)))
    params, state = trees(model)
    arrays = torch_state(model, params, state)
    ours = {name.removeprefix("head."): array for name, array in arrays.items() if name.startswith("head.")}
    fine, coarse = (params["head"][task]["fc"]["kernel"].T for task in CLASSES)
    expected = {
        f"taxa_L10.{levels}.taxa_L10.weight": fine,
        f"taxa_L10.{levels}.taxa_L10.bias": params["head"]["taxa_L10"]["fc"]["bias"],
        f"taxa_L10.{levels}.taxa_L20.weight": coarse,
        f"taxa_L10.{levels}.taxa_L20.bias": params["head"]["taxa_L20"]["fc"]["bias"],
        "taxa_L10.hmatrix_taxa_L20_taxa_L10": np.eye(4)[:, PARENTS["taxa_L10"]] * (np.array(PARENTS["taxa_L10"]) >= 0),
        "taxa_L20.fc.weight": coarse,
        "taxa_L20.fc.bias": params["head"]["taxa_L20"]["fc"]["bias"],
    }
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_unrefined_heads_take_their_parents_from_the_caller():
    model = model_of(
        section(
            **SMALL, **heads(taxa_L10="ConditionalClassifier"), classification__hierarchy_mode="reference_unrefined"
        )
    )
    name = "head.taxa_L10.hmatrix_taxa_L20_taxa_L10"
    assert name not in torch_state(model, *trees(model))
    assert torch_state(model, *trees(model), parents=PARENTS)[name].sum() == 4


def test_the_final_norm_that_only_the_original_has(tmp_path):
    keys = {**SMALL_V0, "only_last_cls": True}
    settings = section(**keys)
    model = model_of(settings)
    weights, path = trees(model), tmp_path / "x.safetensors"
    save_original(path, model, *weights)
    assert read_state(path).arrays["norm.weight"].tolist() == [1] * 16
    done = read_pretrained(section(**keys, pretrained=str(path)), model, CLASSES)
    assert_same(done.merged(*trees(model, seed=1)), weights)
    assert "only_last_cls" in done.coverage.table()


@pytest.mark.needs("torch")
def test_torch_reads_the_export(tmp_path):
    import torch
    from safetensors.torch import load_file

    settings = section(**SMALL_V0)
    model = model_of(settings)
    params, state = trees(model)
    path = save_export(tmp_path / "x.safetensors", settings, model, params, state)
    arrays = load_file(path)
    linear = torch.nn.Linear(16, 6)
    linear.load_state_dict({leaf: arrays[f"head.taxa_L10.fc.{leaf}"] for leaf in ("weight", "bias")}, strict=True)
    x = np.linspace(-1, 1, 16, dtype=np.float32)
    ours = x @ params["head"]["taxa_L10"]["fc"]["kernel"] + params["head"]["taxa_L10"]["fc"]["bias"]
    np.testing.assert_allclose(linear(torch.from_numpy(x)).detach().numpy(), ours, atol=1e-5)
    norm = torch.nn.BatchNorm2d(4)
    prefix = "bn1."
    norm.load_state_dict({n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}, strict=True)
    assert norm.num_batches_tracked == 0
