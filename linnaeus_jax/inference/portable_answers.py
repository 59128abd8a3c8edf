"""What an exported model answers, by numpy alone, as the bundle it was made of: exports hold a copy of this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def best_classes(classes: Mapping[str, Any], logits: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Rank -> classes of the most probable path, int [N], -1 for none, and their probabilities, float64 [N].

    A model whose training rows are not known is answered at each rank by itself.

    Args:
      classes: the content of classes.json.
      logits: task -> [N, C]; what is said of a row that is not finite has no meaning.
    """
    log_p = {rank["rank"]: np.asarray(logits[rank["task"]], np.float64) for rank in classes["ranks"]}
    if classes["log_prior"] is None:
        separate = {rank["rank"]: _softmax(log_p[rank["rank"]] / rank["temperature"]) for rank in classes["ranks"]}
        separate |= {
            rank["rank"]: _now(rank, separate[rank["rank"]]) for rank in classes["ranks"] if "class_of" in rank
        }
        return {rank: (p.argmax(axis=1), p.max(axis=1)) for rank, p in separate.items()}
    score: Any = np.array(classes["log_prior"])
    for rank in classes["ranks"]:
        z, share = log_p[rank["rank"]], np.array(rank["log_share"])
        first = z.shape[1] - len(share)  # null comes before
        ratio = np.zeros((len(z), z.shape[1] + 1))  # the last is of no class
        if len(share):
            ratio[:, first:-1] = np.log(_softmax(z[:, first:])) - share
        score = score + ratio[:, rank["paths"]] * rank["path_weights"]
    probability, best, found = _softmax(score), score.argmax(axis=1), {}
    if "called" in classes["ranks"][0]:  # paths that have one name now are one
        called = np.array([rank["called"] for rank in classes["ranks"]])
        _, first, group = np.unique(called, axis=1, return_index=True, return_inverse=True)
        best = first[np.array([probability[:, group == one].sum(axis=1) for one in range(len(first))]).argmax(axis=0)]
    for rank in classes["ranks"]:
        path = np.array(rank.get("called", rank["paths"]))
        chosen = path[best]
        found[rank["rank"]] = chosen, np.array([row[path == one].sum() for row, one in zip(probability, chosen)])
    return found


def _now(rank: Mapping[str, Any], p: Any) -> Any:
    """Probabilities of the classes of a rank, from those of the columns of its head."""
    of = np.array(rank["class_of"])
    return np.stack([p[:, of == one].sum(axis=1) for one in range(len(rank["classes"]))], axis=1)


def _softmax(z: Any) -> Any:
    with np.errstate(invalid="ignore"):
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return np.maximum(e / e.sum(axis=1, keepdims=True), 1e-300)
