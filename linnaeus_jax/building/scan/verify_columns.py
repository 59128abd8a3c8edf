"""Checks of the other columns: that each has its type and length, identifiers, splits, subsets and taxon names."""

from __future__ import annotations

from collections.abc import Mapping

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.findings import SHOWN, Findings
from linnaeus_jax.building.scan.label_file import LabelFile, damage_noted
from linnaeus_jax.building.scan.verify_taxa import Taxa
from linnaeus_jax.data.labels import MAX_SUBSETS, OCCURRENCE, SPLIT, SPLITS, SUBSET_PREFIX
from linnaeus_jax.data.labels_file import IDENTIFIERS, json_attribute, validated_dataset, values_of
from linnaeus_jax.data.splits import FEWEST_ROWS
from linnaeus_jax.data.taxon_names import GROUP
from linnaeus_jax.reading.paths import UNSAFE

TEXT = "text"
#: data set -> kinds of its dtype ("text" for strings), numbers of dimensions
COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    IDENTIFIERS: (TEXT, (1,)),
    "spatial": ("fiu", (1, 2)),
    "temporal": ("fiu", (1, 2)),
    "raw_lat": ("fiu", (1,)),
    "raw_lon": ("fiu", (1,)),
    "raw_elevation": ("fiu", (1,)),
    "raw_date_observed": (TEXT, (1,)),
    "in_region": ("biu", (1,)),
    "anomaly_score": ("fiu", (1,)),
    "observer_id": ("iu", (1,)),
    SPLIT: ("iu", (1,)),
    "license": (TEXT, (1,)),
    "rights_holder": (TEXT, (1,)),
    "source_doi": (TEXT, (1,)),
    OCCURRENCE: (TEXT, (1,)),
}
_KINDS = {"f": "float", "i": "int", "u": "unsigned int", "b": "bool", TEXT: "strings"}


def _expected(name: str) -> tuple[str, tuple[int, ...]] | None:
    if name.startswith("taxa_"):
        return "ui", (1,)
    if name.startswith("elevation_"):
        return "fiu", (1, 2)
    if name.startswith(SUBSET_PREFIX):
        return TEXT + "biu", (1,)
    return COLUMNS.get(name)


def check_structure(file: LabelFile, findings: Findings) -> set[str]:
    """Type, dimensions and length of every data set; the names of those that can be read further."""
    good: set[str] = set()
    unknown: list[str] = []
    if IDENTIFIERS not in file.datasets:
        findings.error("structure", f"there is no dataset {IDENTIFIERS!r}: no row says which picture it belongs to")
    if not file.tasks:
        offered = ", ".join(name for name in file.datasets if name.startswith("taxa")) or "no taxa_L<level>"
        findings.error("structure", f"there is no label column taxa_L10, taxa_L20, ... (found {offered})")
    if not file.rows:
        findings.error("structure", "the file has no rows")
    for name, dataset in file.datasets.items():
        expected = _expected(name)
        if expected is None:
            if _check_unknown(file, name, findings):
                good.add(name)
            else:
                unknown.append(name)
            continue
        kinds, dims = expected
        is_text = file.is_text(name)
        if not ((is_text and TEXT in kinds) or dataset.dtype.kind in kinds.replace(TEXT, "")):
            names = ([_KINDS[TEXT]] if TEXT in kinds else []) + [_KINDS[kind] for kind in kinds.replace(TEXT, "")]
            findings.error("dtype", f"{name}: dtype {dataset.dtype}, expected {' or '.join(names)}")
        elif dataset.ndim not in dims:
            findings.error("shape", f"{name}: shape {dataset.shape}, expected {' or '.join(map(str, dims))} dimensions")
        elif not file.has(name):
            findings.error("length", f"{name}: {len(dataset)} rows, expected {file.rows} as in {IDENTIFIERS}")
        else:
            good.add(name)
            if name.startswith("taxa_") and dataset.dtype != np.uint32:
                findings.note("dtype", f"{name}: dtype {dataset.dtype} is read as well as uint32")
    unknown += [name for name in file.groups if name not in ("metadata", GROUP)]
    if unknown:
        findings.note(
            "unknown", f"{len(unknown)} items have no meaning here and are not read", examples=sorted(unknown)
        )
    _check_origin(file, findings)
    return good


