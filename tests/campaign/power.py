"""Power failures: what a disk may hold then of what a program did, and whether the program goes on from it.

A program is recorded once by `recorded_files.c`. From its record follows what a disk may hold after a power failure at
any moment, by the rules of POSIX: the content of a file is sure up to its last sync, and a name in a directory up to
the last sync of the directory. What came later is there, or not, or in part: files are whole, cut, empty or zeros where
they were not synced, and of the names that a directory got or lost since its sync the first few are, in their order.
Then the same program is started on that disk, and must end as if nothing had happened.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.campaign.case import Case, Outcome

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
#: after these calls there is most to lose
CRITICAL = ("rename", "exchange", "unlink", "rmdir", "sync")
#: seconds that a program which is recorded may take
SECONDS = 900.0
PICTURES = 200


@dataclasses.dataclass
class Call:
    """A recorded call; `data`: what was written."""

    name: str
    arguments: list[str]
    data: bytes = b""


def calls_of(record: Path) -> list[Call]:
    """What a program did, in order."""
    content, at, calls = record.read_bytes() if record.exists() else b"", 0, []
    while at < len(content):
        end = content.index(b"\n", at)
        name, *arguments = content[at:end].decode("utf-8", "surrogateescape").split("\t")
        at = end + 1
        size = int(arguments[2]) if name == "write" else 0
        calls.append(Call(name, arguments, content[at : at + size]))
        at += size
    return calls


@dataclasses.dataclass(eq=False)
class File:
    content: bytearray = dataclasses.field(default_factory=bytearray)
    synced: bytes = b""

    def after(self, rng: random.Random) -> bytes:
        """What a disk may hold of it."""
        now = bytes(self.content)
        if now == self.synced:
            return now
        sure = next((i for i, (a, b) in enumerate(zip(now, self.synced)) if a != b), min(len(now), len(self.synced)))
        zeros = now[:sure] + bytes(len(now) - sure)
        return rng.choice([now, self.synced, zeros, now[: rng.randint(sure, len(now))]])


@dataclasses.dataclass(eq=False)
class Directory:
    """`pending`: number of a call and what it made of a name, since the last sync."""

    names: dict[str, File | Directory] = dataclasses.field(default_factory=dict)
    synced: dict[str, File | Directory] = dataclasses.field(default_factory=dict)
    pending: list[tuple[int, str, File | Directory | None]] = dataclasses.field(default_factory=list)

    def set(self, number: int, name: str, node: File | Directory | None) -> None:
        self.pending.append((number, name, node))
        _set(self.names, name, node)


def _set(names: dict[str, File | Directory], name: str, node: File | Directory | None) -> None:
    names.pop(name, None)
    if node is not None:
        names[name] = node


class Disk:
    """The files below a directory, which is there from the start, as programs see them and as the disk has them."""

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, Directory()
        self._sure: set[int] = set()  # calls that a sync of one of their directories has brought to the disk
        self._in: dict[int, list[Directory]] = {}
        self._number = 0

    def do(self, call: Call) -> None:
        """Follows a recorded call; what lies in a directory that another program made is left out."""
        try:
            getattr(self, f"_{call.name}")(call, *call.arguments)
        except KeyError:
            return

    def _parts(self, path: str) -> tuple[str, ...]:
        return Path(path).relative_to(self.base).parts

    def _find(self, parts: Sequence[str]) -> Any:
        node: Any = self.root
        for part in parts:
            node = node.names[part]
        return node

    def _change(self, *changes: tuple[Sequence[str], File | Directory | None]) -> None:
        """Sets names by one call."""
        self._number += 1
        for parts, node in changes:
            directory = self._find(parts[:-1])
            directory.set(self._number, parts[-1], node)
            self._in.setdefault(self._number, []).append(directory)

    def _open(self, call: Call, path: str, emptied: str) -> None:
        parts = self._parts(path)
        directory = self._find(parts[:-1])
        if parts[-1] not in directory.names:
            self._change((parts, File()))
        elif emptied == "1":
            directory.names[parts[-1]].content.clear()

    def _write(self, call: Call, path: str, offset: str, size: str) -> None:
        content, at = self._find(self._parts(path)).content, int(offset)
        content.extend(bytes(max(0, at + int(size) - len(content))))
        content[at : at + int(size)] = call.data

    def _cut(self, call: Call, path: str, size: str) -> None:
        content = self._find(self._parts(path)).content
        content.extend(bytes(max(0, int(size) - len(content))))
        del content[int(size) :]

    def _sync(self, call: Call, path: str) -> None:
        node = self._find(self._parts(path))
        if isinstance(node, File):
            node.synced = bytes(node.content)
        else:
            node.synced = dict(node.names)
            self._sure |= {number for number, _, _ in node.pending}
            node.pending.clear()

    def _rename(self, call: Call, source: str, target: str) -> None:
        node = self._find(self._parts(source))
        self._change((self._parts(source), None), (self._parts(target), node))

    def _exchange(self, call: Call, source: str, target: str) -> None:
        parts = self._parts(source), self._parts(target)
        first, second = map(self._find, parts)
        self._change((parts[0], second), (parts[1], first))

    def _link(self, call: Call, source: str, target: str) -> None:
        self._change((self._parts(target), self._find(self._parts(source))))

    def _unlink(self, call: Call, path: str) -> None:
        self._find(self._parts(path))
        self._change((self._parts(path), None))

    _rmdir = _unlink

    def _mkdir(self, call: Call, path: str) -> None:
        if parts := self._parts(path):
            self._change((parts, Directory()))

    def after_failure(self, rng: random.Random, target: Path) -> None:
        """Writes to a new directory what the disk may hold now."""
        reached: dict[Directory, int] = {}

        def last(directory: Directory) -> int:
            """Number of the last call since the sync of a directory that it has kept."""
            if directory not in reached:
                numbers = sorted({number for number, _, _ in directory.pending})
                reached[directory] = rng.choice([-1, *numbers[-1:], rng.choice([-1, *numbers])])
            return reached[directory]

        def write(directory: Directory, path: Path) -> None:
            path.mkdir(parents=True)
            names = dict(directory.synced)
            for number, name, node in directory.pending:
                if number in self._sure or all(number <= last(each) for each in self._in[number]):
                    _set(names, name, node)
            for name, node in names.items():
                if isinstance(node, Directory):
                    write(node, path / name)
                else:
                    (path / name).write_bytes(node.after(rng))

        write(self.root, target)


def library(directory: Path) -> Path | None:
    """The library that records; None where there is no C compiler."""
    built, compiler = directory / "recorded_files.so", shutil.which("cc")
    if compiler and not built.exists():
        directory.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [
            compiler,
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            built,
            HERE / "recorded_files.c",
            "-ldl",
            "-lpthread",
        ]
        subprocess.run(command, check=True)
    return built if built.exists() else None


def recorded(directory: Path, program: str, *arguments: str, name: str = "record") -> list[Call] | None:
    """What a program of Python does in `directory / "disk"`, or did when it was asked before; None: see `library`.

    Args:
      directory: for the record and what the program writes.
      program: its text; `arguments` are in `sys.argv[1:]`.
    """
    preload, record, disk = library(directory), directory / name, directory / "disk"
    if preload is None:
        return None
    if not record.exists():
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir(parents=True)
        unfinished = directory / f"{name}.unfinished"
        unfinished.unlink(missing_ok=True)
        env = {"LD_PRELOAD": str(preload), "RECORD_BELOW": str(disk.resolve()), "RECORD_TO": str(unfinished)}
        command = [sys.executable, "-c", program, *arguments]
        subprocess.run(command, check=True, cwd=REPOSITORY, env={**os.environ, **env}, timeout=SECONDS)
        unfinished.rename(record)
    return calls_of(record)


def failed_after(calls: Sequence[Call], count: int, base: Path, seed: str | int, target: Path) -> None:
    """Writes what the disk may hold after a power failure that came after `count` calls."""
    disk = Disk(base.resolve())
    for call in calls[:count]:
        disk.do(call)
    disk.after_failure(random.Random(seed), target)


def moment(calls: Sequence[Call], rng: random.Random) -> int:
    """A number of calls: half of them right after one of `CRITICAL`."""
    critical = [i + 1 for i, call in enumerate(calls) if call.name in CRITICAL]
    return rng.choice(critical) if rng.random() < 0.5 else rng.randint(0, len(calls))


# ---- a run

RUN = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.campaign import kill_child, kills
overrides = {**kills.OVERRIDES, **kills.MODELS["toy"]}
data, disk, output = map(Path, sys.argv[1:])
kill_child.train(overrides, data, disk / "run", output, SimpleNamespace(send=lambda moment: None))
"""


