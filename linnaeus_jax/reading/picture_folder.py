"""The files of a picture folder, and the one way from a path that a record names to a file below that folder.

Nothing outside of the folder is ever reached: "..", absolute paths to elsewhere and links that lead out are refused.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.paths import SUFFIX, SUFFIXES, is_of_system, is_picture, path_fault
from linnaeus_jax.reading.text import printable

#: absolute paths, with "/" between folders
_ABSOLUTE = "^/|^[A-Za-z]:/"
#: of them are looked for at most
_TRIED = 300
LINK_OUT = "a link that leads out of the folder"


@dataclass
class Listing:
    """Files below a folder.

    Attributes:
      root: the folder.
      files: paths relative to the root, with "/", in order, without names of control characters or not in UTF-8.
      refused: path -> why, of what may not be read; names that are not UTF-8 hold surrogates.
      folders: folders seen, relative to the root.
      links: folder links that stay below the root, which are not descended into -> where they lead.
      of_systems: pictures that systems and programs made for themselves, such as thumbnails; a record may name one.
    """

    root: Path
    files: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    of_systems: list[str] = field(default_factory=list)

    def pictures(self) -> list[str]:
        """The files with a suffix of pictures."""
        return [path for path in self.files if is_picture(path)]

    def empty_folders(self) -> list[str]:
        """The folders without any picture in or below them."""
        full = {"", *(str(folder) for path in self.pictures() for folder in PurePosixPath(path).parents)}
        return [folder for folder in self.folders if folder not in full]

    def warnings(self, known: Sequence[str] = ()) -> list[str]:
        """What of the folder is left aside without being a row: files that are no pictures, links to folders."""
        left = (path for path in self.files if path not in known)
        others = Counter(os.path.splitext(path)[1].lower() or "none" for path in left)
        for suffix in SUFFIXES:
            others.pop(f".{suffix}", None)
        found = []
        if others:
            kinds = ", ".join(f"{printable(suffix)} {count}" for suffix, count in others.most_common(5))
            found.append(f"{others.total()} files are left aside, since their suffix is not one of pictures: {kinds}")
        if self.of_systems:
            names = Counter(next(filter(is_of_system, path.split("/"))) for path in self.of_systems)
            kinds = ", ".join(f"{printable(name)} {count}" for name, count in names.most_common(5))
            found.append(
                f"{len(self.of_systems)} pictures are left aside, since they are thumbnails, trash or other files of "
                f"systems and programs: {kinds}{' ...' * (len(names) > 5)}; to use them, name their folder itself"
            )
        if self.links:
            found.append(
                f"{len(self.links)} links to folders below {self.root.name} are left aside: what they lead to is there"
            )
        return found


def open_folder(root: Path | str, what: str = "picture folder") -> Path:
    """A folder as an absolute path. Raises UserError where there is none."""
    path = Path(root)
    if not path.is_dir():
        raise UserError(f"{what} {str(root)!r} {'is not a folder' if path.exists() else 'does not exist'}")
    return Path(os.path.abspath(path))


def list_files(
    root: Path,
    folders: Iterable[str] | None = None,
    *,
    follow_links: bool = False,
    leave_out: Sequence[Path] = (),
    progress: schema.Progress | None = None,
) -> Listing:
    """Files below a folder; hidden ones and those of systems (`paths.is_of_system`) are left aside.

    Args:
      root: an absolute path.
      folders: only these folders, relative to the root, and not what lies below them; None: everything.
      follow_links: whether links may lead out of the root.
      leave_out: folders to leave out, e.g. the one that is written to.
      progress: told of the files found.
    """
    listing = Listing(root)
    real_root = os.path.realpath(root)
    left_out = {os.path.realpath(path) for path in leave_out} - {real_root}
    waiting: list[tuple[str, str, tuple[str, ...]]] = [
        (folder, "", (real_root,)) for folder in (sorted(set(folders)) if folders is not None else [""])
    ]
    while waiting:
        folder, fault, above = waiting.pop()
        place = os.path.join(root, folder)
        real = os.path.realpath(place)
        if real in left_out:
            continue
        if not follow_links and not _is_below(real, real_root):
            listing.refused[folder] = LINK_OUT
            continue
        listing.folders.append(folder)
        below, of_systems = _list_one(listing, folder, fault, real_root, follow_links)
        for path in of_systems:
            _add_of_systems(listing, path, inside=folders is None)
        if folders is None:
            for path, path_fault in below:
                target = os.path.realpath(os.path.join(root, path))
                if target not in above:  # a link to a folder above would never end
                    waiting.append((path, path_fault, (*above, target) if follow_links else above))
        if progress:
            progress(f"looking through {root.name}", len(listing.files), 0)
    listing.files.sort()
    listing.folders.sort()
    return listing


def _list_one(
    listing: Listing, folder: str, fault: str, real_root: str, follow_links: bool
) -> tuple[list[tuple[str, str]], list[str]]:
    """Adds the files of one folder; returns its folders as (path, why nothing in them may be used or ""), and the paths
    in it that are of systems."""
    below, of_systems = [], []
    try:
        entries = sorted(os.scandir(os.path.join(listing.root, folder)), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        listing.refused[folder] = f"cannot be read: {error.strerror}"
        return [], []
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        if is_of_system(entry.name):
            of_systems.append(path)
            continue
        entry_fault = fault or _name_fault(entry.name)
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            inside = _is_below(target, real_root)
            if not inside and not follow_links:
                listing.refused[path] = LINK_OUT
                continue
            if inside and not follow_links and entry.is_dir():
                listing.links[path] = os.path.relpath(target, real_root)
                continue
        if entry.is_dir():
            below.append((path, entry_fault))
        elif entry.is_file():
            if entry_fault:
                listing.refused[path] = entry_fault
            else:
                listing.files.append(path)
    return below[::-1], of_systems


def _add_of_systems(listing: Listing, path: str, *, inside: bool) -> None:
    """Notes the pictures of a file, or inside of a folder, of systems; what cannot be read there does not matter."""
    top = os.path.join(listing.root, path)
    if os.path.islink(top):
        return
    found = [path] if os.path.isfile(top) else []
    for place, folders, names in os.walk(top) if inside else ():
        folders.sort()
        below = os.path.relpath(place, listing.root).replace(os.sep, "/")
        found += [f"{below}/{name}" for name in sorted(names)]
    listing.of_systems += [path for path in found if is_picture(path) and not _name_fault(path)]


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _name_fault(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    return path_fault(name)


def find_files(
    named: pl.Series, root: Path, listing: Listing | None = None, *, follow_links: bool = False
) -> pl.DataFrame:
    """Files that records name.

    A path may be relative to the root or absolute below it, with "/" or "\\" between folders. A suffix that is missing,
    another case and another Unicode form of the same name are found where only one file fits.

    Args:
      named: String [N], null = none.
      root: folder that relative paths are relative to.
      listing: all files below the root; None: only the folders that are named are looked into.
      follow_links: whether links may lead out of the root.

    Returns:
      [N] rows: `picture` (the file; where there is none that may be read, the path as named), `reason` and `detail`,
      null where all is well.
    """
    distinct = pl.DataFrame({"named": named.unique().drop_nulls()})
    distinct = distinct.with_columns(_relative(pl.col("named"), root).alias("path"))
    if listing is None:
        paths = distinct.filter(pl.col("path").map_batches(_unfaulted, pl.Boolean))["path"]
        folders = paths.str.replace(r"/?[^/]*$", "").unique()
        listing = list_files(root, folders.to_list(), follow_links=follow_links)
    files = pl.Series("file", [*listing.files, *listing.of_systems], dtype=pl.String)
    for key in ("named", "path"):
        here = pl.DataFrame({key: files, f"by_{key}": files})
        distinct = distinct.join(here, on=key, how="left")
    distinct = distinct.with_columns(pl.coalesce("by_named", "by_path").alias(schema.PICTURE))
    missed = distinct.filter(pl.col(schema.PICTURE).is_null())
    near = _Near(listing)
    results = [near.find(name, path) for name, path in missed.select("named", "path").iter_rows()]
    kinds = {"named": pl.String, schema.PICTURE: pl.String, schema.REASON: pl.String, schema.DETAIL: pl.String}
    others = pl.DataFrame([(name, *result) for name, result in zip(missed["named"], results)], kinds, orient="row")
    found = distinct.filter(pl.col(schema.PICTURE).is_not_null()).select("named", schema.PICTURE)
    result = pl.concat([found, others], how="diagonal")
    return pl.DataFrame({"named": named}).join(result, on="named", how="left", maintain_order="left").drop("named")


def relative_to(named: pl.Series, root: Path) -> tuple[pl.Series, list[str]]:
    """Paths of another computer as paths below a folder of pictures.

    Absolute paths, such as `D:\\survey\\cam1\\a.jpg` or `\\\\server\\share\\cam1\\a.jpg`, are cut to what lies below
    the root where one start of them, the same for all, leaves files that are there.

    Args:
      named: String [N], null = none.

    Returns:
      The paths, [N], and what was done, or why nothing was.
    """
    distinct = pl.DataFrame({"named": named.unique(maintain_order=True).drop_nulls()})
    distinct = distinct.with_columns(_relative(pl.col("named"), root).alias("path"))
    distinct = distinct.filter(pl.col("path").str.contains(_ABSOLUTE))
    starts = Counter(start for path in distinct["path"][:_TRIED] if (start := _start_elsewhere(path, root)) is not None)
    if not starts:
        return named, []
    if len(starts) > 1:
        listed = ", ".join(printable(start) for start, _ in starts.most_common(3))
        return named, [
            f"absolute paths of another computer are left out, since {len(starts)} starts of them lead to files below "
            f"{root.name}: {listed}; write them relative to that folder"
        ]
    (start,) = starts
    distinct = distinct.filter(pl.col("path").str.starts_with(f"{start}/"))
    cut = distinct["path"].str.slice(len(start) + 1)
    example = f"{printable(distinct['named'][0])} is {printable(cut[0])}"
    return named.replace(distinct["named"], cut), [
        f"{distinct.height} absolute paths of another computer are read without {printable(start)}: {example} below "
        f"{root.name}"
    ]


def _start_elsewhere(path: str, root: Path) -> str | None:
    """The shortest start of an absolute path without which it is a file below the root."""
    parts = path.split("/")
    for cut in range(1, len(parts)):
        rest = "/".join(parts[cut:])
        if not path_fault(rest) and os.path.isfile(os.path.join(root, rest)):
            return "/".join(parts[:cut])
    return None


def _relative(named: pl.Expr, root: Path) -> pl.Expr:
    """Paths with "/" between folders, relative to the root where they are absolute below it."""
    path = named.str.replace_all("\\", "/", literal=True).str.replace(r"^file://", "").str.replace_all(r"/{2,}", "/")
    for prefix in {os.path.realpath(root), str(root)}:
        path = path.str.strip_prefix(prefix.rstrip("/") + "/")
    return path.str.replace(r"^(\./)+", "")


def _unfaulted(paths: pl.Series) -> pl.Series:
    return pl.Series([not path_fault(path) for path in paths], dtype=pl.Boolean)


class _Near:
    """Files found by what is nearly their path, and the reasons why one is not found."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._files = frozenset(listing.files) if listing.links else frozenset()
        self._by_key: dict[str, list[str]] | None = None

    def find(self, named: str, path: str) -> tuple[str | None, str | None, str | None]:
        """(picture, reason, detail) of a path that is not in the listing."""
        fault = path_fault(path)
        if fault:
            advice = "; write it relative to the folder of pictures" if re.match(_ABSOLUTE, path) else ""
            return named, schema.UNSAFE_PATH, f"{fault}{advice}"
        parts = path.split("/")
        for end in range(len(parts), 0, -1):
            start = "/".join(parts[:end])
            if start in self._listing.refused:
                return named, schema.UNSAFE_PATH, self._listing.refused[start]
            if start in self._listing.links:
                other = "/".join([self._listing.links[start], *parts[end:]]).removeprefix("./")
                if other in self._files:
                    return other, None, None
        keys = (_near_key(path), _bare_key(path), _any_case_key(path))
        files = next(filter(None, (self._keys().get(key) for key in keys)), [])
        if len(files) == 1:
            return files[0], None, None
        detail = f"{len(files)} files fit: {', '.join(map(printable, files[:3]))}" if files else None
        return path, schema.NO_SUCH_PICTURE, detail

    def _keys(self) -> dict[str, list[str]]:
        if self._by_key is None:
            self._by_key = {}
            for path in self._listing.pictures():
                for key in (_near_key(path), _bare_key(path[: path.rfind(".")]), _any_case_key(path)):
                    self._by_key.setdefault(key, []).append(path)
        return self._by_key