def _check_unknown(file: LabelFile, name: str, findings: Findings) -> bool:
    """Whether a data set without a usual name can serve as metadata: float with two dimensions, one row each."""
    dataset = file.datasets[name]
    if dataset.dtype.kind != "f" or dataset.ndim != 2:
        return False
    if not file.has(name):
        findings.note("length", f"{name}: {len(dataset)} rows, so it cannot be metadata of the {file.rows} rows")
        return False
    return True


def _check_origin(file: LabelFile, findings: Findings) -> None:
    if "metadata" not in file.groups:
        findings.warning("origin", "there is no group 'metadata': nothing is known about the origin of the data")
        return
    try:
        json_attribute(file.file["metadata"], "config_json")
    except ValueError as error:
        findings.warning("origin", f"the attribute config_json of 'metadata' is not valid JSON: {error}")


def check_identifiers(file: LabelFile, findings: Findings) -> NDArray[np.int64] | None:
    """Empty, undecodable, unsafe and repeated identifiers; a hash of each, int64 [N], None where they are damaged."""
    hashes = np.zeros(file.rows, np.int64)
    unsafe: list[int] = []
    undecodable: list[int] = []
    with damage_noted(findings):
        for start, part in file.slabs(IDENTIFIERS):
            texts = part.tolist()
            hashes[start : start + len(part)] = [hash(text) for text in texts]
            unsafe += [start + i for i, text in enumerate(texts) if UNSAFE.search(text)]
            undecodable += [start + i for i, text in enumerate(texts) if not text.isascii() and not _is_utf8(text)]
        _report_identifiers(file, findings, np.flatnonzero(hashes == 0), unsafe, undecodable)
        repeated = repeated_rows(hashes)
        if len(repeated):
            findings.warning(
                "duplicate_identifier",
                f"{len(repeated)} rows have the identifier of an earlier row, so two rows show one picture",
                repeated,
                file.texts(IDENTIFIERS, repeated[:SHOWN]),
            )
        return hashes
    return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _report_identifiers(
    file: LabelFile, findings: Findings, empty: NDArray[np.int64], unsafe: list[int], undecodable: list[int]
) -> None:
    if len(empty):
        findings.error("empty_identifier", f"{len(empty)} rows have an empty identifier", empty)
    if unsafe:
        findings.error(
            "unsafe_identifier",
            f"{len(unsafe)} identifiers lead out of the folder of pictures (absolute, '..') or hold a backslash or "
            "control characters",
            unsafe,
            file.texts(IDENTIFIERS, unsafe[:SHOWN]),
        )
    if undecodable:
        findings.error(
            "undecodable_identifier",
            f"{len(undecodable)} identifiers are not UTF-8, so no file can be found by them",
            undecodable,
            file.texts(IDENTIFIERS, undecodable[:SHOWN]),
        )


