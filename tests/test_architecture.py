"""Structure of the package: which subpackage may import which, no circles, the one way from device to host, sizes."""

from __future__ import annotations

import ast
import functools
import io
import json
import os
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from linnaeus_jax import registry
from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.saved import flatten
from tests.source import is_named, nodes_of, tree_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "linnaeus_jax"

#: subpackage -> subpackages that it may import; all of them stand above it in this table, so that there is no circle
SUBPACKAGES: dict[str, set[str]] = {
    subpackage: set(allowed.split())
    for subpackage, allowed in {
        "mistakes": "",
        "interrupts": "",
        "system": "",
        "files": "mistakes system",
        "registry": "mistakes",
        "versions": "",
        "compat": "",
        "backend": "mistakes",
        "config": "interrupts mistakes registry system",
        "taxonomy": "mistakes",
        "metrics": "mistakes registry taxonomy",
        "schedules": "config files metrics mistakes registry",
        "data": "compat config files metrics mistakes registry system taxonomy",
        "reading": "config data system taxonomy",
        "models": "backend compat mistakes registry",
        "learning": "backend config mistakes registry",
        "step": "backend compat config data files learning metrics mistakes models registry schedules system",
        "reporting": "compat config data files metrics mistakes schedules taxonomy",
        "building": "config data files reading reporting system taxonomy",
        "debugging": "compat config data files learning mistakes models reporting schedules step versions",
        "weights": "config data files mistakes models registry",
        "checks": "config data debugging learning mistakes models registry schedules step taxonomy weights",
        "run": "checks compat config data debugging files learning metrics mistakes models reporting schedules step "
        "system taxonomy versions weights",
        "inference": "backend compat config data files learning metrics mistakes models reading registry reporting run "
        "step system taxonomy weights",
        "migration": "config data inference models reading registry taxonomy weights",
        "demo": "data files system",
        "tools": "building checks config data debugging demo files inference learning metrics mistakes models "
        "reading registry reporting run schedules step system taxonomy weights",
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
        "wrong_labels": {"files", ""},
    },
}
#: files over 500 lines -> why they are one idea
LONG_FILES: dict[str, str] = {}


def imports_of(path: Path) -> set[str]:
    """Files of this package, relative to it, that a module imports at any depth."""
    found = set()
    for node in nodes_of(path):
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


@functools.cache
def imports() -> dict[str, set[str]]:
    """File of the package -> those that it imports."""
    return {str(path.relative_to(PACKAGE)): imports_of(path) for path in modules()}


def test_no_subpackage_may_import_what_stands_below_it_in_the_table():
    names = list(SUBPACKAGES)
    for place, (subpackage, allowed) in enumerate(SUBPACKAGES.items()):
        assert allowed <= set(names[:place]), f"{subpackage} may import {allowed - set(names[:place])}: a circle"


def test_imports_go_to_the_subpackages_that_are_allowed():
    """And every direction that is allowed is used."""
    used: dict[str, dict[str, str]] = {subpackage: {} for subpackage in SUBPACKAGES}
    for file, others in imports().items():
        subpackage = subpackage_of(file)
        used[subpackage] |= {subpackage_of(other): f"{file} imports {other}" for other in others}
        used[subpackage].pop(subpackage, None)
    for subpackage, allowed in SUBPACKAGES.items():
        assert [why for other, why in used[subpackage].items() if other not in allowed] == []
        unused = allowed - used[subpackage].keys()
        assert not unused, f"{subpackage} does not import {unused}: take it out of the table"


def test_a_run_without_wandb_does_not_load_it():
    """Its import takes a fifth of the time of all that a run imports."""
    heads: dict[str, set[str]] = {}
    for path in modules():
        names = heads[str(path.relative_to(PACKAGE))] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    loading = re.compile(r"wandb(\..*)?|linnaeus_jax\.(compat\.wandb_parts|reporting\.wandb_sink)")
    found = {file for file, names in heads.items() if any(map(loading.fullmatch, names))}
    assert found == {"compat/wandb_parts.py", "reporting/wandb_sink.py", "tools/replay_metrics.py"}


def test_migration_is_known_to_the_package_alone():
    """It fills registries, by a call in the package's own file; its readers are imported at their first use."""
    assert not any("migration" in allowed for allowed in SUBPACKAGES.values())
    assert "migration/__init__.py" in imports_of(PACKAGE / "__init__.py")
    body = tree_of(PACKAGE / "migration" / "__init__.py").body
    at_once = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    assert [module for module in at_once if module.startswith("linnaeus_jax.")] == []


