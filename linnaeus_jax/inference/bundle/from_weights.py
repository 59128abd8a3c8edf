"""A published classifier of scientific names as a bundle, without any training.

Its classes are the finest rank; genera follow from their names, coarser ranks from the names of iNaturalist 2021 or
from a table. The probability of a genus is the sum over its classes: the heads of coarser ranks say nothing of their
own, so that a path is as probable as its class. A class for everything else, such as "background", becomes null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration
from linnaeus_jax.inference.bundle.coarser_ranks import RankTable
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.names import abstract_variables, named_leaves, params_from_torch
from linnaeus_jax.reading.columns import level_number, rank_name, task_of
from linnaeus_jax.reading.metadata import MetadataEncoder
from linnaeus_jax.taxonomy.scientific_names import is_unknown, read_name
from linnaeus_jax.taxonomy.tree import TaxonomyTree
from linnaeus_jax.weights.adopting import known_as, name_and_licence
from linnaeus_jax.weights.files import read_state
from linnaeus_jax.weights.formats.base import format_of
from linnaeus_jax.weights.hub_settings import HubSettings, asked, hub_settings
from linnaeus_jax.weights.importing import read_pretrained
from linnaeus_jax.weights.locating import located_with_description

SPECIES, GENUS = "taxa_L10", "taxa_L20"
#: names of a class for what is none of the others
BACKGROUND = ("background", "null", "other")
#: classes that a file of labels can have
MOST = 1_000_000
_LABEL = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<common>.*)\))?")
#: a class of iNaturalist 2021: number, kingdom, phylum, class, order, family, genus, the rest of the name
_INAT21 = re.compile(
    r"\d+_(?P<L70>[^_\s]+)_(?P<L60>[^_\s]+)_(?P<L50>[^_\s]+)_(?P<L40>[^_\s]+)_(?P<L30>[^_\s]+)"
    r"_(?P<genus>[^_\s]+)_(?P<species>\S+)"
)


class Label(NamedTuple):
    """One class: scientific and common name, genus, and {level: name} above it; all are empty of the background."""

    name: str
    common_name: str
    genus: str
    above: Mapping[str, str] = {}


def read_labels(path: Path) -> list[Label]:
    """The classes of a text file, one a line: a scientific name, perhaps with a common one in brackets.

    Raises:
      UserError: no such file, or a line that is neither a scientific name of a species nor the background, or twice
        the same; the message names the line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"the labels {path} cannot be read: {described(error)}") from error
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        lines = data.decode("latin-1").splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return _checked(lines, path)


def _checked(lines: Sequence[str], path: Path) -> list[Label]:
    """The classes of the lines of a file."""
    if not lines or len(lines) > MOST:
        raise UserError(f"{path} has {len(lines)} lines; one class a line is needed")
    labels: list[Label] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        label = _label(line.strip())
        if label is None:
            raise UserError(
                f"{path}:{number}: {line.strip()[:80]!r} is no scientific name of a species; one class a line is "
                f"needed, such as 'Cyanocitta cristata (Blue Jay)', or {' or '.join(BACKGROUND)}"
            )
        if label.name in seen:
            what = repr(label.name) if label.name else "the background"
            raise UserError(
                f"{path}:{number}: {what} stands in line {seen[label.name]} already; a class is needed once"
            )
        seen[label.name] = number
        labels.append(label)
    return labels


def _label(line: str) -> Label | None:
    if line.casefold() in BACKGROUND or (line and is_unknown(line)):
        return Label("", "", "")
    above: dict[str, str] = {}
    if inat21 := _INAT21.fullmatch(line):
        above = {level: inat21[level] for level in ("L30", "L40", "L50", "L60", "L70")}
        line = f"{inat21['genus']} {inat21['species'].replace('_', ' ')}"
    match = _LABEL.fullmatch(line)
    if match is None:
        return None
    text = " ".join(match["name"].split())
    name = read_name(text)
    genus = text.split()[0]
    if name is None or len(text.split()) < 2 or not genus[0].isupper():
        return None
    return Label(text, (match["common"] or "").strip(), genus, above)


