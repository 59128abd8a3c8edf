"""What the commands of the manual find: configs, demo data, a short run of the quickstart, a bundle, photos, places."""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.compiling import LONGER
from tests.docs.decisions import FIRST_RUN
from tests.docs.pages import ROOT

#: an existing workspace to use instead of a new one, for whoever writes a page
GIVEN = "DOCS_WORKSPACE"
PHOTOS = 12


def environment() -> dict[str, str]:
    """That of a user: one device, this Python first in the path, these sources; but for how programs are compiled."""
    own = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "WANDB_MODE", "PYTEST_ADDOPTS", "VIRTUAL_ENV")
    kept = {key: value for key, value in os.environ.items() if key not in own and not key.startswith("PYTEST_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own_values = {"PATH": path, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | own_values | {"XLA_FLAGS": " ".join(LONGER)}


def made(parent: Path, settings: dict[str, str]) -> Path:
    """The folder that the environment variable `GIVEN` names, else one below `parent`; where it does not exist it is
    made by commands with the environment `settings`."""
    folder = Path(os.environ.get(GIVEN) or parent / "workspace").absolute()
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}_unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        _make(unfinished, settings)
        unfinished.rename(folder)
    return folder


def _make(folder: Path, settings: dict[str, str]) -> None:
    """Makes it by the commands that a user would type."""
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "configs", folder / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    _program(folder, settings, "demo", "--out", "data/demo")
    verb, *arguments = shlex.split(FIRST_RUN.removeprefix("linnaeus "))
    printed = _program(folder, settings, verb, *arguments, "--config.experiment.tensorboard.enabled=true")
    (folder / "runs" / "first").rename(folder / "runs" / "demo")
    (folder / "runs" / "first.txt").write_text(printed)
    _program(folder, settings, "bundle", "runs/demo", "bundle", "--licence", "CC BY 4.0")
    walk = folder / "walk"
    _program(folder, settings, "demo", "--as", "table", "--out", str(walk), "--rows", "150", "--image-size", "96")
    _photos(walk, folder)
    shutil.rmtree(walk)


def _photos(walk: Path, folder: Path) -> None:
    """The first pictures of a table, and a table of where, when and how high they were taken."""
    (folder / "photos").mkdir()
    with (walk / "records.csv").open(newline="") as reading, (folder / "places.csv").open("w", newline="") as writing:
        table = csv.writer(writing, lineterminator="\n")
        table.writerow(("file", "latitude", "longitude", "date", "elevation"))
        for row in list(csv.DictReader(reading))[:PHOTOS]:
            shutil.copy(walk / "photos" / row["picture"], folder / "photos" / row["picture"])
            table.writerow(row[key] for key in ("picture", "latitude", "longitude", "date", "elevation"))


def _program(folder: Path, settings: dict[str, str], verb: str, *arguments: str) -> str:
    command = ["linnaeus", verb, *arguments]
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def copied(workspace: Path, folder: Path) -> Path:
    """A copy for one page, which may do with it what it likes."""
    return Path(shutil.copytree(workspace, folder, dirs_exist_ok=True))


def cloned(workspace: Path, folder: Path) -> Path:
    """A fresh clone of the repository after `make demo`, whose data and run are those of the workspace."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    for name in ("data/demo", "runs/demo"):
        shutil.copytree(workspace / name, folder / name)
    return folder


def unclean(clone: Path) -> str:
    """What git and ruff find there that is not in the repository, or not as it must be; empty where nothing is."""
    ruff = [sys.executable, "-m", "ruff"]
    checks = (
        ["git", "status", "--porcelain"],
        [*ruff, "check", "-q", "."],
        [*ruff, "format", "-q", "--check", "."],
    )
    done = [subprocess.run(check, cwd=clone, env=environment(), capture_output=True, text=True) for check in checks]
    return "".join(each.stdout + each.stderr for each in done)
