"""What is decided about a data set before its first picture is read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import linnaeus_jax
from linnaeus_jax.building.steps.boxed_rows import BOX, box_of
from linnaeus_jax.building.steps.options import FOLDER_PLACE, SPLIT_NEEDS, BuildOptions
from linnaeus_jax.building.steps.starter_config import Budget
from linnaeus_jax.building.steps.taxa import Taxa, chosen_levels, label_rows
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import sha256_of
from linnaeus_jax.reading.box_cuts import Box
from linnaeus_jax.reading.schema import DETAIL, LINE, NO_SUCH_PICTURE, PICTURE, REASON, UNCLAIMED, SourceRows
from linnaeus_jax.reading.text import printable

# ---- Pictures that are not where records name them: at which level of the folders they lie


def looked_for(frame: pl.DataFrame, root: Path) -> str:
    """One picture that was looked for, and where one of that name lies; "" where none was looked for in vain.

    Args:
      frame: rows with their reasons.
      root: folder that pictures are relative to.
    """
    missing = frame.filter(pl.col(REASON) == NO_SUCH_PICTURE)
    named = [text for row in missing.select(PICTURE, DETAIL).rows() for text in row[:1] + row[1:] if text]
    if not named:
        return ""
    first = named[0]
    text = f"; looked for {printable(str(root / first))!r}"
    there = frame.filter(pl.col(REASON) == UNCLAIMED)[PICTURE].drop_nulls().to_list()
    if not there:
        return f"{text}, and {printable(str(root))} holds no other pictures: give their folder with --pictures"
    by_name = {PurePosixPath(path).name: PurePosixPath(path) for path in reversed(there)}
    for each in named:
        wanted = PurePosixPath(each.replace("\\", "/"))
        found = by_name.get(wanted.name)
        if found is not None and len(alike := [path for path in there if PurePosixPath(path).name == wanted.name]) > 1:
            several = ", ".join(printable(str(PurePosixPath(path).parent)) for path in alike[:3])
            return (
                f"{text}; {printable(wanted.name)} is in {len(alike)} folders ({several}{' ...' * (len(alike) > 3)}): "
                "the records must say which, by the path or by a column that --map folder=COLUMN names"
            )
        if found is not None:
            return f"{text}; {printable(str(root / found))!r} is there: give {_option(root, wanted, found)}"
    return f"{text}; there are other names, such as {printable(str(root / there[0]))!r}: give another --pictures"


def _option(root: Path, wanted: PurePosixPath, found: PurePosixPath) -> str:
    """The folder from which the wanted path would be the found file."""
    shared = 0
    for a, b in zip(reversed(wanted.parts), reversed(found.parts)):
        if a != b:
            break
        shared += 1
    if shared == len(wanted.parts):
        folder = root.joinpath(*found.parts[: len(found.parts) - shared])
        return f"--pictures {printable(str(folder))}"
    above = wanted.parts[: len(wanted.parts) - shared]
    if root.parts[-len(above) :] == above and shared == len(found.parts):
        return f"--pictures {printable(str(root.parents[len(above) - 1]))}"
    return f"a folder in which it is {printable(str(wanted))!r}, or correct the paths of the records"


# ----------------------------------------------------------------------------------------------------------------------


#: libraries that the bytes of a data set depend on
LIBRARIES = ("opencv-python-headless", "simplejpeg", "pillow", "h5py", "polars", "numpy")


@dataclass(frozen=True)
class BuildPlan:
    """All that is decided before the first picture is read."""

    source: SourceRows
    options: BuildOptions
    taxa: Taxa
    frame: pl.DataFrame  # of the source, with the reasons of both
    synonyms_file: Path | None = None
    budget: Budget | None = None  # of the training that config.py is chosen for; no byte of the data follows from it

    @cached_property
    def candidates(self) -> NDArray[np.int64]:
        """int64 [M]: rows whose picture is read."""
        return np.flatnonzero(self.frame[REASON].is_null().to_numpy())

    @cached_property
    def pictures(self) -> list[str]:
        """Paths of the candidates below `source.root`."""
        return self.frame[PICTURE].gather(self.candidates).to_list()

    @property
    def paths(self) -> list[str]:
        root = str(self.source.root)
        return [os.path.join(root, picture) for picture in self.pictures]

    @cached_property
    def boxes(self) -> list[Box | None]:
        """What of each candidate's picture is used; None: all of it."""
        if BOX not in self.frame.columns:
            return [None] * len(self.candidates)
        return [box_of(text) for text in self.frame[BOX].gather(self.candidates).to_list()]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the bytes of the data set follow from."""
        files = [*self.source.files, *([self.synonyms_file] if self.synonyms_file else [])]
        return {
            "generator": f"linnaeus_jax {linnaeus_jax.__version__} build_dataset",
            "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
            "options": self.options.to_json() | {"ranks": list(self.taxa.tasks)},
            "sources": [{"file": file.name, "sha256": sha256_of_source(file)} for file in files],
            "columns": dict(self.source.links),
            "rows_sha256": sha256_of_rows(self.frame),
        }

    @cached_property
    def digest(self) -> str:
        """A hash of the provenance."""
        return hashlib.sha256(json.dumps(self.provenance, sort_keys=True).encode()).hexdigest()


def sha256_of_rows(frame: pl.DataFrame) -> str:
    """The SHA-256 of all values of a table, the same on every machine."""
    digest = hashlib.sha256()
    for part in frame.iter_slices(1 << 16):
        digest.update(part.select(pl.all().cast(pl.String)).write_csv(null_value="\0").encode())
    return digest.hexdigest()


def sha256_of_source(path: Path) -> str:
    """The SHA-256 of a file, or of the names and sizes of the files of a folder."""
    if not path.is_dir():
        return sha256_of(path)
    listing = [f"{file.relative_to(path)} {file.stat().st_size}" for file in sorted(path.iterdir()) if file.is_file()]
    return hashlib.sha256("\n".join(listing).encode("utf-8", "replace")).hexdigest()


class NothingUsable(ValueError):
    """No row can be used.

    Attributes:
      rejected: line, picture, reason and detail of every row.
    """

    def __init__(self, rejected: pl.DataFrame, advice: str = "") -> None:
        reasons = rejected[REASON].value_counts(sort=True).sort("count", REASON, descending=[True, False]).rows()
        counts = ", ".join(f"{reason} ({count})" for reason, count in reasons)
        line, picture, reason, detail = rejected.filter(pl.col(REASON) == reasons[0][0]).row(0)
        parts = (f"line {line}" if line else "", picture and printable(picture), reason, detail and printable(detail))
        super().__init__(f"no picture can be used: {counts}. The first: {', '.join(filter(None, parts))}{advice}")
        self.rejected = rejected


def plan_build(
    source: SourceRows, options: BuildOptions, synonyms: Mapping[str, str], synonyms_file: Path | None = None
) -> BuildPlan:
    """Decides the label of every row, and which pictures are read.

    Raises:
      ValueError: a rank, or what the split is made by, that the source lacks.
      NothingUsable: no row has a label and a picture.
    """
    needed = SPLIT_NEEDS.get(options.split, ())
    if needed and not set(needed) & set(source.frame.columns):
        how = (
            "name a folder with --folder-ranks place,species, or a column with --split column:NAME"
            if options.split == FOLDER_PLACE
            else "choose another"
        )
        raise UserError(f"--split {options.split}: the source has no {' or '.join(needed)} to divide by; {how}")
    levels = chosen_levels(source.levels, options.ranks, source.named)
    if source.links.get("elevation") == "raw_elevation":  # of a labels file, where 0 stands for unknown
        is_zero = pl.col("elevation").cast(pl.Float64, strict=False) == 0
        known = pl.when(is_zero.fill_null(False)).then(None).otherwise(pl.col("elevation"))
        source = replace(source, frame=source.frame.with_columns(known.alias("elevation")))
    taxa = label_rows(source.frame, levels, synonyms, options.min_per_class)
    decided = {REASON: taxa.reason, DETAIL: taxa.detail}
    frame = source.frame.with_columns(
        pl.when(pl.col(REASON).is_null()).then(pl.Series(name, values.tolist(), pl.String)).otherwise(name).alias(name)
        for name, values in decided.items()
    )
    plan = BuildPlan(source, options, taxa, frame, synonyms_file)
    if not len(plan.candidates):
        raise NothingUsable(frame.select(LINE, PICTURE, REASON, DETAIL), looked_for(frame, source.root))
    return plan
