"""A bundle that learns new taxa from a few pictures of each, without training: heads, calibration, novelty and card."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration, model_of
from linnaeus_jax.inference.bundle.exemplars import Exemplars
from linnaeus_jax.inference.bundle.members import OTHERS
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.forward import layers_of
from linnaeus_jax.inference.paths import some
from linnaeus_jax.inference.quality.measuring import WITH, Measured, Rows, calibrated, measure, with_novelty
from linnaeus_jax.learning.discriminant import Affine
from linnaeus_jax.learning.growing import KeptRows, grow
from linnaeus_jax.reporting.tables import percent
from linnaeus_jax.run.first_heads import HEAD_TYPE


def check_extendable(bundle: Bundle) -> Exemplars:
    """What a bundle has kept for it. Raises UserError with the reason where taxa cannot be added to it."""
    why = ""
    if bundle.taxonomy.heads:
        why = "its taxa have been merged or moved; extend the bundle from before, and change names afterwards"
    elif OTHERS in bundle.variables:
        why = "it holds several runs, each with features of its own; extend the bundle of one of them"
    elif bundle.encoder.components:
        why = "it takes metadata, which kept rows and new pictures would have to share; train again with the new taxa"
    elif other := [spec.type for spec in bundle.model.head_specs if spec.type != HEAD_TYPE]:
        why = f"its heads are of the type {other[0]}, and only those of the type {HEAD_TYPE} can be; train again"
    elif not all("bias" in bundle.variables["params"]["head"][task]["fc"] for task in bundle.tasks):
        why = "its heads have no biases, by which new classes are weighed against old ones; train again"
    elif bundle.exemplars is None:
        why = (
            "it holds no rows of its training; make it again from its run with linnaeus bundle, without --without-data "
            "and --no-novelty"
        )
    elif bundle.exemplars.x.shape[1] != (width := len(_heads(bundle)[bundle.tasks[0]][0])):
        there = bundle.exemplars.x.shape[1]
        why = f"its kept rows have {there} features, and its heads {width}: they are of another model"
    elif bundle.exemplars.outside.shape[1] != (width := _outside_width(bundle)):
        there = bundle.exemplars.outside.shape[1]
        why = f"its kept rows have {there} features of what is outside, and its statistics {width}; make it again"
    if why:
        raise UserError(f"{bundle.source} cannot be extended: {why}")
    assert bundle.exemplars is not None
    return bundle.exemplars


def _outside_width(bundle: Bundle) -> int:
    outside = None if bundle.statistics is None else bundle.statistics.outside
    return 0 if outside is None else outside.mean.shape[1]


def _heads(bundle: Bundle) -> dict[str, Affine]:
    fc = {task: bundle.variables["params"]["head"][task]["fc"] for task in bundle.tasks}
    return {task: (np.asarray(of["kernel"], np.float32), np.asarray(of["bias"], np.float32)) for task, of in fc.items()}


def layers_to_extend(bundle: Bundle) -> tuple[str, ...]:
    """Of which features of new pictures are needed; that of the heads first."""
    return layers_of(bundle.model)[:1] if bundle.statistics is None else bundle.statistics.layers


def extended(
    bundle: Bundle, taxonomy: Taxonomy, features: Mapping[str, NDArray[np.float32]], label_NT: NDArray[np.int32]
) -> tuple[Bundle, Measured]:
    """The bundle with all taxa of a grown taxonomy, calibrated anew, and what its card says.

    Args:
      features: float32 [N, D] of the pictures of new taxa, of `layers_to_extend`.
      label_NT: their classes in `taxonomy`.

    Raises:
      UserError: taxa cannot be added to the bundle, or features that 16 bits do not hold.
    """
    kept = check_extendable(bundle)
    layers, added = [*features], np.ones(len(label_NT), bool)
    with np.errstate(over="ignore"):
        half = [of.astype(np.float16) for of in features.values()]
    x = np.concatenate([kept.x, half[0]])
    outside = np.concatenate([kept.outside, half[-1] if len(half) > 1 else half[0][:, :0]])
    if not (np.isfinite(x).all() and np.isfinite(outside).all()):
        raise UserError("features of the pictures are not finite in 16 bits: the model cannot be extended")
    rows = Exemplars(
        x,
        np.concatenate([kept.label, label_NT]),
        np.concatenate([kept.fits, added]),
        np.concatenate([kept.judges, added]),
        kept.logits,
        kept.heads or _heads(bundle),
        outside,
    )
    counts = _path_counts(bundle.calibration.path_counts, taxonomy, rows.heads)
    affine, logits, before = _grown(rows, counts, taxonomy)
    params = dict(bundle.variables["params"])
    fitted = {task: {"fc": {"kernel": kernel, "bias": bias}} for task, (kernel, bias) in affine.items()}
    params["head"] = {**params["head"], **fitted}
    new = dataclasses.replace(
        bundle,
        model=model_of(bundle.settings, bundle.preprocessing, bundle.encoder, taxonomy),
        variables={**bundle.variables, "params": params},
        taxonomy=taxonomy,
        calibration=Calibration.none(taxonomy.tasks, counts),
        onnx=b"",
    )
    at, trained, honest = rows.judges, rows.trained, rows.judges & ~rows.fits
    label = rows.label[at]

    def features_of(which: NDArray[np.bool_]) -> dict[str, NDArray[np.float32]]:
        return {layer: of[which].astype(np.float32) for layer, of in zip(layers, (rows.x, rows.outside))}

    fits = None if kept.logits else (features_of(rows.fits), rows.label[rows.fits])
    measured_rows = Rows(
        {WITH: logits}, label, (), len(label), {}, folds=bool(kept.logits), features=features_of(at),
        trained=fits, added=int((~trained).sum()),
    )  # fmt: skip
    measured = measure(measured_rows, new)
    new = calibrated(new, measured)
    if kept.logits:
        new, measured = with_novelty(new, measured)
    else:  # distances to means that rows had a part in would be too small
        few = dataclasses.replace(
            measured_rows,
            logits={WITH: some(logits, honest[at])},
            labels=label[honest[at]],
            features=features_of(honest),
        )
        new, found = with_novelty(new, dataclasses.replace(measured, rows=few))
        measured = dataclasses.replace(measured, novelty=found.novelty)
    facts = dict(bundle.facts) | {"added": _added(rows, taxonomy, logits, before)}
    return dataclasses.replace(new, exemplars=rows, facts=facts), measured


def added_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a card says of taxa that were added, as rows of a table; none of a bundle without any."""
    if not (found := facts.get("added")):
        return []
    pictures = [f"{name} ({count:,})" for name, count in found["pictures"].items()]
    rows = [("added, without training", f"by so many pictures: {', '.join(pictures)}")]
    for rank, (before, after, new) in found["right"].items():
        texts = [f"{percent(before)} % of kept rows right before, {percent(after)} % now"] * (before is not None)
        texts += [f"{percent(new)} % of pictures of added taxa, by heads that were fitted to others"] * (
            new is not None
        )
        rows.append((f"{rank} by itself", "; ".join(texts)))
    return rows


