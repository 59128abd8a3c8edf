"""What taxonomy smoothing costs: the tree form of the step against the dense matrix and against plain cross entropy.

    python -m benchmarks.heads_and_losses [--batch 64] [--pairs 15] [--classes 1000 10000 50000]

One row per comparison: loss and gradient of mixed labels, compiled; `ratio` = time of the rival over time of the tree
form. The dense form gathers rows of a C x C matrix and is left out where that would exceed 1 GiB.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import interleaved, write_results
from linnaeus_jax.learning.losses import make_criterion
from linnaeus_jax.learning.smoothing import TaxonomySmoothing

Loss = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
MAX_DENSE_BYTES = 2**30


def random_forest(classes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Parents of four ranks, about 4, 20 and 100 finest classes per node, class 0 of every rank null."""
    sizes = [max(classes // share, 2) for share in (1, 4, 20, 100)]
    links = [rng.integers(1, coarse, size=fine) for fine, coarse in itertools.pairwise(sizes)]
    links.append(np.full(sizes[-1], -1))
    for link in links:
        link[0] = -1
    return [link.astype(np.int32) for link in links]


def dense_loss(matrix: np.ndarray) -> Loss:
    """Cross entropy against gathered rows of the smoothing matrix."""
    rows = jnp.asarray(matrix)

    def loss(logits: jax.Array, label: jax.Array, other: jax.Array, lam: jax.Array) -> jax.Array:
        target = lam[:, None] * rows[label] + (1.0 - lam[:, None]) * rows[other]
        return -jnp.sum(target * jax.nn.log_softmax(logits), axis=1)

    return loss


def compiled_step(loss: Loss, arguments: tuple[jax.Array, ...]) -> tuple[Callable[[], object], float]:
    """A call that runs loss and gradient to the end, and its temporary memory in MiB."""
    step = jax.jit(jax.value_and_grad(lambda logits, *target: jnp.mean(loss(logits, *target))))
    executable = step.lower(*arguments).compile()
    memory = executable.memory_analysis()
    temporary = memory.temp_size_in_bytes / 2**20 if memory is not None else float("nan")
    return lambda: jax.block_until_ready(executable(*arguments)), temporary


def measure(classes: int, batch: int, pairs: int) -> list[dict[str, object]]:
    """Rows of one class count."""
    rng = np.random.default_rng(0)
    smoothing = TaxonomySmoothing.from_parents(random_forest(classes, rng), alpha=0.1, beta=1.0)
    arguments = (
        jnp.asarray(rng.normal(size=(batch, classes)), jnp.float32),
        jnp.asarray(rng.integers(0, classes, batch), jnp.int32),
        jnp.asarray(rng.integers(0, classes, batch), jnp.int32),
        jnp.asarray(rng.random(batch), jnp.float32),
    )
    tree, tree_mib = compiled_step(
        make_criterion("TaxonomyAwareLabelSmoothing", num_classes=classes, smoothing=smoothing), arguments
    )
    table_mib = (smoothing.ancestors.nbytes + smoothing.subtree_mass.nbytes) / 2**20
    rivals: dict[str, tuple[Loss, float]] = {
        "cross entropy": (make_criterion("CrossEntropyLoss", num_classes=classes), 0.0)
    }
    if 4 * classes**2 <= MAX_DENSE_BYTES:
        rivals["dense smoothing"] = (dense_loss(smoothing.dense_matrix()), 4 * classes**2 / 2**20)
    rows: list[dict[str, object]] = []
    for name, (loss, rival_table_mib) in rivals.items():
        rival, rival_mib = compiled_step(loss, arguments)
        times = interleaved(tree, rival, pairs)
        rows.append(
            {
                "classes": classes,
                "batch": batch,
                "rival": name,
                "tree_ms": round(times.f_seconds * 1e3, 3),
                "rival_ms": round(times.g_seconds * 1e3, 3),
                "ratio": round(times.ratio, 3),
                "control": round(times.control, 3),
                "tree_temp_mib": round(tree_mib, 2),
                "rival_temp_mib": round(rival_mib, 2),
                "tree_tables_mib": round(table_mib, 3),
                "rival_tables_mib": round(rival_table_mib, 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=15, help="rounds of each comparison")
    options = parser.parse_args()
    rows = [row for classes in options.classes for row in measure(classes, options.batch, options.pairs)]
    print(
        write_results(
            "heads_and_losses", rows, shlex.join(["python", "-m", "benchmarks.heads_and_losses", *sys.argv[1:]])
        )
    )


if __name__ == "__main__":
    main()
