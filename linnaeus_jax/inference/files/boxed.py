"""Pictures with boxes: one row for each box, and of these the one that answers for the picture."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.files import replaced_file
from linnaeus_jax.inference.files.predicting import Job
from linnaeus_jax.reading.box_cuts import Cut, some_names
from linnaeus_jax.reading.boxes import BoxFile


def boxed(
    jobs: Sequence[Job], found: BoxFile, cut: Cut, *, part: bool = False
) -> tuple[list[Job], dict[str, str], list[str]]:
    """A job for each box that is taken, in the order of the pictures; what the file calls each picture that it names;
    and what is said of it, one line each.

    Args:
      part: whether `jobs` are a part of the pictures, so that pictures that are not given mean nothing.

    Raises:
      UserError: names that fit several pictures, or categories that the file does not name.
    """
    taken, left = found.taken(cut)
    places = [os.path.abspath(job.picture.path).replace(os.sep, "/") for job in jobs]
    names = found.match([(place, job.picture.relative) for place, job in zip(places, jobs)])
    result: list[Job] = []
    boxes = whole = 0
    for job, name in zip(jobs, names):
        mine = taken[name] if name is not None else []
        result += [replace(job, box=box, cut=cut) for box in mine]
        boxes += len(mine)
        whole += not mine
        if not mine and cut.without == "whole":
            result.append(job)
    lines = found.said(left, [] if part else sorted(found.boxes.keys() - set(names)))
    if unnamed := [job.picture.name for job, name in zip(jobs, names) if name is None]:
        lines.append(f"{len(unnamed):,} of {len(jobs):,} pictures are not in {found.path}: {some_names(unnamed)}")
    done = "answered whole" if cut.without == "whole" else "left out"
    with_boxes = len(jobs) - whole
    lines.append(f"{boxes:,} boxes of {with_boxes:,} pictures; {whole:,} pictures without a box are {done}")
    called = {job.picture.name: name for job, name in zip(jobs, names) if name is not None}
    return result, called, lines


def write_best(rows: Path, out: Path, finest: str, schema: Mapping[str, type[pl.DataType]] | None) -> int:
    """Writes the row of every picture that answers for it; returns how many.

    It is the one with the largest product of the detector's confidence, 1 where there is none, and the probability of
    the path's finest taxon; of equal ones the first.

    Args:
      rows: CSV, or without a schema lines of JSON.
      out: is written in the form of its suffix.
      finest: name of the finest rank.
    """
    if schema is None:
        with rows.open(encoding="utf-8") as lines:
            found = [_scored(json.loads(line)) for line in lines]
        kinds = {"file": pl.String, "confidence": pl.Float64, "probability": pl.Float64}
        scored = pl.DataFrame(found, kinds, orient="row")
    else:
        columns = ("file", "box_confidence", f"{finest}_probability")
        scored = pl.scan_csv(rows, schema=dict(schema)).select(columns).collect()
        scored.columns = ["file", "confidence", "probability"]
    score = pl.col("confidence").fill_null(1.0) * pl.col("probability").fill_null(0.0)
    best = scored.with_row_index("row").sort(score, descending=True, maintain_order=True)
    chosen = best.unique("file", keep="first", maintain_order=True)["row"].sort()
    with replaced_file(out) as temporary:
        if schema is None:
            wanted = set(chosen.to_list())
            with rows.open("rb") as lines, temporary.open("wb") as file:
                file.writelines(line for number, line in enumerate(lines) if number in wanted)
        else:
            texts = pl.col([name for name, kind in schema.items() if kind == pl.String]).fill_null("")
            parquet = out.suffix.lower() == ".parquet"
            kinds = dict(schema) if parquet else dict.fromkeys(schema, pl.String)  # numbers as they are written
            frame = pl.scan_csv(rows, schema=kinds).with_row_index("row").filter(pl.col("row").is_in(chosen.implode()))
            if parquet:
                frame.drop("row").with_columns(texts).collect().write_parquet(temporary)
            else:
                frame.drop("row").collect().write_csv(temporary)
    return len(chosen)


def _scored(row: Mapping[str, Any]) -> tuple[str, float | None, float]:
    """Picture, confidence of the box, and probability of the finest taxon."""
    return row["file"], (row["box"] or {}).get("confidence"), row["path"][-1]["probability"]


def digest_of(jobs: Sequence[Job], source: Path | None = None) -> str:
    """Which boxes are meant, and with `source` what else is in the file of boxes."""
    text = repr([(job.box, job.cut) for job in jobs]).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text + (source.read_bytes() if source else b"")).hexdigest()[:16]
