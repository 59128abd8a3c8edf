"""docs/extending*.md: the examples are those that tests/extending trains with, and every command is a valid one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config import load_config
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.typed import typed
from linnaeus_jax.run.inputs import build_inputs
from tests.docs.pages import blocks
from tests.extending.common import EXAMPLES
from tests.plugins import forget_plugins
from tests.tiny import tiny_config

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("extending*.md"))
TRAIN = "linnaeus train "


def written() -> dict[str, str]:
    """File -> what the pages write into it."""
    return {block.marks["file"]: block.text for page in PAGES for block in blocks(page) if "file" in block.marks}


def test_the_pages_show_the_examples_that_are_tested():
    shown = {name: text for name, text in written().items() if (EXAMPLES / name).is_file()}
    assert shown == {path.name: path.read_text() for path in EXAMPLES.glob("*_example.py")}


def commands(program: str = TRAIN) -> list[str]:
    text = "".join(block.text for page in PAGES for block in blocks(page) if block.language in ("text", "console"))
    return re.findall(rf"^(?:\$ )?{program}(.*)$", text.replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("command", commands())
def test_commands_describe_a_run_that_could_begin(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in written().items():
        Path(name).write_text(text)
    forget_plugins()
    argv = shlex.split(command)
    argv[0] = argv[0].replace("configs/", f"{ROOT}/configs/")
    config, workdir = load_config(argv)
    assert config_errors(config) == []
    assert workdir


def test_every_example_has_a_command():
    found = commands() + commands("linnaeus build ")
    for name in written():
        assert name == "mine.py" or any(f"plugins={name}" in command or f",{name}" in command for command in found)


def test_the_subsets_of_the_page_are_those_of_the_rows(tmp_path):
    forget_plugins()
    (tmp_path / "subset_example.py").write_text(written()["subset_example.py"])
    config = tiny_config(tmp_path / "data", env__plugins=(str(tmp_path / "subset_example.py"),))
    import_plugins(config)
    dataset = build_inputs(typed(config), devices=1, output_dir=None).dataset
    names, rows = dataset.subset_names["hemisphere"], dataset.val
    found = [names[i] if i >= 0 else "" for i in rows.subsets[:, list(dataset.subset_names).index("hemisphere")]]
    sine, known = rows.meta[:, 4], rows.meta_valid[:, 1]
    assert found == ["" if not k else "north" if z >= 0 else "south" for z, k in zip(sine, known, strict=True)]
    assert set(found) == {"", "north", "south"}
