"""Images that several rows name, and occurrences with pictures in several splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.labels import OCCURRENCE, LabelTable, text_hashes
from linnaeus_jax.data.labels_file import IDENTIFIERS, open_labels, sanitize_line, text_dataset, text_of, values_of
from linnaeus_jax.mistakes import InputError, shortened

#: repeated images that a message names
SHOWN = 5
#: name of a split -> its labels file and the rows of it
Parts = Mapping[str, tuple[LabelTable, NDArray[np.int64]]]


def repeated_images(parts: Parts, *, one_place: bool) -> tuple[str, ...]:
    """A sentence for each split that uses an image more than once; rows without identifier are left out.

    Args:
      one_place: all images lie in the same file or folder, where the same identifier is the same image.

    Raises:
      ValueError: the same image is used in two splits.
    """
    hashes = _hashes(parts, IDENTIFIERS)
    named = {name: np.unique(part[part != 0], return_counts=True) for name, part in hashes.items()}
    sentences = []
    for name, (table, rows) in parts.items():
        value, count = named[name]
        if not (count > 1).any():
            continue
        names = Counter(table.identifiers[rows[np.isin(hashes[name], value[count > 1])]])
        again = {image: times for image, times in sorted(names.items()) if times > 1}
        if again:  # or only their hashes agree
            listed = shortened((f"{image!r} ({times} rows)" for image, times in again.items()), SHOWN)
            sentences.append(
                f"{table.path}: {sum(again.values())} {name} rows share {len(again)} {IDENTIFIERS}, so that these "
                f"images count several times: {listed}"
            )
    for one, other in combinations(parts, 2):
        common = np.intersect1d(named[one][0], named[other][0])
        if not len(common):
            continue
        sides = [
            set(table.identifiers[rows[np.isin(hashes[name], common)]])
            for name, (table, rows) in parts.items()
            if name in (one, other)
        ]
        both = sorted(sides[0] & sides[1])
        if not both:
            continue
        listed = f"{len(both)} {IDENTIFIERS} in {_files(parts, one, other)}: {shortened(map(repr, both), SHOWN)}"
        if one_place:
            raise InputError(
                f"images on both sides of the split, in {one} and {other} rows, where an evaluation would measure what "
                f"was learned by heart; keep one row of each, or put all rows of an image on one side: {listed}"
            )
        sentences.append(
            "identifiers on both sides of the split; the images come from two places, and validation leaks unless "
            f"these are different pictures of the same name: {listed}"
        )
    return tuple(sentences)


def shared_occurrences(parts: Parts) -> tuple[str, ...]:
    """A sentence for each two splits with pictures of the same occurrences, which no random split makes."""
    hashes = _hashes({name: part for name, part in parts.items() if OCCURRENCE in part[0].offered}, OCCURRENCE)
    sentences = []
    for one, other in combinations(hashes, 2):
        common = np.setdiff1d(np.intersect1d(hashes[one], hashes[other]), [0])
        if len(common):
            table, rows = parts[one]
            _, first = np.unique(hashes[one], return_index=True)
            shown = np.sort(rows[first[np.isin(hashes[one][first], common)]])[:6]
            with open_labels(table.path) as file:
                texts = values_of(text_dataset(file, table.path, OCCURRENCE), table.path, shown)
            names = [repr(sanitize_line(text_of(text))) for text in texts[:5]] + ["..."] * (len(common) > 5)
            sentences.append(
                f"{len(common)} occurrences have pictures in {one} and in {other} rows ({OCCURRENCE} in "
                f"{_files(parts, one, other)}), so that an evaluation measures in part what was learned by heart: "
                + ", ".join(names)
            )
    return tuple(sentences)


def _hashes(parts: Parts, dataset: str) -> dict[str, NDArray[np.int64]]:
    """{name of a split: int64 [n], see `text_hashes`}; every file is read once."""
    of_file = {path: text_hashes(path, dataset) for path in {table.path for table, _ in parts.values()}}
    return {name: of_file[table.path][rows] for name, (table, rows) in parts.items()}


def _files(parts: Parts, one: str, other: str) -> str:
    return " and ".join(dict.fromkeys((parts[one][0].path, parts[other][0].path)))
