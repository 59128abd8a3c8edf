"""Evaluation: every validation batch is read once, and every due phase runs on it.

A phase (`metrics.phases.Phase`) says which metadata components the model sees, and which view of the pictures. The
convolutional stages do not see metadata and are computed once per batch and view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from linnaeus_jax.compat.jax_parts import compilations
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.learning import losses, meta_masking
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.metrics.extras import PhaseExtras, predict, signed_confidence
from linnaeus_jax.metrics.judged import Judged
from linnaeus_jax.metrics.phase import Sums, add, batch_sums, empty_sums, summarise
from linnaeus_jax.metrics.phases import MAIN, Phase
from linnaeus_jax.models.entering import in_two, mean_over_places
from linnaeus_jax.step.placement import Placement, RunAhead, fetch
from linnaeus_jax.step.process import LARGEST_COMPILER_FRAGMENT, compiler_options, retire_heap_fragments
from linnaeus_jax.step.row_scores import MISTAKE_FIELDS, SCORE_FIELDS, RowScores, judged_rows

#: columns of a batch that every phase needs besides the image
USED = ("label", "meta", "meta_valid", "weight", "row", "rarity", "taxa_subset")
#: names of the features of a row, beside its logits: as heads get them, and what enters a block of the trunk
VECTORS, ENTERING = "vectors", "entering"
#: name of the sums of losses with class weights, float32 [T]; only where they are on
CLASS_WEIGHTED = "loss_class_weighted"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Results of one pass over the data, by phase."""

    metrics: dict[str, dict[str, float]]
    #: phase -> task -> plots as of `PhaseExtras.curves`; in `val`, or the first phase where it did not run, also
    #: `class_counts`: [rows of each class, how many of them are predicted right]
    curves: dict[str, dict[str, dict[str, Any]]]
    predictions: dict[str, Judged]  # in the order of the split, without padding
    #: task -> wrong predictions of the phase `val`, as of `metrics.mistakes`; empty where it did not run
    mistakes: dict[str, dict[str, list[dict[str, Any]]]]
    #: phase -> sums that the metrics were computed from
    sums: dict[str, dict[str, np.ndarray]]
    #: phase -> labelled rows for which the outputs of the model are not finite
    not_finite: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EvaluationProgram:
    """Everything static that evaluation depends on."""

    model: nn.Module
    tasks: tuple[str, ...]
    component_names: tuple[str, ...]
    bounds: meta_masking.Bounds  # columns of every metadata component
    criteria: Mapping[str, losses.Criterion]
    class_weights: Mapping[str, np.ndarray] | None  # task -> float32 [C], of the losses; None: all 1
    preprocessing: Preprocessing
    null_possible: bool
    extras: PhaseExtras
    block: int | None = None  # see `Objective.block`
    entering: int | None = None  # block; what enters it is a vector of every row, too, unless another one is entered

    def features(self, params: Any, model_state: Any, image: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """uint8 [B, H, W, 3], or what enters a block of the model -> output of the stages that see no metadata, and
        `ENTERING` float32 [B, F] where it is wanted."""
        variables: Any = {"params": params, **model_state}
        if self.block is not None:
            features: Any = self.model.apply(variables, image, self.block, method="forward_suffix")
            return features, {ENTERING: mean_over_places(image)} if self.entering == self.block else {}
        pixels = normalize(image, self.preprocessing.mean, self.preprocessing.std)
        if self.entering is None:
            features = self.model.apply(variables, pixels, method="encode_image")
            return features, {}
        x, features = self.model.apply(variables, pixels, self.entering, method=in_two)
        return features, {ENTERING: mean_over_places(x)}

    def outputs(
        self, params: Any, model_state: Any, features: jax.Array, meta: jax.Array, valid: jax.Array
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """Logits, and the vectors [B, D] of `forward.layers_of`: with metadata, where these join before the end."""
        variables = {"params": params, **model_state}
        tokens = self.model.apply(variables, features, meta, meta_valid_BK=valid, method="encode_tokens")
        logits: Any = self.model.apply(variables, tokens, method="classify")
        vectors: Any = features if getattr(self.model, "fuses_late", False) else tokens
        return {task: logits[task] for task in self.tasks}, vectors  # JAX sorts the keys of a dict

    @property
    def used(self) -> tuple[str, ...]:
        """Columns of a batch that a phase needs besides the image."""
        subsets = ("subsets",) if self.extras.kinds else ()
        return USED + subsets + (("group",) if self.extras.custom else ())

    def empty_sums(self) -> Sums:
        """The sums of no row at all: those of `metrics.phase`, int32 [C, 2] of rows and hits per class, and losses with
        class weights where they are on."""
        classes = {f"classes/{task}": jnp.zeros((c.num_classes, 2), jnp.int32) for task, c in self.criteria.items()}
        weighted = {} if self.class_weights is None else {CLASS_WEIGHTED: jnp.zeros(len(self.tasks))}
        return empty_sums(self.tasks, self.extras) | classes | weighted

    def phase(
        self,
        params: Any,
        model_state: Any,
        task_weights: jax.Array,
        seen: tuple[jax.Array, Mapping[str, jax.Array]],
        batch: Mapping[str, jax.Array],
        component_mask: jax.Array,
        sums: Sums,
        samples: tuple[str, ...] = (),
    ) -> tuple[Sums, dict[str, Any]]:
        """`sums` with one batch of one phase added, and those fields of `Judged` that `samples` names; `score` is
        the `signed_confidence` of the rows.

        Args:
          seen: of the pictures, see `features`.
          component_mask: bool [K], metadata components shown to the model.
        """
        features, entering = seen
        meta = meta_masking.zero_components(batch["meta"], component_mask[None, :], self.bounds)
        valid = batch["meta_valid"] & component_mask[None, :]
        logits, vectors = self.outputs(params, model_state, features, meta, valid)
        predicted = jnp.stack([predict(z) for z in logits.values()], axis=1)
        best = [jnp.exp(z.max(axis=1) - jax.nn.logsumexp(z, axis=1)) for z in logits.values()]
        label, probability = batch["label"], jnp.stack(best, axis=1)
        counted = (batch["weight"] > 0)[:, None] & ((label != 0) | (not self.null_possible))
        fields = {
            "row": batch["row"],
            "label": label,
            "weight": batch["weight"],
            "predicted": predicted,
            "probability": probability,
            "score": signed_confidence(probability, predicted == label, counted),
            "logits": logits,
            VECTORS: {VECTORS: vectors.astype(jnp.float32), **entering},
        }
        columns = {**batch, "meta": meta, "meta_valid": valid}
        new = self._batch_sums(task_weights, logits, columns) | self._class_sums(predicted, batch)
        return add(sums, new), {name: fields[name] for name in samples}

    def _batch_sums(
        self, task_weights: jax.Array, logits: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
    ) -> Sums:
        label, weight, rarity = batch["label"], batch["weight"], batch["rarity"]
        numerator, per_sample = losses.task_loss_sums(
            logits, label, None, None, weight, jnp.ones_like(label, bool), self.criteria, self.class_weights
        )
        if self.null_possible:
            rarity = jnp.where(label[:, 0] == 0, -1, rarity)  # an unknown species is neither rare nor common
        return batch_sums(
            logits,
            label,
            weight,
            per_sample,
            per_sample @ task_weights,
            null_possible=self.null_possible,
            extras=self.extras,
            membership={"taxa": batch["taxa_subset"], "rarity": rarity},
            columns=batch,
        ) | ({} if self.class_weights is None else {CLASS_WEIGHTED: numerator})

    def _class_sums(self, predicted: jax.Array, batch: Mapping[str, jax.Array]) -> Sums:
        label, valid = batch["label"], batch["weight"] > 0
        class_sums = {}
        for t, (task, criterion) in enumerate(self.criteria.items()):
            counted = jnp.stack([valid, valid & (predicted[:, t] == label[:, t])], axis=1).astype(jnp.int32)
            class_sums[f"classes/{task}"] = (
                jnp.zeros((criterion.num_classes, 2), jnp.int32).at[label[:, t]].add(counted)
            )
        return class_sums


class Evaluator:
    """The compiled evaluation of one run."""

    def __init__(self, program: EvaluationProgram, placement: Placement) -> None:
        self.program = program
        self.placement = placement
        self._programs = 0  # compiled at the last look
        replicated, batch = placement.replicated, placement.batch
        options = compiler_options(training=False)
        self._features = jax.jit(
            program.features,
            in_shardings=(replicated, replicated, batch),
            out_shardings=batch,
            compiler_options=options,
        )
        self._view = jax.jit(
            lambda image, view: view(image),
            in_shardings=batch,
            out_shardings=batch,
            static_argnums=1,
            compiler_options=options,
        )
        self._phase = jax.jit(
            program.phase,
            in_shardings=(replicated, replicated, replicated, batch, batch, replicated, replicated),
            out_shardings=replicated,  # also of what is said of single rows, so that every process gets all of them
            static_argnums=7,
            compiler_options=options,
        )

    def run(
        self,
        params: Any,
        model_state: Any,
        task_weights: jax.Array,
        batches: Iterable[Mapping[str, object]],
        phases: Sequence[Phase],
        *,
        predictions: bool = False,
        logits: bool = False,
        vectors: bool = False,
        after_first: Callable[[Mapping[str, Sums]], None] | None = None,
    ) -> Evaluation:
        """Runs all `phases` over `batches`.

        Args:
          task_weights: float32 [T], for `loss_weighted`.
          predictions: also keep the predictions of every row.
          logits: with the predictions, keep all logits; large for many classes.
          vectors: beside the logits, keep the features as `VECTORS`, and `ENTERING` where the program gives it.
          after_first: gets the sums of every phase after one batch.
        """
        params = self.placement.whole(params)
        samples = ("row", "label", "weight", "predicted", "probability", *(("logits",) if logits else ()))
        samples = (*samples, *((VECTORS,) if vectors else ())) if predictions or logits else ()
        names = tuple(phase.name for phase in phases)
        scores = RowScores(names, self.program.tasks)
        fields = tuple(dict.fromkeys((*samples, *SCORE_FIELDS, *MISTAKE_FIELDS)))
        components = self.program.component_names
        shown = {phase: meta_masking.component_mask(components, phase.masked) for phase in phases}
        masks = {phase: self.placement.replicate(mask) for phase, mask in shown.items()}
        empty = jax.tree.map(np.asarray, self.program.empty_sums())
        sums = {name: self.placement.replicate(empty) for name in names}
        parts: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        ahead = RunAhead()
        for batch in batches:
            rows = self._add_batch(params, model_state, task_weights, batch, masks, sums, fields)
            ahead.add(jax.tree.leaves(sums)[:1])
            scores.add(rows)
            self._after_compilation()
            if samples:
                kept = {name: {field: values[field] for field in samples} for name, values in rows.items()}
                for name, part in fetch(kept).items():
                    parts[name].append(part)
            if after_first is not None:
                after_first(fetch(sums))
                after_first = None
        host_sums, rest = fetch((sums, scores.held))
        null_possible = self.program.null_possible
        by_phase = scores.result(rest)
        return Evaluation(
            metrics={name: self._metrics(host_sums[name], by_phase[name]) for name in names},
            curves=self._curves(host_sums, by_phase),
            predictions={name: judged_rows(batches, null_possible) for name, batches in parts.items() if batches},
            mistakes=scores.mistakes(),
            sums=host_sums,
            # of finite logits, the confidence is at least 1/C
            not_finite={name: int((score == 0).any(axis=1).sum()) for name, score in by_phase.items()},
        )

    def _add_batch(
        self,
        params: Any,
        model_state: Any,
        task_weights: jax.Array,
        batch: Mapping[str, object],
        masks: Mapping[Phase, jax.Array],
        sums: dict[str, Sums],
        samples: tuple[str, ...],
    ) -> dict[str, dict[str, Any]]:
        """Adds one batch to the sums of every phase; returns the named fields of its rows."""
        used = {name: np.asarray(batch[name]) for name in ("image", *self.program.used)}
        placed = self.placement.to_device(used, self.placement.batch)
        image, rows = placed.pop("image"), {}
        features: dict[Any, tuple[jax.Array, dict[str, jax.Array]]] = {}  # by view
        for phase, mask in masks.items():
            name, view = phase.name, phase.view
            if view not in features:
                shown = image if view is None else self._view(image, view)
                features[view] = self._features(params, model_state, shown)
            sums[name], rows[name] = self._phase(
                params, model_state, task_weights, features[view], placed, mask, sums[name], samples
            )
        return rows

    def _after_compilation(self) -> None:
        programs = compilations(self._features) + compilations(self._phase)
        if programs != self._programs:
            retire_heap_fragments(LARGEST_COMPILER_FRAGMENT)
        self._programs = programs

    def _metrics(self, sums: Mapping[str, np.ndarray], scores: np.ndarray) -> dict[str, float]:
        values = summarise(sums, self.program.tasks, self.program.extras, scores)
        for task in self.program.tasks:
            total, right = sums[f"classes/{task}"][int(self.program.null_possible) :].T
            if (seen := total > 0).any():
                values[f"macro_acc1_{task}"] = 100 * float((right[seen] / total[seen]).mean())
        if "loss_unweighted" not in values:
            return values
        if CLASS_WEIGHTED not in sums:
            return {"loss": values["loss_unweighted"], **values}
        means = sums[CLASS_WEIGHTED] / sums["count"]
        of_tasks = {f"loss_{task}": float(mean) for task, mean in zip(self.program.tasks, means, strict=True)}
        return {"loss": float(np.mean(means)), **values, **of_tasks}

    def _curves(
        self, sums: Mapping[str, Mapping[str, np.ndarray]], scores: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, dict[str, Any]]]:
        extras, tasks = self.program.extras, self.program.tasks
        curves = {name: extras.curves(sums[name], tasks, scores[name]) for name in sums}
        for shown in [name for name in sums if name == MAIN.name or MAIN.name not in sums][:1]:
            for task, found in curves[shown].items():
                # two long lists: a pair for each of 50,000 classes took most of the time of a small validation
                found["class_counts"] = sums[shown][f"classes/{task}"].T.tolist()
        return curves
