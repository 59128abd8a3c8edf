"""The pages of the manual as they stand in the files: fenced blocks, commands, links and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
#: blocks that are shown and not run
SHOWN = ("text", "yaml", "json")
LANGUAGES = ("console", "bash", "python", *SHOWN)

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w-]*)\s*$")
_MARK = re.compile(r"^ *<!-- (file|needs): (\S+) -->$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" for none), its text, the line of its first line, and its marks."""

    language: str
    text: str
    line: int
    marks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command of a `console` block, what is shown below it, and its line in the page."""

    typed: str
    output: str
    line: int


def manual() -> list[Path]:
    """Every page that is written by hand, and the README."""
    return [README, *sorted(DOCS.glob("*.md"))]


def pages() -> list[Path]:
    """Every page, the reference included."""
    return [*manual(), *sorted(DOCS.glob("*/*.md"))]


def name(page: Path) -> str:
    """The page as people name it: README.md, docs/your_data.md."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, number = [], 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened:
            indent, fence, language = opened.groups()
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == fence)
            mark = _MARK.match(lines[number - 1]) if number else None
            text = "".join(f"{line.removeprefix(indent)}\n" for line in lines[number + 1 : end])
            found.append(Block(language, text, number + 2, {mark[1]: mark[2]} if mark else {}))
            number = end
        number += 1
    return found


def without_comment(line: str) -> str:
    """A line of a script without the remark behind it."""
    return re.split(r"\s+# ", line.strip())[0]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a `console` block: "$ " and what follows it; a line that ends with a backslash goes on."""
    lines = block.text.splitlines()
    number = 0
    while number < len(lines):
        first = number
        if not lines[first].startswith("$ "):
            raise ValueError(f"line {block.line + first}: a console block begins with '$ ', not {lines[first]!r}")
        while lines[number].endswith("\\"):
            number += 1
        number += 1
        typed = "\n".join(lines[first:number]).removeprefix("$ ")
        begin = number
        while number < len(lines) and not lines[number].startswith("$ "):
            number += 1
        yield Command(typed, "".join(f"{line}\n" for line in lines[begin:number]), block.line + first)


def prose(page: Path) -> list[tuple[int, str]]:
    """The lines outside of fences, numbered from 1, without what stands in backticks."""
    kept, fence = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        opened = _FENCE.match(line)
        if fence is None and opened:
            fence = opened[2]
        elif fence is not None:
            fence = None if line.strip() == fence else fence
        else:
            kept.append((number, re.sub(r"`[^`]*`", "``", line)))
    return kept


def links(page: Path) -> list[tuple[int, str]]:
    """The targets of links and pictures, with their lines."""
    return [(number, target) for number, line in prose(page) for target in _LINK.findall(line)]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and MyST make them from the text."""
    found: dict[str, int] = {}
    inside, names = None, set()
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if fence and inside is None:
            inside = fence[2]
        elif inside is not None:
            inside = None if line.strip() == inside else inside
        elif heading := re.match(r"^#{1,6} +(.*?)(?: +#+)?$", line):
            text = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
            times = found[slug] = found.get(slug, -1) + 1
            names.add(f"{slug}-{times}" if times else slug)
    return names
