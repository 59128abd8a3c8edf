"""Classification heads: features [B, D] to one array of logits [B, C] per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.layers import Linear


class HeadSpec(NamedTuple):
    """One task's head: its name, class count, type and options as (name, value) pairs."""

    task: str
    num_classes: int
    type: str
    options: tuple[tuple[str, Any], ...]


class LinearHead(nn.Module):
    """One affine map, child `fc`, in float32."""

    num_classes: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, feats_BD: jax.Array) -> jax.Array:
        return Linear(self.num_classes, use_bias=self.use_bias, dtype=jnp.float32, name="fc")(feats_BD)


#: head type -> (module, names of its options)
HEAD_TYPES: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {"Linear": (LinearHead, ("use_bias",))}
#: head types of Polli Linnaeus that are still to come
HIERARCHICAL = ("ConditionalClassifier", "HierarchicalSoftmax")


def head_specs(num_classes: Mapping[str, int], heads: Mapping[str, Mapping[str, Any]] | None) -> tuple[HeadSpec, ...]:
    """Checks the heads' settings and returns them in the order of `num_classes`; the default type is Linear.

    Args:
      num_classes: task -> number of classes, in the order in which logits are returned.
      heads: task -> {"type": name, option: value ...}; tasks that are not listed get a Linear head with bias.

    Raises:
      ValueError: no task, a task name that is no identifier, a class count below 1, a head for a task that does not
        exist, an unknown head type or an option that the type does not have.
    """
    heads = heads or {}
    if not num_classes:
        raise ValueError("num_classes names no task; give at least one task with its number of classes")
    unknown = [task for task in heads if task not in num_classes]
    if unknown:
        raise ValueError(f"heads.{unknown[0]}: no such task; the tasks are {', '.join(num_classes)}")
    specs = []
    for task, count in num_classes.items():
        if not task.isidentifier():
            raise ValueError(f"task name {task!r} must consist of letters, digits and _, and not start with a digit")
        if int(count) < 1:
            raise ValueError(f"num_classes[{task!r}] is {count}; a task needs at least one class")
        options = dict(heads.get(task, {}))
        kind = options.pop("type", "Linear")
        if kind in HIERARCHICAL:
            raise ValueError(
                f"heads.{task}.type is {kind!r}: hierarchical heads come with a later version; until then use Linear "
                "for every task"
            )
        if kind not in HEAD_TYPES:
            raise ValueError(f"heads.{task}.type is {kind!r}; known types: {', '.join(sorted(HEAD_TYPES))}")
        extra = sorted(set(options) - set(HEAD_TYPES[kind][1]))
        if extra:
            raise ValueError(f"heads.{task}.{extra[0]}: {kind} has no such option; it takes {HEAD_TYPES[kind][1]}")
        specs.append(HeadSpec(task, int(count), kind, tuple(sorted(options.items()))))
    return tuple(specs)


class ClassificationHeads(nn.Module):
    """All heads of a model, each a child named like its task."""

    specs: tuple[HeadSpec, ...]

    @nn.compact
    def __call__(self, feats_BD: jax.Array) -> dict[str, jax.Array]:
        """Maps features [B, D] to {task: float32 logits [B, C]} in task order."""
        feats_BD = feats_BD.astype(jnp.float32)
        return {
            spec.task: HEAD_TYPES[spec.type][0](num_classes=spec.num_classes, name=spec.task, **dict(spec.options))(
                feats_BD
            )
            for spec in self.specs
        }
