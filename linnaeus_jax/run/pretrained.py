"""Initial weights of a run from files or from another run; see `model.pretrained`."""

from __future__ import annotations

import logging
from pathlib import Path

from ml_collections import ConfigDict

from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.files import RunDirectory, read_json, write_json
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.run.saved_weights import run_state_of
from linnaeus_jax.weights.importing import Import, read_pretrained
from linnaeus_jax.weights.settings import reads_weights

log = logging.getLogger("linnaeus_jax")

RECORD = "pretrained.json"


def read_initial_weights(config: ConfigDict, model: ModelFamily, dataset: Dataset) -> Import | None:
    """The weights that the configuration names, checked against the model; None where it names none.

    Raises:
      UserError: files that cannot be read or do not fit; nothing has been written by then.
    """
    if not reads_weights(config.model):
        return None
    classes = {task: ids.tolist() for task, ids in dataset.classes.items()}
    return read_pretrained(config.model, model, classes, run_state_of(config.model))


def loaded_names(run: RunDirectory) -> frozenset[str] | None:
    """Canonical names of the leaves that a run took whole from pretrained weights, by its record; None without one.

    Raises:
      DamagedFileError: the record is not what was written.
    """
    path = run.metadata / RECORD
    if not run.metadata.is_dir():  # a crash bundle, whose digests are its own
        return None
    run.check(path)
    return frozenset(read_json(path)["loaded"]) if path.exists() else None


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
        log.info("initial weights of %s (SHA-256 %s)", file.path, file.sha256)
    log.info("%s; see %s", weights.coverage.summary(), path)
    if details:
        log.info("%s", weights.coverage.table())