def repeated_rows(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows whose hash an earlier row has, ascending; 0 stands for nothing."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    return np.sort(order[1:][same & (hashes[order][1:] != 0)])


def rows_on_other_side(hashes: NDArray[np.int64], side: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows whose hash also stands on another side, one per change of side, ascending; hash 0 stands for nothing."""
    order = np.lexsort((side, hashes))
    ordered, sides = hashes[order], side[order]
    change = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0) & (sides[1:] != sides[:-1])
    return np.sort(order[1:][change])


def check_split(
    file: LabelFile, taxa: Taxa, hashes: Mapping[str, NDArray[np.int64]], findings: Findings
) -> dict[str, int]:
    """Checks the column `split`; rows per side.

    Args:
      hashes: what must not stand on two sides -> int64 [N], 0 for nothing.
    """
    side = file.numbers(SPLIT).astype(np.int64)
    wrong = np.flatnonzero((side < 0) | (side >= len(SPLITS)))
    if len(wrong):
        known = ", ".join(f"{number} {name}" for number, name in enumerate(SPLITS))
        findings.error(
            "split_value", f"split: {len(wrong)} rows hold another value than {known}, e.g. {side[wrong[0]]}", wrong
        )
    rows = {name: int((side == number).sum()) for number, name in enumerate(SPLITS)}
    if not rows["val"] and rows["test"] and rows["train"] >= FEWEST_ROWS:
        findings.note("split_drawn", "split: no row is val; every run draws some of the training rows for validation")
    else:
        for name in ("train", "val"):
            if not rows[name] and file.rows:
                findings.error("split_empty", f"split: no row is {name}")
    for what, values in hashes.items():
        both = rows_on_other_side(np.where((side >= 0) & (side < len(SPLITS)), values, 0), side)
        if len(both):
            findings.error(
                "split_leak",
                f"{len(both)} rows share their {what} with a row on another side of the split, so validation measures "
                "what was trained on",
                both,
            )
    for t, task in enumerate(taxa.tasks):
        present = [
            np.bincount(taxa.label[side == number, t], minlength=len(taxa.classes[task])) for number in (0, 1, 2)
        ]
        for number, name in ((1, "val"), (2, "test")):
            only = np.setdiff1d(np.flatnonzero((present[number] > 0) & (present[0] == 0)), [0])
            if len(only):
                findings.warning(
                    "split_classes",
                    f"{task}: {len(only)} classes stand in {name} and not in train; none of them can be recognised",
                    examples=[f"{taxa.name(task, int(i))}: {present[number][i]} rows" for i in only[:SHOWN]],
                )
    return rows


def check_subset(file: LabelFile, name: str, findings: Findings) -> None:
    """Number and spelling of the values of a column subset_<kind>; DamagedError."""
    values: set[bytes] = set()
    for _, part in file.slabs(name):
        values |= set(part.tolist() if file.is_text(name) else np.unique(part[part >= 0]).astype("S").tolist())
        if len(values) > 100 * MAX_SUBSETS:
            break
    values -= {b""}
    if len(values) > MAX_SUBSETS:
        findings.error("subset", f"{name}: {len(values)} or more different values, at most {MAX_SUBSETS} are allowed")
    if wrong := sorted(value for value in values if b"/" in value):
        findings.error("subset", f"{name}: {len(wrong)} values hold '/', which no metric's name can", examples=wrong)


def check_names(file: LabelFile, taxa: Taxa, findings: Findings) -> dict[str, float]:
    """Checks the group of taxon names; task -> share of classes with a name."""
    group = file.file.get(GROUP)
    if not isinstance(group, h5py.Group):
        findings.note("names", f"there is no group {GROUP!r}: classes are shown by their taxon ids")
        return {}
    for task in sorted(set(group) - set(taxa.tasks)):
        findings.warning("names", f"{GROUP}/{task}: there is no such label column")
    shares = {}
    for task in taxa.tasks:
        if task not in group:
            findings.note("names", f"{GROUP} has nothing for {task}")
            continue
        shares[task] = _check_names_of(file, taxa, task, findings)
    return shares


def _check_names_of(file: LabelFile, taxa: Taxa, task: str, findings: Findings) -> float:
    """Checks the names of one rank; the share of its classes with a name, 0 where they cannot be read."""
    where, ids, names = f"{GROUP}/{task}", taxa.classes[task][1:], taxa.names.name[task][1:]
    try:
        known = validated_dataset(file.file, str(file.path), f"{where}/taxon_id", None, kinds="ui", dims=(1,))
        unused = np.setdiff1d(values_of(known, str(file.path)), ids)
    except ValueError:  # a finding of `read_taxa`
        return 0.0
    nameless = np.flatnonzero(names == "")
    if len(nameless):
        lines = [str(ids[i]) for i in nameless[:SHOWN]]
        findings.warning("names", f"{where}: {len(nameless)} of {len(ids)} classes have no name", examples=lines)
    if len(unused):
        findings.note("names", f"{where}: {len(unused)} names are of taxa that no row has")
    owners: dict[str, list[int]] = {}
    for taxon, name in zip(ids.tolist(), names.tolist()):
        owners.setdefault(name, []).append(taxon)
    twice = [f"{name}: {', '.join(map(str, taxa))}" for name, taxa in owners.items() if name and len(taxa) > 1]
    if twice:
        findings.warning("names", f"{where}: {len(twice)} names belong to more than one taxon", examples=twice)
    return 1 - len(nameless) / len(ids) if len(ids) else 1.0