def folder_of(file: str) -> str:
    return parts[1] if len(parts := Path(file).parts) > 2 else ""


def test_imports_within_a_subpackage_go_to_the_folders_that_are_allowed():
    """And every direction that is allowed is used. Each folder has a text that says what it holds."""
    for subpackage, folders in FOLDERS.items():
        used: dict[str, dict[str, str]] = {folder: {} for folder in folders}
        for file, others in imports().items():
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


#: what of the reading order -> most files, most lines of code, imports among them
READING = {"**One update**": (14, 1_800), "**The end of an epoch, and going on**": (24, 3_000)}
#: functions on it may have this many lines; the loop may have more
LONGEST_READ = 60


def lines_with_code(path: Path) -> int:
    """Lines that hold code: no docstring, comment or blank line."""
    texts: set[int] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(path.read_text()).readline) if t.type not in layout]
    return len({number for t in tokens for number in range(t.start[0], t.end[0] + 1)} - texts)


def test_the_reading_order_is_short_and_so_are_its_functions():
    order = (ROOT / "BUILD.md").read_text().split("## Reading order\n")[1].split("\nWhat is built once")[0]
    files: list[str] = []
    for part, (most_files, most_lines) in READING.items():
        files += re.findall(r"`(\w+/\w+\.py)`", order.split(f"{part}")[1].split("**")[0])
        lines = sum(lines_with_code(PACKAGE / file) for file in files)
        assert len(files) <= most_files, part
        assert lines <= most_lines, part
    long = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for file in files
        for node in nodes_of(PACKAGE / file)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST_READ
    }
    assert set(long) == {"train"}, long


def test_build_md_has_every_door_with_its_example():
    rows = build_rows("How to extend")
    examples = {path for row in rows for path in re.findall("`([^`]+)`", row[-1])}
    assert examples == {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "extending").glob("*_example.py")}
    assert len(rows) == len(registry.ALL) + 2  # phases, which have no options, and sources, which no run chooses
    for row in rows:
        decorator = row[1].strip("`").split(".")[-1]
        for path in re.findall("`([^`]+)`", row[-1]):
            assert f"{decorator}(" in (ROOT / path).read_text(), row[0]


def test_a_package_lists_what_it_offers_and_a_module_names_its_logger_once():
    for path in PACKAGE.rglob("*.py"):
        body = tree_of(path).body
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
            for other in imports()[file]:
                if not other.endswith("__init__.py"):  # a package's list of names is above its files
                    visit(other, (*above, file))
            done.add(file)

    for file in imports():
        visit(file, ())


def test_files_over_500_lines_are_named_with_their_reason():
    long = {file for file in imports() if len((PACKAGE / file).read_text().splitlines()) > 500}
    assert long == set(LONG_FILES)


def code_lines(path: Path) -> list[tuple[int, str]]:
    """(number, text) of the lines of code, without blank lines, comments, docstrings and imports."""
    left_out: set[int] = set()
    for node in nodes_of(path):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, ast.Import | ast.ImportFrom)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, path.read_text().splitlines()), 1)
    return [(number, line) for number, line in lines if number not in left_out and line and not line.startswith("#")]


def test_no_block_of_more_than_8_lines_stands_twice():
    first: dict[tuple[str, ...], str] = {}
    for path in modules():
        lines, name = code_lines(path), path.relative_to(PACKAGE)
        for start in range(len(lines) - 8):
            block = tuple(line for _, line in lines[start : start + 9])
            place = f"{name}:{lines[start][0]}"
            assert first.setdefault(block, place) == place, f"{place} repeats {first[block]}"


def test_device_reads_go_through_fetch():
    """`jax.device_get` and friends in the step and the run only where the counted fetch is defined."""
    allowed = {("placement.py", "device_get"), ("placement.py", "block_until_ready")}
    for path in [*(PACKAGE / "step").glob("*.py"), *(PACKAGE / "run").glob("*.py")]:
        for node in nodes_of(path):
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


#: where the configuration is a tree of which keys are set; whatever comes after its checks reads `config.typed`
TREE_OUTSIDE_OF_CONFIG = {
    "checks/config.py",
    "migration/experiments.py",  # makes one from YAML
    "run/experiment.py",
    "run/pretrained.py",
    "run/trainer.py",
}


