"""Named files of a zip or a folder, read as they lie; nothing is unpacked.

An archive comes from elsewhere: every way in which it could reach out of itself, or fill the memory, is an error.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.hdf5 import BOMB_RATIO, BOMB_SIZE
from linnaeus_jax.reading.delimited import TextSource
from linnaeus_jax.reading.paths import is_of_system
from linnaeus_jax.reading.table import check_tar
from linnaeus_jax.reading.text import printable

LARGEST_TEXT = 16 << 20
_ENCRYPTED = 1


class Archive:
    """Named files of a zip or a folder.

    Attributes:
      path: the zip or folder.
      names: files in it, with "/" between folders.
    """

    def __init__(self, path: Path, index: str = "") -> None:
        """Raises UserError for what is no zip or folder, or not safe to read.

        Args:
          index: name of the file that describes the others.
        """
        self.path, self._index = path, index
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self.names = sorted(entry.name for entry in os.scandir(path) if entry.is_file() and entry.name[0] != ".")
            self._inside = ""
            return
        if not path.is_file():
            raise UserError(f"archive {str(path)!r} does not exist")
        check_tar(path)
        with self._errors():
            self._zip = zipfile.ZipFile(path)
            members = [info for info in self._zip.infolist() if not info.is_dir()]
            for info in members:
                self._check_member(info)
        names = [info.filename for info in members if not any(map(is_of_system, info.filename.split("/")))]
        # zips of a folder, made by hand, have everything in that folder
        found = [name for name in names if index and name.rpartition("/")[2] == index]
        self._inside = found[0][: -len(index)] if len(found) == 1 else ""
        self.names = [name[len(self._inside) :] for name in names if name.startswith(self._inside)]

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.filename.replace("\\", "/")
        where = f"{self.path.name}: {printable(info.filename)}"
        if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
            raise UserError(f"{where} would lie outside of the archive; it is not read")
        if info.flag_bits & _ENCRYPTED:
            raise UserError(f"{where} is encrypted; unpack the archive and give the folder")
        if info.file_size > BOMB_SIZE and info.file_size > BOMB_RATIO * info.compress_size:
            raise UserError(
                f"{where} would grow from {info.compress_size} to {info.file_size} bytes, "
                f"more than {BOMB_RATIO} times; it is not read"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise UserError(f"{self.path.name} is no zip file or is damaged: {printable(str(error))}") from None

    def _member(self, name: str) -> str:
        """Full name of a file that the archive names. Raises UserError for one that is not in it."""
        fault = f"{self.path.name}: {self._index} names {printable(name)!r}"
        parts = name.replace("\\", "/").split("/")
        if "://" in name or parts[0] == "" or ":" in parts[0] or ".." in parts or "\0" in name:
            raise UserError(f"{fault}, which is not a file of the archive")
        if self._zip is None:
            place = os.path.realpath(self.path / name)
            root = os.path.realpath(self.path)
            if os.path.isfile(place) and os.path.commonpath([root, place]) != root:
                raise UserError(f"{fault}, a link that leads out of the archive")
            there = os.path.isfile(place)
        else:
            there = name in self.names
        if not there:
            raise UserError(f"{fault}, which is missing; there are {', '.join(map(printable, self.names[:10]))}")
        return self._inside + name

    @contextmanager
    def open(self, name: str) -> Iterator[TextSource]:
        """A file of the archive; no more of it is read than its declared size."""
        member = self._member(name)
        with self._errors():
            if self._zip is None:
                size = os.path.getsize(self.path / name)
            else:
                size = self._zip.getinfo(member).file_size
            with (self.path / name).open("rb") if self._zip is None else self._zip.open(member) as stream:
                counted = _Counted(stream)
                yield TextSource(cast(BinaryIO, counted), name, size, lambda: counted.count)

    def text(self, name: str) -> str:
        """A short file as text. Raises UserError for one that is not short."""
        with self.open(name) as source:
            if source.size > LARGEST_TEXT:
                raise UserError(f"{self.path.name}: {name} has {source.size} bytes, more than {LARGEST_TEXT}")
            data = source.stream.read(LARGEST_TEXT)
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")


class _Counted:
    """A stream that counts what was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.count += len(data)
        return data
