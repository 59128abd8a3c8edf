"""Arrays of any shape under any name: a message, or another coverage, and never an error of another kind."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights.classes import read_classes
from linnaeus_jax.weights.exporting import torch_state
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.importing import read_pretrained
from tests.npz import load_npz
from tests.weights.helpers import CLASSES, SMALL, SMALL_V0, model_of, section, trees
from tests.weights.test_stitch import SOURCE, model_and_keys

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (2, 2, 2, 2, 2))
NAMES = (
    "stages.99.0.attn.qkv.weight",
    "stages.x.0.attn.qkv.weight",
    "stages.qkv.attn.qkv.bias",
    "blocks.99999999999999999999.attn.proj.weight",
    "stages.9.downsample.1.weight",
    "downsample_layers.9.9.weight",
    "head.taxa_L10.fc.weight.more",
    "head.taxa_L99.fc.weight",
    "head.a.level_classifiers.b.weight",
    "stage_3.9.attn.relative_position_bias_table",
    "a\nb",
)


def try_all(arrays: dict[str, np.ndarray], parts: tuple[str, ...], take: Any) -> None:
    """Every array whose name has one of `parts`, and every name of `NAMES`, in every shape."""
    chosen = [name for name in arrays if any(part in name for part in parts)]
    assert len(chosen) >= len(parts)
    for name in (*chosen, *NAMES):
        for shape in SHAPES:
            with contextlib.suppress(UserError):
                take(arrays | {name: np.zeros(shape, np.float32)}, False)


def given(monkeypatch: pytest.MonkeyPatch, **files: dict[str, np.ndarray]) -> None:
    """Lets files of these names hold these arrays, without writing them."""
    states = {name: StateFile(Path(name), "", arrays) for name, arrays in files.items()}
    monkeypatch.setattr("linnaeus_jax.weights.importing.read_state", lambda path, *containers: states[str(path)])


@pytest.mark.parametrize(
    ("keys", "more", "parts"),
    [
        (SMALL, {}, ("stages.2.0.attn", "head.", "cls_token_1", "stem.0")),
        (SMALL, {"pretrained_attn_scale": "squared"}, ("stages.2.0.attn.qkv",)),
        (SMALL_V0, {}, ("bias_table", "head.taxa_L10", "bn1.")),
        (SMALL_V0, {"pretrained_source": "metaformer"}, ("bias_table",)),
    ],
)
def test_a_whole_model(monkeypatch, keys, more, parts):
    model = model_of(section(**keys), size=64)
    params, state = trees(model)
    arrays = torch_state(model, params, state)
    if "pretrained_source" in more:
        arrays = {name: array for name, array in arrays.items() if not name.startswith(("head.", "meta_"))}

    def take(changed: dict[str, np.ndarray], strict: bool) -> None:
        given(monkeypatch, x=changed)
        done = read_pretrained(section(**keys, pretrained="x", pretrained_strict=strict, **more), model, CLASSES)
        done.merged(params, state)

    take(arrays, True)
    try_all(arrays, parts, take)


@pytest.mark.parametrize("part", ["convnext", "ropevit"])
def test_two_files(monkeypatch, fixtures, part):
    golden = load_npz(fixtures / "models_stitch.npz")
    files = {
        kind: {name.removeprefix(f"{kind}/"): golden[name] for name in golden if name.startswith(f"{kind}/")}
        for kind in ("convnext", "ropevit")
    }
    model, keys = model_and_keys(golden)
    keys |= {"pretrained_source": SOURCE, "pretrained_convnext": "convnext", "pretrained_ropevit": "ropevit"}

    def take(changed: dict[str, np.ndarray], strict: bool) -> None:
        given(monkeypatch, **(files | {part: changed}))
        read_pretrained(section(**keys, pretrained_strict=strict), model, {})

    take(files[part], True)
    parts = ("downsample_layers.0", "pwconv1", "gamma") if part == "convnext" else ("blocks.0.", "freqs", "cls_token")
    try_all(files[part], parts, take)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        "[]",
        "3",
        '{"a": 1}',
        '{"a": {"x": 0}}',
        '{"a": {"1": -1}}',
        '{"a": {"1": 0, "2": 0}}',
        '{"a": {"1": 0, "1": 1}}',
        '{"a": {"null": 0, "0": 1}}',
        '{"a": {"1": Infinity}}',
        "\x00",
        "{",
    ],
)
def test_class_files_that_are_none(tmp_path, content):
    path = tmp_path / "class_to_idx.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"is no class_to_idx.json"):
        read_classes(path)
    path.write_text(json.dumps({"a": {"null": 0, "5": 1}}))
    assert read_classes(path) == {"a": {0: 0, 5: 1}}
