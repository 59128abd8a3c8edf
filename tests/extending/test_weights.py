"""Weights under names of their own, and what they need, in one file of the user's own."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from linnaeus_jax.config import complete_open_nodes
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.models import build_model
from linnaeus_jax.run.pretrained import adopt_source
from linnaeus_jax.weights.importing import read_pretrained
from tests.extending.common import EXAMPLES
from tests.tiny import tiny_config


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "garden.safetensors"
    arrays = {f"conv{i}.kernel": np.full((c, d, 3, 3), i, np.float32) for i, (c, d) in enumerate(((4, 3), (8, 4)))}
    save_file(arrays | {f"conv{i}.offset": np.full(c, -i, np.float32) for i, c in enumerate((4, 8))}, path)
    plugins = tuple(str(EXAMPLES / name) for name in ("model_example.py", "weights_example.py"))
    config = tiny_config(tmp_path, env__plugins=plugins, model__pretrained=str(path))
    import_plugins(config)
    complete_open_nodes(config)
    return config


def test_a_kind_of_weights_brings_its_model_and_pictures(config):
    config.model.type, config.model.variant = "mFormerV1", "sm"  # as nobody set them
    file, (line, *_) = adopt_source(config)
    assert (config.model.type, config.model.variant) == ("SmallNet", "narrow")
    assert config.aug.mean == config.aug.std == (0.5, 0.5, 0.5)
    assert "model.type = SmallNet" in line
    model = build_model(config.model, components=(), num_classes={"taxa_L10": 3}, img_size=32)
    done = read_pretrained(config.model, model, {}, file)
    assert done.arrays["blocks.1.weight"].shape == (8, 4, 3, 3)
    assert not done.problems
    config.model.variant = "wide"
    wide = build_model(config.model, components=(), num_classes={"taxa_L10": 3}, img_size=32)
    with pytest.raises(UserError, match=r"model.variant = 'wide' does not fit .*: set model.variant = 'narrow'"):
        read_pretrained(config.model, wide, {}, file)
