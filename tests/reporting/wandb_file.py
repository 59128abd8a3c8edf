"""What W&B has written offline, read from the record log `run-<id>.wandb`; `wandb` has no reader for Python.

The format is that of LevelDB: a header, then blocks of 32 KiB with records, of which a long one is split over blocks.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

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
            yield Record.FromString(payload)


def item_name(item: Any) -> str:
    """The name of a value of a record."""
    return item.key or "/".join(item.nested_key)


def history_row(record: Any) -> dict[str, Any]:
    """The values of a record with a row of the history."""
    return {item_name(item): json.loads(item.value_json) for item in record.history.item}


def wait_for_end(path: Path) -> list[Any]:
    """Every record of a run that is finished; another process writes them."""
    written: list[Any] = []
    deadline = time.monotonic() + 30
    while not written or written[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < deadline, f"{path} has no end"
        time.sleep(0.05)
        written = list(records(path))
    return written


def contents(directory: Path) -> dict[str, Any]:
    """History rows, summary, config, alerts, run and exit code of the only offline run below `directory`."""
    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    written = wait_for_end(path)
    found: dict[str, Any] = {
        "history": [],
        "summary": {},
        "config": {},
        "alerts": [],
        "metrics": [],
        "visible": [],
        "exit": None,
    }
    for record in written:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found["history"].append(history_row(record))
        elif kind == "summary":
            found["summary"] |= {item_name(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "run":
            found["run"] = record.run
            found["config"] |= {item_name(item): json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "alert":
            found["alerts"].append((record.alert.title, record.alert.text))
        elif kind == "metric":
            found["metrics"].append((record.metric.name or record.metric.glob_name, record.metric.step_metric))
            if not record.metric.options.hidden:
                found["visible"].append(found["metrics"][-1][0])
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    return found
