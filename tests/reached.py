"""Which lines of the package each file of tests reaches, a plugin of pytest for `tests.mutations`; needs Python 3.12.

    LINNAEUS_REACHED=FOLDER python -m pytest -p tests.reached

Each process writes `FOLDER/PID.json`, file of tests -> [seconds, {module -> lines}]. Lines outside functions, which run
once at import, and those that other processes run are not seen.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import linnaeus_jax

PACKAGE = Path(linnaeus_jax.__file__).parent
FOLDER = "LINNAEUS_REACHED"
_MONITORING: Any = getattr(sys, "monitoring", None)


def _codes() -> Iterator[CodeType]:
    """Those of the package's functions, and of functions within them."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "linnaeus_jax."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    left = [found.__code__ for found in gc.get_objects() if isinstance(found, FunctionType)]
    while left:
        code = left.pop()
        if code.co_filename.startswith(str(PACKAGE)):
            yield code
            left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


class _Recorder:
    """Hears of each line once for each file of tests, so that it costs next to nothing."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.lines: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.file = ""

    def begin(self) -> None:
        tool, line = _MONITORING.COVERAGE_ID, _MONITORING.events.LINE
        _MONITORING.use_tool_id(tool, __name__)
        _MONITORING.register_callback(tool, line, self._line)
        for code in set(_codes()):
            _MONITORING.set_local_events(tool, code, line)

    def _line(self, code: CodeType, line: int) -> object:
        self.lines[self.file][Path(code.co_filename).relative_to(PACKAGE).as_posix()].add(line)
        return _MONITORING.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        file = item.path.relative_to(PACKAGE.parent).as_posix()
        if not self.file:
            self.begin()
        if file != self.file:
            self.file = file
            _MONITORING.restart_events()
        started = time.monotonic()
        result = yield
        self.seconds[file] += time.monotonic() - started
        return result

    def pytest_sessionfinish(self) -> None:
        if self.file:
            found = {
                file: (self.seconds[file], {name: sorted(lines) for name, lines in self.lines[file].items()})
                for file in self.seconds
            }
            Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder())


def read(folder: Path) -> dict[str, tuple[float, dict[str, set[int]]]]:
    """What all processes have written."""
    found: dict[str, tuple[float, dict[str, set[int]]]] = {}
    for path in folder.glob("*.json"):
        for file, (seconds, lines) in json.loads(path.read_text()).items():
            found[file] = seconds, {name: set(numbers) for name, numbers in lines.items()}
    return found
