"""Paths of pictures, which files of unknown origin name: they must stay below the folder that they belong to."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from linnaeus_jax import system
from linnaeus_jax.data.images import image_path

# ---- One part of many pictures, for several processes or machines


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count` of the pictures, built on its own."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "2/8".

        Raises:
          ValueError: another form, or a part that there is not.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise ValueError(f"--shard {text}: give i/n with i from 1 to n, e.g. 2/8")
        return cls(int(index), int(count))

    def rows(self, total: int) -> range:
        """The candidates of this part of `total`."""
        return range(total * (self.index - 1) // self.count, total * self.index // self.count)

    def directory(self, out: Path) -> Path:
        """Where the part lies below the folder of the data set."""
        return out / "shards" / f"{self.index}-of-{self.count}"


# ----------------------------------------------------------------------------------------------------------------------


#: ends of the names of picture files, without the dot: of what `data.decoding` reads
SUFFIXES: tuple[str, ...] = (
    "jpg",
    "jpeg",
    "jpe",
    "jfif",
    "mpo",
    "png",
    "apng",
    "webp",
    "bmp",
    "tif",
    "tiff",
    "gif",
    *("jp2", "j2k", "j2c", "jpc", "jpf", "jpx"),
    *("avif", "avifs"),
    *("heic", "heif", "hif"),
    *("ppm", "pgm", "pbm", "pnm"),
)
#: larger files are no pictures
MAX_FILE_BYTES = 1 << 30
SUFFIX = rf"(?i)\.({'|'.join(SUFFIXES)})$"
_IS_PICTURE = re.compile(SUFFIX)
#: why a path is not used -> what it looks like
_FAULTS = {
    "empty": r"^$",
    "a control character in the path": r"[\x00-\x1f\x7f]",
    "an absolute path out of the folder": r"^[\\/]|^[A-Za-z]:",
    "'..' in the path": r"(?:^|[\\/])\.\.(?:[\\/]|$)",
}
#: likewise, of files that are there: backslashes stand between folders on one system and are letters on others
_NAME_FAULTS = {**_FAULTS, "a backslash in the path": r"\\"}
_PATTERNS = {fault: re.compile(pattern) for fault, pattern in _NAME_FAULTS.items()}
#: any of the first but "empty", in the bytes of a path
UNSAFE = re.compile("|".join(list(_FAULTS.values())[1:]).encode())


#: names of folders and files that systems and programs make for themselves, beside all that begin with a dot: trash,
#: previews, thumbnails, indexes
_OF_SYSTEMS = re.compile(
    r"@eadir|@recycle|@recently-snapshot|@__thumb|@tmp|@sharebin|#recycle|#snapshot"  # Synology, QNAP
    r"|\$recycle\.bin|recycler|recycled|system volume information|found\.\d{3}|thumbs\.db|ehthumbs.*\.db|desktop\.ini"
    r"|__macosx|network trash folder|temporary items|icon\r|lost\+found|thumbnails|__pycache__|node_modules"
    r"|.*\.(lrdata|lrcat-data|photoslibrary|photolibrary|aplibrary|cocatalog)|captureone|ipod photo cache"
    r"|adobe bridge cache|synophoto_.*|synofile_.*|synoindex_.*|~.*\.tmp",
    re.IGNORECASE,
)


def is_of_system(name: str) -> bool:
    """Whether a folder or file is of a system or program, not of a person: "@eaDir", ".thumbnails", "._a.jpg"."""
    return name.startswith(".") or _OF_SYSTEMS.fullmatch(name) is not None


def is_picture(path: str) -> bool:
    """Whether a path ends like one of a picture."""
    return _IS_PICTURE.search(path) is not None


def path_fault(path: str) -> str:
    """Why a path may not be looked for below a folder; "" where it may."""
    return next((fault for fault, pattern in _PATTERNS.items() if pattern.search(path)), "")


def read_file(path: str) -> bytes:
    """The bytes of a regular file.

    Raises:
      OSError: no such file, or it cannot be read.
      ValueError: no regular file, or one too large for a picture.
    """
    descriptor = os.open(path, system.READ_AT_ONCE)  # a pipe must not stop the build
    with open(descriptor, "rb", buffering=0) as file:  # half the time of a buffered one
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise ValueError(f"a file of {status.st_size} bytes")
        return file.readall()


class UnsafePathError(ValueError):
    """A path that leads out of its folder; the message is the reason."""


class SafeFolder:
    """A folder, and the paths of files below it.

    Symbolic links are followed as far as they stay below the folder; the folder itself may be one.
    """

    def __init__(self, folder: Path) -> None:
        self.root = os.path.realpath(folder)
        self._checked: set[str] = set()

    def path(self, identifier: str, extension: str = "") -> str:
        """Path of the file of an identifier, see `data.images.image_path`.

        Raises:
          UnsafePathError: it is absolute, holds ".." or control characters, or a folder on the way, or the file
            itself, is a symbolic link that leads out.
        """
        if fault := path_fault(identifier.replace("\\", "/")):
            raise UnsafePathError(fault)
        path = image_path(self.root, identifier, extension)
        parent = os.path.dirname(path)
        if parent not in self._checked:
            self._check(parent)
            self._checked.add(parent)
        if os.path.islink(path):
            self._check(path)
        return path

    def _check(self, path: str) -> None:
        if os.path.commonpath([self.root, os.path.realpath(path)]) != self.root:
            raise UnsafePathError("a symbolic link leads out of the folder")
