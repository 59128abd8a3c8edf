"""Writes the pages below `docs/reference` from the code.

python -m docs.make_reference

They are committed; `tests/docs/test_reference.py` compares them with what the code says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.making import api_page, backbones_page, config_page, metrics_page, tools_page

FOLDER = Path(__file__).parent / "reference"
#: file -> what makes its text
PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page.make,
    "metrics.md": metrics_page.make,
    "tools.md": tools_page.make,
    "api.md": api_page.make,
    "backbones.md": backbones_page.make,
}


def main() -> None:
    """Writes the pages that differ."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}: written anew")


if __name__ == "__main__":
    main()
