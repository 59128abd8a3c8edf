"""Where and when taxa occur, as a prior beside the picture: smoothed counts of occurrences by cell and month.

A cell is part of a band of equal height in degrees, with as many cells as make them about equally large. For every
taxon v below a taxon u, from the counts n of occurrences,

    q(v | u, region) = (n(v, region) + alpha * base(v | u)) / (n(u, region) + alpha)

is the share that v has of u there (Dirichlet smoothing). The base is what coarser regions say: a large cell has all
occurrences, a cell has its large cell; the month of all occurrences has all, and a place in a month has the product of
what the place says, and what the month says one step coarser. What is said of a taxon is the product of the ratios
q / q(all) down to it, p(taxon | place, month) / p(taxon): how many times as common it is there and then as everywhere.
A taxon that the occurrences do not have is as its genus, its family and so on.

The logarithms of these ratios, times a weight, are added to those of the paths of a picture (Mac Aodha et al., 2019,
"Presence-only geographical priors for fine-grained image classification", multiply likewise).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import json_text, replaced_file
from linnaeus_jax.inference.results import Taxon, taxon_of
from linnaeus_jax.reading.metadata import Observation, known_of, moment

if TYPE_CHECKING:
    from linnaeus_jax.inference.bundle.taxonomy import Taxonomy

#: in place of a rank of logits: float64 [N, taxa], log ratios of the taxa of a prior; 0 where no place is known
PRIOR = "prior"
#: degrees of a large cell for one of a cell
COARSER = 4
MONTHS = 12
ALPHA, WEIGHT = 10.0, 1.0
#: of the counts of all occurrences, for each taxon
SEEN = 0.5
#: log ratio of what is cut off
CUT = -1e9
#: without a prior of places and dates: place of the rank of the answer among the tasks, -1 for none, class there, and
#: probability; that of the taxon that is answered with it; how many times as common the two are there and then; whether
#: the place is known
PRIOR_CHANGE = np.dtype(
    [("rank", "i4"), ("index", "i4"), ("probability", "f8"), ("before", "f8"), ("times", "f8", (2,)), ("known", "?")]
)
_ARRAYS = ("parent", "taxon", "cell", "month", "count")
_MOST_TAXA, _LARGEST = 2_000_000, 1 << 31


@dataclass(frozen=True)
class Grid:
    """Cells of `degrees`; numbers run eastwards in bands from the south."""

    degrees: float

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """Cells of every band."""
        bands = int(np.ceil(180 / self.degrees))
        middle = np.deg2rad(np.minimum((np.arange(bands) + 0.5) * self.degrees, 180) - 90)
        return np.maximum(1, np.round(360 / self.degrees * np.cos(middle))).astype(np.int64)

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The first cell of every band, and how many there are."""
        return np.concatenate([[0], np.cumsum(self.columns)])

    def cells(self, latitude: Any, longitude: Any) -> NDArray[np.int64]:
        """Numbers of the cells of places in degrees, arrays [N]."""
        south, east = np.asarray(latitude, float) + 90, (np.asarray(longitude, float) + 180) % 360
        band = np.clip((south / self.degrees).astype(np.int64), 0, len(self.columns) - 1)
        columns = self.columns[band]
        return self.first[band] + np.minimum((east / 360 * columns).astype(np.int64), columns - 1)

    def corners(self, cells: NDArray[np.int64]) -> NDArray[np.float64]:
        """West, south, width and height in degrees: float64 [N, 4]."""
        band = np.searchsorted(self.first, cells, side="right") - 1
        width = 360 / self.columns[band]
        south = band * self.degrees - 90
        height = np.minimum(self.degrees, 90 - south)
        return np.stack([(cells - self.first[band]) * width - 180, south, width, height], axis=1)


