"""Checks a labels file, of whatever program, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import linnaeus_jax
from linnaeus_jax.building.scan.findings import ERROR, NOTE, WARNING, Findings
from linnaeus_jax.building.scan.label_file import LabelFile, damage_noted
from linnaeus_jax.building.scan.verify_columns import (
    check_identifiers,
    check_names,
    check_split,
    check_structure,
    check_subset,
)
from linnaeus_jax.building.scan.verify_metadata import ComponentFacts, check_metadata
from linnaeus_jax.building.scan.verify_pictures import PictureChecks, PictureFacts, check_pictures
from linnaeus_jax.building.scan.verify_taxa import RankFacts, check_taxa, read_taxa
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels import OCCURRENCE, SPLIT, SUBSET_PREFIX
from linnaeus_jax.data.labels_file import IDENTIFIERS
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
      conflict_limit: largest share of a class's rows that may contradict its parent; None: the default of
        `data.parent_conflict_limit`.
      threshold: fewest rows that a link between a class and its parent should rest on.

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
        good = check_structure(file, findings)
        _check_tasks(file, tasks, tuple(data.task_keys_h5), findings)
        identifiers = check_identifiers(file, findings) if IDENTIFIERS in good else None
        taxa = read_taxa(file, [task for task in tasks or file.tasks if task in good], findings)
        limit = data.parent_conflict_limit if conflict_limit is None else conflict_limit
        ranks = check_taxa(taxa, findings, conflict_limit=limit, threshold=threshold)
        components = check_metadata(file, findings)
        for name in sorted(good):
            if name.startswith(SUBSET_PREFIX):
                with damage_noted(findings):
                    check_subset(file, name, findings)
        names = check_names(file, taxa, findings)
        images, contents = None, None
        if pictures is not None:
            images, contents = check_pictures(file, pictures, findings, aligned=identifiers is not None)
        split: dict[str, int] = {}
        if SPLIT in good:
            hashes = {"picture (by identifier)": identifiers, "picture (by content)": contents}
            with damage_noted(findings):
                hashes["occurrence"] = file.hashes(OCCURRENCE) if OCCURRENCE in good else None
                present = {what: values for what, values in hashes.items() if values is not None}
                split = check_split(file, taxa, present, findings)
        return Verification(labels, file.rows, findings, ranks, components, split, names, images)


def _check_tasks(file: LabelFile, tasks: Sequence[str], default: Sequence[str], findings: Findings) -> None:
    """Compares the ranks of the file with the configured ones."""
    for task in tasks:
        if task not in file.datasets:
            findings.error(
                "ranks", f"{task} is asked for, but the file has {', '.join(file.tasks) or 'no label column'}"
            )
    if tasks:
        left = [task for task in file.tasks if task not in tasks]
        if left:
            findings.note("ranks", f"not checked, because they were not asked for: {', '.join(left)}")
    elif file.tasks and tuple(file.tasks) != tuple(default):
        keys = ",".join(repr(task) for task in file.tasks)
        findings.note(
            "ranks", f"the file has other ranks than the default; for all of them set data.task_keys_h5=({keys},)"
        )
