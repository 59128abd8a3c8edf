"""Bundles in the documented layout of the original (spec observability §10).

inference_config.yaml  which model, pictures, metadata and taxonomy; names the other files, relative to itself
weights                .pth or .safetensors, under the names of PyTorch
taxonomy.json          the tree, as in a run's assets
class_index_map.json   the four documented maps, or {task: {class index: taxon id}} alone

Three things are computed as the original did when its weights were trained, unless the variant's file says otherwise:
rotary attention multiplies by cosines alone, hierarchical heads give their own logits, and missing metadata are zeros.
Other than there, a moment with an offset is converted to UTC, and what cannot be right counts as missing. Nothing is
ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration, model_of
from linnaeus_jax.inference.bundle.fields import LARGEST_SIDE, LEAST_DEVIATION
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy, read_json, taxonomy_of
from linnaeus_jax.migration import INFERENCE_CONFIG
from linnaeus_jax.migration.experiments import load_experiment, read_documents
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.names import abstract_variables
from linnaeus_jax.reading.metadata import Component, MetadataEncoder
from linnaeus_jax.taxonomy.ranks import check_task_order
from linnaeus_jax.weights import coverage
from linnaeus_jax.weights.files import StateFile, read_state
from linnaeus_jax.weights.importing import read_pretrained
from linnaeus_jax.weights.settings import DEFAULTS

#: families that the original has
FAMILIES = ("mFormerV0", "mFormerV1")
#: kind of metadata, in the order in which the original's inference puts them -> how its components are called
KINDS = {"geolocation": r"spatial|geo|location|place", "temporal": r"temporal|time|date", "elevation": r"elev|alti"}
#: of a component's first layer in the weights; "weight" is [D, columns]
META_HEAD = re.compile(r"meta_(\w+)_head_1\.0\.weight")
#: of a rank's head in the weights -> its type
HEADS = (("level_classifiers", "ConditionalClassifier"), ("task_classifiers", "HierarchicalSoftmax"))
#: `image_interpolation` that the original knows; all are Pillow's
INTERPOLATIONS = ("nearest", "nearest_exact", "bilinear", "bicubic")
IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}


def read_original_bundle(path: Path) -> Bundle:
    """Reads and checks a bundle of the original.

    Raises:
      UserError: a file is missing or does not belong to the others; the message names file and key.
    """
    about = _read_yaml(path / INFERENCE_CONFIG)
    try:
        return _bundle(path, about)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"{path / INFERENCE_CONFIG} cannot be used: {what}; correct it or export the bundle again"
        ) from error


def _bundle(path: Path, about: Mapping[str, Any]) -> Bundle:
    model, files = about["model"], about["taxonomy_data"]
    taxonomy = _taxonomy(path, model, files)
    state = read_state(_inside(path, model["weights_path"], "model.weights_path"))
    preprocessing = _preprocessing(about["input_preprocessing"])
    config = _variant(path, model, state, taxonomy.tasks)
    encoder = _encoder(about.get("metadata_preprocessing") or {}, config, state, _says_order(path, model))
    expected = model.get("expected_aux_vector_length")
    if expected is not None and expected != encoder.width:
        raise ValueError(
            f"model.expected_aux_vector_length is {expected}, but its metadata components make {encoder.width} numbers"
        )
    settings = config.model
    built = model_of(settings, preprocessing, encoder, taxonomy)
    variables = _variables(built, settings, {task: ids.tolist() for task, ids in taxonomy.classes.items()}, state)
    source = " ".join(str(files[key]) for key in ("source_name", "version") if files.get(key))
    facts = {
        "title": str(about.get("model_description") or model["architecture_name"]),
        "weights": "last",
        **({"taxonomy": source} if source else {}),
    }
    calibration = Calibration.none(taxonomy.tasks)
    return Bundle(path, settings, built, variables, preprocessing, encoder, taxonomy, calibration, facts)


def _variables(
    model: ModelFamily, settings: Mapping[str, Any], classes: Mapping[str, Sequence[int]], state: StateFile
) -> dict[str, Any]:
    """Every leaf of the model from the file, as it is; anything else is an error."""
    # the variant's file may name what its training started from
    here = {"pretrained": str(state.path), "pretrained_attn_scale": settings["pretrained_attn_scale"]}
    reading = {**settings, **DEFAULTS, **here}
    taken = read_pretrained(reading, model, classes, run_state=state)
    others = taken.coverage.of(coverage.RESIZED, coverage.MATCHED, coverage.OTHER_SHAPE, coverage.INITIAL)
    if others:
        some = ", ".join(f"{row.name} ({row.status}{f': {row.note}' if row.note else ''})" for row in others[:3])
        raise ValueError(f"{state.path.name} does not hold the model: {some}")
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract_variables(model))
    params, others_by_name = taken.merged(empty.pop("params"), empty)
    return {"params": params, **others_by_name}


def _read_yaml(path: Path) -> Any:
    try:
        found = next(iter(read_documents(path)), None)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}; copy the bundle again") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is no mapping of keys; copy the bundle again")
    return found


def _inside(path: Path, name: Any, key: str) -> Path:
    """A file of the bundle; nothing outside of it is read."""
    file = path / str(name)
    if not name or "://" in str(name) or not file.resolve().is_relative_to(path.resolve()):
        raise ValueError(
            f"{key} is {name!r}, and only files inside of the bundle are read; put the file into {path} and give its "
            "name"
        )
    if not file.is_file():
        raise ValueError(f"{key} is {name!r}, and {file} does not exist")
    return file


# ---- pictures and metadata


def _preprocessing(about: Mapping[str, Any]) -> Preprocessing:
    size = tuple(about.get("image_size", (3, 224, 224)))
    if len(size) != 3 or size[0] != 3 or size[1] != size[2] or not 1 <= size[1] <= LARGEST_SIDE:
        raise ValueError(f"input_preprocessing.image_size is {list(size)}; [3, side, side] is needed")
    interpolation = str(about.get("image_interpolation", "bilinear"))
    if interpolation not in INTERPOLATIONS:
        choices = ", ".join(INTERPOLATIONS)
        raise ValueError(f"input_preprocessing.image_interpolation is {interpolation!r}; one of {choices} is needed")
    statistics = {key: tuple(float(value) for value in about.get(key, IMAGENET[key])) for key in IMAGENET}
    for key, values in statistics.items():
        most = all(0 <= value <= 1 for value in values)  # NaN is not
        if len(values) != 3 or not most or (key == "image_std" and min(values) < LEAST_DEVIATION):
            raise ValueError(f"input_preprocessing.{key} is {list(values)}; three numbers are needed, std above 0")
    mean, std = statistics.values()
    return Preprocessing((int(size[1]), int(size[2])), "squash", interpolation, False, mean, std)


def _columns(about: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Kind -> names of its columns, of the kinds that the bundle uses, in the original's order."""
    columns: dict[str, tuple[str, ...]] = {}
    if about.get("use_geolocation"):
        columns["geolocation"] = ("spatial_x", "spatial_y", "spatial_z")
    if about.get("use_temporal"):
        day = "jd" if about.get("temporal_use_julian_day") else "month"
        names = [day, *(["hour"] if about.get("temporal_use_hour") else [])]
        columns["temporal"] = tuple(f"{name}_{wave}" for name in names for wave in ("sin", "cos"))
    if about.get("use_elevation"):
        scales = [float(scale) for scale in about.get("elevation_scales", (100, 1000, 5000))]
        columns["elevation"] = tuple(f"elev_{scale:g}_{wave}" for scale in scales for wave in ("sin", "cos"))
    return columns


