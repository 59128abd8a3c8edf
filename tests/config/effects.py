"""What a run would build from a configuration, piece by piece and on demand, so that the effect of a key can be seen.

`Home` holds the files that every configuration of the tests works on, `Site` one configuration. Nothing here compiles a
step but `Site.ran`, which two configurations of the table use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cv2
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config.derived import default_workdir
from linnaeus_jax.config.tree import assign
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data import batch_reader, loader
from linnaeus_jax.data.baselines import BASELINES_FILE
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.data.samplers import SamplerSettings
from linnaeus_jax.debugging import nonfinite
from linnaeus_jax.debugging.profiler import StepProfiler
from linnaeus_jax.debugging.session import DebugSession
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.learning.losses import task_loss_sums
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.metrics.step_logger import log_due
from linnaeus_jax.models import ClassificationHeads, MFormerV1, ModelFamily
from linnaeus_jax.models.names import abstract_variables, named_leaves
from linnaeus_jax.reporting.logs import DATA, MAIN, ConsoleHandler
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.sinks import Sinks, open_sinks
from linnaeus_jax.run import first_heads, trainer
from linnaeus_jax.run import inputs as run_inputs
from linnaeus_jax.run.baselines import write_baselines
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
from linnaeus_jax.run.epoch_end import EpochEnd
from linnaeus_jax.run.experiment import UserError, build_experiment, preview_experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.pretrained import read_initial_weights
from linnaeus_jax.run.remote_sync import RemoteSync
from linnaeus_jax.run.resume import restore
from linnaeus_jax.run.retention import preserved, retention_policy
from linnaeus_jax.run.stored import stored_path
from linnaeus_jax.run.train_log import NonFiniteError, TrainLog
from linnaeus_jax.run.watchdog import Watchdog
from linnaeus_jax.schedules import OpsSchedule, early_stop
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.triggers import due_at_epoch_end, firing_epochs
from linnaeus_jax.step import probes, process, train_step
from linnaeus_jax.step import program as step_program
from linnaeus_jax.step.objective import Objective
from linnaeus_jax.step.process import set_up_jax
from linnaeus_jax.step.train_step import GradSums
from linnaeus_jax.weights.exporting import torch_state
from linnaeus_jax.weights.files import StateFile
from tests.conftest import use_one_device
from tests.tiny import tiny_config, write_tiny_data

UPDATES = 30  # per epoch, of the resolved schedules
#: sections that change no data set: a key among them that did would show no effect here
NOT_OF_THE_DATA = ("aug", "debug", "env", "experiment", "loss", "lr_scheduler", "model", "optimizer", "train")
#: entry that stands for `*`, by open node
ENTRIES = {
    "data.meta.components": "SPATIAL",
    "lr_scheduler.parameter_groups": "biases",
    "optimizer.parameter_groups": "biases",
    "model.classification.heads": "taxa_L10",
}


class Home:
    """Files: labels and images in `data` (20 rows out of the region, one row below another genus; without these in
    `plain`), 60 more rows in `other`, the same with splits of their own in `given`, the images as JPEG in `photos`, all
    but three of them in `holes`, and three times as wide and twice as high ones in `wide`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = itertools.count()
        self._runs: dict[str, Path] = {}
        self._datasets: dict[str, Any] = {}
        labels, images = write_tiny_data(root / "data")
        # of what makes programs long, only what a row asks for
        self.config = tiny_config(root / "data", aug__hflip_prob=0.0, model__depthwise_impl="lax")
        self._pickled = pickle.dumps(self.config)
        self._sums: GradSums | None = None
        write_tiny_data(root / "other", rows=60, seed=1)
        write_tiny_data(root / "plain")
        given, _ = write_tiny_data(root / "given", rows=60, seed=1)
        with h5py.File(given, "r+") as file:
            file["split"] = np.repeat(np.array([0, 1, 2], np.uint8), (30, 20, 10))
        with h5py.File(labels, "r+") as file:
            file["in_region"][:20] = 0
            row = int(np.flatnonzero(file["taxa_L10"][:] == 1000)[0])
            file["taxa_L20"][row] = 203
        with h5py.File(images) as file:
            for folder in ("photos", "holes", "wide"):
                (root / folder).mkdir()
                for i, image in enumerate(file["images"][:]):
                    shown = cv2.resize(image, (96, 64)) if folder == "wide" else image
                    if folder != "holes" or i not in (5, 50, 100):
                        cv2.imwrite(str(root / folder / f"image_{i}.jpg"), shown)

    def site(self, settings: Mapping[str, Any]) -> Site:
        return Site(self, settings)

    def new_config(self) -> Any:
        """A copy of the configuration; ConfigDict's own takes ten times as long."""
        return pickle.loads(self._pickled)

    def grad_sums(self, objective: Objective, settings: Any, state: Any, *args: Any, **options: Any) -> GradSums:
        """The gradient of the first update that asked for one; for all whose keys are about what becomes of it, and
        that of GradNorm anew."""
        if options["measure"]:
            return _grad_sums(objective, settings, state, *args, **options)
        if self._sums is None:
            self._sums = _grad_sums(objective, settings, state, *args, **options)
        return self._sums.replace(grads=settings.optimizer.split_frozen(self._sums.grads)[0])

    def folder(self) -> Path:
        """A new folder."""
        return self.root / f"out_{next(self._names)}"

    def text(self, value: Any) -> Any:
        """`value` with `HOME` in texts replaced by the directory of the files."""
        return value.replace("HOME", str(self.root)) if isinstance(value, str) else value

    def dataset(self, config: Any) -> Any:
        """The data of a configuration; read once for all that differ in other sections."""
        about = {name: node for name, node in config.to_dict().items() if name not in NOT_OF_THE_DATA}
        key = json.dumps(about, sort_keys=True, default=str)
        if key not in self._datasets:
            self._datasets[key] = build_dataset(typed(config))
        return self._datasets[key]

    def runnable(self, site: Site) -> Any:
        """The configuration of the site for a whole run, with the model of `tests.step.toy`."""
        config = site.config.copy_and_resolve_references()
        config.data.h5.labels_path = str(self.root / "plain" / "labels.h5")
        config.model.type = "toy"
        return config

    def ran(self, site: Site) -> Path:
        """The directory of a run of the site's configuration; equal ones run once."""
        config = self.runnable(site)
        key = config.to_json(sort_keys=True)
        if key not in self._runs:
            folder = self.folder()
            with fake_wandb(), pytest.MonkeyPatch.context() as patch:
                use_one_device(patch)
                trainer.run(config, folder)
            self._runs[key] = folder
        return self._runs[key]


