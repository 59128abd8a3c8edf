"""Attention of vision transformers beside `jax.nn.dot_product_attention` and PyTorch's, by number of tokens.

    python -m benchmarks.attention [forward] [training] [--tokens 196 577 1369] [--heads 6] [--head-dim 64] [--batch 4]

What is measured is softmax(q k / sqrt(d)) v alone, as `models/transformer.py` computes it on this device, in float32 on
a CPU and bfloat16 elsewhere; training is forward and backward. On a GPU a measurement is --calls calls in a row, so
that what counts is the work and not the start of one. `ratio` is how many times as fast ours is, the median
over alternating rounds with quartiles; `control` is ours against itself. PyTorch is measured where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import add_names, interleaved, write_results
from linnaeus_jax.models.vit_parts import PlacedAttention
from linnaeus_jax.step.process import compiler_options, keep_freed_memory

STEPS = ("forward", "training")
Run = Callable[[], Any]


def dtype_here() -> Any:
    """What attention is computed in on this device."""
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def arrays(batch: int, tokens: int, heads: int, head_dim: int) -> list[np.ndarray]:
    """Queries, keys and values, float32 [batch, tokens, heads, head_dim]."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((batch, tokens, heads, head_dim), np.float32) for _ in range(3)]


class Attend(PlacedAttention):
    """The attention of the blocks without its linear maps."""

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:  # type: ignore[override]
        return self._attend(q, k, v, None, None, None, 0)


def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """As the blocks compute it."""
    out: Any = Attend(q.shape[2], dtype=q.dtype).apply({}, q, k, v)
    return out


def jax_run(attend: Callable[..., jax.Array], given: Sequence[np.ndarray], step: str, calls: int) -> Run:
    """A compiled function of JAX, called so often, the last result waited for."""
    placed = [jnp.asarray(array, dtype_here()) for array in given]

    def loss(*qkv: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(attend(*qkv).astype(jnp.float32)))

    function = attend if step == "forward" else jax.grad(loss, argnums=(0, 1, 2))
    options = compiler_options(training=step == "training")
    compiled = jax.jit(function).lower(*placed).compile(compiler_options=options)
    return lambda: jax.block_until_ready([compiled(*placed) for _ in range(calls)][-1])


def torch_run(given: Sequence[np.ndarray], step: str, calls: int) -> Run:
    """PyTorch's `scaled_dot_product_attention`, heads before tokens, as it wants them."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    q, k, v = (torch.from_numpy(x).to(device, kind).transpose(1, 2).contiguous() for x in given)
    for each in (q, k, v):
        each.requires_grad_(step == "training")

    def run() -> None:
        for _ in range(calls):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            if step == "training":
                torch.autograd.grad(out.float().square().sum(), (q, k, v))
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


def measured(step: str, tokens: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of one number of tokens."""
    given = arrays(options.batch, tokens, options.heads, options.head_dim)
    calls = options.calls or (1 if jax.default_backend() == "cpu" else 50)
    rivals = {"jax.nn.dot_product_attention": jax_run(jax.nn.dot_product_attention, given, step, calls)}
    if importlib.util.find_spec("torch"):
        rivals["torch"] = torch_run(given, step, calls)
    mine = jax_run(ours, given, step, calls)
    return [
        {"step": step, "tokens": tokens, "rival": name, **interleaved(mine, rival, options.pairs).row()}
        for name, rival in rivals.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, STEPS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[196, 577, 1369], help="default: %(default)s")
    parser.add_argument("--heads", type=int, default=6, help="default: %(default)s, as ViT-S")
    parser.add_argument("--head-dim", type=int, default=64, help="channels of a head (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="pictures at once (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=9, help="rounds, at least 2 (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=0, help="in a measurement (default: 1 on a CPU, else 50)")
    parser.add_argument("--name", default="attention", help="of the file in results/ (default: %(default)s)")
    options = parser.parse_args(argv)
    keep_freed_memory()
    rows = [row for step in options.names for tokens in options.tokens for row in measured(step, tokens, options)]
    command = ["python", "-m", "benchmarks.attention", *(sys.argv[1:] if argv is None else argv)]
    print(write_results(options.name, rows, shlex.join(command)))


if __name__ == "__main__":
    main()
