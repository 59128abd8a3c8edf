"""Bytes per picture that a training step moves on a GPU, by part, beside those of another commit.

Counted are operands and results of every matrix product, convolution, reduction and fused kernel of the step as it is
traced for a GPU (`auto` settings resolved for cuDNN), each once; element-wise work is free. That is what a perfect
compiler would still have to move, so it needs no GPU and nothing is compiled. Both sides are counted by this rule, in
child processes, with the default configuration and static task weights in bfloat16. The JSON file also names the
conditionals of the step, before each of which the host of a GPU waits. Writes results/bytes_moved.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from benchmarks.common import write_results
from benchmarks.other_commit import BASELINE, HERE, output, worktree

Totals = dict[str, dict[str, float]]  # part -> "kind, phase" -> bytes of one picture
LIMIT = 0.55


def counted(args: argparse.Namespace, package: Any = HERE, remat: bool | None = None) -> tuple[Totals, list[str]]:
    """What `benchmarks.traffic` counts of a checkout, and the scopes of its conditionals."""
    settings = {"model": args.model, "img_size": args.img_size, "batch": args.batch, "remat": remat, "changes": {}}
    found = json.loads(output("traffic", [json.dumps(settings)], package))
    return found["bytes"], found["conditionals"]


def table(new: Totals, old: Totals | None) -> list[dict[str, Any]]:
    """One row per part, the largest of `new` first, then the sum; in MB."""

    def size(totals: Totals, part: str) -> float:
        return sum(totals.get(part, {}).values()) / 1e6

    rows: list[dict[str, Any]] = []
    parts = sorted(new.keys() | (old or {}).keys(), key=lambda part: -size(new, part))
    for part in parts:
        row = {"part": part, "mb": round(size(new, part), 2)}
        for phase in ("forward", "recomputed", "backward"):
            found = (value for kind, value in new.get(part, {}).items() if kind.endswith(phase))
            row[f"{phase}_mb"] = round(sum(found) / 1e6, 2)
        if old is not None:
            row["baseline_mb"] = round(size(old, part), 2)
        rows.append(row)
    whole = sum(size(new, part) for part in parts)
    rows.append({"part": "sum", "mb": round(whole, 1)})
    if old is not None:
        baseline = sum(size(old, part) for part in parts)
        share = whole / baseline
        rows[-1] |= {
            "baseline_mb": round(baseline, 1),
            "ratio": round(share, 3),
            "limit": LIMIT,
            "within": share <= LIMIT,
        }
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mFormerV1-sm", help="family-variant (default: %(default)s)")
    parser.add_argument("--img-size", type=int, default=384, help="side of the pictures in pixels")
    parser.add_argument("--batch", type=int, default=128, help="rows of an update (default: %(default)s)")
    parser.add_argument(
        "--baseline", default=BASELINE, help="commit to compare with, '' for none (default: %(default)s)"
    )
    parser.add_argument(
        "--remat", action=argparse.BooleanOptionalAction, help="gradient checkpointing (default: as configured)"
    )
    args = parser.parse_args(argv)
    (new, waits), old = counted(args, remat=args.remat), None
    if args.baseline:
        with worktree(args.baseline) as checkout:
            old, _ = counted(args, checkout)  # always as it is configured: that is what it cost
    typed = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "benchmarks.bytes_moved", *typed])
    details = {"counted": {"new": new, "baseline": old}, "conditionals": waits}
    print(write_results("bytes_moved", table(new, old), command, details))


if __name__ == "__main__":
    main()
