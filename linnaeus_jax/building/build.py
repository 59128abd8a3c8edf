"""Building a data set: plan the rows, read the pictures, write the files.

Everything is written below `<out>/.build` and moved to its place when it is complete, so that a build that is ended at
any moment leaves no file that looks finished, and the same command goes on with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from linnaeus_jax.building.finish import Finished, finish_rows, write_outputs
from linnaeus_jax.building.options import BuildOptions, Shard
from linnaeus_jax.building.pixels import Journal, Outcome, read_pictures
from linnaeus_jax.building.plan import BuildPlan
from linnaeus_jax.building.rows import DUPLICATE_PICTURE, Progress
from linnaeus_jax.building.streamed import finish_file
from linnaeus_jax.building.virtual import IMAGE_BYTES, IMAGE_OFFSETS, IMAGES, Part, write_virtual_images
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import write_json

WORK, PLAN, JOURNAL, PIXELS, SUMMARY = ".build", "plan.json", "journal.jsonl", "images.h5", "build.json"


def build(
    plan: BuildPlan,
    out: Path,
    *,
    shard: Shard | None = None,
    threads: int = 0,
    strict: bool = False,
    progress: Progress = lambda *_: None,
) -> Finished | None:
    """Reads the pictures and writes the data set, or one part of it; goes on where an earlier call was ended.

    Args:
      out: folder of the data set.
      shard: the part; the whole is then joined by `merge`.
      threads: that decode; 0: one for each core.
      strict: rows that are rejected, blanked or changed are an error, and no data set is written.

    Returns:
      What was written; None for a part.

    Raises:
      UserError: the folder holds something else, another process builds in it, or `strict` finds fault.
    """
    directory = shard.directory(out) if shard else out
    rows = shard.rows(len(plan.candidates)) if shard else range(len(plan.candidates))
    name = None if plan.options.images == "folder" else PIXELS
    with work_folder(directory, plan.digest, PLAN if shard else SUMMARY) as work:
        if work is None:
            return None if shard else Finished.load(out)
        if not (work / "commit.json").exists():
            outcomes = read_pictures(
                plan.paths[rows.start : rows.stop],
                plan.options,
                work / JOURNAL,
                work / PIXELS if name else None,
                threads or os.cpu_count() or 1,
                lambda done, total: progress("reading pictures", done, total),
            )
            if name:
                close_images(work / PIXELS, plan.options, outcomes)
            if shard:
                write_json(work / PLAN, {"digest": plan.digest, "candidates": [rows.start, rows.stop]})
                commit(work, directory, [*([PIXELS] if name else []), PLAN, JOURNAL])
                return None
            finished = finish_rows(plan, outcomes)
            _refuse_faults(finished, out, strict)
            files = write_outputs(plan, finished, work, out)
            commit(work, out, [*([PIXELS] if name else []), *files])
        else:
            commit(work, directory, json.loads((work / "commit.json").read_text()))
        return None if shard else Finished.load(out)


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
        if work is None:
            return Finished.load(out)
        outcomes: list[Outcome] = []
        parts: list[Part] = []
        seen: dict[str, int] = {}
        for shard in shards:
            directory = shard.directory(out)
            made = json.loads((directory / PLAN).read_text())
            first = shard.rows(len(plan.candidates)).start
            if made["digest"] != plan.digest:
                raise UserError(f"{directory} was built from other rows, options or versions; build it again")
            stored = Journal.load(directory / JOURNAL).outcomes
            joined = [_in_whole(outcome, first, first + i, seen) for i, outcome in enumerate(stored)]
            kept = np.array([not outcome.reason for outcome in stored], bool)
            used = np.array([not outcome.reason for outcome in joined], bool)[kept]
            parts.append(Part(str((directory / PIXELS).relative_to(out)), used))
            outcomes += joined
        finished = finish_rows(plan, outcomes)
        _refuse_faults(finished, out, strict)
        files = write_outputs(plan, finished, work, out)
        if plan.options.images != "folder":
            staged = out / f"{PIXELS}.merging"  # beside the parts, which it names by relative paths
            try:
                write_virtual_images(staged, [part for part in parts if len(part.used)])
                os.replace(staged, work / PIXELS)
            finally:
                staged.unlink(missing_ok=True)
            files = [PIXELS, *files]
        commit(work, out, files)
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
    sizes = [outcome.stored for outcome in outcomes if not outcome.reason]
    side = options.size
    if options.images == "raw":
        finish_file(path, IMAGES, (len(sizes), side, side, 3))
        return
    finish_file(path, IMAGE_BYTES, (sum(sizes),))
    with h5py.File(path, "r+") as file:
        file[IMAGE_OFFSETS] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


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
        if json.loads(finished.read_text()).get("digest") == digest:
            yield None
            return
        raise UserError(
            f"{directory} holds a data set of other rows, options or versions; give another --out, or --force to "
            "replace it"
        )
    taken = [name for name in ("labels.h5", "images.h5") if (directory / name).exists()]
    if taken and not work.exists():
        raise UserError(f"{directory} holds {' and '.join(taken)} of another origin; give another --out")
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{directory}: another process builds here; wait for it or give another --out") from None
        begun = work / "begun.json"
        if begun.exists() and json.loads(begun.read_text())["digest"] != digest:
            raise UserError(
                f"{directory} holds a build that was begun from other rows, options or versions; finish it with the "
                "same command, or begin anew with --force"
            )
        write_json(begun, {"digest": digest})
        yield work


def commit(work: Path, directory: Path, names: Sequence[str]) -> None:
    """Moves finished files to their places, in this order, and removes the rest; goes on where it was ended."""
    write_json(work / "commit.json", list(names))
    for name in names:
        if (work / name).exists():
            os.replace(work / name, directory / name)
    done = directory / f"{WORK}-done"
    os.replace(work, done)  # at once: half a folder would look like a build that was begun
    shutil.rmtree(done)


def discard(out: Path) -> None:
    """Removes what `build` writes into a folder, and nothing else."""
    for path in (out / WORK, out / "shards"):
        shutil.rmtree(path, ignore_errors=True)
    if (out / SUMMARY).exists():
        for name in (*json.loads((out / SUMMARY).read_text()).get("files", ()), SUMMARY):
            (out / name).unlink(missing_ok=True)


def _refuse_faults(finished: Finished, out: Path, strict: bool) -> None:
    """Under `strict`, lists what is wrong and writes no data set."""
    faults = finished.faults()
    if strict and faults:
        finished.write_tables(out)
        listed = "; ".join(f"{count} {what}" for what, count in faults.items())
        raise UserError(f"--strict: {listed}; see {out}/rejected.csv and {out}/blanked.csv. No data set was written.")
