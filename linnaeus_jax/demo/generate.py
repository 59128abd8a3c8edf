"""The embedded demo data set: generated, small, and honest about what can be learned from it.

36 invented species in 12 genera, 6 families and 3 orders. Within a genus two or three species look exactly alike and
differ only in where (range), when (season) or how high (elevation) they live, so that neither the picture nor the
metadata is enough alone. Because every density is known, the accuracy of the best possible classifier is known too:
``DemoSummary.ceilings``. Files: ``labels.h5`` and ``images.h5`` (contiguous uint8 RGB), row-aligned.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.alignment import IDENTIFIERS_DIGEST, LABEL_CHECKSUMS, PIXELS
from linnaeus_jax.data.hdf5 import open_hdf5, write_hdf5
from linnaeus_jax.data.image_checks import checksum, write_checksums
from linnaeus_jax.data.labels import read_identifiers_digest
from linnaeus_jax.data.labels_file import json_attribute
from linnaeus_jax.data.metadata import (
    BROADRANGE_2,
    SPATIAL_ATTRIBUTES,
    elevation_attributes,
    sinusoidal,
    sinusoidal_attributes,
    unit_sphere,
)
from linnaeus_jax.data.taxon_names import read_taxon_names, write_taxon_names
from linnaeus_jax.demo.drawing import draw
from linnaeus_jax.demo.species import RANKS, SPECIES, taxon_names
from linnaeus_jax.files import json_text, replaced_file
from linnaeus_jax.system import interrupts_held

VERSION = 2  # raise when the same seed gives other bytes
COMPONENTS = ("TEMPORAL", "SPATIAL", "ELEVATION")
IMAGE_SIZE = 48
ROWS = 6000
CHUNK = 250  # rows that one process draws at a time
MIN_ROWS = 150  # four of each common species
SPLIT_RATIO, SPLIT_SEED = 0.8, 42  # of the quickstart

MISSING = {"TEMPORAL": 0.06, "SPATIAL": 0.07, "ELEVATION": 0.08}  # shares of rows, independent of each other
GENUS_ONLY, FAMILY_ONLY = 0.10, 0.05  # shares of rows identified no further
RARE_SHARE = 20 / 6000  # of all rows, for each rare species

# Where, when and how high. A species whose genus is split along an axis has the narrow form of one of the three
# places on it; on the other axes it has the wide form of its genus's place.
PLACES = ((47.0, -68.0), (31.0, -92.0), (52.0, -116.0))  # latitude, longitude in degrees
MONTHS = (4.0, 8.0, 12.0)
HEIGHTS = (0.12, 0.45, 0.80)  # mean, as a share of TOP
TOP = 3600.0  # metres; below the longest period, so that the encoding tells all elevations apart
PLACE_SD = {True: 5.0, False: 15.0}  # degrees, True: narrow
MONTH_KAPPA = {True: 5.0, False: 0.6}
HEIGHT_CONCENTRATION = {True: 30.0, False: 3.0}

# ---- the generative model ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observations:
    """What the generator knows of every row: the true species, also where the labels hide it, and the true metadata,
    also where it is withheld. Arrays of length N, `taxa` uint32 [N, 4], `valid` bool [N, 3] (see COMPONENTS)."""

    species: NDArray[np.int64]
    taxa: NDArray[np.uint32]
    month: NDArray[np.int64]
    day: NDArray[np.int64]
    latitude: NDArray[np.float64]
    longitude: NDArray[np.float64]
    elevation: NDArray[np.float64]
    valid: NDArray[np.bool_]
    observer: NDArray[np.int32]


def species_counts(rows: int) -> NDArray[np.int64]:
    """Rows per species: a fixed small share for each rare one, the rest by weight; int64 [S], sums to `rows`."""
    weight = np.array([species.weight for species in SPECIES])
    rare = weight == 0
    share = np.where(rare, RARE_SHARE, weight / weight.sum() * (1 - RARE_SHARE * rare.sum()))
    exact = share * (rows - 2 * rare.sum())
    counts = np.floor(exact).astype(np.int64) + 2 * rare
    order = np.argsort(np.where(rare, -1.0, exact - np.floor(exact)), kind="stable")[::-1]
    counts[order[: rows - counts.sum()]] += 1
    return counts


def _beta_parameters(place: int, narrow: bool) -> tuple[float, float]:
    concentration = HEIGHT_CONCENTRATION[narrow]
    return HEIGHTS[place] * concentration, (1 - HEIGHTS[place]) * concentration


def _month_log_probability(place: int, narrow: bool) -> NDArray[np.float64]:
    """Log probability of the months 1..12: a von Mises density at whole months, normalised; float64 [12]."""
    score = MONTH_KAPPA[narrow] * np.cos(2 * np.pi * (np.arange(1, 13) - MONTHS[place]) / 12)
    return score - np.log(np.exp(score).sum())


def simulate(seed: int, rows: int) -> Observations:
    """Draws the table of the demo set, without pictures.

    Args:
      seed: of everything.
      rows: N, at least MIN_ROWS.

    Raises:
      ValueError: too few rows.
    """
    if rows < MIN_ROWS:
        raise ValueError(f"demo data: rows={rows} is too few for {len(SPECIES)} species; ask for at least {MIN_ROWS}")
    rng = np.random.default_rng([seed, 0])
    species = rng.permutation(np.repeat(np.arange(len(SPECIES)), species_counts(rows)))
    month, day = np.zeros(rows, np.int64), rng.integers(1, 29, rows)
    latitude, longitude, elevation = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for s, one in enumerate(SPECIES):
        members = np.flatnonzero(species == s)
        season, place, height = one.niche
        month[members] = rng.choice(np.arange(1, 13), len(members), p=np.exp(_month_log_probability(*season)))
        spread = rng.normal(0, PLACE_SD[place[1]], (2, len(members)))
        latitude[members], longitude[members] = np.array(PLACES[place[0]])[:, None] + spread
        elevation[members] = TOP * rng.beta(*_beta_parameters(*height), len(members))
    taxa = np.array([one.taxa for one in SPECIES], np.uint32)[species]
    depth = rng.random(rows)
    depth[np.unique(species, return_index=True)[1]] = 1.0  # however small the set, every class occurs
    taxa[depth < GENUS_ONLY + FAMILY_ONLY, 0] = 0
    taxa[depth < FAMILY_ONLY, 1] = 0
    missing = np.array([MISSING[name] for name in COMPONENTS])
    valid = rng.random((rows, len(COMPONENTS))) >= missing[None, :]
    observers = rows // 12
    popularity = 1 / np.arange(1, observers + 1)
    observer = rng.choice(np.arange(1, observers + 1), rows, p=popularity / popularity.sum())
    return Observations(
        species, taxa, month, day, latitude, longitude, elevation, valid, (10_000 + observer).astype(np.int32)
    )


def log_joint(observations: Observations) -> NDArray[np.float64]:
    """Log of species share times density of the metadata present in each row, up to a constant per row.

    Returns:
      float64 [N, S]. Longitude, latitude and elevation densities are taken in degrees and metres; the change of
      variables to the encoded vector is the same for every species and drops out of the posterior.
    """
    valid = observations.valid
    shares = species_counts(len(observations.species)) / len(observations.species)
    height = observations.elevation / TOP
    columns = []
    for one, share in zip(SPECIES, shares, strict=True):
        season, place, rise = one.niche
        month = _month_log_probability(*season)[observations.month - 1]
        centre, sd = PLACES[place[0]], PLACE_SD[place[1]]
        distance = (observations.latitude - centre[0]) ** 2 + (observations.longitude - centre[1]) ** 2
        spatial = -0.5 * distance / sd**2 - 2 * math.log(sd)
        a, b = _beta_parameters(*rise)
        normaliser = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        elevation = (a - 1) * np.log(height) + (b - 1) * np.log1p(-height) - normaliser
        evidence = np.stack([month, spatial, elevation], axis=1)
        columns.append(math.log(share) + np.where(valid, evidence, 0.0).sum(axis=1))
    return np.stack(columns, axis=1)


def bayes_species(observations: Observations) -> dict[str, NDArray[np.int64]]:
    """The best possible guess of every row's species, from the generator's own densities.

    Returns:
      "image+metadata", "image", "metadata" -> int64 [N], index into SPECIES. Guesses that use the picture take it as
      telling the look without error, so they bound every model from above.
    """
    looks = [one.look for one in SPECIES]
    same = np.array([[a == b for b in looks] for a in looks])[observations.species]  # [N, S]
    prior = np.log(species_counts(len(observations.species)))
    joint = log_joint(observations)
    return {
        "image+metadata": np.where(same, joint, -np.inf).argmax(axis=1),
        "image": np.where(same, prior[None, :], -np.inf).argmax(axis=1),
        "metadata": joint.argmax(axis=1),
    }


def validation_rows(rows: int) -> NDArray[np.int64]:
    """The validation rows of the split of the quickstart, for which the ceilings are reported, in split order."""
    return np.random.RandomState(SPLIT_SEED).permutation(rows)[int(rows * SPLIT_RATIO) :]


# ---- files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoSummary:
    """What was written. `ceilings` are accuracies of the best possible species classifier on the validation rows with
    a species label, by what it may see; `missing` are shares of rows per metadata component."""

    labels_path: Path
    images_path: Path
    rows: int
    image_size: int
    classes: dict[str, int]
    rows_with_species: int
    smallest_species: int
    largest_species: int
    missing: dict[str, float]
    validation_rows: int
    written: bool  # False: the same set was already there
    ceilings: dict[str, float]


def _summary(directory: Path, observations: Observations, parameters: dict[str, Any], written: bool) -> DemoSummary:
    rows = len(observations.species)
    val = validation_rows(rows)
    named = val[observations.taxa[val, 0] > 0]
    guesses = bayes_species(observations)
    counts = np.unique(observations.taxa[observations.taxa[:, 0] > 0, 0], return_counts=True)[1]
    return DemoSummary(
        labels_path=directory / "labels.h5",
        images_path=directory / "images.h5",
        rows=rows,
        image_size=parameters["image_size"],
        classes={rank: len(names) for rank, names in taxon_names().items()},
        rows_with_species=int((observations.taxa[:, 0] > 0).sum()),
        smallest_species=int(counts.min()),
        largest_species=int(counts.max()),
        missing={name: float(1 - observations.valid[:, k].mean()) for k, name in enumerate(COMPONENTS)},
        validation_rows=len(val),
        written=written,
        ceilings={kind: float((guess[named] == observations.species[named]).mean()) for kind, guess in guesses.items()},
    )


def encode(observations: Observations) -> dict[str, NDArray[np.float32]]:
    """The metadata columns of the labels file, null patterns in place.

    Returns:
      "temporal" [N, 2] sin and cos of 2 pi month / 12; "spatial" [N, 3] point on the unit sphere;
      "elevation_broadrange_2" [N, 10] sin and cos of 2 pi metres / scale per scale. Missing: zeros; elevation: 0 m.
    """
    valid = observations.valid
    turns = 2 * np.pi * np.where(valid[:, 2], observations.elevation, 0.0)[:, None] / np.array(BROADRANGE_2)[None, :]
    columns = {
        "temporal": np.where(valid[:, :1], sinusoidal(2 * np.pi * observations.month[:, None] / 12), 0.0),
        "spatial": np.where(valid[:, 1:2], unit_sphere(observations.latitude, observations.longitude), 0.0),
        "elevation_broadrange_2": sinusoidal(turns),
    }
    return {name: column.astype(np.float32) for name, column in columns.items()}


def places(observations: Observations) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latitude and longitude in degrees as people write them; who was drawn beyond a pole is behind it."""
    latitude, beyond = observations.latitude, np.abs(observations.latitude) > 90
    latitude = np.where(beyond, np.sign(latitude) * 180 - latitude, latitude)
    longitude = np.where(beyond, observations.longitude + 180, observations.longitude)
    return latitude, (longitude + 180) % 360 - 180


