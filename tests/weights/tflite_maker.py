"""Small .tflite files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite


def _vector(builder: Any, start: Any, offsets: list[int]) -> int:
    start(builder, len(offsets))
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _quantisation(builder: Any, scales: list[float], zeros: list[int], axis: int = 0) -> int:
    scale = builder.CreateNumpyVector(np.asarray(scales, np.float32))
    zero = builder.CreateNumpyVector(np.asarray(zeros, np.int64))
    tflite.QuantizationParametersStart(builder)
    tflite.QuantizationParametersAddScale(builder, scale)
    tflite.QuantizationParametersAddZeroPoint(builder, zero)
    tflite.QuantizationParametersAddQuantizedDimension(builder, axis)
    return int(tflite.QuantizationParametersEnd(builder))


def write_tflite(
    path: Path, weights: np.ndarray, bias: np.ndarray, *, scale: float = 0.5, zero: int = 3, **changed: Any
) -> Path:
    """One convolution of stride 2 with ReLU6 over pictures of 8 x 8 pixels.

    Args:
      weights: uint8 [O, H, W, I]; bias: int32 [O], both with this scale, weights with this zero point.
      changed: `shape` that the file states of the weights, `kind` of their tensor, their `scales` along the axis 3,
        `input_kind` of the pictures' tensor, `graphs`, `code`.
    """
    builder = flatbuffers.Builder(1024)
    buffers = []
    for content in (b"", weights.tobytes(), bias.tobytes()):
        data = builder.CreateNumpyVector(np.frombuffer(content, np.uint8)) if content else 0
        tflite.BufferStart(builder)
        if content:
            tflite.BufferAddData(builder, data)
        buffers.append(tflite.BufferEnd(builder))
    tensors = []
    scales = changed.get("scales", [scale])
    for shape, kind, buffer, quantised in (
        ((1, 8, 8, 3), changed.get("input_kind", 3), 0, ([2**-7], [128])),
        (changed.get("shape", weights.shape), changed.get("kind", 3), 1, (scales, [zero] * len(scales), 3)),
        (bias.shape, 2, 2, ([scale], [0])),
        ((1, 4, 4, len(bias)), 3, 0, ([1.0], [0])),
    ):
        sizes = builder.CreateNumpyVector(np.asarray(shape, np.int32))
        quantisation = _quantisation(builder, *quantised)
        tflite.TensorStart(builder)
        tflite.TensorAddShape(builder, sizes)
        tflite.TensorAddType(builder, kind)
        tflite.TensorAddBuffer(builder, buffer)
        tflite.TensorAddQuantization(builder, quantisation)
        tensors.append(tflite.TensorEnd(builder))
    tflite.Conv2DOptionsStart(builder)
    tflite.Conv2DOptionsAddStrideH(builder, 2)
    tflite.Conv2DOptionsAddStrideW(builder, 2)
    tflite.Conv2DOptionsAddFusedActivationFunction(builder, 3)
    options = tflite.Conv2DOptionsEnd(builder)
    given, made = (builder.CreateNumpyVector(np.asarray(each, np.int32)) for each in ([0, 1, 2], [3]))
    tflite.OperatorStart(builder)
    tflite.OperatorAddInputs(builder, given)
    tflite.OperatorAddOutputs(builder, made)
    tflite.OperatorAddBuiltinOptionsType(builder, tflite.BuiltinOptions.Conv2DOptions)
    tflite.OperatorAddBuiltinOptions(builder, options)
    operator = tflite.OperatorEnd(builder)
    entrance, exit_ = (builder.CreateNumpyVector(np.asarray(each, np.int32)) for each in ([0], [3]))
    all_tensors = _vector(builder, tflite.SubGraphStartTensorsVector, tensors)
    operators = _vector(builder, tflite.SubGraphStartOperatorsVector, [operator])
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddTensors(builder, all_tensors)
    tflite.SubGraphAddInputs(builder, entrance)
    tflite.SubGraphAddOutputs(builder, exit_)
    tflite.SubGraphAddOperators(builder, operators)
    graph = tflite.SubGraphEnd(builder)
    tflite.OperatorCodeStart(builder)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(builder, changed.get("code", tflite.BuiltinOperator.CONV_2D))
    code = tflite.OperatorCodeEnd(builder)
    graphs = _vector(builder, tflite.ModelStartSubgraphsVector, [graph] * changed.get("graphs", 1))
    codes = _vector(builder, tflite.ModelStartOperatorCodesVector, [code])
    held = _vector(builder, tflite.ModelStartBuffersVector, buffers)
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddSubgraphs(builder, graphs)
    tflite.ModelAddOperatorCodes(builder, codes)
    tflite.ModelAddBuffers(builder, held)
    builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path