def sure_checkpoint(calls: Sequence[Call]) -> int:
    """Step of the newest checkpoint whose name is on the disk; 0: none."""
    newest = named = 0
    for call in calls:
        if call.name == "rename" and (step := re.fullmatch(r".*/checkpoints/ckpt_step_(\d+)", call.arguments[1])):
            named = int(step[1])
        elif call.name == "sync" and call.arguments[0].endswith("/checkpoints"):
            newest = named
    return newest


def failing_run(seed: str, made: Path, directory: Path) -> Outcome:
    """A run that loses power, and goes on."""
    from tests.campaign.kill_compare import assert_same
    from tests.campaign.kills import never_killed

    runs, whole = never_killed("toy", made)
    base = made / "recorded"
    calls = recorded(base, RUN, str(runs.data), str(base / "disk"), str(made / "recorded.txt"))
    if calls is None:
        return Outcome(True, "skipped: no C compiler")
    rng, workdir = random.Random(seed), directory / "disk" / "run"
    count = moment(calls, rng)
    failed_after(calls, count, base / "disk", seed, directory / "disk")
    names = (path.name.removeprefix("ckpt_step_") for path in workdir.glob("checkpoints/ckpt_step_*"))
    kept = max((int(name) for name in names if name.isdecimal()), default=0)
    detail = f"call {count} of {len(calls)}; newest checkpoint {kept}"
    if kept < sure_checkpoint(calls[:count]):
        return Outcome(False, "a finished checkpoint is lost", detail)
    end = runs.start(workdir)
    text = (workdir.with_name("output.txt")).read_text()[-2000:]
    if end != 0:
        return Outcome(False, "does not go on", f"{detail}; status {end}: {text}")
    if (workdir / "unreadable_checkpoints").exists():  # the newest one with its name is whole
        return Outcome(False, "a checkpoint had its name too early", f"{detail}\n{text}")
    try:
        assert_same(workdir, whole)
    except AssertionError as error:
        return Outcome(False, "differs", f"{detail}\n{error}")
    return Outcome(True, f"as never failed, from {'a checkpoint' if kept else 'the start'}", detail)


