"""From the config to the two splits, their classes, the tree, and everything that is counted about them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.typed import Config, DataConfig, ScheduleMixupConfig
from linnaeus_jax.data import splits
from linnaeus_jax.data.hidden import without_taxa
from linnaeus_jax.data.labels import SPLIT, LabelTable, read_label_tables, with_classes
from linnaeus_jax.data.labels_file import box_settings
from linnaeus_jax.data.metadata import Component, ComponentSettings, component_settings
from linnaeus_jax.data.repeats import repeated_images, shared_occurrences
from linnaeus_jax.data.splits import Split, SplitRows
from linnaeus_jax.data.subsets import assign_subsets
from linnaeus_jax.data.taxon_names import TaxonNames, read_taxon_names
from linnaeus_jax.files import write_json
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.taxonomy.ranks import task_name
from linnaeus_jax.taxonomy.tree import ParentConflict, TaxonomyTree, describe_conflict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sources:
    """Where the data lies. Without `val_labels` the training file is split (`split`) or there is no validation."""

    scenario: str  # "two files", "single file, split" or "train only", with ", hybrid" for folders of images
    train_labels: str
    val_labels: str
    train_images: str  # HDF5 file, or directory if `hybrid`
    val_images: str
    split: bool
    hybrid: bool


@dataclass(frozen=True)
class Dataset:
    """Both splits and what is counted over them. `val` has 0 rows in the train-only scenario.

    `class_counts`, `task_label_density`, `task_nulls_density` (percent of rows with and without a label) and
    `meta_label_density` (percent of rows whose component is known) are keyed by "train" and "val" first.
    """

    title: str  # name, version and clade as configured; empty if none is
    sources: Sources
    tasks: tuple[str, ...]
    classes: dict[str, NDArray[np.int64]]  # taxon id of each class, 0 for null
    names: TaxonNames
    num_classes: dict[str, int]
    null_possible: bool
    components: tuple[Component, ...]
    tree: TaxonomyTree
    train: Split
    val: Split
    test_rows: NDArray[np.int64]  # of the training labels file, usable but kept out of both splits by the file itself
    split_rule: str  # how a single file was split, for people; empty: at random by rows
    class_counts: dict[str, dict[str, NDArray[np.int64]]]
    task_label_density: dict[str, dict[str, float]]
    task_nulls_density: dict[str, dict[str, float]]
    meta_label_density: dict[str, dict[str, float]]
    rarity_thresholds: dict[str, NDArray[np.int64]]  # [P] per task with at least two classes
    rarity_names: tuple[str, ...]  # of bins 0..P; empty if the finest task has no thresholds
    taxa_subset_names: tuple[str, ...]
    subset_names: dict[str, tuple[str, ...]]  # kind -> names of the user's own subsets
    conflicts: tuple[ParentConflict, ...]
    filters: tuple[splits.FilterReport, ...]
    repeats: tuple[str, ...]  # one sentence for each kind of image or occurrence that several used rows name

    @property
    def meta_dim(self) -> int:
        """D, the width of the metadata vector."""
        return self.components[-1].stop if self.components else 0

    def class_name(self, task: str, index: int) -> str:
        """What people read for a class: its names and its taxon id, see `taxon_names.describe_taxon`."""
        return self.names.label(task, index)

    def class_to_idx(self) -> dict[str, dict[str, int]]:
        """{task: {taxon id as text, "null" for the null class: class index}}."""
        return {
            task: {("null" if taxon == 0 else str(taxon)): index for index, taxon in enumerate(ids.tolist())}
            for task, ids in self.classes.items()
        }

    def subset_maps(self) -> dict[str, dict[str, int]]:
        """{"taxa": {name: position}, "rarity": {bin name: bin}}, and the user's own kinds in the same way."""
        kinds = {"taxa": self.taxa_subset_names, "rarity": self.rarity_names, **self.subset_names}
        return {kind: {name: position for position, name in enumerate(names)} for kind, names in kinds.items()}

    def additional_statistics(self) -> dict[str, dict[str, dict[str, float]]]:
        """{split: {task: how the class counts spread}}, with the population's standard deviation."""
        return {
            name: {task: _spread(count) for task, count in counts.items()} for name, counts in self.class_counts.items()
        }

    def headline(self) -> str:
        """Two lines for people, and what is odd about the data; `report` has the rest."""
        title = f"{self.title}: " if self.title else ""
        files = " and ".join(dict.fromkeys(filter(None, (self.sources.train_labels, self.sources.val_labels))))
        first = int(self.null_possible)
        counts = [f"{task_name(task)} {self.num_classes[task] - first}" for task in self.tasks]
        known = ", ".join(component.name for component in self.components) or "none"
        return "\n".join(
            [
                f"data: {title}{len(self.train)} training and {len(self.val)} validation rows of {files}",
                f"      classes: {', '.join(counts)}; metadata: {known}",
                *self._oddities(),
            ]
        )

    def _oddities(self) -> list[str]:
        """Repeated pictures, and taxa of several parents."""
        lines = [f"repeats: {sentence}" for sentence in self.repeats]
        lines += [
            f"conflict: {describe_conflict(conflict, self.tasks, self.class_name)}" for conflict in self.conflicts[:50]
        ]
        if len(self.conflicts) > 50:
            lines.append(f"... and {len(self.conflicts) - 50} more conflicts")
        return lines

    def report(self) -> str:
        """Text for people: files, rows rejected by each rule, and per rank classes, labels and gaps."""
        title = f"{self.title}: " if self.title else ""
        rows = f"{len(self.train)} training and {len(self.val)} validation rows"
        lines = [f"data: {title}{self.sources.scenario}, {rows}"]
        lines += [str(report) for report in self.filters]
        if self.split_rule:
            lines.append(f"split: {self.split_rule}")
        lines.append(f"{'task':<14}{'classes':>9}{'labelled %':>12}{'largest':>9}{'median':>8}{'untrained in val':>18}")
        first = int(self.null_possible)
        for task in self.tasks:
            train, val = (self.class_counts[name][task][first:] for name in ("train", "val"))
            filled = train[train > 0]
            lines.append(
                f"{task:<14}{len(train):>9}{self.task_label_density['train'][task]:>12.2f}"
                f"{int(train.max(initial=0)):>9}{float(np.median(filled)) if len(filled) else 0:>8g}"
                f"{int(((train == 0) & (val > 0)).sum()):>18}"
            )
        for component in self.components:
            share = self.meta_label_density["train"][component.name]
            where = f"columns {component.start}..{component.stop - 1} from {component.source}"
            lines.append(f"{component.name:<14}{where}, known for {share:.2f} % of the training rows")
        roots = len(self.tree.top_classes())
        lines.append(f"tree: {roots} root(s) at {self.tasks[-1]}{' (metaclade)' if roots > 1 else ''}")
        return "\n".join([*lines, *self._oddities()])


