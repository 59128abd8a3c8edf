"""Initial weights of a run from files or from another run; see `model.pretrained`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.checks import checked
from linnaeus_jax.config.errors import ConfigError, UserError
from linnaeus_jax.config.tree import assign, given_keys
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.data.dataset import Dataset, resolve_sources
from linnaeus_jax.data.image_sources import made_square
from linnaeus_jax.files import RunDirectory, read_json, write_json
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.run.saved_weights import run_state_of
from linnaeus_jax.weights.adopting import PICTURE_KEYS, Adopted, adopt, check_pictures, needs_of
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.importing import Import, read_files
from linnaeus_jax.weights.joining import FORCED, joined_needs, joined_state, read_weights
from linnaeus_jax.weights.settings import features_of, pretrained_settings, reads_weights, setting_errors

log = logging.getLogger("linnaeus_jax")

RECORD = "pretrained.json"
#: keys that say how a picture becomes square
RESIZING = ("data.resize_mode", "data.interpolation", "data.crop_fraction")


def adopt_source(config: ConfigDict, earlier: RunDirectory | None = None) -> tuple[StateFile | None, list[str]]:
    """Sets what the weights that a configuration names need of it, in place, where it has its defaults.

    Args:
      earlier: of a run that goes on: what it has recorded of its weights counts, and they are not read again.

    Returns:
      The weights, if they were read: `read_initial_weights` takes them; and lines for people.

    Raises:
      UserError: they cannot be had or read.
    """
    given, file = pretrained_settings(config.model), None
    features = features_of(config.model)
    if earlier is not None:
        needs = (_recorded(earlier) or {}).get("needs", {})
    elif not (given["pretrained"] or features) or setting_errors(config.model):
        return None, []
    else:
        file = _named(config.model)
        if not features:
            check_pictures(file, given["pretrained_source"], typed(config), given_keys(config))
        needs = joined_needs(file.parts) if features else needs_of(file, given["pretrained_source"])
        needs |= _already_square(config)
    return file, set_needs(config, needs, FORCED if features else ()).lines()


def set_needs(config: ConfigDict, needs: Mapping[str, Any], forced: Collection[str] = ()) -> Adopted:
    """Sets, in place, what `adopt` takes over of what weights need."""
    adopted = adopt(typed(config), given_keys(config), needs, forced)
    for key, value in (adopted.taken | adopted.replaced).items():
        assign(config, key.split("."), value)
    return adopted


def _named(settings: Mapping[str, Any]) -> StateFile:
    """What a `model` section names: one source, or several together."""
    given, features = pretrained_settings(settings), features_of(settings)
    if features:
        return joined_state([_one(given, name) for name in features])
    return run_state_of(settings) or read_files(given)[0]


def _one(given: Mapping[str, Any], name: str) -> StateFile:
    """One source of several: a run, a bundle or a file."""
    alone = {**given, "features": (), "pretrained": name}
    return run_state_of(alone, "model.features") or read_files(alone, "model.features")[0]


def _already_square(config: ConfigDict) -> dict[str, Any]:
    """Config key -> how the raw pictures of the data set were made square: new ones must be, too, whatever the weights
    were trained with. An error of the data is left to those who read them."""
    try:
        sources = resolve_sources(typed(config).data)
        stored = None if sources.hybrid else made_square(sources.train_labels)
    except (OSError, InputError):
        stored = None
    return {} if stored is None else {key: of(stored) for key, of in PICTURE_KEYS.items() if key in RESIZING}


def read_initial_weights(
    config: Config, model: ModelFamily, dataset: Dataset, source: StateFile | None = None
) -> Import | None:
    """The weights that the configuration names, checked against the model; None where it names none.

    Args:
      source: them, where they were read already.

    Raises:
      UserError: files that cannot be read or do not fit; nothing has been written by then.
    """
    if not reads_weights(config.model):
        return None
    if features_of(config.model) and source is None:
        source = _named(config.model)
    classes = {task: ids.tolist() for task, ids in dataset.classes.items()}
    return read_weights(config.model, model, classes, source or run_state_of(config.model))


def loaded_names(run: RunDirectory) -> frozenset[str] | None:
    """Canonical names of the leaves that a run took whole from pretrained weights, by its record; None without one.

    Raises:
      DamagedFileError: the record is not what was written.
    """
    found = _recorded(run)
    return None if found is None else frozenset(found["loaded"])


def initial_weights(run: RunDirectory) -> str:
    """Name and licence of the published weights that a run began with; "" of others and of none."""
    found = _recorded(run) or {}
    return ", ".join(filter(None, (found.get("name", ""), found.get("licence", ""))))


def _recorded(run: RunDirectory) -> dict[str, Any] | None:
    path = run.metadata / RECORD
    if not run.metadata.is_dir():  # a crash bundle, whose digests are its own
        return None
    run.check(path)
    return read_json(path) if path.exists() else None


def record(weights: Import | None, metadata: Path, *, details: bool) -> None:
    """Writes metadata/pretrained.json with files, hashes and what became of every array, and says it in the log.

    Args:
      weights: None removes the record of an earlier start of the same run.
      metadata: directory of the run.
      details: also log the table.
    """
    path = metadata / RECORD
    if weights is None:
        path.unlink(missing_ok=True)
        return
    write_json(path, weights.to_json())
    for file in weights.files:
        about = f"; {file.about}" if file.about else ""
        log.info("initial weights of %s (SHA-256 %s%s)", file.path, file.sha256, about)
    log.info("%s; see %s", weights.coverage.summary(), path)
    if details:
        log.info("%s", weights.coverage.table())


def apply_weight_requirements(
    tree: ConfigDict, earlier: RunDirectory | None = None, *, needs_data: bool = True
) -> tuple[Config, StateFile | None, list[str]]:
    """Sets what the initial weights need of a configuration, see `adopt_source`, and checks what came of it.

    Args:
      needs_data: as of `checks.checked`.

    Returns:
      The checked configuration, and what `adopt_source` returns.

    Raises:
      ConfigError: all wrong settings at once; with weights that cannot be read among them.
    """
    unreadable, source, lines = None, None, list[str]()
    try:
        source, lines = adopt_source(tree, earlier)
    except UserError as error:
        unreadable = error
    try:
        config = checked(tree, needs_data=needs_data)
    except ConfigError as error:
        known = unreadable is None or isinstance(unreadable, ConfigError)
        raise ConfigError(error.messages if known else [*error.messages, str(unreadable)]) from None
    if unreadable is not None:
        raise unreadable
    return config, source, lines
