"""Names are text, whatever they look like: as many classes as distinct names, in every source."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linnaeus_jax.building.sources import coco, folders, lists, table
from linnaeus_jax.building.sources.lists import ListFile
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.plan import plan_build
from linnaeus_jax.reading.schema import SourceRows

LIKE_NUMBERS = "0 1 01 001 000 10 1.0 1.50 -1 +1 1e3 0x1 1_0 nan None null true True inf 00 1.00 ٣".split()
NAMES = st.sampled_from(LIKE_NUMBERS) | st.from_regex(r"0{0,2}[0-9]{1,3}", fullmatch=True)


def place(root: Path, name: str, number: int) -> str:
    path = root / name / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path.relative_to(root).as_posix()


def by_number(root: Path, names: list[str]) -> list[tuple[str, str]]:
    """(path, name) of two pictures for each name, in folders that say nothing of it."""
    return [(place(root, "photos", row), names[row // 2]) for row in range(2 * len(names))]


def from_folders(root: Path, names: list[str]) -> SourceRows:
    for row in range(2 * len(names)):
        place(root, names[row // 2], row)
    return folders.read(root)


def from_split_folders(root: Path, names: list[str]) -> SourceRows:
    for row in range(2 * len(names)):
        place(root, f"{('train', 'val')[row % 2]}/{names[row // 2]}", row)
    return folders.read(root)


def from_text(root: Path, names: list[str], column: str = "species", separator: str = ",") -> SourceRows:
    lines = [separator.join((path, name)) for path, name in by_number(root, names)]
    (root / "t.csv").write_text("\n".join([separator.join(("file", column)), *lines]) + "\n", "utf-8")
    return table.read(root / "t.csv")


def from_parquet(root: Path, names: list[str]) -> SourceRows:
    pl.DataFrame(by_number(root, names), ["file", "species"], orient="row").write_parquet(root / "t.parquet")
    return table.read(root / "t.parquet")


def from_coco(root: Path, names: list[str]) -> SourceRows:
    rows = by_number(root, names)
    found = {
        "images": [{"id": row, "file_name": path} for row, (path, _) in enumerate(rows)],
        "annotations": [{"image_id": row, "category_id": row // 2} for row in range(len(rows))],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
    }
    (root / "a.json").write_text(json.dumps(found))
    return coco.read(root / "a.json")


def from_category_ids(root: Path, names: list[str]) -> SourceRows:
    """Categories that have ids and no names."""
    rows = by_number(root, names)
    found = {
        "images": [{"id": row, "file_name": path} for row, (path, _) in enumerate(rows)],
        "annotations": [{"image_id": row, "category_id": name} for row, (_, name) in enumerate(rows)],
        "categories": [{"id": name} for name in ("spare", *names)],
    }
    (root / "a.json").write_text(json.dumps(found))
    return coco.read(root / "a.json")


def from_lists(root: Path, names: list[str]) -> SourceRows:
    (root / "train.txt").write_text("".join(f"{path}, {name}\n" for path, name in by_number(root, names)), "utf-8")
    return lists.read([ListFile("train", root / "train.txt")])


def from_listed_folders(root: Path, names: list[str]) -> SourceRows:
    paths = [place(root, names[row // 2], row) for row in range(2 * len(names))]
    (root / "train.txt").write_text("".join(f"{path}\n" for path in paths), "utf-8")
    return lists.read([ListFile("train", root / "train.txt")])


def from_class_names(root: Path, names: list[str]) -> SourceRows:
    """Classes by number, with their names in a file of their own."""
    lines = [f"{path}, {row // 2}\n" for row, (path, _) in enumerate(by_number(root, names))]
    (root / "train.txt").write_text("".join(lines))
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
    return lists.read([ListFile("train", root / "train.txt")], class_names=[str(root / "classes.txt")])


SOURCES: dict[str, Callable[[Path, list[str]], SourceRows]] = {
    "folders": from_folders,
    "split": from_split_folders,
    "csv": from_text,
    "tsv": lambda root, names: from_text(root, names, separator="\t"),
    "class": lambda root, names: from_text(root, names, "class"),
    "label": lambda root, names: from_text(root, names, "label"),
    "taxon": lambda root, names: from_text(root, names, "taxon"),
    "species_name": lambda root, names: from_text(root, names, "species_name"),
    "parquet": from_parquet,
    "coco": from_coco,
    "category ids": from_category_ids,
    "lists": from_lists,
    "listed folders": from_listed_folders,
    "class names": from_class_names,
}


def named(source: SourceRows) -> Mapping[str, str]:
    """Number of a picture -> the name of its class, as a data set has it."""
    plan = plan_build(source, BuildOptions(), {})
    (task,) = plan.taxa.tasks
    ids = plan.taxa.taxon[plan.candidates, 0].tolist()
    return {Path(path).stem: plan.taxa.names[task][taxon][0] for path, taxon in zip(plan.pictures, ids, strict=True)}


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=12, deadline=None)
@example([name for name in LIKE_NUMBERS if name != "1_0"])
@example([str(number) for number in range(11)])
@given(st.lists(NAMES.filter(lambda name: "_" not in name), min_size=1, max_size=8, unique=True))
def test_as_many_classes_as_names(kind, names):
    with TemporaryDirectory() as folder:
        found = named(SOURCES[kind](Path(folder), names))
    assert found == {str(row): names[row // 2] for row in range(2 * len(names))}
