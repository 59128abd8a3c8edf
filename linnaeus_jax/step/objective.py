"""The loss: from a batch to the weighted task losses, as pure functions.

`build_targets` decides everything about targets (mixing, null inclusion, valid counts) for a whole update from labels
and partners alone; `task_losses` then does the work of one micro-batch. Because the counts come first, one big batch,
accumulated micro-batches and sharded batches give the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from numpy.typing import NDArray

from linnaeus_jax.config.derived import NullMasking
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.learning import losses, meta_masking, mixing, null_masking
from linnaeus_jax.learning.augmentation import AugmentSettings, augment, normalize, row_keys
from linnaeus_jax.learning.gradnorm import GradNormSettings
from linnaeus_jax.metrics.extras import PhaseExtras
from linnaeus_jax.metrics.phase import batch_sums
from linnaeus_jax.models.family import RNG_STREAMS
from linnaeus_jax.schedules.probabilities import Probabilities
from linnaeus_jax.schedules.resolved import PartialMasking
from linnaeus_jax.step.rng import stream
from linnaeus_jax.step.state import Statistics

Step = jax.Array
Batch = Mapping[str, jax.Array]
#: of single rows, for probes: `preview`, int32 [R, T], predicted classes of the first rows; `sample_losses`, float32
#: [B, T], neither masked nor weighted
RowResults = dict[str, jax.Array]


class Targets(struct.PyTreeNode):
    """Targets of one update, leading [A]; see `data/batch.py` for the letters."""

    draws: mixing.MixDraws | None  # one per micro-batch; None where nothing is ever mixed
    partner_label: jax.Array  # int32 [A, B, T], the row's own label where it is not mixed
    lam: jax.Array  # float32 [A, B], weight of the row's own label
    loss_mask: jax.Array  # bool [A, B, T], whether the label counts in the loss
    null: jax.Array  # bool [A, B, T], whether the (mixed) label is null


class ModelInputs(NamedTuple):
    """What the model is given of a micro-batch."""

    image: jax.Array  # float [B, H, W, 3], normalised; or what enters `Objective.block`
    meta: jax.Array  # float32 [B, D]
    valid: jax.Array  # bool [B, K], components that are present and not masked
    masked: jax.Array  # int32 [B], how the metadata of each row were masked, see `meta_masking`


@dataclass(frozen=True, eq=False)
class MaskSettings:
    """Random masking of metadata in training."""

    combos: NDArray[np.bool_]  # [n, K]
    log_weights: NDArray[np.float32]  # [n]

    @classmethod
    def build(cls, partial: PartialMasking, components: tuple[str, ...]) -> MaskSettings:
        whitelist = partial.whitelist if partial.enabled else ()
        return cls(*meta_masking.combo_table(whitelist, partial.weights if partial.enabled else (), components))


@dataclass(frozen=True, eq=False)
class Objective:
    """Everything static that the loss depends on."""

    model: nn.Module
    tasks: tuple[str, ...]
    bounds: meta_masking.Bounds  # columns of every metadata component
    seed: int
    criteria: Mapping[str, losses.Criterion]
    class_weights: Mapping[str, np.ndarray] | None
    null_possible: bool
    null_masking: NullMasking
    augmentation: AugmentSettings
    preprocessing: Preprocessing
    mix: mixing.MixSettings | None
    masking: MaskSettings | None
    probabilities: Probabilities
    extras: PhaseExtras  # what the log says of training besides losses and accuracies
    block: int | None = None  # of the model, which what is stored of the pictures enters; None: pictures are given
    preview_rows: int = 0  # rows whose predictions the update reports
    gather: Callable[[Any], Any] | None = None  # of parameters that are split over the devices: the whole ones

    def key(self, name: str, step: Step) -> jax.Array:
        """Key of a named stream at `step`."""
        return jax.random.fold_in(stream(self.seed, name), step)

    def build_targets(self, batch: Batch, step: Step) -> tuple[Targets, jax.Array]:
        """Targets of the update and the valid count of every task.

        Args:
          batch: leading [A, B].
          step: int32 [].

        Returns:
          (targets, float32 [T] labels that count in the loss of the whole update).
        """
        label, weight = batch["label"], batch["weight"]
        draws, partner_label, lam = None, label, jnp.ones_like(weight)
        if self.mix is not None:
            draws, partner_label, lam = jax.vmap(self._mix_targets, in_axes=(0, 0, 0, 0, None))(
                jnp.arange(label.shape[0]), label, batch["partner"], batch["group"], step
            )
        null = null_masking.null_mask(label, partner_label, lam, null_possible=self.null_possible)
        uniforms = None
        if self.null_masking == "scheduled":
            uniforms = null_masking.inclusion_uniforms(self.key("null_inclusion", step), weight.shape, label.shape[-1])
        loss_mask = null_masking.loss_mask(
            null,
            probability=None if uniforms is None else self.probabilities.null_mask(step),
            uniforms=uniforms,
            phase1=self.null_masking == "always",
        )
        return Targets(draws, partner_label, lam, loss_mask, null), losses.label_counts(loss_mask, weight)

    def _mix_targets(
        self, index: jax.Array, label: jax.Array, partner: jax.Array, group: jax.Array, step: Step
    ) -> tuple[mixing.MixDraws, jax.Array, jax.Array]:
        """Draws, `partner_label` and `lam` of one micro-batch."""
        assert self.mix is not None
        size = self.model.img_size
        key = jax.random.fold_in(self.key("mix", step), index)
        draws = mixing.draw_mix(key, self.probabilities.mix(step), label.shape[0], size, self.mix)
        return draws, *mixing.mix_labels(label, partner, group, draws, settings=self.mix, image_size=size)

    def task_losses(
        self,
        params: Any,
        model_state: Any,
        micro: Batch,
        targets: Targets,
        counts: jax.Array,
        step: Step,
        index: jax.Array,
    ) -> tuple[jax.Array, tuple[Any, Statistics, RowResults]]:
        """The micro-batch's share of every task's mean loss.

        Args:
          micro, targets: one micro-batch, without the leading axis.
          counts: float32 [T] of `build_targets`.
          index: int32 [], which micro-batch of the update.

        Returns:
          (float32 [T], (`model_state` after it, what training logs, results of single rows)).
        """
        inputs = self.inputs(micro, targets, step)
        variables, options = self._call(params, model_state, inputs.valid, micro["weight"], step, index)
        logits, new_state = self.model.apply(variables, inputs.image, inputs.meta, **options)
        logits = {task: logits[task] for task in self.tasks}  # JAX sorts the keys of a dict
        with jax.named_scope("losses"):
            task_losses = self._loss_sums(logits, micro, targets, targets.loss_mask)
        with jax.named_scope("metrics"):
            statistics, rows = self._statistics(logits, micro, targets, inputs, task_losses.per_sample)
        # a micro-batch of nothing but padding, which fills up the last update of an epoch, leaves no trace
        has_rows = (micro["weight"] > 0).any()
        new_state = jax.tree.map(lambda new, old: jnp.where(has_rows, new, old), new_state, model_state)
        return task_losses.numerator / jnp.maximum(counts, 1.0), (new_state, statistics, rows)

    def _statistics(
        self,
        logits: Mapping[str, jax.Array],
        micro: Batch,
        targets: Targets,
        inputs: ModelInputs,
        sample_losses: jax.Array,
    ) -> tuple[Statistics, RowResults]:
        """Of a micro-batch, before it is known whether the update is made; nothing is differentiated."""
        logits = {task: jax.lax.stop_gradient(z) for task, z in logits.items()}  # JAX sorts the keys of a dict
        sample_losses = jax.lax.stop_gradient(sample_losses)
        sums = batch_sums(
            logits,
            jnp.where(targets.lam[:, None] >= 0.5, micro["label"], targets.partner_label),
            micro["weight"],
            sample_losses,
            jnp.zeros_like(micro["weight"]),  # the weighted total is known once per update
            null_possible=self.null_possible,
            extras=self.extras,
            membership={"metadata": inputs.masked},
            columns={**micro, "meta": inputs.meta, "meta_valid": inputs.valid},
        )
        valid = (micro["weight"] > 0)[:, None]
        null = targets.null & valid
        statistics = Statistics(
            sums=sums,
            grad_norm=jnp.zeros((), jnp.float32),
            updates=jnp.zeros((), jnp.int32),
            meta_valid=(inputs.valid & valid).sum(axis=0, dtype=jnp.int32),
            null_total=null.sum(axis=0, dtype=jnp.int32),
            null_included=(null & targets.loss_mask).sum(axis=0, dtype=jnp.int32),
        )
        preview = [jnp.argmax(z[: self.preview_rows], axis=-1).astype(jnp.int32) for z in logits.values()]
        return statistics, {"preview": jnp.stack(preview, axis=1), "sample_losses": sample_losses}

    def labelled_losses(
        self,
        params: Any,
        model_state: Any,
        micro: Batch,
        targets: Targets,
        counts: jax.Array,
        step: Step,
        index: jax.Array,
        how: GradNormSettings,
    ) -> jax.Array:
        """Task losses over the labelled samples alone, for GradNorm: float32 [T], as `task_losses` otherwise.

        The model's running statistics are not touched.

        Args:
          how: without metadata or with them, and whether hierarchical heads see the logits of the coarser ranks.
        """
        image, meta, valid, _ = self.inputs(micro, targets, step)
        if how.zero_metadata:
            meta, valid = jnp.zeros_like(meta), jnp.zeros_like(valid)
        variables, options = self._call(params, model_state, valid, micro["weight"], step, index)
        logits, _ = self.model.apply(variables, image, meta, refine=how.refine, **options)
        return self._loss_sums(logits, micro, targets, ~targets.null).numerator / jnp.maximum(counts, 1.0)

    def _loss_sums(
        self, logits: Mapping[str, jax.Array], micro: Batch, targets: Targets, loss_mask: jax.Array
    ) -> losses.TaskLosses:
        partner_label = targets.partner_label if self.mix is not None else None
        return losses.task_loss_sums(
            logits,
            micro["label"],
            partner_label,
            targets.lam,
            micro["weight"],
            loss_mask,
            self.criteria,
            self.class_weights,
        )

    def inputs(self, micro: Batch, targets: Targets, step: Step) -> ModelInputs:
        """Augmented, mixed and masked inputs of the model."""
        if self.block is None:
            with jax.named_scope("augment"):
                image = augment(micro["image"], micro["row"], self.key("augment", step), self.augmentation)
        else:  # augmented and normalised when it was stored; see `run/stored.py`
            image = micro["image"]
        meta, valid = micro["meta"], micro["meta_valid"]
        if self.mix is not None:
            assert targets.draws is not None
            with jax.named_scope("mix"):
                image, meta, valid = mixing.mix_inputs(
                    image,
                    meta,
                    valid,
                    micro["partner"],
                    micro["group"],
                    targets.draws,
                    settings=self.mix,
                    bounds=self.bounds,
                )
        masked = jnp.full(micro["row"].shape, meta_masking.NONE, jnp.int32)
        if self.masking is not None:
            with jax.named_scope("mask_metadata"):
                keys = row_keys(self.key("mask_metadata", step), micro["row"])
                meta, valid, masked = meta_masking.mask_metadata(
                    meta,
                    valid,
                    p_full=self.probabilities.meta_mask(step),
                    p_partial=self.probabilities.partial_mask(step),
                    partial_active=self.probabilities.partial_active(step),
                    draws=meta_masking.draw_masks(keys),
                    combos=self.masking.combos,
                    log_weights=self.masking.log_weights,
                    bounds=self.bounds,
                )
        if self.block is None:
            image = normalize(image, self.preprocessing.mean, self.preprocessing.std)
        return ModelInputs(image, meta, valid, masked)

    def _call(
        self, params: Any, model_state: Any, valid: jax.Array, weight: jax.Array, step: Step, index: jax.Array
    ) -> tuple[Any, dict[str, Any]]:
        """Variables and options with which the model is applied in training."""
        options = {
            "meta_valid_BK": valid,
            "row_weight_B": weight,
            "train": True,
            "rngs": {name: jax.random.fold_in(self.key(name, step), index) for name in RNG_STREAMS},
            "mutable": list(model_state),
            **({} if self.block is None else {"block": self.block}),
        }
        whole = params if self.gather is None else self.gather(params)
        return {"params": whole, **model_state}, options
