"""`reference/tools.md`: every command line, from its docstring and its argparse parser."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pkgutil
import textwrap
from collections.abc import Iterator
from typing import Any, NoReturn
from unittest import mock

from docs.making.markdown import MADE, code, sentence, table
from linnaeus_jax import tools
from linnaeus_jax.__main__ import GROUPS
from linnaeus_jax.config.flags import USAGE

#: tool -> the page that explains it
PAGES = {
    "analyze_debug_logs": "event_log.md",
    "autobatch": "performance.md",
    "build_dataset": "your_data.md",
    "bundle": "using_a_model.md",
    "check": "performance.md",
    "change_names": "changing_names.md",
    "demo_baselines": "metadata.md",
    "describe_dataset": "your_data.md",
    "embed": "ask_the_model.md",
    "evaluate": "validation.md",
    "extend": "growing.md",
    "export": "using_a_model.md",
    "export_weights": "using_a_model.md",
    "filter_logs": "debug_flags.md",
    "folds": "wrong_labels.md",
    "import_weights": "models.md",
    "label_issues": "wrong_labels.md",
    "make_demo": "your_data.md",
    "model_info": "models.md",
    "pack": "your_data.md",
    "predict": "using_a_model.md",
    "prior": "places_and_dates.md",
    "profile_summary": "profiling.md",
    "replay": "overflow.md",
    "replay_metrics": "wandb_tensorboard.md",
    "report": "report.md",
    "schedule": "schedules.md",
    "serve": "using_a_model.md",
    "show_augmentations": "augmentation.md",
    "similar": "ask_the_model.md",
    "verify_dataset": "your_data.md",
}

#: tool -> its verb
VERBS = {tool: verb for group in GROUPS.values() for verb, tool in group.items() if tool}

INTRODUCTION = """# Command lines

Every program of the package with its options. Each answers `--help`, and ends with status 0 when it has done what was
asked, 2 when the user can mend what went wrong (one line says what), and 70 for a fault of the program, whose traceback
is in the file that the message names. {exceptions}

```bash
linnaeus report --help
```
"""


class _Found(BaseException):
    """Carries a parser out of the program that would have used it."""

    def __init__(self, parser: argparse.ArgumentParser, takes_more: bool) -> None:
        super().__init__()
        self.parser, self.takes_more = parser, takes_more


def parser_of(name: str) -> tuple[argparse.ArgumentParser, bool]:
    """The parser of a tool, caught when it is about to be used, and whether the tool reads a configuration, too."""

    def caught(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> NoReturn:
        raise _Found(self, False)

    def caught_more(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> NoReturn:
        raise _Found(self, True)

    module = importlib.import_module(f"linnaeus_jax.tools.{name}")
    with contextlib.ExitStack() as stack:
        for method, function in (("parse_args", caught), ("parse_known_args", caught_more)):
            stack.enter_context(mock.patch.object(argparse.ArgumentParser, method, function))
        try:
            module.main.__wrapped__([])
        except _Found as found:
            return found.parser, found.takes_more
    raise RuntimeError(f"tools.{name} does not parse its command line by argparse")


def names() -> list[str]:
    """The tools, in the order of their verbs."""
    return sorted((module.name for module in pkgutil.iter_modules(tools.__path__)), key=VERBS.__getitem__)


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str, str, str]:
    shown = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    metavar = " ".join(shown) if isinstance(shown, tuple) else str(shown)
    takes = (
        "" if action.nargs == 0 else f" {metavar if action.choices is None else '{' + _joined(action.choices) + '}'}"
    )
    several = {"+": " ...", "*": " [...]"}.get(str(action.nargs), "")
    if action.option_strings:
        name = ", ".join(action.option_strings) + takes + several
    else:
        name = takes.strip() + several
    default = action.default
    text = ""
    if action.nargs != 0 and default not in (None, argparse.SUPPRESS, "", (), []):
        text = code(str(default))
    needed = "yes" if action.required and action.nargs != "*" else ""
    meaning = (action.help or "") % {"prog": parser.prog, "default": default} if action.help else ""
    return code(name), text, needed, sentence(meaning) if meaning else ""


def _joined(choices: Any) -> str:
    return ",".join(map(str, choices))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments and options of a parser and of its commands, but --help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions(each)
        elif not isinstance(action, argparse._HelpAction):
            yield action


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Name -> parser of each command of a program; the program itself by "" where it has none."""
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {"": parser}


def _tool(name: str) -> str:
    parser, takes_config = parser_of(name)
    first, _, rest = (parser.description or "").strip().partition("\n")
    parts = [f"## {VERBS[name]}", first]
    if rest.strip():
        parts.append(f"```text\n{textwrap.dedent(rest).strip()}\n```")
    for command, each in _commands(parser).items():
        parts += [f"`{command}`:"] * bool(command)
        if rows := [_option(each, action) for action in actions(each)]:
            parts.append(table(("argument or option", "default", "needed", "what it does"), rows))
    if takes_config:
        parts.append("`--config=FILE`, `--workdir=DIR` and `--config.<key>=VALUE` are those of [train](#train).")
    if name in PAGES:
        parts.append(f"See [{PAGES[name].removesuffix('.md')}](../{PAGES[name]}).")
    return "\n\n".join(parts)


def make() -> str:
    """The text of the page."""
    every = names()
    exceptions = "`verify` and `debug events --strict` also end with 1 for what they find."
    verbs = ", ".join(f"[{VERBS[name]}](#{VERBS[name].replace(' ', '-')})" for name in every)
    contents = f"Programs: [train](#train), {verbs}."
    train = (
        "## train\n\nTrains, or goes on with a run. Every key of the\n"
        f"[configuration](config.md) is an option `--config.<key>=VALUE`.\n\n```text\n{USAGE}\n```"
    )
    pieces = [INTRODUCTION.format(exceptions=exceptions).strip(), contents, train, *map(_tool, every), MADE]
    return "\n\n".join(pieces) + "\n"
