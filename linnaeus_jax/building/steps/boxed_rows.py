"""Boxes of pictures as rows of a data set: one for each box, with the labels of its picture."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, replace

import polars as pl

from linnaeus_jax.files import json_text
from linnaeus_jax.reading.box_cuts import Box, Cut
from linnaeus_jax.reading.boxes import BoxFile
from linnaeus_jax.reading.schema import DETAIL, NO_BOX, OCCURRENCE, OWN_BOX, PICTURE, REASON, SourceRows

#: column of the rows of a source: what `box_of` reads, null where the whole picture is meant
BOX = "box"


def box_of(text: str | None) -> Box | None:
    """A cell of `BOX`."""
    if text is None:
        return None
    number, place, confidence, category, scale = json.loads(text)
    return Box(number, tuple(place), confidence, category, None if scale is None else tuple(scale))


def with_boxes(source: SourceRows, found: BoxFile, cut: Cut) -> SourceRows:
    """A source with a row for each box that is taken of its pictures; the file is among its files from then on.

    The rows of one picture are one occurrence, so that they fall to one side of every split. A picture without a box
    stays as it is, or is rejected; so is a row whose own box is not taken.

    Raises:
      UserError: names that fit several pictures, or categories that the file does not name.
    """
    taken, left = found.taken(cut)
    frame = source.frame.with_row_index("row")
    usable = frame.filter(pl.col(PICTURE).is_not_null() & pl.col(REASON).is_null())
    pictures = usable[PICTURE].to_list()
    root = os.path.abspath(source.root).replace(os.sep, "/").rstrip("/")
    names = found.match([(f"{root}/{picture}", picture) for picture in pictures])
    texts = {name: [json_text(astuple(box)) for box in boxes] for name, boxes in taken.items()}
    boxes = [texts[name] if name is not None and texts[name] else [None] for name in names]
    several = pl.Series("several", [picture if len(each) > 1 else None for picture, each in zip(pictures, boxes)])
    listed = usable.select("row", pl.Series(BOX, boxes, pl.List(pl.String)), several.cast(pl.String))
    frame = frame.join(listed, on="row", how="left", maintain_order="left").explode(BOX)
    if OWN_BOX in frame.columns:
        own_box, number = pl.col(OWN_BOX), pl.col(BOX).str.extract(r"^\[(\d+)").cast(pl.Int64)
        frame = frame.filter(own_box.is_null() | number.is_null() | (number == own_box))
        left_out = own_box.is_not_null() & pl.col(BOX).is_null() & pl.col(REASON).is_null()
        frame = _rejected(frame, left_out, found).drop(OWN_BOX)
    own = pl.col(OCCURRENCE) if OCCURRENCE in frame.columns else pl.lit(None, pl.String)
    frame = frame.with_columns(pl.coalesce(own, "several").alias(OCCURRENCE))
    whole = pl.col(BOX).is_null() & pl.col(PICTURE).is_not_null() & pl.col(REASON).is_null()
    without = int(frame.select(whole.sum()).item())
    if cut.without == "skip":
        frame = _rejected(frame, whole, found)
    lines = found.said(left, sorted(found.boxes.keys() - set(names)))
    boxed = frame.filter(pl.col(BOX).is_not_null())[PICTURE]
    done = "used whole" if cut.without == "whole" else "left out"
    lines.append(f"{boxed.len():,} boxes of {boxed.n_unique():,} pictures; {without:,} without a box are {done}")
    return replace(
        source,
        frame=frame.drop("row", "several"),
        files=(*source.files, found.path),
        warnings=(*source.warnings, *lines),
    )


def _rejected(frame: pl.DataFrame, rows: pl.Expr, found: BoxFile) -> pl.DataFrame:
    """Rejects rows for having no box."""
    said = ((REASON, NO_BOX), (DETAIL, found.path.name))
    return frame.with_columns(pl.when(rows).then(pl.lit(text)).otherwise(name).alias(name) for name, text in said)
