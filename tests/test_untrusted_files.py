"""No file makes the package run what it says, or write where it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "linnaeus_jax"
#: calls that may run code of what they are given or write outside of a folder -> files that have a reason, below
CALLS = {
    "pickle.load": (),
    "pickle.loads": ("data/loader.py",),  # of an exception that this process has pickled itself
    "pickle.Unpickler": (),
    "pickle._Unpickler": ("weights/pickles.py",),  # whatever a file names becomes a record, which does nothing
    "cloudpickle.load": (),
    "cloudpickle.loads": (),
    "joblib.load": (),
    "marshal.loads": (),
    "shelve.open": (),
    "yaml.load": (),
    "yaml.load_all": (),
    "yaml.unsafe_load": (),
    "yaml.full_load": (),
    "os.system": (),
    "os.popen": (),
    "eval": (),
    "exec": (),
    "extractall": (),
    "unpack_archive": (),
}
_WORDS = re.compile(
    r"pickle|joblib|marshal|shelve|yaml|system|popen|eval\(|exec\(|extractall|unpack_|np\.load|torch|shell"
)


def _name(node: ast.expr) -> str:
    """Dotted name of what is called or derived from; "" where it is no name."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def _uses(path: Path) -> Iterator[tuple[str, ast.Call | None]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield _name(node.func), node
        elif isinstance(node, ast.ClassDef):
            yield from ((_name(base), None) for base in node.bases)


def _option(call: ast.Call, name: str) -> object:
    return next((getattr(word.value, "value", "?") for word in call.keywords if word.arg == name), None)


def test_no_file_is_run_or_unpacked():
    found, reasons = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if not _WORDS.search(text):
            continue
        for name, call in _uses(path):
            where = path.relative_to(PACKAGE).as_posix()
            known = name if name in CALLS else name.rpartition(".")[2] if "." in name else ""
            if known in CALLS and (name in CALLS or known in ("extractall", "unpack_archive")):
                if where in CALLS[known]:
                    reasons.add((known, where))
                else:
                    found.append(f"{where}: {name}")
            if call is None:
                continue
            if name == "torch.load" and _option(call, "weights_only") is not True:
                found.append(f"{where}: torch.load without weights_only=True")
            if _option(call, "allow_pickle") not in (None, False) or _option(call, "shell") not in (None, False):
                found.append(f"{where}: {name} with allow_pickle or shell")
    assert not found
    assert reasons == {(name, path) for name, paths in CALLS.items() for path in paths}
