"""Real compiled updates for benchmarks: generated labels, random images, the program that a run would build."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.common import Ratios, as_read
from linnaeus_jax import models  # noqa: F401  # registers the families
from linnaeus_jax.config import complete_open_nodes, get_config
from linnaeus_jax.data.dataset import Dataset, build_dataset
from linnaeus_jax.data.loader import ReadSettings, TrainLoader
from linnaeus_jax.data.plans import PlanSequence
from linnaeus_jax.debugging.session import DebugSession
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.registry import MODELS as FAMILIES
from linnaeus_jax.run.inputs import Inputs, split_arrays
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.step.compilation import compile_step
from linnaeus_jax.step.placement import Placement
from linnaeus_jax.step.program import Program, build_program

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40")
CLASSES = (1000, 300, 60, 15)  # species, genera, families, orders
ROWS_PER_SPECIES = 6
NULL_SHARE = 0.1  # of rows without a species, and of rows without a place or a date
MODELS = tuple(f"{family}-{variant}" for family in FAMILIES for variant in FAMILIES[family].variants)

Batches = list[dict[str, jax.Array]]


@dataclass(frozen=True)
class Case:
    """What is trained: `model` as family-variant, side of the images in pixels, rows of an update, remat."""

    model: str
    img_size: int
    batch: int
    remat: bool | None  # None: where the memory needs it

    def row(self) -> dict[str, Any]:
        """The first columns of a table."""
        return {"model": self.model, "img_size": self.img_size, "batch": self.batch, "remat": self.remat}


def default_cases() -> tuple[Case, Case]:
    """A small model at 64 pixels and mFormerV1-sm at 224, with batches that suit the platform and its devices."""
    rows = (64, 4) if jax.default_backend() == "cpu" else (512, 128)
    tiny, small = (jax.device_count() * number for number in rows)
    return Case("mFormerV1-tiny", 64, tiny, False), Case("mFormerV1-sm", 224, small, None)


def write_labels(path: Path, rows: int = CLASSES[0] * ROWS_PER_SPECIES) -> Path:
    """labels.h5 of a balanced tree with dates and places; a tenth of the values of each kind is missing."""
    rng = np.random.default_rng(0)
    species = np.arange(rows) % CLASSES[0]
    month = 2 * np.pi * rng.random(rows)
    place = rng.normal(size=(rows, 3))
    metadata = {
        "temporal": np.stack([np.sin(month), np.cos(month)], axis=1),
        "spatial": place / np.linalg.norm(place, axis=1, keepdims=True),
    }
    with h5py.File(path, "w") as file:
        file["img_identifiers"] = [f"image_{row}.jpg" for row in range(rows)]
        for task, classes in zip(TASKS, CLASSES, strict=True):
            taxon = 1 + species * classes // CLASSES[0]
            if task == TASKS[0]:
                taxon[rng.random(rows) < NULL_SHARE] = 0
            file[task] = taxon.astype(np.uint32)
        for name, values in metadata.items():
            values[rng.random(rows) < NULL_SHARE] = 0
            file[name] = values.astype(np.float32)
        file["in_region"] = np.ones(rows, np.uint8)
        file.create_group("metadata").attrs["config_json"] = "{}"
    return path


class RandomImages:
    """An image source of noise, as costly to train on as any other."""

    def __init__(self, count: int, img_size: int) -> None:
        self.image_shape = (img_size, img_size, 3)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Fills out (uint8 [n, H, W, 3]); bool [n], all True."""
        out[...] = np.random.default_rng(rows).integers(0, 256, out.shape, np.uint8)
        return np.ones(len(rows), bool)


#: everything that a step can do and that costs time, off
BARE: dict[str, Any] = {
    "aug.hflip_prob": 0.0,
    "aug.random_resized_crop.enabled": False,
    "aug.color_jitter": 0.0,
    "aug.random_erase.prob": 0.0,
    "schedule.mixup.prob.enabled": False,
    "schedule.meta_masking.enabled": False,
    "model.label_smoothing": 0.0,
    "train.clip_grad": 0.0,
    "loss.grad_weighting.task.type": "static",
}

#: one group of features each, over BARE
FEATURES: dict[str, dict[str, Any]] = {
    "flip": {"aug.hflip_prob": 0.5},
    "resized crop": {"aug.random_resized_crop.enabled": True},
    "colour jitter": {"aug.color_jitter": 0.4},
    "random erasing": {"aug.random_erase.prob": 0.25},
    "RandAugment": {"aug.autoaug.policy": "randaugment"},
    "mixup and cutmix": {"schedule.mixup.prob.enabled": True, "schedule.mixup.cutmix.enabled": True},
    "metadata masking": {
        "schedule.meta_masking.enabled": True,
        "schedule.meta_masking.end_fraction": 0.5,
        "schedule.meta_masking.partial.enabled": True,
        "schedule.meta_masking.partial.start_steps": 0,
        "schedule.meta_masking.partial.end_fraction": 1.0,
        "schedule.meta_masking.partial.prob_end_fraction": 0.5,
        "schedule.meta_masking.partial.whitelist": (("TEMPORAL",), ("SPATIAL",)),
    },
    "null masking": {"schedule.null_masking.enabled": True, "schedule.null_masking.end_fraction": 0.5},
    "taxonomy smoothing": {"loss.taxonomy_smoothing.enabled": (True,)},
    "class weights": {"loss.grad_weighting.class_weights.method": ("smoothing",)},
    "EMA": {"train.ema.enabled": True},
    "clipping": {"train.clip_grad": 5.0},
}
EVERYTHING = functools.reduce(lambda left, right: {**left, **right}, FEATURES.values(), dict[str, Any]())


