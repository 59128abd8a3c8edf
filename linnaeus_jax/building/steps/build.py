"""Building a data set: plan the rows, read the pictures, write the files.

Everything is written below `<out>/.build` and moved to its place when it is complete, so that a build that is ended at
any moment leaves no file that looks finished, and the same command goes on with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.steps.finish import REJECTED, Finished, finish_rows, write_outputs
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.pixels import Journal, Outcome, finish_file, read_pictures
from linnaeus_jax.building.steps.plan import BuildPlan, NothingUsable
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.alignment import IDENTIFIERS_DIGEST
from linnaeus_jax.data.h5_images import IMAGE_BYTES, IMAGE_OFFSETS, IMAGES
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.image_checks import CHECKSUMS, write_checksums
from linnaeus_jax.data.labels_file import IDENTIFIERS, TEXT_DIGEST
from linnaeus_jax.files import locked, locked_elsewhere, make_directory, sync, sync_tree, write_json
from linnaeus_jax.reading.paths import Shard
from linnaeus_jax.reading.schema import DUPLICATE_PICTURE, Progress

# ---- One images file over the files of several parts, without copying a pixel


@dataclass(frozen=True)
class Part:
    """A file of a part, by its path relative to the folder of the whole, and which of its rows are used: bool [n]."""

    file: str
    used: NDArray[np.bool_]


def write_virtual_images(path: Path, parts: Sequence[Part]) -> None:
    """Writes an images file whose rows are the used rows of the parts, in order.

    Raises:
      OSError, KeyError: a part that cannot be read.
      ValueError: a part with another number of rows than `used`.
    """
    opened = [open_hdf5(path.parent / part.file) for part in parts]
    try:
        packed = IMAGE_BYTES in opened[0]
        name = IMAGE_BYTES if packed else IMAGES
        shape, sources, lengths = [0], [], []
        for part, file in zip(parts, opened, strict=True):
            stored = file[name]
            offsets = file[IMAGE_OFFSETS][:] if packed else np.arange(len(stored) + 1)
            if len(offsets) - 1 != len(part.used):
                raise ValueError(f"{part.file} holds {len(offsets) - 1} pictures, but {len(part.used)} were built")
            shape = [0, *stored.shape[1:]]
            lengths.append(np.diff(offsets)[part.used])
            source = h5py.VirtualSource(part.file, name, stored.shape)
            sources += [source[offsets[start] : offsets[stop]] for start, stop in _runs(part.used)]
        shape[0] = int(sum(int(length.sum()) for length in lengths))
        layout = h5py.VirtualLayout(tuple(shape), np.uint8)
        place = 0
        for source in sources:
            layout[place : place + source.shape[0]] = source
            place += source.shape[0]
        with h5py.File(path, "w") as file:
            file.create_virtual_dataset(name, layout)
            if all(CHECKSUMS in part for part in opened):
                write_checksums(
                    file,
                    np.concatenate([one[CHECKSUMS][:][part.used] for one, part in zip(opened, parts, strict=True)]),
                )
            if packed:
                file[IMAGE_OFFSETS] = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    finally:
        for file in opened:
            file.close()


def _runs(used: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """(start, stop) of each run of used rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], used, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


# ----------------------------------------------------------------------------------------------------------------------


WORK, PLAN, JOURNAL, PIXELS, SUMMARY = ".build", "plan.json", "journal.jsonl", "images.h5", "build.json"
_LOCK = f"{WORK}.lock"  # beside it: Windows moves no folder of open files
_BUILDING = "{}: another process builds here; wait for it or give another --out"


def build(
    plan: BuildPlan, out: Path, *, threads: int = 0, strict: bool = False, progress: Progress = lambda *_: None
) -> Finished:
    """Reads the pictures and writes the data set; goes on where an earlier call was ended.

    Args:
      out: folder of the data set.
      threads: that decode; 0: one for each core.
      strict: rows that are rejected, blanked or changed are an error, and no data set is written.

    Raises:
      UserError: the folder holds something else, another process builds in it, or `strict` finds fault.
    """
    with work_folder(out, plan.digest, SUMMARY) as work:
        if work is not None and not resumed_commit(work, out):
            images, outcomes = _read(plan, range(len(plan.candidates)), work, threads, progress)
            _check_usable(plan, outcomes, work)
            _finish(plan, outcomes, work, out, images, strict)
    return Finished.load(out)