def _encoder(about: Mapping[str, Any], config: Config, state: StateFile, says_order: bool) -> MetadataEncoder:
    """The components that bundle and weights agree about."""
    widths = {match[1]: array.shape[1] for name, array in state.arrays.items() if (match := META_HEAD.fullmatch(name))}
    kinds: dict[str, str] = {}
    for name in widths:
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "")
        if not kind or kind in kinds:
            raise ValueError(f"{state.path.name} has a metadata component {name!r}, whose inputs are unknown")
        kinds[kind] = name
    columns = _columns(about)
    if set(columns) != set(kinds):
        raise ValueError(
            f"metadata_preprocessing uses {', '.join(columns) or 'nothing'}, but {state.path.name} has metadata "
            f"components for {', '.join(kinds) or 'nothing'}"
        )
    for kind, names in columns.items():
        if len(names) != widths[kinds[kind]]:
            raise ValueError(
                f"metadata_preprocessing makes {len(names)} numbers of {kind}, but {state.path.name} takes "
                f"{widths[kinds[kind]]}"
            )
    components = [Component(kinds[kind].upper(), names) for kind, names in columns.items()]
    if odd := [component for component in components if not component.inputs]:
        raise ValueError(f"metadata_preprocessing.elevation_scales give {', '.join(odd[0].columns)}; use plain metres")
    if says_order:
        places = {name.upper(): node["idx"] for name, node in config.data.meta.components.items() if node["enabled"]}
        if set(places) != {component.name for component in components}:
            raise ValueError(
                f"the variant's DATA.META has {', '.join(places) or 'nothing'} enabled, but the bundle uses "
                f"{', '.join(component.name for component in components) or 'nothing'}"
            )
        components.sort(key=lambda component: places[component.name])
    return MetadataEncoder(tuple(components), date_is_midnight=True)


# ---- model


