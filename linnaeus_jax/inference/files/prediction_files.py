"""Predictions of many pictures as a file, see `unfinished`. While the work lasts, there are

rows             their lines, in order; with occurrences those of these
pictures         with occurrences, the lines of their pictures
unreadable.csv   pictures without an answer: they could not be read, or the model's outputs are not finite
gallery.jsonl    what the page of pictures needs

At the end OUT is made of the lines, with `OUT.unreadable.csv` where pictures have no answer and `OUT.about.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import RunDirectory, replaced_file, sha256_of
from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.files import BUNDLE_JSON
from linnaeus_jax.inference.files.boxed import write_best
from linnaeus_jax.inference.files.camtrap_dp import CamtrapLines
from linnaeus_jax.inference.files.darwin_core import DarwinCoreLines
from linnaeus_jax.inference.files.megadetector import BoxSource, MegaDetectorLines
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.inference.files.prediction_lines import CsvLines, JsonLines, WholeLines, lines_for, unreadable_lines
from linnaeus_jax.inference.files.unfinished import (
    PICTURES,
    UNREADABLE,
    UNREADABLE_HEADER,
    Unfinished,
    opened,
    sidecar_path,
)
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.novelty import KINDS
from linnaeus_jax.inference.reasons import CODES
from linnaeus_jax.reading.camtrap_dp import read_package

FORMATS = (".csv", ".jsonl", ".parquet")
CAMTRAP, DARWIN_CORE = ".camtrap.zip", ".dwca.zip"
#: also of answers for boxes, see `megadetector`; see `camtrap_dp` and `darwin_core`
ALL_FORMATS = (*FORMATS, ".json", CAMTRAP, DARWIN_CORE)
_ROWS, _GALLERY = "rows", "gallery.jsonl"


def model_digest(bundle: Bundle) -> str:
    """What tells one model from another: SHA-256 over the hashes of a bundle, or over run, checkpoint and weights."""
    files = {BUNDLE_JSON: bundle.source / BUNDLE_JSON}
    if not files[BUNDLE_JSON].is_file():
        run = RunDirectory(bundle.source)
        known = [run.config_json, run.run_id_file] if run.config_json.is_file() else sorted(bundle.source.iterdir())
        files = {path.name: path for path in known if path.is_file()}
    parts = {name: sha256_of(path) for name, path in files.items()}
    facts = {name: bundle.facts.get(name) for name in ("step", "weights")}
    return hashlib.sha256(json.dumps([parts, facts], sort_keys=True).encode()).hexdigest()


def check_format(out: Path, formats: Sequence[str] = FORMATS, what: str = "predictions") -> str:
    """The suffix of a file of predictions, or of something else. Raises UserError for one that is not written."""
    suffix = next((each for each in formats if out.name.lower().endswith(each)), None)
    if suffix is None:
        raise UserError(f"{out} must end in one of {', '.join(formats)}, the forms that {what} are written in")
    return suffix


Form = CsvLines | JsonLines | WholeLines


def form_of(
    out: Path | None,
    bundle: Bundle,
    options: AnswerOptions,
    title: str,
    boxes: BoxSource | None,
    source: Path | None,
    pictures: Sequence[PictureFile],
    together: bool = False,
) -> Form:
    """What a file of predictions is made of, by its suffix; None is made of CSV, as Parquet is.

    Args:
      title: of the model.
      boxes: where they belong, if answers are for boxes.
      source: what place and date come from, the package of a Camtrap DP.
      pictures: all that are predicted.
      together: answers are for occurrences, too.

    Raises:
      UserError: a package that cannot be written.
    """
    suffix = ".csv" if out is None else check_format(out, ALL_FORMATS)
    if suffix == ".json" and boxes is not None:
        return MegaDetectorLines(replace(boxes, title=title), bundle.taxonomy, options)
    if suffix == CAMTRAP:
        if source is None:
            raise UserError(f"{out} is a Camtrap DP; give the package that the pictures are of: --camtrap-dp PACKAGE")
        return CamtrapLines(source, pictures, bundle.taxonomy, options, (title, model_digest(bundle)))
    if suffix == DARWIN_CORE:
        return DarwinCoreLines(bundle.taxonomy, options, (title, model_digest(bundle)))
    return lines_for(suffix, bundle.taxonomy, options, boxes is not None, together)


def digest_of_prior(model: Model) -> str:
    """What tells one prior beside a model from another."""
    bound = model.answers.prior
    assert bound is not None
    arrays = (bound.prior.parent, bound.prior.taxon, bound.prior.cell, bound.prior.month, bound.prior.count)
    text = repr((bound.prior.names, bound.prior.degrees, bound.prior.alpha, bound.prior.weight, bound.cut))
    return hashlib.sha256(text.encode() + b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def digest_of_package(out: Path | None, source: Path | None) -> dict[str, str]:
    """What a Camtrap DP that is written depends on beside its pictures; nothing of other files."""
    if out is None or source is None or not out.name.lower().endswith(CAMTRAP):
        return {}
    return {"package": read_package(source).digest[:16]}


class Predictions(Unfinished):
    """Predictions that are not yet a file."""

    def __init__(
        self,
        folder: Path,
        lines: Form,
        files: Mapping[str, IO[bytes]],
        log: IO[bytes],
        pictures: Sequence[PictureFile] = (),
    ) -> None:
        headers = {_ROWS: lines.header.encode(), UNREADABLE: UNREADABLE_HEADER}
        headers |= {PICTURES: lines.header.encode()} if PICTURES in files else {}
        super().__init__(folder, files, headers, log, pictures)
        self._lines = lines

    def add(  # type: ignore[override]  # what it holds is known
        self, part: Part[Answered], gallery: str = "", occurrences: Part[Answered] | None = None
    ) -> None:
        """Appends a part.

        Args:
          gallery: lines for the page of pictures.
          occurrences: those that end with it.
        """
        if part.answered is not None:
            self.summary.answers.update(self._counts(part.answered))
            codes = np.bincount(part.answered.reason, minlength=len(CODES)).tolist()
            self.summary.reasons.update({code: count for code, count in zip(CODES, codes) if code and count})
            self.summary.set_size += int(part.answered.set_size.sum())
            self.summary.novelty.update(KINDS[kind] for kind in part.answered.novelty["kind"].tolist())
        texts = ["".join(self._lines.lines(part)), "".join(unreadable_lines(part)), gallery]
        if occurrences is not None:
            texts = ["".join(self._lines.lines(occurrences)), *texts[1:], texts[0]]
            self.summary.occurrences.update(self._counts(occurrences.answered) if occurrences.answered else {})
        super().add(part, {name: text.encode() for name, text in zip(self._files, texts, strict=True)})

    def _counts(self, answered: Answered) -> dict[str, int]:
        """Rank -> answers there."""
        ranks = ["", *(self._lines.taxonomy.ranks[task] for task in self._lines.taxonomy.tasks)]
        counts = np.bincount(answered.answer + 1, minlength=len(ranks)).tolist()
        return {name: count for name, count in zip(ranks, counts) if count}

    def gallery(self) -> Iterator[dict[str, Any]]:
        """What was kept for the page of pictures."""
        with (self.folder / _GALLERY).open("rb") as file:
            yield from map(json.loads, file)

    def finish(self, out: Path, about: Mapping[str, Any]) -> None:
        """Makes `out` and what belongs to it; `remove` takes the rest away."""
        with replaced_file(out) as temporary:
            self._write(_ROWS, temporary, out)
            if self._lines.together:
                with replaced_file(best_path(out)) as pictures:
                    self._write(PICTURES, pictures, out)
            elif self._lines.boxes:
                schema = self._lines.schema if isinstance(self._lines, CsvLines) else None
                write_best(self.folder / _ROWS, best_path(out), self._lines.ranks[-1], schema)
            super().finish(out, about)

    def _write(self, name: str, temporary: Path, out: Path) -> None:
        if isinstance(self._lines, WholeLines):
            self._lines.write(self.folder / name, temporary)
        elif check_format(out) == ".parquet":
            assert isinstance(self._lines, CsvLines)
            write_parquet(self.folder / name, temporary, self._lines.schema)
        else:
            shutil.copyfile(self.folder / name, temporary)


def best_path(out: Path) -> Path:
    """Where the rows of pictures stand, where `out` is of boxes or of occurrences: predictions.csv ->
    predictions.csv.pictures.csv."""
    return sidecar_path(out, f"{PICTURES}{out.suffix}")


@contextlib.contextmanager
def unfinished(
    folder: Path,
    out: Path,
    about: Mapping[str, Any],
    lines: Form,
    pictures: Sequence[PictureFile] = (),
) -> Iterator[Predictions]:
    """Opens what is unfinished, or begins it.

    Args:
      folder, out, about: see `opened`.
      lines: their form.
      pictures: all that are predicted; those that were done and have changed since are to be done again.

    Raises:
      UserError: it was begun with something else, or another process is writing.
    """
    names = (_ROWS, UNREADABLE, _GALLERY, *[PICTURES] * lines.together)
    with opened(folder, out, about, names) as (files, log):
        yield Predictions(folder, lines, files, log, pictures)


def write_parquet(source: Path, out: Path, schema: Mapping[str, type[pl.DataType]]) -> None:
    """CSV -> Parquet, a part at a time."""
    texts = [name for name, kind in schema.items() if kind == pl.String]
    pl.scan_csv(source, schema=dict(schema)).with_columns(pl.col(texts).fill_null("")).sink_parquet(out)
