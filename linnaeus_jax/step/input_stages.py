"""The images of an update after every stage of what happens to them, for looking at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.learning.augmentation import augment, cumulative_settings, denormalize
from linnaeus_jax.step.objective import Objective


def stage_images(
    objective: Objective, batch: Mapping[str, Any], step: int, count: int
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Images of the first micro-batch after every active stage, with the keys that the update uses.

    Args:
      objective: what the run trains with.
      batch: arrays [A, B, ...] of one update.
      step: of the update.
      count: how many images, at most B.

    Returns:
      (name -> float32 [count, H, W, 3] in [0, 1]; name -> count notes, for mixing and metadata).
    """
    objective = dataclasses.replace(objective, block=None)
    micro = {name: jnp.asarray(value[0]) for name, value in batch.items()}
    key = objective.key("augment", jnp.int32(step))
    run = jax.jit(augment, static_argnames="settings")
    stages = {
        name: np.asarray(run(micro["image"], micro["row"], key, settings=settings)[:count])
        for name, settings in cumulative_settings(objective.augmentation)
    }

    @jax.jit
    def model_inputs(arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        targets, _ = objective.build_targets(arrays, jnp.int32(step))
        first = jax.tree.map(lambda x: x[0], targets)
        return *objective.inputs({k: v[0] for k, v in arrays.items()}, first, jnp.int32(step)), first.lam

    image, _, valid, _, lams = model_inputs({name: jnp.asarray(value) for name, value in batch.items()})
    name = "mixing, masking"
    how = objective.preprocessing
    stages[name] = denormalize(np.asarray(image[:count]), how.mean, how.std)
    lost = np.asarray(micro["meta_valid"] & ~valid).sum(axis=1)
    notes = [
        (f"λ {lam:.2f} with {partner}" if lam < 1 else "not mixed") + (f", −{n} metadata" if n else "")
        for lam, partner, n in zip(np.asarray(lams)[:count], np.asarray(micro["partner"]), lost, strict=False)
    ]
    return stages, {name: notes}
