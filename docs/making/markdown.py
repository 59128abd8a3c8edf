"""Small pieces of Markdown that GitHub and MyST read alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: said at the end of every page that is made here
MADE = (
    "---\n\nThis page is written by `make reference` from the code, and a test compares: to change it, change the code."
)


def cell(text: str) -> str:
    """A text as it stands in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A text in the font of code; also one with backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line for each row."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def sentence(text: str) -> str:
    """A comment as a sentence: capital letter, unless a name of code begins it, and full stop."""
    text = " ".join(text.split())
    first = text.partition(" ")[0].rstrip(":,;")
    if first.islower() and first.isalpha():
        text = text[0].upper() + text[1:]
    spans = text.split("`")
    text = "`".join(part.replace("<", "&lt;") if i % 2 == 0 else part for i, part in enumerate(spans))  # no tag of HTML
    return text if text.endswith((".", "!", "?")) else f"{text}."
