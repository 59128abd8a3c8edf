"""`linnaeus VERB`, or `python -m linnaeus_jax VERB`: every program of the package by a short name."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parent / "tools"
TRAIN = "linnaeus_jax.main"
#: verb of the programs that look into a run that went wrong
DEBUG = "debug"
#: what one wants to do -> verb -> name of the program in `tools`
GROUPS = {
    "From images to answers": {
        "demo": "make_demo",
        "build": "build_dataset",
        "train": "",
        "report": "report",
        "bundle": "bundle",
        "predict": "predict",
        "serve": "serve",
    },
    "Before training": {
        "verify": "verify_dataset",
        "describe": "describe_dataset",
        "pack": "pack",
        "check": "check",
        "schedule": "schedule",
        "augmentations": "show_augmentations",
        "autobatch": "autobatch",
        "models": "model_info",
        "import-weights": "import_weights",
    },
    "After training": {
        "evaluate": "evaluate",
        "change-names": "change_names",
        "extend": "extend",
        "export": "export",
        "export-weights": "export_weights",
        "demo-baselines": "demo_baselines",
    },
    "Asking a model about pictures": {
        "embed": "embed",
        "similar": "similar",
        "label-issues": "label_issues",
        "folds": "folds",
        "prior": "prior",
    },
    "Looking into a run": {
        "debug events": "analyze_debug_logs",
        "debug logs": "filter_logs",
        "debug profile": "profile_summary",
        "debug replay": "replay",
        "debug replay-metrics": "replay_metrics",
    },
}
#: widest line of the overview
WIDTH = 120
SHELLS = ("bash", "zsh", "fish")


def verbs() -> dict[str, str]:
    """Verb -> module; the names of the programs are verbs, too, and those of `debug` without it."""
    short = {verb: tool for group in GROUPS.values() for verb, tool in group.items()}
    long = {tool: tool for tool in short.values() if tool}
    alone = {verb.removeprefix(f"{DEBUG} "): tool for verb, tool in short.items()}
    modules = {verb: f"linnaeus_jax.tools.{tool}" if tool else TRAIN for verb, tool in (long | alone | short).items()}
    return {**modules, "main": TRAIN}


def meaning(module: str) -> str:
    """The first sentence of a program's docstring, read without importing it."""
    if module == TRAIN:
        return "Trains: --config=FILE [--workdir=DIR] [--config.a.b=c ...]."
    text = ast.get_docstring(ast.parse((TOOLS / f"{module.rpartition('.')[2]}.py").read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.])\s", " ".join(text.split("\n\n")[0].split()))[0]


def overview() -> str:
    """The verbs by group, each with what it does."""
    known = verbs()
    width = max(len(verb) for group in GROUPS.values() for verb in group)
    lines = ["linnaeus VERB ...; each explains itself with --help. First steps: demo or build, then train.", ""]
    for group, members in GROUPS.items():
        texts = {
            verb: textwrap.shorten(meaning(known[verb]), WIDTH - width - 4, placeholder=" ...") for verb in members
        }
        lines += [group, *(f"  {verb:<{width}}  {text}" for verb, text in texts.items()), ""]
    lines += [
        "A verb is the same program as `python -m` with its module, linnaeus_jax.main or one of linnaeus_jax.tools.",
        f"Completion in a shell: linnaeus completion {'|'.join(SHELLS)} prints what its start-up file should read.",
    ]
    return "\n".join(lines)


def _complete(module: str, verb: str, words: Sequence[str]) -> None:
    """Answers a shell that asks for completions of `words`, and ends; see argcomplete."""
    import argparse

    import argcomplete

    if module != TRAIN and verb:
        os.environ["_ARGCOMPLETE"] = str(1 + len(verb.split()))  # of the words, the verb is the program
        return  # the program's own parser answers
    parser = argparse.ArgumentParser()
    if module == TRAIN:
        from linnaeus_jax.config.defaults import declared, get_config
        from linnaeus_jax.config.tree import known_keys

        os.environ["_ARGCOMPLETE"] = "2"
        for option in ("--config", "--workdir"):
            parser.add_argument(option)
        for path in known_keys(get_config()):
            key = declared().get(path)
            action: Any = parser.add_argument(f"--config.{path}", help=key.meaning if key else None)
            action.completer = lambda key=key, **_: key.completions() if key else ()  # asked for the one that is typed
    else:
        inside = words[:1] == [DEBUG]
        os.environ["_ARGCOMPLETE"] = str(1 + inside)
        shown = [verb.split() for group in GROUPS.values() for verb in group]
        choices = [verb[inside] for verb in shown if len(verb) > 1] if inside else [verb[0] for verb in shown]
        parser.add_argument("verb", choices=[*dict.fromkeys(choices), *([] if inside else ["completion"])])
    argcomplete.autocomplete(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program of a verb with the other arguments; a status of 2 for a verb that is none."""
    from linnaeus_jax.config.exit_status import as_program, exit_status

    given = list(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        return exit_status(lambda: _main(given))
    return as_program(lambda: exit_status(lambda: _main(given)))


def _main(given: list[str]) -> int:
    known = verbs()
    if "_ARGCOMPLETE" in os.environ:
        words = os.environ.get("COMP_LINE", "").split()[1:]
        verb = next((each for each in (" ".join(words[:2]), *words[:1]) if each in known), "")
        _complete(known.get(verb, ""), verb, words)
        given = verb.split()
    if not given or given[0] in ("--help", "-h", "help") or given in ([DEBUG], [DEBUG, "--help"], [DEBUG, "-h"]):
        print(overview())
        return 0
    length = 2 if given[0] == DEBUG else 1
    verb, rest = " ".join(given[:length]), given[length:]
    if verb == "--version":
        from linnaeus_jax import __version__

        print(f"linnaeus_jax {__version__}")
        return 0
    if verb == "completion" and len(rest) == 1 and rest[0] in SHELLS:
        import argcomplete

        print(argcomplete.shellcode(["linnaeus"], True, rest[0]))
        return 0
    if verb not in known:
        near = get_close_matches("train" if verb.startswith("--config") else verb, [*known, "completion"], n=1)
        hint = f"; did you mean linnaeus {near[0]}?" if near else "; linnaeus --help lists the verbs"
        print(f"{verb!r} is no verb of linnaeus{hint}", file=sys.stderr)
        return 2
    sys.argv = [f"linnaeus {verb}", *rest]  # the name in its messages
    status: int | None = importlib.import_module(known[verb]).main()
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