# ---- building a data set

BUILD = """
import sys
from pathlib import Path
from linnaeus_jax.building.steps.build import build
from tests.building.build_driver import plan
build(plan(Path(sys.argv[1]), sys.argv[3]), Path(sys.argv[2]) / "data", threads=2)
"""


def contents(out: Path, *folders: Path) -> dict[str, bytes]:
    """Every file of a data set; config.py without the name of its folder, one of `folders`."""
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    for folder in folders:
        files["config.py"] = files["config.py"].replace(str(folder).encode(), b"OUT")
    return files


def failing_build(form: str, seed: str, made: Path, directory: Path) -> Outcome:
    """A data set whose building loses power, and goes on."""
    from linnaeus_jax.building.steps.build import build
    from tests.building.build_driver import plan
    from tests.building.helpers import write_pictures

    pictures, base = made / "pictures", made / form
    if not pictures.exists():
        write_pictures(pictures, PICTURES)
    calls = recorded(base, BUILD, str(pictures), str(base / "disk"), form)
    if calls is None:
        return Outcome(True, "skipped: no C compiler")
    count, out = moment(calls, random.Random(seed)), directory / "disk" / "data"
    failed_after(calls, count, base / "disk", seed, directory / "disk")
    detail = f"call {count} of {len(calls)}"
    finished = (out / "build.json").exists() and not (out / ".build").exists()
    build(plan(pictures, form), out, threads=2)
    whole = base / "disk" / "data"
    ours, theirs = (contents(folder, out, whole) for folder in (out, whole))
    if ours != theirs:
        names = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
        return Outcome(False, "differs", f"{detail}; {sorted(names)}")
    return Outcome(True, "was complete" if finished else "goes on to the same bytes", detail)


def cases(seed: int, directory: Path) -> Iterator[Case]:
    """Runs and builds, in turn."""
    for number in range(60):
        name = f"{seed}.{number}"
        if number % 3 == 0:
            yield Case("run", f"run {number}", functools.partial(failing_run, name, directory))
        else:
            form = ("raw", "original")[number % 3 - 1]
            yield Case(f"building {form}", f"{form} {number}", functools.partial(failing_build, form, name, directory))
