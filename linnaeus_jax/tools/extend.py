"""Adds taxa to a bundle from a few pictures of each, without training.

    linnaeus extend bundle --folders new --folder-ranks genus,species --out bundle_2026
    linnaeus extend bundle --table new.csv --pictures photos --out bundle_2026
    linnaeus extend bundle --merge bundle_of_others --out bundle_2026

The pictures are given as linnaeus build takes them, 1 to 100 of each new taxon of the finest rank, which may lie below
a known taxon or below new ones. Ranks that are not given follow from the finest known taxon. The trunk stays as it is;
the heads learn the new taxa beside rows that linnaeus bundle has kept of the training. Temperatures, the thresholds of
coverage, sets and novelty, and the card are made anew. A bundle can be extended again: the order is of no importance.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus_jax.building.steps.plan import BuildPlan

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError

#: how pictures can be given; most of a taxon that are taken
SOURCES, MOST = ("--folders", "--table"), 100


def argument_parser() -> argparse.ArgumentParser:
    """The options of the tool, in groups."""
    from linnaeus_jax.building.sources.source import sources
    from linnaeus_jax.taxonomy.scientific_names import MODES
    from linnaeus_jax.tools.build_dataset import levels

    parser = tools.parser("extend", __doc__)
    parser.add_argument("bundle", type=Path, help="made by linnaeus bundle")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the bundle to write")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    kinds = [kind for kind in sources().values() if kind.option.flag in SOURCES]
    group = parser.add_argument_group("pictures, one of").add_mutually_exclusive_group(required=True)
    for kind in kinds:
        group.add_argument(kind.option.flag, **kind.option.keywords)
    group.add_argument(
        "--merge", type=Path, metavar="BUNDLE", help="another bundle of the same trunk, instead: its taxa"
    )
    where = parser.add_argument_group("reading them, as linnaeus build does")
    for option in dict.fromkeys(option for kind in kinds for option in kind.options):
        where.add_argument(option.flag, **option.keywords)
    where.add_argument(
        "--ranks", type=levels, default=(), metavar="RANK,...", help="of a table with ranks of its own, finest first"
    )
    where.add_argument("--follow-links", action="store_true", help="follow symbolic links out of the pictures' folder")
    tools.plugins_option(parser)
    where.add_argument("--names", choices=MODES, default="auto", help="whether names are scientific (auto: seen)")
    return parser


def read_plan(args: argparse.Namespace) -> BuildPlan:
    """The pictures and their taxa. Raises UserError for what linnaeus build refuses, and taxa with two parents."""
    from linnaeus_jax.building.sources.source import Request, sources
    from linnaeus_jax.building.steps.options import BuildOptions
    from linnaeus_jax.building.steps.plan import plan_build
    from linnaeus_jax.reading.schema import DETAIL, REASON, TWO_PARENTS

    kinds = {flag: kind for flag, kind in sources().items() if flag in SOURCES}
    kind = next(kind for kind in kinds.values() if kind.option.given(args))
    idle = {option for other in kinds.values() for option in other.options} - set(kind.options)
    if wrong := sorted(option.flag for option in idle if option.given(args)):
        raise UserError(f"{', '.join(wrong)}: not for {kind.option.flag}; see --help")
    args.doi = args.split = None
    with tools.progress_bars() as progress:
        source = kind.read(Request(args, progress))
    plan = plan_build(source, BuildOptions(ranks=args.ranks, split="none"), {})
    for reason, detail in plan.frame.select(REASON, DETAIL).rows():
        if reason == TWO_PARENTS:
            raise UserError(f"{reason}: {detail}")
    return plan


@tools.command(ValueError)
def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    args = argument_parser().parse_args(argv)
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    import numpy as np

    from linnaeus_jax.inference.bundle.files import check_out, read_bundle, write_bundle
    from linnaeus_jax.inference.bundle.grown import grown_taxonomy
    from linnaeus_jax.inference.model import Model
    from linnaeus_jax.inference.paths import some
    from linnaeus_jax.inference.quality.card import summary, write_card
    from linnaeus_jax.inference.quality.extending import (
        added_rows,
        check_extendable,
        extended,
        layers_to_extend,
        rows_of_other,
    )
    from linnaeus_jax.learning.growing import places_within
    from linnaeus_jax.reading.box_cuts import from_training, of_facts
    from linnaeus_jax.reading.schema import REASON
    from linnaeus_jax.reporting.logs import PlainConsole

    def say(text: str) -> None:
        PlainConsole().print(text, soft_wrap=True)

    check_out(args.out, force=args.force)
    bundle = read_bundle(args.bundle, args.plugins)
    check_extendable(bundle)
    if args.merge is not None:
        taxon, names, features = rows_of_other(bundle, read_bundle(args.merge, args.plugins))
        tasks = bundle.tasks
    else:
        plan = read_plan(args)
        tasks, taxon, names = plan.taxa.tasks, plan.taxa.taxon[plan.candidates].astype(np.int64), plan.taxa.names
        if left := plan.frame.filter(plan.frame[REASON].is_not_null())[REASON].value_counts(sort=True).rows():
            say("not used: " + ", ".join(f"{count:,} ({reason})" for reason, count in left))
    if not len(taxon):
        raise UserError(f"{args.merge} knows no taxon that {args.bundle} lacks: there is nothing to add")
    taxonomy, label = grown_taxonomy(bundle.taxonomy, tasks, taxon, names)
    taken = np.flatnonzero(places_within(label[:, 0]) < MOST)
    if len(taken) < len(label):
        say(f"of taxa with more than {MOST} pictures the first {MOST} are taken: {len(taken):,} of {len(label):,}")
    if remark := from_training(None, of_facts(bundle.facts), "give pictures cut out"):
        say(remark)
    if args.merge:
        features = some(features, taken)
    else:
        pictures = [plan.paths[row] for row in taken]
        features = Model(bundle, runtime="xla").vectors(pictures, layers_to_extend(bundle))
    new, measured = extended(bundle, taxonomy, features, label[taken])
    new = dataclasses.replace(new, facts={**new.facts, "measured": summary(measured)})
    write_bundle(new, args.out, functools.partial(write_card, new, measured), force=args.force)
    say(
        f"{args.out}: {len(taxonomy.classes[bundle.tasks[0]]) - len(bundle.taxonomy.classes[bundle.tasks[0]]):,} "
        f"{taxonomy.ranks[bundle.tasks[0]]} added from {len(taken):,} pictures"
    )
    for what, text in added_rows(new.facts)[1:]:
        say(f"  {what}: {text}")
    if bundle.onnx:
        say("its program for onnxruntime is left out: it has the old heads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
