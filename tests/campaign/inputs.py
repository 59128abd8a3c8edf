"""Bad inputs: each ends with lines that say what is wrong and status 2, or is rightly accepted; nothing stays behind.

The groups are functions of `inputs_*.py` that yield `Given`: a program, its arguments, and what is made for it before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.campaign import inputs_configs, inputs_files, inputs_runs
from tests.campaign.case import Case, Ended, Outcome
from tests.campaign.inputs_given import Given, Made
from tests.forks import call

#: seconds of CPU within which a bad input is refused; the machine may be doing other things
SLOW = 20.0
#: seconds after which a program hangs; the model of an accepted input is compiled
LONGEST = 120.0


def cases(seed: int, directory: Path) -> Iterator[Case]:
    """All cases in an order that the seed decides, so that the first of them are of every group."""
    made = Made(directory)
    rng = random.Random(seed)
    given = [
        *inputs_configs.fuzzed(made, rng, 170),
        *inputs_configs.nonsense(made),
        *inputs_configs.python_files(made),
        *inputs_configs.yaml_files(made),
        *inputs_configs.command_lines(made),
        *inputs_files.tools(made),
        *inputs_files.data(made),
        *inputs_runs.damaged(made, rng, 80),
        *inputs_runs.crash_bundles(made),
    ]
    rng.shuffle(given)
    for one in given:
        yield Case(one.group, one.name, partial(run, one, made))


def run(given: Given, made: Made, directory: Path) -> Outcome:
    """Runs a program on its input and judges its end."""
    directory.mkdir(parents=True, exist_ok=True)
    made.prepare(trained=given.trained)
    given.prepare(directory)
    before = _files(directory)
    ended = call(given.program, given.arguments, directory, seconds=LONGEST)
    return _judged(given, ended, sorted(_files(directory) - before), directory)


def _judged(given: Given, ended: Ended, left: list[str], directory: Path) -> Outcome:
    ended = replace(
        ended, error=ended.error if ended.error.strip() else ended.out
    )  # verify_dataset prints its findings
    words = f"{given.program} {' '.join(given.arguments)[:300]}\n{ended.error[-1500:]}"
    refused = ended.refused()
    left = [path for path in left if not path.startswith(("said.", *given.may_write))]
    if ended.status == 0 and not ended.has_traceback:
        reason = given.accepted(ended) if callable(given.accepted) else given.accepted
        unfinished = [path for path in left if path.startswith("tmp/") or path.endswith(".tmp")]
        if unfinished:
            return Outcome(False, "accepted, files left", f"{words}\n{unfinished}")
        return Outcome(bool(reason), f"accepted: {reason}" if reason else "accepted", f"{words}\n{ended.out[-800:]}")
    if given.status and ended.status == given.status:
        return Outcome(True, f"accepted: {given.accepted}", words)
    if not refused.good:
        return Outcome(False, refused.what, words)
    if float((directory / "said.cpu").read_text()) > SLOW:
        return Outcome(False, f"says so after {SLOW:.0f} s of CPU", words)
    if max(map(len, ended.error.splitlines())) > 2000 or len(ended.error.splitlines()) > 40:
        return Outcome(False, "says too much", words)
    if left:
        return Outcome(False, "files left", f"{words}\n{left}")
    return Outcome(True, refused.what, words)


def _files(directory: Path) -> set[str]:
    """Paths below a directory; links are not followed."""
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*")} - {"tmp"}
