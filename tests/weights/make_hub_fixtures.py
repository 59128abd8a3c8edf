"""Draws small networks of timm, transformers, torchvision and OpenCLIP, and records what they compute; once, by hand:

    pip install torch==2.14.1 torchvision==0.29.1 timm==1.0.31 open_clip_torch transformers
    python -m tests.weights.make_hub_fixtures [NAME ...]

It writes tests/fixtures/hub_<name>.npz: `weights/<name>`, the arrays of the file (as half floats, which they are drawn
as), `features_<size>` and `logits_<size>` of drawn pictures, and texts of descriptions that lie beside the file.
Of an EfficientNet, which is too large, there are the shapes in place of the arrays: `draw` gives them again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: side of the pictures that the networks are made for, and another one
SIZES = (64, 75)
CLASSES = 7
SHAPE = {"dims": (8, 12, 16, 24), "depths": (1, 1, 2, 1)}
#: arrays with more values than this in all are not kept
MOST = 100_000


def pictures(size: int) -> np.ndarray:
    """float32 [2, size, size, 3], as they enter a network."""
    return np.random.default_rng(size).normal(size=(2, size, size, 3)).astype(np.float32)


def draw(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Arrays of these shapes, of the size of trained ones; floating point is float32 of half precision."""
    rng, arrays = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        x = rng.normal(size=shape)
        if name.endswith("num_batches_tracked"):
            arrays[name] = np.zeros(shape, np.int64)
            continue
        if re.search(r"running_var$", name):
            x = np.exp(0.2 * x)
        elif len(shape) > 1 and max(shape) < np.prod(shape):
            x /= np.sqrt(np.prod(shape[1:]))
        elif re.search(r"weight$|gamma$|layer_scale", name) and "grn" not in name:
            x = 0.6 * np.exp(0.2 * x)
        else:
            x *= 0.3
        arrays[name] = x.astype(np.float16).astype(np.float32)
    return arrays


def filled(model: Any) -> dict[str, np.ndarray]:
    """Fills a torch module with drawn arrays, which are returned."""
    import torch

    arrays = draw({name: tuple(value.shape) for name, value in model.state_dict().items()})
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    model.eval()
    return arrays


def record(
    arrays: Mapping[str, np.ndarray], run: Callable[[Any], tuple[Any, Any]], **descriptions: Any
) -> dict[str, np.ndarray]:
    """What a fixture holds; `run` maps pictures [B, 3, H, W] to features and logits."""
    import torch

    kept: dict[str, Any] = {}
    if sum(array.size for array in arrays.values()) > MOST:
        kept["shapes"] = np.array(json.dumps({name: array.shape for name, array in arrays.items()}))
    else:
        kept = {
            f"weights/{name}": array.astype(np.float16) if array.dtype.kind == "f" else array
            for name, array in arrays.items()
        }
    kept |= {name.replace("__", "."): np.array(json.dumps(tree)) for name, tree in descriptions.items()}
    for size in SIZES:
        with torch.no_grad():
            features, logits = run(torch.from_numpy(pictures(size)).permute(0, 3, 1, 2))
        kept |= {f"features_{size}": features.numpy(), f"logits_{size}": logits.numpy()}
    return kept


def described(name: str, settings: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    """timm's config.json."""
    pretrained = {"tag": "x", "input_size": [3, 64, 64], "crop_pct": 0.95, "crop_mode": "center", "license": "mit"}
    pretrained |= {"interpolation": "bicubic", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "num_classes": 1000}
    return {
        "architecture": name,
        "num_classes": CLASSES,
        "pretrained_cfg": {**pretrained, **changed},
        "model_args": dict(settings),
    }


def of_timm(name: str, **settings: Any) -> dict[str, np.ndarray]:
    import timm

    if None in settings.values():  # which create_model leaves out
        model = timm.models.convnext.ConvNeXt(num_classes=CLASSES, **settings)
    else:
        model = timm.create_model(name, num_classes=CLASSES, **settings)
    arrays = filled(model)
    return record(arrays, heads_of_timm(model), config__json=described(name, settings))


def heads_of_timm(model: Any) -> Callable[[Any], tuple[Any, Any]]:
    return lambda x: (model.forward_head(model.forward_features(x), pre_logits=True), model(x))


def of_authors(v2: bool) -> dict[str, np.ndarray]:
    """Under the authors' names; computed by timm, which has a translation of its own."""
    import timm
    import torch
    from timm.models.convnext import checkpoint_filter_fn

    dims, depths = SHAPE["dims"], SHAPE["depths"]
    shapes: dict[str, tuple[int, ...]] = {}

    def put(name: str, *shape: int) -> None:
        shapes.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    put("downsample_layers.0.0", dims[0], 3, 4, 4)
    put("downsample_layers.0.1", dims[0])
    for stage, (dim, depth) in enumerate(zip(dims, depths)):
        if stage:
            put(f"downsample_layers.{stage}.0", dims[stage - 1])
            put(f"downsample_layers.{stage}.1", dim, dims[stage - 1], 2, 2)
        for block in range(depth):
            here = f"stages.{stage}.{block}"
            shapes |= {} if v2 else {f"{here}.gamma": (dim,)}
            put(f"{here}.dwconv", dim, 1, 7, 7)
            put(f"{here}.norm", dim)
            put(f"{here}.pwconv1", 4 * dim, dim)
            shapes |= {f"{here}.grn.{leaf}": (1, 1, 1, 4 * dim) for leaf in (("gamma", "beta") if v2 else ())}
            put(f"{here}.pwconv2", dim, 4 * dim)
    put("norm", dims[-1])
    put("head", CLASSES, dims[-1])
    arrays = draw(shapes)
    model = timm.create_model(f"convnext{'v2' if v2 else ''}_tiny", num_classes=CLASSES, **SHAPE).eval()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model.load_state_dict(checkpoint_filter_fn(tensors, model))
    return record(arrays, heads_of_timm(model))


def of_transformers(kind: str) -> dict[str, np.ndarray]:
    import transformers

    settings = {"hidden_sizes": list(SHAPE["dims"]), "depths": list(SHAPE["depths"]), "num_labels": CLASSES}
    config = getattr(transformers, f"{kind}Config")(**settings)
    processor = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 3, "size": {"shortest_edge": 64}}
    processor |= {"crop_pct": 0.875, "image_processor_type": "ConvNextImageProcessor", "do_resize": True}
    if kind == "DINOv3ConvNext":
        model = transformers.DINOv3ConvNextModel(config)
        arrays = filled(model)
        return record(arrays, lambda x: (model(x).pooler_output, model(x).pooler_output), config__json=config.to_dict())
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    arrays = filled(model)
    return record(
        arrays,
        lambda x: (getattr(model, config.model_type)(x).pooler_output, model(x).logits),
        config__json=config.to_dict(),
        preprocessor_config__json=processor,
    )