def fake_wandb() -> Any:
    """Replaces the connection to W&B; the mock remembers how it was opened."""
    opened = SimpleNamespace(resumed=False, starting_step=0, offline=False, summary={})
    for name in ("define_metric", "log", "finish", "alert"):
        setattr(opened, name, lambda *_, **__: None)
    return mock.patch("linnaeus_jax.reporting.wandb_sink.wandb.init", return_value=opened)


@dataclasses.dataclass(frozen=True)
class ToyParameter:
    name: str
    shape: tuple[int, ...]
    layer_type: str = "Linear"

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.name.split("."))


TOY = (
    ToyParameter("stages.2.0.attn.proj.weight", (4, 6)),
    ToyParameter("stages.2.0.attn.proj.bias", (6,)),
    ToyParameter("head.taxa_L10.fc.weight", (6, 3)),
)


def rounded(values: Any, digits: int = 5) -> Any:
    """Numbers as (nested) lists, rounded so that only effects differ."""
    return np.round(np.asarray(values, np.float64), digits).tolist()


_stats, _grad_sums = Objective._statistics, train_step.grad_sums


def unmeasured(*args: Any) -> Any:
    """What the log says of a micro-batch, which nothing here looks at, all zero: a hundred operations less."""
    return jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), jax.eval_shape(lambda: _stats(*args)))


