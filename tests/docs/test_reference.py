"""The pages below `docs/reference`, made by `make reference`, say what the code says and leave nothing unexplained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import linnaeus_jax
from docs import make_reference
from docs.making import api_page, config_page, metrics_page, tools_page, typed_stub
from docs.making.markdown import sentence
from linnaeus_jax.config import get_config
from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.tree import FILTER_KEYS, known_keys
from linnaeus_jax.metrics.table import BUILT_IN
from linnaeus_jax.registry import ALL
from linnaeus_jax.reporting.report import SECTIONS

DOCS = Path(__file__).parents[2] / "docs"
KEYS = declared()


#: the page whose numbers need a trace of every backbone
DEAR = "backbones.md"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == DEAR else name for name in make_reference.PAGES]
)
def test_the_page_is_what_the_code_says(name: str) -> None:
    """`make reference` mends it."""
    assert (make_reference.FOLDER / name).read_text() == make_reference.PAGES[name]()


def test_the_types_of_the_configuration_are_those_of_the_declarations() -> None:
    """`make reference` mends it."""
    assert make_reference.TYPES.read_text() == typed_stub.make()


def test_reference_holds_nothing_else() -> None:
    assert {path.name for path in make_reference.FOLDER.iterdir()} == set(make_reference.PAGES)


def test_pages_can_be_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(make_reference, "FOLDER", tmp_path)
    monkeypatch.setattr(make_reference, "PAGES", {"a.md": lambda: "text"})
    make_reference.main()
    assert (tmp_path / "a.md").read_text() == "text"
    assert "a.md: written anew" in capsys.readouterr().out
    make_reference.main()
    assert not capsys.readouterr().out


# ---- configuration


def test_every_key_of_the_tree_is_declared() -> None:
    entries = tuple(f"{node}." for node in config_page.ENTRIES if node.startswith("data."))
    leaves = {key for key in known_keys(get_config()) if not key.startswith(entries)}
    filters = {key for key in leaves if key.rpartition(".")[2] in FILTER_KEYS}
    assert leaves - filters <= set(KEYS)
    extra = {path for path in KEYS if ".*." not in path} - leaves
    assert all(path.rpartition(".")[0] in filters for path in extra)


def test_every_key_has_a_meaning() -> None:
    assert not [path for path, key in KEYS.items() if len(key.meaning) < 4]


def test_none_is_explained() -> None:
    def unexplained(path: str) -> bool:
        key = KEYS[path]
        inherits = path.startswith("lr_scheduler.parameter_groups.*.")
        rival = key.rivals or "batch_size_per_device" in path
        return key.default is None and not (inherits or rival) and "None" not in key.meaning

    assert not [path for path in KEYS if unexplained(path)]


def test_every_key_has_a_page() -> None:
    pages = {config_page.page_of(path) for path in KEYS}
    assert not [page for page in pages if not (DOCS / page.partition("#")[0]).is_file()]
    with pytest.raises(KeyError):
        config_page.page_of("nobody.knows")


def test_no_rule_about_pages_is_idle() -> None:
    used = {max(config_page.fitting(path), key=len) for path in KEYS}
    assert set(config_page.PAGES) == used


def test_comments_become_sentences() -> None:
    assert sentence("share of rows; None: all") == "Share of rows; None: all."
    assert sentence("taxa_L10 is a <rank>, `<here>` not") == "taxa_L10 is a &lt;rank>, `<here>` not."


# ---- metrics


def test_sections_that_show_a_metric_exist() -> None:
    named = {section for text in metrics_page.REPORTED.values() for section in text.split(", ")}
    assert named <= set(SECTIONS)
    assert {*metrics_page.REPORTED, *metrics_page.ABSENT} <= set(BUILT_IN)


def test_the_page_of_the_report_has_every_section() -> None:
    text = (DOCS / "report.md").read_text()
    assert not [section for section in SECTIONS if f"| {section} |" not in text]


# ---- command lines


@pytest.mark.parametrize("name", tools_page.names())
def test_every_option_has_help(name: str) -> None:
    parser, _ = tools_page.parser_of(name)
    assert parser.description
    assert not [action.dest for action in tools_page.actions(parser) if not action.help]


def test_pages_of_tools_exist() -> None:
    assert set(tools_page.PAGES) == set(tools_page.names())
    assert not [page for page in tools_page.PAGES.values() if not (DOCS / page).is_file()]


# ---- Python


@pytest.mark.parametrize("name", api_page.public())
def test_public_names_are_documented_rightly(name: str) -> None:
    assert not api_page.errors_of(name)


def test_everything_that_the_package_offers_is_public() -> None:
    offered = {f"linnaeus_jax.{name}" for name in linnaeus_jax.__all__} - {"linnaeus_jax.__version__"}
    assert offered <= set(api_page.public())
    text = api_page.make()
    assert not [registry.kind for registry in ALL if f"`{registry.key}`" not in text]


def test_a_parameter_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(count: int) -> int:
        """A function.

        Args:
          number: of things.
        """
        return count

    class Bare:
        def method(self) -> None: ...

    monkeypatch.setattr(linnaeus_jax, "wrong", wrong, raising=False)
    monkeypatch.setattr(linnaeus_jax, "Bare", Bare, raising=False)
    assert api_page.errors_of("linnaeus_jax.wrong") == ["linnaeus_jax.wrong: no parameter 'number'"]
    assert api_page.errors_of("linnaeus_jax.Bare") == ["linnaeus_jax.Bare has no docstring"]


def test_anchors_of_the_pages_are_there() -> None:
    """Links within a page, by the rule that GitHub makes anchors by."""
    for path in make_reference.FOLDER.iterdir():
        text = path.read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors, path.name