def resolve_sources(data: DataConfig) -> Sources:
    """The build scenario that the paths of `config.data` describe.

    Two files (`train_*` and `val_*`), a single file to be split (`labels_path`), or training only (`train_*`); images
    from HDF5 files or, with `hybrid.use_hybrid`, from folders.

    Raises:
      ValueError: a path is missing, or paths of two scenarios are mixed.
    """
    h5, hybrid, parts = data.h5, bool(data.hybrid.use_hybrid), ("", "train_", "val_")
    labels_key, images_key = "data.h5.{}labels_path", "data.h5.{}images_path"
    labels = {part: h5[f"{part}labels_path"] or "" for part in parts}
    images = {part: h5[f"{part}images_path"] or "" for part in parts}
    if hybrid:
        ignored = [images_key.format(part) for part, path in images.items() if path]
        if ignored:
            log.warning("data.hybrid.use_hybrid is True: %s is not used", ", ".join(ignored))
        images_key = "data.hybrid.{}images_dir"
        images = {part: data.hybrid[f"{part}images_dir"] or "" for part in parts}
    separate = [
        key.format(part)
        for part in ("train_", "val_")
        for key, paths in ((labels_key, labels), (images_key, images))
        if paths[part]
    ]
    if hybrid:
        images = {part: images[part] or images[""] for part in parts}
    needed: tuple[str, ...]
    if labels[""]:
        if separate:
            raise InputError(
                f"data.h5.labels_path (one file, split at start) and {', '.join(separate)} exclude each other; "
                "empty one of the two"
            )
        scenario, needed = "single file, split", ("",)
    elif labels["val_"] or (images["val_"] and not hybrid):
        scenario, needed = "two files", ("train_", "val_")
    elif labels["train_"]:
        scenario, needed = "train only", ("train_",)
    else:
        raise InputError(
            "no labels file: set data.h5.labels_path (one file, split at start), or data.h5.train_labels_path and "
            "data.h5.val_labels_path, or data.h5.train_labels_path alone (no validation)"
        )
    for part in needed:
        for key, paths in ((labels_key, labels), (images_key, images)):
            if not paths[part]:
                raise InputError(f"{key.format(part)} is empty but needed ({scenario}); set it")
    return Sources(
        scenario + (", hybrid" if hybrid else ""),
        train_labels=labels[needed[0]],
        val_labels=labels["val_"],
        train_images=images[needed[0]],
        val_images=images[needed[-1]],
        split=scenario == "single file, split",
        hybrid=hybrid,
    )


