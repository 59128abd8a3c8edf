"""What an installation without a checkout holds."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_configs_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "linnaeus_jax").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"linnaeus_jax/py.typed", "linnaeus_jax/inference/server/page/index.html"} < package
    assert names == package | {f"linnaeus_jax/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
    assert "License-Expression: Apache-2.0" in metadata


@pytest.mark.slow
@pytest.mark.parametrize("config", ["quickstart", "yaml:experiment.yaml"])
def test_its_configs_load_outside_of_a_checkout(wheel: Path, tmp_path: Path, config: str) -> None:
    installed, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    (work / "experiment.yaml").write_text("TRAIN: {EPOCHS: 24}\nDATA: {H5: {LABELS_PATH: a.h5, IMAGES_PATH: b.h5}}\n")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = "import sys, linnaeus_jax; from linnaeus_jax.config import load_config\n"
    program += "print(load_config(sys.argv[1:])[0].train.epochs, linnaeus_jax.__file__)"
    command = [sys.executable, "-c", program, f"--config={config}"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["24", str(installed / "linnaeus_jax" / "__init__.py")], done.stderr
