"""A bad input of a program, and the sound files that the bad ones are made from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.case import Ended
from tests.forks import MAIN, call
from tests.tiny import write_tiny_data

CHECK = "linnaeus_jax.tools.check"
#: reads configuration and data and draws an update, without compiling the model
DRAW = "linnaeus_jax.tools.show_augmentations"
CONFIG = """\
from pathlib import Path

from tests.tiny import tiny_config


def get_config():
    config = tiny_config(Path({data!r}))
    config.train.epochs = 2
    return config
"""


def nothing(directory: Path) -> None:
    """Prepares nothing."""


@dataclass(frozen=True)
class Given:
    """One bad input.

    Attributes:
      group: a row of the campaign's table.
      name: unique; for whoever reads the results.
      program: the module that is run.
      arguments: of it, relative to the directory of the case.
      prepare: makes the files that the arguments name.
      accepted: why it is right that the program ends with 0; empty: it is not. A function decides by what was said.
      trained: it needs the runs or the bundle of `Made`.
      status: that it ends with where that is right, besides 2.
      may_write: beginnings of paths that may be there afterwards, whatever the end.
    """

    group: str
    name: str
    program: str
    arguments: tuple[str, ...]
    prepare: Callable[[Path], None] = nothing
    accepted: str | Callable[[Ended], str] = ""
    may_write: tuple[str, ...] = ()
    status: int = 0
    trained: bool = False


class Made:
    """What many cases need, made once: data, a configuration, a finished run, a bundle, a crash bundle."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.data = self.directory / "data"
        self.config = self.directory / "tiny.py"
        self.demo = self.directory / "demo"
        self.run = self.directory / "run"
        self.bundle = self.directory / "bundle"
        self.crashed = self.directory / "crashed"

    def prepare(self, *, trained: bool) -> None:
        """Makes what is not there yet.

        Args:
          trained: also the runs and the bundle, which takes longer.
        """
        if not self.config.exists():
            write_tiny_data(self.data)
            self.config.write_text(CONFIG.format(data=str(self.data)))
        if not trained or (self.directory / "complete").exists():
            return
        for path in (self.demo, self.run, self.bundle, self.crashed):
            shutil.rmtree(path, ignore_errors=True)
        self._call("linnaeus_jax.tools.make_demo", "--out=demo", "--rows=200", "--image-size=32")
        self._call(MAIN, "--config=tiny.py", "--workdir=run")
        self._call("linnaeus_jax.tools.bundle", "run", "bundle")
        crash = ("--config.debug.crash_bundle=true", "--config.lr_scheduler.base_lr=1e38")
        self._call(MAIN, "--config=tiny.py", "--workdir=crashed", *crash, status=2)
        (self.directory / "complete").touch()

    def _call(self, program: str, *arguments: str, status: int = 0) -> None:
        ended = call(program, arguments, self.directory, seconds=600)
        if ended.status != status:
            raise RuntimeError(f"{program} ended with {ended.status}: {ended.error[-2000:]}")

    def crash_bundle(self) -> Path:
        """The directory of a sound crash bundle."""
        return next(path.parent for path in self.crashed.rglob("bundle.json"))
