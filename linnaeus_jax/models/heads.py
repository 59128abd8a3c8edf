"""Classification heads: features [B, D] to one array of logits [B, C] per task.

Every head is one affine map. A hierarchical head also takes the logits of the next coarser task, which have been
refined by then, and refines its own with them: ranks are computed once, coarse to fine. All of it is float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.hierarchy import (
    ORPHAN_PRIORS,
    ParentLinks,
    Parents,
    gumbel_noise,
    hard_log_prior,
    log_prior,
    path_log_probs,
)
from linnaeus_jax.models.layers import Linear, Softmax, weight_init
from linnaeus_jax.models.operations import wide
from linnaeus_jax.registry import HEADS

_SECTION = "model.classification.heads"
ROUTING_STRATEGIES = ("soft", "hard", "gumbel")
HIERARCHY_MODES = ("refine", "reference_unrefined")


class HeadSpec(NamedTuple):
    """One task's head.

    Attributes:
      parents: index of each class's parent among the classes of the next task, -1 for none; empty for a head that is
        not refined by the next task's logits.
    """

    task: str  # its name, such as taxa_L10
    num_classes: int  # classes of the task
    type: str  # name in the registry of heads
    options: tuple[tuple[str, Any], ...]  # (name, value)
    parents: tuple[int, ...] = ()


@HEADS.register("Linear")
class LinearHead(nn.Module):
    """One affine map, child `fc`, in float32."""

    num_classes: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, feats_BD: jax.Array) -> jax.Array:
        return Linear(self.num_classes, use_bias=self.use_bias, kernel_init=weight_init, name="fc")(feats_BD)


class HierarchicalHead(nn.Module):
    """Base of the heads that use the logits of the next coarser task: an affine map, child `fc`, and `refine`.

    A subclass whose `setup` makes further children calls `super().setup()`.
    """

    num_classes: int  # classes of the task
    use_bias: bool = True  # whether the affine map has one

    def setup(self) -> None:
        self.fc = Linear(self.num_classes, use_bias=self.use_bias, kernel_init=weight_init)

    def __call__(self, feats_BD: jax.Array) -> jax.Array:
        """Features float32 [B, D] -> base logits [B, C]."""
        return self.fc(feats_BD)

    def refine(
        self, logits_BC: jax.Array, parent_logits_BP: jax.Array, parents_C: np.ndarray, *, train: bool
    ) -> jax.Array:
        """Refined logits [B, C].

        Args:
          logits_BC: the head's base logits.
          parent_logits_BP: what the head of the next coarser task returned, refined where that head refines.
          parents_C: int32 [C], index of each class's parent in `parent_logits_BP`, -1 for none.
          train: whether draws of the rng stream `gumbel` are allowed.
        """
        raise NotImplementedError


class Refinement(nn.Module):
    """logits + log(p(parent) + 1e-10), where p routes the coarser rank: softmax((parent logits + noise) / temperature).

    Attributes:
      temperature: above 0; below 1 sharpens the routing.
      orphan_prior: `neutral` leaves the logits of classes without a parent as they are, `epsilon` makes them as
        unlikely as children of an impossible parent.
    """

    temperature: float = 1.0
    orphan_prior: str = "neutral"

    @nn.compact
    def __call__(
        self,
        logits_BC: jax.Array,
        parent_logits_BP: jax.Array,
        noise_BP: jax.Array | None = None,
        *,
        links: ParentLinks,
        hard: bool = False,
    ) -> jax.Array:
        """Refined logits [B, C].

        Args:
          noise_BP: added to the parents' logits before the softmax; None: nothing.
          links: of the C classes to the P parents.
          hard: all probability on the best parent.
        """
        if hard:
            return logits_BC + hard_log_prior(parent_logits_BP, links, self.orphan_prior)
        routing_BP = parent_logits_BP if noise_BP is None else parent_logits_BP + noise_BP
        prob_BP = Softmax(name="softmax")(routing_BP / self.temperature)
        return logits_BC + log_prior(prob_BP, links, self.orphan_prior)


class PathProduct(nn.Module):
    """`path_log_probs`: log p(parent) plus a log-softmax over siblings."""

    @nn.compact
    def __call__(self, logits_BC: jax.Array, parent_logits_BP: jax.Array, *, links: ParentLinks) -> jax.Array:
        return path_log_probs(logits_BC, parent_logits_BP, links)


@HEADS.register("ConditionalClassifier")
class ConditionalClassifier(HierarchicalHead):
    """Adds the logarithm of the parent's probability to every logit.

    Attributes:
      routing_strategy: how the coarser rank's logits become probabilities. `soft`: softmax. `hard`: outside of
        training, all on the best class. `gumbel`: in training, softmax of logits with Gumbel noise (Jang et al. 2017),
        drawn anew for every rank. Otherwise both are soft.
      temperature: divides the coarser rank's logits, in the routing alone.
      orphan_prior: `neutral` or `epsilon`, see `Refinement`.
    """

    routing_strategy: str = "soft"
    temperature: float = 1.0
    orphan_prior: str = "neutral"

    def __post_init__(self) -> None:
        if self.routing_strategy not in ROUTING_STRATEGIES:
            choices = ", ".join(ROUTING_STRATEGIES)
            raise InputError(f"routing_strategy = {self.routing_strategy!r} is unknown; choose one of {choices}")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature = {self.temperature!r} is out of range; it must be above 0 (neutral: 1)")
        _check_orphan_prior(self.orphan_prior)
        super().__post_init__()

    def setup(self) -> None:
        super().setup()
        self.refinement = Refinement(self.temperature, self.orphan_prior)

    def refine(
        self, logits_BC: jax.Array, parent_logits_BP: jax.Array, parents_C: np.ndarray, *, train: bool
    ) -> jax.Array:
        links = ParentLinks(parents_C, parent_logits_BP.shape[1])
        draws = train and self.routing_strategy == "gumbel"
        noise_BP = gumbel_noise(self.make_rng("gumbel"), parent_logits_BP.shape) if draws else None
        hard = self.routing_strategy == "hard" and not train
        return self.refinement(logits_BC, parent_logits_BP, noise_BP, links=links, hard=hard)


@HEADS.register("HierarchicalSoftmax")
class HierarchicalSoftmax(HierarchicalHead):
    """Adds the logarithm of the parent's probability to every logit: a soft `ConditionalClassifier`, temperature 1."""

    orphan_prior: str = "neutral"

    def __post_init__(self) -> None:
        _check_orphan_prior(self.orphan_prior)
        super().__post_init__()

    def setup(self) -> None:
        super().setup()
        self.refinement = Refinement(orphan_prior=self.orphan_prior)

    def refine(
        self, logits_BC: jax.Array, parent_logits_BP: jax.Array, parents_C: np.ndarray, *, train: bool
    ) -> jax.Array:
        return self.refinement(logits_BC, parent_logits_BP, links=ParentLinks(parents_C, parent_logits_BP.shape[1]))


