"""What is done otherwise on one kind of device: each decision by its name, and one switch for all of them.

An `Optimisation` computes what the plain form beside it computes, faster or in less memory, on the kinds of devices
where that was measured and nowhere else. `LINNAEUS_PLAIN=all` takes the plain form of all of them,
`LINNAEUS_PLAIN=NAME,NAME` of some: to find out whether an optimisation is at fault, or whether it still pays. How each
was measured stands in `docs/decisions/backends.md`.

What a program is traced for is asked here and not of `jax.default_backend`, so that a program for another device can be
traced on this one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import jax

from linnaeus_jax.mistakes import InputError

#: environment variable with names of optimisations that are not used
PLAIN = "LINNAEUS_PLAIN"
CPU, GPU, TPU = "cpu", "gpu", "tpu"
ACCELERATORS = (GPU, TPU)
EVERYWHERE = (CPU, *ACCELERATORS)

_CHOSEN: ContextVar[str | None] = ContextVar("_CHOSEN", default=None)
_ALL_PLAIN: ContextVar[bool] = ContextVar("_ALL_PLAIN", default=False)


def target() -> str:
    """`cpu`, `gpu` or `tpu`: that of `tracing_for`, else the backend of this process."""
    return _CHOSEN.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(name: str) -> Iterator[None]:
    """What is traced within is for `name`, one of `cpu`, `gpu`, `tpu`; it cannot be run on another kind of device."""
    token = _CHOSEN.set(name)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """What is traced within takes the plain form of every optimisation, for a compiler that is not XLA."""
    token = _ALL_PLAIN.set(True)
    try:
        yield
    finally:
        _ALL_PLAIN.reset(token)


def only_cpus() -> bool:
    """Whether this process can have no other devices than CPUs; asked without starting a backend."""
    chosen: str | None = jax.config.jax_platforms  # type: ignore[attr-defined]
    if chosen:
        return chosen == CPU
    accelerators = ("jax_plugins", "libtpu")
    return not entry_points(group="jax_plugins") and not any(map(importlib.util.find_spec, accelerators))


#: platform optimisations by name
OPTIMISATIONS: dict[str, Optimisation] = {}


@dataclass(frozen=True)
class Optimisation:
    """A form that suits some kinds of devices, beside a plain one.

    Attributes:
      name: in `LINNAEUS_PLAIN`.
      devices: where it is used.
      gains: what it is good for.
      measured: the command that shows it.
      key: a config key that decides it as well; empty: none.
    """

    name: str
    devices: tuple[str, ...]
    gains: str
    measured: str
    key: str = ""

    def __post_init__(self) -> None:
        OPTIMISATIONS[self.name] = self

    def allowed(self) -> bool:
        """Whether `LINNAEUS_PLAIN` and `plain` leave it on.

        Raises:
          InputError: the variable names what is no optimisation.
        """
        return not _ALL_PLAIN.get() and self.name not in _switched_off(os.environ.get(PLAIN, ""))

    def here(self) -> bool:
        """Whether what is traced now uses it."""
        return self.allowed() and target() in self.devices

    def by_platform(self, special: Callable[..., Any], plain: Callable[..., Any], *args: Any) -> Any:
        """`special(*args)` where the program is lowered for a CPU, else `plain(*args)`; of optimisations for CPUs, in
        programs that are lowered for several platforms at once, as exports are."""
        assert self.devices == (CPU,)
        if not self.allowed():
            return plain(*args)
        return jax.lax.platform_dependent(*args, cpu=special, default=plain)


@functools.cache
def _switched_off(given: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in given.split(",")) - {""}
    if names == {"all"}:
        return frozenset(OPTIMISATIONS)
    if unknown := sorted(names - OPTIMISATIONS.keys()):
        raise InputError(
            f"{PLAIN}={given} names {unknown[0]!r}; give all, or some of {', '.join(sorted(OPTIMISATIONS))}"
        )
    return names


# ---- models
SHIFTED_DEPTHWISE = Optimisation(
    "shifted-depthwise",
    (CPU,),
    "a depthwise convolution as a sum of shifted slices takes a tenth of the time of XLA's own",
    "python -m benchmarks.efficientnet_forward",
    key="model.depthwise_impl",
)
COMPUTED_ONCE = Optimisation(
    "computed-once",
    (CPU,),
    "an array that XLA would compute again within each of its readers goes through a loop, across which it does not",
    "python -m benchmarks.train_step",
)
RELEASED_EARLY = Optimisation(
    "released-early",
    (CPU,),
    "no gradient is handed on before those of the parameters beside it are there, so that what they need is freed",
    "temporaries in python -m benchmarks.train_step",
)
REMADE_GELU = Optimisation(
    "remade-gelu",
    (CPU,),
    "a large GELU is made again for the backward pass of the layer behind it, and not kept",
    "temporaries in python -m benchmarks.train_step",
)
HAND_WRITTEN_GRADIENTS = Optimisation(
    "hand-written-gradients",
    EVERYWHERE,
    "activations, norms and products keep less for their backward pass, and move less in it, than what JAX derives",
    "python -m benchmarks.train_step; python -m benchmarks.gpu_program",
)
NARROW_OPERAND_LEFT = Optimisation(
    "narrow-operand-left",
    (CPU,),
    "of a kernel's gradient the narrower operand is the one that XLA transposes in memory",
    "python -m benchmarks.train_step",
)
SUMS_AS_PRODUCTS = Optimisation(
    "sums-as-products",
    (CPU,),
    "sums of narrow numbers, and over the first axis, are products with ones: no wide copy, and 20 times faster",
    "python -m benchmarks.train_step",
)
TURNS_AS_PRODUCTS = Optimisation(
    "turns-as-products",
    (CPU,),
    "pairs of channels change places by a product, since XLA's code for pairs is slow",
    "python -m benchmarks.train_step",
)
ROTATED_APART = Optimisation(
    "rotated-apart",
    ACCELERATORS,
    "queries and keys are rotated each on its own, where the attention kernel reads them",
    "python -m benchmarks.gpu_program",
)
SWISH_FROM_INPUT = Optimisation(
    "swish-from-input",
    ACCELERATORS,
    "the gradient of swish is computed from its input alone; on CPUs what JAX derives is as fast",
    "python -m benchmarks.gpu_program",
)
POOL_BY_PLACE = Optimisation(
    "pool-by-place",
    ACCELERATORS,
    "the gradient of a maximum goes to the place that was largest, without a second search and a scatter",
    "python -m benchmarks.gpu_program",
)
ONE_PASS_MOMENTS = Optimisation(
    "one-pass-moments",
    ACCELERATORS,
    "BatchNorm reads what it normalises once for both moments, and once for both sums of its gradient",
    "python -m benchmarks.gpu_program",
)
SUMMED_IN_ORDER = Optimisation(
    "summed-in-order",
    ACCELERATORS,
    "a sum over the rows of a batch does not make XLA store all that leads to it with the batch last",
    "python -m benchmarks.gpu_program --model ViT-s16",
)
FUSED_ATTENTION = Optimisation(
    "fused-attention",
    (GPU,),
    "attention in bfloat16 is one kernel of cuDNN, which stores no weights of pairs of tokens",
    "python -m benchmarks.gpu_program",
    key="model.attn_impl",
)
SHAPES_CHECKED_ONCE = Optimisation(
    "shapes-checked-once",
    EVERYWHERE,
    "a parameter's initializer is not traced wherever the model is applied: a tenth of the tracing",
    "python -m benchmarks.start_up",
)
# ---- learning and step
ONE_PICTURE_AT_A_TIME = Optimisation(
    "one-picture-at-a-time",
    (CPU,),
    "a single device augments in a loop, in which only the operators that a picture drew run",
    "python -m benchmarks.train_step",
)
SELECTED = Optimisation(
    "selected",
    (GPU,),
    "conditions select among results, since the host waits for conditionals outside of a command buffer",
    "python -m benchmarks.gpu_program",
)
TASKS_TOGETHER = Optimisation(
    "tasks-together",
    (CPU, TPU),
    "GradNorm's gradients of all tasks are mapped; in a loop XLA on CPU runs convolutions on one thread",
    "python -m benchmarks.train_step",
)
GATHERED_LEAVES = Optimisation(
    "gathered-leaves",
    (CPU, TPU),
    "small leaves are gathered in vectors, so that the optimizer's work on hundreds of them is one operation",
    "python -m benchmarks.start_up; kernels in python -m benchmarks.gpu_program",
)
NORM_OF_ONE_VECTOR = Optimisation(
    "norm-of-one-vector",
    (GPU,),
    "the norm of small leaves, which are not gathered, is that of one vector of them instead of a kernel for each",
    "python -m benchmarks.gpu_program",
)
GRADIENTS_AS_STORED = Optimisation(
    "gradients-as-stored",
    (GPU,),
    "gradients are brought into the order of their parameters, instead of three results of the update",
    "copies in python -m benchmarks.gpu_program",
)
UNROLLED_ACCUMULATION = Optimisation(
    "unrolled-accumulation",
    (CPU,),
    "micro-batches are unrolled, since XLA runs convolutions inside a loop on one thread",
    "python -m benchmarks.train_step",
)
# ---- the process
COMPILER_OPTIONS = Optimisation(
    "compiler-options",
    (CPU,),
    "LLVM's first level compiles in half the time, and training programs free their temporaries early",
    "python -m benchmarks.train_step",
)
KEPT_MEMORY = Optimisation(
    "kept-memory",
    (CPU,),
    "memory that an update or a forward pass frees stays with the process, which need not clear and map it again",
    "python -m benchmarks.train_step; python -m benchmarks.predicting costs",
    key="env.keep_freed_memory",
)
SMALL_BATCHES = Optimisation(
    "small-batches",
    (CPU,),
    "a model reads few images at once, whose temporaries are an eighth and stay in the caches",
    "python -m benchmarks.predicting costs",
)
ONNXRUNTIME = Optimisation(
    "onnxruntime",
    (CPU,),
    "the forward pass of a bundle that holds an ONNX program, where onnxruntime is installed: 1.3 times as fast",
    "python -m benchmarks.onnx_forward",
)
RETIRED_FRAGMENTS = Optimisation(
    "retired-gaps",
    (CPU,),
    "gaps that a compilation left in the heap are no longer searched: a quarter of a small model's update",
    "python -m benchmarks.train_step",
)
BATCH_SCHEDULING = Optimisation(
    "batch-scheduling",
    (CPU,),
    "of processes that train together, gloo's polling thread does not interrupt the one that it waits for",
    "python -m benchmarks.processes",
)


# ---- decisions without a plain form
def automatic_dtype() -> str:
    """Precision of the model where `train.compute_dtype` is auto: CPUs have no units for bfloat16."""
    return "float32" if target() == CPU else "bfloat16"


def recomputation_saves_memory() -> bool:
    """Whether activations may be computed again where memory lacks: XLA on CPU would do so early, and keep them."""
    return target() != CPU


def traced_elsewhere() -> bool:
    """Whether the devices of this process are of another kind than what is traced now is for."""
    return jax.default_backend() != target()
