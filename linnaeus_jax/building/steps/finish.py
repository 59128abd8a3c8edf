"""What follows when every picture was read: the used rows, their split, the lists of what was not used, the files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from linnaeus_jax.building.steps.boxed_rows import BOX
from linnaeus_jax.building.steps.labels_writer import LabelsContent, write_labels
from linnaeus_jax.building.steps.observations import Observations, read_observations
from linnaeus_jax.building.steps.options import FOLDER_PLACE, BuildOptions
from linnaeus_jax.building.steps.picture_lists import DUPLICATES
from linnaeus_jax.building.steps.pixels import Outcome
from linnaeus_jax.building.steps.plan import BuildPlan
from linnaeus_jax.building.steps.splits import TEST, TRAIN, VAL, SplitRows, assign_splits, units_of
from linnaeus_jax.building.steps.starter_config import starter_config
from linnaeus_jax.data.alignment import FILES, PIXELS, STORED
from linnaeus_jax.data.labels import SPLITS
from linnaeus_jax.data.taxon_names import describe_taxon
from linnaeus_jax.files import json_text, write_atomically, write_json
from linnaeus_jax.reading.dates import DAY_OR_MONTH
from linnaeus_jax.reading.schema import (
    DETAIL,
    DUPLICATE_PICTURE,
    LINE,
    OCCURRENCE,
    PICTURE,
    PLACE,
    REASON,
    SUBSET,
    label_column,
    written_column,
)
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.ranks import task_name

REJECTED = "rejected.csv"
#: tables of what was not used or changed, and their columns
TABLES: dict[str, tuple[str, ...]] = {
    REJECTED: ("line", "picture", "reason", "detail"),
    "blanked.csv": ("line", "picture", "component", "value", "reason"),
    "names.csv": ("task", "written", "name", "rows"),
    "synonyms.csv": ("task", "name", "accepted", "taxon_id", "rows"),
    "small_classes.csv": ("task", "taxon_id", "name", "rows"),
    "moved.csv": ("line", "picture", "occurrence", "given", "split"),
}
RIGHTS = {"license": "license", "rights_holder": "rights_holder", "doi": "source_doi"}


@dataclass(frozen=True)
class Finished:
    """A data set that is written, or about to be.

    Attributes:
      totals: of pictures and records: in, used, rejected by reason, blanked by component, and so on; see `build.json`.
      warnings: what a person should know, one line each.
      tables: name of a CSV file -> its rows.
      rows, split: the used rows of the source, int64 [N], and where they fall, uint8 [N].
      checksums: uint32 [N] each, see `data/alignment.py`.
    """

    totals: dict[str, Any]
    warnings: tuple[str, ...] = ()
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    split: NDArray[np.uint8] | None = None
    observations: Observations | None = None
    checksums: Mapping[str, NDArray[np.uint32]] = field(default_factory=dict)

    @classmethod
    def load(cls, out: Path) -> Finished:
        """The totals of a finished data set."""
        stored = json.loads((out / "build.json").read_text(encoding="utf-8"))
        return cls(stored["totals"], tuple(stored["warnings"]))

    def faults(self) -> dict[str, int]:
        """What a strict build refuses: description -> count, of what there is."""
        totals = self.totals
        counts = {f"rejected ({reason})": count for reason, count in totals["rejected"].items()}
        counts |= {f"blanked ({component})": count for component, count in totals["blanked"].items()}
        counts |= {"rows with a name that was changed": totals["names"], "rows with a synonym": totals["synonyms"]}
        counts |= {"classes below the minimum": totals["small_classes"]}
        counts |= {"pictures moved to the side of their occurrence or copy": totals["moved"]}
        return {what: count for what, count in counts.items() if count}

    def write_tables(self, directory: Path) -> list[str]:
        """Writes the CSV files; returns their names."""
        for name, table in self.tables.items():
            shown = table.with_columns(pl.col(pl.String).map_elements(cell, pl.String))
            write_atomically(directory / name, shown.write_csv())
        return list(self.tables)


def cell(text: str) -> str:
    """Text as it is, or with escapes where it holds what does not stand on one line or cannot be seen."""
    return text if text.isprintable() else printable(text, limit=len(text))


def finish_rows(plan: BuildPlan, outcomes: Sequence[Outcome]) -> Finished:
    """Decides what of the candidates is used, from what became of their pictures.

    Args:
      outcomes: of all candidates.
    """
    candidates, frame = plan.candidates, plan.frame
    used = np.array([not outcome.reason for outcome in outcomes], bool)
    rows = candidates[used]
    failed = np.flatnonzero(~used)
    details, relabelled = _details(plan, outcomes, failed)
    after = pl.DataFrame(
        {
            "row": candidates[failed],
            REASON: [outcomes[i].reason for i in failed.tolist()],
            DETAIL: details,
        },
        schema={"row": pl.Int64, REASON: pl.String, DETAIL: pl.String},
    )
    what = frame.select(pl.int_range(pl.len()).alias("row"), LINE, PICTURE, REASON, DETAIL)
    rejected = pl.concat(
        [
            what.filter(pl.col(REASON).is_not_null()),
            what.select("row", LINE, PICTURE).join(after, on="row", how="inner"),
        ]
    ).sort("row")
    observations = read_observations(frame[rows], plan.options)
    taxon = plan.taxa.taxon[rows]
    checksums = _checksums(plan, [outcome for outcome in outcomes if not outcome.reason])
    split = None
    if plan.options.split != "none":
        split = assign_splits(_split_rows(plan, rows, observations, checksums.get(FILES)), plan.options)
    tables = {
        REJECTED: rejected.select(TABLES[REJECTED]),
        "blanked.csv": observations.blanked.sort("line", maintain_order=True),
        "names.csv": _names(frame, plan.taxa.tasks),
        "synonyms.csv": _table("synonyms.csv", plan.taxa.synonyms),
        "small_classes.csv": _table("small_classes.csv", plan.taxa.small_classes),
        "moved.csv": _moved(frame[rows], split),
    }
    totals = {
        "in": frame.height,
        "used": len(rows),
        "rejected": dict(Counter(rejected[REASON].to_list()).most_common()),
        "blanked": dict(Counter(observations.blanked["component"].to_list()).most_common()),
        "names": int(tables["names.csv"]["rows"].sum()),
        "synonyms": sum(synonym.rows for synonym in plan.taxa.synonyms),
        "small_classes": len(plan.taxa.small_classes),
        "moved": tables["moved.csv"].height,
        "known": {name: int(flags.sum()) for name, flags in observations.known.items()},
        "ranks": _ranks(plan, taxon),
        "split": {} if split is None else {name: int((split == k).sum()) for k, name in enumerate(SPLITS)},
    }
    warnings = [*plan.source.warnings, *plan.taxa.warnings, *_late_small_classes(plan, taxon)]
    warnings += _incomplete(frame[rows], plan.options) + _no_validation(split)
    if relabelled:
        warnings.append(
            f"{len(relabelled)} pictures are copies of others with another label, and the first one counts: "
            f"{printable(relabelled[0])}"
        )
    unsure = observations.blanked.filter(pl.col("reason").str.contains(DAY_OR_MONTH, literal=True))
    if unsure.height:
        warnings.append(
            f"{unsure.height} dates such as {unsure['value'][0]} count as unknown, since either number may be the day; "
            "give --day-first or --no-day-first"
        )
    return Finished(totals, tuple(warnings), tables, rows, split, observations, checksums)


def _checksums(plan: BuildPlan, used: Sequence[Outcome]) -> dict[str, NDArray[np.uint32]]:
    """By kind."""
    found = {FILES: [outcome.file_crc for outcome in used]}
    if form := {"raw": PIXELS, "jpeg": STORED}.get(plan.options.images):
        found[form] = [outcome.crc for outcome in used]
    return {kind: np.array(values, np.uint32) for kind, values in found.items()}


def _details(plan: BuildPlan, outcomes: Sequence[Outcome], failed: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Why the candidates `failed` are not used, and the details of those that are copies with another label."""
    details, relabelled = [], []
    for i in failed.tolist():
        outcome = outcomes[i]
        if outcome.reason != DUPLICATE_PICTURE:
            details.append(outcome.detail)
            continue
        first = int(outcome.detail)
        labels = [plan.taxa.taxon[plan.candidates[place]].tolist() for place in (i, first)]
        details.append(f"the same bytes as {plan.pictures[first]}")
        if labels[0] != labels[1]:
            here, there = (_label(plan, label) for label in labels)
            details[-1] += f", but labelled {here}, not {there}"
            relabelled.append(f"{plan.pictures[i]} has {details[-1]}")
    return details, relabelled


