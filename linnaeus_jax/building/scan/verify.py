"""Checks a labels file, of whatever program, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py

import linnaeus_jax
from linnaeus_jax.building.scan.checks import ERROR, NOTE, WARNING, Findings, make_checks
from linnaeus_jax.building.scan.columns import AskedRanks, Identifiers, Split, Subset, usable_columns
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.scan.metadata import ComponentFacts, RawColumn, metadata_sets, raw_columns
from linnaeus_jax.building.scan.pictures import PictureChecks, PictureFacts, Pictures, ReadPictures
from linnaeus_jax.building.scan.taxa import Hierarchy, NamesGroup, Rank, RankFacts, RankNames, read_taxa
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels import OCCURRENCE, SPLIT, SUBSET_PREFIX
from linnaeus_jax.data.labels_file import IDENTIFIERS
from linnaeus_jax.data.taxon_names import GROUP
from linnaeus_jax.taxonomy.ranks import check_task_order


@dataclass(frozen=True)
class Verification:
    """What was found. `split`: rows per side, {} without the column; `names`: task -> share of classes with a name."""

    labels: Path
    rows: int
    findings: Findings
    ranks: list[RankFacts]
    components: list[ComponentFacts]
    split: dict[str, int] = field(default_factory=dict)
    names: dict[str, float] = field(default_factory=dict)
    images: PictureFacts | None = None

    def is_clean(self, *, strict: bool = False) -> bool:
        """Without errors; with `strict` also without warnings."""
        return not self.findings.number(ERROR) and not (strict and self.findings.number(WARNING))

    def to_json(self) -> dict[str, Any]:
        return {
            "linnaeus_jax": linnaeus_jax.__version__,
            "labels": str(self.labels),
            "rows": self.rows,
            **{f"{level}s": self.findings.number(level) for level in (ERROR, WARNING, NOTE)},
            "findings": self.findings.to_json(),
            "ranks": [asdict(facts) for facts in self.ranks],
            "components": [asdict(facts) for facts in self.components],
            "split": self.split,
            "names": self.names,
            "images": None if self.images is None else asdict(self.images),
        }


def verify_labels(
    labels: Path,
    *,
    tasks: Sequence[str] = (),
    conflict_limit: float | None = None,
    threshold: int = 1,
    pictures: PictureChecks | None = None,
) -> Verification:
    """Checks a labels file and, if `pictures` says where they are, its pictures.

    Args:
      tasks: label columns as in `data.task_keys_h5`; none: all that the file has.
      conflict_limit, threshold: see `Hierarchy`; None: the default of `data.parent_conflict_limit`.

    Raises:
      UserError: no labels file at all, or impossible `tasks`.
    """
    data = get_config().data
    if tasks:
        try:
            check_task_order(tasks)
        except ValueError as error:
            raise UserError(str(error)) from error
    findings = Findings()
    with LabelFile(labels) as file:
        good = usable_columns(file, findings)
        make_checks(AskedRanks(tasks, data.task_keys_h5, file), findings)
        hashes = {}
        if IDENTIFIERS in good:
            with findings.of_damage():
                identifiers = Identifiers(file)
                hashes["picture (by identifier)"] = identifiers.hashes
                make_checks(identifiers, findings)
        taxa = read_taxa(file, [task for task in tasks or file.tasks if task in good], findings)
        for task in taxa.tasks:
            make_checks(Rank(taxa, task), findings)
        hierarchy = Hierarchy(taxa, data.parent_conflict_limit if conflict_limit is None else conflict_limit, threshold)
        make_checks(hierarchy, findings)
        components = [one.facts() for one in metadata_sets(file) if make_checks(one, findings)]
        for name in raw_columns(file):
            with findings.of_damage():
                make_checks(RawColumn(file, name), findings)
        for name in sorted(good):
            if name.startswith(SUBSET_PREFIX):
                with findings.of_damage():
                    make_checks(Subset(file, name), findings)
        found = Verification(labels, file.rows, findings, [hierarchy.facts(task) for task in taxa.tasks], components)
        group = file.file.get(GROUP)
        group = group if isinstance(group, h5py.Group) else None
        make_checks(NamesGroup(group, taxa.tasks), findings)
        for task in taxa.tasks if group is not None else ():
            names = RankNames(file, group, taxa, task)
            make_checks(names, findings)
            found.names.update({task: names.share} if names.present else {})
        images = None
        if pictures is not None:
            with findings.of_damage():
                opened = Pictures(file, pictures, aligned=bool(hashes))
                make_checks(opened, findings)
                images = opened.facts()
                if pictures.decode != "none" and opened.count:
                    read = ReadPictures(opened)
                    make_checks(read, findings)
                    images = read.facts()
                    if read.contents is not None:
                        hashes["picture (by content)"] = read.contents
        if SPLIT in good:
            with findings.of_damage():
                if OCCURRENCE in good:
                    hashes["occurrence"] = file.hashes(OCCURRENCE)
                split = Split(file, taxa, hashes)
                make_checks(split, findings)
                found.split.update(split.rows)
        return replace(found, images=images)
