"""Accuracy of heads on features, over folds, and how far it spreads."""

from __future__ import annotations

from typing import Any

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.wrong_labels.labelled_features import LabelledFeatures
from linnaeus_jax.learning.regression import fit_ranks, stratified_folds
from linnaeus_jax.taxonomy.ranks import task_name


def fold_accuracies(rows: LabelledFeatures, folds: int, seed: int = 0) -> dict[str, Any]:
    """Shares of the labelled rows that heads which were fitted to the other folds have right.

    Returns:
      `rows`, `folds`, `seed`, and `ranks`: of each rank its labelled `rows`, `accuracy` over all of them, that
      `of_folds` (None of a fold without labels), their standard deviation `spread` (None of one fold), the `least` and
      the `most` of them, `mean_of_classes`, and the `kind` of head.

    Raises:
      UserError: there are fewer occurrences than folds.
    """
    occurrences = len(np.unique(rows.group))
    if occurrences < folds:
        raise UserError(f"--folds is {folds}, but there are {occurrences} pictures or occurrences; give fewer folds")
    label, sizes = rows.label, rows.tree.num_classes
    fits = fit_ranks(rows.features, label, sizes, seed=seed, folds=folds, group_N=rows.group)
    fold = stratified_folds(label, folds, seed, rows.group)
    ranks = {}
    for place, task in enumerate(rows.tasks):
        if task not in fits:
            continue
        known = label[:, place] >= 0
        right = fits[task].logits.argmax(axis=1) == label[:, place]
        of_folds = [float(right[some].mean()) if (some := known & (fold == k)).any() else None for k in range(folds)]
        measured = [share for share in of_folds if share is not None]
        of_classes = [right[label[:, place] == index].mean() for index in np.unique(label[known, place])]
        ranks[task_name(task)] = {
            "rows": int(known.sum()),
            "accuracy": float(right[known].mean()),
            "of_folds": of_folds,
            "spread": float(np.std(measured, ddof=1)) if len(measured) > 1 else None,
            "least": min(measured),
            "most": max(measured),
            "mean_of_classes": float(np.mean(of_classes)),
            "kind": fits[task].kind,
        }
    return {"rows": len(rows), "folds": folds, "seed": seed, "ranks": ranks}
