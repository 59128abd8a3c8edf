"""A bundle as a directory: written whole or not at all, and read only if every file is what was written.

bundle.json           format, model, preprocessing, metadata, calibration, facts, and a SHA-256 of every file
weights.safetensors   parameters and running statistics under their canonical names; of the second run and further
                      ones, where they are not those of the first, after "2/" and so on
taxonomy.json         the tree, as in a run's assets
class_index_map.json  taxon ids of the classes and back, and their names
changed_taxonomy.json the same of the taxa that are answered, where names have changed since the training
model.onnx            the forward pass for onnxruntime, where it was asked for
feature_statistics.safetensors   of the training rows, where they were made, see `statistics`
exemplars.safetensors   rows by which classes can be added, see `exemplars`
README.md, images/    the card for people
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict

from linnaeus_jax import __version__
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.plugins import import_named
from linnaeus_jax.config.redaction import redacted
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.config.section import nested
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.files import (
    DamagedFileError,
    damage_of,
    read_sealed,
    replaced_directory,
    sealed,
    sha256_of,
    write_json,
)
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration, model_of
from linnaeus_jax.inference.bundle.exemplars import Exemplars
from linnaeus_jax.inference.bundle.fields import FieldError, check_fields, check_ranks, check_sizes
from linnaeus_jax.inference.bundle.members import OTHERS, each_run, with_others
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import (
    CHANGED,
    CLASS_MAP,
    TAXONOMY,
    changed_of,
    changed_to_json,
    read_json,
    read_taxonomy,
    write_taxonomy,
)
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.names import abstract_variables, named_leaves, params_from_torch, params_to_torch
from linnaeus_jax.reading.metadata import Component, MetadataEncoder
from linnaeus_jax.registry import BUNDLE_LAYOUTS
from linnaeus_jax.run.saved_weights import BUNDLE_JSON, BUNDLE_WEIGHTS
from linnaeus_jax.weights.files import read_state, write_state
from linnaeus_jax.weights.settings import DEFAULTS

WEIGHTS, ONNX, STATISTICS = BUNDLE_WEIGHTS, "model.onnx", "feature_statistics.safetensors"
EXEMPLARS = "exemplars.safetensors"
FORMAT = "linnaeus_jax bundle"
#: the second has `CHANGED`, the third weights of several runs, which programs that read the first alone would pass over
FORMAT_VERSIONS = 1, 2, 3


def told_by() -> tuple[str, ...]:
    """The files that tell a bundle of this program, and of others, from other directories."""
    return BUNDLE_JSON, *BUNDLE_LAYOUTS


def is_bundle(path: Path) -> bool:
    """Whether a directory holds a bundle of this program or of another one."""
    return any((path / name).is_file() for name in told_by())


def read_bundle(path: Path, plugins: Sequence[str] = ()) -> Bundle:
    """Reads and checks a bundle.

    Args:
      plugins: modules and .py files that register what the model is made of. They are programs, and a bundle may come
        from anywhere: those that it names itself are told to people, never imported.

    Raises:
      UserError: a file is missing, damaged or does not belong to the others; the message names it.
    """
    import_named(plugins)
    if not (path / BUNDLE_JSON).is_file():
        for name, read_other in BUNDLE_LAYOUTS.entries.items():
            if (path / name).is_file():
                other: Bundle = read_other(path)
                return other
        raise UserError(f"{path} is no bundle: it holds no {BUNDLE_JSON}")
    about = read_json(path / BUNDLE_JSON)
    if about.get("format") != FORMAT:
        raise UserError(f"{path / BUNDLE_JSON} describes no bundle (format {about.get('format')!r})")
    if about.get("format_version") not in FORMAT_VERSIONS:
        known = " and ".join(map(str, FORMAT_VERSIONS))
        raise UserError(
            f"{path} has format version {about.get('format_version')!r}, this program reads {known}; it was "
            f"written by linnaeus_jax {about.get('version', 'of an unknown version')}: use that version or a newer one"
        )
    try:
        read_sealed(path / BUNDLE_JSON)
    except DamagedFileError as error:
        raise UserError(f"{error}; copy the bundle again, or make it again") from error
    _check_files(path, about)
    try:
        check_fields(about)
        return _bundle(path, about)
    except FieldError as error:
        raise UserError(f"{path / BUNDLE_JSON}: {error}; make the bundle again from its run") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UserError) as error:
        named = ", ".join(map(str, about.get("plugins") or ()))
        hint = f"; it was made with the plugins {named}: name those that you have and trust by --plugins"
        raise UserError(
            f"{path} cannot be read: {BUNDLE_JSON} does not fit its files or this program: {error}"
            + (hint if named and not plugins else "")
        ) from error


def _check_files(path: Path, about: Mapping[str, Any]) -> None:
    """Every file that is listed must be there with its content, and nothing that is needed may be unlisted."""
    files = about.get("files")
    if not isinstance(files, dict) or not {WEIGHTS, TAXONOMY, CLASS_MAP} <= files.keys():
        raise UserError(f"{path / BUNDLE_JSON} does not list the files of the bundle; make it again")
    for name, digest in files.items():
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{path / BUNDLE_JSON} lists {name!r}, which lies outside of the bundle")
        if not file.is_file():
            raise UserError(f"{path} is incomplete: {name} is missing; copy the whole directory again")
        if damage_of(file, str(digest)):
            raise UserError(
                f"{file} is not the file that was written into the bundle (its SHA-256 differs); copy the whole "
                "directory again, or make the bundle again"
            )


def _bundle(path: Path, about: Mapping[str, Any]) -> Bundle:
    settings = typed(config_from_json({"model": about["model"]})).model
    taxonomy = read_taxonomy(path / TAXONOMY, path / CLASS_MAP)
    check_ranks(about, taxonomy.tree.num_classes)
    preprocessing = Preprocessing.from_json(about["image"])
    if CHANGED in about["files"]:
        taxonomy = changed_of(taxonomy, path / CHANGED)
    state = read_state(path / WEIGHTS).arrays
    check_sizes(about["model"], state)
    parts = _of_each_run(state, about.get("runs", 1))
    components = tuple(Component(each["name"], tuple(each["columns"])) for each in about["metadata"])
    encoder = MetadataEncoder(components, bool(about.get("date_is_midnight", False)))
    model = model_of(settings, preprocessing, encoder, taxonomy)
    variables = with_others([_variables(model, part) for part in parts])
    rest = Calibration(**about["calibration"]), about["facts"], tuple(about.get("plugins", ()))
    onnx = (path / ONNX).read_bytes() if ONNX in about["files"] else b""
    statistics = FeatureStatistics.read(path / STATISTICS, taxonomy.of_heads) if STATISTICS in about["files"] else None
    kept = Exemplars.read(path / EXEMPLARS, taxonomy.of_heads) if EXEMPLARS in about["files"] else None
    return Bundle(path, settings, model, variables, preprocessing, encoder, taxonomy, *rest, onnx, statistics, kept)


def _of_each_run(state: Mapping[str, np.ndarray], runs: int) -> list[dict[str, np.ndarray]]:
    """All arrays of every run. Raises ValueError where these are of another number of runs."""
    of_run: dict[str, dict[str, np.ndarray]] = {"": {}}
    for name, array in state.items():
        number, _, own = name.rpartition("/")
        of_run.setdefault(number, {})[own] = array
    if set(of_run) != {"", *map(str, range(2, runs + 1))}:
        raise ValueError(f"{WEIGHTS} holds arrays that are not those of the number of runs that is declared, {runs}")
    return [of_run[""] | of_run[number] for number in sorted(of_run, key=lambda number: int(number or 1))]


def _variables(model: ModelFamily, state: dict[str, np.ndarray]) -> dict[str, Any]:
    variables = {}
    for collection, like in abstract_variables(model).items():
        names = [name for name, _, _ in named_leaves(like)]
        variables[collection] = params_from_torch({name: state.pop(name) for name in names if name in state}, like)
    if state:
        raise ValueError(f"{WEIGHTS} holds {', '.join(sorted(state)[:5])}, which the model does not have")
    return variables


def write_bundle(
    bundle: Bundle, out: Path, add_card: Callable[[Path], None] | None = None, *, force: bool = False
) -> None:
    """Writes a bundle beside `out` and then moves it there.

    Args:
      add_card: writes README.md and its pictures into the directory that it is given.
      force: replace what is there, if it is a bundle.

    Raises:
      UserError: something else lies there, or a bundle and `force` is not set.
    """
    check_out(out, force=force)
    try:
        with replaced_directory(out) as unfinished:
            try:
                _write(bundle, unfinished, add_card)
            except UserError as error:  # which names the directory that is gone by now
                raise UserError(str(error).replace(str(unfinished), str(out))) from error
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(out)) from error


def _write(bundle: Bundle, directory: Path, add_card: Callable[[Path], None] | None) -> None:
    arrays: dict[str, np.ndarray] = {}
    first, others = each_run(bundle.variables)[0], bundle.variables.get(OTHERS, ())
    for prefix, trees in [("", first), *((f"{n}/", unflatten_dict(own)) for n, own in enumerate(others, start=2))]:
        for collection in trees.values():
            arrays |= {f"{prefix}{name}": array for name, array in params_to_torch(collection).items()}
    write_state(directory / WEIGHTS, arrays, {"format": FORMAT})
    write_taxonomy(bundle.taxonomy.of_heads, directory / TAXONOMY, directory / CLASS_MAP)
    if bundle.taxonomy.heads:
        write_json(directory / CHANGED, changed_to_json(bundle.taxonomy))
    if bundle.statistics is not None:
        bundle.statistics.write(directory / STATISTICS)
    if bundle.exemplars is not None:
        bundle.exemplars.write(directory / EXEMPLARS)
    if bundle.onnx:
        (directory / ONNX).write_bytes(bundle.onnx)
    if add_card is not None:
        add_card(directory)
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    about = _about(bundle) | {"files": {file.relative_to(directory).as_posix(): sha256_of(file) for file in files}}
    write_json(directory / BUNDLE_JSON, sealed(about))


def check_out(out: Path, *, force: bool) -> None:
    """Raises UserError where a bundle may not be written."""
    check_replaceable(out, "a bundle", is_bundle(out), force=force)


def check_replaceable(out: Path, what: str, is_one: bool, *, force: bool) -> None:
    """Raises UserError where `what` is to be written, and something else is there, or `what` and `force` is not set."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_one:
        raise UserError(f"{out} exists and is no {what.split()[1]}; choose another directory")
    if not force:
        raise UserError(f"{out} holds {what}; replace it with --force, or choose another directory")


def format_version(bundle: Bundle) -> int:
    """The least one that says all of it."""
    return 3 if OTHERS in bundle.variables else FORMAT_VERSIONS[bundle.taxonomy.heads is not None]


def _about(bundle: Bundle) -> dict[str, Any]:
    model = {key: value for key, value in nested(bundle.settings).items() if key not in DEFAULTS}
    return {
        "format": FORMAT,
        "format_version": format_version(bundle),
        "version": __version__,
        "facts": dict(bundle.facts),
        "plugins": list(bundle.plugins),
        "model": json.loads(json.dumps(redacted(model))),
        "image": dataclasses.asdict(bundle.preprocessing),
        "metadata": [{"name": c.name, "columns": list(c.columns)} for c in bundle.encoder.components],
        "date_is_midnight": bundle.encoder.date_is_midnight,
        "ranks": list(bundle.tasks),
        **({"runs": runs} if (runs := 1 + len(bundle.variables.get(OTHERS, ()))) > 1 else {}),
        "calibration": dataclasses.asdict(bundle.calibration),
    }