def build_dataset(config: Config, missing_rows: Mapping[str, NDArray[np.int64]] | None = None) -> Dataset:
    """Reads the labels files named by the config and prepares both splits. Images are not opened.

    Args:
      config: the full tree; `data`, `metrics` and `schedule.mixup` are used.
      missing_rows: {"train": ..., "val": ...}, int64 rows of the respective labels file that have no image; "train" for
        a single file.

    Raises:
      FileNotFoundError: a labels file does not exist.
      ValueError: an unusable setting or file, no row left, no training row, contradicting parents, or an image on
        both sides of the split.
    """
    data, mixup = config.data, config.schedule.mixup
    tasks = tuple(data.task_keys_h5)
    null_columns = _null_columns(mixup, tasks)
    null_possible = bool(data.partial.levels)
    sources = resolve_sources(data)
    settings = component_settings(data.meta)
    paths = [path for path in (sources.train_labels, sources.val_labels) if path]
    tables, classes = read_label_tables(paths, tasks, settings, null_possible=null_possible)

    names = read_taxon_names(paths, classes)
    if data.hide_taxa:
        tables, classes = with_classes(without_taxa(tables, names, data.hide_taxa), null_possible=null_possible)
        names = read_taxon_names(paths, classes)
    rows_of, filters = _select_rows(data, sources, tables, settings, missing_rows or {})
    kept = (rows_of.train, rows_of.val)
    parts = {"training": (tables[0], rows_of.train), "validation": (tables[-1], rows_of.val)}
    if len(rows_of.test):
        parts["test"] = (tables[0], rows_of.test)
    one_place = os.path.realpath(sources.train_images) == os.path.realpath(sources.val_images)
    repeats = repeated_images(parts, one_place=one_place) + shared_occurrences(parts)
    for sentence in repeats:
        log.warning("%s", sentence)

    # ---- what is counted
    tree, conflicts = TaxonomyTree.from_labels(
        classes,
        [table.label for table in tables],
        null_possible=null_possible,
        conflict_limit=data.parent_conflict_limit,
        class_name=names.label,
    )
    if conflicts:
        log.warning("%d classes have several parents; the most frequent one counts", len(conflicts))
    percentiles = tuple(config.metrics.rarity_percentiles)
    subsets = splits.parse_taxa_subsets(config.metrics.taxa_subsets, classes)
    counts, label_density, null_density, meta_density = {}, {}, {}, {}
    for name, table, rows in zip(("train", "val"), (tables[0], tables[-1]), kept):
        label = table.label[rows]
        counts[name] = splits.class_counts(label, classes)
        null = (label == 0) & null_possible
        label_density[name] = splits.percent(~null, tasks)
        null_density[name] = splits.percent(null, tasks)
        meta_density[name] = splits.percent(table.meta_valid[rows], [item.name for item in settings])
    thresholds = splits.rarity_thresholds(counts["train"], percentiles)
    finest = thresholds.get(tasks[0], np.empty(0, np.int64))

    def split(name: str, table: LabelTable, rows: NDArray[np.int64], images: str) -> Split:
        size = counts["train"][tasks[0]][table.label[rows, 0]]
        return Split(
            name,
            table,
            rows,
            images,
            rarity=splits.rarity_bins(size, finest),
            taxa_subset=splits.taxa_subset_matrix(subsets, tasks, table.taxon[rows]),
            subsets=np.empty((len(rows), 0), np.int32),
            min_group_size=mixup.min_group_size,
            null_columns=null_columns,
        )

    subset_names, (train, val) = assign_subsets(
        [
            split("train", tables[0], kept[0], sources.train_images),
            split("val", tables[-1], kept[1], sources.val_images),
        ]
    )
    return Dataset(
        title=" ".join(filter(None, (data.dataset.name, data.dataset.version, data.dataset.clade))),
        sources=sources,
        tasks=tasks,
        classes=classes,
        names=names,
        num_classes={task: len(ids) for task, ids in classes.items()},
        null_possible=null_possible,
        components=tables[0].components,
        tree=tree,
        train=train,
        val=val,
        test_rows=rows_of.test,
        split_rule=rows_of.rule,
        class_counts=counts,
        task_label_density=label_density,
        task_nulls_density=null_density,
        meta_label_density=meta_density,
        rarity_thresholds=thresholds,
        rarity_names=splits.rarity_bin_names(percentiles) if len(finest) else (),
        taxa_subset_names=tuple(subset.name for subset in subsets),
        subset_names=subset_names,
        conflicts=tuple(conflicts),
        filters=filters,
        repeats=repeats,
    )