def _label(plan: BuildPlan, taxa: Sequence[int]) -> str:
    """What people read for the labels of a row: the taxon of its finest rank."""
    known = [(task, taxon) for task, taxon in zip(plan.taxa.tasks, taxa) if taxon]
    task, taxon = known[0] if known else (plan.taxa.tasks[0], 0)
    return describe_taxon(taxon, plan.taxa.names[task].get(taxon, ("", ""))[0])


def _table(name: str, entries: Sequence[Any]) -> pl.DataFrame:
    columns = TABLES[name]
    text = {"task", "name", "accepted"}
    schema = {column: pl.String if column in text else pl.Int64 for column in columns}
    return pl.DataFrame([[getattr(entry, column) for column in columns] for entry in entries], schema, orient="row")


def _names(frame: pl.DataFrame, tasks: Sequence[str]) -> pl.DataFrame:
    """Names of the ranks in use that were changed when they were read; "" where the text names no taxon of the rank."""
    found = [pl.DataFrame(schema={name: pl.Int64 if name == "rows" else pl.String for name in TABLES["names.csv"]})]
    for task in tasks:
        level = task.removeprefix("taxa_")
        written, name = written_column(level), label_column("name", level)
        if written not in frame.columns:
            continue
        pairs = frame.select(pl.col(written).alias("written"), pl.col(name).cast(pl.String).fill_null("").alias("name"))
        counted = pairs.drop_nulls().group_by("written", "name").agg(pl.len().cast(pl.Int64).alias("rows"))
        found.append(counted.select(pl.lit(task).alias("task"), "written", "name", "rows").sort("name", "written"))
    return pl.concat(found)


