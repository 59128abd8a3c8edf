"""Classification heads: features [B, D] to one array of logits [B, C] per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.models.layers import Linear
from linnaeus_jax.registry import HEADS

#: parent of every class, an index or -1
Parents = Sequence[int] | np.ndarray


class HeadSpec(NamedTuple):
    """One task's head: its name, class count, type and options as (name, value) pairs.

    `parents` holds the index of each class's parent among the classes of the next task, -1 for none; it is empty for
    a head that is not refined by the next task's logits.
    """

    task: str
    num_classes: int
    type: str
    options: tuple[tuple[str, Any], ...]
    parents: tuple[int, ...] = ()


@HEADS.register("Linear")
class LinearHead(nn.Module):
    """One affine map, child `fc`, in float32."""

    num_classes: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, feats_BD: jax.Array) -> jax.Array:
        return Linear(self.num_classes, use_bias=self.use_bias, dtype=jnp.float32, name="fc")(feats_BD)


#: head types of Polli Linnaeus that are still to come
HIERARCHICAL = ("ConditionalClassifier", "HierarchicalSoftmax")


def head_specs(
    num_classes: Mapping[str, int],
    heads: Mapping[str, Mapping[str, Any]],
    parents: Mapping[str, Parents] | None = None,
    hierarchy_mode: str = "refine",
) -> tuple[HeadSpec, ...]:
    """Checks the heads' settings and returns them in the order of `num_classes`.

    Args:
      num_classes: task -> number of classes, in the order in which logits are returned.
      heads: the section `model.classification.heads`: task -> {"type": name, option: value ...}; tasks that are not
        listed get a Linear head with bias.

    Raises:
      ValueError: a head for a task that does not exist, an unknown head type, an option that the type does not have or
        a value that it refuses.
    """
    section = "model.classification.heads"
    unknown = [task for task in heads if task not in num_classes]
    if unknown:
        raise ValueError(f"{section} names {unknown[0]!r}, which is no task; tasks are {', '.join(num_classes)}")
    specs = []
    for task, count in num_classes.items():
        options = dict(heads.get(task, {}))
        kind = options.pop("type", "Linear")
        if kind in HIERARCHICAL:
            raise ValueError(
                f"{section}.{task}.type = {kind!r}: hierarchical heads come with a later version; until then use "
                "Linear for every task"
            )
        if kind not in HEADS:
            raise ValueError(f"{section}.{task}.type = {kind!r} is unknown; choose one of {', '.join(HEADS)}")
        if extra := sorted(options.keys() - HEADS.options(kind)):
            choices = ", ".join(HEADS.options(kind)) or "none"
            raise ValueError(
                f"{section}.{task}.{extra[0]} = {options[extra[0]]!r} is no option of {kind}; its options: {choices}"
            )
        try:
            HEADS[kind](num_classes=int(count), parent=None, **options)
        except ValueError as error:
            raise ValueError(f"{section}.{task}: {error}") from error
        specs.append(HeadSpec(task, int(count), kind, tuple(sorted(options.items()))))
    return tuple(specs)


class ClassificationHeads(nn.Module):
    """All heads of a model, each a child named like its task.

    The type of a head is a Linen module with the field `num_classes`, registered in `HEADS`; fields with a default
    value are its options.
    """

    specs: tuple[HeadSpec, ...]

    @nn.compact
    def __call__(self, feats_BD: jax.Array, *, train: bool = False, refine: bool = True) -> dict[str, jax.Array]:
        """Maps features [B, D] to {task: float32 logits [B, C]} in task order."""
        feats_BD = feats_BD.astype(jnp.float32)
        heads = {s.task: HEADS[s.type](num_classes=s.num_classes, name=s.task, **dict(s.options)) for s in self.specs}
        return {task: head(feats_BD) for task, head in heads.items()}
