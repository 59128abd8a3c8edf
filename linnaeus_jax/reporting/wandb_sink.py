"""Weights & Biases: one row per global step, one run id over all resumes."""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from linnaeus_jax.compat.wandb_parts import outside_directories
from linnaeus_jax.reporting.chosen import chosen_curves
from linnaeus_jax.reporting.class_tables import Table
from linnaeus_jax.reporting.metrics_log import strict

log = logging.getLogger("linnaeus_jax")

#: how the names of keys that hold tables begin
TABLES = "classes/"
#: seconds that the end of a run may wait for uploads; what is left then can be sent with `wandb sync`
FINISH_TIMEOUT = 600.0


class WandbSink:
    """A W&B run. Rows are collected per step and sent when the step changes, so that each step is one row.

    Raises (from every method): whatever the `wandb` package raises; `Sinks` guards the calls.
    """

    name = "W&B"

    def __init__(
        self,
        experiment: Mapping[str, Any],
        *,
        directory: Path,
        run_id: str,
        config: Mapping[str, Any],
        new: bool = False,
        debug: bool = False,
    ) -> None:
        """Starts or resumes the run that the section `experiment` of a configuration describes.

        Args:
          directory: holds the `wandb` folder with the local copy.
          config: JSON types without secrets.
          new: never resume; else the run goes on if the server has it, and with `wandb.resume` it must.
          debug: write every payload to the debug log.
        """
        directory = directory.absolute()  # the process in which W&B does its work may have another working directory
        directory.mkdir(parents=True, exist_ok=True)
        _keep_files_in(directory)
        self.debug = debug
        settings = experiment["wandb"]
        mode, resume = settings.get("mode", "online"), "must" if settings.get("resume") else "allow"
        unsent = _unsent(directory, run_id)
        self.run = _started(
            project=settings.get("project") or experiment.get("project"),
            entity=settings.get("entity") or None,
            group=experiment.get("group") or None,
            name=experiment.get("name") or None,
            tags=list(settings.get("tags", ())) or None,
            notes=settings.get("notes") or None,
            id=run_id,
            dir=str(directory),
            mode=None if mode == "online" else mode,  # None: the environment variable WANDB_MODE counts
            resume=None if new else resume,
            config=dict(config),
            reinit="create_new",  # never join another run that this process may have open
            settings=wandb.Settings(
                # the program's arguments may hold secrets, and would be recorded; `config` says the same without them
                x_disable_meta=True,
                disable_git=True,
                disable_code=True,
                save_code=False,
                console="off",  # the text logs lie in the run directory
                finish_timeout=FINISH_TIMEOUT,
            ),
        )
        #: the first step that is written: a server ignores rows of earlier steps, and offline all rows are written anew
        self._next, self._stale = (0, unsent) if self.run.offline else (int(self.run.starting_step), [])
        self._already = 0
        self._step: int | None = None
        self._row: dict[str, Any] = {}
        self.run.define_metric("global_step")
        # an automatic workspace has a panel for each name that is not hidden; the others are added by hand, by prefix
        self.run.define_metric("*", step_metric="global_step", hidden=True)
        for names in chosen_curves(config.get("data", {}).get("task_keys_h5", ())).values():
            for name in names:
                self.run.define_metric(name, step_metric="global_step")

    def write(
        self, event: str, step: int, epoch: int, values: Mapping[str, Any], *, timestamp: float | None = None
    ) -> None:
        """Adds to the row of `step`; best values of the run go to its summary.

        Raises:
          ValueError: `step` is smaller than that of the row before.
        """
        if event == "final":
            self.run.summary.update(strict(dict(values)))
            return
        if step < self._next:
            self._already += 1
            return
        if self._step is not None and step < self._step:
            raise ValueError(f"a row of step {step} came after one of step {self._step}; steps must not decrease")
        if step != self._step:
            self._flush()
        self._step = step
        self._row |= {**strict(dict(values)), "global_step": step, "epoch": epoch}
        if timestamp is not None:
            self._row["_timestamp"] = timestamp

    def replayed(self) -> None:
        """Removes what earlier starts left offline: `write` has written all of their rows anew."""
        for path in self._stale:
            log.info("W&B: the rows of %s are written anew, and it is removed", path.name)
            shutil.rmtree(path, ignore_errors=True)
        self._stale = []

    def tables(self, tables: Mapping[str, Table]) -> None:
        """Adds the tables to the row that is still open; a run whose last row W&B has already has them, too."""
        if self._step is not None:
            self._row |= {
                f"{TABLES}{name}": wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
                for name, table in tables.items()
            }

    def alert(self, title: str, text: str) -> None:
        """Sends a notification to the people whom the W&B project notifies."""
        self.run.alert(title=title, text=text, level="WARN")

    def close(self, exit_code: int = 0) -> None:
        """Sends the last row and ends the run; that of a failed run may lack values, and is left to its next start."""
        if exit_code == 0:
            self._flush()
        self.run.finish(exit_code=exit_code)

    def _flush(self) -> None:
        if self._already:
            log.info("W&B already had %d of the rows, those before step %d", self._already, self._next)
            self._already = 0
        if self._step is None:
            return
        if self.debug:
            row = json.dumps(self._row, sort_keys=True, default=str)  # tables as what they are
            log.debug("[DEBUG_WANDB_METRICS] step=%d %s", self._step, row)
        values, step = self._row, self._step
        self._next, self._step, self._row = step + 1, None, {}
        try:
            self.run.log(values, step=step, commit=True)  # it is whole, and shall not wait for the next
        except Exception:
            if numbers := {name: value for name, value in values.items() if not name.startswith(TABLES)}:
                self.run.log(numbers, step=step, commit=True)  # tables are files, which may fail alone
            raise


def _keep_files_in(directory: Path) -> None:
    """Lets W&B keep the files of tables, and its cache, in a directory where the home directory cannot be written."""
    for variable, default in outside_directories():
        try:
            with contextlib.suppress(FileExistsError):
                os.makedirs(default)
            tempfile.TemporaryFile(dir=default).close()
        except OSError as error:
            os.environ[variable] = str(directory / "wandb" / "files")
            os.makedirs(os.environ[variable], exist_ok=True)
            log.info("W&B: %s; its files are kept in %s", error, os.environ[variable])


def _started(**arguments: Any) -> wandb.Run:
    """`wandb.init`, also where the process that W&B had started for earlier runs has ended since."""
    try:
        return wandb.init(**arguments)
    except wandb.Error:
        raise
    except Exception:  # of kinds that `wandb` does not export
        with contextlib.suppress(Exception):
            wandb.teardown()
        return wandb.init(**arguments)


def _unsent(directory: Path, run_id: str) -> list[Path]:
    """Directories of earlier starts of a run that no server has: offline ones without the mark of `wandb sync`."""
    files = directory.glob(f"wandb/offline-run-*/run-{glob.escape(run_id)}.wandb")
    return [path.parent for path in files if not path.with_name(f"{path.name}.synced").exists()]
