"""Predictions of many pictures as a file: written as they come, gone on with after an interruption, whole at the end.

While the work lasts, `OUT.unfinished/` holds `about.json`, what the predictions are made with, and `rows.jsonl`, one
line per picture in order. At the end OUT is made of the lines, with `OUT.unreadable.csv` where pictures could not be
read and `OUT.about.json`.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import RunDirectory, replaced_file, write_json
from linnaeus_jax.inference.bundle import Bundle
from linnaeus_jax.inference.bundle_files import BUNDLE_JSON
from linnaeus_jax.inference.predicting import Result
from linnaeus_jax.weights.files import sha256_of

FORMATS = (".csv", ".jsonl", ".parquet")
#: what belongs to a file of predictions, see `beside`
UNFINISHED, ABOUT, UNREADABLE = "unfinished", "about.json", "unreadable.csv"
UNREADABLE_COLUMNS = ("file", "reason")
#: rows of a Parquet part
_PART = 1 << 14

Row = dict[str, Any]
Progress = Callable[[int, int], None]


def row_of(result: Result) -> Row:
    """A line of `rows.jsonl`."""
    if result.prediction is None:
        return {"file": result.name, "unreadable": result.reason}
    return {"file": result.name, "metadata_from": result.metadata_from, **result.prediction.to_json()}


@dataclass
class Summary:
    """Counts over all pictures.

    Attributes:
      pictures, unreadable: all, and those that could not be read.
      answers: rank -> pictures that were answered there, "" for unknown.
      metadata_from: "table", "exif" or "" -> pictures.
      inputs: name of a metadata component -> pictures that it was known of.
      notes: pictures with notes.
    """

    pictures: int = 0
    unreadable: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    metadata_from: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    notes: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self.pictures += 1
        if "unreadable" in row:
            self.unreadable += 1
            return
        answer = row["answer"]
        keys = (
            (self.answers, [answer["rank"] if answer else ""]),
            (self.metadata_from, [row["metadata_from"]]),
            (self.inputs, row["inputs"]),
        )
        for counts, names in keys:
            for name in names:
                counts[name] = counts.get(name, 0) + 1
        self.notes += bool(row["notes"])


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


def check_format(out: Path) -> str:
    """The suffix of a file of predictions. Raises UserError for one that is not written."""
    suffix = out.suffix.lower()
    if suffix not in FORMATS:
        raise UserError(f"{out} must end in one of {', '.join(FORMATS)}, the forms that predictions are written in")
    return suffix


def beside(out: Path, what: str) -> Path:
    """A file that belongs to `out`: ("predictions.csv", "about.json") -> predictions.csv.about.json."""
    return out.with_name(f"{out.name}.{what}")


def finished(out: Path, about: Mapping[str, Any]) -> Summary | None:
    """What was counted where `out` is finished and was made with the same; None where there is nothing yet.

    Raises:
      UserError: `out` is something else.
    """
    if not out.exists():
        return None
    known = _read(beside(out, ABOUT))
    if known is None:
        raise UserError(f"{out} exists already; choose another --out, or replace it with --force")
    _check_same(out, known["made_with"], about)
    return Summary(**known["counts"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, or begin anew with --force") from None
    return known if isinstance(known, dict) else None


def _check_same(out: Path, known: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raises UserError that names what differs."""
    about = json.loads(json.dumps(about))
    differing = [key for key in dict.fromkeys([*known, *about]) if known.get(key) != about.get(key)]
    if differing:
        said = "; ".join(f"{key} was {_short(known.get(key))}, now {_short(about.get(key))}" for key in differing)
        raise UserError(
            f"{out} was begun with other inputs: {said}; give the same command to go on, choose another --out, or "
            "replace it with --force"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Unfinished:
    """The lines of an unfinished file of predictions.

    Attributes:
      done: pictures whose line is there.
    """

    def __init__(self, folder: Path, file: IO[bytes]) -> None:
        self._path, self._file = folder / "rows.jsonl", file
        whole = self.done = 0
        for line in file:
            if not line.endswith(b"\n"):  # the end came while it was written
                break
            whole += len(line)
            self.done += 1
        file.truncate(whole)
        file.seek(whole)

    def add(self, results: Iterable[Result]) -> None:
        """Appends lines."""
        lines = [json.dumps(row_of(result), separators=(",", ":")) + "\n" for result in results]
        self._file.write("".join(lines).encode())
        self._file.flush()
        self.done += len(lines)

    def rows(self) -> Iterator[Row]:
        """All lines so far."""
        with self._path.open("rb") as lines:
            for line in lines:
                yield json.loads(line)


@contextmanager
def unfinished(folder: Path, out: Path, about: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Opens what is unfinished, or begins it.

    Args:
      folder: where the lines lie.
      out: what they are for, in messages.
      about: what the predictions are made with, as JSON types.

    Raises:
      UserError: it was begun with something else, or another process is writing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.jsonl").open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is writing {out}; wait for it or choose another --out") from None
        known = _read(folder / "about.json")
        if known is None:
            file.truncate(0)
            write_json(folder / "about.json", {"made_with": dict(about)})
        else:
            _check_same(out, known["made_with"], about)
        file.seek(0)
        yield Unfinished(folder, file)


def remove(out: Path, *, finished: bool) -> None:
    """Takes away what is unfinished, and with `finished` also `out` and what belongs to it."""
    shutil.rmtree(beside(out, UNFINISHED), ignore_errors=True)
    for path in (out, beside(out, ABOUT), beside(out, UNREADABLE)) if finished else ():
        path.unlink(missing_ok=True)


# ---- the finished file


def finish(
    work: Unfinished, out: Path, about: Mapping[str, Any], ranks: Sequence[str], progress: Progress | None = None
) -> Summary:
    """Makes `out` and what belongs to it of the lines.

    Args:
      ranks: coarsest first.
      progress: (done, total).
    """
    summary = Summary()
    faults: list[tuple[str, str]] = []

    def readable() -> Iterator[Row]:
        for row in work.rows():
            summary.add(row)
            if "unreadable" in row:
                faults.append((row["file"], row["unreadable"]))
            else:
                yield row
            if progress:
                progress(summary.pictures, work.done)

    write = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}[check_format(out)]
    with replaced_file(out) as temporary:
        write(temporary, readable(), ranks)
        _write_unreadable(beside(out, UNREADABLE), faults)
        write_json(beside(out, ABOUT), {"made_with": dict(about), "counts": vars(summary)})
    return summary


