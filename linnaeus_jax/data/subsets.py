"""Subsets of the user's own: what a column `subset_<kind>` of the labels file, or a registered function, says of rows.

Per kind every row has one value: text (the name of its subset; empty: none), int (negative: none) or bool (the subsets
`true` and `false`). The subsets are all values that occur in the training or validation rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.labels import MAX_SUBSETS
from linnaeus_jax.data.splits import Split
from linnaeus_jax.metrics import custom
from linnaeus_jax.mistakes import InputError

log = logging.getLogger(__name__)


def assign_subsets(splits: Sequence[Split]) -> tuple[dict[str, tuple[str, ...]], list[Split]]:
    """Kind -> names of its subsets, and the splits with the membership of their rows.

    Raises:
      ValueError: a kind is taken or comes from two sources, a function fails or returns something else than one value
        per row, or a kind has more than `MAX_SUBSETS` values.
    """
    texts = [_texts(split) for split in splits]
    names: dict[str, tuple[str, ...]] = {}
    for kind in sorted({kind for each in texts for kind in each}):
        values = {str(name) for each in texts if kind in each for name in np.unique(each[kind])} - {""}
        if len(values) > MAX_SUBSETS:
            raise InputError(
                f"subset kind {kind!r} has {len(values)} different values, more than {MAX_SUBSETS}; give its "
                "rows fewer, coarser values"
            )
        names[kind] = tuple(sorted(values, key=lambda x: (0, int(x), "") if x.isdecimal() else (1, 0, x)))
    placed = [replace(split, subsets=_positions(each, names, split)) for split, each in zip(splits, texts, strict=True)]
    return names, placed


def with_known_subsets(split: Split, names: Mapping[str, tuple[str, ...]]) -> Split:
    """The split with the membership of its rows in the subsets that other data defined; ValueError as above."""
    return replace(split, subsets=_positions(_texts(split), names, split))


def _texts(split: Split) -> dict[str, NDArray[Any]]:
    """Kind -> name of the subset of every row, StringDType [n]."""
    functions = custom.SUBSETS
    texts = {}
    for kind, values in split.table.subsets.items():
        where = f"{split.table.path}: dataset 'subset_{kind}'"
        if kind in (*custom.BUILT_IN_SUBSETS, *functions):
            raise InputError(f"{where}: the kind {kind!r} is built in or registered by a plugin; rename the dataset")
        texts[kind] = _as_text(values[split.rows], where, len(split))
    for kind, function in functions.items():
        where = f"the function of subset {kind!r}"
        try:
            values = np.asarray(function(split))
        except Exception as error:  # the function is the user's: whatever it raises is reported under its name
            raise InputError(f"{where} fails with {type(error).__name__}: {error}") from error
        texts[kind] = _as_text(values, where, len(split))
    return texts


def _as_text(values: NDArray[Any], where: str, rows: int) -> NDArray[Any]:
    text = np.dtypes.StringDType()
    if values.shape != (rows,):
        raise InputError(f"{where} gives an array of shape {values.shape}; give one value per row, ({rows},)")
    if values.dtype.kind == "b":
        return np.where(values, "true", "false").astype(text)
    if values.dtype.kind in "iu":
        return np.where(values < 0, "", values.astype(str)).astype(text)
    kind = values.dtype.kind
    if kind not in "OTU" or (kind == "O" and not all(isinstance(value, str) for value in values)):
        raise InputError(f"{where} gives values of dtype {values.dtype}; give text, int or bool")
    if wrong := [value for value in np.unique(values) if "/" in value]:
        raise InputError(f"{where} holds {wrong[0]!r}; '/' cannot be part of a metric's name, use another character")
    return values.astype(text)


def _positions(texts: Mapping[str, NDArray[Any]], names: Mapping[str, tuple[str, ...]], split: Split) -> NDArray[Any]:
    """int32 [n, len(names)]: position of each row's subset in each kind, -1 for none."""
    positions = np.full((len(split), len(names)), -1, np.int32)
    for column, (kind, subsets) in enumerate(names.items()):
        if kind not in texts:
            log.warning("%s has no dataset 'subset_%s': its rows are in no subset of it", split.table.path, kind)
            continue
        for position, name in enumerate(subsets):
            positions[texts[kind] == name, column] = position
        if outside := int(((positions[:, column] < 0) & (texts[kind] != "")).sum()):
            log.warning("%s: %d rows have a value of subset_%s that was not known", split.table.path, outside, kind)
    return positions
