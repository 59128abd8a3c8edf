"""Which pictures are meant by files, folders and patterns, and which of them one process takes."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.paths import Shard, is_of_system, is_picture
from linnaeus_jax.reading.picture_folder import list_files
from linnaeus_jax.reading.schema import Progress
from linnaeus_jax.reading.text import printable

_PATTERN = frozenset("*?[")


@dataclass(frozen=True)
class PictureFile:
    """One picture to be predicted.

    Attributes:
      path: where it lies.
      name: what it is called in results: the path as it was given, or below the folder as it was given.
      relative: its path below the folder that was given; of a file, its own name.
      fault: why it may not be read; "" where it may.
    """

    path: Path
    name: str
    relative: str
    fault: str = ""


def stamp_of(picture: PictureFile) -> str:
    """Size and time of a picture's file, by which a change is seen; "" where there is none."""
    try:
        status = os.stat(picture.path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def list_pictures(
    given: Sequence[str],
    *,
    recursive: bool = True,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[PictureFile]:
    """The pictures of files, folders and glob patterns, in the order given and by name within a folder.

    One that is named several times is there as often, so that there is an answer for each name given.

    A file is taken whatever its suffix, a folder gives its files with a suffix of pictures. What systems made for
    themselves, such as thumbnails, is left aside unless it is named itself. Links are followed.

    Args:
      recursive: also the folders below a folder.
      say: told of files that are left aside, and why, and of those that are named several times.

    Raises:
      UserError: nothing of that name, a pattern that fits nothing, or no picture at all.
    """
    found: list[PictureFile] = []
    for text in given:
        for path in _matches(text, say):
            found += _of_folder(path, recursive, progress, say) if os.path.isdir(path) else [_of_file(path)]
    if not found:
        raise UserError(f"no pictures below {', '.join(given)}; files are known as pictures by their suffix")
    several = [path for path, count in Counter(os.path.abspath(each.path) for each in found).items() if count > 1]
    if several:
        say(f"{len(several)} pictures are named several times, and have an answer for each: {printable(several[0])}")
    return found


def _matches(text: str, say: Callable[[str], None]) -> list[str]:
    """Files and folders that one argument stands for."""
    if os.path.exists(os.path.expanduser(text)):
        return [os.path.expanduser(text)]
    if _PATTERN.isdisjoint(text):
        raise UserError(f"{printable(text)} does not exist; give files, folders or patterns such as 'photos/*.jpg'")
    matches = sorted(glob.glob(os.path.expanduser(text), recursive=True))
    if not matches:
        raise UserError(f"no file fits the pattern {printable(text)}")
    named = set(os.path.normpath(os.path.expanduser(text)).split(os.sep))
    kept = [path for path in matches if not any(map(is_of_system, {*os.path.normpath(path).split(os.sep)} - named))]
    if len(kept) < len(matches):
        say(f"{printable(text)}: {len(matches) - len(kept)} files or folders of systems and programs are left aside")
    return kept


def _of_file(path: str) -> PictureFile:
    return PictureFile(Path(path), _shown(path), os.path.basename(path))


def _of_folder(
    folder: str, recursive: bool, progress: Progress | None, say: Callable[[str], None]
) -> Iterable[PictureFile]:
    listing = list_files(
        Path(os.path.abspath(folder)), None if recursive else [""], follow_links=True, progress=progress
    )
    for warning in listing.warnings():
        say(f"{_shown(folder)}: {warning}; name them one by one if they are pictures")
    faults = {path: fault for path, fault in listing.refused.items() if is_picture(path) or fault.startswith("cannot")}
    for relative in sorted([*listing.pictures(), *faults]):
        path = os.path.join(folder, relative)
        yield PictureFile(Path(path), _shown(path), relative, faults.get(relative, ""))


def _shown(path: str) -> str:
    """A path as text that can be written: bytes that are not UTF-8 as escapes."""
    return path.encode("utf-8", "backslashreplace").decode()


def of_shard(pictures: Iterable[PictureFile], shard: Shard) -> list[PictureFile]:
    """The pictures of one part.

    A picture's part is a hash of its path below the folder that was given, so that it depends neither on the other
    pictures nor on where the folder is mounted.
    """

    def part(picture: PictureFile) -> int:
        digest = hashlib.sha256(picture.relative.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % shard.count

    return [picture for picture in pictures if part(picture) == shard.index - 1]