def case_config(case: Case, labels: Path, changes: Mapping[str, Any]) -> ConfigDict:
    """The default tree for a case and `changes` (dotted key -> value)."""
    config = get_config()
    family, variant = case.model.rsplit("-", 1)
    settings = {
        "data.h5.train_labels_path": str(labels),
        "data.h5.train_images_path": "images are generated",
        "data.task_keys_h5": TASKS,
        "data.img_size": case.img_size,
        "data.batch_size": case.batch,
        "data.partial.levels": True,
        "debug.jsonl.enabled": False,
        "model.type": family,
        "model.variant": variant,
        "train.gradient_checkpointing.enabled_normal_steps": case.remat,
        "train.gradient_checkpointing.enabled_gradnorm_steps": case.remat,
    }
    config.update_from_flattened_dict({**settings, **changes})
    return complete_open_nodes(config)


@dataclass(frozen=True, eq=False)
class Built:
    """The program of one configuration and two updates' batches on the devices."""

    program: Program
    placement: Placement
    batches: Batches
    debug: DebugSession
    variant: str = "plain"

    def stepper(self, name: str = "") -> Stepper:
        """The compiled update with a state of its own."""
        return Stepper(self, name or self.variant)


def build(case: Case, labels: Path, changes: Mapping[str, Any], variant: str = "plain") -> Built:
    """What the trainer would build, with random images in place of files."""
    config = as_read(case_config(case, labels, changes))
    placement = Placement()
    dataset = build_dataset(config)
    inputs = Inputs(config, dataset, placement.device_count, positions=placement.positions)
    plans = inputs.plans
    resolved = resolve_all_schedule_params(
        config,
        steps_per_epoch=plans.steps_per_epoch.tolist(),
        dataset_size=len(dataset.train),
        micro_batches_per_epoch=plans.micro_batches_per_epoch.tolist(),
        devices=placement.device_count,
    )
    debug = DebugSession(config, RunDirectory(labels.parent / "run"), dataset.tasks, is_coordinator=True)
    program = build_program(
        config,
        dataset,
        resolved,
        inputs.sampler.block,
        probes=debug.probes(),
    )
    return Built(program, placement, _batches(dataset, plans, case.img_size, placement), debug, variant)


def _batches(dataset: Dataset, plans: PlanSequence, img_size: int, placement: Placement) -> Batches:
    split = dataset.train
    images = RandomImages(int(split.rows.max()) + 1, img_size)
    with TrainLoader(split_arrays(split), split.rows, images, plans, ReadSettings(0, 1, 0), stop_step=2) as loader:
        updates = [{key: np.asarray(value) for key, value in batch.items()} for _, batch in loader]
    return [placement.to_device(update, placement.update) for update in updates]


class Stepper:
    """Dispatches a compiled update again and again, from state to state."""

    def __init__(self, built: Built, name: str) -> None:
        program, placement = built.program, built.placement
        self.batches = built.batches
        self.state = jax.jit(program.initial_state, out_shardings=placement.replicated)()
        self.compiled = compile_step(
            program.train_step(built.variant), self.state, self.batches[0], placement, name.replace(" ", "_")
        )
        self.count = 0

    @property
    def batch(self) -> dict[str, jax.Array]:
        """What the next update trains on."""
        return self.batches[self.count % len(self.batches)]

    def __call__(self) -> Any:
        self.state, outputs = self.compiled(self.state, self.batch)
        self.count += 1
        return self.state, outputs


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    """Dispatches `run` several times, as training does, and waits for what the last one returns."""

    def several() -> None:
        for _ in range(times):
            result = run()
        jax.block_until_ready(result)

    return several


def ratio_row(what: str, times: Ratios, updates: int, limit: float | None = None) -> dict[str, Any]:
    """Columns of one comparison: milliseconds of one update, their ratio with quartiles, the A/A control, the limit."""
    row: dict[str, Any] = {
        "what": what,
        "baseline_ms": round(times.f_seconds / updates * 1e3, 2),
        "ms": round(times.g_seconds / updates * 1e3, 2),
        "ratio": round(times.ratio, 3),
        "ratio_low": round(times.ratio_low, 3),
        "ratio_high": round(times.ratio_high, 3),
        "control": round(times.control, 3),
    }
    if limit is not None:
        row |= {"limit": limit, "within": times.ratio <= limit}
    return row
