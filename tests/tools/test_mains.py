"""Every tool through its `main`: good and bad arguments. What each computes is tested with its subpackage."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from linnaeus_jax.tools import check, demo_baselines, make_demo, replay, show_augmentations
from tests.reporting.helpers import make_run
from tests.tiny import tiny_config, write_tiny_data

FOLDER = Path(check.__file__).parent
TOOLS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", TOOLS)
def test_unknown_option_is_named_and_ends_with_2(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        status = importlib.import_module(f"linnaeus_jax.tools.{name}").main(["--no-such-option=3", "x"])
    except SystemExit as error:  # argparse
        status = error.code
    assert status == 2
    assert capsys.readouterr().err.strip()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("demo") / "data"


def test_make_demo_and_its_baselines(demo, tmp_path, monkeypatch, capsys):
    arguments = ["--out", str(demo), "--rows", "400", "--image-size", "32"]
    assert make_demo.main(arguments) == 0
    assert "Written." in capsys.readouterr().out
    assert {"labels.h5", "images.h5"} <= {path.name for path in demo.iterdir()}
    make_demo.main(arguments)
    assert "nothing was written" in capsys.readouterr().out
    assert make_demo.main([*arguments, "--seed", "1"]) == 2
    assert "seed" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert demo_baselines.main(["--data", str(demo), "--run", str(make_run(tmp_path / "run"))]) == 0
    table = capsys.readouterr().out
    for words in ("metadata", "pixels, linearly", "best possible", "%"):
        assert words in table
    (pictures,) = re.findall(r"^  linnaeus demo (.*?) *#", table, re.MULTILINE)
    assert make_demo.main(shlex.split(pictures)) == 0  # what it says to type next
    assert len(list((tmp_path / "photos").rglob("*.jpg"))) > 100


def test_baselines_without_a_demo_name_the_command(tmp_path, capsys):
    write_tiny_data(tmp_path / "other")
    for folder in (tmp_path, tmp_path / "other"):
        assert demo_baselines.main(["--data", str(folder)]) == 2
        assert f"linnaeus demo --out {folder}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tools")
    tiny_config(directory / "data")
    path = directory / "config.py"
    path.write_text(
        "from pathlib import Path\n"
        "from tests.tiny import tiny_config, write_tiny_data\n\n\n"
        "def get_config():\n"
        f"    return tiny_config(Path({str(directory / 'data')!r}))\n"
    )
    return path


def test_show_augmentations(config_file, tmp_path, capsys):
    out = tmp_path / "shown.png"
    arguments = [f"--config={config_file}", f"--out={out}", "--images=2"]
    assert show_augmentations.main([*arguments, "--step=3"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "stages of 2 images" in capsys.readouterr().out
    assert show_augmentations.main([*arguments, "--step=18"]) == 2
    assert "--step=18 lies outside of the run; use 0 ... 17" in capsys.readouterr().err


def test_check_refuses_a_wrong_config(config_file, capsys):
    assert check.main([f"--config={config_file}", "--config.train.epochs=0"]) == 2
    assert "train.epochs" in capsys.readouterr().err


def test_replay_of_no_bundle(tmp_path, capsys):
    assert replay.main([str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
