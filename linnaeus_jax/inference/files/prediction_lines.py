"""Predictions as lines of text: CSV for tables, JSON for programs.

What does not depend on the picture is made once per class, since a batch of `Prediction` objects takes as long as a
small model takes to compute them.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from linnaeus_jax.inference import reasons
from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.prior import said_of_prior
from linnaeus_jax.inference.results import Taxon, prior_json
from linnaeus_jax.reading.box_cuts import Box, box_object

UNKNOWN = "unknown"
#: columns that say what of a picture was seen; empty where all of it was
BOX_SCHEMA: dict[str, type[pl.DataType]] = {
    "box": pl.Int64,
    "box_confidence": pl.Float64,
    "box_category": pl.String,
    **dict.fromkeys(("box_x", "box_y", "box_width", "box_height"), pl.Float64),
}


class Lines:
    """What both forms know of a model.

    Attributes:
      tasks: coarsest rank first, as predictions have them.
      boxes: whether it is said what of a picture was seen.
      together: whether it is said of which occurrence it is, and how many pictures of it were answered together.
    """

    def __init__(self, taxonomy: Taxonomy, options: AnswerOptions, boxes: bool = False, together: bool = False) -> None:
        self.taxonomy, self.options, self.boxes, self.together = taxonomy, options, boxes, together
        self.tasks = taxonomy.tasks[::-1]
        self.ranks = [taxonomy.ranks[task] for task in self.tasks]

    def why(self, code: str, place: int, options: AnswerOptions | None = None) -> str:
        """The reason of an answer in words; `place` is its rank, their number for none."""
        rank, asked = [*self.ranks, ""][place], options or self.options
        return reasons.text(code, rank, asked.min_confidence, asked.coverage)

    def named(self, path: Sequence[tuple[int, float]], place: int) -> dict[str, str]:
        """Rank -> name of the answer and of the taxa above it, the coarsest first; those without a name by their id."""
        found = {}
        for task, rank, (index, _) in zip(self.tasks, self.ranks, path[: place + 1] if place < len(path) else ()):
            if index >= self.taxonomy.first:
                _, number, name, _ = self.taxonomy.described[task][index]
                found[rank] = name or str(number)
        return found

    def remarks(
        self, path: Sequence[tuple[int, float]], place: int, tops: Sequence[tuple[list[int], list[float]]], code: str
    ) -> str:
        """Why an answer ends above the finest rank, and the likeliest taxon there; "" where it does not."""
        if not code:
            return ""
        best = [(index, p) for index, p in zip(*tops[-1]) if index >= self.taxonomy.first][:1]
        taxa = self.taxonomy.described[self.tasks[-1]]
        likely = [f"likeliest {self.ranks[-1]}: {taxa[index][2] or taxa[index][1]} ({p:.2f})" for index, p in best]
        return "; ".join([self.why(code, place), *likely])

    def said_of_prior(self, answered: Answered, row: int) -> tuple[Taxon | None, str]:
        """See there."""
        return said_of_prior(self.taxonomy, answered.prior[row], int(answered.answer[row]), answered.best[row])

    def known(self, task: str) -> Iterator[tuple[str, int, str, str] | None]:
        """Rank, id and names of every class of a rank; None for null. The last one is for classes of number -1."""
        for index, described in enumerate(self.taxonomy.described[task]):
            yield described if index >= self.taxonomy.first else None
        yield None


class WholeLines(Lines):
    """A form of which a file is made at the end, of the lines of all pictures.

    Attributes:
      said: what a person should know, one line each.
    """

    header = ""
    said: tuple[str, ...] = ()

    def lines(self, part: Part[Answered]) -> list[str]:
        """What is kept of a part."""
        raise NotImplementedError

    def write(self, rows: Path, out: Path) -> None:
        """Writes the file.

        Args:
          rows: the lines of all parts.
        """
        raise NotImplementedError


class CsvLines(Lines):
    """Lines of CSV with the columns of `schema`; the first one of a file is `header`."""

    @cached_property
    def always_names(self) -> list[str]:
        """A name for each taxon that is always reported, with its rank where two of them share it."""
        taxa = [self.taxonomy.described[task][index] for task, index in self.options.always]
        names = [name or str(number) for _, number, name, _ in taxa]
        return [f"{name}_{taxon[0]}" if names.count(name) > 1 else name for name, taxon in zip(names, taxa)]

    @cached_property
    def schema(self) -> dict[str, type[pl.DataType]]:
        """Columns and their types. Two are JSON, `top`: {rank: [[id, name, probability], ...]}, and `set`: [[rank, id,
        name, probability], ...]."""
        schema: dict[str, type[pl.DataType]] = {"file": pl.String, **(BOX_SCHEMA if self.boxes else {})}
        schema |= {"occurrence": pl.String, "pictures": pl.Int64} if self.together else {}
        schema["answer_rank"] = pl.String
        for name in ("answer", *self.ranks):
            schema |= {f"{name}_taxon_id": pl.Int64, f"{name}_name": pl.String, f"{name}_probability": pl.Float64}
        schema |= {f"always_{name}": pl.Float64 for name in self.always_names}
        schema |= {"reason": pl.String, "reason_text": pl.String}
        if self.options.least_share is not None:
            schema |= {"set": pl.String, "set_size": pl.Int64}
        if self.options.prior:
            schema |= {"without_prior_rank": pl.String, "without_prior_name": pl.String}
            schema |= {"without_prior_probability": pl.Float64, "prior_text": pl.String}
        if self.options.novelty is not None:
            schema |= {"novelty": pl.String, "novelty_taxon_id": pl.Int64, "novelty_taxon": pl.String}
            schema |= {"known_score": pl.Float64, "outside_score": pl.Float64}
        return schema | {"inputs": pl.String, "metadata_from": pl.String, "notes": pl.String, "top": pl.String}

    @property
    def header(self) -> str:
        return csv_line(self.schema)

    @cached_property
    def _taxa(self) -> list[list[tuple[int, str]]]:
        """Per rank, id and name of every class."""
        return [
            [(taxon[1], taxon[2] or str(taxon[1])) if taxon else (0, UNKNOWN) for taxon in self.known(task)]
            for task in self.tasks
        ]

    def lines(self, part: Part[Answered]) -> list[str]:
        """One line for each picture that has an answer."""
        lines: list[str] = []
        names, novel = part.names, part.answered.novelties() if part.answered else []
        rows = part.answered.rows(self.tasks) if part.answered else ()
        for row, (path, place, tops, always, code, (members, size)) in enumerate(rows):
            cells = [(*taxa[i], f"{p:.6g}") for taxa, (i, p) in zip(self._taxa, path)]
            answer = (self.ranks[place], *cells[place]) if place < len(cells) else ("", 0, UNKNOWN, "")
            top = {
                rank: [[*taxa[i], float(f"{p:.6g}")] for i, p in zip(*top)]
                for rank, taxa, top in zip(self.ranks, self._taxa, tops)
            }
            fixed = [f"{p:.6g}" for p in always]
            fixed += [code, self.why(code, place)]
            if members is not None:
                taxa = [(self.ranks[~t], *self._taxa[~t][i], float(f"{p:.6g}")) for t, i, p in members]
                fixed += [json.dumps(taxa, ensure_ascii=False, separators=(",", ":")), str(size)]
            if self.options.prior and part.answered is not None:
                without, text = self.said_of_prior(part.answered, row)
                name = UNKNOWN if without is None else without.name or str(without.taxon_id)
                fixed += [without.rank, name, f"{without.probability:.6g}"] if without else ["", name, ""]
                fixed.append(text)
            if self.options.novelty is not None:
                kind, below, *scores = novel[row]
                taxon = self._taxa[~below[0]][below[1]] if below else ("", "")
                fixed += [kind, *map(str, taxon), *(f"{score:.6g}" if kind else "" for score in scores)]
            said = [" ".join(part.inputs[row]), part.metadata_from[row], "; ".join(part.notes[row])]
            listed = json.dumps(top, ensure_ascii=False, separators=(",", ":"))
            box = box_cells(part.boxes[row]) if self.boxes else []
            box += part.occurrences[row] if self.together else ()
            lines.append(csv_line([names[row], *box, *answer, *itertools.chain(*cells), *fixed, *said, listed]))
        return lines


class JsonLines(Lines):
    """Lines of JSON: `Prediction.to_json` with `file` and `metadata_from`."""

    header = ""

    @cached_property
    def _taxa(self) -> list[list[dict[str, Any]]]:
        """Per rank, every class without its probability."""
        keys = ("rank", "taxon_id", "name", "common_name")
        return [
            [dict(zip(keys, taxon or (rank, 0, "", ""))) for taxon in self.known(task)]
            for task, rank in zip(self.tasks, self.ranks)
        ]

    def lines(self, part: Part[Answered]) -> list[str]:
        """One line for each picture that has an answer."""
        if part.answered is None:
            return []
        objects = self.objects(part.answered, self.options, part.inputs, part.notes)
        boxes: list[dict[str, Any]] = [{} for _ in objects]
        if self.boxes:
            boxes = [{"box": box_object(box)} for box in part.boxes]
        for box, (occurrence, count) in zip(boxes, part.occurrences if self.together else ()):
            box |= {"occurrence": occurrence, "pictures": count}
        return [
            orjson.dumps(
                {"file": file, **box, "metadata_from": source, **said}, option=orjson.OPT_APPEND_NEWLINE
            ).decode()
            for file, box, source, said in zip(part.names, boxes, part.metadata_from, objects, strict=True)
        ]

    def objects(
        self,
        answered: Answered,
        options: AnswerOptions,
        inputs: Sequence[tuple[str, ...]],
        notes: Sequence[tuple[str, ...]],
    ) -> list[dict[str, Any]]:
        """`Prediction.to_json` of every picture."""
        fixed = [self._taxa[self.tasks.index(task)][index] for task, index in options.always]
        objects, novel = [], answered.novelties()
        for row, (path, place, tops, always, code, (members, size)) in enumerate(answered.rows(self.tasks)):
            taxa = [{**known[i], "probability": p} for known, (i, p) in zip(self._taxa, path)]
            said: dict[str, Any] = {
                "answer": taxa[place] if place < len(taxa) else None,
                "path": taxa,
                "top": {
                    rank: [{**known[i], "probability": p} for i, p in zip(*top)]
                    for rank, known, top in zip(self.ranks, self._taxa, tops)
                },
                "always": [{**taxon, "probability": p} for taxon, p in zip(fixed, always)],
            }
            said |= {"inputs": inputs[row], "notes": notes[row]}
            said |= {"reason": code, "reason_text": self.why(code, place, options)}
            if members is not None:
                said["set"] = [{**self._taxa[~t][i], "probability": p} for t, i, p in members]
                said["set_size"] = size
            if len(answered.prior):
                said |= prior_json(*self.said_of_prior(answered, row))
            if novel[row][0]:
                kind, below, known, outside = novel[row]
                taxon = {**self._taxa[~below[0]][below[1]], "probability": below[2]} if below else None
                said |= {"novelty": kind, "novelty_taxon": taxon, "known_score": known, "outside_score": outside}
            objects.append(said)
        return objects


def box_cells(box: Box | None) -> list[Any]:
    """The cells of `BOX_SCHEMA`."""
    if box is None:
        return [None] * len(BOX_SCHEMA)
    return [box.number, box.confidence, box.category, *box.place]


def csv_line(cells: Iterable[Any]) -> str:
    """A line of CSV (RFC 4180)."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def lines_for(
    suffix: str, taxonomy: Taxonomy, options: AnswerOptions, boxes: bool = False, together: bool = False
) -> CsvLines | JsonLines:
    """The form that a file is written in; Parquet is made of CSV."""
    return (JsonLines if suffix == ".jsonl" else CsvLines)(taxonomy, options, boxes, together)


def unreadable_lines(part: Part[Any]) -> Sequence[str]:
    """CSV of the pictures without an answer: file and reason."""
    return [csv_line((name, reason)) for name, reason in zip(part.pictures, part.reasons) if reason]