@HEADS.register("PathSoftmax")
class PathSoftmax(HierarchicalHead):
    """Log-probabilities of paths through the tree, so that the children of a class never have more than it has.

    See `path_log_probs`. At the coarsest task, which has no parents, it is a Linear head.
    """

    def setup(self) -> None:
        super().setup()
        self.refinement = PathProduct()

    def refine(
        self, logits_BC: jax.Array, parent_logits_BP: jax.Array, parents_C: np.ndarray, *, train: bool
    ) -> jax.Array:
        return self.refinement(logits_BC, parent_logits_BP, links=ParentLinks(parents_C, parent_logits_BP.shape[1]))


def _check_orphan_prior(value: str) -> None:
    if value not in ORPHAN_PRIORS:
        raise InputError(f"orphan_prior = {value!r} is unknown; choose one of {', '.join(ORPHAN_PRIORS)}")


def head_specs(
    num_classes: Mapping[str, int],
    heads: Mapping[str, Mapping[str, Any]],
    parents: Mapping[str, Parents] | None = None,
    hierarchy_mode: str = "refine",
) -> tuple[HeadSpec, ...]:
    """Checks the heads' settings and returns them in the order of `num_classes`.

    Args:
      num_classes: task -> number of classes, in the order in which logits are returned, the finest task first.
      heads: the section `model.classification.heads`: task -> {"type": name, option: value ...}; tasks that are not
        listed get a Linear head with bias.
      parents: task -> [C] index of each class's parent among the classes of the next task, -1 for none; needed for the
        tasks with a hierarchical head, but for the coarsest.
      hierarchy_mode: `refine`, or `reference_unrefined` for hierarchical heads that return their base logits.

    Raises:
      ValueError: a head for a task that does not exist, an unknown head type, an option that the type does not have or
        a value that it refuses, parents that are missing or wrong.
    """
    unknown = [task for task in heads if task not in num_classes]
    if unknown:
        raise InputError(f"{_SECTION} names {unknown[0]!r}, which is no task; tasks are {', '.join(num_classes)}")
    if hierarchy_mode not in HIERARCHY_MODES:
        raise InputError(
            f"model.classification.hierarchy_mode = {hierarchy_mode!r} is unknown; choose one of "
            f"{', '.join(HIERARCHY_MODES)}"
        )
    coarser = dict(pairwise(num_classes))
    specs = []
    for task, count in num_classes.items():
        options = dict(heads.get(task, {}))
        kind = options.pop("type", "Linear")
        _check_head(task, kind, int(count), options)
        links: tuple[int, ...] = ()
        if _refines(kind) and task in coarser and hierarchy_mode == "refine":
            links = _checked_parents(task, kind, coarser[task], num_classes, parents or {})
        specs.append(HeadSpec(task, int(count), kind, tuple(sorted(options.items())), links))
    return tuple(specs)


