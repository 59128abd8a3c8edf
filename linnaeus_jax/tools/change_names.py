"""Renames, merges, moves and splits taxa by a list, without pictures, in a data set or a bundle.

    linnaeus change-names changes.csv data/mine --out data/mine_2026
    linnaeus change-names changes.csv bundle --out bundle_2026
    linnaeus change-names NameUsage.tsv runs/mine --out bundle_2026

The list has columns change (rename, merge, move, split or new), taxon, and, as the change needs them, rank, to, parent
and id. Or it is a checklist of Catalogue of Life (ColDP) or GBIF (Darwin Core, a species list, a name match), or a
table of name and accepted, which is compared with the taxa that are there. A data set in place (--out is the same
folder) keeps its first labels in labels.before.h5. A run stays as it is, since it resumes exactly; a bundle is made of
it. What pictures alone decide is listed, and keeps its name. See docs/changing_names.md.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError

if TYPE_CHECKING:
    from linnaeus_jax.data.taxon_changes import ChangedTaxa
    from linnaeus_jax.data.taxon_names import TaxonNames
    from linnaeus_jax.inference.bundle.bundle import Bundle
    from linnaeus_jax.taxonomy.tree import TaxonomyTree

    Applied = Callable[[TaxonomyTree, TaxonNames], ChangedTaxa]

#: of a list on the console
SHOWN = 20
_DONE = {"rename": "renamed", "merge": "merged", "move": "moved", "split": "split", "new": "new"}


@tools.command()
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("change_names", __doc__)
    parser.add_argument("changes", type=Path, help="the list: CSV, TSV, either of them gzipped, or Parquet")
    parser.add_argument("source", type=Path, help="a data set (its folder or labels.h5), a bundle, or a run")
    parser.add_argument("--out", type=Path, required=True, help="folder or .h5 file; of bundles and runs a bundle")
    parser.add_argument(
        "--split-to-parent", action="store_true", help="what is split becomes unknown at its rank (it keeps its name)"
    )
    parser.add_argument(
        "--skip-unknown", action="store_true", help="leave out changes of taxa that are not here (an error)"
    )
    parser.add_argument("--without-data", action="store_true", help="of a run: measure and calibrate nothing")
    parser.add_argument("--force", action="store_true", help="replace a bundle that --out holds")
    args = parser.parse_args(argv)
    from linnaeus_jax.data.taxon_changes import change_taxa, described_split
    from linnaeus_jax.reading.name_changes import read_changes
    from linnaeus_jax.reporting.logs import PlainConsole, setup_logging

    setup_logging(None, process=1, level="WARNING", data_level="WARNING")
    notes: list[str] = []

    def change(tree: TaxonomyTree, names: TaxonNames) -> ChangedTaxa:
        changes, said = read_changes(args.changes, tree, names)
        rules = {"split_to_parent": args.split_to_parent, "skip_unknown": args.skip_unknown}
        changed = change_taxa(tree, names, changes, **rules)
        if not changed.done:
            raise UserError(f"{'; '.join([*said, *changed.notes, str(args.changes)])}: nothing changes")
        kept = "are unknown at their rank" if args.split_to_parent else "keep their names"
        split = [f"{len(changed.split)} taxa are split, which pictures alone can decide; they {kept}"]
        lines = described_split(changed, names)
        more = [f"  and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)
        notes[:] = [*said, *changed.notes, *(split + [f"  {one}" for one in lines[:SHOWN]] + more) * bool(lines)]
        return changed

    labels = args.source if args.source.suffix == ".h5" else args.source / "labels.h5"
    said = _labels(args.changes, labels, args.out, change) if labels.is_file() else _bundle(args, change)
    for line in (*said, *notes):
        PlainConsole().print(line, soft_wrap=True)


def _labels(changes: Path, labels: Path, out: Path, change: Applied) -> list[str]:
    """Writes a labels file; returns what is said of it."""
    from linnaeus_jax.building.scan.label_file import LabelFile
    from linnaeus_jax.building.steps.corrections import BEFORE, LABELS
    from linnaeus_jax.building.steps.renamed_labels import UNDECIDED, renamed_labels
    from linnaeus_jax.files import sha256_of

    out = out if out.suffix == ".h5" else out / LABELS
    in_place = out.exists() and out.samefile(labels)
    if out.exists() and not in_place:
        raise UserError(f"{out} exists; give a new folder, or that of {labels} itself, which keeps its first labels")
    applied: dict[str, object] = {"file": changes.name, "sha256": sha256_of(changes)} if changes.is_file() else {}
    with LabelFile(labels) as file:
        tasks = file.tasks
    changed, rows, undecided = renamed_labels(labels, tasks, labels if in_place else out, change, applied)
    said = [f"{out}: {_counted(changed)}; {rows:,} rows have other taxa" + f"; as it was: {BEFORE}" * in_place]
    if undecided:
        said.append(f"{undecided:,} pictures of taxa that are split are listed in {out.parent / UNDECIDED}")
    return said


def _bundle(args: argparse.Namespace, change: Applied) -> list[str]:
    """Writes a bundle; returns what is said of it."""
    from linnaeus_jax.inference.bundle.files import check_out, write_bundle
    from linnaeus_jax.inference.bundle.renamed import renamed_bundle
    from linnaeus_jax.inference.quality.card import write_card

    check_out(args.out, force=args.force)
    old = _source(args.source, change, measured=not args.without_data)
    new, changed = renamed_bundle(old, change, args.changes.name)
    write_bundle(new, args.out, functools.partial(write_card, new, None), force=args.force)
    said = [f"{args.out}: {_counted(changed)}"]
    if not changed.same_classes:
        said.append("what was measured was of the taxa before: thresholds for a coverage are left out")
    return said


def _source(source: Path, change: Applied, *, measured: bool) -> Bundle:
    """The bundle that is changed, of a run with its temperatures."""
    from linnaeus_jax.inference.bundle.files import is_bundle
    from linnaeus_jax.inference.model import read_bundle_or_run
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    bundle = read_bundle_or_run(source)
    if not measured or is_bundle(source):
        return bundle
    from linnaeus_jax.inference.quality.measuring import calibrated, measure, read_rows

    change(bundle.taxonomy.tree, bundle.taxonomy.names)  # what is wrong is said before the run is measured
    with tools.progress_bar("validation batches") as progress:
        return calibrated(bundle, measure(read_rows(bundle, progress), bundle))


def _counted(changed: ChangedTaxa) -> str:
    return ", ".join(f"{changed.done[kind]:,} {said}" for kind, said in _DONE.items() if changed.done.get(kind))


if __name__ == "__main__":
    sys.exit(main())
