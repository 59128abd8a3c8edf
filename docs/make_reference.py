"""Writes the pages below `docs/reference`, and the types of the configuration, from the code.

python -m docs.make_reference

They are committed; `tests/docs/test_reference.py` compares them with what the code says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.making import api_page, backbones_page, config_page, metrics_page, tools_page, typed_stub

FOLDER = Path(__file__).parent / "reference"
#: file -> what makes its text
PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page.make,
    "metrics.md": metrics_page.make,
    "tools.md": tools_page.make,
    "api.md": api_page.make,
    "backbones.md": backbones_page.make,
}
#: likewise, beside the code
TYPES = Path(__file__).parents[1] / "linnaeus_jax" / "config" / "typed.pyi"


def main() -> None:
    """Writes the pages that differ."""
    FOLDER.mkdir(exist_ok=True)
    for path, make in {**{FOLDER / name: make for name, make in PAGES.items()}, TYPES: typed_stub.make}.items():
        text = make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}: written anew")


if __name__ == "__main__":
    main()
