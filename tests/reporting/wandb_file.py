"""Reads the record log that W&B writes offline."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

BLOCK, HEADER = 32768, 7


def records(path: Path) -> Iterator[Any]:
    """Every record of a `.wandb` file."""
    data, position, payload = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:  # the tail of a block that cannot hold a header
            position += BLOCK - position % BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        if position + HEADER + length > len(data):
            return  # still being written
        part = data[position + HEADER : position + HEADER + length]
        assert checksum == zlib.crc32(bytes([kind]) + part)
        payload = part if kind in (1, 2) else payload + part
        position += HEADER + length
        if kind in (1, 4):
            yield Record.FromString(payload)


def key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def contents(directory: Path) -> dict[str, Any]:
    """History rows, summary, config, alerts, run and exit code of the only offline run below `directory`."""
    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    written: list[Any] = []
    deadline = time.monotonic() + 30
    while not written or written[-1].WhichOneof("record_type") != "exit":  # another process writes, after `finish`
        assert time.monotonic() < deadline, f"{path} has no end"
        time.sleep(0.05)
        written = list(records(path))
    found: dict[str, Any] = {"history": [], "summary": {}, "config": {}, "alerts": [], "metrics": [], "exit": None}
    for record in written:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found["history"].append({key(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "summary":
            found["summary"] |= {key(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "run":
            found["run"] = record.run
            found["config"] |= {key(item): json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "alert":
            found["alerts"].append((record.alert.title, record.alert.text))
        elif kind == "metric":
            found["metrics"].append((record.metric.name or record.metric.glob_name, record.metric.step_metric))
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    return found