def _label_columns(observations: Observations) -> dict[str, NDArray[Any]]:
    """Every dataset of the labels file, text as objects."""
    when, where, high = observations.valid.T
    latitude, longitude = places(observations)
    dates = [f"2023-{m:02d}-{d:02d}" if ok else "" for m, d, ok in zip(observations.month, observations.day, when)]
    return {
        "img_identifiers": np.array([f"demo_{i:06d}.png" for i in range(len(dates))], object),
        **{rank: observations.taxa[:, k] for k, rank in enumerate(RANKS)},
        **encode(observations),
        "raw_lat": np.where(where, latitude, np.nan).astype(np.float32),
        "raw_lon": np.where(where, longitude, np.nan).astype(np.float32),
        "raw_elevation": np.where(high, observations.elevation, 0.0).astype(np.float32),
        "raw_date_observed": np.array(dates, object),
        "in_region": (observations.longitude < -60.0).astype(np.uint8),
        "observer_id": observations.observer,
    }


def _write_labels(path: Path, columns: dict[str, NDArray[Any]], parameters: dict[str, Any]) -> None:
    attributes: dict[str, dict[str, Any]] = {
        "temporal": sinusoidal_attributes(["month"]),
        "spatial": SPATIAL_ATTRIBUTES,
        "elevation_broadrange_2": elevation_attributes(BROADRANGE_2),
    }
    with write_hdf5(path) as file:
        for name, column in columns.items():
            dtype = h5py.string_dtype() if column.dtype == object else column.dtype
            file.create_dataset(name, data=column, dtype=dtype).attrs.update(attributes.get(name, {}))
        for rank, taxa in taxon_names().items():
            write_taxon_names(file, rank, list(taxa), *zip(*taxa.values(), strict=True))
        group = file.create_group("metadata")
        group.attrs["config_json"] = json_text(parameters)
        group.create_group("notes").attrs["description"] = "Generated demo data; species and places are invented"
        group.create_group("ibridaDB").attrs["release"] = f"demo-{VERSION}"
        group.create_group("image_processing").attrs.update({"size": parameters["image_size"], "color": "RGB"})