def bundle_from_weights(source: str, labels: Path | None = None, ranks: Path | None = None) -> Bundle:
    """The classifier of a file of weights, not calibrated.

    Args:
      source: a path, or a name as `model.pretrained` takes it.
      labels: see `read_labels`; in the order of the classifier. None: those that a description beside the file has.
      ranks: a table of species or genera with the names of coarser ranks. None: what the labels say.

    Raises:
      UserError: a file that cannot be read, of no kind that has a classifier, or of another number of classes.
    """
    file = read_state(located_with_description(source, "--from-weights"))
    kind = format_of(file)
    needs, classifier, pictures = kind.settings(file), kind.classifier(file), kind.preprocessing(file)
    said = hub_settings(file.path) if kind.described else HubSettings()
    if classifier is None or (pictures is None and not kind.described):
        raise UserError(f"{file.path} holds no classifier that can be used as it is; give published weights that do")
    if pictures is None:
        raise UserError(asked(said, file.path, ()))
    weight, bias = classifier
    if labels is None and not said.labels:
        raise UserError(f"nothing beside {file.path} names its classes; give them with --labels FILE")
    names = read_labels(labels) if labels is not None else _checked(said.labels, said.files[0])
    if len(names) != len(weight):
        where = f"{labels} has {len(names)} lines" if labels else f"{said.where} names {len(names)}"
        raise UserError(f"{file.path} has {len(weight)} classes, but {where}; give its own labels")
    taxonomy, order = _taxonomy(_ranked(names, ranks))
    config = get_config()
    config.model.unlock().pretrained = str(file.path)
    for key, value in needs.items():
        config.update_from_flattened_dict({f"model.{key}": value})
    settings = typed(config).model
    model = build_model(
        settings,
        components=(),
        num_classes=taxonomy.tree.num_classes,
        img_size=pictures.size[0],
        parents=taxonomy.tree.parent,
    )
    done = read_pretrained(settings, model, {}, file)
    arrays = done.arrays | {f"head.{SPECIES}.fc.weight": weight[order], f"head.{SPECIES}.fc.bias": bias[order]}
    for task in taxonomy.tasks[1:]:
        classes = taxonomy.tree.num_classes[task]
        arrays[f"head.{task}.fc.weight"] = np.zeros((classes, weight.shape[1]), np.float32)
        arrays[f"head.{task}.fc.bias"] = np.zeros(classes, np.float32)
    variables: dict[str, Any] = {}
    for collection, like in abstract_variables(model).items():
        leaves = [name for name, _, _ in named_leaves(like)]
        variables[collection] = params_from_torch({name: arrays[name] for name in leaves}, like)
    known, (name, licence) = known_as(file.sha256), name_and_licence(file)
    facts = {"title": known.source if known else name or file.path.stem, "weights": "published"}
    if licence:
        facts["licence"] = licence
    temperatures = dict.fromkeys(taxonomy.tasks, 1.0)  # of a path: coarser ranks count nothing, whatever they are
    calibration = Calibration(temperatures, temperatures)
    return Bundle(file.path, settings, model, variables, pictures, MetadataEncoder(()), taxonomy, calibration, facts)


def _ranked(labels: list[Label], ranks: Path | None) -> list[Label]:
    """The labels with what a table says of their coarser ranks."""
    if ranks is None:
        return labels
    taxa = [row for row, label in enumerate(labels) if label.name]
    found = RankTable(ranks).of_all([(labels[row].name, labels[row].genus) for row in taxa])
    said = dict(zip(taxa, found, strict=True))
    return [label._replace(above=said.get(row, {})) for row, label in enumerate(labels)]


def _taxonomy(labels: list[Label]) -> tuple[Taxonomy, list[int]]:
    """Tree and names, and which row of the classifier each class of the finest rank is.

    Taxon ids are numbers of lines from 1 on; those of genera follow them, then those of each coarser rank.

    Raises:
      UserError: a taxon of one rank that lies in two of the next.
    """
    background = [row for row, label in enumerate(labels) if not label.name]
    taxa = [labels[row] for row, label in enumerate(labels) if label.name]
    order, first = background + [row for row, label in enumerate(labels) if label.name], len(background)
    said = [set(label.above) for label in taxa]
    levels = sorted(set.intersection(*said) if said else (), key=level_number)
    tasks = (SPECIES, GENUS, *map(task_of, levels))
    # a genus with its family: homonyms stay apart
    paths = [(label.name, label.genus, *(label.above[level] for level in levels)) for label in taxa]
    ids, names = {SPECIES: np.array([0] * first + [row + 1 for row in order[first:]], np.int64)}, {}
    names[SPECIES] = {
        str(row + 1): {"name": label.name, "common_name": label.common_name}
        for row, label in zip(order[first:], taxa, strict=True)
    }
    next_id, place, parents = len(labels) + 1, {path: first + row for row, path in enumerate(paths)}, {}
    for finer, task in pairwise(tasks):
        depth = tasks.index(task)
        above = sorted({path[depth:] for path in paths})
        if depth > 1 and (twice := _twice(above)):
            raise UserError(
                f"the {rank_name(levels[depth - 2])} {twice[0][0]!r} lies in {twice[0][1]!r} and in {twice[1][1]!r}; "
                "a taxon lies in one of the next coarser rank"
            )
        of_path = {path: first + row for row, path in enumerate(above)}
        parents[finer] = np.array([-1] * first + [0] * len(place), np.int32)
        for path, index in place.items():
            parents[finer][index] = of_path[path[1:]]
        ids[task] = np.array([0] * first + list(range(next_id, next_id + len(above))), np.int64)
        names[task] = {str(next_id + row): {"name": path[0], "common_name": ""} for row, path in enumerate(above)}
        next_id, place = next_id + len(above), of_path
    tree = TaxonomyTree(
        tasks, {task: len(each) for task, each in ids.items()}, parents, null_possible=bool(first), null_below=False
    )
    return Taxonomy(tree, TaxonNames.from_json(ids, names)), order


def _twice(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Two sorted paths that begin with the same taxon, if there are any."""
    return next(([one, other] for one, other in pairwise(paths) if one[0] == other[0]), [])