@dataclass(frozen=True, eq=False)
class Prior:
    """Counts of occurrences.

    Letters: V taxa, coarser ones first; M counts.

    Attributes:
      names: of each taxon its rank and scientific name.
      parent: int64 [V], the taxon above, -1 for none.
      taxon, cell, month, count: int64 [M], occurrences of a taxon, and of none below it, in a cell and a month from 1
        to 12, 0 where that is unknown.
      degrees: of a cell.
      alpha: of the smoothing.
      weight: of the log ratios beside a picture.
      about: what it was made of, and what the weight was fitted to, as JSON types.
    """

    names: Sequence[tuple[str, str]]
    parent: NDArray[np.int64]
    taxon: NDArray[np.int64]
    cell: NDArray[np.int64]
    month: NDArray[np.int64]
    count: NDArray[np.int64]
    degrees: float
    alpha: float = ALPHA
    weight: float = WEIGHT
    about: Mapping[str, Any] | None = None

    @cached_property
    def grid(self) -> Grid:
        return Grid(self.degrees)

    @cached_property
    def _large(self) -> tuple[Grid, NDArray[np.int64]]:
        """The grid of large cells, and the one of each cell."""
        large = Grid(self.degrees * COARSER)
        west, south, width, height = self.grid.corners(np.arange(self.grid.first[-1])).T
        return large, large.cells(south + height / 2, west + width / 2)

    @cached_property
    def _depth(self) -> NDArray[np.int64]:
        depth = np.zeros(len(self.parent), np.int64)
        for taxon, above in enumerate(self.parent.tolist()):  # which stands before it
            depth[taxon] = depth[above] + 1 if above >= 0 else 0
        return depth

    @cached_property
    def _within(self) -> csr_array:
        """[V, V]: whether a taxon is, or is below, another."""
        rows, columns, above = [], [], np.arange(len(self.parent))
        taxa = np.arange(len(self.parent))
        while len(taxa):
            rows.append(taxa)
            columns.append(above)
            kept = self.parent[above] >= 0
            taxa, above = taxa[kept], self.parent[above[kept]]
        row, column = np.concatenate(rows), np.concatenate(columns)
        return csr_array((np.ones(len(row)), (row, column)), shape=(len(self.parent),) * 2)

    def _counts(self, region: NDArray[np.int64], regions: int) -> csr_array:
        """[regions, V]: occurrences of every taxon and what is below it."""
        kept = region >= 0
        shape = (regions, len(self.parent))
        own = csr_array((self.count[kept].astype(float), (region[kept], self.taxon[kept])), shape=shape)
        return csr_array(own @ self._within)

    @cached_property
    def _tables(self) -> dict[str, csr_array]:
        """Counts of the regions of each kind; those of a place in a month are numbered place * 12 + month - 1."""
        large, of_cell = self._large
        places = {"large": (of_cell[self.cell], large.first[-1]), "cell": (self.cell, self.grid.first[-1])}
        places["all"] = (np.zeros_like(self.cell), 1)
        found = {}
        for kind, (region, regions) in places.items():
            found[kind] = self._counts(region, int(regions))
            at = np.where(self.month > 0, region * MONTHS + self.month - 1, -1)
            found[f"{kind}, month"] = self._counts(at, int(regions) * MONTHS)
        return found

    @cached_property
    def _below(self) -> csr_array:
        """[V + 1, V]: whether a taxon is right below another; the last row is of those below none."""
        taxa = len(self.parent)
        return csr_array((np.ones(taxa), (self.parent % (taxa + 1), np.arange(taxa))), shape=(taxa + 1, taxa))

    def _siblings(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[N, V]: of every taxon the sum over all with the same parent."""
        return np.asarray((self._below @ values.T)[self.parent].T, np.float64)

    def log_ratios(self, cell: NDArray[np.int64], month: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64 [N, V]: log p(taxon | cell, month) - log p(taxon).

        Args:
          cell, month: int64 [N]; month 0 is unknown.
        """
        of_all = self._tables["all"].toarray()
        share = (of_all + SEEN) / self._siblings(of_all + SEEN)
        when = np.maximum(month - 1, 0)
        seasonal = share
        place = share
        for kind, region in (("all", np.zeros_like(cell)), ("large", self._large[1][cell]), ("cell", cell)):
            if kind != "all":
                coarser, place = place, self._smoothed(self._tables[kind][region].toarray(), place)
                seasonal = seasonal * place / coarser
            counts = self._tables[f"{kind}, month"][region * MONTHS + when].toarray()
            seasonal = self._smoothed(counts, seasonal)
        ratio = np.log(np.where((month > 0)[:, None], seasonal, place)) - np.log(share)
        for depth in range(1, int(self._depth.max(initial=0)) + 1):
            here = np.flatnonzero(self._depth == depth)
            ratio[:, here] += ratio[:, self.parent[here]]
        return np.asarray(ratio, np.float64)

    def _smoothed(self, counts: NDArray[np.float64], base: NDArray[np.float64]) -> NDArray[np.float64]:
        base = base / self._siblings(np.broadcast_to(base, counts.shape))
        return (counts + self.alpha * base) / (self._siblings(counts) + self.alpha)

    def save(self, path: Path) -> None:
        """Writes a .npz file."""
        facts = {key: getattr(self, key) for key in ("names", "degrees", "alpha", "weight", "about")}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with replaced_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, facts=np.frombuffer(json_text(facts).encode(), np.uint8), **arrays)


