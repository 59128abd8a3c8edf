"""Reads the record log `run-<id>.wandb` in which W&B keeps a run on disk; `wandb` itself has no reader for Python.

The format is that of LevelDB: a header, then blocks of 32 KiB with records, of which a long one is split over blocks.
"""

from __future__ import annotations

import glob
import json
import logging
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linnaeus_jax.compat.wandb_parts import parsed_record

log = logging.getLogger("linnaeus_jax")

#: how the names of keys that hold tables begin, and of the directories of runs that were never online
TABLES, OFFLINE = "classes/", "offline-"
MAGIC, BLOCK, HEADER = b":W&B", 32768, 7
FULL, FIRST, LAST = 1, 2, 4


def records(path: Path) -> Iterator[Any]:
    """Every whole record of a `.wandb` file; ends before one that was cut off by a kill or is still being written.

    Raises:
      ValueError: it is no such file, or damaged.
    """
    data, position, payload = path.read_bytes(), HEADER, b""
    if data and data[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is no file of W&B")
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:  # the tail of a block that cannot hold a header
            position += BLOCK - position % BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        if position + HEADER + length > len(data):
            return
        part = data[position + HEADER : position + HEADER + length]
        if checksum != zlib.crc32(bytes([kind]) + part):
            raise ValueError(f"{path} is damaged at byte {position}")
        payload = part if kind in (FULL, FIRST) else payload + part
        position += HEADER + length
        if kind in (FULL, LAST):
            yield parsed_record(payload)


def item_name(item: Any) -> str:
    """The name of a value of a record."""
    return item.key or "/".join(item.nested_key)


def history_row(record: Any) -> dict[str, Any]:
    """The values of a record with a row of the history."""
    return {item_name(item): json.loads(item.value_json) for item in record.history.item}


def held_rows(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a `.wandb` file by step, without what W&B adds and without tables; ValueError as of `records`."""
    return {
        record.history.step.num: {
            name: value for name, value in history_row(record).items() if not name.startswith(("_", TABLES))
        }
        for record in records(path)
        if record.HasField("history")
    }


def compare(directory: Path, run_id: str, logged: Mapping[int, Mapping[str, Any]]) -> tuple[int, list[Path]]:
    """What the files of earlier starts of a run below `directory` are worth.

    Files count, from the first start on, as long as they hold what was logged and nothing else: a killed start may
    have written rows that are made anew, or miss some before the first row of the next. Files that a server has (of
    online runs, or sent by `wandb sync`) count in any case.

    Args:
      logged: the rows of the run by step, as `WandbSink` writes them.

    Returns:
      The step from which on rows are missing, and the directories of the files that do not count.
    """
    first, stale = 0, []
    paths = directory.glob(f"wandb/*run-*/run-{glob.escape(run_id)}.wandb")
    for path in sorted(paths, key=lambda path: path.parent.name.removeprefix(OFFLINE)):
        sent = not path.parent.name.startswith(OFFLINE) or path.with_name(f"{path.name}.synced").exists()
        try:
            held = held_rows(path)
        except (OSError, ValueError) as error:
            log.warning("W&B: %s", error)
            held = None
        end = first if not held else max(first, max(held) + 1)
        if sent or held == {step: row for step, row in logged.items() if first <= step < end}:
            first = end
        else:
            stale.append(path.parent)
    return first, stale
