"""The sound files that damaged ones are made from, and the programs that read them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.case import Ended
from tests.forks import MAIN, call

ROOT = Path(__file__).parents[2]
TOOL = "linnaeus_jax.tools"
#: directory of the crash bundle
CRASH = "crash"
#: a program that has not ended by then hangs
SECONDS = 300.0
CONFIG = f"""\
from pathlib import Path

from tests.tiny import tiny_config


def get_config():
    config = tiny_config(Path("data"))
    config.env.plugins = ({str(ROOT / "tests/extending/model_example.py")!r},)
    config.model.type, config.model.variant = "SmallNet", "narrow"
    config.train.ema.enabled = True
    config.experiment.tensorboard.enabled = True
    return config
"""


@dataclass(frozen=True)
class Result:
    """What came of an operation: how the program ended, and values by name that two ends are compared by."""

    ended: Ended
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """A program on files of the current directory.

    Attributes:
      files: names below `Made.directory` that a case gets copies of.
      program, arguments: the program.
      values: what it left, by name.
    """

    files: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]
    values: Callable[[Path, Ended], Mapping[str, Any]]


def _trained(directory: Path, _: Ended) -> dict[str, Any]:
    from tests.run.test_kill import final_parameters
    from tests.run.test_trainer import comparable, rows_of

    run = directory / "killed"
    parameters = {name: array.tobytes() for name, array in final_parameters(run).items()}
    report = (run / "report.html").exists()
    return {"parameters": parameters, "rows": comparable(rows_of(run)), "report": report}


def _evaluated(_: Path, ended: Ended) -> dict[str, Any]:
    return {"metrics": json.loads(ended.out)}


def _reported(directory: Path, _: Ended) -> dict[str, Any]:
    return {"page": re.sub(r"data:image/[^\"]*", "", (directory / "page.html").read_text())}


def _predicted(directory: Path, _: Ended) -> dict[str, Any]:
    return {"predictions": (directory / "out.csv").read_text()}


def _replayed(_: Path, ended: Ended) -> dict[str, Any]:
    return {"words": ended.out}


OPERATIONS = {
    "go on": Operation(("data", "killed", "tiny.py"), MAIN, ("--config=tiny.py", "--workdir=killed"), _trained),
    "evaluate": Operation(("data", "whole"), f"{TOOL}.evaluate", ("whole", "--json"), _evaluated),
    "report": Operation(("whole",), f"{TOOL}.report", ("whole", "--out=page.html"), _reported),
    "predict": Operation(("whole", "photos"), f"{TOOL}.predict", ("whole", "photos", "--out=out.csv"), _predicted),
    "predict with the bundle": Operation(
        ("bundle", "photos"), f"{TOOL}.predict", ("bundle", "photos", "--out=out.csv"), _predicted
    ),
    "replay": Operation(("data", CRASH), f"{TOOL}.replay", (CRASH,), _replayed),
}


class Made:
    """A run killed in its last epoch, the same run whole, a bundle of it, a crash bundle, data and pictures."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._expected: dict[str, Result] = {}

    def prepare(self) -> None:
        """Makes what is not there yet."""
        if (self.directory / "complete").exists():
            return
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        (self.directory / "tiny.py").write_text(CONFIG)
        _write_data(self.directory / "data")
        self._call(MAIN, "--config=tiny.py", "--workdir=whole")
        offline = ("--config.experiment.wandb.enabled=true", "--config.experiment.wandb.mode=offline")
        self._call(__name__, "step:15", "--config=tiny.py", "--workdir=killed", *offline, status=-9)
        self._call(f"{TOOL}.bundle", "whole", "bundle")
        crash = ("--config.debug.crash_bundle=true", "--config.lr_scheduler.base_lr=1e38")
        self._call(MAIN, "--config=tiny.py", "--workdir=crashed", *crash, status=2)
        found = next(path.parent for path in (self.directory / "crashed").rglob("bundle.json"))
        shutil.copytree(found, self.directory / CRASH)
        _draw(self.directory / "photos")
        (self.directory / "complete").touch()

    def _call(self, program: str, *arguments: str, status: int = 0) -> None:
        ended = call(program, arguments, self.directory, seconds=600)
        if ended.status != status:
            raise RuntimeError(f"{program} ended with {ended.status}: {ended.error[-2000:]}")

    def copy(self, directory: Path, operation: str) -> None:
        """Copies what an operation needs."""
        for name in OPERATIONS[operation].files:
            source = self.directory / name
            if source.is_dir():
                shutil.copytree(source, directory / name, symlinks=True)  # W&B's link may lead nowhere in a killed run
            else:
                shutil.copy2(source, directory / name)

    def run(self, operation: str, directory: Path) -> Result:
        """Runs an operation on its files in a directory."""
        one = OPERATIONS[operation]
        ended = call(one.program, one.arguments, directory, seconds=SECONDS)
        try:
            values = one.values(directory, ended) if ended.status in (0, 1) and not ended.has_traceback else {}
        except (OSError, ValueError, KeyError) as error:
            values = {"result that cannot be read": repr(error)}
        return Result(ended, values)

    def expected(self, operation: str) -> Result:
        """The same on sound files."""
        if operation not in self._expected:
            directory = self.directory / "sound" / operation.replace(" ", "_")
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            self.copy(directory, operation)
            self._expected[operation] = self.run(operation, directory)
        return self._expected[operation]


def _write_data(directory: Path) -> None:
    """The tiny data, its labels as `build_dataset` writes them."""
    import h5py
    import polars as pl

    from linnaeus_jax.building.steps.labels_writer import LabelsContent, write_labels
    from linnaeus_jax.building.steps.observations import EncodedColumn
    from tests.tiny import TASKS, write_tiny_data

    labels, _ = write_tiny_data(directory)
    with h5py.File(labels) as file:
        content = LabelsContent(
            identifiers=pl.Series(file["img_identifiers"].asstr()[:].tolist()),
            taxon={task: file[task][:] for task in TASKS},
            names={},
            encoded={name: EncodedColumn(file[name][:], dict(file[name].attrs)) for name in ("temporal", "spatial")},
            texts={},
            arrays={"in_region": file["in_region"][:]},
            split=None,
            provenance={},
            images={},
            checksums={},
        )
    write_labels(labels, content)


def _draw(directory: Path) -> None:
    import numpy as np
    from PIL import Image

    directory.mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (4, 40, 40, 3), np.uint8)):
        Image.fromarray(pixels).save(directory / f"{number}.png")


def main(argv: Sequence[str]) -> int:
    """Trains until a moment of `tests.run.kill_driver` comes, the first argument."""
    from linnaeus_jax.main import main as train
    from tests.run.kill_driver import arm

    moment, count = argv[0].split(":")
    arm(moment, int(count))
    return train(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
