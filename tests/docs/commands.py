"""The blocks of a page, typed as they stand there in a copy of the workspace, and what they print."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.docs.forks import SESSION, shim
from tests.docs.pages import ROOT, SHOWN, Block, blocks, commands, name, without_comment
from tests.docs.workspace import environment

#: stands for any number of lines
ANYTHING = "..."
#: seconds after which a command is taken for one that never ends
LIMIT = 300


@contextmanager
def started(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which `linnaeus` and `python -m linnaeus_jax...` start at once by what `folder` holds."""
    folder.mkdir(parents=True, exist_ok=True)
    settings, address = environment(), folder / "socket"
    command = [sys.executable, "-m", "tests.docs.forks", str(address)]
    with subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n", "the process that starts the commands did not come up"
            shim(folder / "bin", address, settings)
            yield settings | {"PATH": f"{folder / 'bin'}{os.pathsep}{settings['PATH']}"}
        finally:
            os.killpg(server.pid, signal.SIGKILL)


class Failed(AssertionError):
    """A command of a page failed, or printed something else than what the page shows."""


def run(line: str, folder: Path, settings: dict[str, str] | None = None) -> tuple[str, str]:
    """What a script of bash prints on its standard output and error; `Failed` where its exit status is not 0."""
    done = subprocess.run(
        ["bash", "-e", "-c", line],
        cwd=folder,
        env=settings or environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT,
    )
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode} of: {line}\nprinted:\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed, spaces at line ends apart."""
    parts = [re.escape(line.rstrip()) + r"\n" for line in shown.strip("\n").splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if part == re.escape(ANYTHING) + r"\n" else part for part in parts)
    return re.fullmatch(pattern, _plain(printed)) is not None


def _plain(printed: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())


def typed(
    page: Path,
    folder: Path,
    settings: dict[str, str],
    *,
    update: bool = False,
    skip: Collection[str] = (),
    more: Mapping[str, str] | None = None,
    before: Mapping[str, str] | None = None,
) -> str:
    """Runs the blocks of a page, in order, in a folder.

    Args:
      page: The page.
      folder: A workspace of its own; made files stay there.
      settings: The environment of the commands.
      update: Take what is printed in place of what is shown. Output with "..." is compared nevertheless.
      skip: Lines of `bash` and `console` blocks that are not typed.
      more: What is typed behind a line of a `bash` or `console` block.
      before: Lines of `console` blocks that have been typed, and what they printed.

    Returns:
      The text of the page, changed where `update` found another output.

    Raises:
      Failed: It names the page, the line, what is shown and what was printed.
    """
    text = page.read_text(encoding="utf-8")
    with _Session(folder, settings) as session:
        for block in blocks(page):
            try:
                shown = block.language in SHOWN and "file" not in block.marks
                if "needs" in block.marks or shown:
                    continue
                if "file" in block.marks:
                    target = folder / block.marks["file"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(block.text)
                elif block.language == "python":
                    session.run(block, name(page))
                elif block.language == "bash":
                    run(_script(block, skip, more or {}), folder, settings)
                else:
                    text = _console(
                        block, folder, settings, text, update=update, skip=skip, more=more or {}, before=before or {}
                    )
            except Failed as error:
                raise Failed(f"{name(page)}, block at line {block.line}: {error}") from None
            except subprocess.TimeoutExpired as error:
                raise Failed(
                    f"{name(page)}, block at line {block.line}: no end after {LIMIT} s: {error.cmd[-1]}"
                ) from None
    return text


def _script(block: Block, skip: Collection[str], more: Mapping[str, str]) -> str:
    """The lines of a `bash` block that are typed, with what is typed behind some of them."""
    lines = [(line, without_comment(line)) for line in block.text.splitlines()]
    return "\n".join(
        f"{command} {more[command]}" if command in more else line for line, command in lines if command not in skip
    )


def _console(
    block: Block,
    folder: Path,
    settings: dict[str, str],
    text: str,
    *,
    update: bool,
    skip: Collection[str],
    more: Mapping[str, str],
    before: Mapping[str, str],
) -> str:
    """Types the commands of a block and compares what they print; the text of the page, changed if `update`."""
    for command in commands(block):
        line = f"$ {command.typed}"
        if line in skip:
            continue
        if line in before:
            printed, errors = before[line], ""
        else:
            printed, errors = run(f"{command.typed} {more.get(line, '')}".rstrip(), folder, settings)
        if matches(command.output, printed):
            continue
        if update and ANYTHING not in command.output.splitlines():
            begin = f"$ {command.typed}\n"
            text = text.replace(begin + command.output, begin + _plain(printed), 1)
        else:
            found = f"shown:\n{command.output}\nprinted:\n{printed}{errors}"
            raise Failed(f"line {command.line}: $ {command.typed}\n{found}")
    return text


class _Session:
    """One Python process for the blocks of a page, started with the first of them."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._folder, self._settings = folder, settings
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.communicate(timeout=LIMIT)

    def run(self, block: Block, page: str) -> None:
        """Runs a block; `Failed` with the traceback where it raises."""
        if self._process is None:
            self._process = subprocess.Popen(
                ["python", "-m", SESSION],
                cwd=self._folder,
                env=self._settings,
                executable=str(Path(self._settings["PATH"].split(os.pathsep)[0]) / "python"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([page, block.line, block.text]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer or json.loads(answer):
            raise Failed(json.loads(answer) if answer else "the Python process ended")