def _variant(path: Path, model: Mapping[str, Any], state: StateFile, tasks: Sequence[str]) -> Config:
    """The configuration of the architecture: the variant's file over the defaults, or the name alone."""
    name = str(model["architecture_name"])
    family = next((family for family in FAMILIES if name.startswith(family)), "")
    if not family:
        raise ValueError(f"model.architecture_name is {name!r}; one of {', '.join(FAMILIES)} is needed")
    original = state.facts.get("original", not state.facts)
    given = model.get("architecture_variant_config_path")
    file = _inside(path, given, "model.architecture_variant_config_path") if given else None
    config = load_experiment(file, inside=path) if file is not None else get_config()
    spelled = _spelled(file)
    with config.unlocked():
        if file is None:
            config.model.type = family
            rest = name.removeprefix(family).strip("_-")
            config.model.variant = rest or config.model.variant
        if original and "rope_mode" not in spelled:
            config.model.rope_stages.rope_mode = "cos_only"
        if original and "hierarchy_mode" not in spelled:
            config.model.classification.hierarchy_mode = "reference_unrefined"
        heads = config.model.classification.heads
        for task in tasks:
            kind = _head_type(state, task)
            if kind and heads.get(task, {}).get("type") != kind:
                heads[task] = {"type": kind}
    if config.model.type != family:
        raise ValueError(f"model.architecture_name is {name!r}, but its variant's file describes {config.model.type}")
    return typed(complete_open_nodes(config))


def _says_order(path: Path, model: Mapping[str, Any]) -> bool:
    """Whether the variant's file gives the places of metadata components."""
    given = model.get("architecture_variant_config_path")
    return bool(given) and "components" in _spelled(path / str(given))


def _spelled(file: Path | None) -> set[str]:
    """All keys of a YAML file itself, in lower case."""
    if file is None:
        return set()
    found: set[str] = set()

    def look(tree: Any) -> None:
        if isinstance(tree, dict):
            for key, value in tree.items():
                found.add(str(key).lower())
                look(value)

    for document in read_documents(file):
        look(document)
    return found


def _head_type(state: StateFile, task: str) -> str:
    """What the names of a rank's head say about its type; "" where they say nothing."""
    return next(
        (kind for part, kind in HEADS if any(name.startswith(f"head.{task}.{part}.") for name in state.arrays)), ""
    )


# ---- classes


def _taxonomy(path: Path, model: Mapping[str, Any], files: Mapping[str, Any]) -> Taxonomy:
    """Tree and classes, where the three files that tell of them agree."""
    links = read_json(_inside(path, files["taxonomy_tree_path"], "taxonomy_data.taxonomy_tree_path"))
    maps = read_json(_inside(path, files["class_index_map_path"], "taxonomy_data.class_index_map_path"))
    tasks = tuple(links["task_keys"])
    check_task_order(tasks)
    if set(model["model_task_keys_ordered"]) != set(tasks):
        raise ValueError(
            f"model.model_task_keys_ordered is {list(model['model_task_keys_ordered'])}, but the taxonomy has "
            f"{list(tasks)}"
        )
    counts = _by_task(model["num_classes_per_task"], model["model_task_keys_ordered"])
    if counts != {task: links["num_classes"][task] for task in tasks}:
        raise ValueError(f"model.num_classes_per_task is {counts}, but the taxonomy has {dict(links['num_classes'])}")
    nulls = _by_task(model.get("null_class_indices") or {}, model["model_task_keys_ordered"])
    given = {task: index for task, index in nulls.items() if index is not None}
    if given and (set(given) != set(tasks) or set(given.values()) != {0}):
        raise ValueError(f"model.null_class_indices is {nulls}; null must be class 0 at every rank, or at none")
    links = {**links, "metadata": {**(links.get("metadata") or {}), "null_possible": bool(given)}}
    return taxonomy_of(links, _maps(maps, tasks, null=bool(given)))


def _by_task(values: Any, tasks: Sequence[str]) -> dict[str, Any]:
    """A mapping or a list in the order of the tasks, as a mapping."""
    if isinstance(values, Mapping):
        return dict(values)
    if len(values) != len(tasks):
        raise ValueError(f"model has {len(values)} values for {len(tasks)} tasks: {list(values)}")
    return dict(zip(tasks, values, strict=True))


def _maps(maps: Mapping[str, Any], tasks: Sequence[str], *, null: bool) -> dict[str, Any]:
    """The documented form of the class map, from either form; class 0 is null where there is one."""
    forward = maps.get("idx_to_taxon_id", maps)
    by_index = {task: {str(i): taxon for i, taxon in forward[task].items()} for task in tasks}
    for task in tasks:
        back = maps.get("taxon_id_to_idx", {}).get(task)
        if back is not None and {str(taxon): int(i) for taxon, i in back.items()} != {
            str(taxon): int(i) for i, taxon in by_index[task].items()
        }:
            raise ValueError(f"class_index_map.json: taxon_id_to_idx of {task} is not the inverse of idx_to_taxon_id")
        if null:
            said = maps.get("null_taxon_ids", {}).get(task)
            if said is not None and str(by_index[task].get("0")) != str(said):
                raise ValueError(
                    f"class_index_map.json: null of {task} is {said}, but its class 0 is {by_index[task].get('0')}"
                )
            by_index[task]["0"] = 0
    sizes = {} if forward is maps else {"num_classes_per_rank": maps.get("num_classes_per_rank", {})}
    return {"idx_to_taxon_id": by_index, "names": maps.get("names", {}) if forward is not maps else {}, **sizes}
