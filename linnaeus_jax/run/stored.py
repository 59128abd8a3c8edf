"""Computing once, before the first update, what the first blocks of a trunk make of every picture; see `train.tune`.

Each row is stored as it is and in `train.tune_views` augmented views, of which every epoch takes the next one. The
numbers depend on weights, preprocessing, augmentation, seed and pictures, whose digest is the key of the file; a start
that finds it with the same key uses it, and one that was ended within goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from linnaeus_jax.config.derived import STORED_GROUP
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.image_checks import picture_sample
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.data.splits import Split
from linnaeus_jax.data.stored_inputs import DTYPE, StoredFile, StoredInputs, StoredSpec, finished_spec
from linnaeus_jax.files import RunDirectory, locked, make_directory
from linnaeus_jax.learning.augmentation import augment, normalize
from linnaeus_jax.models.names import named_leaves
from linnaeus_jax.reporting.display import row_bar
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.interruption import Interruption
from linnaeus_jax.run.processes import fail_on_all
from linnaeus_jax.run.watchdog import Watchdog
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.process import compiler_options
from linnaeus_jax.step.rng import stream
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.weights.settings import reads_weights, sources_in_words

log = logging.getLogger("linnaeus_jax")

#: name of the random stream of the augmented views
STREAM = "stored_views"


def store_inputs(experiment: Experiment, state: TrainState, interruption: Interruption, watchdog: Watchdog) -> None:
    """Stores what training and validation read; `experiment.inputs.stored` has it then.

    Raises:
      UserError: no room on the disk, another run writes the same files, a trunk whose values are not finite, or
        parameters that several processes split.
      SystemExit: a signal ended it; what was stored stays.
    """
    program, inputs = experiment.program, experiment.inputs
    assert program.stored is not None
    if experiment.placement.process_count > 1 and experiment.config.parallel.fsdp:
        raise UserError(
            f"train.tune = {experiment.config.train.tune!r} with several processes needs whole parameters, but "
            "parallel.fsdp = True; set parallel.fsdp=False, since little of such a model trains"
        )
    splits = [split for split in (inputs.dataset.train, inputs.dataset.val) if len(split)]
    splits = [split for split in splits if split.name not in inputs.stored]
    if not splits:  # the data are what a trunk gives
        return
    if not reads_weights(experiment.config.model):
        log.warning(
            "train.tune = %s, but model.pretrained names no weights: most of the trunk stays as it was drawn",
            experiment.config.train.tune,
        )
    params = experiment.placement.whole(state.params)
    weights = _digest_of_weights(experiment, state.replace(params=params))
    specs = {split.name: spec_of(experiment, split, weights) for split in splits}
    log.info(
        "train.tune = %s: storing float16 %s for %s; %s MB in %s",
        experiment.config.train.tune,
        list(program.stored.shape[1:]),
        ", ".join(f"{spec.rows:,} rows of {name} in {spec.views} views" for name, spec in specs.items()),
        f"{sum(spec.bytes for spec in specs.values()) / 1e6:,.1f}",
        stored_path(experiment.config, experiment.directory, "", "").parent,
    )
    view = view_function(experiment)
    for split in splits:
        spec = specs[split.name]
        path = stored_path(experiment.config, experiment.directory, split.name, spec.key)
        with contextlib.ExitStack() as closing:
            file = None
            with fail_on_all():
                if experiment.is_coordinator:
                    make_directory(path.parent)
                    if path.parent != experiment.directory.stored:
                        closing.enter_context(_alone(path))
                    file = StoredFile(path, spec)
            first = int(multihost_utils.broadcast_one_to_all(np.int64(0 if file is None else file.done)))
            if first < spec.rows:
                writer = Writer(spec, file, first)
                store_split(experiment, view, (params, state.model_state), split, writer, interruption, watchdog)
        multihost_utils.sync_global_devices(f"stored {split.name}")  # what process 0 has written is read by all
        source = StoredInputs(path, spec, split.rows, len(inputs.images[split.name]))
        inputs.stored[split.name] = source


def stored_path(config: Config, directory: RunDirectory, split: str, key: str) -> Path:
    """Where what is stored of a split lies; a folder that runs share holds the files of each of their keys."""
    shared = config.train.tune_dir
    return Path(shared) / f"{split}-{key[:16]}.bin" if shared else directory.stored / f"{split}.bin"


def stored_features(directory: RunDirectory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Split -> its rows of the labels file, int64 [n], and what the run has stored of each, not augmented, float32
    [n, D]: the mean over all places where that is a map. Without the splits of which it has stored nothing.

    Raises:
      DamagedFileError, OSError: the lists of rows cannot be read.
    """
    found = {}
    for split in ("train", "val"):
        path, listed = directory.stored / f"{split}.bin", directory.assets / "subset_ids.npz"
        spec = finished_spec(path)
        if spec is None or not listed.is_file():
            continue
        directory.check(listed)
        with np.load(listed, allow_pickle=False) as arrays:
            rows: np.ndarray = arrays[f"rows_{split}"]
        if len(rows) != spec.rows:
            continue
        places, parts = np.arange(spec.rows), []
        source, step = StoredInputs(path, spec, places, spec.rows), max(1, (1 << 24) // math.prod(spec.shape))
        for some in np.array_split(places, range(step, spec.rows, step)):
            values = np.empty((len(some), *spec.shape), DTYPE)
            source.read(some * spec.views, values)
            parts.append(values.astype(np.float32).mean(axis=tuple(range(1, values.ndim - 1))))
        found[split] = rows, np.concatenate(parts)
    return found


class _Stored:
    """Views of the rows of one labels file that are not augmented, as an `ImageSource`."""

    copies_only = True
    dtype = DTYPE

    def __init__(self, parts: Mapping[str, StoredInputs], rows: Mapping[str, np.ndarray]) -> None:
        self._parts = [(source, rows[name]) for name, source in parts.items()]
        self.image_shape = self._parts[0][0].image_shape

    def __len__(self) -> int:
        return len(self._parts[0][0])

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """As of `ImageSource`."""
        ok = np.zeros(len(rows), bool)
        for source, held in self._parts:
            mine = np.flatnonzero(np.isin(rows, held))
            values = np.empty((len(mine), *self.image_shape), DTYPE)
            ok[mine] = source.read(rows[mine] * source.views, values)
            out[mine] = values
        return ok


def stored_source(experiment: Experiment, split: Split) -> ImageSource | None:
    """What the run has stored of rows of one of its labels files; None where it has not, or not of all of them."""
    parts, held = {}, {}
    for own in (experiment.inputs.dataset.train, experiment.inputs.dataset.val):
        path = experiment.directory.stored / f"{own.name}.bin"
        spec = finished_spec(path)
        if own.table is split.table and spec is not None and spec.rows == len(own) and experiment.program.stored:
            parts[own.name], held[own.name] = StoredInputs(path, spec, own.rows, len(own.table)), own.rows
    if not parts or not np.isin(split.rows, np.concatenate([*held.values()])).all():
        return None
    if {part.image_shape for part in parts.values()} != {tuple(experiment.program.stored.shape[1:])}:  # type: ignore[union-attr]
        return None
    return _Stored(parts, held)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else looks at a file or writes it in here.

    Raises:
      UserError: another run does.
    """
    with path.with_suffix(".lock").open("a", encoding="utf-8") as file:
        if locked(file) is False:
            raise UserError(f"{path} is being written by another run; start this one once that one trains")
        yield


@dataclasses.dataclass
class Writer:
    """What all processes know of a file that the first of them writes; `done` rows are written."""

    spec: StoredSpec
    file: StoredFile | None
    done: int

    def append(self, values: np.ndarray) -> None:
        """See `StoredFile.append`."""
        if self.file is not None:
            self.file.append(values)
        self.done += len(values)


def _digest_of_weights(experiment: Experiment, state: TrainState) -> str:
    """Of the parameters and statistics that do not train."""
    rows = experiment.program.settings.optimizer.rows
    frozen = {row.name.rpartition(".")[0] for row in rows if row.group == STORED_GROUP}  # modules
    digest = hashlib.sha256()
    for tree in (state.params, state.model_state.get("batch_stats", {})):
        for name, _, leaf in named_leaves(tree):
            if name.rpartition(".")[0] in frozen:
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(fetch(leaf)).tobytes())
    return digest.hexdigest()


def spec_of(experiment: Experiment, split: Split, weights: str) -> StoredSpec:
    """What is stored of a split; `weights` is the digest of what does not train."""
    program, inputs = experiment.program, experiment.inputs
    assert program.stored is not None
    views = program.views if split.name == inputs.dataset.train.name else 1
    objective = program.objective
    given = {
        "weights": weights,
        "block": objective.block,
        "dtype": str(program.model.dtype),
        "preprocessing": dataclasses.asdict(objective.preprocessing),
        "augmentation": dataclasses.asdict(objective.augmentation) if views > 1 else None,
        "seed": objective.seed if views > 1 else None,
        "rows": hashlib.sha256(split.rows.tobytes()).hexdigest(),  # not their labels, of which nothing here is made
        "pictures": picture_sample(inputs.images[split.name], split.rows),
    }
    key = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()
    return StoredSpec(key, len(split), views, tuple(program.stored.shape[1:]))


def view_function(experiment: Experiment) -> Callable[..., jax.Array]:
    """A compiled function of (parameters, statistics, uint8 images [B, H, W, 3], rows int32 [B], view int32 []) that
    returns what is stored, float16 [B, ...]; view 0 is not augmented."""
    program, placement = experiment.program, experiment.placement
    objective, how = program.objective, program.objective.preprocessing

    def view(params: Any, model_state: Any, image: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
        key = jax.random.fold_in(stream(objective.seed, STREAM), number)
        augmented = augment(image, row, key, objective.augmentation)
        plain, augmented = (normalize(pixels, how.mean, how.std) for pixels in (image, augmented))
        pixels = jnp.where(number == 0, plain, augmented)
        x: Any = program.model.apply(
            {"params": params, **model_state}, pixels, objective.block, method="forward_prefix"
        )
        return jnp.asarray(x, DTYPE)

    return jax.jit(
        view,
        in_shardings=(placement.replicated, placement.replicated, placement.batch, placement.batch, None),
        out_shardings=placement.batch,
        compiler_options=compiler_options(training=False),
    )


def _checked(values: np.ndarray, batch: Mapping[str, np.ndarray], experiment: Experiment) -> np.ndarray:
    """What is stored of the first rows of a batch, NaN where a zero image stands for one that could not be read.

    Raises:
      UserError: the trunk gives values that float16 does not hold.
    """
    read = batch["weight"][: len(values)] > 0
    finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if not finite[read].all():
        row = batch["row"][: len(values)][read & ~finite][0]
        raise UserError(
            f"what the trunk makes of the picture of row {row} is not finite in float16; look at the weights of "
            f"{sources_in_words(experiment.config.model)}"
        )
    return np.where(read.reshape(-1, *(1,) * (values.ndim - 1)), values, np.float16(np.nan))


def store_split(
    experiment: Experiment,
    view: Callable[..., jax.Array],
    weights: tuple[Any, Any],
    split: Split,
    file: Writer,
    interruption: Interruption,
    watchdog: Watchdog,
) -> None:
    """Writes the rows that are missing, a batch at a time; each process computes its share of a batch.

    Args:
      view: of `view_function`.
      weights: parameters and statistics.

    Raises:
      UserError, SystemExit: as of `store_inputs`.
    """
    inputs, placement = experiment.inputs, experiment.placement
    started, first = time.perf_counter(), file.done
    loader = inputs.eval_loader(split, inputs.images[split.name], first=first)
    with contextlib.closing(loader), row_bar(f"storing {split.name}", file.spec.rows) as shown:
        for batch in watchdog.each(loader, f"a batch to store of {split.name}"):
            placed = placement.to_device({name: batch[name] for name in ("image", "row", "weight")}, placement.batch)
            made = [view(*weights, placed["image"], placed["row"], np.int32(n)) for n in range(file.spec.views)]
            whole = made, {name: placed[name] for name in ("row", "weight")}
            made, whole_batch = fetch(placement.whole(whole) if placement.process_count > 1 else whole)
            count = min(len(whole_batch["row"]), file.spec.rows - file.done)  # the last batch is padded
            file.append(_checked(np.stack(made, axis=1)[:count], whole_batch, experiment))
            shown(file.done)
            if interruption.requested():
                log.warning(
                    "stopped by signal %s with %d of %d rows of %s stored; give the same command to go on",
                    interruption.signal_number,
                    file.done,
                    file.spec.rows,
                    split.name,
                )
                raise SystemExit(interruption.exit_code)
    seconds = time.perf_counter() - started
    rate = (file.spec.rows - first) * file.spec.views / max(seconds, 1e-9)
    log.info("stored %s in %.1f s, %.0f views/s", split.name, seconds, rate)
