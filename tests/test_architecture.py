"""Structure of the package: which subpackage may import which, no circles, the one way from device to host, sizes."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

from ml_collections import ConfigDict

from linnaeus_jax import registry
from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.saved import flatten

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "linnaeus_jax"

#: subpackage -> subpackages that it may import; all of them stand above it in this table, so that there is no circle
SUBPACKAGES: dict[str, set[str]] = {
    subpackage: set(allowed.split())
    for subpackage, allowed in {
        "mistakes": "",
        "files": "mistakes",
        "registry": "mistakes",
        "versions": "",
        "config": "mistakes registry",
        "taxonomy": "mistakes",
        "metrics": "mistakes registry taxonomy",
        "schedules": "config files metrics mistakes registry",
        "data": "config files metrics mistakes registry taxonomy",
        "reading": "config data taxonomy",
        "backend": "",
        "models": "backend mistakes registry",
        "learning": "backend config mistakes registry",
        "step": "backend config data files learning metrics mistakes models registry schedules",
        "reporting": "config data files metrics schedules taxonomy",
        "building": "config data files reading reporting taxonomy",
        "debugging": "config data files learning mistakes models reporting schedules step versions",
        "weights": "config data files mistakes models registry",
        "checks": "config data debugging learning mistakes models registry schedules step taxonomy weights",
        "run": "checks config data debugging files learning metrics mistakes models reporting schedules step "
        "taxonomy versions weights",
        "inference": "config data files learning metrics models reading reporting run step taxonomy weights",
        "demo": "data files",
        "tools": "building checks config data debugging demo files inference learning metrics mistakes models reading "
        "registry reporting run schedules step taxonomy weights",
        "main": "config run",
        "__main__": "config",
    }.items()
}
#: subpackage -> folder of it -> folders that it may import, all of them above it; "" has the files beside the folders
FOLDERS: dict[str, dict[str, set[str]]] = {
    "building": {"sources": set(), "steps": set(), "scan": set(), "": {"scan"}},
    "inference": {
        "bundle": set(),
        "": {"bundle"},
        "files": {"bundle", ""},
        "server": {"files", ""},
        "quality": {"bundle", ""},
    },
}
#: files over 500 lines -> why they are one idea
LONG_FILES = {"config/defaults.py": "the whole tree of keys, with what each means above it"}


def imports_of(path: Path) -> set[str]:
    """Files of this package, relative to it, that a module imports at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports from linnaeus_jax in full"
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("linnaeus_jax."):
                place = name.split(".")[1:]
                for candidate in (PACKAGE.joinpath(*place).with_suffix(".py"), PACKAGE.joinpath(*place, "__init__.py")):
                    if candidate.is_file():
                        found.add(str(candidate.relative_to(PACKAGE)))
    return found - {str(path.relative_to(PACKAGE))}


def subpackage_of(file: str) -> str:
    return Path(file).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


IMPORTS = {str(path.relative_to(PACKAGE)): imports_of(path) for path in modules()}


def test_no_subpackage_may_import_what_stands_below_it_in_the_table():
    names = list(SUBPACKAGES)
    for place, (subpackage, allowed) in enumerate(SUBPACKAGES.items()):
        assert allowed <= set(names[:place]), f"{subpackage} may import {allowed - set(names[:place])}: a circle"


def test_imports_go_to_the_subpackages_that_are_allowed():
    """And every direction that is allowed is used."""
    used: dict[str, dict[str, str]] = {subpackage: {} for subpackage in SUBPACKAGES}
    for file, others in IMPORTS.items():
        subpackage = subpackage_of(file)
        used[subpackage] |= {subpackage_of(other): f"{file} imports {other}" for other in others}
        used[subpackage].pop(subpackage, None)
    for subpackage, allowed in SUBPACKAGES.items():
        assert [why for other, why in used[subpackage].items() if other not in allowed] == []
        unused = allowed - used[subpackage].keys()
        assert not unused, f"{subpackage} does not import {unused}: take it out of the table"


def folder_of(file: str) -> str:
    return parts[1] if len(parts := Path(file).parts) > 2 else ""


def test_imports_within_a_subpackage_go_to_the_folders_that_are_allowed():
    """And every direction that is allowed is used. Each folder has a text that says what it holds."""
    for subpackage, folders in FOLDERS.items():
        used: dict[str, dict[str, str]] = {folder: {} for folder in folders}
        for file, others in IMPORTS.items():
            if subpackage_of(file) == subpackage:
                used[folder_of(file)] |= {
                    folder_of(other): f"{file} imports {other}"
                    for other in others
                    if subpackage_of(other) == subpackage and folder_of(other) != folder_of(file)
                }
        for place, (folder, allowed) in enumerate(folders.items()):
            assert allowed <= set(list(folders)[:place])
            assert [why for other, why in used[folder].items() if other not in allowed] == []
            assert allowed == used[folder].keys()
            assert ast.get_docstring(ast.parse((PACKAGE / subpackage / folder / "__init__.py").read_text()))