def _near_key(path: str) -> str:
    """A path with its suffix in lower case, in the composed form of Unicode."""
    path = unicodedata.normalize("NFC", path)
    match = re.search(SUFFIX, path)
    return path[: match.start()] + match[0].lower() if match else path


def _any_case_key(path: str) -> str:
    """Key of a path in any case, as Windows takes it, which no path has as it is."""
    return "//" + _near_key(path).casefold()


def _bare_key(path: str) -> str:
    """Key of a path without its suffix, which no path with one has."""
    return "/" + unicodedata.normalize("NFC", path)


def unclaimed(listing: Listing, claimed: pl.Series) -> pl.DataFrame:
    """Rows for the pictures of a folder that no record names, and for what in it was refused."""
    files = pl.Series(schema.PICTURE, listing.pictures(), dtype=pl.String)
    named = claimed.drop_nulls().unique()
    left = files.filter(~files.is_in(named.implode()))
    kinds = {schema.PICTURE: pl.String, schema.REASON: pl.String, schema.DETAIL: pl.String}
    data: list[tuple[str, str, str | None]] = [(path, schema.UNCLAIMED, None) for path in left]
    refused = {path.encode("utf-8", "backslashreplace").decode(): why for path, why in listing.refused.items()}
    for path in named.filter(named.is_in(list(refused))):
        refused.pop(path)
    data += [(path, schema.UNSAFE_PATH, why) for path, why in sorted(refused.items())]
    return pl.DataFrame(data, kinds, orient="row").with_columns(pl.lit(0, pl.Int64).alias(schema.LINE))
