"""Evaluation: every validation batch is read once, and every due phase runs on it.

A phase is a keep-mask over the metadata components: all kept for `val`, none for `val_mask_meta`, all but the named
ones for `val_mask_<A>_<B>`. The convolutional stages do not see metadata and are computed once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from linnaeus_jax.learning import losses, meta_masking
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.metrics.extras import PhaseExtras
from linnaeus_jax.metrics.phase import Sums, add, batch_sums, empty_sums, summarise
from linnaeus_jax.training.parallel import Placement, fetch

#: what a phase needs of a batch besides the image
USED = ("label", "meta", "weight", "rarity", "taxa_subset")


@dataclass(frozen=True, eq=False)
class EvaluationProgram:
    """Everything static that evaluation depends on."""

    model: nn.Module
    tasks: tuple[str, ...]
    component_names: tuple[str, ...]
    bounds: meta_masking.Bounds  # columns of every metadata component
    criteria: Mapping[str, losses.Criterion]
    class_weights: Mapping[str, np.ndarray] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    null_possible: bool
    extras: PhaseExtras

    def features(self, params: Any, model_state: Any, image: jax.Array) -> jax.Array:
        """uint8 [B, H, W, 3] -> what the metadata-free stages make of it."""
        pixels = normalize(image, self.mean, self.std)
        return self.model.apply({"params": params, **model_state}, pixels, train=False, method="encode_image")

    def logits(self, params: Any, model_state: Any, features: jax.Array, meta: jax.Array) -> dict[str, jax.Array]:
        variables = {"params": params, **model_state}
        tokens = self.model.apply(variables, features, meta, train=False, method="encode_tokens")
        return self.model.apply(variables, tokens, method="classify")

    def phase_sums(
        self,
        params: Any,
        model_state: Any,
        task_weights: jax.Array,
        features: jax.Array,
        batch: Mapping[str, jax.Array],
        keep: jax.Array,
        sums: Sums,
    ) -> Sums:
        """`sums` with one batch of one phase added; `keep` is bool [K]."""
        meta = meta_masking.zero_components(batch["meta"], keep[None, :], self.bounds)
        logits = self.logits(params, model_state, features, meta)
        label, weight = batch["label"], batch["weight"]
        per_sample = losses.task_loss_sums(
            logits, label, None, None, weight, jnp.ones_like(label, bool), self.criteria, self.class_weights
        ).per_sample
        weighted = per_sample @ task_weights
        rarity = batch["rarity"]
        if self.null_possible:
            rarity = jnp.where(label[:, 0] == 0, -1, rarity)  # an unknown species is neither rare nor common
        found = batch_sums(
            logits,
            label,
            weight,
            per_sample,
            weighted,
            null_possible=self.null_possible,
            extras=self.extras,
            membership={"taxa": batch["taxa_subset"], "rarity": rarity},
        )
        return add(sums, found)


class Evaluator:
    """The compiled evaluation of one run."""

    def __init__(self, program: EvaluationProgram, placement: Placement) -> None:
        self.program = program
        self.placement = placement
        replicated, batch = placement.replicated, placement.batch
        self._features = jax.jit(program.features, in_shardings=(replicated, replicated, batch), out_shardings=batch)
        self._phase = jax.jit(
            program.phase_sums,
            in_shardings=(replicated, replicated, replicated, batch, batch, replicated, replicated),
            out_shardings=replicated,
        )

    def run(
        self,
        params: Any,
        model_state: Any,
        task_weights: jax.Array,
        batches: Iterable[dict[str, np.ndarray]],
        phases: Mapping[str, np.ndarray],
        on_batch: Callable[[], None] = lambda: None,
    ) -> dict[str, dict[str, float]]:
        """Runs all `phases` (name -> keep-mask) over `batches`; returns phase -> metric -> value."""
        keeps = {name: self.placement.replicate(keep) for name, keep in phases.items()}
        sums = {name: self.placement.replicate(empty_sums(self.program.tasks, self.program.extras)) for name in phases}
        for batch in batches:
            self._add_batch(params, model_state, task_weights, batch, keeps, sums)
            on_batch()
        found = fetch(sums)
        results = {}
        for name in phases:
            values = summarise(found[name], self.program.tasks, self.program.extras)
            results[name] = {"loss": values["loss_unweighted"], **values} if "loss_unweighted" in values else values
        return results

    def _add_batch(
        self,
        params: Any,
        model_state: Any,
        task_weights: jax.Array,
        batch: Mapping[str, np.ndarray],
        keeps: Mapping[str, jax.Array],
        sums: dict[str, Sums],
    ) -> None:
        """Adds one batch to the sums of every phase."""
        used = {name: batch[name] for name in ("image", *USED)}
        placed = self.placement.to_device(used, self.placement.batch)
        features = self._features(params, model_state, placed.pop("image"))
        for name, keep in keeps.items():
            sums[name] = self._phase(params, model_state, task_weights, features, placed, keep, sums[name])
