"""Occurrences → a prior, its smoothing, its weight beside a model, and its map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels_file import open_labels
from linnaeus_jax.files import replaced_file
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import Logits, finite_rows, some
from linnaeus_jax.inference.prior import PRIOR, BoundPrior, Grid, Prior
from linnaeus_jax.inference.quality.evaluating import Labelled, Pictures
from linnaeus_jax.inference.running import run_rows
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.columns import rank_name
from linnaeus_jax.reading.metadata import Encoded, Observation, is_unset_place, moment, with_decimal_point

#: occurrences that smoothing is chosen by, and labelled pictures that the weight is
HELD_OUT, MOST_ROWS = 2000, 2000
ALPHAS = (1.0, 3.0, 10.0, 30.0, 100.0)
_CHUNK = 64


def prior_of(
    frame: pl.DataFrame, levels: Sequence[str], degrees: float, max_uncertainty: float
) -> tuple[Prior, list[str]]:
    """A prior of occurrences, with the smoothing that tells others of them best; and notes.

    Args:
      frame: standard columns, one row for each occurrence.
      levels: its ranks, finest first.
      max_uncertainty: metres; what is less sure of its place is left out.

    Raises:
      UserError: no occurrence with a taxon and a place.
    """
    columns = [schema.label_column("name", level) for level in levels]
    numbers = {
        name: with_decimal_point(pl.col(name).cast(pl.String)).cast(pl.Float64, strict=False)
        for name in ("latitude", "longitude", "uncertainty")
        if name in frame.columns
    }
    if not {"latitude", "longitude"} <= set(numbers):
        raise UserError("the occurrences have no latitude and longitude; name their columns with --map latitude=COLUMN")
    frame = frame.with_columns(numbers[name].alias(name) for name in numbers)
    latitude, longitude = pl.col("latitude"), pl.col("longitude")
    placed = (latitude.abs() <= 90) & (longitude.abs() <= 180) & ~is_unset_place(latitude, longitude)
    tests = {"no taxon": pl.any_horizontal(pl.col(columns).is_not_null()), "no place": placed.fill_null(False)}
    if "uncertainty" in numbers:
        tests[f"a place less sure than {max_uncertainty:,.0f} m"] = (
            pl.col("uncertainty") <= max_uncertainty
        ).fill_null(True)
    notes, total = [], frame.height
    for what, test in tests.items():
        left = frame.filter(test)
        if lost := frame.height - left.height:
            notes.append(f"{lost:,} of {total:,} occurrences have {what} and are left out")
        frame = left
    if frame.is_empty():
        raise UserError(f"no occurrence has a taxon and a place: {'; '.join(notes)}")
    month = _months(frame)
    cell = Grid(degrees).cells(frame["latitude"].to_numpy(), frame["longitude"].to_numpy())
    names, parent, taxon = _taxa(frame.select(pl.col(columns).cast(pl.String)), levels)
    unknown = int((month == 0).sum())
    notes += [f"{unknown:,} occurrences have no month: they count for places alone"] if unknown else []
    shuffled = np.random.default_rng(0).permutation(len(taxon))
    held = shuffled[: min(HELD_OUT, len(taxon) // 10)]
    kept = np.setdiff1d(shuffled, held)
    if len(held):
        part = _counted(names, parent, taxon[kept], cell[kept], month[kept], degrees)
        found = {alpha: _told(replace(part, alpha=alpha), taxon[held], cell[held], month[held]) for alpha in ALPHAS}
        alpha = max(found, key=found.__getitem__)
        notes.append(f"smoothing {alpha:g}: it tells {len(held):,} of the occurrences best by the others")
    else:
        alpha = Prior.alpha
    whole = replace(_counted(names, parent, taxon, cell, month, degrees), alpha=alpha)
    return whole, [f"{len(taxon):,} occurrences of {len(names):,} taxa in {len(np.unique(cell)):,} cells", *notes]


def _months(frame: pl.DataFrame) -> NDArray[np.int64]:
    """1 to 12; 0: unknown."""
    found = pl.Series([0] * frame.height, dtype=pl.Int64)
    if "date" in frame.columns:
        texts = schema.mapped(frame["date"].cast(pl.String), lambda text: f"{np.nan_to_num(moment(text, [])[0]):.0f}")
        found = texts.cast(pl.Int64).fill_null(0)
    if "month" in frame.columns:
        own = frame["month"].cast(pl.String).cast(pl.Int64, strict=False).fill_null(0)
        found = found.zip_with(found > 0, own.zip_with(own.is_between(1, 12), found * 0))
    return found.to_numpy().astype(np.int64)


def _taxa(
    frame: pl.DataFrame, levels: Sequence[str]
) -> tuple[list[tuple[str, str]], NDArray[np.int64], NDArray[np.int64]]:
    """Rank and name of every taxon, coarser ones first; the taxon above each, the one that most records say; the finest
    taxon of each record."""
    ranks = [rank_name(level) for level in levels]
    paths = frame.with_row_index("row").group_by(frame.columns, maintain_order=True).agg("row")
    above: dict[tuple[int, str], Counter[tuple[int, str] | None]] = {}
    ends: list[tuple[int, str]] = []
    for *names, rows in paths.iter_rows():
        known = [(place, name) for place, name in enumerate(names) if name is not None]
        ends.append(known[0])
        for taxon, coarser in zip(known, [*known[1:], None]):
            above.setdefault(taxon, Counter())[coarser] += len(rows)
    order = sorted(above, key=lambda taxon: (-taxon[0], taxon[1]))
    place = {taxon: number for number, taxon in enumerate(order)}
    best = [max(filter(None, above[taxon]), key=above[taxon].__getitem__, default=None) for taxon in order]
    parent = np.array([-1 if coarser is None else place[coarser] for coarser in best], np.int64)
    end = np.zeros(frame.height, np.int64)
    for taxon, rows in zip(ends, paths["row"].to_list()):
        end[rows] = place[taxon]
    return [(ranks[rank], name) for rank, name in order], parent, end


def _counted(
    names: Sequence[tuple[str, str]],
    parent: NDArray[np.int64],
    taxon: NDArray[np.int64],
    cell: NDArray[np.int64],
    month: NDArray[np.int64],
    degrees: float,
) -> Prior:
    keys, counts = np.unique(np.stack([taxon, cell, month]), axis=1, return_counts=True)
    taxon, cell, month = np.ascontiguousarray(keys, np.int64)
    return Prior(names, parent, taxon, cell, month, counts.astype(np.int64), degrees)


def _told(prior: Prior, taxon: NDArray[np.int64], cell: NDArray[np.int64], month: NDArray[np.int64]) -> float:
    """Mean log ratio of taxa where they were seen."""
    parts = [slice(start, start + _CHUNK) for start in range(0, len(taxon), _CHUNK)]
    found = [prior.log_ratios(cell[part], month[part])[np.arange(len(taxon[part])), taxon[part]] for part in parts]
    return float(np.concatenate(found).mean())


# ---- its weight


def observations_of(labels: Path, rows: NDArray[np.int64]) -> list[Observation]:
    """Places and dates of rows of a labels file. Raises UserError where it has none."""
    try:
        with open_labels(str(labels)) as file:
            if not {"raw_lat", "raw_lon"} <= set(file):
                raise UserError(f"{labels} has no raw_lat and raw_lon; a prior needs the places of its rows")
            places = [file[name][:][rows].tolist() for name in ("raw_lat", "raw_lon")]
            dated = "raw_date_observed" in file
            dates = file["raw_date_observed"].asstr()[:][rows].tolist() if dated else [None] * len(rows)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return [Observation(*each) for each in zip(*places, dates)]


def fitted(
    model: Model,
    prior: Prior,
    labelled: Labelled,
    pictures: Pictures,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[float, dict[str, Any]]:
    """The weight with which labels of validation rows are most probable, and what was measured.

    Raises:
      UserError: no row with a place and a label that the model knows.
    """
    where = observations_of(labelled.path, labelled.rows)
    bound = BoundPrior.of(prior, model.bundle.taxonomy, model.answers.paths.called)
    named = (labelled.label >= model.bundle.taxonomy.first).any(axis=1)
    ratios = np.concatenate([bound.of_observations(where[at : at + _CHUNK]) for at in range(0, len(where), _CHUNK)])
    rows = np.flatnonzero(named & ratios.any(axis=1))
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_ROWS])
    if not len(rows):
        raise UserError(f"{labelled.path} has no row with a place and a taxon that the model knows")

    def read(number: int) -> tuple[int, NDArray[np.uint8]]:
        return number, pictures.read(int(labelled.rows[number]))

    def encoded(numbers: Sequence[int]) -> list[Encoded]:
        at = np.array(numbers)
        return [Encoded(labelled.meta[at], labelled.valid[at], [()] * len(at))]

    def kept(numbers: list[int], _: Sequence[Encoded], logits: list[Logits]) -> tuple[list[int], Logits]:
        finite = finite_rows(logits[0])
        return np.array(numbers)[finite].tolist(), some(logits[0], finite)

    seen: list[int] = []
    parts: list[Logits] = []
    for numbers, logits in run_rows(model.forward, rows.tolist(), read, encoded, kept):
        seen += numbers
        parts.append(logits)
        if progress:
            progress(len(seen), len(rows))
    joined = {task: np.concatenate([part[task] for part in parts]) for task in parts[0]}
    label = labelled.label[seen]
    place = (label >= model.bundle.taxonomy.first).argmax(axis=1)  # the finest rank with a label

    def surprise(weight: float) -> tuple[float, float]:
        """Mean -log probability of the labels, and the share of right answers at their ranks."""
        given = {**joined, PRIOR: ratios[seen]}
        answers = model.answers.with_prior(replace(prior, weight=float(weight)))
        best, by_task = answers.probabilities(given, answers.options(top_k=1))
        at = np.arange(len(seen))
        found = np.zeros(len(seen))
        for number, task in enumerate(model.bundle.tasks):
            mine = place == number
            found[mine] = by_task[task][at[mine], label[mine, number]]
        right = best[at, place] == label[at, place]
        return float(-np.log(np.maximum(found, 1e-12)).mean()), float(right.mean())

    result = minimize_scalar(
        lambda weight: surprise(weight)[0], bounds=(0.0, 3.0), method="bounded", options={"xatol": 0.01}
    )
    weight = round(float(result.x), 2) if surprise(float(result.x))[0] < surprise(0.0)[0] else 0.0
    before, after = surprise(0.0), surprise(weight)
    measured = {
        "rows": len(seen),
        "nll_without": before[0],
        "nll": after[0],
        "right_without": before[1],
        "right": after[1],
    }
    return weight, measured


# ---- its map


def draw_map(prior: Prior, taxon: str, out: Path, month: int = 0) -> None:
    """Draws how many times as common a taxon is in each cell with occurrences as everywhere.

    Raises:
      UserError: a taxon that the prior does not have.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    found = [number for number, (_, name) in enumerate(prior.names) if name.casefold() == taxon.casefold()]
    if not found:
        raise UserError(f"the prior has no taxon {taxon!r}; it knows scientific names")
    cells = np.unique(prior.cell)
    parts = [cells[at : at + _CHUNK] for at in range(0, len(cells), _CHUNK)]
    ratio = np.concatenate([prior.log_ratios(part, np.full(len(part), month))[:, found[-1]] for part in parts])
    corners = prior.grid.corners(cells)
    patches = [Rectangle((west, south), width, height) for west, south, width, height in corners]
    drawn = PatchCollection(patches, cmap="PuOr_r", norm=TwoSlopeNorm(0, -5, 5))
    drawn.set_array(np.clip(ratio / np.log(2), -5, 5))
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.add_collection(drawn)
    where = prior.taxon == found[-1]
    seen = prior.grid.corners(np.unique(prior.cell[where & ((prior.month == month) | (month == 0))]))
    axes.plot(seen[:, 0] + seen[:, 2] / 2, seen[:, 1] + seen[:, 3] / 2, ".", color="black", markersize=2)
    axes.set_xlim(corners[:, 0].min() - 2, (corners[:, 0] + corners[:, 2]).max() + 2)
    axes.set_ylim(max(corners[:, 1].min() - 2, -90), min((corners[:, 1] + corners[:, 3]).max() + 2, 90))
    axes.set_aspect(1 / max(np.cos(np.deg2rad(np.mean(axes.get_ylim()))), 0.2))
    axes.set_xlabel("longitude")
    axes.set_ylabel("latitude")
    when = f" in month {month}" if month else ""
    axes.set_title(f"{prior.names[found[-1]][1]}{when}: how common, beside everywhere; dots: seen")
    bar = figure.colorbar(drawn, ax=axes, ticks=range(-4, 5, 2))
    bar.ax.set_yticklabels([f"{2.0**power:g} times" for power in range(-4, 5, 2)])
    with replaced_file(out) as temporary:
        figure.savefig(temporary, format=out.suffix[1:].lower(), dpi=120)
