"""A bundle of which taxa have been renamed, merged, moved or split, without pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from linnaeus_jax.data.taxon_changes import ChangedTaxa
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.taxonomy import Heads, Taxonomy
from linnaeus_jax.taxonomy.tree import TaxonomyTree


def renamed_bundle(
    bundle: Bundle, change: Callable[[TaxonomyTree, TaxonNames], ChangedTaxa], source: str = "a list"
) -> tuple[Bundle, ChangedTaxa]:
    """The bundle that answers with the taxa as they are now, by the same weights.

    Where taxa were merged, moved or split, what was measured of the old ones is left out: thresholds for a coverage,
    and the numbers of the card. Temperatures stay, since they are of the heads.

    Args:
      change: of the taxa that it answers; see `change_taxa`.
      source: what the card says that the names are from.
    """
    old = bundle.taxonomy
    changed = change(old.tree, old.names)
    facts = dict(bundle.facts) | {"names": " and ".join(filter(None, [bundle.facts.get("names"), source]))}
    calibration, heads = bundle.calibration, old.heads
    if not changed.same_classes:
        calibration = dataclasses.replace(calibration, coverage={}, coverage_rows=0, sets={}, set_rows=0, set_groups=[])
        facts.pop("measured", None)
        class_of = changed.class_of
        if heads:
            before = heads.class_of
            class_of = {t: np.where(before[t] < 0, -1, each[before[t]]) for t, each in class_of.items()}
        heads = Heads(old.of_heads, class_of)
    taxonomy = Taxonomy(changed.tree, changed.names, heads)
    return dataclasses.replace(bundle, taxonomy=taxonomy, calibration=calibration, facts=facts), changed
