"""Writing files so that a crash never leaves half of one."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` so that a reader or a crash sees the old or the new text, never a part; obeys the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")
