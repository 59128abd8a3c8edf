"""Reads the record log `run-<id>.wandb` in which W&B keeps a run on disk; `wandb` itself has no reader for Python.

The format is that of LevelDB: a header, then blocks of 32 KiB with records, of which a long one is split over blocks.
"""

from __future__ import annotations

import glob
import struct
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


def last_step(directory: Path, run_id: str) -> int | None:
    """The last step that earlier starts of a run wrote below `directory`; None without any."""
    steps = [
        record.history.step.num
        for path in directory.glob(f"wandb/*run-*/run-{glob.escape(run_id)}.wandb")
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]
    return max(steps, default=None)
