"""Writing files so that a crash never leaves half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` so that a reader or a crash sees the old or the new text, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, suffix=".tmp", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")
