"""Tree and classes of a bundle as two JSON files, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax import files
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.files import json_text
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.run.saved_weights import BUNDLE_CLASSES
from linnaeus_jax.taxonomy.tree import MOST_RANKS, TaxonomyTree, parents_of
from linnaeus_jax.weights.classes import ids_of_maps

TAXONOMY = "taxonomy.json"
CLASS_MAP = BUNDLE_CLASSES


def write_taxonomy(taxonomy: Taxonomy, tree: Path, classes: Path) -> None:
    """Writes `taxonomy.json` and `class_index_map.json`, the latter with the four maps that the original documents."""
    tree.write_text(json_text(taxonomy.tree.to_json(), indent=1) + "\n", encoding="utf-8", newline="\n")
    ids = {task: taxonomy.classes[task].tolist() for task in taxonomy.tasks}
    maps = {
        "idx_to_taxon_id": {task: {str(i): taxon for i, taxon in enumerate(each)} for task, each in ids.items()},
        "taxon_id_to_idx": {task: {str(taxon): i for i, taxon in enumerate(each)} for task, each in ids.items()},
        "null_taxon_ids": dict.fromkeys(ids, 0 if taxonomy.tree.null_possible else None),
        "num_classes_per_rank": {task: len(each) for task, each in ids.items()},
        "names": taxonomy.names.to_json(),
    }
    classes.write_text(json_text(maps, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def read_taxonomy(tree: Path, classes: Path) -> Taxonomy:
    """The inverse of `write_taxonomy`.

    Raises:
      UserError: a file that is no JSON, or holds something of another kind.
      ValueError: files that do not fit each other.
    """
    links, maps = read_json(tree), read_json(classes)
    try:
        return taxonomy_of(links, maps)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"{error} is missing" if isinstance(error, LookupError) else str(error)
        raise UserError(
            f"{tree.name} and {classes.name} in {tree.parent} are no taxonomy: {what}; make the bundle again"
        ) from error


def taxonomy_of(links: Mapping[str, Any], maps: Mapping[str, Any]) -> Taxonomy:
    """The same from the content of both files; ValueError, KeyError, TypeError where they do not fit each other."""
    tasks, found = tuple(links["task_keys"]), ids_of_maps(maps, CLASS_MAP)
    if len(tasks) > MOST_RANKS or len(set(tasks)) < len(tasks) or set(tasks) != set(found):
        raise ValueError(f"{TAXONOMY} must name the ranks of {CLASS_MAP}, each once, at most {MOST_RANKS}")
    ids = {task: np.array(found[task], np.int64) for task in tasks}
    for task, count in ((task, links["num_classes"][task]) for task in tasks):
        if count != len(ids[task]):
            raise ValueError(f"{CLASS_MAP} has {len(ids[task])} classes of {task}, but {TAXONOMY} has {count}")
    null_possible = bool(links["metadata"].get("null_possible", True))
    null_below = bool(links["metadata"].get("null_below", True))
    if null_possible and (wrong := [task for task in tasks if len(ids[task]) and ids[task][0] != 0]):
        raise ValueError(
            f"{CLASS_MAP}: class 0 of {wrong[0]} is taxon {ids[wrong[0]][0]}, and should be 0, which is null"
        )
    sizes = {task: len(each) for task, each in ids.items()}
    parents = parents_of(links["hierarchy_map_raw"], sizes, TAXONOMY)
    return Taxonomy(
        TaxonomyTree(tasks, sizes, parents, null_possible=null_possible, null_below=null_below),
        TaxonNames.from_json(ids, maps.get("names", {})),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a bundle; UserError where it cannot be read."""
    try:
        return files.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; copy the bundle again") from error
