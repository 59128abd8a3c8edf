import json
from collections import Counter

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models import MFormerV1, ModelFamily, names
from linnaeus_jax.models.mformer_v1 import STAGES
from linnaeus_jax.registry import MODELS
from tests.models.builds import build
from tests.models.golden import shapes


def make(**settings):
    defaults = {"components": (("TEMPORAL", 2),), "num_classes": {"taxa_L10": 3, "taxa_L20": 2}, "img_size": 32}
    return build(**{**defaults, **settings})


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def tree(model):
    return shapes(model)["params"]


@pytest.fixture(scope="module")
def table(model):
    return names.parameter_table(model)


@pytest.mark.parametrize("family", ["mFormerV1", "mFormerV0"])
def test_names_and_shapes_are_those_of_torch(fixtures, family):
    """Running statistics too; what is left out follows from the sizes, or counts batches."""
    golden = json.loads((fixtures / "models_torch_names.json").read_text())
    sizes = {key: golden[key] for key in ("num_classes", "img_size")}
    model = make(type=family, variant="sm", components=[(name, dim) for name, dim, _ in golden["meta"]], **sizes)
    ours = {
        name: list(names.to_torch_layout(path, np.broadcast_to(np.float32(0), leaf.shape)).shape)
        for tree in shapes(model).values()
        for name, path, leaf in names.named_leaves(tree)
    }
    left_out = ("num_batches_tracked", "relative_position_index")
    assert ours == {name: shape for name, shape in golden[f"{family}_sm"].items() if not name.endswith(left_out)}


def test_layout_round_trip(tree):
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), tree)
    back = names.params_from_torch(names.params_to_torch(params), tree)
    jax.tree.map(np.testing.assert_array_equal, params, back)


def test_import_refuses_what_does_not_fit(tree):
    state = names.params_to_torch(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), tree))
    state["stem.0.bias"] = state["stem.0.bias"][:3]
    state["surplus"] = state.pop("final_norm.bias")
    with pytest.raises(
        ValueError, match=r"missing: final_norm.bias; unexpected: surplus; wrong shape: stem.0.bias \(3,"
    ):
        names.params_from_torch(state, tree)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"'x.weight' belongs to none of the stages"):
        MFormerV1.stage_of("x.weight")


def test_layer_types(table):
    types = {info.name: info.layer_type for info in table}
    assert types["stem.0.weight"] == types["stages.0.0.dwconv.bias"] == "Conv2d"
    assert types["stages.2.0.attn.qkv.weight"] == types["head.taxa_L10.fc.bias"] == "Linear"
    assert types["norm_1.weight"] == types["meta_temporal_head_1.2.bias"] == "LayerNorm"
    assert types["stages.2.0.attn.freqs"] == "RotaryAttention"
    assert types["stages.0.0.gamma"] == "ConvNeXtBlock"
    assert types["aggregate.weight"] == "Conv1d"
    assert types["cls_token_1"] == "MFormerV1"


def test_every_parameter_has_one_stage(table):
    found = Counter(MFormerV1.stage_of(info.name) for info in table)
    assert set(found) == set(STAGES)
    assert MFormerV1.stage_of("stages.2.0.attn.freqs") == "stages.rope_freqs"
    assert MFormerV1.stage_of("stages.2.0.norm1.bias") == "stages.rope_stages"
    assert MFormerV1.stage_of("downsample_layers.1.conv.weight") == "stages.convnext_stages"
    assert found["norm_layers"] == 4
    assert found["embeddings"] == 2


def test_layer_index_orders_the_depth(model, table):
    index = {info.name: model.layer_index(info.name) for info in table}
    assert set(index.values()) == set(range(7))
    assert index["stem.1.bias"] == 0
    assert index["stages.0.0.gamma"] == 1
    assert index["downsample_layers.0.norm.bias"] == index["stages.1.0.gamma"] == 2
    assert index["cls_token_1"] == index["meta_temporal_head_1.0.bias"] == index["stages.2.0.norm1.bias"] == 3
    assert index["cls_token_2"] == index["norm_1.bias"] == index["stages.3.0.attn.freqs"] == 5
    assert index["head.taxa_L20.fc.bias"] == index["final_norm.bias"] == index["aggregate.bias"] == 6
    with pytest.raises(ValueError, match=r"'stages.2.7.norm1.bias' belongs to no layer"):
        model.layer_index("stages.2.7.norm1.bias")


def test_registry_lists_and_refuses_a_second_registration():
    assert tuple(MODELS["mFormerV1"].variants) == ("tiny", "sm", "md", "lg", "xl")
    assert MODELS.options("mFormerV1") == {}  # its keys stand in the default tree
    with pytest.raises(ValueError, match="'mFormerV1' is registered twice"):
        MODELS.register("mFormerV1")(make)


def test_a_kernel_and_a_scale_of_one_module_cannot_be_told_apart():
    class Both(ModelFamily):
        @nn.compact
        def __call__(self, *_, **__):
            for name in ("kernel", "offset", "scale"):
                self.param(name, nn.initializers.zeros, ())
            return {}

    given = {"dtype": jnp.float32, "remat": False, "missing_metadata": "zero"}
    model = Both(components=(), head_specs=(), img_size=(32, 32), **given)
    with pytest.raises(ValueError, match=r"\('kernel',\) and \('scale',\) are both called weight; rename one"):
        names.parameter_table(model)