def test_the_tree_of_the_configuration_is_known_where_it_is_made():
    def imports_it(path: Path) -> bool:
        imports = [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom)]
        return any((node.module or "").startswith("ml_collections") for node in imports)

    known = {str(path.relative_to(PACKAGE)) for path in modules() if imports_it(path)}
    assert {file for file in known if subpackage_of(file) != "config"} == TREE_OUTSIDE_OF_CONFIG


def test_default_tree_is_json():
    json.dumps(get_config().to_dict())


# ---- the two places for what only this version of a library, or one kind of device, is good for
#: modules of libraries, and attributes of their objects, that may change with any version
PRIVATE_MODULES = (
    *("jax.extend", "jax.interpreters", "jax.lib", "flax.core.scope", "orbax.checkpoint.path"),
    *("wandb.env", "wandb.proto", "wandb.sdk", "absl.flags"),
)
PRIVATE_ATTRIBUTES = ("reservations", "trace_level", "reserve", "set_state", "get_state", "mark_as_parsed")
MEMBERS = {name.partition(".")[2].partition(".")[0] for name in PRIVATE_MODULES} | {"scope", "path"}
#: private parts of Python itself, and what named tuples have for everybody
OF_PYTHON = {"os._exit", "sys._current_frames", "pickle._Unpickler"}
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


def private_parts(nodes: Iterable[ast.AST]) -> list[str]:
    """Uses of what a library does not promise to keep: `line: what`."""
    own, modules, nodes = set(), set(), tuple(nodes)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name) or ast.unparse(node.value) in ("self", "cls"):
                own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name for alias in node.names}
    found = []
    for node in nodes:
        used = ""
        if isinstance(node, ast.Attribute):
            doubtful = node.attr.startswith("_") or node.attr in PRIVATE_ATTRIBUTES or node.attr in MEMBERS
            text = ast.unparse(node) if doubtful else ""
            private = node.attr.startswith("_") and not node.attr.endswith("__")
            if private:
                of_self = ast.unparse(node.value) in ("self", "cls", "super()")
                of_named_tuple = node.attr in OF_NAMED_TUPLES
                private = not (of_self or node.attr in own or of_named_tuple or text in OF_PYTHON or "._Z" in text)
            if private or node.attr in PRIVATE_ATTRIBUTES or text.startswith(PRIVATE_MODULES):
                used = text
        elif isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{start}{alias.name}" for alias in node.names]
            used = next((n for n in names if "._" in n.replace(".__", "") or n.startswith(PRIVATE_MODULES)), "")
        elif isinstance(node, ast.Constant) and re.match(r"(jax|flax|orbax|wandb|grain)[\w.]*\._\w", str(node.value)):
            used = str(node.value)
        if used:
            found.append(f"{node.lineno}: {used}")  # type: ignore[attr-defined]
    return found


def test_private_parts_of_libraries_are_used_in_compat_alone():
    found = {
        str(path.relative_to(PACKAGE)): parts
        for path in modules()
        if "compat" not in path.parts and (parts := private_parts(nodes_of(path)))
    }
    assert not found, "use them through a function of linnaeus_jax/compat, which says what happens without them"


@pytest.mark.parametrize(
    "source",
    [
        "from jax._src import core",
        "import jax._src.core",
        "from jax.interpreters import partial_eval",
        "import jax\njax.extend.core.Jaxpr",
        "from wandb.proto.wandb_internal_pb2 import Record",
        "compiled._cache_size()",
        "module.scope.reserve('a', 'params')",
        "iterator.set_state({})",
        "importlib.import_module('orbax.checkpoint._src.futures')",
    ],
)
def test_private_parts_are_seen(source):
    assert private_parts(ast.walk(ast.parse(source)))


def test_kinds_of_devices_are_told_apart_in_backend_alone():
    """Elsewhere a decision of `backend` is asked by its name; messages may say what it is."""
    asking = {f"{place}.{name}" for place in ("jax", "backend") for name in ("default_backend", "target")}
    asking |= {"lax.platform_dependent", "jax.lax.platform_dependent"}
    telling = {"backend.py", "debugging/flag_texts.py", "models/transformer.py"}
    found = {
        f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}"  # type: ignore[attr-defined]
        for path in modules()
        if str(path.relative_to(PACKAGE)) not in telling
        for node in nodes_of(path)
        if is_named(node, asking)
    }
    assert not found