def _select_rows(
    data: DataConfig,
    sources: Sources,
    tables: Sequence[LabelTable],
    settings: Sequence[ComponentSettings],
    missing_rows: Mapping[str, NDArray[np.int64]],
) -> tuple[SplitRows, tuple[splits.FilterReport, ...]]:
    """Rows of each split, and what the rules rejected in each file."""
    missing = [np.asarray(missing_rows.get(name, ()), np.int64) for name in ("train", "val")]
    filtered = [splits.filter_rows(table, data, settings, rows) for table, rows in zip(tables, missing)]
    kept, empty = [rows for rows, _ in filtered], np.empty(0, np.int64)
    if sources.split:
        rows = splits.split_file(tables[0], kept[0], data.h5)
        if not len(rows.val):
            log.warning("data.h5.train_val_split_ratio leaves no validation row")
    else:
        if ignored := [table.path for table in tables if SPLIT in table.offered]:
            log.info("dataset %r of %s is not used: each split has its own file", SPLIT, " and ".join(ignored))
        rows = SplitRows(kept[0], kept[1] if len(kept) > 1 else empty, empty)
    return rows, tuple(report for _, report in filtered)


def _null_columns(mixup: ScheduleMixupConfig, tasks: tuple[str, ...]) -> tuple[int, ...] | None:
    """Positions of the tasks whose null rows are kept out of mixing."""
    if not mixup.exclude_null_samples:
        return None
    return tuple(tasks.index(name) for name in mixup.null_task_keys or tasks)


def _spread(count: NDArray[np.int64]) -> dict[str, float]:
    mean, deviation = float(count.mean()), float(count.std())
    return {
        "total_samples": int(count.sum()),
        "mean_frequency": mean,
        "std_dev_frequency": deviation,
        "coefficient_of_variation": deviation / mean if mean > 1e-6 else 0.0,
    }


#: among the assets of a run, training rows of each path of its taxonomy
PATH_COUNTS = "path_counts.json"
#: how boxes were cut from the pictures that it was trained on; not there where they were whole
BOXES = "boxes.json"


def write_assets(dataset: Dataset, assets_dir: str | Path, metadata_dir: str | Path) -> None:
    """Writes what a run leaves behind about its data.

    `assets_dir`: num_classes.json, class_to_idx.json, subset_maps.json, taxonomy_tree.json, path_counts.json (of the
    training rows, see `TaxonomyTree.path_counts`), boxes.json where its pictures were cut from others, taxon_names.json
    ({task: {taxon id: {"name", "common_name"}}} of the classes with a name), and subset_ids.npz with int64
    `rows_<split>` [n] and int32 `taxa_<split>`, `rarity_<split>`, `subset_<kind>_<split>` [n].
    `metadata_dir`: task_label_density.json, task_nulls_density.json, meta_label_density.json,
    class_label_counts.json, additional_statistics.json, all {split: {task or component: ...}}.
    """
    assets, metadata = Path(assets_dir), Path(metadata_dir)
    files: dict[Path, Any] = {
        assets / "num_classes.json": dataset.num_classes,
        assets / "class_to_idx.json": dataset.class_to_idx(),
        assets / "subset_maps.json": dataset.subset_maps(),
        assets / "taxonomy_tree.json": dataset.tree.to_json(),
        assets / PATH_COUNTS: dataset.tree.path_counts(dataset.train.labels),
        assets / "taxon_names.json": dataset.names.to_json(),
        metadata / "task_label_density.json": dataset.task_label_density,
        metadata / "task_nulls_density.json": dataset.task_nulls_density,
        metadata / "meta_label_density.json": dataset.meta_label_density,
        metadata / "class_label_counts.json": {
            name: {task: count.tolist() for task, count in counts.items()}
            for name, counts in dataset.class_counts.items()
        },
        metadata / "additional_statistics.json": dataset.additional_statistics(),
    }
    (assets / BOXES).unlink(missing_ok=True)
    if (cut := box_settings(dataset.sources.train_labels)) is not None:
        files[assets / BOXES] = cut
    for path, content in files.items():
        write_json(path, content)
    arrays: dict[str, NDArray[Any]] = {}
    for split in (dataset.train, dataset.val):
        arrays[f"rows_{split.name}"] = split.rows
        arrays[f"taxa_{split.name}"] = split.taxa_subset_id
        arrays[f"rarity_{split.name}"] = split.rarity
        arrays |= {f"subset_{kind}_{split.name}": split.subsets[:, j] for j, kind in enumerate(dataset.subset_names)}
    np.savez_compressed(assets / "subset_ids.npz", **arrays)  # type: ignore[arg-type]
