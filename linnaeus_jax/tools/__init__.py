"""Command lines over the other rooms, and what they share."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.registry import RegistrationError

#: of the option --extension
EXTENSION_HELP = "data.hybrid.file_extension of a folder (default: none if identifiers end like .png, else .jpg)"

Main = Callable[[Sequence[str]], int | None]


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of the tool of that name, whose help shows the tool's docstring as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {__name__}.{name}",
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def command(*errors: type[Exception], status: int = 2) -> Callable[[Main], Callable[..., int]]:
    """Decorator of a tool's main function: errors of the user, of files and `errors` are one message on stderr and exit
    status `status`; it is otherwise what the function returns, by default 0."""

    caught: tuple[type[Exception], ...] = (UserError, RegistrationError, OSError, *errors)

    def decorate(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            try:
                return main(sys.argv[1:] if argv is None else argv) or 0
            except caught as error:
                print(error, file=sys.stderr)
                return status

        return run

    return decorate


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with rate and remaining time; yields a function of (done, total), the first call of which shows
    it. Nothing is shown where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False, rate="")
        start = time.perf_counter()

        def progress(done: int, total: int) -> None:
            rate = done / max(time.perf_counter() - start, 1e-9)
            bar.update(task, completed=done, total=total, visible=True, rate=f"{rate:.0f}/s")

        yield progress
