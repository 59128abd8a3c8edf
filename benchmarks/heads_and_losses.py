"""What heads and losses cost as the number of classes grows.

    python -m benchmarks.heads_and_losses [smoothing] [heads] [--batch 64] [--pairs 15]

`smoothing`: loss and gradient of mixed labels, taxonomy smoothing by the tree form of the step against the dense
matrix and against plain cross entropy; `ratio` = time of the rival over time of the tree form. The dense form gathers
rows of a C x C matrix and is left out where that would exceed 1 GiB.

`heads`: all heads of four ranks, each with a fifth of the classes of the finer one, with cross entropy, forward and
backward; every head type against Linear, and against itself with the next smaller number of classes: `time_growth` and
`memory_growth`, whose `limit` from 10000 to 50000 classes is 5.5. What Linear grows by is the matrix products and the
cross entropy, which every head has; `growth_to_linear` is the growth relative to that.

Everything is compiled and measured in interleaved rounds; `control` is the first of the two against itself.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import add_names, interleaved, write_results
from linnaeus_jax.learning.losses import make_criterion
from linnaeus_jax.learning.smoothing import TaxonomySmoothing
from linnaeus_jax.models.heads import ClassificationHeads, head_specs

Loss = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
Row = dict[str, object]
RANKS = 4
#: name in the table -> head of every task
HEADS: dict[str, dict[str, Any]] = {
    "Linear": {"type": "Linear"},
    "ConditionalClassifier": {"type": "ConditionalClassifier"},
    "ConditionalClassifier, gumbel": {"type": "ConditionalClassifier", "routing_strategy": "gumbel"},
    "HierarchicalSoftmax": {"type": "HierarchicalSoftmax"},
    "PathSoftmax": {"type": "PathSoftmax"},
}
GROWTH_LIMIT, LIMITED = 5.5, (10_000, 50_000)
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


def compiled_step(loss: Callable[..., jax.Array], arguments: tuple[Any, ...]) -> tuple[Callable[[], object], float]:
    """A call that runs loss and gradient of the first argument to the end, and its temporary memory in MiB.

    The gradient is written over that of the call before, as a training step reuses its memory: new memory for every
    call would be paid for page by page, above 32 MiB only.
    """
    gradient = jax.value_and_grad(lambda *arguments: jnp.mean(loss(*arguments)))
    step = jax.jit(lambda arguments, old: gradient(*arguments), donate_argnums=1, keep_unused=True)
    old = jax.tree.map(jnp.zeros_like, arguments[0])
    executable = step.lower(arguments, old).compile()
    memory = executable.memory_analysis()
    temporary = memory.temp_size_in_bytes / 2**20 if memory is not None else float("nan")

    def run() -> None:
        nonlocal old
        _, old = jax.block_until_ready(executable(arguments, old))

    return run, temporary


def measure_smoothing(classes: int, batch: int, pairs: int) -> list[Row]:
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
    rows: list[Row] = []
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


def smoothing(options: argparse.Namespace) -> list[Row]:
    return [row for count in options.classes for row in measure_smoothing(count, options.batch, options.pairs)]


class HeadSteps:
    """The compiled step of every head type at one class count; parameters, features and labels are the same."""

    def __init__(self, classes: int, batch: int, features: int) -> None:
        rng = np.random.default_rng(0)
        sizes = {f"rank {rank}": max(classes // 5**rank, 2) for rank in range(RANKS)}
        self.sizes = sizes
        self._parents = {
            task: np.append(-1, rng.integers(1, coarse, size=fine - 1))  # class 0 is null
            for (task, fine), (_, coarse) in itertools.pairwise(sizes.items())
        }
        self._params = {
            task: {"fc": {"kernel": self._normal(rng, features, count) * 0.02, "bias": jnp.zeros(count)}}
            for task, count in sizes.items()
        }
        self._features = self._normal(rng, batch, features)
        self._labels = {task: jnp.asarray(rng.integers(0, count, batch), jnp.int32) for task, count in sizes.items()}
        self.steps = {name: self._compiled(head) for name, head in HEADS.items()}

    @staticmethod
    def _normal(rng: np.random.Generator, *shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    def _compiled(self, head: dict[str, Any]) -> tuple[Callable[[], object], float]:
        heads = ClassificationHeads(head_specs(self.sizes, dict.fromkeys(self.sizes, head), self._parents))
        criteria = {task: make_criterion("CrossEntropyLoss", num_classes=count) for task, count in self.sizes.items()}

        def loss(given: tuple[Any, jax.Array], labels: dict[str, jax.Array], key: jax.Array) -> jax.Array:
            params, features = given
            logits: Any = heads.apply({"params": params}, features, train=True, rngs={"gumbel": key})
            full = jnp.ones(features.shape[0])
            losses = [criteria[task](z, labels[task], labels[task], full) for task, z in logits.items()]
            return jnp.sum(jnp.stack(losses), axis=0)

        return compiled_step(loss, ((self._params, self._features), self._labels, jax.random.key(0)))


def measure_heads(options: argparse.Namespace) -> list[Row]:
    """Rows of every class count and head type."""
    rows: list[Row] = []
    before: HeadSteps | None = None
    for classes in sorted(options.head_classes):
        now = HeadSteps(classes, options.batch, options.features)
        linear, linear_mib = now.steps["Linear"]
        linear_growth = 0.0
        for name, (step, mib) in now.steps.items():
            against = interleaved(linear, step, options.pairs)
            row: Row = {
                "head": name,
                "classes": classes,
                "batch": options.batch,
                "features": options.features,
                "ms": round(against.g_seconds * 1e3, 3),
                "ratio_to_linear": round(against.ratio, 3),
                "control": round(against.control, 3),
                "temp_mib": round(mib, 3),
                "memory_to_linear": round(mib / linear_mib, 3),
            }
            if before is not None:
                smaller, smaller_mib = before.steps[name]
                growth = interleaved(smaller, step, options.pairs)
                row["smaller"] = before.sizes["rank 0"]
                linear_growth = linear_growth or growth.ratio  # of the first in HEADS
                row |= {"time_growth": round(growth.ratio, 3), "growth_control": round(growth.control, 3)}
                row["growth_to_linear"] = round(growth.ratio / linear_growth, 3)
                row["memory_growth"] = round(mib / smaller_mib, 3)
                if (before.sizes["rank 0"], classes) == LIMITED:
                    row["limit"] = GROWTH_LIMIT
            rows.append(row)
        before = now
    return rows


#: what is measured -> stem of its file of results, function
MEASURES: dict[str, tuple[str, Callable[[argparse.Namespace], list[Row]]]] = {
    "smoothing": ("heads_and_losses", smoothing),
    "heads": ("heads_by_classes", measure_heads),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, MEASURES)
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 10_000, 50_000], help="of smoothing")
    parser.add_argument("--head-classes", type=int, nargs="+", default=[100, 1000, *LIMITED], help="of heads")
    parser.add_argument("--features", type=int, default=768, help="width of what the heads see (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=15, help="rounds of each comparison")
    options = parser.parse_args(argv)
    command = ["python", "-m", "benchmarks.heads_and_losses", *(sys.argv[1:] if argv is None else argv)]
    for name in options.names:
        file, measure = MEASURES[name]
        print(write_results(file, measure(options), shlex.join(command)))


if __name__ == "__main__":
    main()
