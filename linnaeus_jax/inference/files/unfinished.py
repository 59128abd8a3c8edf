"""What is made of many pictures and takes long: kept as it comes, gone on with after an interruption.

While the work lasts, `OUT.unfinished/` holds

about.json       what is made, and with what
progress.jsonl   after every batch, how long the other files are, the SHA-256 of what they hold and what was counted:
                 what is longer, or was lost by a power failure, is written again; size and time of the files of its
                 pictures: from the first one that has changed on, all are done again

and the files that hold what was made of the pictures, in order. At the end OUT is made of them, with OUT.about.json.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import (
    journal_entries,
    json_text,
    locked,
    locked_elsewhere,
    make_directory,
    replaced_file,
    write_json,
)
from linnaeus_jax.inference.files.picture_list import PictureFile, stamp_of
from linnaeus_jax.inference.files.predicting import Part
from linnaeus_jax.system import naming

#: what belongs to a file of answers, see `sidecar_path`
UNFINISHED, ABOUT, UNREADABLE, ROWS, PICTURES = "unfinished", "about.json", "unreadable.csv", "rows.csv", "pictures"
_PROGRESS = "progress.jsonl"
UNREADABLE_HEADER = b"file,reason\n"


@dataclass
class Summary:
    """Counts over all pictures.

    Attributes:
      pictures, unreadable: all, and those that could not be read.
      not_finite: for which the outputs of the model are not finite.
      answers: rank -> pictures that were answered there, "" for unknown.
      metadata_from: "table", "exif" or "" -> pictures.
      inputs: name of a metadata component -> pictures that it was known of.
      notes: pictures with notes.
      reasons: code of `reasons.CODES` -> pictures whose answer ends above the finest rank by it.
      set_size: taxa of all sets together, if there are sets.
      occurrences: as `answers`, of occurrences that were answered together.
      novelty: one of `novelty.KINDS` -> pictures of which it is said.
    """

    pictures: int = 0
    unreadable: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    metadata_from: Counter[str] = field(default_factory=Counter)
    inputs: Counter[str] = field(default_factory=Counter)
    notes: int = 0
    not_finite: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    set_size: int = 0
    occurrences: Counter[str] = field(default_factory=Counter)
    novelty: Counter[str] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        """Pictures with an answer, which may be that it is unknown."""
        return self.pictures - self.unreadable - self.not_finite

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Summary:
        """From its fields as JSON has them."""
        fields: Any = {name: Counter(value) if isinstance(value, dict) else value for name, value in saved.items()}
        return cls(**fields)

    def add(self, part: Part[Any]) -> None:
        """Counts a part, apart from what its answers are."""
        self.pictures += len(part.pictures)
        self.not_finite += part.not_finite
        self.unreadable += sum(map(bool, part.reasons)) - part.not_finite
        if part.answered is None:
            return
        self.metadata_from.update(part.metadata_from)
        self.inputs.update(itertools.chain.from_iterable(part.inputs))
        self.notes += sum(map(bool, part.notes))


def sidecar_path(out: Path, what: str) -> Path:
    """A file that belongs to `out`: ("predictions.csv", "about.json") -> predictions.csv.about.json."""
    return out.with_name(f"{out.name}.{what}")


def remove(out: Path, *, finished: bool) -> None:
    """Takes away what is unfinished, and with `finished` also `out` and what belongs to it.

    Raises:
      UserError: with `finished`, where another process is writing it.
    """
    if finished and locked_elsewhere(sidecar_path(out, UNFINISHED) / _PROGRESS):
        raise UserError(f"another process is writing {out}; wait for it or choose another --out")
    shutil.rmtree(sidecar_path(out, UNFINISHED), ignore_errors=True)
    beside = (ABOUT, UNREADABLE, ROWS, f"{PICTURES}{out.suffix}")
    for path in (out, *(sidecar_path(out, what) for what in beside)) if finished else ():
        path.unlink(missing_ok=True)


# ---- the command again


def finished(out: Path, about: Mapping[str, Any], pictures: Sequence[PictureFile] = ()) -> Summary | None:
    """What was counted where `out` is finished and was made with the same; None where there is nothing yet.

    Raises:
      UserError: `out` is something else, or one of its pictures has changed since.
    """
    if not out.exists():
        return None
    known = _read(sidecar_path(out, ABOUT))
    if known is None:
        raise UserError(f"{out} exists already; choose another --out, or replace it with --force")
    _check_same(out, known["made_with"], about)
    if pictures and known.get("stamps", stamps := _stamps(map(stamp_of, pictures))) != stamps:
        raise UserError(f"{out} is complete, but some of its pictures have changed since; begin anew with --force")
    return Summary.read(known["counts"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
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
            f"{out} was begun with other inputs: {said}; rerun the command to resume, choose another --out, or "
            "replace it with --force"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- while the work lasts


class Unfinished:
    """Files that grow with every part, and their journal.

    Attributes:
      folder: where they lie.
      summary: of what is done.
      changed: name of the first picture that was done and has changed since, so that it is to be done again; "": none.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, IO[bytes]],
        headers: Mapping[str, bytes],
        log: IO[bytes],
        pictures: Sequence[PictureFile] = (),
    ) -> None:
        self.folder, self._files, self._log = folder, files, log
        self._digests = {name: hashlib.sha256() for name in files}
        self.summary, lengths = Summary(), dict.fromkeys(files, 0)
        self.changed, self._stamps = "", list[str]()
        whole = 0
        for end, entry in journal_entries(log):
            if any(entry["lengths"][name] > _length(file) for name, file in files.items()):
                break
            here, stamps = pictures[self.summary.pictures :], entry.get("stamps", [])
            self.changed = next((each.name for each, was in zip(here, stamps) if stamp_of(each) != was), "")
            if self.changed:
                break
            digests = {name: digest.copy() for name, digest in self._digests.items()}
            for each, part in files.items():
                part.seek(lengths[each])
                digests[each].update(part.read(entry["lengths"][each] - lengths[each]))
            if entry.get("sha256", found := _hexadecimal(digests)) != found:  # earlier versions kept none
                break
            self._digests, self._stamps = digests, self._stamps + stamps
            whole, lengths, self.summary = end, entry["lengths"], Summary.read(entry["summary"])
        for name, file in (*files.items(), (None, log)):
            file.truncate(lengths[name] if name is not None else whole)
        if not whole:
            for name, header in headers.items():
                self._append(name, header)

    def _append(self, name: str, content: bytes) -> None:
        self._files[name].write(content)
        self._digests[name].update(content)

    def add(self, part: Part[Any], contents: Mapping[str, bytes]) -> None:
        """Appends what was made of a part to the files, by their names."""
        self.summary.add(part)
        for name, file in self._files.items():
            if contents.get(name):
                self._append(name, contents[name])
            file.flush()
        lengths = {name: _length(file) for name, file in self._files.items()}
        self._stamps += part.stamps
        entry = {"lengths": lengths, "sha256": _hexadecimal(self._digests), "stamps": list(part.stamps)}
        entry["summary"] = vars(self.summary)
        self._log.write(json_text(entry).encode() + b"\n")
        self._log.flush()

    def finish(self, out: Path, about: Mapping[str, Any]) -> None:
        """Writes what stands beside `out`; `remove` takes the rest away."""
        if self.summary.answered < self.summary.pictures:
            with replaced_file(sidecar_path(out, UNREADABLE)) as listed:
                shutil.copyfile(self.folder / UNREADABLE, listed)
        else:
            sidecar_path(out, UNREADABLE).unlink(missing_ok=True)
        known = {"made_with": dict(about), "counts": vars(self.summary), "stamps": _stamps(self._stamps)}
        write_json(sidecar_path(out, ABOUT), known)


def _stamps(stamps: Iterable[str]) -> str:
    """Of all pictures, in one text."""
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]


def _hexadecimal(digests: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of each file, by its name."""
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _length(file: IO[bytes]) -> int:
    """Bytes of a file that is open for appending."""
    return file.seek(0, 2)


@contextlib.contextmanager
def opened(
    folder: Path, out: Path, about: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[dict[str, IO[bytes]], IO[bytes]]]:
    """The files of these names and the journal of what is unfinished, or begun now.

    Args:
      folder: where it lies.
      out: what it is for, in messages.
      about: what it is made with, as JSON types.

    Raises:
      UserError: it was begun with something else, or another process is writing.
    """
    make_directory(folder)
    with naming(folder), contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / _PROGRESS).open("ab+"))
        if locked(log) is False:
            raise UserError(f"another process is writing {out}; wait for it or choose another --out")
        known = _read(folder / ABOUT)
        if known is None:
            log.truncate(0)
            write_json(folder / ABOUT, {"made_with": dict(about)})
        else:
            _check_same(out, known["made_with"], about)
        log.seek(0)
        files: dict[str, IO[bytes]] = {name: stack.enter_context((folder / name).open("ab+")) for name in names}
        yield files, log
