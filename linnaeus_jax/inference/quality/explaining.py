"""What moved an answer: the metadata components, each withheld in turn, and the parts of the picture, each covered.

A part counts by how much the probability of the answered taxon falls where a square of the training data's mean colour
covers it (occlusion, Zeiler & Fergus 2014, "Visualizing and Understanding Convolutional Networks", section 3.2). That
needs nothing but the forward pass, so it holds for every model family, and it is computed in the compiled buckets.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.files import replaced_file
from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.pictures import Picture
from linnaeus_jax.inference.results import Prediction, Taxon
from linnaeus_jax.inference.running import by_number, run_rows
from linnaeus_jax.reading.metadata import Encoded, Observation
from linnaeus_jax.reporting.figures import literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: positions of the square per side, and its side as a share of the picture's
GRID, WINDOW = 8, 0.25
#: probabilities below count as this one
LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why one picture was answered as it was.

    Attributes:
      prediction: what is explained.
      taxon: whose probability is looked at: the answer, else the deepest known taxon of the path; null of the coarsest
        rank where all of the path is unknown.
      metadata: component that was used -> log-probability of `taxon` without it minus that with it, in nats; below 0:
        the component spoke for the taxon. Its last entry `ALL` stands for all of them, where there are several.
      without: the same components -> the prediction without them.
      heat: float32 [H, W], log-probability lost where a pixel is covered, the mean over the squares that cover it.
      pixels: uint8 [H, W, 3], what the model saw.
    """

    prediction: Prediction
    taxon: Taxon
    metadata: Mapping[str, float]
    without: Mapping[str, Prediction]
    heat: NDArray[np.float32]
    pixels: NDArray[np.uint8]

    def save(self, path: str | Path) -> None:
        """Writes one PNG: the picture, the heat map over it, and a bar for each metadata component."""
        from matplotlib.figure import Figure  # the import takes a second, which only those who draw should pay

        figure = Figure(figsize=(11, 3.9), dpi=100, layout="constrained")
        seen, covered, bars = figure.subplots(1, 3, width_ratios=(1, 1.14, 1.3))
        doubt = "" if self.prediction.answer else "not sure enough for an answer; shown for "
        figure.suptitle(doubt + _sentence(self.taxon), fontsize=12)
        seen.imshow(self.pixels)
        seen.set_title("what the model saw", fontsize=10)
        covered.imshow(self.pixels.mean(axis=2), cmap="gray", vmin=0, vmax=255)
        limit = max(float(np.abs(self.heat).max()), 1e-3)
        shown = covered.imshow(self.heat, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=0.55)
        covered.set_title("red: speaks for the answer", fontsize=10)
        scale = figure.colorbar(shown, ax=covered, fraction=0.05)
        scale.set_label("log-probability lost where covered", fontsize=8)
        scale.ax.tick_params(labelsize=8)
        for panel in (seen, covered):
            panel.set_axis_off()
        self._draw_metadata(bars)
        with replaced_file(Path(path)) as unfinished:
            figure.savefig(unfinished, format="png")

    def _draw_metadata(self, panel: Axes) -> None:
        if not self.metadata:
            panel.text(0.5, 0.5, "no metadata were used", ha="center", va="center", fontsize=10)
            panel.set_axis_off()
            return
        panel.set_title("answers without these metadata", fontsize=10)
        places = np.arange(len(self.metadata))
        changes = list(self.metadata.values())
        panel.barh(places, changes, color=["#B2182B" if change < 0 else "#2166AC" for change in changes], height=0.5)
        panel.axvline(0, color="#444444", linewidth=0.8)
        widest = max(0.1, *map(abs, changes))
        panel.set_xlim(-1.25 * widest, 1.25 * widest)
        panel.set_ylim(len(places) - 0.4, -0.6)
        panel.set_yticks(places, list(self.metadata), fontsize=9)
        panel.tick_params(axis="x", labelsize=8)
        panel.set_xlabel("change of the answer's log-probability", fontsize=8)
        panel.spines[["top", "right", "left"]].set_visible(False)
        for place, without in zip(places, self.without.values(), strict=True):
            text = textwrap.shorten(_sentence(without.answer) if without.answer else "no sure answer", 66)
            white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            panel.text(0, place + 0.42, text, fontsize=8, color="#444444", ha="center", va="center", bbox=white)


#: stands for all metadata components among the keys of `Explanation.metadata`
ALL = "all"


