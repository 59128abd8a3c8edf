"""The manual without running it: links, anchors, pictures, fences, sizes, the index, and what its tests leave out."""

from __future__ import annotations

import re

import pytest

from tests.docs.commands import matches, typed
from tests.docs.decisions import NOT_RUN, SHORTENED, TYPED_BEFORE, TYPED_ELSEWHERE
from tests.docs.pages import (
    DOCS,
    LANGUAGES,
    ROOT,
    anchors,
    blocks,
    commands,
    links,
    manual,
    name,
    pages,
    prose,
    without_comment,
)

#: pages whose links are looked at, too
OTHERS = [
    ROOT / f"{stem}.md"
    for stem in ("BUILD", "CONTRIBUTING", "SECURITY", "CHANGELOG", "benchmarks/README", "tests/campaign/README")
]
LINES = 250
#: of a picture, in bytes
PICTURE = 150_000


@pytest.mark.parametrize("page", [*pages(), *OTHERS], ids=name)
def test_links_lead_somewhere(page):
    for line, target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        where = f"{name(page)}, line {line}: {target}"
        assert file.exists(), where
        assert file.is_relative_to(ROOT), where
        if anchor:
            assert anchor in anchors(file), f"{where}: no such heading"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_blocks_are_of_a_known_kind(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{name(page)}, line {block.line}: a fence of kind {block.language!r}"
        if block.language == "console" and not block.marks:
            assert list(commands(block))
    ours = sum(bool(re.match(r" *<!-- (file|needs)\b", line)) for _, line in prose(page))
    marked = sum(len(block.marks) for block in blocks(page))
    assert ours == marked, f"{name(page)}: a mark that is not on the line before a fence, or is misspelt"


@pytest.mark.parametrize("page", manual(), ids=name)
def test_a_page_is_short_and_begins_with_its_title(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES
    assert lines[0].startswith("# ")


def test_what_is_not_run_is_a_decision():
    found = {
        name(page): {
            (block.marks["needs"], block.text.splitlines()[0]) for block in blocks(page) if "needs" in block.marks
        }
        for page in pages()
    }
    assert {page: marks for page, marks in found.items() if marks} == {page: set(why) for page, why in NOT_RUN.items()}
    assert all(reason for reasons in NOT_RUN.values() for reason in reasons.values())


@pytest.mark.parametrize("page", [*TYPED_ELSEWHERE, *SHORTENED, *TYPED_BEFORE])
def test_what_is_typed_otherwise_stands_in_the_page(page):
    lines = {without_comment(line) for block in blocks(ROOT / page) for line in block.text.splitlines()}
    for decided in (TYPED_ELSEWHERE, SHORTENED, TYPED_BEFORE):
        assert not set(decided.get(page, {})) - lines
    for command, where in TYPED_ELSEWHERE.get(page, {}).items():
        file, _, function = where.partition("::")
        text = (ROOT / file).read_text()
        assert f"def {function}(" in text if function else command in text, where


def test_the_first_run_types_what_make_demo_types():
    recipe = re.search(r"^demo: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    demo = [line.strip().replace("$(BIN)/", "") for line in recipe[1].splitlines() if "@" not in line]
    assert demo in [block.text.splitlines() for block in blocks(DOCS / "first_run.md")]


def test_the_index_has_every_page():
    index = DOCS / "index.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for _, target in links(index)}
    expected = {page for page in pages() if page.parent != ROOT} - {index}
    assert expected <= linked, f"docs/index.md lacks {sorted(name(page) for page in expected - linked)}"


def test_pictures_are_shown_and_small():
    shown = {(page.parent / target).resolve() for page in [*pages(), *OTHERS] for _, target in links(page)}
    script = (DOCS / "pictures.py").read_text()
    for picture in sorted((DOCS / "pictures").iterdir()):
        assert f'"{picture.name}":' in script, f"docs/pictures.py does not draw {picture.name}"
        assert picture in shown, f"no page shows {name(picture)}"
        assert picture.stat().st_size <= PICTURE, name(picture)


# ---- the reading of a page -------------------------------------------------------------------------------------------

PAGE = """# Title

See [that](other.md#part) and ![it](pictures/x.png), not `[this](code.md)`.

```console
$ echo one \\
    two
one two
$ ls
...
```

<!-- needs: gpu -->
```bash
nvidia-smi
```

## A `part`, & more

## A part, more
"""


def test_a_page_is_read_as_it_stands(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second = blocks(page)
    assert [(c.typed, c.output, c.line) for c in commands(first)] == [
        ("echo one \\\n    two", "one two\n", 6),
        ("ls", "...\n", 9),
    ]
    assert (second.language, second.text, second.line, second.marks) == ("bash", "nvidia-smi\n", 15, {"needs": "gpu"})
    assert links(page) == [(3, "other.md#part"), (3, "pictures/x.png")]
    assert anchors(page) == {"title", "a-part--more", "a-part-more"}


def test_a_marked_file_is_written_whatever_it_holds(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- file: made/flags.yaml -->\n```yaml\nDEBUG: {}\n```\n\n```yaml\nshown: 1\n```\n")
    typed(page, tmp_path, {})
    assert (tmp_path / "made" / "flags.yaml").read_text() == "DEBUG: {}\n"


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nd\n", True),
        ("a\n...\n", "b\na\n", False),
        ("", "a\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_three_dots_stand_for_any_lines(shown, printed, expected):
    assert matches(shown, printed) is expected
