"""The forward pass by onnxruntime, of bundles that hold an ONNX program: on CPUs that is faster."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import backend
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.forward import Forward, Pending
from linnaeus_jax.inference.onnx_program import INPUTS, session

#: what computes a forward pass
AUTO, XLA, ONNX = RUNTIMES = ("auto", "xla", "onnx")
#: families that it computes faster than XLA on CPUs, by `benchmarks.onnx_forward`
FASTER = ("EfficientNet",)
_ADVICE = "make the bundle again, or use --runtime xla"


def in_onnxruntime(bundle: Bundle, runtime: str) -> bool:
    """Whether onnxruntime computes the forward pass of a bundle: where `runtime`, one of `RUNTIMES`, is "onnx"; of
    "auto" where the bundle has a program for it, it is installed, this process has only CPUs, and it is faster there.

    Raises:
      UserError: it cannot and is asked for, or another runtime.
    """
    if runtime not in RUNTIMES:
        raise UserError(f"--runtime {runtime} is unknown; choose one of {', '.join(RUNTIMES)}")
    if runtime == ONNX and not bundle.onnx:
        raise UserError(f"--runtime onnx: {bundle.source} holds no ONNX program; make the bundle again with --onnx")
    there = importlib.util.find_spec("onnxruntime") is not None
    if runtime == ONNX and not there:
        raise UserError("--runtime onnx: onnxruntime is not installed; pip install 'linnaeus-jax[onnx]'")
    faster = backend.ONNXRUNTIME.here() and bundle.settings["type"] in FASTER
    return bool(bundle.onnx) and there and (runtime == ONNX or (runtime == AUTO and faster))


@dataclass(frozen=True, eq=False)
class _Running(Pending):
    """Outputs that onnxruntime computes."""

    futures: tuple[Future[list[NDArray[np.float32]]], ...]
    names: tuple[str, ...]

    def result(self) -> dict[str, NDArray[np.float32]]:
        pieces = [future.result() for future in self.futures]
        return {name: np.concatenate(parts) for name, parts in zip(self.names, zip(*pieces), strict=True)}


class OnnxForward(Forward):
    """As `Forward`; nothing is compiled, and no rows are added to a batch. Outputs that the program does not give are
    computed as ever.

    Args:
      content: what `onnx_program` made of the bundle.

    Raises:
      UserError: it is something else.
    """

    def __init__(self, bundle: Bundle, content: bytes, buckets: Sequence[int]) -> None:
        super().__init__(bundle.model, bundle.variables, bundle.preprocessing, buckets)
        try:
            self._session = session(content)
        except Exception as error:  # onnxruntime has classes of its own for every fault
            text = " ".join(str(error).split())[:200]
            raise UserError(f"{bundle.source}: its ONNX program cannot be used: {text}; {_ADVICE}") from error
        self._given = {output.name for output in self._session.get_outputs()}
        if lost := [task for task in bundle.tasks if task not in self._given]:
            raise UserError(f"{bundle.source}: its ONNX program does not give {', '.join(lost)}; {_ADVICE}")
        self._known = bool(bundle.encoder.components)
        self._names = self._tasks = bundle.tasks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onnxruntime")

    def giving(self, *layers: str, logits: bool = False) -> Forward:
        """See `Forward.giving`."""
        if not self._given.issuperset(layers):
            return super().giving(*layers, logits=logits)
        other = copy.copy(self)
        other._names = (*(self._tasks if logits else ()), *layers)
        return other

    def width(self, layer: str) -> int:
        """See `Forward.width`."""
        return int(next(output.shape[1] for output in self._session.get_outputs() if output.name == layer))

    def dispatch(self, image: NDArray[Any], meta: NDArray[Any], valid: NDArray[Any]) -> Pending:
        """See `Forward.dispatch`."""
        arrays = dict(zip(INPUTS, (image, meta, valid) if self._known else (image,)))
        rows = self.buckets[-1]
        parts = [{name: a[start : start + rows] for name, a in arrays.items()} for start in range(0, len(image), rows)]
        futures = tuple(self._thread.submit(self._session.run, self._names, part) for part in parts)
        return _Running([], futures, self._names)
