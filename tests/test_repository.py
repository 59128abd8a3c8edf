"""What a clone holds: nothing of the sources is hidden from git, and every fixture has a reader."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import linnaeus_jax

ROOT = Path(__file__).parents[1]
SOURCES = ("linnaeus_jax", "tests", "benchmarks", "configs", "docs")
CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}


def git(*arguments: str, stdin: str = "", codes: tuple[int, ...] = (0,)) -> list[str]:
    """The NUL-separated names that a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, input=stdin, capture_output=True, text=True)
    assert done.returncode in codes, done.stderr
    return [name for name in done.stdout.split("\0") if name]


def tracked() -> list[str]:
    return git("ls-files", "-z", "--", *SOURCES)


@pytest.mark.needs("git")
def test_no_source_file_is_ignored():
    """Files on this disk that `git add` would pass over."""
    hidden = git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *SOURCES)
    hidden = [name for name in hidden if not CACHES & set(Path(name).parts)]
    assert not hidden, f".gitignore hides {hidden[:5]}; anchor its patterns with a leading slash"


def test_tests_are_skipped_for_what_they_need_alone():
    """`LINNAEUS_REQUIRE` sees those, so that none is skipped everywhere; `LINNAEUS_PLAIN` is the exception."""
    here = {Path("tests/needs.py"), Path("tests/conftest.py"), Path("tests/test_repository.py")}
    skips = re.compile(r"skipif|importorskip|pytest\.skip|mark\.skip")
    for path in {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py")} - here:
        assert not skips.search((ROOT / path).read_text()), path


@pytest.mark.needs("git")
def test_no_pattern_of_gitignore_reaches_a_source_folder():
    """Files that do not exist yet: one in each folder, and in the folder of tests of each subpackage of the package."""
    folders = {parent for name in tracked() for parent in Path(name).parents if parent.parts}
    folders |= {Path("tests", *folder.parts[1:]) for folder in folders if folder.parts[0] == "linnaeus_jax"}
    names = [*tracked(), *(f"{folder}/new_file.{end}" for folder in folders for end in ("py", "json", "npz", "h5"))]
    matched = git("check-ignore", "-z", "--no-index", "--stdin", stdin="\0".join(names), codes=(0, 1))
    assert not matched, f".gitignore matches {matched[:5]}; anchor its patterns with a leading slash"


# ---- fixtures --------------------------------------------------------------------------------------------------------


def names_in(path: Path) -> tuple[set[str], list[re.Pattern[str]]]:
    """The text constants of a module, and its f-strings as patterns with one group per replaced part."""
    tree = ast.parse(path.read_text())
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in formatted for part in node.values}
    constants = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
    }
    patterns = [
        "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else "(.+)" for part in node.values)
        for node in formatted
    ]
    return constants, [re.compile(pattern) for pattern in patterns]


def names_file(name: str, constants: set[str], patterns: list[re.Pattern[str]]) -> bool:
    """Whether a module names the file, by an f-string only where it also holds the text that fills it."""
    if name in constants:
        return True
    matches = (pattern.fullmatch(name) for pattern in patterns)
    return any(match and set(match.groups()) <= constants for match in matches)


def test_every_fixture_is_read_by_a_test():
    modules = [names_in(path) for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    fixtures = [path for path in (ROOT / "tests" / "fixtures").rglob("*") if path.is_file()]
    assert fixtures
    unread = [path.name for path in fixtures if not any(names_file(path.name, *module) for module in modules)]
    assert not unread, f"no test reads {unread}; use them or remove them"


def test_the_search_for_readers_is_exact():
    constants, patterns = {"S0", "labels.json"}, [re.compile(r"data_(.+)\.npz")]
    assert names_file("labels.json", constants, patterns)
    assert names_file("data_S0.npz", constants, patterns)
    assert not names_file("data_S1.npz", constants, patterns)
    assert not names_file("data_S0.npz", constants, [])


def test_the_citation_is_of_this_version():
    """In the form of https://github.com/citation-file-format, which these keys are required by."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (linnaeus_jax.__version__, "Apache-2.0")
    assert citation["authors"] == [{"name": "The linnaeus_jax developers"}]
