"""Files of the earlier part of a run that are not what was written: said, and kept apart from what is written now."""

from __future__ import annotations

import functools
import logging
import os
import time
from pathlib import Path

from linnaeus_jax.files import DAMAGED_LOG, DamagedFileError, RunDirectory, read_json, write_json
from linnaeus_jax.run.read_errors import is_storage_error, with_retry

log = logging.getLogger("linnaeus_jax")


def set_damaged_aside(directory: RunDirectory, *paths: Path) -> None:
    """Renames results of earlier validations that are not what was written, so that no new ones join them.

    Raises:
      OSError: they cannot be read; they may be as they should be.
    """

    def read(path: Path) -> None:
        directory.check(path)
        if path.exists():
            read_json(path)

    for path in paths:
        try:
            with_retry(functools.partial(read, path))
        except (DamagedFileError, OSError) as error:
            if is_storage_error(error):
                raise
            log.warning("%s; it is set aside", error)
            if path.exists():
                path.replace(path.with_name(f"{path.name}.damaged"))


def note_damaged_log(directory: RunDirectory, step: int, *, expected: bool) -> None:
    """Says that the metrics log is damaged or missing, here and for the report, and keeps what else holds its rows.

    Args:
      step: updates completed.
      expected: rows were written before.
    """
    path = directory.metrics_log
    try:
        reason = directory.damage(path)
    except DamagedFileError as error:
        log.warning("%s", error)  # files that are written again below
        reason = ""
    if expected and not path.is_file():
        reason = "is missing"
    if not reason:
        return
    log.warning("%s %s: rows up to update %d are gone or wrong; training goes on", path, reason, step)
    noted = directory.logs / DAMAGED_LOG
    write_json(noted, {**(read_json(noted) if noted.is_file() else {}), str(step): reason})
    events = directory.logs / "tensorboard"
    if events.is_dir():  # it would be written anew from the metrics log
        os.replace(events, directory.logs / f"tensorboard_before_update_{step}.{time.strftime('%Y%m%d_%H%M%S')}")