def build_rows(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading of BUILD.md, without its head."""
    section = (ROOT / "BUILD.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    return [row for row in table if len(row) == len(table[0])]


def test_build_md_has_the_subpackages_and_their_directions():
    rows = {
        row[0].strip("`"): set(row[2].replace("–", "").replace(",", "").split()) for row in build_rows("Subpackages")
    }
    assert rows == SUBPACKAGES


def test_build_md_names_files_that_exist():
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / "BUILD.md").read_text())
    missing = [file for file in named if not (PACKAGE / file).exists() and not (ROOT / file).exists()]
    assert named
    assert not missing


def test_build_md_has_every_door_with_its_example():
    rows = build_rows("How to extend")
    examples = {path for row in rows for path in re.findall("`([^`]+)`", row[-1])}
    assert examples == {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "extending").glob("*_example.py")}
    assert len(rows) == len(registry.ALL) + 1  # phases, which have no options
    for row in rows:
        decorator = row[1].strip("`").split(".")[-1]
        for path in re.findall("`([^`]+)`", row[-1]):
            assert f"{decorator}(" in (ROOT / path).read_text(), row[0]


def test_a_package_lists_what_it_offers_and_a_module_names_its_logger_once():
    for path in PACKAGE.rglob("*.py"):
        body = ast.parse(path.read_text()).body
        targets = [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]
        loggers = [name for name in targets if name in ("log", "logger")]
        assert len(loggers) <= 1, f"{path} names {loggers}"
        imported = [
            alias.asname or alias.name
            for node in body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("linnaeus_jax.")
            for alias in node.names
        ]
        if path.name == "__init__.py" and path.parent.name != "tools" and imported:
            listed = next(
                ast.literal_eval(n.value)
                for n in body
                if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
            )
            assert set(imported) <= set(listed), f"{path} does not list {set(imported) - set(listed)}"


def test_no_circle_between_files():
    done: set[str] = set()

    def visit(file: str, above: tuple[str, ...]) -> None:
        assert file not in above, " -> ".join([*above[above.index(file) :], file])
        if file not in done:
            for other in IMPORTS[file]:
                if not other.endswith("__init__.py"):  # a package's list of names is above its files
                    visit(other, (*above, file))
            done.add(file)

    for file in IMPORTS:
        visit(file, ())


def test_files_over_500_lines_are_named_with_their_reason():
    long = {file for file in IMPORTS if len((PACKAGE / file).read_text().splitlines()) > 500}
    assert long == set(LONG_FILES)


def code_lines(path: Path) -> list[tuple[int, str]]:
    """(number, text) of the lines of code, without blank lines, comments, docstrings and imports."""
    source = path.read_text()
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, ast.Import | ast.ImportFrom)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(source.splitlines(), 1) if number not in left_out)
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def test_no_block_of_more_than_8_lines_stands_twice():
    first: dict[tuple[str, ...], str] = {}
    for path in modules():
        lines = code_lines(path)
        for start in range(len(lines) - 8):
            block = tuple(line for _, line in lines[start : start + 9])
            place = f"{path.relative_to(PACKAGE)}:{lines[start][0]}"
            assert first.setdefault(block, place) == place, f"{place} repeats {first[block]}"


def test_device_reads_go_through_fetch():
    """`jax.device_get` and friends in the step and the run only where the counted fetch is defined."""
    allowed = {("placement.py", "device_get"), ("placement.py", "block_until_ready")}
    for path in [*(PACKAGE / "step").glob("*.py"), *(PACKAGE / "run").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("device_get", "item", "block_until_ready"):
                assert (path.name, node.attr) in allowed, f"{path.name}:{node.lineno} reads the device by {node.attr}"


def test_main_stays_small():
    assert len((PACKAGE / "main.py").read_text().splitlines()) <= 60


def shipped() -> list[Path]:
    return sorted(path for path in (ROOT / "configs").glob("*.py") if path.stem != "yaml")


def test_golden_configs():
    """Any change of a default or a shipped config is a visible difference; rewrite with UPDATE_GOLDEN=1.

    `default.txt` has the whole tree, the other files what a config sets otherwise, and what it has or lacks (`-`).
    """

    def lines(config: ConfigDict) -> dict[str, str]:
        return {key: f"{key} = {value!r}\n" for key, value in sorted(flatten(config.to_dict()).items())}

    default = lines(complete_open_nodes(get_config()))
    found = {"default": "".join(default.values())}
    for path in shipped():
        own = lines(load_config([f"--config={path}"])[0])
        changed = [own.get(key, f"- {key}\n") for key in sorted(own | default) if own.get(key) != default.get(key)]
        found[path.stem] = "".join(changed)
    golden = Path(__file__).parent / "golden"
    if os.environ.get("UPDATE_GOLDEN"):
        for old in golden.glob("*.txt"):
            old.unlink()
        for name, text in found.items():
            (golden / f"{name}.txt").write_text(text)
    assert {path.stem for path in golden.glob("*.txt")} == set(found)
    for name, text in found.items():
        assert (golden / f"{name}.txt").read_text() == text, f"{name} changed; look, then UPDATE_GOLDEN=1"


def test_default_tree_is_json():
    json.dumps(get_config().to_dict())
