"""A model as an ONNX program, for runtimes of phones, browsers and other languages.

`jax2onnx` translates the traced forward pass, in the plain form of every optimisation, operation by operation. The
result is refused where onnxruntime does not give the logits of this program. Some operations are said in other words
first: maxima over windows with a border, whose translation is wrong, and what onnxruntime computes slowly as it stands.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax import lax
from numpy.typing import NDArray

from linnaeus_jax import backend
from linnaeus_jax.compat.jax_parts import inlined
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.forward import forward_pass
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.system import usable_cores

#: jax2onnx asks for an older orbax than ours, which it does not need here
INSTALL = "pip install 'linnaeus-jax[onnx]' && pip install --no-deps jax2onnx"
INPUTS = ("image", "meta", "meta_valid")
#: between the logits of onnxruntime and ours, of the largest one where that is above 1
TOLERANCE = 1e-4
_ROWS = 5
#: of the plain form of a model; families have those that they have
_PLAIN = {"depthwise_impl": "lax", "attn_impl": "xla", "scan_layers": False, "remat": False}
_TALKATIVE = ("jax2onnx", "onnx_ir")


def translator() -> Any:
    """The function that translates.

    Raises:
      UserError: a library is not installed.
    """
    try:
        importlib.import_module("onnxruntime")
        with _quiet():
            return importlib.import_module("jax2onnx").to_onnx
    except ImportError as error:
        raise UserError(f"ONNX needs {error.name}: {INSTALL}") from error


def onnx_program(bundle: Bundle, about: str, layers: Sequence[str] = ()) -> bytes:
    """The forward pass with its weights as an ONNX program.

    Inputs are image uint8 [b, H, W, 3] and, of models with metadata, meta float32 [b, D] and meta_valid bool [b, K];
    outputs are named by task, logits float32 [b, C], then those of `layers`. `b` is any number of rows.

    Args:
      about: what the outputs mean, which is kept in the file as its metadata `linnaeus_jax`.
      layers: vectors that it gives, too, see `forward_pass`.

    Raises:
      UserError: a library is missing, an operation has no translation, or onnxruntime computes something else.
    """
    to_onnx = translator()
    compute, inputs = _computed(bundle, layers)
    (rows,) = jax_export.symbolic_shape("b")
    shapes = [jax.ShapeDtypeStruct((rows, *shape[1:]), kind) for shape, kind in inputs]
    with backend.plain(), _quiet():
        closed = jax.make_jaxpr(compute)(*shapes)
        call = inlined(closed, _IN_OTHER_WORDS)
        try:
            names = {"input_names": INPUTS[: len(shapes)], "output_names": (*bundle.tasks, *layers)}
            program = to_onnx(lambda *arguments: tuple(call(*arguments)), shapes, model_name="linnaeus_jax", **names)
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise UserError(f"{bundle.settings['type']} cannot be translated to ONNX by jax2onnx: {text}") from error
    entry = program.metadata_props.add()
    entry.key, entry.value = "linnaeus_jax", about
    content: bytes = program.SerializeToString()
    check(content, bundle, layers)
    return content


def session(content: bytes) -> Any:
    """A program in onnxruntime, on all cores that this process may use."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting would take the time of readers
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def check(content: bytes, bundle: Bundle, layers: Sequence[str] = ()) -> float:
    """The largest difference between the outputs of onnxruntime and those of this program, see `TOLERANCE`; of images
    with edges and noise, and metadata of which some components are missing.

    Raises:
      UserError: it is larger than that.
    """
    compute, inputs = _computed(bundle, layers)
    names, theirs = [*bundle.tasks, *layers], session(content)
    rng, jitted, largest = np.random.default_rng(0), jax.jit(compute), 0.0
    for rows in (1, _ROWS):
        arrays = [_drawn(rng, (rows, *shape[1:]), kind) for shape, kind in inputs]
        found = theirs.run(names, dict(zip(INPUTS, arrays)))
        for name, ours, other in zip(names, jax.device_get(jitted(*arrays)), found, strict=True):
            difference = float(np.abs(ours - other).max() / max(1.0, np.abs(ours).max()))
            if not difference <= TOLERANCE:  # NaN, too
                raise UserError(
                    f"the ONNX program differs by {difference:.1e} at {name}, more than {TOLERANCE:.0e}: jax2onnx "
                    "translated an operation wrongly; nothing was written"
                )
            largest = max(largest, difference)
    return largest


