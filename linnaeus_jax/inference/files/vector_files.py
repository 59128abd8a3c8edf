"""Feature vectors of many pictures as a file; while the work lasts, see `unfinished`, there are

vectors          their numbers, in order
rows.csv         id of each, and names of its taxa where these are known
unreadable.csv   pictures without a vector: they could not be read, or the model's outputs are not finite

OUT.npz          `vectors` [N, D], `ids` [N], `ranks` [T], `taxa` [N, T], `about` (JSON), not compressed
OUT.npy          the vectors; the rest is in OUT.npy.rows.csv and OUT.npy.about.json
OUT.parquet      columns `id`, those of the ranks, and `vector`; `about` in its metadata

All of them are written and read a block at a time; ids and taxa are in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
import tempfile
import weakref
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import json_text, replaced_file
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.members import each_run, with_own_features
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job, Part, over_files
from linnaeus_jax.inference.files.prediction_lines import csv_line, unreadable_lines
from linnaeus_jax.inference.files.unfinished import (
    ABOUT,
    ROWS,
    UNREADABLE,
    UNREADABLE_HEADER,
    Unfinished,
    opened,
    sidecar_path,
)
from linnaeus_jax.inference.forward import BEHIND
from linnaeus_jax.inference.model import Model, unit
from linnaeus_jax.inference.paths import Logits

FORMATS = (".npz", ".npy", ".parquet")
DTYPES = ("float16", "float32")
#: keys of `about` by which vectors of pictures can be compared with those of a file
COMPARED = ("layer", "width", "weights", "preprocessing")
ID, VECTOR = "id", "vector"
_VECTORS = "vectors"
#: what libraries raise of files that are not what they seem
_DAMAGE = (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile, pl.exceptions.PolarsError)
#: bytes that are copied at once; a multiple by which vectors lie in a .npz file
_BLOCK, _ALIGNED = 1 << 24, 64

Vectors = NDArray[np.floating]


def about_vectors(model: Model, layer: str, dtype: str, normalize: bool) -> dict[str, Any]:
    """What vectors follow from and what they are, as JSON types."""
    how = json_text(asdict(model.bundle.preprocessing), sort_keys=True)
    runs = len(with_own_features(model.bundle.variables, BEHIND[layer]))
    return {
        "title": str(model.bundle.facts.get("title", "")),
        "layer": layer,
        **({"runs": runs} if runs > 1 else {}),
        "width": model.giving(layer).width(layer),
        "dtype": dtype,
        "normalized": normalize,
        "weights": digest_of_weights(model.bundle, layer),
        "preprocessing": hashlib.sha256(how.encode()).hexdigest(),
    }


def digest_of_weights(bundle: Bundle, layer: str) -> str:
    """SHA-256 of all that a layer is computed with: models that differ in their heads alone have the same."""
    digest, runs = hashlib.sha256(), each_run(bundle.variables)
    for place in with_own_features(bundle.variables, BEHIND[layer]):
        for path, leaf in jax.tree_util.tree_leaves_with_path(runs[place]):
            if path[1].key not in BEHIND[layer]:
                digest.update(jax.tree_util.keystr(path).encode())
                digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def embed_files(
    model: Model, jobs: Sequence[Job], about: Mapping[str, Any], *, exif: bool = False, threads: int = 0
) -> Generator[Part[Vectors], None, None]:
    """Vectors [n, D] of all pictures, a part at a time; see `over_files`.

    Args:
      about: of `about_vectors`.

    Raises:
      UserError: numbers that the dtype does not hold.
    """
    layer, dtype = about["layer"], np.dtype(about["dtype"])

    def stored(found: Logits) -> Vectors:
        with np.errstate(over="ignore"):
            values = (unit(found[layer]) if about["normalized"] else found[layer]).astype(dtype)
        if not np.isfinite(values).all():
            raise UserError(f"{dtype} does not hold the vectors of this model; give --dtype float32, or --normalize")
        return values

    return over_files(model, model.giving(layer), jobs, stored, exif=exif, threads=threads)


# ---- writing


class UnfinishedVectors(Unfinished):
    """Vectors that are not yet a file."""

    def add(self, part: Part[Vectors], jobs: Sequence[Job] = ()) -> None:  # type: ignore[override]  # what it holds is known
        """Appends a part.

        Args:
          jobs: of all its pictures.
        """
        rows = [csv_line((job.picture.name, *job.taxa)) for job, reason in zip(jobs, part.reasons) if not reason]
        contents = {ROWS: "".join(rows).encode(), UNREADABLE: "".join(unreadable_lines(part)).encode()}
        super().add(part, contents | {_VECTORS: b"" if part.answered is None else part.answered.tobytes()})

    def finish(self, out: Path, about: Mapping[str, Any]) -> None:
        """Makes `out` and what belongs to it; `remove` takes the rest away."""
        source, rows = self.folder / _VECTORS, _read_rows(self.folder / ROWS)
        write = {".npz": _write_npz, ".npy": _write_npy, ".parquet": _write_parquet}[out.suffix.lower()]
        with replaced_file(out) as temporary:
            write(temporary, source, rows, about)
            if write is _write_npy:
                with replaced_file(sidecar_path(out, ROWS)) as beside:
                    shutil.copyfile(self.folder / ROWS, beside)
            super().finish(out, about)


@contextlib.contextmanager
def unfinished_vectors(
    folder: Path, out: Path, about: Mapping[str, Any], ranks: Sequence[str], pictures: Sequence[PictureFile]
) -> Iterator[UnfinishedVectors]:
    """Opens what is unfinished, or begins it; see `opened`.

    Args:
      ranks: of the taxa of a row, () where none are known.
      pictures: all that have vectors at the end; those that were done and have changed since are to be done again.
    """
    headers = {_VECTORS: b"", ROWS: csv_line((ID, *ranks)).encode(), UNREADABLE: UNREADABLE_HEADER}
    with opened(folder, out, about, tuple(headers)) as (files, log):
        yield UnfinishedVectors(folder, files, headers, log, pictures)


def _read_rows(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False).fill_null("")


def _write_array(file: IO[bytes], source: Path, about: Mapping[str, Any], rows: int) -> None:
    """The numbers of a file in the form of NumPy."""
    header = {"descr": np.dtype(about["dtype"]).str, "fortran_order": False, "shape": (rows, about["width"])}
    np.lib.format.write_array_header_1_0(file, header)
    with source.open("rb") as numbers:
        shutil.copyfileobj(numbers, file, _BLOCK)


def _write_npy(out: Path, source: Path, rows: pl.DataFrame, about: Mapping[str, Any]) -> None:
    with out.open("wb") as file:
        _write_array(file, source, about, len(rows))


def _write_npz(out: Path, source: Path, rows: pl.DataFrame, about: Mapping[str, Any]) -> None:
    taxa = rows.drop(ID)
    arrays = {
        "ids": rows[ID].to_numpy().astype(str),
        "ranks": np.array(taxa.columns, str),
        "taxa": taxa.to_numpy().astype(str).reshape(len(rows), taxa.width),
        "about": np.array(json_text(about)),
    }
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo(f"{_VECTORS}.npy")
        before = 30 + len(member.filename) + 20 + 4  # bytes of its header, with the sizes of large members
        member.extra = struct.pack("<HH", 0xFFFF, -before % _ALIGNED) + bytes(-before % _ALIGNED)
        with archive.open(member, "w", force_zip64=True) as file:
            _write_array(file, source, about, len(rows))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _write_parquet(out: Path, source: Path, rows: pl.DataFrame, about: Mapping[str, Any]) -> None:
    width, dtype = about["width"], np.dtype(about["dtype"])
    kind = pl.Array(pl.Float16 if dtype == np.float16 else pl.Float32, width)
    step = max(1, _BLOCK // (width * dtype.itemsize))

    def parts(columns: Any, predicate: Any, count: Any, batch: Any) -> Iterator[pl.DataFrame]:
        with source.open("rb") as file:
            for start in range(0, len(rows), step):
                some = rows.slice(start, step)
                numbers = np.frombuffer(file.read(len(some) * width * dtype.itemsize), dtype).reshape(-1, width)
                yield some.with_columns(pl.Series(VECTOR, numbers, kind))

    frame = register_io_source(parts, schema=pl.Schema({**rows.schema, VECTOR: kind}))
    frame.sink_parquet(out, metadata={"about": json_text(about)}, row_group_size=step)


# ---- reading


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """The vectors of a file, of which no more is in memory than is asked for.

    Attributes:
      path: the file.
      about: what they are, see `about_vectors`.
      rows: `id` of each, and the names of its taxa by rank, finest first, where these are known.
      shape, dtype: of the vectors, [N, D].
    """

    path: Path
    about: Mapping[str, Any]
    rows: pl.DataFrame
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    _numbers: Path
    _offset: int

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> Vectors:
        """Vectors of a range of rows, mapped, or of any rows [n, D], copied."""
        start, stop, _ = rows.indices(len(self)) if isinstance(rows, slice) else (0, len(self), 1)
        offset = self._offset + start * self.shape[1] * self.dtype.itemsize
        mapped = np.memmap(self._numbers, self.dtype, "r", offset, (stop - start, self.shape[1]))
        return mapped if isinstance(rows, slice) else np.asarray(mapped[rows])


def open_vectors(path: Path) -> StoredVectors:
    """The vectors of a file that `linnaeus embed` wrote.

    Raises:
      UserError: there is none, it is something else, or damaged.
    """
    read = {".npz": _open_npz, ".npy": _open_npy, ".parquet": _open_parquet}.get(path.suffix.lower())
    if read is None or not path.is_file():
        why = "does not end in one of " + ", ".join(FORMATS) if read is None else "does not exist"
        raise UserError(f"{path} {why}; give a file of vectors, which linnaeus embed --out writes")
    try:
        found = read(path)
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is damaged, or was not written by linnaeus embed ({reason}); embed anew") from error
    if not len(found) == len(found.rows) > 0:
        raise UserError(
            f"{path} holds {len(found):,} vectors and {len(found.rows):,} ids, but each needs the other; embed anew"
        )
    return found


def _open_array(path: Path, start: int, about: Mapping[str, Any], rows: pl.DataFrame) -> StoredVectors:
    """An array in the form of NumPy that begins at a byte of a file."""
    with path.open("rb") as file:
        file.seek(start)
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        offset = file.tell()
    if shape[1] != about["width"] or dtype.name not in DTYPES:
        raise ValueError(f"{dtype} {list(shape)}")
    if path.stat().st_size < offset + shape[0] * shape[1] * dtype.itemsize:
        raise ValueError("it ends early")
    return StoredVectors(path, about, rows, (shape[0], shape[1]), dtype, path, offset)


def _open_npy(path: Path) -> StoredVectors:
    about = json.loads(sidecar_path(path, ABOUT).read_text("utf-8"))["made_with"]
    return _open_array(path, 0, about, _read_rows(sidecar_path(path, ROWS)))


def _open_npz(path: Path) -> StoredVectors:
    with np.load(path) as held:
        about = json.loads(str(held["about"]))
        rows = {ID: held["ids"], **dict(zip(held["ranks"].tolist(), held["taxa"].T))}
        member = held.zip.getinfo(f"{_VECTORS}.npy")
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        start = member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
    return _open_array(path, start, about, pl.DataFrame({name: pl.Series(texts) for name, texts in rows.items()}))


def _open_parquet(path: Path) -> StoredVectors:
    """A copy of the numbers in the folder of temporary files, which lasts as long as what is returned."""
    about = json.loads(pl.read_parquet_metadata(path)["about"])
    columns = pl.read_parquet_schema(path)
    rows = pl.read_parquet(path, columns=[name for name in columns if name != VECTOR])
    step = max(1, _BLOCK // (about["width"] * np.dtype(about["dtype"]).itemsize))
    with tempfile.NamedTemporaryFile(prefix="vectors-", delete=False) as file:
        numbers, shape = Path(file.name), (len(rows), about["width"])
        found = StoredVectors(path, about, rows, shape, np.dtype(about["dtype"]), numbers, 0)
        weakref.finalize(found, numbers.unlink, missing_ok=True)
        for start in range(0, len(rows), step):
            part = pl.scan_parquet(path).select(VECTOR).slice(start, step).collect()[VECTOR]
            file.write(np.ascontiguousarray(part.to_numpy()).tobytes())
    return found