def rows_of_other(
    bundle: Bundle, other: Bundle
) -> tuple[NDArray[np.int64], dict[str, dict[int, tuple[str, str]]], dict[str, NDArray[np.float32]]]:
    """What another bundle of the same trunk has kept of taxa of the finest rank that this one lacks, by their names:
    taxon ids [N, T] and names, see `grown_taxonomy`, and features [N, D] of `layers_to_extend`.

    Raises:
      UserError: it is of another trunk, ranks or pictures, or holds no rows.
    """
    kept, taxonomy = check_extendable(other), other.taxonomy
    one, two = (
        {path: leaf for path, leaf in flatten_dict(dict(each.variables)).items() if path[:2] != ("params", "head")}
        for each in (bundle, other)
    )
    same = one.keys() == two.keys() and all(np.array_equal(one[path], two[path]) for path in one)
    if not same or bundle.preprocessing != other.preprocessing or bundle.tasks != other.tasks:
        raise UserError(f"{other.source} and {bundle.source} have not the same trunk, preprocessing and ranks")
    layers = layers_to_extend(bundle)
    if layers != layers_to_extend(other):
        raise UserError(
            f"{other.source} and {bundle.source} judge what is outside by other features: one of them is of an earlier "
            "version; make it again from its run with linnaeus bundle"
        )
    mine = set(bundle.taxonomy.names.name[bundle.tasks[0]].tolist())
    lacking = np.array([name not in mine for name in taxonomy.names.name[bundle.tasks[0]].tolist()])
    finest = kept.label[:, 0]
    rows = np.flatnonzero((finest >= taxonomy.first) & lacking[finest])
    columns = zip(other.tasks, kept.label[rows].T, strict=True)
    ids = [np.where(of < 0, 0, taxonomy.classes[task][of]) for task, of in columns]
    names = {
        task: {taxon: (name, common) for _, taxon, name, common in taxonomy.described[task]} for task in other.tasks
    }
    features = {layer: of[rows].astype(np.float32) for layer, of in zip(layers, (kept.x, kept.outside))}
    return np.stack(ids, axis=1), names, features