def _refines(kind: str) -> bool:
    return isinstance(HEADS[kind], type) and issubclass(HEADS[kind], HierarchicalHead)


def _check_head(task: str, kind: str, count: int, options: Mapping[str, Any]) -> None:
    """ValueError where type or options cannot work."""
    if kind not in HEADS:
        raise InputError(f"{_SECTION}.{task}.type = {kind!r} is unknown; choose one of {', '.join(HEADS)}")
    if extra := sorted(options.keys() - HEADS.options(kind)):
        choices = ", ".join(HEADS.options(kind)) or "none"
        raise InputError(
            f"{_SECTION}.{task}.{extra[0]} = {options[extra[0]]!r} is no option of {kind}; its options: {choices}"
        )
    try:
        HEADS[kind](num_classes=count, parent=None, **options)
    except ValueError as error:  # a head refuses its options so
        raise InputError(f"{_SECTION}.{task}: {error}") from error


def _checked_parents(
    task: str, kind: str, coarser: str, num_classes: Mapping[str, int], parents: Mapping[str, Parents]
) -> tuple[int, ...]:
    """The parents of a task's classes; ValueError where there are none or they do not fit."""
    head = f"{_SECTION}.{task}.type = {kind!r}"
    if task not in parents:
        raise InputError(
            f"{head} needs the parent of every class in {coarser}; give labels from which the taxonomy can be read, or "
            "use Linear"
        )
    links, count, limit = np.asarray(parents[task]), num_classes[task], num_classes[coarser]
    if links.shape != (count,) or not np.issubdtype(links.dtype, np.integer):
        raise InputError(
            f"{head}: parents have shape {links.shape} and dtype {links.dtype}; give one integer for each of the "
            f"{count} classes"
        )
    wrong = np.flatnonzero((links < -1) | (links >= limit))
    if len(wrong):
        raise InputError(
            f"{head}: the parent of class {wrong[0]} is {links[wrong[0]]}; it must be below {limit}, the number of "
            f"classes of {coarser}, or -1 for none"
        )
    return tuple(links.tolist())


class ClassificationHeads(nn.Module):
    """All heads of a model, each a child named like its task.

    The type of a head is a Linen module with the field `num_classes`, registered in `HEADS`; fields with a default
    value are its options. A `HierarchicalHead` also refines its logits, as its own type and options say.
    """

    specs: tuple[HeadSpec, ...]  # one for each task, finest first

    @nn.compact
    def __call__(self, feats_BD: jax.Array, *, train: bool = False, refine: bool = True) -> dict[str, jax.Array]:
        """Maps features [B, D] to {task: float32 logits [B, C]} in task order.

        Args:
          train: whether heads may draw noise, from the rng stream `gumbel`.
          refine: False gives the base logits of every head. Static.
        """
        feats_BD = feats_BD.astype(wide(feats_BD.dtype))
        heads = {s.task: HEADS[s.type](num_classes=s.num_classes, name=s.task, **dict(s.options)) for s in self.specs}
        logits: dict[str, jax.Array] = {task: head(feats_BD) for task, head in heads.items()}
        for coarser, spec in pairwise(reversed(self.specs)):
            if refine and spec.parents:
                logits[spec.task] = heads[spec.task].refine(
                    logits[spec.task], logits[coarser.task], np.asarray(spec.parents, np.int32), train=train
                )
        return logits