def explain(
    model: Model,
    picture: Picture,
    observation: Observation | None = None,
    options: AnswerOptions | None = None,
    *,
    grid: int = GRID,
    window: float = WINDOW,
) -> Explanation:
    """Explains the answer for one picture, at the cost of about `grid` ** 2 forward passes of one picture.

    Args:
      observation: its metadata.
      options: of the answer, as for predictions.
      grid: the covering square stands at grid x grid places.
      window: side of the square as a share of the picture's.

    Raises:
      PictureError: the picture cannot be read.
      ValueError: squares that do not cover the picture, or metadata that do not fit the model.
    """
    if not 0 < window <= 1 or grid * window < 1:
        raise ValueError(f"{grid} x {grid} squares of {window:g} of the side leave gaps; give a larger grid or window")
    options = replace(options or AnswerOptions(), novelty=None)
    pixels = model.read([picture])[0]
    encoded = model.bundle.encoder.encode([observation or Observation()])
    withheld = _withheld(model, encoded)
    squares = _squares(pixels.shape[0], pixels.shape[1], grid, window)
    gray = np.round(255 * np.array(model.bundle.preprocessing.mean)).astype(np.uint8)
    covered: list[tuple[slice, slice] | None] = [None] * (1 + len(withheld)) + squares
    all_rows = _with_metadata(model, encoded, list(withheld.values()), len(covered))

    def cover(number: int) -> tuple[int, NDArray[np.uint8]]:
        image = pixels.copy()
        if (square := covered[number]) is not None:
            image[square] = gray
        return number, image

    parts = list(run_rows(model.forward, range(len(covered)), cover, by_number(all_rows), lambda _, __, z: z[0]))
    outputs = {task: np.concatenate([part[task] for part in parts]) for task in parts[0]}
    logits = model.answers.located(outputs, [observation or Observation()] * len(covered))
    first = {task: z[: 1 + len(withheld)] for task, z in logits.items()}
    notes = [encoded.notes[0]] * (1 + len(withheld))
    predictions = model.answers(first, options, model.inputs(all_rows)[: len(notes)], notes)
    task, index, taxon = _explained(model, predictions[0])
    probability = model.answers.probabilities(logits, options)[1][task][:, index]
    change = np.log(np.maximum(probability, LEAST))
    change -= change[0]
    of_metadata = change[1 : 1 + len(withheld)].tolist()
    return Explanation(
        predictions[0],
        taxon,
        dict(zip(withheld, of_metadata, strict=True)),
        dict(zip(withheld, predictions[1:], strict=True)),
        _heat(-change[1 + len(withheld) :], squares, (pixels.shape[0], pixels.shape[1])),
        pixels,
    )


def _withheld(model: Model, encoded: Encoded) -> dict[str, NDArray[np.bool_]]:
    """Name -> components bool [K] that are left, for every one that is known, and for all where these are several."""
    valid = encoded.valid[0]
    names = [component.name for component in model.bundle.encoder.components]
    left = {}
    for position in np.flatnonzero(valid):
        left[names[position]] = valid & (np.arange(len(valid)) != position)
    return left | ({ALL: np.zeros_like(valid)} if len(left) > 1 else {})


def _with_metadata(model: Model, encoded: Encoded, left: list[NDArray[np.bool_]], rows: int) -> Encoded:
    """Metadata of all rows: complete, then with what is `left`, then complete again."""
    found = encoded.take([0] * rows)
    for row, shown in enumerate(left, start=1):
        found.valid[row] = shown
        for (start, stop), on in zip(model.bundle.encoder.bounds, shown, strict=True):
            found.meta[row, start:stop] *= on
    return found


def _explained(model: Model, prediction: Prediction) -> tuple[str, int, Taxon]:
    """Task, class and taxon whose probability is looked at."""
    known = [taxon for taxon in prediction.path if taxon.known]
    taxon = prediction.answer or (known[-1] if known else prediction.path[0])
    taxonomy = model.bundle.taxonomy
    task = next(task for task in taxonomy.tasks if taxonomy.ranks[task] == taxon.rank)
    return task, int(np.flatnonzero(taxonomy.classes[task] == taxon.taxon_id)[0]), taxon


def _squares(height: int, width: int, grid: int, window: float) -> list[tuple[slice, slice]]:
    """Rows and columns that are covered, one pair for each place."""
    spans = []
    for side in (height, width):
        length = min(side, int(np.ceil(window * side)))
        starts = np.round(np.linspace(0, side - length, grid)).astype(int)
        spans.append([slice(start, start + length) for start in starts.tolist()])
    return [(rows, columns) for rows in spans[0] for columns in spans[1]]


def _heat(lost: NDArray[np.float64], squares: list[tuple[slice, slice]], shape: tuple[int, int]) -> NDArray[np.float32]:
    """float32 [H, W], the mean of what is lost over the squares that cover a pixel."""
    total, count = np.zeros(shape), np.zeros(shape)
    for value, square in zip(lost, squares, strict=True):
        total[square] += value
        count[square] += 1
    return np.asarray(total / count, np.float32)


def _sentence(taxon: Taxon) -> str:
    return literal(f"{taxon.rank} {taxon.label}, {100 * taxon.probability:.1f} %")