def of_torchvision() -> dict[str, np.ndarray]:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    dims = (*SHAPE["dims"], None)
    blocks = [CNBlockConfig(*each) for each in zip(dims, dims[1:], SHAPE["depths"])]
    model = ConvNeXt(blocks, num_classes=CLASSES)
    arrays = filled(model)
    return record(arrays, lambda x: (model.classifier[:2](model.avgpool(model.features(x))), model(x)))


def of_open_clip() -> dict[str, np.ndarray]:
    import open_clip

    vision = {"timm_model_name": "test_convnext", "timm_pool": "", "timm_proj": "linear", "image_size": 64}
    text = {"context_length": 8, "vocab_size": 20, "width": 8, "heads": 2, "layers": 1}
    model = open_clip.model.CLIP(16, vision, text)
    arrays = filled(model)
    preprocess = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "interpolation": "bicubic"}
    config = {"model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": preprocess}
    return record(arrays, lambda x: (model.visual.trunk(x), model.visual(x)), open_clip_config__json=config)


def of_efficientnet(name: str, width: float, depth: float, **settings: Any) -> dict[str, np.ndarray]:
    from timm.models import efficientnet

    lite = "lite" in name
    generate = efficientnet._gen_efficientnet_lite if lite else efficientnet._gen_efficientnet
    model = generate(name, width, depth, num_classes=CLASSES, **settings)
    arrays = filled(model)
    return record(arrays, heads_of_timm(model), config__json=described(name, {}, crop_pct=0.875))


TF = {"bn_eps": 1e-3, "pad_type": "same"}
FIXED: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "timm": lambda: of_timm("convnext_tiny", **SHAPE),
    "timm_conv_mlp": lambda: of_timm("convnext_tiny", **SHAPE, conv_mlp=True, norm_eps=1e-5),
    "timm_hnf": lambda: of_timm("convnext_tiny_hnf", **SHAPE, ls_init_value=None, head_norm_first=True, conv_mlp=True),
    "timm_v2": lambda: of_timm("convnextv2_tiny", **SHAPE),
    "timm_mlp": lambda: of_timm("convnext_large_mlp", **SHAPE, head_hidden_size=20),
    "timm_ols": lambda: of_timm("convnext_atto_ols", dims=(24, 12, 16, 24), depths=(1, 1, 1, 1)),
    "timm_overlap": lambda: of_timm("convnext_nano_ols", dims=(16, 12, 16, 24), depths=(1, 1, 1, 1)),
    "timm_overlap_act": lambda: of_timm("convnext_tiny", **SHAPE, stem_type="overlap_act"),
    "timm_trial": lambda: of_timm("test_convnext3", dims=(8, 12, 16, 24)),
    "authors": lambda: of_authors(False),
    "authors_v2": lambda: of_authors(True),
    "transformers": lambda: of_transformers("ConvNext"),
    "transformers_v2": lambda: of_transformers("ConvNextV2"),
    "transformers_dinov3": lambda: of_transformers("DINOv3ConvNext"),
    "torchvision": of_torchvision,
    "open_clip": of_open_clip,
    "efficientnet_tf_lite": lambda: of_efficientnet("tf_efficientnet_lite0", 0.25, 0.4, **TF),
    "efficientnet_lite": lambda: of_efficientnet("efficientnet_lite0", 0.25, 0.4),
    "efficientnet_tf_b0": lambda: of_efficientnet("tf_efficientnet_b0", 1.0, 1.0, **TF),
}


def main() -> None:
    """Writes the files."""
    for name, make in FIXED.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            path = FIXTURES / f"hub_{name}.npz"
            np.savez_compressed(path, **make())  # type: ignore[arg-type]
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
