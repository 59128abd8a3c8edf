"""Files of TensorFlow Lite: the arrays of their layers as float32, without TensorFlow and without running anything.

A quantised array is (w - zero point) * scale. Arrays are called by the place of their operation in the graph and its
kind, as `0/CONV_2D/weights` and `0/CONV_2D/biases`, and have PyTorch's layout: OIHW, and OI of fully connected layers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linnaeus_jax.config.errors import UserError

SUFFIX = ".tflite"
#: how such a file begins, after an offset
MAGIC = b"TFL3"
#: bytes; offsets within a file have 32 bits
LARGEST = 2**31
#: kinds of operations that hold weights -> axes that bring these into PyTorch's layout
AXES = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2), "FULLY_CONNECTED": (0, 1)}
#: tensor type -> dtype
DTYPES = {0: np.float32, 1: np.float16, 2: np.int32, 3: np.uint8, 9: np.int8}
ACTIVATIONS = {0: "none", 1: "relu", 3: "relu6"}


class Operation(NamedTuple):
    """One operation of the graph: kind, height and width of its steps, padding and activation."""

    kind: str
    strides: tuple[int, int] = (1, 1)
    padding: str = ""
    activation: str = "none"


class Graph(NamedTuple):
    """What a file says beside its arrays.

    Attributes:
      operations: in order.
      size: (height, width) of the pictures.
      scale, zero_point: of pixels x from 0 to 255, which enter as (x - zero_point) * scale.
    """

    operations: tuple[Operation, ...]
    size: tuple[int, int]
    scale: float
    zero_point: float


class _Malformed(ValueError):
    """What is wrong with a file, in words."""


def read_tflite(path: Path) -> tuple[dict[str, np.ndarray], Graph]:
    """The arrays of a file by name, and the graph that they are of.

    Raises:
      UserError: not such a file, truncated, with offsets or sizes that cannot be, or with more than one graph.
    """
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, more than a {SUFFIX} file can have")
    try:
        return _Reader(path.read_bytes()).read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # offsets lead anywhere, so a damaged file may raise anything
        reason = str(error) if isinstance(error, _Malformed) else "its offsets lead nowhere"
        raise UserError(
            f"{path} cannot be read as {SUFFIX}: {reason}; truncated or of another kind; fetch it anew"
        ) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        import tflite

        if data[4:8] != MAGIC:
            raise _Malformed(f"it does not begin as one ({MAGIC.decode()})")
        self.tflite = tflite
        self.data, self.left = data, len(data)  # bytes of weights that may still be read: each has its own place
        self.model = tflite.Model.GetRootAsModel(data, 0)

    def count(self, number: int, what: str) -> int:
        """A length of the file, which takes 4 bytes for each."""
        if not 0 <= number <= len(self.data) // 4:
            raise _Malformed(f"it says that it has {number} {what}")
        return number

    def read(self) -> tuple[dict[str, np.ndarray], Graph]:
        if (graphs := self.model.SubgraphsLength()) != 1:
            raise _Malformed(f"it has {graphs} graphs, and one is read")
        graph = self.model.Subgraphs(0)
        arrays, operations = dict[str, np.ndarray](), list[Operation]()
        for place in range(self.count(graph.OperatorsLength(), "operations")):
            operator = graph.Operators(place)
            operation = self.operation(operator)
            if operation.kind in AXES:
                for slot, name in ((1, "weights"), (2, "biases")):
                    if slot < self.count(operator.InputsLength(), "inputs") and operator.Inputs(slot) >= 0:
                        array = self.array(graph.Tensors(self.index(operator.Inputs(slot), graph.TensorsLength())))
                        axes = AXES[operation.kind] if name == "weights" else (0,)
                        if array.ndim != len(axes):
                            raise _Malformed(f"{name} of operation {place} have the shape {array.shape}")
                        arrays[f"{place}/{operation.kind}/{name}"] = np.ascontiguousarray(np.transpose(array, axes))
            operations.append(operation)
        return arrays, Graph(tuple(operations), *self.input(graph))

    def index(self, number: int, length: int) -> int:
        if not 0 <= number < length:
            raise _Malformed(f"it refers to part {number} of {length}")
        return number

    def operation(self, operator: Any) -> Operation:
        code = self.model.OperatorCodes(self.index(operator.OpcodeIndex(), self.model.OperatorCodesLength()))
        kind = self.tflite.opcode2name(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()))
        options = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}.get(kind)
        if options is None:
            return Operation(kind)
        table, found = operator.BuiltinOptions(), getattr(self.tflite, options)()
        found.Init(table.Bytes, table.Pos)
        activation = ACTIVATIONS.get(found.FusedActivationFunction(), "another")
        if (found.DilationHFactor(), found.DilationWFactor()) != (1, 1):
            activation = "another, dilated"
        padding = "same" if found.Padding() == self.tflite.Padding.SAME else "valid"
        return Operation(kind, (found.StrideH(), found.StrideW()), padding, activation)

    def array(self, tensor: Any) -> np.ndarray:
        """float32 of its shape."""
        shape = tuple(int(tensor.Shape(axis)) for axis in range(self.count(tensor.ShapeLength(), "axes")))
        if len(shape) > 8 or min(shape, default=1) < 1:
            raise _Malformed(f"an array has the shape {shape[:8]}")
        if tensor.Type() not in DTYPES:
            raise _Malformed(f"an array is of type {tensor.Type()}")
        dtype = np.dtype(DTYPES[tensor.Type()]).newbyteorder("<")
        buffer = self.model.Buffers(self.index(tensor.Buffer(), self.model.BuffersLength()))
        needed = math.prod(shape) * dtype.itemsize
        if buffer.DataLength() != needed:
            raise _Malformed(f"an array of shape {shape} has {buffer.DataLength()} bytes instead of {needed}")
        self.left -= needed
        if self.left < 0:
            raise _Malformed("its arrays lie over each other")
        values = np.frombuffer(buffer.DataAsNumpy().tobytes(), dtype).reshape(shape)
        quantised = tensor.Quantization()
        scales = 0 if quantised is None else self.count(quantised.ScaleLength(), "scales")
        if not scales:
            if values.dtype.kind != "f":
                raise _Malformed("an array of integers has no scale")
            return values.astype(np.float32)
        axis = int(quantised.QuantizedDimension()) if scales > 1 else 0
        if scales > 1 and scales != shape[self.index(axis, len(shape))]:
            raise _Malformed(f"an array of shape {shape} has {scales} scales")
        along = [1] * len(shape)
        along[axis] = scales
        scale = np.array([quantised.Scale(i) for i in range(scales)], np.float64).reshape(along)
        points = self.count(quantised.ZeroPointLength(), "zero points")
        if points not in (0, scales):
            raise _Malformed(f"an array has {scales} scales and {points} zero points")
        zero = np.array([quantised.ZeroPoint(i) for i in range(points)] or [0] * scales, np.float64).reshape(along)
        with np.errstate(over="ignore", invalid="ignore"):  # `read_state` refuses what is not finite
            return np.asarray((values - zero) * scale, np.float32)

    def input(self, graph: Any) -> tuple[tuple[int, int], float, float]:
        """Size of the pictures, scale and zero point of their pixels."""
        if graph.InputsLength() != 1:
            raise _Malformed(f"it takes {graph.InputsLength()} inputs, and a picture alone is given")
        tensor = graph.Tensors(self.index(graph.Inputs(0), graph.TensorsLength()))
        shape = tuple(int(tensor.Shape(axis)) for axis in range(min(tensor.ShapeLength(), 8)))
        if len(shape) != 4 or shape[3] != 3 or not all(1 <= side <= 4096 for side in shape[1:3]):
            raise _Malformed(f"its input has the shape {shape}, not that of pictures")
        quantised = tensor.Quantization()
        if quantised is None or quantised.ScaleLength() != 1:
            return shape[1:3], 1 / 127.5, 127.5  # floats from -1 to 1 are the rule
        zero = int(quantised.ZeroPoint(0)) if quantised.ZeroPointLength() else 0
        scale, zero = float(quantised.Scale(0)), zero + (128 if DTYPES.get(tensor.Type()) is np.int8 else 0)
        if not (1e-6 < scale < 1e6 and -1024 <= zero <= 1024):
            raise _Malformed(f"its pixels have the scale {scale} and the zero point {zero}")
        return shape[1:3], scale, zero
