"""W&B: the records of a run on disk, and where it keeps files outside of the run's directory."""

from __future__ import annotations

import contextlib
from typing import Any

import wandb

try:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
except ImportError:
    DecodeError, Record = ValueError, None


def parsed_record(data: bytes) -> Any:
    """A record of a `.wandb` file.

    Without W&B's schema no file can be compared with the metrics log: an offline run is then written anew as a whole.

    Raises:
      ValueError: the bytes are no record, or W&B has no such schema.
    """
    if Record is None:
        raise ValueError("this version of wandb has no schema of its records")
    try:
        return Record.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it holds what is no record of W&B: {error}") from error


def outside_directories() -> list[tuple[str, str]]:
    """(environment variable, directory) of what W&B keeps in the home directory: files of tables, and its cache.

    Without `wandb.env`'s names: none, and W&B says itself where it cannot write.
    """
    with contextlib.suppress(AttributeError):
        env = wandb.env
        return [(env.DATA_DIR, str(env.get_data_dir())), (env.CACHE_DIR, str(env.get_cache_dir()))]
    return []