def _path_counts(
    old: Mapping[str, Sequence[int]], taxonomy: Taxonomy, heads: Mapping[str, Affine]
) -> dict[str, list[int]]:
    """Training rows of each path; a new taxon is taken for as common as the mean of those that the model was trained
    with, whatever the number of its pictures."""
    if not old:
        return {}
    found = {}
    for place, (task, (_, bias)) in enumerate(heads.items()):
        known = list(old[task][: len(bias)])
        usual = [count for count in known[taxonomy.first :] if count] if not place else []
        new = len(taxonomy.classes[task]) - len(known)
        found[task] = known + [round(float(np.mean(usual))) if usual else 0] * new
    return found


def _grown(
    rows: Exemplars, counts: Mapping[str, Sequence[int]], taxonomy: Taxonomy
) -> tuple[dict[str, Affine], dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """Heads of all classes; logits of the rows that judge by fits without them, and by the heads as trained."""
    first, x, trained = taxonomy.first, rows.x.astype(np.float32), rows.trained
    before = {task: x @ kernel + bias for task, (kernel, bias) in rows.heads.items()}
    for task, z in rows.logits.items():
        before[task][: len(z)] = z
    kept = KeptRows(x, _weights(rows, counts, taxonomy), trained, rows.fits, rows.judges)
    found = grow(
        kept,
        np.where(rows.label < first, -1, rows.label - first),
        {task: (kernel[:, first:], bias[first:]) for task, (kernel, bias) in rows.heads.items()},
        {task: z[:, first:] for task, z in before.items()},
        {task: len(taxonomy.classes[task]) - first for task in taxonomy.tasks},
    )
    affine, logits = {}, {}
    for task, of in found.items():
        kernel, bias = rows.heads[task]
        affine[task] = (np.hstack([kernel[:, :first], of.affine[0]]), np.append(bias[:first], of.affine[1]))
        logits[task] = np.hstack([before[task][rows.judges, :first], of.logits])
    return affine, logits, {task: z[rows.judges] for task, z in before.items()}


def _weights(rows: Exemplars, counts: Mapping[str, Sequence[int]], taxonomy: Taxonomy) -> NDArray[np.float32]:
    """float32 [N]: training rows that each stands for."""
    weight = np.ones(len(rows.x), np.float32)
    place = (rows.label >= taxonomy.first).argmax(axis=1)
    end = rows.label[np.arange(len(place)), place]
    for of, task in enumerate(taxonomy.tasks if counts else ()):
        here = np.flatnonzero(rows.trained & rows.fits & (place == of) & (end >= 0))
        number = np.bincount(end[here], minlength=len(counts[task]))
        weight[here] = np.maximum(np.asarray(counts[task])[end[here]] / number[end[here]], 1.0)
    return weight


def _added(
    rows: Exemplars, taxonomy: Taxonomy, logits: Mapping[str, NDArray[Any]], before: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """What was added, and how kept rows and pictures of new taxa are answered, the taxa of each rank by themselves, as
    JSON types."""
    trained, finest = rows.trained, taxonomy.tasks[0]
    class_, count = np.unique(rows.label[~trained, 0], return_counts=True)
    named = [taxonomy.names.label(finest, of) for of in class_.tolist()]
    found: dict[str, Any] = {"pictures": dict(zip(named, count.tolist(), strict=True)), "right": {}}
    label, old, first = rows.label[rows.judges] - taxonomy.first, trained[rows.judges], taxonomy.first
    for place, task in enumerate(taxonomy.tasks):
        known = label[:, place] >= 0
        right = [z[task][:, first:].argmax(axis=1) == label[:, place] for z in (logits, before)]
        shares = [each[known & of] for each, of in ((right[1], old), (right[0], old), (right[0], ~old))]
        found["right"][taxonomy.ranks[task]] = [
            round(float(share.mean()), 4) if len(share) else None for share in shares
        ]
    return found