def _draw_images(
    observations: Observations, seed: int, size: int, progress: Callable[[int, int], None] | None
) -> NDArray[np.uint8]:
    rows = len(observations.species)
    images = np.empty((rows, size, size, 3), np.uint8)
    drawing = [(seed, size, start, observations.species[start : start + CHUNK]) for start in range(0, rows, CHUNK)]
    with contextlib.ExitStack() as stack:
        drawn: Iterable[NDArray[np.uint8]] = map(_draw_rows, drawing)
        if (processes := min(os.cpu_count() or 1, len(drawing) // 4)) > 1:  # a process takes half a second to start
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(processes, context)
            stack.callback(pool.shutdown, cancel_futures=True)
            with interrupts_held():
                drawn = pool.map(_draw_rows, drawing)
        for (_, _, start, _), pictures in zip(drawing, drawn, strict=True):
            images[start : start + CHUNK] = pictures
            if progress is not None:
                progress(start + len(pictures), rows)
    return images


def _draw_rows(drawing: tuple[int, int, int, NDArray[Any]]) -> NDArray[np.uint8]:
    """Pictures of some rows: seed, side, the first row, and the species of each."""
    cv2.setNumThreads(1)  # a process for each core is enough
    seed, size, start, species = drawing
    looks = [SPECIES[each].look for each in species]
    return np.stack([draw(np.random.default_rng([seed, 1, start + i]), look, size) for i, look in enumerate(looks)])


def write_demo(
    directory: str | os.PathLike[str],
    *,
    seed: int = 0,
    image_size: int = IMAGE_SIZE,
    rows: int = ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> DemoSummary:
    """Generates the demo set; unchanged files of an identical earlier call are kept.

    Args:
      directory: where `labels.h5` and `images.h5` go; made if needed.
      seed: of everything; the same seed, size and rows give the same bytes, with the same OpenCV and NumPy.
      image_size: side of the pictures in pixels, at least 32.
      rows: number of pictures, at least MIN_ROWS.
      progress: called with (rows drawn, rows) now and then; never when nothing needs drawing.

    Raises:
      ValueError: too few rows or too small a size.
      FileExistsError: the directory holds another demo set or other data.
    """
    if image_size < 32:
        raise ValueError(f"demo data: image_size={image_size} is too small to tell the patterns apart; use 32 or more")
    directory = Path(directory)
    parameters = {
        "generator": "linnaeus_jax demo",
        "version": VERSION,
        "seed": seed,
        "image_size": image_size,
        "rows": rows,
    }
    observations = simulate(seed, rows)
    columns = _label_columns(observations)
    complete = _is_complete(directory, parameters, columns)
    if not complete:
        directory.mkdir(parents=True, exist_ok=True)
        images = _draw_images(observations, seed, image_size, progress)
        parameters["images_sha256"] = hashlib.sha256(images.data).hexdigest()
        # the labels come last: their presence says that the set is complete
        with replaced_file(directory / "labels.h5", large=True) as labels:
            _write_labels(labels, columns, parameters)
            checksums = np.array([checksum(image) for image in images], np.uint32)
            with h5py.File(labels, "r+") as file:
                file[f"{LABEL_CHECKSUMS}/{PIXELS}"] = checksums
            with replaced_file(directory / "images.h5", large=True) as partial, h5py.File(partial, "w") as file:
                file.create_dataset("images", data=images)
                write_checksums(file, checksums)
                file.attrs[IDENTIFIERS_DIGEST] = read_identifiers_digest(str(labels))
    return _summary(directory, observations, parameters, not complete)


def read_parameters(directory: Path) -> dict[str, Any]:
    """With which `seed`, `image_size` and `rows` a demo set was made; FileNotFoundError where there is none."""
    with open_hdf5(directory / "labels.h5") as file:
        stored = _parameters(file)
    return {key: stored[key] for key in ("seed", "image_size", "rows")}


def _parameters(file: h5py.File) -> dict[str, Any]:
    """What a labels file says it was made with; {} where it says nothing that can be read."""
    with contextlib.suppress(ValueError, KeyError):
        found = json_attribute(file["metadata"], "config_json")
        return found if isinstance(found, dict) else {}
    return {}


def _is_complete(directory: Path, parameters: dict[str, Any], columns: dict[str, NDArray[Any]]) -> bool:
    """Whether `directory` holds exactly this set, undamaged; FileExistsError if it was made to hold another one."""
    labels, images = directory / "labels.h5", directory / "images.h5"
    if not labels.exists():
        return False
    with open_hdf5(labels) as file:
        stored = _parameters(file)
        different = {key: stored.get(key) for key, value in parameters.items() if stored.get(key) != value}
        if different:
            asked = {key: parameters[key] for key in different}
            raise FileExistsError(
                f"{labels} holds other data ({different}, wanted {asked}); delete it or choose another folder"
            )
        undamaged = all(name in file and _same(file[name], column) for name, column in columns.items())
    classes = {rank: np.array(sorted(taxa), np.int64) for rank, taxa in taxon_names().items()}
    held = read_taxon_names([str(labels)], classes)
    named = {
        rank: {int(taxon): tuple(names.values()) for taxon, names in taxa.items()}
        for rank, taxa in held.to_json().items()
    }
    if not (undamaged and images.exists() and named == taxon_names()):
        return False
    with open_hdf5(images) as file:
        return hashlib.sha256(file["images"][:].data).hexdigest() == stored["images_sha256"]


def _same(dataset: h5py.Dataset, column: NDArray[Any]) -> bool:
    if column.dtype == object:
        return np.array_equal(dataset.asstr()[:], column)
    return dataset.dtype == column.dtype and dataset[:].tobytes() == column.tobytes()