def _computed(
    bundle: Bundle, layers: Sequence[str]
) -> tuple[Callable[..., list[jax.Array]], list[tuple[tuple[int, ...], Any]]]:
    """What is translated, and shape and dtype of its arguments for one row."""
    model = in_form(bundle.model, _PLAIN)
    forward = functools.partial(forward_pass(model, bundle.preprocessing, layers), bundle.variables)
    inputs: list[tuple[tuple[int, ...], Any]] = [((1, *bundle.preprocessing.size, 3), np.uint8)]
    if model.components:
        inputs += [((1, model.meta_dim), np.float32), ((1, len(model.components)), np.bool_)]

    def compute(image: jax.Array, *known: jax.Array) -> list[jax.Array]:
        # a model without metadata has vectors without elements, which ONNX has no use for
        meta = known or (jnp.zeros((image.shape[0], 0)), jnp.zeros((image.shape[0], 0), bool))
        outputs = forward(image, *meta)
        return [outputs[name] for name in (*bundle.tasks, *layers)]

    return compute, inputs


def in_form(model: ModelFamily, fields: Mapping[str, Any]) -> ModelFamily:
    """The model with these fields, as far as its family has them."""
    form: ModelFamily = model.clone(**{name: value for name, value in fields.items() if hasattr(model, name)})
    return form


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    if kind is np.bool_:
        return rng.random(shape) < 0.5
    if kind is np.float32:
        return rng.uniform(-1, 1, shape).astype(np.float32)
    rows, height, width, channels = shape
    places = rng.uniform(0, 255, (rows, 4, 4, channels))
    areas = places[:, np.arange(height) * 4 // height][:, :, np.arange(width) * 4 // width]
    return np.clip(areas + rng.normal(0, 20, shape), 0, 255).astype(np.uint8)


def _largest_of_windows(
    x: jax.Array,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    **_: Any,
) -> jax.Array:
    """`lax.reduce_window_max` without dilation, as the maximum of shifted slices.

    A window that reaches over the border holds the outermost value, so repeating that changes no maximum.
    """
    for axis, (low, high) in enumerate(padding):
        if low or high:
            assert max(low, high) < window_dimensions[axis]
            first, last = (lax.slice_in_dim(x, at, at + 1, axis=axis) for at in (0, x.shape[axis] - 1))
            x = lax.concatenate([first] * low + [x] + [last] * high, axis)
    windowed = [axis for axis in range(x.ndim) if max(window_dimensions[axis], window_strides[axis]) > 1]

    def shifted(start: tuple[int, ...]) -> jax.Array:
        part = x
        for axis, first in zip(windowed, start):
            stride = window_strides[axis]
            count = (x.shape[axis] - window_dimensions[axis]) // stride + 1
            part = lax.slice_in_dim(part, first, first + (count - 1) * stride + 1, stride, axis)
        return part

    starts = itertools.product(*(range(window_dimensions[axis]) for axis in windowed))
    return functools.reduce(lax.max, map(shifted, starts))


def _product(x: jax.Array, y: jax.Array, *, dimension_numbers: Any, **options: Any) -> jax.Array:
    """`lax.dot_general`; of the channels of an image, a convolution of 1 x 1, a third of the time in onnxruntime."""
    if x.ndim == 4 and y.ndim == 2 and dimension_numbers == (((3,), (0,)), ((), ())):
        chosen = {name: options[name] for name in ("precision", "preferred_element_type")}
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, y[None, None], (1, 1), "VALID", dimension_numbers=layout, **chosen)
    return lax.dot_general_p.bind(x, y, dimension_numbers=dimension_numbers, **options)


def _difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """`lax.sub`; of a constant, a sum, which onnxruntime joins with the convolution before it."""
    return lax.sub(x, y) if isinstance(y, jax.core.Tracer) else lax.add(x, -y)


_IN_OTHER_WORDS: dict[str, Callable[..., jax.Array]] = {
    "reduce_window_max": _largest_of_windows,
    "dot_general": _product,
    "sub": _difference,
    "relu6": lambda x: jnp.clip(x, 0, 6),  # one operation, which it joins, too
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within it the translator says nothing: of its own examples whose libraries are missing, of shapes not known."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