class Small(ModelFamily):
    """Stands in for the network where its numbers do not matter: heads on a few features of picture and metadata."""

    def layer_index(self, name: str) -> int:
        return ("stem", "norm_1", "head").index(name.partition(".")[0])

    @nn.compact
    def __call__(  # type: ignore[override]  # two names of the contract are enough here
        self, image: jax.Array, meta: jax.Array | None = None, *, train: bool = False, refine: bool = True, **_: Any
    ) -> dict[str, jax.Array]:
        if meta is None:
            meta = jnp.zeros((image.shape[0], self.meta_dim))
        colours = image.reshape(image.shape[0], 2, -1, image.shape[-1]).mean(axis=2).reshape(image.shape[0], -1)
        features = nn.Dense(8, name="stem")(jnp.concatenate([colours, meta], axis=1))
        heads = ClassificationHeads(self.head_specs, name="head")
        return heads(nn.LayerNorm(name="norm_1")(features), train=train, refine=refine)


class Site:
    """One configuration: the tiny one with `settings` (dotted key -> value)."""

    def __init__(self, home: Home, settings: Mapping[str, Any]) -> None:
        self.home = home
        self.output_dir = home.folder()
        self._trained: dict[tuple[int, int], Any] = {}
        self.weight_files: list[str] = []
        self.config = home.new_config()
        for key, value in settings.items():
            for node, entry in ENTRIES.items():
                key = key.replace(f"{node}.*.", f"{node}.{entry}.")
            assign(self.config, tuple(key.split(".")), home.text(value))

    @functools.cached_property
    def typed_config(self) -> Any:
        """The configuration as the program reads it."""
        return typed(self.config)

    def outcome(self, what: Callable[[Site], Any]) -> Any:
        """What `what` says of this site, or the error that it raises."""
        try:
            return what(self)
        except (ValueError, RuntimeError, OSError, UserError) as error:
            return f"error: {error}"

    # ---- schedule

    @functools.cached_property
    def resolved(self) -> Any:
        accumulation = max(1, self.config.train.accumulation_steps)
        return resolve_all_schedule_params(
            self.typed_config,
            steps_per_epoch=UPDATES,
            dataset_size=UPDATES * 16,
            micro_batches_per_epoch=UPDATES * accumulation,
        )

    @functools.cached_property
    def probabilities(self) -> Any:
        return build_probabilities(self.resolved)

    def rate(self, update: int, group: str = "default") -> float:
        return float(build_scheduler(self.resolved)[group](update))

    def firing(self, stage: str) -> tuple[int, ...]:
        return firing_epochs(self.resolved)[stage]

    def kept(self) -> list[int]:
        """Checkpoints that stay, of three."""
        settings = self.resolved.checkpoint
        index = {step: {"epoch": 0, "metric": value} for step, value in {10: 0.3, 20: 0.1, 30: 0.2}.items()}
        return preserved(retention_policy(lambda: index, settings.keep_top_n, settings.keep_last_n), list(index))

    # ---- data

    @functools.cached_property
    def dataset(self) -> Any:
        return self.home.dataset(self.config)

    @functools.cached_property
    def inputs(self) -> Any:
        return run_inputs.build_inputs(self.typed_config, devices=1, output_dir=self.output_dir)

    def plan(self) -> Any:
        return self.inputs.plans.plan(0)

    def drawn(self, task: str) -> list[int]:
        """Rows of each class that the first epoch draws."""
        index = self.plan().index
        label = self.dataset.train.labels[index[index >= 0], self.dataset.tasks.index(task)]
        return np.bincount(label, minlength=self.dataset.num_classes[task]).tolist()

    def image_path(self, split: str) -> str:
        return str(self.inputs.images[split].describe(0)).replace(str(self.home.root), "HOME")

    def read_all(self) -> int:
        """Images of both splits that can be read."""
        source = self.inputs.images["train"]
        return int(source.read(np.arange(120), np.empty((120, 32, 32, 3), np.uint8)).sum())

    def first_image(self) -> np.ndarray:
        """Pixels of row 0, uint8 [32, 32, 3]."""
        image = np.empty((1, 32, 32, 3), np.uint8)
        self.inputs.images["train"].read(np.zeros(1, np.int64), image)
        return image[0]

    def verification(self) -> Mapping[str, Any]:
        """How the images are verified: the threads, and the rows of a piece of work."""
        found: dict[str, Any] = {}

        class Pool(ThreadPoolExecutor):
            def __init__(self, workers: int, **options: Any) -> None:
                super().__init__(workers, **options)
                found["num_workers"] = workers

            def map(self, function: Any, starts: Any) -> Any:  # type: ignore[override]
                found["chunk_size"] = starts.step
                return super().map(function, starts)

        with mock.patch("linnaeus_jax.data.verify_images.ThreadPoolExecutor", Pool):
            run_inputs.build_inputs(self.typed_config, devices=1, output_dir=self.output_dir)
        return found

    def report(self, name: str) -> dict[str, Any]:
        """A report of the verification."""
        assert self.inputs
        return json.loads((self.output_dir / name).read_text()) if (self.output_dir / name).exists() else {}

    # ---- model, losses, optimizer

    @functools.cached_property
    def model(self) -> Any:
        return step_program.model_from_config(self.typed_config, self.dataset)

    @functools.cached_property
    def program(self) -> Any:
        block = SamplerSettings.from_config(self.typed_config).block
        return step_program.build_program(self.typed_config, self.dataset, self.resolved, block)

    @functools.cached_property
    def variables(self) -> Any:
        """Shapes of all variables of the network."""
        return abstract_variables(self.model)

    def initial_weights(self, without: str = "") -> Any:
        """What `model.pretrained*` reads where every file holds the model itself, but for one array."""
        trees = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), dict(self.variables))
        arrays = torch_state(self.model, trees.pop("params"), trees)
        arrays.pop(without, None)

        def read(path: str, *_: Any) -> StateFile:
            self.weight_files.append(path)
            return StateFile(Path(path), "", dict(arrays))

        with mock.patch("linnaeus_jax.weights.importing.read_state", read):
            return read_initial_weights(self.typed_config, self.model, self.dataset)

    def read_weights(self) -> list[str]:
        """Paths of the files that were opened for it."""
        self.weight_files.clear()
        self.outcome(Site.initial_weights)
        return list(self.weight_files)

    @functools.cached_property
    def small_program(self) -> Any:
        """The program with `Small` in place of the network."""
        given = {field.name: getattr(self.model, field.name) for field in dataclasses.fields(ModelFamily)}
        small = Small(**given)
        block = SamplerSettings.from_config(self.typed_config).block
        with mock.patch.object(step_program, "model_from_config", return_value=small):
            return step_program.build_program(self.typed_config, self.dataset, self.resolved, block)

    @functools.cached_property
    def batch(self) -> dict[str, jax.Array]:
        """The first batch of training."""
        with self.inputs.train_loader(0, 1) as loader:
            return {name: jnp.asarray(array) for name, array in next(loader)[1].items()}

    def trained(self, start: int = 0, updates: int = 1) -> Any:
        """(state, outputs) after `updates` updates of that program, the first numbered `start`, all on `batch`."""
        if (start, updates) not in self._trained:
            program = self.small_program
            state = program.initial_state().replace(step=jnp.int32(start))
            step = program.train_step("plain" if program.settings.gradnorm is None else "gradnorm")
            if self.config.train.clip_mode == "adaptive":  # whose operations no other configuration has
                step = jax.jit(step)
            for _ in range(updates):
                with (
                    mock.patch.object(Objective, "_statistics", unmeasured),
                    mock.patch.object(train_step, "grad_sums", self.home.grad_sums),
                ):
                    state, outputs = step(state, self.batch)
            self._trained[start, updates] = state, outputs
        return self._trained[start, updates]

    def losses(self) -> list[float]:
        """Loss of every task in the first update."""
        program, step = self.small_program, jnp.int32(0)
        targets, counts = program.objective.build_targets(self.batch, step)
        first = {name: array[0] for name, array in self.batch.items()}, jax.tree.map(lambda x: x[0], targets)
        with mock.patch.object(Objective, "_statistics", unmeasured):
            found, _ = program.objective.task_losses(*program.initial_variables(), *first, counts, step, step)
        return rounded(found)

    def val_losses(self) -> list[float]:
        """Loss sums of every task in an evaluation of the first batch."""
        program, batch = self.small_program, {name: array[0] for name, array in self.batch.items()}
        logits = program.model.apply({"params": program.initial_state().params}, batch["image"] / 255, batch["meta"])
        keep = jnp.ones(batch["label"].shape, bool)
        criteria, class_weights = program.evaluation.criteria, program.evaluation.class_weights
        found = task_loss_sums(logits, batch["label"], None, None, batch["weight"], keep, criteria, class_weights)
        return rounded(found.numerator)

    def weights(self, updates: int = 1) -> list[float]:
        """Task weights after updates of that program at full learning rate."""
        return rounded(self.trained(2, updates)[0].gradnorm.weights)

    def moved(self, update: int = 2, *, averaged: bool = False) -> dict[str, list[float]]:
        """Change of every parameter of that program, or of its average, by update `update` at full learning rate."""
        state, _ = self.trained(update)
        before = self.small_program.initial_state().params
        change = jax.tree.map(lambda new, old: new - old, state.ema if averaged else state.params, before)
        return {name: rounded(leaf, 8) for name, _, leaf in named_leaves(change)}

    def seen(self, update: int = 0) -> dict[str, Any]:
        """What the model sees of the first batch in update `update`: pictures, metadata, and who is masked how."""
        objective, step = self.small_program.objective, jnp.int32(update)
        targets, _ = objective.build_targets(self.batch, step)
        micro = {name: array[0] for name, array in self.batch.items()}
        image, meta, _, masked = objective.inputs(micro, jax.tree.map(lambda x: x[0], targets), step)
        return {"image": rounded(image.mean(axis=-1)), "meta": rounded(meta), "masked": masked.tolist()}

    @functools.cached_property
    def recomputes(self) -> tuple[bool, bool]:
        """Whether the backward pass of the real network recomputes: in normal steps, in those of GradNorm."""

        def text(model: nn.Module) -> str:
            image = jax.ShapeDtypeStruct((1, *self.model.img_size, 3), jnp.float32)
            return str(jax.make_jaxpr(model.apply)(self.variables, image))

        program = self.program
        normal, measuring = text(program.objective.model), text(program.gradnorm_objective.model)
        return "remat" in normal or "checkpoint" in normal, "remat" in measuring or "checkpoint" in measuring

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter of the real network."""
        return {name: leaf.shape for name, _, leaf in named_leaves(self.variables["params"])}

    def precision(self) -> str:
        """Type of what the network computes before its heads."""
        image = jnp.zeros((1, *self.model.img_size, 3))
        return str(
            jax.eval_shape(lambda: self.model.init_with_output(jax.random.key(0), image, method="encode_image"))[
                0
            ].dtype
        )

    def stopped(self, values: Sequence[float] = (1.0, 1.1, 1.2), grad_norm: float = 10.0) -> tuple[int, str] | None:
        """Where and why a run stops early whose monitored metric has `values` at its three boundaries."""
        spec = self.resolved.early_stop
        state = early_stop.initial_state(spec)
        for step, value in zip((30, 60, 90), values, strict=True):
            state, decision = early_stop.check(
                spec,
                state,
                step=step,
                metric=value,
                learning_rate=self.rate(step - 1),
                grad_norm=grad_norm,
                in_warmup=False,
            )
            if decision.stop:
                return step, str(decision.reason)
        return None

    def gradnorm_updates(self) -> list[int]:
        """Which of the first updates move the task weights."""
        schedule = OpsSchedule(self.resolved)
        return [step for step in range(40) if schedule.should_update_gradnorm(step)]

    def phases(self, epoch: int) -> tuple[str, ...]:
        """Names of the phases that the boundary of an epoch evaluates."""
        due = due_at_epoch_end(self.resolved, epoch, UPDATES * (epoch + 1), UPDATES * epoch)
        return tuple(phase.name for phase in due.phases)

    def logs(self, stream: str) -> list[int]:
        """After which of the first updates a stream writes."""
        return [step for step in range(1, 31) if log_due(step, self.resolved.logging[stream])]

    def reading(self) -> dict[str, Any]:
        """How the training batches are read: Grain's threads and buffer, and decoding threads."""
        with (
            mock.patch.object(loader.grain, "ReadOptions", wraps=loader.grain.ReadOptions) as options,
            mock.patch.object(batch_reader, "ThreadPoolExecutor", wraps=batch_reader.ThreadPoolExecutor) as pool,
            self.inputs.train_loader(0, 1) as batches,
        ):
            next(batches)
        threads, buffer = options.call_args.args
        return {"threads": threads, "buffer": buffer, "decoding": pool.call_args and pool.call_args.args[0]}

    def cached(self) -> int:
        """Bytes that the cache holds after reading all pictures."""
        self.read_all()
        return int(self.inputs.images["train"].cache.stats().bytes)

    def tolerated(self) -> int:
        """Non-finite updates in a row after which a run stops."""
        outputs = self.trained()[1]
        train_log = TrainLog(self.run.experiment, self.run.host, Sinks(), None)  # type: ignore[arg-type]
        for bad in range(1, 50):
            skipped = outputs.replace(skipped_in_a_row=jnp.int32(bad))
            with mock.patch.object(probes, "due", return_value=()):  # `trained` had none
                train_log.defer(bad, 0, skipped, outputs.statistics, at_end=True)
            try:
                train_log.fetch()
            except NonFiniteError:
                return bad
        return 0

    def baselines(self) -> list[str]:
        """Which simple baselines the directory of the run has before its first update."""
        write_baselines(self.run.experiment, None, 0)  # type: ignore[arg-type]
        path = self.run.experiment.directory.root / BASELINES_FILE
        return sorted(json.loads(path.read_text())["percent"]) if path.exists() else []

    def fits_heads(self) -> bool:
        """Whether heads begin at discriminants of the features."""
        state: Any = None
        with mock.patch.object(first_heads, "_discriminants", return_value={}) as seen:
            first_heads.with_fitted_heads(self.run.experiment, state)
        return bool(seen.called)

    def criterion(self, split: str = "train") -> Any:
        return step_program.build_criteria(self.typed_config, self.dataset, split)["taxa_L10"]

    def smoothing(self) -> np.ndarray:
        return self.criterion().smoothing.dense_matrix()

    def class_weights(self, split: str = "train") -> Any:
        found = step_program.build_class_weights(self.typed_config, self.dataset, split)
        return None if found is None else found["taxa_L10"]

    @functools.cached_property
    def optimizer(self) -> Any:
        return build_optimizer(
            self.typed_config.optimizer,
            TOY,
            layer_index=lambda name: int(name.startswith("head")),
            stage_of=MFormerV1.stage_of,
        )

    def transformed(self) -> list[Any]:
        """What the optimizer's transform makes of the matrix's gradient at the second update."""
        tree: dict[str, Any] = {}
        for parameter in TOY:
            node = tree
            for part in parameter.path[:-1]:
                node = node.setdefault(part, {})
            node[parameter.path[-1]] = jnp.linspace(0.1, 1.0, int(np.prod(parameter.shape))).reshape(parameter.shape)
        state = self.optimizer.transform.init(tree)
        for scale in (1.0, -0.5):
            gradient = jax.tree.map(lambda x, scale=scale: scale * x**2, tree)
            found, state = self.optimizer.transform.update(gradient, state, tree)
        return np.round(found["stages"]["2"]["0"]["attn"]["proj"]["weight"], 6).tolist()

    # ---- run

    @property
    def errors(self) -> str:
        return "\n".join(config_errors(self.config))

    @functools.cached_property
    def run(self) -> Any:
        """The built run, with `levels`: the console levels at start (main, data) and while validating."""
        directory = RunDirectory(self.output_dir)
        experiment = preview_experiment(self.config, directory)
        levels = [self._console_level(MAIN), self._console_level(DATA)]

        def evaluate(*_: Any, **__: Any) -> Any:
            levels.append(self._console_level(MAIN))
            return SimpleNamespace(metrics={}, curves={}, sums={}, mistakes={})

        host = HostState.of(experiment)
        checkpoints = Checkpoints(directory.checkpoints)
        epoch_end = EpochEnd(experiment, host, checkpoints, Sinks(), None, Watchdog(0, print))
        epoch_end.evaluator = SimpleNamespace(run=evaluate)  # type: ignore[assignment]
        state = SimpleNamespace(eval_params=None, model_state=None, gradnorm=SimpleNamespace(weights=None))
        with mock.patch("linnaeus_jax.run.epoch_end.update_curves"):
            epoch_end.evaluate(state, {})  # type: ignore[arg-type]
        return SimpleNamespace(
            levels=levels,
            epoch_end=epoch_end,
            host=host,
            resolved=experiment.resolved,
            placement=experiment.placement,
            experiment=experiment,
        )

    @staticmethod
    def _console_level(name: str) -> str:
        (handler,) = [h for h in logging.getLogger(name).handlers if isinstance(h, ConsoleHandler)]
        return logging.getLevelName(handler.level)

    @property
    def rows_by_memory(self) -> int | None:
        """`data.batch_size_per_device` of the built run, where a row of an update takes 0.1 GB."""

        def memory(config: Any) -> int:
            return round(1e8 * config.data.batch_size_per_device)

        config = self.config.copy_and_resolve_references()
        config.model.type = "toy"  # what is built of it is of no interest
        with mock.patch("linnaeus_jax.run.experiment.step_memory", return_value=memory):
            built = preview_experiment(config, RunDirectory(self.output_dir))
        rows: int | None = built.config.data.batch_size_per_device
        return rows

    @property
    def process(self) -> dict[str, Any]:
        """Settings of the process: those of JAX, `flags` of XLA, and whether `freed` memory is kept."""
        with (
            mock.patch.dict(os.environ, {"XLA_FLAGS": ""}),
            mock.patch.object(jax.config, "update") as update,
            mock.patch.object(process, "keep_freed_memory") as keep,
        ):
            set_up_jax(self.typed_config)
            settings = {call.args[0]: call.args[1] for call in update.call_args_list}
            return {**settings, "flags": os.environ["XLA_FLAGS"], "freed": keep.called}

    @property
    def looked_for(self) -> tuple[str, ...]:
        """What JAX looks for in every result while a run lasts."""
        found: list[str] = []

        def build(*args: Any, **_: Any) -> None:
            found.extend(nonfinite.kinds())
            raise UserError

        with mock.patch.object(trainer, "build_experiment", build), contextlib.suppress(UserError):
            trainer.run(self.config, self.output_dir)
        return tuple(found)

    @property
    def root(self) -> str:
        return str(default_workdir(self.typed_config))

    def stored_file(self) -> str:
        return str(stored_path(self.typed_config, RunDirectory(self.output_dir), "val", "0123456789abcdef"))

    @property
    def copies(self) -> Any:
        """The copies of the run directory; None: none."""
        sync = RemoteSync.from_config(self.typed_config, RunDirectory(self.output_dir))
        if sync is not None:
            with mock.patch.object(sync, "_copy"):
                sync.close()
        return sync

    def sinks(self) -> tuple[list[str], Any]:
        """Names of the sinks, and how W&B was opened."""
        board = SimpleNamespace(name="TensorBoard", replayed=lambda: None, close=lambda *_: None)
        module = "linnaeus_jax.reporting.sinks.TensorBoardSink"
        with fake_wandb() as init, mock.patch(module, return_value=board):
            log = MetricsLog(self.output_dir / "logs" / "metrics_log.jsonl")
            found = open_sinks(Sinks(), log, self.typed_config.experiment, config={}, facts={}, run_id="id")
            names = [sink.name for sink in found.optional]
            found.close()
        return names, init.call_args

    def wandb(self, argument: str) -> Any:
        return self.sinks()[1].kwargs[argument]

    def skips_validation(self) -> bool:
        names = ("build_experiment", "HostState", "restore", "start", "EpochEnd", "finish")
        with contextlib.ExitStack() as patched:
            made = {name: patched.enter_context(mock.patch.object(trainer, name)) for name in names}
            made["build_experiment"].return_value.config = self.typed_config
            trainer.run(self.config, self.output_dir)
        return made["EpochEnd"].return_value.run.call_args.kwargs["skip_validation"]

    def resumed(self) -> int:
        """Updates completed when the finished run is resumed with this configuration."""
        shutil.copytree(self.home.site({}).ran, self.output_dir)
        directory = RunDirectory(self.output_dir)
        with contextlib.closing(Checkpoints(directory.checkpoints)) as checkpoints:
            experiment = build_experiment(self.home.runnable(self), directory, checkpoints)
            try:
                return int(restore(experiment, checkpoints, HostState.of(experiment)).state.step)
            except CheckpointError as error:
                raise UserError(str(error)) from error

    def planned_epochs(self) -> int:
        """Epochs of the schedule when the finished run is resumed with this configuration."""
        directory = RunDirectory(self.home.site({}).ran)
        with contextlib.closing(Checkpoints(directory.checkpoints)) as checkpoints:
            return preview_experiment(self.home.runnable(self), directory, checkpoints).resolved.epochs

    @property
    def ran(self) -> Path:
        """The directory of a whole run."""
        return self.home.ran(self)

    def log(self) -> str:
        """Everything in the text logs of that run."""
        return "".join(path.read_text() for path in (self.ran / "logs").glob("*debug_log_rank0.txt"))

    def last_step(self) -> int:
        """Updates completed in that run."""
        rows = (self.ran / "logs" / "metrics_log.jsonl").read_text().splitlines()
        return json.loads(rows[-1])["global_step"]

    def run_id(self) -> str:
        """Identity of that run in W&B."""
        return json.loads((self.ran / "checkpoints" / "boundary_6.json").read_text())["run_id"]

    # ---- debugging

    @functools.cached_property
    def session(self) -> DebugSession:
        return DebugSession(
            self.typed_config, RunDirectory(self.output_dir), self.config.data.task_keys_h5, is_coordinator=True
        )

    def said(self) -> str:
        """What the flags say of a row of the training log with GradNorm values."""
        with mock.patch.object(logging.Logger, "debug") as debug:
            self.session.reports.say("log_point", {f"gradnorm/weight/{task}": 1.0 for task in self.session.tasks}, 4)
        return "\n".join(call.args[1] for call in debug.call_args_list)

    def traces(self) -> list[Any]:
        """(update, directory, host tracer, python tracer) of every trace among ten updates."""
        return self.profiled()[0]

    def memory_profiles(self) -> list[str]:
        """Names of the device memory profiles of ten updates."""
        return self.profiled()[1]

    def profiled(self) -> tuple[list[Any], list[str]]:
        settings, found = self.config.debug.profiler, []
        directory = RunDirectory(self.output_dir).resolve(settings.output_dir)
        profiler = StepProfiler(settings, directory)
        with (
            mock.patch.object(jax.profiler, "start_trace") as start,
            mock.patch.object(jax.profiler, "stop_trace"),
            mock.patch.object(jax.profiler, "save_device_memory_profile") as memory,
        ):
            for update in range(10):
                with profiler.before_step(update, update):
                    pass
                if start.called:
                    options = start.call_args.kwargs["profiler_options"]
                    where = Path(start.call_args.args[0]).relative_to(self.output_dir.resolve())
                    found.append((update, str(where), options.host_tracer_level, options.python_tracer_level))
                    start.reset_mock()
                profiler.after_step(jnp.zeros(()))
        return found, [Path(call.args[0]).name for call in memory.call_args_list]
