"""Weights of files into a model: what fits is taken, everything is accounted for, and only then handed out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.relative import resize_table
from linnaeus_jax.registry import MODELS, WEIGHT_FORMATS
from linnaeus_jax.weights import coverage as cov
from linnaeus_jax.weights.adopting import known_as, name_and_licence, needs_of
from linnaeus_jax.weights.bias_tables import TABLE, grid_of
from linnaeus_jax.weights.classes import ClassRows, RowMatch, classes_of, match_rows
from linnaeus_jax.weights.coverage import Coverage, Row, first_of, group_of
from linnaeus_jax.weights.files import StateFile, read_state
from linnaeus_jax.weights.formats.base import Mapped, WeightFormat, architecture_of, format_named, format_of
from linnaeus_jax.weights.locating import located_with_description
from linnaeus_jax.weights.settings import pretrained_settings, setting_errors
from linnaeus_jax.weights.targets import Target, map_leaves, targets_of

#: weight and bias of a rank's head
HEAD = re.compile(r"head\.(?P<task>[^.]+)\.fc\.(?:weight|bias)")
#: any parameter of a rank's head
OF_RANK = re.compile(r"head\.(?P<task>[^.]+)\.")


class SourceFile(NamedTuple):
    """A file that was read: path, SHA-256 in hexadecimal, and remarks about how it was read."""

    path: str
    sha256: str
    notes: tuple[str, ...]

    @property
    def about(self) -> str:
        """Name and licence of published weights, "" of others."""
        known = known_as(self.sha256)
        return f"{known.name}, {known.licence}" if known else ""


@dataclass(frozen=True, eq=False)
class Import:
    """What was read for one model.

    Attributes:
      files: the files.
      coverage: what became of every leaf of the model and every array of the files.
      arrays: canonical name -> array in PyTorch's layout and the leaf's shape.
      rows: canonical name -> bool [C], which rows of that array count; all of them where the name is absent.
      problems: what `model.pretrained_strict` refuses, "" for nothing.
      notes: remarks about the weights, whatever model they go into.
      original: whether they were trained by the original, not by this program.
      classes: task -> taxon id of each row of an imported head, -1 for rows that were not; tasks whose classes are
        unknown are left out.
      needs: config key -> the value that the weights were made with, see `adopting.needs_of`.
      name, licence: of published weights, "" of others.
    """

    files: tuple[SourceFile, ...]
    coverage: Coverage
    arrays: dict[str, np.ndarray]
    rows: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    problems: str = ""
    notes: tuple[str, ...] = ()
    original: bool = False
    classes: dict[str, list[int]] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    licence: str = ""

    def merged(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """Both trees with what was imported, as numpy arrays like the given ones; the rest keeps its initial value.

        Args:
          params: the parameters.
          model_state: the other collections by name, {} where there are none.
        """

        def change(name: str, initial: np.ndarray) -> np.ndarray:
            array = self.arrays.get(name, initial)
            rows = self.rows.get(name)
            return array if rows is None else np.where(rows.reshape(-1, *(1,) * (array.ndim - 1)), array, initial)

        state = {collection: map_leaves(tree, change) for collection, tree in model_state.items()}
        return map_leaves(params, change), state

    def to_json(self) -> dict[str, Any]:
        """Files, coverage and what was loaded whole as JSON types, for the record of a run."""
        return {
            "files": [file._asdict() for file in self.files],
            "coverage": self.coverage.to_json(),
            "loaded": sorted(self.coverage.whole()),
            "needs": self.needs,
            "name": self.name,
            "licence": self.licence,
        }


def read_pretrained(
    settings: Mapping[str, Any],
    model: ModelFamily,
    classes: Mapping[str, Sequence[int]],
    run_state: StateFile | None = None,
) -> Import:
    """Reads the weights that a `model` section names, for the model that it describes.

    Args:
      settings: the `model` section.
      model: what receives them.
      classes: task -> taxon id of each class, 0 for null; tasks may be left out where they are unknown.
      run_state: weights that the caller has read already, of the run directory that `pretrained` names.

    Raises:
      UserError: contradicting settings, a file that cannot be read, weights of another architecture, or (with
        `pretrained_strict`) an expected leaf that is missing or of another shape or an array that is unknown.
    """
    if errors := setting_errors(settings):
        raise UserError("\n".join(errors))
    given, targets = pretrained_settings(settings), targets_of(model)
    source = given["pretrained_source"]
    files = [run_state] if run_state is not None else read_files(given)
    kind, misfits = format_of(files[0], source), ""
    if len(files) == 1:
        _check_architecture(files[0], kind, settings, targets)
        misfits = "\n".join(kind.problems(files[0], settings))
        if misfits and given["pretrained_strict"]:
            raise UserError(misfits)
    mapped = kind.map(files, model, targets, given)
    name, licence = name_and_licence(files[0], source)
    fitted = _Fitting(model, targets, mapped, classes, files[0], classes_of(files[0], given["pretrained_classes"]))
    fitted.fill()
    problems = misfits or fitted.problems()
    if problems and (given["pretrained_strict"] or fitted.useless()):
        raise UserError(problems)
    if not fitted.arrays:
        raise UserError(f"nothing in {files[0].path} fits the model; {_names_of(files[0])}")
    return Import(
        tuple(SourceFile(str(file.path), file.sha256, file.notes) for file in files),
        Coverage(tuple(fitted.rows), (*mapped.notes, *mapped.remarks)),
        fitted.arrays,
        fitted.row_masks,
        problems,
        tuple(mapped.notes),
        mapped.original,
        fitted.taken_classes(),
        needs_of(files[0], source) if len(files) == 1 else {},
        name,
        licence,
    )


def read_files(given: Mapping[str, Any], said_by: str = "") -> list[StateFile]:
    """The files that the keys `pretrained*` name, one for each key of their kind.

    Args:
      said_by: what named them, for messages; the keys themselves by default.

    Raises:
      UserError: none is named, or one cannot be had or read.
    """
    kind = format_named(given["pretrained_source"])
    if missing := [f"model.{key}" for key in kind.files if not given[key]]:
        raise UserError(f"{missing[0]} is empty; name a file of weights or a run directory there")
    named = {key: located_with_description(given[key], said_by or f"model.{key}") for key in kind.files}
    return [read_state(named[key], containers) for key, containers in kind.files.items()]


def _check_architecture(
    file: StateFile, kind: WeightFormat, settings: Mapping[str, Any], targets: Mapping[str, Target]
) -> None:
    """One error where a file belongs to another architecture, instead of a list of all that is missing."""
    source, family = pretrained_settings(settings)["pretrained_source"], settings["type"]
    found = file.facts.get("model") or architecture_of(file.arrays)
    if found and found != family:
        hints = (other.hint for other in WEIGHT_FORMATS.entries.values() if found in other.signs and other.hint)
        own = f"set model.type = {found!r}" if found in MODELS or file.facts else ""
        fix = ", or ".join(filter(None, (next(hints, ""), own))) or "no source of this program reads it"
        raise UserError(f"{file.path} looks like {found}, but model.type is {family!r}; {fix}, or give another file")
    if found and not source and not file.facts:
        for name, other in WEIGHT_FORMATS.entries.items():
            if other.family == found and other.mark and any(map(other.mark.fullmatch, file.arrays)):
                raise UserError(
                    f"{file.path} looks like a {other.title}, not like an {found}; set "
                    f"model.pretrained_source = {name!r}"
                )
    if not found and not any(name in targets for name in file.arrays):
        raise UserError(f"{file.path} holds nothing of a {family}; {_names_of(file)}")


def _names_of(file: StateFile) -> str:
    return f"its names: {first_of(list(file.arrays), 3)}"


@dataclass
class _Fitting:
    """Goes through every leaf of the model and every array of the files once; see `fill`."""

    model: ModelFamily
    targets: Mapping[str, Target]
    mapped: Mapped
    classes: Mapping[str, Sequence[int]]
    file: StateFile
    known: ClassRows
    rows: list[Row] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    row_masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    matches: dict[str, RowMatch] = field(default_factory=dict)

    def fill(self) -> None:
        """Decides about every leaf, then lists the arrays that went nowhere."""
        for target in self.targets.values():
            array = self.mapped.arrays.get(target.name)
            head = HEAD.fullmatch(target.name)
            if array is None:
                self._initial(target)
            elif head:
                self._head(target, array, head["task"])
            elif target.shape == array.shape:
                self._take(target, array)
            elif target.name.endswith(TABLE):
                self._table(target, array)
            elif resized := self.model.resized(target.name, array, target.shape):
                self._take(target, resized[0], cov.RESIZED, resized[1])
            else:
                self._other_shape(target, array)
        for name, array in self.mapped.arrays.items():
            if name not in self.targets:
                self._unknown(name, array)
        self.rows += [Row(name, group_of(name), cov.SKIPPED, why) for name, why in self.mapped.skipped.items()]

    def taken_classes(self) -> dict[str, list[int]]:
        """Taxon ids of the rows that heads took, see `Import.classes`."""
        return {
            task: [int(taxon) if row >= 0 else -1 for taxon, row in zip(self.classes[task], match.rows.tolist())]
            for task, match in self.matches.items()
            if match.rows is not None and task in self.known and task in self.classes
        }

    def problems(self) -> str:
        """What is not as this kind of file has it, in one message; "" where all is well."""
        problems = []
        for status, what in (
            (cov.INITIAL, "missing in the file"),
            (cov.OTHER_SHAPE, "of another shape"),
            (cov.SKIPPED, "unknown to the model"),
        ):
            rows = [row for row in self.rows if row.status == status and not row.allowed]
            if rows:
                texts = {row.name: row.note for row in rows} if status == cov.OTHER_SHAPE else [r.name for r in rows]
                problems.append(f"{what}: {first_of(texts)}")
        if not problems:
            return ""
        theirs = {key: self.file.facts[key] for key in ("model", "variant", "img_size") if key in self.file.facts}
        says = f" (the file says {', '.join(f'{k} {v}' for k, v in theirs.items())})" if theirs else ""
        return (
            f"{self.file.path} does not fit the model{says}: {'; '.join(problems)}. Let model.type, model.variant, its "
            "sizes and the metadata components be those of the weights, or take what fits with "
            "model.pretrained_strict=False"
        )

    def useless(self) -> bool:
        """Whether something is missing that the rest is of no use without."""
        needed, lost = self.mapped.needed, (cov.INITIAL, cov.OTHER_SHAPE)
        return needed is not None and any(
            row.status in lost and not row.allowed and needed.fullmatch(row.name) for row in self.rows
        )

    def _row(self, target: Target, status: str, note: str = "", *, share: float = 0.0, allowed: bool = True) -> None:
        """A row of which `share` of the values come from the file."""
        if origin := self.mapped.origin.get(target.name, ""):
            note = f"from {origin}{f'; {note}' if note else ''}"
        taken = round(share * target.parameters)
        self.rows.append(Row(target.name, group_of(target.name), status, note, target.parameters, taken, allowed))

    def _take(self, target: Target, array: np.ndarray, status: str = cov.LOADED, note: str = "") -> None:
        self.arrays[target.name] = array
        self._row(target, status, note, share=1.0)

    def _initial(self, target: Target) -> None:
        reason, rank = self.mapped.stays(target.name), OF_RANK.match(target.name)
        if not reason and rank and not any(name.startswith(rank[0]) for name in self.mapped.arrays):
            reason = "the file has no head of this rank"
        self._row(target, cov.INITIAL, reason or "not in the file", allowed=bool(reason))

    def _other_shape(self, target: Target, array: np.ndarray) -> None:
        note = f"{tuple(array.shape)} in the file, {target.shape} here"
        self._row(target, cov.OTHER_SHAPE, note, allowed=bool(self.mapped.stays(target.name)))

    def _head(self, target: Target, array: np.ndarray, task: str) -> None:
        """Rows of a head by taxon id, or in order where the classes of the file are unknown."""
        if array.shape[1:] != target.shape[1:] or not array.ndim:
            self._other_shape(target, array)
            return
        if task not in self.matches:
            count = target.shape[0]
            self.matches[task] = match_rows(task, self.known, len(array), self.classes.get(task), count)
        rows, note = self.matches[task]
        if rows is None or not (rows >= 0).any():
            self._row(target, cov.INITIAL, note)
            return
        self.arrays[target.name] = array[rows]
        if (rows < 0).any():
            self.row_masks[target.name] = rows >= 0
        share = float((rows >= 0).mean())
        self._row(target, cov.LOADED if share == 1 else cov.MATCHED, note, share=share)

    def _table(self, target: Target, array: np.ndarray) -> None:
        """A bias table of another grid, resized by bicubic interpolation."""
        size = self.file.facts.get("img_size")
        from_grid = grid_of(len(array), self.model, tuple(size) if size else None) if array.ndim else None
        to_grid = grid_of(target.shape[0], self.model, self.model.img_size)
        if from_grid is None or to_grid is None or array.shape[1:] != target.shape[1:]:
            self._other_shape(target, array)
            return
        grids = f"bicubic, {from_grid[0]}x{from_grid[1]} to {to_grid[0]}x{to_grid[1]} positions"
        self._take(target, resize_table(array, from_grid, to_grid), cov.RESIZED, grids)

    def _unknown(self, name: str, array: np.ndarray) -> None:
        rank = OF_RANK.match(name)
        other_rank = rank is not None and rank["task"] not in {spec.task for spec in self.model.head_specs}
        origin = self.mapped.origin.get(name, name)
        note = "the model has no head of this rank" if other_rank else "unknown to the model"
        self.rows.append(Row(origin, group_of(name), cov.SKIPPED, note, allowed=other_rank))


def pretrained_is_run(settings: Mapping[str, Any]) -> bool:
    """Whether `model.pretrained` names a directory, that of another run, which the caller then reads."""
    path = pretrained_settings(settings)["pretrained"]
    return bool(path) and Path(path).expanduser().is_dir()
