"""Random taxonomies for tests, as they may come: orphans, childless taxa, ranks of one class, with and without null."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True, eq=False)
class Case:
    """A taxonomy with logits float32 [N, C] by task and temperatures."""

    taxonomy: Taxonomy
    logits: dict[str, np.ndarray]
    temperature: dict[str, float]


def random_taxonomy(sizes: list[int], null: bool, rng: np.random.Generator) -> Taxonomy:
    """Sizes count taxa, finest rank first; one in four has no parent."""
    first = int(null)
    tasks = tuple(f"taxa_L{10 * (place + 1)}" for place in range(len(sizes)))
    classes, parents, names = {}, {}, {}
    for place, (task, size) in enumerate(zip(tasks, sizes)):
        ids = 100 * (place + 1) + np.arange(1, size + 1)
        classes[task] = np.concatenate([np.zeros(first, np.int64), ids])
        parent = np.full(first + size, -1)
        if place + 1 < len(sizes):
            drawn = rng.integers(first, first + sizes[place + 1], size)
            parent[first:] = np.where(rng.random(size) < 0.25, -1, drawn)
        parents[task] = parent
        names[task] = {str(i): {"name": f"Taxon {i}", "common_name": ""} for i in ids}
    counts = {task: len(ids) for task, ids in classes.items()}
    tree = TaxonomyTree(tasks, counts, parents, null_possible=null)
    return Taxonomy(tree, TaxonNames.from_json(classes, names))


@st.composite
def cases(draw: st.DrawFn, rows: int = 3, ranks: int = 3, sharpest: float = 30.0) -> Case:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=ranks))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    taxonomy = random_taxonomy(sizes, draw(st.booleans()), rng)
    sharpness = draw(st.sampled_from([0.1, 2.0, sharpest]))
    logits = {
        task: (sharpness * rng.normal(size=(rows, len(ids)))).astype(np.float32)
        for task, ids in taxonomy.classes.items()
    }
    return Case(taxonomy, logits, {task: float(rng.uniform(0.5, 4)) for task in taxonomy.tasks})
