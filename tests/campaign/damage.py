"""Damage to every kind of file of a run, a bundle, a crash bundle and a data set: no program gives another result than
from the sound files without a word.

Programs are run on a damaged copy; what they say and write is compared with what they say of a sound one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.campaign.case import Case, Ended, Outcome
from tests.campaign.damage_made import CRASH, Made, Result


@dataclass(frozen=True)
class Group:
    """Files of one kind.

    Attributes:
      name: a row of the table.
      files: patterns below the directory of `Made`.
      operations: names of `OPERATIONS`, those that read such files.
      weight: share of the cases.
      unseen: why another result is right though nothing is said; empty: it is not.
    """

    name: str
    files: tuple[str, ...]
    operations: tuple[str, ...]
    weight: int
    unseen: str = ""


CHECKPOINT = ("*/ckpt_step_*/**/*", "*/ckpt_step_*/*")
DATA_JSON = ("config.json", "digests.json", "assets/*.json", "metadata/*.json", "assets/*.npz", "run_id.txt")
GROUPS = (
    Group("checkpoint, going on", tuple(f"killed/{p}" for p in CHECKPOINT), ("go on",), 8),
    Group("checkpoint, used", tuple(f"whole/{p}" for p in CHECKPOINT), ("evaluate", "predict"), 6),
    Group("boundary file", ("killed/checkpoints/boundary_*.json",), ("go on",), 3),
    Group("boundary file, used", ("whole/checkpoints/boundary_*.json",), ("evaluate", "predict"), 2),
    Group(
        "configuration and assets, used", tuple(f"whole/{p}" for p in DATA_JSON), ("evaluate", "report", "predict"), 6
    ),
    Group("the same, going on", tuple(f"killed/{p}" for p in (*DATA_JSON, "progress.json")), ("go on",), 3),
    Group("metrics log, going on", ("killed/logs/metrics_log.jsonl",), ("go on",), 3),
    Group("metrics log, reported", ("whole/logs/metrics_log.jsonl",), ("report",), 3),
    Group("other logs, W&B, TensorBoard", ("killed/logs/**/*", "killed/report.html"), ("go on",), 3),
    Group("bundle", ("bundle/**/*",), ("predict with the bundle",), 4),
    Group("crash bundle", (f"{CRASH}/**/*",), ("replay",), 4),
    Group("labels.h5 of build_dataset", ("data/labels.h5",), ("evaluate", "go on"), 3),
    Group("pictures without checksums", ("data/images.h5",), ("evaluate",), 1, "raw pixels have no checksum"),
)


def cases(seed: int, directory: Path) -> Iterator[Case]:
    """At least 200 cases, in an order in which the first of them are of every group."""
    made = Made(directory)
    rng = random.Random(seed)
    names: Counter[str] = Counter()
    while names.total() < 200:
        turn = [group for group in GROUPS for _ in range(group.weight)]
        rng.shuffle(turn)
        for group in (*GROUPS, *turn) if not names else turn:
            names[group.name] += 1
            case = partial(damaged, group, made, rng.randrange(2**63))
            yield Case(group.name, f"{group.name} {names[group.name]}", case)


def damaged(group: Group, made: Made, seed: int, directory: Path) -> Outcome:
    """Damages a file of a copy, and runs a program on it."""
    made.prepare()
    rng = random.Random(seed)
    operation = rng.choice(group.operations)
    made.copy(directory, operation)
    found = sorted({path for pattern in group.files for path in directory.glob(pattern) if path.is_file()})
    if not found:
        raise RuntimeError(f"{group.name}: no file of {group.files} in {directory}")
    path = rng.choice(found)
    what = damage(path, rng)
    about = f"{path.relative_to(directory)}: {what}; {operation}"
    return judged(made.run(operation, directory), made.expected(operation), about, group)


def damage(path: Path, rng: random.Random) -> str:
    """Flips a bit, cuts, empties or deletes a file; says what it did."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(("flip", "flip", "flip", "cut", "cut", "empty", "delete"))
    if kind == "delete" or not content:
        path.unlink()
        return "deleted"
    if kind == "empty":
        path.write_bytes(b"")
        return "emptied"
    at = rng.randrange(len(content))
    if kind == "cut":
        path.write_bytes(content[:at])
        return f"cut to {at} of {len(content)} bytes"
    bit = rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} flipped"


def judged(found: Result, expected: Result, about: str, group: Group) -> Outcome:
    """Good: the end is clear, or the result is the same, or it was said what is missing."""
    ended = found.ended
    detail = f"{about}\n{ended.out[-1500:]}\n{ended.error[-1500:]}"
    if ended.status != 0:
        refused = ended.refused()
        if refused.what.startswith("status") and ended.status == expected.ended.status:
            return Outcome(True, "same end", detail)
        return Outcome(refused.good, refused.what, detail)
    named = said(found.ended, expected.ended)
    if found.values == expected.values:
        return Outcome(True, f"same result{', damage named' if named else ''}", detail)
    different = [name for name in found.values if found.values[name] != expected.values.get(name)]
    if named and different == ["rows"]:
        return Outcome(True, "same parameters, damage of the log named", detail)
    if group.unseen:
        return Outcome(True, f"not seen: {group.unseen}", detail)
    return Outcome(False, f"other {', '.join(different)}{', damage named' if named else ''}", detail)


def said(ended: Ended, sound: Ended) -> bool:
    """Whether the damage was named, in lines that nothing says of sound files."""
    lines = set((ended.out + ended.error).splitlines()) - set((sound.out + sound.error).splitlines())
    words = ("damaged", "is missing", "cannot be read", "is no JSON", "cut off")
    return any(word in line for line in lines for word in words)
