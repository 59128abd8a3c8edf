"""The manual as web pages: `make docs` writes them to build/docs; they need no network, and a warning is an error.

The pages are plain Markdown that is also read as files; what Sphinx wants beyond that is added here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))
import linnaeus_jax

project = "linnaeus_jax"
copyright = "The linnaeus_jax developers"  # a name of Sphinx
author = copyright
release = version = linnaeus_jax.__version__

extensions = ["myst_parser"]
exclude_patterns = ["pictures", "notebooks"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = "linnaeus_jax"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False, "footer_icons": []}
highlight_language = "none"

_LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def _contents(index: str) -> str:
    """The table of contents that Sphinx wants: one tree for each heading of the index, of the pages that it links."""
    trees = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        caption, _, body = section.partition("\n")
        pages = [target.removesuffix(".md") for _, target in _LINK.findall(body) if re.fullmatch(r"[\w/]+\.md", target)]
        if pages:
            lines = "\n".join(dict.fromkeys(pages))
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n")
    return "\n".join(trees)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    """Links that leave docs/ become their text, since these pages lie alone; the index gets its trees."""
    outside = re.escape("../" * (page.count("/") + 1))
    source[0] = re.sub(rf"(?<!!)\[([^\[\]]*)\]\({outside}[^()\s]*\)", r"\1", source[0])
    if page == "index":
        source[0] += "\n" + _contents(source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
