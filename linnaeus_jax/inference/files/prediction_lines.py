"""Predictions as lines of text: CSV for tables, JSON for programs.

What does not depend on the picture is made once per class, since a batch of `Prediction` objects takes as long as a
small model takes to compute them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import orjson
import polars as pl

from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.files.predicting import Part

UNKNOWN = "unknown"


class _Lines:
    """What both forms know of a model.

    Attributes:
      tasks: coarsest rank first, as predictions have them.
    """

    def __init__(self, taxonomy: Taxonomy, options: AnswerOptions) -> None:
        self.taxonomy, self.options = taxonomy, options
        self.tasks = taxonomy.tasks[::-1]
        self.ranks = [taxonomy.ranks[task] for task in self.tasks]

    def known(self, task: str) -> Iterator[tuple[str, int, str, str] | None]:
        """Rank, id and names of every class of a rank; None for null. The last one is for classes of number -1."""
        for index, described in enumerate(self.taxonomy.described[task]):
            yield described if index >= self.taxonomy.first else None
        yield None


class CsvLines(_Lines):
    """Lines of CSV with the columns of `schema`; the first one of a file is `header`."""

    @cached_property
    def always_names(self) -> list[str]:
        """A name for each taxon that is always reported, with its rank where two of them share it."""
        taxa = [self.taxonomy.described[task][index] for task, index in self.options.always]
        names = [name or str(number) for _, number, name, _ in taxa]
        return [f"{name}_{taxon[0]}" if names.count(name) > 1 else name for name, taxon in zip(names, taxa)]

    @cached_property
    def schema(self) -> dict[str, type[pl.DataType]]:
        """Columns and their types. `top` is JSON: {rank: [[id, name, probability], ...]}."""
        schema: dict[str, type[pl.DataType]] = {"file": pl.String, "answer_rank": pl.String}
        for name in ("answer", *self.ranks):
            schema |= {f"{name}_taxon_id": pl.Int64, f"{name}_name": pl.String, f"{name}_probability": pl.Float64}
        schema |= {f"always_{name}": pl.Float64 for name in self.always_names}
        return schema | {"inputs": pl.String, "metadata_from": pl.String, "notes": pl.String, "top": pl.String}

    @property
    def header(self) -> str:
        return ",".join(map(quoted, self.schema)) + "\n"

    @cached_property
    def _cells(self) -> list[list[str]]:
        """Per rank, id and name of every class."""
        return [
            [
                f"{taxon[1]},{quoted(taxon[2] or str(taxon[1]))}," if taxon else f"0,{UNKNOWN},"
                for taxon in self.known(t)
            ]
            for t in self.tasks
        ]

    @cached_property
    def _listed(self) -> list[list[str]]:
        """Per rank, the beginning of every class in `top`."""

        def begun(taxon: tuple[str, int, str, str] | None) -> str:
            number, name = (taxon[1], taxon[2] or str(taxon[1])) if taxon else (0, UNKNOWN)
            return f"[{number},{json.dumps(name, ensure_ascii=False)},".replace('"', '""')

        return [[begun(taxon) for taxon in self.known(task)] for task in self.tasks]

    def lines(self, part: Part) -> list[str]:
        """One line for each picture that has an answer."""
        heads = [f'""{rank}"":[' for rank in self.ranks]
        lines: list[str] = []
        if part.answered is None:
            return lines
        names_read = part.names
        for row, (path, place, tops, always) in enumerate(part.answered.rows(self.tasks)):
            cells = [f"{names[i]}{p:.6g}," for names, (i, p) in zip(self._cells, path)]
            answer = f"{self.ranks[place]},{cells[place]}" if place < len(cells) else f",0,{UNKNOWN},,"
            listed = [f"{head}{_json_list(begun, top)}]" for head, begun, top in zip(heads, self._listed, tops)]
            fixed = "".join([f"{p:.6g}," for p in always])
            notes = quoted("; ".join(part.notes[row])) if part.notes[row] else ""
            lines.append(
                f"{quoted(names_read[row])},{answer}{''.join(cells)}{fixed}{quoted(' '.join(part.inputs[row]))},"
                f'{part.metadata_from[row]},{notes},"{{{",".join(listed)}}}"\n'
            )
        return lines


def _json_list(begun: Sequence[str], top: tuple[list[int], list[float]]) -> str:
    """The most probable classes of a rank: the beginning of each, and its probability. One formatting for all of them
    takes half the time of one each."""
    classes, probabilities = top
    texts: list[Any] = [None] * (2 * len(classes))
    texts[::2], texts[1::2] = [begun[i] for i in classes], probabilities
    return ",".join(["%s%.6g]"] * len(classes)) % tuple(texts)


class JsonLines(_Lines):
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

    def lines(self, part: Part) -> list[str]:
        """One line for each picture that has an answer."""
        if part.answered is None:
            return []
        objects = self.objects(part.answered, self.options, part.inputs, part.notes)
        return [
            orjson.dumps({"file": file, "metadata_from": source, **said}, option=orjson.OPT_APPEND_NEWLINE).decode()
            for file, source, said in zip(part.names, part.metadata_from, objects, strict=True)
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
        objects = []
        for row, (path, place, tops, always) in enumerate(answered.rows(self.tasks)):
            taxa = [{**known[i], "probability": p} for known, (i, p) in zip(self._taxa, path)]
            said = {
                "answer": taxa[place] if place < len(taxa) else None,
                "path": taxa,
                "top": {
                    rank: [{**known[i], "probability": p} for i, p in zip(*top)]
                    for rank, known, top in zip(self.ranks, self._taxa, tops)
                },
                "always": [{**taxon, "probability": p} for taxon, p in zip(fixed, always)],
            }
            objects.append({**said, "inputs": inputs[row], "notes": notes[row]})
        return objects


def quoted(text: str) -> str:
    """A cell of CSV (RFC 4180)."""
    if '"' in text or "," in text or "\n" in text or "\r" in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def lines_for(suffix: str, taxonomy: Taxonomy, options: AnswerOptions) -> CsvLines | JsonLines:
    """The form that a file is written in; Parquet is made of CSV."""
    return JsonLines(taxonomy, options) if suffix == ".jsonl" else CsvLines(taxonomy, options)


def unreadable_lines(part: Part) -> Sequence[str]:
    """CSV of the pictures without an answer: file and reason."""
    return [f"{quoted(name)},{quoted(reason)}\n" for name, reason in zip(part.pictures, part.reasons) if reason]
