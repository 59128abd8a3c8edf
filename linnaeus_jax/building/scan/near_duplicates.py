"""Pictures of a data set that show the same: scaled, cropped, compressed again, mirrored, or one frame later.

Candidates are the pictures whose colours lie alike at 12 × 12 pixels, mirrored or not; a pair is one whose details at
64 × 64 pixels agree where one of them is laid over the other, at several scales and shifts (normalised correlation,
`cv2.matchTemplate`). No model is needed: of planted copies more than 95 of 100 are found at that size, and photographs
of one species do not agree in their details.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.describe import Description
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.scan.pictures import UnreadableError, read_one
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.data.labels import SPLIT, SPLITS, read_identifiers
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.files import write_atomically
from linnaeus_jax.reading.schema import OTHER, PICTURE
from linnaeus_jax.reading.text import printable
from linnaeus_jax.reporting.mistakes import SIDE, thumbnail
from linnaeus_jax.reporting.page import escaped, note

#: file of the pairs; its columns
FILE = "near_duplicates.csv"
COLUMNS = (PICTURE, OTHER, "similarity", "split", "other_split", "label", "other_label")
#: sides of the pictures that are compared: colours, details; pixels of blur that is taken from the details
COLOURS, DETAILS, BLUR = 12, 64, 4
#: nearest pictures that are looked at; least similarity of colours; scales at which one picture may show the other
NEIGHBOURS, ALIKE, SCALES = 5, 0.5, (1.0, 0.94, 0.88, 0.8)
#: least agreement of details of a pair, and the share of pairs of different classes that may reach it
AGREE, OTHERS = 0.45, 0.001
#: details that vary less, in grey levels, are those of no picture
PLAIN = 0.5
#: pictures whose neighbours are looked for at once; pairs on the page
BLOCK, SHOWN = 128, 100


@dataclass(frozen=True)
class Pair:
    """Two rows of a data set, the later one first, and the agreement of their details, up to 1."""

    row: int
    other: int
    similarity: float


def near_duplicates(
    source: ImageSource, label: NDArray[np.integer], progress: Callable[[str, int, int], None] = lambda *_: None
) -> list[Pair]:
    """Pairs of pictures that show the same, most similar first. Pictures that cannot be read are in none.

    It takes 11 KB of memory a picture. Comparing colours takes time with the square of their number, the rest with
    their number.

    Args:
      label: [N], of the finest rank, 0 for none. Where pictures of different classes agree in their details, as drawn
        outlines do, a pair must agree more than these.
      progress: called with what is done, how many are done, and of how many.
    """
    rows, colours, details = _read(source, len(label), progress)
    if len(rows) < 2:
        return []
    pairs = _candidates(colours, progress)
    blocks = np.array_split(pairs, -(-len(pairs) // 256) or 1)
    agreed = []
    for found in in_order(lambda block: [agreement(details[a], details[b]) for a, b in block.tolist()], blocks):
        agreed += found
        progress("comparing details", len(agreed), len(pairs))
    similarity = np.array(agreed)
    classes = label[rows][pairs]
    different = similarity[(classes[:, 0] != classes[:, 1]) & (classes > 0).all(axis=1)]
    least = max(AGREE, float(np.quantile(different, 1 - OTHERS))) if len(different) > 1 / OTHERS else AGREE
    kept = np.flatnonzero(similarity >= least)
    kept = kept[np.argsort(-similarity[kept], kind="stable")]
    first, second = rows[pairs[kept]].T.tolist() if len(kept) else ([], [])
    return [Pair(b, a, s) for a, b, s in zip(first, second, similarity[kept].tolist())]


def _read(
    source: ImageSource, count: int, progress: Callable[[str, int, int], None]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint8]]:
    """Rows that can be read [n], their colours [n, 12, 12, 3] of mean 0 and length 1, and their greys [n, 64, 64]."""

    def small(row: int) -> NDArray[np.uint8] | None:
        try:
            image = read_one(source, row, (DETAILS, DETAILS))[0]
        except UnreadableError:
            return None
        return np.asarray(cv2.resize(image, (DETAILS, DETAILS), interpolation=cv2.INTER_AREA))

    rows, colours = list[int](), np.empty((count, COLOURS, COLOURS, 3), np.float32)
    greys = np.empty((count, DETAILS, DETAILS), np.uint8)
    for row, image in enumerate(in_order(small, range(count))):
        if image is not None:
            colours[len(rows)] = _colours(image)
            greys[len(rows)] = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
            rows.append(row)
        if (row + 1) % 32 == 0 or row + 1 == count:
            progress("reading", row + 1, count)
    return np.array(rows, np.int64), colours[: len(rows)], greys[: len(rows)]


def _colours(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    small = cv2.resize(image, (COLOURS, COLOURS), interpolation=cv2.INTER_AREA).astype(np.float32)
    small = np.asarray(cv2.GaussianBlur(small, (0, 0), 0.7), np.float32)
    small -= small.mean(axis=(0, 1))
    return np.asarray(small / max(float(np.linalg.norm(small)), 1e-6), np.float32)


def _candidates(colours: NDArray[np.float32], progress: Callable[[str, int, int], None]) -> NDArray[np.int64]:
    """Pairs [P, 2], ascending: every picture with those that are nearest to it or to its mirror image."""
    count = len(colours)
    plain, mirrored = colours.reshape(count, -1), colours[:, :, ::-1].reshape(count, -1)
    found = [np.zeros((0, 2), np.int64)]
    for start in range(0, count, BLOCK):
        rows = np.arange(start, min(start + BLOCK, count))
        alike = np.maximum(plain[rows] @ plain.T, mirrored[rows] @ plain.T)
        alike[np.arange(len(rows)), rows] = -1
        near = np.argpartition(-alike, min(NEIGHBOURS, count) - 1, axis=1)[:, :NEIGHBOURS]
        good = np.take_along_axis(alike, near, axis=1) >= ALIKE
        both = np.stack([np.broadcast_to(rows[:, None], near.shape)[good], near[good]], axis=1)
        found.append(np.sort(both, axis=1))
        progress("comparing colours", int(rows[-1]) + 1, count)
    return np.unique(np.concatenate(found), axis=0)


def agreement(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """How far the details of two grey pictures uint8 [64, 64] agree, up to 1, at the best scale, shift and side."""
    first, second = _details(a), _details(b)
    best = 0.0
    for whole, part in ((first, second), (second, first)):
        if whole.std() < PLAIN:
            continue
        for scale in SCALES:
            side = round(DETAILS * scale)
            small = cv2.resize(part, (side, side), interpolation=cv2.INTER_AREA)
            border = 4 if scale > 0.85 else 2  # by which it may be shifted
            small = small[border:-border, border:-border]
            if small.std() < PLAIN:
                continue
            for template in (small, np.ascontiguousarray(small[:, ::-1])):
                found = cv2.matchTemplate(whole, template, cv2.TM_CCOEFF_NORMED)
                best = max(best, float(found[np.isfinite(found)].max(initial=0.0)))
    return min(best, 1.0)


def _details(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    image = grey.astype(np.float32)
    return np.asarray(image - cv2.GaussianBlur(image, (0, 0), BLUR))


# ---- what is said of them --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NearDuplicates:
    """The pairs of a data set, those on two sides of the split first; of all rows names, sides and classes."""

    pairs: Sequence[Pair]
    names: Sequence[str]
    sides: Sequence[str]
    classes: Sequence[str]

    @property
    def across(self) -> int:
        """Pairs on two sides of the split."""
        return sum(self.sides[pair.row] != self.sides[pair.other] for pair in self.pairs)

    def summary(self) -> str:
        """How many there are, in a sentence."""
        classes = [{self.classes[pair.row], self.classes[pair.other]} - {""} for pair in self.pairs]
        contrary = sum(len(both) == 2 for both in classes)
        return (
            f"{len(self.pairs):,} pairs of pictures that show the same, {self.across:,} of them on two sides of the "
            f"split, {contrary:,} of two classes"
        )

    def write(self, path: Path) -> None:
        """The pairs as CSV, which `build --group-duplicates` and `build --exclude` take."""
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(COLUMNS)
        for pair in self.pairs:
            both = pair.row, pair.other
            columns = [[column[row] for row in both] for column in (self.names, self.sides, self.classes)]
            table.writerow((*columns[0], f"{pair.similarity:.3f}", *columns[1], *columns[2]))
        write_atomically(path, text.getvalue())

    def section(self, source: ImageSource) -> str:
        """HTML of the first `SHOWN` pairs."""
        shown = []
        for pair in self.pairs[:SHOWN]:
            figures = []
            for row in (pair.other, pair.row):
                try:
                    picture = thumbnail(read_one(source, row, (2 * SIDE, 2 * SIDE))[0])
                except UnreadableError:
                    continue
                name, where = printable(self.names[row]), filter(None, (self.sides[row], printable(self.classes[row])))
                text = escaped(f"{name}: {', '.join(where)}")
                image = f'<img alt="{escaped(name)}" src="data:image/jpeg;base64,{picture}">'
                figures.append(f"<figure>{image}<figcaption>{text}</figcaption></figure>")
            shown.append(f'<div><h4>{pair.similarity:.2f}</h4><div class="pictures">{"".join(figures)}</div></div>')
        more = f" The first {SHOWN}; all are in {FILE}." if len(self.pairs) > SHOWN else f" They are listed in {FILE}."
        text = f"{self.summary()}.{more if self.pairs else ''}"
        return note(text) + (f'<div class="plots">{"".join(shown)}</div>' if shown else "")


def search(found: Description, source: ImageSource, progress: Callable[[str, int, int], None]) -> NearDuplicates:
    """The pairs of a described data set."""
    task = found.finest
    label = found.taxa.label[:, found.taxa.tasks.index(task)] if task else np.zeros(found.rows, np.int64)
    with LabelFile(found.labels) as file:
        split = file.numbers(SPLIT).tolist() if len(found.sides) else []
    sides = [SPLITS[number] for number in split] or [""] * found.rows
    classes = [found.taxa.name(task, index) if index else "" for index in label.tolist()]
    names = [str(name) for name in read_identifiers(str(found.labels))]
    pairs = near_duplicates(source, label, progress)
    pairs.sort(key=lambda pair: (sides[pair.row] == sides[pair.other], -pair.similarity))
    return NearDuplicates(pairs, names, sides, classes)
