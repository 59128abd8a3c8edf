"""An ONNX program whose convolutions compute with 8-bit integers: a quarter of the size, on CPUs half of the time.

onnxruntime's own static quantization: weights by output channel, activations by their range on calibration images; the
heads stay in float32. Of EfficientNets; what attention computes has outliers that 8 bits do not hold.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.files.picture_list import list_pictures
from linnaeus_jax.inference.onnx_program import session
from linnaeus_jax.inference.pictures import PictureError, read_picture

FAMILIES = ("EfficientNet",)
#: images that are looked at, at least and at most; of these one in `COMPARED` is not for calibration
LEAST, MOST, COMPARED = 20, 200, 4
_OPERATIONS = ("Conv", "Add", "Clip")


def read_images(given: Sequence[str], how: Preprocessing) -> NDArray[np.uint8]:
    """uint8 [N, H, W, 3], up to `MOST` images spread evenly over files, folders and patterns.

    Raises:
      UserError: fewer than `LEAST` can be read.
    """
    files = list_pictures(given)
    images = []
    for number in np.unique(np.linspace(0, len(files) - 1, MOST).astype(int)):
        try:
            images.append(read_picture(files[number].path, how))
        except (OSError, PictureError):
            continue
    if len(images) < LEAST:
        raise UserError(
            f"--int8 {' '.join(given)}: {len(images)} images can be read; the ranges of the activations need at least "
            f"{LEAST}, a few hundred are better"
        )
    return np.stack(images)


def int8_program(content: bytes, image: NDArray[np.uint8], tasks: Sequence[str]) -> tuple[bytes, dict[str, float]]:
    """The quantized form of what `onnx_program` made; and by task the share of images that were not for calibration
    whose best class is that of the float32 program.

    Args:
      image: uint8 [N, H, W, 3]; metadata count as unknown.
    """
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    shapes: Any = importlib.import_module("onnxruntime.quantization.shape_inference")
    compared = np.arange(len(image)) % COMPARED == 0
    whole = session(content)
    feeds = iter([_inputs(whole, one[None]) for one in image[~compared]])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(feeds, None)

    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it advises what is done here
    try:
        with tempfile.TemporaryDirectory(prefix="int8-") as folder:
            given, simple, found = (os.path.join(folder, f"{name}.onnx") for name in ("given", "simple", "found"))
            Path(given).write_bytes(content)
            shapes.quant_pre_process(given, simple, skip_symbolic_shape=True)  # joins what surrounds convolutions
            quantization.quantize_static(
                simple,
                found,
                Reader(),
                per_channel=True,
                op_types_to_quantize=list(_OPERATIONS),
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
            small = Path(found).read_bytes()
    finally:
        logging.root.setLevel(level)
    best = [_best(each, image[compared], tasks) for each in (whole, session(small))]
    same = (best[0] == best[1]).mean(axis=1)
    return small, dict(zip(tasks, same.tolist(), strict=True))


def _inputs(program: Any, image: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """What a program is given of images without metadata."""
    kinds = {"tensor(float)": np.float32, "tensor(bool)": np.bool_}
    unknown = [each for each in program.get_inputs() if each.name != "image"]
    return {"image": image} | {each.name: np.zeros((len(image), each.shape[1]), kinds[each.type]) for each in unknown}


def _best(program: Any, image: NDArray[np.uint8], tasks: Sequence[str]) -> NDArray[np.int64]:
    """int64 [T, N]: the best classes of images, a few at a time."""
    parts = [program.run(list(tasks), _inputs(program, few)) for few in np.array_split(image, -(-len(image) // 8))]
    return np.concatenate([[logits.argmax(axis=1) for logits in part] for part in parts], axis=1)
