"""Picks the lines of chosen debug flags out of a run's text logs.

python -m linnaeus_jax.tools.filter_logs RUN/logs -o null_masking_logs.txt -f DEBUG.LOSS.NULL_MASKING -t debug -r 0

A record is kept or dropped as a whole, with its continuation lines. A flag stands for its prefix and those that extend
it: DEBUG.LOSS.NULL_MASKING for [DEBUG_NULL_MASKING] and [DEBUG_NULL_MASKING_SUMMARY] alike.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from linnaeus_jax.debugging.flags import FLAGS, leaf

_LOG = re.compile(r"(?P<stream>(?:h5data_)?debug_log_rank(?P<rank>\d+)\.txt)(?:\.(?P<age>\d+))?")
_RECORD = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) (?:\[h5data\] )?(?P<message>.*)", re.DOTALL
)
_BARE = re.compile(r"(?:\[h5data\] )?(?P<message>.*)", re.DOTALL)
_PREFIX = re.compile(r"\[(DEBUG_[A-Z0-9_]+)\]")


class FilterError(Exception):
    """The filter cannot do what was asked; the message says why."""


def prefix(flag: str) -> str:
    """The prefix of a flag's lines: its last dotted part, e.g. [DEBUG_SCHEDULING] of DEBUG.SCHEDULING.

    Raises:
      FilterError: there is no such flag.
    """
    name = leaf(flag).upper()
    known = [leaf(path).upper() for path in FLAGS]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise FilterError(f"{flag} is no debug flag" + (f"; did you mean {near[0]}?" if near else ""))
    return f"[DEBUG_{name}]"


def find_logs(directory: Path, rank: int) -> dict[str, list[Path]]:
    """Stream (name of the newest file) -> its files, oldest rotation first; `rank` -1 takes every process.

    Raises:
      FilterError: there is no such directory, or no log in it.
    """
    if not directory.is_dir():
        raise FilterError(f"{directory} is no directory; text logs lie in <run directory>/logs")
    found: dict[tuple[int, str], list[tuple[int, Path]]] = {}
    for path in directory.iterdir():
        match = _LOG.fullmatch(path.name)
        if match and rank in (-1, int(match["rank"])):
            found.setdefault((int(match["rank"]), match["stream"]), []).append((int(match["age"] or 0), path))
    if not found:
        whose = "" if rank == -1 else f" of process {rank}"
        raise FilterError(
            f"{directory} holds no text logs{whose} (debug_log_rank<r>.txt, h5data_debug_log_rank<r>.txt)"
        )
    return {stream: [path for _, path in sorted(files, reverse=True)] for (_, stream), files in sorted(found.items())}


def records(lines: Iterable[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Groups lines into (level number, message of the first line, lines); a record begins with a time."""
    current: tuple[int, str, list[str]] | None = None
    for line in lines:
        match = _RECORD.match(line)
        if match is None and current is not None:
            current[2].append(line)
            continue
        if current is not None:
            yield current
        if match:
            level = logging.getLevelNamesMapping().get(match["level"], logging.DEBUG)
            current = (level, match["message"], [line])
        else:
            bare = _BARE.match(line)
            current = (logging.DEBUG, bare["message"] if bare else line, [line])
    if current is not None:
        yield current


def is_of(message: str, prefixes: Sequence[str]) -> bool:
    """Whether a message begins with one of the prefixes or with one that extends it by `_...`."""
    match = _PREFIX.match(message)
    return match is not None and any(f"[{match[1]}_".startswith(f"{known[:-1]}_") for known in prefixes)


def run(
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
    wanted, dropped = [prefix(flag) for flag in flags], [prefix(flag) for flag in blocked]
    streams = find_logs(directory, rank)
    if _LOG.fullmatch(Path(output).name):
        raise FilterError(f"-o {output} is the name of a log; choose another")
    lowest, count = logging.INFO if kind == "info" else 0, 0
    target = directory / output
    unfinished = target.with_name(f"{target.name}.tmp")
    with unfinished.open("w") as out:
        for stream, paths in streams.items():
            if len(streams) > 1:
                out.write(f"==> {stream} <==\n")
            for level, message, lines in records(_lines(paths)):
                if level < lowest or (wanted and not is_of(message, wanted)) or is_of(message, dropped):
                    continue
                out.writelines(lines)
                count += 1
    os.replace(unfinished, target)
    return target, count


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        with path.open(errors="replace") as file:
            for line in file:
                yield line if line.endswith("\n") else f"{line}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Exit status: 0; 2 where there is nothing to filter or a flag is unknown."""
    parser = argparse.ArgumentParser(prog="linnaeus_jax.tools.filter_logs", description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, metavar="LOG_DIR", help="the logs directory of a run")
    parser.add_argument("-o", "--output", default="filtered_log.txt", help="file to write, inside LOG_DIR")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("-f", "--flags", nargs="+", default=(), metavar="FLAG", help="keep only lines of these flags")
    choice.add_argument("-b", "--blocked", nargs="+", default=(), metavar="FLAG", help="drop lines of these flags")
    parser.add_argument("-r", "--rank", type=int, default=-1, help="process; -1: all")
    parser.add_argument(
        "-t", "--type", choices=("debug", "info", "both"), default="both", help="info: only records of INFO and above"
    )
    options = parser.parse_args(argv)
    try:
        path, count = run(
            options.directory,
            options.output,
            flags=options.flags,
            blocked=options.blocked,
            rank=options.rank,
            kind=options.type,
        )
    except (FilterError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    hint = "" if count or not options.flags else "; was the flag on, in debug.* of the config?"
    print(f"{count} records written to {path}{hint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
