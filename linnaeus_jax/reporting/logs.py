"""Text logs: the console of process 0 at a chosen level, rotating files with everything for every process."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from linnaeus_jax.config.redaction import sanitize
from linnaeus_jax.files import FILES_ONLY

MAIN = "linnaeus_jax"
DATA = "linnaeus_jax.data"


class PlainConsole(Console):
    """A console on which text is text: neither markup of rich, nor a code of an emoji, nor a command to the terminal,
    nor a secret. So are the cells and titles of tables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console`; every text that is printed comes by here, unless it is a `Text` already."""
        return super().render_str(sanitize(text), **options)


#: one console for log lines, progress bars and tables, so that they do not tear each other
console = PlainConsole()


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
            text = "\n".join(self.prefix + line for line in sanitize(self.format(record)).splitlines())
            console.print(text, style=style, soft_wrap=True)
        except Exception:
            self.handleError(record)


class PlainFormatter(logging.Formatter):
    """Lines and tracebacks without secrets and without commands to the terminal on which a log is read."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return sanitize(super().format(record))


class LogFile(logging.handlers.RotatingFileHandler):
    """A file that a full disk leaves with a gap: that is said once on the console, and the run goes on."""

    said = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.said:
            self.said = True
            console.print(f"{self.baseFilename} cannot be written ({error}); it has a gap from here on", markup=False)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


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
            file = LogFile(logs / file_name, maxBytes=40 * 2**20, backupCount=rotations, delay=True)
            file.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(file)


def log_to_files(message: str) -> None:
    """Logs an error to the files alone, for what the console is told in another way."""
    logging.getLogger(MAIN).error("%s", message, extra=FILES_ONLY)


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
