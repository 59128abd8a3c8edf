"""How many pictures per second of CPU time an EfficientNet without squeeze-and-excitation reads on one thread.

    python -m benchmarks.efficientnet_forward [forward] [last_blocks] [--variant lite0] [--batches 1 4 16] [--pairs 9]

  forward      features of pictures, compiled as predictions are: against the same network in eager PyTorch (channels
               last, if torch is installed), and with the smallest batch but one against `model.depthwise_impl=lax`,
               XLA's own depthwise convolutions
  last_blocks  training of the last five blocks and of what follows on stored activations, compiled as a training step
               is: forward and backward, against `model.depthwise_impl=lax`

Weights and pictures are random. `pictures_per_cpu_s` is that of the fastest repetition, `other` that of the rival;
`ratio` is how many times as fast the rival's time is as ours, the median over alternating rounds with quartiles, and
`control` is ours against itself. The goal for lite0 at 224 px is 48 pictures per second of CPU time. Freed memory is
kept for the next repetition, as in a run, and PyTorch gains from that, too: with 16 pictures at once it reads twice as
many as in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import add_names, compared, write_results
from linnaeus_jax.config import get_config
from linnaeus_jax.models import build_model
from linnaeus_jax.models.efficientnet import VARIANTS, rounded, same_padding
from linnaeus_jax.step.process import compiler_options, keep_freed_memory

Row = dict[str, Any]
LAST_BLOCKS = 5
LITE = tuple(name for name, fields in VARIANTS.items() if fields["lite"])


class Timed:
    """A callable that returns the CPU seconds of one run over `batch` pictures and remembers the least."""

    def __init__(self, run: Callable[[], object], batch: int) -> None:
        self._run, self._batch, self._least = run, batch, float("inf")

    def __call__(self) -> float:
        start = time.process_time()
        self._run()
        seconds = time.process_time() - start
        self._least = min(self._least, seconds)
        return seconds

    @property
    def rate(self) -> float:
        """Pictures per CPU second of the fastest run."""
        return round(self._batch / self._least, 1)


class Network:
    """A variant with random parameters; `size` is the side of the pictures."""

    def __init__(self, variant: str, size: int | None, depthwise_impl: str = "auto") -> None:
        self.size = size or VARIANTS[variant]["nominal_size"]
        config = get_config()
        config.model.type, config.model.variant = "EfficientNet", variant
        config.model.depthwise_impl = depthwise_impl
        config.model.drop_rate, config.model.drop_path_rate = (0.0,), 0.0
        self.model: Any = build_model(config.model, components=(), num_classes={"species": 2}, img_size=self.size)
        self.variables: Any = jax.jit(self.model.init)(jax.random.key(0), self.pictures(1))

    def pictures(self, batch: int) -> jax.Array:
        """Random pictures [batch, size, size, 3]."""
        return jnp.asarray(np.random.default_rng(0).standard_normal((batch, self.size, self.size, 3), np.float32))

    def forward(self, batch: int) -> Timed:
        """The features of `batch` pictures."""
        pictures = self.pictures(batch)

        def features(variables: Any, pictures: jax.Array) -> Any:
            return self.model.apply(variables, pictures, method="encode_image")

        compiled = jax.jit(features).lower(self.variables, pictures).compile(compiler_options(training=False))
        return Timed(lambda: jax.block_until_ready(compiled(self.variables, pictures)), batch)

    def last_blocks(self, batch: int) -> Timed:
        """Loss and gradients of the last blocks and of what follows them, from the activations of `batch` pictures."""
        first = self.model.trunk_blocks - LAST_BLOCKS
        entering = jax.eval_shape(
            lambda variables, pictures: self.model.apply(variables, pictures, first, method="forward_prefix"),
            self.variables,
            self.pictures(batch),
        )
        activations = jnp.asarray(np.random.default_rng(0).standard_normal(entering.shape, np.float32))
        frozen = dict(self.variables["params"])
        names = [*(f"_blocks.{first + number}" for number in range(LAST_BLOCKS)), "_conv_head", "_bn1"]
        tuned = {name: frozen.pop(name) for name in names}
        state = {"batch_stats": self.variables["batch_stats"]}

        def loss(tuned: Any, activations: jax.Array) -> jax.Array:
            given = {"params": {**frozen, **tuned}, **state}
            features, _ = self.model.apply(
                given, activations, first, train=True, method="forward_suffix", mutable=list(state)
            )
            return jnp.mean(jnp.square(features))

        step = jax.jit(jax.value_and_grad(loss)).lower(tuned, activations)
        compiled = step.compile(compiler_options(training=True))
        return Timed(lambda: jax.block_until_ready(compiled(tuned, activations)), batch)


def torch_forward(network: Network, batch: int) -> Timed:
    """The same network in eager PyTorch on one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = network.model

    def convolved(channels: int, features: int, kernel: int, side: int, **settings: Any) -> list[nn.Module]:
        before, after = same_padding(side, kernel, settings.get("stride", 1))
        layers: list[nn.Module] = []
        if before != after:  # as PyTorch ports of TensorFlow's padding do
            layers.append(nn.ZeroPad2d((before, after, before, after)))
            before = 0
        layers.append(nn.Conv2d(channels, features, kernel, padding=before, bias=False, **settings))
        return [*layers, nn.BatchNorm2d(features, eps=1e-3)]

    class Block(nn.Module):
        def __init__(self, channels: int, features: int, kernel: int, side: int, stride: int, expansion: int) -> None:
            super().__init__()
            hidden = channels * expansion
            layers = [*convolved(channels, hidden, 1, side), nn.ReLU6()] if expansion != 1 else []
            layers += [*convolved(hidden, hidden, kernel, side, stride=stride, groups=hidden), nn.ReLU6()]
            self.branch = nn.Sequential(*layers, *convolved(hidden, features, 1, side))
            self.adds = stride == 1 and channels == features

        def forward(self, x: Any) -> Any:
            return x + self.branch(x) if self.adds else self.branch(x)

    channels, last = model.widths()
    layers: list[nn.Module] = [*convolved(3, channels, 3, network.size, stride=2), nn.ReLU6()]
    side = -(-network.size // 2)
    for repeats, (_, kernel, first_stride, expansion, wanted) in zip(model.repeats(), model.stages, strict=True):
        for stride in (first_stride, *(1,) * (repeats - 1)):
            features = rounded(wanted * model.width)
            layers.append(Block(channels, features, kernel, side, stride, expansion))
            channels, side = features, -(-side // stride)
    layers += [*convolved(channels, last, 1, side), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)]
    net: Any = nn.Sequential(*layers).eval()
    net = net.to(memory_format=torch.channels_last)
    parameters = [value for name, value in network.variables["params"].items() if name != "head"]
    ours = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    if (theirs := sum(parameter.numel() for parameter in net.parameters())) != ours:
        raise AssertionError(f"PyTorch's network has {theirs} parameters, ours {ours}")
    pictures = torch.randn(batch, 3, network.size, network.size).to(memory_format=torch.channels_last)

    def run() -> None:
        with torch.inference_mode():
            net(pictures)

    return Timed(run, batch)


def row(part: str, against: str, batch: int, ours: Timed, other: Timed, pairs: int) -> Row:
    """The line of one comparison."""
    times = compared(ours, other, pairs).row()
    rates = {"pictures_per_cpu_s": ours.rate, "other": other.rate}
    ratios = {key: times[key] for key in ("ratio", "ratio_low", "ratio_high", "control")}
    return {"part": part, "against": against, "batch": batch, **rates, **ratios}


def forward(options: argparse.Namespace) -> list[Row]:
    network = Network(options.variant, options.img_size)
    rows: list[Row] = []
    if importlib.util.find_spec("torch"):
        for batch in options.batches:
            rivals = network.forward(batch), torch_forward(network, batch)
            rows.append(row("forward", "torch", batch, *rivals, options.pairs))
    batch = sorted(options.batches)[:2][-1]
    plain = Network(options.variant, options.img_size, "lax")
    return [*rows, row("forward", "lax", batch, network.forward(batch), plain.forward(batch), options.pairs)]


def last_blocks(options: argparse.Namespace) -> list[Row]:
    batch = max(options.batches)
    ours, plain = (Network(options.variant, options.img_size, form).last_blocks(batch) for form in ("auto", "lax"))
    return [row("last_blocks", "lax", batch, ours, plain, options.pairs)]


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {"forward": forward, "last_blocks": last_blocks}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, PARTS)
    parser.add_argument("--variant", choices=LITE, default="lite0")
    parser.add_argument("--img-size", type=int, help="side of the pictures in pixels (default: the variant's own)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="pictures at once")
    parser.add_argument("--pairs", type=int, default=9, help="rounds of each comparison")
    options = parser.parse_args(argv)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # before XLA starts its threads, of which it starts one for each core
    try:
        keep_freed_memory()
        rows = [line for name in options.names for line in PARTS[name](options)]
    finally:
        os.sched_setaffinity(0, cores)
    command = ["python", "-m", "benchmarks.efficientnet_forward", *(sys.argv[1:] if argv is None else argv)]
    details = {"variant": options.variant, "img_size": options.img_size or VARIANTS[options.variant]["nominal_size"]}
    print(write_results("efficientnet_forward", rows, shlex.join(command), details))


if __name__ == "__main__":
    main()
