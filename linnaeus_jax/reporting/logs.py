"""Text logs: the console of process 0 at a chosen level, rotating files with everything for every process."""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

MAIN = "linnaeus_jax"
DATA = "linnaeus_jax.data"

#: one console for log lines, progress bars and tables, so that they do not tear each other
console = Console(highlight=False)


class ConsoleHandler(logging.Handler):
    """Prints the bare message above any progress bar; long lines are left to the terminal."""

    STYLES = ((logging.ERROR, "bold red"), (logging.WARNING, "yellow"))

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "files_only", False):
            return
        try:
            style = next((style for level, style in self.STYLES if record.levelno >= level), None)
            text = "\n".join(self.prefix + line for line in self.format(record).splitlines())
            console.print(text, style=style, markup=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


def setup_logging(logs: Path | None, *, process: int, level: str, data_level: str) -> None:
    """Installs the handlers of one run; those of an earlier run in this process are closed.

    Args:
      logs: directory of `debug_log_rank<r>.txt` and `h5data_debug_log_rank<r>.txt`; None: console only.
      level, data_level: console levels of the main and of the data log; the files always hold DEBUG.
    """
    for name, file_name, rotations, console_level in (
        (MAIN, f"debug_log_rank{process}.txt", 50, level),
        (DATA, f"h5data_debug_log_rank{process}.txt", 10, data_level),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        if process == 0:
            shown = ConsoleHandler("[h5data] " if name == DATA else "")
            shown.setLevel(console_level.upper())
            logger.addHandler(shown)
        if logs is not None:
            file = logging.handlers.RotatingFileHandler(
                logs / file_name, maxBytes=40 * 2**20, backupCount=rotations, delay=True
            )
            file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(file)


def log_to_files(message: str) -> None:
    """Logs an error to the files alone, for what the console is told in another way."""
    logging.getLogger(MAIN).error("%s", message, extra={"files_only": True})


@contextmanager
def console_level(level: str) -> Iterator[None]:
    """Another level for the console, and only for the console, while the block runs."""
    handlers = [h for h in logging.getLogger(MAIN).handlers if isinstance(h, ConsoleHandler)]
    before = [h.level for h in handlers]
    for handler in handlers:
        handler.setLevel(level.upper())
    try:
        yield
    finally:
        for handler, old in zip(handlers, before, strict=True):
            handler.setLevel(old)