def _moved(frame: pl.DataFrame, split: NDArray[np.uint8] | None) -> pl.DataFrame:
    """Pictures that fall to another split than the source gives, because one of their occurrence, or one that shows the
    same, does."""
    if split is None or "split" not in frame.columns:
        return pl.DataFrame(schema={name: pl.Int64 if name == LINE else pl.String for name in TABLES["moved.csv"]})
    occurrence = pl.col(OCCURRENCE) if OCCURRENCE in frame.columns else pl.lit(None, pl.String)
    table = frame.select(
        LINE,
        PICTURE,
        occurrence.alias("occurrence"),
        pl.col("split").alias("given"),
        pl.Series("split", _split_names(split)),
    )
    return table.filter(pl.col("given").is_in(SPLITS) & (pl.col("given") != pl.col("split")))


def _split_names(split: NDArray[np.uint8]) -> list[str]:
    return [SPLITS[k] for k in split.tolist()]


def _codes(frame: pl.DataFrame, column: str) -> NDArray[np.int64]:
    """int64 [N]: a number from 0 for each distinct text, in order of first occurrence; -1 for null."""
    if column not in frame.columns:
        return np.full(frame.height, -1, np.int64)
    distinct = frame.select(column).drop_nulls().unique(maintain_order=True).with_row_index("code")
    joined = frame.select(column).join(distinct, on=column, how="left", maintain_order="left")
    return joined["code"].cast(pl.Int64).fill_null(-1).to_numpy()