def build_shard(
    plan: BuildPlan, out: Path, shard: Shard, *, threads: int = 0, progress: Progress = lambda *_: None
) -> None:
    """Reads the pictures of one part, which `merge` joins with the others; goes on as `build` does.

    Raises:
      UserError: the folder of the part holds something else, or another process builds in it.
    """
    directory, rows = shard.directory(out), shard.rows(len(plan.candidates))
    with work_folder(directory, plan.digest, PLAN) as work:
        if work is not None and not resumed_commit(work, directory):
            images, _ = _read(plan, rows, work, threads, progress)
            write_json(work / PLAN, {"digest": plan.digest, "candidates": [rows.start, rows.stop]})
            commit(work, directory, [*images, JOURNAL, PLAN])


def _read(
    plan: BuildPlan, rows: range, work: Path, threads: int, progress: Progress
) -> tuple[list[str], list[Outcome]]:
    """Reads the candidates `rows`; the names of the finished images file, if there is one, and the outcomes."""
    images = [] if plan.options.images == "folder" else [PIXELS]
    outcomes = read_pictures(
        plan.paths[rows.start : rows.stop],
        plan.options,
        work / JOURNAL,
        work / PIXELS if images else None,
        threads,
        lambda done, total: progress("reading pictures", done, total),
        plan.boxes[rows.start : rows.stop],
    )
    if images:
        close_images(work / PIXELS, plan.options, outcomes)
    return images, outcomes


def _check_usable(plan: BuildPlan, outcomes: Sequence[Outcome], work: Path) -> None:
    """Raises NothingUsable where no picture can be used, and leaves nothing behind: the next build begins anew."""
    if all(outcome.reason for outcome in outcomes):
        rejected = finish_rows(plan, outcomes).tables[REJECTED]
        shutil.rmtree(work)
        raise NothingUsable(rejected)


def _finish(
    plan: BuildPlan, outcomes: Sequence[Outcome], work: Path, out: Path, images: Sequence[str], strict: bool
) -> None:
    """Writes all but the pictures and moves everything to its place; UserError for a fault under `strict`."""
    finished = finish_rows(plan, outcomes)
    faults = finished.faults()
    if strict and faults:
        finished.write_tables(out)
        listed = "; ".join(f"{count} {what}" for what, count in faults.items())
        raise UserError(f"--strict: {listed}; see {out}/rejected.csv and {out}/blanked.csv. No data set was written.")
    names = write_outputs(plan, finished, work, out)
    for name in images:
        with open_hdf5(work / "labels.h5") as labels, open_hdf5(work / name, "r+") as file:
            file.attrs[IDENTIFIERS_DIGEST] = labels[IDENTIFIERS].attrs[TEXT_DIGEST]
    commit(work, out, [*images, *names])


def merge(plan: BuildPlan, out: Path, count: int, *, strict: bool = False) -> Finished:
    """Joins the parts that `build` made of the same plan; their files stay where they are.

    Raises:
      UserError: a part is missing, unfinished or of another plan, or `strict` finds fault.
    """
    shards = [Shard(index, count) for index in range(1, count + 1)]
    missing = [f"--shard {shard.index}/{count}" for shard in shards if not (shard.directory(out) / PLAN).exists()]
    if missing:
        raise UserError(f"{out}: not built yet: {', '.join(missing[:8])}; run these first")
    with work_folder(out, plan.digest, SUMMARY) as work:
        if work is None or resumed_commit(work, out):
            return Finished.load(out)
        outcomes: list[Outcome] = []
        parts: list[Part] = []
        seen: dict[str, int] = {}
        for shard in shards:
            directory = shard.directory(out)
            made = json.loads((directory / PLAN).read_text(encoding="utf-8"))
            first = shard.rows(len(plan.candidates)).start
            if made["digest"] != plan.digest:
                raise UserError(f"{directory} was built from other rows, options or versions; build it again")
            stored = Journal.load(directory / JOURNAL).outcomes
            joined = [_in_whole(outcome, first, first + i, seen) for i, outcome in enumerate(stored)]
            kept = np.array([not outcome.reason for outcome in stored], bool)
            used = np.array([not outcome.reason for outcome in joined], bool)[kept]
            parts.append(Part(str((directory / PIXELS).relative_to(out)), used))
            outcomes += joined
        _check_usable(plan, outcomes, work)
        images = [] if plan.options.images == "folder" else [PIXELS]
        if images:
            staged = out / f"{PIXELS}.merging"  # beside the parts, which it names by relative paths
            try:
                write_virtual_images(staged, [part for part in parts if len(part.used)])
                os.replace(staged, work / PIXELS)
            finally:
                staged.unlink(missing_ok=True)
        _finish(plan, outcomes, work, out, images, strict)
    return Finished.load(out)


