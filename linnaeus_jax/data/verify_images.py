"""Looks for missing image files before a run starts, with limits and a report."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from linnaeus_jax.config.typed import DataHybridVerifyImagesConfig
from linnaeus_jax.data.images import check_directory, image_path
from linnaeus_jax.files import write_json
from linnaeus_jax.mistakes import InputError

logger = logging.getLogger("linnaeus_jax.data")


class MissingImagesError(InputError, RuntimeError):
    """More images are missing than a limit allows."""


def _files_in(directory: str) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name with NUL, which no file can have
        return set()


def missing_rows(
    identifiers: Sequence[str] | np.ndarray,
    directory: str,
    extension: str,
    workers: int | None = None,
    chunk_size: int = 1000,
) -> list[int]:
    """The rows whose image file does not exist, ascending.

    Each directory that identifiers point into is listed once, instead of asking for every file.

    Args:
      identifiers: N file names or relative paths, one per row of the labels file.
      directory: the image folder.
      extension: see `image_path`.
      workers: threads; None: one per CPU.
      chunk_size: rows per piece of work.

    Raises:
      FileNotFoundError: no such directory.
    """
    check_directory(directory)
    listings: dict[str, set[str]] = {}

    def missing_in(start: int) -> list[int]:
        missing = []
        for row in range(start, min(start + chunk_size, len(identifiers))):
            folder, name = os.path.split(image_path(directory, identifiers[row], extension))
            if folder not in listings:  # two threads may list the same folder: harmless
                listings[folder] = _files_in(folder)
            if name not in listings[folder]:
                missing.append(row)
        return missing

    starts = range(0, len(identifiers), chunk_size)
    with ThreadPoolExecutor(workers or os.cpu_count(), thread_name_prefix="verify-images") as pool:
        return [row for chunk in pool.map(missing_in, starts) for row in chunk]


def verify_images(
    identifiers: Sequence[str] | np.ndarray,
    directory: str,
    extension: str,
    verify: DataHybridVerifyImagesConfig,
    report_path: Path | None = None,
) -> np.ndarray:
    """Finds the rows whose image file does not exist, see `missing_rows`, writes a JSON report and applies the limits.

    Args:
      verify: the section `data.hybrid.verify_images`. Both limits are literal even at 0;
        `num_workers` threads, None: one per CPU; `chunk_size` rows per piece of work; `log_missing` lists missing
        identifiers and rows in the report, and logs the first 50.
      report_path: JSON report, written before a limit aborts; None: no report.

    Returns:
      int64[m], the missing rows, ascending.

    Raises:
      FileNotFoundError: no such directory.
      MissingImagesError: a limit exceeded.
    """
    missing = missing_rows(identifiers, directory, extension, verify.num_workers, verify.chunk_size)
    names = [str(identifiers[row]) for row in missing]
    ratio = len(missing) / len(identifiers) if len(identifiers) else 0.0
    hidden = f"Logging disabled ({len(missing)} found)"
    report = {
        "total_images_checked": len(identifiers),
        "missing_count": len(missing),
        "missing_ratio": ratio,
        "images_dir": directory,
        "verification_timestamp": time.strftime("%Y-%m-%d %H:%M:%S"),
        "missing_identifiers": sorted(set(names)) if verify.log_missing else hidden,
        "missing_indices": missing if verify.log_missing else hidden,
    }
    if report_path is not None:
        write_json(report_path, report)
    logger.info("%s: %d of %d images are missing", directory, len(missing), len(identifiers))
    if verify.log_missing:
        for row, name in list(zip(missing, names))[:50]:
            logger.warning("%s: row %d: no file for %s", directory, row, name)
    for key, value in (("max_missing_count", len(missing)), ("max_missing_ratio", ratio)):
        if (limit := verify[key]) is not None and value > limit:
            raise MissingImagesError(
                f"{directory}: {len(missing)} of {len(identifiers)} images are missing ({value:g}, more than "
                f"data.hybrid.verify_images.{key} {limit:g}); restore them or raise the limit"
                + (f"; report: {report_path}" if report_path is not None else "")
            )
    return np.asarray(missing, np.int64)