def _write_unreadable(path: Path, faults: Sequence[tuple[str, str]]) -> None:
    if not faults:
        path.unlink(missing_ok=True)
        return
    with replaced_file(path) as temporary, temporary.open("x", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([UNREADABLE_COLUMNS, *faults])


def table_schema(ranks: Sequence[str], always: Sequence[str]) -> dict[str, type[pl.DataType]]:
    """Columns of CSV and Parquet.

    Args:
      ranks: coarsest first.
      always: names of the taxa that are always reported, see `always_names`.
    """
    schema: dict[str, type[pl.DataType]] = {"file": pl.String}
    for name in ("answer", *ranks):
        schema |= {f"{name}_rank": pl.String} if name == "answer" else {}
        schema |= {f"{name}_taxon_id": pl.Int64, f"{name}_name": pl.String, f"{name}_probability": pl.Float64}
    schema |= {f"always_{name}": pl.Float64 for name in always}
    return schema | {"inputs": pl.String, "metadata_from": pl.String, "notes": pl.String, "top": pl.String}


def always_names(row: Row) -> list[str]:
    """A name for each taxon that is always reported: its scientific name or id, with the rank where two share it."""
    plain = [taxon["name"] or str(taxon["taxon_id"]) for taxon in row["always"]]
    return [f"{name}_{taxon['rank']}" if plain.count(name) > 1 else name for name, taxon in zip(plain, row["always"])]


def table_row(row: Row) -> list[Any]:
    """Cells of CSV and Parquet, in the order of `table_schema`; `top` is {rank: [[id, name, probability], ...]}."""
    answer = row["answer"]
    cells = [row["file"], *([answer["rank"], *_cells(answer)] if answer else ["", 0, "unknown", None])]
    for taxon in row["path"]:
        cells += _cells(taxon)
    cells += [_cells(taxon)[2] for taxon in row["always"]]
    top = {rank: [_cells(taxon) for taxon in taxa] for rank, taxa in row["top"].items()}
    listed = json.dumps(top, separators=(",", ":"), ensure_ascii=False)
    return [*cells, " ".join(row["inputs"]), row["metadata_from"], "; ".join(row["notes"]), listed]


def _cells(taxon: Mapping[str, Any]) -> list[Any]:
    """Id, name and probability; what has no name is called by its id, and null is unknown."""
    number = taxon["taxon_id"]
    name = (taxon["name"] or str(number)) if number else "unknown"
    return [number, name, float(f"{taxon['probability']:.6g}")]


def _write_jsonl(path: Path, rows: Iterator[Row], ranks: Sequence[str]) -> None:
    with path.open("x", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")


def _first(rows: Iterator[Row]) -> tuple[list[str], Iterator[Row]]:
    """Names of the taxa that are always reported, and all rows."""
    first = next(rows, None)
    if first is None:
        return [], iter(())

    def every() -> Iterator[Row]:
        yield first
        yield from rows

    return always_names(first), every()


def _write_csv(path: Path, rows: Iterator[Row], ranks: Sequence[str]) -> None:
    always, rows = _first(rows)
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table_schema(ranks, always))
        writer.writerows(map(table_row, rows))


def _write_parquet(path: Path, rows: Iterator[Row], ranks: Sequence[str]) -> None:
    """Written in parts, which are then joined, so that memory stays bounded."""
    always, rows = _first(rows)
    schema = table_schema(ranks, always)
    folder = path.with_name(f"{path.name}.parts")
    folder.mkdir()
    try:
        parts: list[Path] = []
        cells: list[list[Any]] = []

        def keep() -> None:
            parts.append(folder / f"{len(parts):06d}.parquet")
            pl.DataFrame(cells, schema, orient="row").write_parquet(parts[-1])
            cells.clear()

        for row in rows:
            cells.append(table_row(row))
            if len(cells) == _PART:
                keep()
        if cells or not parts:
            keep()
        pl.scan_parquet(parts).sink_parquet(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