def _in_whole(outcome: Outcome, first: int, number: int, seen: dict[str, int]) -> Outcome:
    """An outcome of a part as one of the whole: candidates are counted from its first, duplicates over all parts."""
    if outcome.reason == DUPLICATE_PICTURE:
        return outcome._replace(detail=str(seen.get(outcome.digest, first + int(outcome.detail))))
    if outcome.reason:
        return outcome
    earlier = seen.setdefault(outcome.digest, number)
    return outcome if earlier == number else Outcome(outcome.digest, 0, DUPLICATE_PICTURE, str(earlier))


def close_images(path: Path, options: BuildOptions, outcomes: Sequence[Outcome]) -> None:
    """Makes the streamed bytes of the used pictures an HDF5 file; nothing happens where that is done already."""
    used = [outcome for outcome in outcomes if not outcome.reason]
    sizes, side = [outcome.stored for outcome in used], options.size
    if options.images == "raw":
        finish_file(path, IMAGES, (len(sizes), side, side, 3))
        with open_hdf5(path, "r+") as file:
            write_checksums(file, (outcome.crc for outcome in used))
        return
    finish_file(path, IMAGE_BYTES, (sum(sizes),))
    with open_hdf5(path, "r+") as file:
        file[IMAGE_OFFSETS] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        write_checksums(file, (outcome.crc for outcome in used))


@contextlib.contextmanager
def work_folder(directory: Path, digest: str, marker: str) -> Iterator[Path | None]:
    """The folder of unfinished files, held by this process alone; None where the same data set is complete already.

    Args:
      digest: of the plan.
      marker: file that is there when a data set or a part is complete, with its digest.

    Raises:
      UserError: another data set is there, or begun there, or another process is at work.
    """
    work, finished = directory / WORK, directory / marker
    shutil.rmtree(directory / f"{WORK}-done", ignore_errors=True)
    if finished.exists() and not work.exists():
        if json.loads(finished.read_text(encoding="utf-8")).get("digest") == digest:
            if not locked_elsewhere(directory / _LOCK):  # what a failure of power has left of the build
                (directory / _LOCK).unlink(missing_ok=True)
            yield None
            return
        raise UserError(
            f"{directory} holds a data set of other rows, options or versions; give another --out, or --force to "
            "replace it"
        )
    taken = [name for name in ("labels.h5", "images.h5") if (directory / name).exists()]
    if taken and not work.exists():
        raise UserError(f"{directory} holds {' and '.join(taken)} of another origin; give another --out")
    make_directory(work)
    lock_path = directory / _LOCK
    with lock_path.open("ab") as lock:
        if locked(lock) is False:
            raise UserError(_BUILDING.format(directory))
        begun = work / "begun.json"
        if begun.exists() and json.loads(begun.read_text(encoding="utf-8"))["digest"] != digest:
            raise UserError(
                f"{directory} holds a build that was begun from other rows, options or versions; finish it with the "
                "same command, or begin anew with --force"
            )
        write_json(begun, {"digest": digest})
        yield work
    lock_path.unlink(missing_ok=True)


def commit(work: Path, directory: Path, names: Sequence[str]) -> None:
    """Moves finished files to their places, in this order, and removes the rest; goes on where it was ended.

    They are on the disk before the first one is moved, and have their names there before the rest is removed.
    """
    sync_tree(work)
    write_json(work / "commit.json", list(names))
    for name in names:
        if (work / name).exists():
            os.replace(work / name, directory / name)
    sync(directory)
    done = directory / f"{WORK}-done"
    os.replace(work, done)  # at once: half a folder would look like a build that was begun
    sync(directory)
    shutil.rmtree(done)


def resumed_commit(work: Path, directory: Path) -> bool:
    """Finishes a `commit` that was ended; False where none was begun."""
    begun = work / "commit.json"
    if begun.exists():
        commit(work, directory, json.loads(begun.read_text(encoding="utf-8")))
        return True
    return False


def discard(out: Path, shard: Shard | None = None, *, keep_parts: bool = False) -> None:
    """Removes what `build`, or with `shard` what `build_shard`, writes into a folder, and nothing else.

    Args:
      keep_parts: whether the parts stay, to be joined anew.

    Raises:
      UserError: another process is building what would be removed.
    """
    parts = [] if keep_parts else [path.parent for path in out.glob(f"shards/*/{_LOCK}")]
    for directory in [shard.directory(out)] if shard is not None else [out, *parts]:
        if locked_elsewhere(directory / _LOCK):
            raise UserError(_BUILDING.format(directory))
    if shard is not None:
        shutil.rmtree(shard.directory(out), ignore_errors=True)
        return
    shutil.rmtree(out / WORK, ignore_errors=True)
    if not keep_parts:
        shutil.rmtree(out / "shards", ignore_errors=True)
    if (out / SUMMARY).exists():
        for name in (*json.loads((out / SUMMARY).read_text(encoding="utf-8")).get("files", ()), SUMMARY):
            (out / name).unlink(missing_ok=True)
