"""Picking the lines of chosen debug flags out of a run's text logs.

A record is kept or dropped as a whole, with its continuation lines. A flag stands for its prefix and those that extend
it: DEBUG.LOSS.NULL_MASKING for [DEBUG_NULL_MASKING] and [DEBUG_NULL_MASKING_SUMMARY] alike.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.debugging.flags import FLAGS, leaf
from linnaeus_jax.files import write_atomically

_LOG = re.compile(r"(?P<stream>(?:h5data_)?debug_log_rank(?P<rank>\d+)\.txt)(?:\.(?P<age>\d+))?")
_RECORD = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) )?(?:\[h5data\] )?(?P<message>.*)", re.DOTALL
)
_PREFIX = re.compile(r"\[(DEBUG_[A-Z0-9_]+)\]")


class FilterError(UserError):
    """The filter cannot do what was asked; the message says why."""


def prefix(flag: str) -> str:
    """The prefix of a flag's lines: its last dotted part, e.g. [DEBUG_SCHEDULING] of DEBUG.SCHEDULING.

    Raises:
      FilterError: there is no such flag.
    """
    name = leaf(flag).upper()
    names = [leaf(path).upper() for path in FLAGS]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise FilterError(f"{flag} is no debug flag" + (f"; did you mean {near[0]}?" if near else ""))
    return f"[DEBUG_{name}]"


def find_logs(directory: Path, rank: int) -> dict[str, list[Path]]:
    """Stream (name of the newest file) -> its files, oldest rotation first; `rank` -1 takes every process.

    Raises:
      FilterError: there is no such directory, or no log in it.
    """
    if not directory.is_dir():
        raise FilterError(f"{directory} is no directory; text logs lie in <run directory>/logs")
    streams: dict[tuple[int, str], list[tuple[int, Path]]] = {}
    for path in directory.iterdir():
        match = _LOG.fullmatch(path.name)
        if match and rank in (-1, int(match["rank"])):
            streams.setdefault((int(match["rank"]), match["stream"]), []).append((int(match["age"] or 0), path))
    if not streams:
        whose = "" if rank == -1 else f" of process {rank}"
        raise FilterError(
            f"{directory} holds no text logs{whose} (debug_log_rank<r>.txt, h5data_debug_log_rank<r>.txt)"
        )
    return {stream: [path for _, path in sorted(files, reverse=True)] for (_, stream), files in sorted(streams.items())}


def records(lines: Iterable[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Groups lines into (level number, message of the first line, lines); a record begins with a time."""
    current: tuple[int, str, list[str]] | None = None
    for line in lines:
        match = _RECORD.match(line)
        assert match is not None  # all its parts are optional
        if match["level"] is None and current is not None:
            current[2].append(line)
            continue
        if current is not None:
            yield current
        current = (logging.getLevelNamesMapping().get(match["level"], logging.DEBUG), match["message"], [line])
    if current is not None:
        yield current


def is_of(message: str, prefixes: Sequence[str]) -> bool:
    """Whether a message begins with one of the prefixes or with one that extends it by `_...`."""
    match = _PREFIX.match(message)
    return match is not None and any(f"[{match[1]}_".startswith(f"{prefix[:-1]}_") for prefix in prefixes)


def filter_logs(
    directory: Path,
    output: str = "filtered_log.txt",
    *,
    flags: Sequence[str] = (),
    blocked: Sequence[str] = (),
    rank: int = -1,
    kind: str = "both",
) -> tuple[Path, int]:
    """Writes the chosen records of all logs, oldest first, to `output` in `directory`.

    Args:
      flags: keep only lines of these flags; empty: all.
      blocked: drop lines of these flags.
      rank: process, or -1 for all.
      kind: "info": records of level INFO and above; "debug" and "both": every record, as the files hold both.

    Returns:
      The file, and the number of its records.

    Raises:
      FilterError: no logs, an unknown flag, or an output that is one of the logs.
    """
    kept, dropped = [prefix(flag) for flag in flags], [prefix(flag) for flag in blocked]
    streams = find_logs(directory, rank)
    if _LOG.fullmatch(Path(output).name):
        raise FilterError(f"-o {output} is the name of a log; choose another")
    lowest, count = logging.INFO if kind == "info" else 0, 0

    def chosen() -> Iterator[str]:
        nonlocal count
        for stream, paths in streams.items():
            if len(streams) > 1:
                yield f"==> {stream} <==\n"
            for level, message, lines in records(_lines(paths)):
                if level >= lowest and (not kept or is_of(message, kept)) and not is_of(message, dropped):
                    yield from lines
                    count += 1

    write_atomically(directory / output, chosen())
    return directory / output, count


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from (line if line.endswith("\n") else f"{line}\n" for line in file)