def _split_rows(
    plan: BuildPlan, rows: NDArray[np.int64], observations: Observations, files: NDArray[np.uint32] | None
) -> SplitRows:
    """What the split is decided by; `files`: checksums of the files, by which boxes of copies are kept together."""
    frame, raw = plan.frame[rows], observations.raw
    unknown = np.full(len(rows), np.nan)
    place = np.stack([raw.get("raw_lat", unknown), raw.get("raw_lon", unknown)], axis=1).astype(np.float64)
    given = np.full(len(rows), -1, np.int64)
    if "split" in frame.columns:
        names = {name: k for k, name in enumerate(SPLITS)}
        given = frame["split"].replace_strict(names, default=-1, return_dtype=pl.Int64).to_numpy()
    duplicates = _codes(frame, DUPLICATES)
    if plan.options.boxes is not None and files is not None:
        duplicates = units_of(duplicates, np.unique(files, return_inverse=True)[1])
    return SplitRows(
        plan.taxa.taxon[rows],
        _codes(frame, OCCURRENCE),
        _codes(frame, "observer"),
        place,
        _codes(frame, PLACE),
        observations.days,
        given,
        duplicates,
    )


def _ranks(plan: BuildPlan, taxon: NDArray[np.uint32]) -> dict[str, dict[str, Any]]:
    """Per task: classes, rows with a label, and rows of the largest and the smallest class."""
    ranks = {}
    for t, task in enumerate(plan.taxa.tasks):
        count = np.unique(taxon[taxon[:, t] != 0, t], return_counts=True)[1]
        ranks[task] = {
            "rank": task_name(task),
            "classes": len(count),
            "labelled": int(count.sum()),
            "largest": int(count.max(initial=0)),
            "smallest": int(count.min()) if len(count) else 0,
        }
    return ranks


def _incomplete(frame: pl.DataFrame, options: BuildOptions) -> list[str]:
    """A sentence for each thing of which the source gives one half only, or that the split leaves aside."""
    sentences = []
    place = [name for name in ("latitude", "longitude") if name in frame.columns]
    if len(place) == 1:
        sentences.append(f"the source has a column of {place[0]} alone, so that no place is known")
    if PLACE in frame.columns and options.split in ("random", "stratified"):
        sentences.append(
            f"pictures of each of {frame[PLACE].n_unique()} places may fall to both sides of the split; --split "
            f"{FOLDER_PLACE} keeps those of one place on one side"
        )
    if options.split == "given":
        known = frame["split"].is_in(SPLITS).sum() if "split" in frame.columns else 0
        if known < frame.height:
            sentences.append(f"{frame.height - known} rows have no given side of the split and are for training")
    return sentences


def _no_validation(split: NDArray[np.uint8] | None) -> list[str]:
    """A sentence where no row is for validation."""
    if split is None or (split == VAL).any():
        return []
    if (split == TEST).any():
        return [
            "no row is for validation: every run draws some of the training rows (data.h5.train_val_split_ratio); the "
            "test rows stay aside"
        ]
    return ["no row is for validation, and runs train without one; --split stratified draws some"]


def _late_small_classes(plan: BuildPlan, taxon: NDArray[np.uint32]) -> list[str]:
    """A sentence for each rank at which pictures that could not be used made classes smaller than the minimum."""
    sentences = []
    for t, task in enumerate(plan.taxa.tasks):
        ids, count = np.unique(taxon[:, t], return_counts=True)
        small = int(((count < plan.options.min_per_class) & (ids != 0)).sum())
        if small:
            sentences.append(
                f"{small} classes of {task_name(task)} fell below {plan.options.min_per_class} rows because some of "
                "their pictures could not be used"
            )
    return sentences