def read_prior(path: Path) -> Prior:
    """Reads what `Prior.save` writes.

    Raises:
      UserError: no such file, or not a prior.
    """
    if not path.is_file():
        raise UserError(f"--prior {path} {'is not a file' if path.exists() else 'does not exist'}")
    try:
        with zipfile.ZipFile(path) as members:
            if sum(info.file_size for info in members.infolist()) > _LARGEST:
                raise ValueError("it would fill more than 2 GiB")
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(file["facts"].tobytes())
            arrays = {name: file[name] for name in _ARRAYS}
        if wrong := [name for name, array in arrays.items() if array.dtype != np.int64 or array.ndim != 1]:
            raise ValueError(f"its {wrong[0]} is not what it should be")
        names = [(str(rank), str(name)) for rank, name in facts["names"]]
        degrees, alpha, weight = (float(facts[key]) for key in ("degrees", "alpha", "weight"))
        about = dict(facts["about"] or {})
        found = Prior(names, **arrays, degrees=degrees, alpha=alpha, weight=weight, about=about)
        _check(found)
    except (ValueError, KeyError, TypeError, OSError, EOFError, RecursionError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is no prior of linnaeus prior build: {error}") from None
    return found


def _check(prior: Prior) -> None:
    """Raises ValueError for arrays that do not fit each other."""
    taxa = len(prior.names)
    if not (0.1 <= prior.degrees <= 30 and 0 < prior.alpha < 1e9 and 0 <= prior.weight < 1e3):
        raise ValueError("its numbers are out of bounds")
    if not 0 < taxa <= _MOST_TAXA or prior.parent.shape != (taxa,):
        raise ValueError("its taxa do not fit each other")
    if wrong := [name for name in _ARRAYS if name != "parent" and getattr(prior, name).shape != prior.taxon.shape]:
        raise ValueError(f"its {wrong[0]} is not as long as its taxon")
    bounds = {"taxon": (0, taxa), "cell": (0, prior.grid.first[-1]), "month": (0, MONTHS + 1), "count": (1, 1 << 40)}
    for name, (least, most) in bounds.items():
        array = getattr(prior, name)
        if len(array) and not (array.min() >= least and array.max() < most):
            raise ValueError(f"its {name} is out of bounds")
    if ((prior.parent < -1) | (prior.parent >= np.arange(taxa))).any():
        raise ValueError("its taxa are not in order")


# ---- beside a model


@dataclass(frozen=True, eq=False)
class BoundPrior:
    """A prior beside the paths of a model.

    Attributes:
      prior: the counts.
      node: task -> int64 [C], the taxon of the prior that stands for a class, an ancestor where it has none; -1: none.
      path: int64 [P], the same of every path of the model.
      own: task -> classes that the prior knows themselves.
      cut: taxa that are less than so many times as common are excluded; 0: none.
    """

    prior: Prior
    node: Mapping[str, NDArray[np.int64]]
    path: NDArray[np.int64]
    own: Mapping[str, int]
    cut: float = 0.0

    @classmethod
    def of(cls, prior: Prior, taxonomy: Taxonomy, classes: NDArray[np.integer], cut: float = 0.0) -> BoundPrior:
        """Taxa are matched by rank and scientific name.

        Args:
          classes: int [P, T] of the paths, finest rank first.

        Raises:
          UserError: none of the model's taxa is in the prior.
        """
        known = {(rank, name.casefold()): number for number, (rank, name) in enumerate(prior.names)}
        node: dict[str, NDArray[np.int64]] = {}
        own: dict[str, int] = {}
        for task in reversed(taxonomy.tasks):
            mine = [known.get((rank, name.casefold()), -1) for rank, _, name, _ in taxonomy.described[task]]
            node[task] = np.array(mine, np.int64)
            own[task] = int((node[task] >= 0).sum())
            for place, coarser in enumerate(taxonomy.tasks[taxonomy.tasks.index(task) + 1 :], 1):
                above = taxonomy.tree.anc[task][:, place]
                node[task] = np.where((node[task] < 0) & (above >= 0), node[coarser][above], node[task])
        if all((each < 0).all() for each in node.values()):
            raise UserError("the prior has none of the model's taxa; it knows them by rank and scientific name")
        path = np.full(len(classes), -1)
        for place, task in reversed(list(enumerate(taxonomy.tasks))):
            named = classes[:, place] >= taxonomy.first
            path = np.where(named, node[task][classes[:, place]], path)
        return cls(prior, node, path, own, cut)

    def of_observations(self, observations: Sequence[Observation]) -> NDArray[np.float64]:
        """float64 [N, V], see `Prior.log_ratios`; 0 where no place is known."""
        found = np.zeros((len(observations), len(self.prior.names)))
        known = [known_of(each)[:2] for each in observations]
        rows = np.array([row for row, (latitude, _) in enumerate(known) if latitude], np.int64)
        if len(rows):
            places = np.array([known[row] for row in rows], np.float64)
            months = [moment(observations[row].date, [])[0] for row in rows]
            month = np.nan_to_num(np.array(months)).astype(np.int64)
            found[rows] = self.prior.log_ratios(self.prior.grid.cells(*places.T), month)
        return found

    def scores(self, ratios: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """What is added to the paths of a model: float64 [N, P] of `of_observations`."""
        known = np.concatenate([ratios, np.zeros((len(ratios), 1))], axis=1)[:, self.path]  # -1 is the last
        scores = self.prior.weight * known
        if self.cut:
            low = known < np.log(self.cut)
            scores[low & ~low.all(axis=1, keepdims=True)] = CUT
        return np.asarray(scores, np.float64)

    def times(self, ratios: NDArray[np.floating[Any]], task: str, index: NDArray[np.integer]) -> NDArray[np.float64]:
        """float64 [N]: how many times as common a class of each row is there and then."""
        node = self.node[task][index]
        return np.asarray(np.where(node >= 0, np.exp(ratios[np.arange(len(ratios)), node]), 1.0), np.float64)


def weighted(prior: Prior, weight: float | None) -> Prior:
    """A prior with another weight. Raises UserError for one that cannot be."""
    if weight is None:
        return prior
    if not 0 <= weight < 1e3:
        raise UserError(f"--prior-weight is {weight:g}; give 0 for no prior, 1 for all of it, or a number between")
    return replace(prior, weight=weight)


def said_of_prior(taxonomy: Taxonomy, change: Any, answer: int, best: NDArray[np.integer]) -> tuple[Taxon | None, str]:
    """The answer without the prior, and in words what it changed.

    Args:
      change: one of `PRIOR_CHANGE`.
      answer: place of the rank of the answer, -1 for none.
      best: int [T], classes of the path.
    """
    if not change["known"]:
        return None, "no place is known: the prior says nothing"
    tasks, before = taxonomy.tasks, int(change["rank"])
    old = taxon_of(taxonomy, tasks[before], int(change["index"]), float(change["probability"])) if before >= 0 else None
    new = taxon_of(taxonomy, tasks[answer], int(best[answer]), float(change["before"])) if answer >= 0 else None
    same = old is not None and new is not None and (old.rank, old.taxon_id) == (new.rank, new.taxon_id)
    common = [
        f"{taxon.name or taxon.taxon_id} is {times:.2g} times as common there and then as everywhere"
        for taxon, times in zip((new, None if same else old), change["times"].tolist())
        if taxon is not None
    ]
    was = "unknown" if old is None else f"{old.rank} {old.name or old.taxon_id} ({old.probability:.2f})"
    return old, "; ".join([f"without place and date {was}", *common])
