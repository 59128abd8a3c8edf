"""The shape of the house: import directions, the one way from device to host, sizes, golden configs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.training.run_directory import flatten

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "linnaeus_jax"

#: folder -> layer; a module may import from its own and lower layers
LAYERS = {
    "files": 0,
    "config": 1,
    "taxonomy": 1,
    "schedules": 1,
    "metrics": 1,
    "data": 2,
    "models": 2,
    "learning": 2,
    "training": 3,
    "debugging": 3,
    "reporting": 3,
    "trainer": 4,
    "main": 5,
    "tools": 5,
}
#: same-layer imports that would make a circle or leak a concern
FORBIDDEN = {
    ("models", "config"),
    ("models", "data"),
    ("models", "learning"),
    ("learning", "data"),
    ("reporting", "debugging"),
}


def imports_of(path: Path) -> list[str]:
    """Dotted names of this package that a module imports at any depth."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("linnaeus_jax.")]


def modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports_of(path):
        other = name.split(".")[1]
        assert LAYERS[other] <= LAYERS[own], f"{path} imports {name}, which lies above it"
        assert (own, other) not in FORBIDDEN, f"{path} imports {name}"


def test_device_reads_go_through_fetch():
    """`jax.device_get` and friends in training code only where the counted fetch is defined, or on host constants."""
    allowed = {("parallel.py", "device_get"), ("parallel.py", "block_until_ready")}
    for path in [*(PACKAGE / "training").glob("*.py"), PACKAGE / "trainer.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("device_get", "item", "block_until_ready"):
                assert (path.name, node.attr) in allowed, f"{path.name}:{node.lineno} reads the device by {node.attr}"


def test_main_stays_small():
    assert len((PACKAGE / "main.py").read_text().splitlines()) <= 60


def shipped() -> list[Path]:
    return sorted(path for path in (ROOT / "configs").glob("*.py") if path.stem != "yaml")


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_golden_config(path, request):
    """Any change of a shipped config or default is a visible difference; rewrite with UPDATE_GOLDEN=1."""
    import os

    config, _ = load_config([f"--config={path}"])
    text = "".join(f"{key} = {value!r}\n" for key, value in sorted(flatten(config.to_dict()).items()))
    golden = Path(__file__).parent / "golden" / f"{path.stem}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.read_text() == text, f"{path.name} changed; look at the difference, then UPDATE_GOLDEN=1"


def test_default_tree_is_json():
    json.dumps(get_config().to_dict())