def write_outputs(plan: BuildPlan, finished: Finished, work: Path, out: Path) -> list[str]:
    """Writes all files but the pictures into `work`; returns their names, the one that says "complete" last."""
    names = finished.write_tables(work)
    content = labels_content(plan, finished)
    write_labels(work / "labels.h5", content)
    options = plan.options
    sources = {
        component: (name, column.values.shape[1])
        for name, column in content.encoded.items()
        for component in ("SPATIAL", "TEMPORAL", "ELEVATION")
        if name.startswith(component.lower())
    }
    split = "random" if finished.split is None else "file" if (finished.split != TRAIN).any() else "train"
    text = starter_config(
        str(out),
        out.resolve().name,
        plan.taxa.tasks,
        sources,
        preprocessing=options.preprocessing,
        picture_folder=str(plan.source.root.resolve()) if options.images == "folder" else "",
        split=split,
        rows=training_rows(finished),
        budget=plan.budget,
    )
    write_atomically(work / "config.py", text)
    files = ["images.h5"] if options.images != "folder" else []
    files += [*names, "config.py", "labels.h5"]
    summary = {
        "digest": plan.digest,
        "totals": finished.totals,
        "warnings": list(finished.warnings),
        "files": files,
        **plan.provenance,
    }
    write_json(work / "build.json", summary)
    return [*names, "config.py", "labels.h5", "build.json"]


def training_rows(finished: Finished) -> int:
    """How many rows are for training, as far as the build decides it."""
    return int(finished.totals["split"].get(SPLITS[TRAIN], finished.totals["used"]))


def labels_content(plan: BuildPlan, finished: Finished) -> LabelsContent:
    """What stands in labels.h5."""
    assert finished.observations is not None
    frame, taxon = plan.frame[finished.rows], plan.taxa.taxon[finished.rows]
    names = {
        task: {taxon_id: plan.taxa.names[task][taxon_id] for taxon_id in np.unique(taxon[:, t]).tolist() if taxon_id}
        for t, task in enumerate(plan.taxa.tasks)
    }
    texts = {stored: frame[column] for column, stored in RIGHTS.items() if column in frame.columns}
    if OCCURRENCE in frame.columns and frame[OCCURRENCE].null_count() < frame.height:
        texts["occurrence_id"] = frame[OCCURRENCE]
    texts |= {name: frame[name] for name in frame.columns if name == PLACE or name.startswith(SUBSET)}
    arrays = dict(finished.observations.raw)
    if "observer" in frame.columns:
        arrays["observer_id"] = _observer_ids(frame["observer"])
    images: dict[str, Any] = {"form": plan.options.images, "color": "RGB"}
    if plan.options.images in ("raw", "jpeg"):
        images["size"] = plan.options.size
    if plan.options.images == "raw":
        options = plan.options.to_json()
        images |= {key: options[key] for key in ("resize_mode", "interpolation", "crop_fraction") if key in options}
    identifiers = frame[PICTURE]
    if plan.options.boxes is not None:
        images["boxes"] = json_text(plan.options.boxes.to_json())
        texts["box"] = frame[BOX]
        number = frame[BOX].str.extract(r"^\[(\d+)")
        identifiers = frame.select(pl.concat_str(PICTURE, "#" + number, ignore_nulls=True)).to_series()
    return LabelsContent(
        identifiers,
        {task: taxon[:, t] for t, task in enumerate(plan.taxa.tasks)},
        names,
        finished.observations.encoded,
        texts,
        arrays,
        finished.split,
        plan.provenance | {"totals": finished.totals},
        images,
        finished.checksums,
        "Built from the pictures and records of a user; see config_json for the sources and options",
    )


def _observer_ids(observers: pl.Series) -> NDArray[np.int32]:
    """int32 [N]: whole numbers as they are, names numbered from 1 in alphabetical order; 0 = unknown."""
    numbers = observers.cast(pl.Int32, strict=False)
    if numbers.null_count() == observers.null_count():
        return numbers.fill_null(0).to_numpy()
    names = observers.drop_nulls().unique().sort()
    places = dict(zip(names.to_list(), range(1, len(names) + 1), strict=True))
    return observers.replace_strict(places, default=0, return_dtype=pl.Int32).fill_null(0).to_numpy()
