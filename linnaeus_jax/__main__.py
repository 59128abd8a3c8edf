"""`python -m linnaeus_jax`: which programs there are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"


def programs() -> dict[str, str]:
    """Module -> the first sentence of its docstring, read without importing it."""
    found = {"linnaeus_jax.main": "Trains: --config=FILE [--workdir=DIR] [--config.a.b=c ...]; --help."}
    for path in sorted(TOOLS.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[f"linnaeus_jax.tools.{path.stem}"] = " ".join(text.split("\n\n")[0].split())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the programs; a status of 2 for arguments that are none of `--help` and `--version`."""
    from linnaeus_jax import __version__

    given = list(sys.argv[1:] if argv is None else argv)
    if given == ["--version"]:
        print(f"linnaeus_jax {__version__}")
        return 0
    modules = programs()
    if given not in ([], ["--help"], ["-h"]):
        names = {module.rpartition(".")[2]: module for module in modules} | {"train": "linnaeus_jax.main"}
        near = get_close_matches("main" if given[0].startswith("--config") else given[0], names, n=1)
        hint = f"; did you mean python -m {names[near[0]]}?" if near else ", which lists the programs"
        print(f"{' '.join(given)!r} is no argument of python -m linnaeus_jax{hint}", file=sys.stderr)
        return 2
    print("Each is run as `python -m NAME`, and explains itself with --help. First steps: make_demo, then main.\n")
    width = max(map(len, modules))
    for module, text in modules.items():
        print(f"  {module:<{width}}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
